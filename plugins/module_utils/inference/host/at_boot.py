# SPDX-License-Identifier: Apache-2.0
"""Settings that no file of the system can hold: units make them anew at every boot, by running ``scripts/host``.

Each has *points*, such as one a CPU or bridge, with a value now and a value wanted. What a point had before is recorded
in ``/run`` the first time it is changed, so that stopping the unit puts it back.
"""

from __future__ import annotations

import csv
import json
import os
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..topology import pcie
from .machine import CannotActError, HostError, Machine

RECORDS = "/run/inference-settings"
PCI = "/sys/bus/pci/devices"
CPUS = "/sys/devices/system/cpu"
HUGEPAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
SHM = "/dev/shm"  # noqa: S108 (the mount itself is what is set)

_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SIZE = re.compile(r"(\d+)([KMGT%])")
_UNITS: Mapping[str, int] = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_PAGE = 4096

Points = dict[str, str]

Act = Callable[[Machine], list[str]]
"""Does something and returns a line for each change."""


@dataclass(frozen=True)
class Kind:
    """A setting. ``read`` and ``put`` raise CannotActError or HostError; ``wanted`` gives what a point should have."""

    setting: str
    what: str
    read: Callable[[Machine], Points]
    put: Callable[[Machine, str, str], None]
    wanted: Callable[[str, Machine], str]


def look(name: str, value: str, machine: Machine) -> tuple[Points, str]:
    """Return the points that are not as wanted, with their values now, and the value that they should have."""
    kind = KINDS[name]
    target = kind.wanted(value, machine)
    return {point: now for point, now in kind.read(machine).items() if now != target}, target


def apply(name: str, value: str, machine: Machine) -> list[str]:
    """Set every point that is not as wanted, check that it took, and return a line for each."""
    kind = KINDS[name]
    differing, target = look(name, value, machine)
    _record(machine, name, differing)
    for point in differing:
        kind.put(machine, point, target)
    machine.answers.clear()
    left, _ = look(name, value, machine)
    if left:
        raise HostError(f"{kind.what}: set to {target}, and still {', '.join(f'{p} {now}' for p, now in left.items())}")
    return [f"{kind.what}: {point}: {before} -> {target}" for point, before in differing.items()]


def revert(name: str, machine: Machine) -> list[str]:
    """Give every point that was changed since the boot what it had before, and return a line for each."""
    kind, file = KINDS[name], _record_file(machine, name)
    recorded = _recorded(file)
    for point, before in recorded.items():
        kind.put(machine, point, before)
    file.unlink(missing_ok=True)
    return [f"{kind.what}: {point}: back to {before}" for point, before in recorded.items()]


def _record_file(machine: Machine, name: str) -> Path:
    return machine.path(f"{RECORDS}/{name}.json")


def _recorded(file: Path) -> Points:
    try:
        return dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _record(machine: Machine, name: str, differing: Points) -> None:
    """Keep what the points had before the first change; a second change records nothing."""
    file = _record_file(machine, name)
    known = _recorded(file)
    if differing.keys() - known.keys():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**differing, **known}), encoding="utf-8")


# ---------------------------------------------------------------- ACS


def bridges(machine: Machine) -> list[str]:
    """Return the addresses of all bridges above a GPU: root ports and switch ports."""
    devices = machine.path(PCI)
    gpus = [path for path in sorted(devices.glob("*")) if _is_gpu(path)]
    above = (parent.name for gpu in gpus for parent in gpu.resolve().parents)
    return sorted({name for name in above if _ADDRESS.fullmatch(name)})


def recorded_bridges(lspci: str) -> dict[str, list[str]]:
    """Return the ACS controls that are on, by bridge, in what ``lspci -vvv`` printed: bridges above a GPU alone.

    Where no bridge says which buses are behind it, all of them count. Raises CannotActError for a text that tells of
    no device, or of none what it controls.
    """
    read = pcie.read_lspci(lspci.splitlines())
    devices = read["devices"]
    if not any(device["bus_id"] or "acs_control" in device for device in devices):
        raise CannotActError("no PCI device is named in it; expected what lspci -vvv prints")
    if read["access_denied"]:
        raise CannotActError("lspci was denied the capabilities, ACS among them; run lspci -vvv as root")
    gpus = [_bus(device["bus_id"]) for device in devices if device.get("is_gpu")]
    found = {}
    for device in devices:
        on = [name for name, value in (device.get("acs_control") or {}).items() if value]
        if on and not device.get("is_gpu") and _above(device.get("buses"), gpus):
            found[device["bus_id"] or "(not named)"] = on
    return found


def _bus(address: str) -> int:
    return int(address.split(":")[-2], 16)


def _above(buses: list[int] | None, gpus: list[int]) -> bool:
    return not buses or not gpus or any(buses[0] <= gpu <= buses[1] for gpu in gpus)


def _is_gpu(path: Path) -> bool:
    try:
        return (path / "vendor").read_text().strip() == "0x10de" and (path / "class").read_text().startswith("0x03")
    except OSError:
        return False


def _read_acs(machine: Machine) -> Points:
    machine.own_kernel("the PCIe configuration")
    found = bridges(machine)
    if not found:
        raise CannotActError("no PCIe bridge above a GPU is visible: a virtual machine hides them, or there is no GPU")
    controls = {}
    for name in found:
        config = (machine.path(PCI) / name / "config").read_bytes()
        try:
            offset = pcie.acs_offset(config)
        except ValueError as error:
            raise HostError(f"ACS: {name}: {error}") from error
        if offset is not None:
            controls[name] = f"{struct.unpack_from('<H', config, offset + pcie.ACS_CONTROL)[0]:04x}"
    return controls


