# SPDX-License-Identifier: Apache-2.0
"""The phases of an engine's life, read from its own log lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from .signature import WordFilter, clean


@dataclass(frozen=True)
class Phase:
    """Lines that tell that a phase has begun. ``words`` and ``pattern`` work as in a signature."""

    name: str
    words: tuple[str, ...]
    pattern: str

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """Return the compiled pattern."""
        return re.compile(self.pattern, re.IGNORECASE)

    def search(self, line: str) -> re.Match[str] | None:
        """Return the match of a line that announces this phase, or None."""
        return self.regex.search(line)


# Wordings: SGLang 0.5.9, 0.5.16 and 0.5.23, vLLM 0.33.0, uvicorn. The first row that matches a line counts.
PHASES: tuple[Phase, ...] = (
    Phase("starting", ("server_args", "initializing"), r"server_args=ServerArgs\(|Initializing a V\d LLM"),
    Phase(
        "initialising communication",
        ("distributed", "nccl", "world_size"),
        r"Init torch distributed begin|is using nccl==|distributed_init_method=|NCCL INFO .*Init START",
    ),
    Phase(
        "loading weights",
        ("load", "loading", "checkpoint"),
        r"Load weight (?:begin|end)|Starting to load model|Loading (?:safetensors|pt|model|weights|.*checkpoint shards)"
        r"|Multi-thread loading|Model loading took",
    ),
    Phase(
        "allocating KV cache",
        ("kv", "memory"),
        r"KV Cache is allocated|Memory pool end|GPU KV cache size|Available KV cache memory",
    ),
    Phase(
        "compiling kernels",
        ("jit", "compiling", "compile", "dynamo", "compilation", "deepgemm"),
        r"DeepGEMM JIT|DeepGEMM warmup|Dynamo bytecode transform|Compiling a graph|torch\.compile took"
        r"|JIT compil|Compile and warming up|Building .*JIT",
    ),
    Phase("autotuning", ("autotune", "autotuning", "autotuner"), r"(?:Running|begin|start)\w*.*autotun|Autotuning"),
    Phase(
        "capturing CUDA graphs",
        ("capture", "capturing", "captured"),
        r"Capture .*(?:cuda graph|decode|prefill).*(?:begin|bs)"
        r"|Capturing (?:batches|CUDA graph|cudagraphs|the model for CUDA graphs|num tokens)",
    ),
    Phase("warming up", ("warmup", "warming", "warm"), r"Start of .*warmup|Running warmup|Warming up|warmup .*begin"),
    Phase("listening", ("uvicorn", "startup"), r"Uvicorn running on|Application startup complete"),
    Phase(
        "serving",
        ("fired", "throughput"),
        r"The server is fired up and ready to roll|Engine \d+: Avg prompt throughput",
    ),
    Phase(
        "draining",
        ("draining", "gracefully", "shutdown"),
        r"Draining requests|Gracefully exiting|draining in-flight requests|shutdown\] API server: shutdown triggered",
    ),
    Phase(
        "stopping",
        ("kill_process_tree", "shutting", "teardown"),
        r"kill_process_tree called|INFO: +Shutting down|Shutting down\.|starting resource teardown",
    ),
)

PHASE_NAMES: tuple[str, ...] = tuple(phase.name for phase in PHASES)
"""The names in the order in which an engine goes through them."""

_FILTER = WordFilter(PHASES)


def phase_of(line: str) -> str | None:
    """Return the phase that this line announces, or None when it tells nothing new."""
    found = _FILTER.first(clean(line))
    return found[0].name if found else None
