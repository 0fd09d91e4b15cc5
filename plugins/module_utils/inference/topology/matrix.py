# SPDX-License-Identifier: Apache-2.0
"""The matrices of ``nvidia-smi topo -m`` and ``topo -p2p``, in every layout in which they travel.

A matrix is read only where one reading is possible. Otherwise :class:`Unreadable` says why not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from .pasted import Pasted, rejoinings

LINK_CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC")
"""Link classes over PCIe, the nearest first, as the legend of ``topo -m`` orders them. SOC is SYS of old drivers."""
P2P_STATUSES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
"""Statuses of ``topo -p2p``: ok; not supported by chipset, GPU, topology; not supported; disabled by key; unknown."""

_LINK = re.compile(r"X|PIX|PXB|PHB|NODE|SYS|SOC|NV\d+")
_STATUS = re.compile(r"X|OK|CNS|GNS|TNS|NS|DR|U")
_FUSED_LINKS = re.compile(rf"(?:{_LINK.pattern})+")
_GPU = re.compile(r"(?<!\S)GPU(\d+)(?!\S)")
_FIRST_GPU = re.compile(r"(?<!\S)GPU\d+(?=\s|GPU|NIC|mlx|$)")
_NAME = re.compile(r"(?:GPU|NIC)\d+|mlx\d+_\d+")
_FUSED_NAMES = re.compile(rf"(?:{_NAME.pattern}){{2,}}")
_NIC = re.compile(r"[A-Za-z][\w.:-]*\d[\w.:-]*")
_TITLES = {
    "cpu": re.compile(r"CPU\s+Affinity"),
    "numa": re.compile(r"NUMA\s+Affinity"),
    "gpu_numa": re.compile(r"GPU\s+NUMA\s+ID"),
}
_FORMS = {
    "cpu": re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*|N/A"),
    "numa": re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*|N/A"),
    "gpu_numa": re.compile(r"\d+|N/A"),
}
_LAYOUTS: tuple[tuple[str | None, ...], ...] = (
    ("cpu", "numa", None, "gpu_numa"),
    ("cpu", None, "numa", None, "gpu_numa"),  # some drivers put two tabs after a short list of CPUs
    ("cpu", "numa", "gpu_numa"),
    ("cpu", "numa"),
    ("cpu", None, "numa"),
    ("cpu",),
)
"""Fields after the cells, as nvidia-smi separates them by tabs; None is always blank."""
_BROKEN_LIST = re.compile(r"(?<=\d[,-])[ ]+(?=\d)|(?<=\d)[ ]+(?=[,-]\d)")
"""Blanks inside a list of CPUs, which can be nothing but a break."""
_ROW_GOES_ON = re.compile(r"[A-Z0-9,/\s-]+")
"""What a wrapped row may go on with; anything else is somebody's words."""
_AS_PRINTED = re.compile(r"[\d,-]+|N/A|")
_END = re.compile(r"\s*(?:NIC )?Legend\s*:|\s*(?:X|OK|SYS|NV#)\s+=\s")
_NIC_LEGEND = re.compile(r"^\s*(NIC\d+)\s*:\s*(\S+)\s*$")
_TAB = 8


