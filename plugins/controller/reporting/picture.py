# SPDX-License-Identifier: Apache-2.0
"""The machine as SVG: a tree of what hangs where, and the matrix of links between its GPUs; what is wrong is red.

svg.py writes texts as they are given: every text goes through :func:`_text` or :func:`_tip`, which escape it.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import svg

from inference.topology.machine import Branch, Gpu, Machine, Nic, Node, Problem
from inference.topology.view import branch_title, gpu_details, nic_details, node_title, worst

STYLE = (Path(__file__).parent / "style.css").read_text(encoding="utf-8")

_WIDTH = 480
_EDGE = 8
_HEADER = 30
_CARD, _LOW_CARD = 42, 28
_LINE = 15
_GAP = 8
_BETWEEN = 34
_TRUNK, _INDENT = 26, 20
_CHARACTER, _WIDE = 0.54, 0.6
"""Width of a character of a proportional font, in its size: plain and bold."""

_CLASSES = {"PIX": "near", "PXB": "near", "PHB": "mid", "NODE": "mid", "SYS": "far", "SOC": "far"}
_LEGEND = (
    ("near", ("PIX", "PXB"), "below one PCIe switch, or several"),
    ("mid", ("PHB", "NODE"), "within a NUMA node, through host bridges"),
    ("far", ("SYS", "SOC"), "across NUMA nodes"),
    ("odd", ("NV",), "NVLink"),
)
_WIRES = ((16, 5.0), (8, 3.0), (4, 2.0))
"""Lanes and how thick a link of that many is drawn."""
_OF_LINK = ("pcie-", "acs-")
"""How the ids of findings about a GPU's link begin."""


class _Sheet:
    """Collects elements from top to bottom; ``y`` is where the next one begins."""

    def __init__(self, width: float) -> None:
        self.width = width
        self.y: float = _EDGE
        self.elements: list[svg.Element] = []

    def add(self, *elements: svg.Element) -> None:
        self.elements += elements

    def done(self, label: str) -> str:
        """Return the SVG."""
        height = self.y + _EDGE
        box = svg.ViewBoxSpec(0, 0, self.width, height)
        content: list[svg.Element] = [svg.Title(text=html.escape(label)), *self.elements]
        return svg.SVG(viewBox=box, width=self.width, height=height, class_=["pic"], elements=content).as_str()


def _text(x: float, y: float, text: str, *classes: str, anchor: str = "start", room: float = 0) -> svg.Text:
    """Return an escaped text, cut to ``room`` pixels where that is given."""
    size = 11 if "small" in classes else 13
    most = int(room / (size * (_WIDE if "strong" in classes else _CHARACTER)))
    shown = text if not room or len(text) <= most else text[: max(most - 1, 1)] + "…"
    place = {"start": None, "middle": "middle", "end": "end"}[anchor]
    return svg.Text(x=x, y=y, text=html.escape(shown), class_=list(classes), text_anchor=place)  # type: ignore[arg-type]


def _tip(*lines: str) -> svg.Title:
    return svg.Title(text=html.escape("\n".join(lines)))


def tree_svg(machine: Machine) -> str:
    """Return the tree: banners of what concerns the whole host, NUMA nodes, switches, GPUs, NICs."""
    sheet = _Sheet(_WIDTH)
    _banners(sheet, machine.problems)
    for place, node in enumerate(machine.nodes):
        if place:
            _between(sheet, machine, machine.nodes[place - 1], node)
        _node(sheet, node)
    if not machine.nodes:
        sheet.add(_text(_EDGE + 4, sheet.y + 16, "No GPU is known of this host.", "faint"))
        sheet.y += 24
    return sheet.done("Topology: what hangs where")


def _banners(sheet: _Sheet, problems: Iterable[Problem]) -> None:
    for problem in problems:
        room = sheet.width - 2 * _EDGE
        box = svg.Rect(x=_EDGE, y=sheet.y, width=room, height=44, rx=6, class_=["banner", problem.level])
        first = _text(
            _EDGE + 12, sheet.y + 18, f"{problem.id}: {problem.what}", "strong", problem.level, room=room - 24
        )
        second = _text(_EDGE + 12, sheet.y + 35, problem.seen, "small", room=room - 24)
        sheet.add(svg.G(elements=[_tip(problem.what, problem.seen), box, first, second]))
        sheet.y += 44 + _GAP