def _put_acs(machine: Machine, name: str, value: str) -> None:
    file = machine.path(PCI) / name / "config"
    offset = pcie.acs_offset(file.read_bytes())
    if offset is None:
        raise HostError(f"ACS: {name} has no ACS capability")
    try:
        with file.open("r+b", buffering=0) as config:
            config.seek(offset + pcie.ACS_CONTROL)
            config.write(struct.pack("<H", int(value, 16)))
    except OSError as error:
        raise HostError(
            f"ACS: {name}: the kernel refuses the write: {error.strerror}; under Secure Boot it is locked down: switch"
            " Secure Boot off, or ACS in the BIOS"
        ) from error


# ---------------------------------------------------------------- files in /sys


def _read_governors(machine: Machine) -> Points:
    machine.own_kernel("the CPUs' frequency")
    files = sorted(machine.path(CPUS).glob("cpu[0-9]*/cpufreq/scaling_governor"))
    if not files:
        raise CannotActError("the kernel scales no frequency here: a virtual machine, or it is left to the BIOS")
    return {file.parent.parent.name: file.read_text().strip() for file in files}


def _put_governor(machine: Machine, cpu: str, value: str) -> None:
    folder = f"{CPUS}/{cpu}/cpufreq"
    offered = (machine.read(f"{folder}/scaling_available_governors") or value).split()
    if value not in offered:
        raise HostError(f"host_cpu_governor: seen {value}, expected one that {cpu} offers: {', '.join(offered)}")
    _write(machine.path(f"{folder}/scaling_governor"), value)


def _read_hugepages(machine: Machine) -> Points:
    machine.own_kernel("the kernel's memory management")
    chosen = re.search(r"\[(\w+)\]", machine.read(HUGEPAGES) or "")
    if not chosen:
        raise CannotActError(f"this kernel has no transparent huge pages ({HUGEPAGES})")
    return {"enabled": chosen[1]}


def _put_hugepages(machine: Machine, _: str, value: str) -> None:
    _write(machine.path(HUGEPAGES), value)


def _write(file: Path, value: str) -> None:
    try:
        file.write_text(value)
    except OSError as error:
        raise HostError(f"{file}: the kernel refuses {value!r}: {error.strerror}") from error


# ---------------------------------------------------------------- power limit


def _read_limits(machine: Machine) -> Points:
    machine.own_kernel("the GPUs' power limit")
    answer = machine.ask("nvidia-smi", "--query-gpu=index,power.limit", "--format=csv,noheader,nounits")
    rows = list(csv.reader(answer.out.splitlines(), skipinitialspace=True))
    if answer.code or not rows:
        raise CannotActError(f"nvidia-smi does not answer: {' '.join((answer.err or answer.out).split())[:200]}")
    return {index: limit for index, limit, *_ in rows}


def _put_limit(machine: Machine, gpu: str, value: str) -> None:
    machine.must(["nvidia-smi", "-i", gpu, "-pl", value])


# ---------------------------------------------------------------- shared memory


def _read_shm(machine: Machine) -> Points:
    try:
        space = os.statvfs(machine.path(SHM))
    except OSError as error:
        raise CannotActError(f"{SHM}: {error.strerror}") from error
    return {SHM: str(space.f_frsize * space.f_blocks)}


def _put_shm(machine: Machine, _: str, value: str) -> None:
    machine.must(["mount", "-o", f"remount,size={value}", SHM])


def bytes_of(size: str, memory: int) -> int:
    """Return a size such as 64G or 50% (of ``memory``) in bytes, whole pages as the kernel has them."""
    match = _SIZE.fullmatch(size)
    if not match:
        raise HostError(f"host_shm: seen {size!r}, expected a size such as 64G or 50%")
    number, unit = int(match[1]), match[2]
    return -(-(memory * number // 100 if unit == "%" else number * _UNITS[unit]) // _PAGE) * _PAGE


def _wanted_shm(value: str, machine: Machine) -> str:
    total = re.search(r"MemTotal:\s+(\d+) kB", machine.read("/proc/meminfo") or "")
    return str(bytes_of(value, int(total[1]) << 10 if total else 0))


def _same(value: str, _: Machine) -> str:
    return value


KINDS: Mapping[str, Kind] = {
    "acs": Kind("host_acs", "ACS control", _read_acs, _put_acs, lambda *_: "0000"),
    "cpu-governor": Kind("host_cpu_governor", "CPU governor", _read_governors, _put_governor, _same),
    "hugepages": Kind("host_transparent_hugepages", "transparent huge pages", _read_hugepages, _put_hugepages, _same),
    "power-limit": Kind(
        "host_power_limit", "power limit", _read_limits, _put_limit, lambda value, _: f"{float(value):.2f}"
    ),
    "shm": Kind("host_shm", "shared memory", _read_shm, _put_shm, _wanted_shm),
}
"""The settings by the name of their unit, ``inference-NAME.service``."""


def values(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the value of each of these settings that is enabled, by its unit's name."""
    return {name: str(settings[kind.setting]) for name, kind in KINDS.items() if settings.get(kind.setting)}
