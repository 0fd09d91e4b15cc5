# SPDX-License-Identifier: Apache-2.0
"""The role report in one play on this machine: it draws what is new; damaged files are replaced, or named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOPOLOGY = {"ok": True, "summary": "fits", "findings": [], "facts": {"gpu_count": 1, "driver_version": "é 1.50"}}


def draw(name: str, **given: Any) -> dict[str, Any]:
    return {"name": name, "include_role": {"name": "report"}, "vars": {"topology_result": TOPOLOGY, **given}}


def play(folder: Path, tasks: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    (folder / "play.yml").write_text(json.dumps([{"hosts": "gpu-1", "gather_facts": False, "tasks": tasks}]))
    given = {
        "ansible_connection": "local", "ansible_python_interpreter": sys.executable,
        "report_folder": str(folder / "reports"),
    }  # fmt: skip
    environment = {
        **os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
        "ANSIBLE_NOCOLOR": "1",
    }  # fmt: skip
    program = Path(sys.executable).parent / "ansible-playbook"
    return subprocess.run(
        [program, "-i", "gpu-1,", folder / "play.yml", "-e", json.dumps(given)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800, env=environment,
    )  # fmt: skip


def outcomes(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what became of each time that a page might have been drawn."""
    parts = done.stdout.split("TASK [report : Write the page of this host")[1:]
    return [part.splitlines()[1].split(":")[0] for part in parts]


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    folder = tmp_path / "reports/gpu-1/facts"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("damaged", ["", "{", '{"facts": []}', '["a list"]', "no JSON"])
def test_what_was_found_again_replaces_a_damaged_file(tmp_path: Path, facts: Path, damaged: str):
    (facts / "topology.json").write_text(damaged)
    done = play(tmp_path, [draw(name, __report_if_new=True) for name in ("Heal it", "Leave it alone")])
    assert done.returncode == 0, done.stdout + done.stderr
    assert outcomes(done) == ["ok", "skipping"]
    assert json.loads((facts / "topology.json").read_text()) == TOPOLOGY
    assert (tmp_path / "reports/gpu-1/index.html").exists()


def test_a_damaged_file_that_nothing_replaces_is_named_with_the_way_out(tmp_path: Path, facts: Path):
    (facts / "settings.json").write_text("")
    done = play(tmp_path, [draw("Draw it", __report_if_new=True)])
    assert done.returncode == 2
    said = " ".join(done.stdout.split())
    assert f"{facts}/settings.json: not JSON (it is empty); remove the file" in said
    assert not (tmp_path / "reports/gpu-1/index.html").exists()
