# SPDX-License-Identifier: Apache-2.0
"""bench/fleet/measure: what it reads out of a run, what it concludes, and that its inventory is a right one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from loading import load

ROOT = Path(__file__).resolve().parent.parent

SAID = """
PLAY RECAP *********************************************************************
fleet-1                    : ok=40   changed=0    unreachable=0    failed=0    skipped=20   rescued=0    ignored=0
fleet-2                    : ok=38   changed=2    unreachable=0    failed=0    skipped=22   rescued=0    ignored=0
localhost                  : ok=1    changed=0    unreachable=0    failed=0    skipped=0    rescued=0    ignored=0
"""


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    made = load("fleet_measure", ROOT / "bench/fleet/measure")
    monkeypatch.setattr(made, "WORK", tmp_path)
    monkeypatch.setattr(made, "PROJECT", tmp_path)
    monkeypatch.setattr(made, "cgroup", lambda: tmp_path)
    (tmp_path / "cgroup.procs").write_text("")
    (tmp_path / "cpuacct.usage").write_text("5000000000")
    return made


def test_what_a_run_cost_and_counted(measure: ModuleType):
    found = measure.measured(["echo", SAID], dict(os.environ))
    assert (found["cpu_s"], found["tasks_a_host"], found["changed"]) == (0.0, 60, 2)


@pytest.mark.parametrize(
    ("words", "unchanged", "said"),
    [(["echo", SAID], True, "changed 2 things"), (["false"], False, "failed"), (["echo", "nothing"], True, "failed")],
)
def test_a_run_that_says_nothing_of_the_cost_is_refused(
    measure: ModuleType, words: list[str], unchanged: bool, said: str
):
    with pytest.raises(SystemExit, match=said):
        measure.measured(words, dict(os.environ), unchanged=unchanged)


def test_round_trips_are_counted_a_host(measure: ModuleType):
    lines = "<192.0.2.101> SSH: EXEC ssh -C\n" * 5 + "<192.0.2.101> ESTABLISH SSH CONNECTION\n"
    assert measure.round_trips(["echo", lines + SAID], dict(os.environ)) == 2.5


def test_the_processor_time_of_both_forms_of_cgroup_is_read(measure: ModuleType, tmp_path: Path):
    assert measure.usage(tmp_path) == 5.0
    (tmp_path / "cpuacct.usage").unlink()
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    assert measure.usage(tmp_path) == 1.5


def runs(what: str, base: float, slope: float, *hosts: int) -> list[dict[str, Any]]:
    return [{"what": what, "hosts": number, "cpu_s": base + slope * number} for number in hosts]


def test_what_is_concluded(measure: ModuleType):
    few = [*runs("site.yml", 2, 3, 1, 2, 4), *runs("node_exporter", 1, 2, 1, 2, 4)]
    many = [{"what": "site.yml, names", "hosts": 200, "cpu_s": 662.2}]
    assert measure.conclusions(few + many) == {
        "cpu_s_for_one_host_more": {"site.yml": 3.0, "node_exporter": 2.0},
        "times_the_other": 1.5,
        "names_times_the_line": [1.1],
    }
    assert measure.conclusions(runs("site.yml", 2, 3, 4) + many)["names_times_the_line"] == []


def test_its_inventory_has_no_findings(measure: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measure, "PROJECT", ROOT)
    folder = measure.inventory({"n000": 0, "n001": 1, "n002": 0})
    play = {"hosts": "inference", "gather_facts": False, "any_errors_fatal": True, "roles": ["inventory"]}
    show = {"debug": {"msg": "{{ service_instances[0].smoke.host }} at {{ ansible_host }}"}}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play, {**play, "roles": [], "tasks": [show]}]))
    done = subprocess.run(
        measure.command(folder, tmp_path / "play.yml"), env=measure.environment(), cwd=ROOT, capture_output=True,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "skipping: [n000]" in done.stdout, done.stdout
    assert "fleet-1 at 192.0.2.101" in done.stdout
    assert "fleet-2 at 192.0.2.102" in done.stdout
