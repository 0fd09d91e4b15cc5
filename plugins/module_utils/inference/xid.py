# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's Xid numbers: what each means for a server that must keep serving, and how to read them from a kernel log.

Numbers, names and first actions follow NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid
Errors with the Xid Catalog"); the names above 165 and the line formats follow the open kernel modules 595.45.04
(src/common/sdk/nvidia/inc/nverror.h, src/nvidia/src/kernel/gpu/rc/kernel_rc.c). The levels are this project's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .findings import Level

CATALOGUE = "NVIDIA Xid catalogue, docs.nvidia.com/deploy/xid-errors"
OPEN_MODULES = "NVIDIA open-gpu-kernel-modules 595.45.04, nverror.h"


@dataclass(frozen=True)
class Xid:
    """One Xid number. ``level`` says what it means for a serving host, ``action`` what to do about it."""

    number: int
    name: str
    level: Level
    meaning: str
    action: str
    source: str = CATALOGUE


_RESTART = "restart the engine; if it comes back, suspect the engine's kernels or the card"
_RESET = (
    "stop the engine, reset the GPU (nvidia-smi --gpu-reset -i BDF), then run the topology check and the smoke test"
)
_RESET_OR_REBOOT = _RESET + "; if that fails, reboot the host"
_LATER = "restart the engine if it failed; reset the GPU at the next quiet moment"
_REBOOT = "drain the host, reboot it, check slot, riser, power and temperature; a card that repeats it is replaced"
_APP = "look at the engine's own log of that second: a kernel read or wrote where it must not"
_WATCH = "no action now; watch whether it repeats"
_REPLACE = "take the card out of service and open a case with its vendor"
_NVLINK = "this class of host has no NVLink: check that the log belongs to it"

