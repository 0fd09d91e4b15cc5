# SPDX-License-Identifier: Apache-2.0
"""A site-packages folder with planned changes laid over it, and writing them: each file whole, all of them or none."""

from __future__ import annotations

import ast
import base64
import csv
import difflib
import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import source_edit
from .entry import LedgerError

_TEMPORARY = ".{}.patching"
"""Name of a file being written, in the folder of its target; a fixed name, so that the next run finds a leftover."""


class Tree:
    """A site-packages folder as it is, with the changes of a plan laid over it in memory."""

    def __init__(self, root: Path) -> None:
        if not (root / "sglang").is_dir():
            raise LedgerError(
                f"{root}: no sglang package in it; expected the site-packages folder of an SGLang release"
            )
        self.root = root
        self._found: dict[str, bytes | None] = {}
        self._changed: dict[str, bytes] = {}
        self._parsed: dict[bytes, ast.Module] = {}
        self._records: dict[str, Mapping[str, str]] = {}

    def read(self, name: str) -> bytes | None:
        """Return what the file holds with the planned changes, or None where there is no such file."""
        if name in self._changed:
            return self._changed[name]
        if name not in self._found:
            path = self.root / name
            try:
                self._found[name] = path.read_bytes() if path.is_file() else None
            except OSError as error:
                raise LedgerError(f"{path}: {error.strerror}") from error
        return self._found[name]

    def syntax(self, source: bytes) -> ast.Module:
        """Return the syntax tree of ``source``; each text is parsed once."""
        if source not in self._parsed:
            self._parsed[source] = source_edit.parse(source)
        return self._parsed[source]

    def put(self, name: str, content: bytes) -> None:
        """Lay a change over the tree."""
        self._changed[name] = content

    def changes(self) -> list[Change]:
        """Return the files whose planned content differs from what is on disk."""
        pairs = ((name, self._found[name], content) for name, content in sorted(self._changed.items()))
        return [Change(name, before, after) for name, before, after in pairs if before is not None and before != after]

    def version(self) -> str:
        """Return the installed version of sglang as its metadata folder names it, or an empty string."""
        folder = next(iter(sorted(self.root.glob("sglang-*.dist-info"))), None)
        return folder.name.removesuffix(".dist-info").partition("-")[2] if folder else ""

    def released(self, name: str, content: bytes) -> bool | None:
        """Tell whether ``content`` is the file as its wheel was published (RECORD); None when no RECORD tells."""
        package = name.partition("/")[0]
        if package not in self._records:
            self._records[package] = self._record(package)
        recorded = self._records[package].get(name)
        if not recorded:
            return None
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        return recorded == f"sha256={digest}"

    def _record(self, package: str) -> Mapping[str, str]:
        hashes: dict[str, str] = {}
        for pattern in (f"{package}-*.dist-info", f"{package}_python-*.dist-info"):
            for folder in self.root.glob(pattern):
                try:
                    text = (folder / "RECORD").read_text(encoding="utf-8")
                except OSError:
                    continue
                hashes.update({row[0]: row[1] for row in csv.reader(text.splitlines()) if len(row) > 1})
        return hashes


@dataclass(frozen=True)
class Change:
    """One file of a plan: its path in site-packages, what it holds, and what it will hold."""

    file: str
    before: bytes
    after: bytes

    def diff(self) -> str:
        """Return the unified diff."""
        before, after = (side.decode("utf-8", "replace").splitlines(True) for side in (self.before, self.after))
        return "".join(difflib.unified_diff(before, after, f"a/{self.file}", f"b/{self.file}"))


def _temporary(path: Path) -> Path:
    return path.with_name(_TEMPORARY.format(path.name))


def sweep(root: Path, names: Iterable[str]) -> None:
    """Remove the temporary files that a killed run may have left beside the named files."""
    for name in names:
        _temporary(root / name).unlink(missing_ok=True)


def write(root: Path, changes: Sequence[Change]) -> None:
    """Stage every file beside its target, then replace them. A failure puts back what was replaced."""
    staged: list[Path] = []
    replaced: list[Change] = []
    try:
        for change in changes:
            staged.append(root / change.file)
            _stage(root / change.file, change)
        for change in changes:
            _commit(root / change.file)
            replaced.append(change)
    except OSError as error:
        for path in staged:
            _temporary(path).unlink(missing_ok=True)
        _put_back(root, replaced)
        raise LedgerError(f"{error.filename}: {error.strerror}; every file is as it was before") from error


def _stage(path: Path, change: Change) -> None:
    """Write a new file with the old one's owner and mode: a hard link to a cache is never written."""
    if path.read_bytes() != change.before:
        raise OSError(0, "changed while the plan was made", str(path))
    status = path.stat()
    with _temporary(path).open("xb") as file:
        file.write(change.after)
        os.fchmod(file.fileno(), status.st_mode & 0o7777)
        if os.geteuid() == 0:
            os.fchown(file.fileno(), status.st_uid, status.st_gid)
        file.flush()
        os.fsync(file.fileno())


def _commit(path: Path) -> None:
    """Replace the file in one step. Its bytecode goes first: killed in between, there is only a cache too few."""
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        cached.unlink()
    _temporary(path).replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _put_back(root: Path, replaced: Iterable[Change]) -> None:
    for change in replaced:
        path = root / change.file
        try:
            _stage(path, Change(change.file, change.after, change.before))
            _commit(path)
        except OSError as error:
            raise LedgerError(
                f"{path}: {error.strerror}; it holds the change, revert it by hand or reinstall"
            ) from error
