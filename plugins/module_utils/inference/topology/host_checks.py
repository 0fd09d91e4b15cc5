# SPDX-License-Identifier: Apache-2.0
"""The host around the GPUs: ACS and IOMMU on the way between them, kernel and module settings, memory for NCCL."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..findings import Finding, NotChecked
from .checks import NO_GPU, Check, Result, listed, places
from .expectations import Expectation
from .facts import Facts, bdf, value

_OFF = frozenset(("off", "pt", "soft", "0"))


def _pci(facts: Facts) -> tuple[Mapping[str, Any] | None, str]:
    """Return the PCI devices that matter, or None and why they are not known."""
    if facts.pci:
        return facts.pci, ""
    return None, NO_GPU if facts.live else "neither lspci -vv nor a live host was given"


def check_acs(facts: Facts, _: Expectation) -> Result:
    """No bridge above a GPU redirects peer traffic to the root complex."""
    devices, why = _pci(facts)
    if devices is None:
        yield NotChecked("acs-redirect", why)
        return
    gpus = {bdf(bus_id) for gpu in facts.gpus if (bus_id := value(gpu, "pci.bus_id"))}
    gpus |= {name for name, device in devices.items() if device.get("is_gpu")}
    bridges = {n: device for n, device in devices.items() if not device.get("is_gpu") and _leads_to(n, device, gpus)}
    known = {name: device for name, device in bridges.items() if "acs_redirect" in device}
    unread = [name for name, device in bridges.items() if device.get("acs_unread") or device.get("access_denied")]
    if unread or not known:
        why = f"{listed(unread, 4)}: only root can read it" if unread else "no bridge's ACSCtl is shown"
        if facts.live and not bridges:
            why = "no bridge is above the GPUs here: a virtual machine hides them"
        yield NotChecked("acs-redirect", why)
    redirecting = [f"{name} ({_controls(device)})" for name, device in known.items() if device["acs_redirect"]]
    if redirecting:
        yield Finding(
            "acs-redirect",
            "critical",
            "PCIe bridges redirect traffic between GPUs to the root complex (ACS)",
            listed(redirecting),
            "ReqRedir-, CmpltRedir- and EgressCtrl- on every root port and switch port above a GPU",
            "clear ACS at every boot (setpci -s BRIDGE ECAP_ACS+6.w=0000), or switch ACS or the IOMMU off in the BIOS;"
            " without that, peer access is slow or hangs although topo -p2p says OK",
            repaired_by="host_acs",
            where=places(redirecting),
        )


def _leads_to(name: str, device: Mapping[str, Any], gpus: Collection[str]) -> bool:
    """Whether one of the GPUs is behind the bridge ``name``; also where its buses or the GPUs are not known."""
    buses = device.get("buses")
    if not buses or not gpus:
        return True
    return any(gpu[:4] == name[:4] and buses[0] <= int(gpu[5:7], 16) <= buses[1] for gpu in gpus)


def _controls(device: Mapping[str, Any]) -> str:
    return " ".join(f"{name}+" for name, on in (device.get("acs_control") or {}).items() if on)


def check_iommu(facts: Facts, _: Expectation) -> Result:
    """Find GPUs whose accesses the IOMMU translates."""
    devices, why = _pci(facts)
    gpus = {name: device for name, device in (devices or {}).items() if device.get("is_gpu")}
    if gpus:
        translated = [f"{n}: group {d['iommu_group']} {d['iommu_type']}" for n, d in gpus.items() if _translates(d)]
        if translated:
            yield _iommu_finding(translated)
        return
    if facts.live and devices is None:
        yield NotChecked("iommu-translated", why)
    elif facts.kernel_parameters is None:
        yield NotChecked("iommu-translated", "neither the groups' types nor the kernel command line are known")
    elif not _iommu_off(facts.kernel_parameters):
        yield NotChecked("iommu-translated", "the command line does not switch it off; a live host would show more")


def _translates(device: Mapping[str, Any]) -> bool:
    return str(device.get("iommu_type") or "").startswith("DMA")


def _iommu_off(parameters: Mapping[str, str | None]) -> bool:
    names = ("iommu", "amd_iommu", "intel_iommu")
    return any(word in _OFF for name in names for word in (parameters.get(name) or "").split(","))


def _iommu_finding(seen: list[str]) -> Finding:
    return Finding(
        "iommu-translated",
        "warning",
        "the IOMMU translates what the GPUs access",
        listed(seen),
        "no translation (iommu=off, or iommu=pt: group type identity)",
        "add iommu=off (or amd_iommu=off / intel_iommu=off) to the kernel command line, or iommu=pt where virtual"
        " machines need it, and reboot; sustained peer traffic through it ended in hangs and Xid 154",
        repaired_by="host_iommu",
        where=places(seen),
    )


def check_kernel(facts: Facts, expect: Expectation) -> Result:
    """PCIe power management is off and the driver's settings are as expected."""
    if expect.aspm_off:
        yield from _check_aspm(facts)
    if expect.uvm_hmm_disabled:
        state = facts.host.get("uvm_disable_hmm")
        if state is None:
            yield NotChecked("uvm-hmm", "the module nvidia_uvm does not show it: not loaded, or no live host")
        elif state not in ("Y", "1"):
            yield Finding("uvm-hmm", "warning", "heterogeneous memory management of nvidia_uvm is on",
                          f"uvm_disable_hmm={state}", "uvm_disable_hmm=1",
                          "options nvidia_uvm uvm_disable_hmm=1 in /etc/modprobe.d, then reload the module or reboot",
                          repaired_by="host_uvm_hmm")  # fmt: skip
    yield from _check_registry(facts, expect)


