# SPDX-License-Identifier: Apache-2.0
"""What the role smoke says of an instance that failed, and how long it waits when it goes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml

TASKS = yaml.safe_load((Path(__file__).resolve().parent.parent / "roles/smoke/tasks/rollback.yml").read_text())
BLOCK = next(task for task in TASKS if task["name"] == "There is nothing to go back to")


def said(**given: Any) -> str:
    """Return what the last task of the block says; its variables come one out of the other."""
    jinja = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701 - plain text
    jinja.filters["ternary"] = lambda value, yes, no: yes if value else no
    known = {
        "smoke_on_failure": "stop",
        "smoke_rollback": True,
        "__smoke_name": "kimi",
        "__smoke_failure": "It failed.",
        **given,
    }
    for name, text in BLOCK["vars"].items():
        known[name] = jinja.compile_expression(text.strip("{} "), undefined_to_none=False)(**known)
    assert not known["__smoke_way_back"]
    return jinja.from_string(BLOCK["block"][-1]["ansible.builtin.fail"]["msg"]).render(**known)


def status(good: str | None) -> dict[str, str | None]:
    return {"generation": "new", "last_known_good": good}


@pytest.mark.parametrize(
    ("given", "words", "outcome"),
    [
        ({"__smoke_status": status(None)}, "No other generation of kimi has passed its test", "stopped"),
        (
            {"__smoke_status": status(None), "smoke_on_failure": "keep"},
            "No other generation of kimi has",
            "left as it is",
        ),
        ({"__smoke_status": status("new")}, "It is the generation of kimi that passed last", "left as it is"),
        ({"__smoke_status": status("old"), "smoke_rollback": False}, "Nothing was to be put back", "left as it is"),
        ({"__smoke_status": status(None), "smoke_rollback": False}, "Nothing was to be put back", "left as it is"),
    ],
)
def test_what_is_said_is_what_was_found_and_done(given: dict[str, Any], words: str, outcome: str) -> None:
    text = " ".join(said(**given).split())
    assert text.startswith(f"It failed. {words}")
    assert text.endswith(f"; the service was {outcome}.")


def test_going_back_waits_as_long_as_going_forward() -> None:
    starts = [
        task["service_control"]
        for entry in TASKS
        for task in entry.get("block", [])
        if task.get("service_control", {}).get("state") == "restarted"
    ]
    assert [start["timeout"] for start in starts] == ["{{ service_start_timeout | default(omit) }}"]
