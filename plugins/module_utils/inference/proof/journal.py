# SPDX-License-Identifier: Apache-2.0
"""What an engine's log says that it chose: backends, versions, and where it did not do what was asked.

The lines are those of SGLang 0.5.9 to 0.5.23 and vLLM 0.33.0, taken from their sources (the file is named beside each).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..nccl import log as nccl_log
from ..redact import redact
from ..signatures import REQUEST_LOG

MOST_LINES = 50_000
_SHOWN = 240


@dataclass(frozen=True)
class Told:
    """A line in which an engine tells a choice; the group ``value`` of the pattern is the choice."""

    key: str
    pattern: str
    source: str


TOLD: tuple[Told, ...] = (
    Told("nccl_version", r"(?:sglang|vLLM) is using nccl==(?P<value>[\w.+-]+)", "pynccl.py of both"),
    Told("version", r"Initializing a V1 LLM engine \(v(?P<value>[^)]+)\) with config", "vllm v1/engine/core.py"),
    Told("attention_backend", r"Using (?P<value>\w+) attention backend out of", "vllm platforms/cuda.py"),
    Told("attention_backend", r"Using AttentionBackendEnum\.(?P<value>\w+) backend\.", "vllm platforms/cuda.py"),
    Told(
        "prefill_attention_backend",
        r"Using hybrid attention backend .*prefill_backend=(?P<value>\w+)",
        "sglang attention_backend_setup.py",
    ),
    Told(
        "decode_attention_backend",
        r"Using hybrid attention backend .*decode_backend=(?P<value>\w+)",
        "sglang attention_backend_setup.py",
    ),
    Told("moe_backend", r"Using '?(?P<value>[\w ]+?)'? (?:\w+ )?MoE backend\b", "vllm fused_moe/oracle"),
    Told("sampling_backend", r"Using (?P<value>FlashInfer) for top-p & top-k sampling", "vllm topk_topp_sampler.py"),
    Told("sampling_backend", r"FlashInfer top-p/top-k sampling (?P<value>unavailable|disabled)", "vllm the same"),
    Told("all_reduce", r"(?P<value>FlashInfer PCIe-IPC) all-reduce enabled", "sglang pcie_ipc_ar.py"),
    Told("all_reduce", r"Created (?P<value>MSCCL\+\+) communicator", "sglang pymscclpp.py"),
    Told(
        "all_reduce",
        r"(?P<value>FlashInfer AllReduce Fusion) enabled and workspace",
        "sglang flashinfer_comm_fusion.py",
    ),
    Told("shared_experts_fusion", r"Shared experts fusion optimization is (?P<value>disabled)", "sglang moe/utils.py"),
)

_VLLM_CONFIG = re.compile(r"Initializing a V1 LLM engine .*? with config: (.*)")
_VLLM_PAIR = re.compile(
    r"\b(dtype|max_seq_len|load_format|tensor_parallel_size|pipeline_parallel_size|data_parallel_size"
    r"|disable_custom_all_reduce|quantization|kv_cache_dtype|enforce_eager|enable_prefix_caching)=([\w./-]+)"
)
_VLLM_NAMES = {"max_seq_len": "max_model_len"}
"""Where vLLM's line calls a setting otherwise than its option does."""

_NOTHING = {"None": None, "True": True, "False": False}


@dataclass(frozen=True)
class Feature:
    """Something that has to be asked for and that an engine leaves off without failing when it can't have it."""

    name: str
    options: tuple[str, ...]
    """Options that ask for it."""
    variables: tuple[str, ...]
    """Variables that ask for it with 1, true, yes or on."""
    on: str
    """Pattern of the line that says that it is on; empty where the engine says nothing."""
    off: str
    """Pattern of the lines that say that it is not."""
    without: tuple[str, ...] = ()
    """Options (``name``, or ``name=value``) with which nobody expects it."""


FEATURES: tuple[Feature, ...] = (
    Feature(
        "FlashInfer's PCIe-IPC all-reduce",
        (),
        ("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",),
        r"PCIe-IPC workspace built",
        r"no pcie_ipc_comm|PCIe-IPC workspace .*failed|leaving PCIe-IPC all-reduce off|PCIe-IPC all-reduce skipped",
    ),
    Feature(
        "MSCCL++ all-reduce",
        ("enable_mscclpp",),
        (),
        r"Created MSCCL\+\+ communicator",
        r"PyMscclpp is (?:unavailable|disabled)|did not produce any usable tuned",
    ),
    Feature(
        "FlashInfer's fused all-reduce",
        ("enable_flashinfer_allreduce_fusion", "flashinfer_allreduce_fusion_backend"),
        (),
        r"AllReduce Fusion enabled and workspace",
        r"AllReduce fusion disabled|Skipping allreduce fusion|FlashInfer comm not available"
        r"|allreduce_fusion API is not available",
    ),
    Feature(
        "PyTorch's symmetric-memory all-reduce",
        ("enable_torch_symm_mem",),
        (),
        "",
        r"TorchSymmMemCommunicator: .*(?:not available|not supported)",
    ),
    Feature(
        "the engine's implementation of the model",
        (),
        (),
        "",
        r"no SGLang implementation, falling back to Transformers",
    ),
    Feature(
        "CUDA graphs",
        (),
        (),
        "",
        r"Cuda graph is disabled because",
        ("disable_cuda_graph", "device=cpu"),
    ),
)
"""A feature without options and variables is always asked for."""

