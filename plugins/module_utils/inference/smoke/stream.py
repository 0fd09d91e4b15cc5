# SPDX-License-Identifier: Apache-2.0
"""What one streamed completion was: its text, its tokens, its times, and what was wrong with it.

A client only stamps and keeps what arrives (:class:`RawStream`); everything is parsed here, afterwards, so that
parsing delays no measurement. Tokens are counted by the server's ``usage``, never by chunks: a chunk may hold several
tokens (speculative decoding, a detokenizer that waits) or none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

Ending = Literal["open", "complete", "refused", "dropped", "no-answer", "stalled", "too-slow", "endless"]
"""How the transport ended; ``open`` while it has not. Only ``complete`` says that the server closed it in order."""

MAX_BYTES = 64 * 1024 * 1024
"""A response larger than this is cut off (``endless``): no completion asked for here comes near it."""

SNIPPET = 200
"""How much of a server's own words a report quotes."""

HTTP_OK = 200

UNUSABLE = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""What reading JSON of another shape than a completion's, or nested without end, raises."""


@dataclass(frozen=True)
class Limits:
    """How long one completion may take, in seconds."""

    first_token: float = 60.0
    stall: float = 30.0
    request: float = 300.0


@dataclass
class RawStream:
    """Bytes of one response as they came, each piece with the time at which it was read (perf_counter seconds)."""

    asked_model: str = ""
    scheduled: float = 0.0
    """When an open loop meant to send it; equals ``started`` in a closed loop."""
    started: float = 0.0
    ended: float = 0.0
    status: int | None = None
    arrivals: list[tuple[float, bytes]] = field(default_factory=list)
    ending: Ending = "open"
    detail: str = ""
    size: int = 0

    def add(self, now: float, data: bytes) -> None:
        """Keep a piece."""
        self.arrivals.append((now, data))
        self.size += len(data)

    def overdue(self, limits: Limits, now: float) -> tuple[Ending | None, float]:
        """Return which limit is over (or None) and the seconds until the next one can be."""
        if now - self.started >= limits.request:
            return "too-slow", 0.0
        left = self.started + limits.request - now
        if self.arrivals:
            left, late = min(left, self.arrivals[-1][0] + limits.stall - now), "stalled"
        else:
            left, late = min(left, self.started + limits.first_token - now), "no-answer"
        return (late if left <= 0 else None), max(left, 0.0)  # type: ignore[return-value]  # both are endings


@dataclass
class Completion:
    """One finished completion. ``problem`` is None when it may be counted; times are seconds since it was sent."""

    text: str = ""
    reasoning: str = ""
    model: str | None = None
    asked_model: str = ""
    id: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    first_chunk_tokens: int | None = None
    done: bool = False
    content_times: list[float] = field(default_factory=list)
    """One entry for each chunk that brought text, reasoning included."""
    finish_time: float | None = None
    """When the finish_reason came: with the last token, whether or not that one shows."""
    first_chunk_text: int = 0
    first_kind: str | None = None
    """``reasoning`` or ``content``: what the first token was."""
    e2e: float = 0.0
    send_lag: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    problem: str | None = None
    detail: str = ""

    @property
    def ttft(self) -> float | None:
        """Seconds to the first content or reasoning token."""
        return self.content_times[0] if self.content_times else None

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first chunk; None where fewer than two chunks make it unknowable."""
        if len(self.content_times) < 2 or not self.completion_tokens:  # noqa: PLR2004 - an interval has two ends
            return None
        rest = self.completion_tokens - self.tokens_in_first_chunk
        last = max(self.content_times[-1], self.finish_time or 0.0)
        return (last - self.content_times[0]) / rest if rest > 0 else None

    @property
    def tokens_in_first_chunk(self) -> int:
        """As the server counted, else in proportion to its share of the text where chunks hold several tokens."""
        if self.first_chunk_tokens is not None:
            return max(self.first_chunk_tokens, 1)
        total, chunks = self.completion_tokens or 0, len(self.content_times)
        characters = len(self.text) + len(self.reasoning)
        # A token may show nothing; only a clear surplus of tokens means that chunks hold several.
        if not characters or total <= chunks + max(2, chunks // 10):
            return 1
        return max(1, round(total * self.first_chunk_text / characters))

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks (inter-token latency of chunks, not of tokens)."""
        return [after - before for before, after in pairwise(self.content_times)]


def complete(raw: RawStream) -> Completion:
    """Return what ``raw`` was, with the first thing that was wrong with it in ``problem``."""
    done = Completion(asked_model=raw.asked_model, e2e=raw.ended - raw.started, started=raw.started, ended=raw.ended)
    done.send_lag = max(raw.started - raw.scheduled, 0.0) if raw.scheduled else 0.0
    if raw.status is not None and raw.status != HTTP_OK:
        return _wrong(done, f"http-{raw.status}", body_text(raw))
    for seconds, line in _events(raw):
        if line == "[DONE]":
            done.done = True
            continue
        try:
            event = json.loads(line)
            if error := error_of(event):
                _wrong(done, "error-in-200", error)
            else:
                _take(done, event, seconds)
        except UNUSABLE:
            _wrong(done, "malformed", line)
    return _judge(done, raw)


