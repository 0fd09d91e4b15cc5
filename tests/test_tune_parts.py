# SPDX-License-Identifier: Apache-2.0
"""Sizes from a model's config, candidates, pairs of GPUs, nccl-tests, the campaign, and the communication budget."""

import json
from pathlib import Path

import pytest

from inference.nccl import PROFILES
from inference.tune import (
    BASELINE,
    Candidate,
    CandidateError,
    Outcome,
    Plan,
    Result,
    Row,
    Shape,
    ShapeError,
    Size,
    base_of,
    lines,
    nccl_tests,
    pairs,
    quick,
    reason,
    results,
    run,
    run_pairs,
    shape_of,
    sizes,
    thorough,
    unique,
)
from inference.tune import candidates as tried
from inference.tune.launching import GroupRun
from inference.tune.outcome import judge
from inference.tune.protocol import Job, dtype_of, message

FIXTURES = Path(__file__).parent / "fixtures" / "tune"

# what a model sends


@pytest.mark.parametrize(
    ("config", "hidden", "layers"),
    [
        ({"hidden_size": 6144, "num_hidden_layers": 78, "torch_dtype": "bfloat16"}, 6144, 78),
        (
            {"text_config": {"hidden_size": 7168, "num_hidden_layers": 61, "dtype": "bfloat16"}, "hidden_size": 1},
            7168,
            61,
        ),
        ({"n_embd": 768, "n_layer": 12}, 768, 12),
        ({"d_model": 2048, "n_layers": 24, "torch_dtype": "torch.float32"}, 2048, 24),
    ],
)
def test_a_config_tells_what_is_sent(config, hidden, layers):
    shape = shape_of(config)
    assert (shape.hidden, shape.layers, shape.calls, shape.dtype_bytes) == (hidden, layers, 2 * layers, 2)
    assert shape.bytes_of(128) == 128 * hidden * 2
    assert Shape.from_dict(json.loads(json.dumps(shape.as_dict()))) == shape


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ([], "expected an object"),
        ({}, "no hidden_size and no n_embd"),
        ({"hidden_size": 8}, "no num_hidden_layers"),
        ({"hidden_size": True, "num_hidden_layers": 1}, "hidden_size is True"),
        ({"hidden_size": -8, "num_hidden_layers": 1}, "hidden_size is -8"),
        ({"hidden_size": 8, "num_hidden_layers": 1, "torch_dtype": "int4"}, "dtype is 'int4'"),
        ({"hidden_size": 10**40, "num_hidden_layers": 1, "architectures": 5}, "hidden is 1000"),
    ],
)
def test_a_config_that_does_not_tell_is_refused(config, words):
    with pytest.raises(ShapeError, match=words):
        shape_of(config)


def test_report_b_sizes_are_those_of_its_hidden_size():
    found = sizes(Shape(5632, 78), {"decode": (1,), "prefill": (128, 1024)})
    assert [(size.phase, size.bytes) for size in found] == [
        ("decode", 11_264),
        ("prefill", 1_441_792),
        ("prefill", 11_534_336),
    ]
    with pytest.raises(ShapeError, match="tokens is 0"):
        sizes(Shape(8, 1), {"decode": (0,)})
    with pytest.raises(ShapeError, match="tokens is empty"):
        sizes(Shape(8, 1), {})


