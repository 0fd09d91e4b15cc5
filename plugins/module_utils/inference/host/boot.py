# SPDX-License-Identifier: Apache-2.0
"""The kernel command line: a drop-in for GRUB, the boot configuration made from it, checked before it counts.

Debian and Ubuntu read ``/etc/default/grub.d/*.cfg`` after ``/etc/default/grub``. The drop-in adds to
GRUB_CMDLINE_LINUX_DEFAULT, so that the recovery entries of the boot menu stay as they were: the way back for a host
that does not come up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..atomic import write_atomically
from ..topology.host_files import kernel_parameters
from .machine import BUILD_TIMEOUT, HostError, Machine
from .outcome import Outcome, Settings, Step

DROP_IN = "/etc/default/grub.d/60-inference.cfg"
CONFIGURATION = "/boot/grub/grub.cfg"
CANDIDATE = "/boot/grub/grub.cfg.inference"

NAMES = ("iommu", "pcie_aspm", "pcie_port_pm")
"""Parameters that are this role's to set."""

APIC_LIMIT = 255
"""APIC ids beyond need x2APIC, and that needs interrupt remapping, which iommu=off takes away on AMD."""

_LINUX = re.compile(r"^\s*linux(?:16|efi)?\s+(\S+)\s*(.*)$", re.M)
_ENTRY = re.compile(r"^\s*(?:linux|initrd)(?:16|efi)?\s+(.*)$", re.M)
_OTHERS = re.compile(
    r"^### BEGIN /etc/grub\.d/(?P<name>[34]\d_\S+) ###.*?^### END /etc/grub\.d/(?P=name) ###", re.M | re.S
)
"""Other systems (30_os-prober) and entries of the operator's own (40_custom): no concern of the drop-in."""


def wanted(settings: Settings) -> dict[str, dict[str, str]]:
    """Return the parameters of each setting."""
    parameters = {}
    if settings.get("host_iommu"):
        parameters["host_iommu"] = {"iommu": settings["host_iommu"]}
    if settings.get("host_pcie_aspm"):
        parameters["host_pcie_aspm"] = {"pcie_aspm": "off", "pcie_port_pm": "off"}
    return parameters


def refusal(settings: Settings, machine: Machine) -> str | None:
    """Say why the command line would harm this machine, or None.

    Source: Linux kernel mailing list, March 2026, "Preserve x2APIC and MSI support when amd_iommu=off": a machine with
    448 CPUs came up with 224, since x2APIC was switched off along with the IOMMU.
    """
    if settings.get("host_iommu") != "off" or machine.contained:
        return None
    cpus = machine.read("/proc/cpuinfo") or ""
    highest = max((int(number) for number in re.findall(r"^apicid\s*:\s*(\d+)", cpus, re.M)), default=0)
    if "AuthenticAMD" not in cpus or highest < APIC_LIMIT or _running(machine, {"iommu": "off"}):
        return None
    return (
        f"host_iommu: seen off, on an AMD machine with APIC ids up to {highest}; expected pt: without the IOMMU there"
        " is no interrupt remapping and CPUs with ids of 255 and more do not come up; fix: host_iommu: pt, which does"
        " not translate either"
    )


def _running(machine: Machine, parameters: dict[str, str]) -> bool:
    return all(machine.parameters.get(name) == value for name, value in parameters.items())


def command_lines(configuration: str) -> list[tuple[str, str]]:
    """Return kernel and parameters of each normal entry of this system; recovery and memory tests are left out."""
    entries = _LINUX.findall(_OTHERS.sub("", configuration))
    return [(kernel, line) for kernel, line in entries if _normal(line.split())]


def _normal(words: list[str]) -> bool:
    return any(word.startswith("root=") for word in words) and not {"single", "recovery"} & set(words)


def next_boot(machine: Machine) -> dict[str, str | None] | None:
    """Return the parameters that the next boot will have by GRUB's first entry; None where there is no GRUB."""
    lines = command_lines(machine.read(CONFIGURATION) or "")
    return kernel_parameters(lines[0][1]) if lines else None


def look(settings: Settings, machine: Machine) -> Iterator[Outcome]:
    """Say how each parameter stands: on the running command line, and on the next one."""
    following = next_boot(machine)
    asked = wanted(settings)
    for setting, parameters in asked.items():
        what = f"{' '.join(f'{n}={v}' for n, v in parameters.items())} on the kernel command line"
        now = _running(machine, parameters)
        then = following is not None and all(following.get(n) == v for n, v in parameters.items())
        if machine.contained:
            yield Outcome(
                setting, "not done", what, "a container: the kernel belongs to the machine below, set it there"
            )
        elif following is None:
            yield _without_grub(setting, what, now)
        elif not then:
            yield Outcome(setting, "to do", what, "the boot configuration is without it")
        elif not now:
            yield Outcome(setting, "pending", what, "a reboot", reboot=True)
        else:
            yield Outcome(setting, "in effect", what)
    yield from _leftovers(machine, following, {name for parameters in asked.values() for name in parameters})


