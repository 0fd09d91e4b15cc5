# SPDX-License-Identifier: Apache-2.0
"""The module host_settings: look, rehearse, apply, refuse; on a hand-made host, in this process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from host_machine import Host
from loading import load

from inference.host import preparation, system, units  # noqa: F401 - the module imports them under Ansible's name

ROOT = Path(__file__).resolve().parent.parent
SYSCTLS = "/etc/sysctl.d/60-inference.conf"
SETTINGS = {"host_sysctls": {"vm.swappiness": "10"}, "host_all_packages": ["gcc"]}
FILES = {SYSCTLS: "vm.swappiness = 10\n"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="files are owned by root")


@pytest.fixture(scope="module")
def module() -> ModuleType:
    for loaded in [key for key in sys.modules if key == "inference" or key.startswith("inference.")]:
        sys.modules[f"ansible.module_utils.{loaded}"] = sys.modules[loaded]
    return load("host_settings", ROOT / "plugins/modules/host_settings.py")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    machine = Host(tmp_path, {"/etc/os-release": 'ID=debian\nVERSION_ID="12"\n', "/proc/sys/vm/swappiness": "60\n"})
    for folder in ("/run/systemd/system", "/etc/sysctl.d"):
        machine.path(folder).mkdir(parents=True)
    return machine


@pytest.fixture
def run(module: ModuleType, host: Host, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module, "Machine", lambda **_: host)

    def call(*, check: bool = False, **arguments: Any) -> dict[str, Any]:
        given = {"settings": SETTINGS, **arguments, "_ansible_check_mode": check}
        with patch_module_args(given), pytest.raises(SystemExit):
            module.main()
        host.answers.clear()
        return dict(json.loads(capsys.readouterr().out))

    return call


def test_look_changes_nothing_and_says_how_it_stands(run: Any, host: Host):
    result = run(phase="look")
    assert result["changed"] is False
    assert [entry["state"] for entry in result["settings"]] == ["to do"]
    assert result["missing_packages"] == ["gcc"]
    assert host.read("/proc/sys/vm/swappiness") == "60"


def test_a_rehearsal_shows_what_apply_does(run: Any, host: Host):
    rehearsed = run(files=FILES, check=True)
    assert host.read("/proc/sys/vm/swappiness") == "60"
    assert not host.path(SYSCTLS).exists()
    applied = run(files=FILES)
    assert rehearsed["changed"] is applied["changed"] is True
    assert rehearsed["diff"] == applied["diff"]
    assert [entry["state"] for entry in applied["settings"]] == ["in effect"]
    again = run(files=FILES)
    assert (again["changed"], again["diff"]) == (False, [])
    assert run(settings={}, files={SYSCTLS: None})["changed"] is True
    assert not host.path(SYSCTLS).exists()


def test_what_cannot_be_used_fails_with_the_reason_and_changes_nothing(run: Any, host: Host):
    result = run(settings={"host_sysctls": {"vm.swap": "1"}, "host_shm": "64G"}, files=FILES)
    assert result["failed"] is True
    assert "no such setting" in result["msg"]
    assert not host.path(SYSCTLS).exists()


def test_another_system_is_refused_before_anything_is_looked_at(run: Any, host: Host):
    host.write("/etc/os-release", 'ID=fedora\nVERSION_ID="42"\nPRETTY_NAME="Fedora 42"\n')
    result = run(files=FILES)
    assert result["failed"] is True
    assert result["msg"].startswith("seen: Fedora 42; expected: Debian 12")
    assert host.calls == []


def test_a_reboot_that_is_due_is_said_and_noted_for_logins(run: Any, host: Host):
    host.write(system.PENDING_PACKAGES, "linux-image-amd64\n")
    assert run(phase="look")["reboot"] == ["packages: upgraded: linux-image-amd64"]
    assert "linux-image-amd64" in (host.read(preparation.NOTICE) or "")
    host.path(system.PENDING_PACKAGES).unlink()
    assert run(phase="look", check=True)["reboot"] == []
    assert host.path(preparation.NOTICE).exists()  # a rehearsal takes nothing back
    run(phase="look")
    assert not host.path(preparation.NOTICE).exists()


def test_everything_that_is_returned_is_documented(run: Any, module: ModuleType):
    documented = yaml.safe_load(module.RETURN)
    assert set(run(files=FILES)) - {"changed", "diff", "invocation"} == set(documented)
