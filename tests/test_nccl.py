# SPDX-License-Identifier: Apache-2.0
"""Profiles, the environment that follows from one, and the table of variables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import nccl
from inference.nccl.values import c_integer
from inference.nccl.variables import (
    ALGORITHMS,
    LEVELS,
    NEWEST,
    SUCCESSORS,
    VARIABLES,
    WORDS,
    VersionError,
    parse_version,
    same_release,
    version_text,
)

LATENCY = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}


def test_the_default_is_latency_with_its_six_settings():
    assert nccl.environment() == LATENCY
    assert [p.name for p in nccl.PROFILES.values() if p.as_dict()["default"]] == ["latency"]


def test_balanced_leaves_the_protocol_to_nccl():
    assert nccl.environment("balanced") == {k: v for k, v in LATENCY.items() if k != "NCCL_PROTO"}


def test_none_sets_nothing():
    assert nccl.environment("none") == {}


def test_throughput_turns_peer_access_off_and_needs_the_engine_to_know():
    settings = nccl.environment("throughput")
    assert settings["NCCL_P2P_DISABLE"] == "1"
    assert nccl.required_arguments(settings) == ["--disable-custom-all-reduce"]
    assert nccl.required_arguments(nccl.environment("latency")) == []


@pytest.mark.parametrize("profile", nccl.PROFILES.values(), ids=lambda p: p.name)
def test_each_profile_says_what_it_costs_and_on_whose_measurement(profile):
    assert profile.purpose
    assert profile.cost
    assert profile.evidence
    assert all(e.what and e.where and e.by for e in profile.evidence)


@pytest.mark.parametrize("profile", nccl.PROFILES.values(), ids=lambda p: p.name)
def test_each_setting_of_a_profile_is_a_variable_of_nccl(profile):
    assert set(profile.settings) <= set(VARIABLES)


def test_overrides_replace_add_and_take_away():
    result = nccl.environment("latency", {"NCCL_PROTO": None, "NCCL_BUFFSIZE": 8388608, "NCCL_DEBUG": "WARN"})
    assert result == {
        **{k: v for k, v in LATENCY.items() if k != "NCCL_PROTO"},
        "NCCL_BUFFSIZE": "8388608",
        "NCCL_DEBUG": "WARN",
    }


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"NCCL_P2P_DISABLE": True}, "boolean"),
        ({"NCCL_GRAPH_FILE": ""}, "empty"),
        ({"NCCL_PROTO": " LL"}, "white space"),
        ({"NCCL_PROTO": "LL\nX=1"}, "control"),
        ({"nccl_proto": "LL"}, "NCCL_PROTO"),
        ({"PROTO": "LL"}, "no NCCL variable"),
        ({"NCCL_PROTO": ["LL"]}, "string or an integer"),
        ({"NCCL_PROTO": 1.5}, "string or an integer"),
        ({1: "LL"}, "no NCCL variable"),
        (["NCCL_PROTO=LL"], "mapping"),
    ],
)
def test_overrides_that_mean_nothing_are_refused(overrides, says):
    with pytest.raises(nccl.NcclError, match=says):
        nccl.environment("latency", overrides)


def test_an_unknown_profile_names_the_nearest():
    with pytest.raises(nccl.NcclError, match="did you mean 'latency'"):
        nccl.environment("latancy")


def test_measured_without_a_measurement_says_what_to_do():
    with pytest.raises(nccl.NcclError, match="measure"):
        nccl.environment("measured")


def test_measured_is_read_from_its_document():
    document = {
        "environment": {"NCCL_P2P_LEVEL": "SYS", "NCCL_MIN_CTAS": 8},
        "nccl_version": "2.28.9",
        "evidence": [{"what": "11 KB 17.2 us", "where": "this host", "by": "tune"}],
    }
    assert nccl.environment("measured", measured=document) == {"NCCL_P2P_LEVEL": "SYS", "NCCL_MIN_CTAS": "8"}
    assert nccl.profile("measured", document).evidence[0].by == "tune"


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "object"),
        ({"environment": {}}, "no nccl_version"),
        ({"nccl_version": "2.28.9"}, "no environment"),
        ({"environment": {"NCCL_X": None}, "nccl_version": "2.28.9"}, "null"),
        ({"environment": {"NCCL_X": True}, "nccl_version": "2.28.9"}, "boolean"),
        ({"environment": {}, "nccl_version": "2.28.9", "evidence": [{"what": "x"}]}, "what, where and by"),
        ({"environment": {}, "nccl_version": "2.28.9", "evidence": 3}, "evidence"),
    ],
)
def test_a_measurement_that_is_not_whole_is_refused(document, says):
    with pytest.raises(nccl.NcclError, match=says):
        nccl.environment("measured", measured=document)


@pytest.mark.parametrize(
    ("settings", "off"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, True),
        ({"NCCL_P2P_DISABLE": "0x1"}, True),
        ({"NCCL_P2P_DISABLE": "2"}, False),  # seen with 2.28.9: peer access stays on
        ({"NCCL_P2P_DISABLE": "true"}, False),
        ({"NCCL_P2P_LEVEL": "LOC"}, True),
        ({"NCCL_P2P_LEVEL": "NVL"}, False),
        ({}, False),
    ],
)
def test_peer_access_is_off_as_nccl_reads_it(settings, off):
    assert nccl.p2p_is_off(settings) is off


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.28.9", (2, 28, 9)),
        ("2.28.9+cuda13", (2, 28, 9)),
        ("2.28.9+cuda13.0", (2, 28, 9)),
        ("v2.27.7-1", (2, 27, 7)),
        ("22809", (2, 28, 9)),
        (" 2.18.6 ", (2, 18, 6)),
    ],
)
def test_versions_are_read_in_their_usual_forms(text, version):
    assert parse_version(text) == version


def test_a_minor_release_alone_means_its_last_patch():
    assert parse_version("2.28") > parse_version("2.28.9")
    assert version_text(parse_version("2.28")) == "2.28"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("2.28.9", "2.28.9+cuda13.0", True), ("22809", "v2.28.9-1", True), ("2.28.9", "2.28.7", False), ("x", "x", True),
     ("x", "2.28.9", False)],
)  # fmt: skip
def test_a_release_is_the_same_however_it_is_written(one: str, other: str, same: bool):
    assert same_release(one, other) is same


@pytest.mark.parametrize("text", ["", "latest", "2", "2.x", "cuda13", "2.28.9 or so", "2.28.9;rm", "-1.2.3"])
def test_what_names_no_release_is_refused(text):
    with pytest.raises(VersionError, match="expected"):
        parse_version(text)


@pytest.mark.parametrize(
    ("text", "value", "rest"),
    [
        ("16", 16, ""),
        ("16M", 16, "M"),
        ("0x10", 16, ""),
        ("010", 8, ""),
        ("08", 0, "8"),
        ("-2", -2, ""),
        (" 7", 7, ""),
        ("true", 0, "true"),
        ("", 0, ""),
        ("1e3", 1, "e3"),
    ],
)
def test_integers_are_read_as_c_reads_them(text, value, rest):
    assert c_integer(text) == (value, rest)


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_every_integer_reads_back(number):
    assert c_integer(str(number)) == (number, "")
    assert c_integer(hex(number)) == (number, "")


@given(st.text(alphabet="0123456789xX+- ", max_size=6000))
def test_no_length_of_digits_is_too_long(text):
    value, rest = c_integer(text)
    assert abs(value) <= 16**25
    assert text.endswith(rest)


class TestTable:
    def test_it_holds_what_the_profiles_and_the_guide_need(self):
        assert len(VARIABLES) > 250
        assert {"NCCL_PROTO", "NCCL_MAX_CTAS", "NCCL_TUNER_PLUGIN", "NCCL_RAS_ENABLE"} <= set(VARIABLES)

    @pytest.mark.parametrize("variable", VARIABLES.values(), ids=lambda v: v.name)
    def test_each_row_is_sound(self, variable):
        assert variable.since <= NEWEST
        assert variable.until is None or variable.since <= variable.until < NEWEST
        for history in (variable.kinds, variable.defaults):
            assert [since for since, _ in history] == sorted({since for since, _ in history})
        for _, kind in variable.kinds:
            self.check_kind(kind)
        for since, default in variable.defaults:
            self.check_default(variable, since, default)

    @staticmethod
    def check_kind(kind):
        word, _, arguments = kind.partition(" ")
        checks = {
            "int": lambda: not arguments or ".." in arguments,
            "one": lambda: all(part.isdigit() for part in arguments.split()),
            "word": lambda: arguments == arguments.upper(),
            "exactly": lambda: bool(arguments),
            "words": lambda: arguments in WORDS,
            "level": lambda: set(arguments.split()) <= set(LEVELS),
            "list": lambda: arguments in ("algorithm", "protocol"),
        }
        assert checks.get(word, lambda: word in ["bytes", "bool", "policy", "netdevs", "path", "text", "free"])(), kind

    @staticmethod
    def check_default(variable, since, default):
        kind, _, arguments = variable.kind(since).partition(" ")
        if kind == "int" and default and arguments:
            low, high = arguments.split("..")
            assert (not low or int(low) <= int(default)) and (not high or int(default) <= int(high))
        if kind == "one" and default:
            assert default in arguments.split()

    def test_old_names_are_in_it(self):
        assert set(SUCCESSORS) <= set(VARIABLES)
        for _, successor in SUCCESSORS.values():
            assert successor.partition("=")[0] in VARIABLES

    def test_limits_and_defaults_follow_the_release(self):
        assert VARIABLES["NCCL_MAX_CTAS"].kind((2, 24, 3)) == "int 1..32"
        assert VARIABLES["NCCL_MAX_CTAS"].kind((2, 25, 1)) == "int 1..64"
        assert VARIABLES["NCCL_IB_TIMEOUT"].default((2, 20, 5)) == "18"
        assert VARIABLES["NCCL_IB_TIMEOUT"].default(NEWEST) == "20"

    def test_algorithms_came_one_after_the_other(self):
        assert ALGORITHMS["PAT"][0] == (2, 23, 0)
        assert ALGORITHMS["Collnet"][1] is not None
