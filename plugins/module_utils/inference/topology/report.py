# SPDX-License-Identifier: Apache-2.0
"""From checks to a report: what is pending, what was waived and why, and how the host has changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from ..findings import Finding, NotChecked, Report
from ..program import nearest
from .checks import GPU_CHECKS
from .collect import NVIDIA_SMI
from .expectations import Expectation
from .facts import Facts
from .fingerprint import changes
from .health_checks import HEALTH_CHECKS
from .host_checks import HOST_CHECKS

IDS: Mapping[str, str] = {
    "nvidia-smi-timeout": "A command gave no answer in time",
    "nvidia-smi-error": "nvidia-smi gave an error instead of an answer",
    "gpu-lost": "A GPU is lost or unreadable",
    "driver-mismatch": "Kernel module and library differ in version",
    "driver-minimum": "The driver is too old",
    "gpu-count": "Another number of GPUs than expected",
    "gpu-ids": "GPU numbers with gaps",
    "compute-capability": "GPUs of another architecture",
    "product": "A product that is not named",
    "gpu-mixed": "GPUs of different products",
    "gpu-memory": "GPUs with too little memory",
    "mig": "MIG",
    "nvlink": "NVLink where PCIe is expected",
    "link-class": "Links of an unexpected class",
    "links-asymmetric": "A matrix that is not symmetric",
    "numa-balance": "GPUs spread unevenly over NUMA nodes",
    "cpu-affinity": "CPU affinity",
    "pcie-gen": "PCIe generation",
    "pcie-gen-load": "PCIe generation under load",
    "pcie-width": "PCIe width",
    "p2p": "Peer access, kind not stated",
    "p2p-read": "Peer access for reads",
    "p2p-write": "Peer access for writes",
    "acs-redirect": "ACS redirects peer traffic",
    "iommu-translated": "The IOMMU translates",
    "pcie-aspm": "PCIe power management",
    "uvm-hmm": "Heterogeneous memory management",
    "nvreg": "Registry keys of the driver",
    "ecc-uncorrected": "Uncorrectable memory errors now",
    "ecc-history": "Uncorrectable memory errors in the past",
    "remapped-rows": "Remapped memory rows",
    "retired-pages": "Retired memory pages",
    "remap-failure": "A failed repair",
    "memory-unrepairable": "Unrepairable memory",
    "repair-pending": "A repair that waits for a reset",
    "recovery-action": "A recovery action that the driver asks for",
    "xid": "Xid errors since boot",
    "kernel-events": "PCIe and IOMMU errors since boot",
    "throttling": "Throttling",
    "power-limit": "Power limit",
    "persistence": "Persistence mode",
    "bar1": "BAR1 smaller than the memory",
    "gpu-memory-used": "GPU memory in use",
    "shm-space": "Room in /dev/shm",
    "shm-stale": "Stale NCCL segments",
    "memlock": "Locked memory",
    "nccl-conf": "A stray NCCL configuration file",
    "topology-changed": "The host has changed",
    "input": "A text that could not be read",
}
"""Every id that a report can hold, with the title of its section in docs/topology.md."""


class WaiverError(Exception):
    """A waiver that can't be honoured. The message names the id."""


def check(
    facts: Facts,
    expectation: Expectation,
    *,
    repairs: Collection[str] = (),
    waive: Mapping[str, str] | None = None,
    previous: Mapping[str, Any] | None = None,
    current: Mapping[str, Any] | None = None,
) -> Report:
    """Return the report on ``facts``.

    ``repairs``: enabled settings of the host role; what one of them repairs is pending, level info. ``waive``: reasons
    by id; what is waived is shown at level info with its reason. ``previous``, ``current``: fingerprint parts to
    compare. Raises WaiverError for an unknown id or a waiver without a reason.
    """
    waive = waive or {}
    check_waivers(waive)
    report = Report()
    for run in (*GPU_CHECKS, *HEALTH_CHECKS, *HOST_CHECKS):
        for result in run(facts, expectation):
            if isinstance(result, NotChecked):
                report.not_checked.append(result)
            else:
                report.findings.append(_settled(result, repairs, waive))
    for name, reason in facts.unread.items():
        if not facts.live or name in NVIDIA_SMI:
            report.findings.append(_settled(_unread(name, reason), (), waive))
    if previous and current:
        report.extend(_settled(finding, repairs, waive) for finding in _drift(previous, current))
    return report


def check_waivers(waive: Mapping[str, str]) -> None:
    """Raise WaiverError unless every waiver is for a known id and has a reason."""
    for name, reason in waive.items():
        if name not in IDS:
            raise WaiverError(f"waive: no finding has the id {name!r}{nearest(name, IDS)}")
        if not isinstance(reason, str) or not reason.strip():
            raise WaiverError(f"waive: {name}: give the reason why it is accepted")


def _settled(finding: Finding, repairs: Collection[str], waive: Mapping[str, str]) -> Finding:
    if finding.level != "info" and finding.id in waive:
        return replace(finding, level="info", what=f"waived ({waive[finding.id]}): {finding.what}")
    if finding.level != "info" and finding.repaired_by in repairs:
        return replace(finding, level="info", what=f"pending, {finding.repaired_by} repairs it: {finding.what}")
    return finding


def _unread(name: str, reason: str) -> Finding:
    return Finding(
        "input",
        "unknown",
        f"{name} could not be read",
        reason,
        "the whole output of one command",
        "take the output anew, whole and unaltered (redirect it to a file instead of copying it from a terminal)",
    )


def _drift(previous: Mapping[str, Any], current: Mapping[str, Any]) -> list[Finding]:
    if previous.get("version") != current.get("version"):
        return []
    changed = changes(previous, current)
    if not changed:
        return []
    return [
        Finding(
            "topology-changed",
            "warning",
            "the host is not the one that was measured: its topology, driver or firmware changed",
            "; ".join(changed[:12]) + (f"; and {len(changed) - 12} more" if len(changed) > 12 else ""),  # noqa: PLR2004
            "as at the last run",
            "if it was meant, measure anew: tuned settings and baselines belong to the host as it was",
        )
    ]
