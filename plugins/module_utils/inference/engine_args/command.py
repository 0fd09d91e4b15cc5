# SPDX-License-Identifier: Apache-2.0
"""An instance's arguments by name, and the words of the command line that starts its engine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import redact
from .options import Option, Table, words
from .renames import Rename, translate

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
    # Without a time to end, vLLM cuts its streams when it is told to stop. Ten seconds below service_drain's default:
    # it ends its workers only then, and waits without limit for connections whose requests it has dropped.
    "vllm": {"disable-custom-all-reduce": True, "shutdown-timeout": 50},
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


def is_secret(name: str, value: Any) -> bool:
    """Say whether a setting shows a secret: by its name, if its value is a text, or by the form of the value."""
    texts = [text for text in (value if isinstance(value, list) else [value]) if isinstance(text, str)]
    return any(SECRET.fullmatch(name) or redact.secret_names(f"{name}={text}") for text in texts)


@dataclass(frozen=True)
class Argument:
    """One argument as the release gets it. ``given`` is the name that was written, ``rename`` why it has another."""

    name: str
    value: Any
    given: str
    option: Option | None
    rename: Rename | None = None


def plain_name(name: object) -> str:
    """Return the name of an option without the leading dashes, written with dashes."""
    base, dot, key = str(name).lstrip("-").partition(".")
    return base.replace("_", "-") + dot + key


def arguments(engine: str, instance: Mapping[str, Any]) -> dict[str, Any]:
    """Return an instance's arguments over the engine's defaults, by name without the leading dashes."""
    given = {plain_name(key): value for key, value in (instance.get("arguments") or {}).items()}
    return {**DEFAULT_ARGUMENTS[engine], **given}


def resolve(name: str, value: Any, table: Table | None) -> Argument:
    """Return an argument under the release's own name: another release's name and further names are translated."""
    if table is None:
        return Argument(name, value, name, None)
    found = translate(table, name, value)
    if found:
        other, value, rename = found
        return Argument(other, value, name, table.find(other), rename)
    option = table.find(name)
    whole = option is not None and name not in option.off and "." not in name
    return Argument(option.name if option and whole else name, value, name, option)


def resolved(engine: str, instance: Mapping[str, Any], table: Table | None) -> dict[str, Argument]:
    """Return an instance's arguments over the engine's defaults, as this release has them.

    A default under another name of the same option is replaced too. An option that turns off what another name of it
    turns on comes last, as it was written.
    """
    found: dict[str, Argument] = {}
    given = {plain_name(key): value for key, value in (instance.get("arguments") or {}).items()}
    for name, value in [*DEFAULT_ARGUMENTS[engine].items(), *given.items()]:
        argument = resolve(name, value, table)
        if argument.option is not None and argument.name in argument.option.off:
            found.pop(argument.option.name, None)
        found[argument.name] = argument
    return found


def command(
    engine: str, python: str, instance: Mapping[str, Any], model: Mapping[str, Any], table: Table | None = None
) -> list[str]:
    """Return the engine's command line for an instance, as words.

    ``instance`` has ``port`` and may have ``host``, ``tensor_parallel_size`` and ``arguments`` (name without the dashes
    to value; true for a flag, null to drop a default, false to turn a switch off); ``model`` has ``name`` and ``path``.
    With the release's ``table``, options are written under the names that this release has.
    """
    fixed: dict[str, Any] = {"served-model-name": model["name"]}
    fixed |= {"host": instance.get("host") or "127.0.0.1", "port": instance["port"]}
    size = int(instance.get("tensor_parallel_size") or 1)
    if engine == "sglang":
        line = [python, "-m", "sglang.launch_server", "--model-path", model["path"]]
        fixed["tp-size"] = size
    else:
        line = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model["path"]]
        fixed["tensor-parallel-size"] = size
    for name, value in fixed.items():
        line += words(None, name, value)
    for argument in resolved(engine, instance, table).values():
        line += words(argument.option, argument.name, argument.value)
    return line


def gpus_needed(engine: str, instance: Mapping[str, Any]) -> int:
    """Return how many GPUs an instance spans: tensor, pipeline and data parallelism multiply.

    With SGLang's data-parallel attention the replicas share the tensor-parallel GPUs.
    """
    given = arguments(engine, instance)
    replicas = 1 if given.get("enable-dp-attention") else _first(given, DATA)
    return int(instance.get("tensor_parallel_size") or 1) * _first(given, PIPELINE) * replicas


def _first(given: Mapping[str, Any], names: Sequence[str]) -> int:
    return next((given[name] for name in names if isinstance(given.get(name), int) and given[name] > 0), 1)
