# SPDX-License-Identifier: Apache-2.0
"""Stage correctness: whole answers, right answers, the same answer again, and nobody else's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

from .client import Answer, Request
from .context import Context, StopError
from .stream import Completion, complete, complete_document
from .text import (
    Golden,
    bad_logprobs,
    common_prefix,
    degenerate,
    garbage,
    golden_for,
    leaks,
    logprobs_of,
    mark,
    nonce,
)  # fmt: skip

LEAK_TOKENS = 24
QUOTE = 80
SAMPLED = 0.7
"""Temperature of the answer that is looked at for degeneration: a sound model varies, even one with random weights."""


NOT_OFFERED = ("http-400", "http-404", "http-405", "http-501")
"""How servers refuse a kind of completion that they do not have; without a chat template it is 400."""


async def correctness(ctx: Context) -> str:
    """Run every check; the first answer that is not whole makes the rest meaningless."""
    goldens = goldens_of(ctx)
    if ctx.depth == "quick":
        return await one_answer(ctx, goldens)
    await free_answer(ctx)
    notes = [await golden(ctx, goldens), await repeatable(ctx, goldens), await together(ctx)]
    if ctx.result.report.at("critical"):
        raise StopError("the answers are not right: their speed means nothing")
    return ", ".join(filter(None, notes))


def goldens_of(ctx: Context) -> Sequence[Golden]:
    """Return the profile's golden prompts, or the ones known for the model by its name."""
    if ctx.profile.correctness.golden is not None:
        return ctx.profile.correctness.golden
    names = (ctx.model, str(ctx.result.facts.get("model_path") or ""))
    return next((found for name in names if (found := golden_for(name))), ())


async def one_answer(ctx: Context, goldens: Sequence[Golden]) -> str:
    """Make one streamed completion: of a golden prompt where one is known, else of free text."""
    answer, entry = None, next(iter(goldens), None)
    if entry is None:
        ctx.skip("golden", f"no golden prompts are known for {ctx.model}: give them in correctness.golden")
    else:
        request = ctx.request(mark(ctx.rng, entry.prompt), entry.max_tokens, api=entry.api)
        answer = complete(await ctx.client.stream(request, ctx.limits))
        if answer.problem in NOT_OFFERED:
            ctx.skip(f"golden by {entry.api}", f"the server does not offer it ({answer.problem})")
            answer = None
    if answer is None or entry is None:
        answer = await free_answer(ctx)
    elif not ctx.count_problems(f"{entry.prompt!r}", [answer]):
        _judge_golden(ctx, entry, answer)
    limit = ctx.profile.correctness.slow_first_token
    if answer.ttft and answer.ttft > limit:
        ctx.add("slow-first-token", f"{answer.ttft:.2f} s", expected=f"at most {limit:g} s")
    return f"a whole answer of {answer.completion_tokens} tokens" if answer.problem is None else ""


async def free_answer(ctx: Context) -> Completion:
    """Ask for free text that nobody asked for before; find out whether the server chats; look for degeneration."""
    prompt = f"{nonce(ctx.rng)}: tell a short story about a town by the sea."
    answer = await _free(ctx, prompt)
    if answer.problem in NOT_OFFERED:
        ctx.api = "completion"
        answer = await _free(ctx, prompt)
    if ctx.count_problems("first answer", [answer]):
        raise StopError("the first completion failed")
    if why := degenerate(answer.text or answer.reasoning):
        ctx.add("degenerate", f"{why}: {_quote(answer)}")
        raise StopError("the server does not answer with text")
    return answer


async def _free(ctx: Context, prompt: str) -> Completion:
    request = ctx.request(prompt, ctx.profile.correctness.tokens, temperature=SAMPLED)
    return complete(await ctx.client.stream(request, ctx.limits))


async def golden(ctx: Context, goldens: Sequence[Golden]) -> str:
    """Ask known questions, each behind a fresh marker, not streamed, with log probabilities."""
    if not goldens:
        ctx.skip("golden", f"no golden prompts are known for {ctx.model}: give them in correctness.golden")
        await _ask(ctx, Golden("Tell a story.", "", api=ctx.api))
        return ""
    right = 0
    for entry in goldens:
        answer = await _ask(ctx, entry)
        if answer is not None and _judge_golden(ctx, entry, answer):
            right += 1
            ctx.right.append(entry)
    return f"{right} of {len(goldens)} golden prompts"


def _judge_golden(ctx: Context, entry: Golden, answer: Completion, where: str = "") -> bool:
    """Return whether the answer is right all along; garbage is named as that even where it begins right."""
    text = answer.text or answer.reasoning
    if why := degenerate(text) or garbage(text):
        ctx.add("degenerate", f"{why}: {_quote(answer)}", where=where)
    elif not re.search(entry.expect, answer.text) and not re.search(entry.expect, answer.reasoning):
        seen = f"{entry.prompt!r} ({entry.api}) -> {_quote(answer)}"
        ctx.add("golden", seen, expected=f"/{entry.expect}/", where=where)
    else:
        return True
    return False


