# SPDX-License-Identifier: Apache-2.0
"""Why a unit fails: what the supervisor saw itself, and the root cause that the engine's own log names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import signatures

FIXES = {
    "settings-invalid": "correct the supervisor's settings file; the service role renders it",
    "runtime-dir-missing": "give the unit RuntimeDirectory=inference/<instance>",
    "port-in-use": "stop what holds the port, or give this instance another one",
    "address-unusable": "set host to an address of this machine, and port to one above 1023",
    "command-unusable": "check the command in the unit's drop-in, and that the release is installed and readable",
    "engine-ended": "read the engine's last lines: they name no cause that is known here",
    "worker-died": "look for an out-of-memory kill or a GPU error in the kernel log (journalctl -k) at this time",
    "generation-failed": "compare model, host, port and API key in the settings with the engine's; read its last lines",
    "engine-hung": "read the engine's last lines and the kernel log (Xid); raise probe_timeout_s if it was only slow",
    "supervisor-aborted": "the watchdog got no ping in time: look for a machine without free CPU or memory",
    "supervisor-failed": "the supervisor itself failed: report this line",
}
"""What to do about a failure that the supervisor sees itself, by the id of its cause."""


KNOWN_FOR_CERTAIN = frozenset({"host-out-of-memory"})
"""Causes that the kernel counted: no line of the engine's log explains them better."""


class Failure(Exception):  # noqa: N818 - it is the unit's failure, and named so in all that is shown
    """The unit fails. ``cause`` is an id, ``event`` what was seen, ``fix`` what to do unless FIXES says it."""

    def __init__(self, cause: str, event: str, fix: str | None = None) -> None:
        super().__init__(event)
        self.cause, self.event, self.fix = cause, event, fix or FIXES[cause]


@dataclass(frozen=True)
class Explanation:
    """A failure as people are told of it: the cause's id, what it is, what to do, and the line that shows it."""

    cause: str
    what: str
    fix: str
    line: str | None = None


def stalled(phase: str, seen: str) -> Failure:
    """Return the failure of a start that hangs in ``phase``."""
    row = signatures.stall(phase)
    return Failure(row.id, f"the start hangs while {phase}: {seen}", row.fix)


def explain(failure: Failure, matches: Sequence[signatures.Match]) -> Explanation:
    """Return the root cause that the engine's log names, or else what the supervisor saw.

    Warnings and echoes of other errors explain nothing: a healthy start prints some.
    """
    found = None if failure.cause in KNOWN_FOR_CERTAIN else signatures.root_cause(matches)
    if found is None or found.signature.level != "critical" or found.signature.role != "cause":
        return Explanation(failure.cause, failure.event, failure.fix)
    return Explanation(found.signature.id, found.signature.what, found.signature.fix, found.line)
