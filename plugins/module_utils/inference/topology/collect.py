# SPDX-License-Identifier: Apache-2.0
"""Gather everything that a live host says about its GPUs: all commands at once, each with a time limit.

nvidia-smi can hang for tens of seconds on a GPU whose system processor does not answer (Xid 119). A command that
gives no answer in time is a fact like any other; it is killed and not waited for.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import host_files, pcie
from .facts import Facts, add_document, bdf, value

QUERY_FIELDS = (
    *("index", "name", "uuid", "pci.bus_id", "driver_version", "compute_cap", "vbios_version"),
    *("memory.total", "memory.used", "mig.mode.current", "persistence_mode", "pstate"),
    *("pcie.link.gen.max", "pcie.link.gen.current", "pcie.link.width.max", "pcie.link.width.current"),
    *("ecc.mode.current", "power.limit"),
)
"""One query for all GPUs, of fields that every driver since 515 knows: one unknown field would fail the whole call."""

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "topo -m": ("nvidia-smi", "topo", "-m"),
    "topo -p2p r": ("nvidia-smi", "topo", "-p2p", "r"),
    "topo -p2p w": ("nvidia-smi", "topo", "-p2p", "w"),
    "--query-gpu": ("nvidia-smi", f"--query-gpu={','.join(QUERY_FIELDS)}", "--format=csv"),
    "-q -x": ("nvidia-smi", "-q", "-x"),
    "kernel log": ("journalctl", "--dmesg", "--boot", "--no-pager", "--quiet", "--output=short-iso"),
}
"""Every command that is run, by the name under which its answer is known."""

KERNEL_LOG = "kernel log"
MISSING = 127
"""Exit code of a program that is not there, as shells have it."""

NVIDIA_SMI = frozenset(name for name, argv in COMMANDS.items() if argv[0] == "nvidia-smi")
"""Those without whose answer a host can't be judged."""

TIMEOUT = 20.0
"""Seconds for one command. A healthy 8-GPU host without persistence mode needs a few."""
_LONGEST = 3600.0

_DISPLAY = "0x03"
_NVIDIA = "0x10de"
_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_OURS = re.compile(r"/(?:sglang|vllm)@[^/]+\.service")


@dataclass(frozen=True)
class Answer:
    """What a command said. ``timed_out``: it was killed after ``seconds``."""

    code: int
    out: str
    err: str = ""
    seconds: float = 0.0
    timed_out: bool = False


Run = Callable[[Sequence[str], float], Answer]
"""Runs a command with a time limit in seconds; never raises."""

Parse = Callable[[str], Mapping[str, Any]]


def seconds(timeout: float) -> float:
    """Return ``timeout`` if a command can be given that many seconds, else raise ValueError."""
    if not 0 < timeout <= _LONGEST:
        raise ValueError(
            f"{timeout:g} s, where more than 0 and at most {_LONGEST:g} are expected (default {TIMEOUT:g})"
        )
    return timeout


def run_command(argv: Sequence[str], timeout: float) -> Answer:
    """Run ``argv`` in the C locale. After ``timeout`` it is killed, not waited for: it may be stuck in the kernel."""
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        return Answer(MISSING, "", f"{argv[0]}: {'command not found' if missing else error.strerror}")
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        return Answer(124, "", "", time.monotonic() - started, timed_out=True)
    output, errors = (text.decode("utf-8", errors="replace") for text in (out, err))
    return Answer(process.returncode, output, errors, time.monotonic() - started)


def collect(parse: Parse, run: Run = run_command, root: Path = Path("/"), timeout: float = TIMEOUT) -> Facts:
    """Return the facts of the host. ``root`` is where /proc, /sys, /dev and /etc are looked for."""
    with ThreadPoolExecutor(len(COMMANDS)) as pool:
        answers = dict(zip(COMMANDS, pool.map(lambda argv: run(argv, timeout), COMMANDS.values()), strict=True))
    if answers[KERNEL_LOG].code == MISSING:
        answers[KERNEL_LOG] = run(("dmesg",), timeout)
    facts = Facts(live=True)
    for name, answer in answers.items():
        _add_answer(facts, name, answer, parse)
    _add_proc(facts, root, parse)
    _add_sys(facts, root)
    _add_processes(facts, root)
    facts.host.update(_shared_memory(root))
    facts.host["nccl_conf"] = _nccl_conf(root)
    return facts


def _add_answer(facts: Facts, name: str, answer: Answer, parse: Parse) -> None:
    if answer.timed_out:
        facts.timeouts[name] = answer.seconds
        return
    text = answer.out + ("\n" + answer.err if answer.err.strip() else "")
    if name == KERNEL_LOG:
        _add_kernel_log(facts, answer, parse)
        return
    document = dict(parse(text))
    if document.get("kind") == "p2p":
        document["capability"] = name[-1]
    if document.get("reason") and answer.code:
        document["reason"] = f"nvidia-smi exited with {answer.code}: {' '.join(text.split())[:200] or 'no output'}"
    add_document(facts, name, document)


def _add_kernel_log(facts: Facts, answer: Answer, parse: Parse) -> None:
    if answer.code or not answer.out.strip():
        why = " ".join(answer.err.split())[:200] or "it is empty here: a container, or no right to read it"
        facts.unread[KERNEL_LOG] = why
        return
    document = parse(answer.out)
    found = document.get("kind") == "kernel_log"
    facts.xids = list(document["xids"]) if found else []
    facts.kernel_events = list(document["events"]) if found else []


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (OSError, ValueError):
        return None


