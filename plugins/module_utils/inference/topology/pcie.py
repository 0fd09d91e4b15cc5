# SPDX-License-Identifier: Apache-2.0
"""PCIe devices: link state and Access Control Services, from ``lspci -vvv`` or from the configuration space itself."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Any

from .matrix import Unreadable

Device = dict[str, Any]

_BDF = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_DEVICE = re.compile(rf"^\s?(?P<bus_id>{_BDF}) (?P<description>\S.*)$")
_LINK = re.compile(
    r"Speed (?P<speed>[\d.]+GT/s|unknown)(?P<slow> \(downgraded\))?.*?Width (?P<width>x\d+)(?P<narrow> \(downgraded\))?"
)
_ACS = re.compile(r"ACS(?P<which>Cap|Ctl):\s*(?P<flags>(?:\w+[+-]\s*)+)")
_FLAG = re.compile(r"(\w+)([+-])")
_BUSES = re.compile(r"secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})")
_GPU = re.compile(r"(?:VGA|3D|Display)[^:]*: NVIDIA ")
_NUMA = re.compile(r"NUMA node: (\d+)")
_GROUP = re.compile(r"IOMMU group: (\d+)")
_DENIED = "Capabilities: <access denied>"
_SPEEDS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}

REDIRECTS = ("ReqRedir", "CmpltRedir", "EgressCtrl")
"""ACS controls that send peer-to-peer traffic up to the root complex instead of across the switch, any one of them.

These three are the ones by which Linux itself refuses a path between peers (drivers/pci/p2pdma.c,
``pci_bridge_has_acs_redir``). SrcValid and TransBlk only reject forged requester ids and translated addresses,
UpstreamFwd forwards what already came up, DirectTrans is an exception for translated addresses: none redirects.
"""

ACS_CONTROL = 6
"""Where the control word stands in the ACS capability."""

_ACS_BITS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
_EXTENDED = 0x100
_ACS_ID = 0x000D
_HEADER_ONLY = 64


def looks_like(lines: Iterable[str]) -> bool:
    """Whether some line is one of ``lspci -v``."""
    marks = ("LnkSta:", "LnkCap:", "ACSCtl:", "ACSCap:")
    classes = re.compile(rf"^\s?{_BDF} (?:[A-Z0-9][\w/ -]+(?: \[[0-9a-f]{{4}}\])?): ")
    return any(any(mark in line for mark in marks) or classes.match(line) for line in lines)


def read_lspci(lines: Iterable[str]) -> dict[str, Any]:
    """Read ``lspci -vv`` or a part of it; lines before the first device belong to ones with ``bus_id`` None.

    What is cut off is left out; :func:`check_whole` says whether anything was.
    ``acs_redirect`` tells whether the ACS *control* of any device redirects peer traffic (null: no ACSCtl printed;
    what a device is capable of does not count); ``downgraded`` names devices whose link is narrower or slower.
    """
    devices: list[Device] = []
    for line in _unwrapped(lines):
        start = _DEVICE.match(line)
        if start:
            is_gpu = bool(_GPU.match(start["description"]))
            devices.append({"bus_id": start["bus_id"], "description": start["description"], "is_gpu": is_gpu})
        elif line.strip():
            said = _said(line)
            if not devices or (devices[-1]["bus_id"] is None and said.keys() & devices[-1].keys()):
                devices.append({"bus_id": None, "description": None})  # `grep ACSCtl` leaves a line of each device
            _add(devices[-1], said)
    controls = [device["acs_redirect"] for device in devices if "acs_redirect" in device]
    return {
        "kind": "lspci",
        "devices": devices,
        "acs_redirect": any(controls) if controls else None,
        "downgraded": [
            device["bus_id"] or "(not named)"
            for device in devices
            if device.get("link", {}).get("width_downgraded") or device.get("link", {}).get("speed_downgraded")
        ],
        "access_denied": any(device.get("access_denied") for device in devices),
    }


def _unwrapped(lines: Iterable[str]) -> list[str]:
    """Put back what was cut off at a terminal's edge: a piece at the margin under an indented line."""
    joined: list[str] = []
    for line in lines:
        if joined and line[:1].strip() and joined[-1][:1].isspace() and not _DEVICE.match(line):
            joined[-1] += line
        else:
            joined.append(line)
    return joined


