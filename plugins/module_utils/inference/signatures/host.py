# SPDX-License-Identifier: Apache-2.0
"""Known lines of the driver, the kernel and systemd. The first row that matches a line counts: specific ones first."""

from __future__ import annotations

from .signature import Signature

SYSTEMD = "systemd 252"
KERNEL = "Linux kernel log"
DRIVER = "NVIDIA driver"

DRIVER_SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="driver-mismatch",
        level="critical",
        cause="driver",
        words=("mismatch",),
        pattern=r"Driver/library version mismatch|NVRM: API mismatch|NVML.*version mismatch",
        what="the driver's libraries and the loaded kernel module have different versions",
        expected="one version: `cat /proc/driver/nvidia/version` and `nvidia-smi` agree",
        fix="stop the engine and reboot (or unload and load the modules); hold the driver's packages so that an "
        "unattended upgrade cannot replace them under a running module",
        source="NVML; pando85/homelab#4110",
    ),
    Signature(
        id="driver-open-modules-needed",
        level="critical",
        cause="driver",
        words=("open",),
        pattern=r"requires use of the NVIDIA open kernel modules|only supported (?:by|with) the open .*kernel modules",
        what="the proprietary kernel modules are loaded, and this GPU works with the open ones only",
        expected="the open kernel modules on Blackwell (`modinfo nvidia | grep license`: MIT/GPL)",
        fix="install the driver's -open packages instead (nvidia-open, nvidia-dkms-BRANCH-open) and reboot",
        source="NVRM of driver branches 570 and newer",
    ),
    Signature(
        id="driver-module-not-loaded",
        level="critical",
        cause="driver",
        words=("modprobe", "nouveau", "nvrm", "dkms"),
        pattern=r"modprobe: .*nvidia|dkms/nvidia\S*/build/make\.log"
        r"|already bound to nouveau|nouveau kernel driver is currently in use"
        r"|NVRM: .*conflicting with",
        what="the NVIDIA kernel module is not loaded",
        expected="`lsmod | grep nvidia` shows nvidia and nvidia_uvm, and no nouveau",
        fix='"Key was rejected": sign the module or switch Secure Boot off; "not found": build it for the running '
        "kernel (`dkms status`, linux-headers); nouveau: blacklist it, rebuild the initramfs, reboot",
        source="kmod, NVRM",
    ),
    Signature(
        id="driver-too-old",
        level="critical",
        cause="driver",
        words=("driver", "forward", "unsatisfied", "cudaerrorcallrequiresnewerdriver"),
        pattern=r"CUDA driver version is insufficient|not supported in the installed CUDA driver"
        r"|cudaErrorCallRequiresNewerDriver|unsatisfied condition: (?:cuda|driver)"
        r"|not supported by the NVIDIA \S+ driver release"
        r"|driver on your system is too old"
        r"|unsupported display driver / cuda driver|forward compatibility was attempted",
        what="the driver is older than the CUDA version of the engine's wheels needs",
        expected="a driver of branch 580 or newer for CUDA 13 wheels",
        fix="upgrade the driver, or take a release built for the driver's CUDA version",
        source="CUDA runtime, PyTorch",
    ),
    Signature(
        id="gpu-busy",
        level="critical",
        cause="driver",
        words=("busy", "cudaerrordevicesunavailable"),
        pattern=r"CUDA-capable device\(s\) is/are busy|\bcudaErrorDevicesUnavailable\b",
        what="the driver gives the engine no context on a GPU",
        expected="compute mode Default on every GPU, and none of them held, resetting or half reset",
        fix="`nvidia-smi --query-gpu=index,compute_mode --format=csv` (`nvidia-smi -c DEFAULT`); stop what holds the "
        "GPU; if nothing does, look for Xid in `journalctl -k` and reboot",
        source="CUDA runtime",
    ),
    Signature(
        id="gpu-lost",
        level="critical",
        cause="gpu",
        words=(
            "lost",
            "handle",
            "fallen",
            "reset",
            "unknown",
            "err",
            "nv_err_gpu_is_lost",
            "nv_err_reset_required",
            "header",
            "inaccessible",
            "nv_err_gpu_in_fullchip_reset",
        ),
        pattern=r"GPU is lost|Unknown header type (?:7f|ff)|Unable to determine the device handle|fallen off the bus"
        r"|nvidia \S+ Unable to change power state|NV_ERR_(?:GPU_IS_LOST"
        r"|RESET_REQUIRED|GPU_IN_FULLCHIP_RESET)|GPU requires reset|\[Unknown Error\]|\bERR!",
        what="a GPU is lost",
        expected="every GPU of the host answers",
        fix="`journalctl -k` for the Xid (79) and PCIe errors; drain the host and reboot; check temperature, power, "
        "riser and slot if it repeats",
        source="nvidia-smi, NVRM",
    ),
    Signature(
        id="cuda-init-failed",
        level="critical",
        cause="driver",
        words=(
            "uvm",
            "initialization",
            "yet",
            "unknown",
            "failure",
            "cudaerrorsystemnotready",
            "cuda_error_system_not_ready",
        ),
        pattern=r"CUDA driver initialization failed|system not yet initialized|cudaErrorSystemNotReady"
        r"|CUDA_ERROR_SYSTEM_NOT_READY|CUDA unknown error|/dev/nvidia-uvm\S*['\"]?[:,]? .{0,40}(?:No such|not found"
        r"|Permission|cannot)|Cuda failure (?:3|802|999)\b"
        r"|cuda driver library init failure",
        what="the driver is there, but CUDA does not initialise",
        expected="`python -c 'import torch; torch.zeros(1, device=\"cuda\")'` works as the service's user",
        fix="nvidia_uvm loaded and /dev/nvidia-uvm made (`nvidia-modprobe -u -c0`), inside the unit's sandbox too; "
        "`options nvidia_uvm uvm_disable_hmm=1` in /etc/modprobe.d (the host role writes it) and a reboot, as needed "
        "with several Blackwell cards; error 802 on a host with NVSwitch: nvidia-fabricmanager of the driver's version",
        source="CUDA runtime, PyTorch; pytorch#35710, ollama#11593",
    ),
    Signature(
        id="driver-missing",
        level="critical",
        cause="driver",
        words=(
            "driver",
            "gpus",
            "devices",
            "nvml",
            "libcuda",
            "device",
            "error",
            "initialization",
            "infer",
            "libnvidia",
        ),
        pattern=r"couldn't communicate with the NVIDIA driver|nvml error: driver not loaded"
        r"|nvidia-container-cli: (?:\w+ )?error|libnvidia-ml\.so\S*: cannot open"
        r"|Failed to initialize NVML: (?:Unknown|Insufficient"
        r"|Not)|Found no NVIDIA driver|^\s*No devices were found|no CUDA-capable device"
        r"|No CUDA GPUs are available|NVML Shared Library Not Found|libcuda\.so\.1: cannot open"
        r"|Failed to infer device type|Failed to query NVIDIA devices",
        what="no usable NVIDIA driver or GPU",
        expected="`nvidia-smi -L` lists every GPU as the service's user, inside the unit's sandbox too",
        fix="`lsmod | grep nvidia`, `dkms status`, Secure Boot; under systemd: no PrivateDevices=, DeviceAllow= for "
        "/dev/nvidia*, nvidia-uvm loaded and its nodes made before the unit (nvidia-modprobe -u -c0); a container "
        "needs the NVIDIA container toolkit, and loses its devices at `systemctl daemon-reload`: recreate it",
        source="nvidia-smi, NVML, PyTorch",
    ),
    Signature(
        id="container-toolkit-missing",
        level="critical",
        cause="driver",
        words=("runtime", "select"),
        pattern=r"could not select device driver|(?:unknown|invalid) runtime (?:name|specified)"
        r"|exec: .{0,3}nvidia-container-runtime.{0,4}: executable file not found",
        what="the container engine knows no NVIDIA runtime",
        expected="the NVIDIA container toolkit, registered with the container engine",
        fix="install nvidia-container-toolkit, `nvidia-ctk runtime configure --runtime=docker`, restart docker; an "
        "engine "
        "that runs as a unit of this toolkit needs no container",
        source="Docker; nvidia-docker#1264",
    ),
    Signature(
        id="peer-access-missing",
        level="warning",
        cause="iommu",
        words=("cannot", "access"),
        pattern=r"Device=\d+ CANNOT Access Peer Device=\d+|(?:P2P|[Pp]eer) access is not available between",
        what="two GPUs have no peer access",
        expected="CAN Access Peer Device for every pair",
        fix="check BIOS, IOMMU, ACS and the driver's options; NCCL then goes through shared memory",
        source="CUDA samples, p2pBandwidthLatencyTest",
    ),
    Signature(
        id="gpu-throttled",
        level="warning",
        cause="gpu",
        words=("slowdown", "temperature"),
        pattern=r"(?:Thermal|Power Brake|HW) Slowdown\s*: Active\b|GPU.*temperature.*(?:above|exceed|over) ",
        what="a GPU is slowed down by heat or power",
        expected="no thermal or power brake slowdown under load",
        fix="`nvidia-smi -q -d TEMPERATURE,PERFORMANCE`; airflow, fan curve, power limit (nvidia-smi -pl)",
        source="nvidia-smi -q",
    ),
    Signature(
        id="gpu-init-failed",
        level="critical",
        cause="gpu",
        words=("rminitadapter", "rm_init_adapter", "bar", "bars", "region", "nvrm", "probe", "gsp", "booter"),
        pattern=r"RmInitAdapter failed|Cannot initialize GSP|GSP-RM boot attempts|unexpected WPR2"
        r"|rm_init_adapter failed|NVRM:? .*\b(?:failed to|cannot) (?:wait for|execute|boot\w*|load"
        r"|initiali[sz]e)\b.{0,40}"
        r"(?:Booter|GFW|GSP|FWSEC|SEC2)|Booter failed|attempting to resize PCIe BARs"
        r"|nvidia: probe of \S+ failed|PCI I/O region assigned to your NVIDIA device is invalid|BAR\d? is 0M"
        r"|BAR [0-3]\b(?!.*\bio\b).*(?:can't assign|no space for)",
        what="the driver could not initialise a GPU",
        expected="every GPU with its BAR1 mapped",
        fix="BIOS: Above 4G Decoding and Resizable BAR on; check the GSP firmware of the driver's version; power cycle",
        source=f"{DRIVER}, {KERNEL}",
    ),
    Signature(
        id="gpu-power-missing",
        level="critical",
        cause="gpu",
        words=("cables",),
        pattern=r"power cables? (?:is|are)? ?(?:not )?connected",
        what="a GPU's power plug is not connected, or not fully",
        expected="every auxiliary power plug seated",
        fix="power the host off and seat the GPU's 12V-2x6 plug and its power supply's end",
        source="NVRM",
    ),
    Signature(
        id="gpu-locked-up",
        level="critical",
        cause="gpu",
        words=("krcwatchdog_impl", "watchdog", "gsp", "rpcrecvpoll", "crashcat"),
        pattern=r"GSP RPC timeout|PMU has halted|GSP-CrashCat|GSP task watchdog timeout|rpcRecvPoll timed ?out"
        r"|RC watchdog: GPU is probably locked|GSP RM heartbeat timed out"
        r"|Timeout waiting for RPC from GSP",
        what="the driver found a GPU, or its system processor (GSP), locked up",
        expected="no watchdog message",
        fix="stop the engine, reset the GPU, reboot if that fails; the Xid of the same second names the GPU; "
        "known with sustained FP8 load",
        source="NVIDIA/open-gpu-kernel-modules#1159",
    ),
    Signature(
        id="xid",
        level="critical",
        cause="gpu",
        words=("xid",),
        pattern=r"NVRM: Xid \(|\bXid \((?:PCI:)?[0-9a-f:.]+\): \d+",
        what="the driver reported an Xid",
        expected="no Xid while serving",
        fix="read its number in the Xid table",
        source="NVIDIA Xid catalogue",
    ),
)

