# SPDX-License-Identifier: Apache-2.0
"""What a host is: its operating system, packages, NVIDIA driver and what compiles kernels. Looked at, not changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..findings import Finding
from ..topology.host_files import driver_version
from .machine import Machine
from .outcome import Outcome, Settings

KNOWN: Mapping[tuple[str, str], str] = {
    ("debian", "12"): "",
    ("debian", "13"): "",
    ("ubuntu", "24.04"): "",
    ("ubuntu", "22.04"): "3.11",
}
"""Operating systems by os-release's ID and VERSION_ID, and the Python that has to be given where theirs is too old."""

HELD_FILE = "/etc/apt/apt.conf.d/60-inference-held"
PENDING_PACKAGES = "/run/reboot-required.pkgs"
DRIVER_VERSION = "/proc/driver/nvidia/version"
NVCC = "/usr/local/cuda/bin/nvcc"

REPOSITORY = "with NVIDIA's CUDA repository for this system set up (docs.nvidia.com/cuda, installation guide for Linux)"
DRIVER_INSTALL = f"{REPOSITORY}: apt-get install nvidia-open, then reboot"

_NEEDS_REBOOT = re.compile(r"^(?:linux-image|linux-modules|nvidia|libnvidia)\S*", re.M)
_DRIVER_PACKAGE = re.compile(
    r"(?:nvidia-(?:driver|kernel-(?:open-)?dkms|kernel-common|kernel-source|kernel-support|dkms|utils|compute-utils|open"
    r"|smi|persistenced)|libnvidia-(?:compute|ml|ml1|cfg|cfg1)|libcuda1)(?:-\d+)?(?:-server)?(?:-open)?"
)
_UPSTREAM = re.compile(r"^(?:\d+:)?(\d{3}\.\d+(?:\.\d+)?)(?=[-+~]|$)")


@dataclass(frozen=True)
class Packages:
    """Versions of the packages that are installed, by name."""

    versions: Mapping[str, str]

    def missing(self, wanted: Sequence[str]) -> list[str]:
        """Return those that are not installed, in their order."""
        return [name for name in dict.fromkeys(wanted) if name.split(":")[0].split("=")[0] not in self.versions]


def packages(machine: Machine) -> Packages:
    """Ask dpkg what is installed."""
    text = machine.ask("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\\n").out
    rows = (line.split(" ") for line in text.splitlines())
    return Packages({row[1]: row[2] for row in rows if len(row) == 3 and row[0] == "installed"})  # noqa: PLR2004


def refusal(machine: Machine, python: str | None) -> str | None:
    """Say why the toolkit does not run on this system, or None. ``python``: an interpreter of the operator's."""
    release = dict(line.partition("=")[::2] for line in (machine.read("/etc/os-release") or "").splitlines())
    name, version = (release.get(key, "").strip('"') for key in ("ID", "VERSION_ID"))
    known = ", ".join(f"{n.capitalize()} {v}" for (n, v), needs in KNOWN.items() if not needs)
    if not machine.path("/run/systemd/system").is_dir():
        return f"seen: {name} {version} without systemd; expected: systemd; fix: install a system that runs it"
    needs = KNOWN.get((name, version))
    if needs is None:
        return (
            f"seen: {release.get('PRETTY_NAME', '').strip(chr(34)) or f'{name} {version}'}; expected: {known} (Ubuntu"
            " 22.04 with a Python of 3.11 or newer given in engine_python); fix: install one of these, or take this"
            " host out of the group inference"
        )
    return _too_old(python, needs, f"{name.capitalize()} {version}") if needs else None


def _too_old(python: str | None, needs: str, system: str) -> str | None:
    if not python or python == "auto":
        return (
            f"seen: {system}, whose Python is too old for the engines; expected: an interpreter of {needs} or newer;"
            " fix: set engine_python to its path and engine_python_version to its version"
        )
    # only here: reading all of it costs half of a run in which nothing changes
    from ..releases.interpreters import InterpreterError, probe

    try:
        version = probe(python).version
    except InterpreterError as error:
        return f"seen: engine_python {python}: {error}; expected: an interpreter of {needs} or newer; fix: install it"
    if tuple(map(int, version.split(".")[:2])) < tuple(map(int, needs.split("."))):
        return f"seen: engine_python {python} is Python {version}; expected: {needs} or newer; fix: give another one"
    return None


# ---------------------------------------------------------------- reasons to reboot that no setting of ours made


def pending(machine: Machine, installed: Packages) -> Iterator[Outcome]:
    """Say what waits for a reboot by the system's own account: a new kernel, a driver that was upgraded."""
    names = sorted(set(_NEEDS_REBOOT.findall(machine.read(PENDING_PACKAGES) or "")))
    if names:
        yield Outcome("packages", "pending", f"upgraded: {', '.join(names)}", "a reboot", reboot=True)
    loaded = (driver_version(machine.read(DRIVER_VERSION) or "") or {}).get("driver_version")
    library = _library_versions(installed)
    if loaded and library and loaded not in library:
        what = f"NVIDIA driver {', '.join(sorted(library))} installed, {loaded} loaded"
        yield Outcome("packages", "pending", what, "a reboot: no new CUDA program starts until then", reboot=True)


