# SPDX-License-Identifier: Apache-2.0
"""The engine's output on its way to the journal: passed on without secrets, and understood in passing.

An engine that serves prints some lines for each request. They are taken many at a time: what costs is to wake up, and
one search that finds nothing in all of them is much cheaper than one in each.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from .. import redact, signatures

LINE_LIMIT = 16384
"""Bytes of one line that are passed on; journald itself splits lines at 48 KiB."""

READ_BYTES = 16384
"""Bytes that are read at once: with the rest of a line before it no more than the kernel takes into a socket in one
piece (36 KiB), so that the supervisor's own lines never come in between."""

PIPE_BYTES = 1 << 20
"""Bytes of output that the kernel holds for an engine (as many as it grants by default to anybody, pipe(7))."""

GATHER_S = 0.1
"""Seconds for which the lines of a serving engine gather in the pipe: each comes so much later into the journal."""

KEPT_LINES = 50
"""Lines that a failure's record shows."""

KEPT_LINE_LIMIT = 2000
"""Bytes of each of them."""

_ACCESS = re.compile(rb'"(?:GET|POST|HEAD) /\S* HTTP/1\.[01]" \d{3}')
"""A web server's line about one request: a probe's own trace is no progress of the engine."""

_BATCH = re.compile(rb"\b(?:Prefill|Decode) batch\b")
"""A line that SGLang's scheduler prints while it works on requests."""