def _check_aspm(facts: Facts) -> Result:
    policy = facts.host.get("aspm_policy") or ""
    if facts.live and not facts.pci:
        yield NotChecked("pcie-aspm", NO_GPU)
    elif facts.kernel_parameters is None:
        yield NotChecked("pcie-aspm", "the kernel command line is not known")
    elif facts.kernel_parameters.get("pcie_aspm") != "off" and "[performance]" not in policy:
        yield Finding("pcie-aspm", "warning", "PCIe power management is on",
                      f"pcie_aspm={facts.kernel_parameters.get('pcie_aspm', '(not set)')}"
                      + (f", policy {policy}" if policy else ""),
                      "pcie_aspm=off on the kernel command line",
                      "add pcie_aspm=off and pcie_port_pm=off to the kernel command line and reboot",
                      repaired_by="host_pcie_aspm")  # fmt: skip


def _check_registry(facts: Facts, expect: Expectation) -> Result:
    if not expect.registry_dwords:
        return
    if facts.registry is None:
        yield NotChecked("nvreg", "/proc/driver/nvidia/params is not known")
        return
    wrong = [
        f"{name}={facts.registry.get(name, '(not set)')}"
        for name, wanted in expect.registry_dwords.items()
        if facts.registry.get(name) != wanted
    ]
    if wrong:
        yield Finding(
            "nvreg",
            "warning",
            "registry keys of the NVIDIA module are not in effect",
            listed(wrong),
            listed(f"{name}={wanted}" for name, wanted in expect.registry_dwords.items()),
            "options nvidia NVreg_RegistryDwords=... in /etc/modprobe.d (and in the initramfs), then reboot",
            repaired_by="host_nvreg",
        )


def check_shared_memory(facts: Facts, expect: Expectation) -> Result:
    """Look for room in /dev/shm and for segments that crashed ranks left there."""
    free = facts.host.get("shm_free")
    if free is None:
        for check in ("shm-space", "shm-stale"):
            yield NotChecked(check, "shared memory can't be looked at here")
        return
    if expect.shm_free_min_mib is not None and free < expect.shm_free_min_mib << 20:
        yield Finding("shm-space", "warning", "shared memory (/dev/shm) has little room for NCCL",
                      f"{free >> 20} MiB free of {facts.host['shm_total'] >> 20} MiB",
                      f"at least {expect.shm_free_min_mib} MiB free",
                      "mount /dev/shm larger (size=...), or remove what fills it", repaired_by="host_shm")  # fmt: skip
    stale = facts.host.get("shm_stale") or []
    if stale:
        yield Finding("shm-stale", "warning", "NCCL segments in /dev/shm that no process uses", listed(stale, 4),
                      "none", "remove them: rm /dev/shm/nccl-*; each crash leaves some until nothing fits")  # fmt: skip


def check_memlock(facts: Facts, _: Expectation) -> Result:
    """Programs that use GPUs may lock memory without limit."""
    processes = {p: d for p, d in facts.host.get("gpu_processes", {}).items() if d.get("memlock")}
    if not processes:
        yield NotChecked("memlock", "no program uses the GPUs; a unit's own LimitMEMLOCK is what counts")
        return
    limited = [
        f"pid {pid} ({d['unit']}): {d['memlock']}" for pid, d in processes.items() if d["memlock"] != "unlimited"
    ]
    if limited:
        yield Finding("memlock", "warning", "a program on the GPUs may lock only little memory", listed(limited),
                      "unlimited", "LimitMEMLOCK=infinity in its unit", repaired_by="host_memlock")  # fmt: skip


def check_nccl_conf(facts: Facts, _: Expectation) -> Result:
    """No configuration file changes NCCL's settings behind the unit's back."""
    files = facts.host.get("nccl_conf")
    if files is None:
        yield NotChecked("nccl-conf", "only a live host shows /etc/nccl.conf and ~/.nccl.conf")
        return
    seen = [f"{path}: {', '.join(lines) or 'empty'}" for path, lines in files.items()]
    if seen:
        yield Finding("nccl-conf", "warning", "a configuration file sets NCCL variables for every program",
                      listed(seen), "no /etc/nccl.conf, no ~/.nccl.conf",
                      "move what is wanted into the instance's NCCL profile and remove the file")  # fmt: skip


HOST_CHECKS: tuple[Check, ...] = (
    *(check_acs, check_iommu, check_kernel, check_shared_memory, check_memlock, check_nccl_conf),
)
"""Checks of the host around the GPUs."""
