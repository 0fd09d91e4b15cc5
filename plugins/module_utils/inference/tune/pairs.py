# SPDX-License-Identifier: Apache-2.0
"""Two GPUs at a time, so that one bad pair among eight has a name: which pairs, and which of them stand out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from .outcome import Outcome, Verdict

SIZES = (14_336, 1 << 24)
"""Bytes: a decode message and one that is all bandwidth."""

OUTLIER = 1.5
"""A pair this many times slower than the median of its link class stands out. Contention alone (disjoint pairs run at
the same time) can cost less than that on a switch; what stands out is worth a run of its own."""

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Pair:
    """Two GPUs by their numbers, and the word of ``nvidia-smi topo -m`` for the path between them."""

    one: int
    other: int
    link: str

    @property
    def name(self) -> str:
        """Such as ``GPU0-GPU3 (SYS)``."""
        return f"GPU{self.one}-GPU{self.other} ({self.link})"


@dataclass(frozen=True)
class PairResult:
    """What a pair showed; ``us`` by bytes."""

    pair: Pair
    verdict: Verdict
    reason: str
    us: Mapping[int, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        figures = {str(size): round(us, 3) for size, us in self.us.items()}
        return {**asdict(self.pair), "verdict": self.verdict, "reason": self.reason, "us": figures}


def all_pairs(gpus: Sequence[int], topology: Mapping[str, Any] | None) -> list[Pair]:
    """Return every pair of ``gpus``; ``topology`` is what ``topology parse`` makes of ``nvidia-smi topo -m``."""
    ids = list((topology or {}).get("gpu_ids") or ())
    links = (topology or {}).get("links") or ()

    def link(one: int, other: int) -> str:
        known = one in ids and other in ids
        return str(links[ids.index(one)][ids.index(other)]) if known else UNKNOWN

    return [Pair(one, other, link(one, other)) for i, one in enumerate(gpus) for other in gpus[i + 1 :]]


def one_of_each_class(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the first pair of every link class."""
    first: dict[str, Pair] = {}
    for pair in pairs:
        first.setdefault(pair.link, pair)
    return list(first.values())


def rounds(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Return the pairs in rounds within which no GPU occurs twice, so that a round's pairs can run at once."""
    result: list[list[Pair]] = []
    for pair in pairs:
        free = (r for r in result if not {pair.one, pair.other} & {gpu for p in r for gpu in (p.one, p.other)})
        chosen = next(free, None)
        if chosen is None:
            result.append([pair])
        else:
            chosen.append(pair)
    return result


def result_of(pair: Pair, outcome: Outcome) -> PairResult:
    """Return a pair's result."""
    return PairResult(pair, outcome.verdict, outcome.reason, {n: median(us) for n, us in outcome.times.items()})


def slow(results: Sequence[PairResult]) -> list[tuple[PairResult, int, float]]:
    """Return the pairs that stand out in their class: result, bytes, and how many times the class's median it takes.

    A class of fewer than three pairs has no median that says anything.
    """
    found = []
    for link in sorted({result.pair.link for result in results}):
        same = [result for result in results if result.pair.link == link and result.us]
        for size in sorted({size for result in same for size in result.us}):
            times = [result.us[size] for result in same if size in result.us]
            if len(times) < 3:  # noqa: PLR2004 - see above
                continue
            middle = median(times)
            found += [(r, size, r.us[size] / middle) for r in same if r.us.get(size, 0) > OUTLIER * middle]
    return found


def common_gpu(results: Sequence[PairResult]) -> int | None:
    """Return the GPU that all of several pairs share: then it is the GPU, not a path, that is at fault."""
    shared: set[int] = set.intersection(*({r.pair.one, r.pair.other} for r in results)) if len(results) > 1 else set()
    return shared.pop() if len(shared) == 1 else None
