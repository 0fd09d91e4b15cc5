# SPDX-License-Identifier: Apache-2.0
"""The rolling scenario's client: which ends of a stream it takes for told, and which for silent."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path
from types import ModuleType

import pytest
from loading import load

PROGRAM = Path(__file__).resolve().parent.parent / "molecule/rolling/client"
EVENT = b'data: {"choices": [{"finish_reason": "length"}]}\n\n'


def program() -> ModuleType:
    return load("rolling_client", PROGRAM)


def answer(body: bytes) -> http.client.HTTPResponse:
    """Return a chunked response whose connection ends after ``body``."""
    here, there = socket.socketpair()
    there.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
    there.close()
    response = http.client.HTTPResponse(here)
    response.begin()
    return response


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_a_whole_stream_is_read_to_its_end() -> None:
    body = chunk(EVENT[:20]) + chunk(EVENT[20:] + b"data: [DONE]") + chunk(b"\n\n") + b"0\r\n\r\n"
    assert program().Load.events(answer(body)) == [{"choices": [{"finish_reason": "length"}]}]


def test_a_stream_that_just_ends_is_silent() -> None:
    client = program()
    with pytest.raises(client.SilentError, match="DONE"):
        client.Load.events(answer(chunk(EVENT) + b"0\r\n\r\n"))


@pytest.mark.parametrize("body", [chunk(EVENT), chunk(EVENT) + b"40\r\ndata: {", b""])
def test_a_broken_connection_is_told(body: bytes) -> None:
    with pytest.raises(http.client.IncompleteRead):
        program().Load.events(answer(body))


def test_an_error_in_the_stream_is_told() -> None:
    client = program()
    with pytest.raises(client.ToldError, match="engine ended"):
        client.Load.events(answer(chunk(b'data: {"error": {"message": "the engine ended"}}\n\n') + b"0\r\n\r\n"))
