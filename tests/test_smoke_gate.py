# SPDX-License-Identifier: Apache-2.0
"""Floors, targets, regression and history."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.smoke.gate import (
    Key,
    allowed_from,
    at_worst,
    forgive_regressions,
    history_line,
    judge,
    metrics_of,
    read_baseline,
    read_history,
    waits_of,
    worse,
)
from inference.smoke.profile import Regression, load_profile

TOK, TTFT = "single.decode_tok_s", "single.ttft_s"
RULE = Regression(percent=10, seconds_percent=25, seconds_slack=0.005, mads=5)
KEY = Key("h", "sglang", "org/Model-1", "0.5.23", "f", "s")


def test_which_side_is_worse() -> None:
    assert worse(TOK, 9, 10)
    assert not worse(TOK, 11, 10)
    assert worse(TTFT, 11, 10)
    assert worse("prefill.512.ttft_s", 11, 10)
    assert worse("concurrent.tok_s", 9, 10)


@pytest.mark.parametrize(
    ("metric", "baseline", "allowed"),
    [
        (TOK, [100.0], 90.0),
        (TOK, [100.0, 101.0, 99.0], 90.0),  # MAD 1: five are less than ten per cent
        (TOK, [100.0, 110.0, 90.0], 50.0),  # MAD 10
        (TTFT, [1.0], 1.25),
        (TTFT, [0.010], 0.015),  # the slack is more than a quarter
        (TOK, [1.0, 9.0, 5.0], 0.0),
    ],
)
def test_the_worst_value_that_is_no_regression(metric: str, baseline: list[float], allowed: float) -> None:
    assert allowed_from(metric, baseline, RULE) == pytest.approx(allowed)


@given(st.lists(st.floats(0.001, 1e4), min_size=1, max_size=20), st.sampled_from([TOK, TTFT]))
def test_the_median_itself_is_never_a_regression(baseline: list[float], metric: str) -> None:
    import statistics

    assert not worse(metric, statistics.median(baseline), allowed_from(metric, baseline, RULE))


def test_judge() -> None:
    gate = load_profile({"gate": {"floors": {TOK: 63.6}, "targets": {TOK: {"value": 82.5, "source": "a report"}}}}).gate
    (row,) = judge({TOK: 70.0}, gate, [{TOK: 71.0}])
    assert row.failures == ()
    shown = row.as_dict()
    assert shown["target"]["better_by_percent"] == pytest.approx(-15.15, abs=0.01)
    assert shown["floor"]["better_by_percent"] == pytest.approx(10.06, abs=0.01)
    (row,) = judge({TOK: 60.0}, gate, [{TOK: 91.0}] * 5)
    assert (row.failures, row.warnings) == (("below-floor", "regression"), ())
    assert judge({}, gate, []) == []


def test_a_young_history_only_warns_and_a_floor_still_counts() -> None:
    gate = load_profile({"gate": {"floors": {TOK: 63.6}}}).gate
    (row,) = judge({TOK: 60.0}, gate, [{TOK: 91.0}] * 4)
    assert (row.failures, row.warnings) == (("below-floor",), ("regression",))
    assert row.as_dict()["warnings"] == ["regression"]


def waiting(share: float | None) -> dict[str, Any]:
    row = figures()
    return {**row, "engine_wait": share}


def test_while_other_work_keeps_the_processors_a_regression_only_warns() -> None:
    gate, past = load_profile({"gate": {"floors": {TOK: 63.6}}}).gate, [{TOK: 171.0, "concurrent.tok_s": 2000.0}] * 9
    waits = waits_of({"single": waiting(0.9), "concurrent": waiting(0.1)})
    alone, together = judge({TOK: 60.0, "concurrent.tok_s": 1000.0}, gate, past, waits)
    assert (alone.failures, alone.warnings) == (("below-floor",), ("regression",))
    assert alone.excuse == "other work kept the engine's threads waiting for 90% of their time: it only warns"
    assert (together.failures, together.warnings, together.excuse) == (("regression",), (), "")


def test_the_wait_of_a_stage_is_that_of_its_last_measurement() -> None:
    rows = [{"length": 8, **waiting(0.2)}, {"length": 16, **waiting(0.7)}]
    first = {"single": waiting(0.9), "concurrent": waiting(None), "prefill": rows}
    assert waits_of(first) == {"single": 0.9, "concurrent": 0.0, "prefill": 0.7}
    assert waits_of({**first, "again": {"single": waiting(0.1)}})["single"] == 0.1
    assert waits_of({"single": figures()}) == {"single": 0.0, "concurrent": 0.0, "prefill": 0.0}


def test_of_a_stage_that_was_measured_again_the_better_value_counts() -> None:
    again = figures()
    again["tok_s"], again["ttft_s"] = {"median": 1200.0}, {"p50": 0.3, "p99": 0.1}
    found = metrics_of({"concurrent": figures(), "again": {"concurrent": again}})
    assert found == {"concurrent.tok_s": 1200.0, "concurrent.ttft_s": 0.1, "concurrent.ttft_p99_s": 0.1}


def test_a_figure_that_only_the_second_measurement_has_counts() -> None:
    found = metrics_of({"single": figures("lag"), "again": {"single": figures()}})
    assert found == {"single.decode_tok_s": 80.0, "single.ttft_s": 0.1}
    assert metrics_of({"single": figures("lag"), "again": {"single": figures("lag")}}) == {}


def test_a_forgiven_regression_is_a_warning_and_nothing_else_is_forgiven() -> None:
    slow, wrong = {"id": "regression", "level": "critical"}, {"id": "golden", "level": "critical"}
    unknown = {"id": "no-metrics", "level": "unknown"}
    row = {"metric": TOK, "failures": ["regression"], "warnings": [], "excuse": ""}
    document = {"schema": 1, "ok": False, "findings": [slow], "gate": {"verdict": "fail", "rows": [row]}}
    forgiven = forgive_regressions(document)
    assert (forgiven["ok"], forgiven["findings"]) == (True, [{"id": "regression", "level": "warning"}])
    busy = [{"id": "client-bound", "level": "unknown"}, {"id": "floor-unknown", "level": "unknown"}]
    assert forgive_regressions({**document, "findings": [slow, *busy]})["ok"]
    assert forgiven["gate"]["verdict"] == "pass"
    assert forgiven["gate"]["rows"][0] == {
        "metric": TOK, "failures": [], "warnings": ["regression"], "excuse": "it is being restored: it only warns",
    }  # fmt: skip
    assert (document["findings"], row["failures"]) == ([slow], ["regression"])
    for other in (wrong, unknown):
        assert not forgive_regressions({**document, "findings": [slow, other]})["ok"]
    low = {**row, "failures": ["below-floor", "regression"]}
    assert forgive_regressions({**document, "gate": {"verdict": "fail", "rows": [low]}})["gate"]["verdict"] == "fail"
    assert not forgive_regressions({"ok": False, "findings": [wrong]})["ok"]


def test_a_maximum_of_few_is_no_trend() -> None:
    gate = load_profile({"gate": {"floors": {"concurrent.ttft_p99_s": 1.0}}}).gate
    (row,) = judge({"concurrent.ttft_p99_s": 0.9}, gate, [{"concurrent.ttft_p99_s": 0.1}])
    assert row.failures == ()
    (row,) = judge({"concurrent.ttft_p99_s": 1.1}, gate, [])
    assert row.failures == ("below-floor",)


def figures(bound: str | None = None, late: str | None = None) -> dict[str, Any]:
    return {
        "client": {"bound": bound, "late": late}, "decode_tok_s": {"median": 80.0}, "tok_s": {"median": 1000.0},
        "ttft_s": {"p50": 0.1, "p99": 0.2},
    }  # fmt: skip


def test_at_worst_an_answer_took_all_its_time_for_its_tokens() -> None:
    late = {**figures("lag"), "requests": 3, "failed": 1, "completion_tokens": 22, "e2e_s": {"p50": 0.5}}
    assert at_worst({"single": late}) == {"single.decode_tok_s": 20.0, "single.ttft_s": 0.1}
    # the first token and the last were noticed at once
    assert at_worst({"single": {**late, "decode_tok_s": None}})["single.decode_tok_s"] == 20.0
    assert at_worst({"single": {**figures("lag"), "decode_tok_s": None, "e2e_s": None}}) == {"single.ttft_s": 0.1}


def test_metrics_of_what_was_measured() -> None:
    throughput = {"single": figures(), "concurrent": figures(), "prefill": [{"length": 512, **figures()}]}
    assert metrics_of(throughput) == {
        "single.decode_tok_s": 80.0, "single.ttft_s": 0.1, "concurrent.tok_s": 1000.0, "concurrent.ttft_s": 0.1,
        "concurrent.ttft_p99_s": 0.2, "prefill.512.ttft_s": 0.1,
    }  # fmt: skip
    assert metrics_of({"single": figures("lag"), "concurrent": figures()}).keys() == {
        "concurrent.tok_s", "concurrent.ttft_s", "concurrent.ttft_p99_s",
    }  # fmt: skip
    assert metrics_of({"single": figures(late="lag")}) == {"single.decode_tok_s": 80.0}
    assert metrics_of({}) == {}


def test_only_runs_that_passed_are_a_baseline() -> None:
    lines = [history_line(KEY, {TOK: value}, when="t", passed=passed) for value, passed in ((80, True), (40, False))]
    history = read_history("".join(lines))
    assert (history.baseline, history.runs, history.damaged) == ([{TOK: 80.0}], 2, 0)


def test_a_torn_line_is_left_out_and_counted() -> None:
    line = history_line(KEY, {TOK: 80.0}, when="t", passed=True)
    nothing = line.replace("80.0", "NaN")
    deep = "[" * 100_000
    history = read_history(f'{line}{line[:30]}\n[]\n{{"metrics": {{"a": "x"}}}}\n\n{nothing}{deep}\n{line}')
    assert (len(history.baseline), history.damaged) == (2, 5)


@given(st.text(max_size=200))
def test_no_text_breaks_the_history(text: str) -> None:
    read_history(text)


def test_file_names_are_readable_and_apart() -> None:
    name = KEY.file_name
    assert name.startswith("sglang-Model-1-")
    assert name.endswith(".jsonl")
    others = [Key(**{**vars(KEY), part: "other"}).file_name for part in vars(KEY)]
    assert len({name, *others}) == 7
    assert "/" not in Key("h", "e", "../../etc/passwd", "r", "f", "s").file_name


def test_a_baseline_is_an_earlier_result() -> None:
    assert read_baseline({"gate": {"metrics": {TOK: 80}}}) == {TOK: 80.0}
    nan = {"gate": {"metrics": {TOK: float("nan")}}}
    for wrong in ({}, [], None, {"gate": {"metrics": {TOK: "fast"}}}, {"gate": {"metrics": [1]}}, nan):
        with pytest.raises(ValueError, match="no gate"):
            read_baseline(json.loads(json.dumps(wrong)))
