# SPDX-License-Identifier: Apache-2.0
"""What an instance says it really is, from a process, files and a unit's state that a test controls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inference import generations, instances, managed_files, systemd
from inference.generations import Generation, Store
from inference.managed_files import Entry

RELEASE = {"name": "sglang-1", "engine": "sglang", "version": "0.5.23", "variant": "cu130", "patches": [], "lock": "x"}


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a root whose state, runtime and releases folders are those of a host."""
    monkeypatch.setattr(generations, "RUNTIME_ROOT", tmp_path / "run")
    monkeypatch.setattr(instances, "RELEASES", tmp_path / "releases")
    if os.getuid():
        monkeypatch.setattr(managed_files, "_own", lambda path, entry: path.chmod(entry.mode))
    monkeypatch.setattr(generations, "STATE_ROOT", tmp_path / "state")
    state = systemd.UnitState("loaded", "active", "running", "success", "serving", 1, 2, "")
    monkeypatch.setattr(systemd, "unit_state", lambda _: state)
    return tmp_path


def deploy(host: Path) -> Generation:
    generation = Generation("kimi", "sglang@kimi.service", "sglang-1", "0.1-a", (Entry("/x", content="x"),))
    store = Store("kimi")
    store.keep(generation)
    store.installed(generation)
    (host / "releases/sglang-1").mkdir(parents=True)
    (host / "releases/sglang-1/release.json").write_text(json.dumps(RELEASE))
    (host / "run/kimi").mkdir(parents=True)
    return generation


def start(host: Path, **record: Any) -> None:
    (host / "run/kimi/state.json").write_text(json.dumps(record))


def test_nothing_is_made_up_about_a_bare_host(host: Path):
    found = instances.describe("kimi")
    assert found.pop("instance") == "kimi"
    assert set(found.values()) == {None}


def test_an_instance_is_described_from_its_unit_release_and_process(host: Path):
    generation = deploy(host)
    environment = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "HF_TOKEN": "secret", "PATH": os.environ["PATH"]}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE) as process:
        wait_for_exec(process.pid)
        start(host, pid=process.pid, generation=generation.id, ready_after_s=12.5)
        found = instances.describe("kimi")
        process.communicate(b"\n")
    assert found["generation"] == generation.id
    assert found["unit"] == {"name": "sglang@kimi.service", "active": "active", "status": "serving", "restarts": 2}
    assert found["nccl_environment"] == {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring"}
    assert found["start"]["ready_after_s"] == 12.5
    assert found["release"]["version"] == "0.5.23"
    assert found["release"]["changed_files"] is None
    assert "lock" not in found["release"]
    assert "secret" not in json.dumps(found)


def wait_for_exec(pid: int) -> None:
    """Between fork and exec a child still has its parent's environment."""
    while b"NCCL_PROTO=LL" not in Path(f"/proc/{pid}/environ").read_bytes():
        pass


def test_a_process_that_is_gone_has_no_environment(host: Path):
    deploy(host)
    start(host, pid=2**22 + 1)
    assert instances.describe("kimi")["nccl_environment"] is None


@pytest.mark.parametrize("pid", [None, "12", 1.5, [1]])
def test_what_is_no_process_number_is_not_asked(pid: object):
    assert instances.nccl_environment(pid) is None


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_broken_record_is_no_record(host: Path, text: str):
    deploy(host)
    (host / "run/kimi/state.json").write_text(text)
    (host / "releases/sglang-1/release.json").write_text(text)
    found = instances.describe("kimi")
    assert found["start"] is None
    assert found["release"] is None
    assert found["nccl_environment"] is None