def _without_grub(setting: str, what: str, now: bool) -> Outcome:
    if now:
        return Outcome(setting, "in effect", what, "set by another boot loader than GRUB")
    return Outcome(setting, "not done", what, f"no {CONFIGURATION}: add it in your boot loader's own configuration")


def _leftovers(machine: Machine, following: dict[str, str | None] | None, asked: set[str]) -> Iterator[Outcome]:
    """Parameters that were switched off and still run."""
    if machine.contained or following is None:
        return
    for name in NAMES:
        if name in machine.parameters and name not in following and name not in asked:
            what = f"{name}={machine.parameters[name]} off the kernel command line"
            setting = "host_iommu" if name == "iommu" else "host_pcie_aspm"
            yield Outcome(setting, "pending", what, "a reboot", reboot=True)


def steps(settings: Settings, machine: Machine, drop_in: str | None) -> Iterator[Step]:
    """Return the step that writes the drop-in and the boot configuration.

    ``drop_in``: the file's whole text, None for no file. Both are written only when the result is right.
    """
    if machine.contained or next_boot(machine) is None:
        return
    parameters = {n: v for group in wanted(settings).values() for n, v in group.items()}
    before = machine.read(DROP_IN)
    lines = "\n".join(line for _, line in command_lines(machine.read(CONFIGURATION) or ""))
    wrong = _stale(machine) or (parameters and problems(machine, CONFIGURATION, parameters))
    if before == (drop_in.strip() if drop_in else None) and not wrong:
        return
    yield Step("host_iommu, host_pcie_aspm", "make the boot configuration", lambda: write(machine, parameters, drop_in),
               f"{before or ''}\n{lines}\n", f"{drop_in or ''}")  # fmt: skip


def _stale(machine: Machine) -> bool:
    """Whether a boot configuration has a parameter that no file asks for: a run was killed before it was made anew."""
    files = [machine.path("/etc/default/grub"), *machine.path("/etc/default/grub.d").glob("*.cfg")]
    text = "".join(file.read_text(errors="replace") for file in files if file.is_file())
    return any(f"{name}=" not in text for name in NAMES if name in (next_boot(machine) or {}))


def write(machine: Machine, parameters: dict[str, str], drop_in: str | None) -> None:
    """Write the drop-in and make the boot configuration from it; on any problem both stay as they were."""
    file, candidate = machine.path(DROP_IN), machine.path(CANDIDATE)
    old = file.read_bytes() if file.exists() else None
    try:
        _put(file, drop_in.encode() if drop_in else None)
        machine.must(["grub-mkconfig", "-o", CANDIDATE], BUILD_TIMEOUT)
        machine.must(["grub-script-check", CANDIDATE])
        wrong = problems(machine, CANDIDATE, parameters)
        if wrong:
            raise HostError(f"the boot configuration that grub-mkconfig made is not used: {'; '.join(wrong)}")
        candidate.chmod(machine.path(CONFIGURATION).stat().st_mode & 0o777)
        candidate.replace(machine.path(CONFIGURATION))
    except BaseException:
        _put(file, old)
        candidate.unlink(missing_ok=True)
        machine.path(CANDIDATE + ".new").unlink(missing_ok=True)
        raise


def _put(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink(missing_ok=True)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, content)


def problems(machine: Machine, configuration: str, parameters: dict[str, str]) -> list[str]:
    """Return what is wrong with a boot configuration: entries, files that they load, the parameters."""
    text = machine.read(configuration) or ""
    lines = command_lines(text)
    if not lines:
        return [f"{configuration}: no entry that boots Linux"]
    wrong = [f"{configuration}: {name} is not there" for name in _missing_files(machine, text)]
    gone = {kernel for kernel, _ in command_lines(machine.read(CONFIGURATION) or "")} - {kernel for kernel, _ in lines}
    there = [kernel for kernel in sorted(gone) if not _missing_files(machine, f"linux {kernel}")]
    wrong += [f"{configuration}: no entry for {kernel} any more" for kernel in there]
    return wrong + list(dict.fromkeys(p for _, line in lines for p in _wrong_parameters(line, parameters)))


def _missing_files(machine: Machine, text: str) -> list[str]:
    """Return the kernels and initramfs files that are not there; with a /boot of its own, paths begin below it."""
    names = dict.fromkeys(
        word for line in _ENTRY.findall(text) for word in _paths(line.split()) if word.startswith("/")
    )
    return [n for n in names if not (machine.path(n).exists() or machine.path("/boot" + n).exists())]


def _paths(words: Sequence[str]) -> Iterator[str]:
    """Return the words of a linux or initrd line that are files: the first, and further ones that are paths alone."""
    yield from words[:1]
    yield from (word for word in words[1:] if word.startswith("/") and "=" not in word)


def _wrong_parameters(line: str, parameters: dict[str, str]) -> Iterator[str]:
    words = line.split()
    for name in NAMES:
        values = list(dict.fromkeys(word.partition("=")[2] for word in words if word.partition("=")[0] == name))
        if name in parameters and values != [parameters[name]]:  # one that is not asked for is the operator's own
            yield (
                f"{name}: seen {', '.join(values) or 'none'}, expected {parameters[name]} alone; take others out of"
                " /etc/default/grub and /etc/default/grub.d"
            )
