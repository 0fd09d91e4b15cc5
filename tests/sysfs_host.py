# SPDX-License-Identifier: Apache-2.0
"""A hand-made /proc and /sys of a host with the eight GPUs of the healthy recording, each below its own root port."""

from __future__ import annotations

import struct
from pathlib import Path

BUSES = ("01", "11", "61", "71", "81", "91", "e1", "f1")
DRIVER = "595.58.03"


def config_space(acs_control: int | None) -> bytes:
    """Return 4096 bytes with an AER capability and, unless None, an ACS capability with these controls."""
    space = bytearray(4096)
    next_offset = 0x148 if acs_control is not None else 0
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | next_offset << 20)
    if acs_control is not None:
        struct.pack_into("<IHH", space, 0x148, 0x000D | 1 << 16, 0x007F, acs_control)
    return bytes(space)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _device(folder: Path, kind: str, node: int, acs_control: int | None) -> None:
    vendor, device_class = ("0x10de", "0x030200") if kind == "gpu" else ("0x1022", "0x060400")
    for name, text in (
        ("vendor", vendor),
        ("class", device_class),
        ("numa_node", str(node)),
        ("current_link_speed", "2.5 GT/s PCIe"),
        ("max_link_speed", "32.0 GT/s PCIe"),
        ("current_link_width", "16"),
        ("max_link_width", "16"),
    ):
        _write(folder / name, text)
    (folder / "config").write_bytes(config_space(acs_control))


def build(root: Path) -> Path:
    """Write the host below ``root``: everything as it should be."""
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    for place, bus in enumerate(BUSES):
        port = root / f"sys/devices/pci0000:{place:02x}/0000:{place:02x}:01.1"
        gpu = port / f"0000:{bus}:00.0"
        _device(port, "bridge", place // 4, 0x0000)
        _device(gpu, "gpu", place // 4, None)
        group = root / f"sys/kernel/iommu_groups/{place}"
        _write(group / "type", "identity")
        for path in (port, gpu):
            (path / "iommu_group").symlink_to(group)
            (devices / path.name).symlink_to(path)
    _write(root / "sys/devices/system/node/node0/cpulist", "0-63,128-191")
    _write(root / "sys/devices/system/node/node1/cpulist", "64-127,192-255")
    _write(root / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "Y")
    _write(root / "sys/module/pcie_aspm/parameters/policy", "[default] performance powersave powersupersave")
    _write(root / "sys/class/dmi/id/bios_version", "1.2")
    _write(root / "sys/class/dmi/id/board_name", "hand-made")
    _write(root / "proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro iommu=pt pcie_aspm=off")
    version = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build  (builder@host)"
    _write(root / "proc/driver/nvidia/version", version)
    params = 'ResmanDebugLevel: 4294967295\nEnableMSI: 1\nRegistryDwords: "ForceP2P=0x11"'
    _write(root / "proc/driver/nvidia/params", params)
    _write(root / f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{DRIVER}", "")
    (root / "dev/shm").mkdir(parents=True)
    return root
