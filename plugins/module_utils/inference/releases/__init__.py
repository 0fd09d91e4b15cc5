# SPDX-License-Identifier: Apache-2.0
"""Engine releases on a host: what one is called, where it lies, in which state it is, and when it may go.

``ROOT/<engine>-<version>-<id>/`` holds ``venv`` and, once sealed, ``manifest.tsv`` and ``release.json``, which is
written last: a release exists if and only if it has one. ``install.json`` marks an installed release that is not
sealed yet. A folder with neither is the rest of an interrupted installation. The id stands for everything that
decides the content: lock, interpreter, chosen patches, and the way of building.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from ..atomic import write_atomically
from . import sealing
from .interpreters import Interpreter
from .locks import Lock

BUILD_SCHEMA = 1
"""Raised when this code builds other releases from the same inputs. It is part of every id."""

ROOT = "/opt/inference/releases"
STATE_DIR = "/var/lib/inference/releases"
RELEASE = "release.json"
INSTALLED = "install.json"
WORK = ".work-"
GOING = ".going-"
NOT_IN_MANIFEST = (RELEASE, INSTALLED, sealing.MANIFEST)

State = Literal["sealed", "unsealed", "absent"]


class ReleaseError(RuntimeError):
    """Something about a release that a person has to see. Nothing was changed unless the message says so."""


def release_id(lock_sha256: str, interpreter: Interpreter, patches_id: str) -> str:
    """Return the id of a release: 12 hexadecimal digits."""
    parts = {
        "build_schema": BUILD_SCHEMA,
        "interpreter": interpreter.identity,
        "lock": lock_sha256,
        "patches": patches_id,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Release:
    """A release's place on a host, whether it is there or not. Paths are absolute."""

    name: str
    root: Path
    state_dir: Path

    @property
    def path(self) -> Path:
        """Its folder."""
        return self.root / self.name

    @property
    def venv(self) -> Path:
        """Its virtual environment."""
        return self.path / "venv"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.venv / "bin" / "python"

    @property
    def work(self) -> Path:
        """Where an installation keeps what is not part of the release; on the same file system."""
        return self.root / (WORK + self.name)

    @property
    def stat_file(self) -> Path:
        """Sizes and times as last seen with the right content."""
        return self.state_dir / f"{self.name}.stat"

    @property
    def state(self) -> State:
        """``sealed``: usable; ``unsealed``: installed, may still be patched; ``absent``: nothing that counts."""
        if (self.path / RELEASE).is_file():
            return "sealed"
        return "unsealed" if (self.path / INSTALLED).is_file() else "absent"

    def record(self) -> dict[str, Any]:
        """Return release.json. Raises ReleaseError when it can't be read or is not this release's."""
        path = self.path / RELEASE
        try:
            record = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ReleaseError(f"{path}: {error}") from error
        if not isinstance(record, dict) or record.get("name") != self.name:
            raise ReleaseError(f"{path} is not the record of {self.name}; build the release again")
        if record.get("record_sha256") != _record_sha256(record):
            raise ReleaseError(f"{path} has been changed since it was written; build the release again")
        return record

    def verify(self, *, full: bool = False, refresh: bool = True) -> sealing.Verification:
        """Compare every file with the seal. Raises ReleaseError when the seal itself is broken."""
        record = self.record()
        try:
            # a run that was killed just after writing the record may have left install.json
            beside = [RELEASE, INSTALLED]
            return sealing.verify(
                self.path, record["manifest_sha256"], self.stat_file, beside, full=full, refresh=refresh
            )
        except (sealing.SealError, KeyError) as error:
            raise ReleaseError(f"{self.path}: the seal is broken: {error}; rebuild the release") from error

    @contextmanager
    def locked(self, timeout: float) -> Iterator[None]:
        """Hold the release against other runs. Raises ReleaseError after ``timeout`` seconds, naming who holds it."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        path = self.state_dir / f"{self.name}.lock"
        with path.open("a+") as stream:
            _acquire(stream.fileno(), path, timeout)
            stream.truncate(0)
            stream.write(f"{os.getpid()}\n")
            stream.flush()
            yield


def _acquire(descriptor: int, path: Path, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = path.read_text(encoding="utf-8").strip() or "unknown"
                raise ReleaseError(
                    f"another run holds {path} (process {holder}) and did not end within {timeout:.0f} s"
                ) from None
        time.sleep(0.2)


def place(lock: Lock, interpreter: Interpreter, patches_id: str, root: str, state_dir: str) -> Release:
    """Return where the release of these inputs belongs."""
    name = f"{lock.engine}-{lock.version}-{release_id(lock.sha256, interpreter, patches_id)}"
    return Release(name, Path(root).absolute(), Path(state_dir).absolute())


def delete(path: Path) -> None:
    """Delete a folder tree, or a link without what it points to."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path)


