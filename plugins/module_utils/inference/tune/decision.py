# SPDX-License-Identifier: Apache-2.0
"""Which candidate to run with, from measured times alone. Pure functions: the same figures give the same choice.

NCCL's own choice stays unless a candidate is better by more than the noise and is worse nowhere. One that is better in
one phase and worse in the other is a trade: it is offered with both figures and never chosen here. One that hung or
returned wrong data is banned, however fast it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, stdev
from typing import Any, Literal

from ..nccl.budget import Measured
from .candidates import BASELINE
from .outcome import BANNED, Verdict
from .shapes import PHASES, Phase

FLOOR = 0.03
"""The least difference that counts, as a share of the reference's time: below it a setting isn't worth having."""

GOAL = 0.03
"""How far from the best decode and from NCCL's own prefill the choice may be, both at once, as a share."""

MOVES = 0.06
"""How far the medians of two groups differ, as a standard deviation and a share, where no candidate has two groups to
tell: at decode sizes it was 5 to 6% on two H200 (bench/results/tune)."""

_TAIL = 0.1
_QUARTER = 0.25
_MOST = 1 << 50
"""Tokens and bytes beyond this are no message's."""

Status = Literal["reference", "wins", "within-noise", "trade", "loses", "banned", "inconclusive"]


class DecisionError(ValueError):
    """Figures that nothing can be decided from. The message says what is missing."""


def _percentiles(times: Sequence[float], tail: float) -> tuple[float, float]:
    ordered, last = sorted(times), len(times) - 1
    return ordered[round(last * tail)], ordered[round(last * (1 - tail))]


