# SPDX-License-Identifier: Apache-2.0
"""What one group of processes showed: a verdict with its reason, and the times where values were right.

``healthy``: every value on every rank was right, and NCCL's log shows the settings engaged. ``wrong-data``: a sum was
wrong. ``hang``: the ranks stopped getting anywhere once they communicate. ``inconclusive``: nothing of these can be
said, since a process failed, something else was slow, or the settings were not the ones that ran.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..nccl import log as nccl_log
from ..nccl.variables import same_release
from .launching import GroupRun
from .protocol import Job

Verdict = Literal["healthy", "hang", "wrong-data", "inconclusive"]
BANNED: tuple[Verdict, ...] = ("hang", "wrong-data")
"""Verdicts after which settings are not used on this host again."""

_LOG_TAIL = 40
_REASON = 600
_RAS_BEHIND = re.compile(r"Rank (\d+) has launched up to operation (\d+)")


@dataclass
class Outcome:
    """One group's result. ``times`` are us an all-reduce by bytes, one figure a replay, the slowest rank's."""

    verdict: Verdict
    reason: str
    seconds: float
    times: dict[int, list[float]] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    proof: dict[str, Any] = field(default_factory=dict)
    """What NCCL's log shows: version, settings taken from the environment, transports, channels, protocols used."""
    kept: dict[str, Any] = field(default_factory=dict)
    """Of a run that went wrong: NCCL's ``ras`` report, and by rank its ``logs`` (last lines) and the ``output``."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**vars(self), "times": {str(size): times for size, times in self.times.items()}}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Outcome:
        """Read what :meth:`as_dict` wrote."""
        times = {int(size): [float(us) for us in times] for size, times in document["times"].items()}
        return cls(**{**document, "times": times})


def judge(
    run: GroupRun,
    job: Job,
    settings: Mapping[str, str],
    base: Mapping[str, str] | None = None,
    nccl_version: str | None = None,
) -> Outcome:
    """Return the outcome of a group that was to run with ``settings`` on top of the host's own NCCL settings.

    Each of ``settings`` has to show in NCCL's log; of ``base`` none may show another value. Where ``nccl_version`` is
    known, that release has to have run: a receipt names it.
    """
    facts = nccl_log.parse("".join(run.logs))
    verdict, reason = _verdict(run, job)
    if verdict == "healthy" and job.backend == "nccl":
        verdict, reason = _engaged(facts, settings, base or {}, reason)
        if verdict == "healthy" and nccl_version and facts.version and not same_release(facts.version, nccl_version):
            verdict = "inconclusive"
            reason = f"another NCCL ran than the release's: seen {facts.version}, expected {nccl_version}"
    outcome = Outcome(
        verdict=verdict,
        reason=reason,
        seconds=run.seconds,
        times=_times(run) if verdict == "healthy" else {},
        versions=next((_versions(event) for event in _all(run, "imported")), {}),
        proof=_proof(facts) if facts.lines else {},
    )
    if verdict != "healthy":
        logs = [log.splitlines()[-_LOG_TAIL:] for log in run.logs]
        outcome.kept = {"ras": run.ras, "logs": logs, "output": run.tails}
    return outcome


def _verdict(run: GroupRun, job: Job) -> tuple[Verdict, str]:
    wrong = [(rank, e) for rank, events in enumerate(run.events) for e in events if e.get("wrong")]
    if wrong:
        return "wrong-data", _wrong_text(wrong)
    if run.end in ("stalled", "late"):
        return _stopped(run, job)
    if run.end == "failed":
        return "inconclusive", _failure(run)
    return "healthy", f"every value right on {job.world} ranks, {len(job.messages)} sizes"


def _wrong_text(wrong: Sequence[tuple[int, dict[str, Any]]]) -> str:
    rank, event = wrong[0]
    first = event["wrong"]
    others = sorted({other for other, _ in wrong})
    where = ""
    if "index" in first:
        where = f"; on rank {rank} value {first['index']} is {first['got']}, expected {first['expected']}"
    return (
        f"wrong sums on rank{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}: {first['count']} values "
        f"at {event['bytes']} bytes {first['when']}{where}"
    )


def _stopped(run: GroupRun, job: Job) -> tuple[Verdict, str]:
    """Return what a standstill means. Before every rank has torch it is no hang of communication."""
    absent = [rank for rank, events in enumerate(run.events) if not any(e["event"] == "imported" for e in events)]
    if absent:
        return "inconclusive", f"ranks {_list(absent)} did not get as far as importing torch within {run.seconds:.0f} s"
    if run.end == "late":
        return "inconclusive", f"not finished after {run.seconds:.0f} s, though it got further until then"
    order = [len(events) for events in run.events]
    behind = [rank for rank, place in enumerate(order) if place == min(order)]
    last = run.events[behind[0]][-1]
    size = next((event["bytes"] for event in reversed(run.events[behind[0]]) if "bytes" in event), None)
    what = f"at {size} bytes" if size else "while the communicator was made"
    who = "every rank" if len(behind) == job.world else f"ranks {_list(behind)} of {job.world} are behind"
    return "hang", f"no progress {what}; {who}, last event {last['event']!r}{_by_ras(run.ras)}"


def _by_ras(report: str | None) -> str:
    """Return which ranks NCCL itself says are behind: the GPU of one that waits looks as busy as the others."""
    launched = {int(rank): int(operation) for rank, operation in _RAS_BEHIND.findall(report or "")}
    if not launched or min(launched.values()) == max(launched.values()):
        return ""
    behind = [rank for rank, operation in launched.items() if operation == min(launched.values())]
    return f"; NCCL says that ranks {_list(behind)} have launched {min(launched.values())} operations, others more"


def _failure(run: GroupRun) -> str:
    reasons = [
        (rank, " ".join(e["reason"].split())) for rank, events in enumerate(run.events) for e in events if "reason" in e
    ]
    said = [f"rank {rank}: {reason[:_REASON]}" for rank, reason in reasons]
    died = [f"rank {rank} ended with {_code(code)}" for rank, code in enumerate(run.exits) if code]
    last = next((tail.strip().splitlines()[-1] for tail in run.tails if tail.strip()), "")
    return "; ".join(said or [*died, *([last] if last else [])]) or "the workers ended without being done"


def _code(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _engaged(
    facts: nccl_log.Facts, settings: Mapping[str, str], base: Mapping[str, str], healthy: str
) -> tuple[Verdict, str]:
    """Demand that NCCL names each setting. Another transport than expected is a fact of this host, no other setting."""
    findings = nccl_log.compare(facts, {**base, **settings})
    against = [
        f for f in findings if f.id == "nccl-log-empty" or (f.id == "nccl-not-engaged" and f.level == "critical")
    ]
    against += [f for f in nccl_log.compare(facts, settings) if f.id == "nccl-not-engaged"]
    if against:
        return "inconclusive", f"{against[0].what}: seen {against[0].seen}, expected {against[0].expected}"
    return "healthy", healthy


def _times(run: GroupRun) -> dict[int, list[float]]:
    """Return the slowest rank's time of each replay."""
    result: dict[int, list[float]] = {}
    for size in [event["bytes"] for event in run.events[0] if event["event"] == "timed"]:
        by_rank = [event["us"] for event in _all(run, "timed") if event["bytes"] == size]
        result[size] = [round(max(replay), 4) for replay in zip(*by_rank, strict=True)]
    return result


def _all(run: GroupRun, name: str) -> list[dict[str, Any]]:
    return [event for events in run.events for event in events if event["event"] == name]


def _versions(event: Mapping[str, Any]) -> dict[str, Any]:
    return {key: event.get(key) for key in ("torch", "nccl", "gpus", "python")}


def _proof(facts: nccl_log.Facts) -> dict[str, Any]:
    return {
        "version": facts.version,
        "environment": facts.environment,
        "transports": dict(facts.transports()),
        "connections": sorted(facts.connections),
        "channels": facts.channels,
        "used": facts.used,
    }


def _list(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