def complete_document(
    document: Any, *, status: int | None, failure: str | None = None, body: str = "", model: str = ""
) -> Completion:
    """Return the completion in an answer that was not streamed, with the first thing that was wrong with it."""
    done = Completion(asked_model=model)
    if failure or status != HTTP_OK:
        return _wrong(done, {"timeout": "no-answer"}.get(failure, failure) if failure else f"http-{status}", body)
    if error := error_of(document):
        return _wrong(done, "error-in-200", error)
    try:
        _take(done, {**document, "choices": [document["choices"][0]]}, 0.0)
    except UNUSABLE:
        return _wrong(done, "malformed", body)
    if not done.finish_reason or not done.completion_tokens:
        return _wrong(done, "no-usage" if done.finish_reason else "no-finish-reason", body)
    return _answerer(done)


def error_of(document: Any) -> str | None:
    """Return the error that a body holds in place of an answer (OpenAI's and older vLLM's form), or None."""
    if not isinstance(document, dict):
        return None
    error = document.get("error")
    if error:
        return str(error.get("message") or error) if isinstance(error, dict) else str(error)
    return str(document.get("message", "")) if document.get("object") == "error" else None


def body_text(raw: RawStream) -> str:
    """Return the beginning of the body for a report."""
    return b"".join(data for _, data in raw.arrivals)[: SNIPPET * 4].decode("utf-8", errors="replace")[:SNIPPET]


def _events(raw: RawStream) -> Iterator[tuple[float, str]]:
    """Yield the payload of each ``data:`` line with the time at which its end arrived."""
    rest = b""
    for now, data in raw.arrivals:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield now - raw.started, line[5:].strip().decode("utf-8", errors="replace")


def _take(done: Completion, event: dict[str, Any], seconds: float) -> None:
    """Add one event of a chat or text completion."""
    done.id = event.get("id") or done.id
    done.model = event.get("model") or done.model
    usage = event.get("usage")
    if usage:
        _take_usage(done, usage)
    for choice in event.get("choices") or []:
        delta = choice.get("delta") or choice.get("message") or choice
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        content = delta.get("content") or delta.get("text") or ""
        if reasoning or content or delta.get("tool_calls"):
            if not done.content_times:
                done.first_kind = "reasoning" if reasoning else "content"
                done.first_chunk_text = len(reasoning) + len(content)
                done.first_chunk_tokens = _count((usage or {}).get("completion_tokens"), None)
            done.content_times.append(seconds)
        done.reasoning += reasoning
        done.text += content
        if choice.get("finish_reason"):
            done.finish_reason, done.finish_time = choice["finish_reason"], seconds


def _take_usage(done: Completion, usage: dict[str, Any]) -> None:
    """Read the token counts of a ``usage`` object; what is no count counts as absent."""
    prompt, answer = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    done.prompt_tokens = _count(usage.get("prompt_tokens"), done.prompt_tokens)
    done.completion_tokens = _count(usage.get("completion_tokens"), done.completion_tokens)
    done.cached_tokens = _count(prompt.get("cached_tokens"), done.cached_tokens)
    done.reasoning_tokens = _count(
        answer.get("reasoning_tokens") or usage.get("reasoning_tokens"), done.reasoning_tokens
    )


def _count(value: Any, before: int | None) -> int | None:
    return value if isinstance(value, int) and value >= 0 else before


def _judge(done: Completion, raw: RawStream) -> Completion:
    """Name the first of what is wrong: the transport, then the protocol, then the answer."""
    if done.problem is None and not done.content_times and not done.done and (error := _plain_error(raw)):
        return _wrong(done, "error-in-200", error)
    if raw.ending != "complete":
        return _wrong(done, raw.ending, raw.detail or f"after {len(done.content_times)} chunks")
    seen = (
        f"{len(done.content_times)} chunks, finish_reason {done.finish_reason}, [DONE] {'yes' if done.done else 'no'}"
    )
    empty = not (done.content_times or done.done or done.finish_reason)
    wrong = (
        (empty and raw.size > 0, "not-a-stream", body_text(raw)),
        (not done.finish_reason and not done.done, "truncated", seen),
        (not done.finish_reason, "no-finish-reason", seen),
        (not done.done, "no-done", seen),
        (not done.completion_tokens, "no-usage", f"{seen}, completion_tokens {done.completion_tokens}"),
    )
    for is_wrong, problem, detail in wrong:
        if is_wrong:
            return _wrong(done, problem, detail)
    return _answerer(done)


def _answerer(done: Completion) -> Completion:
    if done.asked_model and done.model and done.model != done.asked_model:
        return _wrong(done, "wrong-model", f"asked for {done.asked_model!r}, answered as {done.model!r}")
    return done


def _plain_error(raw: RawStream) -> str | None:
    """Return the error in a body that is one JSON document instead of a stream."""
    try:
        return error_of(json.loads(b"".join(data for _, data in raw.arrivals)))
    except (ValueError, RecursionError):
        return None


def _wrong(done: Completion, problem: str, detail: str) -> Completion:
    """Record a problem unless an earlier one is known: the first is nearest to the cause."""
    if done.problem is None:
        done.problem, done.detail = problem, detail[:SNIPPET]
    return done
