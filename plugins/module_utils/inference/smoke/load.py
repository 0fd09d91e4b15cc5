# SPDX-License-Identifier: Apache-2.0
"""Stages single, concurrent and prefill: how fast it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from .client import Request
from .context import Context, StopError
from .stats import Phase, figures

PREFILL_TOKENS = 8
"""Tokens asked for when only the first one counts: one alone may show no text."""

SEVERAL = 1.3
"""Tokens a chunk above which chunks hold several: some tokens show nothing by themselves."""

CONTEXT_SHARE = 0.9
"""Share of the context that a prompt may fill: its length is only about right."""

MakeRequests = Callable[[], list[Request]]


async def single(ctx: Context) -> str:
    """One stream, one request after the other."""
    load = ctx.profile.load
    row = await _shape(ctx, "single", lambda: _requests(ctx, load.rounds), 1)
    ctx.result.throughput["single"] = row
    if (row["tokens_per_chunk"] or 0) > SEVERAL:
        ctx.add("several-tokens-in-a-chunk", f"{row['tokens_per_chunk']:.1f} on average")
    if row["begins_with"] == "reasoning":
        ctx.add("reasoning-first", "reasoning")
    limit = ctx.profile.correctness.slow_first_token
    if row["ttft_s"] and row["ttft_s"]["p50"] > limit:
        ctx.add("slow-first-token", f"{row['ttft_s']['p50']:.2f} s", expected=f"at most {limit:g} s")
    if not row["tok_s"]:
        raise StopError("no request of the single stream succeeded")
    return _note(row, "decode_tok_s")


async def concurrent(ctx: Context) -> str:
    """Measure the gated concurrency in a closed loop; where asked for a sweep of others, and an open loop."""
    row = await _closed(ctx, "concurrent", ctx.profile.load.concurrency)
    ctx.result.throughput["concurrent"] = row
    if ctx.sweep:
        ctx.result.throughput["sweep"] = [await _closed(ctx, f"{n} streams", n) for n in ctx.sweep]
    if ctx.rates:
        ctx.result.throughput["open_loop"] = [await _open(ctx, rate) for rate in ctx.rates]
    elif ctx.depth == "full":
        ctx.skip("open loop", "load.rates names no rate")
    return _note(row, "tok_s")


async def prefill(ctx: Context) -> str:
    """Time to the first token of long prompts, one at a time."""
    settings = ctx.profile.prefill
    rows: list[dict[str, Any]] = []
    for length in _lengths(ctx):
        row = await _shape(
            ctx,
            f"prefill {length}",
            partial(_long_prompt, ctx, length),
            1,
            warmups=settings.warmups,
            repeats=settings.repeats,
            learn=length,
        )
        rows.append({"length": length, **row})
    ctx.result.throughput["prefill"] = rows
    return ", ".join(f"{r['length']}: {r['ttft_s']['p50'] * 1000:.0f} ms" for r in rows if r["ttft_s"])


def _long_prompt(ctx: Context, length: int) -> list[Request]:
    return [ctx.request(ctx.fresh_prompt(length), PREFILL_TOKENS, exact=True)]


def _lengths(ctx: Context) -> list[int]:
    """Return the prompt lengths to measure: capped by the context, each once."""
    wanted = ctx.profile.prefill.lengths
    if ctx.context_length is None:
        ctx.skip("context length", "the server does not tell it: prompt lengths are not capped")
        return sorted(set(wanted))
    cap = int(ctx.context_length * CONTEXT_SHARE) - PREFILL_TOKENS
    if max(wanted, default=0) > cap:
        ctx.skip("prefill lengths", f"{', '.join(str(n) for n in wanted if n > cap)} do not fit: {cap} instead")
    return sorted({min(length, cap) for length in wanted})


def _requests(ctx: Context, count: int) -> list[Request]:
    load = ctx.profile.load
    return [ctx.request(ctx.fresh_prompt(load.prompt_tokens), load.output_tokens, exact=True) for _ in range(count)]


async def _closed(ctx: Context, name: str, streams: int) -> dict[str, Any]:
    return await _shape(ctx, name, lambda: _requests(ctx, streams * ctx.profile.load.rounds), streams)


async def _open(ctx: Context, rate: float) -> dict[str, Any]:
    requests = _requests(ctx, ctx.profile.load.rate_requests)
    what = f"{rate:g} a second"
    phase = await ctx.client.open_loop(requests, rate, ctx.limits, ctx.rng, ctx.progress_of(what))
    return {"rate": rate, **_figures(ctx, what, [phase], None)}


async def _shape(
    ctx: Context,
    name: str,
    make: MakeRequests,
    streams: int,
    *,
    warmups: int | None = None,
    repeats: int | None = None,
    learn: int | None = None,
) -> dict[str, Any]:
    """Warm up, measure the repeats, and report what failed. Every request has a prompt of its own."""
    load = ctx.profile.load
    warmups = load.warmups if warmups is None else warmups
    repeats = load.repeats if repeats is None else repeats
    phases = []
    for number in range(warmups + repeats):
        what = f"{name}, {'warm-up' if number < warmups else f'{number - warmups + 1} of {repeats}'}"
        phase = await ctx.client.closed_loop(make(), streams, ctx.limits, ctx.progress_of(what))
        if number < warmups:
            ctx.count_problems(f"{name}, warm-up", phase.completions)
            ctx.learn_ratio(learn or load.prompt_tokens, phase.good)
        else:
            phases.append(phase)
    return _figures(ctx, name, phases, streams)


def _figures(ctx: Context, name: str, phases: list[Phase], streams: int | None) -> dict[str, Any]:
    ctx.count_problems(name, [c for phase in phases for c in phase.completions])
    row = figures(phases, concurrency=streams, client=vars(ctx.profile.client))
    for kind in ("bound", "late"):
        if row["client"][kind]:
            ctx.add(f"client-{kind}", row["client"][kind], where=name)
    cached = [c for phase in phases for c in phase.good if (c.cached_tokens or 0) * 2 > (c.prompt_tokens or 0)]
    if cached:
        ctx.add("cached", f"{name}: {cached[0].cached_tokens} of {cached[0].prompt_tokens} prompt tokens")
    return row


def _note(row: dict[str, Any], figure: str) -> str:
    return f"{row[figure]['median']:.1f} tok/s" if row[figure] else "no tokens a second to be had"
