# SPDX-License-Identifier: Apache-2.0
"""Kernel messages about GPUs: Xid errors by severity, and what else tells of a GPU or its link in trouble."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

XID_SOURCE = "NVIDIA, XID Errors (docs.nvidia.com/deploy/xid-errors)"


@dataclass(frozen=True)
class Xid:
    """What one Xid number means. ``critical``: the GPU needs a reset, a reboot or a technician before it may serve."""

    level: Literal["critical", "warning", "info"]
    meaning: str
    fix: str


_RESTART = "restart the program that ran on it; if it comes again without a faulty program, test the GPU"
_RESET = (
    "drain the host and reboot it (or reset the GPU with nothing running); if it comes again, test or replace the GPU"
)
_REPLACE = "take the GPU out of service and have it tested (nvidia-bug-report.sh, dcgmi diag)"

XIDS: dict[int, Xid] = {
    8: Xid("critical", "the GPU stopped processing (watchdog); seen on this card under FP8 load", _RESET),
    13: Xid("warning", "a program's kernel failed (out of bounds, illegal instruction)", _RESTART),
    31: Xid("warning", "a program read or wrote GPU memory that is not its own", _RESTART),
    32: Xid("warning", "invalid or corrupted push buffer: a PCIe link of poor quality or a driver fault", _RESET),
    38: Xid("critical", "driver firmware error", _RESET),
    43: Xid("info", "a program's channel was stopped after an error of its own", _RESTART),
    45: Xid("info", "a program's channel was torn down, usually since the program was ended", _RESTART),
    46: Xid("critical", "the GPU stopped processing", _RESET),
    48: Xid("critical", "double-bit ECC error: memory contents were lost", _RESET),
    54: Xid("critical", "auxiliary power is not connected to the GPU board", "check the power cables of this card"),
    61: Xid("critical", "internal micro-controller breakpoint", _RESET),
    62: Xid("critical", "internal micro-controller halt", _RESET),
    63: Xid("warning", "a memory row was remapped (or a page retired) after an ECC error", "reboot when convenient: a"
            " pending remapping takes effect then"),
    64: Xid("critical", "remapping a memory row (or retiring a page) failed", _REPLACE),
    69: Xid("warning", "graphics engine class error of a program", _RESTART),
    74: Xid("critical", "NVLink error", _RESET),
    79: Xid("critical", "the GPU has fallen off the bus", "power-cycle the host; check power cables, riser, seating and"
            " temperature of this slot, and the PCIe errors (AER) around the same time"),
    94: Xid("warning", "contained ECC error: one program lost its data", _RESTART),
    95: Xid("critical", "uncontained ECC error: any program may have wrong data", _RESET),
    109: Xid("critical", "context switch timed out", _RESET),
    110: Xid("critical", "security fault", _RESET),
    119: Xid("critical", "the GPU's system processor (GSP) does not answer; nvidia-smi may hang on it", _RESET),
    120: Xid("critical", "the GPU's system processor (GSP) failed", _RESET),
    140: Xid("critical", "unrecovered ECC error", _RESET),
    143: Xid("critical", "GPU initialisation failed", _RESET),
    154: Xid("critical", "the driver asks for a recovery action (reset or reboot)", "do what the message says: reset"
             " the GPU or reboot the host before it serves again"),
}  # fmt: skip
"""Xid numbers that matter on PCIe hosts. The list and the advice follow the source, in our own words."""
_OTHER = Xid("warning", "not in this table", f"look it up: {XID_SOURCE}")

_XID = re.compile(
    r"NVRM: (?:GPU at )?Xid \((?:PCI:)?(?P<bus_id>[0-9A-Fa-f:.]+)\): (?P<code>\d+)(?:, (?P<text>.*?))?\s*$"
)
_PID = re.compile(r"pid='?<?(?P<pid>[^,'>]+)'?>?")
_NAME = re.compile(r"name=<?(?P<name>[^,>]+)>?")
_TIME = re.compile(r"^\s*(?:\[\s*(?P<boot>\d+\.\d+|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d [\d:]{8} \d{4})\]"
                   r"|(?P<wall>\d{4}-\d\d-\d\d[T ]\S+|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d))")  # fmt: skip

_BDF = r"(?P<bus_id>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d)"
_EVENTS: tuple[tuple[str, Literal["critical", "warning"], re.Pattern[str]], ...] = (
    ("fallen-off-bus", "critical", re.compile(r"GPU (?:at )?(?P<bus_id>[0-9A-Fa-f:.]+): GPU has fallen off the bus")),
    ("locked-up", "critical", re.compile(r"RC watchdog: GPU is probably locked")),
    ("init-failed", "critical", re.compile(r"NVRM: (?:GPU (?P<bus_id>[0-9A-Fa-f:.]+): )?RmInitAdapter failed")),
    ("api-mismatch", "critical", re.compile(r"NVRM: API mismatch")),
    ("io-page-fault", "critical", re.compile(r"IO_PAGE_FAULT(?:.*?device=(?P<bus_id>[0-9a-f:.]+))?|DMAR:.*fault addr")),
    ("pcie-fatal", "critical", re.compile(rf"{_BDF}: .*severity=Uncorrect(?:ed|able) \(Fatal\)")),
    ("pcie-uncorrected", "warning", re.compile(rf"{_BDF}: .*severity=Uncorrect(?:ed|able) \(Non-Fatal\)")),
    ("pcie-corrected", "warning", re.compile(rf"{_BDF}: .*severity=Correct(?:ed|able)")),
    ("insufficient-power", "warning",
     re.compile(r"NVRM: GPU (?P<bus_id>[0-9A-Fa-f:.]+):.*(?:insufficient power|power cable)", re.IGNORECASE)),
)  # fmt: skip
_KERNEL = re.compile(
    r"NVRM:|IO_PAGE_FAULT|nvidia-nvlink:|AER: |severity=(?:Unc|C)orrect|\bnvidia[\w-]* [0-9a-f]{4}:[0-9a-f]{2}:|DMAR: "
)


def looks_like(lines: Iterable[str]) -> bool:
    """Whether some line is a kernel message about GPUs or PCIe (``/proc/driver/nvidia/version`` is not)."""
    return any(_KERNEL.search(line) and not line.lstrip().startswith("NVRM version:") for line in lines)


def meaning(code: int) -> Xid:
    """Return what the Xid ``code`` means; an unknown one is a warning."""
    return XIDS.get(code, _OTHER)


def read(lines: Iterable[str]) -> dict[str, Any]:
    """Return the Xids and other events, in order. ``errors`` names those after which a GPU can't be relied upon."""
    xids: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    for line in lines:
        xid = _XID.search(line)
        if xid:
            xids.append(_xid(xid, line))
            continue
        for event, level, pattern in _EVENTS:
            match = pattern.search(line)
            if match:
                bus_id = match.groupdict().get("bus_id")
                events.append(
                    {"id": event, "level": level, "bus_id": bus_id, "text": line.strip(), "time": _time(line)}
                )
                break
    return {
        "kind": "kernel_log",
        "xids": xids,
        "events": events,
        "errors": [
            *(f"Xid {x['xid']} on {x['bus_id']}: {x['meaning']}" for x in _once(xids) if x["level"] == "critical"),
            *(e["text"] for e in events if e["id"] in ("fallen-off-bus", "init-failed")),
        ],
    }


def _xid(match: re.Match[str], line: str) -> dict[str, Any]:
    code = int(match["code"])
    known = meaning(code)
    text = match["text"] or ""
    pid, name = _PID.search(text), _NAME.search(text)
    return {
        "xid": code,
        "bus_id": match["bus_id"],
        "level": known.level,
        "meaning": known.meaning,
        "pid": pid["pid"] if pid else None,
        "process": name["name"] if name else None,
        "text": text,
        "time": _time(line),
    }


def _time(line: str) -> str | None:
    match = _TIME.match(line)
    return (match["boot"] or match["wall"]) if match else None


def _once(xids: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    seen: set[tuple[int, str]] = set()
    for xid in xids:
        if (xid["xid"], xid["bus_id"]) not in seen:
            seen.add((xid["xid"], xid["bus_id"]))
            yield xid
