# SPDX-License-Identifier: Apache-2.0
"""Whole engines against each other, from what their smoke tests measured: pure functions over figures.

Each side ran several times in turn (B A B A), so that a drift meets both. A side that was wrong once is out, however
fast. What was expected from all-reduces alone is put beside what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, stdev
from typing import Any, Literal

from ..findings import Finding
from .decision import FLOOR, Result
from .shapes import Phase, Shape

ORDER = ("B", "A", "B", "A")
"""A is the base."""

Status = Literal["wins", "within-noise", "trade", "loses", "wrong", "failed", "refused", "no-base", "unfinished"]


class ComparisonError(ValueError):
    """Figures that can't be compared. The message says what is missing."""


@dataclass(frozen=True)
class EngineRun:
    """One start of an engine. ``metrics`` as the smoke test names them (``*.tok_s`` up, ``*_s`` down is better)."""

    side: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    wrong: str = ""
    """Why its answers are wrong (garbage, not a number, another's text), or empty."""
    failed: str = ""
    """Why it has no figures: it did not start, or ended."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {**asdict(self), "metrics": dict(self.metrics)}


@dataclass(frozen=True)
class Change:
    """One metric. ``ratio`` is B's time over A's: below 1 B is faster, also for rates."""

    metric: str
    base: float
    trial: float
    ratio: float
    noise: float
    expected: float | None = None
    """The ratio that all-reduces alone would give, where a measurement of them is known."""


@dataclass(frozen=True)
class Comparison:
    """The outcome of one trial."""

    name: str
    status: Status
    reason: str
    changes: tuple[Change, ...] = ()
    runs: tuple[EngineRun, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, ratios to four places."""
        changes = [{k: round(v, 4) if isinstance(v, float) else v for k, v in vars(c).items()} for c in self.changes]
        runs = [run.as_dict() for run in self.runs]
        return {"name": self.name, "status": self.status, "reason": self.reason, "changes": changes, "runs": runs}


@dataclass(frozen=True)
class Expectation:
    """What two measured results of all-reduces say of an engine. Times in us by bytes."""

    shape: Shape
    base: Result
    trial: Result
    chunk: int = 8192
    """Tokens that the engine takes of a prompt at once."""

    def ratio(self, metric: str, value: float) -> float | None:
        """Return B's time over A's if nothing but all-reduces changed; None where that can't be said."""
        if metric == "single.decode_tok_s":
            return self._of("decode", 1, 1e6 / value)
        parts = metric.split(".")
        if parts[0] == "prefill" and parts[1].isdecimal():
            tokens = int(parts[1])
            return self._of("prefill", min(tokens, self.chunk), value * 1e6 / math.ceil(tokens / self.chunk))
        return None

    def _of(self, phase: Phase, tokens: int, step_us: float) -> float | None:
        size = self.shape.bytes_of(tokens)
        one, other = (_time(result, phase, size) for result in (self.base, self.trial))
        if one is None or other is None:
            return None
        return max(0.0, 1 + (other - one) * self.shape.calls / step_us)


def _time(result: Result, phase: Phase, size: int) -> float | None:
    """Return the time of the nearest measured size of a phase, scaled by bytes for prefill."""
    rows = result.of(phase)
    if not rows:
        return None
    row = min(rows, key=lambda row: abs(math.log(row.bytes / size)))
    return row.median_us * (size / row.bytes if phase == "prefill" else 1.0)


def compare(name: str, runs: Sequence[EngineRun], expectation: Expectation | None = None) -> Comparison:
    """Return how side B stands against side A. Raises ComparisonError where the two have no figure in common."""
    sides = {side: [run for run in runs if run.side == side] for side in ("A", "B")}
    for run in sides["A"]:
        if run.wrong or run.failed:
            return Comparison(name, "no-base", run.wrong or run.failed, (), tuple(runs))
    for run in sides["B"]:
        if run.wrong or run.failed:
            return Comparison(name, "wrong" if run.wrong else "failed", run.wrong or run.failed, (), tuple(runs))
    shared = [metric for metric in _metrics(sides["A"]) if metric in _metrics(sides["B"])]
    if not shared:
        raise ComparisonError(f"{name}: no figure in common; each side needs at least one run with figures")
    changes = tuple(_change(metric, sides, expectation) for metric in shared)
    status, reason = _status(changes)
    return Comparison(name, status, reason, changes, tuple(runs))


