# SPDX-License-Identifier: Apache-2.0
"""What a host is expected to be, as data: built-in profiles, and how one's own is read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from ..program import nearest
from .matrix import LINK_CLASSES

P2pPolicy = Literal["required", "preferred", "ignored"]


class ExpectationError(Exception):
    """An expectation that can't be understood. The message names the key and what is valid."""


@dataclass(frozen=True)
class Expectation:
    """What a host should be. None (or an empty list) means: not looked at."""

    name: str
    gpu_count: int | None = None
    compute_capability: str | None = None
    """Such as ``12.0``. The class of a product is known by this, not by its name."""
    product_contains: tuple[str, ...] = ()
    """One of these should be in each GPU's name; another name is a warning only."""
    memory_min_mib: int | None = None
    mig: bool | None = False
    nvlink: bool | None = False
    pcie_gen: int | None = None
    pcie_width: int | None = None
    links_same_numa: tuple[str, ...] = LINK_CLASSES
    """Link classes that are fine between GPUs of one NUMA node."""
    links_across_numa: tuple[str, ...] = LINK_CLASSES
    """Link classes that are fine between GPUs of different NUMA nodes."""
    numa_split: tuple[int, ...] = ()
    """GPUs on each NUMA node, in any order, such as 4 and 4."""
    driver_minimum: str | None = None
    p2p: P2pPolicy = "required"
    """Whether a pair without peer access is critical, a warning, or nothing."""
    persistence: bool | None = None
    power_limit_min_watts: int | None = None
    """None: at least the card's own default."""
    shm_free_min_mib: int | None = None
    gpu_memory_used_max_mib: int | None = None
    """More than this on a GPU, without an instance of ours, is reported."""
    aspm_off: bool | None = None
    uvm_hmm_disabled: bool | None = None
    registry_dwords: dict[str, str] = field(default_factory=dict)
    """NVreg_RegistryDwords that should be in effect, read back from the loaded module."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; it is what an expectation file holds."""
        return {name: list(item) if isinstance(item, tuple) else item for name, item in asdict(self).items()}


_RTX_PRO_6000_X8 = Expectation(
    name="rtx-pro-6000-x8",
    gpu_count=8,
    compute_capability="12.0",
    product_contains=("RTX PRO 6000", "RTX 6000D"),
    memory_min_mib=80_000,
    pcie_gen=5,
    pcie_width=16,
    links_same_numa=("PIX", "PXB", "PHB", "NODE"),
    links_across_numa=("NODE", "SYS", "SOC"),
    numa_split=(4, 4),
    driver_minimum="580.65.06",
    persistence=True,
    shm_free_min_mib=1024,
    gpu_memory_used_max_mib=1024,
    aspm_off=True,
    uvm_hmm_disabled=True,
)
"""Server, Workstation and Max-Q editions (and the 6000D) alike. Sources of each figure: docs/topology.md."""

BUILT_IN: Mapping[str, Expectation] = {
    expectation.name: expectation
    for expectation in (
        _RTX_PRO_6000_X8,
        replace(_RTX_PRO_6000_X8, name="rtx-pro-6000-x8-direct", links_same_numa=("PHB", "NODE")),
        replace(_RTX_PRO_6000_X8, name="rtx-pro-6000-x8-switched", links_same_numa=("PIX", "PXB", "PHB", "NODE", "SYS"),
                numa_split=()),
        replace(_RTX_PRO_6000_X8, name="rtx-pro-6000-x4", gpu_count=4, numa_split=()),
        replace(_RTX_PRO_6000_X8, name="rtx-pro-6000-x2", gpu_count=2, numa_split=()),
        Expectation(name="any", mig=None, nvlink=None, p2p="ignored"),
    )
}  # fmt: skip
"""``any`` expects nothing in particular: what is broken or lost is still found."""

DEFAULT = "rtx-pro-6000-x8"
_BASE_KEY = "base"
_KEYS = tuple(item.name for item in fields(Expectation))


