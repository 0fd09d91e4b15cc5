# SPDX-License-Identifier: Apache-2.0
"""scripts/patches as a person calls it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import patch_trees
import pytest
from patch_trees import ROOT, as_json, contents, entry, make, second, snapshot

PROGRAM = ROOT / "scripts" / "patches"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make(tmp_path / "site-packages", version="1.0")


@pytest.fixture
def book(tmp_path: Path) -> Path:
    documents = [entry(), second(default=False), entry("T3", variants=[], forbidden="It corrupts.", default=False)]
    return as_json(tmp_path / "ledger.json", documents)


def call(*arguments: Any, program: Path = PROGRAM) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, program, *map(str, arguments)], capture_output=True, text=True, check=False)


def asked(*arguments: Any, code: int = 0) -> dict[str, Any]:
    done = call(*arguments, "--json")
    assert done.returncode == code, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert document["ok"] is (code in (0, 1))
    assert isinstance(document["not_checked"], list)
    return document


def states(document: dict[str, Any]) -> dict[str, str]:
    return {patch["id"]: patch["state"] for patch in document["patches"]}


def test_list_needs_no_tree() -> None:
    document = asked("list")
    assert [p["id"] for p in document["patches"]] == sorted(d["id"] for d in patch_trees.real())
    assert {p["state"] for p in document["patches"]} == {None}
    text = call("list").stdout
    assert "instead: --attention-backend flashinfer" in text
    assert "P15  forbidden" in text


def test_status_shows_all_and_judges_the_selected(tree: Path, book: Path) -> None:
    before = snapshot(tree)
    common = ("status", "--ledger", book, "--site-packages", tree)
    document = asked(*common)
    assert states(document) == {"T1": "applies", "T2": "applies", "T3": "refused"}
    assert [p["id"] for p in document["patches"] if p["selected"]] == ["T1"]
    refused = asked(*common, "--patch", "T1", "--patch", "T3", code=2)
    assert [f["level"] for f in refused["findings"]] == ["critical"]
    assert refused["findings"][0]["seen"] == "It corrupts."
    (tree / "sglang/check.py").write_text("a = 1\n")
    asked(*common)
    asked(*common, "--patch", "T2", code=2)
    (tree / "sglang/check.py").write_bytes(before["sglang/check.py"][0])
    assert contents(tree) == {name: content for name, (content, _, _) in before.items()}


def test_apply_check_and_revert(tree: Path, book: Path) -> None:
    before = contents(tree)
    common = ("--ledger", book, "--site-packages", tree, "--patch", "T1", "--patch", "T2")
    rehearsal = asked("apply", *common, "--check", "--diff")
    assert (states(rehearsal)["T1"], contents(tree)) == ("applies", before)
    assert rehearsal["changed"] == ["sglang/check.py", "sglang/tiles.py"]
    assert "+++ b/sglang/tiles.py" in rehearsal["diff"]
    document = asked("apply", *common)
    assert states(document) == {"T1": "applied", "T2": "applied", "T3": "refused"}
    assert asked("apply", *common)["changed"] == []
    assert states(asked("revert", "--ledger", book, "--site-packages", tree, "--patch", "T1"))["T2"] == "applied"
    assert asked("revert", "--ledger", book, "--site-packages", tree)["changed"] == ["sglang/check.py"]
    assert contents(tree) == before


def test_the_text_names_state_reason_and_diff(tree: Path, book: Path) -> None:
    done = call("apply", "--ledger", book, "--site-packages", tree, "--diff")
    assert done.returncode == 0
    assert "+    if capability[0] == 12:" in done.stdout
    assert "* T1  applied     Smaller tiles" in done.stdout
    assert "sglang/tiles.py:6" in done.stdout


@pytest.mark.parametrize("patches", [["T1", "T3"], ["T1", "T2"]])
def test_a_refusal_changes_nothing(tree: Path, book: Path, patches: list[str]) -> None:
    (tree / "sglang/check.py").write_text("a = 1\n")
    before = snapshot(tree)
    options = [word for patch in patches for word in ("--patch", patch)]
    document = asked("apply", "--ledger", book, "--site-packages", tree, *options, code=2)
    assert document["changed"] == []
    assert snapshot(tree) == before


def test_an_acknowledged_patch(tree: Path, tmp_path: Path) -> None:
    book = as_json(tmp_path / "slow.json", [entry(acknowledge="Slow.")])
    common = ("apply", "--ledger", book, "--site-packages", tree)
    asked(*common, code=2)
    assert states(asked(*common, "--acknowledge", "T1")) == {"T1": "applied"}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["status", "--site-packages", "TREE", "--patch", "T12"], "no patch 'T12'; did you mean"),
        (["apply", "--site-packages", "TREE", "--patch", "T12"], "no patch 'T12'"),
        (["status", "--site-packages", "TREE/nowhere"], "nowhere: no sglang package"),
        (["status"], "--site-packages"),
        (["status", "--site-packages", "TREE", "--acknowledge", "X9"], "no patch 'X9'"),
        (["list", "--patch", "X9"], "no patch 'X9'"),
        (["aply", "--site-packages", "TREE"], "did you mean 'apply'?"),
    ],
)
def test_a_call_that_can_not_be_understood(tree: Path, book: Path, arguments: list[str], problem: str) -> None:
    before = snapshot(tree)
    done = call(*(word.replace("TREE", str(tree)) for word in arguments), "--ledger", book)
    assert done.returncode == 3
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count(str(tree)) <= 1, "the path is named twice"
    assert snapshot(tree) == before


@pytest.mark.parametrize(
    ("text", "problem"), [("[{", "JSON"), ('[{"id": "T1"}]', "T1: name, title"), ("[1]", "a mapping")]
)
def test_a_ledger_that_can_not_be_read(tree: Path, tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    done = call("status", "--ledger", tmp_path / "bad.json", "--site-packages", tree)
    assert (done.returncode, problem in done.stderr, "bad.json" in done.stderr) == (3, True, True)


def test_copied_beside_the_domain_it_finds_its_ledger_and_needs_no_yaml(tree: Path, tmp_path: Path) -> None:
    host = tmp_path / "host"
    (host / "scripts").mkdir(parents=True)
    shutil.copy(PROGRAM, host / "scripts")
    domain = "plugins/module_utils/inference"
    shutil.copytree(ROOT / domain, host / domain, ignore=shutil.ignore_patterns("__pycache__"))
    missing = call("list", program=host / "scripts/patches")
    assert (missing.returncode, "name a folder or a JSON file" in missing.stderr) == (3, True)
    exported = call("export")
    (host / "ledger.json").write_text(exported.stdout)
    (host / domain / "yaml.py").write_text("raise ImportError\n")
    bare = [
        sys.executable,
        "-S",
        host / "scripts/patches",
        "status",
        "--site-packages",
        tree,
        "--json",
        "--patch",
        "P15",
    ]
    done = subprocess.run(bare, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert states(json.loads(done.stdout))["P15"] == "refused"


def wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    path = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in files.items():
            archive.writestr(member, text)
    return path


def releases(folder: Path) -> list[Path]:
    """Make hand-made wheels of two releases: the second has the change of T1 and another torch."""
    metadata = "Name: sglang\nRequires-Dist: torch=={}\nRequires-Dist: flashinfer_python[cu13]==1.1\n"
    old = {**patch_trees.FILES, "sglang-0.9.dist-info/METADATA": metadata.format("2.1")}
    new = {**patch_trees.FILES, "sglang-0.10.post1.dist-info/METADATA": metadata.format("2.2")}
    new["sglang/tiles.py"] = patch_trees.TILES.replace(
        "    return", "    if capability[0] == 12:\n        pass\n    return"
    )
    wheel(folder, "flashinfer_python-1.1", {"lib/jit.py": "def module():\n    return build(majors=[12])\n"})
    return [wheel(folder, "sglang-0.9", old), wheel(folder, "sglang-0.10.post1", new)]


@pytest.fixture
def era_book(tmp_path: Path) -> Path:
    when = [{"file": "sglang/tiles.py", "code": "capability[0] == 12"}]
    needs = [
        {
            "why": "the library lacks it",
            "when": [{"file": "lib/jit.py", "within": "module", "keyword": "majors", "contains": 12}],
        }
    ]
    return as_json(tmp_path / "era.json", [entry(upstream=[{"why": "it has it", "when": when}]), second(needs=needs)])


def test_table_of_a_folder_of_wheels(tmp_path: Path, era_book: Path) -> None:
    releases(tmp_path)
    rows = [
        "| SGLang | FlashInfer | T1 | T2 |",
        "| --- | --- | --- | --- |",
        "| 0.9 | 1.1 | applies | applies |",
        "| 0.10.post1 | 1.1 | upstream | applies |",
    ]
    common = ("table", "--ledger", era_book, "--wheels", tmp_path)
    assert call(*common).stdout.splitlines() == rows
    page = tmp_path / "page.md"
    states = "<!-- begin: measured states -->\nold\n<!-- end: measured states -->\nafter\n"
    page.write_text("# A\n<!-- begin: patches --><!-- end: patches -->\n" + states)
    assert call(*common, "--write", page).returncode == 0
    text = page.read_text()
    assert all(row in text for row in rows)
    assert "| T1 | Smaller tiles | default | none | None. |" in text
    assert ("old" in text, text.startswith("# A\n"), text.endswith("after\n")) == (False, True, True)
    page.write_text("# A\n")
    done = call(*common, "--write", page)
    assert (done.returncode, "page.md" in done.stderr, page.read_text()) == (3, True, "# A\n")
    (tmp_path / "flashinfer_python-1.1-py3-none-any.whl").unlink()
    assert "| 0.9 | 1.1 (no wheel) | applies | refused |" in call(*common).stdout


def test_table_of_a_folder_without_wheels(tmp_path: Path) -> None:
    done = call("table", "--wheels", tmp_path)
    assert (done.returncode, "no sglang-*.whl" in done.stderr) == (3, True)


def test_preview_of_a_move(tmp_path: Path, era_book: Path) -> None:
    old, new = releases(tmp_path)
    common = ("preview", "--ledger", era_book, "--site-packages", old, "--to", new)
    document = asked(*common)
    moves = {p["id"]: (p["now"], p["state"]) for p in document["patches"]}
    assert moves == {"T1": ("applies", "upstream"), "T2": ("applies", "applies")}
    assert [(f["id"], f["level"]) for f in document["findings"]] == [("patch-T1", "info")]
    assert document["pins"] == [{"package": "torch", "now": "2.1", "then": "2.2"}]
    (tmp_path / "flashinfer_python-1.1-py3-none-any.whl").unlink()
    blocked = asked(*common, "--patch", "T2", code=2)
    assert [(f["id"], f["level"]) for f in blocked["findings"]] == [("patch-T2", "critical")]
    assert "torch: 2.1 -> 2.2" in call(*common).stdout


def test_preview_says_what_becomes_of_an_inventorys_options(tmp_path: Path, book: Path) -> None:
    old, new, unknown = (make(tmp_path / version, version=version) for version in ("0.5.9", "0.5.23", "1.0"))
    given = {"cuda-graph-max-bs": 8, "enable-double-sparsity": True}
    (tmp_path / "host.json").write_text(json.dumps({"service_instances": [{"name": "kimi", "arguments": given}]}))
    common = ("preview", "--ledger", book, "--site-packages", old, "--inventory", tmp_path / "host.json")
    document = asked(*common, "--to", new, code=2)
    rows = {row["option"]: row["state"] for row in document["options"]["kimi"]}
    assert (rows["cuda-graph-max-bs"], rows["enable-double-sparsity"]) == ("renamed", "gone")
    assert {"argument-removed", "argument-renamed"} <= {finding["id"] for finding in document["findings"]}
    assert "renamed    cuda-graph-max-bs" in call(*common, "--to", new).stdout
    done = call(*common, "--to", unknown)
    assert (done.returncode, "no options are known of sglang 1.0" in done.stderr) == (3, True)
    assert asked("preview", "--ledger", book, "--site-packages", old, "--to", unknown)["options"] == {}


def test_preview_of_something_that_is_no_wheel(tmp_path: Path, tree: Path) -> None:
    (tmp_path / "sglang-1-py3-none-any.whl").write_text("x")
    for name in ("sglang-1-py3-none-any.whl", "sglang-2-py3-none-any.whl"):
        done = call("preview", "--site-packages", tree, "--to", tmp_path / name)
        assert (done.returncode, "not a wheel of sglang" in done.stderr) == (3, True)
        assert done.stderr.count(str(tmp_path / name)) == 1
