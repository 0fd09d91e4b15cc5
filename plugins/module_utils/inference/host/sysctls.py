# SPDX-License-Identifier: Apache-2.0
"""Kernel settings (sysctl): the running values. The file for the next boot is one of those that the role renders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .machine import HostError, Machine
from .outcome import Outcome, Settings, Step

SETTING = "host_sysctls"
PROC = "/proc/sys"
BELONGS = "in a container it belongs to the machine below, set it there"


@dataclass(frozen=True)
class Sysctl:
    """A sysctl: its name, the value that runs, the value wanted."""

    name: str
    running: str
    wanted: str

    @property
    def differs(self) -> bool:
        """Compare as the kernel prints: runs of blanks count as one."""
        return self.running.split() != self.wanted.split()


def read(sysctls: Mapping[str, object], proc: Path) -> list[Sysctl]:
    """Return the settings with their running values, or raise HostError naming every one that is wrong."""
    problems = [problem for name, value in sysctls.items() if (problem := _problem(name, value, proc))]
    if problems:
        raise HostError("; ".join(f"{SETTING}: {problem}" for problem in problems))
    return [Sysctl(name, path_of(name, proc).read_text().strip(), str(value)) for name, value in sysctls.items()]


def _problem(name: str, value: object, proc: Path) -> str | None:
    if not isinstance(value, str):
        return f"{name}: seen {value!r} ({type(value).__name__}), expected a string; put it in quotes"
    if len(value.splitlines()) != 1:
        return f"{name}: seen {value!r}, expected a value on one line"
    file = path_of(name, proc)
    if not re.fullmatch(r"[A-Za-z0-9_./:@-]+", name) or ".." in name or not file.is_file():
        return f"{name}: this kernel has no such setting ({file}); remove it"
    try:
        file.read_text()
    except OSError as error:
        return f"{name}: cannot be read ({error.strerror}); a trigger is no setting, remove it"
    return None


def path_of(name: str, proc: Path) -> Path:
    """Return the file of a setting. As in sysctl(8), a name with slashes may have dots in its parts."""
    return proc / (name if "/" in name else name.replace(".", "/"))


def look(settings: Settings, machine: Machine) -> Iterator[Outcome]:
    """Say how each setting stands."""
    proc = machine.path(PROC)
    for sysctl in read(settings.get(SETTING) or {}, proc):
        what = f"{sysctl.name}={sysctl.wanted}"
        if not sysctl.differs:
            yield Outcome(SETTING, "in effect", what)
        elif machine.contained and not os.access(path_of(sysctl.name, proc), os.W_OK):
            yield Outcome(SETTING, "not done", what, f"it is {sysctl.running}; {BELONGS}")
        else:
            yield Outcome(SETTING, "to do", what, f"it is {sysctl.running}")


def steps(settings: Settings, machine: Machine) -> Iterator[Step]:
    """Return what sets the running values that differ and can be set."""
    proc = machine.path(PROC)
    for sysctl in read(settings.get(SETTING) or {}, proc):
        file = path_of(sysctl.name, proc)
        if sysctl.differs and not (machine.contained and not os.access(file, os.W_OK)):
            name = sysctl.name
            yield Step(
                SETTING, f"set {name}", lambda s=sysctl: put(s, proc),  # type: ignore[misc]
                f"{name} = {sysctl.running}\n", f"{name} = {sysctl.wanted}\n",
            )  # fmt: skip


def put(sysctl: Sysctl, proc: Path) -> None:
    """Set a running value, and check that the kernel took it."""
    file = path_of(sysctl.name, proc)
    try:
        file.write_text(sysctl.wanted)
    except OSError as error:
        raise HostError(
            f"{SETTING}: {sysctl.name}: the kernel refuses {sysctl.wanted!r}: {error.strerror} (it runs with "
            f"{sysctl.running!r}); correct or remove it"
        ) from error
    now = file.read_text().strip()
    if now.split() != sysctl.wanted.split():
        raise HostError(f"{SETTING}: {sysctl.name}: set to {sysctl.wanted!r}, the kernel made it {now!r}")
