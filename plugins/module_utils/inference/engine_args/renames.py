# SPDX-License-Identifier: Apache-2.0
"""Options that have another name in another release: settings written for one are rendered for the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .options import Table


@dataclass(frozen=True)
class Rename:
    """One option under an old and a new name. ``values`` maps old to new values where they differ too."""

    engine: str
    old: str
    new: str
    source: str
    values: Mapping[Any, Any] | None = None

    def forward(self, value: Any) -> Any:
        """Return the new name's value for the old one's. Raise KeyError where there is none."""
        return value if self.values is None else self.values[value]

    def backward(self, value: Any) -> Any:
        """Return the old name's value for the new one's. Raise KeyError where there is none."""
        if self.values is None:
            return value
        return {new: old for old, new in self.values.items()}[value]


_ITSELF = "named by the parser of SGLang 0.5.17 itself"


def _same(old: str, new: str, source: str = _ITSELF) -> Rename:
    return Rename("sglang", old, new, source)


def _flag(old: str, new: str, value: str, source: str = _ITSELF) -> Rename:
    """Return the rename of a flag that became one value of an option."""
    return Rename("sglang", old, new, source, {True: value})


def _split(old: str) -> Rename:
    values = {"in-seq-split": "zigzag", "round-robin-split": "interleave"}
    return Rename("sglang", old, "cp-strategy", "help text of cp-strategy in SGLang 0.5.17", values)


RENAMES: tuple[Rename, ...] = (
    _flag(
        "enable-flashinfer-allreduce-fusion", "flashinfer-allreduce-fusion-backend", "auto",
        "help text of the option in SGLang 0.5.17 and 0.5.23",
    ),
    _same("cuda-graph-max-bs", "cuda-graph-max-bs-decode"),
    _same("cuda-graph-bs", "cuda-graph-bs-decode"),
    _same("piecewise-cuda-graph-max-tokens", "cuda-graph-max-bs-prefill"),
    _same("piecewise-cuda-graph-tokens", "cuda-graph-bs-prefill"),
    _same("piecewise-cuda-graph-compiler", "cuda-graph-tc-compiler"),
    _flag("enforce-piecewise-cuda-graph", "cuda-graph-backend-prefill", "tc_piecewise"),
    _flag("disable-piecewise-cuda-graph", "cuda-graph-backend-prefill", "disabled"),
    _flag("enable-breakable-cuda-graph", "cuda-graph-backend-prefill", "breakable"),
    _same("nsa-prefill-backend", "dsa-prefill-backend"),
    _same("nsa-decode-backend", "dsa-decode-backend"),
    _same("stream-output", "incremental-streaming-output"),
    _same("mamba-scheduler-strategy", "mamba-radix-cache-strategy"),
    _same("speculative-dflash-draft-window-size", "speculative-draft-window-size"),
    _same("enable-gdn-replayssm-spec", "enable-linear-replayssm-spec"),
    _same("enable-prefill-context-parallel", "enable-prefill-cp"),
    _same("enable-nsa-prefill-context-parallel", "enable-prefill-cp"),
    _same("enable-dsa-prefill-context-parallel", "enable-prefill-cp"),
    _split("prefill-cp-mode"),
    _split("nsa-prefill-cp-mode"),
    _split("dsa-prefill-cp-mode"),
    Rename(
        "sglang", "monokernel-backend", "enable-amd-monokernel", "named by the parser of SGLang 0.5.23 itself",
        {"amd": True},
    ),
)  # fmt: skip
"""Checked against the tables: a name that no release knows any more or yet is a mistake here."""


def translate(table: Table, name: str, value: Any) -> tuple[str, Any, Rename] | None:
    """Return another release's name and value as this release has them, or None where nothing has to be done.

    A name is translated when this release lacks it or calls it deprecated. A value that has no counterpart under the
    other name is left as it is, so that it is reported.
    """
    option = table.find(name)
    if option is not None and not option.deprecated:
        return None
    for rename, other, convert in _candidates(table, name):
        target = table.find(other)
        if target is None or target.deprecated:
            continue
        try:
            return other, value if value in (None, False) else convert(value), rename
        except (KeyError, TypeError):
            continue
    return None


def _candidates(table: Table, name: str) -> Iterator[tuple[Rename, str, Any]]:
    for rename in RENAMES:
        if rename.engine == table.engine and rename.old == name:
            yield rename, rename.new, rename.forward
        elif rename.engine == table.engine and rename.new == name:
            yield rename, rename.old, rename.backward
