# SPDX-License-Identifier: Apache-2.0
"""Known lines of engines and of the libraries under them. The first row that matches a line counts.

Sources name the release in which the wording was read: SGLang 0.5.9 and 0.5.23, vLLM 0.33.0, FlashInfer 0.6.3
and 0.7.2, NCCL 2.30.7, or the public thread in which it was reported.
"""

from __future__ import annotations

from .signature import Signature

SGLANG = "SGLang 0.5.23"
VLLM = "vLLM 0.33.0"
FLASHINFER = "FlashInfer 0.7.2"
NCCL = "NCCL 2.30.7"
TORCH = "PyTorch"
HUB = "huggingface_hub and transformers"

NETWORK: tuple[Signature, ...] = (
    Signature(
        id="port-in-use",
        level="critical",
        cause="port",
        words=("address", "port", "available", "errno", "eaddrinuse"),
        pattern=r"address already in use|\[Errno 98\]|EADDRINUSE|address in use"
        r"|\bport \d+ is (?:already )?in use|Port is already (?:in use|allocated)|port_?\w* (?:at|is) .*not available"
        r"|is used by a process already|server socket has failed to (?:listen|bind)",
        what="the port is taken",
        expected="a port that nothing listens on when the engine starts",
        fix="find the owner with `ss -ltnp 'sport = :PORT'` (and a predecessor's workers with `pgrep -af "
        "'sglang|vllm'`), stop it or choose another port; a port in TIME_WAIT is free after a minute: restart no "
        "faster (RestartSec=)",
        source=f"{SGLANG} srt/utils/network.py, uvicorn, asyncio; vllm#9737, vllm#7514",
    ),
    Signature(
        id="proxy-in-the-way",
        level="critical",
        cause="port",
        words=("response", "proxyerror"),
        pattern=r"\bres=<Response \[50[234]\]>|ProxyError\b.*(?:127\.0\.0\.1|localhost)",
        what="the engine's first request to itself was answered by somebody else: a proxy",
        expected="no proxy between the engine and its own address",
        fix="set NO_PROXY=127.0.0.1,localhost (and no_proxy) in the unit, or leave http_proxy out of it",
        source="SGLang srt/entrypoints/http_server.py; sglang#16855",
    ),
    Signature(
        id="address-unusable",
        level="critical",
        cause="port",
        words=("errno", "requested", "bind", "eaddrnotavail", "family"),
        pattern=r"\[Errno 99\]|Cannot assign requested address|EADDRNOTAVAIL"
        r"|\[Errno 13\] error while attempting to bind|Address family not supported",
        what="the engine cannot listen on this address",
        expected="an address of this machine, a port above 1023, and an address family that the sandbox allows",
        fix="check --host and --port; RestrictAddressFamilies= needs AF_INET, AF_INET6 and AF_NETLINK",
        source="Linux errno(3), asyncio",
    ),
    Signature(
        id="socket-path-too-long",
        level="critical",
        cause="port",
        words=("longer", "af_unix"),
        pattern=r"ipc path .{0,300}is longer than \d+ characters|AF_UNIX path too long",
        what="the path of a Unix socket is longer than Linux allows (107 characters)",
        expected="a short directory for temporary files",
        fix="set TMPDIR=/tmp (with PrivateTmp=yes) in the unit; vLLM: VLLM_RPC_BASE_PATH too",
        source="ZeroMQ, CPython",
    ),
    Signature(
        id="too-many-open-files",
        level="critical",
        cause="limits",
        words=("open", "errno", "emfile"),
        pattern=r"Too many open files|\[Errno 24\]|\bEMFILE\b",
        what="the process ran out of file descriptors",
        expected="LimitNOFILE=1048576 in the unit",
        fix="set LimitNOFILE=1048576 in the unit and restart it",
        source="Linux errno(3)",
    ),
    Signature(
        id="locked-memory-limit",
        level="critical",
        cause="limits",
        words=("memlock", "rlimit_memlock", "mlock", "cudahostregister", "ibv_reg_mr", "ibv_create_cq", "pin"),
        pattern=r"RLIMIT_MEMLOCK|memlock (?:limit|is)|mlock.*(?:Cannot allocate|failed|not permitted)"
        r"|(?:cudaHostRegister|ibv_reg_mr|ibv_create_cq).*(?:fail|Cannot allocate|error)|(?:failed"
        r"|unable) to pin (?:host )?memory",
        what="memory could not be locked (pinned)",
        expected="LimitMEMLOCK=infinity in the unit",
        fix="set LimitMEMLOCK=infinity in the unit and restart it",
        source="Linux setrlimit(2), NCCL troubleshooting guide",
        errors_only=True,
    ),
    Signature(
        id="task-limit",
        level="critical",
        cause="limits",
        words=("thread", "pthread_create", "fork", "blas_thread_init", "libgomp", "blockingioerror"),
        pattern=r"can't start new thread|pthread_create.*(?:failed|Resource temporarily)"
        r"|fork rejected by pids controller|blas_thread_init: .*failed|libgomp: Thread creation failed"
        r"|fork: (?:retry: )?Resource temporarily|BlockingIOError: \[Errno 11\]",
        what="the limit of tasks (threads and processes) is reached",
        expected="TasksMax=infinity, or well above a few thousand, in the unit",
        fix="raise TasksMax= in the unit (and the user's nproc limit) and restart it",
        source="CPython, OpenBLAS, Linux cgroup pids controller",
    ),
    Signature(
        id="numa-binding-failed",
        level="critical",
        cause="numa",
        words=("membind", "set_mempolicy", "mbind", "numa_sched_setaffinity_v2_int", "sched_setaffinity", "libnuma"),
        pattern=r"setting membind: |(?:set_mempolicy|mbind): |numa_sched_setaffinity\w*\(\) failed"
        r"|sched_setaffinity: |libnuma: .*(?:out of range|not allowed|parse error|failed)",
        what="numactl could not bind the process to its NUMA node, so the engine never started behind it",
        expected="CPUs and memory of that node in the unit's (or container's) cpuset, and set_mempolicy allowed",
        fix="compare `numactl --show` inside the unit with `numactl --hardware`; AllowedCPUs= and AllowedMemoryNodes= "
        "have to hold the GPU's node, SystemCallFilter= has to let @resources through; otherwise start without "
        "--numa-node",
        source="numactl; sglang#27368, vllm#45438",
    ),
    Signature(
        id="numa-binding-skipped",
        level="warning",
        cause="numa",
        words=("numa",),
        pattern=r"skipping NUMA binding|could not apply NUMA binding|NUMA (?:binding|affinity)\b.{0,60}(?:skip|fail"
        r"|not permitted)|[Ff]ailed to bind .{0,40}NUMA",
        what="the engine goes on without its NUMA binding: a rank may read memory of the other socket",
        expected="each rank on the node of its GPU",
        fix="let the unit set memory policy and affinity (no ~@resources in SystemCallFilter=), or leave the binding "
        "to the unit (NUMAPolicy=, CPUAffinity=)",
        source="SGLang srt/utils/numa_utils.py; sglang#28401",
    ),
)