def _library_versions(installed: Packages) -> set[str]:
    """Return the upstream versions of the packages that hold the driver's library for CUDA programs."""
    holders = re.compile(r"libnvidia-compute(?:-\d+)?(?:-server)?|libnvidia-ml1|libcuda1")
    return {
        m[1]
        for name, version in installed.versions.items()
        if holders.fullmatch(name) and (m := _UPSTREAM.match(version))
    }


# ---------------------------------------------------------------- findings


def check(settings: Settings, machine: Machine, installed: Packages) -> list[Finding]:
    """Return what is missing or about to break: driver, packages of different versions, compiler."""
    findings = [*_driver(settings, machine), *_mixed(installed), *_held(settings, machine)]
    return findings + list(_toolchain(settings, machine))


def _driver(settings: Settings, machine: Machine) -> Iterator[Finding]:
    if not settings.get("host_gpu") or machine.contained:
        return
    facts = driver_version(machine.read(DRIVER_VERSION) or "")
    if facts is None:
        yield Finding("driver-missing", "critical", "the NVIDIA kernel module is not loaded", f"no {DRIVER_VERSION}",
                      "the driver with the open kernel module, loaded", DRIVER_INSTALL)  # fmt: skip
    elif not facts["open_module"]:
        yield Finding("driver-closed", "critical", "the closed kernel module is loaded, which has no Blackwell GPU",
                      f"{facts['driver_version']}, not the Open Kernel Module", "the open kernel module",
                      DRIVER_INSTALL)  # fmt: skip


def _mixed(installed: Packages) -> Iterator[Finding]:
    """Driver packages of one machine have one version; others are what an upgrade left that stopped half-way."""
    found: dict[str, list[str]] = {}
    for name, version in sorted(installed.versions.items()):
        if _DRIVER_PACKAGE.fullmatch(name) and (match := _UPSTREAM.match(version)):
            found.setdefault(match[1], []).append(name)
    if len(found) > 1:
        seen = "; ".join(f"{version}: {', '.join(names)}" for version, names in sorted(found.items()))
        yield Finding(
            "driver-packages", "warning", "packages of the NVIDIA driver have different versions", seen, "one version",
            "the next boot loads a module that the library does not fit: apt-get install PACKAGE=VERSION for those that"
            " differ, or apt-get full-upgrade with them not held, then reboot",
        )  # fmt: skip


def _held(settings: Settings, machine: Machine) -> Iterator[Finding]:
    """Whether apt's configuration as a whole keeps unattended upgrades away; a later file may clear the list."""
    wanted = settings.get("host_held_packages") or []
    if not wanted or not machine.has("unattended-upgrade"):
        return
    answer = machine.ask("apt-config", "dump", "Unattended-Upgrade::Package-Blacklist")
    kept = set(re.findall(r'"(.*)";', answer.out))
    if lacking := [pattern for pattern in wanted if pattern not in kept]:
        yield Finding(
            "unattended-upgrades", "warning", "unattended upgrades may replace the driver under a running engine",
            f"not kept back: {', '.join(lacking)}",
            "all of host_held_packages in Unattended-Upgrade::Package-Blacklist",
            f"look for a file in /etc/apt/apt.conf.d that clears the list after {HELD_FILE}",
        )  # fmt: skip


def _toolchain(settings: Settings, machine: Machine) -> Iterator[Finding]:
    minimum = settings.get("host_nvcc_minimum")
    if not settings.get("host_jit") or not minimum:
        return
    missing = [name for name in ("gcc", "g++", "ninja") if not machine.has(name)]
    if missing:
        yield Finding("jit-compiler", "warning", "what compiles kernels at run time is missing", ", ".join(missing),
                      "gcc, g++ and ninja", "apt-get install gcc g++ ninja-build")  # fmt: skip
    if not settings.get("host_nvcc_in_release"):
        yield from _nvcc(machine, minimum)


def _nvcc(machine: Machine, minimum: str) -> Iterator[Finding]:
    install = f"{REPOSITORY}: apt-get install cuda-toolkit-13-0"
    expected = f"nvcc {minimum} or newer in {NVCC}"
    why = "FlashInfer compiles kernels at the first request, and for SM120 not with an older nvcc"
    if not machine.path(NVCC).exists():
        yield Finding("nvcc", "warning", f"no nvcc: {why}", f"no {NVCC}", expected, install)
        return
    found = re.search(r"release (\d+)\.(\d+)", machine.ask(str(machine.path(NVCC)), "--version").out)
    if not found:
        yield Finding("nvcc", "warning", f"nvcc does not answer: {why}", NVCC, expected, install)
    elif (int(found[1]), int(found[2])) < tuple(map(int, minimum.split("."))):
        yield Finding("nvcc", "warning", f"nvcc is too old: {why}", f"{found[1]}.{found[2]}", expected, install)
