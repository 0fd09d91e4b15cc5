# SPDX-License-Identifier: Apache-2.0
"""The engine as the supervisor's child: started, watched with all its workers, told to end, and ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from . import proc
from .failure import Failure
from .proc import Process


@dataclass(frozen=True)
class LostWorker:
    """A worker that has ended, with the signal that ended it where that is known."""

    pid: int
    title: str
    signal: int | None

    def __str__(self) -> str:
        how = f", killed by {signal_name(self.signal)}" if self.signal else ""
        return f"{self.title} (pid {self.pid}){how}"


class Engine:
    """The engine's main process and the tree below it. ``output`` is the pipe that its stdout and stderr lead to."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Start ``command`` in a session of its own: engines signal their whole process group when they fail."""
        self.output, inlet = os.pipe()
        redirect = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, inlet, 1),
            (os.POSIX_SPAWN_DUP2, inlet, 2),
        ]
        try:
            self.pid = os.posix_spawnp(
                command[0],
                list(command),
                dict(environ),
                file_actions=redirect,
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # which Python ignores, and a child would inherit
            )
        except OSError as error:
            raise Failure("command-unusable", f"cannot start {command[0]}: {error.strerror}") from error
        finally:
            os.close(inlet)
        self.pidfd = os.pidfd_open(self.pid)
        self._status: int | None = None
        self._workers: dict[int, Process] = {}
        self._titles: dict[int, str] = {}

    @property
    def exit_code(self) -> int | None:
        """Exit status once it has ended; a signal's number negated; None while it runs."""
        if self._status is None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    @property
    def watched(self) -> set[int]:
        """The processes of which it matters how they end: the main one, and the workers that are watched."""
        return {self.pid, *(worker.pid for worker in self._workers.values())}

    def signal(self, number: int) -> None:
        """Send a signal to the main process, if it still runs."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    @staticmethod
    def tree() -> dict[int, Process]:
        """Return the engine's processes: everything below the supervisor, which orphans fall to."""
        return proc.descendants(os.getpid(), proc.processes())

    def watch_workers(self, poll: select.poll) -> list[str]:
        """Have ``poll`` report the end of every process that now makes up the engine. Return their command lines."""
        tree = self.tree()
        titles = {pid: proc.title(pid) for pid in tree if pid != self.pid}
        passing = proc.passing(tree, titles)
        for pid, command in titles.items():
            if tree[pid].state == "Z" or pid in passing:
                continue
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                self._workers[handle], self._titles[handle] = tree[pid], command
                poll.register(handle, select.POLLIN)
        return list(self._titles.values())

    def lost_worker(self, handles: Sequence[int]) -> LostWorker | None:
        """Return the worker that has ended, given the descriptors that ``poll`` reported; None when it is none."""
        for handle in handles:
            if handle in self._workers:
                pid = self._workers[handle].pid
                return LostWorker(pid, self._titles[handle] or "a process", proc.exit_signal(pid))
        return None

    def forget_workers(self, poll: select.poll) -> None:
        """Watch the workers no longer: they may end now."""
        for handle in self._workers:
            poll.unregister(handle)
            os.close(handle)
        self._workers.clear()


def was_asked(code: int | None) -> bool:
    """Tell whether an exit code may come from a request to end that went to the whole unit."""
    asked = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return code is None or code == 0 or -code in asked or code - 128 in asked


def signal_name(number: int) -> str:
    """Return a signal's name, such as SIGKILL."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_exit(code: int) -> str:
    """Return how a process ended, in words, from its exit code."""
    return f"ended with exit status {code}" if code >= 0 else f"was killed by {signal_name(-code)}"
