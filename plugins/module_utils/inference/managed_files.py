# SPDX-License-Identifier: Apache-2.0
"""Bring many files and folders to a wanted state: compare all of them first, then replace each atomically."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from .atomic import write_atomically

State = Literal["file", "directory", "absent"]
STATES: tuple[State, ...] = ("file", "directory", "absent")

MAX_DIFF_BYTES = 1 << 20
"""A file larger than this is not shown in a diff."""


class ManagedFilesError(Exception):
    """The wanted state cannot be reached; nothing was changed."""


@dataclass(frozen=True)
class Entry:
    """What one path is to be. ``content`` is text and belongs to ``state='file'`` alone."""

    path: str
    state: State = "file"
    content: str = ""
    mode: int = 0o644
    owner: str = "root"
    group: str = "root"

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Entry:
        """Build an entry from an Ansible dict, where the mode is an octal string and everything but path optional."""
        state: State = given.get("state") or "file"
        default_mode = "0755" if state == "directory" else "0644"
        return cls(
            path=given["path"],
            state=state,
            content=given.get("content") or "",
            mode=int(given.get("mode") or default_mode, 8),
            owner=given.get("owner") or "root",
            group=given.get("group") or "root",
        )


@dataclass(frozen=True)
class Change:
    """One path that is not as wanted. ``before`` and ``after`` are texts for a diff."""

    entry: Entry
    before: str
    after: str
    rewrite: bool
    """True when the content has to be written, false when owner, group or mode alone differ."""


@dataclass
class Plan:
    """The changes that lead from what is there to what is wanted, in the order in which they are to be made."""

    changes: list[Change] = field(default_factory=list)
    unknown_owners: list[str] = field(default_factory=list)
    """Users and groups that do not exist: an error when applying, expected in check mode on a fresh host."""

    @property
    def paths(self) -> list[str]:
        """The paths that would change."""
        return [change.entry.path for change in self.changes]

    def diff(self) -> list[dict[str, str]]:
        """Return the diff in the form that Ansible shows."""
        return [
            {"before_header": c.entry.path, "after_header": c.entry.path, "before": c.before, "after": c.after}
            for c in self.changes
        ]


def plan(entries: Iterable[Entry]) -> Plan:
    """Compare every entry with what is there. Raises ManagedFilesError for what cannot be done; changes nothing."""
    result = Plan()
    made: set[str] = set()
    for entry in entries:
        if not entry.path.startswith("/"):
            raise ManagedFilesError(f"{entry.path}: not an absolute path")
        if entry.state != "absent":
            parent = str(Path(entry.path).parent)
            if parent not in made and not Path(parent).is_dir():
                raise ManagedFilesError(
                    f"{entry.path}: its folder {parent} is not there; name it before as a directory"
                )
            result.unknown_owners += [name for name in _unknown(entry) if name not in result.unknown_owners]
        if entry.state == "directory":
            made.add(entry.path)
        change = _compare(entry)
        if change:
            result.changes.append(change)
    return result


def apply(planned: Plan) -> None:
    """Make the planned changes, each atomically; a run that is killed leaves whole files and can be repeated."""
    if planned.unknown_owners:
        raise ManagedFilesError(f"no such user or group: {', '.join(planned.unknown_owners)}")
    for change in planned.changes:
        entry, path = change.entry, Path(change.entry.path)
        if entry.state == "absent":
            path.unlink()
        elif entry.state == "directory":
            if change.rewrite:
                path.mkdir(mode=entry.mode)
            _own(path, entry)
        elif change.rewrite:
            write(path, entry.content.encode(), entry)
        else:
            _own(path, entry)


def write(path: Path, content: bytes, entry: Entry) -> None:
    """Replace ``path`` with ``content``; owner and mode are set before it appears."""
    write_atomically(path, content, mode=0o600, prepare=lambda temporary: _own(temporary, entry))


def _own(path: Path, entry: Entry) -> None:
    os.chown(path, pwd.getpwnam(entry.owner).pw_uid, grp.getgrnam(entry.group).gr_gid)
    path.chmod(entry.mode)  # after chown, which clears set-id bits


def _unknown(entry: Entry) -> list[str]:
    missing = []
    for name, look_up in ((entry.owner, pwd.getpwnam), (entry.group, grp.getgrnam)):
        try:
            look_up(name)
        except KeyError:
            missing.append(name)
    return missing


def _compare(entry: Entry) -> Change | None:
    path = Path(entry.path)
    found = path.lstat() if os.path.lexists(path) else None
    if entry.state == "absent":
        return _compare_absent(entry, path, found)
    if found is None:
        return Change(entry, "", _describe(entry) + entry.content, rewrite=True)
    right_type = stat.S_ISDIR(found.st_mode) if entry.state == "directory" else stat.S_ISREG(found.st_mode)
    if not right_type:
        if entry.state == "directory" or stat.S_ISDIR(found.st_mode):
            raise ManagedFilesError(f"{entry.path}: is there and is not a {entry.state}; move it away")
        return Change(entry, "(not a regular file)\n", _describe(entry) + entry.content, rewrite=True)
    now = Entry(
        entry.path, entry.state, "", stat.S_IMODE(found.st_mode), _user(found.st_uid), _group(found.st_gid)
    )  # fmt: skip
    same_content = entry.state == "directory" or path.read_bytes() == entry.content.encode()
    if same_content and (now.mode, now.owner, now.group) == (entry.mode, entry.owner, entry.group):
        return None
    before, after = ("", "") if same_content else (_text(path), entry.content)
    return Change(entry, _describe(now) + before, _describe(entry) + after, rewrite=not same_content)


def _compare_absent(entry: Entry, path: Path, found: os.stat_result | None) -> Change | None:
    if found is None:
        return None
    if stat.S_ISDIR(found.st_mode):
        raise ManagedFilesError(f"{entry.path}: is a folder; only files are removed")
    return Change(entry, _text(path) if stat.S_ISREG(found.st_mode) else "(a link)\n", "", rewrite=True)


def _describe(entry: Entry) -> str:
    return f"# {entry.state} {entry.owner}:{entry.group} {entry.mode:04o}\n"


def _text(path: Path) -> str:
    size = path.stat().st_size
    return path.read_text(errors="replace") if size <= MAX_DIFF_BYTES else f"({size} bytes)\n"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
