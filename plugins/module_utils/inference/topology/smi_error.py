# SPDX-License-Identifier: Apache-2.0
"""What nvidia-smi prints instead of an answer, or beside one: what each message means and how to mend it.

The messages are those of nvidia-smi itself, collected from drivers 390 to 610.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_BDF = r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]"
_WHERE = re.compile(
    rf"gpu\s?(?:(?P<index>\d{{1,3}}):\s*)?(?P<bus_id>{_BDF})|gpu\s?(?P<only>\d{{1,3}})\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Cause:
    """Why nvidia-smi could not answer. ``repaired_by`` as in a finding."""

    id: str
    what: str
    fix: str


CAUSES: Mapping[str, Cause] = {
    cause.id: cause
    for cause in (
        Cause(
            "driver-mismatch",
            "the loaded NVIDIA kernel module and the driver library are of different versions",
            "the packages were upgraded under a running module (unattended-upgrades does this): reboot, or stop all GPU"
            " users and reload the nvidia modules; then keep the driver packages out of unattended upgrades",
        ),
        Cause(
            "driver-not-loaded",
            "the NVIDIA kernel module is not loaded or does not answer",
            "see `dmesg | grep -i -e nvrm -e nvidia`; install the driver that matches the running kernel (dkms status),"
            " load it with `modprobe nvidia`, and check Secure Boot",
        ),
        Cause(
            "library-missing",
            "the driver's user-space library was not found",
            "install the driver's user-space packages of the same version as the kernel module; in a container, pass"
            " the driver in (NVIDIA container toolkit)",
        ),
        Cause("program-missing", "nvidia-smi is not installed", "install the NVIDIA driver's utilities package"),
        Cause(
            "no-devices",
            "the driver found no GPU that it can use",
            "see `lspci -d 10de:` and `dmesg | grep NVRM`: no device there is a hardware or firmware matter; a device"
            " without driver is bound elsewhere (vfio-pci) or failed to initialise",
        ),
        Cause(
            "gpu-lost",
            "a GPU has fallen off the bus or stopped answering",
            "reboot (or power-cycle) the host; if it comes back, look at Xid messages, power cables, riser and"
            " temperature of this slot before it serves again",
        ),
        Cause(
            "permission",
            "the driver refused access",
            "run as root, or check the permissions of /dev/nvidia* and the container's device rules",
        ),
        Cause(
            "usage",
            "nvidia-smi did not understand the command",
            "run the command named in the documentation; the installed driver may be too old for this option or field",
        ),
        Cause(
            "unknown",
            "nvidia-smi failed without a known reason",
            "see `dmesg | grep -i -e nvrm -e xid`; run nvidia-bug-report.sh if the reason does not show",
        ),
    )
}

_MESSAGES: tuple[tuple[str, str, str], ...] = (
    ("driver-mismatch", "nvml",
     r"Failed to initialize NVML: Driver/library version mismatch(?:\s*NVML library version: [\d.]+)?"),
    ("permission", "nvml",
     r"Failed to initialize NVML: (?:Insufficient Permissions|GPU access blocked by the operating system)"),
    ("driver-not-loaded", "nvml", r"Failed to initialize NVML: Driver Not Loaded"),
    ("library-missing", "nvml", r"Failed to initialize NVML: NVML Shared Library Not Found"),
    ("unknown", "nvml", r"Failed to (?:initialize|properly shut ?down) NVML:? [^\n]*"),
    ("driver-not-loaded", "has failed", r"NVIDIA-SMI has failed because it (?:couldn't|could not|couldn\u2019t)"
     r" communicate with the NVIDIA driver"
     r"(?:\. Make sure that the latest NVIDIA driver is installed and running)?\.?"),
    ("permission", "has failed", r"NVIDIA-SMI has failed because you (?:do not|don't) have [^\n]*"),
    ("unknown", "has failed", r"NVIDIA-SMI has failed because [^\n]*"),
    ("library-missing", "library in your", r"NVIDIA-SMI (?:couldn't|could not) find [\w.-]+ library in your system\."
     r"(?: Please make sure that the NVIDIA Display Driver is properly installed and present in your system\.)?"
     r"(?: Please also try adding directory that contains [\w.-]+ to your system PATH\.)?"),
    ("library-missing", "shared libraries", r"[^\n]*nvidia-smi: error while loading shared libraries: [^\n]*"),
    ("program-missing", "not found", r"[^\n]*\bnvidia-smi['\u2019\"]?: (?:command )?not found[^\n]*"
     r"|[^\n]*Command 'nvidia-smi' not found[^\n]*|[^\n]*command not found: nvidia-smi[^\n]*"),
    ("program-missing", "no such file", r"[^\n]*nvidia-smi['\u2019\"]?: No such file[^\n]*"),
    ("program-missing", "executable file", r"[^\n]*\"\S*nvidia-smi\": executable file not found[^\n]*"),
    ("program-missing", "unknown command", r"[^\n]*Unknown command:? \S*nvidia-smi[^\n]*"),
    ("permission", "permission denied",
     r"[^\n]*nvidia-smi: Permission denied[^\n]*|[^\n]*permission denied: \S*nvidia-smi[^\n]*"),
    # a shell's message in whatever language; the colon may be a full-width one
    ("program-missing", "nvidia-smi", r"-?\w*sh: (?:[^\d\n]{0,12} ?\d+: )?(?:\S*/)?nvidia-smi ?[:\uff1a] ?\S[^\n]*"),
    ("program-missing", "is not recognized as",
     r"[^\n]*'nvidia-smi' is not recognized as [^\n]*(?:\noperable program[^\n]*)?"),
    ("gpu-lost", "device handle",
     rf"Unable to determine the device handle for gpu\s?(?:\d+:\s?)?(?:{_BDF}|[\dA-Fa-f:.]+): "
     r"(?:GPU is lost\.? Reboot the system to recover this GPU\.?|[^\n]*(?:\n[^\n,]{0,60}\bGPU\.?(?=\s*\n|\s*$))?)"),
    ("gpu-lost", "unable to", r"Unable to [^\n]*: (?:GPU is lost|GPU requires reset|Unknown Error)[^\n]*"),
    ("no-devices", "no devices", r"No devices were found\.?"),
    ("usage", "option", r"(?:ERROR: )?Option \"?[^\"\n]*\"? (?:is missing its value|is not recogni[sz]ed)[^\n]*"),
    ("usage", "to query", r"(?:ERROR: )?Field \"[^\"\n]*\" is not a valid field to query\.?"),
    ("usage", "command line argument", r"The -[\w-]+ command line argument must be [^\n]*"),
    ("usage", "invalid combination", r"(?:ERROR: )?Invalid combination of input arguments[^\n]*"),
    ("unknown", "topology", r"(?:ERROR: )?(?:Failed|Unable) to (?:[a-z]+ )+(?:GPU |PCIe |the )*topology[^\n]*"),
)  # fmt: skip
"""Cause, a word that is in every such message (so that most texts need no search), and the message."""
_COMPILED = tuple(
    (cause, word, re.compile(message.replace(" ", r"\s+").replace(r"\s+?", r"\s?"), re.IGNORECASE))
    for cause, word, message in _MESSAGES
)
"""Blanks match line ends too: a message may have been wrapped."""
_WARNING = re.compile(r"^WARNING: [^\n]*\bgpu [^\n]*$", re.IGNORECASE | re.MULTILINE)
_CELL = re.compile(r"\[?(GPU is lost|GPU requires reset|Unknown Error|ERR!)\]?", re.IGNORECASE)


@dataclass(frozen=True)
class SmiError:
    """One message, and what can be known from it."""

    message: str
    cause: str
    """A key of CAUSES."""
    index: str | None
    """The GPU's number, where the message names it."""
    bus_id: str | None
    """The GPU's PCI address as printed, where the message names it."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form, with the way to mend it."""
        cause = CAUSES[self.cause]
        where = {"index": self.index, "bus_id": self.bus_id}
        return {"message": self.message, "cause": self.cause, **where, "what": cause.what, "fix": cause.fix}