def _metrics(runs: Iterable[EngineRun]) -> list[str]:
    found = [set(run.metrics) for run in runs]
    return sorted(set.intersection(*found)) if found else []


def _change(metric: str, sides: Mapping[str, Sequence[EngineRun]], expectation: Expectation | None) -> Change:
    values = {side: [run.metrics[metric] for run in runs] for side, runs in sides.items()}
    base, trial = median(values["A"]), median(values["B"])
    ratio = base / trial if metric.endswith("tok_s") else trial / base
    noise = max(FLOOR, *(_noise(each) for each in values.values()))
    expected = expectation.ratio(metric, base) if expectation else None
    return Change(metric, base, trial, ratio, noise, expected)


def _noise(values: Sequence[float]) -> float:
    """Return twice the standard error of what the starts of one side gave, as a share; of two their distance."""
    return 2 * stdev(values) / math.sqrt(len(values)) / median(values) if len(values) > 1 else 0.0


def _status(changes: Sequence[Change]) -> tuple[Status, str]:
    gains = [change for change in changes if change.ratio < 1 - change.noise]
    losses = [change for change in changes if change.ratio > 1 + change.noise]
    said = ", ".join(_words(change) for change in (gains + losses or changes))
    if gains and losses:
        return "trade", said
    if losses:
        return "loses", said
    return ("wins" if gains else "within-noise"), said


def _words(change: Change) -> str:
    text = f"{change.metric} {(change.ratio - 1) * 100:+.1f}% time (noise {change.noise:.1%}"
    return text + (")" if change.expected is None else f", expected {(change.expected - 1) * 100:+.1f}%)")


def findings(comparisons: Iterable[Comparison]) -> Iterator[Finding]:
    """Return what has to be said: critical of what runs today, warnings of trials, trades as something to know."""
    for one in comparisons:
        if one.status == "no-base":
            yield Finding(
                id="tune-no-base",
                level="critical",
                what="what runs today does not pass its own test, so nothing can be compared with it",
                seen=one.reason,
                expected="right answers, then figures",
                fix="Read its log (--logs), and mend that first.",
            )
        elif one.status in ("wrong", "failed"):
            yield Finding(
                id=f"tune-trial-{one.status}",
                level="warning",
                what=f"{one.name}: {'its answers are wrong' if one.status == 'wrong' else 'there are no figures'}",
                seen=one.reason,
                expected="right answers, then figures",
                fix="Don't run with it on this host." if one.status == "wrong" else "Read its log (--logs).",
            )
        elif one.status == "trade":
            yield Finding(
                id="tune-trial-trade",
                level="info",
                what=f"{one.name} is better at some figures and worse at others; it was not chosen",
                seen=one.reason,
                expected="a change that is worse nowhere",
                fix="Choose it by hand if that trade is wanted.",
            )


def text(comparisons: Iterable[Comparison]) -> str:
    """Return a line for each trial and one for each of its figures."""
    lines = []
    for one in comparisons:
        lines.append(f"{one.name}: {one.status}" + ("" if one.changes else f", {one.reason}"))
        for change in one.changes:
            expected = "" if change.expected is None else f", expected {(change.expected - 1) * 100:+.1f}%"
            seen = f"time {(change.ratio - 1) * 100:+.1f}% (noise {change.noise:.1%}{expected})"
            lines.append(f"  {change.metric:<26} {change.base:>10.3f} -> {change.trial:>10.3f}   {seen}")
    return "\n".join(lines)


def recommend(comparisons: Sequence[Comparison]) -> str | None:
    """Return the winner with the largest gain, or None: the base stays. A trade is never taken."""
    winners = [comparison for comparison in comparisons if comparison.status == "wins"]
    return min(winners, key=_mean).name if winners else None


def _mean(comparison: Comparison) -> float:
    return sum(math.log(change.ratio) for change in comparison.changes) / len(comparison.changes)
