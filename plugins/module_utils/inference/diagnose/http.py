# SPDX-License-Identifier: Apache-2.0
"""Reads a captured exchange with a server: probes, completions and their bodies, as people and curl write them down."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..smoke.text import degenerate, garbage
from .rules import Reading

_METHOD = r"(?P<method>GET|POST|HEAD|PUT)"
_ARROW = re.compile(rf"^\W*{_METHOD} +(?P<path>\S+?)(?: HTTP/[\d.]+)?\s*(?:->|=>|→|:)\s*(?P<answer>.+)$")
_BARE = re.compile(
    r"^\W*(?P<path>/(?:v1/[\w/]+|health\w*|generate|metrics|ready\w*|ping))\s*(?:->|=>|→|:|=)?\s*"
    r"(?P<answer>(?:[1-5]\d\d\b|\(?no |time|hang|refused|connection|never).*)$",
    re.IGNORECASE,
)
_REQUEST = re.compile(rf"^>?\s*{_METHOD} (?P<path>/\S*) HTTP/[\d.]+\s*$")
_CURL = re.compile(r"^\W*curl\b.*?https?://[^/\s'\"]+(?P<path>/[^\s'\"]*)")
_POSTS = re.compile(r"\s(?:-d|--data\S*|--json|-X\s*POST)\b")
_STATUS = re.compile(r"^<?\s*HTTP/[\d.]+ (?P<status>\d{3})\b")
_CURL_ERROR = re.compile(r"curl: \((?P<code>\d+)\)")
_CURL_ERRORS = {7: "refused", 28: "timeout", 52: "closed", 56: "closed"}
_SILENCE = re.compile(r"no (?:answer|response|reply)|time[d ]? ?out|hang|never (?:returns|answers)", re.IGNORECASE)
_REFUSED = re.compile(r"refused|cannot connect|failed to connect", re.IGNORECASE)
_CLOSED = re.compile(r"reset by peer|empty reply|closed|disconnected", re.IGNORECASE)
_SECONDS = re.compile(r"\b(?P<amount>\d+(?:\.\d+)?) ?(?P<unit>ms|s|sec|seconds)\b")
_ACCESS = re.compile(rf'"{_METHOD} (?P<path>/\S*) HTTP/[\d.]+" (?P<status>\d{{3}})')

_GENERATES = re.compile(r"/(?:v1/)?(?:chat/)?completions\b|/generate\b|/v1/(?:responses|messages)\b")
_HEALTH = re.compile(r"/(?:health\w*|ready\w*|live\w*|ping|v1/models|get_model_info|model_info)(?=$|[?/])")
SLOW_PROBE = 1.0
"""Seconds from which a health answer is worth a word: SGLang's own check takes that long by design."""
PROBE_TIMEOUT = 5.0

UNNAMED = "?"
"""The path of a request of which only curl's error is in the input: it says at least how the server is."""

OK, BAD_REQUEST, SERVER_ERROR = 200, 400, 500
UNAUTHORISED = (401, 403)


@dataclass(frozen=True)
class Exchange:
    """One request. ``outcome``: ``answer``, ``timeout``, ``refused`` or ``closed``; ``status`` only with an answer."""

    method: str
    path: str
    outcome: str
    status: int | None
    seconds: float | None
    line: str

    @property
    def generates(self) -> bool:
        """Whether this request asks for text."""
        return bool(_GENERATES.search(self.path))

    @property
    def health(self) -> bool:
        """Whether this request only asks how the server is."""
        return self.path == UNNAMED or bool(_HEALTH.search(self.path))


def read_exchange(lines: Sequence[str]) -> Reading | None:
    """Return what the exchange shows, or None when the input holds none."""
    exchanges = list(_exchanges(lines))
    bodies, answers = _bodies(lines)
    reading = Reading("exchange")
    _judge_generation(exchanges, reading)
    _judge_health(exchanges, reading)
    _judge_metrics(exchanges, reading)
    for text in answers:
        _judge_text(text, reading)
    _judge_access_log(lines, reading)
    return reading if exchanges or bodies or reading.findings else None