def _said(line: str) -> Device:
    """Return what a line says of its device."""
    link = _LINK.search(line)
    acs = _ACS.search(line)
    for mark, key in (("LnkCap:", "link_capability"), ("LnkSta:", "link")):
        if mark in line:
            return {key: _state(link)} if link else {"cut": mark.rstrip(":")}
    if acs:
        flags = {name: sign == "+" for name, sign in _FLAG.findall(acs["flags"])}
        return {"acs_capability" if acs["which"] == "Cap" else "acs_control": flags}
    if buses := _BUSES.search(line):
        return {"buses": [int(number, 16) for number in buses.groups()]}
    if numa := _NUMA.search(line):
        return {"numa_node": numa[1]}
    if group := _GROUP.search(line):
        return {"iommu_group": group[1]}
    return {"access_denied": True} if _DENIED in line else {}


def _add(device: Device, said: Device) -> None:
    device.update(said)
    if "link" in said:
        most = device.get("link_capability", {}).get("width")
        device["link"]["width_downgraded"] |= most is not None and device["link"]["width"] < most
    control = said.get("acs_control")
    if control and (redirects(control) or set(REDIRECTS) <= set(control)):
        device["acs_redirect"] = redirects(control)


def check_whole(devices: list[Device]) -> None:
    """Raise Unreadable where a link, or the ACS controls of a device, were begun and can't be known."""
    for device in devices:
        name = device["bus_id"] or "a device that is not named"
        if "cut" in device:
            raise Unreadable(f"{device['cut']} of {name} is cut off", "lspci")
        if "acs_control" in device and "acs_redirect" not in device:
            raise Unreadable(f"ACSCtl of {name} is cut off", "lspci")
    last = devices[-1] if devices else {}
    for begun, rest, what in (("link_capability", "link", "LnkSta"), ("acs_capability", "acs_control", "ACSCtl")):
        if begun in last and rest not in last and any(rest in device for device in devices):
            raise Unreadable(f"the last device ends before its {what}: the text is cut off", "lspci")


def _state(link: re.Match[str]) -> dict[str, Any]:
    return {
        "speed": link["speed"],
        "gen": generation(link["speed"]),
        "width": int(link["width"][1:]),
        "width_downgraded": bool(link["narrow"]),
        "speed_downgraded": bool(link["slow"]),
    }


def generation(speed: str) -> int | None:
    """Return the PCIe generation of a speed such as ``32GT/s`` or ``32.0 GT/s PCIe``."""
    match = re.match(r"(\d+(?:\.\d+)?)\s*GT/s", speed)
    return _SPEEDS.get(match[1].removesuffix(".0")) if match else None


def redirects(control: dict[str, bool]) -> bool:
    """Whether these ACS controls redirect peer-to-peer traffic."""
    return any(control.get(flag, False) for flag in REDIRECTS)


def acs_control(config: bytes) -> dict[str, bool] | None:
    """Return the ACS controls in a device's configuration space; None where it has no such capability.

    ``config`` as for :func:`acs_offset`.
    """
    offset = acs_offset(config)
    if offset is None:
        return None
    (control,) = struct.unpack_from("<H", config, offset + ACS_CONTROL)
    return {name: bool(control >> bit & 1) for bit, name in enumerate(_ACS_BITS)}


def acs_offset(config: bytes) -> int | None:
    """Return where a device's configuration space has the ACS capability; None where it has none.

    ``config`` is ``/sys/bus/pci/devices/*/config``. The kernel shows only the first 64 bytes to others than root:
    ValueError then. Layout: PCI Express Base Specification, 7.7.8 (ACS extended capability).
    """
    if len(config) <= _HEADER_ONLY:
        raise ValueError("only the header is readable: root is needed")
    offset = _EXTENDED
    seen: set[int] = set()
    while offset and offset not in seen and offset + 8 <= len(config):
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == _ACS_ID:
            return offset
        offset = header >> 20
    return None
