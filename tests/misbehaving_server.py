#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for an OpenAI-compatible server, no engine: it answers by rule, and on request with one fault.

``Server(fault="silent-truncation")`` in a test, or by hand: ``tests/misbehaving_server.py --fault NAME [--port N]``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import sys
import threading
import zlib
from collections.abc import Iterator
from typing import Any

from aiohttp import web

MODEL = "stand-in/SmolLM2-135M-Instruct"
"""Named so that the golden prompts for that model apply."""

FAULTS = {
    # name: the finding by which it has to be named
    "health-503": "unhealthy",
    "health-hangs": "health-hangs",
    "health-disagreement": "health-disagreement",
    "generation-hangs": "no-answer",
    "hang-after-headers": "no-answer",
    "stall": "stalled",
    "too-slow": "too-slow",
    "status-503": "http-error",
    "error-in-200": "error-in-200",
    "error-event": "error-in-200",
    "silent-truncation": "truncated",
    "dropped-connection": "dropped",
    "no-finish-reason": "no-finish-reason",
    "no-done": "no-done",
    "no-usage": "no-usage",
    "malformed-event": "malformed",
    "not-a-stream": "not-a-stream",
    "wrong-model": "wrong-model",
    "wrong-answerer": "wrong-answerer",
    "wrong-release": "wrong-release",
    "wrong-backend": "wrong-backend",
    "wrong-engine": "wrong-engine",
    "key-required": "unauthorized",
    "not-openai": "not-openai",
    "repeated-token": "degenerate",
    "empty": "degenerate",
    "blanks": "degenerate",
    "garbage-after-first": "degenerate",
    "mixed-scripts": "degenerate",
    "wrong-answer": "golden",
    "wrong-under-load": "golden",
    "garbage-under-load": "degenerate",
    "nan-logprobs": "nan-logprobs",
    "null-logprobs": "nan-logprobs",
    "infinite-logprobs": "nan-logprobs",
    "not-repeatable": "not-repeatable",
    "leak": "leak",
    "cached": "cached",
    "slow-first-token": "slow-first-token",
    "every-fifth-dropped": "dropped",
    "every-fifth-truncated": "truncated",
}

HEALTHY = (
    "tokens-in-chunks", "reasoning-first", "torn-chunks", "carriage-returns", "comments", "chat-only",
    "completion-only", "no-logprobs", "usage-in-each-chunk", "no-health",
    "older-paths", "early-end",
)  # fmt: skip
"""Ways of a sound server, which must not be taken for faults."""

BATCH = 4
"""Simultaneous requests above which what goes wrong under load does."""

WORDS = ["sun", "boat", "harbour", "gull", "tide", "net", "sailor", "storm", "light", "wave", "stone", "bread"]


