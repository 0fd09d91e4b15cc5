# SPDX-License-Identifier: Apache-2.0
"""Reads units, drop-ins and environment files of an engine, and says what will go wrong with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import environment_text
from ..findings import NotChecked
from ..nccl import lint as nccl_lint
from ..nccl.variables import NEWEST, version_text
from ..redact import secret_names
from ..topology import matrix, pasted
from .rules import Reading

_SECTION = re.compile(r"^\s*\[(?:Unit|Service|Install)\]\s*$")
_DIRECTIVE = re.compile(
    r"^\s*(?P<key>Environment(?:File)?|Exec[A-Z]\w+|Restart(?:Sec)?|Type|KillMode|Timeout\w+|SuccessExitStatus"
    r"|StartLimit\w+|User|DynamicUser|Private\w+|Protect\w+|MemoryDenyWriteExecute|ProcSubset|RestrictAddressFamilies"
    r"|SystemCallFilter|Limit[A-Z]+|TasksMax|WatchdogSec|NotifyAccess)\s*=\s*(?P<value>.*)$"
)
"""Directives that make a line part of a unit even without a section header."""
_VARIABLE = re.compile(r"^\s*(?:export\s+)?[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+=|^\s*(?:export\s+)?(?:PATH|HOME|USER)=")
VALUES: Mapping[str, frozenset[str]] = {
    "Restart": frozenset({"no", "always", "on-success", "on-failure", "on-abnormal", "on-abort", "on-watchdog"}),
    "KillMode": frozenset({"control-group", "mixed", "process", "none"}),
    "Type": frozenset({"simple", "exec", "forking", "oneshot", "dbus", "notify", "notify-reload", "idle"}),
}
"""Legal values of systemd.service(5) and systemd.kill(5)."""

_SANDBOX: tuple[tuple[str, str, str], ...] = (
    ("PrivateDevices", r"(?:yes|true|on|1)", "hides /dev/nvidia*"),
    ("MemoryDenyWriteExecute", r"(?:yes|true|on|1)", "forbids JIT (oneDNN, Triton, CUDA)"),
    ("PrivateNetwork", r"(?:yes|true|on|1)", "leaves no network to listen on"),
    ("ProcSubset", r"pid", "hides /proc/cpuinfo from lscpu, which SGLang runs"),
    ("SystemCallFilter", r"~.*@resources.*", "forbids setting CPU affinity, which SGLang does"),
    ("RestrictAddressFamilies", r"(?!.*AF_NETLINK)(?!.*~)(?!none).+", "lacks AF_NETLINK, which gloo needs"),
)
"""Directive, the whole value that breaks the engine, and why: tried with SGLang 0.5.23 under systemd 252."""

SYSTEM_DIRECTORIES = ("/usr/bin", "/bin")
DEFAULT_START_TIMEOUT = 90.0
SHORTEST_START_TIMEOUT = 300.0
"""Seconds below which a start that waits for the engine is sure to be too short for a large model."""
SHORTEST_STOP_TIMEOUT = 30.0
DEFAULT_LIMIT = (10.0, 5)
"""systemd's own StartLimitIntervalSec in seconds and StartLimitBurst."""
DEFAULT_PAUSE = 0.1
"""systemd's own RestartSec in seconds."""
FEWEST_FILES = 65536
_UNITS = {
    name: seconds
    for names, seconds in (
        ("us usec", 1e-6),
        ("ms msec", 1e-3),
        (" s sec second seconds", 1.0),
        ("m min minute minutes", 60.0),
        ("h hr hour hours", 3600.0),
        ("d day days", 86400.0),
    )
    for name in names.split(" ")
}
"""Names of units of time as systemd.time(7) lists them; a bare number counts seconds."""
_NCCL_VERSION = re.compile(r"(?:using nccl==|NCCL version )(\d+\.\d+\.\d+)", re.IGNORECASE)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_TRUE = frozenset({"yes", "true", "on", "1"})


