# SPDX-License-Identifier: Apache-2.0
"""Where the instances of a host run: which GPUs each gets, and which CPUs and memory go with them.

An instance that fits into one NUMA node gets GPUs of one node, so that its all-reduces never cross the sockets, and the
unit binds it to that node's CPUs and memory. One that spans nodes is bound by its engine, rank by rank: a unit can only
bind all of its processes alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .topology.matrix import LINK_CLASSES

NODES = "/sys/devices/system/node"


@dataclass(frozen=True)
class Machine:
    """What placement needs to know of a host. What is not known is empty."""

    gpu_nodes: tuple[int | None, ...] = ()
    """NUMA node of each GPU, by the number that nvidia-smi gives it."""
    links: Sequence[Sequence[str]] = ()
    """Rows of ``nvidia-smi topo -m``."""
    node_cpus: Mapping[int, str] = field(default_factory=dict)
    """CPUs of each NUMA node that the kernel has, as in its ``cpulist``."""


@dataclass(frozen=True)
class Wanted:
    """What an instance asks for: so many GPUs, or exactly these."""

    name: str
    size: int
    gpus: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Placement:
    """Where an instance runs."""

    gpus: tuple[int, ...]
    gpu_nodes: tuple[int, ...] = ()
    """NUMA node of each of its GPUs, in their order; empty where one of them is not known."""
    cpus: str = ""
    """CPUs of the one node that all its GPUs are on; empty where there is no such node."""

    @property
    def node(self) -> int | None:
        """The one NUMA node to bind to, else None."""
        return self.gpu_nodes[0] if self.cpus else None

    @property
    def spans(self) -> bool:
        """Whether the GPUs are known to be on more than one node."""
        return len(set(self.gpu_nodes)) > 1

    def as_dict(self) -> dict[str, Any]:
        """Return the form that templates read."""
        nodes = list(self.gpu_nodes)
        return {"gpus": list(self.gpus), "gpu_nodes": nodes, "node": self.node, "cpus": self.cpus, "spans": self.spans}


class PlacementError(Exception):
    """The host has not enough GPUs for its instances."""


def place(wanted: Sequence[Wanted], machine: Machine, taken: frozenset[int] = frozenset()) -> dict[str, Placement]:
    """Return the placement of each instance by name.

    Instances that name their GPUs come first, then the larger ones, so that each finds a node with room for it; equal
    ones keep their order. ``taken`` are GPUs that others use. Raises PlacementError.
    """
    placed: dict[str, tuple[int, ...]] = {w.name: w.gpus for w in wanted if w.gpus is not None}
    count = len(machine.gpu_nodes) or sum(w.size for w in wanted) + len(taken)
    used = {gpu for gpus in placed.values() for gpu in gpus} | taken
    for want in sorted((w for w in wanted if w.gpus is None), key=lambda w: -w.size):
        free = [gpu for gpu in range(count) if gpu not in used]
        if want.size > len(free):
            raise PlacementError(
                f"{want.name} spans {want.size} GPUs and {len(free)} of {count} are left ({_listed(free)})"
            )
        placed[want.name] = _choose(want.size, free, machine)
        used |= set(placed[want.name])
    return {w.name: _bind(placed[w.name], machine) for w in wanted}


def _choose(size: int, free: Sequence[int], machine: Machine) -> tuple[int, ...]:
    """Choose GPUs of the fullest node that has room, those with the best links among them; else the first ones."""
    rooms: dict[int, list[int]] = {}
    for gpu in free:
        node = machine.gpu_nodes[gpu] if gpu < len(machine.gpu_nodes) else None
        if node is not None:
            rooms.setdefault(node, []).append(gpu)
    fitting = [room for _, room in sorted(rooms.items()) if len(room) >= size]
    room = min(fitting, key=len) if fitting else list(free)
    windows = [tuple(room[first : first + size]) for first in range(len(room) - size + 1)]
    return min(windows, key=lambda gpus: (_worst_link(gpus, machine.links), gpus))


def _worst_link(gpus: Sequence[int], links: Sequence[Sequence[str]]) -> int:
    """Return the rank of the longest way between two of these GPUs; 0 where links are not known."""
    if not links or max(gpus) >= len(links):
        return 0
    ways = (links[one][other] for one in gpus for other in gpus if one != other)
    return max((LINK_CLASSES.index(way) if way in LINK_CLASSES else -1 for way in ways), default=0)


def _bind(gpus: tuple[int, ...], machine: Machine) -> Placement:
    nodes = [machine.gpu_nodes[gpu] if gpu < len(machine.gpu_nodes) else None for gpu in gpus]
    known = tuple(node for node in nodes if node is not None)
    if not known or len(known) < len(nodes):
        return Placement(gpus)
    single = known[0] if len(set(known)) == 1 else None
    return Placement(gpus, known, machine.node_cpus.get(single, "") if single is not None else "")


def _listed(gpus: Sequence[int]) -> str:
    return ", ".join(map(str, gpus)) or "none"
