# SPDX-License-Identifier: Apache-2.0
"""Settings that units make at every boot, on hand-made /sys trees: set, checked, recorded, put back."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
import sysfs_host
from host_machine import Host

from inference.host import at_boot
from inference.host.machine import CannotActError, HostError
from inference.topology import pcie
from inference.topology.collect import Answer

PORTS = [f"0000:{place:02x}:01.1" for place in range(len(sysfs_host.BUSES))]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    sysfs_host.build(tmp_path)
    machine = Host(tmp_path)
    for cpu, governor in enumerate(("schedutil", "performance", "schedutil")):
        folder = f"{at_boot.CPUS}/cpu{cpu}/cpufreq"
        machine.write(f"{folder}/scaling_governor", governor + "\n")
        machine.write(f"{folder}/scaling_available_governors", "performance schedutil powersave\n")
    machine.write(at_boot.HUGEPAGES, "always [madvise] never\n")
    machine.write("/proc/meminfo", "MemTotal:       1048576 kB\n")
    return machine


def control(host: Host, port: str) -> int:
    config = (host.path(at_boot.PCI) / port / "config").read_bytes()
    offset = pcie.acs_offset(config)
    assert offset is not None
    return int(struct.unpack_from("<H", config, offset + pcie.ACS_CONTROL)[0])


def redirect(host: Host, *ports: str) -> None:
    for port in ports:
        (host.path(at_boot.PCI) / port / "config").write_bytes(sysfs_host.config_space(0x001D))


def test_acs_is_cleared_above_every_gpu_logged_recorded_and_put_back(host: Host):
    redirect(host, *PORTS[2:4])
    assert at_boot.look("acs", "off", host) == ({PORTS[2]: "001d", PORTS[3]: "001d"}, "0000")
    lines = at_boot.apply("acs", "off", host)
    assert lines == [f"ACS control: {port}: 001d -> 0000" for port in PORTS[2:4]]
    assert [control(host, port) for port in PORTS] == [0] * 8
    assert at_boot.apply("acs", "off", host) == []
    assert at_boot.revert("acs", host) == [f"ACS control: {port}: back to 001d" for port in PORTS[2:4]]
    assert [control(host, port) for port in PORTS[1:5]] == [0, 0x1D, 0x1D, 0]
    assert at_boot.revert("acs", host) == []


def test_nothing_but_the_control_word_is_written(host: Host):
    redirect(host, PORTS[0])
    file = host.path(at_boot.PCI) / PORTS[0] / "config"
    before = file.read_bytes()
    at_boot.apply("acs", "off", host)
    after = file.read_bytes()
    assert len(after) == len(before)
    assert [i for i in range(len(before)) if before[i] != after[i]] == [0x148 + 6]


def test_bridges_that_lead_to_no_gpu_are_left_alone(host: Host):
    other = host.path("/sys/devices/pci0000:f0/0000:f0:01.1")
    sysfs_host._device(other, "bridge", 0, 0x001D)
    (host.path(at_boot.PCI) / other.name).symlink_to(other)
    assert at_boot.bridges(host) == PORTS
    at_boot.apply("acs", "off", host)
    assert control(host, other.name) == 0x1D


def test_a_bridge_without_acs_counts_as_cleared(host: Host):
    (host.path(at_boot.PCI) / PORTS[0] / "config").write_bytes(sysfs_host.config_space(None))
    assert PORTS[0] not in at_boot.KINDS["acs"].read(host)
    assert at_boot.apply("acs", "off", host) == []


def test_a_register_that_keeps_its_bits_is_an_error(host: Host, monkeypatch: pytest.MonkeyPatch):
    redirect(host, PORTS[0])
    kind = at_boot.KINDS["acs"]
    stuck = at_boot.Kind(kind.setting, kind.what, kind.read, lambda *_: None, kind.wanted)
    monkeypatch.setattr(at_boot, "KINDS", {"acs": stuck})
    with pytest.raises(HostError, match=rf"set to 0000, and still {PORTS[0]} 001d"):
        at_boot.apply("acs", "off", host)


def test_a_kernel_that_is_locked_down_is_named(host: Host, monkeypatch: pytest.MonkeyPatch):
    redirect(host, PORTS[0])

    def refuse(path: Path, *args: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(at_boot, "_record", lambda *_: None)
    monkeypatch.setattr(Path, "read_bytes", lambda _: sysfs_host.config_space(0x001D))
    with pytest.raises(HostError, match=r"Operation not permitted; under Secure Boot"):
        at_boot._put_acs(host, PORTS[0], "0000")


def test_without_root_acs_cannot_be_read(host: Host):
    (host.path(at_boot.PCI) / PORTS[0] / "config").write_bytes(bytes(64))
    with pytest.raises(HostError, match="root is needed"):
        at_boot.look("acs", "off", host)


def test_a_machine_without_visible_bridges_and_a_container_cannot_act(tmp_path: Path):
    with pytest.raises(CannotActError, match="no PCIe bridge above a GPU"):
        at_boot.look("acs", "off", Host(tmp_path))
    for name, value in (("acs", "off"), ("cpu-governor", "performance"), ("hugepages", "never"), ("power-limit", "1")):
        with pytest.raises(CannotActError, match="belongs to the machine below"):
            at_boot.look(name, value, Host(tmp_path, contained=True))


def test_what_was_before_the_first_change_is_what_counts(host: Host):
    at_boot.apply("cpu-governor", "performance", host)
    at_boot.apply("cpu-governor", "powersave", host)
    assert json.loads(host.path(f"{at_boot.RECORDS}/cpu-governor.json").read_text()) == {
        "cpu0": "schedutil",
        "cpu1": "performance",
        "cpu2": "schedutil",
    }
    at_boot.revert("cpu-governor", host)
    assert at_boot.KINDS["cpu-governor"].read(host) == {"cpu0": "schedutil", "cpu1": "performance", "cpu2": "schedutil"}


def test_a_governor_that_is_not_offered_is_refused(host: Host):
    with pytest.raises(HostError, match=r"seen fastest, expected one that cpu0 offers: performance, schedutil"):
        at_boot.apply("cpu-governor", "fastest", host)


def test_a_virtual_machine_scales_no_frequency(tmp_path: Path):
    with pytest.raises(CannotActError, match="scales no frequency"):
        at_boot.look("cpu-governor", "performance", Host(tmp_path))


def test_huge_pages(host: Host, tmp_path: Path):
    assert at_boot.look("hugepages", "madvise", host) == ({}, "madvise")
    assert at_boot.look("hugepages", "never", host) == ({"enabled": "madvise"}, "never")
    at_boot._put_hugepages(host, "enabled", "never")
    assert host.read(at_boot.HUGEPAGES) == "never"
    with pytest.raises(CannotActError, match="no transparent huge pages"):
        at_boot.look("hugepages", "never", Host(tmp_path / "bare"))


class Gpus:
    """Acts as nvidia-smi for power limits; ``stuck`` GPUs do not take one."""

    def __init__(self, host: Host, stuck: tuple[str, ...] = ()) -> None:
        self.limits, self.stuck = {"0": "600.00", "1": "450.00"}, stuck
        host.programs["nvidia-smi --query-gpu"] = lambda _: Answer(
            0, "".join(f"{gpu}, {limit}\n" for gpu, limit in self.limits.items())
        )
        host.programs["nvidia-smi -i"] = self.put

    def put(self, argv: Sequence[str]) -> Answer:
        gpu, watts = argv[2], float(argv[4])
        if watts > 600:
            return Answer(1, "Provided power limit 700.00 W is not a valid power limit")
        if gpu not in self.stuck:
            self.limits[gpu] = f"{watts:.2f}"
        return Answer(0, "")


def test_power_limits_are_set_read_back_and_put_back(host: Host):
    gpus = Gpus(host)
    assert at_boot.apply("power-limit", "450", host) == ["power limit: 0: 600.00 -> 450.00"]
    assert gpus.limits == {"0": "450.00", "1": "450.00"}
    at_boot.revert("power-limit", host)
    assert gpus.limits == {"0": "600.00", "1": "450.00"}


def test_a_power_limit_that_is_refused_or_not_taken_is_an_error(host: Host):
    Gpus(host)
    with pytest.raises(HostError, match="not a valid power limit"):
        at_boot.apply("power-limit", "700", host)
    Gpus(host, stuck=("0",))
    host.answers.clear()
    with pytest.raises(HostError, match=r"set to 450.00, and still 0 600\.00"):
        at_boot.apply("power-limit", "450", host)


def test_without_an_answer_of_nvidia_smi_the_limit_is_not_known(host: Host):
    host.programs["nvidia-smi"] = Answer(9, "", "couldn't communicate with the NVIDIA driver")
    with pytest.raises(CannotActError, match="couldn't communicate"):
        at_boot.look("power-limit", "450", host)


@pytest.mark.parametrize(
    ("size", "expected"), [("64G", 64 << 30), ("50%", 512 << 20), ("1K", 4096), ("33%", 354336768), ("2T", 2 << 40)]
)
def test_sizes(size: str, expected: int):
    assert at_boot.bytes_of(size, 1 << 30) == expected


@pytest.mark.parametrize("size", ["64", "much", "-1G", "1.5G", "64g", ""])
def test_a_size_that_is_none_is_refused(size: str):
    with pytest.raises(HostError, match=r"host_shm: seen .*expected a size such as 64G or 50%"):
        at_boot.bytes_of(size, 1 << 30)


def test_shared_memory_is_remounted(host: Host):
    with pytest.raises(HostError, match="and still"):
        at_boot.apply("shm", "64M", host)  # the stand-in for mount does nothing
    assert host.calls == [f"mount -o remount,size={64 << 20} /dev/shm"]


def test_only_enabled_settings_have_a_unit():
    settings = {"host_acs": "off", "host_cpu_governor": "", "host_power_limit": 0, "host_shm": "64G"}
    assert at_boot.values(settings) == {"acs": "off", "shm": "64G"}


RECORDED = Path(__file__).parent / "fixtures/nvidia-smi/lspci_acsctl_redirect.txt"

TREE = """\
00:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 14ab
\tBus: primary=00, secondary=01, subordinate=03, sec-latency=0
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
01:00.0 PCI bridge: Broadcom / LSI PEX890xx
\tBus: primary=01, secondary=02, subordinate=03, sec-latency=0
\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
03:00.0 3D controller: NVIDIA Corporation GB202GL [RTX PRO 6000 Blackwell Server Edition]
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-
40:01.1 PCI bridge: Advanced Micro Devices, Inc. [AMD] Device 14ab
\tBus: primary=40, secondary=41, subordinate=41, sec-latency=0
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-
"""


def test_a_recorded_lspci_shows_what_would_be_cleared():
    assert at_boot.recorded_bridges(RECORDED.read_text()) == {
        "(not named)": ["SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"]
    }


def test_in_a_whole_listing_only_bridges_above_a_gpu_count():
    assert list(at_boot.recorded_bridges(TREE)) == ["00:01.1"]