class Unreadable(Exception):  # noqa: N818 (it is no error of the program: it is the answer)
    """The facts can't be known from this text. The message says why; ``kind`` is given where it is known."""

    def __init__(self, reason: str, kind: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.kind = kind


class _Ambiguous(Unreadable):
    """One way to put pieces together has several readings of its own: no other way can be taken for certain then."""


@dataclass(frozen=True)
class _Header:
    gpus: tuple[int, ...]
    nics: tuple[str, ...]
    titles: tuple[str, ...]
    offsets: tuple[int, ...] = field(compare=False)
    """Column at which each title starts, tabs expanded."""


@dataclass(frozen=True)
class _Row:
    cells: tuple[str, ...]
    """Of all columns, those of GPUs first."""
    cpu: str | None
    numa: str | None
    printed: int
    """How many trailing fields (affinities) hold something."""
    fields: int
    """How many trailing fields there are, blank ones included, as far as tabs show them."""


@dataclass
class _Block:
    """A header and the lines under it, each with the pieces that wrapping made of it."""

    header: list[str]
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    last_line: int = 0
    """Number of the last line that belongs to a GPU row."""


def read_matrices(pasted: Pasted, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the facts of each matrix in ``pasted`` (only those of ``kind``, where given), repetitions once.

    Raises Unreadable where a matrix is cut off or can be read in several ways. No matrix at all: an empty list.
    """
    found: list[dict[str, Any]] = []
    blocks = list(_blocks(pasted.lines))
    if kind:
        blocks = [block for block in blocks if _shown_kind(block) == kind] or blocks
    for block in blocks:
        facts = _read_block(block, pasted, kind)
        if facts not in found:
            found.append(facts)
    return found


def _tokens(line: str) -> list[str]:
    """Split on blanks, and fused names (a swallowed tab) into their names."""
    tokens: list[str] = []
    for token in line.split():
        tokens += _NAME.findall(token) if _FUSED_NAMES.fullmatch(token) else [token]
    return tokens


def _heads(line: str) -> list[int]:
    """Return the GPU numbers that ``line`` names as columns, or an empty list when it is no header."""
    start = _FIRST_GPU.search(line)
    if not start:
        return []
    gpus: list[int] = []
    for token in _tokens(line[start.start() :]):
        number = _GPU.fullmatch(token)
        if not number:
            return [] if _is_cell(token) else gpus
        gpus.append(int(number[1]))
    return gpus


def _is_cell(token: str) -> bool:
    return bool(_FUSED_LINKS.fullmatch(token) or _STATUS.fullmatch(token))


def _blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Yield each header with its rows. A header that no row follows counts when it can be nothing else."""
    block: _Block | None = None
    open_pieces: list[str] | None = None
    for number, line in enumerate(lines):
        heads = _heads(line)
        if heads and block and open_pieces is block.header and not block.rows and not set(heads) & _numbers(block):
            block.header.append(line)  # a header so wide that it wrapped between two columns
        elif heads and not (block and block.rows and len(heads) == 1 and len(line.split()) == 1):
            if block and _is_matrix(block):
                yield block
            block = _Block([line])
            open_pieces = block.header
        elif block:
            open_pieces = _add_line(block, open_pieces, line, number)
    if block and _is_matrix(block):
        yield block


def _numbers(block: _Block) -> set[int]:
    return {gpu for piece in block.header for gpu in _heads(piece)}


def _is_matrix(block: _Block) -> bool:
    return bool(block.rows or len(_numbers(block)) > 1 or any(t.search(block.header[0]) for t in _TITLES.values()))


def _add_line(block: _Block, open_pieces: list[str] | None, line: str, number: int) -> list[str] | None:
    """Give ``line`` its place in ``block``; return the pieces that the next line may continue."""
    name = re.match(r"\s*(\S+)", line)
    row = _FIRST_GPU.search(line)
    if row:
        pieces = [" " * row.start() + line[row.start() :]]  # what stands before it is none of the row's
        block.rows.append((int(row.group()[3:]), pieces))
        block.last_line = number
        return pieces
    if not name or _END.match(line) or _is_nic_row(line) or set(line.strip()) <= {".", "…"}:
        return None
    if open_pieces is not None and open_pieces is not block.header and not _ROW_GOES_ON.fullmatch(line):
        return None
    if open_pieces is not None:
        open_pieces.append(line)
        if open_pieces is not block.header:
            block.last_line = number
    return open_pieces


def _is_nic_row(line: str) -> bool:
    first, *others = line.split()
    is_name = bool(_NIC.fullmatch(first)) and not _is_cell(first)  # NV6 is a cell, and may begin a wrapped line
    return is_name and (not others or _is_cell(others[0]))


def _width(block: _Block) -> int:
    """Return the width of the widest piece that another follows; 0 where nothing is wrapped."""
    wrapped = [pieces[:-1] for pieces in (block.header, *(pieces for _, pieces in block.rows))]
    return max((len(piece.expandtabs(_TAB)) for pieces in wrapped for piece in pieces), default=0)


def _one_reading(pieces: Sequence[str], width: int, read: Callable[[str], Any], what: str) -> Any:
    """Return what ``read`` makes of the pieces, put together in the one way that makes sense."""
    readings: list[Any] = []
    problem = f"{what} is in too many pieces"
    for text in rejoinings(pieces, width):
        try:
            reading = read(text)
        except _Ambiguous:
            raise
        except Unreadable as error:
            problem = error.reason
            continue
        if reading not in readings:
            readings.append(reading)
    if not readings:
        raise Unreadable(problem)
    if len(readings) > 1:
        raise Unreadable(f"{what} is wrapped and can be read in {len(readings)} ways")
    return readings[0]


def _read_header(text: str) -> _Header:
    start = _FIRST_GPU.search(text)
    expanded = text.expandtabs(_TAB)
    places = {name: match for name, title in _TITLES.items() if (match := title.search(expanded))}
    titles = sorted(places, key=lambda name: places[name].start())
    end = min((place.start() for place in places.values()), default=len(expanded))
    names = _tokens(expanded[:end][len(text[: start.start()].expandtabs(_TAB)) :]) if start else []
    leftover = expanded[end:]
    for title in _TITLES.values():
        leftover = title.sub("", leftover)
    gpus = [int(number[1]) for name in names if (number := _GPU.fullmatch(name))]
    nics = names[len(gpus) :]
    unknown = [nic for nic in nics if not _NIC.fullmatch(nic) or _GPU.fullmatch(nic)]
    if not gpus or unknown or leftover.strip() or len(set(gpus)) != len(gpus):
        raise Unreadable(f"the header has something unknown in it: {' '.join(unknown) or leftover.strip() or text!r}")
    return _Header(tuple(gpus), tuple(nics), tuple(titles), tuple(places[name].start() for name in titles))


def _read_row(text: str, header: _Header, *, is_status: bool, wrapped: bool) -> _Row:
    """Read one GPU's row, which starts with its name."""
    text = text.lstrip()
    name = text.split(None, 1)[0]
    wanted = len(header.gpus) + len(header.nics)
    cells: list[str] = []
    end = len(name)
    for token in re.finditer(r"\S+", text[len(name) :]):
        if len(cells) >= wanted:
            break
        cells += _cells(token.group(), name, is_status=is_status)
        end = len(name) + token.end()
    following = text[end:].split(None, 1)
    if following and not is_status and _FUSED_LINKS.fullmatch(following[0]):
        raise Unreadable(f"row {name} has more cells than the header has columns")
    if len(cells) != wanted:
        raise Unreadable(f"row {name} has {len(cells)} cells of {wanted}: the matrix is cut off or altered")
    cpu, numa, printed, fields = _trailing(text, end, header, name, wrapped=wrapped)
    return _Row(tuple(cells), cpu, numa, printed, fields)


def _cells(token: str, name: str, *, is_status: bool) -> list[str]:
    if is_status:
        if _STATUS.fullmatch(token):
            return [token]
        raise Unreadable(f"row {name}: {token!r} is no P2P status ({', '.join(P2P_STATUSES)})")
    if _FUSED_LINKS.fullmatch(token):
        return _LINK.findall(token)
    raise Unreadable(
        f"row {name}: {token!r} is no link class ({', '.join(LINK_CLASSES)}, NV<n>) that nvidia-smi prints"
    )


def _trailing(
    text: str, end: int, header: _Header, name: str, *, wrapped: bool
) -> tuple[str | None, str | None, int, int]:
    """Return CPU affinity, NUMA affinity and the numbers of fields after the cells: filled ones, and all."""
    rest = _BROKEN_LIST.sub("", text[end:])
    if not header.titles:
        return None, None, 0, 0
    if "\t" in rest:
        fields = [field.strip() for field in rest.split("\t")[1:]]
        form = _FORMS["cpu"] if wrapped else _AS_PRINTED
        if any(field and not form.fullmatch(field) for field in fields) or rest.split("\t")[0].strip():
            raise Unreadable(f"row {name}: {rest.strip()!r} is no affinity")
        cpu, numa = _laid_out(fields, header, name)
        return cpu, numa, sum(1 for field in fields if field), len(fields)
    tokens = [(match.group(), match.start()) for match in re.finditer(r"\S+", rest)]
    if len(tokens) > len(header.titles):
        raise Unreadable(f"row {name}: {len(tokens)} fields under {len(header.titles)} titles")
    shift = len(text[:end].expandtabs(_TAB))
    cpu, numa = _placed([(token, shift + start) for token, start in tokens], header, name, wrapped=wrapped)
    return cpu, numa, len(tokens), len(tokens)


def _layouts(header: _Header) -> list[tuple[str | None, ...]]:
    return [layout for layout in _LAYOUTS if tuple(title for title in layout if title) == header.titles]


def _laid_out(fields: list[str], header: _Header, name: str) -> tuple[str | None, str | None]:
    """Return CPU and NUMA affinity among ``fields``, in the one layout that fits them."""
    readings = set()
    for layout in _layouts(header):
        padded = fields + [""] * (len(layout) - len(fields))
        values = dict(zip(layout, padded, strict=False))
        blanks = [field for title, field in zip(layout, padded, strict=False) if title is None]
        if not any(blanks) and not any(padded[len(layout) :]):
            readings.add((_value(values.get("cpu")), _value(values.get("numa"))))
    if len(readings) != 1:
        raise Unreadable(f"row {name}: its {len(fields)} fields can be read in {len(readings)} ways")
    return readings.pop()


def _value(printed: str | None) -> str | None:
    return None if printed in (None, "", "N/A") else printed


def _placed(
    tokens: list[tuple[str, int]], header: _Header, name: str, *, wrapped: bool
) -> tuple[str | None, str | None]:
    """Find the columns of ``tokens`` where some are blank, by their form and, unless wrapped, by their offsets."""
    readings = [
        dict(zip(chosen, tokens, strict=True))
        for chosen in combinations(header.titles, len(tokens))
        if all(_FORMS[title].fullmatch(token) for title, (token, _) in zip(chosen, tokens, strict=True))
    ]
    tests: tuple[Callable[[dict[str, tuple[str, int]]], bool], ...] = (
        lambda _: True,
        lambda reading: _is_expanded(reading, header),
        lambda reading: all(header.offsets[header.titles.index(title)] == at for title, (_, at) in reading.items()),
    )
    for test in tests[:1] if wrapped else tests:
        values = {tuple(_value(reading.get(title, ("", 0))[0]) for title in ("cpu", "numa"))
                  for reading in readings if test(reading)}  # fmt: skip
        if len(values) == 1:
            cpu, numa = values.pop()
            return cpu, numa
    shown = " ".join(token for token, _ in tokens)
    if not readings:
        raise Unreadable(f"row {name}: {shown!r} is no affinity")
    raise _Ambiguous(f"row {name}: {shown!r} does not say which of its columns are blank")


def _is_expanded(reading: dict[str, tuple[str, int]], header: _Header) -> bool:
    """Whether the offsets are those of a tab layout, its tabs expanded."""
    start = "\t" * (1 + len(header.gpus) + len(header.nics))
    seen = {title: offset for title, (_, offset) in reading.items()}
    for layout in _layouts(header):
        line = start
        offsets = {}
        for title in layout:
            token = reading[title][0] if title in reading else ""
            if title and token:
                offsets[title] = len(line.expandtabs(_TAB))
            line += token + "\t"
        if offsets == seen:
            return True
    return False


def _read_block(block: _Block, pasted: Pasted, kind: str | None) -> dict[str, Any]:
    kind = kind if kind in ("topo_m", "p2p") else _kind_of(block, pasted)
    try:
        width = _width(block)
        header = _one_reading(block.header, width, _read_header, "the header")
        rows: dict[int, _Row] = {}
        for gpu, pieces in block.rows:
            wrapped = len(block.header) > 1 or len(list(rejoinings(pieces))) > 1

            def read(text: str, wrapped: bool = wrapped) -> _Row:
                return _read_row(text, header, is_status=kind == "p2p", wrapped=wrapped)

            row = _one_reading(pieces, width, read, f"row GPU{gpu}")
            if rows.setdefault(gpu, row) != row:
                raise Unreadable(f"row GPU{gpu} appears twice and differs")
        _check_whole(header, rows, block, pasted)
    except Unreadable as error:
        raise Unreadable(error.reason, kind) from None
    ordered = [rows[gpu] for gpu in header.gpus]
    return _p2p(header, ordered, pasted) if kind == "p2p" else _topo(header, ordered, pasted)


def _row_tokens(block: _Block) -> set[str]:
    return {token for _, pieces in block.rows for piece in pieces for token in piece.split()[1:]}


def _shown_kind(block: _Block) -> str | None:
    """Return the kind that the cells or the titles show, or None where they could be of either."""
    cells = _row_tokens(block) - {"X"}
    header = " ".join(block.header)
    if any(_LINK.fullmatch(cell) for cell in cells) or any(title.search(header) for title in _TITLES.values()):
        return "topo_m"
    return "p2p" if any(_STATUS.fullmatch(cell) for cell in cells) else None


def _kind_of(block: _Block, pasted: Pasted) -> str:
    shown = _shown_kind(block)
    if shown:
        return shown
    unknown = sorted(cell for cell in _row_tokens(block) if cell.isalpha() and cell != "X")
    if unknown:
        raise Unreadable(f"{unknown[0]!r} is no link class and no P2P status that nvidia-smi prints")
    if "Status Ok" in pasted.text or any("-p2p" in command for command in pasted.commands):
        return "p2p"
    if "PCIe" in pasted.text or any("topo -m" in command for command in pasted.commands):
        return "topo_m"
    raise Unreadable("a matrix without link classes or P2P statuses: name its kind")


def _check_whole(header: _Header, rows: dict[int, _Row], block: _Block, pasted: Pasted) -> None:
    """Raise Unreadable unless there is one row for each column, each with X in its own, and the last is not cut."""
    missing = [f"GPU{gpu}" for gpu in header.gpus if gpu not in rows]
    if missing:
        raise Unreadable(
            f"{len(header.gpus)} GPU columns but no row for {', '.join(missing)}: the matrix is incomplete"
        )
    strangers = [f"GPU{gpu}" for gpu in rows if gpu not in header.gpus]
    if strangers:
        raise Unreadable(f"a row but no column for {', '.join(strangers)}")
    for place, gpu in enumerate(header.gpus):
        if [i for i, cell in enumerate(rows[gpu].cells) if cell == "X"] != [place]:
            raise Unreadable(f"row GPU{gpu} has its X in another column than its own")
    final = rows[block.rows[-1][0]]
    is_last = not any(line.strip() for line in pasted.lines[block.last_line + 1 :])
    others = [row for row in rows.values() if row is not final]
    ends_open = bool(pasted.lines[-1].strip())
    if is_last and ends_open and any(_is_cut(final, row) or final.fields < row.fields for row in others):
        raise Unreadable(f"row GPU{block.rows[-1][0]} ends inside its affinity: the matrix is cut off")
    most = max(row.printed for row in rows.values())
    shown = final.printed if ends_open else max(final.printed, final.fields)
    if is_last and shown < (most if len(rows) > 1 else len(header.titles)):
        raise Unreadable(f"row GPU{block.rows[-1][0]} ends before its affinity: the matrix is cut off")


def _is_cut(row: _Row, other: _Row) -> bool:
    """Whether the last value of ``row`` is the beginning of what another row has there."""
    pairs = [(row.cpu, other.cpu), (row.numa, other.numa)]
    mine, theirs = next((pair for pair in reversed(pairs) if pair[0]), (None, None))
    return bool(mine and theirs and mine != theirs and theirs.startswith(mine))


def _topo(header: _Header, rows: Iterable[_Row], pasted: Pasted) -> dict[str, Any]:
    rows = list(rows)
    count = len(header.gpus)
    pairs = [cell for row in rows for cell in row.cells[:count] if cell != "X"]
    return {
        "kind": "topo_m",
        "gpu_count": count,
        "gpu_ids": list(header.gpus),
        "links": [list(row.cells[:count]) for row in rows],
        "numa_per_gpu": [row.numa for row in rows],
        "cpu_affinity_per_gpu": [row.cpu for row in rows],
        "nic_count": len(header.nics),
        "nics": _nic_names(header.nics, pasted.lines),
        "nic_links": [list(row.cells[count:]) for row in rows],
        "all_on_pcie": all(cell in LINK_CLASSES for cell in pairs) if pairs else None,
    }


def _nic_names(nics: Sequence[str], lines: Iterable[str]) -> list[str]:
    """Return the NICs' device names, from the NIC legend where the columns are only numbered."""
    legend = {match[1]: match[2] for line in lines if (match := _NIC_LEGEND.match(line))}
    return [legend.get(nic, nic) for nic in nics]


def _p2p(header: _Header, rows: Iterable[_Row], pasted: Pasted) -> dict[str, Any]:
    asked = {match[1] for command in pasted.commands if (match := re.search(r"-p2p ([rwnap])\b", command))}
    return {
        "kind": "p2p",
        "gpu_count": len(header.gpus),
        "gpu_ids": list(header.gpus),
        "status": [list(row.cells[: len(header.gpus)]) for row in rows],
        "capability": asked.pop() if len(asked) == 1 else None,
    }