MEMORY: tuple[Signature, ...] = (
    Signature(
        id="gpu-memory-in-use",
        level="critical",
        cause="gpu-memory",
        words=("memory",),
        pattern=r"Free memory on device .*less than|memory capacity is unbalanced|Error in memory profiling",
        what="something else already holds GPU memory",
        expected="free GPU memory when the engine starts",
        fix="list the owners with `nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv` and stop them "
        "(workers of a predecessor: `pgrep -af 'VLLM::|sglang'`); limit restarts (StartLimitBurst=), since a retry "
        "cannot help while they live",
        source=f"{VLLM} v1/worker/utils.py, {SGLANG} srt/distributed/bootstrap.py; eugr/spark-vllm-docker#257",
    ),
    Signature(
        id="cuda-out-of-memory",
        level="critical",
        cause="out-of-memory",
        words=(
            "memory",
            "outofmemoryerror",
            "cudaerrormemoryallocation",
            "cuda_error_out_of_memory",
            "cublas_status_alloc_failed",
            "curesult",
            "nv_err_no_memory",
            "vram",
        ),
        pattern=r"(?:\bcu(?:da|blas)\w*\b|Triton|\bGPU\b)[^.;]{0,40}\bout of memory|\bOutOfMemoryError\b"
        r"|insufficient free VRAM|NV_ERR_NO_MEMORY|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
        r"|CUBLAS_STATUS_ALLOC_FAILED"
        r"|CUresult error:? +(?:result=)?2\b",
        what="the GPU ran out of memory",
        expected="weights, KV cache, graphs and NCCL's buffers fit, with room for the largest prefill",
        fix="lower --mem-fraction-static (SGLang) or --gpu-memory-utilization (vLLM), --chunked-prefill-size, "
        "--cuda-graph-max-bs or the context length; NCCL_BUFFSIZE times channels times peers counts too; make sure "
        "no other process holds memory",
        source=f"{TORCH} c10/cuda, CUDA runtime",
    ),
    Signature(
        id="kv-cache-too-small",
        level="critical",
        cause="out-of-memory",
        words=("memory", "cache", "profiled", "kv"),
        pattern=r"No available memory for the cache blocks|larger than the available KV cache memory"
        r"|Not enough memory(?:\. Please try to increase| (?:to|for)\b.{0,30}KV)|the profiled value -\d"
        r"|leaves no room for the (?:full )?KV"
        r"|larger than the maximum number of tokens that can be stored in KV cache",
        what="after the weights no room is left for the KV cache",
        expected="room for at least one request of the model's context length",
        fix="raise --mem-fraction-static (SGLang) or --gpu-memory-utilization (vLLM) if the GPU has memory left, "
        "shorten --context-length / --max-model-len, quantise the KV cache, or use more GPUs (--tp)",
        source=f"{SGLANG} srt/model_executor/pool_configurator.py, {VLLM} v1/core/kv_cache_planning.py",
    ),
    Signature(
        id="kv-pool-exhausted",
        level="critical",
        cause="out-of-memory",
        words=("lower",),
        pattern=r"(?:Prefill|Decode) out of memory\. Try to lower",
        what="a batch found no room in the KV cache, and the scheduler gave up",
        expected="a scheduler that puts requests back (retracts them) when the cache is full",
        fix="lower --max-running-requests and --chunked-prefill-size, leave --page-size at its default, or raise "
        "--mem-fraction-static where the GPU has memory left",
        source="SGLang srt/mem_cache; sglang#4602, sglang#7353",
    ),
    Signature(
        id="kv-cache-full",
        level="info",
        cause="load",
        words=("retract", "retracted_reqs", "preempted"),
        pattern=r"KV cache pool is full|#retracted_reqs: [1-9]|is preempted by",
        what="the KV cache filled up and requests were put back",
        expected="few of these under the intended load",
        fix="if it repeats: lower the number of running requests, or give the KV cache more memory",
        source=f"{SGLANG} srt/managers/scheduler.py",
    ),
    Signature(
        id="worker-killed",
        level="critical",
        cause="host-memory",
        words=("code", "exitcode", "signal", "status", "exited", "killed", "sigkill"),
        pattern=r"\bexit ?code\b['\"]?[ :=(]{0,3}-9\b|\bexit(?:ed|s)?(?: with)?(?: (?:code|status))?[ :=(]{1,9}137\b"
        r"|(?:^|[:|\]] )\s*Killed\s*$|: line \d+: +\d+ Killed\b"
        r"|[Ss]ignal:? ?(?:9|SIGKILL) ?\((?:SIGKILL|9)\)|(?:killed|terminated) by signal:? (?:SIGKILL|9\b)"
        r"|<Signals\.SIGKILL: 9>",
        what="a worker was killed with SIGKILL, most often by the kernel for lack of host memory",
        expected="workers that end only when the engine ends them",
        fix="look for `Out of memory: Killed process` in `journalctl -k` and for MemoryMax= of the unit; host memory "
        "has to hold what is loaded at once, pinned buffers and the page cache of the weights",
        source=f"{SGLANG} srt/entrypoints/engine.py, srt/utils/watchdog.py, {VLLM} v1/executor/multiproc_executor.py",
    ),
    Signature(
        id="compiler-killed",
        level="critical",
        cause="host-memory",
        words=("died", "killed"),
        pattern=r"'?(?:cicc|ptxas|cudafe\+\+|nvcc|cc1plus|ld)'? died due to signal|[Kk]illed (?:signal terminated"
        r" program|\(program) \w+",
        what="a compiler was killed while it built a kernel: too many at once for the host's memory",
        expected="host memory for as many compilers as ninja starts (some GB each for CUTLASS kernels)",
        fix="limit them with MAX_JOBS=8 in the unit's environment, raise MemoryMax=, and clear the half-built cache",
        source="nvcc, gcc; flashinfer#4410",
    ),
    Signature(
        id="dev-shm-full",
        level="critical",
        cause="shm",
        words=("shm", "shared", "bus", "shm_open", "posix_fallocate", "space"),
        pattern=r"posix_fallocate failed ?: No space|\s(?:9[5-9]|100)%\s+/dev/shm\b"
        r"|Error while creating shared memory segment|/dev/shm/.*(?:No space left|Cannot allocate)"
        r"|shared memory (?:segment|file) .*No space left|\bBus error\b|insufficient shared memory"
        r"|unable to (?:open|allocate|mmap|write|resize) (?:to )?shared memory|shm_open.*(?:fail|No space)"
        r"|No space left on device.*(?:shm|shared mem|: '/(?:psm_|torch_|nccl-|sem\.|vllm))",
        what="/dev/shm is full",  # noqa: S108 - no file is made there
        expected="a /dev/shm of its own for each instance, large enough for NCCL and the engine, empty at the start",
        fix="`df -h /dev/shm`, remove what crashed runs left (nccl-*, psm_*, torch_*, sem.* of the service's "
        "user, when no engine runs), give the unit TemporaryFileSystem=/dev/shm:mode=1777,size=... (a "
        "container: --ipc=host or --shm-size)",
        source=f"{NCCL} src/misc/shmutils.cc, {TORCH} DataLoader; llm-d#352",
    ),
    Signature(
        id="shm-segment-vanished",
        level="critical",
        cause="shm",
        words=("attaching",),
        pattern=r"Error while attaching to shared memory segment .*No such file",
        what="a shared memory segment went away under NCCL",
        expected="a /dev/shm that nobody else tidies up",
        fix="run the service as a system user (systemd-logind's RemoveIPC= removes other users' segments), with a "
        "/dev/shm of its own",
        source=f"{NCCL} src/misc/shmutils.cc; vllm#18831",
    ),
    Signature(
        id="disk-full",
        level="critical",
        cause="disk",
        words=("space", "errno", "quota", "ephemeral"),
        pattern=r"No space left on device|low on resource: ephemeral-storage|\[Errno 28\]|Disk quota exceeded",
        what="a file system is full",
        expected="room for weights, JIT caches and logs",
        fix="`df -h` on the paths in the line; JIT caches of old releases may be removed while their engine is stopped",
        source="Linux errno(3)",
    ),
    Signature(
        id="disk-error",
        level="critical",
        cause="disk",
        words=("errno", "stale", "dev", "nfs", "nvme", "xfs", "ext4"),
        pattern=r"nfs: server \S+ not responding|\[Errno 5\] Input/output error|\[Errno 116\]"
        r"|Stale (?:NFS )?file handle|I/O error, dev "
        r"|nvme\w*: (?:I/O .*timeout, (?:abort|reset|complet)|controller is down)|EXT4-fs error"
        r"|XFS \(\w+\): (?:.*[Cc]orruption|.*I/O [Ee]rror|.*[Ss]hut ?down)",
        what="a file could not be read: the disk, or the file server, fails",
        expected="a disk and a mount without errors",
        fix="`journalctl -k` and `smartctl -a` for the disk, `mount | grep nfs` for a file server that was restarted; "
        "then compare the model's files with their published hashes",
        source="Linux kernel log, errno(3)",
    ),
)

