# SPDX-License-Identifier: Apache-2.0
"""``nvidia-smi -q`` as text and as XML: one vocabulary for both.

A GPU comes out as a dict that holds everything under the names that were printed and, beside them, what checks need
under the field names of ``--query-gpu`` (``pcie.link.width.max``), so that it does not matter which form was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any
from xml.etree import ElementTree

from .matrix import Unreadable
from .nvidia_smi import Gpu, gpu_error, is_said, stated
from .smi_error import SmiError, bad_cell

Tree = dict[str, Any]

FIELDS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("name", ("Product Name",), ("product_name",)),
    ("uuid", ("GPU UUID",), ("uuid",)),
    ("serial", ("Serial Number",), ("serial",)),
    ("pci.bus_id", ("PCI/Bus Id",), ("pci/pci_bus_id",)),
    ("pci.device_id", ("PCI/Device Id",), ("pci/pci_device_id",)),
    ("vbios_version", ("VBIOS Version",), ("vbios_version",)),
    ("gsp_firmware_version", ("GSP Firmware Version",), ("gsp_firmware_version",)),
    ("persistence_mode", ("Persistence Mode",), ("persistence_mode",)),
    ("compute_mode", ("Compute Mode",), ("compute_mode",)),
    ("pstate", ("Performance State",), ("performance_state",)),
    ("mig.mode.current", ("MIG Mode/Current",), ("mig_mode/current_mig",)),
    ("mig.mode.pending", ("MIG Mode/Pending",), ("mig_mode/pending_mig",)),
    ("gpu_recovery_action", ("GPU Recovery Action",), ("gpu_recovery_action",)),
    ("pcie.link.gen.max", ("PCI/GPU Link Info/PCIe Generation/Max",), ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",)),
    ("pcie.link.gen.current", ("PCI/GPU Link Info/PCIe Generation/Current",),
     ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",)),
    ("pcie.link.gen.gpumax", ("PCI/GPU Link Info/PCIe Generation/Device Max",),
     ("pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",)),
    ("pcie.link.gen.hostmax", ("PCI/GPU Link Info/PCIe Generation/Host Max",),
     ("pci/pci_gpu_link_info/pcie_gen/max_host_link_gen",)),
    ("pcie.link.width.max", ("PCI/GPU Link Info/Link Width/Max",),
     ("pci/pci_gpu_link_info/link_widths/max_link_width",)),
    ("pcie.link.width.current", ("PCI/GPU Link Info/Link Width/Current",),
     ("pci/pci_gpu_link_info/link_widths/current_link_width",)),
    ("pcie.replay_counter", ("PCI/Replays Since Reset",), ("pci/replay_counter",)),
    ("memory.total", ("FB Memory Usage/Total", "Memory Usage/Total"), ("fb_memory_usage/total",)),
    ("memory.used", ("FB Memory Usage/Used", "Memory Usage/Used"), ("fb_memory_usage/used",)),
    ("bar1.total", ("BAR1 Memory Usage/Total",), ("bar1_memory_usage/total",)),
    ("utilization.gpu", ("Utilization/GPU", "Utilization/Gpu"), ("utilization/gpu_util",)),
    ("temperature.gpu", ("Temperature/GPU Current Temp",), ("temperature/gpu_temp",)),
    ("power.limit", ("GPU Power Readings/GPU Ceiling Power Limit/Current Power Limit",
                     "GPU Power Readings/Current Power Limit", "Power Readings/Enforced Power Limit",
                     "GPU Power Readings/Enforced Power Limit"),
     ("gpu_power_readings/current_power_limit", "power_readings/enforced_power_limit",
      "gpu_power_readings/enforced_power_limit")),
    ("power.default_limit", ("GPU Power Readings/GPU Ceiling Power Limit/Default Power Limit",
                             "GPU Power Readings/Default Power Limit", "Power Readings/Default Power Limit"),
     ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit")),
    ("power.max_limit", ("GPU Power Readings/Max Power Limit", "Power Readings/Max Power Limit"),
     ("gpu_power_readings/max_power_limit", "power_readings/max_power_limit")),
    ("ecc.mode.current", ("ECC Mode/Current", "Ecc Mode/Current"), ("ecc_mode/current_ecc",)),
    ("ecc.mode.pending", ("ECC Mode/Pending", "Ecc Mode/Pending"), ("ecc_mode/pending_ecc",)),
    ("ecc.errors.uncorrected.volatile.sram", ("ECC Errors/Volatile/SRAM Uncorrectable",),
     ("ecc_errors/volatile/sram_uncorrectable",)),
    ("ecc.errors.uncorrected.volatile.sram.parity", ("ECC Errors/Volatile/SRAM Uncorrectable Parity",),
     ("ecc_errors/volatile/sram_uncorrectable_parity",)),
    ("ecc.errors.uncorrected.volatile.sram.secded", ("ECC Errors/Volatile/SRAM Uncorrectable SEC-DED",),
     ("ecc_errors/volatile/sram_uncorrectable_secded",)),
    ("ecc.errors.uncorrected.volatile.dram", ("ECC Errors/Volatile/DRAM Uncorrectable",),
     ("ecc_errors/volatile/dram_uncorrectable",)),
    ("ecc.errors.uncorrected.volatile.total", ("ECC Errors/Volatile/Double Bit/Total",),
     ("ecc_errors/volatile/double_bit/total",)),
    ("ecc.errors.corrected.volatile.dram", ("ECC Errors/Volatile/DRAM Correctable",),
     ("ecc_errors/volatile/dram_correctable",)),
    ("ecc.errors.uncorrected.aggregate.dram", ("ECC Errors/Aggregate/DRAM Uncorrectable",),
     ("ecc_errors/aggregate/dram_uncorrectable",)),
    ("ecc.errors.uncorrected.aggregate.sram.parity", ("ECC Errors/Aggregate/SRAM Uncorrectable Parity",),
     ("ecc_errors/aggregate/sram_uncorrectable_parity",)),
    ("ecc.errors.uncorrected.aggregate.sram.secded", ("ECC Errors/Aggregate/SRAM Uncorrectable SEC-DED",),
     ("ecc_errors/aggregate/sram_uncorrectable_secded",)),
    ("ecc.channel_repair_pending", ("ECC Errors/Channel Repair Pending",), ("ecc_errors/channel_repair_pending",)),
    ("ecc.tpc_repair_pending", ("ECC Errors/TPC Repair Pending",), ("ecc_errors/tpc_repair_pending",)),
    ("ecc.unrepairable_memory", ("ECC Errors/Unrepairable Memory",), ("ecc_errors/unrepairable_memory",)),
    ("remapped_rows.correctable", ("Remapped Rows/Correctable Error",), ("remapped_rows/remapped_row_corr",)),
    ("remapped_rows.uncorrectable", ("Remapped Rows/Uncorrectable Error",), ("remapped_rows/remapped_row_unc",)),
    ("remapped_rows.pending", ("Remapped Rows/Pending",), ("remapped_rows/remapped_row_pending",)),
    ("remapped_rows.failure", ("Remapped Rows/Remapping Failure Occurred",), ("remapped_rows/remapped_row_failure",)),
    ("retired_pages.single_bit_ecc.count", ("Retired Pages/Single Bit ECC",),
     ("retired_pages/multiple_single_bit_retirement/retired_count",)),
    ("retired_pages.double_bit.count", ("Retired Pages/Double Bit ECC",),
     ("retired_pages/double_bit_retirement/retired_count",)),
    ("retired_pages.pending", ("Retired Pages/Pending Page Blacklist", "Retired Pages/Pending"),
     ("retired_pages/pending_retirement", "retired_pages/pending_blacklist")),
    *(
        (f"clocks_event_reasons.{name}",
         (f"Clocks Event Reasons/{place}{title}", f"Clocks Throttle Reasons/{place}{title}"),
         (f"clocks_event_reasons/clocks_event_reason_{name}", f"clocks_throttle_reasons/clocks_throttle_reason_{name}"))
        for name, place, title in (
            ("sw_power_cap", "", "SW Power Cap"),
            ("sw_thermal_slowdown", "", "SW Thermal Slowdown"),
            ("hw_slowdown", "", "HW Slowdown"),
            ("hw_thermal_slowdown", "HW Slowdown/", "HW Thermal Slowdown"),
            ("hw_power_brake_slowdown", "HW Slowdown/", "HW Power Brake Slowdown"),
        )
    ),
)  # fmt: skip
"""Field of ``--query-gpu`` (or a name in its manner where it has none), its places in the text and in the XML."""

_GPU_LINE = re.compile(r"^(\s*)GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_PAIR = re.compile(r"^(?P<indent>\s*)(?P<key>\S(?:.*?\S)?)\s+:(?:\s(?P<value>.*))?$")
_XML_START = re.compile(r"<\?xml|<nvidia_smi_log")
_XML_END = "</nvidia_smi_log>"
_RENAMED = {"driver_version": "kmd_version", "cuda_version": "cuda_umd_version"}
"""Names of versions, and those that drivers of the 610 series give them."""
_DEPRECATED = re.compile(r"\s*\[Deprecated\b.*")
_INDENT = 4
_VALUE_KEY = ""
"""Where a line has both a value and lines under it (HW Slowdown), its own value lies under this key."""


def looks_like_xml(text: str) -> bool:
    """Whether ``text`` holds the XML form."""
    return "<nvidia_smi_log" in text


def looks_like_text(lines: Iterable[str]) -> bool:
    """Whether the lines hold the text form."""
    return any(
        "NVSMI LOG" in line or _GPU_LINE.match(line) or re.match(r"\s*Attached GPUs\s+:", line) for line in lines
    )


def read_xml(text: str, errors: list[SmiError]) -> dict[str, Any]:
    """Read ``nvidia-smi -q -x``. Raises Unreadable where it is cut off."""
    start = _XML_START.search(text)
    end = text.find(_XML_END)
    if not start or end < 0:
        raise Unreadable("the XML ends before </nvidia_smi_log>: it is cut off", "q")
    document = text[start.start() : end + len(_XML_END)]
    if "<!ENTITY" in document:
        raise Unreadable("the XML declares entities, which nvidia-smi never does", "q")
    try:
        root = _root(document)
    except ElementTree.ParseError as error:
        raise Unreadable(f"the XML is damaged: {error}", "q") from error
    gpus = [_from_xml(element) for element in root.findall("gpu")]
    top = {element.tag: (element.text or "").strip() for element in root if not len(element)}
    return _facts(top, gpus, errors)


def _root(document: str) -> ElementTree.Element:
    """Parse the XML; if it is damaged, once more with lines put together that a terminal cut inside a tag."""
    try:
        return ElementTree.fromstring(document)  # noqa: S314 (the caller refuses entities)
    except ElementTree.ParseError:
        lines = document.split("\n")
        width = max(len(line) for line in lines)
        whole = "".join(f"\n{line}" if re.match(r"\s*<", line) else line for line in (_filled(x, width) for x in lines))
        return ElementTree.fromstring(whole.strip())  # noqa: S314 (the caller refuses entities)


def _filled(line: str, width: int) -> str:
    """Return a line that lost a blank at a terminal's edge with that blank."""
    return line + " " if len(line) == width - 1 else line


