#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server that generates nothing and streams at a given pace, or as fast as it can: what a client can take from it.

Standard library only, one process, no HTTP framework: it has to be cheaper than any client. It answers GET /health,
GET /v1/models and streamed POST /v1/completions and /v1/chat/completions, one event a token, ``max_tokens`` long.
GET /served tells what was served: for each stream when its request came, when its end was sent (CLOCK_MONOTONIC, which
all processes of a machine share) and its tokens. So every client is timed by the same clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

MODEL = "stand-in/paced"
SERVED: list[tuple[float, float, int]] = []
PROMPT_TOKENS = 128
BURST = 16
"""Tokens that an unpaced stream writes at once, each an event and a piece of the body of its own, before the other
streams have their turn. Written one by one each would wake the client: the quicker that is, the slower the server."""


def chunk(data: bytes) -> bytes:
    """Return one piece of a chunked HTTP body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(document: Any) -> bytes:
    """Return one server-sent event as a chunk."""
    return chunk(b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n")


def head(chat: bool) -> dict[str, Any]:
    """Return what every event of an engine's stream repeats: about 230 bytes a token, as SGLang and vLLM send."""
    kind = "chat.completion.chunk" if chat else "text_completion"
    return {"id": "cmpl-0123456789abcdef0123456789abcdef", "object": kind, "created": 1764000000, "model": MODEL}


def token(chat: bool) -> bytes:
    """Return the event of one token."""
    text = {"delta": {"content": " word", "reasoning_content": None}} if chat else {"text": " word"}
    choice = {"index": 0, **text, "logprobs": None, "finish_reason": None, "matched_stop": None}
    return event({**head(chat), "choices": [choice], "usage": None})


def end(chat: bool, tokens: int, usage: bool) -> bytes:
    """Return the end of a stream: finish_reason, usage where it was asked for, [DONE] and the end of the body."""
    text: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
    counts = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens, "total_tokens": PROMPT_TOKENS + tokens}
    finish = event({**head(chat), "choices": [{"index": 0, **text, "finish_reason": "length"}], "usage": None})
    counted = event({**head(chat), "choices": [], "usage": counts}) if usage else b""
    return finish + counted + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = {True: token(True), False: token(False)}


async def answer(writer: asyncio.StreamWriter, body: dict[str, Any], pace: float) -> None:
    """Stream ``max_tokens`` tokens: ``pace`` a second, or without pause when it is 0."""
    came = time.monotonic()
    chat = "messages" in body
    piece, count = TOKEN[chat], int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
    writer.write(STREAM)
    begun = time.perf_counter()
    if not pace:
        for start in range(0, count, BURST):
            writer.write(piece * min(BURST, count - start))
            await asyncio.sleep(0)
            await writer.drain()
    for number in range(count if pace else 0):
        writer.write(piece)
        await asyncio.sleep(max(begun + (number + 1) / pace - time.perf_counter(), 0))
    writer.write(end(chat, count, bool((body.get("stream_options") or {}).get("include_usage"))))
    await writer.drain()
    SERVED.append((came, time.monotonic(), count))


def whole(document: Any) -> bytes:
    """Return an answer that is not streamed."""
    body = json.dumps(document).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pace: float) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            headers = dict(line.lower().split(": ", 1) for line in request.split("\r\n")[1:] if ": " in line)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            if request.startswith("POST"):
                await answer(writer, json.loads(body), pace)
            elif "/v1/models" in request.split("\r\n", 1)[0]:
                writer.write(whole({"object": "list", "data": [{"id": MODEL, "object": "model"}]}))
            else:
                writer.write(whole(SERVED if "/served" in request.split("\r\n", 1)[0] else {}))
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


async def serve(port: int, pace: float) -> None:
    """Serve for ever; print the port once it is open."""
    server = await asyncio.start_server(lambda r, w: connection(r, w, pace), "127.0.0.1", port, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0, help="tokens a second of each stream; 0: as fast as it can")
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.pace))