MODEL: tuple[Signature, ...] = (
    Signature(
        id="model-not-readable",
        level="critical",
        cause="model",
        words=("permission", "permissionerror"),
        pattern=r"(?:Permission denied|PermissionError).*(?:\.safetensors|config\.json|tokenizer\w*\.json|\.gguf"
        r"|/snapshots/|/blobs/|['\" ]/(?:srv|data|mnt|opt|models?)/[^'\" ]*models?|['\" ]/models?[/'\"])",
        what="the service's user may not read the model",
        expected="directories 0755 (or group-readable) and files 0644 for the service's user",
        fix="`sudo -u USER test -r FILE`, then `chmod -R u=rwX,go=rX MODEL_DIR` and check each parent directory; "
        "converters leave 0600",
        source="CPython, seen with converted weights of mode 0600",
    ),
    Signature(
        id="model-not-found",
        level="critical",
        cause="model",
        words=(
            "repo",
            "repository",
            "identifier",
            "config",
            "hfvalidationerror",
            "model",
            "file",
            "weights",
            "repositorynotfounderror",
            "entrynotfounderror",
            "revisionnotfounderror",
            "client",
        ),
        pattern=r"\b(?:Entry|Revision)NotFoundError|404 Client Error.*(?:huggingface|hf\.co|\(Request ID)|Repo id must"
        r"|HFValidationError|RepositoryNotFoundError"
        r"|No supported config format found|is not a local folder and is not a valid model identifier"
        r"|Invalid repository ID or local directory"
        r"|Incorrect path_or_model_id|Can't load the configuration of"
        r"|does not appear to have (?:a file named|files named)"
        r"|No such file or directory: '[^']*(?:/config\.json|model\.safetensors\.index\.json)"
        r"|Cannot find (?:any )?(?:the )?model weights|Unrecognized model in |model(?:_path"
        r"| path)?\b.{0,200}does(?: not|n't) exist",
        what="the model is not where the engine looks for it",
        expected="a local directory with config.json, tokenizer and weights, or a repository that the host can reach",
        fix="check --model-path / --model on the host (`ls MODEL_DIR/config.json`), spelling and case, the mount, and "
        "that the unit's sandbox lets the service see the path (ProtectHome= hides /home)",
        source=f"{HUB}, {VLLM} transformers_utils/config.py",
    ),
    Signature(
        id="model-shard-broken",
        level="critical",
        cause="model",
        words=(
            "safetensors",
            "safetensorerror",
            "deserializing",
            "incompletemetadata",
            "metadataincompletebuffer",
            "headertoolarge",
            "checkpoint",
            "invalidheaderdeserialization",
            "json",
            "shard",
            "checksum",
            "checksums",
            "pytorchstreamreader",
        ),
        pattern=r"is not a valid JSON file|safetensors\b.{0,80}\b(?:malformed|corrupt\w*|truncated|incomplete)\b"
        r"|PytorchStreamReader failed|SafetensorError"
        r"|Error while deserializing header|MetadataIncompleteBuffer"
        r"|HeaderTooLarge"
        r"|InvalidHeaderDeserialization|No such file or directory: '?[^' ]*\.safetensors"
        r"|\.safetensors.*(?:No such file|not found|does not exist|missing)"
        r"|Following weights were not initialized from checkpoint|shard file\(s\) missing|checksums? did NOT match"
        r"|\.safetensors: FAILED\b",
        what="a file of the model is missing or cut off",
        expected="every shard that model.safetensors.index.json names, whole",
        fix="compare the shards with model.safetensors.index.json and with their published sizes or hashes; fetch the "
        "broken ones again",
        source="safetensors, vLLM and SGLang weight loaders",
    ),
    Signature(
        id="weights-mismatch",
        level="critical",
        cause="model",
        words=("weight", "keyerror", "mismatch", "exceeds", "parameter", "loaded_weight", "scales"),
        pattern=r"Attempted to load weight \(|assert .{0,60}(?:== loaded_weight\.|loaded_weight\S* ==|% scales\.)"
        r"|size mismatch for [\w.]+:|\bKeyError: ['\"][\w.]*(?:layers\.\d+\.|_scale"
        r"|_proj|\.weight)[\w.]*['\"]|start \(\d+\) \+ length \(\d+\) exceeds dimension size"
        r"|There is no module or parameter named|No parameter named .{1,80} found",
        what="the weights do not fit the model as this engine release knows it",
        expected="a checkpoint in a format and quantisation that the release supports for this architecture",
        fix="compare the checkpoint's quantization_config with what the release documents for the model; take the "
        "release that the model card names, or another quantisation; a restart fails the same way",
        source="vLLM and SGLang weight loaders, PyTorch load_state_dict",
    ),
    Signature(
        id="quantization-mismatch",
        level="critical",
        cause="model",
        words=("quantization", "quant_method", "config", "modelopt"),
        pattern=r"Cannot find the config file for \w+\s*$|Cannot find any of \[.{1,80}\] in the model"
        r"|unknown quantization|quantization (?:method|config\w*)\b.{0,120}(?:does not match|do not match"
        r"|is not (?:found|supported in)|unknown|not (?:in|one of) )"
        r"|(?:Unsupported|Invalid|Unrecognized) quantization(?! backend)"
        r"|No quantization config",
        what="the quantisation asked for is not the checkpoint's, or not one that this release knows",
        expected="a checkpoint whose config.json (or hf_quant_config.json) names a quantisation that the release "
        "supports",
        fix="leave --quantization out: the engine reads it from the checkpoint; otherwise take the quantisation or "
        "the release that the model card names; a restart fails the same way",
        source="vLLM and SGLang weight loaders; vllm#13612, vllm#34028, sglang#29833",
        errors_only=True,
    ),
    Signature(
        id="context-too-long",
        level="critical",
        cause="option",
        words=("derived",),
        pattern=r"greater than the derived (?:max_model_len|context_length)",
        what="the context length asked for is longer than the model's own",
        expected="--context-length / --max-model-len of at most the model's",
        fix="lower it; only where the model documents it, allow it by SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 or "
        "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1",
        source=f"{SGLANG} srt/configs/model_config.py, {VLLM} config",
    ),
    Signature(
        id="parallel-size-mismatch",
        level="critical",
        cause="option",
        words=("ordinal", "world", "divisible", "divided", "gpus", "device"),
        pattern=r"invalid device (?:ordinal|UUID|id)\b|tensor.parallel\w*.{0,40}but only \d+ GPU"
        r"|[Ww]orld size .*larger than .*available|(?:(?:heads|size|experts)\b.{0,80}|(?:Error"
        r"|Exception): .{0,200}) (?:must be|is not|not|cannot be) (?:evenly )?(?:divisible|divided) by(?!.{0,20}page)"
        r"|(?:tp|tensor.parallel).{0,60}(?:exceeds|larger than).{0,30}GPUs|AssertionError: \d+ is not divisible by \d+",
        what="the parallel size does not fit the GPUs or the model",
        expected="as many visible GPUs as --tp (times --pp), and a number that divides the model's attention heads",
        fix="compare --tp / --tensor-parallel-size with CUDA_VISIBLE_DEVICES and `nvidia-smi -L` (a lost GPU shows "
        "here "
        "too); where a quantisation's block is named, a smaller --tp, or the experts whole on a GPU (SGLang --ep-size, "
        "vLLM --enable-expert-parallel)",
        source=f"CUDA runtime, {VLLM} config",
        errors_only=True,
    ),
    Signature(
        id="visible-devices-invalid",
        level="critical",
        cause="option",
        words=("literal",),
        pattern=r"invalid literal for int\(\) with base 10: ['\"](?:MIG|GPU)-",
        what="the engine cannot read CUDA_VISIBLE_DEVICES: it names GPUs by UUID, or parts of them (MIG)",
        expected="numbers, and whole GPUs: tensor parallelism does not work across MIG instances",
        fix="give numbers in the order of `nvidia-smi -L` (CUDA_DEVICE_ORDER=PCI_BUS_ID); switch MIG off with "
        "`nvidia-smi -mig 0`",
        source="vllm#41848",
    ),
    Signature(
        id="trust-remote-code-needed",
        level="critical",
        cause="model",
        words=("trust_remote_code",),
        pattern=r"^(?!.*no effect).*(?:set|pass|use|option|argument|setting)\b.{0,60}trust_remote_code ?=? ?(?:True)?",
        what="the model needs code that ships with its weights",
        expected="a model that the engine knows, or --trust-remote-code after a review of that code",
        fix="prefer a release that knows the model; otherwise review the model's *.py, pin its revision and set "
        "--trust-remote-code",
        source=HUB,
    ),
    Signature(
        id="model-architecture-unknown",
        level="critical",
        cause="model",
        words=("architecture", "architectures", "implementation", "unrecognized", "config_mapping"),
        pattern=r"has no (?:SGLang|vLLM) implementation|Model architectures? .*(?:not supported|failed to be inspected)"
        r"|does not recognize this architecture"
        r"|\bmodel (?:with|of) architecture .{1,60}not (?:yet )?supported"
        r"|Unsupported (?:model )?architectures?:? ?\[|= CONFIG_MAPPING\[|Unrecognized configuration class",
        what="this engine release does not know the model's architecture",
        expected="an engine release (and transformers) that lists it",
        fix="take a newer engine release; do not restart: it fails the same way each time",
        source=f"{VLLM} model_executor/models/registry.py, {HUB}",
        errors_only=True,
    ),
    Signature(
        id="tokenizer-mismatch",
        level="critical",
        cause="model",
        words=("tokenizer", "untagged", "tiktoken", "sentencepiece", "processing", "attributeerror"),
        pattern=r"Tokenizer class \S+ does not exist|Tokenizer\w*'?(?: object)? has no attribute"
        r"|did not match any variant of untagged enum|Can't load tokenizer"
        r"|Couldn't instantiate the backend tokenizer|Converting from (?:SentencePiece|Tiktoken).*failed"
        r"|Unrecognized processing class",
        what="the installed transformers/tokenizers cannot read the model's tokenizer",
        expected="the transformers and tokenizers versions that the engine release pins, and a whole tokenizer.json",
        fix="install the engine from its lock file; compare `pip list` with it; fetch tokenizer files again if "
        "they are cut off",
        source=HUB,
    ),
    Signature(
        id="hub-access-denied",
        level="critical",
        cause="download",
        words=("client", "unauthorized", "forbidden", "gated", "gatedrepoerror", "restricted"),
        pattern=r"(?:401|403) Client Error(?:.*(?:huggingface|hf\.co)|\. \(Request ID)|GatedRepoError"
        r"|access (?:a )?gated repo|model \S+ is (?:gated|restricted)\."
        r"|(?:huggingface|hf\.co)\S*.*\b(?:401 Unauthorized|403 Forbidden)",
        what="the model hub refused access",
        expected="weights on the host, or a token that may read the repository",
        fix="fetch the weights beforehand with an account that accepted the licence; give HF_TOKEN by a credential "
        "file, never in the unit",
        source=HUB,
    ),
    Signature(
        id="hub-unreachable",
        level="critical",
        cause="download",
        words=(
            "huggingface",
            "localentrynotfounderror",
            "outgoing",
            "offline",
            "offlinemodeisenabled",
            "hf",
            "resolution",
            "errno",
            "cas",
            "certificate_verify_failed",
        ),
        pattern=r"\bCAS service error|CERTIFICATE_VERIFY_FAILED|\b(?:httpx|urllib3|requests"
        r"|huggingface_hub)\b.*\[Errno -[235]\]|(?:429 Client"
        r"|5\d\d Server) Error.*(?:huggingface|hf\.co)|LocalEntryNotFoundError"
        r"|outgoing traffic has been disabled|OfflineModeIsEnabled"
        r"|couldn't connect to '?https://huggingface|Cannot reach https://huggingface"
        r"|huggingface\.co.*(?:Max retries|timed out|Name or service not known|name resolution|Connection refused)",
        what="a file of the model is not on the host and the hub cannot be reached",
        expected="everything the engine needs on local disk, with HF_HUB_OFFLINE=1",
        fix="fetch the whole snapshot beforehand and pass its local path",
        source=HUB,
    ),
)

