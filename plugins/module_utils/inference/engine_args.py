# SPDX-License-Identifier: Apache-2.0
"""An instance's settings as the command line and the environment of its engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .findings import Finding
from .program import nearest

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

SECRET = ("api-key", "admin-api-key", "ssl-keyfile-password", "hf-token")
"""Arguments whose value every local user could read in the process list."""


@dataclass(frozen=True)
class Command:
    """A command line and the arguments that were left out of or put in the defaults by the instance."""

    words: tuple[str, ...]
    overridden: Mapping[str, Any]


def command(engine: str, python: str, instance: Mapping[str, Any], model: Mapping[str, Any]) -> Command:
    """Return the engine's command line for an instance.

    ``instance`` has ``port`` and may have ``host``, ``tensor_parallel_size`` and ``arguments`` (name without the dashes
    to value; true for a flag, null to drop a default); ``model`` has ``name`` and ``path``.
    """
    given = {str(key).lstrip("-").replace("_", "-"): value for key, value in (instance.get("arguments") or {}).items()}
    defaults = DEFAULT_ARGUMENTS[engine]
    fixed: dict[str, Any] = {"served-model-name": model["name"]}
    fixed |= {"host": instance.get("host") or "127.0.0.1", "port": instance["port"]}
    size = int(instance.get("tensor_parallel_size") or 1)
    if engine == "sglang":
        words = [python, "-m", "sglang.launch_server", "--model-path", model["path"]]
        fixed["tp-size"] = size
    else:
        words = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model["path"]]
        fixed["tensor-parallel-size"] = size
    for name, value in {**fixed, **defaults, **given}.items():
        words += _words(name, value)
    return Command(tuple(words), {name: given.get(name) for name in defaults if name in given})


def _words(name: str, value: Any) -> list[str]:
    if value is None or value is False:
        return []
    if value is True:
        return [f"--{name}"]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", str(value)]


def check(instance: Mapping[str, Any], where: str) -> list[Finding]:
    """Return what is wrong with an instance's arguments; ``where`` names them for the person who wrote them."""
    findings = []
    for raw in instance.get("arguments") or {}:
        name = str(raw).lstrip("-").replace("_", "-")
        if name in SECRET:
            findings.append(
                Finding(
                    "secret-in-arguments", "critical", "A secret stands in the engine's arguments",
                    seen=f"{where}.arguments.{raw}", expected="no secret in a command line, which every user can read",
                    fix="Remove it; let the gateway check keys.",
                )
            )  # fmt: skip
        elif name in OWNED:
            findings.append(
                Finding(
                    "argument-owned", "critical", "An argument that the service sets itself",
                    seen=f"{where}.arguments.{raw}", expected=f"{where}.{OWNED[name]}",
                    fix=f"Set {OWNED[name]} on the instance instead.",
                )
            )  # fmt: skip
    return findings


def unknown_engine(name: str) -> str:
    """Return the message for an engine that is none of ours."""
    return f"engine {name!r} is none of {', '.join(TITLES)}{nearest(name, TITLES)}"
