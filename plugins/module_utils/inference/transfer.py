# SPDX-License-Identifier: Apache-2.0
"""Bringing folders to a host with rsync: its command lines, and what its output says of changes and progress."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

RSYNC = (
    *(
        "rsync",
        "--recursive",
        "--links",
        "--times",
        "--chmod=D0755,F0644",
        "--partial-dir=.partial",
        "--delete",
        "--mkpath",
    ),
    *("--itemize-changes", "--info=progress2", "--no-human-readable", "--outbuf=L"),
)
"""An interrupted transfer goes on where it stopped; what the source does not have is removed from the target."""

_CHANGE = re.compile(r"[<>ch.*](?:[fdLDS][.+cstTpoguax?]{9}|deleting) ")
_PROGRESS = re.compile(r"\s*(?P<bytes>\d+)\s+(?P<percent>\d+)%\s+(?P<rate>[\d.]+[kMGT]?B/s)\s+(?P<left>\d+:\d\d:\d\d)")


@dataclass(frozen=True)
class Ssh:
    """How a host is reached. ``words``: the ssh command without user and address, such as ``("ssh", "-p", "22")``."""

    address: str
    user: str | None = None
    words: Sequence[str] = ("ssh",)

    @property
    def login(self) -> str:
        """What stands before the colon."""
        return f"{self.user}@{self.address}" if self.user else self.address

    @property
    def rsync(self) -> str:
        """The program as root over there."""
        return "rsync" if self.user in (None, "root") else "sudo -n rsync"


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
    prefix = [] if host.user in (None, "root") else ["sudo", "-n", "--preserve-env=SSH_AUTH_SOCK"]
    return [*host.words, "-A", host.login, shlex.join([*prefix, *there])]


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
