# SPDX-License-Identifier: Apache-2.0
"""Every check, on a host where all is well and on one where its fault acts; and that every id is explained."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sysfs_host import BUSES, DRIVER, build, config_space
from test_topology_hosts import HEALTHY, player

from inference import topology
from inference.findings import Report
from inference.topology.checks import places
from inference.topology.collect import COMMANDS, Answer
from inference.topology.pcie import acs_control

DOCS = Path(__file__).parent.parent / "docs" / "topology.md"
QUIET = "2026-11-30T06:24:22+00:00 gpu1 kernel: nvidia: loading out-of-tree module taints kernel.\n"
EXPECTED = topology.expectation_of(HEALTHY)

Edit = Callable[[str], str]


class Host:
    """The healthy host, its answers and files open to change."""

    def __init__(self, root: Path) -> None:
        self.root = build(root)
        self.edits: dict[str, Edit] = {}
        self.log = QUIET
        self.shm_free = 1 << 34
        self.play = player(HEALTHY)

    def run(self, argv: Sequence[str], timeout: float) -> Answer:
        name = next(name for name, command in COMMANDS.items() if command == tuple(argv))
        if name == "kernel log":
            return Answer(0, self.log)
        answer = self.play(argv, timeout)
        return replace(answer, out=self.edits.get(name, lambda text: text)(answer.out))

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def report(self, expectation: topology.Expectation = EXPECTED, **options: Any) -> Report:
        facts = topology.collect(self.run, self.root)
        facts.host["shm_free"] = self.shm_free
        return topology.check(facts, expectation, **options)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def in_first_gpu(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new, 1)


def xml(tag: str, value: str) -> Callable[[Host], None]:
    """Return a fault that sets the first ``tag`` of nvidia-smi -q -x, which is GPU0's."""

    def act(host: Host) -> None:
        host.edits["-q -x"] = lambda text: re.sub(rf"<{tag}>[^<]*</{tag}>", f"<{tag}>{value}</{tag}>", text, count=1)

    return act


def csv(old: str, new: str) -> Callable[[Host], None]:
    """Return a fault that replaces text in GPU0's row of --query-gpu, and its like in -q -x."""

    def act(host: Host) -> None:
        host.edits["--query-gpu"] = lambda text: in_first_gpu(text, old, new)

    return act


def file(path: str, text: str) -> Callable[[Host], None]:
    return lambda host: host.write(path, text)


def matrix(old: str, new: str) -> Callable[[Host], None]:
    def act(host: Host) -> None:
        host.edits["topo -m"] = lambda text: in_first_gpu(text, old, new)

    return act


def edit_xml(old: str, new: str) -> Callable[[Host], None]:
    return lambda host: host.edits.update({"-q -x": lambda text: in_first_gpu(text, old, new)})


def both(*faults: Callable[[Host], None]) -> Callable[[Host], None]:
    def act(host: Host) -> None:
        for fault in faults:
            fault(host)

    return act


def log(line: str) -> Callable[[Host], None]:
    return lambda host: setattr(host, "log", QUIET + line + "\n")


def peers(capability: str, status: str) -> Callable[[Host], None]:
    def act(host: Host) -> None:
        host.edits[f"topo -p2p {capability}"] = lambda text: in_first_gpu(text, "OK ", f"{status} ")

    return act


def busy(host: Host) -> None:
    xml("gpu_util", "97 %")(host)


def used(host: Host) -> None:
    def act(text: str) -> str:
        process = (
            "<processes>\n<process_info><pid>4242</pid><type>C</type><process_name>/usr/bin/python3</process_name>"
            "<used_memory>30000 MiB</used_memory></process_info>\n"
        )
        return text.replace("<used>0 MiB</used>", "<used>30000 MiB</used>", 1).replace("<processes>", process, 1)

    host.edits["-q -x"] = act
    host.edits["--query-gpu"] = lambda text: text.replace(", 0 MiB,", ", 30000 MiB,", 1)
    host.write("proc/4242/cgroup", "0::/user.slice/user-1000.slice/session-3.scope\n")
    host.write("proc/4242/limits", "Max locked memory         8388608              8388608              bytes\n")


