# SPDX-License-Identifier: Apache-2.0
"""What ``diagnose`` concludes from more than one line: the rules as data, and what a reader returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..findings import Finding, Level, NotChecked


@dataclass(frozen=True)
class Rule:
    """One conclusion. ``source`` says where it is known from."""

    id: str
    level: Level
    what: str
    expected: str
    fix: str
    source: str


@dataclass
class Reading:
    """What one reader found in the input: which kind of input it recognised, findings, and what it could not see."""

    kind: str
    findings: list[Finding] = field(default_factory=list)
    not_checked: list[NotChecked] = field(default_factory=list)

    def add(self, rule_id: str, seen: str, *, what: str = "", level: Level | None = None, fix: str = "") -> None:
        """Add the finding of a rule; ``what`` is put behind the rule's own, ``level`` and ``fix`` replace it."""
        rule = RULES[rule_id]
        text = f"{rule.what}: {what}" if what else rule.what
        self.findings.append(Finding(rule.id, level or rule.level, text, seen, rule.expected, fix or rule.fix))


_ROWS: tuple[Rule, ...] = (
    Rule(
        "unrecognised-input",
        "unknown",
        "nothing in the input is of a kind that is known here",
        "an engine's log, a journal, a kernel log, a unit or environment file, a process list, a file listing with "
        "modes, a health exchange, or what nvidia-smi and lspci print",
        "give the log of the unit (`journalctl -u UNIT -o cat`), `journalctl -k`, or `systemctl cat UNIT`",
        "this program",
    ),
    Rule(
        "exception-unknown",
        "unknown",
        "the log ends with an error that is in no table here",
        "a log without an exception that ends the program",
        "its last lines name the file and line that raised it; search the engine's issues for its words, and compare "
        "the release, the model's format and the flags with what its documentation supports",
        "CPython tracebacks",
    ),
    Rule(
        "combination-refused",
        "critical",
        "the engine refuses this combination of model, options and GPU",
        "a combination that the release documents",
        "change the dtype, backend or option that the message names (--kv-cache-dtype auto and the engine's own "
        "choice of --attention-backend and --moe-runner-backend first; then without speculative decoding); it fails "
        "the same way each time: do not restart",
        "vllm#54690, vllm#57713, vllm#50056",
    ),
    # secrets
    Rule(
        "secret-in-command-line",
        "critical",
        "a secret stands in a command line, where every local user reads it (ps, systemctl cat, the journal)",
        "no key in arguments",
        "change the key now; keep it at the gateway, or give it by LoadCredential= in a file of mode 0600 (SGLang: "
        "--config with a file in the credentials directory)",
        "sglang#36346",
    ),
    Rule(
        "secret-in-unit",
        "critical",
        "a secret stands in Environment=, which `systemctl show` prints to every local user",
        "secrets by LoadCredential= only",
        "change the key now; move it to LoadCredential= with a file of mode 0600",
        "systemd.exec(5), Environment=",
    ),
    Rule(
        "secret-in-environment-file",
        "warning",
        "an environment file holds a secret",
        "a credential file (LoadCredential=), or at least mode 0600 and owner root",
        "move it to LoadCredential=; until then `chmod 600` and `chown root:root` on the file",
        "systemd.exec(5), Credentials",
    ),
    Rule(
        "secret-in-log",
        "critical",
        "a secret stands in a log or an answer",
        "no key in anything that is kept",
        "change the key now, remove the log, and stop passing the key as an argument: engines print their arguments",
        "sglang#37457",
    ),
    # units
    Rule(
        "start-timeouts-contradict",
        "critical",
        "the unit gives up before the engine does",
        "TimeoutStartSec above VLLM_ENGINE_READY_TIMEOUT_S",
        "raise TimeoutStartSec= above VLLM_ENGINE_READY_TIMEOUT_S (or lower the latter); make sure no worker stays "
        "behind when the start fails (KillMode=mixed)",
        "vllm#44751",
    ),
    Rule(
        "start-timeout-too-small",
        "warning",
        "TimeoutStartSec is smaller than a model takes to load",
        "TimeoutStartSec of at least 600 s for a start that waits for the engine, or a supervisor that extends it",
        "raise TimeoutStartSec= (default 90 s); ExecStartPre= and ExecStartPost= count too",
        "systemd.service(5); RIDE-Lab/SAGE#1346",
    ),
    Rule(
        "start-timeout-without-effect",
        "info",
        "with Type=simple the unit counts as started at once: TimeoutStartSec does not cover the load",
        "Type=notify with a supervisor that reports readiness",
        "use Type=notify, or wait for a completion in ExecStartPost=",
        "systemd.service(5)",
    ),
    Rule(
        "restart-without-limit",
        "warning",
        "the unit restarts for ever: its start limit is off or never trips",
        "StartLimitIntervalSec >= (StartLimitBurst + 1) x (the longest start + RestartSec)",
        "set StartLimitIntervalSec= and StartLimitBurst= in [Unit] by that rule; the default (5 in 10 s) never "
        "trips when a start lives longer than two seconds",
        "systemd.unit(5), eugr/spark-vllm-docker#257",
    ),
    Rule(
        "unit-value-invalid",
        "critical",
        "a value that systemd does not know and ignores",
        "a value of systemd.service(5)",
        "correct it; `systemd-analyze verify` prints such lines but returns 0",
        "systemd.service(5)",
    ),
    Rule(
        "kill-mode-leaves-workers",
        "critical",
        "KillMode leaves the workers alive, with their GPU memory",
        "KillMode=mixed, or control-group",
        "set KillMode=mixed",
        "systemd.kill(5); vllm#55510",
    ),
    Rule(
        "crash-counts-as-success",
        "critical",
        "SuccessExitStatus makes a death by SIGKILL a success: a crash ends inactive and is not restarted",
        "no SIGKILL in SuccessExitStatus",
        "remove it; let a supervisor tell a stop that was asked for from a crash",
        "systemd 252, seen with SGLang 0.5.23, which kills itself after a drain and after a crash alike",
    ),
    Rule(
        "home-unset",
        "critical",
        "HOME is unset, / or /nonexistent for the service, so caches go where it may not write",
        "HOME and the cache variables under StateDirectory= and CacheDirectory=",
        "set HOME, XDG_CACHE_HOME, HF_HOME, TRITON_CACHE_DIR, VLLM_CACHE_ROOT, FLASHINFER_WORKSPACE_BASE and "
        "SGLANG_CACHE_DIR in the unit",
        "systemd.exec(5): HOME is set only with User=; vllm#20127",
    ),
    Rule(
        "cuda-home-malformed",
        "critical",
        "CUDA_HOME is malformed",
        "one absolute path without a colon, such as /usr/local/cuda",
        "write CUDA_HOME=/usr/local/cuda; do not build it from another variable: an empty one leaves a leading colon",
        "vllm#36077",
    ),
    Rule(
        "path-incomplete",
        "critical",
        "PATH lacks the system's directories: no sh, gcc or ninja for kernels that are built at run time",
        "PATH with $CUDA_HOME/bin, the release's bin, /usr/local/bin, /usr/bin and /bin, written out",
        "write PATH out in full: systemd expands no $PATH in Environment=",
        "units in public repositories; ProxmoxVED#2047",
    ),
    Rule(
        "jit-environment",
        "info",
        "the environment for run-time builds is complete: nvcc's directory and the system's are both in PATH",
        "the same, and a first request that really builds",
        "nothing; kernels are built at the first request, so test one under the unit's own environment",
        "ProxmoxVED#2047",
    ),
    Rule(
        "triton-cache-overridden",
        "warning",
        "TRITON_CACHE_DIR alone has no effect in vLLM, which puts its own cache root over it",
        "VLLM_CACHE_ROOT beside TRITON_CACHE_DIR",
        "set VLLM_CACHE_ROOT too",
        "vllm#48806",
    ),
    Rule(
        "listens-everywhere",
        "warning",
        "the engine listens on every interface",
        "127.0.0.1, with a gateway that lets an allow-list of paths through",
        "use --host 127.0.0.1: engines deserialise pickles and offer administration paths without a key",
        "GHSA-h74r-pwx2-6qr2, CVE-2026-3059, CVE-2026-7304",
    ),
    Rule(
        "remote-code-trusted",
        "info",
        "--trust-remote-code runs code that ships with the weights",
        "off unless the model needs it and its revision is pinned",
        "remove it where the engine knows the model",
        "huggingface transformers",
    ),
    Rule(
        "runs-as-root",
        "warning",
        "the unit names no User=: the engine runs as root",
        "a system user without shell",
        "set User= and Group=",
        "systemd.exec(5)",
    ),
    Rule(
        "sandbox-breaks-engine",
        "critical",
        "a sandbox setting that CUDA, JIT or the engine cannot live with",
        "a sandbox without it",
        "remove or widen the directive",
        "systemd 252 with SGLang 0.5.23",
    ),
    Rule(
        "stop-timeout-too-small",
        "warning",
        "TimeoutStopSec is shorter than a drain: running requests are cut off",
        "TimeoutStopSec above the longest request",
        "raise TimeoutStopSec= to 120 s or more",
        "SGLang 0.5.23: a 500-token stream took 42 s to drain",
    ),
    Rule(
        "limits-too-small",
        "warning",
        "a resource limit of the unit is too small for an engine",
        "LimitNOFILE=1048576, LimitMEMLOCK=infinity, TasksMax=infinity",
        "raise the limit in the unit",
        "systemd.exec(5)",
    ),
    # NCCL and collectives
    Rule(
        "p2p-level-is-no-cure",
        "info",
        "NCCL_P2P_LEVEL allows peer-to-peer traffic; where the IOMMU translates, that hangs instead of helping",
        "IOMMU off or passthrough wherever peer-to-peer is used",
        "check `cat /proc/cmdline`, `ls /sys/class/iommu` and the ACS control bits; the setting is no cure for a hang",
        "vllm#33041",
    ),
    Rule(
        "collective-without-timeout",
        "warning",
        "a collective test without a time limit: where peer-to-peer is broken it never returns",
        "`timeout 120` before it, or nccl-tests' -T",
        "run it with a time limit; when it runs into the limit, suspect P2P, IOMMU (translated mode) and ACS "
        "redirect, and compare with NCCL_P2P_DISABLE=1",
        "nccl#1999",
    ),
    # exchange
    Rule(
        "engine-does-not-generate",
        "critical",
        "the server does not generate (the engine hangs), whatever its health URL says",
        "a completion within the time limit",
        "collect `py-spy dump`, `nvidia-smi` and `journalctl -k`, then restart; a health check has to ask for a real "
        "completion with a prompt of its own",
        "sglang#6624, vllm#36451",
    ),
    Rule(
        "generation-refused",
        "critical",
        "the server answers a generation with an error",
        "200 with text",
        "5xx: look in the engine's log; 404: compare the path and the served model name; 400: the request",
        "HTTP",
    ),
    Rule(
        "key-needed",
        "warning",
        "the server wants a key for this path",
        "an answer to this caller",
        "give the key in the Authorization header, or keep keys at the gateway only",
        "HTTP 401 and 403",
    ),
    Rule(
        "metrics-not-scrapeable",
        "warning",
        "/metrics cannot be scraped",
        "200 for the scraper",
        "401 or 403: give the scraper the key, or a release that exempts /metrics, and then restrict the path to named "
        "scrapers (loopback or firewall), since it is open; 404: --enable-metrics (SGLang)",
        "sglang#3443",
    ),
    Rule(
        "server-not-listening",
        "critical",
        "nothing listens on the server's port",
        "a listening server",
        "`systemctl status UNIT` and its log; compare host and port",
        "curl, TCP",
    ),
    Rule(
        "server-not-ready",
        "warning",
        "the health URL says not ready: starting, draining, or no token for 20 s",
        "200 once warmed up",
        "wait while it starts; a drain says 503 within a second, a hung engine only after 20 s; never restart on "
        "one probe",
        "SGLang 0.5.23 srt/entrypoints/http_server.py",
    ),
    Rule(
        "health-probe-time",
        "info",
        "the server is ready; its health check generates a token and takes a second or more",
        "a probe timeout of at least 5 s",
        "set the probe's timeout to 5 s or more",
        "aws-solutions-library-samples/global-capacity-orchestrator-on-aws#387",
    ),
    Rule(
        "degenerate-output",
        "critical",
        "the answer is degenerate: wrong numbers reach the sampler",
        "text",
        "do not serve: test with NCCL_P2P_DISABLE=1 and --disable-custom-all-reduce (corrupt peer-to-peer "
        "copies), another attention, MoE or FP4 backend, BF16 KV cache; leave out variables that count when "
        "merely present (GGML_CUDA_P2P=0 still switches it on)",
        "unslothai/unsloth#10613, sglang#24321",
    ),
    Rule(
        "suspicious-output",
        "warning",
        "the answer mixes scripts or holds unreadable characters",
        "text in one language",
        "ask a prompt with a known answer (the smoke test does)",
        "vllm#41651",
    ),
    # host
    Rule(
        "stray-engine-processes",
        "critical",
        "engine processes without their server: they hold GPU memory although the port is free",
        "no engine process left before a start",
        "refuse to start; end them by pid (`kill PID`, then `kill -9 PID`), wait until the GPU memory is free; use "
        "KillMode=mixed, never process",
        "vllm#55510",
    ),
    Rule(
        "shm-leftovers",
        "warning",
        "shared memory segments lie in /dev/shm: left by a crash, unless an engine runs",
        "an empty /dev/shm when no engine runs",
        "with no engine running remove nccl-*, psm_*, torch_* and sem.* of the service's user; better: give each "
        "instance a /dev/shm of its own (TemporaryFileSystem=/dev/shm:mode=1777,size=...)",
        "llm-d#352",
    ),
    Rule(
        "container-restarts-for-ever",
        "warning",
        "the container restarts for ever: a start that fails repeats until the host thrashes",
        "a few restarts, then a stop whose last error is visible",
        "restart: on-failure:5 (docker run --restart=on-failure:5); find the first error",
        "eugr/spark-vllm-docker#257",
    ),
    Rule(
        "container-shm-small",
        "warning",
        "the container runs with the default /dev/shm of 64 MB",
        "--ipc=host, or --shm-size of several GB",
        "add --ipc=host or --shm-size=16g: NCCL and the engine's workers exchange data there",
        "vllm#1710, vLLM's Docker guide",
    ),
    Rule(
        "numa-misses",
        "info",
        "memory that was asked of one NUMA node came from the other",
        "next to none beside numa_hit",
        "`numactl --hardware` shows which node is full (the page cache of the weights counts); bind each rank to the "
        "node of its GPU, and set kernel.numa_balancing=0",
        "Linux Documentation/admin-guide/numastat.rst",
    ),
    Rule(
        "file-mode",
        "critical",
        "a file's mode is too open",
        "logs 0640 or tighter, secrets 0600, nothing writable for others",
        "`chmod 600 FILE` (or log to the journal only) and UMask=0077 in the unit; change keys that it held",
        "MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks#12",
    ),
    Rule(
        "weight-file-small",
        "critical",
        "a weight file of a few hundred bytes is no weights, but Git LFS's pointer to them",
        "every shard in full, some GB each",
        "`head -c 200 FILE` shows the pointer; fetch the files themselves (`git lfs pull`, or the hub's own client)",
        "hiyouga/LlamaFactory#327",
    ),
    Rule(
        "model-file-mode",
        "warning",
        "only its owner may read a model file",
        "readable for the service's user",
        "`chmod -R u=rwX,go=rX MODEL_DIR`",
        "seen: converters leave 0600",
    ),
    Rule(
        "acs-redirect",
        "critical",
        "ACS redirects peer-to-peer traffic to the root complex",
        "ACSCtl without ReqRedir and CmpltRedir on every bridge above a GPU (root ports and switch ports)",
        "clear it at every boot (`setpci -s BDF ECAP_ACS+6.w=0000`, or the BIOS option) and run the IOMMU in "
        "passthrough or off; `nvidia-smi topo -p2p` says OK all the same; until then NCCL_P2P_DISABLE=1 with "
        "--disable-custom-all-reduce",
        "vllm#51513, nccl#2079, NCCL user guide (troubleshooting)",
    ),
    Rule(
        "link-narrow",
        "warning",
        "a PCIe link runs with fewer lanes than its device has",
        "x16",
        "reseat the card or riser; check bifurcation in the BIOS",
        "lspci LnkSta",
    ),
    Rule(
        "pair-classes",
        "info",
        "pairs of GPUs of every link class: a collective test has to cover each class, not one pair",
        "a value-checked test of every class",
        "run the two-rank test for each of these pairs with a time limit: pairs behind one switch (PIX, PXB) can "
        "hang where SYS pairs work (ACS, VT-d)",
        "nccl#667",
    ),
    Rule(
        "p2p-not-ok",
        "warning",
        "some pairs of GPUs have no peer access",
        "OK for every pair (and OK alone proves nothing: test it)",
        "CNS: chipset or IOMMU, GNS: GPU or driver, TNS: topology; check BIOS, IOMMU, ACS and the driver's options",
        "nvidia-smi topo -p2p",
    ),
    Rule(
        "gpu-names",
        "info",
        "the GPUs' class is known by name",
        "the class by prefix or PCI id, never one exact name",
        "on compute capability 12.0 (SM120) choose a model and backends that exist for it; what is not supported "
        "fails at every start: do not restart for ever",
        "Datura-ai/lium-io#1198, vllm#40991",
    ),
    Rule(
        "driver-mismatch",
        "critical",
        "the loaded kernel module and the driver's libraries have different versions",
        "one version: `cat /proc/driver/nvidia/version` and `nvidia-smi` agree",
        "stop the engine and reboot; hold the driver's packages so that an upgrade cannot replace them under a "
        "running module",
        "NVML; lyulyul/shine-cluster#30",
    ),
    Rule(
        "driver-upgraded",
        "warning",
        "the NVIDIA driver's packages were upgraded and a reboot is pending: the loaded module is still the old one",
        "driver packages on hold, upgraded only with a reboot",
        "plan the reboot before anything restarts the engine; `apt-mark hold` the driver's packages and put "
        "nvidia, libnvidia and cuda into Unattended-Upgrade::Package-Blacklist",
        "pando85/homelab#4110, lyulyul/shine-cluster#30",
    ),
    Rule(
        "nvidia-smi-error",
        "critical",
        "nvidia-smi prints an error instead of an answer",
        "an answer for every GPU",
        "look at the kernel log for Xid errors; `scripts/topology check` says what the host should be",
        "nvidia-smi",
    ),
    Rule(
        "gpu-count-dropped",
        "critical",
        "GPUs are lost",
        "as many GPUs as before",
        "`journalctl -k` for Xid 79 and PCIe errors, temperature and power at that time; drain the host and reboot",
        "ormandj/sglang-glm53-flash-sm120#11",
    ),
)

RULES: Mapping[str, Rule] = {rule.id: rule for rule in _ROWS}
"""All rules by id."""
