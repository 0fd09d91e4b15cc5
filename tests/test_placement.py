# SPDX-License-Identifier: Apache-2.0
"""Where instances run: GPUs by NUMA node, and nothing shared."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import claims, ports, topology
from inference.placement import Machine, Placement, PlacementError, Wanted, place

ROOT = Path(__file__).resolve().parent.parent
RECORDED = topology.parse((ROOT / "tests/fixtures/hosts/rtx-pro-6000-x8/topo_m.txt").read_text())
TWO_SOCKETS = Machine(
    gpu_nodes=tuple(int(node) for node in RECORDED["numa_per_gpu"]),
    links=RECORDED["links"],
    node_cpus={0: "0-63,128-191", 1: "64-127,192-255"},
)


def wanted(*sizes: int) -> list[Wanted]:
    return [Wanted(f"i{n}", size) for n, size in enumerate(sizes)]


def gpus(placed: dict[str, Placement]) -> list[list[int]]:
    return [list(place.gpus) for place in placed.values()]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([8], [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ([4, 4], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([2, 2, 2, 2], [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ([1] * 8, [[n] for n in range(8)]),
        ([1, 4, 2], [[6], [0, 1, 2, 3], [4, 5]]),
        ([2, 4], [[4, 5], [0, 1, 2, 3]]),
        ([3, 3], [[0, 1, 2], [4, 5, 6]]),
    ],
)
def test_the_layouts_of_eight_gpus_on_two_sockets(sizes: list[int], expected: list[list[int]]):
    placed = place(wanted(*sizes), TWO_SOCKETS)
    assert gpus(placed) == expected


def test_inside_a_node_the_unit_binds_and_across_nodes_the_engine_does():
    small, large = place(wanted(4), TWO_SOCKETS)["i0"], place(wanted(8), TWO_SOCKETS)["i0"]
    assert (small.node, small.cpus, small.spans) == (0, "0-63,128-191", False)
    assert (large.node, large.cpus, large.spans) == (None, "", True)
    assert large.gpu_nodes == (0, 0, 0, 0, 1, 1, 1, 1)


def test_gpus_that_are_named_are_kept_and_others_go_around_them():
    placed = place([Wanted("free", 4), Wanted("fixed", 2, (1, 5))], TWO_SOCKETS)
    assert placed["fixed"].gpus == (1, 5)
    assert placed["fixed"].spans
    assert placed["free"].gpus == (0, 2, 3, 4)  # no node has four left
    placed = place([Wanted("free", 4), Wanted("fixed", 2, (0, 1))], TWO_SOCKETS)
    assert placed["free"].gpus == (4, 5, 6, 7)


def test_gpus_that_others_use_are_left_to_them():
    assert place(wanted(4), TWO_SOCKETS, frozenset({0}))["i0"].gpus == (4, 5, 6, 7)
    with pytest.raises(PlacementError, match=r"i0 spans 4 GPUs and 3 of 8 are left \(5, 6, 7\)"):
        place(wanted(4), TWO_SOCKETS, frozenset({0, 1, 2, 3, 4}))


def test_the_best_links_within_a_node_are_taken():
    near = [["X" if a == b else "PIX" if {a, b} == {1, 2} else "NODE" for b in range(4)] for a in range(4)]
    machine = Machine((0, 0, 0, 0), near, {0: "0-7"})
    assert place(wanted(2), machine)["i0"].gpus == (1, 2)


def test_what_is_not_known_of_a_host_is_not_made_up():
    assert gpus(place(wanted(2, 1), Machine())) == [[0, 1], [2]]
    assert place(wanted(2), Machine())["i0"].gpu_nodes == ()
    halfway = place(wanted(2), Machine((None, 0), (), {0: "0-7"}))["i0"]
    assert (halfway.node, halfway.gpu_nodes) == (None, ())


def test_a_node_that_the_kernel_does_not_have_is_not_bound_to():
    place_ = place(wanted(4), Machine(TWO_SOCKETS.gpu_nodes, (), {0: "0-1"}), frozenset({0, 1, 2, 3}))["i0"]
    assert (place_.gpu_nodes, place_.node, place_.cpus) == ((1, 1, 1, 1), None, "")


@given(st.lists(st.integers(1, 8), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) <= 8))
def test_no_gpu_is_given_twice_and_every_wish_is_met(sizes: list[int]):
    placed = place(wanted(*sizes), TWO_SOCKETS)
    given_out = [gpu for some in gpus(placed) for gpu in some]
    assert len(set(given_out)) == len(given_out)
    assert [len(some) for some in gpus(placed)] == sizes
    assert set(given_out) <= set(range(8))


@given(st.sampled_from([[4, 4], [2, 2, 2, 2], [1] * 8, [4, 2, 2], [4, 2, 1, 1], [2, 4, 1, 1]]))
def test_whoever_fits_into_a_node_is_inside_one(sizes: list[int]):
    assert all(not one.spans and one.cpus for one in place(wanted(*sizes), TWO_SOCKETS).values())


# ports


def test_sglang_is_told_its_rendezvous_and_vllm_where_to_count_from():
    own = ports.of("sglang", {"port": 30000})
    assert own.arguments == {"nccl-port": 22014}
    assert own.claimed == {30000: "the server", 22014: "--nccl-port"}
    own = ports.of("vllm", {"port": 30001})
    assert own.environment == {"VLLM_PORT": "22016"}
    assert set(own.claimed) == {30001, *range(22016, 22032)}


def test_data_parallel_attention_gets_all_its_ports_from_the_block():
    own = ports.of("sglang", {"port": 30002, "arguments": {"enable-dp-attention": True, "dp-size": 4}})
    assert own.arguments == {"nccl-port": 22046, "dist-init-addr": "127.0.0.1:22032"}
    assert set(own.claimed) == {30002, *range(22032, 22039), 22045, 22046}


def test_replicas_draw_their_own_since_each_would_bind_the_same():
    own = ports.of("sglang", {"port": 30000, "arguments": {"dp-size": 2}})
    assert (own.arguments, set(own.claimed)) == ({}, {30000})


def test_ports_that_an_instance_names_itself_are_its_own():
    own = ports.of("sglang", {"port": 30000, "arguments": {"nccl_port": 4711, "prometheus-port": 9100}})
    assert own.arguments == {}
    assert set(own.claimed) == {30000, 4711, 9100}


@given(st.integers(1024, 65535), st.integers(1, 499))
def test_neighbours_have_different_blocks_below_the_ephemeral_ports(port: int, distance: int):
    assert not set(ports.block(port)) & set(ports.block(port + distance))
    assert 22000 <= min(ports.block(port)) <= max(ports.block(port)) < 30000


# overlaps


def test_nothing_shared_is_nothing_said():
    assert claims.overlaps([("a", {"port": [1], "GPU": [0]}), ("b", {"port": [2], "GPU": [1]})]) == []


def test_one_finding_a_kind_names_all_values_and_all_owners():
    claimed = [("a", {"port": [1, 2], "GPU": [0, 1]}), ("b", {"port": [1, 2], "GPU": [1]}), ("c", {"port": [2]})]
    found = claims.overlaps(claimed)
    assert [(f.level, f.what.rsplit(" ", 1)[1], f.seen) for f in found] == [
        ("critical", "port", "port 1: a and b; port 2: a and b and c"),
        ("critical", "GPU", "GPU 1: a and b"),
    ]


def test_a_value_that_one_instance_names_twice_is_no_overlap():
    assert claims.overlaps([("a", {"port": [1, 1]})]) == []


def test_the_recorded_host_has_two_sockets():
    assert TWO_SOCKETS.gpu_nodes == (0, 0, 0, 0, 1, 1, 1, 1)
