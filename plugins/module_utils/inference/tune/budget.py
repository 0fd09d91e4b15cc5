# SPDX-License-Identifier: Apache-2.0
"""What communication costs a forward pass as measured, beside what bandwidth alone would say, and why they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..nccl.budget import Measured, Model, budget
from .decision import Result
from .shapes import PHASES, Shape


@dataclass(frozen=True)
class Line:
    """One message size. ``*_us`` are for one all-reduce, ``forward_*_ms`` for all ``calls`` of a forward pass."""

    phase: str
    tokens: int
    bytes: int
    calls: int
    measured_us: float
    bandwidth_us: float | None
    forward_measured_ms: float
    forward_bandwidth_ms: float | None
    times_the_formula: float | None
    share_of_step: float | None
    """Part of a decode step, where its time is known; above 1 where the engine doesn't send what was measured."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(self).items()}


def lines(
    shape: Shape, result: Result, gpus: int, *, bandwidth: float | None = None, step_ms: float | None = None
) -> list[Line]:
    """Return one line for each measured size. Raises BudgetError.

    ``bandwidth`` is a link's, one way, in GB/s (1e9 bytes): without one there is no formula. ``step_ms`` is the time of
    one decode step of the engine at one stream, as a smoke test measures it.
    """
    ordered = [row for phase in PHASES for row in result.of(phase)]
    measured = Measured(tuple(sorted({float(row.bytes): row.median_us for row in ordered}.items())))
    model = Model(shape.hidden, shape.layers, gpus, bandwidth or 1.0, shape.dtype_bytes, shape.calls_per_layer)
    known = bandwidth is not None
    result_lines = []
    for row, figures in zip(ordered, budget(model, [r.tokens for r in ordered], measured=measured), strict=True):
        milliseconds = row.median_us * figures.calls / 1000
        result_lines.append(
            Line(
                phase=row.phase,
                tokens=row.tokens,
                bytes=row.bytes,
                calls=figures.calls,
                measured_us=row.median_us,
                bandwidth_us=figures.bandwidth_us if known else None,
                forward_measured_ms=milliseconds,
                forward_bandwidth_ms=figures.forward_bandwidth_ms if known else None,
                times_the_formula=row.median_us / figures.bandwidth_us if known else None,
                share_of_step=milliseconds / step_ms if step_ms and row.tokens == 1 else None,
            )
        )
    return result_lines


def reason(budget_lines: Sequence[Line], gpus: int) -> str:
    """Return why the formula and the measurement differ, with this measurement's own figures."""
    smallest = min(budget_lines, key=lambda line: line.bytes)
    largest = max(budget_lines, key=lambda line: line.bytes)
    if smallest.bandwidth_us is None or largest.times_the_formula is None:
        return "Measured only: give the bandwidth of a link to see the bandwidth-only formula beside it."
    return (
        f"The formula divides bytes by bandwidth and leaves out what an all-reduce costs however small it is: "
        f"{2 * (gpus - 1)} steps that wait for each other, and a kernel's start. At {smallest.bytes} bytes that is "
        f"{smallest.measured_us:.1f} us measured against {smallest.bandwidth_us:.2f} us by the formula. At "
        f"{largest.bytes} bytes, where bandwidth counts, the measurement is {largest.times_the_formula:.1f} times the "
        "formula: what the links, the protocol and the path through memory leave of the nominal bandwidth."
    )
