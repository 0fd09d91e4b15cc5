# SPDX-License-Identifier: Apache-2.0
"""managed_files on a real file system, as the user who runs the tests."""

import getpass
import grp
import os
import stat
from pathlib import Path

import pytest

from inference import managed_files
from inference.managed_files import Entry, ManagedFilesError, Plan

ME = {"owner": getpass.getuser(), "group": grp.getgrgid(os.getgid()).gr_name}


def run(*entries: Entry) -> Plan:
    planned = managed_files.plan(entries)
    managed_files.apply(planned)
    return planned


def test_first_run_makes_second_run_finds_nothing(tmp_path: Path):
    entries = (
        Entry(f"{tmp_path}/d", "directory", mode=0o750, **ME),
        Entry(f"{tmp_path}/d/f", content="one\n", mode=0o640, **ME),
    )
    assert run(*entries).paths == [f"{tmp_path}/d", f"{tmp_path}/d/f"]
    assert (tmp_path / "d/f").read_text() == "one\n"
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o750
    assert run(*entries).paths == []


def test_planning_alone_changes_nothing(tmp_path: Path):
    planned = managed_files.plan([Entry(f"{tmp_path}/f", content="x", **ME)])
    assert planned.paths and not (tmp_path / "f").exists()


def test_diff_shows_content_and_mode(tmp_path: Path):
    (tmp_path / "f").write_text("old\n")
    (tmp_path / "f").chmod(0o644)
    planned = run(Entry(f"{tmp_path}/f", content="new\n", mode=0o600, **ME))
    assert "old" in planned.diff()[0]["before"] and "0644" in planned.diff()[0]["before"]
    assert "new" in planned.diff()[0]["after"] and "0600" in planned.diff()[0]["after"]


def test_mode_alone_does_not_rewrite(tmp_path: Path):
    (tmp_path / "f").write_text("same\n")
    inode = (tmp_path / "f").stat().st_ino
    run(Entry(f"{tmp_path}/f", content="same\n", mode=0o600, **ME))
    assert (tmp_path / "f").stat().st_ino == inode
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o600


def test_a_hard_link_is_replaced_and_not_written_through(tmp_path: Path):
    (tmp_path / "cache").write_text("cached\n")
    os.link(tmp_path / "cache", tmp_path / "f")
    run(Entry(f"{tmp_path}/f", content="ours\n", **ME))
    assert (tmp_path / "cache").read_text() == "cached\n"


def test_a_symlink_is_replaced_by_the_file(tmp_path: Path):
    (tmp_path / "f").symlink_to("/dev/null")
    run(Entry(f"{tmp_path}/f", content="ours\n", **ME))
    assert not (tmp_path / "f").is_symlink() and (tmp_path / "f").read_text() == "ours\n"


def test_absent_removes_a_file_and_is_quiet_the_second_time(tmp_path: Path):
    (tmp_path / "f").write_text("x")
    assert run(Entry(f"{tmp_path}/f", "absent")).paths
    assert not run(Entry(f"{tmp_path}/f", "absent")).paths


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        (Entry("relative", content="x", **ME), "absolute"),
        (Entry("{tmp}/missing/f", content="x", **ME), "is not there"),
        (Entry("{tmp}/folder", content="x", **ME), "is not a file"),
        (Entry("{tmp}/file", "directory", **ME), "is not a directory"),
        (Entry("{tmp}/folder", "absent"), "is a folder"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_changes(tmp_path: Path, entry: Entry, word: str):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    first = Entry(f"{tmp_path}/first", content="x", **ME)
    bad = Entry(**{**entry.__dict__, "path": entry.path.replace("{tmp}", str(tmp_path))})
    with pytest.raises(ManagedFilesError, match=word):
        run(first, bad)
    assert not (tmp_path / "first").exists()


def test_an_unknown_owner_is_an_error_only_when_applied(tmp_path: Path):
    planned = managed_files.plan([Entry(f"{tmp_path}/f", content="x", owner="nobody-of-that-name")])
    with pytest.raises(ManagedFilesError, match="nobody-of-that-name"):
        managed_files.apply(planned)
    assert not (tmp_path / "f").exists()


def test_nothing_is_left_behind_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        run(Entry(f"{tmp_path}/f", content="x", **ME))
    assert list(tmp_path.iterdir()) == []


def test_from_dict_reads_ansible_modes():
    assert Entry.from_dict({"path": "/x", "mode": "0600"}).mode == 0o600
    assert Entry.from_dict({"path": "/x", "state": "directory"}).mode == 0o755
