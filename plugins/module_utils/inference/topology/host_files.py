# SPDX-License-Identifier: Apache-2.0
"""Files and listings of a Linux host that say how its GPUs, NUMA nodes and IOMMU are set up.

Each reader returns the facts of one file as a dict, or None where the text is another file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from .matrix import Unreadable

Facts = dict[str, Any]

_NVRM = re.compile(
    r"NVRM version:\s+NVIDIA UNIX (?P<flavour>.*?Kernel Module.*?)\s+(?P<version>\d{3}\.\d{2,3}(?:\.\d+)?)\s"
)
_PARAM = re.compile(r"^\s*([A-Z]\w+):\s*(.*?)\s*$")
_LSCPU = re.compile(r"^\s*(?P<key>[A-Z][\w ().-]*?)(?::)\s+(?P<value>\S.*?)\s*$")
_LSCPU_EMPTY = re.compile(r"^\s*(?P<key>[A-Z][\w ().-]*\d[\w ().-]*):$", re.MULTILINE)
"""A node without CPUs: memory of its own is one too, such as that of a GPU on Grace."""
_LSCPU_NODE = re.compile(r"NUMA\D{0,12}(\d+)")
"""In any language: ``NUMA node0 CPU(s)``, ``NUMA-Knoten0 CPU(s)``, ``N\u0153ud NUMA 0 de processeur(s)``."""
_AS_LISTED = re.compile(r"(?:\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*,?-?)?")
_NUMACTL = re.compile(r"^\s*node (\d+) cpus:(.*)$")
_BDF = r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_GROUP = re.compile(r"(?:/sys/kernel/iommu_groups/|^\s*IOMMU [Gg]roup )(?P<group>\d+)")
_DEVICE = re.compile(rf"(?:^|[\s/])(?P<bus_id>{_BDF})(?=\s|$)")
_CMDLINE = re.compile(r"(?:^|\s)(?:BOOT_IMAGE=|root=|initrd=|console=|iommu=|(?:ro|rw|quiet)(?=\s|$))")
_CMDLINE_TITLE = re.compile(r"^\s*(?:Kernel )?[Cc]ommand line: ")
_PARAMETER = re.compile(r'(?:[^\s"]|"[^"]*")+')
"""The kernel knows double quotes and nothing else (Documentation/admin-guide/kernel-parameters.rst)."""
_KNOWN_PARAMS = frozenset(("ResmanDebugLevel", "RmLogonRC", "ModifyDeviceFiles", "RegistryDwords", "EnableMSI"))


def driver_version(text: str) -> Facts | None:
    """Read ``/proc/driver/nvidia/version``: the loaded kernel module's version, and whether it is the open one."""
    match = _NVRM.search(text)
    if not match:
        return None
    return {
        "file": "/proc/driver/nvidia/version",
        "driver_version": match["version"],
        "open_module": "Open" in match["flavour"],
    }


def driver_params(text: str) -> Facts | None:
    """Read ``/proc/driver/nvidia/params``: the module's parameters, RegistryDwords taken apart."""
    params = {match[1]: match[2] for line in text.splitlines() if (match := _PARAM.match(line))}
    if len(_KNOWN_PARAMS & set(params)) < 2:  # noqa: PLR2004 (one of them alone could be any file's)
        return None
    words = params.get("RegistryDwords", "").strip('"')
    registry = dict(word.split("=", 1) for word in words.split(";") if "=" in word)
    return {"file": "/proc/driver/nvidia/params", "params": params, "registry_dwords": registry}


def cmdline(text: str) -> Facts | None:
    """Read ``/proc/cmdline``: parameters as a dict (the last one of a name counts, a bare word is None)."""
    lines = [_CMDLINE_TITLE.sub("", line) for line in text.splitlines() if line.strip()]
    if len(lines) != 1 or not _CMDLINE.search(lines[0]) or ": " in lines[0] or lines[0].startswith("GRUB_"):
        return None
    return {"file": "/proc/cmdline", "parameters": kernel_parameters(lines[0])}


