# SPDX-License-Identifier: Apache-2.0
"""An instance's settings as the command line and the environment of its engine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from . import redact
from .findings import Finding

TITLES = {"sglang": "SGLang", "vllm": "vLLM"}
"""Engines, and how their makers write them."""

DEFAULT_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    # SGLang's automatic choice of attention backend asks for compute capability 10 only, so 12.0 falls to triton;
    # trtllm_mla is accepted and then fails at prefill (sglang#24633). Custom all-reduce is for NVLink.
    "sglang": {
        "attention-backend": "flashinfer",
        "num-continuous-decode-steps": 4,
        "disable-custom-all-reduce": True,
    },
    "vllm": {"disable-custom-all-reduce": True},
}
"""Arguments for SM120 on PCIe, by engine. An instance overrides one by name and drops one with null."""

OWNED = {
    "model-path": "model",
    "model": "model",
    "served-model-name": "name of the model",
    "host": "host",
    "port": "port",
    "tp": "tensor_parallel_size",
    "tp-size": "tensor_parallel_size",
    "tensor-parallel-size": "tensor_parallel_size",
}
"""Arguments that the service renders itself, and the instance's key that sets each."""

SECRET = re.compile(rf"(?:.*[_-])?(?:{redact.SENSITIVE_NAME}|key|token|password|passwd|secret|credentials?)", re.I)
"""Names of settings whose value, where it is a text, is a secret; some names count tokens."""

PIPELINE = ("pp-size", "pipeline-parallel-size", "pp")
DATA = ("dp-size", "data-parallel-size", "dp")
"""Names of the arguments that multiply the GPUs of an instance."""

RUNS_FOREIGN_CODE = "trust-remote-code"
"""The argument that makes an engine run Python that ships with the weights."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")


def is_secret(name: str, value: Any) -> bool:
    """Say whether a setting shows a secret: by its name, if its value is a text, or by the form of the value."""
    texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
    return any(SECRET.fullmatch(name) or redact.secret_names(f"{name}={text}") for text in texts)


def arguments(engine: str, instance: Mapping[str, Any]) -> dict[str, Any]:
    """Return an instance's arguments over the engine's defaults, by name without the leading dashes."""
    given = {_plain(key): value for key, value in (instance.get("arguments") or {}).items()}
    return {**DEFAULT_ARGUMENTS[engine], **given}


def command(engine: str, python: str, instance: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    """Return the engine's command line for an instance, as words.

    ``instance`` has ``port`` and may have ``host``, ``tensor_parallel_size`` and ``arguments`` (name without the dashes
    to value; true for a flag, null or false to drop a default); ``model`` has ``name`` and ``path``.
    """
    fixed: dict[str, Any] = {"served-model-name": model["name"]}
    fixed |= {"host": instance.get("host") or "127.0.0.1", "port": instance["port"]}
    size = int(instance.get("tensor_parallel_size") or 1)
    if engine == "sglang":
        words = [python, "-m", "sglang.launch_server", "--model-path", model["path"]]
        fixed["tp-size"] = size
    else:
        words = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model["path"]]
        fixed["tensor-parallel-size"] = size
    for name, value in {**fixed, **arguments(engine, instance)}.items():
        words += _words(name, value)
    return words


def gpus_needed(engine: str, instance: Mapping[str, Any]) -> int:
    """Return how many GPUs an instance spans: tensor, pipeline and data parallelism multiply.

    With SGLang's data-parallel attention the replicas share the tensor-parallel GPUs.
    """
    given = arguments(engine, instance)
    replicas = 1 if given.get("enable-dp-attention") else _first(given, DATA)
    return int(instance.get("tensor_parallel_size") or 1) * _first(given, PIPELINE) * replicas


def _first(given: Mapping[str, Any], names: Sequence[str]) -> int:
    return next((given[name] for name in names if isinstance(given.get(name), int) and given[name] > 0), 1)


def _plain(name: object) -> str:
    return str(name).lstrip("-").replace("_", "-")


def _words(name: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    if isinstance(value, Mapping):
        return [f"--{name}", json.dumps(value)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", str(value)]


def check(instance: Mapping[str, Any], where: str) -> list[Finding]:
    """Return what is wrong with an instance's arguments; ``where`` names them for the person who wrote them."""
    findings: list[Finding] = []
    seen: set[str] = set()
    for raw, value in (instance.get("arguments") or {}).items():
        name = _plain(raw)
        findings += _check_argument(name, value, f"{where}.arguments.{raw}")
        if name in seen:
            findings.append(_wrong("argument-twice", f"{where}.arguments.{raw}", "each argument once"))
        seen.add(name)
    return findings


def _check_argument(name: str, value: Any, where: str) -> list[Finding]:
    if not _NAME.fullmatch(name):
        return [_wrong("argument-name", where, "the name of an option, such as context-length")]
    # both engines' parsers take the beginning of an option's name for the option
    owned = next((o for o in OWNED if o == name or (len(name) > 1 and o.startswith(name))), None)
    if owned:
        return [_wrong("argument-owned", where, f"{OWNED[owned]} of the instance, which sets --{owned}")]
    if is_secret(name, value):
        return [_wrong("secret-in-arguments", where, "no secret in a command line, which every local user can read")]
    if isinstance(value, list) and not value:
        return [_wrong("argument-empty", where, "a value, true for a flag, or null to leave the option out")]
    if name == RUNS_FOREIGN_CODE and value:
        return [
            Finding(
                "trust-remote-code", "warning", "The engine runs code that ships with the weights",
                seen=where, expected="an engine that knows the model's architecture itself",
                fix="Remove it if the engine does; else read the code and keep the weights where only root can write.",
            )
        ]  # fmt: skip
    return []


_FIXES = {
    "argument-name": "Correct the name.",
    "argument-owned": "Set it there and remove it here.",
    "argument-twice": "Remove one; dashes and underscores are the same.",
    "argument-empty": "Give it a value or remove it.",
    "secret-in-arguments": "Remove it; let the gateway check keys.",
}


def _wrong(finding_id: str, seen: str, expected: str) -> Finding:
    return Finding(
        finding_id, "critical", "An argument that cannot be used", seen=seen, expected=expected, fix=_FIXES[finding_id]
    )