ARCHITECTURE: tuple[Signature, ...] = (
    Signature(
        id="no-kernel-image",
        level="critical",
        cause="unsupported",
        words=(
            *("kernel", "cudaerrornokernelimagefordevice", "cuda_error_no_binary_for_gpu", "pytorch", "device"),
            *("symbol", "cudaerrorsymbolnotfound", "cudaerrorinvaliddevicefunction"),
        ),
        pattern=r"no kernel image is available|named symbol not found|cudaErrorSymbolNotFound"
        r"|cudaErrorInvalidDeviceFunction|cudaErrorNoKernelImageForDevice|CUDA_ERROR_NO_BINARY_FOR_GPU"
        r"|not compatible with the current PyTorch installation|invalid device function",
        what="a library was built without kernels for this GPU's architecture",
        expected="wheels with sm_120 kernels (or PTX for it): PyTorch built for CUDA 12.8 or newer and the "
        "engine's pinned kernel package",
        fix="install the engine's locked set of wheels; check `python -c 'import torch; "
        "print(torch.cuda.get_arch_list())'` for sm_120",
        source=f"CUDA runtime, {TORCH}",
    ),
    Signature(
        id="shared-memory-over-limit",
        level="critical",
        cause="unsupported",
        words=("shared", "outofresources", "resources", "smem"),
        pattern=r"out of resource: shared memory|\bOutOfResources\b|Required: \d+, Hardware limit: \d+"
        r"|too many resources requested for launch|allowed dynamic shared memory size|(?:shared memory"
        r"|smem)[^.]{0,60}(?:exceed|over the limit"
        r"|larger than)",
        what="a kernel's tile needs more shared memory than this GPU has (101,376 bytes a block on SM120)",
        expected="a kernel or tuned configuration sized for SM120",
        fix="SGLang 0.5.9 or newer for the extend attention; --attention-backend flashinfer; a MoE configuration for "
        "this GPU (SGLANG_MOE_CONFIG_DIR); a smaller block size; restarting does not help",
        source="Triton; sglang#14322, sglang#17235, sglang#27962",
        errors_only=True,
    ),
    Signature(
        id="fusion-unsupported-architecture",
        level="critical",
        cause="unsupported",
        words=("architectures", "multicasting"),
        pattern=r"No supported CUDA architectures found|Device does not support multicasting",
        what="FlashInfer has no kernel of this kind for the GPU's architecture (the all-reduce fusion crash on SM120)",
        expected="all-reduce fusion off on SM120",
        fix="do not enable FlashInfer all-reduce fusion here; leave SGLang 0.5.7, which switches it on by itself; use "
        "0.5.8 or newer",
        source=f"{FLASHINFER} compilation_context.py and comm/mnnvl.py; sglang#15650",
        errors_only=True,
    ),
    Signature(
        id="jit-toolchain-too-old",
        level="critical",
        cause="jit",
        words=(
            "sm75",
            "requires",
            "nvcc",
            "gpu",
            "ptx",
            "unsupported_ptx",
            "unsupportedptxversion",
            "detected",
            "nvrtc",
            "toolkit",
        ),
        pattern=r"FlashInfer requires GPUs with sm75|SM 12\S* requires CUDA"
        r"|nvcc fatal\s*:\s*(?:Unsupported gpu architecture|Unknown option)|is not defined for option 'gpu-(?:name"
        r"|architecture)'|PTX was compiled with an unsupported toolchain|UNSUPPORTED_?PTX"
        r"|detected CUDA version .{1,40} mismatches the version|toolkit headers are incompatible"
        r"|nvrtc: error: invalid value for --gpu-arch",
        what="the CUDA toolkit or driver is too old (or of another version) to build or run kernels for this GPU",
        expected="CUDA toolkit 12.9 or newer (13.0 for current releases) and a driver at least as new",
        fix="point CUDA_HOME at a toolkit of the engine's CUDA version (`$CUDA_HOME/bin/nvcc --version`), for Triton "
        "TRITON_PTXAS_PATH at its ptxas, and clear the JIT cache",
        source=f"{FLASHINFER} compilation_context.py and jit/core.py, nvcc",
    ),
    Signature(
        id="deepgemm-unsupported",
        level="critical",
        cause="unsupported",
        words=("deep_gemm", "deepgemm", "assertion"),
        pattern=r"name 'deep_gemm' is not defined|deep_?gemm.*(?:Assertion|Unsupported|Unknown|not supported"
        r"|RuntimeError|is not available)"
        r"|Assertion error \(?\S*(?:deep_?gemm|attention\.hpp|gemm\.hpp|jit_kernels|csrc/apis|layout\.hpp)",
        what="DeepGEMM has no kernel for this GPU",
        expected="DeepGEMM off on SM120 in SGLang before 0.5.13 and for attention backends that need it",
        fix="set SGLANG_ENABLE_JIT_DEEPGEMM=0 (vLLM: VLLM_USE_DEEP_GEMM=0), or take SGLang 0.5.13 or newer; DSA models "
        "need a backend that supports SM120",
        source="DeepGEMM; sglang#18870, sglang#26087, sglang#29562",
        errors_only=True,
    ),
    Signature(
        id="trtllm-unsupported-architecture",
        level="critical",
        cause="unsupported",
        words=("architecture", "trtllm", "trtllm_mla", "trtllm_mha", "trtllm_gen", "tllmgenfmharunner"),
        pattern=r"TllmGenFmhaRunner|Unsupported architecture\b(?!s)|trtllm[ _-](?:gen|mla|mha)\b.*(?:not supported"
        r"|unsupported|only support|requires? (?:an? )?SM|does not support)",
        what="TensorRT-LLM attention kernels exist for SM100 only; this GPU is another architecture",
        expected="--attention-backend flashinfer (BF16 KV cache) or triton on SM120",
        fix="replace --attention-backend trtllm_mla (and trtllm_mha for prefill) by flashinfer",
        source="FlashInfer 0.6.3 TllmGenFmhaRunner; sglang#24633, flashinfer#3263",
        errors_only=True,
    ),
    Signature(
        id="cutlass-failed",
        level="critical",
        cause="unsupported",
        words=("cutlass", "gemm", "internal"),
        pattern=r"Failed to (?:initialize|run) (?:the )?(?:cutlass|\w*GEMM\b)|(?:Got )?cutlass error"
        r"|Error: Error Internal\b|cutlass.*(?:kErrorInternal"
        r"|Error Internal)",
        what="a CUTLASS kernel could not be started on this GPU",
        expected="a backend with tiles for SM120",
        fix="choose another --moe-runner-backend or --fp4-gemm-backend (SGLang), or clear a JIT cache that "
        "another release filled",
        source="FlashInfer and TensorRT-LLM CUTLASS runners",
        errors_only=True,
    ),
    Signature(
        id="cudnn-failed",
        level="critical",
        cause="unsupported",
        words=("cudnn", "cudnngraphnotsupportederror", "plans"),
        pattern=r"cuDNN error|cudnnGraphNotSupported|No execution plans support the graph|CUDNN_STATUS_(?!SUCCESS)\w+"
        r"|cudnn.*(?:No valid (?:engine|execution)|not supported)",
        what="cuDNN refused an operation",
        expected="the cuDNN of the engine's lock, and an operation it supports on SM120",
        fix="choose another backend (--fp4-gemm-backend flashinfer_cutlass), or rebuild the release from its lock",
        source="cuDNN; flashinfer#3140",
        errors_only=True,
    ),
    Signature(
        id="cublas-failed",
        level="critical",
        cause="unsupported",
        words=(
            *("cublas_status_not_supported", "cublas_status_invalid_value", "cublas_status_internal_error"),
            *("cublas_status_not_initialized", "cublas_status_arch_mismatch", "cublas_status_mapping_error"),
        ),
        pattern=r"CUBLAS_STATUS_(?!SUCCESS|ALLOC_FAILED|EXECUTION_FAILED)\w+",
        what="cuBLAS refused a matrix multiplication",
        expected="the one cuBLAS of the engine's lock, and a type and shape that it supports on SM120",
        fix="take CUDA directories out of LD_LIBRARY_PATH (two cuBLAS versions meet) and compare `pip list | grep -i "
        "cublas` with the lock; where only FP8 or FP4 fails, another --fp8-gemm-backend or --fp4-gemm-backend",
        source="cuBLAS; flashinfer#3255, vllm#35608",
        errors_only=True,
    ),
    Signature(
        id="attention-workspace-too-small",
        level="critical",
        cause="out-of-memory",
        words=("overflow", "workspace", "alignedallocator"),
        pattern=r"Buffer overflow when allocating memory for|Failed to allocate memory for .{1,80}AlignedAllocator"
        r"|workspace (?:buffer|size).{0,40}too small",
        what="FlashInfer's attention workspace is too small for this batch",
        expected="a workspace for the largest prefill",
        fix="raise SGLANG_FLASHINFER_WORKSPACE_SIZE (bytes), or lower --chunked-prefill-size",
        source="FlashInfer aligned allocator",
    ),
    Signature(
        id="custom-all-reduce-failed",
        level="critical",
        cause="unsupported",
        words=("custom_all_reduce", "pcie_allreduce", "pcie_oneshot"),
        pattern=r"custom_all_reduce\.cuh?:\d+|custom_all_reduce\S*.*(?:invalid argument|Cuda error|failed)"
        r"|pcie_(?:allreduce|oneshot)\S*:\d+",
        what="the engine's own all-reduce failed on PCIe peers",
        expected="--disable-custom-all-reduce on PCIe hosts unless a peer-to-peer self-test passed",
        fix="add --disable-custom-all-reduce; remove PYTORCH_CUDA_ALLOC_CONF=expandable_segments where a PCIe "
        "all-reduce is used",
        source="vllm#47266, vllm#47751, sglang#25649",
    ),
    Signature(
        id="backend-unsupported",
        level="critical",
        cause="unsupported",
        words=(
            "backend",
            "capability",
            "blackwell",
            "sm90",
            "sm100",
            "hopper",
            "sm120",
            "sm_120",
            "sm12x",
            "quantization",
            "supported",
            "unsupported",
            "supports",
            "support",
            "requires",
            "compiled",
            "sm121",
            "usable",
        ),
        pattern=r"Unsupported compute capability|not supported on \.target|No valid attention backend"
        r"|is not valid for this configuration|is not supported on (?:this GPU|Blackwell|the SM12)"
        r"|requires (?:an? )?(?:SM ?(?:90|100)|Hopper|compute capability)|only supports? (?:SM ?(?:90|100)"
        r"|Hopper|Blackwell datacenter)|not support\w*.{0,80}(?:sm_?120|SM12x|capability \(?12)|(?:sm_?120"
        r"|capability \(?12[., ]+0\)?).{0,80}not (?:yet )?support"
        r"|quantization method .* is not supported for the current GPU"
        r"|No compiled [\w -]{1,60}?(?: for (?:a )?(?:CUDA|compute|SM)| kernel)"
        r"|(?:Error|Exception)(?:: |, |\]\[|\([\"'])[^{]{0,300}(?:only support(?:s|ed)(?: on| for| by)? (?:SM|Hopper"
        r"|Ampere|Blackwell|compute|arch)|only (?:SM|arch|compute).{0,60}\bsupported|not supported (?:in|on|for"
        r"|by) (?:this|the) (?:\w+ )?(?:arch|GPU|device)|\barch\w* (?:is )?(?:un"
        r"|not )supported"
        r"|\b(?:none|not?|cannot|un\w+able)\b.{0,120}\bsm_?1[012]\d|\bsm_?1[012]\d.{0,80}\b(?:not?|un\w+able)\b"
        r"|(?:kernel|backend|attention|gemm|moe).{0,40} only supported (?:for|on|with)"
        r"|unsupported (?:GPU|device|SM|compute|CUDA)\b(?! driver)|requires SM ?[<>=]"
        r"|backend '?\w+'?.{0,40}not supported (?:on|for|by)"
        r"|not support (?:this GPU|backend '?\w+'? with)|expected sm_?\d|requires? (?:the )?\w* ?attention backend)",
        what="the chosen backend or quantisation does not exist for this GPU (compute capability 12.0)",
        expected="a backend that supports SM120",
        fix="choose another --attention-backend, --moe-runner-backend, --fp4-gemm-backend or --kv-cache-dtype; "
        "the line names what is refused; restarting does not help",
        source=f"{VLLM} platforms/cuda.py, {SGLANG} srt/layers; vllm#31936",
        errors_only=True,
    ),
    Signature(
        id="nan-in-output",
        level="critical",
        cause="output",
        words=("nan", "nans"),
        pattern=r"NaN in the (?:logits|probs)|Detected errors during sampling|(?:contains?"
        r"|either) .{0,10}`?inf`?, `?nan`?|(?:logits|probabilit\w+|hidden states).{0,40}\bNaNs?\b",
        what="the model computed NaN",
        expected="finite logits",
        fix="try another --fp4-gemm-backend / --moe-runner-backend, BF16 KV cache, and without custom all-reduce; test "
        "64 requests at a time",
        source=f"{TORCH} multinomial, SGLang sampler; sglang#20043, flashinfer#2708",
    ),
    Signature(
        id="gpu-hardware-error",
        level="critical",
        cause="gpu",
        words=("uncorrectable", "ecc", "remapping"),
        pattern=r"uncorrectable ECC error encountered|uncorrectable NVLink error|Remapping Failure Occurred\s*: Yes",
        what="a GPU reported an uncorrectable memory error",
        expected="no uncorrectable errors",
        fix="`nvidia-smi -q -d ECC,ROW_REMAPPER`, reset the GPU; replace it if the remapping failed or it repeats",
        source="CUDA runtime",
    ),
    Signature(
        id="gpu-kernel-fault",
        level="critical",
        cause="gpu",
        words=(
            "illegal",
            "misaligned",
            "unspecified",
            "assert",
            "cuda_error_illegal_address",
            "cuda_error_launch_failed",
            "cublas_status_execution_failed",
            "launch",
        ),
        pattern=r"illegal memory access was encountered|illegal instruction was encountered|misaligned address"
        r"|unspecified launch failure|the launch timed out and was terminated"
        r"|device-side assert triggered|CUDA_ERROR_(?:ILLEGAL_ADDRESS|LAUNCH_FAILED)"
        r"|CUBLAS_STATUS_EXECUTION_FAILED",
        what="a kernel crashed on the GPU",
        expected="kernels that stay inside their memory",
        fix="look in `journalctl -k` for Xid 13, 31 or 43 of the same second; rerun with CUDA_LAUNCH_BLOCKING=1 "
        "to name the kernel; try another backend; NCCL 2.26.2 is known for it on this GPU at 512 KiB and more",
        source="CUDA runtime; nccl#2418",
    ),
    Signature(
        id="graph-capture-broken",
        level="critical",
        cause="unsupported",
        words=("capturing", "capture", "cuda_error_stream_capture_unsupported"),
        pattern=r"operation (?:not permitted|would make the legacy stream depend).*captur"
        r"|operation failed due to a previous error during capture|\bcudaErrorStreamCapture\w+"
        r"|CUDA_ERROR_STREAM_CAPTURE_\w+",
        what="a kernel does something while a CUDA graph is captured that a graph cannot hold",
        expected="backends that work inside CUDA graphs on this GPU",
        fix="read the traceback for the call; another attention or MoE backend, or prove it with SGLang's "
        "--disable-cuda-graph (vLLM: --enforce-eager), which costs speed; a kernel built only then (JIT) does it once: "
        "start again",
        source="CUDA runtime",
        errors_only=True,
    ),
)

