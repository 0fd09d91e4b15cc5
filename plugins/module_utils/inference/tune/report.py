# SPDX-License-Identifier: Apache-2.0
"""What a measurement has to say: findings for the exit code, and tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..findings import Finding, Report
from ..nccl.budget import size_text
from . import budget, pairs
from .candidates import BASELINE, Candidate
from .decision import GOAL, Decision, Result, goal
from .pairs import PairResult
from .shapes import Shape, Size

_AT_FAULT = (
    "Look at peer access: IOMMU translation and ACS (topology check), nvidia-smi topo -p2p r; NCCL's RAS report and "
    "its last log lines are in the result file."
)


def findings(
    results: Sequence[Result],
    decision: Decision,
    pair_results: Sequence[PairResult],
    left_out: Iterable[tuple[str, str]],
) -> Report:
    """Return the report. Critical: NCCL's own choice or a pair hangs or is wrong; unknown: nothing can be decided."""
    report = Report()
    report.extend(_verdicts(results))
    report.extend(_pairs(pair_results))
    report.extend(_decision(decision))
    for name, why in left_out:
        report.skip(f"tune-{name}", why)
    return report


def _verdicts(results: Sequence[Result]) -> Iterator[Finding]:
    for result in results:
        own = result.name == BASELINE
        settings = " ".join(f"{k}={v}" for k, v in result.environment.items()) or "NCCL's own choice"
        if result.verdict in ("hang", "wrong-data"):
            yield Finding(
                id=f"tune-{result.verdict}",
                level="critical" if own else "warning",
                what=f"{result.name} is banned on this host: {result.verdict}",
                seen=result.reason,
                expected="right sums on every rank, in bounded time",
                fix=_AT_FAULT if own else f"Don't run with {settings} here.",
            )
        elif result.verdict == "inconclusive":
            yield Finding(
                id="tune-inconclusive",
                level="unknown" if own else "warning",
                what=f"{result.name} could not be measured",
                seen=result.reason,
                expected="a group of processes that finishes, with these settings engaged",
                fix="Mend what is named, or leave this candidate out.",
            )


def _pairs(results: Sequence[PairResult]) -> Iterator[Finding]:
    bad = [result for result in results if result.verdict in ("hang", "wrong-data")]
    for result in bad:
        yield Finding(
            id="tune-bad-pair",
            level="critical",
            what=f"{result.pair.name}: {result.verdict}",
            seen=result.reason,
            expected="right sums between every two GPUs, in bounded time",
            fix=_AT_FAULT,
        )
    if (gpu := pairs.common_gpu(bad)) is not None:
        yield Finding(
            id="tune-bad-gpu",
            level="critical",
            what=f"every bad pair has GPU{gpu} in it",
            seen=", ".join(result.pair.name for result in bad),
            expected="no GPU that fails with every other one",
            fix="Look at that card, its slot and its riser first (topology check, nvidia-smi -q, kernel log).",
        )
    for result, size, times in pairs.slow(results):
        yield Finding(
            id="tune-slow-pair",
            level="warning",
            what=f"{result.pair.name} takes {times:.1f} times the median of its link class at {size_text(size)}",
            seen=f"{result.us[size]:.1f} us",
            expected=f"less than {pairs.OUTLIER} times",
            fix="Look at link width and generation of both cards (topology check), then measure this pair alone.",
        )


def _decision(decision: Decision) -> Iterator[Finding]:
    if decision.chosen is None:
        yield Finding(
            id="tune-undecided",
            level="unknown",
            what="nothing can be recommended",
            seen=decision.reason,
            expected="NCCL's own choice measured, or banned with another candidate healthy",
            fix="Mend what the other findings name and measure again.",
        )
    missed = [phase for phase, part in (goal(decision) or {}).items() if not part["met"]]
    if missed:
        yield Finding(
            id="tune-goal",
            level="info",
            what=f"no environment for the whole process is near the best in {' and '.join(missed)}",
            seen=goal_text(decision),
            expected=f"within {GOAL:.0%} of the best decode of any candidate and of NCCL's own prefill",
            fix="Decode and prefill are all-reduces alike, so no setting by function tells them apart. Compare the "
            "engine's own all-reduce for small messages (tune ab --trial pcie-ipc).",
        )
    for standing in decision.at("trade"):
        yield Finding(
            id="tune-trade",
            level="info",
            what=f"{standing.name} is better in one phase and worse in the other; it was not chosen",
            seen=standing.reason,
            expected="a candidate that is worse nowhere",
            fix=f"Choose the profile {standing.name} by name if that trade is wanted.",
        )


