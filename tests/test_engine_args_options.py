# SPDX-License-Identifier: Apache-2.0
"""Options by release: the tables, other names, values, and the rules about what does not go together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference import engine_args
from inference.engine_args import checks, moves, options, renames, rules, strategies, tables

ROOT = Path(__file__).resolve().parent.parent
MODEL = {"name": "m", "path": "/m"}
TABLES = {f"{t.engine}-{t.version}": t for engine in engine_args.TITLES for t in engine_args.load_tables(engine)}
NEW, OLD = TABLES["sglang-0.5.23"], TABLES["sglang-0.5.9"]


def found(arguments: dict[str, Any], release: str = "sglang-0.5.23") -> list[Any]:
    table = TABLES[release]
    others = [other for other in TABLES.values() if other.engine == table.engine and other is not table]
    return engine_args.check({"arguments": arguments}, "i", table, others)


def ids(arguments: dict[str, Any], release: str = "sglang-0.5.23") -> list[str]:
    return [finding.id for finding in found(arguments, release)]


def words(arguments: dict[str, Any], release: str = "sglang-0.5.23", **instance: Any) -> list[str]:
    table = TABLES[release]
    given = {"port": 30000, "arguments": arguments, **instance}
    return engine_args.command(table.engine, "python", given, MODEL, table)


# the tables


def test_every_release_that_has_a_lock_has_a_table_of_the_wheel_in_it():
    index = yaml.safe_load((ROOT / "roles/engine/files/locks/locks.yml").read_text())["locks"]
    engines = [entry for entry in index if entry["engine"] in engine_args.TITLES]
    assert {f"{entry['engine']}-{entry['version']}" for entry in engines} == set(TABLES)
    locks = "".join(file.read_text() for file in (ROOT / "roles/engine/files/locks").glob("*.txt"))
    for table in TABLES.values():
        assert f"--hash=sha256:{table.sha256}  # {table.wheel} " in locks, table.wheel


@pytest.mark.parametrize("release", TABLES)
def test_a_table_is_what_is_rendered_of_it(release: str):
    table = TABLES[release]
    text = (tables.FOLDER / options.file_name(table.engine, table.version)).read_text()
    assert options.render(table) == text
    assert len(table.options) > 300
    assert len(text.splitlines()) == len(table.options) + 8


def test_a_table_that_is_none_is_refused(tmp_path: Path):
    (tmp_path / "sglang-1.json").write_text('{"engine": "sglang"}')
    with pytest.raises(engine_args.TableError, match="engine-args make"):
        engine_args.load_table("sglang", "1", tmp_path)
    assert engine_args.load_table("sglang", "2", tmp_path) is None


def test_what_tables_know_of_options():
    backend = NEW.options["attention-backend"]
    assert {"flashinfer", "trtllm_mla"} <= set(backend.choices)
    assert NEW.options["tp-size"].also == ("tensor-parallel-size",)
    assert (NEW.options["cuda-graph-bs-decode"].takes, NEW.options["cuda-graph-bs-decode"].many) == ("int", True)
    assert NEW.options["context-length"].takes == "size"
    assert NEW.options["mem-fraction-static"].takes == "float"
    assert OLD.options["cuda-graph-max-bs"].takes == "int"
    assert (NEW.options["enable-tf32-matmul"].kind, NEW.options["enable-tf32-matmul"].off) == (
        "switch", ("no-enable-tf32-matmul",),
    )  # fmt: skip
    assert NEW.options["enable-flashinfer-allreduce-fusion"].deprecated
    assert TABLES["vllm-0.33.0"].options["enable-prefix-caching"].off == ("disable-prefix-caching",)
    assert TABLES["vllm-0.32.0"].options["enable-prefix-caching"].off == ("no-enable-prefix-caching",)
    assert TABLES["vllm-0.33.0"].options["compilation-config"].takes in ("json", "special")
    assert TABLES["vllm-0.33.0"].options["middleware"].repeat


def test_a_row_of_the_parser_becomes_an_option():
    row = {"names": ["a", "no-a", "b", "no-b"], "action": "BooleanOptionalAction", "nargs": 0, "takes": None}
    row |= {"choices": None, "default": True, "deprecated": False, "instead": None}
    option = options.option_of(row)
    assert (option.name, option.also, option.off, option.kind) == ("a", ("b",), ("no-a", "no-b"), "switch")
    option = options.option_of({**row, "names": ["x"], "action": "_StoreAction", "nargs": "+", "takes": None})
    assert (option.takes, option.many, option.bare) == ("special", True, False)


# names


def test_a_right_line_has_no_findings():
    right = {
        "context-length": "128k",
        "mem-fraction-static": 0.85,
        "cuda-graph-bs-decode": [1, 2],
        "enable_metrics": True,
    }
    right |= {"kv-cache-dtype": "bf16", "json-model-override-args": {"a": 1}, "reasoning-parser": None, "tp_size": None}
    del right["tp_size"]
    assert found(right) == []


def test_an_unknown_option_names_the_nearest():
    (finding,) = found({"atention-backend": "triton"})
    assert (finding.id, finding.level) == ("argument-unknown", "critical")
    assert "did you mean 'attention-backend'?" in finding.expected


def test_a_beginning_of_a_name_is_not_the_name():
    assert ids({"context-len": 1}) == ["argument-unknown"]


def test_an_option_that_only_other_releases_have_is_called_removed():
    (finding,) = found({"enable-double-sparsity": True})
    assert finding.id == "argument-removed"
    assert "0.5.9 knows this one" in finding.expected
    (finding,) = found({"boundary-reduction": "x"}, "sglang-0.5.9")
    assert finding.id == "argument-removed"
    assert "0.5.22, 0.5.23" in finding.expected


@pytest.mark.parametrize(
    ("release", "given", "expected"),
    [
        ("sglang-0.5.23", {"cuda-graph-max-bs": 8}, ["--cuda-graph-max-bs-decode", "8"]),
        ("sglang-0.5.9", {"cuda-graph-max-bs-decode": 8}, ["--cuda-graph-max-bs", "8"]),
        ("sglang-0.5.23", {"nsa-prefill-backend": "tilelang"}, ["--dsa-prefill-backend", "tilelang"]),
        ("sglang-0.5.17", {"nsa_decode_backend": "tilelang"}, ["--dsa-decode-backend", "tilelang"]),
        (
            "sglang-0.5.23",
            {"enable-flashinfer-allreduce-fusion": True},
            ["--flashinfer-allreduce-fusion-backend", "auto"],
        ),
        ("sglang-0.5.9", {"flashinfer-allreduce-fusion-backend": "auto"}, ["--enable-flashinfer-allreduce-fusion"]),
        ("sglang-0.5.22", {"dsa-prefill-cp-mode": "in-seq-split"}, ["--cp-strategy", "zigzag"]),
        ("sglang-0.5.22", {"disable-piecewise-cuda-graph": True}, ["--cuda-graph-backend-prefill", "disabled"]),
        ("sglang-0.5.23", {"monokernel-backend": "amd"}, ["--enable-amd-monokernel"]),
    ],
)
def test_another_releases_name_is_translated_and_said(release: str, given: dict[str, Any], expected: list[str]):
    line = words(given, release)
    place = line.index(expected[0])
    assert line[place : place + len(expected)] == expected
    (finding,) = found(given, release)
    assert (finding.id, finding.level) == ("argument-renamed", "info")
    assert expected[0] in finding.expected


def test_a_value_without_a_counterpart_stays_and_is_refused():
    assert "--flashinfer-allreduce-fusion-backend" in words(
        {"flashinfer-allreduce-fusion-backend": "trtllm"}, "sglang-0.5.9"
    )
    assert ids({"flashinfer-allreduce-fusion-backend": "trtllm"}, "sglang-0.5.9") == ["argument-removed"]


def test_a_translated_option_that_is_off_is_left_out():
    assert "--flashinfer-allreduce-fusion-backend" not in words({"enable-flashinfer-allreduce-fusion": False})
    assert "--cuda-graph-max-bs-decode" not in words({"cuda-graph-max-bs": None})


def test_renames_are_of_options_that_releases_have():
    for rename in renames.RENAMES:
        of_engine = [table for table in TABLES.values() if table.engine == rename.engine]
        assert any(table.find(rename.old) for table in of_engine), rename.old
        assert any(table.find(rename.new) for table in of_engine), rename.new
        new = next(table.find(rename.new) for table in of_engine if table.find(rename.new))
        for value in (rename.values or {}).values():
            every = {choice for table in of_engine for choice in (table.find(rename.new) or new).choices}
            assert isinstance(value, bool) or value in every, (rename.new, value)


def test_the_parsers_own_word_on_a_deprecated_option_is_followed():
    """Where a parser names another option as the replacement, the settings are translated to exactly that one."""
    followed = 0
    for option in TABLES["sglang-0.5.17"].options.values():
        name, _, value = option.instead.partition("=")
        if option.deprecated and name in TABLES["sglang-0.5.17"].options:
            given: Any = True if option.kind == "flag" else (option.choices or ("1",))[0]
            other = renames.translate(TABLES["sglang-0.5.17"], option.name, given)
            if option.name == "enable-gdn-replayssm-spec" or other is not None:
                assert other is not None
                assert other[0] == name
                assert not value or other[1] == value
                followed += 1
    assert followed >= 15


def test_an_option_that_its_engine_calls_deprecated():
    (finding,) = found({"enable-dp-attention": True})
    assert (finding.id, finding.level) == ("argument-deprecated", "warning")
    assert "attn-dp-size" in finding.expected


def test_two_names_of_one_option():
    assert ids({"speculative-draft-model-path": "/a", "speculative_draft_model": "/b"}) == ["argument-twice"]
    assert "argument-twice" in ids({"cuda-graph-max-bs": 1, "cuda-graph-max-bs-decode": 2})


@pytest.mark.parametrize(
    ("name", "release"),
    [("tensor-parallel-size", "sglang-0.5.23"), ("model", "sglang-0.5.23"), ("tensor_parallel_size", "vllm-0.33.0"),
     ("port", "vllm-0.32.0"), ("served-model-name", "vllm-0.33.0"), ("-tp", "sglang-0.5.23")],
)  # fmt: skip
def test_what_the_instance_sets_is_refused_by_every_name(name: str, release: str):
    assert ids({name: "x"}, release) == ["argument-owned"]


# values


@pytest.mark.parametrize(
    ("release", "given", "wanted"),
    [
        ("sglang-0.5.23", {"attention-backend": "flashinfr"}, "did you mean 'flashinfer'?"),
        ("sglang-0.5.9", {"attention-backend": "dsa"}, "one of"),
        ("sglang-0.5.23", {"chunked-prefill-size": "many"}, "a whole number"),
        ("sglang-0.5.23", {"chunked-prefill-size": 1.5}, "a whole number"),
        ("sglang-0.5.23", {"mem-fraction-static": "most"}, "a number"),
        ("sglang-0.5.23", {"enable-metrics": "true"}, "true or false without quotes"),
        ("sglang-0.5.23", {"enable-metrics": 1}, "true or false without quotes"),
        ("sglang-0.5.23", {"attention-backend": True}, "a value"),
        ("sglang-0.5.23", {"chunked-prefill-size": [1, 2]}, "one value"),
        ("sglang-0.5.23", {"cuda-graph-bs-decode": [1, "x"]}, "a whole number"),
        ("sglang-0.5.23", {"mm-process-config": "x"}, "JSON"),
        ("sglang-0.5.23", {"attention-backend": {"a": 1}}, "one of"),
        ("sglang-0.5.23", {"context-length": "long"}, "a number such as"),
        ("vllm-0.33.0", {"enable-prefix-caching": "false"}, "true or false without quotes"),
        ("vllm-0.33.0", {"gpu-memory-utilization": "all"}, "a number"),
        ("vllm-0.33.0", {"dtype": "float31"}, "float32"),
    ],
)
def test_a_value_that_the_parser_would_not_take(release: str, given: dict[str, Any], wanted: str):
    (finding,) = found(given, release)
    assert (finding.id, finding.level) == ("argument-value", "critical")
    assert wanted in finding.expected


def test_values_that_only_the_engine_knows_are_passed_on():
    assert found({"compilation-config.mode": 3, "speculative-config": {"method": "ngram"}}, "vllm-0.33.0") == []
    assert found({"speculative-algorithm": "SOMETHING"}) == []


def test_a_switch_is_turned_off_by_its_own_name_in_each_release():
    assert "--no-enable-prefix-caching" in words({"enable-prefix-caching": False}, "vllm-0.32.0")
    assert "--disable-prefix-caching" in words({"enable-prefix-caching": False}, "vllm-0.33.0")
    assert "--enable-custom-all-reduce" in words({"disable-custom-all-reduce": False}, "vllm-0.33.0")
    line = words({"enable-custom-all-reduce": True}, "vllm-0.33.0")
    assert "--disable-custom-all-reduce" not in line
    assert "--enable-custom-all-reduce" in line


def test_how_values_are_written():
    line = words({"middleware": ["a", "b"], "allowed-origins": ["*"], "hf-overrides": {"x": 1}}, "vllm-0.33.0")
    assert " ".join(line).count("--middleware") == 2
    assert line[line.index("--allowed-origins") + 1] == '["*"]'
    assert line[line.index("--hf-overrides") + 1] == '{"x": 1}'
    line = words({"chat-template": "-x", "decode-log-interval": -1})
    assert "--chat-template=-x" in line
    assert line[line.index("--decode-log-interval") + 1] == "-1"


def test_every_type_of_a_table_can_be_judged():
    assert {option.takes for table in TABLES.values() for option in table.options.values()} <= set(checks.TAKES)


def test_the_toolkits_own_arguments_fit_every_release():
    for table in TABLES.values():
        given = {"arguments": dict(engine_args.DEFAULT_ARGUMENTS[table.engine])}
        assert engine_args.check(given, "i", table) == [], table.version


# rules


def settings(rule: rules.Rule, **changed: Any) -> rules.Settings:
    """Return settings for which a rule holds, or that differ in one place."""
    value = rule.values[0] if rule.values else True
    arguments: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    for name, given in [
        *((n, value) for n in rule.options[:1]),
        *((n, v[0] if v else True) for n, v in rule.also.items()),
    ]:
        (environment if name.startswith("env:") else arguments)[name.removeprefix("env:")] = given
    version = rule.until if rule.until != "9999" else rule.since if rule.since != "0" else "0.5.23"
    known: dict[str, Any] = {
        "engine": rule.engine,
        "version": version,
        "scope": "sm120" if rule.scope == "any" else rule.scope,
        "ranks": rule.ranks[0] if rule.ranks else 3 if rule.not_ranks else 8,
        "arguments": arguments,
        "environment": environment,
        "own": frozenset(arguments),
    }
    return rules.Settings(**{**known, **changed})


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: f"{rule.engine}-{rule.id}")
def test_every_rule_holds_where_it_says_and_nowhere_else(rule: rules.Rule):
    right = settings(rule)
    assert rule.id in [finding.id for finding in rules.lint(right, "i")]
    assert rules.holds(rule, settings(rule, engine="vllm" if rule.engine == "sglang" else "sglang")) is None
    if rule.scope != "any":
        assert rules.holds(rule, settings(rule, scope="other")) is None
    if rule.until != "9999":
        assert rules.holds(rule, settings(rule, version="9998")) is None
    if rule.since != "0":
        assert rules.holds(rule, settings(rule, version="0.4.0")) is None
    if rule.ranks or rule.not_ranks:
        assert rules.holds(rule, settings(rule, ranks=4)) is None
    if rule.options or rule.also:
        assert rules.holds(rule, settings(rule, arguments={}, environment={})) is None
    if rule.own:
        assert rules.holds(rule, settings(rule, own=frozenset())) is None
    for name, values in rule.unless.items():
        place = "environment" if name.startswith("env:") else "arguments"
        given = {**getattr(right, place), name.removeprefix("env:"): values[0] if values else True}
        assert rules.holds(rule, settings(rule, **{place: given})) is None


def test_rules_are_about_options_that_releases_have_and_values_that_they_take():
    for rule in rules.RULES:
        of_engine = [table for table in TABLES.values() if table.engine == rule.engine]
        for name in (*rule.options, *rule.also, *rule.unless):
            if not name.startswith("env:"):
                having = [option for table in of_engine if (option := table.find(name))]
                assert having, (rule.id, name)
        for value in rule.values:
            known = [
                o for name in rule.options for t in of_engine if not name.startswith("env:") and (o := t.find(name))
            ]
            assert not known or any(not o.choices or str(value) in o.choices for o in known), (rule.id, value)


def test_a_rule_shows_what_was_seen_and_its_source():
    given = settings(rules.RULES[0], arguments={"attention-backend": "trtllm_mla"}, version="0.5.23")
    (finding,) = rules.lint(given, "service_instances[0]")
    assert finding.seen == "attention-backend trtllm_mla, with sglang 0.5.23"
    assert "sglang#24633" in finding.expected
    assert finding.what.startswith("service_instances[0]: ")


def test_values_that_switch_something_off_are_not_something():
    assert not rules.matches("none", rules.ANYTHING)
    assert not rules.matches(False, rules.ANYTHING)
    assert rules.matches("deepep", rules.ANYTHING)
    assert not rules.matches(True, (1,))


# strategies


def known_strategies() -> list[strategies.Strategy]:
    return strategies.load(yaml.safe_load((tables.FOLDER / "strategies.yml").read_text()))


def test_strategies_are_about_options_that_the_linter_knows():
    judged = {rule.id for rule in rules.RULES}
    for each in known_strategies():
        of_engine = [table for table in TABLES.values() if table.engine == each.engine]
        for name in each.settings:
            assert name.startswith("env:") or any(table.find(name) for table in of_engine), (each.name, name)
        assert set(each.rules) <= judged, each.name
        assert all((each.releases, each.sm120, each.why, each.source)), each.name
        if each.verdict == "refused":
            assert each.rules, f"{each.name} is refused, and no rule says so"
            levels = {rule.level for rule in rules.RULES if rule.id in each.rules}
            assert levels & {"critical", "warning"}, each.name


def test_the_strategies_of_the_field_reports_are_all_there():
    names = " ".join(each.name.lower() for each in known_strategies())
    for word in (
        "all-reduce fused", "msccl++ for decode", "msccl++ for prefill", "single-batch", "two-batch", "shared expert",
        "layer-level", "separate streams", "custom fused kernel", "eagle-3", "n-gram", "continuous decode", "fp4 gemm",
        "moe runner", "attention backend",
    ):  # fmt: skip
        assert word in names, word


def test_a_verdict_is_one_of_four():
    row = {"name": "x", "releases": "", "sm120": "", "verdict": "maybe", "why": "", "source": ""}
    with pytest.raises(ValueError, match="maybe"):
        strategies.load([row])


# moves


def move(arguments: dict[str, Any], old: str, new: str) -> tuple[dict[str, str], list[Any]]:
    instance = {"arguments": arguments}
    pair = TABLES[old], TABLES[new]
    states = {row["option"]: row["state"] for row in moves.rows(instance, *pair)}
    return states, list(moves.findings(instance, pair, "sm120", {}, "i"))


def test_what_a_move_means():
    given = {
        "cuda-graph-max-bs": 8,
        "enable-double-sparsity": True,
        "enable-dp-attention": True,
        "attention-backend": "triton",
    }
    states, said = move(given, "sglang-0.5.9", "sglang-0.5.23")
    assert states["cuda-graph-max-bs"] == "renamed"
    assert states["enable-double-sparsity"] == "gone"
    assert states["enable-dp-attention"] == "deprecated"
    assert states["attention-backend"] == states["num-continuous-decode-steps"] == "same"
    levels = {finding.id: finding.level for finding in said}
    assert levels["argument-removed"] == "critical"
    assert levels["argument-renamed"] == "info"
    assert levels["deepgemm-sm120"] == "info"  # 0.5.9 had it, 0.5.23 has not


def test_a_move_reports_a_value_that_is_gone_and_a_default_that_changed():
    _, said = move({"attention-backend": "cutlass_mla"}, "sglang-0.5.17", "sglang-0.5.23")
    assert [finding.id for finding in said if finding.level == "critical"] == ["argument-value"]
    states, said = move({}, "sglang-0.5.9", "sglang-0.5.17")
    assert "default" in states.values()
    assert not [finding for finding in said if finding.level == "critical"]


def test_a_move_that_changes_nothing_says_nothing():
    states, said = move({"attention-backend": "triton"}, "sglang-0.5.23", "sglang-0.5.23")
    assert set(states.values()) == {"same"}
    assert said == []


def test_pins_that_move():
    assert moves.pins(
        {"torch": "2.9.1", "triton": "1"}, {"torch": "2.14.1", "triton": "1", "sgl-deep-gemm": "0.2"}
    ) == [
        {"package": "torch", "now": "2.9.1", "then": "2.14.1"},
        {"package": "sgl-deep-gemm", "now": None, "then": "0.2"},
    ]


# the pages


def test_every_finding_is_in_the_guide():
    text = (ROOT / "docs/engine-args.md").read_text()
    source = (ROOT / "plugins/module_utils/inference/engine_args/checks.py").read_text()
    made = set(re.findall(r'(?:_wrong|Finding)\(\s*"([a-z][a-z0-9-]+)"', source))
    assert len(made) >= 10
    assert [finding for finding in sorted(made) if f"`{finding}`" not in text] == []
    assert [rule.id for rule in rules.RULES if f"`{rule.id}`" not in text] == []
