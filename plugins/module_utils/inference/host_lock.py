# SPDX-License-Identifier: Apache-2.0
"""One lock a host, so that two operators never change it at once: who holds it, since when, and whether that is over.

The lock is a file on the host. It names the run that holds it: a process on a controller, told apart from any other by
the controller's boot and the process's start. Nobody's lock expires by itself: a run may take hours, and a controller
that is gone may have left a host half changed, which somebody should look at before the next change.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import re
import socket
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from .atomic import alone, write_atomically
from .findings import Finding

FILE = "lock.json"
ROOT = Path("/var/lib/inference")
"""Where a host keeps the lock: on disk, since a reboot does not end the run that asked for it."""

PROC = Path("/proc")
PROGRAM = re.compile(r"ansible(-[a-z]+)?")
"""The names of programs that run a playbook."""

State = Literal["taken", "ours", "taken-over", "refused"]


class HostLockError(Exception):
    """The lock's file cannot be read."""


@dataclass(frozen=True)
class Holder:
    """A run: the process that changes hosts, and who started it where."""

    run: str
    """Id of the run: the first 12 hex digits of a hash over boot, process and its start."""
    user: str
    controller: str
    boot: str
    """Boot id of the controller: the name of a machine may be given twice, this is not."""
    pid: int
    command: str
    """What is run, such as ``site.yml --limit gpu-1``; values of options that may hold secrets are left out."""
    since: str = ""
    """When the host was locked, by the host's clock (UTC)."""

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Holder:
        """Read the JSON form. Raises HostLockError for what is none."""
        try:
            return cls(**{field.name: given[field.name] for field in fields(cls)})
        except (KeyError, TypeError) as error:
            raise HostLockError(f"not the record of a run ({error!r})") from error


@dataclass(frozen=True)
class Outcome:
    """What came of asking for the lock. ``holder`` is who holds it now, ``before`` whom it was taken from."""

    state: State
    holder: Holder
    before: Holder | None = None


# --- on the controller ------------------------------------------------------------------------------------------------


def living(proc: Path = PROC) -> dict[int, str]:
    """Return the runs on this controller by process number: every process of Ansible's."""
    boot = _boot(proc)
    found = {}
    for folder in proc.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(PROGRAM.fullmatch(Path(word).name) for word in _words(folder)[:2]):
                found[int(folder.name)] = _run(boot, int(folder.name), _start(folder))
    return found


def own(proc: Path = PROC, pid: int | None = None) -> Holder:
    """Return the run that this process belongs to, by the process that began it.

    Ansible works in children of its own; all of them belong to one run. A playbook that a program runs which another
    playbook has started is a run of its own.
    """
    runs = living(proc)
    number = mine = pid or os.getpid()
    while number > 1 and (number in runs or mine not in runs):
        mine = number if number in runs else mine
        number = _parent(proc / str(number))
    folder = proc / str(mine)
    return Holder(
        run=runs.get(mine) or _run(_boot(proc), mine, _start(folder)),
        user=getpass.getuser(), controller=socket.gethostname(), boot=_boot(proc), pid=mine,
        command=_command(_words(folder)),
    )  # fmt: skip


def _words(folder: Path) -> list[str]:
    return (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]


def _command(words: list[str]) -> str:
    """Return the playbooks of a command line and how it was limited: nothing else is anybody's business."""
    shown = [Path(word).name for word in words if word.endswith((".yml", ".yaml")) and not word.startswith("-")]
    for word, value in zip(words, [*words[1:], ""], strict=True):
        shown += [f"{word} {value}"] if word in ("-l", "--limit", "-t", "--tags") else []
        shown += [word] if word.startswith(("--limit=", "--tags=")) else []
    return " ".join(shown) or Path(words[0] if words else "?").name


def _fields(folder: Path) -> list[str]:
    """Return the fields of /proc/PID/stat after the program's name, which may hold anything (proc_pid_stat(5))."""
    return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _parent(folder: Path) -> int:
    return int(_fields(folder)[1])


def _start(folder: Path) -> str:
    return _fields(folder)[19]


def _boot(proc: Path) -> str:
    return (proc / "sys/kernel/random/boot_id").read_text().strip()


def _run(boot: str, pid: int, start: str) -> str:
    return hashlib.sha256(f"{boot} {pid} {start}".encode()).hexdigest()[:12]


# --- on the host ------------------------------------------------------------------------------------------------------


def acquire(root: Path, wanted: Holder, takeover: str = "") -> Outcome:
    """Lock the host for a run. ``takeover`` is the run whose lock may be taken from it; another one's is refused."""
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    with alone(root):
        found = look(root)
        if found is not None and found.run == wanted.run:
            return Outcome("ours", found)
        if found is not None and found.run != takeover:
            return Outcome("refused", found)
        taken = replace(wanted, since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        content = json.dumps(asdict(taken), indent=1) + "\n"
        write_atomically(root / FILE, content.encode())
        return Outcome("taken-over" if found else "taken", taken, found)


def release(root: Path, run: str) -> Holder | None:
    """Give the host's lock back. Return who held it; what another run holds is left alone."""
    if not root.is_dir():
        return None
    with alone(root):
        found = look(root)
        if found is not None and found.run == run:
            (root / FILE).unlink()
        return found


def look(root: Path) -> Holder | None:
    """Return who holds the host's lock, or None. Raises HostLockError for a file that does not say it."""
    file = root / FILE
    try:
        given = json.loads(file.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise HostLockError(f"{file}: not readable ({error}); see who works on this host, then remove it") from error
    try:
        return Holder.from_dict(given)
    except HostLockError as error:
        raise HostLockError(f"{file}: {error}; see who works on this host, then remove it") from error


def is_gone(found: Holder, asking: Holder, alive: set[str]) -> bool:
    """Say whether a holder is certainly over: a process of the asking controller's present boot that is not there.

    ``alive`` has to be newer than ``found``: a run that began in between is not in it, and lives.
    """
    return found.boot == asking.boot and found.run not in alive


# --- for people -------------------------------------------------------------------------------------------------------


def refusal(found: Holder, asking: Holder, alive: set[str]) -> Finding:
    """Say who holds the lock and what can be done. ``alive`` are the runs on the asking controller."""
    who = f"{found.user} on {found.controller}, {found.command}, process {found.pid}, since {found.since}"
    who += f" (run {found.run})"
    takeover = f"take the lock over with -e fleet_takeover={found.run}"
    if found.boot != asking.boot:
        gone = "whether it still runs cannot be seen from here"
        fix = f"Ask {found.user}. Only if that run is over: look at what it left, then {takeover}."
    elif found.run in alive:
        gone = "it still runs on this controller"
        fix = "Wait until it has ended, and run this again."
    else:
        gone = "that process is gone: it was killed, so what it changed may be unfinished"
        fix = f"Run this again, which takes the lock over and finishes what it left; or {takeover}."
    return Finding("host-locked", "critical", "Another run has locked this host", f"{who}; {gone}", "no other run", fix)