@dataclass(frozen=True)
class Unit:
    """What units and environment files say: the last value of each directive, and the variables in force."""

    directives: Mapping[str, str]
    variables: Mapping[str, str]
    lines: Sequence[tuple[int, str]]
    """Logical lines with their numbers, continuations joined."""
    text: str
    """The whole input."""
    nccl_version: str
    topology: Mapping[str, Any] | None
    """What ``nvidia-smi topo -m`` says of the host, where the input holds it."""

    @property
    def command(self) -> str:
        """The command line of the service, or an empty string."""
        return self.directives.get("ExecStart", "")

    @property
    def whole(self) -> bool:
        """Whether this is a unit (no drop-in) with a command of an engine, so that what is missing says something."""
        sections = any(line.strip() in ("[Unit]", "[Install]") for _, line in self.lines)
        return sections and bool(re.search(r"sglang|vllm", self.command, re.IGNORECASE)) and not self.supervised

    @property
    def supervised(self) -> bool:
        """Whether a supervisor starts the engine, which extends the start timeout and knows when it is ready."""
        return "supervisor" in self.command or "WatchdogSec" in self.directives or "NotifyAccess" in self.directives

    def engine(self, name: str) -> bool:
        """Whether ``sglang`` or ``vllm`` occurs in the input at all."""
        return name in self.text.lower()

    def seconds(self, directive: str) -> float | None:
        """Return a time span in seconds, None when it is absent or unreadable."""
        return span_seconds(self.directives.get(directive, ""))


def span_seconds(value: str) -> float | None:
    """Return systemd's time span in seconds: ``90``, ``5min 20s``, ``infinity``; None when it is none."""
    value = value.strip().lower()
    if value == "infinity":
        return float("inf")
    parts = _SPAN.findall(value)
    if not parts or _SPAN.sub("", value).strip() or any(unit not in _UNITS for _, unit in parts):
        return None
    return sum(float(amount) * _UNITS[unit] for amount, unit in parts)


def read_unit(lines: Sequence[str]) -> Reading | None:
    """Return what is wrong with the units and environment settings in the input, or None when it holds none."""
    logical = _logical(lines)
    own = [(number, line) for number, line in logical if belongs(line)]
    if not own:
        return None
    text = "\n".join(lines)
    unit = Unit(_directives(own), _variables(own), own, text, _nccl_version(lines), _topology(text))
    reading = Reading("unit")
    for check in _CHECKS:
        check(unit, reading)
    return reading


def _nccl_version(lines: Sequence[str]) -> str:
    """Return the NCCL version that a log in the input names, else the newest that is known."""
    named = (found[1] for line in lines if "nccl" in line.lower() and (found := _NCCL_VERSION.search(line)))
    return next(named, version_text(NEWEST))


def _topology(text: str) -> Mapping[str, Any] | None:
    if "GPU0" not in text:
        return None
    try:
        found = matrix.read_matrices(pasted.clean(text), "topo_m")
    except matrix.Unreadable:
        return None
    return found[0] if len(found) == 1 else None


def _logical(lines: Sequence[str]) -> list[tuple[int, str]]:
    joined: list[tuple[int, str]] = []
    pending, start = "", 0
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith(("#", ";")):
            continue
        start = start if pending else number
        if line.endswith("\\"):
            pending += line[:-1].rstrip() + " "
            continue
        joined.append((start, pending + line))
        pending = ""
    return [*joined, (start, pending)] if pending else joined


def belongs(line: str) -> bool:
    """Whether the line is one of a unit or an environment file."""
    return bool(_SECTION.match(line) or _VARIABLE.match(line) or _DIRECTIVE.match(line))


