# SPDX-License-Identifier: Apache-2.0
"""Generations on a real file system: identity, installation, what is proved good, the way back, and interruption."""

from __future__ import annotations

import getpass
import grp
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import generations, managed_files, toolkit
from inference.generations import PLACEHOLDER, Generation, GenerationError, Store
from inference.managed_files import Entry

ME = {"owner": getpass.getuser(), "group": grp.getgrgid(os.getgid()).gr_name}


@pytest.fixture(autouse=True)
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep /etc away; who is not root cannot give files to root, so modes alone are set then."""
    (tmp_path / "etc").mkdir()
    monkeypatch.setattr(generations, "SETTINGS_ROOT", tmp_path / "etc/inference")
    if os.getuid():
        monkeypatch.setattr(managed_files, "_own", lambda path, entry: path.chmod(entry.mode))


def generation(root: Path, text: str = "one", **more: str) -> Generation:
    files = (
        Entry(f"{root}/etc/sglang@kimi.service", content=f"{text}\n", **ME),
        Entry(f"{root}/etc/sglang@kimi.service.d/10-command.conf", content=f"id={PLACEHOLDER}\n", **ME),
        Entry(f"{root}/etc/inference/kimi/supervisor.json", content="{}", mode=0o640, **ME),
    )
    given = {"instance": "kimi", "unit": "sglang@kimi.service", "release": "sglang-1", "toolkit": "0.1-a", **more}
    return Generation(files=files, **given)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store("kimi", tmp_path / "state")


def install(store: Store, wanted: Generation) -> Generation:
    difference = store.compare(wanted)
    store.keep(wanted)
    managed_files.apply(difference.plan)
    store.installed(wanted)
    return wanted


# identity


def test_an_id_depends_on_everything_that_decides_what_runs(tmp_path: Path):
    one = generation(tmp_path)
    others = [
        generation(tmp_path, "two"),
        generation(tmp_path, release="sglang-2"),
        generation(tmp_path, toolkit="0.1-b"),
        generation(tmp_path, unit="vllm@kimi.service"),
        generation(tmp_path, instance="other"),
        replace(one, files=(replace(one.files[0], mode=0o600), *one.files[1:])),
        replace(one, files=(replace(one.files[0], owner="nobody"), *one.files[1:])),
        replace(one, files=one.files[1:]),
    ]
    assert len({one.id, *(other.id for other in others)}) == len(others) + 1
    assert all(len(g.id) == 12 and int(g.id, 16) >= 0 for g in (one, *others))


def test_an_id_does_not_depend_on_the_order_of_files(tmp_path: Path):
    one = generation(tmp_path)
    assert replace(one, files=tuple(reversed(one.files))).id == one.id


def test_the_placeholder_becomes_the_id_in_the_files_and_not_in_the_manifest(tmp_path: Path):
    one = generation(tmp_path)
    contents = [entry.content for entry in one.entries()]
    assert f"id={one.id}\n" in contents
    assert not any(PLACEHOLDER in content for content in contents)
    assert PLACEHOLDER in json.dumps(one.manifest())


@given(st.text(max_size=40), st.sampled_from([0o600, 0o644, 0o755]))
def test_a_manifest_reads_back_as_the_same_generation(text: str, mode: int):
    files = (Entry("/etc/systemd/system/x@a.service", content=text, mode=mode),)
    one = Generation("a", "x@a.service", "r", "t", files)
    again = Generation.from_manifest(json.loads(json.dumps(one.manifest())))
    assert again == one
    assert again.id == one.id


def test_folders_come_before_what_is_in_them_once_each(tmp_path: Path):
    one = generation(tmp_path)
    more = (*one.files, Entry(f"{tmp_path}/etc/inference/kimi/smoke.json", mode=0o640, **ME))
    entries = replace(one, files=more).entries()
    folders = [Path(entry.path) for entry in entries if entry.state == "directory"]
    assert folders == [
        tmp_path / "etc/sglang@kimi.service.d",
        tmp_path / "etc/inference",
        tmp_path / "etc/inference/kimi",
    ]
    assert [entry.state for entry in entries[: len(folders)]] == ["directory"] * len(folders)


# installation


def test_a_bare_host_is_planned_without_a_change(tmp_path: Path, store: Store):
    difference = store.compare(generation(tmp_path))
    assert f"{tmp_path}/etc/inference/kimi/supervisor.json" in difference.plan.paths
    assert not (tmp_path / "etc/inference").exists()
    assert difference.drift == []
    assert difference.replaced_unit is None


def test_installing_is_idempotent(tmp_path: Path, store: Store):
    one = install(store, generation(tmp_path))
    assert store.current() == one.id
    assert store.kept() == [one.id]
    assert store.compare(one).plan.paths == []
    before = (store.folder / "current.json").stat()
    install(store, one)
    assert (store.folder / "current.json").stat().st_ino == before.st_ino


def test_what_the_store_writes_is_its_owners_alone(tmp_path: Path, store: Store):
    one = install(store, generation(tmp_path))
    for file in (store.folder / "current.json", store.folder / "generations" / one.id / "manifest.json"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_files_that_the_next_generation_lacks_are_removed(tmp_path: Path, store: Store):
    one = install(store, generation(tmp_path))
    two = install(store, replace(one, files=one.files[:2], release="sglang-2"))
    assert not Path(one.files[2].path).exists()
    assert store.current() == two.id


def test_drift_names_what_was_changed_by_hand(tmp_path: Path, store: Store):
    one = install(store, generation(tmp_path))
    unit = Path(one.files[0].path)
    unit.write_text("mine\n")
    difference = store.compare(one)
    assert difference.drift == [str(unit)]
    assert difference.plan.paths == [str(unit)]


def test_a_file_of_the_operators_own_is_left_alone(tmp_path: Path, store: Store):
    one = install(store, generation(tmp_path))
    mine = Path(one.files[1].path).with_name("90-local.conf")
    mine.write_text("[Service]\n")
    assert store.compare(one).drift == []
    install(store, generation(tmp_path, "two"))
    assert mine.read_text() == "[Service]\n"


def test_another_engine_says_which_unit_it_replaces(tmp_path: Path, store: Store):
    install(store, generation(tmp_path))
    files = (Entry(f"{tmp_path}/etc/vllm@kimi.service", content="x", **ME),)
    other = Generation("kimi", "vllm@kimi.service", "vllm-1", "0.1-a", files)
    difference = store.compare(other)
    assert difference.replaced_unit == "sglang@kimi.service"
    assert f"{tmp_path}/etc/sglang@kimi.service" in difference.plan.paths


def test_a_run_that_was_killed_in_between_is_seen_as_unfinished(tmp_path: Path, store: Store):
    one = install(store, generation(tmp_path))
    two = generation(tmp_path, "two")
    difference = store.compare(two)
    store.keep(two)
    managed_files.apply(managed_files.Plan(difference.plan.changes[:1]))
    assert store.current() == one.id != two.id
    install(store, two)
    assert store.current() == two.id
    assert store.compare(two).plan.paths == []


# what was proved good, and the way back


def test_the_first_generation_has_nothing_to_go_back_to(tmp_path: Path, store: Store):
    assert store.rollback_target() is None
    one = install(store, generation(tmp_path))
    store.promote(one.id, {}, 3)
    assert store.last_known_good() == one.id
    assert store.rollback_target() is None


def test_a_failed_generation_goes_back_to_the_last_good_one(tmp_path: Path, store: Store):
    one = install(store, generation(tmp_path))
    store.promote(one.id, {}, 3)
    install(store, generation(tmp_path, "bad"))
    assert store.rollback_target() == one.id


def test_a_good_generation_goes_back_to_the_good_one_before(tmp_path: Path, store: Store):
    one = install(store, generation(tmp_path))
    store.promote(one.id, {}, 3)
    two = install(store, generation(tmp_path, "two"))
    store.promote(two.id, {}, 3)
    assert store.rollback_target() == one.id


def test_promoting_keeps_the_evidence_and_is_news_once(tmp_path: Path, store: Store):
    one = install(store, generation(tmp_path))
    assert store.promote(one.id, {"gate": "pass"}, 3) is True
    assert store.promote(one.id, {"gate": "other"}, 3) is False
    record = json.loads((store.folder / "last-known-good.json").read_text())
    assert record["evidence"] == {"gate": "pass"}
    assert record["previous"] is None


def test_a_restored_generation_is_byte_for_byte_the_old_one(tmp_path: Path, store: Store):
    one = install(store, generation(tmp_path))
    before = {entry.path: Path(entry.path).read_bytes() for entry in one.files}
    install(store, generation(tmp_path, "two"))
    install(store, store.load(one.id))
    assert {path: Path(path).read_bytes() for path in before} == before


def test_pruning_keeps_what_is_in_use_and_the_newest_others(tmp_path: Path, store: Store):
    made = []
    for number in range(6):
        made.append(install(store, generation(tmp_path, f"g{number}")))
        os.utime(store.folder / "generations" / made[-1].id / "manifest.json", (number, number))
        if number in (1, 2):
            store.promote(made[-1].id, {}, 9)
    store.promote(made[5].id, {}, keep=1)
    assert set(store.kept()) == {made[5].id, made[2].id, made[4].id}
    assert store.rollback_target() == made[2].id


def test_pruning_with_zero_keeps_what_is_in_use(tmp_path: Path, store: Store):
    one = install(store, generation(tmp_path))
    store.promote(one.id, {}, 0)
    install(store, generation(tmp_path, "unproved"))
    three = install(store, generation(tmp_path, "three"))
    store.promote(three.id, {}, 0)
    assert set(store.kept()) == {one.id, three.id}


# what cannot be read


def test_an_altered_manifest_is_refused(tmp_path: Path, store: Store):
    one = install(store, generation(tmp_path))
    file = store.folder / "generations" / one.id / "manifest.json"
    file.write_text(file.read_text().replace("one\\n", "evil\\n"))
    with pytest.raises(GenerationError, match="was altered"):
        store.load(one.id)


def test_an_unknown_generation_names_those_that_are_kept(tmp_path: Path, store: Store):
    one = install(store, generation(tmp_path))
    with pytest.raises(GenerationError, match=f"no generation 123456789012; it has {one.id}"):
        store.load("123456789012")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"id": 1}'])
def test_a_broken_manifest_is_named(tmp_path: Path, store: Store, text: str):
    one = install(store, generation(tmp_path))
    file = store.folder / "generations" / one.id / "manifest.json"
    file.write_text(text)
    with pytest.raises(GenerationError, match=str(file)):
        store.load(one.id)


@pytest.mark.parametrize("text", ["", "{", "3"])
def test_a_broken_pointer_is_named(store: Store, text: str):
    store.folder.mkdir(parents=True)
    (store.folder / "current.json").write_text(text)
    (store.folder / "last-known-good.json").write_text(text)
    for ask in (store.current, store.last_known_good, store.rollback_target):
        with pytest.raises(GenerationError, match="json: not readable"):
            ask()


# other rooms' questions


def test_releases_in_use_are_those_of_every_kept_generation(tmp_path: Path):
    root = tmp_path / "state"
    for name, release in (("kimi", "sglang-1"), ("kimi", "sglang-2"), ("other", "vllm-1")):
        Store(name, root).keep(generation(tmp_path, release=release, instance=name))
    assert generations.releases_in_use(root) == {"sglang-1", "sglang-2", "vllm-1"}
    assert generations.releases_in_use(tmp_path / "nothing") == set()


def test_a_release_may_be_in_use_by_what_cannot_be_read(tmp_path: Path):
    folder = tmp_path / "state/kimi/generations/123456789012"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(GenerationError, match="manifest"):
        generations.releases_in_use(tmp_path / "state")


@pytest.mark.parametrize(
    ("text", "expected"),
    [('{"generation": "abc"}', "abc"), ("[]", None), ("", None), ('{"generation": 3}', None), (None, None)],
)
def test_running_believes_only_what_the_supervisor_wrote(tmp_path: Path, text: str | None, expected: str | None):
    (tmp_path / "kimi").mkdir()
    if text is not None:
        (tmp_path / "kimi/state.json").write_text(text)
    assert generations.running("kimi", tmp_path) == expected


# credentials, systemd's version, the toolkit


def with_unit(root: Path, text: str) -> Generation:
    entry = Entry(f"{root}/etc/sglang@kimi.service", content=text, **ME)
    return Generation("kimi", "sglang@kimi.service", "r", "0.1.0-0123abcd", (entry,))


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(generations, "UNITS", tmp_path / "etc")
    return tmp_path


def test_credentials_are_the_files_that_the_unit_loads(units: Path):
    text = "[Service]\nLoadCredential=api-key:/etc/inference/%i/api-key\n# LoadCredential=no:/x\nExecStart=/bin/true\n"
    assert with_unit(units, text).credentials() == [Path("/etc/inference/kimi/api-key")]


def test_only_a_credential_newer_than_the_process_is_stale(units: Path):
    key = units / "key"
    made = with_unit(units, f"LoadCredential=api-key:{key}\n")
    assert generations.stale_credentials(made, 0.0) == []
    key.write_text("x")
    os.utime(key, (1000, 1000))
    assert generations.stale_credentials(made, 999.0) == [str(key)]
    assert generations.stale_credentials(made, 1001.0) == []


def test_only_units_are_fitted_to_systemd_and_the_id_follows(units: Path):
    made = with_unit(units, "[Service]\nRestartSteps=3\n")
    other = replace(made, files=(*made.files, Entry("/x/supervisor.json", content="RestartSteps=3\n", **ME)))
    old, new = other.for_systemd(252), other.for_systemd(254)
    assert new == other
    assert old.id != new.id
    assert "needs systemd 254" in old.files[0].content
    assert old.files[1].content == "RestartSteps=3\n"


def test_a_promotion_removes_toolkits_that_no_generation_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pruned: list[set[str]] = []
    monkeypatch.setattr(toolkit, "prune", pruned.append)
    monkeypatch.setattr(toolkit, "STATE", str(tmp_path / "state"))
    store = Store("kimi", tmp_path / "state")
    for text, version in (("one", "a"), ("two", "b"), ("three", "c")):
        store.promote(install(store, generation(tmp_path, text, toolkit=version)).id, {}, keep=0)
    assert pruned == [{"a"}, {"a", "b"}, {"b", "c"}]
    elsewhere = Store("other", tmp_path / "elsewhere")
    elsewhere.promote(install(elsewhere, generation(tmp_path)).id, {}, keep=0)
    assert len(pruned) == 3, "another root than the host's own says nothing of the host"


def test_installed_instances_are_those_with_a_generation(tmp_path: Path, store: Store):
    (tmp_path / "state/tuned").mkdir(parents=True)
    assert generations.installed(tmp_path / "state") == []
    install(store, generation(tmp_path))
    assert generations.installed(tmp_path / "state") == ["kimi"]
    assert store.removable() == sorted(Path(entry.path) for entry in generation(tmp_path).files)
    store.forget()
    assert generations.installed(tmp_path / "state") == []
