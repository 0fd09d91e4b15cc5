# SPDX-License-Identifier: Apache-2.0
"""What is read from a host before its instances are changed, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inference import generations, host_plan, placement, systemd, topology
from inference.host_plan import Cuda, Host, Removed, Request, plan
from inference.managed_files import Entry

PARTS = {
    "version": 1,
    "driver": "580.95.05",
    "numa": ["0", "0", "1", "N/A"],
    "links": [["X", "NODE"], ["NODE", "X"]],
    "gpus": {},
}
FOUR = placement.Machine((0, 0, 1, 1), (), {0: "0-7", 1: "8-15"})


def request(*instances: dict[str, Any], **more: Any) -> Request:
    return Request(**{"engine": "sglang", "variant": "cu130", "instances": instances, **more})


def instance(name: str = "a", port: int = 30000, size: int = 2, **more: Any) -> dict[str, Any]:
    return {"name": name, "port": port, "tensor_parallel_size": size, **more}


def ids(result: host_plan.Plan) -> list[str]:
    return [finding.id for finding in result.findings if finding.id != "cuda-toolkit-missing"]


# reading


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_plan, "architecture", lambda: "sm120")
    monkeypatch.setattr(host_plan, "_live_topology", lambda: {"numa": ["1"], "links": None})
    monkeypatch.setattr(generations, "STATE_ROOT", tmp_path / "state")
    for node, cpus in enumerate(("0-7", "8-15")):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    return tmp_path


def put(root: Path, path: str, text: str = "") -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_the_remembered_topology_is_read_and_an_unknown_node_stays_unknown(root: Path):
    put(root, "var/lib/inference/topology.json", json.dumps(PARTS))
    machine = host_plan.read("/nowhere", [], root).machine
    assert machine.gpu_nodes == (0, 0, 1, None)
    assert machine.node_cpus == {0: "0-7", 1: "8-15"}


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_without_a_memory_the_host_is_asked(root: Path, text: str | None):
    if text is not None:
        put(root, "var/lib/inference/topology.json", text)
    assert host_plan.read("/nowhere", [], root).machine.gpu_nodes == (1,)


def toolkit(root: Path, path: str, version: int | None = None) -> None:
    put(root, f"{path}/bin/nvcc")
    put(root, f"{path}/include/cuda_runtime.h")
    if version:
        put(root, f"{path}/include/cuda.h", f"#ifndef X\n#define CUDA_VERSION {version}\n")


OWN = "opt/r/venv/lib/python3.12/site-packages/nvidia/cu13"


def test_toolkits_of_the_host_and_of_the_release(root: Path):
    toolkit(root, "usr/local/cuda", 12080)
    toolkit(root, OWN)
    found = host_plan.read(str(root / "opt/r"), [], root).toolkits
    assert found == (Cuda("/usr/local/cuda", "12.8"), Cuda(str(root / OWN), "13"))


def test_a_compiler_without_headers_is_no_toolkit(root: Path):
    put(root, "usr/local/cuda/bin/nvcc")
    assert host_plan.read("/nowhere", [], root).toolkits == ()


@pytest.mark.parametrize(
    ("toolkits", "variant", "expected"),
    [
        ([("host", "13.0"), ("own", "13")], "cu130", "host"),
        ([("host", "12.8"), ("own", "13")], "cu130", "own"),
        ([("host", "12.8")], "cu130", "host"),
        ([("host", "12.8"), ("own", "13")], "cu128", "host"),
        ([], "cu130", None),
    ],
)
def test_the_toolkit_is_of_the_releases_own_version(toolkits: list[tuple[str, str]], variant: str, expected: str):
    host = Host(toolkits=tuple(Cuda(*entry) for entry in toolkits))
    found = host_plan.toolkit(request(variant=variant), host)
    assert (found.home if found else None) == expected


def test_a_gpu_release_without_a_compiler_is_warned_of(root: Path):
    assert [f.id for f in plan(request(instance(size=1)), Host()).findings] == ["cuda-toolkit-missing"]
    assert plan(request(instance(size=1), variant="cpu"), Host()).findings == []


def test_the_architecture_names_every_kind_of_gpu(monkeypatch: pytest.MonkeyPatch):
    said: dict[str, Any] = {"gpus": [{"compute_cap": "12.0"}, {"compute_cap": "9.0"}, {"compute_cap": "[N/A]"}]}
    monkeypatch.setattr(topology, "parse", lambda _: said)
    assert host_plan.architecture() == "sm120+sm90"
    said["gpus"] = []
    assert host_plan.architecture() == "unknown"


def test_the_releases_nccl_is_the_one_that_counts(root: Path):
    (root / "opt/r/venv/lib/python3.12/site-packages/nvidia_nccl_cu13-2.30.7.dist-info").mkdir(parents=True)
    assert host_plan.read(str(root / "opt/r"), [], root).nccl_version == "2.30.7"


def test_installed_instances_that_are_not_wanted_with_what_they_claim(root: Path, monkeypatch: pytest.MonkeyPatch):
    state = systemd.UnitState("loaded", "active", "running", "success", "", 1, 0, "")
    monkeypatch.setattr(systemd, "unit_state", lambda _: state)
    monkeypatch.setattr(systemd, "enabled", lambda _: False)
    for name in ("old", "kept"):
        store = generations.Store(name, root / "state")
        made = generations.Generation(
            name, f"vllm@{name}.service", "r", "t",
            (
                Entry(f"/etc/inference/{name}/supervisor.json", content='{"port": 30005}'),
                Entry("/x/30-resources.conf", content="[Service]\nEnvironment=CUDA_VISIBLE_DEVICES=2,3\n"),
            ),
        )  # fmt: skip
        store.keep(made)
        store.installed(made)
    (removed,) = host_plan.read("/nowhere", ["kept"], root).removed
    assert (removed.name, removed.unit, removed.runs, removed.gpus) == ("old", "vllm@old.service", True, (2, 3))
    assert set(removed.ports) == {30005, *range(22080, 22096)}


# planning


def test_each_instance_is_told_its_place_and_its_ports():
    result = plan(request(instance("a"), instance("b", 30001)), Host(machine=FOUR))
    assert ids(result) == []
    assert (result.instances["a"]["gpus"], result.instances["a"]["cpus"]) == ([0, 1], "0-7")
    assert (result.instances["b"]["gpus"], result.instances["b"]["node"]) == ([2, 3], 1)
    assert result.instances["b"]["arguments"] == {"nccl-port": 22030}


def test_an_instance_over_both_nodes_has_its_ranks_bound_by_the_engine():
    result = plan(request(instance(size=4)), Host(machine=FOUR))
    assert result.instances["a"]["arguments"]["numa-node"] == [0, 0, 1, 1]
    assert result.instances["a"]["node"] is None
    named = instance(size=4, arguments={"numa_node": [0, 0, 0, 0]})
    assert "numa-node" not in plan(request(named), Host(machine=FOUR)).instances["a"]["arguments"]
    vllm = plan(request(instance(size=4), engine="vllm"), Host(machine=FOUR)).instances["a"]
    assert (vllm["arguments"], vllm["environment"]) == ({}, {"VLLM_PORT": "22000"})


def test_a_host_without_gpus_has_none_to_give_but_those_that_are_named():
    assert plan(request(instance(), variant="cpu"), Host(machine=FOUR)).instances["a"]["gpus"] == []
    named = plan(request(instance(gpus=[2, 3]), variant="cpu"), Host(machine=FOUR)).instances["a"]
    assert (named["gpus"], named["cpus"]) == ([2, 3], "8-15")


def test_what_does_not_fit_is_refused():
    assert ids(plan(request(instance(size=4), instance("b", 30001)), Host(machine=FOUR))) == ["instance-gpus-beyond"]
    result = plan(request(instance(gpus=[0, 7])), Host(machine=FOUR))
    assert [f.seen for f in result.findings if f.id == "instance-gpus-beyond"] == [
        "a names 7; the host has GPUs 0 to 3"
    ]


OLD = Removed("old", "vllm@old.service", "active", True, (30000, 22000), (0, 1))


def test_what_a_removed_instance_uses_is_not_given_away():
    result = plan(request(instance("new", 30001)), Host(machine=FOUR, removed=(OLD,)))
    assert (ids(result), result.instances["new"]["gpus"]) == (["instance-removed"], [2, 3])
    clash = plan(request(instance("new", 30000, gpus=[1, 2])), Host(machine=FOUR, removed=(OLD,)))
    assert ids(clash) == ["instance-removed", "instance-overlap", "instance-overlap"]
    assert (
        "vllm@old.service, which is not in the inventory" in clash.findings[1].seen or "new" in clash.findings[1].seen
    )


@pytest.mark.parametrize(
    "host", [Host(machine=FOUR, removed=(Removed("old", "u", "inactive", False, (30000,), (0,)),))]
)
def test_a_removed_instance_that_never_runs_again_blocks_nobody(host: Host):
    result = plan(request(instance("new", 30000, gpus=[0, 1])), host)
    assert [(f.id, f.level) for f in result.findings if f.id.startswith("inst")] == [("instance-removed", "warning")]


def test_pruning_frees_what_was_used():
    result = plan(request(instance("new"), prune=True), Host(machine=FOUR, removed=(OLD,)))
    assert result.instances["new"]["gpus"] == [0, 1]
    assert [f.level for f in result.findings if f.id == "instance-removed"] == ["info"]


# the measured profile


def measured(root: Path, **receipt: Any) -> Host:
    known = {"fingerprint": topology.fingerprint(PARTS), "driver": "580.95.05", "nccl_version": "2.30.7", **receipt}
    document = {
        "environment": {"NCCL_PROTO": "LL"}, "nccl_version": "2.30.7", "evidence": [],
        "banned": [{"name": "throughput", "environment": {"NCCL_P2P_DISABLE": "1"}, "why": "hang"}], "receipt": known,
    }  # fmt: skip
    put(root, "var/lib/inference/tuned/nccl.json", json.dumps(document))
    return Host(machine=FOUR, parts=PARTS, nccl_version="2.30.7", root=root)


FILE = "/var/lib/inference/tuned/nccl.json"


def test_what_was_measured_here_is_used(root: Path):
    result = plan(request(instance(), nccl_profile="measured", nccl_measured=FILE), measured(root))
    assert ids(result) == []
    assert result.instances["a"]["nccl"] == {"profile": "measured", "environment": {"NCCL_PROTO": "LL"}}


def test_an_instance_may_name_its_own_file(root: Path):
    host = measured(root)
    (root / FILE.lstrip("/")).rename(root / "other.json")
    wish = instance(nccl_profile="measured", nccl_measured="/other.json", nccl_environment={"NCCL_DEBUG": "WARN"})
    assert plan(request(wish, nccl_measured=FILE), host).instances["a"]["nccl"]["environment"] == {
        "NCCL_PROTO": "LL", "NCCL_DEBUG": "WARN",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("receipt", "finding_id", "word"),
    [
        ({"driver": "570.1"}, "tune-expired-driver", "580.95.05"),
        ({"fingerprint": "0" * 16}, "tune-expired-fingerprint", ""),
        ({"nccl_version": "2.28.9"}, "tune-expired-nccl", "2.30.7"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"nccl_environment": {"NCCL_DEBUG": "WARN"}}])
def test_an_expired_measurement_is_refused_with_the_reason(
    root: Path, receipt: dict[str, str], finding_id: str, word: str, more: dict[str, Any]
):
    wish = request(instance(nccl_profile="measured", **more), nccl_measured=FILE)
    (finding,) = [f for f in plan(wish, measured(root, **receipt)).findings if f.id.startswith("tune")]
    assert (finding.id, finding.level) == (finding_id, "critical")
    assert "a, NCCL profile measured" in finding.what
    assert word in finding.seen
    assert plan(request(instance(), nccl_measured=FILE), measured(root, **receipt)).findings[1:] == []


@pytest.mark.parametrize("text", [None, "{", '{"environment": {}}'])
def test_a_measurement_that_cannot_be_read_is_refused(root: Path, text: str | None):
    host = measured(root)
    (root / FILE.lstrip("/")).unlink()
    if text is not None:
        put(root, FILE.lstrip("/"), text)
    result = plan(request(instance(nccl_profile="measured"), nccl_measured=FILE), host)
    assert ids(result) == ["nccl-profile"]


def test_settings_that_hung_here_are_refused_whatever_their_name(root: Path):
    wish = instance(nccl_profile="none", nccl_environment={"NCCL_P2P_DISABLE": "1"})
    result = plan(request(wish, nccl_measured=FILE), measured(root))
    assert ids(result) == ["tune-banned"]
    assert "hang" in result.findings[-1].seen
