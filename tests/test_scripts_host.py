# SPDX-License-Identifier: Apache-2.0
"""scripts/host as a unit or a person calls it, and the copy of it that a host gets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from loading import load

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tests/fixtures/nvidia-smi/lspci_acsctl_redirect.txt"


def call(*words: str, program: Path = ROOT / "scripts/host", stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", program, *words], capture_output=True, text=True, check=False, input=stdin, timeout=60
    )


def test_a_recorded_lspci_gives_the_commands():
    done = call("acs", "--lspci", str(RECORDED))
    assert (done.returncode, done.stdout) == (1, "setpci -s (not named) ECAP_ACS+6.w=0000\n")


def test_the_same_as_json_from_standard_input():
    done = call("acs", "--json", "--lspci", "-", stdin=RECORDED.read_text())
    answer = json.loads(done.stdout)
    assert (answer["schema"], answer["ok"]) == (1, False)
    assert answer["bridges"] == {"(not named)": ["SrcValid", "ReqRedir", "CmpltRedir", "UpstreamFwd"]}


def test_a_listing_without_a_set_control_is_fine():
    done = call("acs", "--lspci", "-", stdin="00:00.0 Host bridge: AMD\n")
    assert (done.returncode, done.stdout) == (0, "no bridge has an ACS control set\n")


def test_what_cannot_be_done_or_read_says_why():
    done = call("look", "acs")
    assert done.returncode == 3
    assert "no PCIe bridge above a GPU" in done.stderr or "container" in done.stderr
    assert "expected a size such as 64G" in call("look", "shm", "much").stderr
    assert call("apply", "nothing").returncode == 3
    assert "No such file" in call("acs", "--lspci", "/nowhere").stderr


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no shared memory here")
def test_look_compares_and_changes_nothing():
    done = call("look", "--json", "shm", "1K")
    assert (done.returncode, json.loads(done.stdout)["wanted"]) == (1, "4096")


def test_the_copy_on_a_host_is_whole(tmp_path: Path):
    filters = load("host_filter", ROOT / "plugins/filter/inference.py")
    parent, *entries = filters.host_program_files(str(ROOT))
    root = entries[0]["path"]
    assert (parent["path"], root) == ("/usr/local/lib/inference", "/usr/local/lib/inference/host")
    assert {parent["state"], entries[0]["state"]} == {"directory"}
    for entry in entries:
        path = tmp_path / Path(entry["path"]).relative_to(root)
        if entry.get("state") == "directory":
            path.mkdir(exist_ok=path == tmp_path)
        else:
            path.write_text(entry["content"])
    done = call("look", "shm", "50%", program=tmp_path / "scripts/host")
    assert (done.returncode in (0, 1), done.stderr) == (True, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no PCI device is named"),
        ("hello\x1b\n", "no PCI device is named"),
        ("00:01.1 PCI bridge: AMD\n\tCapabilities: <access denied>\n", "as root"),
    ],
)
def test_what_tells_of_no_control_is_no_answer(tmp_path: Path, text: str, said: str):
    (tmp_path / "lspci").write_text(text)
    done = call("acs", "--lspci", str(tmp_path / "lspci"))
    assert (done.returncode, done.stdout) == (3, "")
    assert f"{tmp_path}/lspci: " in done.stderr
    assert said in done.stderr