def _between(sheet: _Sheet, machine: Machine, upper: Node, lower: Node) -> None:
    """Draw what connects two NUMA nodes; a gap alone where it is not known."""
    ends = [[machine.labels.index(gpu.label) for branch in node.branches for gpu in branch.gpus if gpu.shown]
            for node in (upper, lower)]  # fmt: skip
    links = machine.links
    found = sorted({links[i][j] for i in ends[0] for j in ends[1]}) if links else []
    if found and None not in (upper.name, lower.name):
        x, y = sheet.width / 2, sheet.y
        sheet.add(
            svg.Line(x1=x, x2=x, y1=y, y2=y + _BETWEEN, stroke_width=5, class_=["wire"]),
            _text(x + 12, y + _BETWEEN / 2 + 4, " ".join(found), "strong"),
        )
        sheet.y += _BETWEEN
    else:
        sheet.y += _GAP * 1.5


def _node(sheet: _Sheet, node: Node) -> None:
    top = sheet.y
    room = sheet.width - 2 * _EDGE
    panel = svg.Rect(x=_EDGE, y=top, width=room, height=0, rx=8, class_=["panel"])
    title, _, detail = node_title(node).partition(", ")
    sheet.add(panel, _text(_EDGE + 12, top + 20, title, "strong"))
    room -= len(title) * 13 * _WIDE + 40
    sheet.add(_text(sheet.width - _EDGE - 12, top + 20, detail, "faint", "small", anchor="end", room=room))
    trunk = _trunk(sheet, _TRUNK, top + _HEADER - 4)
    sheet.y = top + _HEADER
    for branch in node.branches:
        end = _switch(sheet, branch) if branch.kind == "switch" else _leaves(sheet, branch, _TRUNK)
        trunk.y2 = end or trunk.y2
    panel.height = sheet.y - top


def _trunk(sheet: _Sheet, x: float, y: float) -> svg.Line:
    """Draw a line down from ``y`` whose end is set later: at the last thing that hangs from it."""
    line = svg.Line(x1=x, x2=x, y1=y, y2=y, stroke_width=3, class_=["wire"])
    sheet.add(line)
    return line


def _leaves(sheet: _Sheet, branch: Branch, trunk: float) -> float | None:
    """Draw the GPUs and NICs of a branch; return the height of the last link, None where nothing is linked."""
    above = branch.kind != "switch"
    ends = [
        _gpu(sheet, gpu, trunk, branch_title(branch) if above else "", branch.problems if above else ())
        for gpu in branch.gpus
    ]
    ends += [_nics(sheet, trunk, nics) for nics in _alike(branch.nics)]
    return next((end for end in reversed(ends) if end), None)


def _switch(sheet: _Sheet, branch: Branch) -> float:
    """Draw a switch with what hangs below it; return the height of its own link."""
    level = worst(branch.problems)
    left, top = _TRUNK + _INDENT, sheet.y
    room = sheet.width - left - _EDGE * 2
    box = svg.Rect(x=left, y=top, width=room, height=0, rx=6, class_=_marked("switch", level))
    sheet.add(box, _wire(_TRUNK, left, top + 14, None, level))
    sheet.add(_text(left + 10, top + 18, branch_title(branch), "small", "strong", room=room - 20))
    sheet.y += 26
    for problem in branch.problems:
        said = f"{problem.id}: {_about(branch.bridge, None, problem)}"
        sheet.add(_text(left + 10, sheet.y + 8, said, "small", problem.level, room=room - 20))
        sheet.y += _LINE
    trunk = _trunk(sheet, left + 12, sheet.y - 4)
    trunk.y2 = _leaves(sheet, branch, left + 12) or trunk.y2
    box.height = sheet.y - top
    sheet.y += _GAP
    return top + 14


def _marked(name: str, level: str | None) -> list[str]:
    return [name, level] if level else [name]


def _wire(x1: float, x2: float, y: float, lanes: int | None, level: str | None) -> svg.Line:
    thick = next((width for least, width in _WIRES if lanes and lanes >= least), 1.5)
    return svg.Line(x1=x1, x2=x2, y1=y, y2=y, stroke_width=thick, class_=_marked("wire", level))


