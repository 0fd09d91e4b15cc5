# SPDX-License-Identifier: Apache-2.0
"""What only one instance of a host can have: its name, its ports, its GPUs. Whoever shares one is named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from .findings import Finding

KINDS: Mapping[str, str] = {
    "name": "Give each instance a name of its own.",
    "port": "Give one of them another port; ports that differ by less than 500 have different internal ones.",
    "GPU": "Name other gpus for one of them, or leave gpus out so that they are chosen.",
}
"""What can be shared by mistake, and what to do about it."""

Claims = Mapping[str, Iterable[object]]
"""Kind to values, such as ``{"port": [30000, 22014], "GPU": [0, 1]}``."""


def overlaps(claimed: Iterable[tuple[str, Claims]]) -> list[Finding]:
    """Return one finding for each kind of which any value belongs to several; each claim comes with who makes it."""
    owners: dict[tuple[str, object], list[str]] = {}
    for who, claims in claimed:
        for kind, values in claims.items():
            for value in dict.fromkeys(values):
                owners.setdefault((kind, value), []).append(who)
    shared = {key: whose for key, whose in owners.items() if len(whose) > 1}
    return [_finding(kind, {v: shared[k, v] for k, v in shared if k == kind}) for kind in KINDS if _any(shared, kind)]


def _any(shared: Mapping[tuple[str, object], list[str]], kind: str) -> bool:
    return any(key[0] == kind for key in shared)


def _finding(kind: str, shared: Mapping[object, list[str]]) -> Finding:
    groups = [(whose, [v for v, _ in group]) for whose, group in groupby(shared.items(), key=lambda item: item[1])]
    seen = "; ".join(f"{kind} {', '.join(map(str, values))}: {' and '.join(whose)}" for whose, values in groups)
    return Finding(
        "instance-overlap", "critical", f"Instances of this host share a {kind}", seen=seen,
        expected=f"each {kind} with one instance", fix=KINDS[kind],
    )  # fmt: skip