def silent(host: Host) -> None:
    play = host.play

    def run(argv: Sequence[str], timeout: float) -> Answer:
        return Answer(124, "", "", timeout, timed_out=True) if "-q" in argv else play(argv, timeout)

    host.play = run


def redirecting(host: Host) -> None:
    port = host.root / "sys/devices/pci0000:02/0000:02:01.1/config"
    port.write_bytes(config_space(0x001D))


def translated(host: Host) -> None:
    host.write("sys/kernel/iommu_groups/3/type", "DMA-FQ\n")


FAULTS: dict[str, tuple[Callable[[Host], None], str, str]] = {
    "nvidia-smi-timeout": (silent, "critical", "-q -x: nothing after"),
    "nvidia-smi-error": (matrix("\tGPU0", "Failed to initialize NVML: Unknown Error\n\tGPU0"), "critical", "NVML"),
    "gpu-lost": (csv("0, NVIDIA", "Unable to determine the device handle for GPU9:"
                 " 0000:a1:00.0: GPU is lost.\n0, NVIDIA"), "critical", "0000:a1:00.0"),
    "driver-mismatch": (file("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"
                             "  590.48.01  Release Build\n"), "critical", f"module 590.48.01, files {DRIVER}"),
    "driver-minimum": (both(lambda host: host.edits.update({"-q -x": lambda t: t.replace(DRIVER, "570.86.15")}),
                            lambda host: host.edits.update({"--query-gpu": lambda t: t.replace(DRIVER, "570.86.15")})),
                       "critical", "570.86.15"),
    "gpu-count": (csv("0, NVIDIA RTX PRO 6000 Blackwell Server Edition, GPU-00000000-0000-0000-0000-000000000000,"
                      " 00000000:01:00.0, 595.58.03, 12.0, 98.02.67.00.0A, 97887 MiB, 0 MiB, Disabled, Enabled, P8, 5,"
                      " 1, 16, 16, Enabled, 600.00 W\n", ""), "critical", "7 by --query-gpu"),
    "gpu-ids": (lambda host: host.edits.update({"topo -m": lambda text: text.replace("GPU7", "GPU9")}), "warning", "9"),
    "compute-capability": (csv(" 12.0,", " 8.9,"), "critical", "GPU0 0000:01:00.0: 8.9"),
    "product": (lambda host: host.edits.update({name: lambda text: text.replace("RTX PRO 6000", "RTX PRO 7000")
                for name in ("--query-gpu", "-q -x")}), "warning", "8x NVIDIA RTX PRO 7000"),
    "gpu-mixed": (csv("Server Edition", "Workstation Edition"), "warning", "1x NVIDIA"),
    "gpu-memory": (csv("97887 MiB", "24576 MiB"), "critical", "24576 MiB"),
    "mig": (csv("Disabled", "Enabled"), "critical", "GPU0 0000:01:00.0: Enabled"),
    "nvlink": (matrix("NODE\t", "NV4\t"), "critical",
               "NV4"),
    "link-class": (lambda host: host.edits.update({"topo -m": lambda text: text.replace("NODE", "SYS")}), "warning",
                   "GPU0-GPU1: SYS"),
    "links-asymmetric": (matrix("NODE", "PHB"), "unknown", "GPU0-GPU1: PHB/NODE"),
    "numa-balance": (matrix("\t1\t\tN/A", "\t0\t\tN/A"),
                     "warning", "5 on node 0"),
    "cpu-affinity": (matrix("0-63,128-191", "64-127"), "warning", "GPU0 (node 0): 64-127"),
    "pcie-gen": (both(csv(" P8, 5, 1,", " P8, 4, 1,"), xml("max_link_gen", "4")), "critical", "gen 4 at most"),
    "pcie-gen-load": (busy, "warning", "GPU0 0000:01:00.0: gen 1"),
    "pcie-width": (csv(" 16, 16, Enabled", " 16, 8, Enabled"), "critical", "x8 of x16"),
    "p2p-read": (peers("r", "CNS"), "critical", "GPU0-GPU1: CNS"),
    "p2p-write": (peers("w", "DR"), "critical", "GPU0-GPU1: DR"),
    "acs-redirect": (redirecting, "critical", "0000:02:01.1 (SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+)"),
    "iommu-translated": (translated, "warning", "0000:71:00.0: group 3 DMA-FQ"),
    "pcie-aspm": (file("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro\n"), "warning", "(not set)"),
    "uvm-hmm": (file("sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "N\n"), "warning", "uvm_disable_hmm=N"),
    "ecc-uncorrected": (xml("dram_uncorrectable", "2"), "critical", "dram 2"),
    "ecc-history": (lambda host: host.edits.update({"-q -x": lambda text: re.sub(
                    r"(<aggregate>.*?<dram_uncorrectable>)0", r"\g<1>5", text, count=1, flags=re.DOTALL)}), "warning",
                    "5"),
    "remapped-rows": (xml("remapped_row_unc", "1"), "warning", "1"),
    "retired-pages": (lambda host: host.edits.update({"-q -x": lambda text: re.sub(
                      r"(<double_bit_retirement>\s*<retired_count>)N/A", r"\g<1>3", text, count=1)}), "warning", "3"),
    "remap-failure": (xml("remapped_row_failure", "Yes"), "critical", "Yes"),
    "memory-unrepairable": (xml("unrepairable_memory", "Yes"), "critical", "Yes"),
    "repair-pending": (xml("channel_repair_pending", "Yes"), "warning", "ecc.channel_repair_pending Yes"),
    "recovery-action": (xml("gpu_recovery_action", "Reboot"), "critical", "GPU0 0000:01:00.0: Reboot"),
    "xid": (log("2026-11-30T06:25:22+00:00 gpu1 kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."),
            "critical", "Xid 79 on 0000:01:00"),
    "kernel-events": (log("kernel: amd_iommu: Event logged [IO_PAGE_FAULT device=0000:01:00.0 domain=0x1]"), "critical",
                      "io-page-fault on 0000:01:00.0"),
    "throttling": (xml("clocks_event_reason_hw_power_brake_slowdown", "Active"), "warning", "brake_slowdown Active"),
    "power-limit": (both(csv("600.00 W", "450.00 W"), xml("current_power_limit", "450.00 W")), "warning", "450 W"),
    "persistence": (csv("Disabled, Enabled, P8", "Disabled, Disabled, P8"), "warning", "Disabled"),
    "bar1": (edit_xml("<total>131072 MiB", "<total>256 MiB"),
             "warning", "256 of 97887 MiB"),
    "gpu-memory-used": (used, "warning", "30000 MiB (/usr/bin/python3 pid 4242 of session-3.scope)"),
    "memlock": (used, "warning", "pid 4242"),
    "shm-space": (lambda host: setattr(host, "shm_free", 64 << 20), "warning", "64 MiB free"),
    "shm-stale": (file("dev/shm/nccl-AbCdEf", ""), "warning", "nccl-AbCdEf"),
    "nccl-conf": (file("etc/nccl.conf", "# wisdom\nNCCL_DEBUG=INFO\n"), "warning", "/etc/nccl.conf: NCCL_DEBUG=INFO"),
    "input": (lambda host: host.edits.update({"topo -m": lambda text: text[:200]}), "unknown", "row"),
}  # fmt: skip
ELSEWHERE = {"nvreg", "p2p", "topology-changed"}
"""Ids with tests of their own below."""


def test_a_host_as_it_should_be_has_no_findings(host: Host) -> None:
    report = host.report()
    assert report.findings == [], report.as_text()
    assert {entry.id for entry in report.not_checked} == {"memlock", "pcie-gen-load", "retired-pages"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str, host: Host) -> None:
    fault, level, words = FAULTS[name]
    fault(host)
    found = [finding for finding in host.report().findings if finding.id == name]
    assert len(found) == 1
    assert found[0].level == level
    assert words in found[0].seen
    assert found[0].expected
    assert found[0].fix


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("pcie-width", ["GPU"]),
        ("p2p-read", ["GPU"]),
        ("acs-redirect", ["0000:"]),
        ("iommu-translated", ["0000:"]),
        ("xid", ["0000:"]),
        ("gpu-count", []),
        ("nccl-conf", []),
    ],
)
def test_a_finding_names_the_parts_it_is_about(name: str, where: list[str], host: Host) -> None:
    FAULTS[name][0](host)
    found = next(finding for finding in host.report().findings if finding.id == name)
    assert [place[: len(where[0])] for place in found.where[:1]] == where
    assert found.as_dict().get("where", []) == list(found.where)


