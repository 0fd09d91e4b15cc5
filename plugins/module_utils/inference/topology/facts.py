# SPDX-License-Identifier: Apache-2.0
"""The facts of one host, put together from whatever documents there are about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .smi_q import FIELDS

Document = Mapping[str, Any]
Gpu = dict[str, Any]

_QUERY_FIELDS = frozenset(entry[0] for entry in FIELDS) | {
    *("index", "uuid", "compute_cap", "driver_version", "processes", "mig_devices", "display_active"),
    *("ecc.errors.uncorrected.aggregate.total", "power.draw"),
}
_BLANKED = frozenset("GPU-0xX*")
"""Letters of a UUID that somebody blanked."""
_UNKNOWN_VALUES = frozenset(("", "N/A", "[N/A]", "[Not Supported]", "Not Supported", "[Unknown Error]", "None shown"))


@dataclass
class Facts:
    """What is known of a host. What is not known is absent (None, empty), never assumed."""

    gpus: list[Gpu] = field(default_factory=list)
    """By field of ``--query-gpu``, in order of appearance; values as printed."""
    counts: dict[str, int] = field(default_factory=dict)
    """Number of GPUs by the kind of document that states it."""
    topology: Document | None = None
    """What ``topo -m`` showed."""
    p2p: list[Document] = field(default_factory=list)
    """What ``topo -p2p`` showed; ``capability`` says which one, null where it is not known."""
    driver_version: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    """Driver version by who says so: ``module`` (the kernel's), ``library`` (NVML), ``files`` (on disk)."""
    errors: list[Document] = field(default_factory=list)
    """Messages with their cause (``message``, ``cause``, ``index``, ``bus_id``)."""
    timeouts: dict[str, float] = field(default_factory=dict)
    """Commands that gave no answer, with the seconds waited."""
    unread: dict[str, str] = field(default_factory=dict)
    """Documents that could not be read: name and reason."""
    xids: list[Document] | None = None
    kernel_events: list[Document] | None = None
    pci: dict[str, Document] | None = None
    """PCI devices by address: GPUs and the bridges above them (see collect.py), or those of an lspci text."""
    numa_cpus: dict[str, str] | None = None
    kernel_parameters: dict[str, str | None] | None = None
    module_parameters: dict[str, str] | None = None
    """``/proc/driver/nvidia/params``."""
    registry: dict[str, str] | None = None
    """RegistryDwords of the loaded module."""
    host: dict[str, Any] = field(default_factory=dict)
    """What only a live host shows: shm, nccl_conf, uvm_disable_hmm, aspm_policy, firmware, gpu_processes, limits."""
    live: bool = False
    """Whether this was collected from a live host (and not read from files)."""


def bdf(bus_id: str) -> str:
    """Return a PCI address as the kernel writes it: ``00000000:C1:00.0`` is ``0000:c1:00.0``."""
    parts = bus_id.lower().split(":")
    domain = parts[0][-4:] if len(parts) == 3 else "0000"  # noqa: PLR2004 (domain, bus, device)
    address = ":".join([domain, *parts[-2:]])
    return address if "." in address else address + ".0"


def value(gpu: Mapping[str, Any], name: str) -> str | None:
    """Return a field of a GPU, or None where nvidia-smi did not know it."""
    text = gpu.get(name)
    return text if isinstance(text, str) and text not in _UNKNOWN_VALUES else None


def number(gpu: Mapping[str, Any], name: str) -> float | None:
    """Return a field as a number without its unit, or None."""
    text = value(gpu, name)
    try:
        return float(text.split()[0]) if text else None
    except ValueError:
        return None


def named(gpu: Mapping[str, Any]) -> str:
    """Return how a finding names a GPU: its number and PCI address, as far as they are known."""
    index, bus_id = value(gpu, "index"), value(gpu, "pci.bus_id")
    parts = [f"GPU{index}" if index else "", bdf(bus_id) if bus_id else ""]
    return " ".join(part for part in parts if part) or value(gpu, "uuid") or "a GPU"


def brief(facts: Facts) -> dict[str, Any]:
    """Return the facts in short, for a report and its picture: GPUs, links and driver; null where it is not known."""
    topology = facts.topology or {}
    of_matrix = ("gpu_ids", "links", "numa_per_gpu", "cpu_affinity_per_gpu", "nics", "nic_links", "all_on_pcie")
    return {
        "gpu_count": max(facts.counts.values(), default=None),
        "driver_version": facts.driver_version,
        "firmware": facts.host.get("firmware") or None,
        "gpus": [_brief_gpu(gpu, facts.pci or {}) for gpu in facts.gpus],
        **{name: topology.get(name) for name in of_matrix},
        "p2p": {str(document.get("capability")): document["status"] for document in facts.p2p},
    }


_BRIEF_FIELDS = (
    *("index", "name", "pci.bus_id", "compute_cap", "memory.total", "vbios_version", "mig.mode.current"),
    *("pcie.link.gen.max", "pcie.link.gen.current", "pcie.link.width.max", "pcie.link.width.current"),
)


def _brief_gpu(gpu: Gpu, pci: Mapping[str, Document]) -> Gpu:
    """Return a GPU in short, with the bridges above it (the nearest first) and the NUMA node that the kernel says."""
    device = pci.get(bdf(text)) or {} if (text := value(gpu, "pci.bus_id")) else {}
    node = device.get("numa_node")
    return {
        **{name: value(gpu, name) for name in _BRIEF_FIELDS},
        "bridges": device.get("bridges"),
        "numa_node": node if node != "-1" else None,
    }


def facts_of(documents: Iterable[tuple[str, Document]]) -> Facts:
    """Merge documents, each with the name of where it comes from."""
    facts = Facts()
    for source, document in documents:
        add_document(facts, source, document)
    return facts


def add_document(facts: Facts, source: str, document: Document) -> None:
    """Add what ``document`` (from :func:`topology.parse`) says."""
    _add_errors(facts, document)
    if document.get("reason"):
        facts.unread[source] = str(document["reason"])
        return
    kind = document.get("kind")
    adders = {
        "topo_m": _add_topology,
        "p2p": _add_p2p,
        "query": _add_gpus,
        "q": _add_gpus,
        "list": _add_gpus,
        "table": _add_gpus,
        "version": _add_version,
        "lspci": _add_lspci,
        "kernel_log": _add_kernel_log,
        "host_file": _add_host_file,
    }
    if kind in adders:
        adders[kind](facts, document)


def _add_errors(facts: Facts, document: Document) -> None:
    if document.get("kind") == "kernel_log":
        return
    for entry in document.get("causes", []):
        if entry["message"] not in [known["message"] for known in facts.errors]:
            facts.errors.append(entry)


def _add_topology(facts: Facts, document: Document) -> None:
    facts.topology = document
    facts.counts["topo -m"] = document["gpu_count"]


def _add_p2p(facts: Facts, document: Document) -> None:
    facts.p2p.append(document)
    facts.counts["topo -p2p"] = document["gpu_count"]


def _add_gpus(facts: Facts, document: Document) -> None:
    names = {"query": "--query-gpu", "q": "-q", "list": "-L", "table": "nvidia-smi"}
    facts.counts[names[document["kind"]]] = document["gpu_count"]
    facts.driver_version = document.get("driver_version") or facts.driver_version
    for gpu in document["gpus"]:
        kept = {name: text for name, text in gpu.items() if name in _QUERY_FIELDS}
        known = next((other for other in facts.gpus if _same(other, kept)), None)
        if known is None:
            facts.gpus.append(kept)
        else:
            known.update({name: text for name, text in kept.items() if name not in known or value(known, name) is None})
        facts.driver_version = facts.driver_version or value(kept, "driver_version")
    for process in document.get("processes", []):
        for gpu in facts.gpus:
            if gpu.get("index") == process["gpu"]:
                gpu.setdefault("processes", []).append(process)


def _same(one: Gpu, other: Gpu) -> bool:
    for name in ("pci.bus_id", "index", "uuid"):
        mine, theirs = value(one, name), value(other, name)
        if mine and theirs and not (name == "uuid" and set(mine) <= _BLANKED):
            return bdf(mine) == bdf(theirs) if name == "pci.bus_id" else mine == theirs
    return False


def _add_version(facts: Facts, document: Document) -> None:
    facts.driver_version = document.get("driver_version") or facts.driver_version
    if document.get("nvml_version"):
        facts.versions["library"] = document["nvml_version"]
    facts.versions["module"] = document["driver_version"]


def _add_lspci(facts: Facts, document: Document) -> None:
    facts.pci = facts.pci or {}
    for place, device in enumerate(document["devices"]):
        name = bdf(device["bus_id"]) if device.get("bus_id") else f"(device {place}, not named)"
        facts.pci[name] = {**facts.pci.get(name, {}), **device}


def _add_kernel_log(facts: Facts, document: Document) -> None:
    facts.xids = [*(facts.xids or []), *document["xids"]]
    facts.kernel_events = [*(facts.kernel_events or []), *document["events"]]
    facts.kernel_parameters = facts.kernel_parameters or document.get("parameters")


def _add_host_file(facts: Facts, document: Document) -> None:
    if "open_module" in document:
        facts.versions["module"] = document["driver_version"]
    elif "params" in document:
        facts.module_parameters = document["params"]
        facts.registry = document["registry_dwords"]
    elif "parameters" in document:
        facts.kernel_parameters = document["parameters"]
    elif "numa_cpus" in document:
        facts.numa_cpus = document["numa_cpus"]
    elif "iommu_groups" in document:
        facts.host["iommu_groups"] = document["iommu_groups"]
