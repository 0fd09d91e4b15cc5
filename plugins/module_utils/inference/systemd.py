# SPDX-License-Identifier: Apache-2.0
"""What this project needs of systemd: quoting for unit files, the state of a unit, and a check that believes stderr."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./~^-]+")
RECURSIVE_ERRORS_SINCE = 250
"""The first systemd whose ``systemd-analyze verify`` knows ``--recursive-errors=`` (its NEWS file)."""

SINCE: Mapping[str, int] = {
    "After": 0, "Description": 0, "Wants": 0, "WantedBy": 0, "CapabilityBoundingSet": 0, "Environment": 0,
    "ExecStart": 0, "ExecStartPre": 0, "Group": 0, "KillMode": 0, "LimitCORE": 0, "LimitMEMLOCK": 0, "LimitNOFILE": 0,
    "NotifyAccess": 0, "Restart": 0, "RestartSec": 0, "RuntimeDirectory": 0, "SyslogIdentifier": 0,
    "TimeoutStartSec": 0, "TimeoutStopSec": 0, "Type": 0, "UMask": 0, "User": 0, "WatchdogSec": 0,
    "WorkingDirectory": 0, "NoNewPrivileges": 187, "SystemCallFilter": 187, "DeviceAllow": 208, "DevicePolicy": 208,
    "SystemCallArchitectures": 209, "SystemCallErrorNumber": 209, "CacheDirectory": 211, "PrivateTmp": 214,
    "ProtectHome": 214, "ProtectSystem": 214, "TasksMax": 227, "AmbientCapabilities": 229, "StartLimitBurst": 229,
    "StartLimitIntervalSec": 229, "RestrictAddressFamilies": 211, "RestrictRealtime": 231,
    "ProtectControlGroups": 232, "ProtectKernelModules": 232, "ProtectKernelTunables": 232, "RemoveIPC": 232,
    "RestrictNamespaces": 233, "IPAddressAllow": 235, "IPAddressDeny": 235, "LockPersonality": 235,
    "RuntimeDirectoryPreserve": 235, "TemporaryFileSystem": 238, "ProtectHostname": 242, "RestrictSUIDSGID": 242,
    "NUMAMask": 243, "NUMAPolicy": 243, "OOMPolicy": 243, "TimeoutAbortSec": 243, "AllowedCPUs": 244,
    "ProtectKernelLogs": 244, "ProtectClock": 245, "LoadCredential": 247, "ProtectProc": 247, "RestartMaxDelaySec": 254,
    "RestartSteps": 254,
}  # fmt: skip
"""Every directive that the templates use, and the first systemd that knows it: "Added in version" in systemd.exec(5),
systemd.service(5), systemd.unit(5) and systemd.resource-control(5) of systemd 257. 0 where these name none, since it
is older than their record."""

_DIRECTIVE = re.compile(r"(\w+)=")

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}


class SystemdError(Exception):
    """systemctl or systemd-analyze could not do what was asked."""


def quote(word: str, *, command: bool = False) -> str:
    """Quote a word for a unit file (systemd.syntax, "Quoting"), so that systemd reads exactly ``word``.

    ``%`` is doubled, since it begins a specifier; with ``command`` (ExecStart=) ``$`` as well, since it begins a
    variable there.
    """
    text = word.replace("%", "%%")
    text = text.replace("$", "$$") if command else text
    if _PLAIN.fullmatch(text):
        return text
    return '"' + "".join(_ESCAPES.get(letter, letter) for letter in text) + '"'


def command_line(words: Iterable[str]) -> str:
    """Return an ExecStart= value, one option with its value a line, as ``systemctl cat`` will show it."""
    lines: list[str] = []
    for word in words:
        quoted = quote(word, command=True)
        if lines and not word.startswith("-") and lines[-1].startswith("--") and " " not in lines[-1]:
            lines[-1] += " " + quoted
        else:
            lines.append(quoted)
    return " \\\n  ".join(lines)


def environment_line(settings: Mapping[str, str]) -> str:
    """Return ``Environment=`` lines, one a variable, sorted by name."""
    return "\n".join("Environment=" + quote(f"{name}={settings[name]}") for name in sorted(settings))


def for_version(text: str, version: int) -> str:
    """Return a unit or drop-in without the directives that this systemd does not know; a comment takes their place.

    Left in, each would be a complaint of ``systemd-analyze verify`` and a line in the journal at every reload.
    """
    lines = []
    for line in text.splitlines(keepends=True):
        found = _DIRECTIVE.match(line)
        since = SINCE.get(found[1], 0) if found else 0
        wanted = f"# {found[1]}= needs systemd {since}; this host has {version}\n" if found else ""
        lines.append(line if since <= version else wanted)
    return "".join(lines)


@dataclass(frozen=True)
class UnitState:
    """What ``systemctl show`` says of a unit."""

    load: str
    active: str
    sub: str
    result: str
    status: str
    """The text of STATUS=, empty when the service has sent none."""
    main_pid: int
    restarts: int
    exit_code: str
    """How the main process ended last, such as ``exited 1`` or ``killed 9``; empty while it never did."""
    job: int = 0
    """Number of the job that waits or runs for the unit; 0 when systemd has nothing left to do with it."""
    started: float = 0.0
    """When the main process was started last, in seconds since 1970; 0 while it never was."""
    drop_ins: tuple[str, ...] = ()
    """The drop-ins that systemd has read, in their order."""

    @property
    def serving(self) -> bool:
        """True once the service said READY=1 and has not stopped since."""
        return self.active == "active"


SHOWN = (
    *("LoadState", "ActiveState", "SubState", "Result", "StatusText", "MainPID", "NRestarts"),
    *("ExecMainCode", "ExecMainStatus", "Job", "ExecMainStartTimestampMonotonic", "DropInPaths"),
)


def unit_state(unit: str) -> UnitState:
    """Ask systemd for the state of a unit. A unit that does not exist has load state ``not-found``."""
    shown = systemctl("show", "--property=" + ",".join(SHOWN), "--", unit)
    facts = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    how = {"1": "exited", "2": "killed", "3": "dumped"}.get(facts.get("ExecMainCode", "0"))
    return UnitState(
        load=facts.get("LoadState", ""),
        active=facts.get("ActiveState", ""),
        sub=facts.get("SubState", ""),
        result=facts.get("Result", ""),
        status=facts.get("StatusText", ""),
        main_pid=int(facts.get("MainPID") or 0),
        restarts=int(facts.get("NRestarts") or 0),
        exit_code=f"{how} {facts.get('ExecMainStatus', '')}" if how else "",
        job=int(facts.get("Job") or 0),
        started=_clock(int(facts.get("ExecMainStartTimestampMonotonic") or 0)),
        drop_ins=tuple(facts.get("DropInPaths", "").split()),
    )


def _clock(monotonic_us: int) -> float:
    """Return a time of the monotonic clock, in microseconds, as seconds since 1970; 0 stays 0."""
    return time.time() - time.monotonic() + monotonic_us / 1e6 if monotonic_us else 0.0


def enabled(unit: str) -> bool:
    """Say whether the unit starts at boot."""
    return systemctl("is-enabled", "--", unit, check=False).strip() == "enabled"


def systemctl(*words: str, check: bool = True, timeout: int = 3600) -> str:
    """Run systemctl and return what it prints. ``timeout`` is in seconds: stopping a unit may take its whole drain."""
    result = _run("systemctl", *words, timeout=timeout)
    if check and result.returncode:
        raise SystemdError(f"systemctl {' '.join(words)}: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout


def version() -> int:
    """Return systemd's version, such as 252."""
    said = systemctl("--version")
    number = re.match(r"systemd (\d+)", said)
    if number is None:
        raise SystemdError(f"systemctl --version: seen {said[:80]!r}, expected 'systemd NUMBER'")
    return int(number[1])


