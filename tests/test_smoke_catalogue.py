# SPDX-License-Identifier: Apache-2.0
"""The catalogue of findings: whole, named by the stand-in's faults, and explained in the guide."""

from __future__ import annotations

import re
from pathlib import Path

from misbehaving_server import FAULTS

from inference.smoke import CATALOGUE, Result, Stage, finding, problem_id

ROOT = Path(__file__).parent.parent
DOCS = (ROOT / "docs" / "smoke.md").read_text(encoding="utf-8")


def test_every_entry_says_what_and_how_to_mend() -> None:
    for name, (level, what, _expected, fix) in CATALOGUE.items():
        assert what, name
        assert fix or level == "info", name


def test_every_fault_has_an_entry_and_every_critical_one_of_a_server_has_a_fault() -> None:
    assert set(FAULTS.values()) <= set(CATALOGUE)
    elsewhere = {"unreachable", "refused", "endless", "below-floor", "regression", "stage-timeout", "gpu-count", "xid"}
    assert {n for n, entry in CATALOGUE.items() if entry[0] == "critical"} - elsewhere <= set(FAULTS.values())


def test_the_guide_explains_every_finding() -> None:
    explained = re.findall(r"^\| `([a-z0-9-]+)` \| (critical|warning|unknown|info) \| (.*) \|$", DOCS, re.MULTILINE)
    assert explained == [(name, level, what) for name, (level, what, _expected, _fix) in CATALOGUE.items()]


def test_problems_of_requests_are_findings() -> None:
    assert problem_id("http-503") == "http-error"
    assert problem_id("wrong-model") == "wrong-answerer"
    assert problem_id("truncated") == "truncated"
    assert finding("golden", "x", where="first").what.startswith("first: ")


def test_the_text_shows_stages_without_figures() -> None:
    result = Result(stages=[Stage("reachable", "passed", 0.1, "here")])
    assert "reachable  passed  0.1 s  here" in result.as_text()
