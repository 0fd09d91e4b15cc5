# SPDX-License-Identifier: Apache-2.0
"""The lint of NCCL settings. Effects marked "seen" were observed with NCCL 2.28.9 on two H200."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference import nccl
from inference.findings import LEVELS
from inference.nccl.lint import lint, lint_environment, settings_of
from inference.nccl.rules import RULES
from inference.nccl.together import Topology, TopologyError
from inference.nccl.values import list_words, parse_list
from inference.nccl.variables import VARIABLES, VersionError

NEW = "2.28.9"
OLD = "2.23.4"
ENGINE = ["python", "-m", "sglang.launch_server", "--tp", "8"]


def topology(link):
    """Return eight GPUs whose links are ``link(a, b)``."""
    rows = [["X" if a == b else link(a, b) for b in range(8)] for a in range(8)]
    return {"kind": "topo_m", "gpu_count": 8, "gpu_ids": list(range(8)), "links": rows}


TWO_SOCKETS = topology(lambda a, b: "NODE" if a // 4 == b // 4 else "SYS")
ONE_SOCKET = topology(lambda _a, _b: "PHB")
SWITCHES = topology(lambda a, b: "PIX" if a // 4 == b // 4 else "PXB")
NVLINK = topology(lambda _a, _b: "NV18")


def found(text, version=NEW, **more):
    """Return {(id, level)} of the findings."""
    return {(f.id, f.level) for f in lint(text, version, **more).findings}


def levels(text, rule, version=NEW, **more):
    return [f.level for f in lint(text, version, **more).findings if f.id == rule]


@pytest.mark.parametrize("name", nccl.PROFILES)
@pytest.mark.parametrize("version", ["2.21.5", "2.27.7", "2.28.9+cuda13", "2.30.7"])
@pytest.mark.parametrize("host", [None, TWO_SOCKETS, ONE_SOCKET], ids=["unknown", "two sockets", "one socket"])
def test_the_profiles_are_quiet(name, version, host):
    profile = nccl.PROFILES[name]
    text = f'# NCCL profile "{name}"\n' + "".join(f"{key}={value}\n" for key, value in profile.settings.items())
    report = lint(text, version, topology=host)
    assert report.exit_code == 0, report.as_text()
    unit = "[Service]\n" + "".join(f"Environment={key}={value}\n" for key, value in profile.settings.items())
    arguments = " ".join([*ENGINE, *nccl.required_arguments(profile.settings)])
    assert lint(f"{unit}ExecStart={arguments}\n", version, topology=host).exit_code == 0


def test_the_latency_profile_is_told_for_what_it_is():
    text = "\n".join(f"export {k}={v}" for k, v in nccl.environment().items())
    assert found(text) == {
        ("nccl-old-name", "info"),
        ("nccl-no-op", "info"),
        ("nccl-ll-for-all-sizes", "info"),
        ("nccl-debugging-class", "info"),
    }


CLOSED = "[Service]\nIPAddressDeny=any\nIPAddressAllow=localhost\n"

SINGLE = [
    (CLOSED + "Environment=NCCL_SOCKET_IFNAME=eth0", NEW, "nccl-loopback-unit", "critical"),
    # text, version, rule, level
    ("NCCL_P2P_LEVEL=sys", NEW, "nccl-value-case", "warning"),  # seen: ignored
    ("NCCL_P2P_LEVEL=Phb", NEW, "nccl-value-case", "warning"),
    ("NCCL_P2P_LEVEL=NODE", NEW, "nccl-illegal-value", "warning"),
    ("NCCL_P2P_LEVEL=4", NEW, "nccl-legacy-integer", "warning"),
    ("NCCL_P2P_LEVEL=2", NEW, "nccl-legacy-integer", "warning"),  # seen: PXB
    ("NCCL_NET_GDR_LEVEL=loc", NEW, "nccl-value-case", "warning"),
    ("NCCL_SOCKET_FAMILY=af_inet", NEW, "nccl-value-case", "warning"),
    ("NCCL_PROTO=LL256", NEW, "nccl-list-syntax", "critical"),
    ("NCCL_PROTO=LL, Simple", NEW, "nccl-list-syntax", "critical"),  # seen: no start
    ("NCCL_PROTO='LL, Simple'", NEW, "nccl-list-syntax", "critical"),
    ("NCCL_PROTO='LL;Simple'", NEW, "nccl-list-syntax", "critical"),
    ("NCCL_PROTO=allreduc:LL", NEW, "nccl-list-syntax", "critical"),
    ("NCCL_PROTO='allreduce:LL'", OLD, "nccl-list-syntax", "critical"),
    ("NCCL_ALGO=Rings", NEW, "nccl-list-syntax", "critical"),
    ("NCCL_ALGO=PAT,Ring", "2.22.3", "nccl-list-syntax", "critical"),
    ("NCCL_ALGO=Collnet,Ring", NEW, "nccl-list-syntax", "critical"),
    ("NCCL_ALGO=Tree", NEW, "nccl-algorithm-gap", "critical"),  # seen: AllGather fails
    ("NCCL_ALGO=Tree", OLD, "nccl-algorithm-gap", "warning"),
    ("NCCL_ALGO=^Ring", NEW, "nccl-algorithm-gap", "critical"),
    ("NCCL_ALGO=PAT", NEW, "nccl-algorithm-gap", "critical"),
    ("NCCL_BUFFSIZE=16M", NEW, "nccl-not-a-number", "critical"),  # seen: 16 bytes, SIGFPE
    ("NCCL_BUFFSIZE=1e7", NEW, "nccl-not-a-number", "critical"),
    ("NCCL_BUFFSIZE=99999999999999999999", NEW, "nccl-not-a-number", "critical"),
    ("NCCL_BUFFSIZE=0", NEW, "nccl-out-of-range", "warning"),
    ("NCCL_BUFFSIZE=10000000", NEW, "nccl-not-power-of-two", "info"),
    ("NCCL_P2P_DISABLE=true", NEW, "nccl-not-a-number", "critical"),  # seen: stays on
    ("NCCL_P2P_DISABLE=2", NEW, "nccl-out-of-range", "warning"),  # seen: stays on
    ("NCCL_SHM_DISABLE=yes", NEW, "nccl-not-a-number", "critical"),
    ("NCCL_IB_TIMEOUT=022", NEW, "nccl-number-base", "warning"),
    ("NCCL_NTHREADS=100", NEW, "nccl-illegal-value", "warning"),  # seen: refused, 512
    ("NCCL_NTHREADS=512", NEW, "nccl-no-op", "info"),
    ("NCCL_BUFFSIZE=4194304", NEW, "nccl-no-op", "info"),
    ("NCCL_BUFFSIZE=0x400000", NEW, "nccl-no-op", "info"),
    ("NCCL_IB_TIMEOUT=18", "2.20.5", "nccl-no-op", "info"),
    ("NCCL_MAX_CTAS=64", "2.24.3", "nccl-out-of-range", "warning"),
    ("NCCL_MAX_CTAS=65", NEW, "nccl-out-of-range", "warning"),  # seen: 64
    ("NCCL_MIN_CTAS=0", NEW, "nccl-out-of-range", "warning"),
    ("NCCL_MIN_NCHANNELS=33", NEW, "nccl-out-of-range", "warning"),
    ("NCCL_MAX_NCHANNELS=16", NEW, "nccl-old-name", "info"),
    ("NCCL_MAX_NRINGS=16", NEW, "nccl-old-name", "info"),
    ("NCCL_CHECK_POINTERS=1", "2.29.7", "nccl-old-name", "info"),
    ("NCCL_NVLS_ENABLE=3", NEW, "nccl-out-of-range", "warning"),
    ("NCCL_GRAPH_FILE=", NEW, "nccl-empty-graph-file", "critical"),  # seen: no start
    ('NCCL_GRAPH_FILE=""', NEW, "nccl-empty-graph-file", "critical"),
    ("[Service]\nEnvironment=NCCL_GRAPH_FILE=\n", NEW, "nccl-empty-graph-file", "critical"),
    ("NCCL_NET=", NEW, "nccl-empty-value", "critical"),  # seen: no start
    ("NCCL_PROTO=", OLD, "nccl-empty-value", "critical"),
    ("NCCL_PROTO=", NEW, "nccl-empty-value", "info"),
    ("NCCL_BUFFSIZE=", NEW, "nccl-empty-value", "info"),
    ("NCCL_BUFSIZE=4194304", NEW, "nccl-unknown-name", "warning"),
    ("NCCL_P2P_LEVELS=SYS", NEW, "nccl-unknown-name", "warning"),
    ("nccl_p2p_level=SYS", NEW, "nccl-name-case", "warning"),
    ("NCCL_RAS_ENABLE=0", OLD, "nccl-not-yet", "warning"),
    ("NCCL_CHECK_MODE=DEBUG_LOCAL", NEW, "nccl-not-yet", "warning"),
    ("NCCL_LL_THRESHOLD=16384", NEW, "nccl-gone", "warning"),
    ("NCCL_TREE_THRESHOLD=0", NEW, "nccl-gone", "warning"),
    ("NCCL_BLOCKING_WAIT=1", NEW, "nccl-foreign-name", "info"),
    ("NCCL_VERSION=2.28.9", NEW, "nccl-foreign-name", "info"),
    ("NCCL_SHARP_DISABLE=1", NEW, "nccl-foreign-name", "info"),
    ("NCCL_DEBUG=verbose", NEW, "nccl-illegal-value", "warning"),
    ("NCCL_DEBUG_SUBSYS=INIT,GRAPHS", NEW, "nccl-illegal-value", "warning"),
    ("NCCL_DEBUG_FILE=/var/log/nccl.log", NEW, "nccl-debug-file-shared", "warning"),
    ("NCCL_CONF_FILE='~/nccl.conf'", NEW, "nccl-unexpanded", "warning"),
    ("NCCL_CTA_POLICY=EFFICIENT", "2.29.2", "nccl-illegal-value", "warning"),
    ("NCCL_CTA_POLICY=EFFICIENCY", NEW, "nccl-not-a-number", "critical"),
    ("NCCL_NETDEVS_POLICY=MAX:0", NEW, "nccl-illegal-value", "warning"),
    ("NCCL_SET_THREAD_NAME=2", "2.30.7", "nccl-illegal-value", "warning"),
    ("NCCL_IB_DISABLE=1", NEW, "nccl-one-host", "info"),
    ("NCCL_ALLOC_P2P_NET_LL_BUFFERS=1", NEW, "nccl-one-host", "info"),
    ("NCCL_GRAPH_FILE=/etc/nccl/graph.xml", NEW, "nccl-undocumented", "info"),
    ("NCCL_PROTO=LL,LL128,Simple", NEW, "nccl-ll128-forced", "warning"),
    ("NCCL_TUNER_CONFIG_FILE=/etc/t.csv", NEW, "nccl-tuner-without-plugin", "warning"),
    ("NCCL_DEBUG=INFO", "2.31.2", "nccl-version-beyond", "info"),
    ("NCCL_PROTO=' LL'", NEW, "nccl-white-space", "warning"),
    ("NCCL_PROTO='\"LL\"'", NEW, "nccl-quotes-kept", "warning"),
    ("NCCL_PROTO=LL\nNCCL_PROTO=Simple", NEW, "nccl-duplicate", "warning"),
    ("NCCL_PROTO=LL\nNCCL_PROTO=LL", NEW, "nccl-duplicate", "info"),
    ("NCCL_PROTO=LL NCCL_ALGO=Ring", NEW, "nccl-several-in-a-line", "info"),
    ("NCCL_PROTO=LL # fast", NEW, "nccl-inline-comment", "warning"),
    ("NCCL_PROTO LL", NEW, "nccl-unreadable", "warning"),
    ("NCCL_PROTO LL", NEW, "nccl-unreadable", "unknown"),
    ("all is well", NEW, "nccl-unreadable", "unknown"),
    ("[Service]\nEnvironment=NCCL_ALGO=Ring Tree", NEW, "nccl-unreadable", "warning"),
    ("NCLL_PROTO=LL", NEW, "nccl-unknown-name", "warning"),
    ("[Service]\nNCCL_PROTO=LL", NEW, "nccl-wrong-section", "warning"),
    ("[Service]\nEnvironment=NCCL_DEBUG_FILE=/l.%p", NEW, "nccl-specifier", "warning"),
    # settings together
    ("NCCL_MIN_CTAS=32\nNCCL_MAX_CTAS=16", NEW, "nccl-min-above-max", "warning"),  # seen: both 16
    ("NCCL_MIN_NCHANNELS=8\nNCCL_MAX_NCHANNELS=4", NEW, "nccl-min-above-max", "warning"),  # seen: 8
    ("NCCL_MAX_CTAS=8\nNCCL_MAX_NCHANNELS=16", NEW, "nccl-two-names", "warning"),
    ("NCCL_MAX_CTAS=8\nNCCL_MAX_NCHANNELS=8", NEW, "nccl-two-names", "info"),
    ("NCCL_P2P_DISABLE=1\nNCCL_P2P_LEVEL=SYS", NEW, "nccl-p2p-contradiction", "warning"),
    ("NCCL_P2P_DISABLE=1\nNCCL_SHM_DISABLE=1", NEW, "nccl-no-transport", "warning"),  # seen: sockets
    ("NCCL_P2P_DISABLE=1", NEW, "nccl-custom-all-reduce", "info"),
    ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", NEW, "nccl-expandable-segments", "info"),
    (
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nSGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1",
        NEW,
        "nccl-expandable-segments",
        "critical",
    ),
]


@pytest.mark.parametrize(("text", "version", "rule", "level"), SINGLE)
def test_a_rule_is_broken(text, version, rule, level):
    assert (rule, level) in found(text, version)


KEPT = [
    ("NCCL_P2P_LEVEL=SYS", NEW, "nccl-value-case"),
    ("NCCL_PROTO=ll,simple", NEW, "nccl-list-syntax"),  # not case-sensitive
    ("NCCL_PROTO='allreduce:LL,Simple'", NEW, "nccl-list-syntax"),
    ("NCCL_PROTO='^LL128;allreduce:LL'", NEW, "nccl-list-syntax"),
    ("NCCL_PROTO=^LL128", NEW, "nccl-ll128-forced"),
    ("NCCL_PROTO=allreduce:^LL128", NEW, "nccl-ll128-forced"),
    ("NCCL_PROTO=LL,Simple", NEW, "nccl-ll-for-all-sizes"),
    ("NCCL_ALGO=Ring,Tree", NEW, "nccl-algorithm-gap"),
    ("NCCL_ALGO=allreduce:Tree", NEW, "nccl-algorithm-gap"),
    ("NCCL_ALGO=^NVLS", NEW, "nccl-algorithm-gap"),
    ("NCCL_BUFFSIZE=16777216", NEW, "nccl-not-power-of-two"),
    ("NCCL_BUFFSIZE=0x1000000", NEW, "nccl-number-base"),
    ("NCCL_MAX_CTAS=64", NEW, "nccl-out-of-range"),
    ("NCCL_MAX_NCHANNELS=16", "2.16.5", "nccl-old-name"),
    ("NCCL_NVLS_ENABLE=2", NEW, "nccl-out-of-range"),
    ("NCCL_RAS_ENABLE=0", "2.24.3", "nccl-not-yet"),
    ("NCCL_LL_THRESHOLD=16384", "2.4.8", "nccl-gone"),
    ("NCCL_DEBUG=info", NEW, "nccl-illegal-value"),
    ("NCCL_DEBUG_SUBSYS=^init,graph", NEW, "nccl-illegal-value"),
    ("NCCL_DEBUG_FILE=/var/log/nccl.%p", NEW, "nccl-debug-file-shared"),
    ("NCCL_DEBUG_FILE=/dev/stderr", NEW, "nccl-debug-file-shared"),
    ("NCCL_DEBUG_TIMESTAMP_FORMAT=", "2.27.7", "nccl-empty-value"),
    ("NCCL_TUNER_PLUGIN=/x.so\nNCCL_TUNER_CONFIG_FILE=/x.csv", NEW, "nccl-tuner-without-plugin"),
    ("NCCL_P2P_DISABLE=1\nNCCL_P2P_LEVEL=LOC", NEW, "nccl-p2p-contradiction"),
    ("NCCL_P2P_DISABLE=0\nNCCL_P2P_LEVEL=SYS", NEW, "nccl-p2p-contradiction"),
    ("NCCL_P2P_DISABLE=0\nNCCL_SHM_DISABLE=1", NEW, "nccl-no-transport"),
    ("NCCL_MIN_CTAS=16\nNCCL_MAX_CTAS=16", NEW, "nccl-min-above-max"),
    ("NCCL_IB_DISABLE=1\nNCCL_SHM_DISABLE=1", NEW, "nccl-one-host"),  # then the network is used
    ("PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512", NEW, "nccl-expandable-segments"),
    ("NCCL_DEBUG=INFO", "2.30.7", "nccl-version-beyond"),
    ("NCCL_SET_THREAD_NAME=true", "2.30.7", "nccl-illegal-value"),
    ("NCCL_CTA_POLICY=EFFICIENCY|ZERO", "2.29.2", "nccl-illegal-value"),
    ("TORCH_NCCL_BLOCKING_WAIT=1", NEW, "nccl-unknown-name"),
    ("OMPI_X=1\nCUDA_HOME=/usr", NEW, "nccl-unknown-name"),
    ("NCCL_SOCKET_IFNAME==eth0", NEW, "nccl-white-space"),
]


@pytest.mark.parametrize(("text", "version", "rule"), KEPT)
def test_a_rule_is_kept(text, version, rule):
    assert rule not in {name for name, _ in found(text, version)}


class TestTopology:
    @pytest.mark.parametrize("protocols", ["LL128", "LL,LL128,Simple", "^Simple", "^LL", "allreduce:^LL", "ll,ll128"])
    def test_ll128_across_sockets_is_refused(self, protocols):
        report = lint(f"NCCL_PROTO={protocols}", NEW, topology=TWO_SOCKETS)
        assert report.exit_code == 2
        assert "nccl-ll128-across-sys" in {f.id for f in report.at("critical")}

    @pytest.mark.parametrize("protocols", ["LL", "LL,Simple", "^LL128", "Simple"])
    def test_without_ll128_it_is_not(self, protocols):
        assert lint(f"NCCL_PROTO={protocols}", NEW, topology=TWO_SOCKETS).at("critical") == []

    def test_soc_is_the_old_word_for_sys(self):
        host = topology(lambda _a, _b: "SOC")
        assert ("nccl-ll128-across-sys", "critical") in found("NCCL_PROTO=LL128", topology=host)

    def test_on_one_socket_it_is_a_warning_and_over_nvlink_nothing(self):
        assert ("nccl-ll128-forced", "warning") in found("NCCL_PROTO=LL128", topology=ONE_SOCKET)
        assert not {i for i, _ in found("NCCL_PROTO=LL128", topology=NVLINK)} & {"nccl-ll128-forced"}

    def test_without_a_topology_it_says_what_it_could_not_check(self):
        report = lint("NCCL_PROTO=LL128", NEW)
        assert "nccl-ll128-across-sys" in {entry.id for entry in report.not_checked}

    def test_only_the_visible_gpus_count(self):
        text = "NCCL_PROTO=LL128\nCUDA_VISIBLE_DEVICES=0,1,2,3"
        assert "nccl-ll128-across-sys" not in {i for i, _ in found(text, topology=TWO_SOCKETS)}
        text = "NCCL_PROTO=LL128\nCUDA_VISIBLE_DEVICES=3,4"
        assert ("nccl-ll128-across-sys", "critical") in found(text, topology=TWO_SOCKETS)

    @pytest.mark.parametrize(
        ("level", "host", "expected"),
        [
            ("SYS", TWO_SOCKETS, []),
            ("PHB", TWO_SOCKETS, ["info"]),
            ("NVL", TWO_SOCKETS, ["warning"]),
            ("PIX", ONE_SOCKET, ["warning"]),
            ("PXB", SWITCHES, []),
            ("PIX", SWITCHES, ["info"]),
            ("2", ONE_SOCKET, ["warning"]),
            ("NVL", NVLINK, []),
            ("LOC", TWO_SOCKETS, []),
        ],
    )
    def test_a_level_is_held_against_the_links(self, level, host, expected):
        assert levels(f"NCCL_P2P_LEVEL={level}", "nccl-p2p-level-topology", topology=host) == expected

    def test_nvlink_settings_on_pcie(self):
        assert ("nccl-nvlink-only", "info") in found("NCCL_NVLS_ENABLE=0", topology=TWO_SOCKETS)
        assert ("nccl-nvlink-only", "info") not in found("NCCL_NVLS_ENABLE=0", topology=NVLINK)
        assert ("nccl-algorithm-gap", "critical") in found("NCCL_ALGO=NVLS,Tree", topology=TWO_SOCKETS)

    @pytest.mark.parametrize(
        "document", [{}, [], {"links": None}, {"links": [["X"], ["X"]]}, {"links": [["X", "FOO"], ["FOO", "X"]]}, None]
    )
    def test_what_is_no_topology_is_refused(self, document):
        with pytest.raises(TopologyError):
            Topology.from_dict(document)

    def test_one_gpu_has_no_pairs(self):
        assert Topology.from_dict({"links": [["X"]], "gpu_ids": [0]}).farthest == 0


class TestEngine:
    def test_peer_access_off_needs_the_engine_to_know(self):
        text = "[Service]\nEnvironment=NCCL_P2P_DISABLE=1\nExecStart=/opt/python -m sglang.launch_server --tp 2\n"
        assert levels(text, "nccl-custom-all-reduce") == ["warning"]
        fixed = text.replace("--tp 2", "--tp 2 --disable-custom-all-reduce")
        assert levels(fixed, "nccl-custom-all-reduce") == []

    def test_the_command_line_can_be_given(self):
        text = "NCCL_P2P_DISABLE=1"
        assert levels(text, "nccl-custom-all-reduce", command=ENGINE) == ["warning"]
        assert levels(text, "nccl-custom-all-reduce", command=[*ENGINE, "--disable-custom-all-reduce"]) == []

    def test_a_wrapper_says_nothing_about_the_engine(self):
        text = "[Service]\nEnvironment=NCCL_P2P_DISABLE=1\nExecStart=/usr/local/lib/start %i\n"
        assert levels(text, "nccl-custom-all-reduce") == ["info"]

    def test_expandable_segments_with_an_option(self):
        text = "PYTORCH_ALLOC_CONF=expandable_segments:True"
        assert levels(text, "nccl-expandable-segments", command=[*ENGINE, "--enable-pcie-oneshot-allreduce"]) == [
            "critical"
        ]


class TestConfFiles:
    def test_what_only_the_file_sets_is_shown_and_judged(self):
        report = lint("NCCL_ALGO=Ring", NEW, conf_files=[("/etc/nccl.conf", "NCCL_P2P_LEVEL=sys\n")])
        assert {("nccl-conf-file", "warning"), ("nccl-value-case", "warning")} <= {
            (f.id, f.level) for f in report.findings
        }

    def test_the_environment_wins(self):
        report = lint("NCCL_ALGO=Ring", NEW, conf_files=[("/etc/nccl.conf", "NCCL_ALGO=Tree\n")])
        assert {f.id for f in report.findings} == {"nccl-conf-shadowed", "nccl-debugging-class"}

    def test_the_first_file_wins(self):
        files = [("/home/x/.nccl.conf", "NCCL_ALGO=Ring\n"), ("/etc/nccl.conf", "NCCL_ALGO=Tree\n")]
        assert "nccl-algorithm-gap" not in {f.id for f in lint("", NEW, conf_files=files).findings}

    def test_quotes_in_the_file_are_found(self):  # seen: no start
        report = lint("", NEW, conf_files=[("/etc/nccl.conf", 'NCCL_PROTO="LL"\n')])
        assert "nccl-quotes-kept" in {f.id for f in report.findings}

    def test_without_files_it_says_so(self):
        assert "nccl-conf-file" in {entry.id for entry in lint("", NEW).not_checked}


@pytest.mark.parametrize(
    ("unit", "level"),
    [
        (CLOSED + "Environment=NCCL_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo", None),
        (CLOSED + "Environment=NCCL_SOCKET_IFNAME==lo", None),
        (CLOSED + "Environment=NCCL_SOCKET_IFNAME=eth0", "critical"),
        (CLOSED + "Environment=NCCL_SOCKET_IFNAME=lo\nEnvironment=NCCL_SOCKET_IFNAME=eth0", "critical"),
        (CLOSED + "Environment=NCCL_SOCKET_IFNAME=^lo", "critical"),
        (CLOSED + "Environment=NCCL_P2P_DISABLE=1", "warning"),
        (CLOSED + "IPAddressAllow=127.0.0.0/8 ::1\nEnvironment=NCCL_P2P_DISABLE=1", "warning"),
        (CLOSED + "IPAddressAllow=10.0.0.0/8\nEnvironment=NCCL_SOCKET_IFNAME=eth0", None),
        (CLOSED + "IPAddressDeny=\nEnvironment=NCCL_SOCKET_IFNAME=eth0", None),
        (CLOSED + "Environment=CUDA_VISIBLE_DEVICES=3", None),
        (CLOSED + "Environment=CUDA_VISIBLE_DEVICES=3,4", "warning"),
        (CLOSED + "Environment=NCCL_SOCKET_IFNAME=%i", None),
        ("[Slice]\nIPAddressDeny=any\n[Service]\nEnvironment=NCCL_SOCKET_IFNAME=eth0", None),
        ("Environment=NCCL_SOCKET_IFNAME=eth0", None),
    ],
)
def test_in_a_unit_that_reaches_loopback_only_the_ranks_meet_there(unit, level):
    assert levels(unit, "nccl-loopback-unit") == ([level] if level else [])


def test_what_the_service_role_sets_for_loopback_is_no_surprise():
    unit = CLOSED + "Environment=NCCL_SOCKET_IFNAME=lo GLOO_SOCKET_IFNAME=lo\nEnvironment=NCCL_P2P_DISABLE=1"
    assert {entry.id for entry in lint(unit, NEW).findings} <= {"nccl-debugging-class", "nccl-custom-all-reduce"}


@pytest.mark.parametrize("text", ["RCCL_PROTO=LL", "NCC_DIR=/x", "CLASS_PATH=/x", "NCL_PROTOCOL_OF=1"])
def test_names_of_others_are_left_alone(text):
    assert not lint(text, NEW).findings


def test_what_stands_beside_a_setting_in_a_unit_is_not_shown():
    report = lint("[Service]\nEnvironment=NCCL_ALGO=Ring hunter2\n", NEW)
    assert [f.id for f in report.at("warning")] == ["nccl-unreadable"]
    assert "hunter2" not in report.as_text()


def test_the_nearest_name_is_one_of_this_release():
    assert "NCCL_CHECK_POINTERS" in lint("NCCL_CHECK_POINTER=1", "2.12.12").as_text()
    assert "NCCL_MNNVL'" not in lint("NCCL_MNNVLS=1", NEW).as_text()


def test_a_version_must_be_one():
    with pytest.raises(VersionError):
        lint("NCCL_PROTO=LL", "newest")


def test_secrets_of_a_broken_line_are_not_shown():
    text = '[Service]\nEnvironment=API_KEY=hunter2 "NCCL_PROTO=LL\n'
    report = lint(text, NEW)
    assert report.at("warning")
    assert "hunter2" not in report.as_text()


def test_what_only_the_unit_knows_is_not_judged():
    report = lint("[Service]\nEnvironment=NCCL_TOPO_FILE=%S/topo.xml NCCL_P2P_LEVEL=%i\n", NEW)
    assert report.exit_code == 0
    assert [entry.id for entry in report.not_checked].count("nccl-illegal-value") == 2


def test_a_mapping_is_judged_like_a_text():
    assert {f.id for f in lint_environment({"NCCL_P2P_LEVEL": "sys"}, NEW).findings} == {
        "nccl-value-case",
        "nccl-debugging-class",
    }
    assert settings_of("A=1\nNCCL_B=2\nexport NCCL_C=$X\n") == {"NCCL_B": "2"}


@pytest.mark.parametrize(
    ("text", "function", "chosen"),
    [
        ("LL", "AllReduce", {"LL": True, "LL128": False, "Simple": False}),
        ("^Simple", "AllGather", {"LL": True, "LL128": True, "Simple": False}),  # seen in NCCL's own matrix
        ("allreduce:^LL128", "AllReduce", {"LL": True, "LL128": False, "Simple": True}),  # seen
        ("allreduce:^LL128", "AllGather", {"LL": None, "LL128": None, "Simple": None}),  # seen
        ("LL,Simple;allreduce:^LL", "AllReduce", {"LL": False, "LL128": True, "Simple": True}),
        (";;LL", "Reduce", {"LL": True, "LL128": False, "Simple": False}),
    ],
)
def test_lists_select_as_nccl_does(text, function, chosen):
    assert parse_list(text, list_words("list protocol", (2, 28, 9)), (2, 28, 9))[function] == chosen


def test_every_finding_cites_and_every_rule_can_be_found():
    seen = {}
    for text, version, _, _ in SINGLE:
        for finding in lint(text, version, topology=TWO_SOCKETS).findings:
            assert re.search(r"\[.*NCCL .*2\.\d+.*\]$", finding.expected), finding
            assert finding.fix
            seen[finding.id] = finding
    missing = {name for name in RULES if name not in seen and not name.startswith("nccl-conf")}
    of_the_log = {
        *("nccl-log-empty", "nccl-init-incomplete", "nccl-version-differs", "nccl-not-engaged", "nccl-extra-setting"),
        *("nccl-transport", "nccl-bound-without-effect", "nccl-protocol", "nccl-log-warning"),
    }
    assert missing - of_the_log == {"nccl-ll128-forced", "nccl-p2p-level-topology"} - seen.keys()


def test_the_guide_page_has_a_section_for_every_rule():
    page = Path(__file__).parent.parent / "docs" / "nccl.md"
    sections = {line.removeprefix("### ").strip() for line in page.read_text().splitlines() if line.startswith("### ")}
    assert {name for name in sections if name.startswith("nccl-")} == set(RULES)


def test_rules_have_levels_and_sources():
    assert all(rule.level in LEVELS and rule.about and rule.source for rule in RULES.values())


NAMES = st.sampled_from([*VARIABLES, "NCCL_X", "nccl_proto", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF"])
VALUES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["", "0", "1", "-1", "016", "16M", "LL", "^LL", "a:b;c", ";", ":", "^", "SYS", "sys", "9" * 5000, "²"]
    ),
)


@settings(deadline=None)  # a busy machine is no failure
@given(st.text())
def test_no_text_raises(text):
    for version in (OLD, NEW, "2.4.8"):
        lint(text, version, topology=TWO_SOCKETS, conf_files=[("x", text)])


@settings(max_examples=300)
@given(st.dictionaries(NAMES, VALUES, max_size=6), st.sampled_from(["2.4.8", OLD, NEW, "2.30.7", "2.99"]))
def test_no_setting_raises(environment, version):
    for host in (None, TWO_SOCKETS, NVLINK):
        lint_environment(environment, version, topology=host, command=ENGINE)


@given(st.sampled_from(["Environment=", "export ", "", "ExecStart=", "UnsetEnvironment="]), NAMES, VALUES)
def test_no_line_raises(prefix, name, value):
    lint(f"[Service]\n{prefix}{name}={value}\n", NEW)
    lint(f"{prefix}{name}={value}\n", NEW)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("is_conf", [False, True])
def test_bytes_by_chance_are_unknown_and_nothing_else(seed, is_conf):
    text = random.Random(seed).randbytes(200_000).decode(errors="replace")
    (finding,) = lint(text, NEW, is_conf=is_conf).findings
    assert (finding.id, finding.level) == ("nccl-unreadable", "unknown")
    assert found("NCCL_P2P_LEVEL=SYS\n", conf_files=[("/etc/nccl.conf", text)]) >= {("nccl-unreadable", "unknown")}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("# \ufffd\ufffd\n# \ufffd\nNCCL_P2P_LEVEL=SYS\n", 0),  # comments in another encoding
        ("NAME=M\ufffdller\nA_B=1\nNCCL_P2P_LEVEL=SYS\n", 0),
        ("\x1b[32mroot@h\x1b[0m # ls\nNCCL_P2P_LEVEL=SYS\n", 0),  # a terminal's colours
        ("A_B=1\0C_D=2\0NCCL_P2P_LEVEL=SYS\0", 0),
        ("\ufffd\x01A=1\n\x02\nNCCL_P2P_LEVEL=SYS\n", 3),
        ("\ufffd\x01A=1\n\x02\nNCCL_P2P_LEVEL=sys\n", 3),
        ("\ufffd\x01A=1\n\x02\nNCCL_BUFFSIZE=16M\n", 2),
    ],
)
def test_a_text_with_some_bytes_that_are_none_is_judged(text, code):
    assert lint(text, NEW).exit_code == code