def expectation_of(source: str | Mapping[str, Any]) -> Expectation:
    """Return the expectation that ``source`` names (a built-in profile) or spells out.

    A mapping has the keys of :class:`Expectation`; ``base`` names the profile it alters (without it, the default one;
    ``any`` expects nothing). Raises ExpectationError for what is not known, with the nearest that is.
    """
    if isinstance(source, str):
        if source not in BUILT_IN:
            known = ", ".join(BUILT_IN)
            raise ExpectationError(f"no expectation {source!r}{nearest(source, BUILT_IN)} (there are: {known})")
        return BUILT_IN[source]
    if not isinstance(source, Mapping):
        raise ExpectationError(f"an expectation is a profile's name or a mapping, not {type(source).__name__}")
    given = dict(source)
    base = expectation_of(given.pop(_BASE_KEY, DEFAULT))
    for key in given:
        if key not in _KEYS:
            close = nearest(str(key), (*_KEYS, _BASE_KEY))
            raise ExpectationError(f"unknown key {key!r}{close} (there are: {', '.join((_BASE_KEY, *_KEYS))})")
    altered = {key: _checked(key, item) for key, item in given.items()}
    altered.setdefault("name", f"{base.name}, altered" if given else base.name)
    return _consistent(replace(base, **altered), altered)


def _consistent(expectation: Expectation, given: Mapping[str, Any]) -> Expectation:
    """Return it without a NUMA split that another number of GPUs made void; raise if both were given."""
    split, count = expectation.numa_split, expectation.gpu_count
    if not split or count is None or sum(split) == count:
        return expectation
    if "numa_split" in given:
        raise ExpectationError(f"numa_split: {list(split)} are {sum(split)} GPUs, but gpu_count is {count}")
    return replace(expectation, numa_split=())


def _checked(key: str, item: Any) -> Any:
    """Return the value of ``key`` in its right type, or raise ExpectationError."""
    kinds: Mapping[str, tuple[str, Any]] = {
        "int | None": ("a whole number or null", lambda v: v is None or (type(v) is int and v >= 0)),
        "bool | None": ("true, false or null", lambda v: v is None or isinstance(v, bool)),
        "str | None": ("a string or null", lambda v: v is None or isinstance(v, str)),
        "str": ("a string", lambda v: isinstance(v, str)),
        "tuple[str, ...]": ("a list of strings", lambda v: _is_list(v, str)),
        "tuple[int, ...]": ("a list of whole numbers", lambda v: _is_list(v, int)),
        "dict[str, str]": ("a mapping of strings to strings", _is_strings),
        "P2pPolicy": (f"one of {', '.join(get_args(P2pPolicy))}", lambda v: v in get_args(P2pPolicy)),
    }
    kind, fits = kinds[next(str(entry.type) for entry in fields(Expectation) if entry.name == key)]
    if not fits(item):
        raise ExpectationError(f"{key}: {item!r} is not {kind}")
    _check_words(key, item)
    return tuple(item) if isinstance(item, list) else item


def _is_list(item: Any, kind: type) -> bool:
    return isinstance(item, (list, tuple)) and all(type(entry) is kind for entry in item)


def _is_strings(item: Any) -> bool:
    return isinstance(item, dict) and all(isinstance(word, str) for pair in item.items() for word in pair)


def _check_words(key: str, item: Any) -> None:
    """Raise ExpectationError for a value of the right type that means nothing."""
    if key.startswith("links_"):
        for name in item:
            if name not in LINK_CLASSES:
                raise ExpectationError(f"{key}: no link class {name!r}{nearest(name, LINK_CLASSES)}")
    forms = {"compute_capability": r"\d+\.\d+", "driver_minimum": r"\d+(\.\d+)*"}
    if key in forms and item is not None and not re.fullmatch(forms[key], item):
        raise ExpectationError(f"{key}: {item!r} does not look like one (write it in quotes, such as '12.0')")
