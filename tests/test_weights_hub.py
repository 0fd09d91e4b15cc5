# SPDX-License-Identifier: Apache-2.0
"""Weights from a hub, against a stand-in server on a real socket, and its faults.

That the stand-in speaks as a hub does is shown by the hub's own client, which fetches the same from it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hub_server import COMMIT, NAME, HubServer, tiny_repository
from test_weights import model, shard  # noqa: F401 - a fixture

from inference import fetching, weights
from inference.weights import hub as hub_module
from inference.weights.hub import Hub, HubError, HubPausedError, download, listed

TOKEN = "hf_SecretSecretSecretSecretSecret1234"


@pytest.fixture
def server(model: Path) -> Iterator[HubServer]:  # noqa: F811
    shard(model / "a.safetensors", data=3_000_000)
    made = HubServer(tiny_repository(model))
    yield made
    made.close()


def client(server: HubServer, **more: object) -> Hub:
    return replace(Hub(endpoint=server.url, pause=0.05), **more)  # type: ignore[arg-type]


def fetch(server: HubServer, folder: Path, **more: object) -> weights.Record:
    return download(client(server, **more), NAME, COMMIT, folder)


def test_a_commit_is_fetched_whole_and_known_by_the_hubs_own_hashes(server: HubServer, tmp_path: Path):
    record = fetch(server, tmp_path / "new")
    assert weights.problems(tmp_path / "new") == []
    assert record.origin == f"hf:{NAME}@{COMMIT}" and "a.safetensors" in record.sums and "config.json" in record.blobs
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert "pytorch_model.bin" not in names and ".gitattributes" not in names and ".cache" not in names
    assert record.verify(tmp_path / "new", full=True) == []


def test_a_flipped_bit_is_found_by_the_hubs_hash(server: HubServer, tmp_path: Path):
    record = fetch(server, tmp_path / "new")
    raw = bytearray((tmp_path / "new" / "a.safetensors").read_bytes())
    raw[-1] ^= 1
    (tmp_path / "new" / "a.safetensors").write_bytes(raw)
    assert "its content is another" in record.verify(tmp_path / "new")[0]


def test_the_hubs_own_client_fetches_the_same(server: HubServer, tmp_path: Path):
    fetch(server, tmp_path / "ours")
    pattern = {"ignore_patterns": [*hub_module.IGNORE, ".*"]}
    script = (
        "import json, sys; from huggingface_hub import snapshot_download; "
        f"snapshot_download({NAME!r}, revision={COMMIT!r}, local_dir=sys.argv[1], "
        f"endpoint={server.url!r}, **{pattern!r})"
    )
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "theirs")], check=True, env=environment, timeout=120)
    shutil.rmtree(tmp_path / "theirs" / ".cache")
    ours, theirs = (
        {
            path.relative_to(tmp_path / name): path.read_bytes()
            for path in (tmp_path / name).rglob("*")
            if path.is_file() and path.name != ".origin"
        }
        for name in ("ours", "theirs")
    )
    assert {path.name: raw for path, raw in ours.items()} == {path.name: raw for path, raw in theirs.items()}


def test_a_cut_connection_goes_on_where_it_stopped(server: HubServer, tmp_path: Path):
    server.cut_after = 2_500_000
    server.faults["cut"] = 1
    fetch(server, tmp_path / "new", jobs=1)
    assert server.sent["a.safetensors"] == len(server.files["a.safetensors"])


def test_a_stopped_download_goes_on_in_the_next_run(server: HubServer, tmp_path: Path):
    server.cut_after = 500_000
    server.faults["cut"] = 100
    with pytest.raises(HubError, match="goes on where it stopped"):
        fetch(server, tmp_path / "new", jobs=1)
    sent = server.sent["a.safetensors"]
    halves = (tmp_path / "new" / "a.safetensors.part").stat().st_size
    assert halves == sent == fetching.ATTEMPTS * server.cut_after and not (tmp_path / "new" / "a.safetensors").exists()
    server.faults.clear()
    fetch(server, tmp_path / "new", jobs=1)
    assert server.sent["a.safetensors"] == len(server.files["a.safetensors"])


def test_a_download_stops_after_its_patience_and_says_how_far_it_is(server: HubServer, tmp_path: Path):
    whole = sum(len(raw) for name, raw in server.files.items() if name not in ("pytorch_model.bin", ".gitattributes"))
    with pytest.raises(HubPausedError) as paused:
        fetch(server, tmp_path / "new", patience=0.0)
    assert (paused.value.there, paused.value.whole) == (0, whole)
    (tmp_path / "new" / "a.safetensors.part").write_bytes(server.files["a.safetensors"][:1000])
    with pytest.raises(HubPausedError) as paused:
        fetch(server, tmp_path / "new", patience=0.0)
    assert paused.value.there == 1000
    fetch(server, tmp_path / "new")
    assert weights.problems(tmp_path / "new") == []


def test_what_was_begun_for_another_commit_does_not_count(server: HubServer, tmp_path: Path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "b.safetensors").write_bytes(bytes(len(server.files["b.safetensors"])))
    fetch(server, tmp_path / "new")
    assert (tmp_path / "new" / "b.safetensors").read_bytes() == server.files["b.safetensors"]


@pytest.mark.parametrize("fault", ["429", "500"])
def test_what_passes_is_waited_for(server: HubServer, tmp_path: Path, fault: str):
    server.faults[fault] = 2
    fetch(server, tmp_path / "new")
    assert weights.problems(tmp_path / "new") == []


def test_content_that_is_not_the_hubs_is_refused(server: HubServer, tmp_path: Path):
    server.faults["wrong content"] = 100
    with pytest.raises(HubError, match=r"a\.safetensors: what came has the hash"):
        fetch(server, tmp_path / "new")


def test_a_private_repository_needs_the_token_which_is_never_shown(model: Path, tmp_path: Path):  # noqa: F811
    server = HubServer(tiny_repository(model), token=TOKEN)
    try:
        with pytest.raises(HubError, match="model_hub_token"):
            fetch(server, tmp_path / "new")
        with pytest.raises(HubError) as wrong:
            fetch(server, tmp_path / "new", token=f"{TOKEN}x")
        assert TOKEN not in str(wrong.value)
        fetch(server, tmp_path / "new", token=TOKEN)
        assert weights.problems(tmp_path / "new") == []
    finally:
        server.close()


def test_terms_that_were_not_accepted(server: HubServer, tmp_path: Path):
    server.faults["403"] = 100
    with pytest.raises(HubError, match="accept its terms"):
        fetch(server, tmp_path / "new")


@pytest.mark.parametrize(
    ("name", "revision", "said"),
    [("someone/else", COMMIT, "correct the name"), (NAME, "f" * 40, "the name or the commit")],
)
def test_what_the_hub_does_not_have(server: HubServer, tmp_path: Path, name: str, revision: str, said: str):
    with pytest.raises(HubError, match=said):
        download(client(server), name, revision, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_nobody_answers():
    with pytest.raises(HubError, match="model_hub_endpoint"):
        listed(Hub(endpoint="http://127.0.0.1:9", pause=0.01), NAME, COMMIT)


@pytest.mark.parametrize("answer", [{"siblings": [{"rfilename": "../x", "size": 1}]}, {"siblings": 3}, [1], {}])
def test_an_answer_that_is_none(server: HubServer, answer: object):
    server.answer = answer
    with pytest.raises(HubError, match=r"not a hub's list of files|paths inside the repository"):
        listed(client(server), NAME, COMMIT)


def test_a_disk_that_is_too_small_is_seen_before_anything_is_fetched(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(hub_module.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 10**6))
    with pytest.raises(HubError, match=r"seen 0\.0 GB free"):
        fetch(server, tmp_path / "new")
    assert not (tmp_path / "new").exists() and not server.sent


def test_a_folder_that_somebody_else_laid_there_is_not_filled(server: HubServer, tmp_path: Path):
    other, trap = tmp_path / "other", tmp_path / "trap"
    other.mkdir()
    trap.symlink_to(other)
    with pytest.raises(HubError, match="which is a link or another account's"):
        fetch(server, trap)
    if os.getuid() == 0:
        os.chown(other, 12345, 12345)
        with pytest.raises(HubError, match="which is a link or another account's"):
            fetch(server, other)
    assert not list(other.iterdir()) and not server.sent


def test_a_repository_without_weights(server: HubServer, tmp_path: Path):
    server.files = {"README.md": b"#", "model.bin": b"x" * 2000}
    with pytest.raises(HubError, match=r"no \*\.safetensors"):
        fetch(server, tmp_path / "new")


# what keeps it from its place


def model_from(server: HubServer, folder: Path) -> weights.Model:
    return weights.Model("kimi", folder / "kimi", weights.parse_source(f"hf:{NAME}@{COMMIT}"), folder / "state")


def test_what_waits_beside_its_place_is_not_fetched_again(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    known = model_from(server, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("inference.weights.uses.processes_with", lambda _: [4711])
        with pytest.raises(weights.ModelError, match="What was brought waits in"):
            weights.fetch(known, client(server))
    sent = dict(server.sent)
    weights.fetch(known, client(server))
    assert server.sent == sent
    assert weights.look(known, None, full=True) == []
    assert not (known.path / ".origin").exists() and not known.incoming.exists()


@pytest.mark.parametrize("step", ["verify", "save"])
def test_a_run_killed_once_it_is_in_its_place_fetches_nothing_again(
    server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
):
    known = model_from(server, tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(weights.Record, step, killed)
        with pytest.raises(KeyboardInterrupt):
            weights.fetch(known, client(server))
    assert known.path.is_dir() and weights.look(known, None)
    sent = dict(server.sent)
    weights.fetch(known, client(server))
    assert server.sent == sent
    assert weights.look(known, None, full=True) == []
