# SPDX-License-Identifier: Apache-2.0
"""The real roles fleet, gateway, service and smoke on two hosts, with modules that stand in for what touches a host.

The order over many hosts is tested in test_fleet.py; here, what the roles hand to their modules on the way.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference import toolkit

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent

MODULE = """#!/usr/bin/python
import json, os
from ansible.module_utils.basic import _load_params
given = {key: value for key, value in _load_params().items() if not key.startswith("_ansible") and value is not None}
with open(os.environ["LOG"], "a+", buffering=1) as log:
    log.write(json.dumps({"module": "NAME", **given}) + "\\n")
    log.seek(0)
    started = '"module": "service_control"' in log.read()
answers = json.loads(os.environ["ANSWERS"])
answer = answers["NAME"] | (answers.get("NAME once started", {}) if started else {})
print(json.dumps({"changed": False, **answer}), flush=True)
raise SystemExit
"""

PLACE = {"gpus": [0], "gpu_nodes": [0], "node": 0, "cpus": "0-3", "spans": False, "arguments": {}, "environment": {},
         "ports": [30000], "nccl": {"profile": "latency", "environment": {}}}  # fmt: skip
OLD = {"name": "old", "unit": "sglang@old.service", "active": "active", "enabled": True,
       "listens": {"host": "10.0.0.9", "port": 30007}}  # fmt: skip
GENERATION = {"generation": "new", "running": "before", "action": "restart", "unit": "sglang@a.service", "drift": [],
              "active": "active", "started": 1.0, "listens": {"host": "10.9.9.9", "port": 30000}}  # fmt: skip
ANSWERS: dict[str, dict[str, Any]] = {
    "service_plan": {"findings": [], "instances": {"a": PLACE}, "removed": [OLD], "architecture": "sm120",
                     "cuda_home": "", "cuda_version": "", "toolkit": "0.1.0-0123abcd", "toolkit_intact": True},
    "service_generation": GENERATION,
    "service_generation once started": {"listens": {"host": "10.9.9.10", "port": 30001}},
    "service_control": {"settled": True, "phases": [], "active": "active"},
    "managed_files": {"paths": []},
    "gateway_pool": {"pool": [], "router": "settled"},
    "engine_proof": {"line": "as it was meant", "report": {"ok": True, "findings": []}},
    "smoke_test": {"passed": True, "mode": "quick", "generation": "new", "promoted": False, "engaged": {},
                   "report": {"findings": []}},
}  # fmt: skip

PLAY = """
- hosts: inference
  gather_facts: false
  vars:
    engine_release: {engine: sglang, version: 0.5.23, variant: cu130, name: sglang-0.5.23-0123, python: /opt/x/python}
  tasks:
    - ansible.builtin.import_role: {name: fleet, tasks_from: deploy}
