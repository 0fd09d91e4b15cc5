# SPDX-License-Identifier: Apache-2.0
"""What a supervisor concludes from what it sees: does a start advance, and is a serving engine alive."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .proc import Work

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")

NOTABLE_CPU = 0.1
"""Share of one core from which CPU time counts: an idle engine's timers and answers to probes use less."""

NOTABLE_BYTES = 1 << 20
"""Bytes a second read, written, or gained as memory from which they count."""

COMMUNICATION = "initialising communication"
"""The phase in which a hang burns CPU: NCCL's threads spin while they wait for a peer that never answers."""


@dataclass(frozen=True)
class Look:
    """One look at a starting engine: ``at`` seconds, its tree's work, bytes of output, the phase."""

    at: float
    work: Work
    output: int
    phase: str


class StartWatch:
    """Tells a slow start from one that hangs.

    Output, data moved, memory gained, and processes begun or ended are progress. CPU time alone is progress only for
    ``cpu_only_s``, and for no longer than ``stall_s`` while communication is initialised: a hang can spin.
    """

    def __init__(self, stall_s: float, cpu_only_s: float, first: Look) -> None:
        self._stall_s, self._cpu_only_s = stall_s, max(stall_s, cpu_only_s)
        self._last = first
        self._busy = False
        self._progress_at = self._solid_at = first.at

    @property
    def looked_at(self) -> float:
        """When the last look was taken, in the seconds of Look.at."""
        return self._last.at

    def look(self, now: Look) -> bool:
        """Take a look and tell whether there was progress since the one before."""
        last, seconds = self._last, max(now.at - self._last.at, 1e-3)
        self._last = now
        gained = max(
            now.work.io - last.work.io,
            (now.work.resident_pages - last.work.resident_pages) * _PAGE,
        )
        solid = (
            now.output > last.output
            or now.phase != last.phase
            or now.work.pids != last.work.pids
            or gained >= NOTABLE_BYTES * seconds
        )
        self._busy = (now.work.cpu_ticks - last.work.cpu_ticks) / _TICKS_PER_SECOND >= NOTABLE_CPU * seconds
        self._solid_at = now.at if solid else self._solid_at
        counts = solid or (self._busy and now.at - self._solid_at < self._patience(now.phase))
        self._progress_at = now.at if counts else self._progress_at
        return counts

    def _patience(self, phase: str) -> float:
        return self._stall_s if phase == COMMUNICATION else self._cpu_only_s

    def stalled(self, now: float) -> str | None:
        """Return what was seen when the start hangs, else None."""
        if self._busy and now - self._solid_at >= self._patience(self._last.phase):
            return f"nothing but CPU time for {now - self._solid_at:.0f} s: no output, no data moved, no memory gained"
        if now - self._progress_at >= self._stall_s:
            return f"no progress for {now - self._progress_at:.0f} s: no output, no CPU time, no data moved"
        return None


class Liveness:
    """Tells a frozen engine from a busy one.

    It is frozen after ``failed_probes`` failures in a row, and only when no running request has advanced in the time
    of all of them but one: a probe waits in line behind a long prefill or a full queue, and its failure alone shows
    only that the line is long.
    """

    def __init__(self, failed_probes: int, probe_timeout_s: float, now: float) -> None:
        self._limit, self._horizon = failed_probes, (failed_probes - 1) * probe_timeout_s
        self.failed = 0
        self._advanced_at = now
        self._progress: bytes | None = None

    def succeeded(self, now: float) -> None:
        """Take a probe that was answered."""
        self.failed, self._advanced_at, self._progress = 0, now, None

    def failed_probe(self, now: float, progress: bytes | None, last_batch: float) -> bool:
        """Take a probe that failed, and tell whether the engine is frozen.

        ``progress`` is what the engine's token counters read now (None when they can't be read); ``last_batch`` is when
        its log last spoke of a batch.
        """
        self.failed += 1
        if progress is not None and self._progress is not None and progress != self._progress:
            self._advanced_at = now
        self._progress = progress if progress is not None else self._progress
        self._advanced_at = max(self._advanced_at, last_batch)
        return self.failed >= self._limit and now - self._advanced_at >= self._horizon
