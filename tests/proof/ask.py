# SPDX-License-Identifier: Apache-2.0
"""Ask one SGLang release, with one pretended compute capability, what it decides; print one JSON object.

Usage: ask.py CAPABILITY CONFIGS, with the release's site-packages on PYTHONPATH. A question that the release does not
know is answered with null; one that fails is answered with {"error": ...}.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pretend_gpu

HEADS = ((64, 64), (128, 128), (192, 128), (256, 256), (576, 512))
"""Query and value widths of a head; 576 and 512 are DeepSeek's and Kimi's."""

SIMPLE = (str, int, float, bool, type(None))


def module(*names: str) -> ModuleType | None:
    """Return the first of the modules that the release has."""
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
    return None


class Resolver:
    """Resolves real ServerArgs for small model configurations."""

    def __init__(self, configs: Path) -> None:
        self.configs = configs

    def __call__(self, model: str, **options: Any) -> dict[str, Any]:
        """Return the resolved arguments that are plain values."""
        from sglang.srt.server_args import ServerArgs

        arguments = ServerArgs(model_path=str(self.configs / model), tp_size=8, device="cuda", **options)
        view: Any = arguments
        if hasattr(arguments, "resolve_once"):
            arguments.resolve_once()
            from sglang.srt.arg_groups.overrides import resolved_view

            view = resolved_view(arguments)
        names = getattr(type(arguments), "__dataclass_fields__", None) or getattr(
            type(arguments), "__annotations__", {}
        )
        values = {name: getattr(view, name, None) for name in names}
        return {n: v for n, v in sorted(values.items()) if isinstance(v, SIMPLE) and n not in ("random_seed", "port")}

    def verdict(self, model: str, **options: Any) -> str:
        """Return ``accepted`` or the refusal's message."""
        try:
            self(model, **options)
        except ValueError as error:
            return str(error)
        return "accepted"


class Launch:
    """Stands for a Triton kernel and keeps the arguments of its launch."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    def __getitem__(self, _grid: Any) -> Callable[..., None]:
        """Return what launches the kernel on a grid."""
        return lambda *_, **options: self.options.update(options)


def vit_block() -> int | None:
    """Return the rows of a tile that the vision prefill hands to its kernel."""
    attention = module(
        "sglang.kernels.ops.attention.prefill_attention", "sglang.srt.layers.attention.triton_ops.prefill_attention"
    )
    if attention is None:
        return None
    import torch

    launch = Launch()
    attention._fwd_kernel = launch
    q = torch.zeros(16, 2, 64)
    attention.context_attention_fwd(q, q, q, q, torch.tensor([0]), torch.tensor([16]), 16)
    return launch.options["BLOCK_M"]


def extend_tiles() -> dict[str, Any] | None:
    """Return the tile sizes of extend attention by head width."""
    attention = module(
        "sglang.kernels.ops.attention.extend_attention", "sglang.srt.layers.attention.triton_ops.extend_attention"
    )
    if attention is None:
        return None
    return {f"{q}/{v}": list(attention._get_block_sizes_for_extend_attention(q, v)) for q, v in HEADS}


def deep_gemm() -> dict[str, bool] | None:
    """Return the flags of DeepGEMM."""
    configurer = module("sglang.srt.layers.deep_gemm_wrapper.configurer")
    names = ("ENABLE_JIT_DEEPGEMM", "DEEPGEMM_SCALE_UE8M0")
    return None if configurer is None else {name: bool(getattr(configurer, name)) for name in names}


def fusion_gate() -> dict[str, Any] | None:
    """Return whether the fused all-reduce runs once it is asked for, and which backend it resolves to."""
    owner = module("sglang.srt.layers.layer_boundary.residual.add_norm", "sglang.srt.layers.communicator")
    fusion = module("sglang.srt.layers.flashinfer_comm_fusion")
    applies = getattr(owner, "flashinfer_ar_fusion_applies", None) or getattr(
        owner, "apply_flashinfer_allreduce_fusion", None
    )
    if owner is None or fusion is None or applies is None or not hasattr(fusion, "_resolve_backend"):
        return None
    comm = SimpleNamespace(flashinfer_allreduce_fusion_backend="trtllm")
    settled = {
        "get_exec": lambda: SimpleNamespace(comm=comm),
        "get_global_server_args": lambda: comm,
        "is_dp_attention_enabled": lambda: False,
        "is_flashinfer_allreduce_unavailable": lambda: False,
        "uses_cutedsl_ar_fusion": lambda: False,
        "_is_flashinfer_available": True,
    }
    for name, value in settled.items():
        if hasattr(owner, name):
            setattr(owner, name, value)
    answers: dict[str, Any] = {"applies": bool(applies(8))}
    for tp in (2, 8):
        fusion.get_parallel = lambda tp=tp: SimpleNamespace(tp_size=tp, nnodes=1)
        for backend in ("trtllm", "auto"):
            answers[f"{backend}, tp {tp}"] = outcome(fusion._resolve_backend, backend, False)
    return answers


def outcome(act: Callable[..., Any], *arguments: Any) -> str:
    """Return what a call answers, or ``refused``."""
    try:
        return str(act(*arguments))
    except ValueError:
        return "refused"


def capabilities() -> dict[str, bool]:
    """Return SGLang's own names for the GPU."""
    common = importlib.import_module("sglang.srt.utils.common")
    return {
        name: bool(getattr(common, name)())
        for name in ("is_sm90_supported", "is_sm100_supported", "is_sm120_supported")
    }


def answered(ask: Callable[[], Any]) -> Any:
    """Return the answer, or what went wrong."""
    try:
        return ask()
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Ask everything and print the answers."""
    capability, configs = sys.argv[1], Path(sys.argv[2])
    major, minor = capability.split(".")
    pretend_gpu.install((int(major), int(minor)))
    logging.disable(logging.CRITICAL)
    resolve = Resolver(configs)
    mla = {"attention_backend": "trtllm_mla"}
    questions: dict[str, Callable[[], Any]] = {
        "capabilities": capabilities,
        "mla": lambda: resolve("deepseek_v3"),
        "mla_fp8_kv": lambda: resolve("deepseek_v3", kv_cache_dtype="fp8_e4m3"),
        "mha": lambda: resolve("qwen3_moe"),
        "gpt_oss": lambda: resolve("gpt_oss"),
        "trtllm_mla": lambda: resolve.verdict("deepseek_v3", **mla),
        "trtllm_mla_decode": lambda: resolve.verdict("deepseek_v3", decode_attention_backend="trtllm_mla"),
        "trtllm_mla_prefill": lambda: resolve.verdict("deepseek_v3", prefill_attention_backend="trtllm_mla"),
        "vit_block": vit_block,
        "extend_tiles": extend_tiles,
        "deep_gemm": deep_gemm,
        "fusion": fusion_gate,
    }
    out, sys.stdout = sys.stdout, sys.stderr  # what SGLang prints is not an answer
    answers = {name: answered(ask) for name, ask in questions.items()}
    json.dump(answers, out)
    out.flush()  # SGLang may end the process its own way


if __name__ == "__main__":
    main()