_FALLBACK = re.compile(r"\bfall(?:s|ing|en)?[ -]?back\b", re.IGNORECASE)
_UNIMPORTANT = re.compile(
    r"fallback token IDs|loopback address as fallback|torch_memory_saver|fast tokenizer|generation config"
    r"|chat template",
    re.IGNORECASE,
)
"""Fallbacks that say nothing about which kernels run."""

_DECORATION = re.compile(
    r"^(?:\(\w+ pid=\d+\)\s*)?(?:\[[^\]]*\]\s*)?(?:(?:INFO|WARNING|ERROR) \S+ \S+ )?(?:\[[\w.]+:\d+\]\s*)?"
)


@dataclass
class Journal:
    """What the lines since the start tell. Empty where they tell nothing."""

    told: dict[str, list[str]] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    """vLLM's own line of settings, by its options' names."""
    on: dict[str, str] = field(default_factory=dict)
    """Features that a line says are on."""
    off: dict[str, str] = field(default_factory=dict)
    """Features that a line says are not, with the line."""
    fallbacks: list[str] = field(default_factory=list)
    """Other lines that speak of a fallback, each once."""
    nccl: nccl_log.Facts = field(default_factory=nccl_log.Facts)
    lines: int = 0


_TOLD = tuple((row.key, re.compile(row.pattern)) for row in TOLD)
_FEATURES = tuple((row, re.compile(row.on) if row.on else None, re.compile(row.off)) for row in FEATURES)


def parse(lines: Iterable[str]) -> Journal:
    """Read a log. Lines that say nothing known don't matter; nothing raises."""
    journal = Journal()
    of_nccl: list[str] = []
    for line in lines:
        journal.lines += 1
        if REQUEST_LOG.search(line):  # a user's words are no line of the engine's
            continue
        if "NCCL " in line or " |" in line:
            of_nccl.append(line)
        _choices(journal, line)
        _features(journal, line)
    journal.nccl = nccl_log.parse("\n".join(of_nccl))
    return journal


def _choices(journal: Journal, line: str) -> None:
    for key, pattern in _TOLD:
        found = pattern.search(line)
        if found:
            values = journal.told.setdefault(key, [])
            if found["value"] not in values:
                values.append(found["value"])
    config = _VLLM_CONFIG.search(line)
    if config and not journal.settings:
        journal.settings = dict(_vllm_settings(config[1]))


def _vllm_settings(text: str) -> Iterator[tuple[str, object]]:
    for name, value in _VLLM_PAIR.findall(text):
        yield _VLLM_NAMES.get(name, name), _NOTHING.get(value, value)


def _features(journal: Journal, line: str) -> None:
    for feature, on, off in _FEATURES:
        if on and on.search(line):
            journal.on.setdefault(feature.name, shown(line))
        if off.search(line):
            journal.off.setdefault(feature.name, shown(line))
            return
    if _FALLBACK.search(line) and not _UNIMPORTANT.search(line) and shown(line) not in journal.fallbacks:
        journal.fallbacks.append(shown(line))


def shown(line: str) -> str:
    """Return a line without time, place and secrets, shortened."""
    return redact(_DECORATION.sub("", line.strip()))[:_SHOWN]


def asked_for(feature: Feature, options: Mapping[str, object], variables: Mapping[str, str]) -> str | None:
    """Return what asks for a feature, or None. ``--flashinfer-allreduce-fusion-backend none`` asks for nothing."""
    if any(_given(options, wanted) for wanted in feature.without):
        return None
    if not feature.options and not feature.variables:
        return "the deployment"
    for name in feature.options:
        if str(options.get(name, "none")).lower() not in ("none", "false", "auto"):
            return f"--{name.replace('_', '-')}"
    return next((f"{n}={variables[n]}" for n in feature.variables if _is_on(variables.get(n))), None)


def _given(options: Mapping[str, object], wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    return name in options and (not equals or options[name] == value)


def _is_on(value: str | None) -> bool:
    return (value or "").lower() in ("1", "true", "yes", "on")


def log_level_hides(options: Mapping[str, object]) -> bool:
    """Return whether the engine was told to log less than what says what is on."""
    levels: Sequence[str] = ("warning", "error", "critical")
    return str(options.get("log_level", "info")).lower() in levels
