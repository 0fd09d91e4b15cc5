# SPDX-License-Identifier: Apache-2.0
"""The client against the stand-in and against raw sockets: loops, limits, and how each failure is told."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest
from misbehaving_server import MODEL, Server

from inference.smoke import client as openai_client
from inference.smoke.client import Client, MissingLibraryError, Request, require_libraries
from inference.smoke.stats import Phase
from inference.smoke.stream import Limits, RawStream

LIMITS = Limits(first_token=60, stall=60, request=300)
"""Longer than any machine needs; what is to trip one has its own."""


def requests(count: int, tokens: int = 4) -> list[Request]:
    bodies = [{"model": MODEL, "max_tokens": tokens, "temperature": 0, "prompt": f"number {i}"} for i in range(count)]
    return [Request("/v1/completions", body) for body in bodies]


def closed(server: Server, count: int, streams: int, tokens: int = 4) -> Phase:
    async def go() -> Phase:
        async with Client(server.url) as client:
            return await client.closed_loop(requests(count, tokens), streams, LIMITS)

    return asyncio.run(go())


def test_a_closed_loop_keeps_its_concurrency_and_the_order_of_requests() -> None:
    with Server(delay=0.01) as server:
        phase = closed(server, 9, 3)
    assert len(phase.good) == 9
    events = sorted([(c.started, 1) for c in phase.completions] + [(c.ended, -1) for c in phase.completions])
    running, most = 0, 0
    for _, step in events:
        running += step
        most = max(most, running)
    assert most == 3
    assert [c.started for c in phase.completions[:3]] == sorted(c.started for c in phase.completions)[:3]


def test_speed_is_what_the_server_paces() -> None:
    with Server(delay=0.1) as server:
        phase = closed(server, 4, 4, tokens=20)
    speed = phase.decode_tok_s()
    assert speed is not None
    assert 5 < speed <= 10.1  # a token each 100 ms; a busy machine only slows it
    assert phase.tok_s == pytest.approx(4 * 20 / phase.seconds)
    assert phase.lags
    assert 0 < phase.cpu_share < 1


def test_an_open_loop_sends_at_exponential_intervals_whatever_is_in_flight() -> None:
    async def go(url: str) -> Phase:
        async with Client(url) as client:
            return await client.open_loop(requests(200), 400.0, LIMITS, random.Random(1))

    with Server(delay=0.1) as server:
        phase = asyncio.run(go(server.url))
    starts = sorted(c.started - c.send_lag for c in phase.completions)
    gaps = [b - a for a, b in pairwise(starts)]
    assert len(phase.good) == 200
    assert statistics.fmean(gaps) == pytest.approx(1 / 400, rel=0.25)
    assert statistics.stdev(gaps) / statistics.fmean(gaps) == pytest.approx(1, abs=0.25)  # regular sending has 0
    assert phase.seconds < 200 * 0.4 / 2  # one after the other would take twice that long


@contextlib.contextmanager
def raw_server(answer: bytes, *, close: bool = True) -> Iterator[str]:
    """Answer each connection with the same bytes, then close it or leave it open."""
    listener = socket.create_server(("127.0.0.1", 0))
    kept: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.recv(65536)
                connection.sendall(answer)
                if close:
                    connection.shutdown(socket.SHUT_RDWR)
                kept.append(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        for connection in kept:
            connection.close()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def stream(url: str, limits: Limits = LIMITS) -> RawStream:
    async def go() -> RawStream:
        async with Client(url) as client:
            return await client.stream(requests(1)[0], limits)

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("answer", "close", "ending"),
    [
        (b"", True, "dropped"),
        (HEAD + b"Content-Length: 100\r\n\r\nshort", True, "dropped"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", True, "dropped"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", True, "complete"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n", True, "dropped"),
        (b"nonsense\r\n\r\n", True, "dropped"),
        (b"", False, "no-answer"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", False, "no-answer"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", False, "stalled"),
    ],
)
def test_how_a_stream_ends_is_told_apart(answer: bytes, close: bool, ending: str) -> None:
    limits = Limits(first_token=3, stall=3, request=300) if ending in ("no-answer", "stalled") else LIMITS
    with raw_server(answer, close=close) as url:
        assert stream(url, limits).ending == ending


def test_a_closed_port_is_refused() -> None:
    assert stream("http://127.0.0.1:1").ending == "refused"
    answer = Client("http://127.0.0.1:1").call("/health", timeout=60)
    assert (answer.failure, answer.status) == ("refused", None)
    assert "refused" in answer.describe()


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_client, "MAX_BYTES", 1000)
    with raw_server(HEAD + b"\r\n" + b"x" * 5000, close=False) as url:
        assert stream(url).ending == "endless"


@pytest.mark.parametrize(
    ("answer", "close", "failure"),
    [
        (b"", False, "timeout"),
        (HEAD + b"Content-Length: 100\r\n\r\nshort", False, "timeout"),
        (b"", True, "dropped"),
        (HEAD + b"Content-Length: 100\r\n\r\nshort", True, "dropped"),
        (HEAD + b"Content-Length: 2\r\n\r\nok", True, None),
    ],
)
def test_how_a_control_call_fails_is_told_apart(answer: bytes, close: bool, failure: str | None) -> None:
    with raw_server(answer, close=close) as url:
        begun = time.monotonic()
        seen = Client(url).call("/health", timeout=0.5 if failure == "timeout" else 60)
    assert seen.failure == failure
    assert time.monotonic() - begun < 30


def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with Server() as server:
        assert Client(server.url).call("/health").ok
        assert closed(server, 1, 1).good


def test_the_key_is_cleaned_out_of_what_a_server_echoes() -> None:
    with raw_server(HEAD + b"Content-Length: 14\r\n\r\nkey is sk-mine") as url:
        assert Client(url, api_key="sk-mine").call("/x").body == "key is ***"


def test_a_missing_library_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "aiohttp", None)
    with pytest.raises(MissingLibraryError, match=r"aiohttp is not installed.*venv/bin/python"):
        require_libraries()
