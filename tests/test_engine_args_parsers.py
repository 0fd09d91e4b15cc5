# SPDX-License-Identifier: Apache-2.0
"""Rendered command lines, given to the real parsers of the releases.

A release's parser is used where ``scripts/engine-args make`` has prepared it; those of SGLang 0.5.23 and vLLM 0.32.0
are installed from the sandbox's wheelhouses, without a network, where these are. Others are skipped and named. Each
parser is started once, with the questions of all tests.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference import engine_args
from inference.engine_args import inventory_file
from inference.engine_args.options import Option, table_of
from inference.releases import locks, parsers, resolver

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".cache/parsers"
WHEELHOUSES = ROOT / ".cache/wheelhouse"
LOCKS = ROOT / "roles/engine/files/locks"
TABLES = {f"{t.engine}-{t.version}": t for engine in engine_args.TITLES for t in engine_args.load_tables(engine)}
PRESETS = inventory_file.presets(ROOT)
MODEL = {"name": "served", "path": "/srv/models/m"}
VALUES = {"text": "x", "int": "7", "float": "0.5", "size": "4096", "json": "{}"}


def lock_of(release: str) -> locks.Lock:
    found = sorted(LOCKS.glob(f"{release}-*-cp311.txt"), key=lambda path: "-cpu-" not in path.name)
    return locks.parse_lock(found[0].read_text(), found[0].name)


@pytest.fixture(scope="module", params=TABLES)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def line(release: str, arguments: dict[str, Any], **instance: Any) -> list[str]:
    """Return what the engine's parser gets: the words behind the module."""
    table = TABLES[release]
    given = {"port": 30000, "tensor_parallel_size": 8, "arguments": arguments, **instance}
    return engine_args.command(table.engine, "python", given, MODEL, table)[3:]


def critical(release: str, arguments: dict[str, Any]) -> list[str]:
    table = TABLES[release]
    others = [t for t in TABLES.values() if t.engine == table.engine and t is not table]
    return [f.id for f in engine_args.check({"arguments": arguments}, "i", table, others) if f.level == "critical"]


FORMS: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "sglang": [
        ({"context-length": 131072}, {"context_length": 131072}),
        ({"mem-fraction-static": 0.85}, {"mem_fraction_static": 0.85}),
        ({"enable_metrics": True}, {"enable_metrics": True}),
        ({"bucket-time-to-first-token": [0.1, 2]}, {"bucket_time_to_first_token": [0.1, 2.0]}),
        ({"json-model-override-args": {"a": {"b": 1}}}, {"json_model_override_args": '{"a": {"b": 1}}'}),
        ({"chat-template": "-odd"}, {"chat_template": "-odd"}),
        ({"schedule-conservativeness": -1}, {"schedule_conservativeness": -1.0}),
        ({"kv-cache-dtype": "fp8_e5m2", "attention-backend": None}, {"kv_cache_dtype": "fp8_e5m2"}),
    ],
    "vllm": [
        ({"max-model-len": "2k"}, {"max_model_len": 2000}),
        ({"gpu-memory-utilization": 0.5}, {"gpu_memory_utilization": 0.5}),
        ({"enable-prefix-caching": False}, {"enable_prefix_caching": False}),
        ({"enable_expert_parallel": True}, {"enable_expert_parallel": True}),
        ({"middleware": ["a", "b"]}, {"middleware": ["a", "b"]}),
        ({"allowed-origins": ["x"]}, {"allowed_origins": ["x"]}),
        ({"dtype": "float32", "enforce-eager": True}, {"dtype": "float32", "enforce_eager": True}),
        ({"hf-overrides": {"a": 1}}, {"hf_overrides": {"a": 1}}),
    ],
}
"""Options of every form, and what the parser has to make of them."""


RENAMED: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = [
    (
        {"cuda-graph-max-bs": 8},
        {"0.5.9": {"cuda_graph_max_bs": 8}, "0.5.23": {"cuda_graph_max_bs_decode": 8}},
    ),
    (
        {"flashinfer-allreduce-fusion-backend": "auto"},
        {
            "0.5.9": {"enable_flashinfer_allreduce_fusion": True},
            "0.5.23": {"flashinfer_allreduce_fusion_backend": "auto"},
        },
    ),
    (
        {"enable-flashinfer-allreduce-fusion": True},
        {
            "0.5.9": {"enable_flashinfer_allreduce_fusion": True},
            "0.5.17": {"flashinfer_allreduce_fusion_backend": "auto"},
        },
    ),
    (
        {"nsa-prefill-backend": "tilelang"},
        {"0.5.9": {"nsa_prefill_backend": "tilelang"}, "0.5.22": {"dsa_prefill_backend": "tilelang"}},
    ),
]


