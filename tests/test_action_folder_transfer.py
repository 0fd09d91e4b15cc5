# SPDX-License-Identifier: Apache-2.0
"""The action plugin that runs rsync on the controller: what it refuses, what it makes of rsync's end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from loading import load

ROOT = Path(__file__).resolve().parent.parent
HOSTS = {"gpu-2": {"ansible_host": "192.0.2.2", "ansible_user": "admin", "ansible_port": 2222}}


@pytest.fixture
def plugin() -> Any:
    return load("folder_transfer_action", ROOT / "plugins/action/folder_transfer.py")


@pytest.fixture
def action(plugin: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes the action for a task; ``transport`` is how its host is reached."""
    monkeypatch.setattr(plugin.ActionBase, "run", lambda *_: {})
    options = {"host": "192.0.2.1", "remote_user": "admin", "ssh_args": "-o ControlPersist=1s", "port": 22}

    def make(source: str, *, transport: str = "ssh", check_mode: bool = False, stat: Any = None) -> Any:
        made = plugin.ActionModule.__new__(plugin.ActionModule)
        made._task = SimpleNamespace(args={"source": source, "target": "/srv/x"}, check_mode=check_mode)
        made._connection = SimpleNamespace(transport=transport, get_option=options.get, become=object())
        made._execute_module = lambda *_, **__: {"stat": stat or {"exists": False}}
        return made

    return make


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("/nowhere", "seen no folder /nowhere"),
        ("relative", "relative"),
        ("gpu-9:/srv/m", "the source host gpu-9; expected a host of the inventory"),
        ("hf:a/b@" + "0" * 40, "expected a folder of the controller or of another host"),
    ],
)
def test_what_cannot_be_brought_is_refused(action: Any, source: str, said: str):
    result = action(source).run(None, {"hostvars": HOSTS})
    assert result["failed"]
    assert said in result["msg"]


def test_from_another_host_it_needs_an_agent(action: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    assert "SSH_AUTH_SOCK" in action("gpu-2:/srv/m").run(None, {"hostvars": HOSTS})["msg"]
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    words = action("gpu-2:/srv/m")._command({"hostvars": HOSTS})
    assert words[:3] == ["ssh", "-o", "BatchMode=yes"]
    assert "admin@192.0.2.2:/srv/m/" in words[-1]
    assert "-p 2222" in words[-1]


def test_a_rehearsal_brings_nothing(action: Any):
    assert action("/nowhere", check_mode=True).run(None, {}) == {"skipped": True, "changed": False}


def test_how_it_ended_is_said(action: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    made = action(str(tmp_path), transport="local")
    monkeypatch.setattr(made, "_command", lambda _: ["sh", "-c", "echo '>f+++++++++ a'; echo no room >&2; exit 11"])
    assert made.run(None, {}) == {"failed": True, "msg": "sh ended with status 11: no room"}
    monkeypatch.setattr(made, "_command", lambda _: ["sh", "-c", "echo '>f+++++++++ a'"])
    assert made.run(None, {}) == {"changed": True, "changes": 1}
    monkeypatch.setattr(made, "_command", lambda _: ["true"])
    assert made.run(None, {}) == {"changed": False, "changes": 0}


def test_more_errors_than_a_pipe_holds_do_not_stop_it(action: Any, tmp_path: Path):
    """A pipe holds 64 KiB; rsync would wait for a reader, and this for rsync."""
    many = ["timeout", "10", "sh", "-c", "yes denied | head -c 200000 >&2; exit 23"]
    done, _, said = action(str(tmp_path))._follow(many)
    assert done == 23
    assert len(said) == 200000


def test_a_link_where_the_folder_goes_is_refused(action: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = action(str(tmp_path), transport="local", stat={"exists": True, "islnk": True})
    monkeypatch.setattr(made, "_follow", lambda _: pytest.fail("something was brought"))
    assert "seen a link at /srv/x" in made.run(None, {})["msg"]


def test_links_that_lead_out_of_the_folder_are_refused(action: Any, tmp_path: Path):
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "blob").write_text("x")
    (tmp_path / "snapshot/inside").symlink_to("there")
    assert action(str(tmp_path / "snapshot"))._command({})[-1] == "admin@192.0.2.1:/srv/x/"
    (tmp_path / "snapshot/model").symlink_to("../blob")
    said = action(str(tmp_path / "snapshot")).run(None, {})["msg"]
    assert "seen links that lead out of" in said
    assert "model (1 in all)" in said


def test_a_sudo_that_asks_a_password_is_said_before_anything_is_brought(
    plugin: Any, action: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked = []

    def answer(words: list[str], **_: Any) -> SimpleNamespace:
        asked.append(words)
        return SimpleNamespace(returncode=1, stderr="sudo: a password is required")

    monkeypatch.setattr(plugin.subprocess, "run", answer)
    made = action(str(tmp_path))
    monkeypatch.setattr(made, "_follow", lambda _: pytest.fail("something was brought"))
    said = made.run(None, {})["msg"]
    assert "a password is required" in said
    assert "NOPASSWD" in said
    assert asked[0][-2:] == ["admin@192.0.2.1", "sudo -n rsync --version"]
    made._connection.become = None  # a play that is not root's asks nobody
    made._refuse_a_password()
    assert len(asked) == 1
