# SPDX-License-Identifier: Apache-2.0
"""Streams as bytes with times, made by hand after the engines' wire format."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.smoke.stream import Limits, RawStream, complete, complete_document


def event(delta: dict[str, Any] | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, **more.pop("choice", {})}]
    return b"data: " + json.dumps({"id": "c1", "model": "m", "choices": choices, **more}).encode() + b"\n\n"


USAGE = {"prompt_tokens": 7, "completion_tokens": 4}
END = event({}, choice={"finish_reason": "length"})
LAST = event(None, usage=USAGE)
DONE = b"data: [DONE]\n\n"


def raw(*pieces: tuple[float, bytes], ending: str = "complete", status: int = 200) -> RawStream:
    stream = RawStream(asked_model="m", started=100.0, status=status, ending=ending)  # type: ignore[arg-type]
    for seconds, data in pieces:
        stream.add(100.0 + seconds, data)
    stream.ended = 100.0 + (pieces[-1][0] if pieces else 0.0)
    return stream


WHOLE = (
    (0.1, event({"role": "assistant", "content": ""})),
    (0.2, event({"content": " Par"})),
    (0.3, event({"content": "is"})),
    (0.6, event({"content": "."})),
    (0.7, END + LAST + DONE),
)


def test_a_whole_stream() -> None:
    done = complete(raw(*WHOLE))
    assert (done.problem, done.text, done.finish_reason, done.completion_tokens) == (None, " Paris.", "length", 4)
    assert done.ttft == pytest.approx(0.2)  # the role alone is no token
    assert done.tpot == pytest.approx((0.7 - 0.2) / 3)  # to the finish_reason: the last token may not show
    assert done.gaps == pytest.approx([0.1, 0.3])
    assert done.e2e == pytest.approx(0.7)


@given(st.lists(st.integers(1, 400), max_size=8))
def test_how_the_bytes_are_cut_changes_nothing_but_times(cuts: list[int]) -> None:
    data = b"".join(piece for _, piece in WHOLE)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [(0.1 * i, data[a:b]) for i, (a, b) in enumerate(pairwise(edges))]
    done = complete(raw(*pieces))
    assert (done.problem, done.text, done.completion_tokens) == (None, " Paris.", 4)


def test_carriage_returns_comments_and_utf8_across_chunks() -> None:
    data = b": hello\r\n\r\n" + event({"content": "é言"}).replace(b"\n\n", b"\r\n\r\n") + END + LAST + DONE
    middle = data.index(b"\\u") + 3
    assert complete(raw((0.1, data[:middle]), (0.2, data[middle:]))).text == "é言"


def test_the_first_token_may_be_reasoning() -> None:
    for name in ("reasoning_content", "reasoning"):
        done = complete(raw((0.2, event({name: "Hm"})), (0.5, event({"content": "Paris"})), (0.6, END + LAST + DONE)))
        assert (done.ttft, done.first_kind, done.reasoning) == (pytest.approx(0.2), "reasoning", "Hm")


def test_tokens_in_the_first_chunk_by_the_server_or_by_share() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 12}
    last = event(None, usage=usage)
    one = [(0.1 * i, event({"content": "abcd" * 4})) for i in (1, 2, 3)]
    assert complete(raw(*one, (0.4, END + last + DONE))).tokens_in_first_chunk == 4
    counted = (0.1, event({"content": "abcd" * 4}, usage={"completion_tokens": 3}))
    assert complete(raw(counted, *one[1:], (0.4, END + last + DONE))).tokens_in_first_chunk == 3
    assert complete(raw(*WHOLE)).tokens_in_first_chunk == 1  # 4 tokens, one of which does not show


def test_a_token_a_chunk_is_never_shared_out() -> None:
    pieces = [(0.1 * i, event({"content": " internationalisation" if i == 1 else "a"})) for i in range(1, 6)]
    assert complete(raw(*pieces, (0.6, END + LAST + DONE))).tokens_in_first_chunk == 1


@pytest.mark.parametrize(
    ("pieces", "changes", "problem"),
    [
        (WHOLE[:3], {}, "truncated"),
        ((), {}, "truncated"),
        (WHOLE[:3], {"ending": "dropped"}, "dropped"),
        (WHOLE[:3], {"ending": "stalled"}, "stalled"),
        ((), {"ending": "no-answer"}, "no-answer"),
        ((*WHOLE[:4], (0.7, LAST + DONE)), {}, "no-finish-reason"),
        ((*WHOLE[:4], (0.7, END + LAST)), {}, "no-done"),
        ((*WHOLE[:4], (0.7, END + DONE)), {}, "no-usage"),
        ((*WHOLE[:4], (0.7, END + event(None, usage={"completion_tokens": 0}) + DONE)), {}, "no-usage"),
        (((0.1, b'{"error": {"message": "boom"}}'),), {}, "error-in-200"),
        (((0.1, b'{"object": "error", "message": "boom"}'),), {}, "error-in-200"),
        ((*WHOLE[:2], (0.3, b'data: {"error": {"message": "boom"}}\n\n' + DONE)), {}, "error-in-200"),
        ((*WHOLE[:2], (0.3, b'data: {"choi\n\n' + END + LAST + DONE)), {}, "malformed"),
        (((0.1, b"<html>It works!</html>"),), {}, "not-a-stream"),
        (((0.1, b'{"choices": [{"message": {"content": "x"}}]}'),), {}, "not-a-stream"),
        (((0.1, b"overloaded"),), {"status": 503}, "http-503"),
    ],
)
def test_what_is_wrong_is_named(pieces: Any, changes: dict[str, Any], problem: str) -> None:
    assert complete(raw(*pieces, **changes)).problem == problem


def test_another_model_answers() -> None:
    stream = raw(*WHOLE)
    stream.asked_model = "other"
    done = complete(stream)
    assert done.problem == "wrong-model"
    assert "'other'" in done.detail
    assert "'m'" in done.detail


def test_nothing_that_arrives_breaks_the_reader() -> None:
    for data in (b"data: null\n", b"data: [1]\n", b"data: 3\n", b"data:\n", b"\xff\xfe", b'data: {"choices": null}\n',
                 b'data: {"choices": [{"delta": null}]}\n', b'data: {"usage": []}\n'):  # fmt: skip
        assert complete(raw((0.1, data))).problem


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_no_bytes_break_the_reader(pieces: list[bytes]) -> None:
    assert complete(raw(*((0.1 * i, b"data: " + p + b"\n") for i, p in enumerate(pieces)))).problem


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["choices", "delta", "usage", "content", "error", "finish_reason"]), inner
            )
        ),
        max_leaves=8,
    )
)
def test_no_json_breaks_the_reader(document: Any) -> None:
    complete(raw((0.1, b"data: " + json.dumps(document).encode() + b"\n")))
    complete_document(document, status=200)


def test_limits_are_told_apart() -> None:
    limits = Limits(first_token=2, stall=1, request=10)
    stream = RawStream(started=100.0)
    assert stream.overdue(limits, 101.5) == (None, pytest.approx(0.5))
    assert stream.overdue(limits, 102.0)[0] == "no-answer"
    stream.add(101.9, b"x")
    assert stream.overdue(limits, 102.0) == (None, pytest.approx(0.9))
    assert stream.overdue(limits, 102.9)[0] == "stalled"
    stream.add(109.9, b"x")
    assert stream.overdue(limits, 110.0)[0] == "too-slow"


def test_an_answer_that_is_not_streamed() -> None:
    document = {
        "model": "m",
        "choices": [{"message": {"content": "Paris", "reasoning_content": "hm"}, "finish_reason": "stop"}],
        "usage": USAGE,
    }
    done = complete_document(document, status=200, model="m")
    assert (done.problem, done.text, done.reasoning, done.prompt_tokens) == (None, "Paris", "hm", 7)
    text = {"choices": [{"text": " Paris", "finish_reason": "stop"}], "usage": USAGE}
    assert complete_document(text, status=200).text == " Paris"


SHORT = {"choices": [{"text": "x", "finish_reason": "stop"}], "usage": USAGE}


@pytest.mark.parametrize(
    ("document", "changes", "problem"),
    [
        (None, {"status": None, "failure": "timeout"}, "no-answer"),
        (None, {"status": 500}, "http-500"),
        ({"error": {"message": "boom"}}, {}, "error-in-200"),
        (None, {}, "malformed"),
        ({"choices": [{"text": "x"}], "usage": USAGE}, {}, "no-finish-reason"),
        ({"choices": [{"text": "x", "finish_reason": "stop"}]}, {}, "no-usage"),
        (SHORT, {"model": "m"}, None),
        ({**SHORT, "model": "n"}, {"model": "m"}, "wrong-model"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_it_is_named(document: Any, changes: dict[str, Any], problem: str) -> None:
    assert complete_document(document, **{"status": 200, **changes}).problem == problem
