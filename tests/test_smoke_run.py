# SPDX-License-Identifier: Apache-2.0
"""Whole runs in this process: each fault of the misbehaving stand-in is caught and named, its sound ways are not."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest
from misbehaving_server import FAULTS, HEALTHY, MODEL, Server

from inference.smoke import Result, probes
from inference.smoke.client import Client
from inference.smoke.context import Context
from inference.smoke.gate import History
from inference.smoke.profile import STAGES, Profile, load_profile
from inference.smoke.run import Past, apply_gate, key_of, measure_again, run_stages, stages_for

PROFILE = {
    "model": MODEL,
    "engine": "sglang",
    "release": "0.5.23",
    "backends": {"attention_backend": "flashinfer", "tp_size": 8},
    "timeouts": {"control": 60, "health": 60, "first_token": 60, "stall": 60, "request": 300},
    "correctness": {"tokens": 32, "repeats": 2, "slow_first_token": 60},
    "load": {"output_tokens": 16, "repeats": 2, "concurrency": 8, "rates": [200], "rate_requests": 20, "sweep": [1, 4]},
    "prefill": {"lengths": [64, 100000], "repeats": 2},
    "client": {"max_lag_ms": 10000, "max_cpu_share": 10},
}
"""Short, and with limits that neighbours on the testing machine cannot trip."""


def limits(**seconds: float) -> dict[str, Any]:
    return {"timeouts": {**PROFILE["timeouts"], **seconds}}  # type: ignore[dict-item]


TRIPPED: dict[str, dict[str, Any]] = {
    "health-hangs": limits(health=1),
    "generation-hangs": limits(first_token=1.5),
    "hang-after-headers": limits(first_token=1.5),
    "stall": limits(stall=1.5),
    "too-slow": {**limits(request=5), "load": {**PROFILE["load"], "output_tokens": 32}},  # type: ignore[dict-item]
    "slow-first-token": {"correctness": {**PROFILE["correctness"], "slow_first_token": 0.25}},  # type: ignore[dict-item]
}
"""The limit that a fault is to trip: a slow machine trips no other."""


def run(server: Server, depth: str = "default", key: str | None = None, **changes: Any) -> Result:
    profile = load_profile({**PROFILE, "engine": server.engine, **TRIPPED.get(str(server.fault), {}), **changes})
    ctx = Context(Client(server.url, api_key=key), profile, depth=depth)  # type: ignore[arg-type]
    if depth == "full":
        ctx.sweep, ctx.rates = profile.load.sweep, profile.load.rates
    return asyncio.run(run_stages(ctx, stages_for(ctx.depth)))


def worrying(result: Result) -> list[str]:
    return [f.id for f in result.report.findings if f.level != "info"]


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_caught_and_named_first(fault: str) -> None:
    with Server(fault) as server:
        result = run(server)
    assert worrying(result)[:1] == [FAULTS[fault]], [dataclasses.astuple(f) for f in result.report.findings]
    assert result.report.exit_code == (1 if result.report.ok else 2)


@pytest.mark.parametrize("way", [None, *HEALTHY])
def test_a_sound_server_is_quiet(way: str | None) -> None:
    with Server(way=way) as server:
        result = run(server)
    assert worrying(result) == [], [dataclasses.astuple(f) for f in result.report.findings]
    assert [s.status for s in result.stages] == ["skipped" if s == "soak" else "passed" for s in STAGES]


@pytest.mark.parametrize("fault", ["generation-hangs", "health-503", "repeated-token", "status-503", "wrong-model"])
def test_the_quick_run_catches_what_kills(fault: str) -> None:
    with Server(fault) as server:
        result = run(server, "quick")
    assert worrying(result)[:1] == [FAULTS[fault]]


def test_the_quick_run_is_quick_and_measures_nothing() -> None:
    with Server() as server:
        result = run(server, "quick")
        assert 0 < server.count <= 8
    assert result.report.exit_code == 0
    assert result.throughput == {}
    assert [s.name for s in result.stages if s.status == "passed"] == ["reachable", "health", "identity", "correctness"]


def test_health_200_while_generation_hangs_is_told_from_unhealthy() -> None:
    with Server("generation-hangs") as server:
        result = run(server)
    health = next(s for s in result.stages if s.name == "health")
    assert health.status == "passed"
    assert "no-answer" in worrying(result)


def test_vllm_is_recognised_by_itself_and_has_no_settings_to_compare() -> None:
    with Server(engine="vllm") as server:
        result = run(server)
    assert worrying(result) == []
    assert (result.facts["engine"], result.facts["release"]) == ("vllm", "0.5.23")
    assert "backend tp_size" in {entry.id for entry in result.report.not_checked}


@pytest.mark.parametrize(
    ("answered", "meant", "wrong"),
    [
        ("0.33.0", "0.33.0", []),
        ("0.33.0+cu130", "0.33.0", []),
        ("0.33.0+cu130", "0.33.0+cu130", []),
        ("0.33.0+cu129", "0.33.0+cu130", ["wrong-release"]),
        ("0.33.0", "0.33.0+cu130", ["wrong-release"]),
        ("0.33.1+cu130", "0.33.0", ["wrong-release"]),
    ],
)
def test_a_build_of_a_release_is_that_release(answered: str, meant: str, wrong: list[str]) -> None:
    ctx = Context(Client("http://127.0.0.1:1"), load_profile({"release": meant}))
    probes._compare_release(ctx, answered)
    assert worrying(ctx.result) == wrong


def test_a_failing_stage_stops_the_later_ones_but_not_the_look_at_the_host() -> None:
    with Server("silent-truncation") as server:
        result = run(server)
    assert {s.name: s.status for s in result.stages} == {
        "reachable": "passed", "health": "passed", "identity": "passed", "correctness": "failed",
        "single": "skipped", "concurrent": "skipped", "prefill": "skipped", "soak": "skipped", "after": "passed",
    }  # fmt: skip
    assert {"single", "concurrent", "prefill"} <= {entry.id for entry in result.report.not_checked}


def test_a_stage_that_takes_too_long_is_named() -> None:
    with Server("stall") as server:
        timeouts = {**PROFILE["timeouts"], "stall": 30, "stages": {"correctness": 0.5}}
        result = run(server, timeouts=timeouts)
    assert worrying(result) == ["stage-timeout"]


def test_failed_requests_are_counted_apart_from_figures() -> None:
    # The stand-in fails from its tenth request on: correctness has to be over by then.
    with Server("every-fifth-truncated") as server:
        result = run(server, correctness={"leak_streams": 0, "repeats": 1, "golden": []})
    row = result.throughput["concurrent"]
    assert row["failures"] == {"truncated": row["failed"]}
    assert 0 < row["failed"] < row["requests"]
    assert row["completion_tokens"] == (row["requests"] - row["failed"]) * 16


def test_chunks_are_not_tokens() -> None:
    with Server(way="tokens-in-chunks") as server:
        row = run(server).throughput["single"]
    assert row["tokens_per_chunk"] == pytest.approx(4)
    assert row["completion_tokens"] == 2 * 16


def test_peculiarities_of_a_sound_server_are_named() -> None:
    names = {"tokens-in-chunks": "several-tokens-in-a-chunk", "reasoning-first": "reasoning-first"}
    for way, name in names.items():
        with Server(way=way) as server:
            assert [f.id for f in run(server).report.findings] == [name]


def test_the_first_token_may_be_reasoning() -> None:
    with Server(way="reasoning-first") as server:
        assert run(server).throughput["single"]["begins_with"] == "reasoning"


def test_full_runs_sweep_and_open_loop() -> None:
    with Server() as server:
        result = run(server, "full")
    assert [row["concurrency"] for row in result.throughput["sweep"]] == [1, 4]
    (open_loop,) = result.throughput["open_loop"]
    assert (open_loop["rate"], open_loop["requests"], open_loop["failed"]) == (200, 20, 0)


def test_an_open_loop_that_nobody_set_up_is_said() -> None:
    with Server() as server:
        result = run(server, "full", load={**PROFILE["load"], "rates": []})
    assert "open_loop" not in result.throughput
    assert "open loop" in {entry.id for entry in result.report.not_checked}


def test_prompt_lengths_are_capped_by_the_context_and_about_right() -> None:
    with Server() as server:
        result = run(server)
    rows = result.throughput["prefill"]
    assert [row["length"] for row in rows] == [64, 7364]
    for row in rows:
        assert row["prompt_tokens"] == pytest.approx(row["length"], rel=0.25)
    assert "prefill lengths" in {entry.id for entry in result.report.not_checked}


@pytest.mark.parametrize("fault", [None, "status-503"])
def test_the_key_is_sent_and_never_shown(fault: str | None) -> None:
    with Server(fault) as server:
        result = run(server, key="sk-secret-of-mine")
        assert server.keys == {"Bearer sk-secret-of-mine"}
    shown = json.dumps(result.as_dict()) + result.as_text()
    assert "sk-secret-of-mine" not in shown
    assert "sk-of-the-server" not in shown


def test_an_unreachable_server_stops_everything() -> None:
    server = Server()
    server.url = "http://127.0.0.1:1"
    result = run(server)
    assert worrying(result) == ["unreachable"]
    assert result.report.exit_code == 2


def test_a_client_that_is_the_limit_says_so_and_has_no_figures_for_the_gate() -> None:
    with Server() as server:
        result = run(server, client={"max_cpu_share": 0.01})
    assert set(worrying(result)) == {"client-bound"}
    assert result.report.exit_code == 3
    gated(result, floors={"concurrent.tok_s": 1e9})
    assert result.gate["metrics"] == {}
    assert worrying(result)[-1] == "floor-unknown"


def test_floors_that_hold_whatever_the_client_did_are_an_answer_without_figures() -> None:
    with Server() as server:
        result = run(server, client={"max_cpu_share": 0.01})
    gated(result, floors={"concurrent.tok_s": 1, "single.decode_tok_s": 0.1})
    assert (set(worrying(result)), result.report.exit_code) == ({"client-bound"}, 1)
    assert result.gate["metrics"] == {}
    assert "figure concurrent.tok_s" in {entry.id for entry in result.report.not_checked}


def test_a_late_client_gates_no_first_tokens() -> None:
    with Server(delay=0.01) as server:
        result = run(
            server, client={"max_lag_ms": 0.1, "max_lag_share_ttft": 0, "max_lag_share_e2e": 10, "max_cpu_share": 10}
        )
    assert worrying(result) == []
    assert "client-late" in [f.id for f in result.report.findings]
    apply_gate(result, Profile(), Past(History()))
    assert set(result.gate["metrics"]) == {"single.decode_tok_s", "concurrent.tok_s"}


def gated(result: Result, **gate: Any) -> bool:
    return apply_gate(result, load_profile({"gate": gate}), Past(History()))


def test_the_gate_uses_floors_and_shows_targets() -> None:
    with Server(delay=0.01) as server:
        result = run(server)
    assert gated(result, floors={"single.decode_tok_s": 10}, targets={"single.decode_tok_s": 1000})
    assert result.gate["verdict"] == "baseline"
    row = next(r for r in result.gate["rows"] if r["metric"] == "single.decode_tok_s")
    assert row["target"]["better_by_percent"] < -80
    assert row["floor"]["better_by_percent"] > 100
    assert "baseline-recorded" in [f.id for f in result.report.findings]
    assert not gated(result, floors={"single.decode_tok_s": {"value": 1000, "source": "a report"}})
    (finding,) = [f for f in result.report.findings if f.id == "below-floor"]
    assert "a report" in finding.expected
    assert result.report.exit_code == 2


def test_a_regression_fails_and_names_both_figures() -> None:
    with Server(delay=0.01) as server:
        result = run(server)
        now = result.gate
    assert now == {}
    past = Past(History([{"single.decode_tok_s": 1000.0}, {"single.decode_tok_s": 1010.0}] * 3, 6))
    assert not apply_gate(result, Profile(), past)
    assert worrying(result) == ["regression"]
    assert result.gate["verdict"] == "fail"


def test_a_decline_on_a_disturbed_host_warns_and_is_no_baseline() -> None:
    with Server(delay=0.01) as server:
        result = run(server)
    result.throughput["single"]["engine_wait"] = 0.9
    past = Past(History([{"single.decode_tok_s": 1000.0}] * 9, 9))
    assert not apply_gate(result, Profile(), past)
    (finding,) = [f for f in result.report.findings if f.id == "regression"]
    assert (finding.level, result.report.ok, result.gate["verdict"]) == ("warning", True, "pass")
    assert "kept the engine's threads waiting for 90% of their time" in finding.expected


def test_without_a_unit_nobody_knows_how_the_engine_waited() -> None:
    with Server() as server:
        assert run(server).throughput["single"]["engine_wait"] is None


def test_a_regression_against_few_runs_warns_and_says_why() -> None:
    with Server(delay=0.01) as server:
        result = run(server)
    assert apply_gate(result, Profile(), Past(History([{"single.decode_tok_s": 1000.0}] * 4, 4)))
    (finding,) = [f for f in result.report.findings if f.id == "regression"]
    assert (finding.level, result.report.exit_code, result.gate["verdict"]) == ("warning", 1, "pass")
    assert "of 4 runs); below 5 runs it only warns" in finding.expected


def test_a_baseline_that_is_named_counts_by_itself_and_instead_of_the_history() -> None:
    with Server(delay=0.01) as server:
        result = run(server)
    slow = History([{"single.decode_tok_s": 1.0}] * 9, 9)
    assert not apply_gate(result, Profile(), Past(slow, {"single.decode_tok_s": 1000.0}))
    assert worrying(result) == ["regression"]


def again(server: Server, past: Past, **changes: bool) -> Result:
    """Run the speed stages, the first time disturbed (at most 5 tokens a second), and what follows from that."""
    rule = {"again": changes.pop("again", True)}
    load = {**PROFILE["load"], "output_tokens": 6}  # type: ignore[dict-item]
    profile = load_profile({**PROFILE, "load": load, "gate": {"regression": rule}})
    ctx = Context(Client(server.url), profile)
    usual, server.delay = server.delay, 0.2
    asyncio.run(run_stages(ctx, ("reachable", "identity", "single", "concurrent")))
    server.delay = usual
    asyncio.run(measure_again(ctx, past))
    apply_gate(ctx.result, profile, past)
    return ctx.result


@pytest.mark.parametrize(("second", "said"), [(10, []), (0.01, ["client-bound"])])
def test_a_stage_that_the_client_was_too_busy_for_is_measured_again(second: float, said: list[str]) -> None:
    tight = load_profile({**PROFILE, "client": {"max_cpu_share": 0.01}})
    with Server() as server:
        ctx = Context(Client(server.url), tight, depth="default")
        asyncio.run(run_stages(ctx, ("single",)))
        assert worrying(ctx.result) == ["client-bound"]
        ctx.profile = load_profile({**PROFILE, "client": {"max_cpu_share": second}})
        ctx.client = Client(server.url)
        asyncio.run(measure_again(ctx, Past(History())))
    assert worrying(ctx.result) == said


def test_a_disturbance_is_measured_again_and_no_regression() -> None:
    with Server(delay=0.005) as server:
        result = again(server, Past(History([{"single.decode_tok_s": 10.0, "concurrent.tok_s": 1.0}] * 9, 9)))
    assert worrying(result) == []
    assert set(result.throughput["again"]) == {"single"}
    assert result.gate["metrics"]["single.decode_tok_s"] > 10
    assert result.throughput["single"]["decode_tok_s"]["median"] <= 5
    assert "single, again" in result.as_text()


def test_a_decline_is_still_there_when_measured_again() -> None:
    with Server(delay=0.2) as server:
        result = again(server, Past(History([{"single.decode_tok_s": 10.0}] * 9, 9)))
    assert worrying(result) == ["regression"]


def test_measuring_again_can_be_left_out_and_names_what_fails_then() -> None:
    past = Past(History([{"single.decode_tok_s": 10.0}] * 9, 9))
    with Server(delay=0.005) as server:
        result = again(server, past, again=False)
        assert (worrying(result), "again" in result.throughput) == (["regression"], False)
        server.fault = "no-usage"
        assert "no-usage" in worrying(again(server, past))


def test_a_floor_that_was_not_measured_is_not_passed_over() -> None:
    with Server() as server:
        result = run(server, "quick")
    gated(result, floors={"concurrent.tok_s": 1})
    assert result.gate["verdict"] == "not-run"
    assert "floor concurrent.tok_s" in {entry.id for entry in result.report.not_checked}


def test_histories_are_kept_apart_by_what_changes_the_figures() -> None:
    with Server() as server:
        result = run(server, "quick")
    profile = load_profile(PROFILE)
    names = {
        key_of(result, dataclasses.replace(profile, fingerprint=f, load=dataclasses.replace(profile.load, repeats=r)))
        for f, r in (("a", 1), ("b", 1), ("a", 2))
    }
    assert len(names) == 2  # the number of repeats changes no figure