def _from_xml(element: ElementTree.Element) -> Gpu:
    tree = _tree(element)
    tree.pop("supported_clocks", None)
    gpu = _with_fields(tree, 2)
    gpu.setdefault("pci.bus_id", element.get("id"))
    gpu["processes"] = [_tree(process) for process in element.findall("processes/process_info")]
    return gpu


def _tree(element: ElementTree.Element) -> Tree:
    """Return an element's children as a dict; repeated ones as a list, leaves as their stripped text."""
    tree: Tree = {}
    for child in element:
        value = _tree(child) if len(child) else (child.text or "").strip()
        if child.tag not in tree:
            tree[child.tag] = value
        elif isinstance(tree[child.tag], list):
            tree[child.tag].append(value)
        else:
            tree[child.tag] = [tree[child.tag], value]
    return tree


def _with_fields(tree: Tree, form: int) -> Gpu:
    """Add the fields of FIELDS (``form``: 1 text, 2 XML) to a GPU's tree."""
    gpu: Gpu = dict(tree)
    for entry in FIELDS:
        value = next((found for path in entry[form] if (found := _at(tree, path)) is not None), None)
        if value is not None:
            gpu[entry[0]] = re.sub(r"^(\d+)x$", r"\1", value)
    return gpu


def _at(tree: Tree, path: str) -> str | None:
    node: Any = tree
    for key in path.split("/"):
        if not isinstance(node, dict) or key not in node:
            return None
        node = node[key]
    if isinstance(node, dict):
        node = node.get(_VALUE_KEY)
    return node if isinstance(node, str) else None