def test_places_are_the_heads_of_items() -> None:
    items = ["GPU3 0000:71:00.0: x8 of x16", "GPU2-GPU5: CNS", "0000:03:01.1 (ReqRedir+)", "pid 7 (a): GPU1"]
    assert places(items) == ("GPU3", "0000:71:00.0", "GPU2-GPU5", "0000:03:01.1")


@pytest.mark.parametrize(
    ("flags", "redirect"),
    [
        ("SrcValid- TransBlk- ReqRedir+ CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-", True),
        ("SrcValid- TransBlk- ReqRedir- CmpltRedir+ UpstreamFwd- EgressCtrl- DirectTrans-", True),
        ("SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl+ DirectTrans-", True),
        ("SrcValid+ TransBlk+ ReqRedir- CmpltRedir- UpstreamFwd+ EgressCtrl- DirectTrans+", False),
        ("ReqRedir+", True),
        ("SrcValid+", None),
        ("SrcValid+ TransBlk- ReqRedir-", None),
    ],
)
def test_any_one_redirecting_control_counts_and_no_other(flags: str, redirect: bool | None) -> None:
    text = f"00:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 153b\n\t\tACSCtl:\t{flags}\n"
    document = topology.parse(text)
    assert document.get("acs_redirect") is redirect
    assert bool(document.get("reason")) is (redirect is None)


