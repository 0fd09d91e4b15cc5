# SPDX-License-Identifier: Apache-2.0
"""What is asked of a release by its own Python, in a process of its own. Reads a request from standard input.

The request is JSON: ``engine``, ``packages`` (names), ``models`` (each ``name``, ``path``, ``arguments``: words). The
answer is one JSON object; a question that fails is answered with ``{"error": "..."}``. Nothing is imported before it is
asked for, so that one broken package spoils its own answer alone.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
from typing import Any

GATES = ("is_sm90_supported", "is_sm100_supported", "is_sm120_supported", "is_blackwell")
"""SGLang's own questions about the GPU, by which it chooses kernels."""

_SHOWN = 300


def torch() -> dict[str, Any]:
    """Return version, CUDA, NCCL, the architectures that it has kernels for, and the GPUs that it sees."""
    module = importlib.import_module("torch")
    cuda = module.version.cuda
    seen: dict[str, Any] = {"version": str(module.__version__), "cuda": cuda}
    if cuda is None:
        return seen
    seen["architectures"] = list(module.cuda.get_arch_list())
    nccl = _asked(importlib.import_module("torch.cuda.nccl").version)
    seen["nccl"] = ".".join(map(str, nccl[:3])) if isinstance(nccl, tuple) else None
    seen["gpus"] = module.cuda.device_count()
    if seen["gpus"]:
        seen["capability"] = list(module.cuda.get_device_capability(0))
        seen["name"] = module.cuda.get_device_name(0)
    return seen


def packages(names: list[str]) -> dict[str, str | None]:
    """Return the installed version of each package, None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def gates() -> dict[str, Any]:
    """Return what SGLang answers itself; None for a question that this release doesn't know."""
    utils = importlib.import_module("sglang.srt.utils")
    found: dict[str, Any] = {}
    for name in GATES:
        gate = getattr(utils, name, None)
        found[name] = None if gate is None else bool(gate())
    return found


def fusion(path: str, arguments: list[str]) -> dict[str, Any]:
    """Return whether SGLang fuses the shared expert of this model into its routed ones, and if not, why.

    Asks the decision itself, as the loader does, with the instance's own arguments. Before 0.5.20 it is made while
    weights are loaded and can't be asked.
    """
    with open(f"{path}/config.json", encoding="utf-8") as file:  # noqa: PTH123 - stands alone, on any Python
        config = json.load(file)
    inner = config.get("text_config") or config
    shared = inner.get("n_shared_experts") or inner.get("num_shared_experts") or 0
    facts = {"architecture": (config.get("architectures") or ["?"])[0], "shared_experts": shared}
    if not shared:
        return {**facts, "active": None, "why": "the model has no shared experts"}
    utils = importlib.import_module("sglang.srt.layers.moe.utils")
    if not hasattr(utils, "resolve_shared_experts_config"):
        return {**facts, "active": None, "why": "this release decides while it loads; its log tells"}
    server_args = importlib.import_module("sglang.srt.server_args").prepare_server_args(arguments)
    context = importlib.import_module("sglang.srt.runtime_context")
    context.publish(server_args, role="scheduler")
    utils.initialize_moe_config()
    model_config = importlib.import_module("sglang.srt.configs.model_config").ModelConfig.from_server_args(server_args)
    loader = importlib.import_module("sglang.srt.model_loader.loader")
    model_class, _ = loader.get_model_architecture(model_config)
    reason = getattr(model_class, "shared_experts_fusion_disable_reason", None)
    load_config = importlib.import_module("sglang.srt.configs.load_config").LoadConfig()
    quantization = loader._get_quantization_config(model_config, load_config)
    decided = utils.resolve_shared_experts_config(model_class, model_config.hf_config, quantization)
    why = None
    if not decided.num_fused_shared_experts:
        why = (reason(model_config.hf_config, quantization) if reason else None) or "the arguments switch it off"
    return {**facts, "active": bool(decided.num_fused_shared_experts), "why": why}


def capability() -> dict[str, Any]:
    """Return vLLM's own view of the GPU."""
    platform = importlib.import_module("vllm.platforms").current_platform
    seen = platform.get_device_capability()
    return {"platform": type(platform).__name__, "capability": None if seen is None else [seen.major, seen.minor]}


def _asked(question: Any, *arguments: Any) -> Any:
    try:
        return question(*arguments)
    except BaseException as error:  # a release may even exit while it is imported
        return {"error": f"{type(error).__name__}: {error}"[:_SHOWN]}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answers to all questions that the request has."""
    found: dict[str, Any] = {"torch": _asked(torch), "packages": _asked(packages, request["packages"])}
    if request["engine"] == "sglang":
        found["gates"] = _asked(gates)
        found["fusion"] = {m["name"]: _asked(fusion, m["path"], m["arguments"]) for m in request["models"]}
    else:
        found["platform"] = _asked(capability)
    return found


def main() -> None:
    """Answer on the real standard output; whatever imports print goes to standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    text = json.dumps(answer(json.load(sys.stdin)))
    with os.fdopen(out, "w") as stream:
        stream.write(text)
        stream.flush()
        os._exit(0)  # no destructor of a GPU library has a say any more


if __name__ == "__main__":
    main()
