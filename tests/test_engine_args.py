# SPDX-License-Identifier: Apache-2.0
"""The command line of an engine, and arguments that an instance may not have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference import engine_args

MODEL = {"name": "kimi-k2.5", "path": "/srv/models/kimi"}


def words(arguments: dict[str, Any] | None = None, engine: str = "sglang", **instance: Any) -> list[str]:
    given = {"port": 30000, "arguments": arguments, **instance}
    return engine_args.command(engine, "/r/venv/bin/python", given, MODEL)


def value(command: list[str], option: str) -> str:
    return command[command.index(option) + 1]


def ids(arguments: dict[str, Any]) -> list[str]:
    return [finding.id for finding in engine_args.check({"arguments": arguments}, "service_instances[0]")]


def test_sglang_is_started_from_its_release_with_the_settings_for_sm120():
    command = words(tensor_parallel_size=8)
    assert command[:5] == ["/r/venv/bin/python", "-m", "sglang.launch_server", "--model-path", "/srv/models/kimi"]
    assert value(command, "--served-model-name") == "kimi-k2.5"
    assert value(command, "--tp-size") == "8"
    assert (value(command, "--host"), value(command, "--port")) == ("127.0.0.1", "30000")
    assert value(command, "--attention-backend") == "flashinfer"
    assert value(command, "--num-continuous-decode-steps") == "4"
    assert "--disable-custom-all-reduce" in command


def test_vllm_has_its_own_names():
    command = words(engine="vllm", tensor_parallel_size=4)
    assert command[2:5] == ["vllm.entrypoints.openai.api_server", "--model", "/srv/models/kimi"]
    assert value(command, "--tensor-parallel-size") == "4"
    assert "--attention-backend" not in command
    assert "--disable-custom-all-reduce" in command


def test_defaults_for_what_an_instance_leaves_open_or_null():
    command = words(host=None, tensor_parallel_size=None)
    assert value(command, "--host") == "127.0.0.1"
    assert value(command, "--tp-size") == "1"


@pytest.mark.parametrize("name", ["attention-backend", "attention_backend", "--attention-backend"])
def test_an_argument_replaces_the_default_however_it_is_written(name: str):
    command = words({name: "triton"})
    assert command.count("--attention-backend") == 1
    assert value(command, "--attention-backend") == "triton"


@pytest.mark.parametrize("nothing", [None, False])
def test_a_default_is_dropped_with_null_or_false(nothing: Any):
    assert "--disable-custom-all-reduce" not in words({"disable-custom-all-reduce": nothing})


def test_every_kind_of_value():
    command = words({"flag": True, "n": 4, "share": 0.85, "many": [1, "b"], "config": {"a": {"b": 1}}, "text": "a b"})
    assert "--flag" in command
    assert value(command, "--n") == "4"
    assert value(command, "--share") == "0.85"
    assert command[command.index("--many") : command.index("--many") + 3] == ["--many", "1", "b"]
    assert json.loads(value(command, "--config")) == {"a": {"b": 1}}
    assert value(command, "--text") == "a b"
    assert all(isinstance(word, str) for word in command)


@pytest.mark.parametrize(
    ("engine", "instance", "expected"),
    [
        ("sglang", {}, 1),
        ("sglang", {"tensor_parallel_size": 8}, 8),
        ("sglang", {"tensor_parallel_size": 4, "arguments": {"pp-size": 2}}, 8),
        ("sglang", {"tensor_parallel_size": 4, "arguments": {"dp_size": 2}}, 8),
        ("sglang", {"tensor_parallel_size": 8, "arguments": {"dp-size": 8, "enable-dp-attention": True}}, 8),
        ("vllm", {"tensor_parallel_size": 2, "arguments": {"data-parallel-size": 2, "pipeline-parallel-size": 2}}, 8),
        ("vllm", {"tensor_parallel_size": 2, "arguments": {"data-parallel-size": "auto"}}, 2),
    ],
)
def test_gpus_needed(engine: str, instance: dict[str, Any], expected: int):
    assert engine_args.gpus_needed(engine, instance) == expected


def test_right_arguments_have_no_findings():
    right = {"context-length": 131072, "kv_cache_dtype": "fp8_e5m2", "max-total-tokens": 9, "tokenizer-path": "/srv/x"}
    right |= {"bucket-time-to-first-token": [0.1, 0.2], "enable-metrics": True, "reasoning-parser": None}
    assert ids(right) == []
    assert engine_args.check({}, "x") == []
    assert engine_args.check({"arguments": None}, "x") == []


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "model-path",
        "host",
        "port",
        "tp",
        "tp-size",
        "tp_size",
        "--port",
        "tensor-parallel-size",
        "served-model",
    ],
)
def test_what_the_service_sets_is_refused_also_abbreviated(name: str):
    (finding,) = engine_args.check({"arguments": {name: "x"}}, "service_instances[2]")
    assert (finding.id, finding.level) == ("argument-owned", "critical")
    assert finding.seen == f"service_instances[2].arguments.{name}"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("api-key", "abc"),
        ("api_key", ["abc", "def"]),
        ("admin-api-key", "abc"),
        ("hf-token", "abc"),
        ("ssl-keyfile-password", "abc"),
        ("extra", "hf_ABCDEFGHIJKLMNOPQRST"),
    ],
)
def test_a_secret_is_refused_and_not_shown(name: str, secret: Any):
    (finding,) = engine_args.check({"arguments": {name: secret}}, "x")
    assert (finding.id, finding.level) == ("secret-in-arguments", "critical")
    assert "abc" not in str(finding)
    assert "ABCDEF" not in str(finding)


def test_code_from_the_weights_is_a_warning():
    (finding,) = engine_args.check({"arguments": {"trust_remote_code": True}}, "x")
    assert (finding.id, finding.level) == ("trust-remote-code", "warning")
    assert ids({"trust-remote-code": False}) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"context length": 1}, "argument-name"),
        ({"": 1}, "argument-name"),
        ({"a=b": True}, "argument-name"),
        ({"a-b": 1, "a_b": 2}, "argument-twice"),
        ({"cuda-graph-bs": []}, "argument-empty"),
    ],
)
def test_what_no_engine_can_read(arguments: dict[str, Any], expected: str):
    assert ids(arguments) == [expected]