def kernel_parameters(line: str) -> dict[str, str | None]:
    """Return the kernel parameters of a command line."""
    words = (word.replace('"', "") for word in _PARAMETER.findall(line))
    return {name: value if sign else None for name, sign, value in (word.partition("=") for word in words)}


def numa(text: str) -> Facts | None:
    """Read ``lscpu`` or ``numactl --hardware``: sockets and the CPUs of each NUMA node."""
    pairs = {match["key"]: match["value"] for line in text.splitlines() if (match := _LSCPU.match(line))}
    bare = [match["key"] for match in _LSCPU_EMPTY.finditer(text)]
    if text.endswith(":") and len(bare) == 1:  # an end of the text is no proof of a node without CPUs
        bare = []
    numa_pairs = {key: value for key, value in (pairs | dict.fromkeys(bare, "")).items() if "NUMA" in key}
    nodes = {m[1]: v for key, v in numa_pairs.items() if (m := _LSCPU_NODE.search(key)) and _AS_LISTED.fullmatch(v)}
    if not nodes:
        nodes = {match[1]: ",".join(match[2].split()) for line in text.splitlines() if (match := _NUMACTL.match(line))}
    if not nodes:
        return None
    _check_numa(pairs, nodes)
    return {
        "file": "lscpu" if pairs else "numactl",
        "numa_nodes": len(nodes),
        "numa_cpus": nodes,
        "online_cpus": pairs.get("On-line CPU(s) list"),
        "sockets": int(pairs["Socket(s)"]) if pairs.get("Socket(s)", "").isdecimal() else None,
        "cpu_model": pairs.get("Model name"),
    }


def _check_numa(pairs: dict[str, str], nodes: dict[str, str]) -> None:
    """Raise Unreadable where lscpu's lists contradict its counts: the text is cut off."""
    stated = next((value for key, value in pairs.items() if "NUMA" in key and not re.search(r"\d", key)), None)
    if stated is not None and stated != str(len(nodes)):
        raise Unreadable(f"it says {stated} NUMA nodes but lists {len(nodes)}: it is cut off", "host_file")
    try:
        listed = set().union(*(cpus(ranges) for ranges in nodes.values() if ranges))
        online = cpus(pairs["On-line CPU(s) list"]) if "On-line CPU(s) list" in pairs else set()
    except ValueError as error:
        raise Unreadable("a CPU list is cut off", "host_file") from error
    if online - listed:
        raise Unreadable("the NUMA nodes' CPU lists lack CPUs that are online: it is cut off", "host_file")


def iommu_groups(text: str) -> Facts | None:
    """Read a listing of ``/sys/kernel/iommu_groups/*/devices/*``: the devices of each group."""
    groups: dict[str, list[str]] = {}
    group: str | None = None
    for line in text.splitlines():
        start = _GROUP.search(line)
        group = start["group"] if start else group
        device = _DEVICE.search(line.partition("->")[0])
        if group is not None and device:
            groups.setdefault(group, []).append(device["bus_id"])
    return {"file": "/sys/kernel/iommu_groups", "iommu_groups": groups} if groups else None


_READERS: Sequence[Callable[[str], Facts | None]] = (driver_version, driver_params, numa, iommu_groups, cmdline)


def read(text: str) -> Facts | None:
    """Return the facts of whichever of these files ``text`` is, with ``kind``; None where it is none."""
    for reader in _READERS:
        facts = reader(text)
        if facts is not None:
            return {"kind": "host_file", **facts}
    return None


def cpus(ranges: str) -> set[int]:
    """Return the CPU numbers of a list such as ``0-63,128-191``. Raises ValueError where it is none."""
    numbers: set[int] = set()
    for part in ranges.split(","):
        first, dash, last = part.strip().partition("-")
        numbers.update(range(int(first), int(last if dash else first) + 1))
    return numbers