async def _ask(ctx: Context, entry: Golden) -> Completion | None:
    """Return the answer to a golden prompt, or None (with a finding or a note) when there was none to judge."""
    request = ctx.request(mark(ctx.rng, entry.prompt), entry.max_tokens, api=entry.api)
    answer = await _call(ctx, request, logprobs=True)
    if answer.status == 400:  # noqa: PLR2004 - a bad request: log probabilities are not offered by every server
        plain = await _call(ctx, request, logprobs=False)
        if plain.ok:
            ctx.skip("logprobs", f"the server refuses them: {answer.body[:QUOTE]}")
        answer = plain
    if entry.api != ctx.api and f"http-{answer.status}" in NOT_OFFERED:
        ctx.skip(f"golden by {entry.api}", f"the server does not offer it ({answer.status})")
        return None
    document = answer.document()
    completion = complete_document(
        document, status=answer.status, failure=answer.failure, body=answer.body, model=ctx.model
    )
    if ctx.count_problems(f"{entry.prompt!r}", [completion]):
        return None
    values = logprobs_of(document["choices"][0])
    if values and (why := bad_logprobs(values)):
        ctx.add("nan-logprobs", f"{why}, in the answer to {entry.prompt!r}")
    return completion


async def _call(ctx: Context, request: Request, *, logprobs: bool) -> Answer:
    wanted: dict[str, Any] = {"logprobs": 1 if "prompt" in request.body else True} if logprobs else {}
    timeout = ctx.profile.timeouts.first_token + ctx.profile.timeouts.stall
    return await asyncio.to_thread(ctx.client.call, request.path, body={**request.body, **wanted}, timeout=timeout)


async def repeatable(ctx: Context, goldens: Sequence[Golden]) -> str:
    """Ask the same thing greedily, one after the other: the beginnings agree.

    Only beginnings: a cached prefix or another batch changes the order of floating-point sums, so that later tokens
    of a sound engine may differ.
    """
    settings = ctx.profile.correctness
    entry = next((g for g in goldens if g.api == ctx.api), Golden("Tell a story about a town by the sea.", ""))
    request = ctx.request(mark(ctx.rng, entry.prompt), entry.max_tokens)
    phase = await ctx.client.closed_loop([request] * settings.repeats, 1, ctx.limits)
    if ctx.count_problems("repetition", phase.completions):
        return ""
    texts = [c.text or c.reasoning for c in phase.completions]
    agree = common_prefix(texts)
    if len(set(texts)) > 1 and agree < settings.agree_characters:
        ctx.add("not-repeatable", " / ".join(repr(text[:QUOTE]) for text in texts),
                expected=f"the first {settings.agree_characters} characters alike")  # fmt: skip
    return "repeatable" if len(set(texts)) == 1 else f"repeatable for {agree} characters"


async def together(ctx: Context) -> str:
    """Send many requests at once: markers that may not turn up elsewhere, and questions that were answered alone.

    A batch runs through other kernels than one request, so that an engine may be right alone and wrong together.
    """
    count = ctx.profile.correctness.leak_streams
    if not count:
        ctx.skip("leak", "correctness.leak_streams is 0")
        return ""
    markers = [nonce(ctx.rng) for _ in range(count)]
    requests = [ctx.request(f"{m} is the code. Repeat the code: {m}. The code is", LEAK_TOKENS) for m in markers]
    known = [ctx.request(mark(ctx.rng, entry.prompt), entry.max_tokens, api=entry.api) for entry in ctx.right]
    phase = await ctx.client.closed_loop([*known, *requests], count, ctx.limits, ctx.progress_of("at once"))
    ctx.count_problems(f"{count} at once", phase.completions)
    for entry, answer in zip(ctx.right, phase.completions, strict=False):  # the others are markers
        if answer.problem is None:
            _judge_golden(ctx, entry, answer, f"{count} at once")
    return _leakage(ctx, markers, phase.completions[len(known) :])


def _leakage(ctx: Context, markers: Sequence[str], completions: Sequence[Completion]) -> str:
    """Look for each marker in the answers to the other requests."""
    answers = [c.text + c.reasoning for c in completions]
    if found := leaks(markers, answers):
        ctx.add("leak", f"{len(found)} times; answer {found[0][0]} held the code of request {found[0][1]}: "
                f"{answers[found[0][0]][:QUOTE]!r}")  # fmt: skip
    own = sum(marker in answer for marker, answer in zip(markers, answers, strict=True))
    return f"no leak among {len(markers)} ({own} repeated their own code)" if not found else ""


def _quote(answer: Completion) -> str:
    text = answer.text or answer.reasoning
    return repr(text[:QUOTE]) + ("..." if len(text) > QUOTE else "")