COMMUNICATION: tuple[Signature, ...] = (
    Signature(
        id="nccl-version-mismatch",
        level="critical",
        cause="nccl",
        words=("mismatched", "mismatch", "undefined"),
        pattern=r"Mismatched NCCL version|NCCL version mismatch|undefined symbol: nccl\w+",
        what="two NCCL versions meet",
        expected="the one nvidia-nccl wheel that the engine's lock pins, in every process",
        fix="remove NCCL from LD_LIBRARY_PATH, LD_PRELOAD and VLLM_NCCL_SO_PATH; compare `pip list | grep nccl` with "
        "the lock",
        source=f"{NCCL} src/misc",
    ),
    Signature(
        id="nccl-duplicate-gpu",
        level="critical",
        cause="nccl",
        words=("duplicate",),
        pattern=r"Duplicate GPU detected",
        what="two ranks were given the same GPU",
        expected="one GPU a rank",
        fix="check CUDA_VISIBLE_DEVICES, --base-gpu-id and that no second instance claims the same GPUs",
        source=f"{NCCL} src/init.cc",
    ),
    Signature(
        id="nccl-setting-refused",
        level="critical",
        cause="nccl",
        words=("algorithm", "invalid", "unknown", "unrecognized", "xml"),
        pattern=r"NCCL WARN Could not open XML|No algorithm/protocol available|NCCL WARN .*(?:invalid|unknown"
        r"|unrecogni[sz]ed) .*(?:NCCL_[A-Z0-9_]+|algo|proto|token)|NCCL WARN .*NCCL_[A-Z0-9_]+.*(?:invalid"
        r"|not (?:a )?valid)",
        what="NCCL refused a setting",
        expected="NCCL settings that are legal for this version",
        fix="lint the environment with `scripts/nccl lint FILE --nccl-version VERSION`, or drop NCCL_ALGO and "
        "NCCL_PROTO",
        source=f"{NCCL} src/graph/tuning.cc",
    ),
    Signature(
        id="nccl-setting-ignored",
        level="warning",
        cause="nccl",
        words=("invalid",),
        pattern=r"NCCL INFO .*Invalid value .* for NCCL_\w+, using default",
        what="NCCL ignored a setting and uses its default",
        expected="NCCL settings that are legal for this version",
        fix="lint the environment with `scripts/nccl lint FILE --nccl-version VERSION`",
        source=f"{NCCL} src/misc/param.cc",
    ),
    Signature(
        id="nccl-peer-access-failed",
        level="critical",
        cause="nccl",
        words=(
            *("peer", "cudaerrorpeeraccessunsupported", "ipc", "cudaipcopenmemhandle", "pidfd_getfd", "handle"),
            "mapping",
        ),
        pattern=r"failed to peer with device|peer mapping resources exhausted|mapping of buffer object failed"
        r"|peer access is not support(?:ed)? between|cudaErrorPeerAccess\w+"
        r"|(?:failed to open|could not open) CUDA IPC handle|cudaIpc(?:Open|Get)MemHandle.*(?:fail|error"
        r"|invalid)|pidfd_getfd.*(?:fail|not permitted)",
        what="a GPU could not map its peer's memory",
        expected="peer access between all GPUs, or P2P switched off on purpose",
        fix="run the topology check (IOMMU, ACS, BAR1, `nvidia-smi topo -p2p r`); to serve meanwhile set "
        "NCCL_P2P_DISABLE=1 together with --disable-custom-all-reduce",
        source=f"{NCCL} src/transport/p2p.cc, CUDA runtime",
    ),
    Signature(
        id="nccl-no-interface",
        level="critical",
        cause="nccl",
        words=("bootstrap", "interface", "ifname", "address"),
        pattern=r"Bootstrap ?: no socket interface found|No (?:socket|usable network) interface found"
        r"|Unable to find address for: ",
        what="NCCL or gloo found no network interface to meet over",
        expected="an interface that exists, for one host: lo",
        fix="set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to an interface that `ip -br link` shows, or remove them",
        source=f"{NCCL} src/bootstrap.cc, gloo",
    ),
    Signature(
        id="collective-wrong-data",
        level="critical",
        cause="nccl",
        words=("bounds", "mismatch", "wrong", "incorrect", "corrupt", "corrupted", "corruption"),
        pattern=r"# Out of bounds values : [1-9]\d* FAILED|(?:all_?reduce|all_?gather|collective|peer.to.peer"
        r"|p2p).{0,80}(?:mismatch|wrong (?:data|result|value|sum)|incorrect|corrupt)",
        what="a collective returned wrong data",
        expected="value-checked collectives without a difference",
        fix="do not serve: compare with NCCL_P2P_DISABLE=1; where only the engine's own all-reduce is wrong, "
        "--disable-custom-all-reduce; then IOMMU, ACS and unsupported driver keys (ForceP2P)",
        source="nccl-tests; club-3090#922, open-gpu-kernel-modules#1257",
        errors_only=True,
    ),
    Signature(
        id="nccl-timeout",
        level="critical",
        cause="nccl",
        words=("watchdog", "worknccl", "collective", "heartbeat"),
        pattern=r"Watchdog caught collective operation timeout|WorkNCCL\(.*(?:timeout|timed out)"
        r"|collective operation timeout|detected by watchdog at work|ProcessGroupNCCL's watchdog got stuck"
        r"|Heartbeat monitor timed out",
        what="a collective did not end: a rank died or hangs, or peer-to-peer traffic is lost",
        expected="collectives that end within milliseconds",
        fix="look for an earlier error of any rank; with none: check IOMMU (translated mode), ACS redirect and "
        "P2P with the topology check, try NCCL_P2P_DISABLE=1 with --disable-custom-all-reduce, and ask "
        "`ncclras` which rank waits",
        source=f"{TORCH} ProcessGroupNCCL; vllm#33041, nccl#1999",
    ),
    Signature(
        id="nccl-error",
        level="critical",
        cause="nccl",
        words=(
            "error",
            "failure",
            "failed",
            "ncclunhandledcudaerror",
            "ncclsystemerror",
            "ncclinternalerror",
            "ncclinvalidusage",
            "ncclinvalidargument",
            "ncclremoteerror",
            "distbackenderror",
            "aborted",
        ),
        pattern=r"\bnccl(?:UnhandledCudaError|SystemError|InternalError|InvalidUsage|InvalidArgument|RemoteError)\b"
        r"|(?<!c10::)DistBackendError|NCCL communicator was aborted|NCCL error\b|NCCL failure\b"
        r"|NCCL WARN .*(?:Cuda failure|failed with error)",
        what="NCCL failed",
        expected="a communicator over all ranks",
        fix="read the NCCL WARN lines above it (set NCCL_DEBUG=WARN when there are none): they name the call that "
        "failed",
        source=f"{TORCH} ProcessGroupNCCL, {NCCL}",
        vague=True,
    ),
    Signature(
        id="nccl-call-failed",
        level="critical",
        cause="nccl",
        words=("nccl",),
        pattern=r"NCCL INFO \S+\.(?:cc|cu|h):\d+ -> [1-9]",
        what="a call inside NCCL returned an error",
        expected="a communicator over all ranks",
        fix="read the first NCCL WARN line, or the setting that it was about: `scripts/nccl lint` on the environment",
        source=f"{NCCL} src/include/checks.h",
        role="consequence",
    ),
    Signature(
        id="rendezvous-failed",
        level="critical",
        cause="nccl",
        words=("diststoreerror", "clients", "tcpstore", "rendezvous", "connectfullmesh"),
        pattern=r"DistStoreError|waiting for clients|TCPStore.*(?:timed? ?out|timeout|failed|refused)"
        r"|rendezvous.*(?:timed? ?out|failed)|connectFullMesh.*(?:fail|timeout)",
        what="the ranks did not find each other",
        expected="all ranks at the same address and port within the timeout",
        fix="look for the rank that died before; check --dist-init-addr, the distributed port, and a firewall between "
        "hosts",
        source=f"{TORCH} c10d",
        role="consequence",
        errors_only=True,
    ),
)

