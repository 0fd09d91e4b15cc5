# SPDX-License-Identifier: Apache-2.0
"""The little HTTP that a probe needs, over a plain socket: ``http.client`` would cost the supervisor 5 MB of memory."""

from __future__ import annotations

import json
import re
import socket
import time
from dataclasses import dataclass
from typing import Any

BODY_LIMIT = 2 << 20
"""Bytes of an answer that are read; what follows is left unread (an engine's /metrics page can be that long)."""

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - where to reach a server bound so


class NoAnswerError(OSError):
    """Nobody answered in time, or the answer is not HTTP."""


class NoGenerationError(Exception):
    """The server answered without generating. ``status`` is the HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int
    body: bytes


@dataclass(frozen=True)
class Generation:
    """What an engine generated: its text, and the number of tokens that it says it took."""

    text: str
    tokens: int


@dataclass(frozen=True)
class Server:
    """A server to ask. ``key`` is sent as a bearer token and never printed."""

    host: str
    port: int
    key: str | None = None

    def __repr__(self) -> str:
        return f"Server({self.host}:{self.port})"

    def accepts(self) -> bool:
        """Tell whether anybody accepts connections: much cheaper than reading the kernel's table of sockets."""
        try:
            with self._connect(1):
                return True
        except OSError:
            return False

    def _connect(self, timeout_s: float) -> socket.socket:
        return socket.create_connection((_ANY.get(self.host, self.host), self.port), timeout=timeout_s)

    def request(self, method: str, path: str, *, body: Any = None, timeout_s: float) -> Answer:
        """Send one request and return the answer. ``timeout_s`` bounds the whole exchange. Raise NoAnswerError."""
        deadline = time.monotonic() + timeout_s
        try:
            with self._connect(timeout_s) as channel:
                channel.sendall(self._head(method, path, body))
                return _answer(_Reader(channel, deadline))
        except NoAnswerError:
            raise
        except OSError as error:
            raise NoAnswerError(f"{path}: {error.strerror or error}") from error

    def _head(self, method: str, path: str, body: Any) -> bytes:
        payload = b"" if body is None else json.dumps(body).encode()
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "Connection: close",
            "User-Agent: supervisor",
        ]
        lines += [f"Authorization: Bearer {self.key}"] if self.key else []
        lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"] if payload else []
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload

    def generate(self, model: str, prompt: str, max_tokens: int, timeout_s: float) -> Generation:
        """Have the engine complete ``prompt`` greedily. Raise NoAnswerError, or NoGenerationError without a token."""
        wish = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        answer = self.request("POST", "/v1/completions", body=wish, timeout_s=timeout_s)
        if answer.status != 200:  # noqa: PLR2004 - HTTP's own number
            raise NoGenerationError(
                answer.status, f"HTTP {answer.status}: {answer.body[:200].decode(errors='replace')}"
            )
        try:
            document = json.loads(answer.body)
            generation = Generation(document["choices"][0]["text"], document["usage"]["completion_tokens"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise NoGenerationError(200, "HTTP 200, but the answer is not a completion") from None
        if not isinstance(generation.tokens, int) or generation.tokens < 1:
            raise NoGenerationError(200, "HTTP 200, but usage.completion_tokens is 0")
        return generation


class _Reader:
    """Reads a socket up to a limit and a deadline."""

    def __init__(self, channel: socket.socket, deadline: float) -> None:
        self._channel, self._deadline = channel, deadline
        self.held = bytearray()
        self.ended = False

    def more(self) -> bool:
        """Read once more; False at the end or at the limit."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise NoAnswerError("no whole answer in time")
        self._channel.settimeout(left)
        chunk = b"" if len(self.held) >= BODY_LIMIT else self._channel.recv(65536)
        self.held += chunk
        self.ended = not chunk
        return bool(chunk)


def _answer(reader: _Reader) -> Answer:
    while b"\r\n\r\n" not in reader.held:
        if not reader.more():
            raise NoAnswerError("the connection was closed before an answer")
    head, _, rest = bytes(reader.held).partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    if not status:
        raise NoAnswerError("the answer is not HTTP")
    length = re.search(rb"(?im)^content-length:\s*(\d+)", head)
    wanted = int(length[1]) if length else BODY_LIMIT
    reader.held = bytearray(rest)
    while len(reader.held) < wanted and reader.more():
        pass
    if length and len(reader.held) < min(wanted, BODY_LIMIT):
        raise NoAnswerError("the answer was cut off")
    chunked = re.search(rb"(?im)^transfer-encoding:.*chunked", head)
    return Answer(int(status[1]), _dechunk(bytes(reader.held)) if chunked else bytes(reader.held))


def _dechunk(raw: bytes) -> bytes:
    """Join the chunks of a chunked body; a part that was cut off is left out."""
    body = bytearray()
    while size := re.match(rb"([0-9a-fA-F]{1,8})[^\r\n]*\r\n", raw):
        length, raw = int(size[1], 16), raw[size.end() :]
        if not length:
            break
        body += raw[:length]
        raw = raw[length + 2 :]
    return bytes(body)