class Redactor:
    """Hides secrets: the one key that is known, and what looks like one."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def clean(self, text: str) -> str:
        """Return ``text`` with every secret replaced."""
        return redact.redact(text.replace(self._key, redact.HIDDEN) if self._key else text)

    def clean_lines(self, lines: Sequence[bytes]) -> list[bytes]:
        """Return the lines with every secret replaced; whatever is no UTF-8 in them stays."""
        together = b"\n".join(lines)
        if not redact.may_hold_secret(together) and (self._key is None or self._key.encode() not in together):
            return list(lines)
        texts = (line.decode(errors="surrogateescape") for line in lines)
        return [self.clean(text).encode(errors="surrogateescape") for text in texts]


class LineSplitter:
    """Cuts a stream into lines, holding no more of one than ``limit`` bytes.

    The last word of a line that was cut goes with the rest: it may be the beginning of a secret, known to nobody.
    Of a line that was overwritten with carriage returns (a progress bar) what a terminal would show last remains.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._left_out, self._returned = 0, False
        self.held = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take ``chunk`` and return the lines that it completes, without their line ends."""
        first, *more = chunk.split(b"\n")
        self._hold(first)
        if not more:
            return []
        lines = [self.release()]
        *whole, rest = more
        if b"\r" in chunk or len(chunk) > self._limit:
            for piece in whole:
                self._hold(piece)
                lines.append(self.release())
        else:
            lines += whole
        self._hold(rest)
        return lines

    def _hold(self, piece: bytes) -> None:
        first, *later = piece.split(b"\r")
        self._append(first)
        for text in later:
            self._returned = True
            self._append(text)

    def _append(self, text: bytes) -> None:
        if text and self._returned:
            self.release()
        kept = text[: self._limit - len(self.held)]
        self.held += kept
        self._left_out += len(text) - len(kept)

    def release(self) -> bytes:
        """Return what is held as one line and begin the next."""
        line, left_out = self.held, self._left_out
        self.held, self._left_out, self._returned = b"", 0, False
        if not left_out:
            return line
        least = len(line) - self._limit // 4
        kept = line[: max(line.rfind(b" "), least)]
        return kept + b" [%d bytes left out]" % (left_out + len(line) - len(kept))


class LogPump(threading.Thread):
    """Passes a pipe on to another descriptor until everyone has closed the pipe. It waits for nothing else.

    While the engine starts, each line is taken as it comes. Once it serves, lines gather for GATHER_S in the pipe,
    which is made large enough for it; where that is refused, they are taken as they come.
    """

    def __init__(
        self,
        source: int,
        target: int,
        redactor: Redactor,
        on_phase: Callable[[str], None],
        on_crash: Callable[[Exception], None],
    ) -> None:
        super().__init__(name="log", daemon=True)
        self._source, self._target, self._redactor = source, target, redactor
        self._on_phase, self._on_crash = on_phase, on_crash
        self._splitter = LineSplitter()
        self._scanner = signatures.Scanner()
        self._phase: str | None = None
        self._serving = False
        self._at_once = threading.Event()
        if not _enlarge(source):
            self._at_once.set()
        self._kept: deque[bytes] = deque(maxlen=KEPT_LINES)
        self.progress_bytes = 0
        """Bytes of output of an engine that starts, without a web server's lines about requests."""
        self.last_output = time.monotonic()
        self.last_batch = float("-inf")
        """When it was last seen that the engine speaks of work on requests, on the monotonic clock."""

    def run(self) -> None:
        """Pump until the end of the pipe."""
        try:
            self._pump()
        except Exception as error:  # noqa: BLE001, RUF100 - an engine whose output nobody takes stops in the end
            self._on_crash(error)

    def _pump(self) -> None:
        while chunk := os.read(self._source, READ_BYTES):
            self.last_output = time.monotonic()
            self.take(chunk)
            if self._serving and len(chunk) < READ_BYTES:  # the pipe is empty
                self._at_once.wait(GATHER_S)
        if self._splitter.held:
            self._take([self._splitter.release()])

    def take(self, chunk: bytes) -> None:
        """Pass on and understand the lines that ``chunk`` completes."""
        if lines := self._splitter.feed(chunk):
            self._take(lines)
        if self._splitter.held and not self._serving:  # a progress bar has no line end for minutes
            self.progress_bytes += len(chunk) - chunk.rfind(b"\n") - 1
            self._notice_phase(self._splitter.held)

    def _take(self, lines: Sequence[bytes]) -> None:
        lines = self._redactor.clean_lines(lines)
        together = b"\n".join(lines)
        self._pass_on(together + b"\n")
        self._kept.extend(line[:KEPT_LINE_LIMIT] for line in lines[-KEPT_LINES:])
        if b" batch" in together and _BATCH.search(together):
            self.last_batch = time.monotonic()
        if signatures.may_match(together):
            for line in lines:
                self._scanner.feed(line.decode(errors="replace"))
        else:
            self._scanner.skip(len(lines))
        if not self._serving:
            self._take_start(lines)

    def _take_start(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            self.progress_bytes += 0 if _ACCESS.search(line) else len(line) + 1
            self._notice_phase(line)

    def _pass_on(self, text: bytes) -> None:
        """Write whole lines. A journal that is gone must not stop the engine, whose pipe would fill."""
        while text:
            try:
                text = text[os.write(self._target, text) :]
            except BlockingIOError:
                select.select([], [self._target], [])
            except OSError:
                return

    def _notice_phase(self, line: bytes) -> None:
        phase = signatures.phase_of(line.decode(errors="replace"))
        if phase and phase != self._phase:
            self._phase = phase
            self._on_phase(phase)

    @property
    def lines(self) -> list[str]:
        """The last lines, without secrets."""
        return [line.decode(errors="replace") for line in list(self._kept)]

    @property
    def matches(self) -> list[signatures.Match]:
        """The known lines that were seen, since the start or since the engine serves."""
        return self._scanner.matches

    def begin_serving(self) -> None:
        """Look for phases no longer, let lines gather, and forget the troubles of a start that succeeded."""
        self._serving = True
        self._scanner = signatures.Scanner()

    def settle(self, quiet_s: float, at_most_s: float) -> None:
        """Wait until nothing was written for ``quiet_s``: the reason of a failure is often printed just after it.

        From now on lines are taken as they come.
        """
        self._at_once.set()
        deadline = time.monotonic() + at_most_s
        while self.is_alive() and time.monotonic() < deadline and not self._is_quiet(quiet_s):
            time.sleep(0.05)

    def _is_quiet(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._source, select.POLLIN)
        unread = any(events & select.POLLIN for _, events in poll.poll(0))
        return not unread and time.monotonic() - self.last_output >= seconds

    def finish(self, timeout_s: float) -> None:
        """Take what is left, without letting it gather, and wait for the end of the pipe."""
        self._at_once.set()
        self.join(timeout_s)


def _enlarge(pipe: int) -> bool:
    """Tell whether the kernel holds as much for the writer of a pipe as it may write while lines gather."""
    with contextlib.suppress(OSError):
        return fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES) >= PIPE_BYTES
    return False
