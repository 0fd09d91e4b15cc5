# SPDX-License-Identifier: Apache-2.0
"""Compare the facts of a host with an expectation: what nvidia-smi says of its GPUs and of the links between them.

Every check yields findings, or NotChecked where what it needs is not known. Each id has a section in
docs/topology.md that explains it and names its source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..findings import Finding, Level, NotChecked
from .expectations import Expectation
from .facts import Facts, bdf, named, number, value
from .host_files import cpus
from .smi_error import CAUSES

Result = Iterator[Finding | NotChecked]
Check = Callable[[Facts, Expectation], Result]

_SAME = "same NUMA node"
_ACROSS = "different NUMA nodes"
_BUSY_PERCENT = 50
NO_GPU = "no NVIDIA GPU is on this host's PCI bus: what nvidia-smi shows is elsewhere, or is replayed"
"""Why the kernel's own view is not compared with what nvidia-smi shows."""


def listed(items: Iterable[str], limit: int = 12) -> str:
    """Return items as one line, the tail of a long list as a count."""
    items = list(items)
    shown = "; ".join(items[:limit])
    return shown if len(items) <= limit else f"{shown}; and {len(items) - limit} more"


_PLACE = re.compile(r"GPU\d+-GPU\d+|GPU\d+(?!\S)|\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?\b")


def places(items: Iterable[str]) -> tuple[str, ...]:
    """Return the parts of the host that items such as ``GPU3 0000:71:00.0: x8`` are about, for pictures."""
    heads = (item.partition(": ")[0] for item in items)
    return tuple(dict.fromkeys(place for head in heads for place in _PLACE.findall(head)))


def check_answers(facts: Facts, _: Expectation) -> Result:
    """nvidia-smi answered, and every GPU with it."""
    for command, seconds in facts.timeouts.items():
        yield Finding(
            "nvidia-smi-timeout",
            "critical",
            "a command gave no answer in time" if command == "kernel log" else "nvidia-smi gave no answer in time",
            f"{command}: nothing after {seconds:.0f} s",
            "an answer within seconds",
            "a GPU whose system processor hangs blocks nvidia-smi: look for Xid 119 or 120 in the kernel log, then"
            " drain the host and reboot it",
        )
    for error in facts.errors:
        yield _error_finding(error)


def _error_finding(error: Mapping[str, Any]) -> Finding:
    cause = CAUSES[error["cause"]]
    ids = {"gpu-lost": "gpu-lost", "driver-mismatch": "driver-mismatch"}
    return Finding(
        ids.get(cause.id, "nvidia-smi-error"),
        "critical",
        cause.what,
        str(error["message"]),
        "an answer for every GPU",
        cause.fix,
        repaired_by="host_reboot" if cause.id == "driver-mismatch" else None,
        where=_of_error(error),
    )


def _of_error(error: Mapping[str, Any]) -> tuple[str, ...]:
    index, bus_id = error.get("index"), error.get("bus_id")
    return tuple(part for part in (f"GPU{index}" if index else "", bdf(bus_id) if bus_id else "") if part)


def check_count(facts: Facts, expect: Expectation) -> Result:
    """As many GPUs as expected, in every answer, numbered without a gap."""
    if not facts.counts:
        yield NotChecked("gpu-count", "no list of GPUs")
        return
    seen = ", ".join(f"{count} by {source}" for source, count in facts.counts.items())
    wrong = [count for count in facts.counts.values() if expect.gpu_count not in (None, count)]
    if wrong:
        yield Finding(
            "gpu-count",
            "critical",
            f"{'/'.join(str(n) for n in sorted(set(wrong)))} GPU{'' if set(wrong) == {1} else 's'}"
            f" instead of {expect.gpu_count}",
            seen,
            f"{expect.gpu_count} GPUs",
            "a GPU that is missing: look for it with `lspci -d 10de:`, for Xid 79 in the kernel log, and at its power"
            " cables and riser; a host that is meant to have this number needs its own expectation (gpu_count)",
        )
    elif len(set(facts.counts.values())) > 1:
        yield Finding(
            "gpu-count",
            "critical",
            "nvidia-smi's answers differ in the number of GPUs",
            seen,
            "the same number everywhere",
            "a GPU comes and goes, or the answers are of different hosts or times: collect them anew",
        )