class Server:
    """Runs in a thread of its own. ``delay`` is seconds a token; ``way`` one of :data:`HEALTHY`."""

    def __init__(
        self, fault: str | None = None, *, way: str | None = None, engine: str = "sglang", delay: float = 0.0005
    ) -> None:
        for name, known in ((fault, FAULTS), (way, HEALTHY)):
            if name is not None and name not in known:
                raise ValueError(f"no {name!r}; there are {', '.join(known)}")
        self.fault, self.way, self.engine, self.delay = fault, way, engine, delay
        self.count = self.running = 0
        self.last_marker: str | None = None
        self.url = ""
        self.keys: set[str | None] = set()
        self._ready = threading.Event()

    def __enter__(self) -> Server:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.serve(0))

    async def serve(self, port: int) -> None:
        self._stop = asyncio.Event()
        runner = web.AppRunner(self.app(), shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.gate])
        if self.way != "no-health":
            app.router.add_get("/health", self.health)
        if self.engine == "sglang":
            app.router.add_get("/health_generate", self.health)
            prefix = "/get_" if self.way == "older-paths" else "/"
            app.router.add_get(f"{prefix}server_info", self.server_info)
            app.router.add_get(f"{prefix}model_info", self.model_info)
        else:
            app.router.add_get("/version", self.version)
        app.router.add_get("/v1/models", self.models)
        if self.way != "completion-only":
            app.router.add_post("/v1/chat/completions", self.complete)
        if self.way != "chat-only":
            app.router.add_post("/v1/completions", self.complete)
        return app

    @web.middleware
    async def gate(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.keys.add(request.headers.get("Authorization"))
        if self.fault == "key-required" and request.path.startswith("/v1"):
            return web.json_response({"error": {"message": "invalid api key"}}, status=401)
        return await handler(request)

    # control

    @property
    def release(self) -> str:
        return "0.0.1" if self.fault == "wrong-release" else "0.5.23"

    async def health(self, request: web.Request) -> web.Response:
        if self.fault == "health-hangs":
            await asyncio.sleep(60)
        bad = self.fault == "health-503" or (self.fault == "health-disagreement" and "generate" in request.path)
        return web.Response(status=503 if bad else 200)

    async def models(self, _: web.Request) -> web.Response:
        if self.fault == "not-openai":
            return web.Response(text="<html><body>It works!</body></html>", content_type="text/html")
        owner = "vllm" if self.fault == "wrong-engine" else self.engine
        name = "another/model" if self.fault == "wrong-model" else MODEL
        return web.json_response({"object": "list", "data": [{"id": name, "owned_by": owner, "max_model_len": 8192}]})

    async def model_info(self, _: web.Request) -> web.Response:
        return web.json_response({"model_path": f"/models/{MODEL}"})

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": self.release})

    async def server_info(self, _: web.Request) -> web.Response:
        backend = "triton" if self.fault == "wrong-backend" else "flashinfer"
        secret = {"api_key": "sk-of-the-server"}
        return web.json_response({"version": self.release, "attention_backend": backend, "tp_size": 8, **secret})

    # completions

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.count += 1
        chat = "messages" in body
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        if early := await self.early(request, body):
            return early
        self.running += 1
        try:
            return await self.generate(request, body, prompt)
        finally:
            self.running -= 1

    async def generate(self, request: web.Request, body: dict[str, Any], prompt: str) -> web.StreamResponse:
        if "under-load" in str(self.fault):
            await asyncio.sleep(0.05)  # until the others of the batch have come
        pieces = self.answer(prompt, body)
        if not body.get("stream") or self.fault == "not-a-stream":
            return web.json_response(self.whole(body, pieces, prompt))
        return await self.stream(request, body, pieces, prompt)

    async def early(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse | None:
        """Answer without generating anything, where that is the fault."""
        if self.fault == "generation-hangs":
            await asyncio.sleep(60)
        if self.fault == "slow-first-token":
            await asyncio.sleep(0.3)
        if self.fault == "status-503":
            key = request.headers.get("Authorization", "no key")
            return web.json_response({"error": {"message": f"overloaded, {key}"}}, status=503)
        if self.fault == "error-in-200":
            return web.json_response({"object": "error", "message": "scheduler is gone", "code": 500})
        if self.way == "no-logprobs" and body.get("logprobs"):
            return web.json_response({"error": {"message": "logprobs are off"}}, status=400)
        if self.fault == "every-fifth-dropped" and self.count > 10 and self.count % 5 == 0:
            self.drop(request)
        return None

    @staticmethod
    def drop(request: web.Request) -> None:
        if request.transport is not None:
            request.transport.abort()
        raise asyncio.CancelledError

    def answer(self, prompt: str, body: dict[str, Any]) -> list[str]:
        """Return the tokens of the answer; without a fault the same for the same greedy request."""
        size = body["max_tokens"]
        seed = random.random() if body["temperature"] or self.fault == "not-repeatable" else zlib.crc32(prompt.encode())
        rng = random.Random(seed)
        made = [f" {rng.choice(WORDS)}" for _ in range(size)]
        known = self.known(prompt)
        pieces = [*known, *made][:size]
        spoilt = {
            "repeated-token": [" the"] * size, "empty": [""] * size, "blanks": ["\n"] * size,
            "garbage-after-first": [*known[:1], *["!"] * size][:size] if known else made,
            "mixed-scripts": [*known[:1], *[" слово", " 言葉は", " ภาษา", " word"] * size][:size] if known else made,
            "wrong-answer": [" Berlin", *made][:size],
        }  # fmt: skip
        if self.running > BATCH:
            spoilt["wrong-under-load"] = spoilt["wrong-answer"]
            spoilt["garbage-under-load"] = spoilt["garbage-after-first"]
        pieces = spoilt.get(str(self.fault), pieces)
        return pieces[: size // 2] if self.way == "early-end" and not body.get("ignore_eos") else pieces

    def known(self, prompt: str) -> list[str]:
        if "capital of France" in prompt:
            if self.fault == "not-repeatable":
                return [" Paris", "."]
            return [" Paris", ".", " It", " lies", " on", " the", " Seine", "."]
        if "1, 2, 3, 4, 5, 6, 7," in prompt:
            return [f" {n}," for n in range(8, 30)]
        if found := re.search(r"Repeat the code: (\w+)", prompt):
            mine, self.last_marker = found[1], found[1] if self.last_marker is None else self.last_marker
            return [f" {self.last_marker if self.fault == 'leak' else mine}", "."]
        return []

    def whole(self, body: dict[str, Any], pieces: list[str], prompt: str) -> dict[str, Any]:
        text = "".join(pieces)
        logprob = {"nan-logprobs": float("nan"), "null-logprobs": None, "infinite-logprobs": -float("inf")}.get(
            str(self.fault), -0.25
        )
        choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
        if "messages" in body:
            choice["message"] = {"role": "assistant", "content": text}
            if body.get("logprobs"):
                choice["logprobs"] = {"content": [{"token": p, "logprob": logprob} for p in pieces]}
        else:
            choice["text"] = text
            if body.get("logprobs"):
                choice["logprobs"] = {"tokens": pieces, "token_logprobs": [logprob] * len(pieces)}
        return {
            "id": f"c{self.count}",
            "model": self.name(body),
            "choices": [choice],
            "usage": self.usage(prompt, len(pieces)),
        }

    def name(self, body: dict[str, Any]) -> str:
        return "another/model" if self.fault == "wrong-answerer" else body["model"]

    def usage(self, prompt: str, count: int) -> dict[str, Any]:
        size = len(prompt.split()) + 8
        cached = size if self.fault == "cached" else 0
        return {"prompt_tokens": size, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": cached}}

    async def stream(
        self, request: web.Request, body: dict[str, Any], pieces: list[str], prompt: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if self.fault == "hang-after-headers":
            await asyncio.sleep(60)
        broken = self.broken()
        for index, event in enumerate(self.events(body, pieces, prompt)):
            if index == len(pieces) // 2 and broken:
                await self.break_off(request, response, broken)
                return response
            await self.send(response, event)
            pause = 0.3 if self.fault == "too-slow" else self.delay
            await asyncio.sleep(pause)
        return response

    def broken(self) -> str | None:
        if self.fault == "every-fifth-truncated":
            return "silent-truncation" if self.count > 10 and self.count % 5 == 0 else None
        known = ("silent-truncation", "dropped-connection", "stall", "error-event", "malformed-event")
        return self.fault if self.fault in known else None

    async def break_off(self, request: web.Request, response: web.StreamResponse, how: str) -> None:
        if how == "dropped-connection":
            self.drop(request)
        if how == "stall":
            await asyncio.sleep(60)
        if how == "error-event":
            await response.write(b'data: {"error": {"message": "out of memory", "code": 500}}\n\ndata: [DONE]\n\n')
        if how == "malformed-event":
            await response.write(b'data: {"choices": [{"del\n\ndata: [DONE]\n\n')

    def events(self, body: dict[str, Any], pieces: list[str], prompt: str) -> Iterator[bytes]:
        """Yield the events of a whole stream."""
        head = {"id": f"c{self.count}", "model": self.name(body)}
        chat = "messages" in body
        if chat:
            yield self.event({**head, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        step = 4 if self.way == "tokens-in-chunks" else 1
        for start in range(0, len(pieces), step):
            text = "".join(pieces[start : start + step])
            is_reasoning = self.way == "reasoning-first" and chat and start < len(pieces) // 2
            delta = {"delta": {"reasoning_content" if is_reasoning else "content": text}} if chat else {"text": text}
            extra = {"usage": self.usage(prompt, start + step)} if self.way == "usage-in-each-chunk" else {}
            yield self.event({**head, "choices": [{"index": 0, **delta, "finish_reason": None}], **extra})
        if self.fault != "no-finish-reason":
            last = {"delta": {}} if chat else {"text": ""}
            yield self.event({**head, "choices": [{"index": 0, **last, "finish_reason": "length"}]})
        if self.fault != "no-usage":
            yield self.event({**head, "choices": [], "usage": self.usage(prompt, len(pieces))})
        if self.fault != "no-done":
            yield self.event("[DONE]")

    def event(self, document: Any) -> bytes:
        text = document if isinstance(document, str) else json.dumps(document)
        end = "\r\n\r\n" if self.way == "carriage-returns" else "\n\n"
        comment = ": keep-alive\n\n" if self.way == "comments" else ""
        return f"{comment}data: {text}{end}".encode()

    async def send(self, response: web.StreamResponse, event: bytes) -> None:
        if self.way == "torn-chunks":
            for start in range(0, len(event), 7):
                await response.write(event[start : start + 7])
        else:
            await response.write(event)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--way", choices=HEALTHY)
    parser.add_argument("--engine", choices=("sglang", "vllm"), default="sglang")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--delay", type=float, default=0.01, help="seconds a token")
    options = parser.parse_args()
    server = Server(options.fault, way=options.way, engine=options.engine, delay=options.delay)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.serve(options.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