def discard(release: Release) -> None:
    """Remove a release and what an installation left. It disappears in one step, then its files are deleted."""
    for path in (release.path, release.work):
        if path.is_symlink() or path.exists():
            going = path.with_name(f"{GOING}{path.name}-{os.getpid()}")
            path.rename(going)
            delete(going)
    release.stat_file.unlink(missing_ok=True)


# --- sealing ------------------------------------------------------------------------------------------------------


def seal(
    release: Release,
    lock: Lock,
    interpreter: Interpreter,
    patches_id: str,
    *,
    entries: Sequence[sealing.Entry],
    notes: Mapping[str, Any],
) -> dict[str, Any]:
    """Write the manifest, then release.json, then the stat file; return the record. ``notes`` are added to it."""
    record = {
        "schema": 1,
        "name": release.name,
        "id": release.name.rpartition("-")[2],
        "engine": lock.engine,
        "version": lock.version,
        "variant": lock.variant,
        "lock": {"name": lock.name, "sha256": lock.sha256},
        "interpreter": interpreter.as_dict(),
        "patches_id": patches_id,
        "packages": lock.versions,
        "build_schema": BUILD_SCHEMA,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "files": len(entries),
        "bytes": sum(entry.size for entry in entries),
        "manifest_sha256": sealing.write_manifest(release.path, entries),
        **notes,
    }
    record["record_sha256"] = _record_sha256(record)
    text = json.dumps(record, indent=2, sort_keys=True) + "\n"
    write_atomically(release.path / RELEASE, text.encode())
    (release.path / INSTALLED).unlink()
    sealing.write_stats(release.stat_file, str(record["manifest_sha256"]), sealing.scan(release.path))
    return record


def _record_sha256(record: Mapping[str, Any]) -> str:
    """Return the hash of a record without this hash: it can't be in the manifest, whose hash it holds."""
    rest = {key: value for key, value in record.items() if key != "record_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


# --- removing old ones --------------------------------------------------------------------------------------------


def sealed_releases(root: Path, state_dir: Path, engine: str) -> list[Release]:
    """Return an engine's sealed releases, the newest first."""
    found = []
    for path in root.glob(f"{engine}-*/{RELEASE}"):
        release = Release(path.parent.name, root, state_dir)
        record = release.record()
        if record.get("engine") == engine:  # and not another whose name begins alike: sglang-router
            found.append((record.get("created", ""), release))
    return [release for _, release in sorted(found, key=lambda item: (item[0], item[1].name), reverse=True)]


def to_remove(releases: Sequence[Release], keep: int, in_use: Iterable[str]) -> list[Release]:
    """Return which releases go: all but the newest ``keep`` (at least one) and those in use.

    ``in_use`` names releases by id, name or any path in them.
    """
    used = [str(word).rstrip("/") for word in in_use]
    return [
        release
        for release in releases[max(keep, 1) :]
        if not any(_names(word, release) for word in used) and not running(release)
    ]


def _names(word: str, release: Release) -> bool:
    identity = release.name.rpartition("-")[2]
    return word in (release.name, identity) or release.name in Path(word).parts


def running(release: Release, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes that were started from a release: no list of generations knows of those started by hand."""
    found = []
    needle = f"{release.path}/".encode()
    for path in proc.glob("[0-9]*/cmdline"):
        try:
            if needle in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


def leftovers(root: Path) -> list[Path]:
    """Return what removals that were interrupted have left."""
    return sorted(root.glob(f"{GOING}*"))