def goal_text(decision: Decision) -> str:
    """Return in words how near the choice is to the best in both phases at once; empty without a choice."""
    found = goal(decision)
    if found is None:
        return ""
    parts = [
        f"{phase} {(part['ratio'] - 1) * 100:+.1f}% against {part['to']} ({'met' if part['met'] else 'missed'}, "
        f"noise {part['noise']:.1%})"
        for phase, part in found.items()
    ]
    return f"{decision.chosen}, both phases at once: {', '.join(parts)}"


def plan_text(shape: Shape, sizes: Iterable[Size], candidates: Iterable[Candidate]) -> str:
    """Return what would be measured."""
    lines = [f"{shape.name or 'model'}: hidden {shape.hidden}, {shape.calls} all-reduces a forward pass", ""]
    lines += [f"{size.phase:<8} {size.tokens:>6} tokens  {size.bytes:>10} bytes" for size in sizes]
    lines.append("")
    for candidate in candidates:
        settings = " ".join(f"{name}={value}" for name, value in candidate.environment.items())
        lines.append(f"{candidate.name:<20} {settings or 'NCCL decides'}")
    return "\n".join(lines)


def text(results: Sequence[Result], decision: Decision, lines: Sequence[budget.Line], gpus: int, report: Report) -> str:
    """Return tables of times, standings and the communication budget, then the findings and the choice."""
    blocks = [_times(results), _standings(decision)]
    if lines:
        blocks += [_budget(lines), budget.reason(lines, gpus)]
    choice = f"choice: {decision.chosen or 'none'}. {decision.reason}."
    return "\n\n".join([*blocks, report.as_text(), *filter(None, [goal_text(decision)]), choice])


def _times(results: Sequence[Result]) -> str:
    measured = [result for result in results if result.rows]
    if not measured:
        return "no candidate was measured"
    header = ["us an all-reduce", *(f"{row.phase} {row.tokens} ({size_text(row.bytes)})" for row in measured[0].rows)]
    body = [[r.name, *(f"{row.median_us:.1f} ±{row.noise * 100:.0f}%" for row in r.rows)] for r in measured]
    return _table([header, *body])


def _standings(decision: Decision) -> str:
    rows = [["candidate", "decode", "prefill", "weighted", "noise", "status"]]
    for standing in decision.standings:
        cells = [standing.decode, standing.prefill, standing.score, standing.noise if standing.score else None]
        rows.append([standing.name, *("-" if c is None else f"{c:.3f}" for c in cells), standing.status])
    share = (
        ""
        if decision.decode_share is None
        else f"\ndecode's share of the time in all-reduces: {decision.decode_share:.0%}"
    )
    return _table(rows) + share


def _budget(lines: Sequence[budget.Line]) -> str:
    rows = [["tokens", "message", "measured us", "formula us", "x calls", "measured ms", "formula ms", "of a step"]]
    for line in lines:
        share = "-" if line.share_of_step is None else f"{line.share_of_step:.0%}"
        figures = (line.bandwidth_us, line.forward_bandwidth_ms)
        formula_us, formula_ms = ("-" if figure is None else f"{figure:.2f}" for figure in figures)
        measured = (f"{line.measured_us:.1f}", formula_us, str(line.calls), f"{line.forward_measured_ms:.2f}")
        rows.append([str(line.tokens), size_text(line.bytes), *measured, formula_ms, share])
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
