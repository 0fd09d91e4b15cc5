# SPDX-License-Identifier: Apache-2.0
"""Figures from completions."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.smoke.stats import Phase, figure, figures, mad, percentile, spread, summary
from inference.smoke.stream import Completion

LIMITS = {"max_lag_ms": 20.0, "max_lag_share_ttft": 0.25, "max_lag_share_e2e": 0.05, "max_cpu_share": 0.85}
NUMBERS = st.floats(-1e6, 1e6)


def completion(ttft: float = 0.1, tokens: int = 11, tpot: float = 0.02, problem: str | None = None) -> Completion:
    times = [ttft + tpot * i for i in range(tokens)]
    return Completion(
        text="abcd" * tokens, completion_tokens=tokens, prompt_tokens=20, content_times=times, e2e=times[-1],
        first_chunk_text=4, first_kind="content", problem=problem,
    )  # fmt: skip


@given(st.lists(NUMBERS, min_size=1, max_size=60), st.floats(0, 100))
def test_a_percentile_lies_within_and_grows(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert min(values) - 1e-6 <= found <= max(values) + 1e-6
    assert percentile(values, 0) <= found + 1e-6 <= percentile(values, 100) + 2e-6


@given(st.lists(NUMBERS, min_size=1, max_size=60))
def test_the_50th_is_the_median(values: list[float]) -> None:
    assert percentile(values, 50) == pytest.approx(statistics.median(values), abs=1e-6)


def test_percentiles_known_by_hand() -> None:
    assert percentile([1, 2, 3, 4], 50) == 2.5
    assert percentile(list(range(101)), 99) == 99
    assert summary([None, 1.0]) == {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0}
    assert summary([None]) is None
    assert mad([1, 1, 2, 2, 4, 6, 9]) == 1
    assert spread([2.0])["cv"] is None
    assert spread([1.0, 3.0])["cv"] == pytest.approx(2**0.5 / 2)


def test_aggregate_and_single_stream_speed() -> None:
    phase = Phase([completion(), completion()], seconds=0.5)
    assert phase.tok_s == pytest.approx(22 / 0.5)
    assert phase.decode_tok_s() == pytest.approx(50)


def test_failed_requests_are_counted_and_never_timed() -> None:
    bad = completion(ttft=50.0, tokens=500, problem="truncated")
    row = figures([Phase([completion(), bad], 1.0)], concurrency=2, client=LIMITS)
    assert (row["requests"], row["failed"], row["failures"]) == (2, 1, {"truncated": 1})
    assert row["ttft_s"]["p99"] == pytest.approx(0.1)
    assert row["completion_tokens"] == 11


def test_nothing_but_failures_has_no_figures() -> None:
    row = figures([Phase([completion(problem="dropped")], 1.0)], concurrency=1, client=LIMITS)
    assert (row["tok_s"], row["decode_tok_s"], row["ttft_s"]) == (None, None, None)


def test_one_chunk_has_no_time_a_token() -> None:
    row = figures([Phase([completion(tokens=1)], 1.0)], concurrency=1, client=LIMITS)
    assert row["tpot_s"] is None
    assert row["ttft_s"]["p50"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("lag", "cpu", "ttft", "bound", "late"),
    [
        (0.001, 0.1, 0.1, None, None),
        (0.024, 0.1, 0.1, None, None),  # within a quarter of the time to first token
        (0.030, 0.1, 0.1, None, "event loop"),
        (0.019, 0.1, 0.001, None, None),  # always allowed
        (0.060, 0.1, 0.1, "event loop", "event loop"),  # more than a twentieth of 0.1 + 50 x 0.02 s
        (0.055, 0.1, 0.3, None, None),
        (0.001, 0.9, 0.1, "of a core", None),
    ],
)
def test_a_client_that_is_the_limit_is_named(
    lag: float, cpu: float, ttft: float, bound: str | None, late: str | None
) -> None:
    phase = Phase([completion(ttft, tokens=51)], 1.0, lags=[lag] * 10, cpu_seconds=cpu)
    seen = figures([phase], concurrency=1, client=LIMITS)["client"]
    for kind, words in (("bound", bound), ("late", late)):
        assert seen[kind] is None if words is None else words in seen[kind]


@pytest.mark.parametrize(("value", "text"), [(0.12345, "0.1235"), (63.6, "63.6"), (2370.4, "2370"), (100000, "100000")])
def test_a_figure_has_four_digits_and_no_exponent(value: float, text: str) -> None:
    assert figure(value) == text