def take_errors(text: str) -> tuple[str, list[SmiError], list[str]]:
    """Return ``text`` without nvidia-smi's messages, the errors in it and the warnings, as one line each."""
    warnings = [" ".join(match.group().split()) for match in _WARNING.finditer(text)]
    text = _WARNING.sub("", text)
    found: list[tuple[int, SmiError]] = []
    lowered = " ".join(text.lower().split())
    for cause, word, pattern in _COMPILED:
        for match in list(pattern.finditer(text)) if word in lowered else ():
            found.append((match.start(), smi_error(match.group(), cause)))
            text = text[: match.start()] + re.sub(r"[^\n]", " ", match.group()) + text[match.end() :]
    return text, [error for _, error in sorted(found, key=lambda item: item[0])], warnings


def smi_error(message: str, cause: str) -> SmiError:
    """Return the error that ``message`` states, with the GPU that it names."""
    message = " ".join(message.split())
    where = _WHERE.search(message)
    index = (where["index"] or where["only"]) if where else None
    return SmiError(message, cause, index, where["bus_id"] if where else None)


def bad_cell(value: str) -> str | None:
    """Return the message that stands in place of a value, such as ``GPU is lost``, or None for a value."""
    match = _CELL.fullmatch(value.strip())
    return match[1] if match else None
