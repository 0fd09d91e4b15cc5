# SPDX-License-Identifier: Apache-2.0
"""Weights on a real file system: models made by hand with the safetensors format, and each way to be incomplete."""

from __future__ import annotations

import json
import os
import pwd
import struct
from pathlib import Path
from typing import Any

import pytest

from inference import weights
from inference.weights import files
from inference.weights.service import unguarded

NOBODY = "nobody"
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to others")


def shard(file: Path, data: int = 64, header: Any = None) -> None:
    """Write a safetensors file: eight bytes of length, the header, ``data`` bytes."""
    if header is None:
        header = {"__metadata__": {"format": "pt"}, "w": {"dtype": "U8", "shape": [data], "data_offsets": [0, data]}}
    raw = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(data))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a folder with two shards, an index, a tokenizer and a configuration, readable by everybody."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["X"]}')
    (folder / "tokenizer.json").write_text("{}")
    for name in ("a.safetensors", "b.safetensors"):
        shard(folder / name)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def test_a_whole_model_has_no_problems(model: Path):
    assert weights.problems(model) == []
    assert weights.size(model) == sum((model / name).stat().st_size for name in ("a.safetensors", "b.safetensors"))


def test_a_single_file_needs_no_index(model: Path):
    (model / "model.safetensors.index.json").unlink()
    (model / "b.safetensors").unlink()
    assert weights.problems(model) == []


def test_no_folder(tmp_path: Path):
    assert weights.problems(tmp_path / "x") == [f"{tmp_path}/x: there is no such folder"]
    (tmp_path / "f").write_text("")
    assert "no such folder" in weights.problems(tmp_path / "f")[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "missing"), ("{", "not readable"), ("[]", "not a JSON object"), ("{}", "no architecture"), ("\0", "not")],
)
def test_a_configuration_that_says_nothing(model: Path, text: str | None, said: str):
    (model / "config.json").unlink()
    if text is not None:
        (model / "config.json").write_text(text)
    (problem,) = weights.problems(model)
    assert said in problem


def test_no_tokenizer(model: Path):
    (model / "tokenizer.json").unlink()
    (problem,) = weights.problems(model)
    assert "no tokenizer" in problem
    (model / "tiktoken.model").write_text("")
    assert weights.problems(model) == []


def test_missing_shards_are_counted_and_three_are_named(model: Path):
    names = [f"m{n}.safetensors" for n in range(5)]
    (model / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {n: n for n in [*names, "a.safetensors"]}})
    )
    problems = weights.problems(model)
    assert problems == [f"{name}: missing (5 of 6 shards are)" for name in names[:3]]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": ["b"]}}']
)
def test_an_index_that_names_nothing(model: Path, text: str):
    (model / "model.safetensors.index.json").write_text(text)
    (problem,) = weights.problems(model)
    assert "not an index of weights" in problem


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "sub/../../x.safetensors"])
def test_an_index_that_names_files_outside_is_refused_and_they_are_not_opened(model: Path, name: str):
    shard(model.parent / "secret.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": name}}))
    (problem,) = weights.problems(model)
    assert f"it names {name}, which is outside" in problem


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_json_that_is_nested_without_end_is_a_problem_and_no_traceback(model: Path, name: str):
    (model / name).write_text("[" * 200_000)
    assert any(name in problem for problem in weights.problems(model))


def test_no_weights_at_all(model: Path):
    for file in model.glob("*.safetensors*"):
        file.unlink()
    assert weights.problems(model) == [f"{model}: no *.safetensors file"]


@pytest.mark.parametrize("change", [-1, 1, -64])
def test_a_file_that_is_cut_or_too_long(model: Path, change: int):
    file = model / "a.safetensors"
    size = file.stat().st_size
    os.truncate(file, size + change)
    assert weights.problems(model) == [f"a.safetensors: {size + change} bytes, and its header says {size}"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x08",
        struct.pack("<Q", 0),
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 400) + b"{}",
        b"<html>not found</html>" + bytes(100),
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"w": 1}',
        struct.pack("<Q", 9) + b'{"w": {}}',
        struct.pack("<Q", 27) + b'{"w": {"data_offsets": [0]}}'[:27],
        struct.pack("<Q", 2) + b"\xff\xff",
        struct.pack("<Q", 200_000) + b"[" * 200_000,
        struct.pack("<Q", 37) + b'{"w": {"data_offsets": [0,Infinity]}}',
    ],
)
def test_what_is_no_safetensors_file_is_named_and_raises_nothing(model: Path, content: bytes):
    (model / "b.safetensors").write_bytes(content)
    (problem,) = weights.problems(model)
    assert problem.startswith("b.safetensors: ")


