# SPDX-License-Identifier: Apache-2.0
"""Stage soak, on request: the same load for minutes or hours, with an eye on answers, temperature and memory."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from .after import MEMINFO, Run, is_local, memory_kilobytes, run_command
from .client import Request
from .context import Context, StopError
from .correctness import SAMPLED, golden, goldens_of
from .stats import Phase, spread
from .text import degenerate

THIRDS = 3
MIN_LOOKS = 6
"""Looks at memory below which nothing is said about its growth."""

GPU_QUERY = ["nvidia-smi", "--query-gpu=temperature.gpu,memory.used,memory.total", "--format=csv,noheader,nounits"]


@dataclass
class Host:
    """What was seen of the host over time. Each look of ``gpu_memory`` has one share (0 to 1) a GPU."""

    temperatures: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    gpu_memory: list[list[float]] = field(default_factory=list)

    def look(self, run: Run) -> None:
        """Add a look; what cannot be read is left out."""
        if kilobytes := memory_kilobytes(MEMINFO):
            self.memory.append(1 - kilobytes["MemAvailable"] / kilobytes["MemTotal"])
        rows = [row for line in (run(GPU_QUERY) or "").splitlines() if (row := numbers(line))]
        if rows:
            self.temperatures.append(max(row[0] for row in rows))
            self.gpu_memory.append([row[1] / row[2] for row in rows])


def numbers(line: str) -> list[float] | None:
    """Return the three numbers of a line of the GPU query, or None where the driver does not know them."""
    try:
        temperature, used, total = map(float, line.split(","))
    except ValueError:
        return None
    return [temperature, used, total] if total > 0 else None


def gpu_memory_by_gpu(looks: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Return the looks of each GPU; a look in which one is missing is left out (the stage after names it)."""
    most = max(map(len, looks), default=0)
    return list(zip(*(look for look in looks if len(look) == most), strict=True))


def growth(shares: Sequence[float]) -> float | None:
    """Return how much the median share of the last third is above that of the first; None for too few looks."""
    if len(shares) < MIN_LOOKS:
        return None
    size = len(shares) // THIRDS
    return statistics.median(shares[-size:]) - statistics.median(shares[:size])


async def soak(ctx: Context, run: Run = run_command) -> str:
    """Keep the server busy for ``ctx.soak_minutes``; stop early at a wrong answer, or when most of a round fails."""
    host, phases = Host(), list[Phase]()
    local, before = is_local(ctx.client.url), len(ctx.result.report.at("critical"))
    begun, seconds = time.monotonic(), ctx.soak_minutes * 60
    while (passed := time.monotonic() - begun) < seconds:
        ctx.progress("soak, seconds", int(passed), int(seconds))
        phase = await ctx.client.closed_loop(_requests(ctx), ctx.profile.soak.streams, ctx.limits)
        phases.append(phase)
        if len(phase.good) * 2 < len(phase.completions):
            break
        await golden(ctx, goldens_of(ctx)[:1])
        if len(ctx.result.report.at("critical")) > before:
            break
        if local:
            await asyncio.to_thread(host.look, run)
    return _report(ctx, phases, host, local)


def _requests(ctx: Context) -> list[Request]:
    soak_, load = ctx.profile.soak, ctx.profile.load
    prompts = [ctx.fresh_prompt(load.prompt_tokens) for _ in range(soak_.streams)]
    return [ctx.request(prompt, soak_.output_tokens, temperature=SAMPLED) for prompt in prompts]


def _report(ctx: Context, phases: Sequence[Phase], host: Host, local: bool) -> str:
    everything = [c for phase in phases for c in phase.completions]
    failed = ctx.count_problems("soak", everything)
    bad = [why for c in everything if c.problem is None and (why := degenerate(c.text or c.reasoning))]
    if bad:
        ctx.add("degenerate", f"{len(bad)} of {len(everything)} answers; the first: {bad[0]}", where="soak")
    grown = {"host": growth(host.memory)}
    grown |= {f"GPU {i}": growth(shares) for i, shares in enumerate(gpu_memory_by_gpu(host.gpu_memory))}
    hottest = max(host.temperatures, default=None)
    _host_findings(ctx, grown, hottest)
    if not local:
        ctx.skip("soak host", "the server runs on another host: run it there to see temperature and memory")
    elif hottest is None:
        ctx.skip("soak gpus", "nvidia-smi is not here or does not answer")
    rates = [phase.tok_s for phase in phases if phase.good]
    ctx.result.throughput["soak"] = {
        "rounds": len(phases),
        "requests": len(everything),
        "failed": failed,
        "degenerate": len(bad),
        "tok_s": spread(rates) if rates else None,
        "temperature_max": hottest,
        "memory_growth": grown,
    }
    if not rates:
        raise StopError("no request of the soak succeeded")
    return f"{len(everything)} requests, {failed} failed, {len(bad)} degenerate"


def _host_findings(ctx: Context, grown: dict[str, float | None], hottest: float | None) -> None:
    limits = ctx.profile.soak
    for what, share in grown.items():
        if share is not None and share * 100 > limits.max_growth_percent:
            ctx.add("memory-growth", f"{what}: {share:+.1%} of its memory between the first and the last third")
    if hottest is not None and hottest > limits.max_temperature:
        ctx.add("hot", f"{hottest:.0f} °C", expected=f"at most {limits.max_temperature:.0f} °C")
