# SPDX-License-Identifier: Apache-2.0
"""Atomic writes: the old file or the new one, nothing beside it, never readable by more people than meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.atomic import write_atomically


def test_the_new_content_replaces_the_old_with_its_mode(tmp_path: Path):
    (tmp_path / "kept").write_bytes(b"old")
    write_atomically(tmp_path / "kept", b"new", mode=0o640)
    assert [(file.name, file.read_bytes(), file.stat().st_mode & 0o777) for file in tmp_path.iterdir()] == [
        ("kept", b"new", 0o640)
    ]


@pytest.mark.parametrize("broken", ["fsync", "prepare"])
def test_the_old_file_stays_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str):
    path = tmp_path / "kept"
    path.write_bytes(b"old")

    def fail(_: object) -> None:
        raise OSError("disk full")

    if broken == "fsync":
        monkeypatch.setattr("inference.atomic.os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new", prepare=fail if broken == "prepare" else lambda _: None)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("kept", b"old")]


def test_nobody_else_reads_it_before_its_owner_is_set(tmp_path: Path):
    modes: list[int] = []
    write_atomically(tmp_path / "key", b"s", mode=0o600, prepare=lambda file: modes.append(file.stat().st_mode & 0o777))
    assert modes == [0o600]
