# SPDX-License-Identifier: Apache-2.0
"""Where a main loop that waits in poll(2) gets word from signals and from other threads."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

CAUGHT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGABRT)

T = TypeVar("T")


class Inbox(Generic[T]):
    """Signals and events in the order of their arrival. ``fd`` becomes readable with each of them."""

    def __init__(self) -> None:
        self.fd, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals: deque[int] = deque()
        self._events: deque[T] = deque()

    def catch_signals(self) -> None:
        """Have the signals in CAUGHT put here, and the end of a child wake the loop."""
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in CAUGHT:
            signal.signal(number, lambda number, _: self._signals.append(number))
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def put(self, event: T) -> None:
        """Leave an event; from any thread."""
        self._events.append(event)
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes the loop as well
            os.write(self._wake, b"\0")

    def clear(self) -> None:
        """Empty the pipe; before the signals and events are taken, so that none is missed."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 65536)

    @property
    def waiting_signals(self) -> int:
        """How many signals have come and were not taken; one that comes after ``clear`` wakes the loop again."""
        return len(self._signals)

    def signals(self) -> Iterator[int]:
        """Take the signals."""
        while self._signals:
            yield self._signals.popleft()

    def events(self) -> Iterator[T]:
        """Take the events."""
        while self._events:
            yield self._events.popleft()
