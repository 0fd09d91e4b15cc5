# SPDX-License-Identifier: Apache-2.0
"""Figures from completions: percentiles, spread over repeats, and whether the client itself was the limit."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .stream import Completion
from .waiting import Waited, share

PERCENTILES = (50, 90, 99)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of one or more values, interpolated linearly between closest ranks."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def summary(values: Iterable[float | None]) -> dict[str, float] | None:
    """Return ``mean``, ``p50``, ``p90``, ``p99`` of the known values, or None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return {"mean": statistics.fmean(known), **{f"p{p}": percentile(known, p) for p in PERCENTILES}}


def mad(values: Sequence[float]) -> float:
    """Return the median absolute deviation from the median."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Return ``median``, ``min``, ``max``, ``cv`` (None for one value) and the ``values`` of repeats."""
    mean = statistics.fmean(values)
    cv = statistics.stdev(values) / mean if len(values) > 1 and mean else None
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "cv": cv,
        "values": list(values),
    }


@dataclass
class Phase:
    """Completions that ran together, and what the client measured of itself meanwhile."""

    completions: list[Completion]
    seconds: float
    lags: list[float] = field(default_factory=list)
    """Seconds by which the client's event loop came late, sampled all along."""
    cpu_seconds: float = 0.0
    engine: Waited | None = None
    """How long the engine's threads ran and waited for a processor meanwhile."""

    @property
    def good(self) -> list[Completion]:
        """The completions that may be counted."""
        return [c for c in self.completions if c.problem is None]

    @property
    def failures(self) -> Counter[str]:
        """How many failed, by problem."""
        return Counter(c.problem for c in self.completions if c.problem is not None)

    @property
    def tokens(self) -> int:
        """Completion tokens of the counted ones, as the server counted them."""
        return sum(c.completion_tokens or 0 for c in self.good)

    @property
    def tok_s(self) -> float:
        """Aggregate completion tokens a second, from the first request sent to the last answer complete."""
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def cpu_share(self) -> float:
        """Share of one core that the client used."""
        return self.cpu_seconds / self.seconds if self.seconds > 0 else 0.0

    def decode_tok_s(self) -> float | None:
        """Decode speed of one stream in tok/s: the reciprocal of the median time a token."""
        known = [c.tpot for c in self.good if c.tpot]
        return 1 / statistics.median(known) if known else None


def figures(phases: Sequence[Phase], *, concurrency: int | None, client: Mapping[str, float]) -> dict[str, Any]:
    """Return what repeated phases of one shape showed. Failed requests are counted, never timed.

    ``client`` holds the fields of the profile's client limits.
    Times are seconds. ``tok_s`` is aggregate, ``decode_tok_s`` that of one stream.
    """
    good = [c for phase in phases for c in phase.good]
    decode = [value for phase in phases if (value := phase.decode_tok_s())]
    chunks = sum(len(c.content_times) for c in good)
    tokens = sum(c.completion_tokens or 0 for c in good)
    failures: Counter[str] = sum((phase.failures for phase in phases), Counter())
    ttft, e2e = summary(c.ttft for c in good), summary(c.e2e for c in good)
    return {
        "concurrency": concurrency,
        "repeats": len(phases),
        "requests": sum(len(phase.completions) for phase in phases),
        "failed": failures.total() if hasattr(failures, "total") else sum(failures.values()),
        "failures": dict(failures),
        "prompt_tokens": _median(c.prompt_tokens for c in good),
        "completion_tokens": tokens,
        "tokens_per_chunk": tokens / chunks if chunks else None,
        "begins_with": next((c.first_kind for c in good), None),
        "tok_s": spread([phase.tok_s for phase in phases]) if good else None,
        "decode_tok_s": spread(decode) if decode else None,
        "ttft_s": ttft,
        "tpot_s": summary(c.tpot for c in good),
        "chunk_gap_s": summary(gap for c in good for gap in c.gaps),
        "e2e_s": e2e,
        "engine_wait": share(phase.engine for phase in phases),
        "client": client_figures(phases, client, ttft["p50"] if ttft else None, e2e["p50"] if e2e else None),
    }


def client_figures(
    phases: Sequence[Phase], limits: Mapping[str, float], ttft: float | None, e2e: float | None
) -> dict[str, Any]:
    """Return the client's lag and load, and why all figures (``bound``) or the TTFT (``late``) are its own.

    Lag shifts a moment by as much: little in an answer of seconds, much in a first token after milliseconds.
    """
    lags = [lag for phase in phases for lag in phase.lags]
    seconds = sum(phase.seconds for phase in phases)
    share = sum(phase.cpu_seconds for phase in phases) / seconds if seconds else 0.0
    lag = percentile(lags, 99) if lags else 0.0

    def too_late(allowed_share: float, of: float | None) -> str | None:
        allowed = max(limits["max_lag_ms"] / 1000, allowed_share * (of or 0.0))
        seen = f"the client's event loop came {lag * 1000:.0f} ms late (p99), allowed {allowed * 1000:.0f} ms"
        return seen if lag > allowed else None

    busy = f"the client used {share:.0%} of a core" if share > limits["max_cpu_share"] else None
    return {
        "lag_p99_ms": lag * 1000,
        "lag_max_ms": max(lags, default=0.0) * 1000,
        "cpu_share": share,
        "send_lag_p99_ms": _send_lag(phases),
        "bound": busy or too_late(limits["max_lag_share_e2e"], e2e),
        "late": too_late(limits["max_lag_share_ttft"], ttft),
    }


def _send_lag(phases: Sequence[Phase]) -> float:
    lags = [c.send_lag for phase in phases for c in phase.completions]
    return percentile(lags, 99) * 1000 if lags else 0.0


def _median(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def figure(value: float) -> str:
    """Return a figure for people: four digits, and never an exponent for a large one."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004 - four digits
