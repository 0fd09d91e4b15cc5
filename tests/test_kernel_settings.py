# SPDX-License-Identifier: Apache-2.0
"""Kernel settings against a folder that stands in for /proc/sys, and the real one where it is only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference import kernel_settings
from inference.kernel_settings import KernelSettingsError, Setting


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for name, value in (
        ("vm/swappiness", "60\n"),
        ("kernel/numa_balancing", "1\n"),
        ("net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
        ("net/ipv4/conf/eth0.7/forwarding", "0\n"),
        ("net/ipv4/conf/enP1s0/forwarding", "0\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(value)
    return tmp_path


def test_values_are_compared_as_the_kernel_prints_them(proc: Path):
    settings = kernel_settings.read({"net.ipv4.tcp_rmem": "4096 131072  6291456", "vm.swappiness": "10"}, proc)
    assert [setting.differs for setting in settings] == [False, True]
    assert settings[1] == Setting("vm.swappiness", "60", "10")


def test_names_with_dots_in_a_part_are_written_with_slashes(proc: Path):
    names = ["net/ipv4/conf/eth0.7/forwarding", "net.ipv4.conf.enP1s0.forwarding"]
    assert [s.running for s in kernel_settings.read(dict.fromkeys(names, "1"), proc)] == ["0", "0"]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("vm.swappiness", 10, r"seen 10 \(int\), expected a string; put it in quotes"),
        ("vm.swappiness", True, "bool"),
        ("vm.swappiness", None, "NoneType"),
        ("vm.swappiness", "", "one line"),
        ("vm.swappiness", "10\nkernel.modprobe = /tmp/x", "one line"),
        ("vm.swap", "10", "no such setting"),
        ("vm", "10", "no such setting"),
        ("../outside", "10", "no such setting"),
        ("vm.swappiness;x", "10", "no such setting"),
    ],
)
def test_what_cannot_be_set_is_named_before_anything_is(proc: Path, name: str, value: object, said: str):
    with pytest.raises(KernelSettingsError, match=said):
        kernel_settings.read({"kernel.numa_balancing": "0", name: value}, proc)
    assert (proc / "kernel/numa_balancing").read_text() == "1\n"


def test_every_problem_is_named_at_once(proc: Path):
    with pytest.raises(KernelSettingsError, match=r"a\.b: .*; c\.d: "):
        kernel_settings.read({"a.b": "1", "c.d": 2}, proc)


TRIGGER = Path("/proc/sys/vm/compact_memory")


@pytest.mark.skipif(not TRIGGER.exists(), reason="this kernel has no such trigger")
def test_a_trigger_is_no_setting():
    with pytest.raises(KernelSettingsError, match=r"vm\.compact_memory: cannot be read"):
        kernel_settings.read({"vm.compact_memory": "1"})


def test_only_what_differs_is_written(proc: Path):
    settings = kernel_settings.read({"vm.swappiness": "10", "kernel.numa_balancing": "1"}, proc)
    (proc / "kernel/numa_balancing").chmod(0o444)
    before = (proc / "kernel/numa_balancing").stat().st_mtime_ns
    kernel_settings.set_running(settings, proc)
    assert (proc / "vm/swappiness").read_text() == "10"
    assert (proc / "kernel/numa_balancing").stat().st_mtime_ns == before


def test_a_refusal_shows_value_and_cause(proc: Path):
    (wanted,) = kernel_settings.read({"vm.swappiness": "10"}, proc)
    (proc / "vm/swappiness").unlink()
    (proc / "vm/swappiness").mkdir()  # a write fails, as a kernel's refusal does
    with pytest.raises(KernelSettingsError, match=r"the kernel refuses '10'.*runs with '60'"):
        kernel_settings.set_running([wanted], proc)


def test_a_value_that_the_kernel_alters_is_an_error(proc: Path, monkeypatch: pytest.MonkeyPatch):
    (wanted,) = kernel_settings.read({"vm.swappiness": "1000"}, proc)
    monkeypatch.setattr(Path, "write_text", lambda path, _: path.write_bytes(b"200\n"))
    with pytest.raises(KernelSettingsError, match="set to '1000', the kernel made it '200'"):
        kernel_settings.set_running([wanted], proc)


def test_the_file_for_the_next_boot():
    entry = kernel_settings.boot_file({"vm.swappiness": "10", "kernel.numa_balancing": "0"}, "/etc/sysctl.d/x.conf")
    lines = entry.content.splitlines()
    assert lines[0].startswith("#")
    assert lines[1:] == ["kernel.numa_balancing = 0", "vm.swappiness = 10"]
    assert kernel_settings.boot_file({}, "/etc/sysctl.d/x.conf").state == "absent"
