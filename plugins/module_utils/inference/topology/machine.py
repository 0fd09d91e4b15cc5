# SPDX-License-Identifier: Apache-2.0
"""A host as a picture needs it: which GPU and NIC hangs where, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .facts import bdf

Json = Mapping[str, Any]

SWITCHED = ("PIX", "PXB")
"""Link classes of devices below a common PCIe switch."""
_NEARNESS = ("PIX", "PXB", "PHB", "NODE")
"""Link classes that place a NIC, the nearest first; SYS and SOC say only where it is not."""


@dataclass(frozen=True)
class Problem:
    """A finding, as far as a picture shows it."""

    id: str
    level: str
    what: str
    seen: str


@dataclass(frozen=True)
class Gpu:
    """A GPU; what is not known is None. ``shown`` is False for one that only a finding names."""

    label: str
    shown: bool = True
    bus_id: str | None = None
    name: str | None = None
    memory_mib: int | None = None
    gen: int | None = None
    gen_now: int | None = None
    width: int | None = None
    width_now: int | None = None
    mig: bool = False
    bridges: tuple[str, ...] = ()
    """PCI addresses of the bridges above it, the nearest first; the last is the root port."""
    problems: tuple[Problem, ...] = ()

    @property
    def link(self) -> str:
        """Return the link in words: ``gen 5 x16``, ``gen 5 x8 of x16``; empty where nothing is known."""
        gen = f"gen {self.gen}" if self.gen else ""
        width = f"x{self.width_now or self.width}" if self.width_now or self.width else ""
        if self.width_now and self.width and self.width_now < self.width:
            width += f" of x{self.width}"
        return " ".join(part for part in (gen, width) if part)


@dataclass(frozen=True)
class Nic:
    """A NIC and the class of its link to the nearest GPUs."""

    name: str
    nearest: str | None = None
    to: tuple[str, ...] = ()


@dataclass
class Branch:
    """What hangs below one switch or root port. ``kind``: switch, port, or None where it is not known."""

    kind: str | None
    bridge: str | None = None
    classes: tuple[str, ...] = ()
    """Link classes among its GPUs."""
    gpus: list[Gpu] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """Those of the bridge."""


@dataclass
class Node:
    """A NUMA node; ``name`` is None for what is on no known one."""

    name: str | None
    cpus: str | None = None
    branches: list[Branch] = field(default_factory=list)


@dataclass
class Machine:
    """A host. ``links`` and ``p2p`` are rows in the order of ``labels``; None where they are not known."""

    nodes: list[Node]
    labels: list[str]
    links: list[list[str]] | None
    p2p: list[list[str]] | None
    """Where some pair has no peer access: the worst status of each pair over reads and writes."""
    driver: str | None
    problems: list[Problem]
    """Those of the host itself, of no GPU or pair."""
    pairs: dict[frozenset[str], list[Problem]]

    @property
    def gpus(self) -> list[Gpu]:
        """All GPUs, in the order of the nodes."""
        return [gpu for node in self.nodes for branch in node.branches for gpu in branch.gpus]


_Places = dict[str, list[Problem]]


def machine_of(facts: Json, findings: Iterable[Json] = ()) -> Machine:
    """Return the host that ``facts`` (see :func:`brief`) describes, with the findings at the parts they are about."""
    parts: _Places = {}
    pairs: dict[frozenset[str], list[Problem]] = {}
    problems: list[Problem] = []
    for finding in findings:
        if finding.get("level") in ("critical", "unknown", "warning"):
            problem = Problem(*(str(finding.get(key, "")) for key in ("id", "level", "what", "seen")))
            problems.append(problem)
            _place(problem, finding.get("where") or (), parts, pairs)
    gpus = _gpus(facts, parts)
    nodes = _nodes(facts, gpus, parts)
    drawn = {problem for gpu in gpus for problem in gpu.problems} | {p for each in pairs.values() for p in each}
    drawn |= {problem for node in nodes for branch in node.branches for problem in branch.problems}
    labels = [gpu.label for gpu in gpus if gpu.shown]
    return Machine(
        nodes=nodes,
        labels=labels,
        links=_square(facts.get("links"), len(labels)),
        p2p=_peer_access(facts, len(labels)),
        driver=facts.get("driver_version"),
        problems=[problem for problem in problems if problem not in drawn],
        pairs=pairs,
    )


def _place(problem: Problem, where: Iterable[str], parts: _Places, pairs: dict[frozenset[str], list[Problem]]) -> None:
    for place in where:
        ends = str(place).split("-")
        if len(ends) > 1:
            pairs.setdefault(frozenset(ends), []).append(problem)
        else:
            parts.setdefault(ends[0], []).append(problem)


def _gpus(facts: Json, parts: _Places) -> list[Gpu]:
    """Return the GPUs of the matrix and of the lists, and those that only a finding names."""
    by_label = _labelled(facts)
    labels = dict.fromkeys([f"GPU{number}" for number in facts.get("gpu_ids") or []] + list(by_label))
    gpus = [_gpu(label, by_label.get(label, {}), parts) for label in labels]
    known = set(labels) | {gpu.bus_id for gpu in gpus} | {bridge for gpu in gpus for bridge in gpu.bridges}
    strangers: dict[tuple[Problem, ...], list[str]] = {}
    for place, problems in parts.items():
        if place not in known:
            strangers.setdefault(tuple(problems), []).append(place)
    return gpus + [_stranger(places, problems) for problems, places in strangers.items()]


def _labelled(facts: Json) -> dict[str, Json]:
    """Return the listed GPUs by label. ``-q`` prints no numbers: its order is theirs, that of the PCI addresses."""
    raw = facts.get("gpus") or []
    ids = facts.get("gpu_ids") or list(range(len(raw)))
    if raw and len(ids) == len(raw) and all(gpu.get("index") is None for gpu in raw):
        return {f"GPU{number}": gpu for number, gpu in zip(ids, raw, strict=True)}
    return {f"GPU{gpu['index']}": gpu for gpu in raw if gpu.get("index") is not None}


def _stranger(places: Sequence[str], problems: tuple[Problem, ...]) -> Gpu:
    label = next((place for place in places if place.startswith("GPU")), "GPU")
    return Gpu(label, shown=False, bus_id=next((p for p in places if ":" in p), None), problems=problems)


def _gpu(label: str, raw: Json, parts: _Places) -> Gpu:
    bus_id = bdf(raw["pci.bus_id"]) if raw.get("pci.bus_id") else None
    problems = [*parts.get(label, []), *(parts.get(bus_id, []) if bus_id else [])]
    return Gpu(
        label,
        bus_id=bus_id,
        name=raw.get("name"),
        memory_mib=_whole(raw.get("memory.total")),
        gen=_whole(raw.get("pcie.link.gen.max")),
        gen_now=_whole(raw.get("pcie.link.gen.current")),
        width=_whole(raw.get("pcie.link.width.max")),
        width_now=_whole(raw.get("pcie.link.width.current")),
        mig=str(raw.get("mig.mode.current")).startswith("Enabled"),
        bridges=tuple(raw.get("bridges") or ()),
        problems=tuple(dict.fromkeys(problems)),
    )


def _whole(text: object) -> int | None:
    match = re.match(r"\d+", text) if isinstance(text, str) else None
    return int(match.group()) if match else None


def _square(rows: Any, size: int) -> list[list[str]] | None:
    """Return a matrix of ``size`` rows and columns, or None where it is another."""
    whole = rows and len(rows) == size and all(len(row) == size for row in rows)
    return [list(row) for row in rows] if whole else None


def _peer_access(facts: Json, size: int) -> list[list[str]] | None:
    """Return the worst status of each pair over reads and writes; None where all is well or nothing is known."""
    given = facts.get("p2p") or {}
    asked = [given[name] for name in ("r", "w") if given.get(name)] or list(given.values())
    matrices = [rows for rows in (_square(rows, size) for rows in asked) if rows and not _is_all(rows, "NS")]
    if not matrices:
        return None
    worst = [[next((m[i][j] for m in matrices if m[i][j] != "OK"), "OK") for j in range(size)] for i in range(size)]
    return None if _is_all(worst, "OK") else worst


def _is_all(rows: Sequence[Sequence[str]], status: str) -> bool:
    """Whether every pair has this status. All NS is what ``-p2p n`` (NVLink) says of every host with PCIe only."""
    return {cell for row in rows for cell in row} <= {"X", status}


def _nodes(facts: Json, gpus: Sequence[Gpu], parts: _Places) -> list[Node]:
    """Place the GPUs and NICs in their NUMA nodes, below their switches and root ports."""
    shown = [gpu for gpu in gpus if gpu.shown]
    names = _node_names(facts, shown)
    cpus = dict(zip(_ids(facts), facts.get("cpu_affinity_per_gpu") or [], strict=False))
    nodes: dict[str | None, Node] = {}
    for group in _groups(facts, shown):
        branch = _branch(facts, group, parts)
        name = names[group[0].label]
        node = nodes.setdefault(name, Node(name, cpus.get(group[0].label)))
        node.branches.append(branch)
    ordered = sorted(nodes.values(), key=lambda node: (node.name is None, _order(node.name)))
    for nic, branch_label, node_name in _nics(facts, names):
        _hang(nic, branch_label, node_name, ordered)
    if ghosts := [gpu for gpu in gpus if not gpu.shown]:
        ordered.append(Node(None, branches=[Branch(None, gpus=[gpu]) for gpu in ghosts]))
    return ordered


def _order(name: str | None) -> tuple[int, str]:
    return (int(name) if name and name.isdecimal() else 0, name or "")


def _ids(facts: Json) -> list[str]:
    """Return the labels of the matrix; those of the list where the matrix's are not known."""
    return [f"GPU{number}" for number in facts.get("gpu_ids") or []] or list(_labelled(facts))