def verify(folder: Path, unit: str) -> list[str]:
    """Check a unit and its drop-ins that lie in ``folder`` as they will lie in /etc/systemd/system.

    ``systemd-analyze verify`` exits 0 on unknown keys and bad values (seen with 252) and only complains on stderr, so
    every line there counts. Before 250 it can't be told to leave out units that this one depends on, so only lines
    that name this unit count there. Returns the complaints, an empty list when the unit is right.
    """
    alone = version() >= RECURSIVE_ERRORS_SINCE
    words = ["--man=no", *(["--recursive-errors=no"] if alone else []), str(folder / unit)]
    result = _run(
        "systemd-analyze", "verify", *words, environment={"SYSTEMD_UNIT_PATH": f"{folder}:", "LC_ALL": "C"}
    )  # fmt: skip
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    complaints = lines if alone else [line for line in lines if unit in line]
    if result.returncode and not complaints:
        complaints = [*lines, f"systemd-analyze verify exited {result.returncode}"]
    return [line.replace(f"{folder}/", "") for line in complaints]


def journal(unit: str, lines: int = 30) -> list[str]:
    """Return the last lines of a unit's journal, without timestamps; empty where it cannot be read."""
    try:
        result = _run("journalctl", "--unit", unit, "--lines", str(lines), "--no-pager", "--output=cat")
    except SystemdError:
        return []
    return result.stdout.splitlines()


def _run(
    *words: str, timeout: int = 60, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, env=os.environ | dict(environment or {}),
            capture_output=True, text=True, errors="replace", check=False, timeout=timeout,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise SystemdError(f"{' '.join(words)}: no answer in {timeout} s") from error
    except OSError as error:
        raise SystemdError(f"{words[0]} cannot be run ({error.strerror}); this host needs systemd") from error