def _gpu(sheet: _Sheet, gpu: Gpu, trunk: float, note: str, above: Sequence[Problem]) -> float | None:
    """Draw a GPU's card and its link; return the height of that, None for a GPU that is not there."""
    said = [(problem, _about(gpu.label, gpu.bus_id, problem)) for problem in gpu.problems]
    said += [(p, _about(gpu.bridges[0] if gpu.bridges else None, None, p)) for p in above if p not in gpu.problems]
    left, top, right = trunk + _INDENT, sheet.y, sheet.width - _EDGE * 3
    low = not (note or gpu.name)
    text_top = top + (_LOW_CARD if low else _CARD)
    height = text_top - top + _LINE * len(said) + (4 if low and said else 0)
    classes = _marked("card", worst([problem for problem, _ in said])) + ([] if gpu.shown else ["ghost"])
    card = svg.Rect(x=left, y=top, width=right - left, height=height, rx=6, class_=classes)
    lines = [
        _text(left + 12, text_top + 8 + _LINE * place, f"{problem.id}: {text}", "small", problem.level,
              room=right - left - 24)
        for place, (problem, text) in enumerate(said)
    ]  # fmt: skip
    tip = _tip(gpu.label, *gpu_details(gpu), *(f"{p.id}: {p.what}: {p.seen}" for p, _ in said))
    if gpu.shown:
        bad = worst([problem for problem, _ in said if problem.id.startswith(_OF_LINK)])
        sheet.add(_wire(trunk, left, top + 14, gpu.width_now or gpu.width, bad))
    sheet.add(svg.G(elements=[tip, card, *_gpu_texts(gpu, note, left, top, right), *lines]))
    sheet.y += height + _GAP
    return top + 14 if gpu.shown else None


def _gpu_texts(gpu: Gpu, note: str, left: float, top: float, right: float) -> list[svg.Element]:
    memory = f"{round(gpu.memory_mib / 1024)} GiB" if gpu.memory_mib else ""
    facts = [gpu.link, memory, "MIG on" if gpu.mig else "", "" if gpu.shown else "not shown by nvidia-smi"]
    level = worst(gpu.problems)
    room = right - left - (170 if note else 24)
    return [
        _text(left + 12, top + 18, gpu.label, "strong", *([level] if level else [])),
        _text(left + 66, top + 18, (gpu.bus_id or "").removeprefix("0000:"), room=90),
        _text(right - 12, top + 18, " · ".join(filter(None, facts)), anchor="end", room=right - left - 140),
        _text(left + 12, top + 34, (gpu.name or "").removeprefix("NVIDIA "), "small", "faint", room=room),
        _text(right - 12, top + 34, note, "small", "faint", anchor="end"),
    ]


def _about(label: str | None, bus_id: str | None, problem: Problem) -> str:
    """Return what a finding saw of this part; what the finding is about where that can't be told apart."""
    for item in problem.seen.split("; "):
        name, _, rest = item.partition(": ")
        if rest and (name.split(" ")[0] == label or (bus_id and bus_id in name)):
            return rest
        if label and item.startswith(f"{label} ("):  # a bridge and its controls
            return item.removeprefix(label).strip(" ()")
    return problem.what


def _alike(nics: Iterable[Nic]) -> list[list[Nic]]:
    """Return NICs in groups of those whose links are alike."""
    return [list(group) for _, group in groupby(nics, key=lambda nic: (nic.nearest, nic.to))]


def _nics(sheet: _Sheet, trunk: float, nics: Sequence[Nic]) -> float:
    left, top = trunk + _INDENT, sheet.y
    right = sheet.width - _EDGE * 3
    names = ", ".join(nic.name for nic in nics)
    label = f"NIC{'s' if len(nics) > 1 else ''} {names}"
    sheet.add(
        svg.G(
            elements=[
                _tip(label, nic_details(nics[0])),
                svg.Rect(x=left, y=top, width=right - left, height=24, rx=12, class_=["card"]),
                _text(left + 12, top + 16, label, "small", room=right - left - 150),
                _text(right - 12, top + 16, nic_details(nics[0]), "small", "faint", anchor="end"),
            ]
        ),
        _wire(trunk, left, top + 12, None, None),
    )
    sheet.y += 24 + _GAP
    return top + 12