def check_ids(facts: Facts, _: Expectation) -> Result:
    """Find gaps in the GPU numbers: a text that was cut down, or GPUs that are not visible here."""
    ids = facts.topology["gpu_ids"] if facts.topology else []
    if ids and ids != list(range(len(ids))):
        yield Finding(
            "gpu-ids",
            "warning",
            "the GPU numbers have gaps",
            f"GPU {', '.join(map(str, ids))}",
            f"GPU 0 to {len(ids) - 1}",
            "the text was cut down, or only some GPUs are visible here: give the whole answer, taken on the host",
        )


def check_capability(facts: Facts, expect: Expectation) -> Result:
    """Know the class of the GPUs by compute capability; their names and memory are a hint."""
    if expect.compute_capability:
        known = {named(gpu): cap for gpu in facts.gpus if (cap := value(gpu, "compute_cap"))}
        if not known:
            yield NotChecked("compute-capability", "only --query-gpu=compute_cap shows it")
        wrong = [f"{name}: {cap}" for name, cap in known.items() if cap != expect.compute_capability]
        if wrong:
            yield Finding(
                "compute-capability",
                "critical",
                "GPUs of another architecture",
                listed(wrong),
                f"compute capability {expect.compute_capability} on every GPU",
                "the engine, its patches and its kernels are chosen for this capability: use an expectation and a"
                " release for the cards that are there",
                where=places(wrong),
            )
    yield from _check_product(facts, expect)
    yield from _check_memory(facts, expect)


def _check_product(facts: Facts, expect: Expectation) -> Result:
    names = Counter(name for gpu in facts.gpus if (name := value(gpu, "name")))
    seen = listed(f"{count}x {name}" for name, count in names.items())
    if len(names) > 1:
        yield Finding("gpu-mixed", "warning", "GPUs of different products", seen, "one product",
                      "the slowest card sets the pace of tensor parallelism: serve on equal cards only")  # fmt: skip
    wrong = [n for n in names if not n.endswith("...") and not any(part in n for part in expect.product_contains)]
    if expect.product_contains and wrong:
        yield Finding(
            "product",
            "warning",
            "a product that this expectation does not name",
            seen,
            f"a name with {' or '.join(expect.product_contains)}",
            "new editions appear: if capability and memory are right, add the name to product_contains",
        )


def _check_memory(facts: Facts, expect: Expectation) -> Result:
    if expect.memory_min_mib is None:
        return
    sizes = {named(gpu): size for gpu in facts.gpus if (size := number(gpu, "memory.total")) is not None}
    if not sizes:
        yield NotChecked("gpu-memory", "no answer shows memory.total")
    small = [f"{name}: {size:.0f} MiB" for name, size in sizes.items() if size < expect.memory_min_mib]
    if small:
        yield Finding("gpu-memory", "critical", "GPUs with too little memory", listed(small),
                      f"at least {expect.memory_min_mib} MiB",
                      "use an expectation for these cards, and a model that fits them",
                      where=places(small))  # fmt: skip


def check_mig(facts: Facts, expect: Expectation) -> Result:
    """MIG is off: a partitioned GPU has no peer access, so tensor parallelism can't use it."""
    if expect.mig is None:
        return
    modes = {named(gpu): mode for gpu in facts.gpus if (mode := value(gpu, "mig.mode.current"))}
    listed_mig = [named(gpu) for gpu in facts.gpus if gpu.get("mig_devices")]
    if not modes and not listed_mig:
        yield NotChecked("mig", "no answer shows mig.mode.current")
    wanted = "Enabled" if expect.mig else "Disabled"
    wrong = [f"{name}: {mode}" for name, mode in modes.items() if mode.rstrip("*") != wanted]
    if not expect.mig:
        wrong += [f"{name}: has MIG devices" for name in listed_mig if name not in modes]
    if wrong:
        yield Finding(
            "mig",
            "critical",
            f"MIG is {'off' if expect.mig else 'on'}",
            listed(wrong),
            wanted.lower(),
            "with nothing running on the GPUs: nvidia-smi -mig 0, then reset the GPUs or reboot",
            where=places(wrong),
        )


