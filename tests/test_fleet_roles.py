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
with open(os.environ["LOG"], "a", buffering=1) as log:
    log.write(json.dumps({"module": "NAME", **given}) + "\\n")
print(json.dumps({"changed": False, **json.loads(os.environ["ANSWERS"])["NAME"]}), flush=True)
raise SystemExit
"""

PLACE = {"gpus": [0], "gpu_nodes": [0], "node": 0, "cpus": "0-3", "spans": False, "arguments": {}, "environment": {},
         "ports": [30000], "nccl": {"profile": "latency", "environment": {}}}  # fmt: skip
OLD = {"name": "old", "unit": "sglang@old.service", "active": "active", "enabled": True,
       "listens": {"host": "10.0.0.9", "port": 30007}}  # fmt: skip
GENERATION = {"generation": "new", "running": "before", "last_known_good": "before", "action": "restart", "drift": [],
              "unit": "sglang@a.service", "active": "active", "started": 1.0, "changed": True,
              "listens": {"host": "10.9.9.9", "port": 30000},
              "will_listen": {"host": "10.9.9.8", "port": 30008}}  # fmt: skip
ANSWERS: dict[str, dict[str, Any]] = {
    "service_plan": {"findings": [], "instances": {"a": PLACE}, "removed": [OLD], "architecture": "sm120",
                     "cuda_home": "", "cuda_version": "", "toolkit": "0.1.0-0123abcd", "toolkit_intact": True},
    "service_generation": GENERATION,
    "service_control": {"settled": True, "phases": [], "active": "active"},
    "managed_files": {"paths": []},
    "gateway_pool": {"pool": [], "router": "settled"},
    "engine_proof": {"line": "as it was meant", "report": {"ok": True, "findings": []}},
    "smoke_test": {"passed": True, "mode": "quick", "generation": "new", "promoted": False, "engaged": {},
                   "listens": {"host": "10.9.9.10", "port": 30001}, "report": {"findings": []}},
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
        for name in ANSWERS:
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
            "ANSIBLE_LIBRARY": f"{self.folder}/library:{plugins}/modules",
            "ANSIBLE_ROLES_PATH": f"{self.folder}/roles:{ROOT}/roles",
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
        "service_generation": call.get("operation", ""),
        "service_control": call.get("state", ""),
    }
    return f"{call['module']} {what.get(call['module'], '')}".strip()


def test_the_way_of_an_instance_on_both_hosts_at_once(project: Project):
    calls = project.run()
    assert [brief(call) for call in calls] == [
        step
        for step in (
            "service_plan", "gateway_pool absent", "gateway_pool idle", "service_generation remove",
            "managed_files", "service_generation prepare",
            "service_generation status", "gateway_pool absent", "gateway_pool idle",
            # not earlier: with another engine this stops the one that serves
            "service_generation install", "service_control restarted",
            "engine_proof", "smoke_test", "gateway_pool present",
        )
        for _ in "xy"
    ]  # fmt: skip


def test_what_the_modules_are_given(project: Project):
    calls = project.run()
    of: dict[str, list[dict[str, Any]]] = {brief(call): [c for c in calls if brief(c) == brief(call)] for call in calls}
    version = ANSWERS["service_plan"]["toolkit"]
    assert all(toolkit.VERSION.fullmatch(call["toolkit"]) for call in of["service_plan"])
    assert {call["toolkit"] for call in of["service_generation prepare"]} == {version}
    assert [call["generation"] for call in of["service_generation install"]] == ["new"] * 2
    assert [call["absent"] for call in of["gateway_pool absent"]] == [["http://10.0.0.9:30007"]] * 2 + [
        ["http://10.9.9.9:30000"]
    ] * 2
    assert {call["seconds"] for call in of["gateway_pool idle"]} == {77}
    assert [call["idle_key_files"] for call in of["gateway_pool idle"]] == [
        [f"/run/credentials/sglang@{name}.service/api-key", f"/etc/inference/{name}/api-key"]
        for name in ("old", "old", "a", "a")
    ]
    entered = [entry for call in of["gateway_pool present"] for entry in call["present"]]
    assert [entry["url"] for entry in entered] == ["http://10.9.9.10:30001"] * 2
    assert {entry["api_key"] for entry in entered} == {"a-key-of-an-instance"}
    units = [entry["content"] for call in of["service_generation prepare"] for entry in call["files"]]
    assert sum(f"/usr/local/lib/inference/{version}/scripts/supervisor" in text for text in units) == 2
    assert not any("a-key-of-an-instance" in text for text in units)


RUNS = {"action": "none", "changed": False}


@pytest.mark.parametrize(("words", "pooled"), [([], False), (["--skip-tags", "gateway"], True)])
def test_what_runs_already_is_left_alone_and_sends_nothing_of_the_toolkit(
    project: Project, words: list[str], pooled: bool
):
    """Where the run does not come to the gateways itself it goes into the pools: it may have been left out."""
    project.answers["service_generation"] |= RUNS
    project.answers["service_plan"]["removed"] = []
    steps = ["service_plan", "managed_files", "service_generation prepare", "engine_proof", "smoke_test"]
    calls = project.run(*words, "-e", '{"__fleet_lock": {}}')
    steps += ["gateway_pool present"] * pooled
    assert [brief(call) for call in calls] == [step for step in steps for _ in "xy"]
    assert {len(call["files"]) for call in calls if call["module"] == "managed_files"} == {4}


def test_a_toolkit_that_is_not_intact_is_installed(project: Project):
    project.answers["service_generation"] |= RUNS
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


def test_a_generation_that_has_not_passed_does_not_come_back_after_a_failure(project: Project):
    """A run that was killed before the test has left it out of the pools, and it runs as that run has started it."""
    project.answers["service_plan"]["removed"] = []
    project.answers["service_generation"]["last_known_good"] = "another"
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    (project.folder / "away.yml").write_text(yaml.safe_dump({"gateway": {"hosts": {"gw2": away}}}))
    calls = project.run("-i", str(project.folder / "away.yml"), "--limit", "x,gw,gw2", succeeds=False)
    assert [brief(call) for call in calls if call["module"] == "gateway_pool"] == ["gateway_pool absent"]
    assert "a is out of the pools until a run has tested it" in project.said


def test_a_rehearsal_keeps_nothing_and_shows_the_address_that_will_be(project: Project):
    """Nothing is told for good: what is to be installed is not kept, and the old address is still in the pools."""
    project.answers["service_plan"]["removed"] = []
    calls = project.run("--check", "--limit", "x,gw")
    assert "service_generation install" not in [brief(call) for call in calls]
    (entered,) = [call for call in calls if brief(call) == "gateway_pool present"]
    assert [entry["url"] for entry in entered["present"]] == ["http://10.9.9.8:30008"]
    assert entered["absent"] == ["http://10.9.9.9:30000"]


@pytest.fixture
def pooling(project: Project) -> Project:
    """Return the project with a third host that has no instance, and a play in which the gateway fills its pool."""
    role = project.folder / "roles/gateway"
    (role / "tasks").mkdir(parents=True)
    for part in ("defaults", "vars", "meta"):
        (role / part).symlink_to(ROOT / "roles/gateway" / part)
    for file in ("drain.yml", "enter.yml", "reached.yml"):
        (role / "tasks" / file).symlink_to(ROOT / "roles/gateway/tasks" / file)
    tasks = yaml.safe_load((ROOT / "roles/gateway/tasks/main.yml").read_text())
    (fill,) = [task for task in tasks if "gateway_pool" in task]
    (role / "tasks/main.yml").write_text(yaml.safe_dump([fill]))
    fills = "- hosts: gw\n  gather_facts: false\n  roles: [{role: gateway, tags: [gateway]}]\n"
    (project.folder / "play.yml").write_text(PLAY + fills)
    empty = {"ansible_host": "10.0.0.3", "service_instances": []}
    (project.folder / "empty.yml").write_text(yaml.safe_dump({"inference": {"hosts": {"z": empty}}}))
    return project


@pytest.mark.parametrize(("limit", "exact"), [("all", True), ("!y", False)])
def test_the_pool_is_what_has_passed_where_it_listens(pooling: Project, limit: str, exact: bool):
    """Not where the inventory says, which need not be deployed; and whole, when every instance has passed."""
    inventory = ["-i", str(pooling.folder / "empty.yml"), "--limit", limit]
    pooling.run(*inventory, "--tags", "smoke,gateway", "-e", '{"__fleet_lock": {}}')
    calls = [json.loads(line) for line in (pooling.folder / "log").read_text().splitlines()]
    filled = [call for call in calls if call["module"] == "gateway_pool"][-1]
    assert {entry["url"] for entry in filled["present"]} == {"http://10.9.9.10:30001"}
    assert filled["exact"] is exact
    assert "service_generation prepare" not in [brief(call) for call in calls]
