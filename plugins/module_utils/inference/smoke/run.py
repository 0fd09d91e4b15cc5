# SPDX-License-Identifier: Apache-2.0
"""Run the stages of a smoke test in order, each within its time, and take the result to the gate."""

from __future__ import annotations

import asyncio
import datetime
import math
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..findings import Finding, Level
from . import Result, Stage, finding
from .after import after, engine_looker
from .context import Context, Depth, StopError
from .correctness import correctness
from .gate import (
    History,
    Key,
    Row,
    at_worst,
    bound_stages,
    judge,
    metrics_of,
    shape_of,
    stage_of,
    waits_of,
    worse,
)
from .load import concurrent, prefill, single
from .probes import health, identity, reachable
from .profile import STAGES, Gate, Profile
from .soak import soak
from .stats import figure

RUNNERS: Mapping[str, Callable[[Context], Awaitable[str]]] = {
    "reachable": reachable, "health": health, "identity": identity, "correctness": correctness,
    "single": single, "concurrent": concurrent, "prefill": prefill, "soak": soak, "after": after,
}  # fmt: skip

ALWAYS = ("reachable", "identity")
"""Stages that the others need: they run whatever was chosen."""

QUICK = ("reachable", "health", "identity", "correctness")

StageDone = Callable[[Stage], None]


def stages_for(depth: Depth, chosen: Collection[str] | None = None, *, soaks: bool = False) -> tuple[str, ...]:
    """Return the stages to run, in order; the soak only where it was asked for."""
    wanted = set(chosen) if chosen else set(QUICK if depth == "quick" else STAGES) - {"soak"}
    wanted |= {"soak"} if soaks else set()
    return tuple(name for name in STAGES if name in wanted or name in ALWAYS)


async def run_stages(ctx: Context, stages: Collection[str], done: StageDone = lambda _stage: None) -> Result:
    """Run the stages. After one that makes the rest meaningless only ``after`` still runs: it may say why."""
    stopped: str | None = None
    ctx.result.facts.update(
        url=ctx.client.url, profile=ctx.profile.name, depth=ctx.depth, started=_utc(ctx.begun),
        host=ctx.profile.host or urllib.parse.urlsplit(ctx.client.url).hostname, fingerprint=ctx.profile.fingerprint,
    )  # fmt: skip
    begun = time.perf_counter()
    ctx.client.engine = await asyncio.to_thread(engine_looker, ctx)
    async with ctx.client:
        for name in STAGES:
            stage = Stage(name)
            if name not in stages:
                stage.note = "not asked for"
            elif stopped and name != "after":
                stage.note = stopped
                ctx.skip(name, stopped)
            else:
                stopped = await _run_stage(ctx, stage) or stopped
            ctx.result.stages.append(stage)
            done(stage)
    ctx.result.facts["seconds"] = time.perf_counter() - begun
    return ctx.result


async def _run_stage(ctx: Context, stage: Stage) -> str | None:
    """Run one stage; return why the later ones are meaningless, or None."""
    before = len(ctx.result.report.at("critical"))
    begun = time.perf_counter()
    stopped = None
    seconds = ctx.profile.timeouts.stages[stage.name]
    seconds += ctx.soak_minutes * 60 if stage.name == "soak" else 0.0
    try:
        stage.note = await asyncio.wait_for(RUNNERS[stage.name](ctx), seconds)
    except StopError as reason:
        stopped = stage.note = str(reason)
    except asyncio.TimeoutError:
        ctx.add("stage-timeout", f"{stage.name}: more than {seconds:g} s")
        stopped = stage.note = f"{stage.name} was not over in time"
    stage.seconds = time.perf_counter() - begun
    stage.status = "failed" if len(ctx.result.report.at("critical")) > before else "passed"
    return stopped


def key_of(result: Result, profile: Profile) -> Key:
    """Return what the run may be compared with."""
    facts = result.facts
    return Key(
        str(facts["host"]), str(facts.get("engine")), str(facts.get("model")), str(facts.get("release")),
        profile.fingerprint, shape_of(profile),
    )  # fmt: skip


@dataclass(frozen=True)
class Past:
    """What a run is compared with: its ``history`` (None: there is none to keep), or a ``baseline`` in its place.

    Whoever names one run as the baseline wants to be told about it, whatever else might explain the difference.
    """

    history: History | None = None
    baseline: Mapping[str, float] | None = None

    def rows(self, throughput: Mapping[str, Any], gate: Gate) -> list[Row]:
        """Return the gate's verdict on each metric of what was measured."""
        if self.baseline is not None:
            gate = replace(gate, regression=replace(gate.regression, min_runs=1, max_engine_wait=math.inf))
        return judge(metrics_of(throughput), gate, self.runs, waits_of(throughput))

    @property
    def runs(self) -> Sequence[Mapping[str, float]]:
        """The metrics of the runs that are the baseline."""
        if self.baseline is not None:
            return [self.baseline]
        return self.history.baseline if self.history else []


