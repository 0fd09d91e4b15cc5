# SPDX-License-Identifier: Apache-2.0
"""The callback that says where the time went: with tasks by hand and a clock by hand, and in a real play."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from loading import load

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def stages() -> ModuleType:
    return load("stages", ROOT / "plugins/callback/stages.py")


class Play:
    """Runs tasks, given as (role, task, seconds), and returns the lines that are shown at the end."""

    def __init__(self, stages: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(stages.time, "monotonic", lambda: self.now)
        self.callback = stages.CallbackModule()
        self.lines: list[str] = []
        self.callback._display = SimpleNamespace(banner=self.lines.append, display=self.lines.append)

    def run(self, *tasks: tuple[str, str, float], handler: bool = False) -> list[str]:
        for role, name, seconds in tasks:
            task = SimpleNamespace(
                _role=SimpleNamespace(get_name=lambda role=role: role) if role else None,
                get_name=lambda name=name: name,
            )
            if handler:
                self.callback.v2_playbook_on_handler_task_start(task)
            else:
                self.callback.v2_playbook_on_task_start(task, False)
            self.now += seconds
        self.callback.v2_playbook_on_stats(None)
        return self.lines


@pytest.fixture
def play(stages: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Play:
    return Play(stages, monkeypatch)


def table(lines: list[str]) -> dict[str, tuple[float, str]]:
    rows = [re.fullmatch(r"(\S+) +([\d.]+)(?:   slowest: (.*))?", line) for line in lines[1:]]
    return {row[1]: (float(row[2]), row[3] or "") for row in rows if row}


def test_seconds_are_added_by_stage_in_the_order_of_the_play(play: Play):
    lines = play.run(
        ("", "Gathering Facts", 1), ("topology", "compare", 2), ("host", "pack", 3), ("topology", "again", 4)
    )
    rows = table(lines)
    assert list(rows) == ["(play)", "topology", "host", "all"]
    assert rows["topology"] == (6.0, "again")
    assert rows["all"][0] == 10.0


def test_the_slowest_task_is_that_of_all_its_runs(play: Play):
    rows = table(play.run(("a", "often", 2), ("a", "long", 3), ("a", "often", 2)))
    assert rows["a"] == (7.0, "often")


def test_a_transfer_counts_for_the_stage_that_called_it(play: Play):
    rows = table(play.run(("engine", "look", 1), ("transfer", "rsync", 9), ("engine", "build", 1)))
    assert rows["engine"] == (11.0, "rsync")
    assert "transfer" not in rows


def test_a_transfer_in_the_second_batch_counts_for_its_own_stage(play: Play):
    batch = [("engine", "look", 1.0), ("smoke", "test", 1.0)]
    rows = table(play.run(*batch, batch[0], ("transfer", "rsync", 50.0), batch[1]))
    assert rows["engine"][0] == 52.0
    assert rows["smoke"][0] == 2.0


def test_handlers_count(play: Play):
    assert table(play.run(("service", "reload", 5), handler=True))["service"] == (5.0, "reload")


def test_a_play_without_tasks_shows_nothing(play: Play):
    assert play.run() == []


def test_the_documentation_is_whole(stages: ModuleType):
    document = yaml.safe_load(stages.DOCUMENTATION)
    assert document["name"] == stages.CallbackModule.CALLBACK_NAME == "stages"
    assert document["type"] == stages.CallbackModule.CALLBACK_TYPE


PLAYBOOK = """
- hosts: localhost
  gather_facts: false
  tasks:
    - {name: Wait a little, ansible.builtin.pause: {seconds: 1}}
    - {name: Fail, ansible.builtin.fail: {msg: as meant}}
"""


def test_a_real_play_that_fails_still_shows_the_table(tmp_path: Path):
    (tmp_path / "play.yml").write_text(PLAYBOOK)
    environment: dict[str, Any] = {**os.environ, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run(
        [ROOT / ".venv/bin/ansible-playbook", "-i", "localhost,", tmp_path / "play.yml"],
        capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    shown = done.stdout[done.stdout.index("SECONDS PER STAGE") :]
    found = re.search(r"\(play\) +([\d.]+)   slowest: Wait a little", shown)
    assert found is not None
    assert 1.0 <= float(found[1]) < 600
