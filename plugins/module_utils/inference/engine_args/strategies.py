# SPDX-License-Identifier: Apache-2.0
"""Ways to more speed that were proposed for this hardware, as data: who has them, what SM120 makes of them, the verdict.

docs/strategies.md is written from this table (``scripts/engine-args document``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["default", "try with tune", "refused", "not built here"]
"""What the toolkit does: sets it, leaves it to a measurement, refuses it (or calls it idle), has nothing for it."""


@dataclass(frozen=True)
class Strategy:
    """One row. ``settings`` are options, or variables as ``env:NAME``; ``rules`` judge them."""

    name: str
    releases: str
    sm120: str
    settings: tuple[str, ...]
    verdict: Verdict
    why: str
    source: str
    rules: tuple[str, ...] = ()
    engine: str = "sglang"


STRATEGIES: tuple[Strategy, ...] = (
    Strategy(
        "All-reduce fused with the norm (FlashInfer)", "SGLang 0.5.6 and newer",
        "Crashes where FlashInfer is older than 0.6.17 (0.5.7 switches it on by itself); from 0.5.8 SGLang's gates leave "
        "it off",
        ("enable-flashinfer-allreduce-fusion", "flashinfer-allreduce-fusion-backend"), "refused",
        "Slower at TP4 in the only published run; nothing published at TP8. P07 is the guarded experiment on two GPUs",
        "sglang#15650, sglang pull request 32330, flashinfer#3903", ("fusion-crash-sm120", "fusion-sm120"),
    ),
    Strategy(
        "FlashInfer's all-reduce for PCIe", "SGLang 0.5.22 and newer with FlashInfer 0.7.0; dead before",
        "Made for this case: 2, 4 or 8 GPUs, BF16, small messages. Waits forever where peer access is broken",
        ("env:SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",), "try with tune",
        "8 GPUs on two NUMA nodes: 21.14 to 13.62 ms a token against NCCL as it came; -9 to -14 % on another host, whose "
        "first version lost 2 to 4 % at 8 streams and more. Test peer access first",
        "SGLang 0.5.23 pcie_ipc_ar.py, sglang pull request 34528", ("pcie-ipc-dead", "pcie-ipc-no-p2p", "pcie-ipc-ranks"),
    ),
    Strategy(
        "MSCCL++ for decode", "SGLang 0.5.6 to 0.5.13: in sgl-kernel; from 0.5.14: a package of its own",
        "Nobody has reported it, for or against", ("enable-mscclpp",), "refused",
        "From 0.5.14 the package mscclpp is needed, which no lock holds; before, an unmeasured experiment. An 11 KB decode "
        "message fits the limit",
        "mscclpp#397 (suboptimal on PCIe), SGLang pymscclpp.py", ("mscclpp-unmeasured", "mscclpp-package"),
    ),
    Strategy(
        "MSCCL++ for prefill, beyond 1 MB", "SGLANG_MSCCLPP_MAX_BYTES in SGLang 0.5.6 to 0.5.13; gone since",
        "As above; a 128-token message of 1.38 MB is beyond the limit", ("enable-mscclpp", "env:SGLANG_MSCCLPP_MAX_BYTES"),
        "refused", "Prefill waits for bandwidth, for which MSCCL++ on PCIe has no advantage", "field report B, mscclpp#397",
        ("mscclpp-unmeasured", "mscclpp-package"),
    ),
    Strategy(
        "Single-batch overlap", "SGLang 0.5.6 and newer, the gates unchanged from 0.5.8 to 0.5.23",
        "Only shared experts move to another stream; with tensor parallelism nothing is hidden",
        ("enable-single-batch-overlap", "moe-a2a-backend"), "refused",
        "The all-reduce comes after what it overlaps. P16 forbids opening its gate",
        "SGLang 0.5.9 deepseek_v2.py:638, token_dispatcher/standard.py", ("sbo-without-a2a",),
    ),
    Strategy(
        "Two-batch overlap", "SGLang 0.5.6 and newer", "Refused by SGLang without an expert all-to-all or data-parallel "
        "attention; DeepEP's kernels want NVLink or RDMA", ("enable-two-batch-overlap", "moe-a2a-backend", "attn-dp-size"),
        "refused", "Tensor parallelism has no all-to-all to hide", "SGLang 0.5.23 arg_groups/validation_hook.py",
        ("tbo-without-a2a",),
    ),
    Strategy(
        "Shared expert fused with the routed ones", "SGLang 0.5.6 and newer decides by the model",
        "Runs; GLM-5.2-NVFP4 cannot load with it", ("disable-shared-experts-fusion", "enforce-shared-experts-fusion"),
        "default", "Left to SGLang, but off in the preset glm-5-nvfp4, whose checkpoint leaves the shared expert in BF16",
        "InferenceX pull request 2335, sglang pull request 29580",
    ),
    Strategy(
        "Layer-level pipelining (the next layer's work under this one's all-reduce)", "no release",
        "Would need another model runner; pipeline parallelism (pp-size) is something else", ("pp-size",),
        "not built here", "A rewrite of the engine's layers, not a setting", "field report B, option 6",
    ),
    Strategy(
        "NCCL on separate streams", "no release for tensor parallelism",
        "The all-reduce needs its result at once: a stream of its own hides nothing without a second batch",
        ("enable-two-batch-overlap",), "not built here", "What it would need is the two-batch overlap above",
        "SGLang 0.5.9 communicator.py", ("tbo-without-a2a",),
    ),
    Strategy(
        "A custom fused kernel", "forks only (pcie_oneshot, b12x)",
        "Four GPUs +5 to +11 %; eight across sockets with MTP -4 to -16 %", ("env:SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",),
        "not built here", "What the forks began, FlashInfer's PCIe all-reduce now brings in a release",
        "rtx6kpro wiki, lukealonso/sglang", ("pcie-ipc-dead",),
    ),
    Strategy(
        "The engine's own all-reduce", "all releases", "Off between more than two PCIe GPUs by design; wrong data where it "
        "was forced (P15)", ("disable-custom-all-reduce",), "default", "The toolkit switches it off aloud",
        "SGLang 0.5.23 custom_all_reduce_utils.py:492, sglang#25649, vllm#51513",
        ("instance-custom-all-reduce", "custom-all-reduce-two-gpus"),
    ),
    Strategy(
        "torch's symmetric memory", "SGLang 0.5.6 and newer", "KeyError to 0.5.13; needs multicast, which PCIe lacks",
        ("enable-torch-symm-mem",), "refused", "Useless without NVLink", "SGLang torch_symm_mem.py",
        ("torch-symm-mem-crash", "torch-symm-mem-pcie"),
    ),
    Strategy(
        "EAGLE-3", "SGLang 0.5.6 and newer", "Runs, with a draft model for the exact target",
        ("speculative-algorithm", "speculative-draft-model-path"), "try with tune",
        "Gave nothing for Kimi-K2.5 in the field report. MTP, where a model brings it, gave 95 instead of 50 to 57 tok/s "
        "(GLM-5, a fork)", "field report A, rtx6kpro wiki", ("draft-missing", "speculation-unmeasured"),
    ),
    Strategy(
        "n-gram speculation", "SGLang 0.5.6 and newer", "Runs without a draft model",
        ("speculative-algorithm", "speculative-num-draft-tokens"), "try with tune",
        "Gave nothing in the field report; it depends on how much a text repeats itself", "field report A",
        ("speculation-unmeasured",),
    ),
    Strategy(
        "Continuous decode steps", "SGLang declares the option in every release here",
        "No Python file of 0.5.9, 0.5.17, 0.5.22 or 0.5.23 reads it", ("num-continuous-decode-steps",), "default",
        "Set to 4 because field report A ran so; it changes nothing in these releases", "field report A, the wheels",
        ("continuous-decode-unread",),
    ),
    Strategy(
        "FP4 GEMM backend", "SGLang 0.5.8 and newer: --fp4-gemm-backend; automatic: cuDNN from 0.5.10 to 0.5.12, CUTLASS "
        "before and since", "CUTLASS gave NaN with 0.5.9, cuDNN has its own fault; TensorRT-LLM's is for SM100",
        ("fp4-gemm-backend",), "try with tune", "Wrong only under load: every choice wants the soak test of 64 streams",
        "sglang#20043, flashinfer#3140, #3398", ("fp4-cutlass-nan", "fp4-cudnn-nan", "trtllm-gemm-sm120"),
    ),
    Strategy(
        "MoE runner", "all; automatic for NVFP4 on SM120 from 0.5.13", "flashinfer_cutlass for NVFP4, triton or CUTLASS "
        "for FP8; TensorRT-LLM and CuteDSL are for SM100", ("moe-runner-backend",), "default",
        "Left to SGLang, said aloud in the preset glm-5-nvfp4", "docs/patches.md, P13",
        ("trtllm-gemm-sm120", "deepgemm-runner-sm120"),
    ),
    Strategy(
        "DeepGEMM", "on by itself to 0.5.12; off for SM120 from 0.5.13; on again from 0.5.20 where it can",
        "FP8 kernels fail or are new", ("env:SGLANG_ENABLE_JIT_DEEPGEMM", "fp8-gemm-backend"), "refused",
        "SGLANG_ENABLE_JIT_DEEPGEMM=0 to 0.5.12; the preset deepseek-v3 sets it", "sglang#18870, #39063; docs/patches.md, P05",
        ("deepgemm-sm120", "deepgemm-runner-sm120"),
    ),
    Strategy(
        "Attention backend", "all", "MLA resolves to triton in every release; flashinfer runs with a BF16 KV cache. "
        "trtllm_mla starts and fails at the first prompt; flashmla and cutedsl_mla have no SM120 code",
        ("attention-backend", "prefill-attention-backend", "decode-attention-backend", "kv-cache-dtype"), "default",
        "The toolkit sets flashinfer. Models with sparse attention (DeepSeek-V3.2, GLM-5) need attention-backend: null, as "
        "in the preset glm-5-nvfp4: any name keeps SGLang from choosing dsa",
        "docs/patches.md, P01 and P02; SGLang 0.5.23 model_overrides/deepseek_v2.py:103",
        ("trtllm-mla-sm120", "trtllm-mla-decode-sm120", "attention-not-sm120", "trtllm-mha-before-0.5.10",
         "trtllm-mha-fp8-kv", "fp8-kv-flashinfer-mla"),
    ),
    Strategy(
        "Sparse attention backend", "SGLang 0.5.17 and newer: flashinfer_sparse_mla for GLM-5 with an FP8 KV cache",
        "The other backends fail; DeepSeek-V3.2's automatic choice is one of them",
        ("dsa-prefill-backend", "dsa-decode-backend"), "default", "Left to SGLang, with kv-cache-dtype fp8_e4m3",
        "sglang pull request 26928, sglang#26087, #37105", ("dsa-backend-sm120",),
    ),
    Strategy(
        "Tuned MoE tiles", "SGLANG_MOE_CONFIG_DIR from 0.5.9", "Six files for this card come with 0.5.13 and newer",
        ("env:SGLANG_MOE_CONFIG_DIR",), "try with tune", "Only files for exactly this model, split, card and Triton",
        "docs/patches.md, P14; sglang#17235",
    ),
    Strategy(
        "Dual-batch overlap", "vLLM 0.32.0 and newer", "vLLM refuses it without DeepEP", ("enable-dbo", "all2all-backend"),
        "refused", "DeepEP's kernels want NVLink or RDMA", "vLLM 0.33.0 config/vllm.py", ("dbo-without-a2a",), "vllm",
    ),
)  # fmt: skip


def table(strategies: Iterable[Strategy] = STRATEGIES) -> str:
    """Return the Markdown table of docs/strategies.md."""
    rows = [["strategy", "releases", "on SM120", "setting", "verdict", "why", "source"], ["---"] * 7]
    for each in strategies:
        settings = ", ".join(f"`{name.removeprefix('env:')}`" for name in each.settings)
        rows.append([each.name, each.releases, each.sm120, settings, f"**{each.verdict}**", each.why, each.source])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
