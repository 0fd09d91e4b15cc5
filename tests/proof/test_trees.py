# SPDX-License-Identifier: Apache-2.0
"""Every release in the folder of wheels: all patches that apply go in, compile, and come out byte for byte.

Opt-in: it needs ``--wheels DIR`` alone.
"""

from __future__ import annotations

import ast
import builtins
from pathlib import Path

import patch_trees
import pytest
from patch_trees import ROOT, contents

from inference import ledger
from inference.ledger import report as ledger_report
from inference.releases import wheels as release_wheels
from inference.releases.wheels import Release


@pytest.fixture(scope="module")
def releases(request: pytest.FixtureRequest) -> list[Release]:
    folder = request.config.getoption("--wheels", default=None)
    if not folder:
        pytest.skip("needs real wheels: pytest tests/proof/test_trees.py --wheels DIR")
    return release_wheels.find(Path(folder))


def test_apply_compile_and_revert(releases: list[Release]) -> None:
    entries = ledger.load(patch_trees.real())
    every = [entry.id for entry in entries]
    for release in releases:
        with release_wheels.unpacked(release, entries) as tree:
            fresh = contents(tree)
            found = ledger.plan(entries, tree, [], acknowledged=every).before
            ids = [state.id for state in found if state.state == "applies"]
            assert "not as in its wheel" not in "".join(state.reason for state in found)
            plan = ledger.plan(entries, tree, ids, acknowledged=every)
            plan.execute()
            assert [s.id for s in plan.after if s.state == "applied"] == ids, release.version
            for change in plan.changes:
                compile((tree / change.file).read_bytes(), change.file, "exec")
            assert contents(tree) != fresh
            ledger.plan(entries, tree, revert=True).execute()
            assert contents(tree) == fresh, release.version


def bound(source: bytes) -> set[str]:
    """Return every name that a file binds somewhere, and the built-in ones."""
    names = set(dir(builtins))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def used(source: bytes) -> set[str]:
    return {n.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def test_names_that_only_the_added_lines_use_are_bound(releases: list[Release]) -> None:
    entries = ledger.load(patch_trees.real())
    every = [entry.id for entry in entries]
    for release in releases:
        with release_wheels.unpacked(release, entries) as tree:
            ids = [s.id for s in ledger.plan(entries, tree, [], acknowledged=every).before if s.state == "applies"]
            for change in ledger.plan(entries, tree, ids, acknowledged=every).changes:
                unknown = used(change.after) - used(change.before) - bound(change.after)
                assert unknown == set(), (release.version, change.file)


def test_no_conflict_anywhere(releases: list[Release]) -> None:
    entries = ledger.load(patch_trees.real())
    for release in releases:
        conflicts = [s for s in ledger_report.states(entries, release) if s.state == "conflict"]
        assert conflicts == [], release.version


def test_entries_name_the_releases_that_they_apply_to(releases: list[Release]) -> None:
    entries = ledger.load(patch_trees.real())
    applies: dict[str, list[str]] = {entry.id: [] for entry in entries}
    for release in releases:
        for state in ledger_report.states(entries, release):
            if state.state == "applies":
                applies[state.id].append(release.version)
    for entry in entries:
        if entry.variants:
            assert (applies[entry.id][0], applies[entry.id][-1]) == entry.releases, entry.id


def test_the_page_has_the_tables_of_these_wheels(releases: list[Release]) -> None:
    page = (ROOT / "docs" / "patches.md").read_text(encoding="utf-8")
    entries = ledger.load(patch_trees.real())
    assert ledger_report.table(entries, releases) in page
    assert ledger_report.catalogue(entries) in page
