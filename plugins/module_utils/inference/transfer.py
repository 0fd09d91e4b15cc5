# SPDX-License-Identifier: Apache-2.0
"""Bringing folders to a host with rsync: its command lines, and what its output says of changes and progress."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RSYNC = (
    *(
        "rsync",
        "--recursive",
        "--links",
        "--safe-links",
        "--times",
        "--chmod=D0755,F0644",
        "--partial-dir=.partial",
        "--delete",
        "--mkpath",
    ),
    *("--itemize-changes", "--info=progress2", "--no-human-readable", "--outbuf=L"),
)
"""An interrupted transfer goes on where it stopped; what the source does not have is removed from the target. A link
that leads out of the folder is not brought (rsync(1), --safe-links): over there it would name something else."""

SUDO = "sudo -n"

_CHANGE = re.compile(r"[<>ch.*](?:[fdLDS][.+cstTpoguax?]{9}|deleting) ")
_PROGRESS = re.compile(r"\s*(?P<bytes>\d+)\s+(?P<percent>\d+)%\s+(?P<rate>[\d.]+[kMGT]?B/s)\s+(?P<left>\d+:\d\d:\d\d)")


@dataclass(frozen=True)
class Ssh:
    """How a host is reached. ``words``: the ssh command without user and address, such as ``("ssh", "-p", "22")``."""

    address: str
    user: str | None = None
    """None: whom the ssh settings of whoever runs this name, which nobody knows here."""
    words: Sequence[str] = ("ssh",)
    become: bool = True
    """Whether the play works as root over there, whoever logs in."""

    @property
    def login(self) -> str:
        """What stands before the colon."""
        return f"{self.user}@{self.address}" if self.user else self.address

    def as_root(self, command: str, sudo: str = SUDO) -> str:
        """Return a command for a shell over there, by which it runs as root; as whoever logs in where the play does."""
        if not self.become or self.user == "root":
            return command
        return f"{sudo} {command}" if self.user else f'$(test "$(id -u)" = 0 || echo {sudo}) {command}'

    @property
    def rsync(self) -> str:
        """The program over there; rsync has a shell run it (rsync(1), --rsync-path)."""
        return self.as_root("rsync")

    @property
    def probe(self) -> list[str]:
        """Return the command, run here, that succeeds when rsync is over there and needs no password."""
        return [*self.words, self.login, self.as_root("rsync --version")]


def leading_out(folder: Path) -> list[str]:
    """Return the links in a folder, by their path below it, that lead out of it or name their target from the root."""
    found = []
    for above, folders, names in os.walk(folder):
        for link in (Path(above, name) for name in (*folders, *names)):
            if link.is_symlink():
                target = os.path.normpath(link.relative_to(folder).parent / link.readlink())
                if target.startswith(("/", "../")) or target == "..":
                    found.append(str(link.relative_to(folder)))
    return sorted(found)


def push(folder: str, host: Ssh | None, target: str) -> list[str]:
    """Return the command that brings a folder's content from here to ``host``, or to this machine itself (None)."""
    if host is None:
        return [*RSYNC, _content(folder), _content(target)]
    rsh = shlex.join(host.words)
    return [*RSYNC, f"--rsync-path={host.rsync}", "--rsh", rsh, _content(folder), f"{host.login}:{_content(target)}"]


def pull(peer: Ssh, folder: str, host: Ssh, target: str) -> list[str]:
    """Return the command, run here, by which ``host`` fetches a folder's content from ``peer``.

    The data goes from host to host. For that one command the ssh agent of whoever runs this is forwarded to ``host``,
    which then may log in to ``peer`` as they may.
    """
    there = [*RSYNC, f"--rsync-path={peer.rsync}", "--rsh", shlex.join(peer.words)]
    there += [f"{peer.login}:{_content(folder)}", _content(target)]
    return [*host.words, "-A", host.login, host.as_root(shlex.join(there), f"{SUDO} --preserve-env=SSH_AUTH_SOCK")]


def _content(folder: str) -> str:
    return folder.rstrip("/") + "/"


@dataclass(frozen=True)
class Progress:
    """How far a transfer is, as rsync says it; ``left`` is ``H:MM:SS``."""

    bytes: int
    percent: int
    rate: str
    left: str


@dataclass
class Output:
    """What rsync has printed so far."""

    changes: int = 0
    _rest: str = field(default="", repr=False)

    def feed(self, text: str) -> Iterator[Progress]:
        """Take more output; yield the progress in it. Progress lines end with a carriage return."""
        *lines, self._rest = re.split(r"[\r\n]", self._rest + text)
        for line in lines:
            if _CHANGE.match(line):
                self.changes += 1
            elif found := _PROGRESS.match(line):
                yield Progress(int(found["bytes"]), int(found["percent"]), found["rate"], found["left"])