def test_every_id_has_a_fault_and_every_finding_an_id(host: Host) -> None:
    assert set(FAULTS) | ELSEWHERE == set(topology.IDS)


@pytest.mark.parametrize("name", topology.IDS)
def test_every_id_has_its_section_with_a_source(name: str) -> None:
    section = re.search(rf"^### {name}\n(.*?)(?=^### |\Z)", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    assert section, f"docs/topology.md has no section {name}"
    assert re.search(r"^Source: \S.*", section[1], re.MULTILINE)


def test_the_sections_are_of_ids_that_exist() -> None:
    assert set(re.findall(r"^### (\S+)$", DOCS.read_text(), re.MULTILINE)) == set(topology.IDS)


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("host_acs", "acs-redirect"),
        ("host_iommu", "iommu-translated"),
        ("host_pcie_aspm", "pcie-aspm"),
        ("host_uvm_hmm", "uvm-hmm"),
        ("host_persistence", "persistence"),
        ("host_power_limit", "power-limit"),
        ("host_shm", "shm-space"),
        ("host_memlock", "memlock"),
        ("host_reboot", "driver-mismatch"),
    ],
)
def test_what_an_enabled_setting_repairs_is_pending(setting: str, name: str, host: Host) -> None:
    FAULTS[name][0](host)
    found = next(finding for finding in host.report(repairs=[setting]).findings if finding.id == name)
    assert found.level == "info"
    assert found.what.startswith(f"pending, {setting} repairs it")


def test_an_idle_link_is_no_fault_and_not_checked_under_load(host: Host) -> None:
    report = host.report()
    assert ("pcie-gen-load", "no GPU was busy: an idle link runs at a low generation, which is normal") in [
        (entry.id, entry.why) for entry in report.not_checked
    ]


def test_memory_held_by_an_instance_of_ours_is_fine(host: Host) -> None:
    used(host)
    host.write("proc/4242/cgroup", "0::/system.slice/system-sglang.slice/sglang@kimi.service\n")
    assert "gpu-memory-used" not in {finding.id for finding in host.report().findings}


