# SPDX-License-Identifier: Apache-2.0
"""What a model's files were when they were last found right, so that looking again takes seconds and not hours.

The record lies outside of the model, in a folder of root's. For each file it holds size, times and inode as last seen,
and the sha256 that it is known by: the source's own where the source has one, else that of its first reading.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..atomic import write_atomically
from ..fetching import CHUNK
from ..releases.wheelhouse import file_sha256

STATE_DIR = Path("/var/lib/inference/models")
SCHEMA = 1
SUMS = "SHA256SUMS"
"""A file of ``sha256sum`` beside the weights, which then says what they have to be."""

MARK = ".origin"
"""A file that says for which commit a folder is filled, until the model is in its place: no part of it."""

_LOCAL = (".cache", ".git")
"""Folders in which tools keep their own: no part of a model."""
_SUM = re.compile(r"(?P<sha256>[0-9a-f]{64}) [ *](?:\./)?(?P<path>.+)")

Stat = tuple[int, int, int, int]
"""Size in bytes, modification and change in nanoseconds, inode."""


class RecordError(ValueError):
    """A record, or a list of sums, that cannot be read."""


@dataclass
class Record:
    """A model's record. ``origin`` says where the files came from; ``sums`` and ``stats`` are by path in the folder."""

    origin: str = ""
    sums: dict[str, str] = field(default_factory=dict)
    blobs: dict[str, str] = field(default_factory=dict)
    """What git calls the content of small files (sha1 of a header and the content): a hub says no sha256 for those."""
    stats: dict[str, Stat] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Record | None:
        """Return the record in a file, or None when there is none. Raises RecordError."""
        try:
            given = json.loads(path.read_bytes())
            if given["schema"] != SCHEMA:
                raise ValueError(f"schema {given['schema']}")
            stats = {name: _stat_from(value) for name, value in given["stats"].items()}
            return cls(str(given["origin"]), dict(given["sums"]), dict(given["blobs"]), stats)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordError(f"{path}: not a record of weights ({error}); remove it, and all is read again") from error

    def save(self, path: Path) -> None:
        """Write the record, whole or not at all."""
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        given = {"schema": SCHEMA, **vars(self)}
        write_atomically(path, (json.dumps(given, indent=1, sort_keys=True) + "\n").encode())

    def changed(self, folder: Path) -> list[str]:
        """Return the files whose size, times or inode are not those of the record, that are new, or that are gone."""
        seen = looks(folder)
        return [name for name in sorted({*seen, *self.stats}) if self.stats.get(name) != seen.get(name)]

    def missing(self, folder: Path) -> list[str]:
        """Return files with a known content that are not there, or none of the model's, which are never read."""
        there = set(files_of(folder))
        return sorted(
            n for n in {**self.sums, **self.blobs} if n not in there and not {*Path(n).parts}.intersection(_LOCAL)
        )

    def verify(self, folder: Path, *, full: bool = False, say: Callable[[str], None] = lambda _: None) -> list[str]:
        """Read the files that changed (``full``: all) and return a line for each whose content is not the known one.

        What is read and has no known content yet is known by that from then on. The stats of right files are updated;
        saving is the caller's. ``say`` is called with each file before it is read.
        """
        seen = looks(folder)
        names = [name for name in seen if full or self.stats.get(name) != seen[name]]
        wrong = [f"{name}: missing; the record of {self.origin or folder} has it" for name in self.missing(folder)]
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for name, line in pool.map(lambda name: (name, self._compare(folder, name, say)), names):
                if line:
                    wrong.append(line)
                else:
                    self.stats[name] = seen[name]
        self.stats = {name: stat for name, stat in self.stats.items() if name in seen}
        return wrong

    def accept(self, folder: Path) -> None:
        """Remember how the files look now without reading them: nothing is known of their content."""
        self.stats = looks(folder)

    def _compare(self, folder: Path, name: str, say: Callable[[str], None]) -> str | None:
        say(name)
        try:
            if name not in self.sums and name in self.blobs:
                found = git_blob(folder / name)
                return (
                    None if found == self.blobs[name] else _differs(name, f"blob {found}", f"blob {self.blobs[name]}")
                )
            found = file_sha256(folder / name)
        except OSError as error:
            return f"{name}: cannot be read ({error.strerror})"
        known = self.sums.setdefault(name, found)
        return None if found == known else _differs(name, f"sha256 {found}", f"sha256 {known}")


def _differs(name: str, seen: str, expected: str) -> str:
    return f"{name}: its content is another (seen {seen}; expected {expected})"


def _stat_from(value: Any) -> Stat:
    size, modified, changed, inode = map(int, value)
    return size, modified, changed, inode


def record_path(folder: Path, state_dir: Path = STATE_DIR) -> Path:
    """Return where the record of the model in ``folder`` lies."""
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return state_dir / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', folder.name)[:60]}-{digest}.json"


def files_of(folder: Path) -> Iterator[str]:
    """Yield the paths of a model's files in its folder; folders that are tools' own are left out.

    Links to files are followed, links to folders are not: they may lead back, or to all of the file system.
    """
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in _LOCAL)
        for name in sorted(names):
            path = Path(place, name)
            if path.is_file() and name != MARK:
                yield path.relative_to(folder).as_posix()


def looks(folder: Path) -> dict[str, Stat]:
    """Return size, times and inode of each of a model's files."""
    found = {}
    for name in files_of(folder):
        status = (folder / name).stat()
        found[name] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    return found


def git_blob(file: Path) -> str:
    """Return what git calls the content of a file: the sha1 of ``blob LENGTH``, a zero byte, and the content."""
    digest = hashlib.sha1(f"blob {file.stat().st_size}\0".encode(), usedforsecurity=False)
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def known_sums(folder: Path) -> dict[str, str]:
    """Return the sha256 of files as the folder lists them in SHA256SUMS; empty without one. Raises RecordError."""
    try:
        text = (folder / SUMS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RecordError(f"{folder / SUMS}: {error}") from error
    sums: dict[str, str] = {}
    for number, line in enumerate(filter(str.strip, text.splitlines()), 1):
        found = _SUM.fullmatch(line.strip())
        if not found:
            raise RecordError(f"{folder / SUMS}: line {number} is not one of sha256sum")
        sums[found["path"]] = found["sha256"]
    return sums


def adopt(record: Record, sums: Mapping[str, str]) -> None:
    """Take what a source says of its files: it replaces what was known by a first reading."""
    record.sums |= sums
