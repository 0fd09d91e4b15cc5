# SPDX-License-Identifier: Apache-2.0
"""Kernel settings against a folder that stands in for /proc/sys, and the real one where it is only read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from host_machine import Host

from inference.host import sysctls
from inference.host.machine import HostError
from inference.host.sysctls import Sysctl

VALUES = {
    "vm/swappiness": "60\n",
    "kernel/numa_balancing": "1\n",
    "net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
    "net/ipv4/conf/eth0.7/forwarding": "0\n",
    "net/ipv4/conf/enP1s0/forwarding": "0\n",
}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, {f"/proc/sys/{name}": value for name, value in VALUES.items()})


@pytest.fixture
def proc(host: Host) -> Path:
    return host.path("/proc/sys")


def test_values_are_compared_as_the_kernel_prints_them(proc: Path):
    settings = sysctls.read({"net.ipv4.tcp_rmem": "4096 131072  6291456", "vm.swappiness": "10"}, proc)
    assert [setting.differs for setting in settings] == [False, True]
    assert settings[1] == Sysctl("vm.swappiness", "60", "10")


def test_names_with_dots_in_a_part_are_written_with_slashes(proc: Path):
    names = ["net/ipv4/conf/eth0.7/forwarding", "net.ipv4.conf.enP1s0.forwarding"]
    assert [s.running for s in sysctls.read(dict.fromkeys(names, "1"), proc)] == ["0", "0"]


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
    with pytest.raises(HostError, match=said):
        sysctls.read({"kernel.numa_balancing": "0", name: value}, proc)
    assert (proc / "kernel/numa_balancing").read_text() == "1\n"


def test_every_problem_is_named_at_once(proc: Path):
    with pytest.raises(HostError, match=r"a\.b: .*; host_sysctls: c\.d: "):
        sysctls.read({"a.b": "1", "c.d": 2}, proc)


TRIGGER = Path("/proc/sys/vm/compact_memory")


@pytest.mark.skipif(not TRIGGER.exists(), reason="this kernel has no such trigger")
def test_a_trigger_is_no_setting():
    with pytest.raises(HostError, match=r"vm\.compact_memory: cannot be read"):
        sysctls.read({"vm.compact_memory": "1"}, Path("/proc/sys"))


def test_only_what_differs_is_written(host: Host, proc: Path):
    before = (proc / "kernel/numa_balancing").stat().st_mtime_ns
    settings = {"host_sysctls": {"vm.swappiness": "10", "kernel.numa_balancing": "1"}}
    (step,) = sysctls.steps(settings, host)
    assert (step.before, step.after) == ("vm.swappiness = 60\n", "vm.swappiness = 10\n")
    step.act()
    assert (proc / "vm/swappiness").read_text() == "10"
    assert (proc / "kernel/numa_balancing").stat().st_mtime_ns == before
    assert [o.state for o in sysctls.look(settings, host)] == ["in effect", "in effect"]
    assert not list(sysctls.steps(settings, host))


def test_a_refusal_shows_value_and_cause(proc: Path):
    (proc / "vm/swappiness").unlink()
    (proc / "vm/swappiness").mkdir()  # a write fails, as a kernel's refusal does
    with pytest.raises(HostError, match=r"the kernel refuses '10'.*runs with '60'"):
        sysctls.put(Sysctl("vm.swappiness", "60", "10"), proc)


def test_a_value_that_the_kernel_alters_is_an_error(proc: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "write_text", lambda path, _: path.write_bytes(b"200\n"))
    with pytest.raises(HostError, match="set to '1000', the kernel made it '200'"):
        sysctls.put(Sysctl("vm.swappiness", "60", "1000"), proc)


def test_in_a_container_what_is_not_its_own_is_not_done_and_says_why(host: Host, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "access", lambda path, _: "net" in str(path))
    host.contained = True
    settings = {"host_sysctls": {"vm.swappiness": "10", "net.ipv4.conf.enP1s0.forwarding": "1"}}
    assert [(o.state, "machine below" in o.why) for o in sysctls.look(settings, host)] == [
        ("not done", True),
        ("to do", False),
    ]
    assert [step.what for step in sysctls.steps(settings, host)] == ["set net.ipv4.conf.enP1s0.forwarding"]