def matrix_svg(machine: Machine) -> str | None:
    """Return the matrix of links and refused peer access; None for a host with fewer than two GPUs in it."""
    links, labels = machine.links, machine.labels
    if links is None or len(labels) < 2:  # noqa: PLR2004 (a link has two ends)
        return None
    cell = 52 if len(labels) <= 8 else 44 if len(labels) <= 10 else 34  # noqa: PLR2004 (it should fit beside the tree)
    left, top = 56, 34
    sheet = _Sheet(max(left + cell * len(labels) + _EDGE, 400))
    for j, label in enumerate(labels):
        short = label.removeprefix("GPU")
        sheet.add(_text(left + cell * (j + 0.5), top - 8, short, "strong", anchor="middle"))
        sheet.add(_text(_EDGE, top + cell * 0.6 * (j + 0.5) + 5, label, "strong"))
    for i in range(len(labels)):
        for j in range(len(labels)):
            sheet.add(*_cell(machine, links, i, j, (left + cell * j, top + cell * 0.6 * i, cell, cell * 0.6)))
    sheet.y = top + cell * 0.6 * len(labels) + 20
    _legend(sheet, {link for row in links for link in row}, machine.p2p)
    problems = dict.fromkeys(problem for each in machine.pairs.values() for problem in each)
    for problem in problems:
        sheet.add(_text(_EDGE, sheet.y + 4, f"{problem.id}: {problem.what}", "small", "strong", problem.level,
                        room=sheet.width - 2 * _EDGE))  # fmt: skip
        sheet.y += _LINE + 2
    return sheet.done("Links between GPUs")


_Box = tuple[float, float, float, float]


def _cell(machine: Machine, links: Sequence[Sequence[str]], i: int, j: int, box: _Box) -> list[svg.Element]:
    x, y, width, height = box
    link = links[i][j]
    status = machine.p2p[i][j] if machine.p2p and i != j else "OK"
    refused = status not in ("OK", "X")
    colour = (
        "self" if i == j else "refused" if refused else "odd" if link.startswith("NV") else _CLASSES.get(link, "odd")
    )
    problems = machine.pairs.get(frozenset((machine.labels[i], machine.labels[j])), []) if i != j else []
    tip = f"{machine.labels[i]} to {machine.labels[j]}: {link}" + (f", peer access {status}" if refused else "")
    elements: list[svg.Element] = [
        svg.G(
            elements=[
                _tip(tip, *(f"{problem.id}: {problem.what}" for problem in problems)),
                svg.Rect(x=x + 1, y=y + 1, width=width - 2, height=height - 2, rx=3, class_=[colour]),
                _text(x + width / 2, y + height / 2 + 4, "" if i == j else status if refused else link, "small",
                      *(["on-refused"] if refused else []), anchor="middle"),
            ]
        )
    ]  # fmt: skip
    if problems and not refused:
        edge = ["edge", *filter(None, [worst(problems)])]
        elements.append(svg.Rect(x=x + 2, y=y + 2, width=width - 4, height=height - 4, rx=3, class_=edge))
    return elements


def _legend(sheet: _Sheet, links: set[str], p2p: object) -> None:
    lines = [
        (colour, f"{' '.join(sorted(link for link in links if link.startswith(names)))}: {text}")
        for colour, names, text in _LEGEND
        if any(link.startswith(names) for link in links)
    ]
    lines += [("refused", "no peer access, with the status of topo -p2p")] if p2p else []
    for colour, text in lines:
        sheet.add(svg.Rect(x=_EDGE, y=sheet.y - 9, width=12, height=12, rx=2, class_=[colour]))
        sheet.add(_text(_EDGE + 20, sheet.y + 1, text, "small", "faint", room=sheet.width - 40))
        sheet.y += 18


def picture_svg(machine: Machine, title: str) -> str:
    """Return one SVG file with tree and matrix side by side, its colours in it."""
    drawings = [text for text in (tree_svg(machine), matrix_svg(machine)) if text]
    sizes = [_size(text) for text in drawings]
    width, height = sum(size[0] for size in sizes), max(size[1] for size in sizes) + _HEADER
    lefts = [0.0, *(sizes[0][0] for _ in sizes[1:])]
    placed = "".join(
        text.replace("<svg ", f'<svg x="{left:g}" y="{_HEADER}" ', 1)
        for text, left in zip(drawings, lefts, strict=True)
    )
    head = svg.SVG(
        viewBox=svg.ViewBoxSpec(0, 0, width, height), width=width, height=height, class_=["pic"],
        elements=[
            svg.Style(text=STYLE.replace("<", "")),
            svg.Rect(x=0, y=0, width=width, height=height, class_=["ground"]),
            _text(_EDGE + 4, 22, title, "strong"),
        ],
    ).as_str()  # fmt: skip
    return head.removesuffix("</svg>") + placed + "</svg>\n"


def _size(text: str) -> tuple[float, float]:
    """Return width and height of a drawing of ours."""
    box = text.partition('viewBox="')[2].partition('"')[0].split()
    return float(box[2]), float(box[3])