def _facts(top: dict[str, str], gpus: list[Gpu], errors: list[SmiError]) -> dict[str, Any]:
    attached = top.get("attached_gpus")
    versions = {
        name: next((_DEPRECATED.sub("", top[key]) for key in (renamed, name) if is_said(top.get(key))), None)
        for name, renamed in _RENAMED.items()
    }
    facts: dict[str, Any] = {
        "kind": "q",
        **{name: version for name, version in versions.items() if version},
        "gpu_count": int(attached) if attached and attached.isdecimal() else len(gpus),
        "gpus": gpus,
        **stated([*errors, *_errors_in(gpus)]),
    }
    if facts["gpu_count"] != len(gpus) and len(gpus) + len(facts.get("lost", [])) != facts["gpu_count"]:
        facts["reason"] = f"it says that {attached} GPUs are attached but shows {len(gpus)}: it is cut off or trimmed"
    return facts


def _errors_in(gpus: Iterable[Gpu]) -> list[SmiError]:
    errors = []
    for gpu in gpus:
        messages = sorted(set(_bad(gpu)))
        if messages:
            errors.append(gpu_error(gpu, ", ".join(messages)))
    return errors


def _bad(node: Any) -> Iterable[str]:
    if isinstance(node, str):
        message = bad_cell(node)
        if message:
            yield message
    elif isinstance(node, dict):
        for value in node.values():
            yield from _bad(value)
    elif isinstance(node, list):
        for value in node:
            yield from _bad(value)


