# SPDX-License-Identifier: Apache-2.0
"""Reads what people bring from a host: processes, file modes, lspci, topology, GPU names, package history, commands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ..findings import NotChecked
from ..redact import redact, secret_names
from ..topology import matrix, pasted, pcie
from .rules import Reading

_PROCESS_FORMS = tuple(
    re.compile(form)
    for form in (
        # ps -ef: UID PID PPID C STIME TTY TIME CMD
        r"^\s*[\w.+-]+\s+(?P<pid>\d+)\s+(?P<ppid>\d+)\s+\d+\s+\S+\s+\S+\s+[\d:-]+\s+(?P<command>\S.*)$",
        # ps aux: USER PID %CPU %MEM VSZ RSS TTY STAT START TIME COMMAND
        r"^\s*[\w.+-]+\s+(?P<pid>\d+)\s+[\d.]+\s+[\d.]+\s+\d+\s+\d+\s+\S+\s+\S+\s+\S+\s+[\d:]+\s+(?P<command>\S.*)$",
        # the table of nvidia-smi: | GPU GI CI PID Type Process name Memory |
        r"^\|\s+\d+\s+\S+\s+\S+\s+(?P<pid>\d+)\s+[CG+]+\s+(?P<command>\S.*?)\s+\d+MiB\s*\|$",
        # nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv
        r"^\s*(?P<pid>\d+),\s*(?P<command>[^,]+),\s*(?:\d+ MiB|\[N/A\])\s*$",
        # ps -o pid,ppid,comm
        r"^\s*(?P<pid>\d+)\s+(?P<ppid>\d+)\s+(?P<command>[A-Za-z/\[(.].*)$",
        # pgrep -af
        r"^\s*(?P<pid>\d+)\s+(?P<command>[A-Za-z/\[(.].*)$",
    )
)
_WORKER = re.compile(
    r"VLLM::(?!APIServer)\w+|\bsglang::\w+|\bray::\w+|multiproc_executor|from multiprocessing\.(?:spawn|resource)"
)
_SERVER = re.compile(
    r"sglang[./]launch_server|sglang serve|vllm serve|vllm[./]entrypoints|VLLM::APIServer|inference/\S*supervisor",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int | None
    command: str


def read_processes(lines: Sequence[str]) -> Reading | None:
    """Return engine processes whose server is not among the processes listed, or None when there is no process list."""
    processes = {process.pid: process for line in lines if (process := _process(line))}
    engine = [p for p in processes.values() if _WORKER.search(p.command) or _SERVER.search(p.command)]
    if not engine:
        return None
    reading = Reading("processes")
    strays = [process for process in engine if not _SERVER.search(process.command) and not _served(process, processes)]
    if strays:
        shown = ", ".join(f"{process.pid} {_WORKER.findall(process.command)[0]}" for process in strays)
        reading.add("stray-engine-processes", shown, what=f"{len(strays)} found")
    for process in engine:
        if names := secret_names(process.command):
            reading.add("secret-in-command-line", f"pid {process.pid} with {', '.join(names)}", what="process list")
    return reading


def is_process(line: str) -> bool:
    """Whether the line is one of a process list, about an engine."""
    found = _process(line)
    return bool(found and (_WORKER.search(found.command) or _SERVER.search(found.command)))


def _process(line: str) -> _Process | None:
    for form in _PROCESS_FORMS:
        if found := form.match(line):
            parent = found.groupdict().get("ppid")
            return _Process(int(found["pid"]), int(parent) if parent else None, found["command"])
    return None


def _served(process: _Process, processes: Mapping[int, _Process]) -> bool:
    """Whether a server is above ``process``; where the list shows no parents, whether there is one at all."""
    if process.parent is None:
        return any(_SERVER.search(other.command) for other in processes.values())
    seen: set[int] = set()
    current: _Process | None = process
    while current and current.pid not in seen:
        if _SERVER.search(current.command):
            return True
        seen.add(current.pid)
        current = processes.get(current.parent or 0)
    return False


_LISTED = re.compile(  # ls -l, stat -c '%a %n', stat -c '%a %U:%G %n'
    r"^\s*(?:(?P<symbolic>[-dlsbcp](?:[r-][w-][xsStT-]){3})[.+@]?\s+\d+\s+\S+\s+\S+\s+(?P<size>\d[\d.,KMGT]*)\s+"
    r"(?:[^\W\d][\w.]*\s+\d+\s+[\d:]+|\d{1,2}[^\W\d]\s+\d+\s+[\d:]+|\d{4}-\d\d-\d\d\s+\S+(?:\s+[+-]\d{4})?)\s+(?P<long>\S.*?)"
    r"|(?P<octal>[0-7]{3,4})\s+(?:[\w.-]+:[\w.-]+\s+)?(?P<name>[^\s:,()\[\]=]*[./][^\s:,()\[\]=]+))\s*$"
)
_STAT_NAME = re.compile(r"^\s*File: (?P<name>\S+)")
_STAT_MODE = re.compile(r"^\s*Access: \((?P<octal>[0-7]{4})/")
_SECRET_FILE = re.compile(r"(?:key|secret|token|credential|password|\.env$|htpasswd)", re.IGNORECASE)
_NO_SECRET = re.compile(r"tokenizer|tokens|\.(?:py|md|pub|crt)$", re.IGNORECASE)
_LOG_FILE = re.compile(r"\.log(?:\.\d+)?$|/log/|\.out$", re.IGNORECASE)
_MODEL_FILE = re.compile(
    r"\.(?:safetensors|gguf|bin)$|(?:config|tokenizer|index|tokenizer_config)\.json$", re.IGNORECASE
)
_GROUP_WRITE, _OTHER_READ, _OTHER_WRITE, _SHARED_READ = 0o020, 0o004, 0o002, 0o044


_WEIGHTS = re.compile(r"\.(?:safetensors|gguf)$", re.IGNORECASE)
LARGEST_POINTER = 1024
"""Bytes: Git LFS asks readers to take no larger file for a pointer (its specification, version 1)."""


@dataclass(frozen=True)
class _Listed:
    mode: int
    name: str
    is_link: bool = False
    size: int | None = None


def read_modes(lines: Sequence[str]) -> Reading | None:
    """Return files whose mode is wrong for what their name says they are, or None when there is no listing."""
    listed = list(_listed(lines))
    if not listed:
        return None
    reading = Reading("files")
    for file in listed:
        if fault := _mode_fault(file):
            reading.add("file-mode", f"{file.mode:o} {file.name}", what=fault)
        elif _MODEL_FILE.search(file.name) and not file.mode & _SHARED_READ:
            reading.add("model-file-mode", f"{file.mode:o} {file.name}")
        if file.size is not None and file.size <= LARGEST_POINTER and _WEIGHTS.search(file.name):
            reading.add("weight-file-small", f"{file.name}: {file.size} bytes")
    return reading


def _listed(lines: Sequence[str]) -> list[_Listed]:
    found: list[_Listed] = []
    name = ""
    for line in lines:
        if named := _STAT_NAME.match(line):
            name = named["name"]
        elif name and (stated := _STAT_MODE.match(line)):
            found.append(_Listed(int(stated["octal"], 8), name))
            name = ""
        elif entry := _LISTED.match(line):
            mode = int(entry["octal"], 8) if entry["octal"] else _mode(entry["symbolic"])
            size = int(entry["size"]) if (entry["size"] or "").isdigit() else None
            is_link = (entry["symbolic"] or "-")[0] == "l"
            found.append(_Listed(mode, entry["name"] or entry["long"], is_link, size))
    return found


def _mode(symbolic: str) -> int:
    sticky = 0o1000 if symbolic[9] in "tT" else 0
    return sticky | int("".join("0" if letter in "-ST" else "1" for letter in symbolic[1:10]), 2)


def _mode_fault(file: _Listed) -> str:
    if file.is_link:
        return ""
    mode, name = file.mode, file.name
    secret = _SECRET_FILE.search(name) and not _NO_SECRET.search(name)
    if secret and mode & 0o077:
        return "a secret that others may read"
    if _LOG_FILE.search(name) and mode & (_GROUP_WRITE | _OTHER_READ | _OTHER_WRITE):
        return "a log that others may read or write"
    return "writable for everyone" if mode & _OTHER_WRITE and not mode & 0o1000 else ""


_PCIE_DEVICE = re.compile(r"^\s?(?P<bdf>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) \S")


def read_pcie(lines: Sequence[str]) -> Reading | None:
    """Return what ``lspci -vv`` (or a grep of it) shows of ACS and link width, or None when the input holds neither."""
    own = [line for line in lines if re.search(r"ACSCtl:|Lnk(?:Sta|Cap):", line) or _PCIE_DEVICE.match(line)]
    if not any(re.search(r"ACSCtl:|LnkSta:", line) for line in own):
        return None
    reading = Reading("lspci")
    _judge_acs(own, reading)
    for device in pcie.read_lspci(own)["devices"]:
        if device.get("link", {}).get("width_downgraded"):
            reading.add("link-narrow", f"{device['bus_id'] or 'one device'} x{device['link']['width']}")
    return reading


def _judge_acs(lines: Sequence[str], reading: Reading) -> None:
    """Judge each ACSCtl line by itself: a grep leaves no device to tell them apart."""
    bdf = "a device that is not named"
    redirecting: list[str] = []
    validating: list[str] = []
    for line in lines:
        if device := _PCIE_DEVICE.match(line):
            bdf = device["bdf"]
        for found in pcie.read_lspci([line])["devices"] if "ACSCtl:" in line else ():
            control = found.get("acs_control", {})
            if pcie.redirects(control):
                redirecting.append(f"{bdf}: {line.strip()}")
            elif control.get("SrcValid"):
                validating.append(f"{bdf}: {line.strip()}")
    if redirecting:
        reading.add("acs-redirect", redirecting[0], what=f"{len(redirecting)} found")
    elif validating:
        reading.add("acs-redirect", validating[0], what="not here, but ACS is on (SrcValid+)", level="warning")


def read_topology(lines: Sequence[str]) -> Reading | None:
    """Return one pair a link class of ``nvidia-smi topo -m``, pairs without peer access of ``topo -p2p``, or None."""
    if not any("GPU0" in line or "GPU1" in line for line in lines):
        return None
    reading = Reading("topology")
    try:
        found = matrix.read_matrices(pasted.clean("\n".join(lines)))
    except matrix.Unreadable as unreadable:
        reading.not_checked.append(NotChecked("pair-classes", unreadable.reason))
        return reading
    for facts in found:
        _judge_matrix(facts, reading)
    return reading if found else None


def _judge_matrix(facts: Mapping[str, object], reading: Reading) -> None:
    cells = facts["links"] if facts["kind"] == "topo_m" else facts["status"]
    if not isinstance(cells, list):
        return
    numbers = facts.get("gpu_ids")
    names = numbers if isinstance(numbers, list) else list(range(len(cells)))
    pairs: dict[str, list[str]] = {}
    for a, b in combinations(range(len(cells)), 2):
        pairs.setdefault(str(cells[a][b]), []).append(f"{names[a]}-{names[b]}")
    if facts["kind"] == "topo_m" and pairs:
        order = sorted(pairs, key=lambda word: pairs[word][0])
        reading.add("pair-classes", ", ".join(f"{pairs[word][0]} ({word})" for word in order))
    bad = {word: named for word, named in pairs.items() if word != "OK"}
    if facts["kind"] == "p2p" and bad:
        reading.add("p2p-not-ok", "; ".join(f"{word}: {', '.join(named)}" for word, named in bad.items()))


GPU_CLASSES: tuple[tuple[str, str, str], ...] = (
    (r"RTX PRO \d{4}D?\b(?! Ada)|RTX 6000D\b|RTX PRO [2-6]000", "12.0", "Blackwell PCIe workstation/server class"),
    (r"GeForce RTX 50\d\d", "12.0", "Blackwell PCIe consumer class"),
    (r"GB10\b", "12.1", "Blackwell integrated class"),
    (r"\b(?:GB300|B300)\b", "10.3", "Blackwell data centre class"),
    (r"\b(?:GB200|B200|B100)\b", "10.0", "Blackwell data centre class"),
    (r"\b(?:H100|H200|H800|H20|GH200)\b", "9.0", "Hopper class"),
    (r"\b(?:L4|L40S?|RTX \d{4}D? Ada|RTX 40\d\d)\b", "8.9", "Ada class"),
    (r"\b(?:A10|A40|A6000|RTX A\d{4}|RTX 30\d\d)\b", "8.6", "Ampere class"),
    (r"\b(?:A100|A800)\b", "8.0", "Ampere data centre class"),
)
"""Name (searched after ``NVIDIA``), compute capability, class: NVIDIA's list of CUDA GPUs, developer.nvidia.com."""