TOOLCHAIN: tuple[Signature, ...] = (
    Signature(
        id="cuda-home-malformed",
        level="critical",
        cause="jit",
        words=("nvcc", "cuda_home"),
        pattern=r"(?:^|[\s'\"=]):/\S*nvcc\b|CUDA_HOME['\"]?(?:=|: ?| is )['\"]?:/"
        r"|[^\s:'\"]+:/\S*/bin/nvcc\b: not found",
        what="the path of nvcc is malformed: CUDA_HOME was put together from an empty variable (leading colon)",
        expected="CUDA_HOME as one absolute path, without a colon",
        fix="set CUDA_HOME=/usr/local/cuda (one absolute path, no ${CUDA_HOME}: in front) in the unit; test with the "
        "unit's own environment: `systemd-run -p EnvironmentFile=FILE --pipe sh -c '$CUDA_HOME/bin/nvcc --version'`",
        source="vllm#36077",
    ),
    Signature(
        id="nvcc-missing",
        level="critical",
        cause="jit",
        words=("nvcc", "cuda_home", "installation", "path"),
        pattern=r"nvcc['\"]?: (?:command )?not found|No such file or directory: '?[^' ]*\bnvcc\b|nvcc: No such file"
        r"|Could not find nvcc|nvcc not found|(?:failed|unable) to find nvcc"
        r"|CUDA_HOME (?:environment variable )?is not set|Cannot find cuda path|Could not find CUDA installation",
        what="nvcc is not found, so kernels cannot be built at run time",
        expected="a CUDA toolkit with nvcc, CUDA_HOME pointing at it, $CUDA_HOME/bin in PATH of the unit",
        fix="install the toolkit (or use the wheel's nvidia/cu13) and set CUDA_HOME and PATH in the unit: systemd "
        "starts services with an almost empty environment",
        source=f"{FLASHINFER} jit/cpp_ext.py, torch.utils.cpp_extension; ProxmoxVED#2047",
    ),
    Signature(
        id="ninja-missing",
        level="critical",
        cause="jit",
        words=("ninja",),
        pattern=r"Ninja is required|No such file or directory: '?ninja|ninja: (?:command )?not found",
        what="ninja is not found, so kernels cannot be built at run time",
        expected="ninja in PATH of the unit",
        fix="install ninja into the engine's environment and put its bin directory into the unit's PATH",
        source="torch.utils.cpp_extension, FlashInfer",
    ),
    Signature(
        id="python-headers-missing",
        level="critical",
        cause="jit",
        words=("python",),
        pattern=r"fatal error: Python\.h: No such file|Python\.h: No such file",
        what="Python's C headers are missing, so Triton cannot build its launcher",
        expected="Python.h of the interpreter that runs the engine",
        fix="install the development package of that Python (python3-dev, python3.12-dev), or use an interpreter that "
        "carries headers",
        source="Triton",
    ),
    Signature(
        id="compiler-missing",
        level="critical",
        cause="jit",
        words=("compiler", "gcc", "cc1plus", "invalidcxxcompiler", "gnu"),
        pattern=r"Failed to find C compiler|(?:gcc|g\+\+|cc|c\+\+): (?:command )?not found"
        r"|No such file or directory: '?(?:/usr/bin/)?(?:gcc|g\+\+|cc|c\+\+)\b|No working C\+\+ compiler"
        r"|InvalidCxxCompiler|(?:cannot execute|trying to exec) '?cc1plus|unsupported GNU version",
        what="no usable C/C++ compiler",
        expected="gcc and g++ of a version that nvcc accepts, in PATH of the unit",
        fix="install gcc and g++ and keep /usr/bin in the unit's PATH (a PATH with only the venv hides them)",
        source="Triton, TorchInductor, nvcc",
    ),
    Signature(
        id="cuda-library-missing",
        level="critical",
        cause="jit",
        words=("shared", "ld", "cannot", "nvrtc", "libnvrtc"),
        pattern=r"failed to open libnvrtc|lib(?:cudart|cuda|nvrtc|cublas\w*|cudnn\w*|nccl|nvJitLink|cufile|cupti"
        r"|nvshmem\w*)[.\d]\S*: cannot open shared object file|libcuda\.so cannot (?:be )?found"
        r"|ld: cannot find -l(?:cuda|cudart|nvrtc|cublas|nccl)",
        what="a CUDA library is not found",
        expected="the CUDA libraries of the engine's wheels, and for linking $CUDA_HOME/lib64 (libcudart.so without a "
        "version too)",
        fix="set LIBRARY_PATH and LD_LIBRARY_PATH in the unit to the toolkit's or wheel's lib directory; add the "
        "libcudart.so link where only libcudart.so.13 exists",
        source="ld.so, ld; ProxmoxVED#2047",
    ),
    Signature(
        id="system-library-missing",
        level="critical",
        cause="packages",
        words=("shared",),
        pattern=r"lib(?:numa|stdc\+\+|gomp|ibverbs)\.so\S*: cannot open shared object file",
        what="a library of the operating system that the engine links is not installed",
        expected="the packages of host_packages (libnuma1, libstdc++6)",
        fix="install the package that has it, such as libnuma1; the host role does (--tags host)",
        source="ld.so; vLLM 0.32.0, whose kernels then are missing without an error of their own",
    ),
    Signature(
        id="header-or-library-missing",
        level="critical",
        cause="jit",
        words=("fatal", "ld"),
        pattern=r"fatal error: \S+\.(?:h|hpp|cuh): No such file|ld: cannot find -l\S+",
        what="a header or library is missing for a run-time build",
        expected="the toolkit's headers and libraries in one CUDA_HOME",
        fix="point CUDA_HOME at a complete toolkit (not a mix of two), install the development package that the line "
        "names",
        source="gcc, ld",
    ),
    Signature(
        id="jit-cache-noexec",
        level="critical",
        cause="jit",
        words=("map", "executable", "primitive", "mprotect"),
        pattern=r"failed to map segment from shared object|cannot enable executable stack|could not create a primitive"
        r"|mprotect.*(?:denied|not permitted|failed)",
        what="code built at run time may not be executed",
        expected="JIT caches on a file system without noexec, and no MemoryDenyWriteExecute=",
        fix="move the cache directories off a noexec mount; remove MemoryDenyWriteExecute= from the unit",
        source="ld.so, oneDNN under systemd's sandbox",
    ),
    Signature(
        id="jit-build-failed",
        level="critical",
        cause="jit",
        words=(
            "ninja",
            "building",
            "build",
            "inductorerror",
            "backendcompilerfailed",
            "compilationerror",
            "ptxaserror",
            "ptxas",
            "non",
        ),
        pattern=r"ninja: build stopped|InductorError|BackendCompilerFailed|triton\S*CompilationError|PTXASError"
        r"|(?:ptxas|nvcc|cicc|gcc|g\+\+)\b.{0,2000}returned non-zero exit status|Ninja build failed"
        r"|Error building extension|JIT (?:build|compilation) failed",
        what="a kernel could not be built at run time",
        expected="a build that ends",
        fix="read the compiler's lines above; clear the half-built cache before the next try",
        source="ninja, torch.utils.cpp_extension, FlashInfer",
        role="consequence",
    ),
    Signature(
        id="kernel-compile-failed",
        level="critical",
        cause="jit",
        words=("passmanager", "llvm"),
        pattern=r"PassManager::run failed|\bLLVM ERROR\b|LLVM Translation failed|Failed to emit LLVM IR",
        what="Triton could not compile a kernel for this GPU",
        expected="the triton of the engine's lock, which belongs to its torch",
        fix="compare `pip list | grep -i triton` with the lock and remove the release's Triton cache while it is "
        "stopped; if it stays, another --attention-backend or --moe-runner-backend than the one in the traceback",
        source="Triton; pytorch#180908, vllm#30872, triton#8481",
    ),
    Signature(
        id="home-unset",
        level="critical",
        cause="home",
        words=("permission", "home", "errno", "nonexistent", "read", "uid"),
        pattern=r"(?:Permission denied|Read-only file system|No such file or directory)\S* ?'?/(?:\.(?:cache"
        r"|triton|config|local|nv|flashinfer|vllm|sglang|nccl|torch|huggingface|cutlass|tilelang"
        r"|deep_gemm)\b|nonexistent)|KeyError: 'HOME'|HOME (?:is )?not (?:set|defined)"
        r"|Could not determine home directory|uid not found: \d+",
        what="HOME is unset or / for the service, so caches go to the root directory",
        expected="HOME, and all cache directories, under the service's own StateDirectory= and CacheDirectory=",
        fix="set HOME, XDG_CACHE_HOME, HF_HOME, TRITON_CACHE_DIR, VLLM_CACHE_ROOT, FLASHINFER_WORKSPACE_BASE and "
        "SGLANG_CACHE_DIR under CacheDirectory= in the unit",
        source="vllm#20127, vllm#10185, llm-d-kv-cache#83",
    ),
    Signature(
        id="cache-not-writable",
        level="critical",
        cause="home",
        words=("permission", "read", "locator", "folder"),
        pattern=r"(?:Permission denied|Read-only file system)\S* ?'?\S*(?:cache|\.triton|/triton|flashinfer"
        r"|inductor|/\.nv\b|tilelang|/\.config)|cannot cache function .*no locator available"
        r"|trying to write in your cache folder",
        what="a cache directory is not writable for the service",
        expected="cache directories owned by the service's user, listed in CacheDirectory= or ReadWritePaths=",
        fix="chown the directory to the service's user (root may have built in it before), and let "
        "ProtectSystem=strict through with CacheDirectory=",
        source="CPython, numba",
    ),
)

