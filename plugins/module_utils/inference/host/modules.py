# SPDX-License-Identifier: Apache-2.0
"""Options of the NVIDIA kernel modules, read back from the loaded ones, and the initramfs that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..topology.host_files import driver_params
from .machine import BUILD_TIMEOUT, Machine
from .outcome import Outcome, Settings, Step

FILE = "/etc/modprobe.d/60-inference.conf"
UVM = "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm"
PARAMS = "/proc/driver/nvidia/params"
PREFIX = "NVreg_"
WHEN_LOADED = "the module is not loaded; it has the option as soon as it is"


def registry_dwords(settings: Settings) -> dict[str, str]:
    """Return those keys of ``host_nvreg`` that are registry dwords, not parameters of the module."""
    return {name: value for name, value in (settings.get("host_nvreg") or {}).items() if not name.startswith(PREFIX)}


def look(settings: Settings, machine: Machine) -> Iterator[Outcome]:
    """Say whether the loaded modules have their options."""
    wanted = "uvm_disable_hmm=1 for nvidia_uvm"
    if settings.get("host_uvm_hmm"):
        now = machine.read(UVM)
        yield _outcome("host_uvm_hmm", wanted, machine, loaded=now is not None, right=now in ("Y", "1"))
    yield from _look_registry(settings, machine)


def _look_registry(settings: Settings, machine: Machine) -> Iterator[Outcome]:
    keys = settings.get("host_nvreg") or {}
    if not keys:
        return
    text = machine.read(PARAMS)
    facts = (driver_params(text) if text else None) or {"params": {}, "registry_dwords": {}}
    for name, value in keys.items():
        plain = name.removeprefix(PREFIX)
        seen = facts["params"].get(plain) if plain != name else facts["registry_dwords"].get(name)
        right = seen is not None and seen.strip('"') == value
        yield _outcome("host_nvreg", f"{name}={value} for nvidia", machine, loaded=text is not None, right=right)


def _outcome(setting: str, what: str, machine: Machine, *, loaded: bool, right: bool) -> Outcome:
    if machine.contained:
        return Outcome(setting, "not done", what, "a container: modules belong to the machine below, set it there")
    if right:
        return Outcome(setting, "in effect", what)
    if not machine.path(FILE).is_file():
        return Outcome(setting, "to do", what)
    if not loaded:
        return Outcome(setting, "pending", what, WHEN_LOADED)
    return Outcome(setting, "pending", what, "a reboot, since the module is in use", reboot=True)


def steps(machine: Machine, *, written: bool, wanted: bool) -> Iterator[Step]:
    """Return the step that makes every initramfs anew: the modules may be loaded from there, with the options in it.

    ``written``: the file changes in this run; ``wanted``: there is to be one. An initramfs older than the file is one
    that an earlier run did not come to.
    """
    if machine.contained or not machine.has("update-initramfs"):
        return
    images = list(machine.path("/boot").glob("initrd.img-*"))
    if images and (written or (wanted and any(_older(image, machine.path(FILE)) for image in images))):
        names = ", ".join(sorted(image.name for image in images))
        yield Step("host_uvm_hmm, host_nvreg", f"make the initramfs anew ({names})",
                   lambda: _update(machine))  # fmt: skip


def _older(image: Path, file: Path) -> bool:
    return file.is_file() and image.stat().st_mtime < file.stat().st_mtime


def _update(machine: Machine) -> None:
    machine.must(["update-initramfs", "-u", "-k", "all"], BUILD_TIMEOUT)
