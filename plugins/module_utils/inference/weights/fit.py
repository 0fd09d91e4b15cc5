# SPDX-License-Identifier: Apache-2.0
"""Does a model fit into these GPUs: its weights, and the keys and values of at least one whole context.

An estimate from the configuration and the files' sizes. It leaves out what an engine needs besides (activations, CUDA
graphs, NCCL's buffers): for these, engines keep back the part of the memory that they do not plan with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..findings import Finding

GIB = 1 << 30

DTYPE_BYTES: Mapping[str, int] = {
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "float32": 4,
    "float": 4,
    "bf16": 2,
    "fp16": 2,
}
KV_BYTES: Mapping[str, int] = {
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "float32": 4,
}

FRACTION: Mapping[str, float] = {"sglang": 0.9, "vllm": 0.9}
"""The share of a GPU's memory for weights, keys and values where an instance names none: vLLM's default
(``--gpu-memory-utilization``); SGLang computes its own, at most about that."""


@dataclass(frozen=True)
class Instance:
    """What an instance makes of a model, as far as memory is concerned."""

    name: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    fraction: float = 0.9
    context_length: int | None = None
    kv_cache_dtype: str | None = None


@dataclass(frozen=True)
class Fit:
    """Bytes on one GPU. ``tokens`` is how many of keys and values have room beside the weights."""

    weights: int
    available: int
    token: int
    """Bytes of keys and values that one token takes on one GPU."""
    context: int
    """Tokens of one whole context."""

    @property
    def tokens(self) -> int:
        """How many tokens' keys and values have room; negative when the weights alone do not."""
        return (self.available - self.weights) // self.token if self.token else 0

    def as_text(self) -> str:
        """Return the budget as a line."""
        return (
            f"a GPU: {self.weights / GIB:.1f} GiB of weights of {self.available / GIB:.1f} GiB to plan with; "
            f"{self.token} bytes a token, so that {max(self.tokens, 0):,} tokens have room "
            f"(one context: {self.context:,})"
        )

    def as_dict(self) -> dict[str, int]:
        """Return the JSON form."""
        return {**vars(self), "tokens": self.tokens}


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's part of a configuration; models with vision keep it one level down."""
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(config.get(key), Mapping):
            return dict(config) | dict(config[key])
    return config


def kv_bytes_a_token(config: Mapping[str, Any], instance: Instance) -> int:
    """Return the bytes of keys and values of a token on one GPU. Raises KeyError naming what the configuration lacks.

    With latent attention (MLA: ``kv_lora_rank``) a token is one vector, which every GPU keeps whole; else the heads are
    shared out, at least one a GPU. Layers with a window or without attention count as full ones, so that the estimate
    is never too small.
    """
    part = _text_part(config)
    layers = -(-int(part["num_hidden_layers"]) // instance.pipeline_parallel_size)
    width = KV_BYTES.get(str(instance.kv_cache_dtype)) or DTYPE_BYTES.get(
        str(part.get("torch_dtype") or part.get("dtype")), 2
    )
    if part.get("kv_lora_rank"):
        return layers * (int(part["kv_lora_rank"]) + int(part["qk_rope_head_dim"])) * width
    heads = int(part.get("num_key_value_heads") or part["num_attention_heads"])
    size = int(part.get("head_dim") or int(part["hidden_size"]) // int(part["num_attention_heads"]))
    return layers * 2 * max(1, -(-heads // instance.tensor_parallel_size)) * size * width


def fit(config: Mapping[str, Any], weights: int, instance: Instance, gpu_bytes: int) -> Fit:
    """Return the budget on one GPU of ``gpu_bytes``. Raises KeyError naming what the configuration lacks."""
    part = _text_part(config)
    context = instance.context_length or int(part["max_position_embeddings"])
    shares = instance.tensor_parallel_size * instance.pipeline_parallel_size
    available = int(gpu_bytes * instance.fraction)
    return Fit(-(-weights // shares), available, kv_bytes_a_token(config, instance), context)


def judge(model: str, instance: Instance, found: Fit) -> list[Finding]:
    """Return what is wrong with a budget."""
    where = f"{model} as {instance.name}"
    if found.weights >= found.available:
        return [
            Finding(
                "model-too-large",
                "critical",
                f"the weights of {where} do not fit into its GPUs",
                f"{found.weights / GIB:.1f} GiB a GPU",
                f"less than {found.available / GIB:.1f} GiB",
                "give the instance more GPUs (tensor_parallel_size), or take weights of fewer bits",
            )
        ]
    if found.tokens < found.context:
        return [
            Finding(
                "context-too-long",
                "critical",
                f"one whole context of {where} does not fit beside the weights",
                f"room for {found.tokens:,} tokens",
                f"{found.context:,} tokens",
                "set context-length (vLLM: max-model-len) to what has room, or give the instance more GPUs",
            )
        ]
    return []