def check_links(facts: Facts, expect: Expectation) -> Result:
    """Links between GPUs: PCIe only, and of the classes that belong inside and between NUMA nodes."""
    document = facts.topology
    if document is None:
        for name in ("nvlink", "link-class", "links-asymmetric"):
            yield NotChecked(name, _why_unread(facts, "topo -m"))
        return
    links, ids = document["links"], document["gpu_ids"]
    pairs = [(i, j) for j in range(len(ids)) for i in range(j)]
    nvlinked = [f"GPU{ids[i]}-GPU{ids[j]}: {links[i][j]}" for i, j in pairs if links[i][j].startswith("NV")]
    if expect.nvlink is False and nvlinked:
        yield Finding(
            "nvlink",
            "critical",
            "GPUs are connected by NVLink",
            listed(nvlinked),
            "PCIe only",
            "NCCL's settings here are for PCIe: use an expectation with nvlink: true and another profile",
            where=places(nvlinked),
        )
    lopsided = [f"GPU{ids[i]}-GPU{ids[j]}: {links[i][j]}/{links[j][i]}" for i, j in pairs if links[i][j] != links[j][i]]
    if lopsided:
        yield Finding("links-asymmetric", "unknown", "a link has another class in each direction", listed(lopsided),
                      "one class for both directions",
                      "nvidia-smi prints a symmetric matrix: this text was altered; take it anew",
                      where=places(lopsided))  # fmt: skip
    yield from _check_classes(document, pairs, expect)


def _check_classes(document: Mapping[str, Any], pairs: list[tuple[int, int]], expect: Expectation) -> Result:
    links, ids, nodes = document["links"], document["gpu_ids"], document["numa_per_gpu"]
    wrong: dict[str, list[str]] = {_SAME: [], _ACROSS: []}
    unplaced = False
    for i, j in pairs:
        if nodes[i] is None or nodes[j] is None:
            unplaced = True
            continue
        where = _SAME if nodes[i] == nodes[j] else _ACROSS
        allowed = expect.links_same_numa if where == _SAME else expect.links_across_numa
        if links[i][j] not in allowed and not links[i][j].startswith("NV"):
            wrong[where].append(f"GPU{ids[i]}-GPU{ids[j]}: {links[i][j]}")
    if unplaced:
        yield NotChecked("link-class", "the NUMA nodes of some GPUs are not shown, so their links can't be judged")
    for where, seen in wrong.items():
        allowed = expect.links_same_numa if where == _SAME else expect.links_across_numa
        if seen:
            yield Finding(
                "link-class",
                "warning",
                f"links of an unexpected class between GPUs of {'the ' if where == _SAME else ''}{where}",
                listed(seen),
                ", ".join(allowed),
                "a virtual machine hides the real topology, a BIOS may split a socket into several nodes (NPS), a card"
                " may sit in another slot than meant; if it is right, say so in links_same_numa/links_across_numa",
                where=places(seen),
            )


def check_numa(facts: Facts, expect: Expectation) -> Result:
    """GPUs spread over the NUMA nodes as expected, each with the CPUs of its own node."""
    document = facts.topology
    if document is None or all(node is None for node in document["numa_per_gpu"]):
        why = _why_unread(facts, "topo -m") if document is None else "topo -m shows no NUMA node"
        yield NotChecked("numa-balance", why)
        yield NotChecked("cpu-affinity", why)
        return
    nodes = [str(node) for node in document["numa_per_gpu"]]
    split = Counter(nodes)
    if expect.numa_split and sorted(split.values()) != sorted(expect.numa_split):
        yield Finding(
            "numa-balance",
            "warning",
            "the GPUs are not spread over the NUMA nodes as expected",
            listed(f"{count} on node {node}" for node, count in split.items()),
            " + ".join(map(str, expect.numa_split)),
            "check slots and the BIOS setting for nodes per socket (NPS); a range such as 0-3 means that the kernel"
            " does not place the GPU at all",
        )
    yield from _check_affinity(facts, document)


def _check_affinity(facts: Facts, document: Mapping[str, Any]) -> Result:
    if facts.live and not facts.pci:
        yield NotChecked("cpu-affinity", NO_GPU)
        return
    if not facts.numa_cpus:
        yield NotChecked("cpu-affinity", "the CPUs of the NUMA nodes are not known (lscpu)")
        return
    wrong = []
    for gpu, node, ranges in zip(
        document["gpu_ids"], document["numa_per_gpu"], document["cpu_affinity_per_gpu"], strict=True
    ):
        own = facts.numa_cpus.get(str(node))
        problem = _affinity_problem(own, ranges)
        if problem:
            wrong.append(f"GPU{gpu} (node {node}): {ranges} {problem}")
    if wrong:
        yield Finding(
            "cpu-affinity",
            "warning",
            "CPUs near a GPU are missing from its affinity, or are of another node",
            listed(wrong),
            "the CPUs of the GPU's own NUMA node",
            "a cgroup or cpuset may limit this session: take the answer as root outside of any job; offline CPUs and"
            " interleaved numbering are no fault",
            where=places(wrong),
        )


