# SPDX-License-Identifier: Apache-2.0
"""The role topology, with its page, in one play on this machine: nvidia-smi replays recordings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_topology_module import PATIENCE_S, _program

ROOT = Path(__file__).parent.parent
FAULTS = {"link-x8": "pcie-width", "driver-mismatch": "driver-mismatch"}
"""Two of the recordings; the scenario molecule/topology acts out all of them on a host."""


def play(folder: Path, recording: str, *words: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    roles = [{"role": "topology", "vars": {"topology_pass": name}} for name in ("first", "second")]
    (folder / "play.yml").write_text(json.dumps([{"hosts": "gpu-1", "gather_facts": False, "roles": roles}]))
    given = {
        "ansible_connection": "local", "ansible_python_interpreter": sys.executable, "topology_remember": False,
        "report_folder": str(folder / "reports"), **variables,
    }  # fmt: skip
    bins = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{_program(folder, recording)}:{bins}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
    }
    return subprocess.run(
        [bins / "ansible-playbook", "-i", "gpu-1,", folder / "play.yml", *words, "-e", json.dumps(given)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S, env=environment,
    )  # fmt: skip


@pytest.mark.parametrize("recording", FAULTS)
def test_a_fault_stops_the_play_and_has_a_page_and_a_picture(recording: str, tmp_path: Path):
    done = play(tmp_path, recording)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"CRITICAL {FAULTS[recording]}" in done.stdout
    assert "failed=1" in done.stdout
    assert f"critical: {FAULTS[recording]}" in (tmp_path / "reports/gpu-1/index.html").read_text()
    assert f"{FAULTS[recording]}: " in (tmp_path / "reports/gpu-1/topology.svg").read_text()
    assert "gpu-1" in (tmp_path / "reports/index.html").read_text()


def test_a_sound_machine_is_drawn_once_and_a_waiver_is_repeated(tmp_path: Path):
    done = play(tmp_path, "mig", topology_waive={"mig": "small models only"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=0" in done.stdout
    assert done.stdout.count("TASK [report : Write the page of this host") == 1
    text = (tmp_path / "reports/gpu-1/index.html").read_text()
    assert "small models only" in text


def test_a_rehearsal_writes_nothing(tmp_path: Path):
    done = play(tmp_path, "link-x8", "--check")
    assert "CRITICAL pcie-width" in done.stdout
    assert not (tmp_path / "reports").exists()


def test_a_page_that_can_not_be_written_does_not_hide_the_fault(tmp_path: Path):
    (tmp_path / "reports").write_text("no folder")
    done = play(tmp_path, "link-x8")
    assert done.returncode == 2
    assert "CRITICAL pcie-width" in done.stdout