def _node_names(facts: Json, gpus: Sequence[Gpu]) -> dict[str, str | None]:
    printed = dict(zip(_ids(facts), facts.get("numa_per_gpu") or [], strict=False))
    kernel = {label: raw.get("numa_node") for label, raw in _labelled(facts).items()}
    return {gpu.label: printed.get(gpu.label) or kernel.get(gpu.label) for gpu in gpus}


def _groups(facts: Json, gpus: Sequence[Gpu]) -> list[list[Gpu]]:
    """Return the GPUs in groups that share a PCIe switch: by their bridges, else by the class of their links."""
    links = _switched(facts)
    groups: list[list[Gpu]] = []
    for gpu in gpus:
        joined = [group for group in groups if any(_share(gpu, other, links) for other in group)]
        rest = [group for group in groups if group not in joined]
        groups = [*rest, [*(other for group in joined for other in group), gpu]]
    place = {gpu.label: number for number, gpu in enumerate(gpus)}
    return sorted(groups, key=lambda group: min(place[gpu.label] for gpu in group))


def _links(facts: Json) -> dict[frozenset[str], str]:
    ids, rows = _ids(facts), facts.get("links") or []
    return {
        frozenset((one, other)): link
        for one, row in zip(ids, rows, strict=False)
        for other, link in zip(ids, row, strict=False)
        if one != other
    }


