# SPDX-License-Identifier: Apache-2.0
"""Lines that look alarming and mean nothing. They are tried first, so they can never be a cause."""

from __future__ import annotations

from .signature import Signature

_NOTHING = "nothing to do"


def _harmless(name: str, words: tuple[str, ...], pattern: str, what: str, source: str) -> Signature:
    return Signature(
        name, "info", "harmless", words, pattern, what, "this line in a healthy run", _NOTHING, source, "harmless"
    )


HARMLESS_SIGNATURES: tuple[Signature, ...] = (
    _harmless(
        "nanobind-leaked",
        ("nanobind", "leaked"),
        r"nanobind: (?:leaked|this is likely)|(?:^|: )\s*- leaked (?:instance|type|function)"
        r"|(?:^|: )\s*- \.\.\. skipped remainder",
        "nanobind counts what was not freed at the end of a process",
        "SGLang 0.5.23 at each stop, some 60 lines",
    ),
    _harmless(
        "rlimit-not-raised",
        ("rlimit_nofile", "ulimit"),
        r"Fail to set RLIMIT_NOFILE|Found ulimit of \d+ and failed to automatically increase",
        "the engine tried to raise a limit beyond the hard one",
        "SGLang 0.5.16 and 0.5.23 srt/utils/common.py; vLLM 0.32.0 utils/system_utils.py",
    ),
    _harmless(
        "gloo-hostname",
        ("resolve",),
        r"Unable to resolve hostname to a \(local\) address",
        "gloo uses the loopback address when the host's name does not resolve",
        "gloo, SGLang 0.5.23 on a host without a name service",
    ),
    _harmless(
        "optional-model-file",
        ("generation_config", "preprocessor_config", "processor_config", "chat_template", "generation"),
        r"^(?!(?:.{0,200}?[\])|]:? )?[\w.]*(?:Error|Exception): ).*(?:Failed to load"
        r"|does not appear to have a file named) (?:generation config|\w*(?:generation_config"
        r"|processor_config)\.json)",
        "the model has no such optional file",
        "SGLang 0.5.16 with a model without generation_config.json",
    ),
    _harmless(
        "process-group-not-destroyed",
        ("destroy_process_group", "destroyed"),
        r"destroy_process_group\(\) was not called|process group has NOT been destroyed",
        "PyTorch notes that the communicator was not closed before the process ended",
        "SGLang 0.5.16 at each stop",
    ),
    _harmless(
        "resource-tracker",
        ("resource_tracker",),
        r"resource_tracker: There appear to be \d+ leaked|resource_tracker.*(?:No such file|KeyError)",
        "Python tidied up shared memory or semaphores at the end of a process",
        "CPython multiprocessing",
    ),
    _harmless(
        "omp-threads",
        ("omp_num_threads",),
        r"Setting OMP_NUM_THREADS environment variable for each process|Reducing Torch parallelism",
        "the number of CPU threads a process is set by the launcher",
        "torch.distributed.run, vLLM 0.33.0",
    ),
    _harmless(
        "nccl-probing",
        ("plugin", "topology", "device", "real", "disabled", "nvls", "dlvsym", "dlopen", "symbol", "libnccl"),
        r"NCCL INFO (?:.*Plugin: Could not find|Failed to initialize NET plugin|NET/IB : No device"
        r"|Topology detection ?: could not read|Could not find real path|.*P2P is disabled between"
        r"|.*dlvsym failed|.*failed to (?:open|load) lib|NVLS .*not supported|\w+/Plugin ?: |.*No plugin found)"
        r"|^\W*n? ?loading libnccl-\w+\.so|dlerror=libnccl-\w+\.so",
        "NCCL looked for a plug-in or device that this host does not have",
        "NCCL 2.28.9 on a host without InfiniBand",
    ),
    _harmless(
        "autotune-choice",
        ("autotuning", "choice", "select_algorithm", "tactic"),
        r"_inductor/select_algorithm\.py|autotuner\.py.*Skipping tactic|Ignoring this choice",
        "an autotuner tried a configuration that does not fit this GPU, and left it out",
        "torch._inductor, FlashInfer",
    ),
    _harmless(
        "port-retried",
        ("retrying", "trying"),
        r"already in use(?:\. Retrying with a new port|, trying port)",
        "the engine met a port that was taken, and takes another",
        "vLLM 0.32.0 config/parallel.py, SGLang 0.5.23",
    ),
    _harmless(
        "client-model-name",
        ("model",),
        r"The model [`'\"][^`'\"]*[`'\"] does not exist",
        "a client asked for a model that is not served under this name",
        "vLLM 0.32.0 entrypoints/openai",
    ),
    _harmless(
        "optional-import",
        ("ignore",),
        r"Ignore import error when loading",
        "SGLang skipped a model file whose optional package is not installed",
        "SGLang 0.5.10: sgl-project/sglang#15426, #17499",
    ),
    _harmless(
        "engine-ends-itself",
        ("kill_process_tree",),
        r"kill_process_tree called",
        "SGLang ends its own process tree, with SIGKILL, after a drain",
        "SGLang 0.5.16 at each stop",
    ),
    _harmless(
        "multimem-off",
        ("multimem", "multicast"),
        r"multimem all-gather disabled",
        "no NVLink multicast between these GPUs",
        "SGLang 0.5.16",
    ),
)

VAGUE_SIGNATURES: tuple[Signature, ...] = (
    _harmless(
        "python-warning",
        ("syntaxwarning", "futurewarning", "deprecationwarning", "userwarning", "runtimewarning"),
        r"\b(?:Syntax|Future|Deprecation|User|Runtime)Warning: ",
        "a note from a Python library to its developers",
        "SGLang 0.5.16: torchao, pynvml",
    ),
)
"""Lines that are harmless unless another row knows better: these are tried last."""
