# SPDX-License-Identifier: Apache-2.0
"""Kernel settings (sysctl): the running value and the one for the next boot, compared and set together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .managed_files import Entry

PROC = Path("/proc/sys")
NOTE = "# Written by the host role; change host_sysctls instead.\n"


class KernelSettingsError(Exception):
    """A setting that cannot be used, or that the kernel refuses."""


@dataclass(frozen=True)
class Setting:
    """A sysctl: its name, the value that runs, the value wanted."""

    name: str
    running: str
    wanted: str

    @property
    def differs(self) -> bool:
        """Compare as the kernel prints: runs of blanks count as one."""
        return self.running.split() != self.wanted.split()


def read(sysctls: Mapping[str, object], proc: Path = PROC) -> list[Setting]:
    """Return the settings with their running values, or raise KernelSettingsError naming every one that is wrong."""
    problems = [problem for name, value in sysctls.items() if (problem := _problem(name, value, proc))]
    if problems:
        raise KernelSettingsError("; ".join(problems))
    return [Setting(name, path_of(name, proc).read_text().strip(), str(value)) for name, value in sysctls.items()]


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


def path_of(name: str, proc: Path = PROC) -> Path:
    """Return the file of a setting. As in sysctl(8), a name with slashes may have dots in its parts."""
    return proc / (name if "/" in name else name.replace(".", "/"))


def boot_file(sysctls: Mapping[str, str], path: str) -> Entry:
    """Return the file that sets the values at every boot."""
    if not sysctls:
        return Entry(path, "absent")
    return Entry(path, content=NOTE + "".join(f"{name} = {sysctls[name]}\n" for name in sorted(sysctls)))


def set_running(settings: list[Setting], proc: Path = PROC) -> None:
    """Set the running values that differ, and check that the kernel took them."""
    for setting in settings:
        if not setting.differs:
            continue
        file = path_of(setting.name, proc)
        try:
            file.write_text(setting.wanted)
        except OSError as error:
            raise KernelSettingsError(
                f"{setting.name}: the kernel refuses {setting.wanted!r}: {error.strerror} (it runs with "
                f"{setting.running!r}). In a container these belong to the machine below: set them there."
            ) from error
        now = file.read_text().strip()
        if now.split() != setting.wanted.split():
            raise KernelSettingsError(f"{setting.name}: set to {setting.wanted!r}, the kernel made it {now!r}")
