# SPDX-License-Identifier: Apache-2.0
"""Profiles: everything has a default, nothing wrong passes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference.smoke.profile import Mark, Profile, ProfileError, load_profile, settings, with_topology
from inference.topology.fingerprint import fingerprint

DOCS = (Path(__file__).parent.parent / "docs" / "smoke.md").read_text(encoding="utf-8")


def test_an_empty_profile_is_the_default() -> None:
    assert load_profile({}) == Profile()
    assert load_profile({"load": {}, "gate": {"regression": {}}}) == Profile()


def test_what_is_given_is_used_and_the_rest_stays() -> None:
    profile = load_profile(
        {
            "model": "m",
            "timeouts": {"stages": {"single": 7}},
            "correctness": {"golden": [{"prompt": "a", "expect": "b"}]},
            "gate": {"floors": {"single.decode_tok_s": 63.6}, "targets": {"prefill.512.ttft_s": {"value": 1}}},
        }
    )
    assert profile.timeouts.stages["single"] == 7
    assert profile.timeouts.stages["prefill"] == Profile().timeouts.stages["prefill"]
    assert profile.correctness.golden is not None
    assert profile.correctness.golden[0].api == "completion"
    assert profile.gate.floors == {"single.decode_tok_s": Mark(63.6)}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "not a mapping"),
        ({"modle": "m"}, "did you mean 'model'"),
        ({"load": {"concurency": 1}}, "load.concurency.*did you mean 'concurrency'"),
        ({"load": 3}, "load.*not a mapping"),
        ({"load": {"concurrency": 0}}, "load.concurrency: 0.*at least 1"),
        ({"load": {"concurrency": True}}, "load.concurrency: True"),
        ({"load": {"concurrency": "16"}}, "load.concurrency: '16'"),
        ({"load": {"sweep": 4}}, "load.sweep: 4.*a list"),
        ({"load": {"rates": [0]}}, "load.rates"),
        ({"timeouts": {"stall": float("inf")}}, "timeouts.stall"),
        ({"timeouts": {"stages": {"singel": 1}}}, "timeouts.stages.*did you mean 'single'"),
        ({"engine": "tgi"}, "engine: 'tgi'.*auto, sglang, vllm"),
        ({"model": 3}, "model: 3.*a string"),
        ({"correctness": {"golden": [{"prompt": "a"}]}}, "correctness.golden"),
        ({"correctness": {"golden": [{"prompt": "a", "expect": "("}]}}, "correctness.golden.*regular expression"),
        ({"correctness": {"golden": [{"prompt": "a", "expect": "b", "api": "x"}]}}, "chat, completion"),
        ({"gate": {"floors": {"single.tok": 1}}}, "gate.floors.*single.decode_tok_s"),
        ({"gate": {"floors": {"single.ttft_s": "fast"}}}, "gate.floors"),
        ({"gate": {"floors": {"single.ttft_s": {"value": 1, "sauce": "x"}}}}, "value and source"),
    ],
)
def test_what_is_wrong_is_named(document: Any, words: str) -> None:
    with pytest.raises(ProfileError, match=words):
        load_profile(document)


def test_the_topology_record_says_what_the_profile_does_not() -> None:
    parts = {"gpus": {"0000:01:00.0": {}, "0000:41:00.0": {}}, "driver": "590.48"}
    known = with_topology({"model": "m", "gpus": None}, parts)
    assert known == {"model": "m", "gpus": 2, "fingerprint": fingerprint(parts)}
    assert load_profile(known).gpus == 2
    assert with_topology({"gpus": 1, "fingerprint": "mine"}, parts) == {"gpus": 1, "fingerprint": "mine"}
    assert "gpus" not in with_topology({}, {"driver": "590.48"})
    assert fingerprint(parts) != fingerprint({**parts, "driver": "591.00"})


def shown(value: Any) -> str:
    """Return a default as the guide prints it: whole numbers without a decimal point."""
    if isinstance(value, dict):
        return json.dumps({k: int(v) for k, v in value.items()})
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def test_the_guide_names_every_setting_with_its_default() -> None:
    table = re.findall(r"^\| `([a-z0-9_.]+)` \| `(.*)` \| (.*) \|$", DOCS, re.MULTILINE)
    assert table == [(name, shown(default), about) for name, default, about in settings()]


def test_the_profiles_in_the_guide_are_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
    assert blocks
    for block in blocks:
        load_profile(yaml.safe_load(block))


def test_the_profile_of_kimi_labels_its_figures_as_three_runs() -> None:
    (block,) = (b for b in re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL) if "kimi" in b)
    gate = load_profile(yaml.safe_load(block)).gate
    assert gate.floors["single.decode_tok_s"].value == 63.6
    assert gate.targets["single.decode_tok_s"].value == 82.5
    assert gate.references["concurrent.tok_s"].value == 2370
    sources = [m.source for marks in (gate.floors, gate.targets, gate.references) for m in marks.values()]
    assert [source[:5] for source in sources] == ["run 1", "run 2", "run 3"]
