# SPDX-License-Identifier: Apache-2.0
"""Facts from NCCL's own log (real captures, see fixtures/nccl/README.md), and what they prove."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import nccl
from inference.nccl.log import as_text, compare, engaged, parse

LOGS = Path(__file__).parent / "fixtures" / "nccl"
LATENCY = nccl.environment("latency")
THROUGHPUT = nccl.environment("throughput")


def facts(name):
    return parse((LOGS / f"{name}.log").read_text())


def ids(findings):
    return {(f.id, f.level) for f in findings}


class TestFacts:
    def test_shared_memory_with_the_latency_settings(self):
        seen = facts("shm_latency_settings")
        assert seen.version == "2.28.9+cuda13.0"
        assert seen.driver == 13000
        assert (seen.ranks, seen.started, seen.complete, seen.hosts) == (2, 2, 2, 1)
        assert seen.channels == [4]
        assert seen.transports() == {"SHM": 1}
        assert set(seen.connections) == {"SHM/direct/direct"}
        assert {k: v for k, v in seen.environment.items() if k in LATENCY} == {
            k: v for k, v in LATENCY.items() if k != "NCCL_P2P_LEVEL"
        }
        assert seen.environment["NCCL_P2P_DISABLE"] == "1"
        assert seen.protocols["AllReduce"] == ["LL"]
        assert seen.algorithms["AllReduce"] == ["Ring"]
        assert set(seen.used) == {"AllReduce RING LL"}
        assert seen.plugins == {"ENV": None, "NET": None, "TUNER": None, "PROFILER": None}
        assert seen.network == "Socket"

    def test_nccl_s_own_choice_over_peer_access(self):
        seen = facts("p2p_no_settings")
        assert seen.transports() == {"P2P": 1}
        assert seen.channels == [24]
        assert seen.protocols == {}
        assert seen.used["AllReduce RING SIMPLE"] == {"calls": 1, "smallest": 12000000, "largest": 12000000}

    def test_network_inside_one_host(self):
        seen = facts("net_no_transport")
        assert seen.transports() == {"NET": 1}
        assert seen.used["AllGather PAT SIMPLE"]["calls"] == 1

    def test_the_matrix_shows_that_excluding_simple_forces_ll128(self):
        assert facts("p2p_not_simple").protocols["AllReduce"] == ["LL", "LL128"]

    def test_warnings_are_kept_once(self):
        assert facts("empty_graph_file").warnings == ["Could not open XML graph file  : No such file or directory"]
        assert facts("quoted_conf").warnings == ['Unrecognized element token ""LL"" when parsing ""LL""']

    def test_prefixes_of_an_engine_do_not_matter(self):
        text = "".join(
            f"(Worker_TP0 pid=7) INFO {line}\n" for line in (LOGS / "p2p_no_settings.log").read_text().splitlines()
        )
        seen = parse(text)
        assert (seen.version, seen.channels, seen.transports()) == ("2.28.9+cuda13.0", [24], {"P2P": 1})

    def test_for_people(self):
        text = as_text(facts("shm_latency_settings"))
        assert "SHM 1 pairs" in text
        assert "NCCL_PROTO=LL" in text
        assert as_text(parse("")) == "no line of NCCL"


class TestCompare:
    def test_the_latency_settings_over_peer_access_are_engaged(self):
        seen = facts("p2p_latency_settings")
        assert set(engaged(seen, LATENCY).values()) == {"yes"}
        assert ids(compare(seen, LATENCY, nccl_version="2.28.9")) == {("nccl-extra-setting", "info")}

    @pytest.mark.parametrize(("interface", "told"), [("lo", False), ("eth0", True)])
    def test_the_meeting_place_that_the_unit_sets_is_no_surprise(self, interface, told):
        line = f"host:0:0 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to {interface}"
        seen = parse("\n".join([line, *(LOGS / "p2p_latency_settings.log").read_text().splitlines()]))
        assert seen.environment["NCCL_SOCKET_IFNAME"] == interface
        (extra,) = [entry for entry in compare(seen, LATENCY) if entry.id == "nccl-extra-setting"]
        assert ("NCCL_SOCKET_IFNAME" in extra.seen) is told

    def test_over_shared_memory_they_are_not(self):
        found = ids(compare(facts("shm_latency_settings"), LATENCY))
        assert ("nccl-transport", "warning") in found
        assert ("nccl-bound-without-effect", "info") in found
        assert not {i for i, _ in found} & {"nccl-not-engaged"}  # P2P_LEVEL: overruled, not lost

    def test_the_throughput_settings_are_engaged(self):
        found = ids(compare(facts("shm_throughput_settings"), THROUGHPUT))
        assert found == {("nccl-extra-setting", "info"), ("nccl-bound-without-effect", "info")}

    def test_settings_that_never_arrived(self):
        found = ids(compare(facts("p2p_no_settings"), LATENCY))
        assert {("nccl-not-engaged", "critical"), ("nccl-protocol", "warning")} <= found

    def test_another_value(self):
        findings = compare(facts("p2p_latency_settings"), {**LATENCY, "NCCL_BUFFSIZE": "4194304"})
        assert ("nccl-not-engaged", "critical") in ids(findings)
        assert any("NCCL_BUFFSIZE=16777216" in f.seen for f in findings)

    def test_numbers_are_compared_as_nccl_reads_them(self):
        assert engaged(facts("p2p_latency_settings"), {"NCCL_BUFFSIZE": "0x1000000"}) == {"NCCL_BUFFSIZE": "yes"}

    def test_a_minimum_that_is_not_reached(self):
        wanted = {**THROUGHPUT, "NCCL_MIN_CTAS": "32"}
        assert ("nccl-not-engaged", "critical") in ids(compare(facts("shm_throughput_settings"), wanted))

    def test_peer_access_although_it_is_off(self):
        assert ("nccl-transport", "warning") in ids(compare(facts("p2p_no_settings"), THROUGHPUT))

    def test_sockets_inside_a_host_are_reported_without_any_wish(self):
        assert ("nccl-transport", "warning") in ids(compare(facts("net_no_transport"), {}))

    def test_nearer_levels_leave_far_pairs_to_shared_memory(self):
        wanted = {"NCCL_P2P_LEVEL": "PHB"}
        text = (LOGS / "p2p_latency_settings.log").read_text() + (LOGS / "shm_latency_settings.log").read_text()
        assert "nccl-transport" not in {i for i, _ in ids(compare(parse(text), wanted))}
        assert "nccl-transport" in {i for i, _ in ids(compare(facts("shm_throughput_settings"), wanted))}

    @pytest.mark.parametrize(
        ("meant", "differs"), [("2.28.9", False), ("2.28.9+cuda13", False), ("2.27.7", True), ("2.28.7", True)]
    )
    def test_another_release(self, meant, differs):
        found = {i for i, _ in ids(compare(facts("p2p_no_settings"), {}, nccl_version=meant))}
        assert ("nccl-version-differs" in found) is differs

    def test_a_start_that_failed(self):
        found = ids(compare(facts("empty_graph_file"), {}))
        assert {("nccl-init-incomplete", "critical"), ("nccl-log-warning", "warning")} <= found

    def test_a_start_that_is_still_under_way(self):
        text = (LOGS / "p2p_no_settings.log").read_text().partition("Init COMPLETE")[0]
        assert ("nccl-init-incomplete", "unknown") in ids(compare(parse(text), {}))

    @pytest.mark.parametrize("text", ["", "INFO: server is ready\n", "NCCL\n"])
    def test_a_log_without_nccl_proves_nothing(self, text):
        assert ids(compare(parse(text), LATENCY)) == {("nccl-log-empty", "unknown")}

    def test_a_protocol_for_one_collective_binds_that_one(self):
        found = {i for i, _ in ids(compare(facts("p2p_no_settings"), {"NCCL_PROTO": "allgather:Simple"}))}
        assert "nccl-protocol" in found
        found = {i for i, _ in ids(compare(facts("p2p_no_settings"), {"NCCL_PROTO": "broadcast:Simple"}))}
        assert "nccl-protocol" not in found


PIECES = st.sampled_from(
    [
        *(
            "host:1:2 [0] NCCL INFO ",
            "NCCL WARN ",
            "NCCL_PROTO set by environment to ",
            "Channel 00/0 : 0[0] -> 1[1] via ",
        ),
        *(
            "4 coll channels",
            "AllReduce: 1 Bytes -> Algo RING proto LL",
            "NCCL version 2.",
            " Function | LL | Ring\n",
            "\n",
        ),
        *(
            "AllReduce |        1  |   1  ",
            "ncclCommInitRank comm x rank 0 nranks 2 Init COMPLETE",
            "9" * 50,
            "\0",
            "²",
        ),
    ]
)


@given(st.lists(st.one_of(PIECES, st.text(max_size=10))).map("".join))
def test_no_log_raises(text):
    seen = parse(text)
    compare(seen, LATENCY, nccl_version="2.28.9")
    as_text(seen)
    seen.as_dict()