def _exchanges(lines: Sequence[str]) -> Iterator[Exchange]:
    pending: tuple[str, str, str] | None = None
    for line in lines:
        written = _ARROW.match(line)
        if written:
            yield _answered(written["method"], written["path"], written["answer"], line)
            continue
        if bare := _BARE.match(line):
            method = "POST" if _GENERATES.search(bare["path"]) else "GET"
            yield _answered(method, bare["path"], bare["answer"], line)
        elif asked := _asked(line):
            pending = (*asked, line)
        elif pending and (exchange := _reply(pending, line)):
            yield exchange
            pending = None
        elif not pending and (error := _CURL_ERROR.search(line)) and int(error["code"]) in _CURL_ERRORS:
            yield Exchange("GET", UNNAMED, _CURL_ERRORS[int(error["code"])], None, None, line)


def _asked(line: str) -> tuple[str, str] | None:
    if request := _REQUEST.match(line):
        return request["method"], request["path"]
    if curl := _CURL.match(line):
        return ("POST" if _POSTS.search(line) else "GET"), curl["path"]
    return None


def _reply(pending: tuple[str, str, str], line: str) -> Exchange | None:
    method, path, request = pending
    if answer := _STATUS.match(line):
        return Exchange(method, path, "answer", int(answer["status"]), None, f"{request} / {line}")
    if error := _CURL_ERROR.search(line):
        outcome = _CURL_ERRORS.get(int(error["code"]))
        status = re.search(r"returned error: (\d{3})", line)
        if status:
            return Exchange(method, path, "answer", int(status[1]), None, f"{request} / {line}")
        return Exchange(method, path, outcome, None, None, f"{request} / {line}") if outcome else None
    return None


def _answered(method: str, path: str, answer: str, line: str) -> Exchange:
    """Read ``200``, ``200 OK in 1.03 s``, ``timeout``, ``(no answer for 60 s)`` and the like."""
    status = re.match(r"(?:HTTP/[\d.]+ )?(?P<status>[1-5]\d\d)\b", answer)
    time = _SECONDS.search(answer)
    seconds = None if time is None else float(time["amount"]) / (1000 if time["unit"] == "ms" else 1)
    if status:
        return Exchange(method, path, "answer", int(status["status"]), seconds, line)
    for outcome, pattern in (("refused", _REFUSED), ("closed", _CLOSED)):
        if pattern.search(answer):
            return Exchange(method, path, outcome, None, seconds, line)
    silent = _SILENCE.search(answer)
    return Exchange(method, path, "timeout" if silent else "unclear", None, seconds, line)


def _judge_generation(exchanges: Sequence[Exchange], reading: Reading) -> None:
    healthy = [e for e in exchanges if e.health and e.status == OK]
    for exchange in (e for e in exchanges if e.generates):
        if exchange.outcome in ("timeout", "closed"):
            beside = f"; {healthy[-1].line.strip()}" if healthy else ""
            reading.add("engine-does-not-generate", exchange.line.strip() + beside)
        elif exchange.outcome == "refused":
            reading.add("server-not-listening", exchange.line.strip())
        elif exchange.status in UNAUTHORISED:
            reading.add("key-needed", exchange.line.strip(), what=exchange.path)
        elif exchange.status is not None and exchange.status >= BAD_REQUEST:
            reading.add("generation-refused", exchange.line.strip(), what=str(exchange.status))


def _judge_health(exchanges: Sequence[Exchange], reading: Reading) -> None:
    last = next((e for e in reversed(exchanges) if e.health), None)
    if last is None or any(e.generates and e.outcome != "answer" for e in exchanges):
        return
    generated = any(e.generates and e.status == OK for e in exchanges)
    if last.outcome == "refused":
        reading.add("server-not-listening", last.line.strip())
    elif last.status in UNAUTHORISED:
        reading.add("key-needed", last.line.strip(), what=last.path)
    elif last.status == OK:
        _judge_probe_time(last, reading)
    elif last.outcome != "unclear":
        # a server that generates is alive, whatever one probe says
        reading.add("server-not-ready", last.line.strip(), level="info" if generated else None)


