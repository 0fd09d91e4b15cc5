# SPDX-License-Identifier: Apache-2.0
"""Matrices as hypothesis strategies, and the layouts in which nvidia-smi and its readers pass them on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

LINKS = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "NV1", "NV2", "NV4", "NV12", "NV18")
STATUSES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
LEGEND = "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n"
P2P_LEGEND = "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"


@dataclass(frozen=True)
class Matrix:
    ids: tuple[int, ...]
    nics: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    """Rows of all devices, GPUs first; X on the diagonal."""
    cpu: tuple[str, ...]
    """As printed, empty where blank."""
    numa: tuple[str, ...]

    def facts(self, titles: int) -> dict[str, Any]:
        """Return what the parser has to say when ``titles`` of the affinity columns were shown."""
        count = len(self.ids)
        known = [value if value not in ("", "N/A") else None for value in (*self.cpu, *self.numa)]
        return {
            "gpu_ids": list(self.ids),
            "links": [list(row[:count]) for row in self.cells[:count]],
            "cpu_affinity_per_gpu": known[:count] if titles > 0 else [None] * count,
            "numa_per_gpu": known[count:] if titles > 1 else [None] * count,
            "nic_count": len(self.nics),
        }


ranges = st.lists(
    st.tuples(st.integers(0, 255), st.integers(0, 63)).map(lambda pair: f"{pair[0]}-{pair[0] + pair[1] + 1}"),
    min_size=1,
    max_size=3,
).map(",".join)
cpu_lists = st.one_of(st.just(""), st.just("N/A"), ranges, st.integers(0, 255).map(str))
numa_lists = st.one_of(st.just(""), st.just("N/A"), st.integers(0, 15).map(str), st.just("0-3"))


@st.composite
def matrices(draw: st.DrawFn, most: int = 10) -> Matrix:
    ids = sorted(draw(st.sets(st.integers(0, 17), min_size=1, max_size=most)))
    form = draw(st.sampled_from(("NIC{}", "mlx5_{}", "bnxt_re{}")))
    nics = [form.format(number) for number in range(draw(st.integers(0, 4)))]
    total = len(ids) + len(nics)
    cells = [["X"] * total for _ in range(total)]
    for i in range(total):
        for j in range(i):
            cells[i][j] = cells[j][i] = draw(st.sampled_from(LINKS))
    cpu = [draw(cpu_lists) for _ in ids]
    numa = [draw(numa_lists) for _ in ids]
    return Matrix(tuple(ids), tuple(nics), tuple(map(tuple, cells)), tuple(cpu), tuple(numa))


def tabbed(matrix: Matrix, titles: int = 3, underlined: bool = False, padded: bool = False) -> str:
    """Render nvidia-smi's own layout: ``titles`` affinity columns; ``padded``: two tabs after a short CPU list."""
    names = [f"GPU{number}" for number in matrix.ids] + list(matrix.nics)
    shown = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"][:titles]
    head = "\t".join([*names, *shown])
    lines = ["\t" + (f"\x1b[4m{head}\x1b[0m" if underlined else head)]
    for place, (name, row) in enumerate(zip(names, matrix.cells, strict=True)):
        fields = [name, *(" X " if cell == "X" else cell for cell in row)]
        if place < len(matrix.ids):
            cpu = (
                f"{matrix.cpu[place]}\t" if padded and titles > 1 and len(matrix.cpu[place]) < 8 else matrix.cpu[place]
            )
            fields += [cpu, matrix.numa[place], "", "N/A"][: titles + (titles == 3)]
        lines.append("\t".join(fields))
    return "\n".join(lines) + "\n"


def expanded(text: str) -> str:
    """Return the same with tabs turned into blanks, as terminals and chats do."""
    return "\n".join(line.expandtabs(8).rstrip() for line in text.split("\n"))


def narrow(matrix: Matrix, width: int = 7) -> str:
    """GPU columns only, put in columns by hand."""
    names = [f"GPU{number}" for number in matrix.ids]
    lines = ["".ljust(width) + "".join(name.ljust(width) for name in names).rstrip()]
    for name, row in zip(names, matrix.cells, strict=False):
        lines.append(name.ljust(width) + "".join(cell.center(4).ljust(width) for cell in row[: len(names)]).rstrip())
    return "\n".join(lines) + "\n"


