# SPDX-License-Identifier: Apache-2.0
"""Models of a host: looked at again in no time, known by content, put in place whole, removed when unused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_weights import model, shard  # noqa: F401 - a fixture

from inference import weights
from inference.weights import record as record_module
from inference.weights import uses
from inference.weights.record import SUMS, Record, git_blob, known_sums
from inference.weights.state import Model

ORIGIN = f"hf:a/b@{'0123456789' * 4}"


@pytest.fixture
def known(model: Path, tmp_path: Path) -> Model:  # noqa: F811
    return Model("kimi", model, None, tmp_path / "state")


def flip(file: Path) -> None:
    """Change one bit of a file and put its old time back."""
    status = file.stat()
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of every file whose content is read."""
    seen: list[str] = []
    real = record_module.file_sha256

    def counted(path: Path) -> str:
        seen.append(path.name)
        return real(path)

    monkeypatch.setattr(record_module, "file_sha256", counted)
    return seen


def test_what_looks_as_before_is_not_opened_again(known: Model, monkeypatch: pytest.MonkeyPatch):
    assert weights.look(known, None) == []
    assert known.record_file.is_file()
    monkeypatch.setattr(weights.files, "problems", lambda *_: pytest.fail("looked into the files"))
    assert weights.look(known, None) == []


def test_a_rehearsal_writes_nothing(known: Model):
    assert weights.look(known, None, write=False) == []
    assert not known.record_file.exists()


def test_a_full_look_reads_every_file_and_knows_it_from_then_on(known: Model, monkeypatch: pytest.MonkeyPatch):
    seen = reads(monkeypatch)
    assert weights.look(known, None, full=True) == []
    assert sorted(seen) == sorted(path.name for path in known.path.iterdir())
    seen.clear()
    assert weights.look(known, None) == [] and not seen
    flip(known.path / "a.safetensors")
    assert "a.safetensors: its content is another" in weights.look(known, None)[0]
    assert seen == ["a.safetensors"]


def test_new_times_alone_are_read_once_and_remembered(known: Model, monkeypatch: pytest.MonkeyPatch):
    weights.look(known, None, full=True)
    (known.path / "a.safetensors").touch()
    seen = reads(monkeypatch)
    assert weights.look(known, None) == [] and seen == ["a.safetensors"]
    assert weights.look(known, None) == [] and seen == ["a.safetensors"]


def test_a_file_that_is_gone_is_missed_though_no_index_names_it(known: Model):
    (known.path / "generation_config.json").write_text("{}")
    weights.look(known, None, full=True)
    (known.path / "generation_config.json").unlink()
    assert "generation_config.json: missing" in weights.look(known, None)[0]


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "b.safetensors"])
def test_a_file_that_is_gone_is_looked_for_in_a_model_of_unknown_content(known: Model, name: str):
    assert weights.look(known, None) == []
    (known.path / name).unlink()
    assert weights.look(known, None)


def test_a_link_to_a_folder_is_not_followed_and_one_to_a_file_is(known: Model, monkeypatch: pytest.MonkeyPatch):
    secret = known.path.parent / "elsewhere"
    secret.mkdir()
    (secret / "secret").write_text("x")
    for name, target in (("again", known.path), ("away", secret)):
        (known.path / name).symlink_to(target)
    (known.path / "one").symlink_to(secret / "secret")
    seen = reads(monkeypatch)
    assert weights.look(known, None, full=True) == []
    assert sorted(seen) == [
        "a.safetensors",
        "b.safetensors",
        "config.json",
        "model.safetensors.index.json",
        "one",
        "tokenizer.json",
    ]


def test_sums_of_what_is_never_read_are_no_proof(known: Model):
    (known.path / "away").symlink_to(known.path.parent)
    (known.path.parent / "x").write_text("x")
    (known.path / "SHA256SUMS").write_text(f"{'0' * 64}  away/x\n{'0' * 64}  ../x\n")
    assert [line.partition(":")[0] for line in weights.look(known, None, full=True)] == ["../x", "away/x"]


def test_sums_beside_the_weights_count(known: Model):
    done = subprocess.run(
        ["sha256sum", *(path.name for path in known.path.iterdir())],
        cwd=known.path,
        capture_output=True,
        text=True,
        check=True,
    )
    (known.path / SUMS).write_text(done.stdout)
    assert weights.look(known, None) == []
    shutil.rmtree(known.state_dir)
    flip(known.path / "b.safetensors")
    assert "b.safetensors: its content is another" in weights.look(known, None)[0]


