# SPDX-License-Identifier: Apache-2.0
"""How folders are brought: who rsync runs as over there, and which links are not taken along."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from inference import transfer
from inference.transfer import Ssh


@pytest.mark.parametrize(
    ("user", "become", "expected"),
    [("root", True, "rsync"), ("admin", True, "sudo -n rsync"), ("admin", False, "rsync"), (None, False, "rsync")],
)
def test_whose_rsync_it_is(user: str | None, become: bool, expected: str):
    assert Ssh("h", user, become=become).rsync == expected


@pytest.mark.parametrize(("uid", "expected"), [("0", "rsync --server"), ("1000", "sudo -n rsync --server")])
def test_where_nobody_knows_who_logs_in_the_host_decides(tmp_path: Path, uid: str, expected: str):
    """A shell over there gets the command; ``id`` is acted out, and rsync and sudo say what they were called with."""
    for name, does in (("id", f"echo {uid}"), ("rsync", 'echo rsync "$@"'), ("sudo", 'echo sudo "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    said = subprocess.run(
        ["/bin/sh", "-c", f"{Ssh('h').rsync} --server"], env={"PATH": str(tmp_path)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert said.stdout.strip() == expected


def test_a_host_that_fetches_from_another_keeps_the_agent():
    words = transfer.pull(Ssh("peer"), "/srv/m", Ssh("h", "admin"), "/srv/m.incoming")
    assert words[:3] == ["ssh", "-A", "admin@h"]
    assert words[-1].startswith("sudo -n --preserve-env=SSH_AUTH_SOCK rsync ")
    assert "peer:/srv/m/ /srv/m.incoming/" in words[-1]


def links(folder: Path) -> Path:
    (folder / "below").mkdir(parents=True)
    (folder / "file").write_text("x")
    for name, target in {
        "below/up": "../file", "side": "below", "out": "../secret", "below/far": "../../secret", "root": "/etc/hosts",
        "self": "below/../file",
    }.items():  # fmt: skip
        (folder / name).symlink_to(target)
    return folder


def test_links_that_lead_out_are_found(tmp_path: Path):
    assert transfer.leading_out(links(tmp_path / "here")) == ["below/far", "out", "root"]


@pytest.mark.skipif(not shutil.which("rsync"), reason="there is no rsync here")
def test_links_that_lead_out_are_not_brought(tmp_path: Path):
    subprocess.run(transfer.push(str(links(tmp_path / "here")), None, str(tmp_path / "there")), check=True)
    assert {path.name for path in (tmp_path / "there").rglob("*")} >= {"up", "side", "file"}
    assert not {path.name for path in (tmp_path / "there").rglob("*")} & {"out", "far", "root"}
