# SPDX-License-Identifier: Apache-2.0
"""Records of a service that root reads: only plain, small files of JSON count, and nothing there can stop root."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from inference import runtime


def test_a_plain_record_is_read_and_an_older_one_is_not(tmp_path: Path):
    file = tmp_path / "state.json"
    file.write_text('{"pid": 12}')
    os.utime(file, (100, 100))
    assert runtime.read_json(file) == runtime.read_json(file, since=100) == {"pid": 12}
    assert runtime.read_json(file, since=101) is None


@pytest.mark.parametrize("text", ["", "[]", "{", "3", "[" * 200_000, json.dumps({"x": "y" * runtime.MOST_BYTES})])
def test_what_is_no_record_is_none(tmp_path: Path, text: str):
    (tmp_path / "state.json").write_text(text)
    assert runtime.read_json(tmp_path / "state.json") is None


def test_links_pipes_and_folders_are_none_and_nobody_waits(tmp_path: Path):
    (tmp_path / "secret.json").write_text('{"key": "of root"}')
    (tmp_path / "link").symlink_to(tmp_path / "secret.json")
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "zero", "pipe", ".", "nothing"):
        assert runtime.read_json(tmp_path / name) is None, name
