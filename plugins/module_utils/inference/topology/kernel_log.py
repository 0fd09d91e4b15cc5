# SPDX-License-Identifier: Apache-2.0
"""Kernel messages about GPUs: Xid errors by severity, and what else tells of a GPU or its link in trouble."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ..findings import Level
from ..xid import XidEvent, parse_xid_lines, xid
from .host_files import kernel_parameters

RESTARTABLE = frozenset((13, 31, 32, 39, 40, 41, 69, 80, 94))
"""Xids that are critical for the engine that ran, but leave a GPU that can serve again once the engine restarts.

NVIDIA's Xid catalogue names restarting the application as the immediate action for each of them.
"""

_BDF = r"(?P<bus_id>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)"
_ANY_BDF = r"(?P<{}>(?:[0-9a-f]{{4}}:)?[0-9a-f]{{2}}:[0-9a-f]{{2}}\.\d)"
_XID = re.compile(r"(?<!S)Xid \(")
_COMMAND_LINE = re.compile(r"\b(?:Kernel c|C)ommand line: (.+)")
_EVENTS: tuple[tuple[str, Level, re.Pattern[str]], ...] = (
    ("locked-up", "critical", re.compile(r"RC watchdog: GPU is probably locked")),
    ("init-failed", "critical", re.compile(r"NVRM: (?:GPU (?P<bus_id>[0-9A-Fa-f:.]+): )?RmInitAdapter failed")),
    ("api-mismatch", "critical", re.compile(r"NVRM: API mismatch")),
    (
        "io-page-fault",
        "critical",
        re.compile(
            rf"(?:{_ANY_BDF.format('before')}: AMD-Vi.*)?IO_PAGE_FAULT(?:.*?device={_ANY_BDF.format('named')})?"
            rf"|DMAR:.*?(?:\[{_ANY_BDF.format('asked')}\].*)?fault addr"
        ),
    ),
    ("nvswitch-fatal", "critical", re.compile(rf"SXid \(PCI:{_BDF}\): \d+, Fatal")),
    ("nvswitch", "warning", re.compile(rf"SXid \(PCI:{_BDF}\): \d+,")),
    ("pcie-fatal", "critical", re.compile(rf"{_BDF}: .*severity=Uncorrect(?:ed|able) \(Fatal\)")),
    ("pcie-uncorrected", "warning", re.compile(rf"{_BDF}: .*severity=Uncorrect(?:ed|able) \(Non-Fatal\)")),
    ("pcie-corrected", "warning", re.compile(rf"{_BDF}: .*severity=Correct(?:ed|able)")),
)
_KERNEL = re.compile(
    r"^\s*\[(?:\s*\d+\.\d{6}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4})\]|\bkernel: "
    r"|\bnvidia(?!-smi\b)(?:-\w+)?: "
    r"|NVRM:|Xid \(|IO_PAGE_FAULT|nvidia-nvlink:|AER: |severity=(?:Unc|C)orrect"
    r"|\bnvidia[\w-]* [0-9a-f]{4}:[0-9a-f]{2}:|DMAR: "
)


def looks_like(lines: Iterable[str]) -> bool:
    """Whether some line is a kernel message about GPUs or PCIe (``/proc/driver/nvidia/version`` is not)."""
    return any(_KERNEL.search(line) and "NVRM version:" not in line for line in lines)


def read(lines: Iterable[str]) -> dict[str, Any]:
    """Return the Xids and other events, in order. ``errors`` names those after which a GPU can't be relied upon.

    ``parameters`` are the kernel's, where the log shows its start.
    """
    lines = list(lines)
    xids = parse_xid_lines("\n".join(lines))
    events = [event for line in lines if not _XID.search(line) and (event := _event(line))]
    booted = [match[1] for line in lines if (match := _COMMAND_LINE.search(line))]
    broken = [event for event in xids if breaks_gpu(event)]
    messages = [f"Xid {event.number} on {event.bdf}: {xid(event.number).meaning}" for event in broken]
    messages += [event["text"] for event in events if event["id"] == "init-failed"]
    return {
        "kind": "kernel_log",
        "xids": [_as_dict(event) for event in xids],
        "events": events,
        "errors": list(dict.fromkeys(messages)),
        **({"parameters": kernel_parameters(booted[-1])} if booted else {}),
    }


def breaks_gpu(event: XidEvent) -> bool:
    """Whether the GPU needs a reset, a reboot or a technician after this event."""
    return event.level == "critical" and event.number not in RESTARTABLE


def _event(line: str) -> dict[str, Any] | None:
    for name, level, pattern in _EVENTS:
        match = pattern.search(line)
        if match:
            bus_id = next((found for found in match.groupdict().values() if found), None)
            return {"id": name, "level": level, "bus_id": bus_id, "text": line.strip()}
    return None


def _as_dict(event: XidEvent) -> dict[str, Any]:
    level: Level = "critical" if breaks_gpu(event) else "info" if event.level == "info" else "warning"
    return {
        "xid": event.number,
        "bus_id": event.bdf,
        "level": level,
        "name": xid(event.number).name,
        "meaning": xid(event.number).meaning,
        "action": event.action,
        "pid": event.pid,
        "process": event.process,
        "text": event.detail,
        "time": event.timestamp,
    }
