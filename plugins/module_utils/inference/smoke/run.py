# SPDX-License-Identifier: Apache-2.0
"""Run the stages of a smoke test in order, each within its time, and take the result to the gate."""

from __future__ import annotations

import asyncio
import datetime
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Collection, Mapping

from . import Result, Stage, finding
from .after import after
from .context import Context, Depth, StopError
from .correctness import correctness
from .gate import History, Key, judge, metrics_of, shape_of
from .load import concurrent, prefill, single
from .probes import health, identity, reachable
from .profile import STAGES, Profile
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


def apply_gate(
    result: Result, profile: Profile, history: History | None = None, baseline: Mapping[str, float] | None = None
) -> bool:
    """Judge the figures by the profile, the history and a given baseline; return whether they belong in a history.

    ``result.gate`` gets ``verdict`` (pass, fail, baseline, not-run), ``metrics``, ``rows`` and ``baseline_runs``.
    """
    metrics = metrics_of(result.throughput)
    past: list[Mapping[str, float]] = [*(history.baseline if history else []), *([baseline] if baseline else [])]
    rows = judge(metrics, profile.gate, past)
    for row in rows:
        if row.floor and "below-floor" in row.failures:
            source = f" ({row.floor.source})" if row.floor.source else ""
            _fail(result, "below-floor", row.metric, row.value, figure(row.floor.value) + source)
        if row.allowed is not None and "regression" in row.failures:
            expected = f"{figure(row.allowed)} (baseline {figure(row.baseline or 0)} of {row.baseline_runs} runs)"
            _fail(result, "regression", row.metric, row.value, expected)
    for metric in profile.gate.floors:
        if metric in metrics:
            continue
        if result.throughput.get(metric.split(".")[0]):
            result.report.extend([finding("floor-unknown", "no sound figure", where=metric)])
        else:
            result.report.skip(f"floor {metric}", "the figure was not measured")
    if metrics and not past and history is None:
        result.report.skip("regression", "no history or baseline was given")
    if history and history.damaged:
        result.report.extend([finding("history-damaged", f"{history.damaged} lines")])
    failed = any(row.failures for row in rows)
    result.gate = {
        "verdict": ("fail" if failed else "pass") if rows else "not-run",
        "metrics": metrics,
        "rows": [row.as_dict() for row in rows],
        "baseline_runs": len(past),
    }
    sound = bool(metrics) and result.report.ok
    if sound and history is not None and not history.baseline:
        result.report.extend([finding("baseline-recorded", f"{len(metrics)} figures")])
        result.gate["verdict"] = "baseline"
    return sound


def _fail(result: Result, name: str, metric: str, value: float, expected: str) -> None:
    result.report.extend([finding(name, figure(value), expected=expected, where=metric)])


def _utc(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