def test_memory_in_use_without_a_process_is_reported(host: Host) -> None:
    host.edits["--query-gpu"] = lambda text: text.replace(", 0 MiB,", ", 23166 MiB,", 1)
    found = next(finding for finding in host.report().findings if finding.id == "gpu-memory-used")
    assert "no process is shown" in found.seen


def test_an_application_error_of_the_past_does_not_forbid_serving(host: Host) -> None:
    log("kernel: NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=python3, MMU Fault")(host)
    found = next(finding for finding in host.report().findings if finding.id == "xid")
    assert found.level == "warning"


def test_registry_keys_are_read_back_from_the_module(host: Host) -> None:
    wanted = {"base": HEALTHY, "registry_dwords": {"ForceP2P": "0x11", "EnableResizableBar": "1"}}
    found = next(f for f in host.report(topology.expectation_of(wanted)).findings if f.id == "nvreg")
    assert found.seen == "EnableResizableBar=(not set)"
    fine = {"base": HEALTHY, "registry_dwords": {"ForceP2P": "0x11"}}
    assert host.report(topology.expectation_of(fine)).findings == []


def test_without_root_acs_is_not_checked(host: Host) -> None:
    for path in host.root.glob("sys/devices/pci*/*/config"):
        path.write_bytes(path.read_bytes()[:64])
    why = next(entry.why for entry in host.report().not_checked if entry.id == "acs-redirect")
    assert "only root can read it" in why