"""


class Project:
    """A playbook over two hosts and a gateway, all of them this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers = json.loads(json.dumps(ANSWERS))
        (folder / "library").mkdir()
        for name in (name for name in ANSWERS if " " not in name):
            (folder / "library" / f"{name}.py").write_text(MODULE.replace("NAME", name))
        (folder / "play.yml").write_text(PLAY)
        here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
        instance = {"name": "a", "model": "kimi", "port": 30000, "host": "{{ ansible_host }}"}
        serves = {
            **here, "fleet_lock_folder": str(folder / "lock"), "smoke_reports": str(folder / "reports"),
            "engine_name": "sglang", "model_catalog": [{"name": "kimi", "path": "/srv/kimi"}],
            "service_instances": [instance], "service_api_keys": {"a": "a-key-of-an-instance"}, "service_prune": True,
        }  # fmt: skip
        hosts = {name: {"ansible_host": f"10.0.0.{number}"} for number, name in enumerate(("x", "y"), 1)}
        inventory = {"inference": {"hosts": hosts, "vars": serves},
                     "gateway": {"hosts": {"gw": {}}, "vars": {**here, "gateway_drain": 77}}}  # fmt: skip
        (folder / "hosts.yml").write_text(yaml.safe_dump(inventory))

    def run(self, *words: str, succeeds: bool = True) -> list[dict[str, Any]]:
        """Return what the modules were called with, in order; what Ansible said is kept in ``said``."""
        plugins = ROOT / "plugins"
        environment = os.environ | {
            "LOG": f"{self.folder}/log", "ANSWERS": json.dumps(self.answers), "ANSIBLE_CONFIG": f"{ROOT}/ansible.cfg",
            "ANSIBLE_LIBRARY": f"{self.folder}/library:{plugins}/modules", "ANSIBLE_ROLES_PATH": f"{ROOT}/roles",
            # without the action plugin of service_control, which shows phases
            "ANSIBLE_MODULE_UTILS": f"{plugins}/module_utils", "ANSIBLE_FILTER_PLUGINS": f"{plugins}/filter",
        }  # fmt: skip
        done = subprocess.run(
            [ROOT / ".venv/bin/ansible-playbook", "-i", self.folder / "hosts.yml", self.folder / "play.yml", *words],
            env=environment, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        self.said = " ".join(done.stdout.split())
        assert (done.returncode == 0) == succeeds, done.stdout + done.stderr
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def brief(call: dict[str, Any]) -> str:
    """Return what a call is about in a few words."""
    what = {
        "gateway_pool": next((key for key in ("present", "absent", "idle") if call.get(key)), ""),
        "service_generation": call.get("operation", "install"),
        "service_control": call.get("state", ""),
    }
    return f"{call['module']} {what.get(call['module'], '')}".strip()


def test_the_way_of_an_instance_on_both_hosts_at_once(project: Project):
    calls = project.run()
    assert [brief(call) for call in calls] == [
        step
        for step in (
            "service_plan", "gateway_pool absent", "gateway_pool idle", "service_generation remove",
            "managed_files", "service_generation install",
            "service_generation status", "gateway_pool absent", "gateway_pool idle", "service_control restarted",
            "engine_proof", "smoke_test", "service_generation status", "gateway_pool present",
        )
        for _ in "xy"
    ]  # fmt: skip


def test_what_the_modules_are_given(project: Project):
    calls = project.run()
    of: dict[str, list[dict[str, Any]]] = {brief(call): [c for c in calls if brief(c) == brief(call)] for call in calls}
    version = ANSWERS["service_plan"]["toolkit"]
    assert all(toolkit.VERSION.fullmatch(call["toolkit"]) for call in of["service_plan"])
    assert {call["toolkit"] for call in of["service_generation install"]} == {version}
    assert [call["absent"] for call in of["gateway_pool absent"]] == [["http://10.0.0.9:30007"]] * 2 + [
        ["http://10.9.9.9:30000"]
    ] * 2
    assert {call["seconds"] for call in of["gateway_pool idle"]} == {77}
    entered = [entry for call in of["gateway_pool present"] for entry in call["present"]]
    assert [entry["url"] for entry in entered] == ["http://10.9.9.10:30001"] * 2
    assert {entry["api_key"] for entry in entered} == {"a-key-of-an-instance"}
    units = [entry["content"] for call in of["service_generation install"] for entry in call["files"]]
    assert sum(f"/usr/local/lib/inference/{version}/scripts/supervisor" in text for text in units) == 2
    assert not any("a-key-of-an-instance" in text for text in units)


def test_what_runs_already_is_left_alone_and_sends_nothing_of_the_toolkit(project: Project):
    project.answers["service_generation"]["action"] = "none"
    project.answers["service_plan"]["removed"] = []
    steps = ["service_plan", "managed_files", "service_generation install", "engine_proof", "smoke_test"]
    calls = project.run()
    assert [brief(call) for call in calls] == [step for step in steps for _ in "xy"]
    assert {len(call["files"]) for call in calls if call["module"] == "managed_files"} == {4}


def test_a_toolkit_that_is_not_intact_is_installed(project: Project):
    project.answers["service_generation"]["action"] = "none"
    project.answers["service_plan"] |= {"removed": [], "toolkit_intact": False}
    files = [call["files"] for call in project.run() if call["module"] == "managed_files"]
    assert [len(one) for one in files][:2] == [len(files[0])] * 2
    assert {Path(entry["path"]).name for entry in files[0]} > {"supervisor", "smoke", "toolkit.py"}


def test_a_gateway_out_of_reach_keeps_an_engine_from_being_changed(project: Project):
    project.answers["service_plan"]["removed"] = []
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    (project.folder / "away.yml").write_text(yaml.safe_dump({"gateway": {"hosts": {"gw2": away}}}))
    calls = project.run("-i", str(project.folder / "away.yml"), "--limit", "x,gw,gw2", succeeds=False)
    pooled = [brief(call) for call in calls if call["module"] == "gateway_pool"]
    assert pooled == ["gateway_pool absent", "gateway_pool present"]
    assert "service_control restarted" not in [brief(call) for call in calls]
    assert "seen gateways out of reach: gw2" in project.said
    assert "Putting a back into the pools failed" in project.said
    assert "went out of reach during the change" not in project.said
