# SPDX-License-Identifier: Apache-2.0
"""Plots of what was measured, as SVG whose colours follow the page: light, dark and on paper."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Json = Mapping[str, Any]

_COLOURS = {"ink": "#010101", "faint": "#020202", "rule": "#030303", "mark": "#040404", "good": "#050505",
            "bad": "#060606"}  # fmt: skip
"""Stand-ins that the drawn SVG holds, replaced by the page's own colours afterwards."""
_SIZE = (5.6, 2.9)
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # texts stay texts: small, searchable, in the reader's font
    "svg.hashsalt": "inference",  # the same figures are the same file
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": _COLOURS["rule"],
    "axes.labelcolor": _COLOURS["faint"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _COLOURS["rule"],
    "grid.linewidth": 0.6,
    "text.color": _COLOURS["ink"],
    "xtick.color": _COLOURS["faint"],
    "ytick.color": _COLOURS["faint"],
    "legend.frameon": False,
}
_LEAST = 2
"""Points below which there is nothing to plot."""


def sweep_svg(rows: Sequence[Json]) -> str | None:
    """Return throughput and speed of each stream over the number of streams; None for fewer than two."""
    points = sorted(
        {
            row["concurrency"]: (row["tok_s"], row.get("decode_tok_s") or {})
            for row in rows
            if row.get("concurrency") and (row.get("tok_s") or {}).get("median") is not None
        }.items(),
        key=lambda point: int(point[0]),
    )
    if len(points) < _LEAST:
        return None
    figure, axes = _figure("streams at the same time", "tok/s, all streams")
    streams = [count for count, _ in points]
    totals = [total["median"] for _, (total, _) in points]
    spread = [
        [total["median"] - _or(total.get("min"), total["median"]) for _, (total, _) in points],
        [_or(total.get("max"), total["median"]) - total["median"] for _, (total, _) in points],
    ]
    axes.errorbar(streams, totals, yerr=spread, color=_COLOURS["mark"], marker="o", capsize=3, label="all streams")
    _label(axes, streams, totals)
    each = [(count, speed["median"]) for count, (_, speed) in points if speed.get("median") is not None]
    if len(each) >= _LEAST:
        other = axes.twinx()
        other.plot(*zip(*each, strict=True), color=_COLOURS["good"], marker="s", linestyle="--", label="one stream")
        other.set_ylabel("tok/s, one stream")
        other.set_ylim(0, 1.2 * max(speed for _, speed in each))
        other.spines["right"].set_visible(True)
        other.grid(visible=False)
        lines = [*axes.get_legend_handles_labels()[0], *other.get_legend_handles_labels()[0]]
        axes.legend(
            lines, ["all streams", "one stream (right)"], loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2
        )
    if streams[-1] >= streams[0] * 8:
        axes.set_xscale("log", base=2)
    axes.set_xticks(streams, [str(count) for count in streams])
    axes.minorticks_off()
    return _svg(figure, "Throughput over the number of streams")


def history_svg(runs: Sequence[Json], metric: str, unit: str, marks: Mapping[str, float]) -> str | None:
    """Return a figure over the runs that measured it, failed ones crossed out; None for fewer than two.

    ``marks`` are lines to compare with by their label (floor, target).
    """
    points = [(run, value) for run in runs if (value := (run.get("metrics") or {}).get(metric)) is not None]
    if len(points) < _LEAST:
        return None
    figure, axes = _figure("run", unit)
    values = [value for _, value in points]
    axes.plot(range(len(values)), values, color=_COLOURS["mark"], linewidth=1)
    for passed, marker, colour in ((True, "o", "mark"), (False, "x", "bad")):
        chosen = [place for place, (run, _) in enumerate(points) if bool(run.get("passed")) is passed]
        label = "passed" if passed else "failed"
        if chosen:
            axes.plot(chosen, [values[place] for place in chosen], linestyle="", marker=marker, color=_COLOURS[colour],
                      label=label)  # fmt: skip
    for label, value in marks.items():
        axes.axhline(value, color=_COLOURS["bad" if label == "floor" else "good"], linestyle=":", label=label)
    for place in _changes([run for run, _ in points]):
        axes.axvline(place - 0.5, color=_COLOURS["faint"], linewidth=0.8, linestyle="--")
    low, high = min(values + list(marks.values())), max(values + list(marks.values()))
    axes.set_ylim(max(0.0, low - 0.15 * (high - low or high)), high + 0.15 * (high - low or high))
    ticks = sorted({0, len(points) // 2, len(points) - 1})
    axes.set_xticks(ticks, [str(points[place][0].get("when"))[:10] for place in ticks])
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    return _svg(figure, f"History of {metric}")


def _changes(runs: Sequence[Json]) -> list[int]:
    """Return the runs that were of another release than the one before."""
    return [place for place in range(1, len(runs)) if runs[place].get("release") != runs[place - 1].get("release")]


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _figure(across: str, up: str) -> tuple[Figure, Axes]:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update(_SETTINGS)
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_ylim(bottom=0, auto=True)
    return figure, axes


def _label(axes: Axes, across: Sequence[float], values: Sequence[float]) -> None:
    for x, value in zip(across, values, strict=True):
        axes.annotate(f"{value:,.0f}", (x, value), textcoords="offset points", xytext=(0, 7), ha="center", fontsize=9)
    axes.margins(y=0.18)
    axes.set_ylim(bottom=0)


def _svg(figure: Figure, label: str) -> str:
    """Return the drawing without a fixed size or ids that would clash on a page, in the page's colours."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", buffer.getvalue(), flags=re.DOTALL)
    for name, colour in _COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    box = re.search(r'viewBox="([^"]*)"', text)
    head = f'<svg class="plot" viewBox="{box[1] if box else ""}" role="img"><title>{label}</title>'
    text = head + text[text.index(">", text.index("<svg")) + 1 :]
    prefix = re.sub(r"[^a-z]+", "-", label.lower())
    return re.sub(r'(id="|xlink:href="#|url\(#)', rf"\g<1>{prefix}-", text).replace("xlink:href", "href")