_GPU_NAME = re.compile(r"^\W*(?:GPU ?\d+ ?: ?|\d+ *[,|] *)?(?P<name>NVIDIA [\w. -]*?\w)(?= *\(UUID| *[,|]| {2,}|\s*$)")


def read_gpu_names(lines: Sequence[str]) -> Reading | None:
    """Return the class and compute capability of GPUs that are named, or None when none is."""
    known: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        named = _GPU_NAME.match(line) if "NVIDIA " in line else None
        if named and (key := gpu_class(named["name"])):
            known.setdefault(key, []).append(named["name"])
    if not known:
        return None
    reading = Reading("gpu-names")
    for (capability, family), names in known.items():
        which = f"all {len(names)}" if len(names) > 1 else names[0]
        what = f"{which}: {family}, compute capability {capability}"
        reading.add("gpu-names", "; ".join(dict.fromkeys(names)), what=what)
    return reading


def gpu_class(name: str) -> tuple[str, str] | None:
    """Return compute capability and class of a product name, None when it is not known."""
    return next(((capability, family) for form, capability, family in GPU_CLASSES if re.search(form, name)), None)


_DRIVER_PACKAGE = re.compile(r"\b(?:lib)?(?:nvidia-[a-z0-9-]+|cuda-drivers[a-z0-9-]*)(?::\w+)?")
_HISTORY = re.compile(
    r"^(?:Upgrade|Install|Reinstall|Downgrade): |^\d{4}-\d\d-\d\d [\d:]{8} (?:upgrade|install) "
    r"|Packages that will be upgraded: |^\s*Upgraded?:? .*nvidia"
)


