# SPDX-License-Identifier: Apache-2.0
"""The machine in a terminal: a tree of what hangs where, the links between GPUs, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .machine import Branch, Gpu, Machine, Nic, Node, Problem

_CODES = {"critical": "31;1", "unknown": "35;1", "warning": "33", "faint": "2", "strong": "1"}
"""Select Graphic Rendition (ECMA-48) by what is said."""
_CELL = 6
_GIB = 1024


class _Paint:
    """Colours text, or leaves it as it is."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def __call__(self, style: str | None, text: str) -> str:
        return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if self.colour and style in _CODES and text else text


def worst(problems: Sequence[Problem]) -> str | None:
    """Return the most pressing level among problems."""
    levels = [problem.level for problem in problems]
    return next((level for level in ("critical", "unknown", "warning") if level in levels), None)


def view(machine: Machine, *, colour: bool = False) -> str:
    """Return the machine as lines for a terminal."""
    paint = _Paint(colour)
    lines = [paint("strong", _title(machine))]
    for node in machine.nodes:
        lines += _node(node, paint)
    if machine.links and len(machine.labels) > 1:
        lines += ["", *_matrix(machine, machine.links, paint)]
    for problem in dict.fromkeys([*machine.problems, *(p for each in machine.pairs.values() for p in each)]):
        lines.append(paint(problem.level, f"{problem.level} {problem.id}: {problem.what}: {problem.seen}"))
    return "\n".join(lines)


def _title(machine: Machine) -> str:
    count = len(machine.labels)
    driver = f", driver {machine.driver}" if machine.driver else ""
    return f"{count} GPU{'' if count == 1 else 's'}{driver}"


def node_title(node: Node) -> str:
    """Return how a picture calls a NUMA node."""
    if node.name is None:
        gpus = [gpu for branch in node.branches for gpu in branch.gpus]
        return "NUMA node not known" if any(gpu.shown for gpu in gpus) else "missing" if gpus else "elsewhere"
    return f"NUMA node {node.name}" + (f", CPUs {node.cpus}" if node.cpus else "")


def branch_title(branch: Branch) -> str:
    """Return how a picture calls a switch or root port; empty where nothing is known of it."""
    if branch.kind == "switch":
        several = "es" if "PXB" in branch.classes else ""
        detail = ", ".join(part for part in (branch.bridge, " ".join(branch.classes)) if part)
        return f"PCIe switch{several}" + (f" ({detail})" if detail else "")
    return f"root port {branch.bridge}" if branch.kind == "port" else ""


def gpu_details(gpu: Gpu) -> list[str]:
    """Return what a picture says of a GPU beside its number: name, address, link, memory, MIG."""
    if not gpu.shown:
        return [part for part in (gpu.bus_id, "not shown by nvidia-smi") if part]
    memory = f"{round(gpu.memory_mib / _GIB)} GiB" if gpu.memory_mib else ""
    address = (gpu.bus_id or "").removeprefix("0000:")
    name = (gpu.name or "").removeprefix("NVIDIA ")
    return [part for part in (address, gpu.link, memory, "MIG on" if gpu.mig else "", name) if part]


def nic_details(nic: Nic) -> str:
    """Return how near a NIC is to which GPUs."""
    if not nic.nearest:
        return "near no GPU"
    to = [gpu.removeprefix("GPU") for gpu in nic.to]
    return f"{nic.nearest} to GPU {', '.join(to)}"


def _node(node: Node, paint: _Paint) -> Iterator[str]:
    yield paint("strong", node_title(node))
    last = len(node.branches) - 1
    for place, branch in enumerate(node.branches):
        stem, below = ("└─ ", "   ") if place == last else ("├─ ", "│  ")
        leaves = [*(_gpu(gpu, paint) for gpu in branch.gpus), *(_nic(nic) for nic in branch.nics)]
        title = branch_title(branch)
        if branch.kind == "switch":
            yield stem + paint(worst(branch.problems), title + _ids(branch.problems))
            for number, leaf in enumerate(leaves):
                yield below + ("└─ " if number == len(leaves) - 1 else "├─ ") + leaf
        else:
            tail = paint(worst(branch.problems) or "faint", f"  {title}{_ids(branch.problems)}" if title else "")
            yield from (stem + leaf + tail for leaf in leaves)


def _ids(problems: Sequence[Problem]) -> str:
    return f"  ! {', '.join(dict.fromkeys(problem.id for problem in problems))}" if problems else ""


def _gpu(gpu: Gpu, paint: _Paint) -> str:
    return paint(worst(gpu.problems), "  ".join([gpu.label.ljust(5), *gpu_details(gpu)]).rstrip() + _ids(gpu.problems))


def _nic(nic: Nic) -> str:
    return f"{nic.name}  {nic_details(nic)}"


def _matrix(machine: Machine, links: Sequence[Sequence[str]], paint: _Paint) -> Iterator[str]:
    yield " " * _CELL + "".join(label.ljust(_CELL) for label in machine.labels).rstrip()
    for i, label in enumerate(machine.labels):
        cells = []
        for j, other in enumerate(machine.labels):
            problems = machine.pairs.get(frozenset((label, other)), [])
            status = machine.p2p[i][j] if machine.p2p else "OK"
            text = "·" if i == j else links[i][j] if status in ("OK", "X") else f"{status}!"
            cells.append(paint(worst(problems) if i != j else "faint", text) + " " * (_CELL - len(text)))
        yield label.ljust(_CELL) + "".join(cells).rstrip()