def _judge_probe_time(probe: Exchange, reading: Reading) -> None:
    if probe.seconds is None or probe.seconds < SLOW_PROBE:
        return
    timeout = max(PROBE_TIMEOUT, math.ceil(2 * probe.seconds))
    slow = probe.seconds >= PROBE_TIMEOUT
    fix = f"set the probe's timeout to {timeout:.0f} s or more"
    reading.add("health-probe-time", probe.line.strip(), level="warning" if slow else None, fix=fix)


def _judge_metrics(exchanges: Sequence[Exchange], reading: Reading) -> None:
    for exchange in exchanges:
        if exchange.path.split("?")[0].rstrip("/").endswith("/metrics") and exchange.status != OK:
            reading.add("metrics-not-scrapeable", exchange.line.strip())


def _judge_access_log(lines: Sequence[str], reading: Reading) -> None:
    """Judge a web server's own lines: only what is certain without knowing how far the start was."""
    failed: dict[str, list[str]] = {}
    for line in lines:
        for access in _ACCESS.finditer(line) if "HTTP/" in line else ():
            status, path = int(access["status"]), access["path"].split("?")[0]
            if path == "/metrics" and status in UNAUTHORISED:
                failed.setdefault("metrics-not-scrapeable", []).append(access[0])
            elif status >= SERVER_ERROR and _GENERATES.search(path):
                failed.setdefault("generation-refused", []).append(access[0])
    for rule_id, seen in failed.items():
        reading.add(rule_id, f"{len(seen)} times, first {seen[0]}")


def _bodies(lines: Sequence[str]) -> tuple[int, list[str]]:
    """Return how many completions the input holds, and their texts; the pieces of one stream are one text."""
    bodies = 0
    texts: list[str] = []
    stream: list[str] = []
    for line in lines:
        body = _json(line)
        if not _is_completion(body):
            continue
        bodies += 1
        target = stream if line.lstrip().startswith("data:") else texts
        target += _generated(body)
    if stream:
        texts.append("".join(stream))
    return bodies, texts


def _json(line: str) -> Any:
    """Return the JSON object of a line: alone, behind ``data:``, or behind a status; None when there is none."""
    text = line.strip().removeprefix("data:").strip()
    behind = re.search(r"(?<=\s)\{\s*\"(?:id|choices|text|object)\"", text)
    start = 0 if text.startswith("{") else behind.start() if behind else -1
    try:
        return json.JSONDecoder().raw_decode(text[start:])[0] if start >= 0 else None
    except (ValueError, RecursionError):
        return None


def _is_completion(body: Any) -> bool:
    return isinstance(body, dict) and (isinstance(body.get("choices"), list) or "meta_info" in body)


def _generated(body: dict[str, Any]) -> list[str]:
    """Return the texts of a completion, a chat completion, one of their chunks, or SGLang's /generate."""
    choices = body.get("choices")
    if not isinstance(choices, list):
        return [body["text"]] if isinstance(body.get("text"), str) else []
    return [text for choice in choices if isinstance(choice, dict) for text in _choice(choice)]


def _choice(choice: dict[str, Any]) -> list[str]:
    if isinstance(choice.get("text"), str):
        return [choice["text"]]
    message = choice.get("message") or choice.get("delta")
    if not isinstance(message, dict):
        return []
    parts = [message.get(key) for key in ("reasoning_content", "content")]
    texts = [part for part in parts if isinstance(part, str)]
    return ["".join(texts)] if texts and not message.get("tool_calls") else []


_ONE_CHARACTER = 6
"""A text of one character alone counts as degenerate from this length on."""


def _judge_text(text: str, reading: Reading) -> None:
    fault = degenerate(text)
    if fault is None and len(text.strip()) >= _ONE_CHARACTER and len(set(text.strip())) == 1:
        fault = f"{text.strip()[0]!r} over and over"
    if fault:
        reading.add("degenerate-output", text[:80], what=fault)
    elif odd := garbage(text):
        reading.add("suspicious-output", text[:80], what=odd)
