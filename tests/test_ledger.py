# SPDX-License-Identifier: Apache-2.0
"""The patch ledger: its entries, the states that it decides from code, and plans written whole or not at all."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import patch_trees
import pytest
from patch_trees import CHECK, FILES, ROOT, TILES, contents, entry, make, second, snapshot

from inference import ledger
from inference.ledger import LedgerError
from inference.ledger import tree as patched_tree

BOTH = [entry(), second()]


def state(tree: Path, document: dict[str, Any], **options: Any) -> ledger.PatchState:
    return ledger.plan([document], tree, [document["id"]], **options).before[0]


def changed(document: dict[str, Any], **edit: Any) -> dict[str, Any]:
    """Return the entry with keys of its first edit replaced."""
    document = copy.deepcopy(document)
    document["variants"][0]["edits"][0].update(edit)
    return document


# --- entries


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        (entry(titel="x"), "T1: unknown key 'titel'; did you mean 'title'?"),
        ({k: v for k, v in entry().items() if k != "risk"}, "T1: risk missing"),
        (entry(default="yes"), "T1: default is 'yes', expected bool"),
        (entry(source="a sentence"), "T1: source is 'a sentence'"),
        (entry(variants=[]), "it does nothing"),
        (entry(requires=["T9"]), "T1: names T9"),
        (changed(entry(), file="../sglang/tiles.py"), "not a path inside site-packages"),
        (changed(entry(), file="/sglang/tiles.py"), "not a path inside site-packages"),
        (changed(entry(), anchor="if x"), "not readable as Python"),
        (changed(entry(), at="inside"), "expected before or after"),
        (changed(entry(), insert="# é"), "not plain ASCII"),
        (entry(upstream=[{"why": "x", "when": [{"fil": "a"}]}]), "unknown key 'fil'; did you mean 'file'?"),
        (entry("T/1"), "an id is made of letters"),
        (changed(entry(), anchor="\n"), "needs an anchor and lines to insert"),
        (changed(entry(), insert=""), "needs an anchor and lines to insert"),
        (entry(variants=[{"form": "f", "edits": []}]), "T1: variants: f: no edits"),
        (entry(instead={"flags": {}}), "T1: instead: unknown key 'flags'"),
        (entry(instead={"arguments": ["a"]}), "T1: instead: arguments is ['a']"),
        (entry(upstream=["x"]), "T1: upstream: expected a mapping"),
        ("text", "an entry is a mapping"),
    ],
)
def test_a_broken_entry_is_named(document: Any, problem: str) -> None:
    with pytest.raises(LedgerError) as caught:
        ledger.load([document])
    assert problem in str(caught.value)


def test_two_entries_with_one_id() -> None:
    with pytest.raises(LedgerError, match="more than one entry"):
        ledger.load([entry(), entry()])


def test_choose() -> None:
    entries = ledger.load([second(default=False), entry()])
    assert ledger.choose(entries) == ["T1"]
    assert ledger.choose(entries, "default") == ["T1"]
    assert ledger.choose(entries, ["T2", "default"]) == ["T1", "T2"]
    assert ledger.choose(entries, []) == []
    with pytest.raises(LedgerError, match="no patch 'T12'; did you mean"):
        ledger.choose(entries, ["T12"])


def test_content_id_follows_choice_and_content_but_not_wording() -> None:
    base = ledger.content_id(BOTH, ["T1"])
    assert len(base) == 64
    assert ledger.content_id(list(reversed(BOTH)), ["T1"]) == base
    other_form = [{**entry()["variants"][0], "form": "Other"}]
    reworded = entry(title="Other words", risk="Other", variants=other_form, instead={"note": "Other"})
    assert ledger.content_id([reworded, second()], ["T1"]) == base
    assert ledger.content_id([entry(), changed(second(), insert="pass\n")], ["T1"]) == base
    others = [
        ledger.content_id(BOTH, ["T2"]),
        ledger.content_id(BOTH, ["T1", "T2"]),
        ledger.content_id(BOTH, []),
        ledger.content_id([changed(entry(), insert="pass\n"), second()], ["T1"]),
        ledger.content_id([changed(entry(), anchor="block = 128"), second()], ["T1"]),
        ledger.content_id([entry(needs=NEEDS), second()], ["T1"]),
    ]
    assert len({base, *others}) == 7
    assert ledger.content_id(ledger.load(BOTH), ["T2", "T1"]) == ledger.content_id(BOTH, "default")


# --- states


def test_applies_and_applied(tmp_path: Path) -> None:
    tree = make(tmp_path)
    assert state(tree, entry()) == ledger.PatchState("T1", "applies", "sglang/tiles.py:2")
    ledger.plan([entry()], tree).execute()
    assert state(tree, entry()) == ledger.PatchState("T1", "applied", "its lines are in sglang/tiles.py:6")


def test_the_version_decides_nothing(tmp_path: Path) -> None:
    for version in ("0.5.6", "9.9"):
        assert state(make(tmp_path / version, version=version), entry()).state == "applies"


@pytest.mark.parametrize(
    ("tiles", "problem"),
    [
        (TILES.replace("> 8", "> 9"), "`if capability[0] > 8:` is there 0 times, expected once"),
        (TILES + "\n\n" + TILES.replace("def tiles", "def other"), None),
        (TILES.replace("    return", "    if capability[0] > 8:\n        pass\n    return"), "there 2 times"),
        (TILES.replace("def tiles", "def sizes"), "tiles is defined 0 times"),
        ("def tiles(:\n", "not readable as Python"),
    ],
)
def test_conflict_says_what_was_seen(tmp_path: Path, tiles: str, problem: str | None) -> None:
    found = state(make(tmp_path, {**FILES, "sglang/tiles.py": tiles}), entry())
    assert found.state == ("conflict" if problem else "applies")
    assert (problem or "") in found.reason


def test_conflict_without_the_file(tmp_path: Path) -> None:
    found = state(make(tmp_path, {"sglang/__init__.py": ""}), entry())
    assert (found.state, "no file sglang/tiles.py" in found.reason) == ("conflict", True)


def test_conflict_at_a_last_line_without_end(tmp_path: Path) -> None:
    tree = make(tmp_path, {"sglang/tiles.py": "def tiles(capability):\n    if capability[0] > 8:\n        block = 128"})
    assert "has no end" in state(tree, entry()).reason
    assert state(tree, entry()).state == "conflict"


def test_layout_and_comments_do_not_decide(tmp_path: Path) -> None:
    tiles = TILES.replace("if capability[0] > 8:", "if (\n        capability[0]  # the major\n        > 8\n    ):")
    assert state(make(tmp_path, {**FILES, "sglang/tiles.py": tiles}), entry()).state == "applies"


def test_a_later_form_of_the_code(tmp_path: Path) -> None:
    later = {"form": "later", "edits": [dict(entry()["variants"][0]["edits"][0], file="sglang/moved.py")]}
    document = entry(variants=[*entry()["variants"], later])
    tree = make(tmp_path, {"sglang/moved.py": TILES})
    assert state(tree, document).reason == "sglang/moved.py:2"
    broken = state(make(tmp_path / "b", {"sglang/moved.py": "a = 1\n"}), document)
    assert "the only one: no file sglang/tiles.py | later: sglang/moved.py: tiles" in broken.reason


UPSTREAM = [{"why": "it has a branch", "when": [{"file": "sglang/tiles.py", "code": "capability[0] == 12"}]}]
NOT_NEEDED = [{"why": "no such file", "when": [{"file": "sglang/tiles.py", "present": False}]}]


def test_upstream_is_left_alone_even_where_the_anchor_is(tmp_path: Path) -> None:
    tiles = TILES.replace("    return", "    if capability[0] == 12:\n        block = 64\n    return")
    tree = make(tmp_path, {**FILES, "sglang/tiles.py": tiles})
    before = snapshot(tree)
    plan = ledger.plan([entry(upstream=UPSTREAM)], tree)
    plan.execute()
    assert (plan.before[0].state, plan.before[0].reason) == ("upstream", "it has a branch")
    assert snapshot(tree) == before
    assert state(make(tmp_path / "other"), entry(upstream=UPSTREAM)).state == "applies"


def test_not_needed(tmp_path: Path) -> None:
    document = entry(not_needed=NOT_NEEDED)
    assert state(make(tmp_path / "a", {"sglang/__init__.py": ""}), document).state == "not-needed"
    assert state(make(tmp_path / "b"), document).state == "applies"


def test_all_conditions_of_a_clause_have_to_hold(tmp_path: Path) -> None:
    when = [{"file": "sglang/tiles.py"}, {"file": "sglang/nothing.py"}]
    assert state(make(tmp_path), entry(upstream=[{"why": "x", "when": when}])).state == "applies"


def test_a_setting_needs_no_change(tmp_path: Path) -> None:
    document = entry(variants=[], instead={"arguments": {"backend": "b", "quiet": True}, "environment": {"A": "1"}})
    tree = make(tmp_path)
    before = snapshot(tree)
    plan = ledger.plan([document], tree)
    plan.execute()
    assert plan.before == (ledger.PatchState("T1", "not-needed", "A=1 --backend b --quiet"),)
    assert snapshot(tree) == before


def test_forbidden_is_refused_with_its_reason(tmp_path: Path) -> None:
    plan = ledger.plan([entry(variants=[], forbidden="It corrupts."), second()], make(tmp_path), ["T1", "T2"])
    assert plan.refusals == [ledger.PatchState("T1", "refused", "It corrupts.")]
    assert plan.changes == ()


NEEDS = [
    {
        "why": "the library lacks it",
        "when": [{"file": "lib/jit.py", "within": "module", "keyword": "majors", "contains": 12}],
    }
]


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        ("def module():\n    return build(majors=[9, 10])\n", "refused"),
        ("def module():\n    return build(majors=[9, 10, 12])\n", "applies"),
        ("def other():\n    return build(majors=[9, 10, 12])\n", "refused"),
        ("def module():\n    return build(majors=ALL)\n", "refused"),
        (None, "refused"),
    ],
)
def test_what_another_package_has_to_have(tmp_path: Path, library: str | None, expected: str) -> None:
    tree = make(tmp_path, FILES if library is None else {**FILES, "lib/jit.py": library})
    found = state(tree, entry(needs=NEEDS))
    assert (found.state, found.reason == "the library lacks it") == (expected, expected == "refused")


def test_acknowledgement_lifts_its_own_refusal_only(tmp_path: Path) -> None:
    document = entry(acknowledge="It may be slow.")
    tree = make(tmp_path)
    assert state(tree, document).reason == "It may be slow. Goes in only when T1 is acknowledged."
    assert state(tree, document, acknowledged=["T1"]).state == "applies"
    assert state(tree, {**document, "needs": NEEDS}, acknowledged=["T1"]).state == "refused"
    with pytest.raises(LedgerError, match="no patch 'T9'"):
        state(tree, document, acknowledged=["T9"])


def test_requires_and_forbids(tmp_path: Path) -> None:
    tree = make(tmp_path)
    needy = [entry(requires=["T2"]), second()]
    assert [s.reason for s in ledger.plan(needy, tree, ["T1"]).refusals] == ["needs T2 as well"]
    assert ledger.plan(needy, tree, ["T1", "T2"]).refusals == []
    jealous = [entry(forbids=["T2"]), second()]
    assert [s.reason for s in ledger.plan(jealous, tree, ["T1", "T2"]).refusals] == ["excludes T2"]
    ledger.plan(needy, tree, ["T2"]).execute()
    assert ledger.plan(needy, tree, ["T1"]).refusals == []
    assert [s.reason for s in ledger.plan(jealous, tree, ["T1"]).refusals] == ["excludes T2"]


def test_the_reason_names_a_file_that_is_not_as_published(tmp_path: Path) -> None:
    tree = make(tmp_path, version="1.0", record=True)
    assert "not as in its wheel" not in state(tree, entry()).reason
    ledger.plan([entry()], tree).execute()
    assert "not as in its wheel" not in state(tree, entry()).reason
    with (tree / "sglang/tiles.py").open("a") as file:
        file.write("extra = 1\n")
    found = state(tree, entry())
    assert found.state == "applied"
    assert found.reason.endswith("not as in its wheel apart from marked lines: sglang/tiles.py")


@pytest.mark.parametrize(
    ("version", "warned"), [("0.5.23", False), ("0.5.9", False), ("0.5.24", True), ("0.6.0", True)]
)
def test_the_reason_names_a_release_newer_than_the_measured(tmp_path: Path, version: str, warned: bool) -> None:
    found = state(make(tmp_path, version=version), entry(releases=["0.5.6", "0.5.23"]))
    assert ("newer than 0.5.23" in found.reason) is warned
    assert found.state == "applies"


def test_a_folder_without_sglang(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no sglang package"):
        ledger.plan([entry()], tmp_path)


# --- plans


def test_apply_and_revert_are_exact_inverses(tmp_path: Path) -> None:
    tree = make(tmp_path)
    before = contents(tree)
    plan = ledger.plan(BOTH, tree)
    plan.execute()
    assert [s.state for s in plan.after] == ["applied", "applied"]
    assert [c.file for c in plan.changes] == ["sglang/check.py", "sglang/tiles.py"]
    assert contents(tree) != before
    ledger.plan(BOTH, tree, revert=True).execute()
    assert contents(tree) == before


def test_patches_come_out_in_any_order(tmp_path: Path) -> None:
    other = changed(
        second("T2"), file="sglang/tiles.py", within="tiles", anchor="if capability[0] > 8: ...", at="after"
    )
    pair = [entry(), other]
    tree = make(tmp_path)
    before = contents(tree)
    for first in ("T1", "T2"):
        ledger.plan(pair, tree).execute()
        ledger.plan(pair, tree, [first], revert=True).execute()
        remaining = ledger.plan(pair, tree, []).before
        assert {s.id: s.state for s in remaining}[first] == "applies"
        assert sorted(s.state for s in remaining) == ["applied", "applies"]
        ledger.plan(pair, tree, revert=True).execute()
        assert contents(tree) == before


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    tree = make(tmp_path)
    ledger.plan(BOTH, tree).execute()
    before = snapshot(tree)
    again = ledger.plan(BOTH, tree)
    again.execute()
    assert again.changes == ()
    assert snapshot(tree) == before
    ledger.plan(BOTH, tree, revert=True).execute()
    assert ledger.plan(BOTH, tree, revert=True).changes == ()


@pytest.mark.parametrize("revert", [False, True])
def test_one_conflict_stops_everything(tmp_path: Path, revert: bool) -> None:
    tree = make(tmp_path)
    if revert:
        ledger.plan(BOTH, tree).execute()
    text = (tree / "sglang/check.py").read_text()
    (tree / "sglang/check.py").write_text(text.replace("is_old()", "is_odd()") if revert else "a = 1\n")
    before = snapshot(tree)
    plan = ledger.plan(BOTH, tree, revert=revert)
    assert [s.id for s in plan.refusals] == ["T2"]
    assert (plan.changes, plan.diff()) == ((), "")
    with pytest.raises(LedgerError, match="T2 is conflict"):
        plan.execute()
    assert snapshot(tree) == before
    ledger.plan(BOTH, tree, ["T1"], revert=revert).execute()


def test_reverting_what_is_not_in_needs_no_permission(tmp_path: Path) -> None:
    documents = [entry(acknowledge="Slow."), second(needs=NEEDS), entry("T3", variants=[], forbidden="No.")]
    tree = make(tmp_path)
    plan = ledger.plan(documents, tree, revert=True)
    assert [s.state for s in plan.before] == ["not-needed"] * 3
    ledger.plan([entry()], tree).execute()
    (revert := ledger.plan(documents, tree, revert=True)).execute()
    assert revert.before[0].state == "applied"
    assert contents(tree) == contents(make(tmp_path / "fresh"))


def test_a_result_that_does_not_compile_is_refused(tmp_path: Path) -> None:
    tree = make(tmp_path)
    before = snapshot(tree)
    for insert in ("elif capability[0] == 12:\n    block = 64\n", "return = 1\n", "    break\n"):
        with pytest.raises(LedgerError, match="would not compile"):
            ledger.plan([changed(entry(), insert=insert), second()], tree)
    assert snapshot(tree) == before


def test_files_are_replaced_and_never_written_through(tmp_path: Path) -> None:
    cache = make(tmp_path / "cache")
    tree = make(tmp_path / "tree", {"sglang/check.py": CHECK})
    (tree / "sglang/tiles.py").hardlink_to(cache / "sglang/tiles.py")
    (cache / "sglang/tiles.py").chmod(0o640)
    before = snapshot(cache)
    ledger.plan([entry()], tree).execute()
    assert snapshot(cache) == before
    assert (tree / "sglang/tiles.py").stat().st_mode & 0o7777 == 0o640
    assert b"patch T1/1" in (tree / "sglang/tiles.py").read_bytes()


def test_a_symbolic_link_is_replaced_by_a_file(tmp_path: Path) -> None:
    cache = make(tmp_path / "cache")
    tree = make(tmp_path / "tree", {"sglang/check.py": CHECK})
    (tree / "sglang/tiles.py").symlink_to(cache / "sglang/tiles.py")
    before = snapshot(cache)
    ledger.plan([entry()], tree).execute()
    assert snapshot(cache) == before
    assert not (tree / "sglang/tiles.py").is_symlink()


def test_stale_bytecode_goes_and_other_bytecode_stays(tmp_path: Path) -> None:
    tree = make(tmp_path)
    cache = tree / "sglang/__pycache__"
    cache.mkdir()
    stale = [cache / f"tiles.cpython-{tag}.pyc" for tag in ("311", "312.opt-1")]
    kept = [cache / "tiles_of.cpython-312.pyc", cache / "check.cpython-312.pyc"]
    for path in (*stale, *kept):
        path.write_bytes(b"old")
    ledger.plan([entry()], tree).execute()
    assert sorted(cache.iterdir()) == sorted(kept)


def test_the_patched_code_does_what_it_says(tmp_path: Path) -> None:
    tree = make(tmp_path)
    ask = "from sglang.tiles import tiles; print([tiles((m, 0)) for m in (8, 9, 10, 12)])"

    def answer() -> str:
        return subprocess.run([sys.executable, "-c", ask], cwd=tree, capture_output=True, text=True, check=True).stdout

    assert answer() == "[64, 128, 128, 128]\n"
    ledger.plan([entry()], tree).execute()
    assert answer() == "[64, 128, 128, 64]\n"
    ledger.plan([entry()], tree, revert=True).execute()
    assert answer() == "[64, 128, 128, 128]\n"


class Killed(BaseException):
    """Stands for SIGKILL: nothing handles it."""


@pytest.mark.parametrize("step", ["_stage", "_commit"])
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("revert", [False, True])
def test_a_killed_run_is_healed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int, revert: bool
) -> None:
    tree = make(tmp_path)
    fresh = contents(tree)
    if revert:
        ledger.plan(BOTH, tree).execute()
    done, real = [], getattr(patched_tree, step)

    def dies(path: Path, *rest: Any) -> None:
        done.append(path)
        if len(done) == number:
            if step == "_stage":
                patched_tree._temporary(path).write_text("half")
            raise Killed
        real(path, *rest)

    monkeypatch.setattr(patched_tree, step, dies)
    with pytest.raises(Killed):
        ledger.plan(BOTH, tree, revert=revert).execute()
    monkeypatch.undo()
    ledger.plan(BOTH, tree, revert=revert).execute()
    assert [s.state for s in ledger.plan(BOTH, tree).before] == (["applies"] * 2 if revert else ["applied"] * 2)
    assert set(contents(tree)) == set(fresh)
    ledger.plan(BOTH, tree, revert=True).execute()
    assert contents(tree) == fresh


def test_the_next_run_removes_a_leftover_even_where_it_changes_nothing(tmp_path: Path) -> None:
    tree = make(tmp_path)
    fresh = contents(tree)
    (tree / "sglang/.tiles.py.patching").write_text("half")
    ledger.plan(BOTH, tree, []).execute()
    assert contents(tree) == fresh


@pytest.mark.parametrize("order", [1, -1])
def test_two_edits_of_one_file(tmp_path: Path, order: int) -> None:
    below = {**entry()["variants"][0]["edits"][0], "anchor": "return block", "at": "before", "insert": "block += 1\n"}
    edits = [entry()["variants"][0]["edits"][0], below][::order]
    document = entry(variants=[{"form": "both", "edits": edits}])
    tree = make(tmp_path)
    fresh = contents(tree)
    ledger.plan([document], tree).execute()
    lines = (tree / "sglang/tiles.py").read_text().splitlines()
    assert lines.index("        block = 64", 6) < lines.index("    block += 1") < lines.index("    return block")
    assert state(tree, document).state == "applied"
    ledger.plan([document], tree, revert=True).execute()
    assert contents(tree) == fresh


def test_a_patch_of_two_files_that_is_half_in(tmp_path: Path) -> None:
    edits = [entry()["variants"][0]["edits"][0], second()["variants"][0]["edits"][0]]
    document = entry(variants=[{"form": "both", "edits": edits}], acknowledge="Slow.")
    tree = make(tmp_path)
    fresh = contents(tree)
    ledger.plan([document], tree, acknowledged=["T1"]).execute()
    (tree / "sglang/check.py").write_text(CHECK)
    found = state(tree, document, acknowledged=["T1"])
    assert (found.state, found.reason.startswith("1 of 2 edits are in")) == ("applies", True)
    ledger.plan([document], tree, revert=True).execute()
    assert contents(tree) == fresh


def test_a_failed_write_puts_everything_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = make(tmp_path)
    before = contents(tree)
    real = patched_tree._commit

    def fails_at_the_second(path: Path) -> None:
        if path.name == "tiles.py":
            raise OSError(28, "No space left on device", str(path))
        real(path)

    monkeypatch.setattr(patched_tree, "_commit", fails_at_the_second)
    with pytest.raises(LedgerError, match=r"tiles\.py: No space left on device; every file is as it was before"):
        ledger.plan(BOTH, tree).execute()
    assert contents(tree) == before


def test_a_file_that_changed_after_the_plan_is_not_overwritten(tmp_path: Path) -> None:
    tree = make(tmp_path)
    plan = ledger.plan(BOTH, tree)
    (tree / "sglang/tiles.py").write_text(TILES + "late = 1\n")
    before = contents(tree)
    with pytest.raises(LedgerError, match="changed while the plan was made"):
        plan.execute()
    assert contents(tree) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_owner_is_kept(tmp_path: Path) -> None:
    tree = make(tmp_path)
    os.chown(tree / "sglang/tiles.py", 1234, 2345)
    ledger.plan([entry()], tree).execute()
    status = (tree / "sglang/tiles.py").stat()
    assert (status.st_uid, status.st_gid) == (1234, 2345)


def test_the_diff_is_a_unified_diff(tmp_path: Path) -> None:
    tree = make(tmp_path / "tree")
    diff = ledger.plan(BOTH, tree).diff()
    target = make(tmp_path / "target")
    subprocess.run(["patch", "-p1", "--silent"], cwd=target, input=diff, text=True, check=True)
    ledger.plan(BOTH, tree).execute()
    assert contents(target) == contents(tree)


# --- the ledger of this project


def test_every_entry_of_the_project_loads_and_is_plain_json() -> None:
    documents = patch_trees.real()
    assert json.loads(json.dumps(documents)) == documents
    entries = ledger.load(documents)
    assert [e.id for e in entries if e.default] == ["P02", "P03", "P04", "P08"]
    assert [e.id for e in entries if e.forbidden] == ["P15", "P16"]
    assert [e.id for e in entries if e.acknowledge] == ["P07"]


def test_each_file_of_the_ledger_is_named_by_its_id() -> None:
    assert sorted(p.stem for p in patch_trees.LEDGER.glob("*")) == sorted(d["id"] for d in patch_trees.real())


FUSION = {
    "sglang/__init__.py": "",
    "sglang/srt/layers/layer_boundary/residual/add_norm.py": (
        "_is_sm100_supported = _is_cuda and get_platform().is_sm100\n"
    ),
    "sglang/srt/layers/flashinfer_comm_fusion.py": (
        "def _resolve_backend(backend, is_multi_node=False):\n"
        "    if not (get_platform().is_sm90 or get_platform().is_sm100):\n"
        "        raise ValueError\n"
        "    return backend\n"
    ),
}


@pytest.mark.parametrize(
    ("majors", "acknowledged", "expected"),
    [
        ("[9, 10]", [], "refused"),
        ("[9, 10]", ["P07"], "refused"),
        ("[9, 10, 12]", [], "refused"),
        ("[9, 10, 12]", ["P07"], "applies"),
    ],
)
def test_fusion_needs_a_kernel_and_an_acknowledgement(
    tmp_path: Path, majors: str, acknowledged: list[str], expected: str
) -> None:
    library = f"def gen_trtllm_comm_module():\n    return flags(supported_major_versions={majors})\n"
    tree = make(tmp_path, {**FUSION, "flashinfer/jit/comm.py": library})
    plan = ledger.plan(patch_trees.real(), tree, ["P07"], acknowledged=acknowledged)
    found = {s.id: s for s in plan.before}["P07"]
    assert found.state == expected
    assert ("FlashInfer 0.6.17" in found.reason) is (majors == "[9, 10]")


def test_the_guide_describes_every_patch() -> None:
    page = (ROOT / "docs" / "patches.md").read_text(encoding="utf-8")
    for document in patch_trees.real():
        assert f"| {document['id']} |" in page
