# SPDX-License-Identifier: Apache-2.0
"""The Ansible module against a host whose nvidia-smi replays recordings: one play, a task for each case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
REPLAY = ROOT / "molecule" / "shared" / "nvidia-smi"
HOSTS = ROOT / "tests" / "fixtures" / "hosts"

PATIENCE_S = 1800
"""For each command and all of the play: five commands that replay are five Pythons at once, on a busy machine."""

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "healthy": ("rtx-pro-6000-x8", {}),
    "narrow": ("link-x8", {}),
    "report only": ("mig", {"report_only": True}),
    "first pass": ("driver-mismatch", {"pass": "first", "repairs": ["host_reboot"]}),
    "second pass": ("driver-mismatch", {"pass": "second", "repairs": ["host_reboot"]}),
    "waived": ("mig", {"waive": {"mig": "a host for small models"}}),
    "unchanged": ("rtx-pro-6000-x8", {"previous": "{{ stored }}"}),
    "changed": ("p2p-cns", {"previous": "{{ stored }}", "report_only": True}),
    "unknown profile": ("rtx-pro-6000-x8", {"expect": "rtx-pro-6000"}),
    "unknown key": ("rtx-pro-6000-x8", {"expect": {"gpu_cuont": 4}}),
    "unknown waiver": ("rtx-pro-6000-x8", {"waive": {"mgi": "why"}}),
    "waiver without reason": ("rtx-pro-6000-x8", {"waive": {"mig": ""}}),
    "no recording": ("nothing-here", {}),
    "no time": ("rtx-pro-6000-x8", {"timeout": 0}),
}


def _program(folder: Path, host: str) -> Path:
    """Put a replaying nvidia-smi for ``host`` into a folder of its own and return that."""
    programs = folder / host
    programs.mkdir(exist_ok=True)
    (programs / "setting").write_text(str(HOSTS / host))
    text = REPLAY.read_text().replace("/etc/nvidia-smi-replay", str(programs / "setting"))
    (programs / "nvidia-smi").write_text(text.replace("/usr/bin/env python3", sys.executable))
    (programs / "nvidia-smi").chmod(0o755)
    return programs


def _task(name: str, folder: Path) -> list[dict[str, Any]]:
    host, params = CASES[name]
    tasks = [
        {
            "name": name,
            "topology": {"timeout": PATIENCE_S, **params},
            "environment": {"PATH": f"{_program(folder, host)}:{os.environ['PATH']}"},
            "register": "result",
            "ignore_errors": True,
        },
        {"name": "Keep", "set_fact": {"results": "{{ results | default({}) | combine({'" + name + "': result}) }}"}},
    ]
    if name == "healthy":
        content = "{{ result.fingerprint_parts | to_json }}"
        tasks.append({"name": "Store", "copy": {"content": content, "dest": "{{ stored }}", "mode": "0600"}})
    return tasks


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("module")
    answers = folder / "results.json"
    tasks = [task for name in CASES for task in _task(name, folder)]
    tasks.append(
        {"name": "Write", "copy": {"content": "{{ results | to_json }}", "dest": str(answers), "mode": "0600"}}
    )
    play = {
        "name": "Every case",
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "vars": {"ansible_python_interpreter": sys.executable, "stored": str(folder / "stored.json")},
        "tasks": tasks,
    }
    (folder / "play.yml").write_text(json.dumps([play]))
    done = subprocess.run(
        [Path(sys.executable).parent / "ansible-playbook", "-i", "localhost,", folder / "play.yml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_S,
    )
    assert answers.exists(), done.stdout + done.stderr
    return json.loads(answers.read_text())


def test_a_healthy_host(results: dict[str, Any]) -> None:
    result = results["healthy"]
    assert result["failed"] is False
    assert result["ok"] is True
    assert result["changed"] is False
    assert result["expectation"] == "rtx-pro-6000-x8"
    assert result["facts"]["gpu_count"] == 8
    assert result["facts"]["all_on_pcie"] is True
    assert [gpu["compute_cap"] for gpu in result["facts"]["gpus"]] == ["12.0"] * 8
    assert len(result["fingerprint"]) == 16
    assert {entry["id"] for entry in result["not_checked"]} >= {"driver-mismatch"}


def test_a_fault_stops_the_play_and_says_how_to_fix_it(results: dict[str, Any]) -> None:
    result = results["narrow"]
    assert result["failed"] is True
    assert result["ok"] is False
    for words in ("CRITICAL pcie-width", "GPU3 0000:71:00.0: x8 of x16", "expected: x16", "fix:"):
        assert words in result["msg"]


def test_report_only_reports_and_does_not_fail(results: dict[str, Any]) -> None:
    result = results["report only"]
    assert result["failed"] is False
    assert result["ok"] is False
    assert [finding["id"] for finding in result["findings"] if finding["level"] == "critical"] == ["mig"]


def test_what_an_enabled_setting_repairs_is_pending_in_the_first_pass_only(results: dict[str, Any]) -> None:
    first = results["first pass"]
    assert first["ok"] is True
    assert first["findings"][0]["level"] == "info"
    assert first["findings"][0]["repaired_by"] == "host_reboot"
    assert results["second pass"]["failed"] is True


def test_a_waiver_is_repeated_with_its_reason(results: dict[str, Any]) -> None:
    result = results["waived"]
    assert result["failed"] is False
    assert any("waived (a host for small models)" in finding["what"] for finding in result["findings"])
    assert result["waived"] == {"mig": "a host for small models"}


def test_what_changed_since_the_last_run_is_said(results: dict[str, Any]) -> None:
    assert not any(finding["id"] == "topology-changed" for finding in results["unchanged"]["findings"])
    after = results["changed"]
    assert after["fingerprint"] != results["healthy"]["fingerprint"]
    changed = next(finding for finding in after["findings"] if finding["id"] == "topology-changed")
    assert "p2p r GPU2-GPU5: OK is now CNS" in changed["seen"]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("unknown profile", "did you mean 'rtx-pro-6000-x8'?"),
        ("unknown key", "unknown key 'gpu_cuont'; did you mean 'gpu_count'?"),
        ("unknown waiver", "no finding has the id 'mgi'; did you mean 'mig'?"),
        ("waiver without reason", "give the reason"),
        ("no recording", "a replay of recordings"),
        ("no time", "more than 0"),
    ],
)
def test_what_it_does_not_understand_it_refuses(results: dict[str, Any], case: str, words: str) -> None:
    assert results[case]["failed"] is True
    assert words in results[case]["msg"]
