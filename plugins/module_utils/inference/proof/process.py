# SPDX-License-Identifier: Apache-2.0
"""What the kernel says of a running process: which program it is, since when, with which environment and which code."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_ENTRY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_MAPPED = re.compile(r"^\S+ \S+ \S+ \S+ \d+ +(/.*)$", re.MULTILINE)
_PACKAGES = re.compile(r"(/.*?/(?:site|dist)-packages)/")
_DELETED = " (deleted)"


@dataclass(frozen=True)
class Process:
    """One process. What may not be read is None, never guessed."""

    pid: int
    exe: str | None
    """The program's file, links resolved; ends in `` (deleted)`` where the file was replaced since the start."""
    command: tuple[str, ...]
    """Its command line as it is now: a program may have put a title there."""
    environment: dict[str, str] | None
    """The environment that it was started with. What it set for itself afterwards is not in it."""
    whole: bool
    """Whether the environment is all there: setproctitle overwrites the beginning of it."""
    started: float | None
    """When it was started, in seconds since 1970."""
    mapped: tuple[str, ...] | None
    """Files that it has mapped, each once; those of replaced files end in `` (deleted)``."""

    @property
    def packages(self) -> list[str]:
        """Return the folders of packages whose compiled modules it has loaded."""
        found = (_PACKAGES.match(path) for path in self.mapped or ())
        return sorted({match[1] for match in found if match})

    @property
    def replaced(self) -> list[str]:
        """Return files of packages that are mapped and no longer on disk."""
        return [path.removesuffix(_DELETED) for path in self.mapped or () if path.endswith(_DELETED) and ".so" in path]


def read(pid: int, proc: str = "/proc") -> Process | None:
    """Return the process, or None when it is gone."""
    folder = Path(proc) / str(pid)
    raw = _bytes(folder / "cmdline")
    if raw is None:
        return None
    environ = _bytes(folder / "environ")
    environment, whole = parse_environment(environ) if environ is not None else (None, False)
    maps = _bytes(folder / "maps")
    return Process(
        pid=pid,
        exe=_link(folder / "exe"),
        command=tuple(word for word in raw.decode(errors="replace").split("\0") if word),
        environment=environment,
        whole=whole,
        started=_started(folder, Path(proc)),
        mapped=None if maps is None else parse_maps(maps.decode(errors="replace")),
    )


def parse_environment(raw: bytes) -> tuple[dict[str, str], bool]:
    """Return the variables in the bytes of an environment, and whether its beginning is intact."""
    entries = raw.decode(errors="replace").split("\0")
    found = [match for match in map(_ENTRY.fullmatch, entries) if match]
    whole = bool(found) and _ENTRY.fullmatch(entries[0]) is not None
    return {match[1]: match[2] for match in found}, whole


def parse_maps(text: str) -> tuple[str, ...]:
    """Return the files that ``/proc/PID/maps`` names, each once, in its order; memory of other kinds is left out."""
    paths = dict.fromkeys(_MAPPED.findall(text))
    return tuple(path for path in paths if not path.startswith(("/dev/", "/memfd:", "/SYSV", "/anon_hugepage")))


def library(processes: Iterable[Process], name: str) -> tuple[int, str] | None:
    """Return the first process that has a library of that name mapped, and the library's path."""
    pattern = re.compile(rf"/{re.escape(name)}\.so[\d.]*(?: \(deleted\))?$")
    for process in processes:
        for path in process.mapped or ():
            if pattern.search(path):
                return process.pid, path
    return None


def _started(folder: Path, proc: Path) -> float | None:
    """Return clock ticks since boot (proc(5), field 22) on top of the time of boot."""
    status, boot = _bytes(folder / "stat"), _bytes(proc / "stat")
    since = re.search(rb"^btime (\d+)$", boot or b"", re.MULTILINE)
    fields = (status or b"").rpartition(b")")[2].split()
    if since is None or len(fields) < 20:  # noqa: PLR2004 - the fields behind the name
        return None
    return int(since[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _link(path: Path) -> str | None:
    try:
        return str(path.readlink())
    except OSError:
        return None
