# SPDX-License-Identifier: Apache-2.0
"""Sealing a folder: a manifest of every file in it, and the comparison with it, quick or by content.

A sealed folder is never written to again. What may change without its content changing (times, when an image is
copied) is kept outside of it, in a *stat file*: sizes and times of every file as last seen with the right content.
The quick comparison asks the file system for nothing but these; only what differs is hashed.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..atomic import write_atomically
from .wheelhouse import file_sha256

MANIFEST = "manifest.tsv"
Stat = tuple[int, int, int]
"""Size in bytes, time of modification and of change in nanoseconds."""


class SealError(RuntimeError):
    """A folder that can't be sealed, or a seal that can't be read."""


@dataclass(frozen=True)
class Entry:
    """A file or symbolic link of a sealed folder. ``content`` is a file's sha256, or a link's target."""

    kind: Literal["file", "link"]
    mode: int
    size: int
    content: str
    path: str

    def as_line(self) -> str:
        """Return the manifest's line."""
        return f"{self.kind}\t{self.mode:04o}\t{self.size}\t{self.content}\t{self.path}\n"

    def __str__(self) -> str:
        what = f"sha256 {self.content}" if self.kind == "file" else f"link to {self.content}"
        return f"{self.size} bytes, mode {self.mode:04o}, {what}"


@dataclass(frozen=True)
class Problem:
    """A path of a sealed folder that is not as it was sealed."""

    path: str
    kind: Literal["missing", "changed", "extra"]
    seen: str
    expected: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.path} (seen: {self.seen}; expected: {self.expected})"


@dataclass(frozen=True)
class Verification:
    """The outcome of a comparison: what is wrong, of how many files, and how many had to be read."""

    problems: tuple[Problem, ...]
    files: int
    hashed: int


def scan(root: Path) -> dict[str, os.stat_result]:
    """Return the lstat of everything below a folder that is not a folder, by relative path."""
    return dict(_walk(str(root), ""))


def _walk(directory: str, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, f"{prefix}{entry.name}/")
            else:
                yield prefix + entry.name, entry.stat(follow_symlinks=False)


def _times(status: os.stat_result) -> Stat:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def entry_of(root: Path, path: str, status: os.stat_result) -> Entry:
    """Return what is on disk as a manifest entry; reads the file. Raises SealError on a device, socket or pipe."""
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return Entry("link", 0o777, 0, str((root / path).readlink()), path)
    if not stat.S_ISREG(status.st_mode):
        raise SealError(f"{root / path} is neither a file nor a link")
    return Entry("file", mode, status.st_size, file_sha256(root / path), path)


def _entries(root: Path, present: Mapping[str, os.stat_result]) -> list[Entry]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda item: entry_of(root, *item), present.items(), chunksize=64))


def make_manifest(root: Path, leave_out: Iterable[str] = ()) -> list[Entry]:
    """Return an entry for every file below a folder, by path. Raises SealError on names a manifest can't hold."""
    present = scan(root)
    for path in leave_out:
        present.pop(path, None)
    for path in present:
        if not path.isprintable():
            raise SealError(f"{root}: a file name with unprintable characters: {path!r}")
    return sorted(_entries(root, present), key=lambda entry: entry.path)


def write_manifest(root: Path, entries: Iterable[Entry]) -> str:
    """Write the manifest into the folder and return its sha256."""
    text = "".join(entry.as_line() for entry in entries).encode()
    write_atomically(root / MANIFEST, text)
    return hashlib.sha256(text).hexdigest()


def read_manifest(root: Path, sha256: str) -> dict[str, Entry]:
    """Return the manifest's entries by path. Raises SealError when it is not the one that was sealed."""
    try:
        content = (root / MANIFEST).read_bytes()
    except OSError as error:
        raise SealError(f"{root / MANIFEST}: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != sha256:
        raise SealError(f"{root / MANIFEST} has been changed: its sha256 is not {sha256}")
    entries = {}
    for line in content.decode().splitlines():
        kind, mode, size, what, path = line.split("\t")
        entries[path] = Entry("link" if kind == "link" else "file", int(mode, 8), int(size), what, path)
    return entries


# --- the stat file ------------------------------------------------------------------------------------------------


def read_stats(stat_file: Path, seal: str) -> dict[str, Stat]:
    """Return sizes and times as last seen under this seal; empty when there are none that can be used."""
    try:
        head, *lines = stat_file.read_text(encoding="utf-8").split("\n")
        if head != seal:
            return {}
        fields = (line.split("\t", 3) for line in lines if line)
        return {path: (int(size), int(mtime), int(ctime)) for size, mtime, ctime, path in fields}
    except (OSError, ValueError):
        return {}


def write_stats(stat_file: Path, seal: str, present: Mapping[str, os.stat_result]) -> None:
    """Keep sizes and times of what is present, outside of the sealed folder."""
    lines = ["\t".join((*map(str, _times(status)), path)) for path, status in present.items()]
    stat_file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(stat_file, "\n".join([seal, *lines, ""]).encode(), mode=0o600)


# --- comparing ----------------------------------------------------------------------------------------------------


def verify(
    root: Path, seal: str, stat_file: Path, beside: Iterable[str], *, full: bool = False, refresh: bool = True
) -> Verification:
    """Compare a sealed folder with its manifest, whose sha256 is ``seal``.

    Files whose size and times are those of the stat file count as unchanged unless ``full``. ``beside`` are files
    that belong to the seal itself and are not in the manifest. When everything is right but times differed, the stat
    file is brought up to date if ``refresh``. Raises SealError when the manifest itself is gone or changed.
    """
    present = scan(root)
    known = read_stats(stat_file, seal)
    suspects = {path: status for path, status in present.items() if full or known.get(path) != _times(status)}
    if not suspects and len(known) == len(present):
        return Verification((), len(present), 0)
    manifest = read_manifest(root, seal)
    sealed = {MANIFEST, *beside, *manifest}
    missing = [_missing(manifest[path]) for path in manifest.keys() - present.keys()]
    extra = [Problem(path, "extra", "a file", "no such file") for path in suspects if path not in sealed]
    to_read = {path: status for path, status in suspects.items() if path in manifest}
    changed = list(_changed(root, manifest, to_read))
    problems = sorted(missing + extra + changed, key=lambda problem: problem.path)
    if not problems and refresh:
        write_stats(stat_file, seal, present)
    return Verification(tuple(problems), len(present), len(to_read))


def _missing(entry: Entry) -> Problem:
    return Problem(entry.path, "missing", "no such file", str(entry))


def _changed(root: Path, manifest: Mapping[str, Entry], to_read: Mapping[str, os.stat_result]) -> Iterator[Problem]:
    odd = {
        path for path, status in to_read.items() if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode))
    }
    for path in odd:
        yield Problem(path, "changed", "neither a file nor a link", str(manifest[path]))
    for entry in _entries(root, {path: status for path, status in to_read.items() if path not in odd}):
        if entry != manifest[entry.path]:
            yield Problem(entry.path, "changed", str(entry), str(manifest[entry.path]))
