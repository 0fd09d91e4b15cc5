# SPDX-License-Identifier: Apache-2.0
"""The engine's output on its way to the journal: passed on line by line, without secrets, and understood in passing."""

from __future__ import annotations

import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from .. import redact, signatures

LINE_LIMIT = 16384
"""Bytes of one line that are passed on; journald itself splits lines at 48 KiB."""

KEPT_LINES = 50
"""Lines that a failure's record shows."""

KEPT_LINE_LIMIT = 2000
"""Characters of each of them."""

_ACCESS = re.compile(r'"(?:GET|POST|HEAD) /\S* HTTP/1\.[01]" \d{3}')
"""A web server's line about one request: a probe's own trace is no progress of the engine."""

_BATCH = re.compile(r"\b(?:Prefill|Decode) batch\b")
"""A line that SGLang's scheduler prints while it works on requests."""


class Redactor:
    """Hides secrets: the one key that is known, and what looks like one."""

    def __init__(self, key: str | None) -> None:
        self._key = key

    def clean(self, text: str) -> str:
        """Return ``text`` with every secret replaced."""
        return redact.redact(text.replace(self._key, redact.HIDDEN) if self._key else text)


class LineSplitter:
    """Cuts a stream into lines, holding no more of one than ``limit`` bytes.

    Of a line that was overwritten with carriage returns (a progress bar) what a terminal would show last remains.
    """

    def __init__(self, limit: int = LINE_LIMIT) -> None:
        self._limit = limit
        self._left_out, self._returned = 0, False
        self.held = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take ``chunk`` and return the lines that it completes, without their line ends."""
        *complete, rest = chunk.split(b"\n")
        lines = []
        for piece in complete:
            self._hold(piece)
            lines.append(self.release())
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
        return line + b" [%d bytes left out]" % left_out if left_out else line


class LogPump(threading.Thread):
    """Passes a pipe on to another descriptor until everyone has closed the pipe. It waits for nothing else."""

    def __init__(self, source: int, target: int, redactor: Redactor, on_phase: Callable[[str], None]) -> None:
        super().__init__(name="log", daemon=True)
        self._source, self._target, self._redactor, self._on_phase = source, target, redactor, on_phase
        self._splitter = LineSplitter()
        self._scanner = signatures.Scanner()
        self._phase: str | None = None
        self._serving = False
        self.progress_bytes = 0
        """Bytes of output, without a web server's lines about requests."""
        self.last_output = time.monotonic()
        self.last_batch = float("-inf")
        """When the engine last said that it works on requests, on the monotonic clock."""
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)

    def run(self) -> None:
        """Pump until the end of the pipe."""
        while chunk := os.read(self._source, 65536):
            self.last_output = time.monotonic()
            for line in self._splitter.feed(chunk):
                self._take(line)
            if self._splitter.held:
                self.progress_bytes += len(chunk) - chunk.rfind(b"\n") - 1
                self._notice_phase(self._splitter.held.decode(errors="replace"))
        if self._splitter.held:
            self._take(self._splitter.release())

    def _take(self, raw: bytes) -> None:
        text = self._redactor.clean(raw.decode(errors="surrogateescape"))
        self._pass_on(text.encode(errors="surrogateescape") + b"\n")
        if not _ACCESS.search(text):
            self.progress_bytes += len(raw) + 1
        if _BATCH.search(text):
            self.last_batch = time.monotonic()
        self.lines.append(text[:KEPT_LINE_LIMIT].encode(errors="replace").decode())
        self._scanner.feed(text)
        self._notice_phase(text)

    def _pass_on(self, line: bytes) -> None:
        """Write a whole line. A journal that is gone must not stop the engine, whose pipe would fill."""
        while line:
            try:
                line = line[os.write(self._target, line) :]
            except BlockingIOError:
                select.select([], [self._target], [])
            except OSError:
                return

    def _notice_phase(self, text: str) -> None:
        phase = None if self._serving else signatures.phase_of(text)
        if phase and phase != self._phase:
            self._phase = phase
            self._on_phase(phase)

    @property
    def matches(self) -> list[signatures.Match]:
        """The known lines that were seen, since the start or since the engine serves."""
        return self._scanner.matches

    def begin_serving(self) -> None:
        """Look for phases no longer, and forget the troubles of a start that succeeded."""
        self._serving = True
        self._scanner = signatures.Scanner()

    def settle(self, quiet_s: float, at_most_s: float) -> None:
        """Wait until nothing was written for ``quiet_s``: the reason of a failure is often printed just after it."""
        deadline = time.monotonic() + at_most_s
        while self.is_alive() and time.monotonic() < deadline and time.monotonic() - self.last_output < quiet_s:
            time.sleep(0.05)
