# SPDX-License-Identifier: Apache-2.0
"""Measure every candidate: which group runs when, what ends early, and what the figures of all rounds amount to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from .candidates import BASELINE, Candidate
from .decision import Result, Row
from .outcome import BANNED, Outcome
from .pairs import Pair, PairResult, all_pairs, one_of_each_class, result_of, rounds
from .shapes import Size

Measure = Callable[[Candidate], Outcome]
"""Runs one fresh group of processes on all GPUs."""

Doubtful = Callable[["Campaign"], Iterable[str | None]]
"""Names what further groups could decide; None among them is nobody."""

MeasurePair = Callable[[Pair], Outcome]
"""Runs one fresh group on two GPUs, with NCCL's own choice."""


@dataclass(frozen=True)
class Plan:
    """What to measure. ``pairs``: ``none``, ``classes`` (one pair of each link class) or ``all``; seconds in all.

    Every candidate gets ``rounds`` groups; those in doubt, and what they are compared with, up to ``most``.
    """

    candidates: tuple[Candidate, ...]
    sizes: tuple[Size, ...]
    rounds: int = 2
    most: int = 6
    seconds: float = 300.0
    pairs: str = "classes"


@dataclass
class Campaign:
    """What came of it: each group's outcome in the order of running, by candidate, and what was left out and why."""

    outcomes: list[tuple[str, Outcome]] = field(default_factory=list)
    pairs: list[PairResult] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def of(self, name: str) -> list[Outcome]:
        """Return a candidate's outcomes."""
        return [outcome for known, outcome in self.outcomes if known == name]


def order(candidates: Sequence[Candidate], count: int) -> Iterator[Candidate]:
    """Yield the candidates of all rounds, each round the other way round: a drift then meets all of them alike."""
    for number in range(count):
        yield from candidates if number % 2 == 0 else reversed(candidates)


def run(
    plan: Plan,
    measure: Measure,
    say: Callable[[str], None],
    *,
    doubtful: Doubtful = lambda _: [],
    clock: Callable[[], float] = time.monotonic,
) -> Campaign:
    """Measure the candidates in rounds, then those that ``doubtful`` names again while it names any.

    A candidate that wasn't healthy once isn't run again. Stops before a group that, as long as the longest so far,
    would end after ``plan.seconds``.
    """
    campaign, watch = Campaign(), _Watch(clock)
    for candidate in order(plan.candidates, plan.rounds):
        _one(plan, campaign, candidate, measure, say=say, watch=watch)
    for number in range(plan.rounds, plan.most):
        names = {name for name in doubtful(campaign) if name is not None}
        more = [candidate for candidate in plan.candidates if candidate.name in names]
        if not more or watch.spent() + len(more) * watch.longest > plan.seconds:
            break
        say(f"in doubt, measured again: {', '.join(candidate.name for candidate in more)}")
        for candidate in more if number % 2 == 0 else reversed(more):
            _one(plan, campaign, candidate, measure, say=say, watch=watch)
    campaign.seconds = watch.spent()
    return campaign


class _Watch:
    """How long it has taken so far, and the longest group."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._start, self.longest = clock, clock(), 0.0

    def spent(self) -> float:
        return self._clock() - self._start


def _one(
    plan: Plan,
    campaign: Campaign,
    candidate: Candidate,
    measure: Measure,
    *,
    say: Callable[[str], None],
    watch: _Watch,
) -> None:
    before, spent = campaign.of(candidate.name), watch.spent()
    if any(outcome.verdict != "healthy" for outcome in before):
        return
    if before and spent + watch.longest > plan.seconds:
        campaign.left_out[candidate.name] = f"{len(before)} of {plan.rounds} rounds within {plan.seconds:.0f} s"
        return
    if not before and spent > plan.seconds:
        campaign.left_out[candidate.name] = f"not run: the {plan.seconds:.0f} s were over (--seconds)"
        return
    outcome = measure(candidate)
    watch.longest = max(watch.longest, watch.spent() - spent)
    campaign.outcomes.append((candidate.name, outcome))
    say(f"{candidate.name}: {outcome.verdict}, {outcome.seconds:.0f} s{_figures(outcome)}")


def _figures(outcome: Outcome) -> str:
    if not outcome.times:
        return f" ({outcome.reason})"
    middle = {size: sorted(times)[len(times) // 2] for size, times in outcome.times.items()}
    return "; " + ", ".join(f"{size} B {us:.1f} us" for size, us in middle.items())


def run_pairs(
    plan: Plan,
    campaign: Campaign,
    gpus: Sequence[int],
    topology: Mapping[str, Any] | None,
    *,
    measure: MeasurePair,
    say: Callable[[str], None],
) -> None:
    """Measure pairs, a round's disjoint ones at once; all of them where NCCL's own choice failed on all GPUs."""
    everyone = all_pairs(gpus, topology)
    failed = any(outcome.verdict in BANNED for outcome in campaign.of(BASELINE))
    wanted = everyone if plan.pairs == "all" or failed else one_of_each_class(everyone)
    if plan.pairs == "none" and not failed:
        return
    start = time.monotonic()
    for batch in rounds(wanted):
        with ThreadPoolExecutor(max_workers=len(batch)) as pool:
            found = [result_of(pair, outcome) for pair, outcome in zip(batch, pool.map(measure, batch), strict=True)]
        campaign.pairs += found
        for result in found:
            figures = ", ".join(f"{size} B {us:.1f} us" for size, us in result.us.items())
            say(f"{result.pair.name}: {result.verdict}; {figures or result.reason}")
    campaign.seconds += time.monotonic() - start


def results(plan: Plan, campaign: Campaign) -> list[Result]:
    """Return one result a candidate: the gravest verdict of its groups, and the times of all of them."""
    return [_result(candidate, campaign, plan.sizes) for candidate in plan.candidates]


def _result(candidate: Candidate, campaign: Campaign, sizes: Iterable[Size]) -> Result:
    outcomes = campaign.of(candidate.name)
    bad = [outcome for outcome in outcomes if outcome.verdict != "healthy"]
    worst = next((o for o in bad if o.verdict in BANNED), bad[0] if bad else None)
    settings = dict(candidate.environment)
    if worst or not outcomes:
        why = worst.reason if worst else campaign.left_out.get(candidate.name, "not run")
        return Result(candidate.name, settings, worst.verdict if worst else "inconclusive", why)
    rows = tuple(
        Row(size.phase, size.tokens, size.bytes, tuple(tuple(outcome.times[size.bytes]) for outcome in outcomes))
        for size in sizes
    )
    return Result(candidate.name, settings, "healthy", outcomes[0].reason, rows)
