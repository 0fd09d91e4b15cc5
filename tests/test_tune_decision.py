# SPDX-License-Identifier: Apache-2.0
"""The choice, on published and recorded figures and on made-up ones that sit just at each side of a rule."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from inference.tune import DecisionError, Result, Row, Workload, decide, findings, goal, in_doubt, read_results

FIXTURES = Path(__file__).parent / "fixtures" / "tune"


def recorded(name):
    return [Result.from_dict(entry) for entry in json.loads((FIXTURES / name).read_text())["results"]]


def result(name="none", decode=(20.0,), prefill=(1000.0,), *, settings=1, jitter=0.0, verdict="healthy", groups=2):
    def rows(phase, figures, scale):
        made = tuple(tuple(us * (1 + jitter * ((group + i) % 2)) for i in range(5)) for us in figures for group in [0])
        return [
            Row(phase, scale * (i + 1), scale * (i + 1) * 14336, (replays,) * groups) for i, replays in enumerate(made)
        ]

    environment = {} if name == "none" else {f"NCCL_X{i}": "1" for i in range(settings)}
    healthy = verdict == "healthy"
    all_rows = (*rows("decode", decode, 1), *rows("prefill", prefill, 1000)) if healthy else ()
    return Result(name, environment, verdict, "" if healthy else "it failed", all_rows)


def status(decision, name):
    return decision.named(name).status


# published and recorded figures


def test_the_published_ring_order_wins_on_eight_cards():
    decision = decide(recorded("published_8gpu.json"), 0.8)
    assert decision.chosen == "ring-order"
    standing = decision.named("ring-order")
    assert standing.decode == pytest.approx((26.2 / 48.2 * 25.6 / 48.7 * 32.1 / 51.6 * 37.3 / 56.5) ** 0.25)
    assert standing.prefill == pytest.approx(22.2 / 37.6, rel=1e-3)
    assert decision.as_dict()["goal"]["decode"]["met"]


def test_a_kernel_that_was_published_for_small_messages_only_is_not_chosen():
    decision = decide(recorded("published_4gpu_one_shot.json"), 0.8)
    assert decision.chosen is None
    assert status(decision, "one-shot") == "inconclusive"
    assert "no prefill size was measured" in decision.reason


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 1.0, Workload(), Workload(prompt=100, output=10_000)])
def test_ll_is_never_chosen_on_what_was_recorded_however_decode_weighs(share):
    decision = decide(recorded("h200x2_shm.json"), share)
    assert status(decision, "proto-ll") in ("loses", "trade")
    assert decision.chosen != "proto-ll"
    assert "21.0 to" not in decision.named("proto-ll").reason  # the worst size is named, not the harmless one


def test_within_noise_is_no_win_on_what_was_recorded():
    decision = decide(recorded("h200x2_shm.json"), Workload())
    assert status(decision, "ring") == "within-noise"
    assert status(decision, "balanced") in ("within-noise", "loses")


H200 = Path(__file__).parent.parent / "bench" / "results" / "tune" / "h200x2"


def measured(*names):
    """Return what was measured on two H200, the groups of several runs taken together."""
    documents = [json.loads((H200 / f"{name}.json").read_text())["results"] for name in names]
    for first, *others in zip(*documents, strict=True):
        for other in others:
            for row, more in zip(first["rows"], other["rows"], strict=True):
                row["groups"] += more["groups"]
    return [Result.from_dict(entry) for entry in documents[0]]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["p2p-on-1"], "none"),
        (["p2p-on-2"], "none"),
        (["p2p-off-1"], "throughput"),
        (["p2p-off-2"], "throughput"),
        (["p2p-off-two-groups-1", "p2p-off-two-groups-2"], "throughput"),
    ],
)
def test_two_runs_on_the_same_two_gpus_choose_the_same(names, chosen):
    decision = decide(measured(*names), Workload())
    assert decision.chosen == chosen, decision.as_dict()
    assert status(decision, "latency") == "loses"
    assert all(part["met"] for part in goal(decision).values())


def test_the_two_groups_that_chose_differently_would_be_measured_again_now():
    assert in_doubt(decide(measured("p2p-off-two-groups-2"), Workload())) == ["throughput"]


def test_nccl_takes_ll_at_decode_sizes_by_itself():
    """Which is why setting it gains nothing there."""
    outcomes = json.loads((H200 / "p2p-off-1.json").read_text())["outcomes"]
    used = next(o["proof"]["used"] for o in outcomes if o["candidate"] == "none")
    assert used["AllReduce RING LL"]["largest"] == 229_376
    assert used["AllReduce RING SIMPLE"]["smallest"] == 29_360_128


# the rules, at each side


@pytest.mark.parametrize(("ours", "expected"), [(0.969, "wins"), (0.972, "within-noise"), (1.029, "within-noise")])
def test_a_win_has_to_be_beyond_the_floor(ours, expected):
    decision = decide([result(), result("a", (20 * ours,), (1000 * ours,))], 0.5)
    assert status(decision, "a") == expected
    assert decision.chosen == ("a" if expected == "wins" else "none")


@pytest.mark.parametrize(("jitter", "chosen"), [(0.0, "a"), (0.1, "a"), (0.4, "none")])
def test_a_win_has_to_be_beyond_the_noise_of_this_host(jitter, chosen):
    decision = decide([result(jitter=jitter), result("a", (18.0,), (900.0,), jitter=jitter)], 0.5)
    assert decision.chosen == chosen, decision.as_dict()


def test_groups_that_differ_are_noise_even_where_each_is_steady():
    unsteady = [
        Row(p, n, n * 2, ((us,) * 5, (us * 1.3,) * 5)) for p, n, us in (("decode", 1, 20.0), ("prefill", 9, 90.0))
    ]
    better = [Row(p, n, n * 2, ((us * 0.9,) * 5,) * 2) for p, n, us in (("decode", 1, 20.0), ("prefill", 9, 90.0))]
    decision = decide(
        [Result("none", {}, "healthy", "", tuple(unsteady)), Result("a", {}, "healthy", "", tuple(better))], 0.5
    )
    assert decision.chosen == "none"
    assert decision.named("a").noise > 0.2


def grouped(name, medians):
    """Return a result of one replay a group: a decode size with ``medians`` and a steady prefill size."""
    rows = (
        Row("decode", 1, 2, tuple((us,) for us in medians)),
        Row("prefill", 9, 18, tuple((90.0,) for _ in medians)),
    )
    return Result(name, {} if name == "none" else {"NCCL_X": "1"}, "healthy", "", rows)


def test_more_groups_tell_what_two_leave_in_doubt():
    two = decide([grouped("none", (22.8, 25.3)), grouped("a", (22.0, 22.1))], 1.0)
    assert (two.chosen, in_doubt(two)) == ("none", ["a"])
    six = decide([grouped("none", (22.8, 25.3, 25.2, 25.3, 25.1, 25.2)), grouped("a", (22.0, 22.1) * 3)], 1.0)
    assert (six.chosen, in_doubt(six)) == ("a", [])


def test_that_groups_differ_is_a_property_of_the_host_which_lucky_ones_share():
    """Groups live at 22.9 or 25.3 us, as on two H200: one candidate that twice had the former gains nothing by that."""
    others = [grouped("b", (22.8, 25.3)), grouped("c", (25.3, 22.9))]
    lucky = decide([grouped("none", (25.1, 25.5)), grouped("a", (22.9, 23.0)), *others], 1.0)
    assert (lucky.chosen, status(lucky, "a")) == ("none", "within-noise")
    assert "a" in in_doubt(lucky)
    steady = [grouped("b", (25.2, 25.3)), grouped("c", (25.3, 25.2))]
    assert decide([grouped("none", (25.1, 25.5)), grouped("a", (22.9, 23.0)), *steady], 1.0).chosen == "a"


def test_single_groups_do_not_tell_how_groups_differ():
    alone = decide([grouped("none", (25.3,)), grouped("a", (22.9,))], 1.0)
    assert (alone.chosen, in_doubt(alone)) == ("none", ["a"])
    assert decide([grouped("none", (25.3,)), grouped("a", (20.0,))], 1.0).chosen == "a"


def test_two_groups_count_with_their_whole_distance_and_stray_replays_with_nothing():
    assert Row("decode", 1, 2, ((20.0,), (22.0,))).noise == pytest.approx(2 / 21)
    assert Row("decode", 1, 2, ((20.0,) * 12 + (50.0,) * 3,)).noise == 0.0
    assert Row("decode", 1, 2, ((20.0,) * 8 + (24.0,) * 7,)).noise == pytest.approx(0.1)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99, 1.0])
def test_a_trade_is_offered_with_both_figures_and_never_taken(share):
    decision = decide([result(), result("a", (10.0,), (2000.0,)), result("b", (40.0,), (500.0,))], share)
    assert decision.chosen == "none"
    assert [standing.name for standing in decision.at("trade")] == ["a", "b"]
    assert "decode -50.0%, prefill +100.0%" in decision.named("a").reason
    assert "decode +100.0%, prefill -50.0%" in decision.named("b").reason


def test_a_loss_at_one_size_is_not_hidden_by_gains_at_the_others():
    decision = decide([result(decode=(20, 20, 20)), result("a", decode=(10, 10, 22))], 0.9)
    assert status(decision, "a") == "trade"
    assert "3 tokens 20.0 to 22.0 us" in decision.named("a").reason


@pytest.mark.parametrize("verdict", ["hang", "wrong-data"])
def test_the_fastest_is_banned_when_it_fails(verdict):
    decision = decide([result(), result("a", verdict=verdict)], 0.5)
    assert (status(decision, "a"), decision.chosen) == ("banned", "none")


def test_where_the_own_choice_hangs_the_next_healthy_one_is_recommended():
    decision = decide([result(verdict="hang"), result("a"), result("b", (10.0,), (500.0,))], 0.5)
    assert (decision.reference, decision.chosen) == ("a", "b")
    decision = decide([result(verdict="hang"), result("a")], 0.5)
    assert decision.chosen == "a"
    assert "banned" in decision.reason


@pytest.mark.parametrize(
    "results",
    [
        [result(verdict="inconclusive"), result("a")],
        [result(verdict="hang"), result("a", verdict="wrong-data")],
        [result(prefill=())],
    ],
)
def test_nothing_is_chosen_where_nothing_can_be(results):
    decision = decide(results, 0.5)
    assert decision.chosen is None
    assert decision.environment == {}
    assert decision.as_dict()["goal"] is None


def test_of_those_that_can_not_be_told_apart_the_one_with_fewer_settings_is_chosen():
    many, few = result("many", (10.0,), (500.0,), settings=4), result("few", (10.1,), (503.0,), settings=1)
    assert decide([result(), many, few], 0.5).chosen == "few"
    far = result("far", (14.0,), (700.0,), settings=1)
    assert decide([result(), many, far], 0.5).chosen == "many"


def test_the_goal_compares_with_the_best_decode_and_the_own_prefill():
    decision = decide([result(), result("a", (10.0,), (2000.0,))], 0.5)
    assert goal(decision)["decode"] == {"ratio": 2.0, "to": "a", "noise": 0.03, "met": False}
    assert goal(decision)["prefill"]["met"]


def test_a_goal_that_is_missed_is_said_with_what_could_help():
    decision = decide([result(), result("a", (10.0,), (2000.0,))], 0.5)
    said = {finding.id: finding for finding in findings([], decision, (), ()).findings}
    assert "decode +100.0% against a (missed" in said["tune-goal"].seen
    assert "pcie-ipc" in said["tune-goal"].fix
    met = decide([result(), result("b", (19.8,), (1000.0,))], 0.5)
    assert "tune-goal" not in {finding.id for finding in findings([], met, (), ()).findings}


def test_what_noise_hides_is_not_missed():
    unsteady = decide([grouped("none", (20.0, 24.0)), grouped("a", (20.0, 21.0))], 0.5)
    assert unsteady.chosen == "none"
    assert goal(unsteady)["decode"]["met"]
    assert goal(unsteady)["decode"]["ratio"] > 1.03


def test_without_the_own_choice_there_is_nothing_to_compare_with():
    with pytest.raises(DecisionError, match="none"):
        decide([result("a")], 0.5)
    with pytest.raises(DecisionError, match="expected 0 to 1"):
        decide([result()], 1.5)


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"name": "a", "environment": {}, "verdict": "healthy", "rows": [{"phase": "decode"}]},
        {
            "name": "a",
            "environment": {},
            "verdict": "healthy",
            "rows": [{"phase": "decode", "tokens": 1, "bytes": 2, "groups": [[0.0]]}],
        },
    ],
)
def test_what_is_no_result_is_refused(entry):
    with pytest.raises(DecisionError):
        Result.from_dict(entry)


@pytest.mark.parametrize(
    "row",
    [
        {"phase": "neither"},
        {"tokens": 0},
        {"bytes": 10**400},
        {"groups": [[10**400]]},
        {"groups": [[float("inf")]]},
        {"groups": [[float("nan")]]},
    ],
)
def test_what_is_no_message_is_refused(row):
    entry = result().as_dict()
    entry["rows"][0] |= row
    with pytest.raises(DecisionError):
        Result.from_dict(entry)


def test_candidates_of_one_run_have_the_same_messages():
    one, other = result().as_dict(), result("latency").as_dict()
    assert len(read_results([one, other])) == 2
    other["rows"].pop()
    with pytest.raises(DecisionError, match="same sizes"):
        read_results([one, other])


def test_a_result_survives_json():
    one = result(jitter=0.1)
    assert Result.from_dict(json.loads(json.dumps(one.as_dict()))) == one


# the weight of decode


def test_the_share_of_decode_follows_from_the_workload():
    one = result(decode=(20.0,), prefill=(2000.0,))  # a chunk is 1000 tokens
    assert Workload(prompt=1000, output=100).decode_share(one) == pytest.approx(0.5)
    assert Workload(prompt=10_000, output=100).decode_share(one) == pytest.approx(1 / 11)
    assert Workload(prompt=1000, output=100, streams=1000).decode_share(one) == pytest.approx(200 / 2200)
    with pytest.raises(DecisionError, match="prompt is 0"):
        Workload(prompt=0)


@hypothesis_settings(deadline=None)  # a busy machine is no failure
@given(factors=st.lists(st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)), min_size=1, max_size=5), share=st.floats(0, 1))
def test_what_is_chosen_is_worse_nowhere(factors, share):
    others = [result(f"c{i}", (20 * d,), (1000 * p,), settings=i + 1) for i, (d, p) in enumerate(factors)]
    decision = decide([result(), *others], share)
    chosen = decision.named(decision.chosen)
    assert chosen.decode <= 1.03 + 1e-9
    assert chosen.prefill <= 1.03 + 1e-9
    assert decision.chosen == "none" or chosen.score < 0.97