def read_packages(lines: Sequence[str]) -> Reading | None:
    """Return upgrades of the NVIDIA driver in apt's or dpkg's history, or None when the input holds no history."""
    history = [line for line in lines if _HISTORY.search(line)]
    if not history:
        return None
    reading = Reading("packages")
    replaced = [line for line in history if _DRIVER_PACKAGE.search(line) and not re.match(r"^Install: ", line)]
    if replaced:
        packages = list(dict.fromkeys(_DRIVER_PACKAGE.findall(replaced[0])))
        unattended = any("unattended" in line.lower() for line in lines)
        by = "by an unattended upgrade" if unattended else "by hand or by another tool"
        change = re.search(r"\(([^()]*)\)|(\S+ \S+)$", replaced[0])
        seen = f"{packages[0]} {change[0] if change else ''}".strip()
        reading.add("driver-upgraded", seen, what=by)
    return reading


_COUNT = re.compile(
    r"^\s*(?:gpus?\s+)?(?P<when>before|expected|was|after|found|now|seen)\s*[:=]\s*(?P<count>\d+)(?:\s*gpus?)?\s*$",
    re.IGNORECASE,
)


def read_counts(lines: Sequence[str]) -> Reading | None:
    """Return the loss in a pair of GPU counts such as ``before: 8`` and ``after: 7``, or None when there is no pair."""
    counts = {found["when"].lower(): int(found["count"]) for line in lines if (found := _COUNT.match(line))}
    before = next((counts[word] for word in ("before", "expected", "was") if word in counts), None)
    after = next((counts[word] for word in ("after", "found", "now", "seen") if word in counts), None)
    if before is None or after is None:
        return None
    reading = Reading("counts")
    if after < before:
        lost = before - after
        reading.add("gpu-count-dropped", f"{before} before, {after} after", what=f"{lost} GPU{'s' * (lost > 1)} lost")
    return reading