def test_the_library_may_leave_out_the_last_part_of_its_version(host: Host) -> None:
    for version, levels in (("595.58", []), ("595.57", ["critical"])):
        (host.root / f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{DRIVER}").unlink(missing_ok=True)
        host.write(f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{version}", "")
        assert [f.level for f in host.report().findings if f.id == "driver-mismatch"] == levels
        (host.root / f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{version}").unlink()


def test_without_journalctl_the_ring_buffer_is_read(host: Host) -> None:
    asked: list[tuple[str, ...]] = []

    def run(argv: Sequence[str], timeout: float) -> Answer:
        asked.append(tuple(argv))
        if argv[0] == "journalctl":
            return Answer(127, "", "journalctl: command not found")
        if argv[0] == "dmesg":
            return Answer(0, "[ 1.0] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n")
        return host.run(argv, timeout)

    facts = topology.collect(run, host.root)
    assert ("dmesg",) in asked
    assert "xid" in {finding.id for finding in topology.check(facts, EXPECTED).at("critical")}


def test_a_virtual_machine_without_bridges_is_not_checked_for_acs(host: Host) -> None:
    for port in host.root.glob("sys/devices/pci*/*"):
        for gpu in port.glob("0000:*"):
            (host.root / "sys/bus/pci/devices" / gpu.name).unlink()
            target = gpu.rename(port.parent / gpu.name)
            (host.root / "sys/bus/pci/devices" / gpu.name).symlink_to(target)
    why = next(entry.why for entry in host.report().not_checked if entry.id == "acs-redirect")
    assert "a virtual machine hides them" in why


def test_a_segment_that_is_mapped_is_not_stale(host: Host) -> None:
    host.write("dev/shm/nccl-AbCdEf", "")
    host.write("proc/77/maps", "7f00-7f01 rw-s 00000000 00:19 5 /dev/shm/nccl-AbCdEf\n")
    assert "shm-stale" not in {finding.id for finding in host.report().findings}


def test_an_empty_kernel_log_is_not_checked(host: Host) -> None:
    host.log = ""
    assert {"xid", "kernel-events"} <= {entry.id for entry in host.report().not_checked}


def test_peer_access_can_be_preferred_or_ignored(host: Host) -> None:
    peers("r", "CNS")(host)
    for policy, levels in (("preferred", ["warning"]), ("ignored", [])):
        expectation = topology.expectation_of({"base": HEALTHY, "p2p": policy})
        assert [finding.level for finding in host.report(expectation).findings] == levels


def test_switched_and_direct_hosts_have_their_own_expectations() -> None:
    text = (DOCS.parent.parent / "tests/fixtures/nvidia-smi/topo_8x_rtxpro6000se_pix_node_sys_ansi_tab.txt").read_text()
    facts = topology.facts_of([("topo", topology.parse(text))])
    for name, ids in ((HEALTHY, []), (f"{HEALTHY}-switched", []), (f"{HEALTHY}-direct", ["link-class"])):
        found = topology.check(facts, topology.expectation_of(name)).findings
        assert [finding.id for finding in found] == ids


def _p2p(status: str, capability: str | None = None) -> tuple[str, dict[str, Any]]:
    text = f" \tGPU0\tGPU1\t\n GPU0\tX\t{status}\t\n GPU1\t{status}\tX\t\n"
    return f"{status} {capability}", {**topology.parse(text), "capability": capability}


@pytest.mark.parametrize(
    ("documents", "levels"),
    [
        ([_p2p("OK")], []),
        ([_p2p("CNS")], ["critical"]),
        ([_p2p("NS")], ["unknown"]),
        ([_p2p("NS"), _p2p("OK")], []),
        ([_p2p("OK"), _p2p("NS")], []),
        ([_p2p("NS", "r")], ["critical"]),
    ],
)
def test_peer_access_of_a_kind_that_is_not_stated(documents: list[tuple[str, Any]], levels: list[str]) -> None:
    expectation = topology.expectation_of({"base": "any", "p2p": "required"})
    report = topology.check(topology.facts_of(documents), expectation)
    assert [finding.level for finding in report.findings if finding.id.startswith("p2p")] == levels


def test_acs_controls_are_read_from_the_configuration_space() -> None:
    assert acs_control(config_space(None)) is None
    control = acs_control(config_space(0x0005))
    assert control is not None
    assert [name for name, on in control.items() if on] == ["SrcValid", "ReqRedir"]
    with pytest.raises(ValueError, match="root is needed"):
        acs_control(bytes(64))


LSPCI = """\
00:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 153b (prog-if 00 [Normal decode])
\tBus: primary=00, secondary=01, subordinate=03, sec-latency=0
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{gpu} CmpltRedir{gpu} UpstreamFwd+ EgressCtrl- DirectTrans-
02:00.0 3D controller: NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell Server Edition] (rev a1)
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width {width}
40:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 153b (prog-if 00 [Normal decode])
\tBus: primary=40, secondary=41, subordinate=41, sec-latency=0
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir{other} CmpltRedir{other} UpstreamFwd+ EgressCtrl- DirectTrans-
"""


@pytest.mark.parametrize(
    ("gpu", "other", "width", "ids"),
    [
        ("-", "+", "x16", []),
        ("+", "-", "x16", ["acs-redirect"]),
        ("-", "-", "x8 (downgraded)", ["pcie-width"]),
    ],
)
def test_lspci_alone_shows_redirects_above_a_gpu_and_its_width(
    gpu: str, other: str, width: str, ids: list[str]
) -> None:
    document = topology.parse(LSPCI.format(gpu=gpu, other=other, width=width))
    assert document["kind"] == "lspci"
    found = topology.check(topology.facts_of([("lspci", document)]), EXPECTED).findings
    assert [finding.id for finding in found] == ids


def test_a_capability_list_that_loops_ends() -> None:
    space = bytearray(4096)
    space[0x100:0x104] = (0x0001 | 1 << 16 | 0x100 << 20).to_bytes(4, "little")
    assert acs_control(bytes(space)) is None


def test_bridges_above_a_gpu_are_found(host: Host) -> None:
    facts = topology.collect(host.run, host.root)
    assert facts.pci is not None
    assert facts.pci[f"0000:{BUSES[3]}:00.0"]["bridges"] == ["0000:03:01.1"]
    assert facts.pci["0000:03:01.1"]["link_capability"] == {"speed": "32.0 GT/s PCIe", "gen": 5, "width": 16}


def test_collecting_leaves_no_trace(host: Host) -> None:
    before = sorted((path, os.lstat(path).st_mtime_ns) for path in host.root.rglob("*"))
    host.report()
    assert before == sorted((path, os.lstat(path).st_mtime_ns) for path in host.root.rglob("*"))