_ROWS: tuple[tuple[int, str, Level, str, str], ...] = (
    (8, "FIFO_ERROR_IDLE_TIMEOUT", "critical", "the GPU stopped processing (RC watchdog)", _RESET),
    (11, "GR_ERROR_MISSING_HW", "warning", "invalid or corrupted push buffer stream", _RESTART),
    (13, "GR_EXCEPTION", "critical", "exception in a kernel (illegal instruction or access)", _APP),
    (25, "GR_ILLEGAL_NOTIFY", "warning", "invalid or illegal push buffer stream", _RESTART),
    (31, "FIFO_ERROR_MMU_ERR_FLT", "critical", "GPU memory page fault: illegal address, own or a peer's", _APP),
    (32, "PBDMA_ERROR", "critical", "corrupted push buffer stream (also a poor PCIe link)", _RESTART),
    (38, "FECS_ERR_WATCHDOG_TIMEOUT", "warning", "driver firmware error", _WATCH),
    (39, "CE0_ERROR", "critical", "copy engine exception", _RESTART),
    (40, "CE1_ERROR", "critical", "copy engine exception", _RESTART),
    (41, "CE2_ERROR", "critical", "copy engine exception", _RESTART),
    (43, "RESETCHANNEL_VERIF_ERROR", "warning", "a process's channel was reset after its own fault", _APP),
    (44, "GR_FAULT_DURING_CTXSW", "warning", "graphics engine fault during a context switch", _WATCH),
    (45, "PREEMPTIVE_REMOVAL", "warning", "work removed after an earlier error", "look for the Xid before it"),
    (46, "GPU_TIMEOUT_ERROR", "critical", "the GPU stopped processing", _RESET),
    (48, "GPU_ECC_DBE", "critical", "uncorrectable (double bit) ECC error", _RESET),
    (54, "SILENT_RUNNING_PWR_REDUCED_CLOCKING", "critical", "auxiliary power is not connected", "seat the power plug"),
    (58, "FB_MEMORY_ERROR", "warning", "memory error of older generations", _WATCH),
    (60, "SEC2_ERROR", "warning", "security or video processor exception", _RESTART),
    (61, "PMU_BREAKPOINT", "critical", "internal microcontroller breakpoint or warning", _RESET),
    (62, "PMU_HALT_ERROR", "critical", "internal microcontroller halt", _RESET),
    (63, "INFOROM_DRAM_RETIREMENT_EVENT", "warning", "a memory row was remapped, as of the next reset", _LATER),
    (64, "INFOROM_DRAM_RETIREMENT_FAILURE", "critical", "a memory row could not be remapped", _REPLACE),
    (66, "FECS_ERR_REG_ACCESS_VIOLATION", "warning", "illegal access by the driver", _WATCH),
    (68, "NVDEC0_ERROR", "warning", "video decoder exception", _RESTART),
    (69, "GR_CLASS_ERROR", "critical", "graphics engine class error", _APP),
    (74, "NVLINK_ERROR", "critical", "NVLink error", _NVLINK),
    (78, "VGPU_START_ERROR", "critical", "a virtual GPU did not start", "match host and guest driver versions"),
    (79, "GPU_HAS_FALLEN_OFF_THE_BUS", "critical", "the GPU fell off the PCIe bus", _REBOOT),
    (80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", "critical", "corrupted data reached the GPU", _RESTART),
    (92, "EXCESSIVE_SBE_INTERRUPTS", "warning", "high rate of corrected single bit ECC errors", _WATCH),
    (93, "INFOROM_ERASE_LIMIT_EXCEEDED", "warning", "InfoROM wear limit exceeded, not fatal", _WATCH),
    (94, "CONTAINED_ERROR", "critical", "uncorrectable memory error, contained to one process", _LATER),
    (95, "UNCONTAINED_ERROR", "critical", "uncorrectable memory error that reached more than one process", _RESET),
    (109, "CTXSW_TIMEOUT_ERROR", "critical", "context switch timed out: a kernel never ended or the GPU hangs", _RESET),
    (110, "SEC_FAULT_ERROR", "critical", "security fault", _RESET),
    (119, "GSP_RPC_TIMEOUT", "critical", "the GPU's system processor (GSP) does not answer", _RESET_OR_REBOOT),
    (120, "GSP_ERROR", "critical", "the GPU's system processor (GSP) failed", _RESET_OR_REBOOT),
    (121, "C2C_ERROR", "warning", "chip-to-chip link error", _WATCH),
    (125, "INFOROM_FS_ERROR", "warning", "InfoROM file system error", _WATCH),
    (136, "ALI_TRAINING_FAIL", "critical", "link training failed", _NVLINK),
    (137, "NVLINK_PRIV_ERR", "warning", "NVLink privilege error (peer access fault)", _NVLINK),
    (140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "critical", "ECC error that was not recovered", _RESET),
    (141, "FAST_PATH_ERROR", "warning", "CUDA fast path error", _WATCH),
    (143, "GPU_INIT_ERROR", "critical", "the GPU did not initialise", _RESET_OR_REBOOT),
    (144, "NVLINK_SAW_ERROR", "critical", "NVLink 5 error (SAW)", _NVLINK),
    (145, "NVLINK_RLW_ERROR", "critical", "NVLink 5 error (RLW)", _NVLINK),
    (146, "NVLINK_TLW_ERROR", "critical", "NVLink 5 error (TLW)", _NVLINK),
    (147, "NVLINK_TREX_ERROR", "critical", "NVLink 5 error (TREX)", _NVLINK),
    (148, "NVLINK_NVLPW_CTRL_ERROR", "critical", "NVLink 5 error (NVLPW_CTRL)", _NVLINK),
    (149, "NVLINK_NETIR_ERROR", "critical", "NVLink 5 error (NETIR)", _NVLINK),
    (150, "NVLINK_MSE_ERROR", "critical", "NVLink 5 error (MSE)", _NVLINK),
    (151, "KEY_ROTATION_ERROR", "critical", "key rotation failed", "restart the guest"),
    (
        154,
        "GPU_RECOVERY_ACTION_CHANGED",
        "critical",
        "the driver says what recovers the GPU",
        "do what its message names",
    ),
    (155, "NVLINK_SW_DEFINED_ERROR", "critical", "NVLink error defined by software", _NVLINK),
    (156, "RESOURCE_RETIREMENT_EVENT", "warning", "a GPU resource was retired, as of the next reset", _LATER),
    (157, "RESOURCE_RETIREMENT_FAILURE", "critical", "a GPU resource could not be retired", _REPLACE),
    (158, "GPU_FATAL_TIMEOUT", "critical", "fatal timeout in the GPU", _RESET),
    (159, "CHI_NON_DATA_ERROR", "warning", "coherent bus error without data", _WATCH),
    (160, "CHANNEL_RETIREMENT_EVENT", "warning", "a memory channel was retired", _WATCH),
    (161, "CHANNEL_RETIREMENT_FAILURE", "critical", "a memory channel could not be retired", _REPLACE),
    (167, "PCIE_FATAL_TIMEOUT", "critical", "fatal timeout on the PCIe link", _REBOOT),
    (168, "REDUCED_GPU_MEMORY_CAPACITY", "warning", "the GPU came up with less memory", _REPLACE),
    (169, "SEC2_HALT_ERROR", "critical", "internal microcontroller halt (SEC2)", _RESET),
    (171, "UNCORRECTABLE_DRAM_ERROR", "critical", "uncorrectable error in the GPU's memory", _RESET),
    (172, "UNCORRECTABLE_SRAM_ERROR", "critical", "uncorrectable error in the GPU's caches", _RESET),
    (175, "MEMORY_SUBSYSTEM_ERROR", "critical", "memory subsystem error", _RESET),
    (176, "PCIE_CORRECTABLE_ERROR_FAULT", "warning", "too many correctable PCIe errors", "check slot, riser and link"),
)

_FROM_HEADER = 166
"""Above this number the catalogue read has no resolution; name and meaning are those of the driver's header."""

XIDS: Mapping[int, Xid] = {
    row[0]: Xid(*row, source=OPEN_MODULES if row[0] > _FROM_HEADER else CATALOGUE) for row in _ROWS
}
"""The known numbers. Use :func:`xid` for any number."""


def xid(number: int) -> Xid:
    """Return what is known of ``number``; an unknown one is a warning that says so."""
    unknown = Xid(number, "UNKNOWN", "warning", "a number this table does not know", f"look it up: {CATALOGUE}")
    return XIDS.get(number, unknown)


@dataclass(frozen=True)
class XidEvent:
    """One Xid line. ``bdf`` is the PCI address as printed (``0000:01:00``); pid and process are None when not known."""

    number: int
    bdf: str
    pid: int | None
    process: str | None
    detail: str
    line_number: int
    timestamp: str | None = None

    @property
    def level(self) -> Level:
        """Level of this event: the number's own, except that Xid 154 means what its message says."""
        if self.number != RECOVERY_ACTION:
            return xid(self.number).level
        return "info" if self.recovery_action == "None" else "critical"

    @property
    def action(self) -> str:
        """What to do about this event."""
        if self.number != RECOVERY_ACTION:
            return xid(self.number).action
        asked = _RECOVERY_ACTIONS.get(self.recovery_action or "", xid(self.number).action)
        return f"{asked}; the Xid or the IOMMU fault (IO_PAGE_FAULT) before it names the cause"

    @property
    def recovery_action(self) -> str | None:
        """Return the action an Xid 154 names (``GPU Reset Required``, ...), None for another Xid or no known action."""
        found = _RECOVERY.search(self.detail) if self.number == RECOVERY_ACTION else None
        return (found["new"] or found["only"]).strip() if found else None


RECOVERY_ACTION = 154

_RECOVERY = re.compile(
    r"recovery action(?: changed)?(?: from .*? to (?:0x[0-9a-f]+ )?\((?P<new>[^)]*)\)|: *(?P<only>.+))", re.I
)

_RECOVERY_ACTIONS: Mapping[str, str] = {
    "None": "no action: the driver withdrew an earlier demand",
    "GPU Reset Required": _RESET,
    "PF FLR": _RESET,
    "Node Reboot Required": _REBOOT,
    "OS Reboot": _REBOOT,
    "Drain P2P": "stop everything that uses this GPU's peers, then reset it",
    "Drain and Reset": "let the running work end, start none, then reset the GPU",
}

# Old drivers print "(0000:01:00)", newer ones "(PCI:0000:01:00)", MIG adds " GPU-I:05"; pid and name may be absent.
_LINE = re.compile(
    r"(?<!S)Xid \((?:PCI:)?(?P<bdf>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)[^)]{0,40}\)"
    r": (?P<number>\d{1,4})\b(?:, pid='?(?P<pid>\d+|<[^>]*>)'?)?(?:, name=(?P<name>[^,]*))?,? ?(?P<detail>.*)",
    re.I,
)
_STAMP = re.compile(
    r"^\s*(?:\[\s*(?P<bracket>[^\]]+?)\s*\]|(?P<plain>\d{4}-\d\d-\d\dT\S+|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d))"
)
_FALLEN = re.compile(
    r"NVRM: .*?GPU (?P<bdf>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?):? .*fallen off the bus", re.I
)
FALLEN_OFF = 79


def parse_xid_lines(text: str) -> list[XidEvent]:
    """Return every Xid in a kernel log, in order. A "fallen off the bus" line without an Xid counts as Xid 79."""
    events: list[XidEvent] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if event := _xid_event(line, number) if "Xid" in line else _fallen_event(lines, number, events):
            events.append(event)
    return events


def _xid_event(line: str, number: int) -> XidEvent | None:
    found = _LINE.search(line)
    if not found:
        return None
    pid, name = found["pid"] or "", (found["name"] or "").strip(" '")
    return XidEvent(
        number=int(found["number"]),
        bdf=found["bdf"].lower(),
        pid=int(pid) if pid.isdigit() else None,
        process=name if name and not name.startswith("<") else None,
        detail=found["detail"].strip(),
        line_number=number,
        timestamp=_timestamp(line),
    )


def _fallen_event(lines: Sequence[str], number: int, before: list[XidEvent]) -> XidEvent | None:
    """Read a "fallen off the bus" line, unless it only repeats the Xid 79 of the same GPU in ``before``.

    At its start the driver says it in three lines, of which the first names the GPU.
    """
    line, three = lines[number - 1], lines[max(number - 3, 0) : number]
    whole = " ".join(three) if "NVRM: fallen off" in line else line
    found = _FALLEN.search(whole) if "fallen off" in line else None
    if not found:
        return None
    bdf = found["bdf"].lower()
    if any(e.number == FALLEN_OFF and e.bdf.split(".")[0] == bdf.split(".")[0] for e in before):
        return None
    time = _timestamp(line) or _timestamp(three[0])
    return XidEvent(FALLEN_OFF, bdf, None, None, "GPU has fallen off the bus", number, time)


def _timestamp(line: str) -> str | None:
    found = _STAMP.match(line)
    return (found["bracket"] or found["plain"]) if found else None