def read_text(lines: Sequence[str], errors: list[SmiError]) -> dict[str, Any]:
    """Read ``nvidia-smi -q`` in its text form. Raises Unreadable where indentation or the end is lost."""
    top: dict[str, str] = {}
    blocks: list[tuple[str, list[str]]] = []
    for line in _unwrapped([line.expandtabs(4) for line in lines]):
        start = _GPU_LINE.match(line)
        pair = _PAIR.match(line)
        if start:
            blocks.append((start[2], []))
        elif blocks and not _ends_block(line, blocks[-1][1]):
            blocks[-1][1].append(line)
        elif pair:
            top[pair["key"].lower().replace(" ", "_")] = (pair["value"] or "").strip()
    gpus = [_from_text(bus_id, block) for bus_id, block in blocks]
    _check_end(gpus, blocks)
    return _facts(top, gpus, errors)


def _ends_block(line: str, block: Sequence[str]) -> bool:
    """Whether ``line`` is no part of a GPU's block: words at the margin, after indented lines."""
    return bool(line[:1].strip()) and not _PAIR.match(line) and any(inner[:1] == " " for inner in block)


def _unwrapped(lines: Sequence[str]) -> list[str]:
    """Put back what a terminal cut off at its width: a piece at the margin that is neither pair nor section."""
    joined: list[str] = []
    width = max((len(line) for line in lines), default=0)
    for line in lines:
        indent = len(line) - len(line.lstrip())
        new = not line.strip() or _PAIR.match(line) or _GPU_LINE.match(line) or (indent and not indent % _INDENT)
        if joined and not new and _PAIR.match(joined[-1]) and len(joined[-1]) in (width, width - 1):
            joined[-1] = joined[-1].ljust(width) + line
        else:
            joined.append(line)
    return joined


def _from_text(bus_id: str, lines: Iterable[str]) -> Gpu:
    lines = list(lines)
    tree = _nested(lines)
    gpu = _with_fields(tree, 1)
    gpu.setdefault("pci.bus_id", bus_id)
    gpu["processes"] = _processes(lines)
    return gpu


def _nested(lines: Iterable[str]) -> Tree:
    """Build the tree that the indentation draws."""
    root: Tree = {}
    stack: list[tuple[int, Tree]] = [(-1, root)]
    for line in lines:
        if not line.strip():
            continue
        pair = _PAIR.match(line)
        indent = len(line) - len(line.lstrip())
        while stack[-1][0] >= indent:
            stack.pop()
        parent = stack[-1][1]
        node: Tree = {} if pair is None or pair["value"] is None else {_VALUE_KEY: pair["value"].strip()}
        parent[pair["key"] if pair else line.strip()] = node
        stack.append((indent, node))
    return _flattened(root)


def _flattened(tree: Tree) -> Tree:
    """Turn nodes that only have a value of their own into that value."""
    flat: Tree = {}
    for key, node in tree.items():
        if isinstance(node, dict):
            flat[key] = node[_VALUE_KEY] if set(node) == {_VALUE_KEY} else _flattened(node)
        else:
            flat[key] = node
    return flat


_PROCESS_KEYS = {"Process ID": "pid", "Type": "type", "Name": "process_name", "Used GPU Memory": "used_memory"}


def _processes(lines: Iterable[str]) -> list[dict[str, str]]:
    """Return the GPU's processes, in the names of the XML form."""
    processes: list[dict[str, str]] = []
    for line in lines:
        pair = _PAIR.match(line)
        if pair and pair["key"] == "Process ID":
            processes.append({})
        if pair and processes and pair["key"] in _PROCESS_KEYS:
            processes[-1][_PROCESS_KEYS[pair["key"]]] = (pair["value"] or "").strip()
    return processes


def _check_end(gpus: Sequence[Gpu], blocks: Sequence[tuple[str, list[str]]]) -> None:
    """Raise Unreadable where the last GPU lacks the end that a whole one has, or where indentation is gone."""
    if not gpus:
        raise Unreadable("no block of any GPU", "q")
    filled = [line for line in blocks[-1][1] if line.strip()]
    if len(filled) > 1 and not any(line[:1].isspace() for line in filled):
        raise Unreadable("the indentation is lost, which says what each line is about", "q")
    first, last = gpus[0], gpus[-1]
    missing = [key for key in first if key not in last and "." not in key]
    full = "Product Name" in last
    if missing or (full and not any("Processes" in key for key in last)):
        missing = missing or ["Processes"]
        raise Unreadable(f"GPU {blocks[-1][0]} ends before {missing[0]!r}: the text is cut off", "q")