def _switched(facts: Json) -> dict[frozenset[str], str]:
    """Return pairs of GPUs below a common switch, with the class of the link that says so."""
    return {**_shared_nics(facts), **{pair: link for pair, link in _links(facts).items() if link in SWITCHED}}


def _shared_nics(facts: Json) -> dict[frozenset[str], str]:
    """Return pairs of GPUs below the switch of one NIC; NVLink hides that in the links between GPUs."""
    ids, found = _ids(facts), {}
    for column in zip(*(facts.get("nic_links") or []), strict=False):
        below = [(gpu, link) for gpu, link in zip(ids, column, strict=False) if link in SWITCHED]
        found.update({frozenset((a, b)): max(x, y) for a, x in below for b, y in below if a != b})
    return found


def _share(one: Gpu, other: Gpu, links: Mapping[frozenset[str], str]) -> bool:
    if one.bridges and other.bridges:
        return bool(set(one.bridges) & set(other.bridges))
    return frozenset((one.label, other.label)) in links


def _branch(facts: Json, group: list[Gpu], parts: _Places) -> Branch:
    links = _switched(facts)
    found = {links.get(frozenset((a.label, b.label))) for a in group for b in group if a is not b}
    common = [bridge for bridge in group[0].bridges if all(bridge in gpu.bridges for gpu in group)]
    switched = len(group) > 1 or len(group[0].bridges) > 1
    kind = "switch" if switched else "port" if common else None
    bridges = dict.fromkeys(bridge for gpu in group for bridge in gpu.bridges)
    problems = dict.fromkeys(problem for bridge in bridges for problem in parts.get(bridge, []))
    classes = tuple(sorted(name for name in found if name))
    return Branch(kind, common[0] if common else None, classes, group, problems=list(problems))


def _nics(facts: Json, names: Mapping[str, str | None]) -> Iterable[tuple[Nic, str | None, str | None]]:
    """Yield each NIC with the GPU whose switch it shares, if any, and its NUMA node, if known."""
    rows, ids = facts.get("nic_links") or [], _ids(facts)
    for place, name in enumerate(facts.get("nics") or []):
        seen = [(row[place], gpu) for row, gpu in zip(rows, ids, strict=False) if place < len(row)]
        nearest = next((cls for cls in _NEARNESS if any(cls == link for link, _ in seen)), None)
        to = tuple(gpu for link, gpu in seen if link == nearest)
        yield Nic(name, nearest, to), to[0] if nearest in SWITCHED else None, names.get(to[0]) if to else None


def _hang(nic: Nic, gpu: str | None, node_name: str | None, nodes: list[Node]) -> None:
    for node in nodes:
        for branch in node.branches:
            if gpu in [other.label for other in branch.gpus]:
                branch.nics.append(nic)
                return
    home = next((node for node in nodes if nic.to and node.name == node_name), None)
    if home is None:
        home = next((node for node in nodes if node.name is None), None) or Node(None)
        nodes += [home] if home not in nodes else []
    branch = next((branch for branch in home.branches if not branch.gpus), None) or Branch(None)
    home.branches += [branch] if branch not in home.branches else []
    branch.nics.append(nic)
