# SPDX-License-Identifier: Apache-2.0
"""The action plugin that shows the phases of a start: it asks until the start has settled, and says each thing once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loading import load

ROOT = Path(__file__).resolve().parent.parent
Result = dict[str, Any]


def answer(*phases: tuple[float, str], **more: Any) -> Result:
    listed = [{"seconds": seconds, "phase": phase} for seconds, phase in phases]
    return {"changed": True, "settled": True, "phases": listed, "since": 5.0, **more}


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the plugin over prepared answers: result, what was asked, what was shown."""
    plugin = load("plugin", ROOT / "plugins/action/service_control.py")
    shown: list[str] = []
    monkeypatch.setattr(plugin.display, "display", shown.append)

    def run(answers: list[Result], **arguments: Any) -> tuple[Result, list[Result], list[str]]:
        asked: list[Result] = []

        def execute(*, module_name: str, module_args: Result, task_vars: Any) -> Result:
            assert module_name == "service_control"
            asked.append(module_args)
            return answers.pop(0)

        action = plugin.ActionModule.__new__(plugin.ActionModule)
        action._task = SimpleNamespace(
            args={"unit": "u", "state": "started", **arguments}, async_val=0, check_mode=False
        )
        monkeypatch.setattr(plugin.ActionBase, "run", lambda *_: {})
        action._execute_module = execute
        return action.run(None, {}), asked, [line.split(" s  ", 1)[1] for line in shown]

    return run


def test_a_start_that_settles_at_once_is_asked_for_once(play: Any):
    result, asked, shown = play([answer((0.1, "serving"))])
    assert [one["patience"] for one in asked] == [5]
    assert (result["phases"], shown) == ([{"seconds": 0.1, "phase": "serving"}], ["serving"])


def test_a_long_start_is_followed_and_each_phase_shown_once(play: Any):
    result, asked, shown = play(
        [
            answer((0.1, "starting"), (3.0, "loading weights"), settled=False),
            answer((5.5, "loading weights"), (8.0, "generating"), settled=False),
            answer((10.6, "generating"), (11.0, "serving")),
        ],
        timeout=60,
    )
    assert [(one["state"], one.get("since"), one["timeout"]) for one in asked] == [
        ("started", None, 60), ("followed", 5.0, 60), ("followed", 5.0, 60),
    ]  # fmt: skip
    assert shown == ["starting", "loading weights", "generating", "serving"]
    assert [entry["phase"] for entry in result["phases"]] == shown


def test_a_failure_ends_it_with_the_phases_so_far(play: Any):
    failed = {"failed": True, "msg": "no", "phases": [{"seconds": 6.0, "phase": "failed"}]}
    result, asked, _ = play([answer((0.1, "starting"), settled=False), failed])
    assert (len(asked), result["msg"], len(result["phases"])) == (2, "no", 2)
    result, asked, _ = play([{"failed": True, "msg": "unreachable"}])
    assert (len(asked), result["phases"]) == (1, [])