KERNEL_SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="iommu-page-fault",
        level="critical",
        cause="iommu",
        words=("io_page_fault", "dmar", "vi", "iommu"),
        pattern=r"IO_PAGE_FAULT|DMAR: \[(?:DMA|INTR)|DMAR:.*fault|iommu.*(?:page fault|Unhandled)",
        what="the IOMMU blocked a device's access: it translates, and peer-to-peer traffic breaks on that",
        expected="IOMMU off or in passthrough mode (iommu=pt) on a host with peer-to-peer traffic",
        fix="boot with `iommu=pt`, or `amd_iommu=off` / `intel_iommu=off` (or switch it off in the BIOS), then run the "
        "topology check",
        source=f"{KERNEL}; vllm#33041, club-3090 docs/HARDWARE.md",
    ),
    Signature(
        id="iommu-translates",
        level="warning",
        cause="iommu",
        words=("iommu", "intel_iommu", "amd_iommu", "dma"),
        pattern=r"iommu: Default domain type: Translated|^(?!.*\biommu=pt\b).*\b(?:amd|intel)_iommu=on\b"
        r"|^DMA(?:-FQ)?$|AMD-Vi: Using global IVHD.*Translated",
        what="the IOMMU runs in translated mode",
        expected="passthrough (`iommu: Default domain type: Passthrough`) or no IOMMU",
        fix="boot with `iommu=pt` (or switch the IOMMU off); with translation, peer-to-peer copies hang or fault "
        "although `nvidia-smi topo -p2p` says OK",
        source=f"{KERNEL}; vllm#51513",
    ),
    Signature(
        id="pcie-error",
        level="critical",
        cause="pcie",
        words=("aer", "severity", "dpc", "pciehp"),
        pattern=r"DPC: (?:containment event|unmasked uncorrectable)|pciehp: Slot\([^)]*\): (?:Link Down"
        r"|Card not present)"
        r"|severity=Uncorrect(?:ed|able)|AER:.*(?:Uncorrect(?:ed|able)|\bFatal\b).*\b(?:received|message|error from)"
        r"|AER: (?:device recovery failed|can't recover)",
        what="an uncorrected PCIe error, or a link that went down",
        expected="no uncorrected PCIe errors",
        fix="check riser, slot, retimer and cable of the named device; compare `lspci -vv` LnkSta with LnkCap",
        source=KERNEL,
    ),
    Signature(
        id="pcie-corrected-errors",
        level="warning",
        cause="pcie",
        words=("aer", "severity"),
        pattern=r"severity=Correct(?:ed|able)|AER:.*Correct(?:ed|able) error",
        what="PCIe errors that were corrected: a marginal link",
        expected="few or none",
        fix="watch the rate; check riser and slot of the named device, and ASPM (pcie_aspm=off)",
        source=KERNEL,
    ),
    Signature(
        id="host-out-of-memory",
        level="critical",
        cause="host-memory",
        words=("oom", "oom_reaper", "oomkilled", "memory", "bad_alloc", "memoryerror", "defaultcpuallocator"),
        pattern=r"\bOOMKilled\b|oom_reaper: reaped|low on resource: memory|Not enough host memory"
        r"|[Ff]ailed to allocate .{0,60}pinned memory"
        r"|Out of memory: Kill|oom-kill|Killed \S+ due to memory (?:pressure|used)|invoked oom-killer"
        r"|Memory cgroup out of memory|killed by the OOM killer"
        r"|\bstd::bad_alloc\b|(?:^|[:\])|] )\s*MemoryError\b(?!.*VRAM)|DefaultCPUAllocator: (?:can't allocate"
        r"|not enough)"
        r"|^(?!.*(?:\bibv_|mlock|cudaHostRegister|/dev/shm)).*Cannot allocate memory",
        what="the host ran out of memory",
        expected="host memory for the loading processes, pinned buffers and the page cache",
        fix="load with fewer processes at a time, remove MemoryMax= or raise it, stop what else runs; limit "
        "restarts so that a failing start cannot thrash the host",
        source=f"{KERNEL}, {SYSTEMD}; eugr/spark-vllm-docker#257",
    ),
    Signature(
        id="host-hardware-error",
        level="critical",
        cause="host-memory",
        words=("edac", "uncorrected", "failure", "panic"),
        pattern=r"EDAC \S+: \d+ UE\b|mce: .*Uncorrected|Memory failure: 0x|Kernel panic - not syncing",
        what="the host's own memory or processor reported an error that was not corrected",
        expected="no uncorrected hardware errors",
        fix="`ras-mc-ctl --errors` or the BMC's event log names the DIMM or socket: replace it before serving on",
        source=KERNEL,
    ),
    Signature(
        id="host-hardware-warning",
        level="warning",
        cause="host-memory",
        words=("hardware", "edac"),
        pattern=r"\[Hardware Error\]|EDAC \S+: \d+ CE\b",
        what="the host's memory, processor or bus logged a hardware error",
        expected="none, or few that were corrected",
        fix="`ras-mc-ctl --errors` or the BMC's event log names the part; watch the rate",
        source=KERNEL,
    ),
    Signature(
        id="task-blocked",
        level="warning",
        cause="hang",
        words=("blocked", "lockup", "rcu"),
        pattern=r"hard LOCKUP|rcu: INFO: \w+ (?:self-)?detected stall|INFO: task .* blocked for more than \d+ seconds"
        r"|BUG: soft lockup",
        what="a task hangs in the kernel",
        expected="no blocked tasks",
        fix="its stack in the next lines names the driver or file system; a task stuck in the NVIDIA driver needs a "
        "reboot",
        source=KERNEL,
    ),
)

