# SPDX-License-Identifier: Apache-2.0
"""Findings, and the exit code and JSON that every program owes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.findings import LEVELS, SCHEMA, Finding, Report, excerpt, printable


def finding(level: Any = "warning", **more: Any) -> Finding:
    return Finding("an-id", level, "what it is", seen="this", expected="that", fix="do so", **more)


@pytest.mark.parametrize(
    ("levels", "code", "ok"),
    [
        ([], 0, True),
        (["info"], 0, True),
        (["info", "warning"], 1, True),
        (["warning", "unknown"], 3, False),
        (["unknown", "critical", "warning", "info"], 2, False),
        (["critical"], 2, False),
    ],
)
def test_the_most_pressing_finding_decides(levels: list[str], code: int, ok: bool):
    report = Report([finding(level) for level in levels])
    assert (report.exit_code, report.ok) == (code, ok)
    assert report.as_dict()["ok"] is ok


def test_what_was_not_checked_changes_no_exit_code_and_is_shown():
    report = Report()
    report.skip("acs", "not root")
    assert report.exit_code == 0
    assert report.as_dict()["not_checked"] == [{"id": "acs", "why": "not root"}]
    assert "acs: not root" in report.as_text()
    assert report.summary() == "1 not checked"


def test_an_unknown_level_is_an_error():
    with pytest.raises(ValueError, match="level 'fatal' is none of critical, unknown, warning, info"):
        finding("fatal")


def test_json_has_the_keys_of_the_contract():
    document = Report([finding()]).as_dict(kind="extra")
    assert set(document) == {"schema", "ok", "findings", "not_checked", "kind"}
    assert document["schema"] == SCHEMA
    assert set(document["findings"][0]) == {"id", "level", "what", "seen", "expected", "fix"}
    assert json.loads(json.dumps(document)) == document
    assert finding(repaired_by="host_reboot").as_dict()["repaired_by"] == "host_reboot"


def test_text_shows_the_most_pressing_first_with_seen_expected_and_fix():
    text = Report([finding(level) for level in reversed(LEVELS)]).as_text()
    positions = [text.index(level.upper()) for level in LEVELS]
    assert positions == sorted(positions)
    for line in ("  seen:     this", "  expected: that", "  fix:      do so"):
        assert line in text
    assert text.endswith("1 critical, 1 unknown, 1 warning, 1 info")


def test_an_empty_part_is_not_shown():
    text = Report([Finding("x", "info", "w", seen="", expected="", fix="")]).as_text()
    assert "seen" not in text
    assert Report().as_text() == "nothing found"


def test_findings_keep_their_order_by_level():
    report = Report()
    report.extend([finding("info"), finding("warning"), finding("info")])
    assert len(report.at("info")) == 2
    assert report.at("critical") == []


def test_what_an_engine_wrote_tells_a_terminal_nothing():
    report = Report([Finding("x", "info", "w", seen="a\x1b]52;c;aGk=\x07b\x9b2J", expected="ä\n\tö\r", fix="")])
    report.skip("y", "\x1b[2J")
    text = report.as_text()
    assert "a\\x1b]52;c;aGk=\\x07b\\x9b2J" in text
    assert "\\x1b[2J" in text and "\\x0d" in text
    assert "ä\n" in text
    assert "\tö" in text
    assert not any(character in text for character in "\x1b\x07\r\x9b")


def test_text_of_others_is_made_printable_and_short():
    assert printable("a\tb\n\r\x1b[0m\x7f\u202e\ud800 \u6d4b") == "a\tb\n\\x0d\\x1b[0m\\x7f\\u202e\\ud800 \u6d4b"
    assert excerpt("short\x00") == "short\\x00"
    assert excerpt("a" * 61) == "a" * 45 + "..." + "a" * 15
    assert excerpt("b" * 60) == "b" * 60
