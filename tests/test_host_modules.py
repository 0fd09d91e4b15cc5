# SPDX-License-Identifier: Apache-2.0
"""Options of the NVIDIA modules: in effect only when the loaded module says so; the initramfs holds them too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from host_machine import Host

from inference.host import modules, owned
from inference.topology.collect import Answer

SETTINGS = {"host_uvm_hmm": "off", "host_nvreg": {"ForceP2P": "0x11", "NVreg_EnableResizableBar": "1"}}
WRITTEN = owned.sealed("options nvidia_uvm uvm_disable_hmm=1\n")
PARAMS = 'ResmanDebugLevel: 4294967295\nEnableMSI: 1\nEnableResizableBar: {bar}\nRegistryDwords: "ForceP2P={p2p}"'


def host(root: Path, hmm: str | None = "Y", params: str | None = None, *, written: bool = True) -> Host:
    files = {modules.UVM: hmm, modules.PARAMS: params, modules.FILE: WRITTEN if written else None}
    return Host(root, {path: text for path, text in files.items() if text is not None})


def test_read_back_from_the_loaded_modules(tmp_path: Path):
    right = host(tmp_path / "a", "Y", PARAMS.format(bar="1", p2p="0x11"))
    assert [o.state for o in modules.look(SETTINGS, right)] == ["in effect"] * 3
    wrong = host(tmp_path / "b", "N", PARAMS.format(bar="0", p2p="0x1"))
    assert [(o.state, o.reboot) for o in modules.look(SETTINGS, wrong)] == [("pending", True)] * 3


def test_a_module_that_is_not_loaded_waits_for_no_reboot(tmp_path: Path):
    outcomes = list(modules.look(SETTINGS, host(tmp_path, None, None)))
    assert [(o.state, o.reboot) for o in outcomes] == [("pending", False)] * 3
    assert {o.why for o in outcomes} == {modules.WHEN_LOADED}


def test_before_the_file_is_written_a_reboot_would_not_help(tmp_path: Path):
    outcomes = modules.look(SETTINGS, host(tmp_path, "N", PARAMS.format(bar="0", p2p="0x1"), written=False))
    assert [(o.state, o.reboot) for o in outcomes] == [("to do", False)] * 3


def test_a_container_has_no_modules_of_its_own(tmp_path: Path):
    inside = host(tmp_path, "Y", PARAMS.format(bar="1", p2p="0x11"))
    inside.contained = True
    assert {o.state for o in modules.look(SETTINGS, inside)} == {"not done"}
    assert not list(modules.steps(inside, written=True, wanted=True))


def test_what_is_off_is_not_looked_at(tmp_path: Path):
    assert not list(modules.look({"host_uvm_hmm": "", "host_nvreg": {}}, host(tmp_path)))


@pytest.mark.parametrize(
    ("age", "written", "wanted", "made"),
    [(+10, False, True, False), (-10, False, True, True), (+10, True, True, True), (-10, False, False, False),
     (+10, True, False, True)],
)  # fmt: skip
def test_the_initramfs_is_made_anew_when_it_is_older_or_the_file_changes(
    tmp_path: Path, age: int, written: bool, wanted: bool, made: bool
):
    machine = host(tmp_path)
    image = machine.path("/boot/initrd.img-6.1.0-57-amd64")
    machine.write("/boot/initrd.img-6.1.0-57-amd64", "")
    machine.write("/usr/sbin/update-initramfs", "")
    machine.path("/usr/sbin/update-initramfs").chmod(0o755)
    stamp = machine.path(modules.FILE).stat().st_mtime + age
    os.utime(image, (stamp, stamp))
    steps = list(modules.steps(machine, written=written, wanted=wanted))
    assert bool(steps) is made
    for step in steps:
        step.act()
        assert machine.calls == ["update-initramfs -u -k all"]


def test_without_an_initramfs_nothing_is_made(tmp_path: Path):
    machine = host(tmp_path)
    machine.write("/usr/sbin/update-initramfs", "")
    machine.path("/usr/sbin/update-initramfs").chmod(0o755)
    assert not list(modules.steps(machine, written=True, wanted=True))


def test_a_failure_says_what_the_program_said(tmp_path: Path):
    machine = host(tmp_path)
    machine.programs["update-initramfs"] = Answer(1, "", "No space left on device")
    with pytest.raises(Exception, match=r"update-initramfs -u -k all failed \(exit 1\): No space left"):
        modules._update(machine)