SYSTEMD_SIGNATURES: tuple[Signature, ...] = (
    Signature(
        id="unit-start-timeout",
        level="critical",
        cause="start-timeout",
        words=("operation", "result", "job"),
        pattern=r"start(?:-pre|-post)? operation timed out|Job for \S+ failed because a timeout was exceeded"
        r"|Failed with result 'timeout'",
        what="systemd ended the service because its start took longer than TimeoutStartSec",
        expected="TimeoutStartSec above the longest cold start (model load, JIT), or EXTEND_TIMEOUT while there "
        "is progress",
        fix="raise TimeoutStartSec= (the default is 90 s; long ExecStartPre= and ExecStartPost= waits count too) "
        "or set it to infinity with a supervisor that fails fast",
        source=f"{SYSTEMD}; RIDE-Lab/SAGE#1346",
    ),
    Signature(
        id="unit-stop-timeout",
        level="warning",
        cause="stop-timeout",
        words=("stop", "stopping", "sigterm"),
        pattern=r"State 'stop-\w+' timed out|State 'final-\w+' timed out|[Ss]topping timed out"
        r"|stop-sigterm.* timed out",
        what="the service did not end within TimeoutStopSec and was killed",
        expected="TimeoutStopSec above the longest drain",
        fix="raise TimeoutStopSec=, and take the instance out of the router before stopping it",
        source=SYSTEMD,
    ),
    Signature(
        id="unit-watchdog-timeout",
        level="critical",
        cause="hang",
        words=("watchdog",),
        pattern=r"Watchdog timeout \(limit|Failed with result 'watchdog'",
        what="systemd's watchdog ended a service that made no progress",
        expected="pings with real progress",
        fix="look in the log before it for the hang; then at P2P, IOMMU and ACS",
        source=SYSTEMD,
    ),
    Signature(
        id="unit-exec-failed",
        level="critical",
        cause="unit",
        words=("spawning", "status", "executable", "environment", "credentials", "namespacing"),
        pattern=r"Failed at step \w+ spawning|status=2[0-4]\d(?:/[A-Z_]+|\b(?!/))|Failed to locate executable"
        r"|Failed to (?:load environment files|determine user credentials|set up (?:mount namespacing|credentials))",
        what="systemd could not run the command of the unit",
        expected="an executable, a user, directories and credentials that exist",
        fix="the step names what is missing: EXEC the program, CHDIR WorkingDirectory=, USER the account, NAMESPACE a "
        "path of the sandbox, CREDENTIALS the secret's file",
        source=f"{SYSTEMD} systemd.exec(5)",
    ),
    Signature(
        id="unit-refused",
        level="critical",
        cause="unit",
        words=("configuration", "setting", "refusing"),
        pattern=r"Unit configuration has fatal error|has a bad unit file setting|refusing\.$|bad-setting",
        what="systemd refuses to start the unit: it holds an error",
        expected="no message from `systemd-analyze verify`",
        fix="`systemd-analyze verify UNIT` names the line; `systemctl daemon-reload` after it is corrected",
        source=SYSTEMD,
    ),
    Signature(
        id="unit-not-there",
        level="critical",
        cause="unit",
        words=("unit",),
        pattern=r"\bUnit \S+\.service (?:not found|could not be found|is masked)|Failed to \w+ \S+: Unit .* not found",
        what="systemd knows no such unit, or it is masked",
        expected="`systemctl list-unit-files 'sglang@*' 'vllm@*'` shows it",
        fix="`systemctl daemon-reload` after a new unit file, `systemctl unmask UNIT`; compare the instance's name "
        "with "
        "`ls /etc/inference`; the play's service stage writes the unit",
        source=SYSTEMD,
    ),
    Signature(
        id="unit-not-started",
        level="critical",
        cause="unit",
        words=("dependency", "unmet"),
        pattern=r"Dependency failed for|dependency job for \S+ failed|with result 'dependency'"
        r"|skipped because of an unmet",
        what="systemd did not start the unit: what it requires failed, or a condition of the unit is not met",
        expected="its mounts, targets and files there",
        fix="`systemctl list-dependencies --failed UNIT` and `systemctl --failed`; the line names an unmet condition",
        source=SYSTEMD,
    ),
    Signature(
        id="unit-syscall-blocked",
        level="critical",
        cause="unit",
        words=("sys", "sigsys", "bad"),
        pattern=r"status=31/SYS|\bSIGSYS\b|Bad system call",
        what="the unit's system call filter killed a process",
        expected="SystemCallFilter=@system-service and no ~@resources for SGLang",
        fix="widen SystemCallFilter=, or set SystemCallErrorNumber=EPERM; `journalctl _AUDIT_TYPE_NAME=SECCOMP` names "
        "the call",
        source=SYSTEMD,
    ),
    Signature(
        id="unit-line-ignored",
        level="warning",
        cause="unit",
        words=("unknown", "ignoring", "missing"),
        pattern=r"Unknown (?:key|lvalue|section)[^,]*?, ignoring|Failed to parse .*, ignoring|Missing '=', ignoring"
        r"|\.service:\d+: .*ignoring",
        what="systemd ignores a line of the unit",
        expected="no message from `systemd-analyze verify`",
        fix="correct the line: its setting has no effect",
        source=SYSTEMD,
    ),
    Signature(
        id="orphaned-workers",
        level="critical",
        cause="orphans",
        words=("process",),
        pattern=r"Found left-over process \d+|Unit process \d+ .*remains running after unit stopped",
        what="processes of an earlier run are still alive",
        expected="no process of the unit left after a stop",
        fix="KillMode=mixed (never process); `systemctl kill -s KILL UNIT`, then wait until the GPU memory is free "
        "before the next start",
        source=f"{SYSTEMD}; vllm#55510",
    ),
    Signature(
        id="restart-storm",
        level="critical",
        cause="restart",
        words=("repeated", "limit", "counter", "attempted"),
        pattern=r"start of the service was attempted too often|Start request repeated too quickly|start-limit-hit"
        r"|restart counter is at (?:[5-9]|\d{2,})\b",
        what="the service is restarted again and again",
        expected="a few restarts, then a failed unit whose last error is visible",
        fix="find the first error; Restart=on-failure with StartLimitBurst= and StartLimitIntervalSec= above (burst + "
        "1) times the longest start; `systemctl reset-failed UNIT` before the next try",
        source=f"{SYSTEMD}; eugr/spark-vllm-docker#257",
        role="consequence",
    ),
    Signature(
        id="unit-failed",
        level="critical",
        cause="unit",
        words=("result", "exited", "job"),
        pattern=r"Job for \S+ (?:failed because|canceled)|Control process exited, code=(?:exited,? status=[1-9]"
        r"|killed|dumped)"
        r"|Failed with result '(?:exit-code|signal|core-dump|resources|protocol)'"
        r"|Main process exited, code=(?:exited, status=[1-9]|killed|dumped)",
        what="the service ended",
        expected="a service that runs until it is stopped",
        fix="the cause is in the service's own lines before this one",
        source=SYSTEMD,
        role="consequence",
    ),
)

HOST_SIGNATURES: tuple[Signature, ...] = (*DRIVER_SIGNATURES, *KERNEL_SIGNATURES, *SYSTEMD_SIGNATURES)