REST: tuple[Signature, ...] = (
    Signature(
        id="nccl-address-unreachable",
        level="critical",
        cause="nccl",
        words=("connect", "socketstartconnect"),
        pattern=r"NCCL WARN .*[Cc]onnect.* to \S+ (?:failed|returned)\b.*(?:No route to host|Network is unreachable"
        r"|Connection timed out|connection abort|Connection refused|Cannot assign)",
        what="NCCL chose a network address at which its own ranks cannot be reached",
        expected="ranks of one host that meet at an interface of this host",
        fix="name the interface with NCCL_SOCKET_IFNAME (one host: =lo; not a bridge of Docker or a VPN), and let the "
        "firewall pass traffic on it",
        source=f"{NCCL} src/misc/socket.cc",
    ),
    Signature(
        id="cuda-in-fork",
        level="critical",
        cause="option",
        words=("forked",),
        pattern=r"Cannot re-initialize CUDA in forked subprocess",
        what="a process that already used CUDA was forked",
        expected="workers that are spawned",
        fix="set VLLM_WORKER_MULTIPROC_METHOD=spawn in the unit; keep plug-ins and sitecustomize from touching CUDA",
        source="PyTorch, vLLM troubleshooting guide",
    ),
    Signature(
        id="cuda-call-failed",
        level="critical",
        cause="gpu",
        words=("error", "acceleratorerror"),
        pattern=r"\bCUDA (?:driver |runtime )?error(?::| \(|\b)|\bAcceleratorError\b",
        what="a CUDA call failed",
        expected="no CUDA error",
        fix="`journalctl -k` for an Xid of the same second; the last frames of the traceback name the library; "
        "CUDA_LAUNCH_BLOCKING=1 finds the call; then another backend for what it names",
        source="CUDA runtime, PyTorch; vllm#14885",
        errors_only=True,
        vague=True,
    ),
    Signature(
        id="nccl-warning",
        level="warning",
        cause="nccl",
        words=("warn",),
        pattern=r"NCCL WARN ",
        what="NCCL warns",
        expected="no NCCL WARN line",
        fix="read the line: it names the call or the setting that failed",
        source=f"{NCCL} src/debug.cc",
    ),
    Signature(
        id="permission-denied",
        level="critical",
        cause="permission",
        words=("permission", "permissionerror", "errno"),
        pattern=r"PermissionError: |\[Errno 13\]|\[Errno 1\] Operation not permitted|Permission denied\b",
        what="the service may not use a file or device",
        expected="files and directories of the service's own user, or listed in the unit (CacheDirectory=, "
        "ReadWritePaths=)",
        fix="`sudo -u USER stat PATH` on the path in the line; ProtectHome= and ProtectSystem= hide paths from a "
        "unit; device files need DeviceAllow=",
        source="CPython, Linux errno(3)",
    ),
)

PACKAGES: tuple[Signature, ...] = (
    Signature(
        id="kernels-missing",
        level="critical",
        cause="packages",
        words=("_opnamespace", "nameerror", "module", "common_ops"),
        pattern=r"'_OpNamespace' '\w+' object has no attribute|name 'vllm_\w*ops' is not defined"
        r"|No module named '?(?:vllm\._\w+|sgl_kernel)|Could not load any common_ops",
        what="the engine's compiled kernels are not loaded",
        expected="kernel package, torch and CUDA libraries of one lock, and the libraries of the operating system",
        fix="look for an earlier `Failed to import from vllm._C` or `cannot open shared object file`: it names the "
        "library; `ldd` on the package's .so shows it too; then rebuild the release from its lock",
        source="vllm#9191, vllm#33675, vllm#4083",
        errors_only=True,
    ),
    Signature(
        id="binary-mismatch",
        level="critical",
        cause="packages",
        words=("undefined", "glibcxx_3", "glibc_2", "version", "nms", "numpy", "loading"),
        pattern=r"undefined symbol: \S+|version `?(?:GLIBC|GLIBCXX|CXXABI)_\S+' not found"
        r"|operator torchvision::nms does not exist|compiled using NumPy 1\.x|error while loading shared libraries:",
        what="two binary packages do not fit together (built for another PyTorch, CUDA or glibc)",
        expected="the engine's locked set of wheels, on a host with glibc 2.34 or newer",
        fix="rebuild the release from its lock; never upgrade torch or a kernel package alone",
        source="ld.so, PyTorch extensions",
    ),
    Signature(
        id="package-version",
        level="critical",
        cause="packages",
        words=(
            *("version", "versionconflict", "installed", "attributeerror", "typeerror", "python"),
            *("rope_type", "rope_scaling", "rope_parameters"),
        ),
        pattern=r"is installed with version \S+ which is less than the minimum"
        r"|with minimum required version \S+ is not installed|flashinfer-cubin version .* does not match"
        r"|VersionConflict|requires \S+[<>=!~]=?\S+,? (?:but|however)|requires a different Python"
        r"|AttributeError: (?:'?\w*Config'? object|module '[\w.]+') has no attribute"
        r"|TypeError: [\w.]+\(\) (?:got (?:an unexpected|multiple)|missing \d|takes )"
        r"|KeyError: '(?:rope_\w+|model_type)'|`?rope_(?:scaling|parameters)`?.{0,30} (?:must|should) ",
        what="an installed package is of another version than the engine needs",
        expected="the versions that the engine's lock names",
        fix="rebuild the release from its lock; do not skip the check by environment variable; where the model's "
        "config.json is newer than the release, take the release that the model card names",
        source=f"{SGLANG} srt/utils/common.py, {FLASHINFER} jit/env.py",
        errors_only=True,
    ),
    Signature(
        id="module-missing",
        level="critical",
        cause="packages",
        words=("modulenotfounderror", "importerror", "module", "import", "packagenotfounderror", "library", "metadata"),
        pattern=r"ModuleNotFoundError: No module named|\bcannot import name '|ImportError: (?:Please install"
        r"|.*(?:is not installed|not available))|No module named '?(?:sglang|vllm|torch)\b"
        r"|PackageNotFoundError|No package metadata was found|requires the \S+ library but it was not found",
        what="a Python module is missing or of another version",
        expected="the engine's locked set of packages, and its own interpreter in ExecStart=",
        fix="check that ExecStart= uses the release's own python; rebuild the release from its lock",
        source="CPython",
        errors_only=True,
    ),
)

