# SPDX-License-Identifier: Apache-2.0
"""The communication budget of tensor parallelism: what the all-reduces of one forward pass cost, by two terms.

Bandwidth: a ring sends 2(N-1)/N of the message over each link. Latency: what an all-reduce costs however small it is,
which bandwidth alone leaves out. Both are arithmetic on given figures; only a measurement on the host decides.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ..findings import excerpt

MICROSECONDS_PER_SECOND = 1e6
BYTES_PER_GB = 1e9
_LARGEST = 1e12
"""Above this a figure is a slip of the keyboard, and products of several leave what a float can hold."""


class BudgetError(ValueError):
    """Figures that make no budget. The message names the figure, what was seen and what is expected."""


@dataclass(frozen=True)
class Row:
    """One message size. ``*_us`` are for one all-reduce, ``forward_*_ms`` for all of a forward pass."""

    tokens: int
    bytes: int
    calls: int
    bandwidth_us: float
    latency_us: float | None
    total_us: float | None
    forward_bandwidth_ms: float
    forward_total_ms: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, unrounded."""
        return asdict(self)

    @property
    def dominant(self) -> str | None:
        """Return ``latency`` or ``bandwidth``, whichever costs more, or None without a latency."""
        if self.latency_us is None:
            return None
        return "latency" if self.latency_us > self.bandwidth_us else "bandwidth"


@dataclass(frozen=True)
class Measured:
    """Measured all-reduces: ``points`` of (bytes, us), smallest first, each size once."""

    points: tuple[tuple[float, float], ...]

    @classmethod
    def read(cls, text: str) -> Measured:
        """Read a measurement.

        JSON: a list of ``{"bytes": n, "us": t}``, or an object that holds it under ``rows``. CSV: a header line with
        the columns ``bytes`` and ``us``; further columns are ignored. Of a size that occurs more than once the median
        counts. Raises BudgetError.
        """
        rows = _json_rows(text) if text.lstrip()[:1] in ("[", "{") else _csv_rows(text)
        sizes: dict[float, list[float]] = {}
        for number, row in enumerate(rows, 1):
            size, time = (_positive(row, key, number) for key in ("bytes", "us"))
            sizes.setdefault(size, []).append(time)
        if not sizes:
            raise BudgetError("the measurement holds no rows; expected at least one of bytes and us")
        return cls(tuple((size, median(times)) for size, times in sorted(sizes.items())))

    def time_us(self, size: float) -> float:
        """Return the time of an all-reduce of ``size`` bytes in us.

        Between two measured sizes it is interpolated on a straight line, which is exact where time is a latency plus
        bytes over a bandwidth. Below the smallest it is that of the smallest, since latency doesn't shrink with size.
        Above the largest, the largest's is scaled by size: there bandwidth is what counts.
        """
        first, last = self.points[0], self.points[-1]
        if size <= first[0]:
            return first[1]
        if size >= last[0]:
            return last[1] * size / last[0]
        below = max(point for point in self.points if point[0] <= size)
        above = min(point for point in self.points if point[0] > size)
        return below[1] + (above[1] - below[1]) * (size - below[0]) / (above[0] - below[0])


@dataclass(frozen=True)
class Model:
    """What is sent: ``hidden`` values of ``dtype_bytes`` a token; in each layer ``calls_per_layer`` all-reduces."""

    hidden: int
    layers: int
    gpus: int
    bandwidth: float
    """GB/s (1e9 bytes) over one link, one way."""
    dtype_bytes: int = 2
    calls_per_layer: int = 2

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 < value < _LARGEST:
                raise BudgetError(f"{name} is {str(value)[:20]}; expected a number above 0 and below {_LARGEST:g}")
        if self.gpus == 1:
            raise BudgetError("gpus is 1; a single GPU has nothing to reduce, expected 2 or more")


def budget(
    model: Model, tokens: Sequence[int], *, latency_us: float | None = None, measured: Measured | None = None
) -> list[Row]:
    """Return one row for each number of tokens; at most one of ``latency_us`` and ``measured``. Raises BudgetError.

    With a measurement the total is the measured time, and the latency what it leaves over the bandwidth term, never
    below 0.
    """
    if latency_us is not None and measured is not None:
        raise BudgetError("a latency and a measurement: give one of them; a measurement holds the latency already")
    if latency_us is not None and not 0 <= latency_us < _LARGEST:
        raise BudgetError(f"latency is {latency_us}; expected us, 0 or more")
    wrong = [count for count in tokens if not 1 <= count < _LARGEST]
    if wrong or not tokens:
        raise BudgetError(
            f"tokens is {str(wrong[0])[:20] if wrong else 'empty'}; expected 1 or more, below {_LARGEST:g}"
        )
    return [_row(model, count, latency_us, measured) for count in tokens]


def _row(model: Model, tokens: int, latency_us: float | None, measured: Measured | None) -> Row:
    size = tokens * model.hidden * model.dtype_bytes
    calls = model.layers * model.calls_per_layer
    ring = 2 * (model.gpus - 1) / model.gpus
    bandwidth_us = size * ring / (model.bandwidth * BYTES_PER_GB) * MICROSECONDS_PER_SECOND
    total = bandwidth_us + latency_us if latency_us is not None else None
    if measured is not None:
        total = measured.time_us(size)
        latency_us = max(0.0, total - bandwidth_us)
    return Row(
        tokens=tokens,
        bytes=size,
        calls=calls,
        bandwidth_us=bandwidth_us,
        latency_us=latency_us,
        total_us=total,
        forward_bandwidth_ms=bandwidth_us * calls / 1000,
        forward_total_ms=None if total is None else total * calls / 1000,
    )


def size_text(size: int) -> str:
    """Return a size in KB or MB of 1024, as ``11.0 KB`` and ``1.38 MB``: one decimal, two for MB below 10."""
    kib = size / 1024
    if kib < 1024:  # noqa: PLR2004 - 1024 KB are an MB
        return f"{kib:.1f} KB"
    mib = kib / 1024
    return f"{mib:.2f} MB" if mib < 10 else f"{mib:.1f} MB"  # noqa: PLR2004 - three digits in all


def _json_rows(text: str) -> list[Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BudgetError(f"the measurement is no JSON: {error}") from error
    rows = document.get("rows") if isinstance(document, Mapping) else document
    if not isinstance(rows, list):
        raise BudgetError("the measurement has no list of rows; expected [{bytes, us}, ...] or {rows: [...]}")
    return rows


def _csv_rows(text: str) -> list[Any]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    reader = csv.DictReader(io.StringIO("\n".join(lines)), skipinitialspace=True)
    try:
        columns, rows = reader.fieldnames or [], list(reader)
    except csv.Error as error:
        raise BudgetError(f"the measurement is no CSV: {error}") from error
    if not {"bytes", "us"} <= set(columns):
        seen = excerpt(", ".join(columns)) or "none"
        raise BudgetError(f"the measurement's columns are {seen}; expected bytes and us")
    return rows


def _positive(row: object, key: str, number: int) -> float:
    value = row.get(key) if isinstance(row, Mapping) else None
    try:
        result = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else 0.0
    except (ValueError, OverflowError):
        result = 0.0
    if not (result > 0 and math.isfinite(result)):
        raise BudgetError(
            f"row {number} of the measurement: {key} is {excerpt(repr(value))}; expected a number above 0"
        )
    return result