@dataclass(frozen=True)
class Row:
    """The times of one message: ``groups`` holds, for each group of processes, us an all-reduce of each replay."""

    phase: Phase
    tokens: int
    bytes: int
    groups: tuple[tuple[float, ...], ...]

    @property
    def medians(self) -> list[float]:
        """Median of each group in us."""
        return [median(group) for group in self.groups]

    @property
    def median_us(self) -> float:
        """Median of the groups' medians."""
        return median(self.medians)

    def spread(self) -> tuple[float, float]:
        """Return the 10th and 90th percentile of all replays in us."""
        return _percentiles([us for group in self.groups for us in group], _TAIL)

    @property
    def noise(self) -> float:
        """How far figures move without any change, as a share of the median: between groups and within them.

        Between: twice the standard error of the groups' medians, so two groups count with their whole distance and
        more groups tell more. Within: half the distance of a group's own quartiles, which for 15 replays is about
        twice the standard error of their median and takes no notice of single stray ones.
        """
        within = median((high - low) / 2 for low, high in (_percentiles(group, _QUARTER) for group in self.groups))
        return max(self.between(self.deviation), within / self.median_us)

    @property
    def deviation(self) -> float:
        """Standard deviation of the groups' medians as a share; 0 for a single group, which can't tell."""
        return stdev(self.medians) / self.median_us if len(self.groups) > 1 else 0.0

    def between(self, deviation: float) -> float:
        """Return the noise between groups that differ by ``deviation``: twice the standard error of their median."""
        return 2 * deviation / math.sqrt(len(self.groups))

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, with what follows from the replays."""
        low, high = self.spread()
        return {
            **asdict(self),
            "median_us": round(self.median_us, 3),
            "low_us": round(low, 3),
            "high_us": round(high, 3),
            "group_medians_us": [round(us, 3) for us in self.medians],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Row:
        """Read what :meth:`as_dict` wrote. Raises DecisionError."""
        groups = tuple(tuple(float(us) for us in group) for group in document["groups"])
        if not groups or not all(groups) or not all(0 < us < math.inf for group in groups for us in group):
            raise DecisionError(f"{document['bytes']} bytes: expected at least one time above 0 in each group")
        phase, tokens, size = document["phase"], int(document["tokens"]), int(document["bytes"])
        if phase not in PHASES or not (0 < tokens < _MOST and 0 < size < _MOST):
            raise DecisionError(
                f"{phase!r}, {tokens} tokens, {size} bytes: expected {' or '.join(PHASES)}, and messages"
            )
        return cls(phase, tokens, size, groups)


@dataclass(frozen=True)
class Result:
    """What was measured of one candidate; without ``rows`` where it wasn't healthy."""

    name: str
    environment: Mapping[str, str]
    verdict: Verdict
    reason: str = ""
    rows: tuple[Row, ...] = ()

    def of(self, phase: Phase) -> list[Row]:
        """Return the rows of a phase."""
        return [row for row in self.rows if row.phase == phase]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "environment": dict(self.environment),
            "verdict": self.verdict,
            "reason": self.reason,
            "rows": [row.as_dict() for row in self.rows],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Result:
        """Read what :meth:`as_dict` wrote. Raises DecisionError."""
        try:
            rows = tuple(Row.from_dict(row) for row in document.get("rows", ()))
            named = (str(document["name"]), dict(document["environment"]), document["verdict"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise DecisionError(f"not the result of a candidate: {error!r}") from error
        return cls(*named, document.get("reason", ""), rows)


def read_results(entries: Iterable[Mapping[str, Any]]) -> list[Result]:
    """Read the results of one run, which all have the same messages or none. Raises DecisionError, TypeError."""
    found = [Result.from_dict(entry) for entry in entries]
    messages = {tuple((row.phase, row.tokens, row.bytes) for row in result.rows) for result in found if result.rows}
    if len(messages) > 1:
        raise DecisionError("the candidates were not measured at the same sizes")
    return found


@dataclass(frozen=True)
class Workload:
    """What a request is like: it weighs the time of prefill against that of decode. Tokens; ``streams`` at once."""

    prompt: int = 6000
    output: int = 512
    streams: int = 1

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise DecisionError(f"{name} is {value}; expected 1 or more")

    def decode_share(self, result: Result) -> float:
        """Return decode's share of the time that a request spends in all-reduces, 0 to 1.

        A decode step serves all streams, its time is read between the measured sizes; a prompt is taken in chunks of
        the largest prefill size that was measured.
        """
        chunk, chunk_us = max((row.tokens, row.median_us) for row in result.of("prefill"))
        points = {float(row.tokens): row.median_us for row in result.rows}
        step_us = Measured(tuple(sorted(points.items()))).time_us(self.streams)
        decoding = self.output * step_us / self.streams
        return decoding / (decoding + chunk_us * self.prompt / chunk)


@dataclass(frozen=True)
class Standing:
    """How a candidate stands against the reference. Ratios are times over the reference's; below 1 is faster."""

    name: str
    status: Status
    reason: str
    environment: Mapping[str, str] = field(default_factory=dict)
    decode: float | None = None
    prefill: float | None = None
    decode_noise: float = 0.0
    prefill_noise: float = 0.0
    score: float | None = None
    """Both phases' ratios, weighted by the share of decode."""
    noise: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, ratios to four places."""
        shown = {**asdict(self), "environment": dict(self.environment)}
        return {key: round(value, 4) if isinstance(value, float) else value for key, value in shown.items()}


@dataclass(frozen=True)
class Decision:
    """The choice. ``chosen`` is None where nothing may be recommended."""

    chosen: str | None
    reason: str
    environment: Mapping[str, str]
    reference: str | None
    decode_share: float | None
    standings: tuple[Standing, ...]

    def at(self, status: Status) -> list[Standing]:
        """Return the candidates of one status."""
        return [standing for standing in self.standings if standing.status == status]

    def named(self, name: str | None) -> Standing | None:
        """Return one candidate's standing."""
        return next((standing for standing in self.standings if standing.name == name), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; ``goal`` as :func:`goal` returns it."""
        return {
            "chosen": self.chosen,
            "reason": self.reason,
            "environment": dict(self.environment),
            "reference": self.reference,
            "decode_share": None if self.decode_share is None else round(self.decode_share, 4),
            "standings": [standing.as_dict() for standing in self.standings],
            "trades": [standing.name for standing in self.at("trade")],
            "banned": [standing.name for standing in self.at("banned")],
            "goal": goal(self),
        }


def decide(results: Sequence[Result], share: float | Workload) -> Decision:
    """Return the choice among ``results``, NCCL's own choice among them. Raises DecisionError.

    ``share`` is decode's part of the time spent in all-reduces, 0 to 1, or the workload that it follows from.
    """
    baseline = next((result for result in results if result.name == BASELINE), None)
    if baseline is None:
        raise DecisionError(f"no result of {BASELINE!r}, NCCL's own choice: nothing to compare with")
    healthy = [result for result in results if result.verdict == "healthy" and _complete(result)]
    if baseline not in healthy and (baseline.verdict not in BANNED or not healthy):
        return _none(results, baseline, healthy)
    # where NCCL's own choice can't be used, the next healthy one in the order given is what others have to beat
    reference = healthy[0] if baseline not in healthy else baseline
    weight = share.decode_share(reference) if isinstance(share, Workload) else share
    if not 0 <= weight <= 1:
        raise DecisionError(f"the share of decode is {weight}; expected 0 to 1")
    moves = _moves(healthy)
    standings = tuple(_standing(result, reference, weight, moves) for result in results)
    return _choice(standings, reference, baseline, weight)


def _moves(results: Sequence[Result]) -> Callable[[Row], float]:
    """Return what tells a row's noise, with what all candidates together show of how groups differ at its size.

    Two groups of one candidate can be alike by luck; that they differ is a property of the host, not of settings.
    """
    rows: dict[int, list[Row]] = {}
    for row in (row for result in results for row in result.rows if len(row.groups) > 1):
        rows.setdefault(row.bytes, []).append(row)

    def deviation(size: int) -> float:
        free = [len(row.groups) - 1 for row in rows.get(size, ())]
        squares = (row.deviation**2 * (len(row.groups) - 1) for row in rows.get(size, ()))
        return math.sqrt(sum(squares) / sum(free)) if free else MOVES

    return lambda row: max(row.noise, row.between(deviation(row.bytes)))


def _both(one: float, other: float) -> float:
    """Return the noise of the ratio of two rows, which are noisy each by itself."""
    return max(math.hypot(one, other), FLOOR)


def _complete(result: Result) -> bool:
    return all(result.of(phase) for phase in PHASES)


def _none(results: Sequence[Result], baseline: Result, healthy: Sequence[Result]) -> Decision:
    why = baseline.reason or f"no {' and no '.join(p for p in PHASES if not baseline.of(p))} size was measured"
    tail = "no other candidate is healthy" if not healthy else "without it the others have nothing to be compared with"
    standings = tuple(_unusable(result) or Standing(result.name, "inconclusive", tail) for result in results)
    return Decision(None, f"NCCL's own choice: {baseline.verdict}, {why}; {tail}", {}, None, None, standings)


def _unusable(result: Result) -> Standing | None:
    if result.verdict in BANNED:
        return Standing(result.name, "banned", f"{result.verdict}: {result.reason}", result.environment)
    if result.verdict != "healthy":
        return Standing(result.name, "inconclusive", result.reason, result.environment)
    if not _complete(result):
        missing = " and no ".join(phase for phase in PHASES if not result.of(phase))
        return Standing(result.name, "inconclusive", f"no {missing} size was measured", result.environment)
    return None


def _standing(result: Result, reference: Result, share: float, noise_of: Callable[[Row], float]) -> Standing:
    unusable = _unusable(result)
    if unusable:
        return unusable
    ratios = {phase: _phase(result, reference, phase, noise_of) for phase in PHASES}
    (decode, decode_noise), (prefill, prefill_noise) = (ratios[phase] for phase in PHASES)
    score, noise = (share * d + (1 - share) * p for d, p in ((decode, prefill), (decode_noise, prefill_noise)))
    status: Status = "reference"
    reason = "what the others are compared with"
    if result is not reference:
        status, reason = _status(ratios, _losses(result, reference, noise_of), score, noise)
    return Standing(
        result.name, status, reason, result.environment, decode, prefill, decode_noise, prefill_noise, score, noise
    )


def _pairs(result: Result, reference: Result, phase: Phase) -> list[tuple[Row, Row]]:
    theirs = {row.bytes: row for row in reference.of(phase)}
    pairs = [(row, theirs[row.bytes]) for row in result.of(phase) if row.bytes in theirs]
    if not pairs:
        raise DecisionError(f"{result.name} and {reference.name} have no {phase} size in common")
    return pairs


def _phase(result: Result, reference: Result, phase: Phase, noise_of: Callable[[Row], float]) -> tuple[float, float]:
    """Return the geometric mean of the ratios, and the mean noise of what they are made of."""
    pairs = _pairs(result, reference, phase)
    logs = [math.log(row.median_us / other.median_us) for row, other in pairs]
    noise = [_both(noise_of(row), noise_of(other)) for row, other in pairs]
    return math.exp(sum(logs) / len(logs)), sum(noise) / len(noise)


def _losses(result: Result, reference: Result, noise_of: Callable[[Row], float]) -> list[tuple[Row, Row]]:
    """Return the sizes at which a candidate is slower beyond their noise; an average would hide them."""
    return [
        (row, other)
        for phase in PHASES
        for row, other in _pairs(result, reference, phase)
        if row.median_us / other.median_us > 1 + _both(noise_of(row), noise_of(other))
    ]


def _status(
    ratios: Mapping[Phase, tuple[float, float]], losses: Sequence[tuple[Row, Row]], score: float, noise: float
) -> tuple[Status, str]:
    gains = [phase for phase in PHASES if ratios[phase][0] < 1 - ratios[phase][1]]
    both = ", ".join(f"{phase} {_percent(ratios[phase][0])}" for phase in PHASES)
    if losses:
        worst = max(losses, key=lambda pair: pair[0].median_us / pair[1].median_us)
        where = f"{worst[0].tokens} tokens {worst[1].median_us:.1f} to {worst[0].median_us:.1f} us"
        return ("trade" if gains else "loses"), f"{both}; at the worst {where}"
    if score < 1 - noise:
        return "wins", f"{both}; beyond the noise of {noise:.1%}"
    return "within-noise", f"{both}; the noise is {noise:.1%}"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.1f}%"


def _choice(standings: tuple[Standing, ...], reference: Result, baseline: Result, share: float) -> Decision:
    winners = [standing for standing in standings if standing.status == "wins"]
    chosen = _best(winners) if winners else next(s for s in standings if s.name == reference.name)
    if winners:
        reason = f"{chosen.name} is better than {reference.name}: {chosen.reason}"
    elif reference is baseline:
        reason = "NCCL's own choice stays: no candidate is better beyond the noise without being worse somewhere"
    else:
        reason = f"NCCL's own choice is banned ({baseline.verdict}: {baseline.reason}); {reference.name} is healthy"
    return Decision(chosen.name, reason, chosen.environment, reference.name, share, standings)


def _best(winners: Sequence[Standing]) -> Standing:
    """Return the one with the fewest settings of those that can't be told from the fastest: noise must not choose."""
    fastest = min(winners, key=_score)
    near = [winner for winner in winners if _score(winner) <= _score(fastest) + max(winner.noise, fastest.noise)]
    return min(near, key=lambda standing: (len(standing.environment), _score(standing)))


def in_doubt(decision: Decision) -> list[str]:
    """Return the candidates that would win if the noise were no more than the floor: more groups would tell."""
    return [s.name for s in decision.at("within-noise") if _score(s) < 1 - FLOOR]


def _score(standing: Standing) -> float:
    return math.inf if standing.score is None else standing.score


def goal(decision: Decision) -> dict[str, Any] | None:
    """Return whether the choice is near the best in both phases at once, or None where nothing was chosen.

    ``decode`` and ``prefill`` are ratios: to the best decode of any healthy candidate, and to the reference's prefill,
    each with its ``noise`` and ``met``: within :data:`GOAL`, or what is beyond can't be told from noise.
    """
    chosen = decision.named(decision.chosen)
    if chosen is None or chosen.decode is None or chosen.prefill is None:
        return None
    best = min((s for s in decision.standings if s.decode is not None), key=lambda s: s.decode or math.inf)
    decode = chosen.decode / (best.decode or 1.0)
    return {
        "decode": _goal(decode, best.name, max(chosen.decode_noise, best.decode_noise)),
        "prefill": _goal(chosen.prefill, decision.reference, chosen.prefill_noise),
    }


def _goal(ratio: float, to: str | None, noise: float) -> dict[str, Any]:
    return {"ratio": round(ratio, 4), "to": to, "noise": round(noise, 4), "met": ratio <= 1 + max(GOAL, noise)}