REFUSED: dict[str, list[dict[str, Any]]] = {
    "sglang": [
        {"no-such-option": True},
        {"attention-backend": "nope"},
        {"chunked-prefill-size": "many"},
        {"enable-metrics": "true"},
        {"tp-size": "x"},
        {"mem-fraction-static": "most"},
        {"chunked-prefill-size": [1, 2]},
    ],
    "vllm": [
        {"no-such-option": True},
        {"dtype": "nope"},
        {"gpu-memory-utilization": "all"},
    ],
}


def sample(option: Option) -> Any:
    """Return a value that the table says the option takes; None where only the engine knows one."""
    if option.kind != "value":
        return True
    value = next(iter(option.choices), VALUES.get(option.takes))
    return [value] if value is not None and (option.many or option.repeat) else value


SPECIAL = {
    "lora-modules",  # name=path
    "config",  # a file that is there
    "lora-paths",
}
"""Options whose value has a form of its own that the table does not tell."""


@pytest.fixture(scope="module")
def answers(release: str) -> dict[str, Any]:
    """Return what the release's own parser answers to every question of this page, by the question's name."""
    parser = parsers.of(ROOT, FOLDER, lock_of(release))
    house = WHEELHOUSES / parser.lock.name
    if not parser.ready and parser.lock.name in parsers.BASES.values() and house.is_dir():
        parsers.prepare(parser, parser.lock, resolver.Sources(find_links=(str(house),)), offline=True)
    if not parser.ready:
        pytest.skip(f"the parser of {release} is not prepared: scripts/engine-args make {release}")
    asked = {name: question(release) for name, question in QUESTIONS.items()}
    return dict(zip(asked, parser.ask(list(asked.values())), strict=True))


def fit(release: str) -> list[dict[str, Any]]:
    """Return an instance of every preset that is for the release."""
    table = TABLES[release]
    names = [name for name, preset in PRESETS.items() if not preset.unfit(table.engine, table.version)]
    return [engine_args.expand({"port": 1, "preset": name}, table.engine, PRESETS) for name in names]


def served(release: str) -> list[list[str]]:
    """Return the command lines of this project's inventories that name the release."""
    found = []
    for name in ("example", "sandbox"):
        host = inventory_file.read(str(ROOT / f"inventory/{name}/group_vars/inference.yml"), ROOT)
        if "-".join(host.release) == release:
            table = TABLES[release]
            found += [engine_args.command(table.engine, "p", host.whole(i), MODEL, table)[3:] for i in host.instances]
    return found


def samples(release: str) -> dict[str, Any]:
    """Return a value for every option of the table whose value's form the table tells."""
    options = TABLES[release].options.items()
    left = {*SPECIAL, *engine_args.OWNED, *(name for name, option in options if option.deprecated)}
    found = {name: sample(option) for name, option in options if name not in left}
    return {name: value for name, value in found.items() if value is not None}


def numbers(release: str) -> list[str]:
    """Return the options that take a number."""
    options = TABLES[release].options.items()
    kinds = ("int", "float", "size")
    return [name for name, option in options if option.takes in kinds and name not in engine_args.OWNED]


def preset_lines(release: str) -> list[list[str]]:
    table = TABLES[release]
    return [engine_args.command(table.engine, "python", whole, MODEL, table)[3:] for whole in fit(release)]


def renamed(release: str) -> list[tuple[dict[str, Any], dict[str, dict[str, Any]]]]:
    return RENAMED if release.startswith("sglang") else []


def swallowed(release: str) -> list[dict[str, Any]]:
    return [{"enforce-eager": "true"}, {"max-num-seqs": [1, 2]}] if release.startswith("vllm") else []


QUESTIONS: dict[str, Callable[[str], Any]] = {
    "options": lambda _: "options",
    "own": lambda release: [line(release, {})],
    "presets": preset_lines,
    "inventories": served,
    "forms": lambda release: [line(release, arguments) for arguments, _ in FORMS[TABLES[release].engine]],
    "renamed": lambda release: [line(release, arguments) for arguments, _ in renamed(release)],
    "refused": lambda release: [line(release, arguments) for arguments in REFUSED[TABLES[release].engine]],
    "samples": lambda release: [line(release, {name: value}) for name, value in samples(release).items()],
    "swallowed": lambda release: [line(release, each) for each in swallowed(release)],
    "words": lambda release: [[*line(release, {}), f"--{name}", "word"] for name in numbers(release)],
}


