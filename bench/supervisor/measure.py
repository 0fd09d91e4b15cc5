#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure a supervisor under a real systemd, on the host, as root: what it costs, and how soon it notices.

Prints one JSON object. Each fault is planted into the serving unit, which systemd then starts again; times are of the
kernel's monotonic clock (systemd's own, and the journal's). Standard library only: the host's bare Python runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
KEY: str | None = None


def systemctl(*words: str, check: bool = True) -> str:
    """Run systemctl and return what it prints."""
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        sys.exit(f"systemctl {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def show(unit: str, *names: str) -> dict[str, str]:
    """Return properties of a unit."""
    shown = systemctl("show", f"--property={','.join(names)}", unit)
    return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)


def main_pid(unit: str) -> int:
    """Return the supervisor's process number; never 0, with which kill(2) would mean this program's own group."""
    pid = int(show(unit, "MainPID")["MainPID"])
    if pid <= 1:
        sys.exit(f"{unit} has no main process")
    return pid


def wait(what: str, condition: Callable[[], bool], seconds: float, pause: float = 0.05) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"waited {seconds:.0f} s in vain: {what}")
        time.sleep(pause)


def start(unit: str) -> None:
    """Have the unit serve, its counter of starts at zero."""
    systemctl("reset-failed", unit, check=False)
    systemctl("start", unit)


# ---- processes


def children(pid: int) -> list[int]:
    """Return the processes below ``pid``, itself left out."""
    below: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            below += [int(child) for child in (task / "children").read_text().split()]
    return below + [deeper for child in below for deeper in children(child) if Path(f"/proc/{child}").exists()]


def title(pid: int) -> str:
    """Return a process's title."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def worker(unit: str, name: str) -> int:
    """Return the process whose title holds ``name``, or the one with that place in the tree (``#1``)."""
    tree = children(main_pid(unit))
    found = tree[int(name[1:]) :][:1] if name.startswith("#") else [pid for pid in tree if name in title(pid)]
    if not found:
        sys.exit(f"no process of {unit} has {name!r} in its title: {[title(p) for p in children(main_pid(unit))]}")
    return found[0]


def pss_kib(pid: int) -> int:
    """Return a process's proportional set size."""
    rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("Pss:"))


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def survivors(user: str, before: frozenset[int]) -> list[str]:
    """Return processes of the service's user that were not there before."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) not in before:
            with contextlib.suppress(OSError, KeyError):
                status = (folder / "status").read_text()
                if folder.owner() == user and "\nState:\tZ" not in status:
                    found.append(f"{folder.name} {title(int(folder.name))}")
    return found


# ---- load


def complete(port: int, model: str, tokens: int) -> bool:
    """Stream one completion; tell whether it came to its end."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {KEY}"} if KEY else {})
    wish = {"model": model, "prompt": "count words", "max_tokens": tokens, "temperature": 0}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", "/v1/completions", json.dumps(wish), headers)
        answer = connection.getresponse()
        return answer.status == 200 and bool(answer.read())  # noqa: PLR2004 - HTTP's own number
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


@contextlib.contextmanager
def load(clients: int, port: int, model: str) -> Iterator[list[int]]:
    """Keep clients asking; the list counts answers that came and that did not."""
    ended, counts = threading.Event(), [0, 0]

    def ask() -> None:
        while not ended.is_set():
            counts[0 if complete(port, model, 24) else 1] += 1
            time.sleep(0.02)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        ended.set()
        for thread in threads:
            thread.join(150)


# ---- measurements


def cost(unit: str, seconds: float) -> dict[str, float]:
    """Return the supervisor's memory and its share of one core."""
    pid = main_pid(unit)
    used, began = cpu_seconds(pid), time.monotonic()
    time.sleep(seconds)
    share = (cpu_seconds(pid) - used) / (time.monotonic() - began)
    return {"pss_mb": round(pss_kib(pid) / 1024, 2), "cpu_percent": round(share * 100, 3), "seconds": seconds}


def first_answer(unit: str, since_us: int) -> float | None:
    """Return when the engine logged its first answered completion after a start, in monotonic seconds."""
    words = ["journalctl", "--unit", unit, "--output=json", "--no-pager", "--boot"]
    for line in subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines():
        entry = json.loads(line)
        at = int(entry["__MONOTONIC_TIMESTAMP"])
        if at >= since_us and "/v1/completions" in str(entry.get("MESSAGE")) and " 200" in str(entry.get("MESSAGE")):
            return at / 1e6
    return None


def readiness(unit: str) -> dict[str, float | None]:
    """Return how long after the engine's first answer the unit was active, and how long the whole start took."""
    systemctl("stop", unit)
    start(unit)
    names = ("ActiveEnterTimestampMonotonic", "InactiveExitTimestampMonotonic")
    shown = {name: int(value) for name, value in show(unit, *names).items()}
    active, began = shown[names[0]], shown[names[1]]
    answered = first_answer(unit, began)
    delay = round(active / 1e6 - answered, 3) if answered else None
    return {"ready_after_first_generation_s": delay, "start_s": round((active - began) / 1e6, 1)}


def noticed(unit: str, plant: Callable[[], None], seconds: float) -> dict[str, Any]:
    """Plant a fault; return when the supervisor said so, and when it had ended with all of the engine."""
    invocation, supervisor = show(unit, "InvocationID")["InvocationID"], Path(f"/proc/{main_pid(unit)}")
    began = time.clock_gettime(time.CLOCK_MONOTONIC)
    plant()
    wait("the supervisor ends", lambda: not supervisor.exists(), seconds, 0.01)
    ended = "ExecMainExitTimestampMonotonic"
    wait("systemd has seen it", lambda: int(show(unit, ended)[ended]) / 1e6 >= began, 30)
    shown = show(unit, ended, "Result")
    said = _first_line(invocation, began)
    return {
        "noticed_s": round(said - began, 3) if said else None,
        "ended_s": round(int(shown[ended]) / 1e6 - began, 3),
        "result": shown["Result"],
    }