def _add_proc(facts: Facts, root: Path, parse: Parse) -> None:
    """Add ``/proc/cmdline``, the driver's files, NUMA nodes and the driver library that lies on the disk."""
    for path in ("proc/driver/nvidia/version", "proc/driver/nvidia/params"):
        text = _read(root / path)
        if text is None:
            facts.unread[f"/{path}"] = "no such file: the NVIDIA kernel module is not loaded here"
        else:
            add_document(facts, f"/{path}", parse(text))
    command_line = _read(root / "proc/cmdline")
    facts.kernel_parameters = host_files.kernel_parameters(command_line) if command_line else None
    nodes = {path.parent.name[4:]: _read(path) for path in root.glob("sys/devices/system/node/node[0-9]*/cpulist")}
    facts.numa_cpus = {node: cpus for node, cpus in sorted(nodes.items()) if cpus} or None
    folders = (*root.glob("usr/lib/*-linux-gnu"), root / "usr/lib64", root / "usr/lib")
    libraries = [path for folder in folders for path in folder.glob("libnvidia-ml.so.[0-9]*.*")]
    if libraries:
        facts.versions["files"] = libraries[0].name.split(".so.")[1]


def _add_sys(facts: Facts, root: Path) -> None:
    facts.host["uvm_disable_hmm"] = _read(root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    facts.host["aspm_policy"] = _read(root / "sys/module/pcie_aspm/parameters/policy")
    firmware = {name: _read(root / "sys/class/dmi/id" / name) for name in ("bios_version", "board_name")}
    facts.host["firmware"] = {name: text for name, text in firmware.items() if text}
    devices = root / "sys/bus/pci/devices"
    gpus = [path for path in sorted(devices.glob("*")) if _is_gpu(path)] if devices.is_dir() else []
    facts.pci = {}
    for path in gpus:
        facts.pci[path.name] = _device(path)
        for bridge in _bridges(path):
            facts.pci.setdefault(bridge.name, _device(bridge))


def _is_gpu(path: Path) -> bool:
    return _read(path / "vendor") == _NVIDIA and (_read(path / "class") or "").startswith(_DISPLAY)


def _bridges(path: Path) -> list[Path]:
    """Return the bridges above a device, the nearest first."""
    return [parent for parent in path.resolve().parents if _ADDRESS.fullmatch(parent.name)]


def _device(path: Path) -> dict[str, Any]:
    """Return what sysfs knows of a PCI device, in the words of :func:`pcie.read_lspci`."""
    device: dict[str, Any] = {"bus_id": path.name, "is_gpu": _is_gpu(path)}
    for key, speed, width in (
        ("link", "current_link_speed", "current_link_width"),
        ("link_capability", "max_link_speed", "max_link_width"),
    ):
        texts = _read(path / speed), _read(path / width)
        if texts[0] and texts[1] and texts[1].isdecimal():
            device[key] = {"speed": texts[0], "gen": pcie.generation(texts[0]), "width": int(texts[1])}
    device["numa_node"] = _read(path / "numa_node")
    group = path / "iommu_group"
    if group.exists():
        device["iommu_group"] = group.resolve().name
        device["iommu_type"] = _read(group / "type")
    device["bridges"] = [bridge.name for bridge in _bridges(path)]
    try:
        control = pcie.acs_control((path / "config").read_bytes())
        device["acs_redirect"] = pcie.redirects(control) if control else None
        device["acs_control"] = control
    except (OSError, ValueError) as error:
        device["acs_unread"] = str(error)
    return device


def _add_processes(facts: Facts, root: Path) -> None:
    """Add who uses the GPUs: the unit each process belongs to and its locked-memory limit."""
    pids = {process.get("pid") for gpu in facts.gpus for process in gpu.get("processes") or []}
    processes = {}
    for pid in sorted(pid for pid in pids if isinstance(pid, str) and pid.isdecimal()):
        group = _read(root / "proc" / pid / "cgroup") or ""
        limits = re.search(r"Max locked memory\s+(\S+)", _read(root / "proc" / pid / "limits") or "")
        processes[pid] = {
            "ours": bool(_OURS.search(group)),
            "unit": group.rsplit("/", 1)[-1] or None,
            "memlock": limits[1] if limits else None,
        }
    facts.host["gpu_processes"] = processes


def _shared_memory(root: Path) -> dict[str, Any]:
    shm = root / "dev/shm"
    try:
        space = os.statvfs(shm)
        segments = sorted(path.name for path in shm.glob("nccl-*"))
    except OSError:
        return {}
    used = _mapped(root) if segments else set()
    return {
        "shm_total": space.f_frsize * space.f_blocks,
        "shm_free": space.f_frsize * space.f_bavail,
        "shm_stale": [name for name in segments if name not in used],
    }


def _mapped(root: Path) -> set[str]:
    """Return the NCCL segments that some process has mapped."""
    names: set[str] = set()
    for path in root.glob("proc/[0-9]*/maps"):
        names.update(re.findall(r"/shm/(nccl-\S+)", _read(path) or ""))
    return names


def _nccl_conf(root: Path) -> dict[str, list[str]]:
    """Return the settings in NCCL's configuration files, which act on every program without being seen in it."""
    found = {}
    for path in (root / "etc/nccl.conf", root / "root/.nccl.conf", *sorted(root.glob("home/*/.nccl.conf"))):
        text = _read(path)
        if text is not None:
            lines = [line.strip() for line in text.splitlines()]
            found["/" + str(path.relative_to(root))] = [line for line in lines if line and not line.startswith("#")]
    return found


def gpu_devices(facts: Facts) -> dict[str, Mapping[str, Any]]:
    """Return the PCI devices that are GPUs which nvidia-smi shows, by address."""
    shown = {bdf(text) for gpu in facts.gpus if (text := value(gpu, "pci.bus_id"))}
    return {name: device for name, device in (facts.pci or {}).items() if name in shown}
