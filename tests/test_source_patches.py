# SPDX-License-Identifier: Apache-2.0
"""The Ansible module source_patches, run by Ansible on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from patch_trees import ROOT, contents, entry, make, second, snapshot

from inference import ledger


def invoke(tree: Path, *options: str, **arguments: Any) -> subprocess.CompletedProcess[str]:
    given = {"site_packages": str(tree), "ledger": [entry(), second(default=False)], **arguments}
    command = [Path(sys.executable).with_name("ansible"), "localhost", "-i", "localhost,", "-c", "local", *options]
    return subprocess.run(
        [
            *command,
            "-e",
            f"ansible_python_interpreter={sys.executable}",
            "-m",
            "source_patches",
            "-a",
            json.dumps(given),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
    )


def run(tree: Path, *options: str, code: int = 0, **arguments: Any) -> dict[str, Any]:
    done = invoke(tree, "-o", *options, **arguments)
    assert done.returncode == code, done.stdout + done.stderr
    line = next(line for line in done.stdout.splitlines() if "=> {" in line)
    return json.loads(line[line.index("=> ") + 3 :])


def states(result: dict[str, Any]) -> list[str]:
    return [patch["state"] for patch in result["patches"]]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make(tmp_path / "tree")


def test_check_apply_again_and_revert(tree: Path) -> None:
    fresh = snapshot(tree)
    assert "+    if capability[0] == 12:" in invoke(tree, "--check", "--diff").stdout
    rehearsal = run(tree, "--check")
    assert (rehearsal["changed"], states(rehearsal), snapshot(tree)) == (True, ["applied", "applies"], fresh)
    first = run(tree)
    assert (first["changed"], first["files"], states(first)) == (True, ["sglang/tiles.py"], ["applied", "applies"])
    assert first["content_id"] == ledger.content_id([entry(), second(default=False)], "default")
    again = run(tree)
    assert (again["changed"], again["files"]) == (False, [])
    gone = run(tree, state="absent")
    assert (gone["changed"], states(gone)) == (True, ["applies", "applies"])
    assert contents(tree) == {name: content for name, (content, _, _) in fresh.items()}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"patches": ["T1", "T2"]}, "T2 is conflict"),
        ({"patches": ["T9"]}, "no patch 'T9'"),
        ({"ledger": [{"id": "T1"}]}, "T1: name"),
        ({"ledger": [entry(acknowledge="Slow.")]}, "Slow."),
    ],
)
def test_a_refusal_fails_and_changes_nothing(tree: Path, arguments: dict[str, Any], problem: str) -> None:
    (tree / "sglang/check.py").write_text("a = 1\n")
    before = snapshot(tree)
    result = run(tree, code=2, **arguments)
    assert result["msg"].startswith("Nothing was changed. ")
    assert problem in result["msg"]
    assert snapshot(tree) == before


def test_acknowledged(tree: Path) -> None:
    assert states(run(tree, ledger=[entry(acknowledge="Slow.")], acknowledge=["T1"])) == ["applied"]
