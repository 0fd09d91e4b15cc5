# SPDX-License-Identifier: Apache-2.0
"""Reboots in turn: the role's own tasks on three hosts, where what touches a host writes a line instead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
TASKS = ROOT / "roles/host/tasks"

PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  vars: {host_result: {reboot: [why]}, host_reboot_timeout: 5}
  tasks:
    - block:
        - ansible.builtin.include_tasks: reboot_due.yml
          when: inventory_hostname != 'c'
        - ansible.builtin.command: LOG {{ inventory_hostname }} goes on
      rescue:
        - ansible.builtin.command: LOG {{ inventory_hostname }} rescued
"""


def stand_in(task: dict[str, Any], log: Path) -> dict[str, Any]:
    """Return the task with a line in the log in place of what it does to a host."""
    said = {"service_control": "STATE {{ item }}", "ansible.builtin.reboot": "reboot", "host_settings": "look"}
    for module in said.keys() & task.keys():
        word = said[module].replace("STATE", task[module].get("state", ""))
        argv = [str(log), "{{ inventory_hostname }}", word]
        kept = {key: value for key, value in task.items() if key not in (module, "register")}
        failing = {"failed_when": "inventory_hostname == breaks"} if word == "reboot" else {}
        return {**kept, **failing, "ansible.builtin.command": {"argv": argv}}
    if "ansible.builtin.command" in task:
        return {**task, "ansible.builtin.command": "echo sglang@x.service loaded active running x"}
    if "ansible.builtin.assert" in task:
        return {**task, "ansible.builtin.assert": {"that": "inventory_hostname != stays"}}
    return task


@pytest.fixture
def run(tmp_path: Path) -> Any:
    log, out = tmp_path / "log", tmp_path / "out"
    log.write_text(f'#!/bin/sh\necho "$@" >> {out}\n')
    log.chmod(0o755)
    (block,) = yaml.safe_load((TASKS / "reboot.yml").read_text())
    block["block"] = [stand_in(task, log) for task in block["block"]]
    (tmp_path / "reboot.yml").write_text(yaml.safe_dump([block], sort_keys=False))
    (tmp_path / "reboot_due.yml").write_text((TASKS / "reboot_due.yml").read_text())
    for name, said in (("drain", "leaves {{ __fleet_draining }}"), ("prove", "proves {{ __fleet_name }}")):
        file = tmp_path / f"roles/fleet/tasks/{name}.yml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"- ansible.builtin.command: {log} {{{{ inventory_hostname }}}} {said}\n")
    (tmp_path / "pool.yml").write_text("gateway: {hosts: {c: {}}}\n")
    (tmp_path / "play.yml").write_text(PLAY.replace("LOG", str(log)))

    def call(reboot: str, breaks: str = "-", stays: str = "-", serves: str = "") -> tuple[int, list[str], str]:
        out.write_text("")
        named = f'"service_instances": [{{"name": "{serves}"}}]'
        given = f'{{"host_reboot": {reboot}, "breaks": "{breaks}", "stays": "{stays}", {named}}}'
        inventory = ["-i", "a,b,c,", *(["-i", tmp_path / "pool.yml"] if serves else [])]
        done = subprocess.run(
            [ROOT / ".venv/bin/ansible-playbook", *inventory, "-e", given, "-e",
             f"ansible_python_interpreter={sys.executable}", tmp_path / "play.yml"],
            capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300,
            env={**os.environ, "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}", "ANSIBLE_NOCOLOR": "1"},
        )  # fmt: skip
        return done.returncode, out.read_text().splitlines(), done.stdout

    return call


def turn(host: str) -> list[str]:
    return [f"{host} {what}" for what in ("stopped sglang@x.service", "reboot", "look", "started sglang@x.service")]


@pytest.mark.slow
def test_one_host_after_the_other_and_one_without_a_reason_not_at_all(run: Any):
    code, lines, _ = run("true")
    assert code == 0
    assert lines[:8] == turn("a") + turn("b")
    assert sorted(lines[8:]) == ["a goes on", "b goes on", "c goes on"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "done"),
    [({"breaks": "a"}, turn("a")[:2]), ({"stays": "a"}, turn("a")[:3])],
    ids=["it does not come back", "it still lacks what it was rebooted for"],
)
def test_a_host_that_fails_ends_the_run_before_the_next_is_touched(run: Any, case: dict[str, str], done: list[str]):
    _, lines, _ = run("true", **case)
    assert [line for line in lines if "rescued" not in line] == done


@pytest.mark.slow
def test_without_a_word_it_stops_with_the_instruction_and_with_false_it_goes_on(run: Any):
    _, lines, said = run("null")
    assert sorted(line for line in lines if not line.startswith("c")) == ["a rescued", "b rescued"]
    assert "host_reboot says neither yes nor no" in said
    _, lines, said = run("false")
    assert sorted(lines) == ["a goes on", "b goes on", "c goes on"]
    assert "A reboot is due" in said


@pytest.mark.slow
def test_behind_a_gateway_what_it_knows_leaves_the_pool_first_and_comes_back_tested(run: Any):
    code, lines, said = run("true", serves="x")
    assert code == 0, said
    assert lines[:12] == [f"{h} {what}" for h in "ab" for what in ("leaves x", *(t[2:] for t in turn("a")), "proves x")]
    code, lines, _ = run("true", serves="another")
    assert code == 0
    assert lines[:8] == turn("a") + turn("b")
