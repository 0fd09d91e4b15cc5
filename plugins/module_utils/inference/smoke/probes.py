# SPDX-License-Identifier: Apache-2.0
"""Stages reachable, health and identity: does it listen, does it say that it is well, and is it what is meant."""

from __future__ import annotations

import asyncio
import os
import socket
import urllib.parse
from collections.abc import Mapping
from typing import Any

from .client import Answer
from .context import Context, StopError

HEALTH_PATHS = ("/health", "/health_generate", "/ready", "/readiness")
"""SGLang has the first two (both generate unless it was told otherwise), vLLM the first (it generates nothing),
sglang-router the last (its /health is 200 before it has any backend). A path that a server does not have says nothing.
"""

FACT_PATHS = ("/model_info", "/server_info", "/version")
"""SGLang has the first two; vLLM the last."""

OLD_PATHS = {"/model_info": "/get_model_info", "/server_info": "/get_server_info"}
"""Their names in older SGLang. Newer ones log a warning when asked by them: they come second."""

BACKEND_FACTS = (
    "attention_backend", "prefill_attention_backend", "decode_attention_backend", "moe_runner_backend",
    "fp4_gemm_runner_backend", "sampling_backend", "tp_size", "dp_size", "ep_size", "quantization", "kv_cache_dtype",
    "dtype", "disable_custom_all_reduce", "disable_cuda_graph", "disable_radix_cache", "speculative_algorithm",
)  # fmt: skip
"""Settings of SGLang's server info that a report shows. It holds keys and paths too: nothing else is taken from it."""


async def reachable(ctx: Context) -> str:
    """Open and close a connection."""
    parts = urllib.parse.urlsplit(ctx.client.url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    opening = asyncio.open_connection(parts.hostname, port)
    try:
        _, writer = await asyncio.wait_for(opening, ctx.profile.timeouts.connect)
    except (OSError, asyncio.TimeoutError) as error:
        why = "no answer" if isinstance(error, asyncio.TimeoutError) else _socket_error(error)
        ctx.add("unreachable", f"{parts.hostname} port {port}: {why}")
        raise StopError("the server cannot be reached") from error
    writer.close()
    return f"{parts.hostname} port {port}"


def _socket_error(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name is not known ({error.strerror})"
    return os.strerror(error.errno) if error.errno else str(error)


async def health(ctx: Context) -> str:
    """Ask every health endpoint at once and compare their answers."""
    answers = await ctx.client.calls(HEALTH_PATHS, timeout=ctx.profile.timeouts.health)
    present = [answer for answer in answers if answer.found]
    if not present:
        ctx.skip("health", f"the server has none of {', '.join(HEALTH_PATHS)}")
        return "no health endpoint"
    seen = "; ".join(answer.describe() for answer in present)
    bad = [answer for answer in present if not answer.ok]
    if not bad:
        return seen
    if len(bad) < len(present):
        ctx.add("health-disagreement", seen)
        return "the endpoints disagree"
    ctx.add("health-hangs" if all(answer.failure == "timeout" for answer in bad) else "unhealthy", seen)
    raise StopError("the server says that it is not healthy")


async def identity(ctx: Context) -> str:
    """Find out who answers and compare it with what is meant."""
    models, *facts = await ctx.client.calls(("/v1/models", *FACT_PATHS), timeout=ctx.profile.timeouts.control)
    entries = _models(ctx, models)
    known = {answer.path: answer.document() for answer in facts if answer.ok}
    older = {old: new for new, old in OLD_PATHS.items() if new not in known}
    answers = await ctx.client.calls(tuple(older), timeout=ctx.profile.timeouts.control)
    known |= {older[answer.path]: answer.document() for answer in answers if answer.ok}
    known = {path: document for path, document in known.items() if isinstance(document, Mapping)}
    info = known.get("/server_info", {})
    entry = _choose_model(ctx, entries)
    ctx.engine = _engine(ctx, entry, known)
    ctx.context_length = _context_length(entry, info)
    release = _release(known, info)
    ctx.result.facts.update(
        model=ctx.model, engine=ctx.engine, release=release, context_length=ctx.context_length,
        model_path=known.get("/model_info", {}).get("model_path") or entry.get("root"),
        settings={name: info[name] for name in BACKEND_FACTS if name in info},
    )  # fmt: skip
    _compare_release(ctx, release)
    _compare_backends(ctx, info)
    return f"{ctx.model} by {ctx.engine} {release or '(release unknown)'}"


def _models(ctx: Context, answer: Answer) -> list[Mapping[str, Any]]:
    """Return the server's models, or stop."""
    if answer.status in (401, 403):
        ctx.add("unauthorized", answer.describe())
        raise StopError("the server wants a key")
    document = answer.document() if answer.ok else None
    data = document.get("data") if isinstance(document, Mapping) else None
    entries = [e for e in data if isinstance(e, Mapping) and e.get("id")] if isinstance(data, list) else []
    if not entries:
        body = " ".join(answer.body.split())[:120]
        ctx.add("not-openai", f"{answer.describe()}{f': {body}' if body else ''}")
        raise StopError("the server does not say which models it has")
    return entries


def _choose_model(ctx: Context, entries: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    wanted = ctx.profile.model
    served = [str(entry["id"]) for entry in entries]
    if wanted is None:
        ctx.model = served[0]
        return entries[0]
    if wanted not in served:
        ctx.add("wrong-model", f"served: {', '.join(served)}", expected=wanted)
        raise StopError("another model is served")
    ctx.model = wanted
    return entries[served.index(wanted)]


def _engine(ctx: Context, entry: Mapping[str, Any], known: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sglang, vllm or unknown; compare with the profile's."""
    owner = str(entry.get("owned_by", ""))
    if owner in ("sglang", "vllm"):
        seen = owner
    elif "/model_info" in known:
        seen = "sglang"
    else:
        seen = "vllm" if "/version" in known else "unknown"
    meant = ctx.profile.engine
    if meant in ("auto", seen):
        return seen
    if seen == "unknown":
        return meant
    ctx.add("wrong-engine", seen, expected=meant)
    return seen


def _context_length(entry: Mapping[str, Any], info: Mapping[str, Any]) -> int | None:
    known = [entry.get("max_model_len"), info.get("max_req_input_len"), info.get("max_total_num_tokens")]
    lengths = [length for length in known if isinstance(length, int) and length > 0]
    return min(lengths, default=None)


def _release(known: Mapping[str, Mapping[str, Any]], info: Mapping[str, Any]) -> str | None:
    release = info.get("version") or known.get("/version", {}).get("version")
    return str(release) if release else None


def _compare_release(ctx: Context, release: str | None) -> None:
    meant = ctx.profile.release
    if meant is None:
        return
    if release is None:
        ctx.skip("release", "the server does not say which release it is")
    elif meant not in (release, release.partition("+")[0]):  # 0.33.0+cu130 is a build of 0.33.0
        ctx.add("wrong-release", release, expected=meant)


def _compare_backends(ctx: Context, info: Mapping[str, Any]) -> None:
    for name, meant in ctx.profile.backends.items():
        if name not in info:
            ctx.skip(f"backend {name}", "the server does not tell this setting")
        elif str(info[name]) != str(meant):
            ctx.add("wrong-backend", f"{name} = {info[name]}", expected=f"{name} = {meant}")