def _first_line(invocation: str, since: float) -> float | None:
    """Return when the supervisor first spoke of an error, in monotonic seconds."""
    match = f"_SYSTEMD_INVOCATION_ID={invocation}"
    words = ["journalctl", match, "--output=json", "--no-pager", "--boot", "--priority=err"]
    for line in subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines():
        at = int(json.loads(line)["__MONOTONIC_TIMESTAMP"]) / 1e6
        if at >= since and "supervisor: " in str(json.loads(line).get("MESSAGE")):
            return at
    return None


def faults(unit: str, scheduler: str, detokenizer: str, freeze_bound: float) -> dict[str, Any]:
    """Plant each fault into the serving unit and wait until it serves again."""
    plans = [
        ("main process killed", "", signal.SIGKILL, 30.0),
        ("scheduler killed", scheduler, signal.SIGKILL, 30.0),
        ("scheduler stopped", scheduler, signal.SIGSTOP, freeze_bound + 60),
        *([("detokenizer killed", detokenizer, signal.SIGKILL, 30.0)] if detokenizer else []),
    ]
    results = {}
    for name, target, number, seconds in plans:
        start(unit)
        time.sleep(7)  # past the first probe
        victim = worker(unit, target)  # the empty name is in every title: the engine's main process is the first
        results[name] = noticed(unit, functools.partial(os.kill, victim, number), seconds)
        systemctl("stop", unit)
    return results


def watchdog_s(unit: str) -> float:
    """Return the unit's watchdog period as the supervisor was told of it."""
    pairs = Path(f"/proc/{main_pid(unit)}/environ").read_bytes().split(b"\0")
    return next(int(pair.partition(b"=")[2]) / 1e6 for pair in pairs if pair.startswith(b"WATCHDOG_USEC="))


def cycles(unit: str, count: int, clients: int, settings: dict[str, Any], *, user: str) -> dict[str, Any]:
    """Start and stop under load; return what was left behind, which is to be nothing."""
    systemctl("stop", unit)
    before = frozenset(int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208
    left: list[str] = []
    failed = 0
    stops: list[float] = []
    with load(clients, settings["port"], settings["model"]) as counts:
        for _ in range(count):
            start(unit)
            wait("requests are answered", functools.partial(_more, counts, counts[0]), 60)
            began = time.monotonic()
            systemctl("stop", unit)
            stops.append(time.monotonic() - began)
            failed += show(unit, "Result")["Result"] != "success"
            left += survivors(user, before)
            left += [f"cgroup {path}" for path in Path("/sys/fs/cgroup").glob(f"**/{unit}") if _populated(path)]
    return {
        "cycles": count, "clients": clients, "answers": counts[0], "left_behind": left, "stops_not_clean": failed,
        "longest_stop_s": round(max(stops, default=0.0), 1),
    }  # fmt: skip


def _more(counts: list[int], than: int) -> bool:
    return counts[0] > than


def _populated(cgroup: Path) -> bool:
    with contextlib.suppress(OSError):
        return bool((cgroup / "cgroup.procs").read_text().strip())
    return False


def main() -> int:
    """Run the program."""
    global KEY  # noqa: PLW0603 - one program, one server
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("unit")
    parser.add_argument(
        "--cost", type=float, default=60, metavar="S", help="watch memory and CPU for S seconds; 0: not"
    )
    parser.add_argument("--faults", action="store_true", help="plant faults")
    parser.add_argument("--scheduler", default="sglang::scheduler", help="what its title holds, or #N: its place")
    parser.add_argument(
        "--detokenizer", default="sglang::detokenizer", help="what its title holds; empty: there is none"
    )
    parser.add_argument("--cycles", type=int, default=0, metavar="N", help="start and stop N times under load")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--user", default="inference")
    options = parser.parse_args()
    instance = options.unit.partition("@")[2].removesuffix(".service")
    settings = json.loads(Path(f"/etc/inference/{instance}/supervisor.json").read_text())
    if settings.get("api_key_file"):
        KEY = Path(f"/etc/inference/{instance}/api-key").read_text().strip()
    start(options.unit)
    result: dict[str, Any] = {"unit": options.unit, "kernel": platform.release(), "python": platform.python_version()}
    result["systemd"] = systemctl("--version").split()[1]
    result["engine"] = title(next(iter(children(main_pid(options.unit)))))[:160]
    result |= readiness(options.unit)
    if options.cost:
        result["idle"] = cost(options.unit, options.cost)
        with load(options.clients, settings["port"], settings["model"]):
            result["under load"] = cost(options.unit, options.cost)
    if options.faults:
        one = max(settings["probe_timeout_s"] + 2, settings["probe_interval_s"])
        bound = settings["probe_interval_s"] + settings["failed_probes"] * one
        result["freeze_bound_s"], result["watchdog_s"] = bound, watchdog_s(options.unit)
        result["faults"] = faults(options.unit, options.scheduler, options.detokenizer, bound)
    if options.cycles:
        result["cycles"] = cycles(options.unit, options.cycles, options.clients, settings, user=options.user)
    print(json.dumps(result, indent=1))
    start(options.unit)
    return 0


if __name__ == "__main__":
    sys.exit(main())
