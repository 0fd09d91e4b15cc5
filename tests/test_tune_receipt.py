# SPDX-License-Identifier: Apache-2.0
"""The measured profile: readable by the nccl domain, with a receipt that expires and bans that hold."""

import json

import pytest

from inference import nccl
from inference.tune import Host, Result, Row, ban, decide, document, expired, validate

ROWS = (Row("decode", 1, 14336, ((20.0,), (20.2,))), Row("prefill", 1024, 14_680_064, ((900.0,), (905.0,))))
BETTER = tuple(Row(r.phase, r.tokens, r.bytes, tuple((us * 0.8,) for (us,) in r.groups)) for r in ROWS)
RESULTS = [
    Result("none", {}, "healthy", "", ROWS),
    Result("balanced", {"NCCL_ALGO": "Ring"}, "healthy", "", BETTER),
    Result("latency", {"NCCL_PROTO": "LL"}, "hang", "no progress at 14336 bytes"),
]
PARTS = {"driver": "580.1", "links": [["X", "SYS"], ["SYS", "X"]]}
HOST = Host("f00d", "580.1", "2.28.9", PARTS)
BASE = {"NCCL_NVLS_ENABLE": "0"}


def profile(results=RESULTS, host=HOST):
    made = document(decide(results, 0.5), results, host, BASE, {"date": "2026-11-30", "machine": "2x a card"})
    return json.loads(json.dumps(made))


def test_the_nccl_domain_reads_it_as_the_profile_measured():
    settings = nccl.environment("measured", measured=profile())
    assert settings == {"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "Ring"}
    read = nccl.Measured.from_dict(profile())
    assert read.nccl_version == "2.28.9"
    assert "1 tokens (14336 B) 20.1" in read.evidence[0].what
    assert "2x a card, NCCL 2.28.9, driver 580.1" in read.evidence[0].where


def test_the_own_choice_makes_a_profile_that_sets_nothing_but_what_held_for_all():
    assert nccl.environment("measured", measured=profile(RESULTS[:1])) == BASE


def test_the_receipt_says_what_was_measured_but_not_every_replay():
    receipt = profile()["receipt"]
    row = receipt["results"][0]["rows"][0]
    assert row["median_us"] == pytest.approx(20.1)
    assert row["group_medians_us"] == [20.0, 20.2]
    assert "groups" not in row
    assert receipt["decision"]["chosen"] == "balanced"
    assert receipt["fingerprint"] == "f00d"


def test_nothing_is_written_without_a_choice_or_a_release():
    undecided = decide([Result("none", {}, "inconclusive", "why")], 0.5)
    with pytest.raises(ValueError, match="no profile to write"):
        document(undecided, [], HOST, {}, {})
    with pytest.raises(ValueError, match="no NCCL version"):
        document(decide(RESULTS, 0.5), RESULTS, Host("f00d"), {}, {})


def test_it_holds_while_nothing_changed():
    report = expired(profile(), HOST)
    assert (report.findings, report.not_checked, report.exit_code) == ([], [], 0)
    assert expired(profile(), Host("f00d", "580.1", "2.28.9+cuda13.0", PARTS)).findings == []


@pytest.mark.parametrize(
    ("now", "finding", "seen"),
    [
        (Host("f00d", "590.2", "2.28.9", PARTS), "tune-expired-driver", "590.2"),
        (Host("f00d", "580.1", "2.29.3", PARTS), "tune-expired-nccl", "2.29.3"),
        (
            Host("beef", "580.1", "2.28.9", {**PARTS, "links": [["X", "NODE"], ["NODE", "X"]]}),
            "tune-expired-fingerprint",
            "links GPU0-GPU1: SYS is now NODE",
        ),
        (Host("beef", "580.1", "2.28.9"), "tune-expired-fingerprint", "beef"),
    ],
)
def test_it_expires_with_what_it_depends_on_and_says_what_changed(now, finding, seen):
    found = expired(profile(), now).findings
    assert [entry.id for entry in found] == [finding]
    assert seen in found[0].seen
    assert found[0].level == "warning"


def test_what_is_not_known_now_is_not_taken_for_unchanged():
    report = expired(profile(), Host())
    assert report.findings == []
    assert {entry.id for entry in report.not_checked} == {
        "tune-expired-fingerprint",
        "tune-expired-driver",
        "tune-expired-nccl",
    }


def test_a_profile_without_a_receipt_says_nothing_about_a_host():
    assert expired({"environment": {}}, HOST).findings[0].id == "tune-expired-receipt"


def test_a_ban_holds_for_the_settings_that_failed_on_the_host_where_they_did():
    settings = {**BASE, "NCCL_PROTO": "LL"}
    assert "latency: hang: no progress" in ban(profile(), settings, "f00d")
    assert ban(profile(), {**settings, "NCCL_DEBUG": "INFO"}, "f00d")
    assert ban(profile(), settings, "beef") is None
    assert ban(profile(), settings, None) is None
    assert ban(profile(), {**settings, "NCCL_P2P_DISABLE": "1"}, "f00d") is None
    assert ban(profile(), {}, "f00d") is None


def ids(report):
    return {(finding.id, finding.level) for finding in report.findings}


def test_a_document_that_holds_here_is_valid():
    report = validate(profile(), "f00d", "580.1", "2.28.9")
    assert report.ok
    assert not report.at("warning")


@pytest.mark.parametrize(
    "broken", [None, [], "text", {}, {"environment": {}}, {"environment": [], "nccl_version": "2.28.9"}]
)
def test_a_document_that_is_none_is_refused(broken):
    assert ids(validate(broken, "f00d", "580.1", "2.28.9")) == {("tune-unusable", "critical")}


@pytest.mark.parametrize("banned", [None, [None], [{}], "latency"])
def test_a_document_with_broken_bans_bans_nothing(banned):
    assert validate({**profile(), "banned": banned}, "f00d", "580.1", "2.28.9").ok


def test_settings_that_failed_here_are_refused_whatever_profile_they_come_from():
    latency = {**BASE, "NCCL_PROTO": "LL"}
    assert ("tune-banned", "critical") in ids(validate(profile(), "f00d", "580.1", "2.28.9", environment=latency))
    elsewhere = validate(profile(), "beef", "580.1", "2.28.9", environment=latency)
    assert not elsewhere.at("critical")


def test_what_changed_since_is_a_warning_and_what_is_not_known_is_said():
    report = validate(profile(), "beef", "590.2", "2.30.7")
    assert {name for name, _ in ids(report)} >= {
        "tune-expired-fingerprint",
        "tune-expired-driver",
        "tune-expired-nccl",
    }
    unknown = validate(profile(), None, None, None)
    assert {"tune-expired-fingerprint", "tune-banned", "nccl-unknown-name"} <= {e.id for e in unknown.not_checked}


def test_other_settings_do_not_expire_with_the_document():
    report = validate(profile(), "beef", "590.2", "2.30.7", environment={"NCCL_P2P_LEVEL": "SYS"})
    assert not {name for name, _ in ids(report)} & {"tune-expired-fingerprint", "tune-expired-driver"}


def test_the_settings_are_linted_for_the_release_that_runs():
    report = validate({**profile(), "environment": {"NCCL_PROTO": "LL256"}}, "f00d", "580.1", "2.28.9")
    assert ("nccl-list-syntax", "critical") in ids(report)