def wrapped(text: str, width: int, trim: bool = False) -> str:
    """Return the same cut by a terminal ``width`` columns wide."""
    pieces: list[str] = []
    for line in expanded(text).split("\n"):
        rest = line
        while len(rest) > width:
            pieces.append(rest[:width].rstrip() if trim else rest[:width])
            rest = rest[width:]
        pieces.append(rest)
    return "\n".join(pieces)


def p2p(ids: tuple[int, ...], cells: list[list[str]], tabs: bool) -> str:
    names = [f"GPU{number}" for number in ids]
    if tabs:
        lines = [" \t" + "\t".join(names) + "\t"]
        lines += [f" {name}\t" + "\t".join(row) + "\t" for name, row in zip(names, cells, strict=True)]
    else:
        lines = ["        " + "".join(name.ljust(8) for name in names).rstrip()]
        lines += [f" {name}".ljust(8) + "".join(cell.ljust(8) for cell in row).rstrip()
                  for name, row in zip(names, cells, strict=True)]  # fmt: skip
    return "\n".join(lines) + "\n"


def _each_line(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "\n".join(change(line) for line in text.rstrip("\n").split("\n")) + "\n"


JOURNEYS: dict[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "CRLF": lambda text: text.replace("\n", "\r\n"),
    "Markdown fence": lambda text: f"```console\n{text}```\n",
    "quoted": _each_line(lambda line: f"> {line}"),
    "quoted twice": _each_line(lambda line: f">> {line}"),
    "root prompt": lambda text: f"root@gpu1:~# nvidia-smi topo -m\n{text}root@gpu1:~# \n",
    "conda prompt": lambda text: f"(base) [user@node ~]$ nvidia-smi topo -m\n{text}",
    "dollar prompt": lambda text: f"$ nvidia-smi topo -m\n{text}$\n",
    "PowerShell prompt": lambda text: f"PS C:\\Users\\me> nvidia-smi topo -m\n{text}",
    "ISO time": _each_line(lambda line: f"2026-11-30T06:24:22.123Z {line}"),
    "bracketed time": _each_line(lambda line: f"[2026-11-30 06:24:22] {line}"),
    "syslog": _each_line(lambda line: f"Nov 30 06:24:22 gpu1 check[123]: {line}"),
    "docker compose": _each_line(lambda line: f"vllm-1  | {line}"),
    "Python logging": _each_line(lambda line: f"INFO:root:{line}"),
    "vLLM logging": _each_line(lambda line: f"INFO 11-30 06:24:22 [collect_env.py:12] {line}"),
    "indented": _each_line(lambda line: f"    {line}"),
    "tab before": _each_line(lambda line: f"\t{line}"),
    "commented out": _each_line(lambda line: f"# {line}"),
    "cat -n": lambda text: "".join(f"{n:6}\t{line}\n" for n, line in enumerate(text.rstrip("\n").split("\n"), 1)),
    "tmux pane": _each_line(lambda line: f"│{line.expandtabs(8)}│"),
    "non-breaking blanks": lambda text: text.replace(" ", "\u00a0"),
    "UTF-16 file": lambda text: text.encode("utf-16").decode("utf-8", errors="replace"),
    "byte order mark": lambda text: f"\ufeff{text}",
    "coloured": _each_line(lambda line: f"\x1b[32m{line}\x1b[0m"),
    "visible escapes": _each_line(lambda line: f"^[[4m{line}^[[0m"),
    "Python string": repr,
    "double-spaced": lambda text: text.replace("\n", "\n\n"),
    "trailing blanks": _each_line(lambda line: f"{line}   "),
    "in a letter": lambda text: f"Hi, here is my output:\n\n{text}\nIs this normal? Thanks\n",
    "HTML": lambda text: f"<pre>\n{text}</pre>\n",
}
"""What happens to a text between a terminal and this program."""