def _affinity_problem(own: str | None, ranges: str | None) -> str | None:
    try:
        mine, theirs = (cpus(ranges), cpus(own)) if own and ranges else (set(), set())
    except ValueError:
        return "is no list of CPUs"
    if not mine or not theirs:
        return None
    if mine - theirs:
        return f"has CPUs that are not among the node's {own}"
    return f"is less than half of the node's {own}" if 2 * len(mine) < len(theirs) else None


def check_pcie(facts: Facts, expect: Expectation) -> Result:
    """PCIe generation and width by what the link can do, and by what it does under load. An idle link is slow."""
    yield from _check_generation(facts, expect)
    yield from _check_width(facts, expect)


def _check_generation(facts: Facts, expect: Expectation) -> Result:
    if expect.pcie_gen is None:
        return
    most = {named(gpu): (gpu, gen) for gpu in facts.gpus if (gen := number(gpu, "pcie.link.gen.max")) is not None}
    if not most:
        yield NotChecked("pcie-gen", "no answer shows pcie.link.gen.max")
        return
    slow = [
        f"{name}: gen {gen:.0f} at most{_host_limit(gpu)}" for name, (gpu, gen) in most.items() if gen < expect.pcie_gen
    ]
    if slow:
        yield Finding(
            "pcie-gen",
            "critical",
            "the PCIe link can't reach the expected generation",
            listed(slow),
            f"gen {expect.pcie_gen}",
            "set the slot's speed in the BIOS (auto or the generation itself), check riser, retimer and slot",
            where=places(slow),
        )
    busy = {name: item for name, item in most.items() if (number(item[0], "utilization.gpu") or 0) >= _BUSY_PERCENT}
    now = {name: number(gpu, "pcie.link.gen.current") for name, (gpu, _) in busy.items()}
    throttled = [f"{name}: gen {gen:.0f}" for name, gen in now.items() if gen is not None and gen < busy[name][1]]
    if throttled:
        yield Finding("pcie-gen-load", "warning", "the PCIe link stays slow under load", listed(throttled),
                      f"gen {expect.pcie_gen} while the GPU works",
                      "switch off PCIe power management (pcie_aspm=off) and look for link errors in the kernel log",
                      repaired_by="host_pcie_aspm", where=places(throttled))  # fmt: skip
    elif not busy:
        yield NotChecked("pcie-gen-load", "no GPU was busy: an idle link runs at a low generation, which is normal")


def _host_limit(gpu: Mapping[str, Any]) -> str:
    host, card = number(gpu, "pcie.link.gen.hostmax"), number(gpu, "pcie.link.gen.gpumax")
    return f" (slot {host:.0f}, card {card:.0f})" if host is not None and card is not None else ""


def _check_width(facts: Facts, expect: Expectation) -> Result:
    if expect.pcie_width is None:
        return
    seen = {
        named(gpu): (number(gpu, "pcie.link.width.current"), number(gpu, "pcie.link.width.max")) for gpu in facts.gpus
    }
    seen.update({name: pair for name, pair in _kernel_widths(facts).items() if name not in " ".join(seen)})
    if all(width is None for pair in seen.values() for width in pair):
        yield NotChecked("pcie-width", "no answer shows pcie.link.width")
        return
    narrow = [
        f"{name}: x{min(known):.0f}" + (f" of x{most:.0f}" if now is not None and most is not None else "")
        for name, (now, most) in seen.items()
        if (known := [width for width in (now, most) if width is not None]) and min(known) < expect.pcie_width
    ]
    if narrow:
        yield Finding(
            "pcie-width",
            "critical",
            "a PCIe link is narrower than it should be",
            listed(narrow),
            f"x{expect.pcie_width} (the width does not shrink when idle)",
            "reseat card and riser, clean the contacts, check that the slot is wired and set (bifurcation) for this"
            " width; `lspci -vv` on the bridge above shows which side limits it",
            where=places(narrow),
        )


def _kernel_widths(facts: Facts) -> dict[str, tuple[float | None, float | None]]:
    """Return the present and the greatest width of GPUs (and of devices that a text does not name) by the kernel."""
    devices = {name: d for name, d in (facts.pci or {}).items() if d.get("is_gpu") or d.get("bus_id") is None}
    return {
        name: (device["link"]["width"], device.get("link_capability", {}).get("width"))
        for name, device in devices.items()
        if "link" in device
    }