def test_the_toolkits_own_line(answers: dict[str, Any], release: str):
    (answer,) = answers["own"]
    values = answer["values"]
    assert values["disable_custom_all_reduce"] is True
    if release.startswith("sglang"):  # 127.0.0.1 and 30000 are its own defaults, which are left out here
        size = values.get("tp_size", values.get("tensor_parallel_size"))  # its name inside SGLang 0.5.9
        assert (values["model_path"], values["served_model_name"], size) == ("/srv/models/m", "served", 8)
        assert (values["attention_backend"], values["num_continuous_decode_steps"]) == ("flashinfer", 4)
    else:
        assert (values["model"], values["served_model_name"]) == ("/srv/models/m", ["served"])
        assert (values["tensor_parallel_size"], values["host"], values["port"]) == (8, "127.0.0.1", 30000)


def test_every_preset_that_is_for_the_release(answers: dict[str, Any], release: str):
    for whole, answer in zip(fit(release), answers["presets"], strict=True):
        assert "error" not in answer, (whole["preset"], answer)
        assert answer["values"]["tool_call_parser"] == whole["arguments"]["tool-call-parser"]
    assert answers["presets"]


def test_the_inventories_of_this_project(answers: dict[str, Any], release: str):
    for answer in answers["inventories"]:
        assert answer["values"]["attention_backend"] in ("flashinfer", "torch_native")
    assert len(answers["inventories"]) == (2 if release == "sglang-0.5.23" else 0)


def test_options_of_every_form_arrive_as_they_are_meant(answers: dict[str, Any], release: str):
    cases = FORMS[TABLES[release].engine]
    for (arguments, expected), answer in zip(cases, answers["forms"], strict=True):
        assert critical(release, arguments) == []
        assert "error" not in answer, (arguments, answer)
        assert {name: answer["values"].get(name) for name in expected} == expected


def test_renamed_options_arrive_under_the_releases_own_name(answers: dict[str, Any], release: str):
    for (arguments, expected), answer in zip(renamed(release), answers["renamed"], strict=True):
        assert "error" not in answer, (arguments, answer)
        for name, value in expected.get(TABLES[release].version, {}).items():
            assert answer["values"].get(name) == value


def test_what_the_lint_refuses_the_parser_refuses_too(answers: dict[str, Any], release: str):
    for arguments, answer in zip(REFUSED[TABLES[release].engine], answers["refused"], strict=True):
        assert critical(release, arguments), arguments
        assert "error" in answer, arguments


def test_a_word_too_many_is_refused_where_the_parser_takes_it_for_something_else(answers: dict[str, Any], release: str):
    """Such a word is the model to serve, for vLLM."""
    for arguments, answer in zip(swallowed(release), answers["swallowed"], strict=True):
        assert answer["values"]["model_tag"] in ("true", "2")
        assert critical(release, arguments) == ["argument-value"]


def test_every_option_of_the_table_with_a_value_of_its_kind(answers: dict[str, Any], release: str):
    chosen = samples(release)
    assert len(chosen) > 0.9 * len(TABLES[release].options)
    assert {n: a["error"] for n, a in zip(chosen, answers["samples"], strict=True) if "error" in a} == {}


def test_what_takes_a_number_takes_no_word(answers: dict[str, Any], release: str):
    assert len(answers["words"]) > 50
    assert [n for n, answer in zip(numbers(release), answers["words"], strict=True) if "error" not in answer] == []


def test_the_table_is_what_the_parser_says(answers: dict[str, Any], release: str):
    table = TABLES[release]
    made = table_of(table.engine, table.version, table.wheel, table.sha256, answers["options"])
    assert made.options == dict(table.options)


def test_the_sandboxs_inventory_names_the_release_of_its_wheelhouse():
    given = yaml.safe_load((ROOT / "inventory/sandbox/group_vars/inference.yml").read_text())
    assert (
        f"{given.get('engine_name', 'sglang')}-{given.get('engine_version', '0.5.23')}-cpu-cp311"
        in parsers.BASES.values()
    )
