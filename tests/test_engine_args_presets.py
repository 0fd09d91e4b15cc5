# SPDX-License-Identifier: Apache-2.0
"""Presets: what is in them, how an instance's own settings win, and that each suits the releases it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inference import engine_args, inventory_instances, nccl
from inference.engine_args import inventory_file
from inference.engine_args.options import order
from inference.smoke.profile import load_profile

ROOT = Path(__file__).resolve().parent.parent
PRESETS = inventory_file.presets(ROOT)
TABLES = [table for engine in engine_args.TITLES for table in engine_args.load_tables(engine)]
FIT = [
    (name, table)
    for name, preset in PRESETS.items()
    for table in TABLES
    if not preset.unfit(table.engine, table.version)
]


def instance(name: str, **own: Any) -> dict[str, Any]:
    return {"name": "a", "model": "m", "port": 30000, "preset": name, **own}


def expanded(name: str, engine: str = "sglang", **own: Any) -> dict[str, Any]:
    return engine_args.expand(instance(name, **own), engine, PRESETS)


def test_the_presets_that_there_are():
    assert sorted(PRESETS) == ["deepseek-v3", "glm-5-nvfp4", "kimi-k2.5"]
    for name in PRESETS:
        assert (ROOT / f"roles/service/files/presets/{name}.yml").is_file()
        assert {table.version for fit, table in FIT if fit == name} >= {"0.5.23", "0.5.22", "0.5.17"}


@pytest.mark.parametrize(("name", "table"), FIT, ids=lambda value: getattr(value, "version", value))
def test_a_preset_passes_the_lint_of_every_release_that_it_is_for(name: str, table: engine_args.Table):
    settings = {
        "engine_name": table.engine,
        "engine_version": table.version,
        "engine_variant": "cu130",
        "topology_expect": "rtx-pro-6000-x8",
        "service_instances": [instance(name)],
    }
    found = inventory_instances.check(settings, None, tables=TABLES, presets=PRESETS, only_options=True)
    assert [f for f in found if f.level in ("critical", "unknown")] == []
    allowed = {"trust-remote-code"} | ({"deepgemm-sm120"} if table.version == "0.5.9" else set())
    assert {f.id for f in found if f.level == "warning"} <= allowed


@pytest.mark.parametrize("name", PRESETS)
def test_the_rest_of_a_preset_is_usable(name: str):
    for engine in PRESETS[name].since:
        whole = expanded(name, engine)
        load_profile(whole.get("smoke", {}))
        assert nccl.environment(whole["nccl_profile"])
        assert whole["tensor_parallel_size"] == 8
    marks = [s for s in PRESETS[name].settings if s.at[:2] == ("smoke", "gate")]
    for mark in marks:
        place = expanded(name)["smoke"]["gate"][mark.at[2]][mark.at[3]]
        assert place == {"value": mark.value, "source": mark.source}


def test_the_report_of_kimi_is_what_its_preset_runs():
    """Field report A: the flags, the profile, 63.6 tok/s before and 82.5 to be reached."""
    whole = expanded("kimi-k2.5")
    line = engine_args.command("sglang", "python", whole, {"name": "m", "path": "/m"}, TABLES[3])
    text = " ".join(line)
    for words in ("--attention-backend flashinfer", "--num-continuous-decode-steps 4", "--disable-custom-all-reduce"):
        assert words in text
    assert whole["nccl_profile"] == "latency"
    assert whole["smoke"]["gate"]["floors"]["single.decode_tok_s"]["value"] == 63.6
    assert whole["smoke"]["gate"]["targets"]["single.decode_tok_s"]["value"] == 82.5


def test_sparse_attention_is_left_to_the_engine():
    line = engine_args.command("sglang", "python", expanded("glm-5-nvfp4"), {"name": "m", "path": "/m"}, TABLES[3])
    assert "--attention-backend" not in line


def test_own_settings_win_entry_by_entry():
    own = {"arguments": {"attention_backend": "triton", "kv-cache-dtype": None, "context-length": 4096}}
    own |= {"nccl_profile": "balanced", "smoke": {"gate": {"floors": {"single.decode_tok_s": 10}}}}
    whole = expanded("kimi-k2.5", **own)
    line = engine_args.command("sglang", "python", whole, {"name": "m", "path": "/m"}, TABLES[3])
    assert line[line.index("--attention-backend") + 1] == "triton"
    assert line.count("--attention-backend") == 1
    assert "--kv-cache-dtype" not in line
    assert line[line.index("--context-length") + 1] == "4096"
    assert "--tool-call-parser" in line
    assert whole["nccl_profile"] == "balanced"
    assert whole["smoke"]["gate"]["floors"]["single.decode_tok_s"] == 10
    assert whole["smoke"]["gate"]["targets"]["single.decode_tok_s"]["value"] == 82.5
    assert (whole["name"], whole["port"]) == ("a", 30000)


def test_each_engine_gets_its_own_lines():
    assert "attention-backend" not in expanded("kimi-k2.5", "vllm")["arguments"]
    assert "enable-auto-tool-choice" in expanded("kimi-k2.5", "vllm")["arguments"]
    assert "enable-auto-tool-choice" not in expanded("kimi-k2.5")["arguments"]


def test_an_empty_section_drops_nothing():
    assert expanded("kimi-k2.5", arguments=None)["arguments"] == expanded("kimi-k2.5")["arguments"]


def test_an_instance_without_a_preset_stays_as_it_is():
    given = {"name": "a", "arguments": {"x": 1}}
    assert engine_args.expand(given, "sglang", PRESETS) == given
    assert engine_args.expand({**given, "preset": None}, "sglang", PRESETS) == {**given, "preset": None}


def test_expanding_leaves_preset_and_instance_alone():
    own = instance("kimi-k2.5", arguments={"context-length": 1})
    before = expanded("kimi-k2.5")
    engine_args.expand(own, "sglang", PRESETS)["arguments"]["y"] = 2
    assert own["arguments"] == {"context-length": 1}
    assert expanded("kimi-k2.5") == before


def test_a_preset_that_does_not_exist_names_the_nearest():
    with pytest.raises(engine_args.PresetError, match=r"kimi-k25.*did you mean 'kimi-k2.5'"):
        expanded("kimi-k25")


RIGHT = {
    "name": "x",
    "title": "X",
    "since": {"sglang": "0.5.9"},
    "settings": [{"at": ["arguments", "a"], "value": 1, "why": "w", "source": "s"}],
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"settings": [{"at": ["model"], "value": 1, "why": "w", "source": "s"}]}, "begins with none of"),
        ({"settings": [{"at": [], "value": 1, "why": "w", "source": "s"}]}, "begins with none of"),
        ({"settings": [{"at": ["arguments", "a"], "value": 1, "why": "w", "source": " "}]}, "by whose word"),
        ({"settings": [{"at": ["arguments", "a"], "value": 1, "why": "w"}]}, "source"),
        (
            {"settings": [{"at": ["arguments", "a"], "value": 1, "why": "w", "source": "s", "engine": "x"}]},
            "engine 'x'",
        ),
        ({"settings": [{"at": ["arguments", "a"], "value": 1, "why": "w", "source": "s", "more": 1}]}, "more"),
        ({"since": {"tgi": "1"}}, "since names another engine"),
    ],
)
def test_a_preset_that_cannot_be_used(changed: dict[str, Any], message: str):
    assert engine_args.load_presets([RIGHT])["x"].settings[0].at == ("arguments", "a")
    with pytest.raises(engine_args.PresetError, match=message):
        engine_args.load_presets([{**RIGHT, **changed}])


def test_two_presets_of_one_name():
    with pytest.raises(engine_args.PresetError, match="two of this name"):
        engine_args.load_presets([RIGHT, RIGHT])


def test_a_preset_for_other_releases_is_a_warning():
    preset = PRESETS["glm-5-nvfp4"]
    assert preset.unfit("sglang", "0.5.17") is None
    assert preset.unfit("sglang", "0.5.9") == "SGLang 0.5.17 or newer"
    assert preset.unfit("vllm", "0.33.0") == "SGLang 0.5.17 or newer"
    settings = {"engine_name": "sglang", "engine_version": "0.5.9", "service_instances": [instance("glm-5-nvfp4")]}
    found = inventory_instances.check(settings, None, tables=TABLES, presets=PRESETS, only_options=True)
    assert ("preset-release", "warning") in [(f.id, f.level) for f in found]


def test_an_instance_with_no_such_preset_is_refused():
    settings = {"engine_name": "sglang", "engine_version": "0.5.23", "service_instances": [instance("kimi")]}
    found = inventory_instances.check(settings, None, tables=TABLES, presets=PRESETS, only_options=True)
    assert [(f.id, f.level) for f in found if f.level == "critical"] == [("instance-preset", "critical")]


def test_the_default_release_is_the_newest_that_tables_know():
    assert order(TABLES[3].version) == max(order(t.version) for t in TABLES if t.engine == "sglang") == (0, 5, 23)