async def measure_again(ctx: Context, past: Past, done: StageDone = lambda _stage: None) -> None:
    """Measure the stages of figures that fail, or that were the client's, once more.

    A real decline stays, a disturbance mostly does not.
    """
    rows = past.rows(ctx.result.throughput, ctx.profile.gate)
    stages = {stage_of(row.metric) for row in rows if row.failures or row.warnings}
    stages |= bound_stages(ctx.result.throughput)
    if not stages or not ctx.profile.gate.regression.again:
        return
    second = replace(ctx, result=Result(facts=ctx.result.facts), depth="default", sweep=(), rates=())
    begun = time.perf_counter()
    async with ctx.client:
        for name in filter(stages.__contains__, STAGES):
            stage = Stage(name)
            await _run_stage(second, stage)
            stage.note = f"again: {stage.note}"
            done(stage)
    ctx.result.facts["seconds"] += time.perf_counter() - begun
    ctx.result.throughput["again"] = second.result.throughput
    report, found = ctx.result.report, second.result.report.findings
    bound_again = {f.what for f in found if f.id == "client-bound"}
    report.findings = [f for f in report.findings if f.id != "client-bound" or f.what in bound_again]
    report.extend(f for f in found if f.level != "info" and f.id != "client-bound")


def apply_gate(result: Result, profile: Profile, past: Past) -> bool:
    """Judge the figures by the profile and by earlier runs; return whether they belong in a baseline.

    ``result.gate`` gets ``verdict`` (pass, fail, baseline, not-run), ``metrics``, ``rows`` and ``baseline_runs``.
    """
    metrics = metrics_of(result.throughput)
    rows = past.rows(result.throughput, profile.gate)
    for row in rows:
        result.report.extend(_row_findings(row))
    _unknown_floors(result, profile, metrics)
    history = past.history
    if metrics and not past.runs and history is None:
        result.report.skip("regression", "no history or baseline was given")
    if history and history.damaged:
        result.report.extend([finding("history-damaged", f"{history.damaged} lines")])
    failed = any(row.failures for row in rows)
    result.gate = {
        "verdict": ("fail" if failed else "pass") if rows else "not-run",
        "metrics": metrics,
        "rows": [row.as_dict() for row in rows],
        "baseline_runs": len(past.runs),
    }
    disturbed = any(row.warnings and row.baseline_runs >= profile.gate.regression.min_runs for row in rows)
    sound = bool(metrics) and result.report.ok and not disturbed
    if sound and history is not None and not history.baseline:
        result.report.extend([finding("baseline-recorded", f"{len(metrics)} figures")])
        result.gate["verdict"] = "baseline"
    return sound


def _row_findings(row: Row) -> Iterator[Finding]:
    if row.floor and "below-floor" in row.failures:
        source = f" ({row.floor.source})" if row.floor.source else ""
        yield finding("below-floor", figure(row.value), expected=figure(row.floor.value) + source, where=row.metric)
    if row.allowed is None or "regression" not in row.failures + row.warnings:
        return
    runs = f"{row.baseline_runs} run{'s' if row.baseline_runs != 1 else ''}"
    expected = f"{figure(row.allowed)} (baseline {figure(row.baseline or 0)} of {runs})"
    level: Level | None = None
    if row.warnings:
        level, expected = "warning", f"{expected}; {row.excuse}"
    yield finding("regression", figure(row.value), expected=expected, level=level, where=row.metric)


def _unknown_floors(result: Result, profile: Profile, metrics: Mapping[str, float]) -> None:
    """Say of each floor without a sound figure whether it holds all the same.

    Where every floor of the profile holds with the figures as bad as the client's lateness allows, the gate has its
    answer, and a client that was late is a warning.
    """
    worst, kept = at_worst(result.throughput), bool(profile.gate.floors)
    for metric, mark in profile.gate.floors.items():
        if metric in metrics:
            kept &= not worse(metric, metrics[metric], mark.value)
        elif metric in worst and not worse(metric, worst[metric], mark.value):
            why = f"the client was late; the floor {figure(mark.value)} holds: at worst {figure(worst[metric])}"
            result.report.skip(f"figure {metric}", why)
        elif result.throughput.get(stage_of(metric)):
            kept = False
            result.report.extend([finding("floor-unknown", "no sound figure", where=metric)])
        else:
            result.report.skip(f"floor {metric}", "the figure was not measured")
    if kept:
        result.report.findings = [
            replace(found, level="warning") if found.id == "client-bound" else found for found in result.report.findings
        ]


def _utc(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
