# SPDX-License-Identifier: Apache-2.0
"""Everywhere that a supervisor tells what it knows: systemd, the journal, and the files in the runtime directory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from .failure import Explanation, Failure
from .log import Redactor
from .notify import Notifier
from .record import Record
from .settings import Settings


class Voice:
    """Says things, none of them with a secret in it."""

    def __init__(self, record: Record, notifier: Notifier, environ: Mapping[str, str]) -> None:
        self.record, self._notifier = record, notifier
        self.redactor = Redactor(None)
        self._with_level = _is_journal(2, environ.get("JOURNAL_STREAM", ""))

    @property
    def heard(self) -> bool:
        """Whether systemd listens."""
        return self._notifier.active

    @property
    def watchdog_s(self) -> float | None:
        """Seconds within which systemd wants a ping; None for never."""
        return self._notifier.watchdog_s

    def say(self, text: str, *, level: int = 6) -> None:
        """Write one line to stderr. ``level`` is syslog's: 3 error, 4 warning, 5 notice, 6 information."""
        prefix = f"<{level}>" if self._with_level else ""
        line = " ".join(self.redactor.clean(text).split())  # an answer that is quoted may have several
        with contextlib.suppress(OSError):
            os.write(2, f"{prefix}supervisor: {line}\n".encode(errors="replace"))

    def tell(self, *, status: str = "", **fields: int | str) -> None:
        """Tell systemd."""
        self._notifier.send(status=self.redactor.clean(status), **fields)

    def starting(self, settings: Settings, *, extend: bool) -> None:
        """Tell systemd the phase of the start, and with ``extend`` ask for more time."""
        # More than stall_s: it is the supervisor, which knows why, that gives a start up.
        grace = max(settings.start_grace_s, settings.stall_s + 5)
        fields = {"EXTEND_TIMEOUT_USEC": int(grace * 1e6)} if extend else {}
        self.tell(status=f"{self.record.phase}, {self.record.phase_seconds:.0f} s", **fields)

    def failed(self, failure: Failure, told: Explanation, *, exit_code: int | None, log: Sequence[str]) -> int:
        """Say everywhere why the unit fails, and return the supervisor's own exit status.

        ``exit_code`` is the engine's, a signal's number negated, None when it did not end by itself.
        """
        event, what = self.redactor.clean(failure.event), self.redactor.clean(told.what)
        both = event if event == what else f"{event}: {what}"
        self.say(f"failed ({told.cause}): {both}. Fix: {told.fix}", level=3)
        self.tell(status=f"failed ({told.cause}): {both}")
        document: dict[str, Any] = {
            "cause": told.cause,
            "what": what,
            "fix": told.fix,
            "event": event,
            "line": told.line,
            "exit_status": exit_code if exit_code is not None and exit_code >= 0 else None,
            "exit_signal": -exit_code if exit_code is not None and exit_code < 0 else None,
            "log": list(log),
        }
        try:
            self.record.failed(document)
        except OSError as error:
            self.say(f"cannot write the record of this failure: {error}", level=4)
        self.record.enter("failed")
        return 1


def _is_journal(descriptor: int, stream: str) -> bool:
    """Tell whether ``descriptor`` leads to journald, which reads a level in front of a line.

    $JOURNAL_STREAM names device and inode (systemd.exec(5)); it is inherited by whoever writes elsewhere, too.
    """
    with contextlib.suppress(OSError):
        found = os.fstat(descriptor)
        return stream == f"{found.st_dev}:{found.st_ino}"
    return False