@pytest.mark.parametrize("world", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("size", [1024, 1 << 20, 1 << 24, 1 << 28])
def test_the_sums_of_a_replay_stay_finite_in_a_brain_float(world, size):
    calls = message(size, world).calls
    assert calls >= 1
    largest = 6 * world + world * (world + 1) // 2
    assert largest * float(world) ** (calls - 1) < 2.0**127
    assert largest < 256  # exact


def test_large_messages_are_repeated_less():
    assert message(1024, 2).calls > message(1 << 24, 2).calls > message(1 << 25, 2).calls
    assert (dtype_of(2), dtype_of(4)) == ("bfloat16", "float32")


# candidates


def test_quick_candidates_are_the_profiles_that_a_service_can_have():
    assert {candidate.name for candidate in quick()} == set(PROFILES)
    assert all(candidate.environment == PROFILES[candidate.name].settings for candidate in quick())
    assert quick()[0] == Candidate(BASELINE, {})


@pytest.mark.parametrize("version", ["2.27.5", "2.28.9", "2.30.7"])
def test_no_candidate_is_refused_by_the_lint(version):
    for candidate in unique(thorough()):
        assert tried.refused(candidate, {"NCCL_NVLS_ENABLE": "0"}, version, None) == [], candidate.name


def test_the_lint_refuses_a_candidate_that_would_not_start():
    assert tried.refused(Candidate("a", {"NCCL_BUFFSIZE": "16M"}), {}, "2.28.9", None)


def test_a_candidate_can_be_given_by_hand():
    assert tried.parse("a:NCCL_PROTO=LL,NCCL_ALGO=Ring") == Candidate("a", {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"})
    for text in ("a", "a:", ":NCCL_PROTO=LL", "a:NCCL_PROTO", "a:PROTO=LL", "a:NCCL_PROTO="):
        with pytest.raises(CandidateError):
            tried.parse(text)


def test_a_value_may_hold_commas():
    assert tried.parse("x:NCCL_PROTO=LL,Simple,NCCL_ALGO=Ring").environment == {
        "NCCL_PROTO": "LL,Simple",
        "NCCL_ALGO": "Ring",
    }
    with pytest.raises(CandidateError, match="expected NAME"):
        tried.parse("x:Simple,NCCL_ALGO=Ring")


def test_a_name_that_no_release_reads_is_refused_with_the_nearest():
    with pytest.raises(CandidateError, match="did you mean 'NCCL_PROTO'"):
        tried.parse("x:NCCL_PROTOS=LL")
    assert tried.parse("x:NCCL_TUNER_CONFIG_FILE=/a").environment


def test_candidates_are_unique_and_the_own_choice_is_always_among_them():
    same = Candidate("same", PROFILES["latency"].settings)
    assert [c.name for c in unique([*tried.of_profiles(["latency"]), same])] == ["none", "latency"]
    with pytest.raises(CandidateError, match="two different"):
        unique([Candidate("a", {"NCCL_PROTO": "LL"}), Candidate("a", {"NCCL_PROTO": "Simple"})])


def test_the_callers_nccl_settings_hold_for_all_but_not_its_logging():
    others = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "x", "NCCL_VERSION": "2.28.3-1", "NCCL_BLOCKING_WAIT": "1"}
    assert base_of({"NCCL_NVLS_ENABLE": "0", "PATH": "/", **others}) == {"NCCL_NVLS_ENABLE": "0"}


# pairs

TOPOLOGY = {
    "gpu_ids": list(range(8)),
    "links": [["X" if i == j else "NODE" if i // 4 == j // 4 else "SYS" for j in range(8)] for i in range(8)],
}


def test_every_pair_has_its_link_class_and_no_gpu_is_used_twice_at_once():
    found = pairs.all_pairs(range(8), TOPOLOGY)
    assert len(found) == 28
    assert {(p.one // 4 == p.other // 4, p.link) for p in found} == {(True, "NODE"), (False, "SYS")}
    batches = pairs.rounds(found)
    assert sorted(p.name for batch in batches for p in batch) == sorted(p.name for p in found)
    assert all(len({gpu for p in batch for gpu in (p.one, p.other)}) == 2 * len(batch) for batch in batches)
    assert len(batches) <= 10
    assert [p.name for p in pairs.one_of_each_class(found)] == ["GPU0-GPU1 (NODE)", "GPU0-GPU4 (SYS)"]


def test_without_a_topology_pairs_are_of_an_unknown_class():
    assert {p.link for p in pairs.all_pairs(range(4), None)} == {"unknown"}
    assert {p.link for p in pairs.all_pairs((0, 9), TOPOLOGY)} == {"unknown"}


def pair_result(one, other, us=10.0, link="SYS", verdict="healthy"):
    return pairs.PairResult(pairs.Pair(one, other, link), verdict, "", {1024: us} if verdict == "healthy" else {})


def test_a_slow_pair_is_one_that_stands_out_in_its_own_class():
    normal = [pair_result(0, i) for i in range(1, 4)]
    assert pairs.slow([*normal, pair_result(1, 2, 14.0)]) == []
    assert [(r.pair.name, times) for r, _, times in pairs.slow([*normal, pair_result(1, 2, 20.0)])] == [
        ("GPU1-GPU2 (SYS)", 2.0)
    ]
    assert pairs.slow([*normal, pair_result(1, 2, 20.0, link="NODE")]) == []


def test_a_gpu_that_all_bad_pairs_share_has_a_name():
    assert pairs.common_gpu([pair_result(0, 3), pair_result(1, 3)]) == 3
    assert pairs.common_gpu([pair_result(0, 3)]) is None
    assert pairs.common_gpu([pair_result(0, 3), pair_result(1, 2)]) is None


# nccl-tests


def test_results_of_nccl_tests_are_judged_like_a_workers():
    text = (FIXTURES / "nccl_tests_hand_made.json").read_text()
    job = Job("nccl", (0, 1), "bfloat16", (message(14336, 2),), 3, 1, "/")
    log = "h:1:1 [0] NCCL INFO NCCL version 2.28.9\nh:1:1 [0] NCCL INFO NCCL_PROTO set by environment to LL.\n"
    seen = judge(GroupRun("done", 9.0, [nccl_tests.events(text, 14336)], [0], [log]), job, {"NCCL_PROTO": "LL"})
    assert (seen.verdict, seen.times) == ("healthy", {14336: [20.1, 20.3, 19.9]})
    assert seen.versions["nccl"] == "2.28.9"
    wrong = json.loads(text)
    wrong["results"][1]["in_place"]["nwrong"] = 12.0
    seen = judge(GroupRun("done", 9.0, [nccl_tests.events(json.dumps(wrong), 14336)], [0], [log]), job, {})
    assert seen.verdict == "wrong-data"
    assert "12 values at 14336 bytes" in seen.reason


def test_what_nccl_tests_really_writes_is_understood():
    found = nccl_tests.events((FIXTURES / "nccl_tests_one_gpu.json").read_text(), 14336)
    assert [event["event"] for event in found] == ["imported", "checking", "timed", "done"]
    assert (found[0]["nccl"], len(found[2]["us"]), found[2]["wrong"]) == ("2.28.9", 5, None)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"results": []}', '{"results": [{"in_place": null}]}'])
def test_what_nccl_tests_did_not_finish_is_no_result(text):
    assert nccl_tests.events(text, 1)[0]["event"] == "failed"


def test_unchecked_results_of_nccl_tests_are_no_result():
    unchecked = json.loads((FIXTURES / "nccl_tests_hand_made.json").read_text())
    for row in unchecked["results"]:
        row["in_place"]["nwrong"] = None
    assert nccl_tests.events(json.dumps(unchecked), 1)[0]["event"] == "failed"


def test_nccl_tests_runs_one_size_in_a_graph_with_checks_on_the_gpus_and_nccl_asked_for():
    job = Job("nccl", (4, 6), "bfloat16", (message(14336, 2),), 7, 3, "/")
    words = nccl_tests.command("/x/all_reduce_perf", job, job.messages[0], Path("/out.json"))
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert words[0] == "/x/all_reduce_perf"
    assert (options["-b"], options["-e"], options["-t"], options["-c"], options["-N"]) == (
        "14336",
        "14336",
        "2",
        "1",
        "7",
    )
    assert int(options["-G"]) > 0
    environment = nccl_tests.environment({"LD_LIBRARY_PATH": "/a"}, job.devices, "/release/nccl/lib")
    assert environment == {"CUDA_VISIBLE_DEVICES": "4,6", "LD_LIBRARY_PATH": "/release/nccl/lib:/a"}
    hidden = nccl_tests.environment({"CUDA_VISIBLE_DEVICES": "7,5,3"}, (0, 2), None)
    assert hidden == {"CUDA_VISIBLE_DEVICES": "7,3"}


# what NCCL says of a hang


def stalled(ras):
    before = [{"event": "imported"}, {"event": "initialised"}, {"event": "checking", "bytes": 14336}]
    job = Job("nccl", (0, 1), "bfloat16", (message(14336, 2),), 3, 1, "/")
    return judge(GroupRun("stalled", 9.0, [before, before], [None, None], ras=ras), job, {})


def test_the_rank_that_nccl_says_is_behind_is_named_though_both_look_busy():
    seen = stalled((FIXTURES / "ras_rank_behind.txt").read_text())
    assert seen.verdict == "hang"
    assert "at 14336 bytes; every rank" in seen.reason
    assert seen.reason.endswith("NCCL says that ranks 1 have launched 2 operations, others more")
    assert "MISMATCH" in seen.kept["ras"]


@pytest.mark.parametrize(
    "ras", [None, "", "Rank 0 has launched up to operation 5\nRank 1 has launched up to operation 5"]
)
def test_where_nccl_sees_no_difference_none_is_named(ras):
    assert "NCCL says" not in stalled(ras).reason


# the campaign

SIZES = (Size("decode", 1, 1024), Size("prefill", 9, 9216))
CANDIDATES = (Candidate("none"), Candidate("a", {"NCCL_PROTO": "LL"}), Candidate("b", {"NCCL_ALGO": "Ring"}))


class Host:
    """Measures with a clock of its own; ``verdicts`` by name, one after the other."""

    def __init__(self, verdicts=None, seconds=10.0):
        self.verdicts, self.seconds, self.now, self.ran = verdicts or {}, seconds, 0.0, []

    def clock(self):
        return self.now

    def __call__(self, what):
        self.ran.append(what.name)
        self.now += self.seconds
        verdict = (self.verdicts.get(what.name) or ["healthy"]).pop(0) if self.verdicts.get(what.name) else "healthy"
        times = {1024: [10.0], 9216: [90.0], 14336: [1.0], 1 << 24: [2.0]}
        return Outcome(verdict, "why", self.seconds, times if verdict == "healthy" else {})


def measured(host, **plan):
    chosen = Plan(CANDIDATES, SIZES, **plan)
    campaign = run(chosen, host, lambda _: None, clock=host.clock)
    return chosen, campaign


def test_rounds_run_there_and_back():
    host = Host()
    chosen, campaign = measured(host, rounds=2)
    assert host.ran == ["none", "a", "b", "b", "a", "none"]
    assert all(len(row.groups) == 2 for result in results(chosen, campaign) for row in result.rows)


def test_what_failed_once_is_not_run_again_and_keeps_its_verdict():
    host = Host({"a": ["hang"], "b": ["healthy", "wrong-data"]})
    chosen, campaign = measured(host, rounds=3)
    assert host.ran.count("a") == 1
    assert host.ran.count("b") == 2
    verdicts = {result.name: (result.verdict, len(result.rows)) for result in results(chosen, campaign)}
    assert verdicts == {"none": ("healthy", 2), "a": ("hang", 0), "b": ("wrong-data", 0)}


def in_doubt(*answers):
    """Return what names candidates, one answer a round, and nobody once these are used up."""
    left = list(answers)
    return lambda _campaign: left.pop(0) if left else []


def test_what_is_in_doubt_is_measured_again_with_what_it_is_compared_with():
    host = Host()
    chosen = Plan(CANDIDATES, SIZES, rounds=1)
    campaign = run(chosen, host, lambda _: None, doubtful=in_doubt(["none", "b"], ["none", None]), clock=host.clock)
    assert host.ran == ["none", "a", "b", "b", "none", "none"]
    groups = {result.name: len(result.rows[0].groups) for result in results(chosen, campaign)}
    assert groups == {"none": 3, "a": 1, "b": 2}


@pytest.mark.parametrize(("plan", "runs"), [({"most": 4}, 3 + 3 * 2), ({"seconds": 45.0}, 3), ({"seconds": 55.0}, 5)])
def test_doubt_ends_with_the_rounds_and_with_the_time(plan, runs):
    host = Host()
    run(
        Plan(CANDIDATES, SIZES, rounds=1, **plan),
        host,
        lambda _: None,
        doubtful=lambda _: ["none", "a"],
        clock=host.clock,
    )
    assert len(host.ran) == runs


def test_what_hangs_while_in_doubt_is_banned_and_ends_the_doubt():
    host = Host({"b": ["healthy", "hang"]})
    chosen = Plan(CANDIDATES, SIZES, rounds=1)
    campaign = run(chosen, host, lambda _: None, doubtful=in_doubt(["none", "b"]), clock=host.clock)
    assert results(chosen, campaign)[2].verdict == "hang"


def test_time_that_is_over_ends_it_and_says_what_was_left_out():
    chosen, campaign = measured(Host(seconds=100.0), rounds=2, seconds=250.0)
    assert campaign.left_out == {
        "b": "1 of 2 rounds within 250 s",
        "a": "1 of 2 rounds within 250 s",
        "none": "1 of 2 rounds within 250 s",
    }
    chosen, campaign = measured(Host(seconds=200.0), seconds=250.0)
    assert "not run" in campaign.left_out["b"]
    assert results(chosen, campaign)[2].verdict == "inconclusive"


@pytest.mark.parametrize(("how", "count"), [("none", 0), ("classes", 2), ("all", 28)])
def test_pairs_are_measured_as_planned(how, count):
    host = Host()
    chosen, campaign = measured(host, pairs=how)
    run_pairs(chosen, campaign, range(8), TOPOLOGY, measure=host, say=lambda _: None)
    assert len(campaign.pairs) == count


def test_where_the_own_choice_fails_every_pair_is_measured():
    host = Host({"none": ["hang"]})
    chosen, campaign = measured(host, pairs="none")
    run_pairs(chosen, campaign, range(4), TOPOLOGY, measure=host, say=lambda _: None)
    assert len(campaign.pairs) == 6


# the budget


def test_the_budget_shows_the_measured_time_beside_the_formula_and_says_why_they_differ():
    rows = (Row("decode", 1, 11_264, ((30.0,),)), Row("prefill", 1024, 11_534_336, ((800.0,),)))
    budget = lines(Shape(5632, 78), Result("none", {}, "healthy", "", rows), 8, bandwidth=63.0, step_ms=15.7)
    first, last = budget
    assert first.calls == 156
    assert first.bandwidth_us == pytest.approx(0.31, abs=0.01)
    assert first.forward_measured_ms == pytest.approx(4.68)
    assert first.forward_bandwidth_ms == pytest.approx(0.05, abs=0.01)
    assert first.share_of_step == pytest.approx(4.68 / 15.7)
    assert last.share_of_step is None
    assert last.times_the_formula == pytest.approx(800 / 320.4, rel=0.01)
    why = reason(budget, 8)
    assert "14 steps" in why
    assert "30.0 us measured against 0.31 us" in why


def test_without_a_bandwidth_there_is_no_formula():
    rows = (Row("decode", 1, 11_264, ((30.0,),)),)
    budget = lines(Shape(5632, 78), Result("none", {}, "healthy", "", rows), 8)
    assert budget[0].bandwidth_us is None
    assert budget[0].times_the_formula is None
    assert "give the bandwidth" in reason(budget, 8)
