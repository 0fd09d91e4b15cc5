# SPDX-License-Identifier: Apache-2.0
"""The machine as a picture needs it, and its tree in a terminal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sysfs_host import build, config_space
from test_topology_hosts import player

from inference import topology
from inference.topology.machine import Gpu, Machine

FIXTURES = Path(__file__).parent / "fixtures" / "nvidia-smi"
EXPECTED = topology.expectation_of("rtx-pro-6000-x8")


def recorded(*names: str) -> Machine:
    return drawn(topology.facts_of([(name, topology.parse((FIXTURES / name).read_text())) for name in names]))


def drawn(facts: topology.Facts) -> Machine:
    report = topology.check(facts, EXPECTED)
    return topology.machine_of(topology.brief(facts), [finding.as_dict() for finding in report.findings])


def host(tmp_path: Path, recording: str) -> Machine:
    root = tmp_path / "root"
    if not root.exists():
        build(root)
    return drawn(topology.collect(player(recording), root))


def shape(machine: Machine) -> dict[str | None, list[list[str]]]:
    return {
        node.name: [[gpu.label for gpu in b.gpus] + [nic.name for nic in b.nics] for b in node.branches]
        for node in machine.nodes
    }


def gpu(machine: Machine, label: str) -> Gpu:
    return next(gpu for gpu in machine.gpus if gpu.label == label)


def test_switches_are_known_by_the_class_of_their_links():
    machine = recorded("topo_8x_rtxpro6000se_pix_node_sys_ansi_tab.txt")
    assert shape(machine) == {
        "0": [["GPU0", "GPU1"], ["GPU2", "GPU3"]],
        "1": [["GPU4", "GPU5"], ["GPU6", "GPU7"]],
    }
    assert {(branch.kind, branch.classes) for node in machine.nodes for branch in node.branches} == {
        ("switch", ("PIX",))
    }


def test_gpus_behind_nvlink_share_the_switch_of_a_nic_and_far_nics_are_elsewhere():
    machine = recorded("topo_8x_dgxa100_nv12_12mlx5.txt")
    assert shape(machine) == {
        "1": [["GPU2", "GPU3", "mlx5_2", "mlx5_3"]],
        "3": [["GPU0", "GPU1", "mlx5_0", "mlx5_1"]],
        "5": [["GPU6", "GPU7", "mlx5_8", "mlx5_9"]],
        "7": [["GPU4", "GPU5", "mlx5_6", "mlx5_7"]],
        None: [["mlx5_4", "mlx5_5", "mlx5_10", "mlx5_11"]],
    }
    assert machine.nodes[0].branches[0].nics[0].nearest == "PXB"


def test_nics_of_a_node_hang_from_it():
    assert shape(recorded("topo_4x_rtx6000ada_node_sys_4nic.txt")) == {
        "0": [["GPU0"], ["GPU1"], ["NIC0", "NIC1"]],
        "1": [["GPU2"], ["GPU3"], ["NIC2", "NIC3"]],
    }


def test_bridges_that_the_kernel_shows_come_before_the_class_of_links(tmp_path: Path):
    machine = host(tmp_path, "rtx-pro-6000-x8")
    assert [branch.kind for branch in machine.nodes[0].branches] == ["port"] * 4
    assert machine.nodes[1].branches[3].bridge == "0000:07:01.1"
    assert (machine.driver, machine.problems, machine.pairs) == ("595.58.03", [], {})
    assert gpu(machine, "GPU3").link == "gen 5 x16"


@pytest.mark.parametrize(
    ("recording", "label", "names"),
    [("link-x8", "GPU3", ["pcie-width"]), ("ecc", "GPU1", ["ecc-uncorrected"]), ("mig", "GPU0", ["mig"])],
)
def test_a_fault_stands_at_its_gpu(tmp_path: Path, recording: str, label: str, names: list[str]):
    machine = host(tmp_path, recording)
    found = gpu(machine, label)
    assert [problem.id for problem in found.problems][: len(names)] == names
    assert f"! {names[0]}" in next(line for line in topology.view(machine).splitlines() if label in line)


def test_a_fault_of_a_bridge_stands_at_what_hangs_below_it(tmp_path: Path):
    root = build(tmp_path / "root")
    (next(root.glob("sys/devices/pci*/0000:02:01.1")) / "config").write_bytes(config_space(0x0004))
    machine = host(tmp_path, "rtx-pro-6000-x8")
    branch = next(branch for node in machine.nodes for branch in node.branches if branch.problems)
    assert [gpu.label for gpu in branch.gpus] == ["GPU2"]
    assert branch.problems[0].id == "acs-redirect"
    assert "root port 0000:02:01.1  ! acs-redirect" in topology.view(machine)


def test_refused_peer_access_stands_in_the_matrix(tmp_path: Path):
    machine = host(tmp_path, "p2p-cns")
    assert machine.p2p is not None
    assert machine.p2p[2][5] == "CNS"
    assert {problem.id for problem in machine.pairs[frozenset(("GPU2", "GPU5"))]} == {"p2p-read", "p2p-write"}
    assert re.search(r"^GPU2 .*\bCNS!", topology.view(machine), re.MULTILINE)
    assert host(tmp_path, "rtx-pro-6000-x8").p2p is None


def test_a_lost_gpu_is_drawn_as_missing(tmp_path: Path):
    machine = host(tmp_path, "gpu-lost")
    lost = gpu(machine, "GPU5")
    assert not lost.shown
    assert [problem.id for problem in lost.problems] == ["gpu-lost"]
    assert "missing\n└─ GPU5" in topology.view(machine)
    assert "gpu-count" in {problem.id for problem in machine.problems}


def test_no_gpu_at_all_is_a_picture_too(tmp_path: Path):
    machine = host(tmp_path, "driver-mismatch")
    assert machine.labels == []
    assert topology.view(machine).splitlines()[0] == "0 GPUs"
    assert "driver-mismatch" in topology.view(machine)


def test_the_numbers_of_gpus_in_q_are_their_order():
    machine = recorded("h200x2_topo_m.txt", "h200x2_q.xml")
    assert gpu(machine, "GPU1").name == "NVIDIA H200"
    assert machine.links is not None
    assert machine.links[0][1].startswith("NV")


def test_colour_is_only_where_it_is_asked_for(tmp_path: Path):
    machine = host(tmp_path, "link-x8")
    assert "\x1b" not in topology.view(machine)
    coloured = topology.view(machine, colour=True)
    assert "\x1b[31;1mGPU3" in coloured
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == topology.view(machine)


@pytest.mark.parametrize("count", [1, 4, 7, 10, 16])
def test_any_number_of_gpus(count: int):
    facts: dict[str, Any] = {
        "gpu_ids": list(range(count)),
        "links": [["X" if i == j else "SYS" for j in range(count)] for i in range(count)],
        "numa_per_gpu": [None] * count,
    }
    machine = topology.machine_of(facts)
    assert [node.name for node in machine.nodes] == [None]
    text = topology.view(machine)
    assert text.startswith(f"{count} GPU")
    assert text.count("SYS") == count * (count - 1)
    assert "NUMA node not known" in text


def test_nothing_known_is_an_empty_picture():
    machine = topology.machine_of({})
    assert (machine.nodes, machine.labels, machine.links) == ([], [], None)


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.txt")), ids=lambda path: path.stem)
def test_every_recording_can_be_drawn(path: Path):
    machine = recorded(path.name)
    assert topology.view(machine, colour=True)