_MODULE_VERSION = re.compile(r"NVRM version: .*?Kernel Module\s+(?:for \S+\s+)?(?P<version>\d+\.\d+(?:\.\d+)?)")
_LIBRARY_VERSION = re.compile(
    r"(?:NVML library version|NVML version|Driver Version)\s*:\s*(?P<version>\d+\.\d+(?:\.\d+)?)"
)


def read_driver_versions(lines: Sequence[str]) -> Reading | None:
    """Compare the loaded module's version with the libraries'; None when the input holds no module version."""
    module = next((found["version"] for line in lines if (found := _MODULE_VERSION.search(line))), None)
    if module is None:
        return None
    reading = Reading("driver-version")
    libraries = [found["version"] for line in lines if (found := _LIBRARY_VERSION.search(line))]
    if other := next((version for version in libraries if not _same_version(module, version)), None):
        reading.add("driver-mismatch", f"module {module}, libraries {other}")
    elif not libraries:
        reading.not_checked.append(NotChecked("driver-mismatch", "only the module's version is in the input"))
    return reading


def _same_version(one: str, other: str) -> bool:
    """Whether two versions agree as far as both say (NVML prints ``550.120``, the module ``550.120.02``)."""
    return all(a == b for a, b in zip(one.split("."), other.split("."), strict=False))