def test_a_header_without_tensors_is_whole(model: Path):
    shard(model / "b.safetensors", 0, {"__metadata__": {}})
    assert weights.problems(model) == []


# who may read it


def test_an_unknown_user(model: Path):
    assert weights.problems(model, "no-such-user") == ["no such user: no-such-user"]
    assert not weights.account_exists("no-such-user")
    assert weights.account_exists("root")


def open_up(folder: Path) -> None:
    """Let everybody pass through pytest's own folders."""
    for parent in folder.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)


@as_root
@pytest.mark.parametrize(
    ("path", "mode"),
    [("a.safetensors", 0o600), ("config.json", 0o640), (".", 0o700), (".", 0o711), ("..", 0o700)],
)
def test_what_the_service_cannot_read_is_named(model: Path, path: str, mode: int):
    open_up(model)
    assert weights.problems(model, NOBODY) == []
    closed = (model / path).resolve()
    closed.chmod(mode)
    problems = weights.problems(model, NOBODY)
    assert problems == [f"{closed}: {NOBODY} cannot read it; chmod a+rX"]
    assert weights.problems(model, "root") == []
    closed.chmod(0o755)


@as_root
def test_the_owners_and_the_groups_bits_count_for_them(model: Path, monkeypatch: pytest.MonkeyPatch):
    open_up(model)
    account = pwd.getpwnam(NOBODY)
    file = model / "a.safetensors"
    file.chmod(0o400)
    os.chown(file, account.pw_uid, 0)
    assert weights.problems(model, NOBODY) == []
    os.chown(file, 0, 12345)
    file.chmod(0o640)
    assert weights.problems(model, NOBODY) != []
    # a supplementary group, as operators give one to whoever may read the models
    monkeypatch.setattr(os, "getgrouplist", lambda _, group: [group, 12345])
    assert weights.problems(model, NOBODY) == []
    file.chmod(0o604)  # the group's bits come before everybody's
    assert weights.problems(model, NOBODY) != []


@as_root
@pytest.mark.parametrize(
    ("path", "mode", "owner", "writable"),
    [
        ("a.safetensors", 0o644, 0, False),
        ("a.safetensors", 0o666, 0, True),
        ("a.safetensors", 0o644, 65534, True),
        ("a.safetensors", 0o444, 65534, False),
        (".", 0o777, 0, True),
        (".", 0o755, 0, False),
    ],
)
def test_what_the_service_may_change_is_named(model: Path, path: str, mode: int, owner: int, writable: bool):
    account = pwd.getpwnam(NOBODY)
    (model / path).chmod(mode)
    os.chown(model / path, account.pw_uid if owner else 0, 0)
    assert files.writable(model, NOBODY) == ([model / path] if writable else [])
    assert files.writable(model, "root") == []
    found = unguarded({"kimi": model}, NOBODY)
    assert [(f.id, f.level, f.seen) for f in found] == [("model-writable", "warning", str(model / path))] * writable
    (model / path).chmod(0o755)


@as_root
def test_a_dangling_link_is_no_error(model: Path):
    open_up(model)
    (model / "old").symlink_to("/nowhere")
    assert weights.problems(model, NOBODY) == []


# what may be replaced


def test_a_model_or_an_empty_folder_may_be_replaced(model: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "part").mkdir()
    (tmp_path / "part/model-1.safetensors").write_text("")
    for folder in (model, tmp_path / "empty", tmp_path / "part", tmp_path / "nothing"):
        assert weights.replaceable(folder)


def test_anything_else_may_not(model: Path, tmp_path: Path):
    (tmp_path / "link").symlink_to(model)
    (tmp_path / "dangling").symlink_to("/nowhere")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/letter.txt").write_text("")
    (tmp_path / "file").write_text("")
    for path in ("link", "dangling", "home", "file"):
        assert not weights.replaceable(tmp_path / path), path
