# SPDX-License-Identifier: Apache-2.0
"""What a host is: which systems are refused, what waits for a reboot, what is missing, each with the exact fix."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from host_machine import Host

from inference.host import system
from inference.host.system import Packages
from inference.releases import interpreters
from inference.topology.collect import Answer

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder@host)\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025\n"


def host(root: Path, name: str = "debian", version: str = "12", *, systemd: bool = True) -> Host:
    release = f'PRETTY_NAME="{name} {version}"\nID={name}\nVERSION_ID="{version}"\n'
    machine = Host(root, {"/etc/os-release": release})
    if systemd:
        machine.path("/run/systemd/system").mkdir(parents=True)
    return machine


@pytest.mark.parametrize(("name", "version"), [("debian", "12"), ("debian", "13"), ("ubuntu", "24.04")])
def test_known_systems(tmp_path: Path, name: str, version: str):
    assert system.refusal(host(tmp_path, name, version), "auto") is None


@pytest.mark.parametrize(
    ("name", "version"), [("debian", "11"), ("ubuntu", "20.04"), ("ubuntu", "25.10"), ("fedora", "42")]
)
def test_others_are_refused_and_told_what_is_known(tmp_path: Path, name: str, version: str):
    problem = system.refusal(host(tmp_path, name, version), "auto") or ""
    assert f"seen: {name} {version}" in problem
    assert "expected: Debian 12, Debian 13, Ubuntu 24.04 (Ubuntu 22.04 with a Python" in problem


def test_without_systemd_nothing_runs(tmp_path: Path):
    assert "without systemd" in (system.refusal(host(tmp_path, systemd=False), "auto") or "")


def test_ubuntu_2204_only_with_an_interpreter_that_is_new_enough(tmp_path: Path):
    machine = host(tmp_path, "ubuntu", "22.04")
    for none in ("auto", "", None):
        assert "set engine_python" in (system.refusal(machine, none) or "")
    assert system.refusal(machine, sys.executable) is None
    assert "no usable Python" in (system.refusal(machine, "/bin/false") or "")


def test_an_interpreter_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = interpreters.probe(sys.executable)
    monkeypatch.setattr(interpreters, "probe", lambda _: type(real)(**{**real.as_dict(), "version": "3.10.13"}))
    problem = system.refusal(host(tmp_path, "ubuntu", "22.04"), "/usr/bin/python3.10") or ""
    assert "is Python 3.10.13; expected: 3.11 or newer" in problem


def test_installed_packages_and_those_that_are_missing(tmp_path: Path):
    machine = host(tmp_path)
    machine.programs["dpkg-query"] = Answer(
        0, "installed gcc 4:12.2.0-3\nconfig-files g++ 4:12.2.0-3\ninstalled jq 1.6\n"
    )
    installed = system.packages(machine)
    assert installed.versions == {"gcc": "4:12.2.0-3", "jq": "1.6"}
    assert installed.missing(["gcc", "g++", "jq:amd64", "ninja-build", "g++"]) == ["g++", "ninja-build"]


def test_a_new_kernel_or_driver_waits_for_a_reboot_and_other_packages_do_not(tmp_path: Path):
    machine = host(tmp_path)
    machine.write(system.PENDING_PACKAGES, "dbus\nlinux-image-6.8.0-90-generic\nlibnvidia-compute-580\nlibc6\n")
    (outcome,) = system.pending(machine, Packages({}))
    assert outcome.reboot
    assert outcome.what == "upgraded: libnvidia-compute-580, linux-image-6.8.0-90-generic"
    machine.write(system.PENDING_PACKAGES, "dbus\nlibc6\n")
    assert not list(system.pending(machine, Packages({})))


@pytest.mark.parametrize(
    "package", ["libnvidia-compute-580", "libnvidia-compute-580-server", "libnvidia-ml1", "libcuda1"]
)
def test_a_library_that_is_newer_than_the_loaded_module_waits_for_a_reboot(tmp_path: Path, package: str):
    machine = host(tmp_path)
    machine.write(system.DRIVER_VERSION, OPEN)
    (outcome,) = system.pending(machine, Packages({package: "580.105.08-0ubuntu0.24.04.1"}))
    assert outcome.what == "NVIDIA driver 580.105.08 installed, 580.95.05 loaded"
    assert not list(system.pending(machine, Packages({package: "580.95.05-0ubuntu0.24.04.1"})))


def levels(settings: dict[str, object], machine: Host, installed: dict[str, str] | None = None) -> dict[str, str]:
    return {f.id: f.level for f in system.check(settings, machine, Packages(installed or {}))}


def test_the_driver_has_to_be_there_and_open(tmp_path: Path):
    machine = host(tmp_path)
    assert levels({"host_gpu": True}, machine) == {"driver-missing": "critical"}
    machine.write(system.DRIVER_VERSION, CLOSED)
    assert levels({"host_gpu": True}, machine) == {"driver-closed": "critical"}
    machine.write(system.DRIVER_VERSION, OPEN)
    assert levels({"host_gpu": True}, machine) == {}
    finding = next(iter(system._driver({"host_gpu": True}, host(tmp_path / "other"))))
    assert "apt-get install nvidia-open" in finding.fix


def test_a_host_for_cpus_and_a_container_need_no_driver_of_their_own(tmp_path: Path):
    machine = host(tmp_path)
    assert levels({"host_gpu": False}, machine) == {}
    machine.contained = True
    assert levels({"host_gpu": True}, machine) == {}


def test_driver_packages_of_different_versions_are_named(tmp_path: Path):
    mixed = {
        "nvidia-driver-580-server-open": "580.95.05-0ubuntu0.24.04.1", "libnvidia-compute-580": "580.105.08-0ubuntu1",
        "libnvidia-container1": "1.18.0-1", "nvidia-dkms-580-open": "580.95.05-0ubuntu0.24.04.1",
    }  # fmt: skip
    (finding,) = system._mixed(Packages(mixed))
    assert finding.seen == (
        "580.105.08: libnvidia-compute-580; 580.95.05: nvidia-dkms-580-open, nvidia-driver-580-server-open"
    )
    assert levels({}, host(tmp_path), dict.fromkeys(mixed, "580.95.05-1")) == {}


HELD = {"host_held_packages": ["^nvidia-", "^cuda-"]}


def test_apts_configuration_as_a_whole_keeps_the_packages_back(tmp_path: Path):
    machine = host(tmp_path)
    assert levels(HELD, machine) == {}  # no unattended upgrades at all
    machine.write("/usr/bin/unattended-upgrade", "")
    machine.path("/usr/bin/unattended-upgrade").chmod(0o755)
    line = 'Unattended-Upgrade::Package-Blacklist:: "{}";\n'
    machine.programs["apt-config"] = Answer(0, line.format("^nvidia-") + line.format("^cuda-"))
    assert levels(HELD, machine) == {}
    machine.answers.clear()
    machine.programs["apt-config"] = Answer(0, line.format("^nvidia-"))
    (finding,) = system.check(HELD, machine, Packages({}))
    assert (finding.id, finding.seen) == ("unattended-upgrades", "not kept back: ^cuda-")


JIT = {"host_jit": True, "host_nvcc_minimum": "12.9"}


def compilers(machine: Host, nvcc: str | None) -> Host:
    for name in ("gcc", "g++", "ninja"):
        machine.write(f"/usr/bin/{name}", "")
        machine.path(f"/usr/bin/{name}").chmod(0o755)
    if nvcc is not None:
        machine.write(system.NVCC, "")
        machine.programs[str(machine.path(system.NVCC))] = Answer(0, nvcc)
    return machine


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("Cuda compilation tools, release 12.8, V12.8.93", "nvcc is too old"),
        ("Cuda compilation tools, release 12.9, V12.9.41", None),
        ("Cuda compilation tools, release 13.0, V13.0.48", None),
        ("Cuda compilation tools, release 12.10, V12.10.1", None),
        ("Segmentation fault", "nvcc does not answer"),
        (None, "no nvcc"),
    ],
)
def test_nvcc(tmp_path: Path, said: str | None, found: str | None):
    findings = system.check(JIT, compilers(host(tmp_path), said), Packages({}))
    assert [f.what.partition(":")[0] for f in findings] == ([found] if found else [])
    assert all("apt-get install cuda-toolkit-13-0" in f.fix for f in findings)


def test_a_release_with_an_nvcc_of_its_own_needs_none_of_the_host(tmp_path: Path):
    assert levels({**JIT, "host_nvcc_in_release": True}, compilers(host(tmp_path), None)) == {}


def test_compilers_that_are_missing_are_named_and_only_where_they_are_needed(tmp_path: Path):
    machine = compilers(host(tmp_path), "release 13.0,")
    machine.path("/usr/bin/ninja").unlink()
    (finding,) = system.check(JIT, machine, Packages({}))
    assert (finding.id, finding.seen) == ("jit-compiler", "ninja")
    assert levels({**JIT, "host_jit": False}, machine) == {}
    assert levels({**JIT, "host_nvcc_minimum": ""}, machine) == {}
