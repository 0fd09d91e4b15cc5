# SPDX-License-Identifier: Apache-2.0
"""Releases: what their id stands for, in which state they are, which may go, and which interpreters fit."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_wheels import INTERPRETER, PYTHON, lock_text

from inference import releases
from inference.releases import Release, ReleaseError, interpreters, locks
from inference.releases.interpreters import Interpreter
from inference.releases.locks import Pin

PIN = Pin("tiny", "1.0", "tiny-1.0-py3-none-any.whl", 1, "0" * 64)
LOCK = locks.parse_lock(lock_text([PIN]))


@pytest.fixture(scope="module")
def interpreter() -> Interpreter:
    return interpreters.probe(INTERPRETER)


def named(tmp_path: Path, name: str) -> Release:
    return Release(name, tmp_path / "releases", tmp_path / "state")


def sealed(tmp_path: Path, name: str, interpreter: Interpreter, created: str = "") -> Release:
    release = named(tmp_path, name)
    release.path.mkdir(parents=True)
    (release.path / "file").write_text(name)
    (release.path / releases.INSTALLED).write_text("{}")
    releases.seal(release, LOCK, interpreter, "none", entries=_entries(release), notes={"created": created})
    return release


def _entries(release: Release):
    from inference.releases import sealing

    return sealing.make_manifest(release.path, releases.NOT_IN_MANIFEST)


# --- the id ---


def test_the_id_stands_for_lock_interpreter_patches_and_way_of_building(
    interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = releases.release_id("lock", interpreter, "none")
    assert base == releases.release_id("lock", interpreter, "none")
    others = {
        releases.release_id("another", interpreter, "none"),
        releases.release_id("lock", interpreter, "P02:abc"),
        releases.release_id("lock", replace(interpreter, version="3.99.0"), "none"),
        releases.release_id("lock", replace(interpreter, implementation="pypy"), "none"),
        releases.release_id("lock", replace(interpreter, abi="cpython-999"), "none"),
    }
    monkeypatch.setattr(releases, "BUILD_SCHEMA", releases.BUILD_SCHEMA + 1)
    others.add(releases.release_id("lock", interpreter, "none"))
    assert len(others - {base}) == 6


def test_neither_patch_level_nor_place_of_the_interpreter_makes_another_release(interpreter: Interpreter) -> None:
    fixed = replace(interpreter, version=f"{PYTHON}.99", path="/usr/bin/python", real_path="/usr/bin/python")
    assert releases.release_id("lock", fixed, "none") == releases.release_id("lock", interpreter, "none")


def test_a_release_lies_under_its_name(interpreter: Interpreter, tmp_path: Path) -> None:
    release = releases.place(LOCK, interpreter, "none", str(tmp_path), str(tmp_path / "state"))
    assert release.path.parent == tmp_path
    assert release.name == f"tiny-1.0-{releases.release_id(LOCK.sha256, interpreter, 'none')}"


# --- states and the record ---


def test_only_a_record_makes_a_release(tmp_path: Path, interpreter: Interpreter) -> None:
    release = named(tmp_path, "tiny-1.0-abc")
    assert release.state == "absent"
    release.venv.mkdir(parents=True)
    assert release.state == "absent"
    (release.path / releases.INSTALLED).write_text("{}")
    assert release.state == "unsealed"
    record = releases.seal(release, LOCK, interpreter, "none", entries=_entries(release), notes={})
    assert release.state == "sealed"
    assert release.record() == record
    assert not (release.path / releases.INSTALLED).exists()
    assert interpreters.Interpreter(**record["interpreter"]) == interpreter


def test_a_changed_record_is_a_broken_release(tmp_path: Path, interpreter: Interpreter) -> None:
    release = sealed(tmp_path, "tiny-1.0-abc", interpreter)
    path = release.path / releases.RELEASE
    text = path.read_text()
    path.write_text(text.replace('"patches_id": "none"', '"patches_id": "P02"'))
    with pytest.raises(ReleaseError, match="has been changed since it was written"):
        release.verify()
    path.write_text(text[:100])
    with pytest.raises(ReleaseError, match=r"release\.json"):
        release.verify()
    path.write_text(text.replace("tiny-1.0-abc", "tiny-1.0-xyz"))
    with pytest.raises(ReleaseError, match=r"is not the record of tiny-1\.0-abc"):
        release.verify()


def test_discarding_removes_release_leftovers_and_stat_file(tmp_path: Path, interpreter: Interpreter) -> None:
    release = sealed(tmp_path, "tiny-1.0-abc", interpreter)
    (release.work / "cache").mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (release.path / "link").symlink_to(outside)
    releases.discard(release)
    assert list((tmp_path / "releases").iterdir()) == []
    assert not release.stat_file.exists()
    assert outside.is_dir()


# --- two runs at once ---


def test_the_second_run_waits_and_says_who_holds_the_release(tmp_path: Path) -> None:
    release = named(tmp_path, "tiny-1.0-abc")
    with release.locked(0):
        start = time.monotonic()
        with pytest.raises(ReleaseError, match=rf"process {os.getpid()}"), release.locked(0.5):
            pass
        assert time.monotonic() - start >= 0.5
    with release.locked(0):
        pass


def test_a_killed_run_holds_nothing(tmp_path: Path) -> None:
    release = named(tmp_path, "tiny-1.0-abc")
    release.state_dir.mkdir()
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import fcntl, time; f = open({str(release.state_dir / 'tiny-1.0-abc.lock')!r}, 'w'); "
            "fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); time.sleep(60)",
        ],
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with pytest.raises(ReleaseError), release.locked(0):
        pass
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with release.locked(5):
        pass


# --- which may go ---


@pytest.fixture
def five(tmp_path: Path, interpreter: Interpreter) -> list[Release]:
    for number in range(5):
        sealed(tmp_path, f"tiny-1.{number}-id{number}", interpreter, f"2026-01-0{number + 1}T00:00:00+00:00")
    sealed(tmp_path, "other-1.0-abc", interpreter)
    return releases.sealed_releases(tmp_path / "releases", tmp_path / "state", "tiny")


def going(found: list[Release], keep: int, *in_use: str) -> list[str]:
    return [release.name for release in releases.to_remove(found, keep, in_use)]


def test_the_oldest_go_and_those_in_use_stay(five: list[Release]) -> None:
    assert [release.name for release in five] == [f"tiny-1.{n}-id{n}" for n in (4, 3, 2, 1, 0)]
    assert going(five, 2) == ["tiny-1.2-id2", "tiny-1.1-id1", "tiny-1.0-id0"]
    assert going(five, 2, "id1", "tiny-1.0-id0") == ["tiny-1.2-id2"]
    assert going(five, 2, f"{five[2].path}/venv/bin/python", str(five[3].path) + "/") == ["tiny-1.0-id0"]
    assert going(five, 0) == going(five, 1), "the newest always stays"


def test_a_release_that_is_not_sealed_is_none_of_them(five: list[Release], tmp_path: Path) -> None:
    (five[0].path / releases.RELEASE).unlink()
    found = releases.sealed_releases(tmp_path / "releases", tmp_path / "state", "tiny")
    assert five[0] not in found
    assert len(found) == 4


def test_a_release_that_runs_stays(five: list[Release]) -> None:
    oldest = five[-1]
    program = oldest.venv / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.symlink_to(INTERPRETER)
    running = subprocess.Popen([program, "-I", "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1)
    assert running.stdout is not None
    running.stdout.readline()
    try:
        assert releases.running(oldest) == [running.pid]
        assert going(five, 2) == ["tiny-1.2-id2", "tiny-1.1-id1"]
    finally:
        running.kill()
        running.wait()
        running.stdout.close()
    assert going(five, 2)[-1] == oldest.name


# --- interpreters ---


def test_an_interpreter_says_what_it_is(interpreter: Interpreter) -> None:
    assert interpreter.minor == PYTHON
    assert interpreter.version == ".".join(map(str, sys.version_info[:3]))
    assert interpreter.magic
    assert interpreter.target.glibc > (2, 17)
    assert interpreters.unfit(interpreter, LOCK, headers=False) == []


def test_what_is_no_interpreter_is_named(tmp_path: Path) -> None:
    for content in ("#!/bin/sh\necho hello\n", "#!/bin/sh\nexit 3\n", "#!/bin/sh\necho '{}'\n"):
        (tmp_path / "python").write_text(content)
        (tmp_path / "python").chmod(0o755)
        with pytest.raises(interpreters.InterpreterError, match="is no usable Python interpreter"):
            interpreters.probe(str(tmp_path / "python"))
    with pytest.raises(interpreters.InterpreterError, match="no usable"):
        interpreters.probe(str(tmp_path / "nothing"))


def test_a_missing_interpreter_says_what_to_install() -> None:
    with pytest.raises(interpreters.InterpreterError, match=r"apt install python3\.99 python3\.99-dev"):
        interpreters.find("auto", "3.99")


def test_the_wrong_interpreter_says_what_was_seen_and_what_is_wanted(interpreter: Interpreter) -> None:
    older = replace(interpreter, version="3.9.1")
    assert interpreters.unfit(older, LOCK, headers=False) == [
        f"{older.path} is cpython 3.9.1; the lock is for Python {PYTHON}: install python{PYTHON}, with its headers if "
        f"the engine runs on a GPU (Debian, Ubuntu: apt install python{PYTHON} python{PYTHON}-dev), or choose a lock "
        "for a Python that is here"
    ]
    assert interpreters.unfit(replace(interpreter, implementation="pypy"), LOCK, headers=False)


def test_missing_headers_and_an_old_glibc_are_named(interpreter: Interpreter) -> None:
    bare = replace(interpreter, headers=False)
    assert interpreters.unfit(bare, LOCK, headers=False) == []
    assert f"python{PYTHON}-dev" in interpreters.unfit(bare, LOCK, headers=True)[0]
    tag = locks.python_tag(PYTHON)
    pin = replace(PIN, file=f"tiny-1.0-{tag}-{tag}-manylinux_2_34_x86_64.whl")
    lock = locks.parse_lock(lock_text([pin]))
    old = replace(interpreter, libc="glibc 2.31")
    assert f"can't load {pin.file}" in interpreters.unfit(old, lock, headers=False)[0]
    assert "no glibc" in interpreters.unfit(replace(interpreter, libc=""), lock, headers=False)[0]


def test_the_record_says_what_a_release_is_made_of(tmp_path: Path, interpreter: Interpreter) -> None:
    release = sealed(tmp_path, "tiny-1.0-abc", interpreter)
    record = json.loads((release.path / releases.RELEASE).read_text())
    assert record["lock"] == {"name": LOCK.name, "sha256": LOCK.sha256}
    assert record["packages"] == {"tiny": "1.0"}
    assert (record["files"], record["bytes"]) == (1, len("tiny-1.0-abc"))


def test_the_lock_file_can_be_taken_by_other_programs(tmp_path: Path) -> None:
    release = named(tmp_path, "tiny-1.0-abc")
    with release.locked(0), (release.state_dir / "tiny-1.0-abc.lock").open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