_SEGMENT = re.compile(r"(?:^|[\s/])(?P<name>nccl-[A-Za-z0-9]{6}|psm_[0-9a-f]{6,}|torch_\d+_\d+\w*|sem\.mp-\w+)\s*$")


def read_segments(lines: Sequence[str]) -> Reading | None:
    """Return shared memory segments that a listing of /dev/shm shows, or None when it shows none."""
    names = [found["name"] for line in lines for word in _listed_names(line) if (found := _SEGMENT.search(word))]
    if not names:
        return None
    reading = Reading("shm")
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004 - as many as a line shows
    reading.add("shm-leftovers", ", ".join(names[:3]) + more, what=f"{len(names)} found")
    return reading


def _listed_names(line: str) -> list[str]:
    """Return the file names of a line of ``ls``, ``ls -l`` or ``find``; a line with other words is no listing."""
    words = line.split()
    if _LISTED.match(line):
        return words[-1:]
    return words if words and all(re.fullmatch(r"[\w./-]+", word) for word in words) else []


_NUMASTAT = re.compile(r"^\s*numa_(?P<what>hit|miss)\s+(?P<counts>\d+(?:\s+\d+)*)\s*$")


def read_numastat(lines: Sequence[str]) -> Reading | None:
    """Return the share of allocations that missed their NUMA node, as ``numastat`` counts them, or None."""
    counts = {
        found["what"]: [int(count) for count in found["counts"].split()]
        for line in lines
        if (found := _NUMASTAT.match(line))
    }
    if "hit" not in counts or "miss" not in counts:
        return None
    reading = Reading("numastat")
    shares = [miss / max(hit + miss, 1) for hit, miss in zip(counts["hit"], counts["miss"], strict=False)]
    if any(counts["miss"]):
        seen = ", ".join(f"node {node}: {share:.1%}" for node, share in enumerate(shares))
        reading.add("numa-misses", seen)
    return reading


_ENDLESS = re.compile(
    r"^\s*restart:\s*[\"']?(?:always|unless-stopped)\b|--restart[= ][\"']?(?:always|unless-stopped)\b"
)
_RUN = re.compile(r"\b(?:docker|podman) run\b")
_CONTAINER = re.compile(_RUN.pattern + r".*(?:vllm|sglang)", re.IGNORECASE)
_SHARES_MEMORY = re.compile(r"--ipc[= ]host|--shm-size")

_COLLECTIVE = re.compile(
    r"\b(?:all_?reduce|all_?gather|broadcast|reduce_scatter|reduce|sendrecv|alltoall)_perf\b|p2pBandwidthLatencyTest\b"
)
_LIMITED = re.compile(r"\btimeout\b|\s-T\s*\d|--timeout")
_RESULT = re.compile(r"# (?:Avg bus bandwidth|Out of bounds values)")


def read_commands(lines: Sequence[str]) -> Reading | None:
    """Return what is missing in commands of collective tests and containers; None without any, or a test's result."""
    collectives = [line for line in lines if _COLLECTIVE.search(line) and not line.lstrip().startswith("#")]
    containers = [line for line in _joined(lines) if _CONTAINER.search(line)]
    endless = [line for line in _joined(lines) if _ENDLESS.search(line)]
    returned = any(_RESULT.search(line) for line in lines)
    if not (collectives or containers or endless or returned):
        return None
    reading = Reading("commands")
    for line in endless:
        reading.add("container-restarts-for-ever", redact(line.strip())[:200])
    for command in () if returned else collectives:
        if not _LIMITED.search(command):
            reading.add("collective-without-timeout", redact(command.strip())[:200])
    for command in containers:
        if not _SHARES_MEMORY.search(command):
            reading.add("container-shm-small", redact(command.strip())[:200])
        if names := secret_names(command):
            reading.add("secret-in-command-line", ", ".join(names), what="a container's command")
    return reading


def runs_container(line: str) -> bool:
    """Whether a command that runs a container begins here."""
    return bool(_RUN.search(line))


def _joined(lines: Sequence[str]) -> list[str]:
    """Join lines that end in a backslash with the next."""
    return "\n".join(lines).replace("\\\n", " ").split("\n")