def check_p2p(facts: Facts, expect: Expectation) -> Result:
    """Peer access of every pair, for reads and for writes."""
    if expect.p2p == "ignored":
        return
    by_capability = {document.get("capability"): document for document in facts.p2p}
    for capability, name in (("r", "p2p-read"), ("w", "p2p-write")):
        document = by_capability.get(capability)
        if document:
            yield from _check_statuses(name, document, expect)
        elif None in by_capability:
            yield NotChecked(name, "the matrix does not say which access it is about (r or w)")
        else:
            yield NotChecked(name, _why_unread(facts, f"topo -p2p {capability}"))
    for document in facts.p2p:
        if document.get("capability") is None and not (len(facts.p2p) > 1 and _is_all_ns(document)):
            yield from _check_statuses("p2p", document, expect)


def _is_all_ns(document: Mapping[str, Any]) -> bool:
    """Whether it is what ``-p2p n`` (NVLink) says on every PCIe-only host."""
    return {cell for row in document["status"] for cell in row} == {"X", "NS"}


def _check_statuses(name: str, document: Mapping[str, Any], expect: Expectation) -> Result:
    status, ids = document["status"], document["gpu_ids"]
    bad = [
        (f"GPU{ids[i]}-GPU{ids[j]}", status[i][j])
        for i in range(len(ids))
        for j in range(len(ids))
        if i != j and status[i][j] != "OK"
    ]
    if not bad:
        return
    level: Level = "critical" if expect.p2p == "required" else "warning"
    if name == "p2p" and _is_all_ns(document):
        level = "unknown"
    yield Finding(
        name,
        level,
        "GPUs without peer access to each other",
        listed(f"{pair}: {code}" for pair, code in bad),
        "OK for every pair",
        _p2p_fix({code for _, code in bad}),
        where=places(pair for pair, _ in bad),
    )


def _p2p_fix(codes: set[str]) -> str:
    fixes = {
        "CNS": "CNS: the chipset is not on the driver's list: check BIOS and IOMMU settings, and the driver's version;"
        " NCCL_P2P_DISABLE=1 serves without peer access, more slowly",
        "GNS": "GNS: the driver does not grant peer access to this product: another driver, or NCCL_P2P_DISABLE=1",
        "TNS": "TNS: no path between these slots that the driver accepts: move a card",
        "NS": "NS: not supported, or not for this kind of access: ask with topo -p2p r and w",
        "DR": "DR: a registry key forbids it: look at NVreg_RegistryDwords in /proc/driver/nvidia/params",
        "U": "U: the driver could not tell: look for errors of these GPUs in the kernel log",
    }
    return "; ".join(text for code, text in fixes.items() if code in codes)


def check_driver(facts: Facts, expect: Expectation) -> Result:
    """Find a driver that is too old, or a kernel module and a library of different versions."""
    versions = {who: text for who, text in facts.versions.items() if text}
    version = facts.driver_version or versions.get("module")
    if expect.driver_minimum and not version:
        yield NotChecked("driver-minimum", "no answer shows the driver's version")
    elif expect.driver_minimum and version and _parts(version) < _parts(expect.driver_minimum):
        yield Finding(
            "driver-minimum",
            "critical",
            "the NVIDIA driver is too old",
            version,
            f"{expect.driver_minimum} or newer",
            "install a newer driver with open kernel modules, and reboot",
        )
    if any(error["cause"] == "driver-mismatch" for error in facts.errors):
        return  # nvidia-smi said so itself
    if len(versions) < 2:  # noqa: PLR2004 (one of them says nothing about the other)
        yield NotChecked("driver-mismatch", "needs the versions of both the kernel module and the library")
    elif not _agree(versions.values()):
        yield Finding(
            "driver-mismatch",
            "critical",
            "the loaded NVIDIA kernel module and the driver library are of different versions",
            ", ".join(f"{who} {text}" for who, text in versions.items()),
            "one version",
            CAUSES["driver-mismatch"].fix,
            repaired_by="host_reboot",
        )


def _parts(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _agree(versions: Iterable[str]) -> bool:
    """Whether these are one version. NVML leaves out the last part of its own (580.159 is 580.159.04)."""
    longest, *others = sorted({_parts(text) for text in versions}, key=len, reverse=True)
    return all(longest[: len(parts)] == parts for parts in others)


def _why_unread(facts: Facts, name: str) -> str:
    if name in facts.timeouts:
        return "the command gave no answer in time"
    return facts.unread.get(name, f"no {name} was given")


GPU_CHECKS: tuple[Check, ...] = (
    *(check_answers, check_count, check_ids, check_capability, check_mig, check_links, check_numa),
    *(check_pcie, check_p2p, check_driver),
)
"""Checks of what nvidia-smi says, in the order in which they are reported."""