def _directives(lines: Sequence[tuple[int, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for _, line in lines:
        if directive := _DIRECTIVE.match(line):
            found[directive["key"]] = directive["value"].strip()
    return found


def _variables(lines: Sequence[tuple[int, str]]) -> dict[str, str]:
    text = "\n".join(line for _, line in lines)
    return {name: entry.value for name, entry in environment_text.read(text).effective().items()}


def _secrets(unit: Unit, reading: Reading) -> None:
    for number, line in unit.lines:
        names = secret_names(line)
        directive = _DIRECTIVE.match(line)
        key = directive["key"] if directive else ""
        if names and key.startswith("Exec"):
            reading.add("secret-in-command-line", f"line {number}: {key}= with {', '.join(names)}", what=f"{key}=")
        elif names and key == "Environment":
            reading.add("secret-in-unit", f"line {number}: Environment= with {', '.join(names)}")
        elif names:
            reading.add("secret-in-environment-file", f"line {number}: {', '.join(names)}")


def _values(unit: Unit, reading: Reading) -> None:
    for directive, legal in VALUES.items():
        value = unit.directives.get(directive)
        if value and value not in legal:
            reading.add(
                "unit-value-invalid", f"{directive}={value}", what=f"one of {', '.join(sorted(legal))} is meant"
            )


def _start_timeout(unit: Unit, reading: Reading) -> None:
    limit = unit.seconds("TimeoutStartSec") or unit.seconds("TimeoutSec")
    wanted = unit.variables.get("VLLM_ENGINE_READY_TIMEOUT_S", "")
    engine_limit = float(wanted) if re.fullmatch(r"\d{1,9}", wanted) else None
    if limit is not None and engine_limit is not None and engine_limit > limit and not unit.supervised:
        seen = f"VLLM_ENGINE_READY_TIMEOUT_S={wanted}, TimeoutStartSec={limit:g}"
        reading.add("start-timeouts-contradict", seen, what=f"{engine_limit:g} s against {limit:g} s")
        return
    if unit.supervised or not (unit.whole or (limit and "ExecStart" not in unit.directives)):
        return
    kind = unit.directives.get("Type", "simple" if unit.whole else "unknown")
    waits = kind not in ("simple", "exec", "idle") or "ExecStartPost" in unit.directives
    effective = DEFAULT_START_TIMEOUT if limit is None else limit
    if waits and 0 < effective < SHORTEST_START_TIMEOUT:
        seen = f"TimeoutStartSec={limit:g}" if limit is not None else "no TimeoutStartSec= (90 s)"
        reading.add("start-timeout-too-small", seen)
    elif not waits and limit:
        reading.add("start-timeout-without-effect", f"Type={kind}")


def _restart(unit: Unit, reading: Reading) -> None:
    restart = unit.directives.get("Restart", "no")
    if restart == "no" or restart not in VALUES["Restart"]:
        return
    interval, burst = _start_limit(unit)
    shortest = unit.seconds("RestartSec") or DEFAULT_PAUSE
    longest = shortest + (unit.seconds("TimeoutStartSec") or 0 if unit.whole else 0)
    seen = f"Restart={restart}, StartLimitIntervalSec={interval:g}, StartLimitBurst={burst}, RestartSec={shortest:g}"
    stated = "StartLimitIntervalSec" in unit.directives
    if interval == 0 or interval < (burst + 1) * shortest or (unit.whole and not stated):
        reading.add("restart-without-limit", seen)
    elif longest != float("inf") and interval < (burst + 1) * longest:
        reading.add("restart-without-limit", f"{seen}, TimeoutStartSec={longest - shortest:g}")
    elif not unit.supervised:
        why = "the input does not say how long a start takes; the interval has to be above (burst + 1) times that"
        reading.not_checked.append(NotChecked("restart-without-limit", why))


def _start_limit(unit: Unit) -> tuple[float, int]:
    """Return the unit's start limit, systemd's own where it says nothing."""
    interval, burst = unit.seconds("StartLimitIntervalSec"), unit.directives.get("StartLimitBurst", "")
    count = int(burst) if re.fullmatch(r"\d{1,6}", burst) else DEFAULT_LIMIT[1]
    return DEFAULT_LIMIT[0] if interval is None else interval, count


def _ending(unit: Unit, reading: Reading) -> None:
    mode = unit.directives.get("KillMode")
    if mode in ("process", "none"):
        reading.add("kill-mode-leaves-workers", f"KillMode={mode}")
    success = unit.directives.get("SuccessExitStatus", "")
    if re.search(r"\b(?:SIG)?KILL\b|(?<!\d)(?:9|137)(?!\d)", success):
        reading.add("crash-counts-as-success", f"SuccessExitStatus={success}")
    stop = unit.seconds("TimeoutStopSec") or unit.seconds("TimeoutSec")
    if stop is not None and stop < SHORTEST_STOP_TIMEOUT:
        reading.add("stop-timeout-too-small", f"TimeoutStopSec={stop:g}")


def _home(unit: Unit, reading: Reading) -> None:
    home = unit.variables.get("HOME")
    if home is not None:
        if home.rstrip("/") in ("", "/nonexistent"):
            reading.add("home-unset", f"HOME={home}")
        return
    if not unit.whole or "XDG_CACHE_HOME" in unit.variables:
        return
    if unit.directives.get("DynamicUser", "no").lower() in _TRUE or "User" not in unit.directives:
        reading.add("home-unset", "no HOME=, and no User= that would bring one", level="warning")
    else:
        why = f"no HOME= in the unit: the home directory of User={unit.directives['User']} decides"
        reading.not_checked.append(NotChecked("home-unset", why))


def _cuda_home(unit: Unit, reading: Reading) -> None:
    home = unit.variables.get("CUDA_HOME", unit.variables.get("CUDA_PATH"))
    if home is not None and (fault := _path_fault(home)):
        reading.add("cuda-home-malformed", f"CUDA_HOME={home}", what=fault)
        return
    path = unit.variables.get("PATH")
    if path is None:
        return
    entries = [entry.rstrip("/") for entry in path.split(":")]
    if "$PATH" in path or "${PATH}" in path:
        if any(line.lstrip().startswith("Environment") for _, line in unit.lines):
            reading.add("path-incomplete", f"PATH={path}", what="$PATH is not expanded")
    elif not any(directory in entries for directory in SYSTEM_DIRECTORIES):
        reading.add("path-incomplete", f"PATH={path}")
    elif home is not None and f"{home.rstrip('/')}/bin" in entries:
        reading.add("jit-environment", f"CUDA_HOME={home}, PATH={path}")
        reading.not_checked.append(
            NotChecked("nvcc", f"whether {home}/bin/nvcc exists and runs for the service's user")
        )


def _path_fault(path: str) -> str:
    """Return what is wrong with a path that has to be one absolute directory, or an empty string."""
    faults = (
        (not path, "it is empty"),
        (path.startswith(":"), "it begins with a colon"),
        (":" in path, "it holds a colon"),
        ("$" in path, "it holds a variable, which systemd does not expand in Environment="),
        (not path.startswith(("/", "%", ":")), "it is not absolute"),
        (
            path.rstrip("/").endswith(("/bin", "/nvcc")),
            "it names a directory too deep: nvcc is looked for in CUDA_HOME/bin",
        ),
    )
    return next((text for faulty, text in faults if faulty), "")


def _caches(unit: Unit, reading: Reading) -> None:
    if "TRITON_CACHE_DIR" in unit.variables and "VLLM_CACHE_ROOT" not in unit.variables and not unit.engine("sglang"):
        reading.add("triton-cache-overridden", f"TRITON_CACHE_DIR={unit.variables['TRITON_CACHE_DIR']}")


def _exposure(unit: Unit, reading: Reading) -> None:
    if host := re.search(r"--host[= ]+(0\.0\.0\.0|::|\[::\])(?=\s|$)", unit.command):
        reading.add("listens-everywhere", host[0])
    if "--trust-remote-code" in unit.command:
        reading.add("remote-code-trusted", "--trust-remote-code")
    if unit.whole and "User" not in unit.directives and unit.directives.get("DynamicUser", "no").lower() not in _TRUE:
        reading.add("runs-as-root", "no User= in a unit with a command")


def _sandbox(unit: Unit, reading: Reading) -> None:
    for _, line in unit.lines:
        setting = _DIRECTIVE.match(line)
        for directive, pattern, why in _SANDBOX:
            if (
                setting
                and setting["key"] == directive
                and re.fullmatch(pattern, setting["value"].strip(), re.IGNORECASE)
            ):
                reading.add("sandbox-breaks-engine", line.strip(), what=why)


def _limits(unit: Unit, reading: Reading) -> None:
    files = unit.directives.get("LimitNOFILE", "").split(":")[0]
    if re.fullmatch(r"\d{1,12}", files) and int(files) < FEWEST_FILES:
        reading.add("limits-too-small", f"LimitNOFILE={files}")
    locked = unit.directives.get("LimitMEMLOCK")
    if locked and locked != "infinity":
        reading.add("limits-too-small", f"LimitMEMLOCK={locked}")


def _nccl(unit: Unit, reading: Reading) -> None:
    if unit.variables.get("NCCL_P2P_LEVEL") and unit.variables.get("NCCL_P2P_DISABLE", "0") == "0":
        reading.add("p2p-level-is-no-cure", f"NCCL_P2P_LEVEL={unit.variables['NCCL_P2P_LEVEL']}")
        why = "the IOMMU's mode is in /proc/cmdline and /sys/class/iommu, not in this file"
        reading.not_checked.append(NotChecked("iommu", why))
    if any("NCCL_" in line for _, line in unit.lines):
        linted = nccl_lint.lint("\n".join(line for _, line in unit.lines), unit.nccl_version, topology=unit.topology)
        reading.findings += linted.findings
        reading.not_checked += linted.not_checked


_CHECKS: tuple[Callable[[Unit, Reading], None], ...] = (
    _secrets,
    _values,
    _start_timeout,
    _restart,
    _ending,
    _home,
    _cuda_home,
    _caches,
    _exposure,
    _sandbox,
    _limits,
    _nccl,
)
