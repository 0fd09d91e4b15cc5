# SPDX-License-Identifier: Apache-2.0
"""The action plugin that writes reports: whole files, folders made, nothing in a rehearsal, and never a change."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from loading import load

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs the plugin with these arguments."""
    plugin = load("report_document", ROOT / "plugins/action/report_document.py")
    monkeypatch.setattr(plugin.ActionBase, "run", lambda *_: {})

    def run(*, check: bool = False, **arguments: Any) -> dict[str, Any]:
        action = plugin.ActionModule.__new__(plugin.ActionModule)
        action._task = SimpleNamespace(args=arguments, async_val=0, check_mode=check)
        result: dict[str, Any] = action.run(None, {})
        return result

    return run


def test_a_document_is_written_with_its_folder_and_replaced(write: Any, tmp_path: Path):
    file = tmp_path / "reports/gpu-1/chat.json"
    assert write(path=str(file), content={"b": [1, None], "a": "ü"}) == {"changed": False, "path": str(file)}
    write(path=str(file), content={"b": 2})
    assert json.loads(file.read_text()) == {"b": 2}
    assert [path.name for path in file.parent.iterdir()] == ["chat.json"]
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_rehearsal_writes_nothing(write: Any, tmp_path: Path):
    assert write(check=True, path=str(tmp_path / "x/y.json"), content={})["changed"] is False
    assert list(tmp_path.iterdir()) == []


def test_half_a_character_is_kept_as_an_escape(write: Any, tmp_path: Path):
    write(path=str(tmp_path / "a.json"), content={"said": "\ud800"})
    assert json.loads((tmp_path / "a.json").read_text()) == {"said": "\ud800"}


@pytest.mark.parametrize("check", [False, True])
def test_content_that_is_no_json_is_refused_and_changes_nothing(write: Any, tmp_path: Path, check: bool):
    with pytest.raises(AnsibleActionFail, match=r"a\.json is no JSON"):
        write(check=check, path=str(tmp_path / "x/a.json"), content={"when": {1, 2}})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [{}, {"path": "/x"}, {"content": {}}, {"path": 1, "content": {}}])
def test_what_is_missing_is_said(write: Any, arguments: dict[str, Any]):
    with pytest.raises(AnsibleActionFail, match="expected path"):
        write(**arguments)


def test_a_place_that_cannot_be_written_is_named(write: Any, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AnsibleActionFail, match=r"x\.json: cannot be written"):
        write(path=str(tmp_path / "file/x.json"), content={})
