# SPDX-License-Identifier: Apache-2.0
"""A stable fingerprint of what a host's measurements and tuned settings depend on, and what changed between two."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from .facts import Facts, bdf, value

VERSION = 1
"""Of the choice of parts: another choice is another fingerprint, and no change of the host."""

_GPU_PARTS = ("name", "uuid", "vbios_version", "pcie.link.gen.max", "pcie.link.width.max", "mig.mode.current")


def parts_of(facts: Facts) -> dict[str, Any]:
    """Return what the fingerprint is made of. What is not known is null, and differs from anything known."""
    topology = facts.topology or {}
    p2p = {str(document.get("capability")): document["status"] for document in facts.p2p}
    return {
        "version": VERSION,
        "gpus": {
            bdf(bus_id): {name: value(gpu, name) for name in _GPU_PARTS}
            for gpu in facts.gpus
            if (bus_id := value(gpu, "pci.bus_id"))
        },
        "links": topology.get("links"),
        "numa": topology.get("numa_per_gpu"),
        "p2p": {capability: p2p.get(capability) for capability in ("r", "w")},
        "driver": facts.driver_version,
        "firmware": facts.host.get("firmware") or None,
        "acs_redirect": {n: d.get("acs_redirect") for n, d in sorted((facts.pci or {}).items()) if "acs_redirect" in d},
        "iommu": {n: d.get("iommu_type") for n, d in sorted((facts.pci or {}).items()) if d.get("is_gpu")},
    }


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that change when any part does."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what differs between two sets of parts, one readable line each."""
    return list(_changes("", old, new))


def _changes(path: str, old: Any, new: Any) -> Iterator[str]:
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            yield from _changes(f"{path} {key}".strip(), old.get(key), new.get(key))
    elif _is_matrix(old) and _is_matrix(new) and [len(row) for row in old] == [len(row) for row in new]:
        for i, row in enumerate(old):
            for j, cell in enumerate(row):
                if cell != new[i][j]:
                    yield f"{path} GPU{i}-GPU{j}: {cell} is now {new[i][j]}"
    else:
        yield f"{path}: {_shown(old)} is now {_shown(new)}"


def _is_matrix(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(isinstance(row, list) for row in item)


def _shown(item: Any) -> str:
    if item is None:
        return "(nothing)"
    if isinstance(item, Mapping):
        return str(item.get("name") or json.dumps(item, sort_keys=True))
    return f"{len(item)} GPUs" if _is_matrix(item) else json.dumps(item) if isinstance(item, list) else str(item)
