# SPDX-License-Identifier: Apache-2.0
"""The table of the guide about what releases decided before and after the patches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Answers = Mapping[str, Any]
"""What one release answered at one compute capability (tests/proof/ask.py)."""

SM120 = ("12.0", "12.1")
OTHERS = ("8.9", "9.0", "10.0")
FUSION = ("enable_flashinfer_allreduce_fusion", "flashinfer_allreduce_fusion_backend")


def fused(arguments: Mapping[str, Any]) -> bool:
    """Tell whether resolved arguments have the fused all-reduce on."""
    return any(arguments.get(name) for name in FUSION)


def _fusion_gate(answers: Answers) -> str:
    gate = answers["fusion"]
    if gate is None:
        return "none"
    admitted = [name for name, backend in gate.items() if name != "applies" and backend != "refused"]
    if not gate["applies"] or not admitted:
        return "no"
    return "yes" if len(admitted) == len(gate) - 1 else ", ".join(admitted)


def _fused_models(answers: Answers) -> str:
    return ", ".join(model for model in ("mla", "mha", "gpt_oss") if fused(answers[model])) or "none"


DECISIONS: Mapping[str, Callable[[Answers], str]] = {
    "P01 MLA attention": lambda a: a["mla"]["attention_backend"],
    "P02 trtllm_mla": lambda a: "accepted" if a["trtllm_mla"] == "accepted" else "refused",
    "P03 extend tile, width 576": lambda a: "{}x{}".format(*a["extend_tiles"]["576/512"][3:5]),
    "P04 vision tile rows": lambda a: str(a["vit_block"]),
    "P05 DeepGEMM": lambda a: "on" if a["deep_gemm"]["ENABLE_JIT_DEEPGEMM"] else "off",
    "P07 fused all-reduce admitted": _fusion_gate,
    "P08 fusion on by itself for": _fused_models,
}


def table(answers: Mapping[tuple[str, bool, str], Answers]) -> str:
    """Return the Markdown table: one row a release and capability that was asked with and without the patches."""
    rows = [["SGLang", "capability", *DECISIONS], ["---"] * (len(DECISIONS) + 2)]
    for version, patched, capability in answers:
        pair = [answers.get((version, side, capability)) for side in (False, True)]
        if patched and all(pair):
            rows.append([version, capability, *(_cell(decide, pair) for decide in DECISIONS.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _cell(decide: Callable[[Answers], str], pair: list[Any]) -> str:
    before, after = map(decide, pair)
    return before if before == after else f"{before} → **{after}**"