@pytest.mark.parametrize("text", ["x", "0123 a", f"{'g' * 64}  a"])
def test_sums_that_are_none(model: Path, text: str):  # noqa: F811
    (model / SUMS).write_text(text)
    with pytest.raises(weights.RecordError, match="line 1 is not one of sha256sum"):
        known_sums(model)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": 9}', "{" * 9, '{"schema": 1, "origin": "", "sums": [], "blobs": 3}']
)
def test_a_record_that_cannot_be_read_says_so(known: Model, text: str):
    weights.look(known, None)
    known.record_file.write_text(text)
    with pytest.raises(weights.RecordError, match="remove it"):
        weights.look(known, None)


def test_git_names_a_content_as_git_does(tmp_path: Path):
    (tmp_path / "f").write_bytes(b"hello\n")
    assert git_blob(tmp_path / "f") == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_another_revision_is_not_the_model(known: Model, tmp_path: Path):
    pinned = Model("kimi", known.path, weights.parse_source(ORIGIN), tmp_path / "state")
    assert "files of an unknown revision" in weights.look(pinned, None)[0]
    Record(origin=ORIGIN[:-1] + "f").save(pinned.record_file)
    assert ORIGIN in weights.look(pinned, None)[0]


# in its place


def test_a_model_is_put_in_its_place_and_what_it_replaces_goes(known: Model, model: Path):  # noqa: F811
    shutil.copytree(model, known.incoming)
    (model / "old").write_text("")
    record = Record(origin=ORIGIN)
    weights.place(known, record)
    assert not known.incoming.exists() and not (model / "old").exists()
    saved = Record.load(known.record_file)
    assert saved is not None and saved.origin == ORIGIN and saved.changed(model) == []


def test_half_a_model_is_never_put_in_its_place(known: Model, model: Path):  # noqa: F811
    shutil.copytree(model, known.incoming)
    (known.incoming / "b.safetensors").unlink()
    with pytest.raises(weights.ModelError, match=r"b\.safetensors: missing"):
        weights.place(known)
    assert (model / "b.safetensors").exists()


def test_a_model_that_somebody_has_open_is_not_replaced(known: Model, model: Path):  # noqa: F811
    shutil.copytree(model, known.incoming)
    script = (
        "import sys, mmap; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, prot=1); print(1, flush=True); input()"
    )
    process = subprocess.Popen([sys.executable, "-c", script, model / "a.safetensors"], stdin=-1, stdout=-1)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        with pytest.raises(weights.ModelError, match=f"processes .*{process.pid}.* have"):
            weights.place(known)
    finally:
        process.communicate()
    assert known.incoming.exists()
    weights.place(known)


# removal


def test_a_model_that_nothing_uses_is_removed(known: Model):
    weights.look(known, None)
    assert weights.remove(known, act=False) and known.path.exists()
    assert weights.remove(known, act=True)
    assert not known.path.exists() and not known.record_file.exists()
    assert not weights.remove(known, act=True)


def test_a_model_that_a_kept_generation_names_stays(known: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    manifest = tmp_path / "root" / "kimi" / "generations" / "abc" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(f'{{"files": [{{"content": "ExecStart=x --model-path {known.path} --port 1"}}]}}')
    assert uses.generations_with(known.path, tmp_path / "root") == ["kimi (generation abc)"]
    assert uses.generations_with(known.path.with_name("mode"), tmp_path / "root") == []
    assert uses.generations_with(known.path.with_name("model-2"), tmp_path / "root") == []
    monkeypatch.setattr(uses.generations_with, "__defaults__", (tmp_path / "root",))
    with pytest.raises(weights.ModelError, match="seen in use by kimi"):
        weights.remove(known, act=True)
    assert known.path.exists()


def test_what_is_no_model_is_not_removed(tmp_path: Path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis").write_text("")
    with pytest.raises(weights.ModelError, match="holds no model"):
        weights.remove(Model("x", tmp_path / "home", None, tmp_path / "state"), act=True)
    assert (tmp_path / "home" / "thesis").exists()