OPTIONS: tuple[Signature, ...] = (
    Signature(
        id="option-deprecated",
        level="info",
        cause="option",
        words=("deprecated",),
        pattern=r"^(?!.*(?:Error|Exception): ).*(?:is|has been|are) deprecated",
        what="an option or variable will go away",
        expected="the name that the line gives instead",
        fix="use the new name at the next change of the configuration",
        source=f"{SGLANG} srt/server_args.py and srt/environ.py",
        role="harmless",
    ),
    Signature(
        id="option-unknown",
        level="critical",
        cause="option",
        words=("unrecognized", "argument", "arguments", "choice", "option", "removed"),
        pattern=r"unrecognized arguments?:|error: argument \S+.*: |invalid choice: "
        r"|the following arguments are required|expected (?:one|at least one) argument|ambiguous option:"
        r"|[Nn]o such option:?|option \S+ (?:has been|was) removed",
        what="the engine does not know an option, or not with this value",
        expected="options of the installed release",
        fix="compare with `python -m sglang.launch_server --help` or `vllm serve --help=all` of the same release; do "
        "not restart",
        source="argparse",
    ),
    Signature(
        id="configuration-refused",
        level="critical",
        cause="option",
        words=("value", "argument", "valueerror", "deprecated", "assertionerror"),
        pattern=r"(?:^|[)\]:|] )\s*Value error, |Unknown argument in config file|(?:Error"
        r"|Exception): .{1,200}\bis deprecated\b|(?:ValueError|AssertionError):"
        r" (?:--[a-z][\w-]+|\w+_size) (?:must|should|can|is not|requires|does)",
        what="the engine refuses its configuration: options that do not go together, or not with this model",
        expected="a set of options that the release supports for this model",
        fix="change what the line names; do not restart: it fails the same way each time",
        source=f"{VLLM} config (pydantic), {SGLANG} srt/server_args.py",
    ),
    Signature(
        id="variable-unknown",
        level="warning",
        cause="environment",
        words=("variable", "variables"),
        pattern=r"Unknown vLLM environment variable detected: (?P<subject>\w+)"
        r"|Unknown SGLang environment variable:? (?P<subject2>\w+)",
        what="an environment variable is unknown to this release and has no effect",
        expected="variables that the installed release knows",
        fix="correct the spelling, or replace it by what this release offers (VLLM_ATTENTION_BACKEND became "
        "--attention-backend)",
        source=f"{VLLM} platforms/interface.py",
    ),
    Signature(
        id="moe-config-missing",
        level="info",
        cause="performance",
        words=("moe", "optimal"),
        pattern=r"Using default MoE (?:kernel )?config|Performance might be sub-optimal",
        what="no tuned MoE kernel configuration for this GPU, expert count and size",
        expected="a tuned file in SGLANG_MOE_CONFIG_DIR, or acceptance of the default",
        fix="tune it on this host if prefill speed matters; the file name that is missing is in the line",
        source=f"{SGLANG} moe_runner/triton_utils/fused_moe_triton_config.py",
        role="harmless",
    ),
    Signature(
        id="custom-all-reduce-off",
        level="info",
        cause="performance",
        words=("allreduce", "customallreduce", "customallreducev2"),
        pattern=r"all_?reduce\w* is disabled because",
        what="the engine's own all-reduce is off: more than two GPUs without NVLink",
        expected="this message on a PCIe host",
        fix="nothing; --disable-custom-all-reduce silences it",
        source=f"{SGLANG} custom_all_reduce_utils.py, {VLLM}",
        role="harmless",
    ),
)

RUNNING: tuple[Signature, ...] = (
    Signature(
        id="health-check-failed",
        level="warning",
        cause="hang",
        words=("health",),
        pattern=r"Health check failed\. Server could(?:n't| not) get a response",
        what="SGLang's health check got no token in time: a long prefill does that too",
        expected="no restart for one failed probe: several in a row, and no progress of running requests",
        fix="raise SGLANG_HEALTH_CHECK_TIMEOUT above the longest prefill; let a watchdog count failures and skip while "
        "requests advance",
        source=f"{SGLANG} srt/entrypoints/http_server.py; sglang#22511",
    ),
    Signature(
        id="probe-failed",
        level="warning",
        cause="hang",
        words=("probe",),
        pattern=r"(?:Liveness|Readiness|Startup) probe failed|failed (?:liveness|startup) probe",
        what="a container manager's probe failed: SGLang's health check takes a second or more, and a long "
        "prefill longer",
        expected="no restart for one failed probe; a probe timeout of at least 5 s",
        fix="raise timeoutSeconds to 5 or more and failureThreshold, and give a start its own startup probe",
        source="aws-solutions-library-samples/global-capacity-orchestrator-on-aws#387",
    ),
    Signature(
        id="engine-hung",
        level="critical",
        cause="hang",
        words=("watchdog", "sample_tokens", "execute_model", "dequeue"),
        pattern=r"\bwatchdog timeout \(self\.|RPC call to (?:sample_tokens|execute_model) timed out",
        what="the engine's loop stands still",
        expected="a step within seconds",
        fix="before restarting: `py-spy dump` of the scheduler, `nvidia-smi` (100% and low power: a collective waits), "
        "`journalctl -k`; then look at P2P, IOMMU and ACS",
        source=f"{SGLANG} srt/utils/watchdog.py, {VLLM} v1/executor and shm_broadcast",
    ),
    Signature(
        id="workers-silent",
        level="warning",
        cause="hang",
        words=("broadcast",),
        pattern=r"No available shared memory broadcast block found in \d+ seconds",
        what="vLLM waits for its workers: they build kernels or load weights, or they hang",
        expected="at most a few of these, in a start with cold caches",
        fix="if they go on: `ps -ef | grep -E 'nvcc|cicc|ptxas'` shows a build, `py-spy dump` of a worker shows a hang",
        source=f"{VLLM} shm_broadcast",
    ),
    Signature(
        id="engine-start-timeout",
        level="critical",
        cause="start-timeout",
        words=("waiting", "initialization", "front"),
        pattern=r"Timed out waiting for engine(?: core|s\b)|Did not receive response from front-end process"
        r"|Initialization timeout",
        what="the engine gave up waiting for its own start",
        expected="VLLM_ENGINE_READY_TIMEOUT_S above the longest cold start, and the unit's TimeoutStartSec above that",
        fix="raise VLLM_ENGINE_READY_TIMEOUT_S; weights on local NVMe; make sure no worker stays behind "
        "(KillMode=mixed)",
        source=f"{VLLM} v1/engine/core_client.py; vllm#44751",
    ),
    Signature(
        id="cpu-instruction-missing",
        level="critical",
        cause="packages",
        words=("illegal", "ill", "opcode"),
        pattern=r"Illegal instruction(?! was encountered)|status=4/ILL|traps: .*invalid opcode",
        what="a program uses instructions that this processor (or virtual machine) does not offer",
        expected="wheels for the host's processor; a guest that sees the host's processor (cpu: host)",
        fix="compare `lscpu` (AVX-512, AMX) with what the wheel needs: vLLM's and SGLang's CPU kernels want AVX-512; "
        "in "
        "a guest set the processor's type to host",
        source="Linux kernel log, bash",
    ),
    Signature(
        id="process-crashed",
        level="critical",
        cause="worker",
        words=("segmentation", "segfault", "traps", "segv", "code", "signal", "pointer", "corruption", "malloc"),
        pattern=r"Segmentation fault|\bsegfault (?:at [0-9a-f]|encountered)|traps: .*(?:general protection|trap)"
        r"|status=11/SEGV|double free or corruption|(?:free|munmap_chunk|realloc)\(\): invalid|malloc\(\): "
        r"|\bexit ?code\b['\"]?[ :=(]{0,3}-11\b|[Ss]ignal 11 \(SIGSEGV\)",
        what="a process of the engine crashed in native code (segmentation fault)",
        expected="no crash",
        fix="the frames below it, or the library in the kernel's line, say whose code it was; rebuild the release from "
        "its lock, compare the driver with what the CUDA version needs, and look for an Xid of the same second",
        source="CPython faulthandler, Linux kernel log; vllm#27868",
    ),
    Signature(
        id="custom-all-reduce-trace",
        level="critical",
        cause="unsupported",
        words=("custom_all_reduce", "quick_all_reduce", "custom_all_reduce_ops"),
        pattern=r"File \"[^\"]*(?:custom|quick)_all_reduce\w*\.py\", line \d+, in (?!<module>)",
        what="an error came out of the engine's own all-reduce",
        expected="--disable-custom-all-reduce on PCIe hosts unless a peer-to-peer self-test passed",
        fix="read the last line of that traceback; where it names no other cause, add --disable-custom-all-reduce",
        source="sglang#9706",
        role="consequence",
    ),
    Signature(
        id="worker-died",
        level="critical",
        cause="worker",
        words=(
            "enginecore",
            "enginedeaderror",
            "engine",
            "worker",
            "scheduler",
            "sigquit",
            "detokenizermanager",
            "tokenizermanager",
            "initialization",
            "subprocess",
            "capture",
            "core",
            "process",
            "died",
            "terminate",
            "aborted",
            "ranks",
        ),
        pattern=r"EngineDeadError|other ranks that didn't finish loading|Engine process \(pid \d+\) died"
        r"|terminate called after throwing"
        r"|Fatal Python error: Aborted"
        r"|EngineCore (?:encountered|failed)|Engine core (?:initialization failed|process)"
        r"|Engine process failed|Worker proc \S+ died|WorkerProc (?:initialization|hit)|(?:Scheduler"
        r"|DetokenizerManager|TokenizerManager) hit an exception|SIGQUIT received|Received sigquit"
        r"|Initialization failed\.|scheduler (?:is dead|died)|Subprocess \S+ .*crashed|Capture cuda graph failed"
        r"|died with exit code|died, exit code|died unexpectedly",
        what="a process of the engine ended",
        expected="all processes of the engine alive",
        fix="the cause is in the lines before the first of these",
        source=f"{SGLANG} srt/entrypoints/engine.py and srt/managers, {VLLM} v1/engine",
        role="consequence",
    ),
)

ENGINE_SIGNATURES: tuple[Signature, ...] = (
    *NETWORK,
    *MEMORY,
    *TOOLCHAIN,
    *MODEL,
    *ARCHITECTURE,
    *COMMUNICATION,
    *REST,
    *PACKAGES,
    *OPTIONS,
    *RUNNING,
)
