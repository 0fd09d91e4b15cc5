# SPDX-License-Identifier: Apache-2.0
"""The list forms of nvidia-smi: ``--query-gpu`` CSV, ``-L``, ``--version`` and the plain table.

Each reader takes the lines that :mod:`pasted` and :mod:`smi_error` left, and returns the facts or raises Unreadable.
GPUs are dicts by the field names of ``--query-gpu``, values as printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from .matrix import Unreadable
from .pasted import rejoinings
from .smi_error import SmiError, bad_cell

Gpu = dict[str, Any]

_ALONE = re.compile(
    r"(?:NVIDIA|Tesla|Quadro|GeForce) [A-Z][\w -]{0,60}\d[\w -]{0,40}|[0-9A-F]{8}:[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]"
    r"|GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
)
"""Values that make a line of its own certain to be of a query for one field."""
_FIGURE = re.compile(r"-?[\d.]+(?: ?\S+)?|\[.*|N/A|ERR!")
_NO_VALUE = re.compile(r"\[(?:GPU is lost|GPU requires reset|Unknown Error)\]")
"""What stands in place of a value in no other tool's lines."""
_FIELD = re.compile(r"([a-z]\w*(?:\.\w+)*)(?: \[?([^\]]+)\])?", re.ASCII)
"""A name and its unit; driver 610 forgets a bracket of some."""
_VALUE = re.compile(r"[^a-z]*|0x[0-9a-f]+|P\d+|[A-Z][a-z]+")
"""Lines that can be no part of a header: they are the rows of a query for one field."""
_PLAIN_FIELDS = frozenset(
    (
        *("compute_cap", "compute_mode", "count", "display_active", "display_attached", "display_mode"),
        *("driver_version", "gpu_bus_id", "gpu_name", "gpu_serial", "gpu_uuid", "index", "name", "persistence_mode"),
        *("pstate", "serial", "timestamp", "uuid", "vbios_version", "addressing_mode"),
    )
)
_OTHER_QUERIES = {
    "pid": "--query-compute-apps",
    "gpu_instance": "--query-accounted-apps",
    "retired_pages.address": "--query-retired-pages",
    "remapped_rows.correctable": "--query-remapped-rows",
}
_AMBIGUOUS = frozenset({"remapped_rows.correctable"})
_OF_REMAPPED_ROWS = ("timestamp", "gpu_", "remapped_rows.")
"""How all names of --query-remapped-rows begin; newer drivers have the last ones in --query-gpu as well."""
_UUID = r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_CERTAIN: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("uuid", re.compile(_UUID)),
    ("pci.bus_id", re.compile(r"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]")),
    ("name", re.compile(r"(?:NVIDIA|Tesla|Quadro|GeForce|GRID|TITAN) ?\S.*")),
    ("driver_version", re.compile(r"\d{3}\.\d{2,3}\.\d{2}")),
    ("compute_cap", re.compile(r"\d{1,2}\.\d")),
    ("timestamp", re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d+")),
    ("pstate", re.compile(r"P(?:1[0-5]|\d)")),
)
"""Values that can be of one field only. Two-part numbers (595.80) can be watts as well as a driver: not here."""
_IDENTITIES = ("index", "pci.bus_id")
"""Fields that tell GPUs apart. A UUID does too, but people blank it before they show it."""
_ANCHORS = frozenset({"uuid", "pci.bus_id", "name"})
_MOST_HEADER_LINES = 6
_NARROWEST = 40
_USUAL_WIDTH = 80


def is_header(line: str) -> bool:
    """Whether ``line`` consists of names of query fields."""
    names = [_FIELD.fullmatch(field.strip()) for field in line.split(",")]
    plain = [name[1] for name in names if name]
    return len(plain) == len(names) and any("." in name or name in _PLAIN_FIELDS or name == "pid" for name in plain)


def looks_like_query(lines: Sequence[str]) -> bool:
    """Whether the lines are a ``--query-gpu`` answer in CSV form."""
    return bool(_csv_lines(lines))


def _csv_lines(lines: Iterable[str]) -> list[str]:
    """Return the lines that belong to the CSV: paragraphs around it that hold none of it are somebody's words."""
    kept: list[str] = []
    header = ""
    for paragraph in _paragraphs(lines):
        heads = [place for place, line in enumerate(paragraph) if _starts_header(line)]
        start = heads[0] if heads and not header else 0
        header = header or (paragraph[start] if heads else "")
        if heads or any(_is_anchored(line) or _fits(line, header) for line in paragraph):
            kept += paragraph[start:]
    return kept


def _paragraphs(lines: Iterable[str]) -> list[list[str]]:
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [paragraph for paragraph in paragraphs if paragraph]


def _starts_header(line: str) -> bool:
    return is_header(line) or ("," in line and is_header(line.rsplit(",", 1)[0]))


def _is_nearly_header(line: str) -> bool:
    """Whether ``line`` names fields, though not all of it can be understood: no row of values does."""
    known = [field for field in line.split(",") if is_header(field)]
    return _starts_header(line) or 2 * len(known) > line.count(",") + 1


def _fits(line: str, header: str) -> bool:
    """Whether ``line`` may be a row under ``header``: as many fields, and figures where it names numbers or units."""
    fields, values = [[text.strip() for text in row.split(",")] for row in (header, line)]
    return (
        len(fields) > 1
        and len(fields) == len(values)
        and all(
            _FIGURE.fullmatch(value)
            for field, value in zip(fields, values, strict=True)
            if field == "index" or "[" in field
        )
    )


def _is_anchored(line: str) -> bool:
    values = [value.strip() for value in line.split(",")]
    anchors = [pattern for name, pattern in _CERTAIN if name in _ANCHORS]
    if len(values) == 1:
        return bool(_ALONE.fullmatch(values[0]) or _NO_VALUE.fullmatch(values[0]))
    return any(pattern.fullmatch(value) for value in values for pattern in (*anchors, _NO_VALUE))


def read_query(lines: Iterable[str], errors: list[SmiError], columns: Sequence[str] | None = None) -> dict[str, Any]:
    """Read ``--query-gpu`` CSV. ``columns`` names the fields of a text without a header."""
    lines = list(lines)
    names, units, filled = _take_header(_csv_lines(lines) or [line for line in lines if line.strip()])
    if names is None and filled and _is_nearly_header(filled[0]):
        raise Unreadable(f"the header {filled[0]!r} is cut off or has an unknown field", "query")
    if names is None and columns:
        names = [_FIELD.sub(r"\1", column.strip()) for column in columns]
    rows = _rows(filled, len(names) if names else None)
    _check_last(rows, ends_open=bool(lines) and bool(lines[-1].strip()))
    if names is None:
        names = _named_by_form(rows)
    _refuse_other_queries(names)
    gpus = [dict(zip(names, row, strict=True)) for row in rows]
    distinct = _distinct(gpus)
    _check_rows(distinct)
    return {
        "kind": "query",
        "gpu_count": len(distinct),
        "gpus": distinct,
        **({"units": units} if units else {}),
        **stated([*errors, *_errors_in(distinct)]),
    }


def stated(errors: Iterable[SmiError]) -> dict[str, Any]:
    """Return the keys that state errors: messages, and where there are any, the GPUs they name and their causes."""
    errors = list(errors)
    lost = [{"index": e.index, "bus_id": e.bus_id, "message": e.message} for e in errors if e.index or e.bus_id]
    return {
        "errors": [error.message for error in errors],
        **({"lost": lost} if lost else {}),
        **({"causes": [error.as_dict() for error in errors]} if errors else {}),
    }


def _take_header(lines: list[str]) -> tuple[list[str] | None, dict[str, str], list[str]]:
    """Return names, units and the lines below, with a wrapped header put together."""
    values = next((place for place, line in enumerate(lines) if _VALUE.fullmatch(line.strip())), len(lines))
    for count in range(min(values, _MOST_HEADER_LINES), 0, -1):
        readings = {tuple(_fields(joined)) for joined in rejoinings(lines[:count]) if is_header(joined)}
        if len(readings) == 1:
            fields = readings.pop()
            return [name for name, _ in fields], {name: unit for name, unit in fields if unit}, lines[count:]
    return None, {}, lines


def _fields(header: str) -> list[tuple[str, str | None]]:
    return [(match[1], match[2]) for field in header.split(",") if (match := _FIELD.fullmatch(field.strip()))]


def _rows(lines: list[str], wanted: int | None) -> list[list[str]]:
    """Split lines into fields; put wrapped ones together. ``wanted``: fields in a row, or None when unknown."""
    split = [[field.strip() for field in line.split(",")] for line in lines]
    if wanted is None:
        wanted = max((len(row) for row in split), default=0)
    if not split:
        raise Unreadable("no row of any GPU", "query")
    if all(len(row) == wanted for row in split):
        return split
    groups = _grouped(lines, wanted)
    width = _terminal_width(groups)
    return [_rejoined(group, wanted, width) for group in groups]


def _check_last(rows: list[list[str]], *, ends_open: bool) -> None:
    """Raise Unreadable where the last row is cut inside its last field. nvidia-smi prints no empty field."""
    last = rows[-1][-1]
    others = [row[-1] for row in rows[:-1]]
    unit = others[0].partition(" ")[2] if others else ""
    lacks_unit = bool(unit) and all(other.endswith(f" {unit}") for other in others) and not last.endswith(f" {unit}")
    is_beginning = any(other != last and other.startswith(last) for other in others)
    if not last or (ends_open and (is_beginning or (lacks_unit and not last.startswith("[")))):
        raise Unreadable(f"the last row ends with {last!r}: it is cut off", "query")


def _grouped(lines: list[str], wanted: int) -> list[list[str]]:
    """Gather the pieces of each row, going by its number of commas."""
    groups: list[list[str]] = []
    for line in lines:
        unfinished = groups and sum(piece.count(",") for piece in groups[-1]) < wanted - 1
        if unfinished or (groups and "," not in line):
            groups[-1].append(line)
        else:
            groups.append([line])
    return groups


def _terminal_width(groups: list[list[str]]) -> int | None:
    """Return the width at which a terminal cut the lines, or None when the pieces don't show one."""
    cut = [len(piece) for group in groups for piece in group[:-1]]
    width = max(cut, default=0)
    sure = cut.count(width) > 1 or width == _USUAL_WIDTH
    return width if width >= _NARROWEST and sure and all(length in (width, width - 1) for length in cut) else None


def _rejoined(pieces: list[str], wanted: int, width: int | None) -> list[str]:
    if width:  # a terminal fills its lines: only a blank can be missing at the end of one
        candidates = ["".join(piece.ljust(width) for piece in pieces[:-1]) + pieces[-1]]
    else:
        candidates = list(rejoinings(pieces))
    readings: list[list[str]] = []
    for text in candidates:
        row = [field.strip() for field in text.split(",")]
        if len(row) == wanted and row not in readings:
            readings.append(row)
    if len(readings) != 1:
        shown = " / ".join(pieces)
        why = f"can be read in {len(readings)} ways" if readings else f"does not have {wanted} fields: it is cut off"
        raise Unreadable(f"row {shown!r} {why}", "query")
    return readings[0]


def _named_by_form(rows: list[list[str]]) -> list[str]:
    """Name the columns whose values can be of one field only; call the others ``column_1`` and so on."""
    names: list[str] = []
    for place, values in enumerate(zip(*rows, strict=True)):
        fitting = [name for name, form in _CERTAIN if all(form.fullmatch(value) for value in values)]
        if not place and len(values) > 1 and list(values) == sorted(set(values), key=_as_number):
            fitting = fitting or (["index"] if all(value.isdecimal() for value in values) else [])
        taken = not fitting or fitting[0] in names
        names.append(f"column_{place + 1}" if taken else fitting[0])
    return names


def _as_number(text: str) -> int:
    return int(text) if text.isdecimal() else -1


def _refuse_other_queries(names: Sequence[str]) -> None:
    for name, option in _OTHER_QUERIES.items():
        if name in names and (name not in _AMBIGUOUS or all(other.startswith(_OF_REMAPPED_ROWS) for other in names)):
            raise Unreadable(f"this is the answer to {option}, not to --query-gpu", "query")


def _distinct(gpus: list[Gpu]) -> list[Gpu]:
    """Return GPUs without repetitions, as far as the rows say which GPU they are about."""
    if not any(key in gpu for gpu in gpus for key in _IDENTITIES):
        return gpus
    return [gpu for place, gpu in enumerate(gpus) if gpu not in gpus[:place]]


def _check_rows(gpus: list[Gpu]) -> None:
    """Raise Unreadable where the rows contradict each other or their own count."""
    for key in _IDENTITIES:
        values = [gpu[key] for gpu in gpus if key in gpu and re.search(r"\d", gpu[key])]
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise Unreadable(f"{key} {', '.join(twice)} appears more than once: several samples in one text?", "query")
    counts = {gpu["count"] for gpu in gpus if gpu.get("count", "").isdecimal()}
    if counts and counts != {str(len(gpus))}:
        raise Unreadable(f"the rows say {', '.join(sorted(counts))} GPUs, but there are {len(gpus)} rows", "query")


def _errors_in(gpus: Iterable[Gpu]) -> list[SmiError]:
    """Return an error for each GPU that has a message in place of a value."""
    errors = []
    for gpu in gpus:
        messages = sorted({bad for value in gpu.values() if isinstance(value, str) and (bad := bad_cell(value))})
        if messages:
            errors.append(gpu_error(gpu, ", ".join(messages)))
    return errors


def gpu_error(gpu: Gpu, message: str) -> SmiError:
    """Return the error that ``gpu`` shows ``message`` in place of values, naming it as well as can be."""
    known = {key: gpu[key] for key in ("index", "pci.bus_id", "uuid") if gpu.get(key) and not bad_cell(gpu[key])}
    index, bus_id = known.get("index"), known.get("pci.bus_id")
    where = bus_id or known.get("uuid") or ""
    who = f"GPU{index or ''} {where}".strip()
    return SmiError(f"{who}: {message}", "gpu-lost", index, bus_id)


_LISTED = re.compile(r"^\s*GPU\s+(\d+): (.*?)\s*\(UUID: ([^()\s][^()]*)\)\s*$")
_LISTED_START = re.compile(r"^\s*GPU\s+\d+:")
_LISTED_MIG = re.compile(r"^\s*MIG\s+(\S+)\s+Device\s+(\d+):\s+\(UUID: (MIG-[^)\s]+)\)\s*$")


def looks_like_list(lines: Iterable[str]) -> bool:
    """Whether some line is one of ``nvidia-smi -L``."""
    return any(_LISTED_START.match(line) for line in lines)


def read_list(lines: Iterable[str], errors: list[SmiError]) -> dict[str, Any]:
    """Read ``nvidia-smi -L``. MIG devices are listed under their GPU and are no GPUs."""
    gpus: list[Gpu] = []
    for pieces in _records([line for line in lines if line.strip()]):
        text, mig = _listed(pieces)
        if mig:
            if not gpus:
                raise Unreadable("a MIG device before any GPU: the list is cut off", "list")
            gpus[-1].setdefault("mig_devices", []).append({"profile": mig[1], "device": mig[2], "uuid": mig[3]})
        elif text:
            gpus.append({"index": text[1], "name": text[2], "uuid": text[3]})
    distinct = _distinct(gpus)
    _check_rows(distinct)
    return {"kind": "list", "gpu_count": len(distinct), "gpus": distinct, **stated(errors)}


def _records(lines: Iterable[str]) -> list[list[str]]:
    records: list[list[str]] = []
    for line in lines:
        if _LISTED_START.match(line) or re.match(r"^\s*MIG\s", line):
            records.append([line])
        elif records and not _listed_or_none(records[-1]):
            records[-1].append(line)
    return records


def _listed_or_none(pieces: list[str]) -> bool:
    try:
        return any(_listed(pieces))
    except Unreadable:
        return False


def _listed(pieces: list[str]) -> tuple[re.Match[str] | None, re.Match[str] | None]:
    readings = {}
    for text in rejoinings(pieces):
        gpu = _LISTED.match(text)
        if gpu and len(pieces) > 1 and not re.fullmatch(_UUID, gpu[3], re.IGNORECASE):
            gpu = None
        mig = _LISTED_MIG.match(text)
        if gpu or mig:
            readings[(gpu or mig).groups()] = (gpu, mig)  # type: ignore[union-attr]  # one of them is there
    if len(readings) != 1:
        why = "can be read in several ways" if readings else "is cut off"
        raise Unreadable(f"line {' / '.join(pieces)!r} {why}", "list")
    return next(iter(readings.values()))


_VERSION = re.compile(
    r"^\s*(NVIDIA-SMI version|NVML version|DRIVER version|KMD version|CUDA (?:UMD )?Version)\s*:\s*(\S.*?)\s*$",
    re.IGNORECASE,
)
_VERSION_KEYS = {
    "nvidia-smi version": "nvidia_smi_version",
    "nvml version": "nvml_version",
    "driver version": "driver_version",
    "kmd version": "driver_version",
    "cuda version": "cuda_version",
    "cuda umd version": "cuda_version",
}
"""The newer name of each last: it counts."""


def is_said(version: str | None) -> bool:
    """Whether there is a version and not only a word on where it is now (driver 610)."""
    return bool(version) and not str(version).startswith("Deprecated")


def read_version(lines: Iterable[str], errors: list[SmiError]) -> dict[str, Any] | None:
    """Read ``nvidia-smi --version``, or return None where the lines are something else."""
    said = {match[1].lower(): match[2] for line in lines if (match := _VERSION.match(line)) and is_said(match[2])}
    found = {key: said[name] for name, key in _VERSION_KEYS.items() if name in said}
    if "nvidia_smi_version" not in found:
        return None
    facts: dict[str, Any] = {"kind": "version", **found, **stated(errors)}
    driver = found.get("driver_version")
    if driver is None or not re.fullmatch(r"\d+\.\d+(?:\.\d+)?", driver):
        raise Unreadable(f"the driver version is {'missing' if driver is None else repr(driver)}", "version")
    return facts


_TABLE_HEAD = re.compile(r"^\s*\|\s*NVIDIA-SMI\s+([\d.]+)(?:\s+\S.*)?\|\s*$", re.MULTILINE)
_TABLE_VERSIONS = (
    ("driver_version", re.compile(r"(?:Driver|KMD) Version:\s*([\d.]+)")),
    ("cuda_version", re.compile(r"CUDA (?:UMD )?Version:\s*([\d.]+)")),
)
_TABLE_FIRST = re.compile(
    r"^\s*\|\s*(\d+)\s+(\S.*?)\s+(On|Off|N/A|ERR!|TCC|WDDM|MCDM)\s*\|\s*(\S+)\s+(On|Off|N/A|ERR!)\s*\|\s*(\S+)\s*\|\s*$"
)
_TABLE_SECOND = re.compile(
    r"^\s*\|\s*(?P<fan>\S+)\s+(?P<temp>\S+)\s+(?P<pstate>\S+)\s+(?P<draw>\S+)\s*/\s*(?P<limit>\S+)\s*\|"
    r"\s*(?P<used>\S+)\s*/\s*(?P<total>\S+)\s*\|\s*(?P<util>\S+)\s+(?P<mode>\S.*?)\s*\|\s*$"
)
_TABLE_THIRD = re.compile(r"^\s*\|\s*\|\s*\|\s*(Enabled\*?|Disabled\*?|N/A|ERR!)\s*\|\s*$")
_TABLE_PROCESS = re.compile(r"^\s*\|\s*(\d+)\s+(?:\S+\s+\S+\s+)?(\d+)\s+([CGM+]+)\s+(\S.*?)\s+(\d+MiB|N/A)\s*\|\s*$")


def looks_like_table(lines: Iterable[str]) -> bool:
    """Whether the lines hold the head of nvidia-smi's plain table."""
    return bool(_TABLE_HEAD.search("\n".join(_unwrapped_table(lines))))


def _unwrapped_table(lines: Iterable[str]) -> list[str]:
    """Put rows together that a terminal narrower than the table cut: they start with a border and lack their last."""
    lines = list(lines)
    cut = [line for line in lines if re.match(r"\s*[|+].*[^|+\s]\s*$|\s*[|+][-=|+\s]*$", line)]
    width = max((len(line) for line in cut), default=0)
    joined: list[str] = []
    for line in lines:
        if joined and re.match(r"\s*[|+]", joined[-1]) and not _is_table_row(joined[-1]) and line.strip():
            joined[-1] = joined[-1].ljust(width) + line
        else:
            joined.append(line)
    return joined


def _is_table_row(line: str) -> bool:
    return bool(re.match(r"\s*(?:\|.*\||\+.*\+)\s*$", line)) and len(line.rstrip()) > _USUAL_WIDTH - 2


def read_table(lines: Sequence[str], errors: list[SmiError]) -> dict[str, Any]:
    """Read nvidia-smi's plain table, drivers 390 to 610. Names that nvidia-smi shortened end in ``...``, as printed."""
    lines = _unwrapped_table(lines)
    text = "\n".join(lines)
    head = _TABLE_HEAD.search(text)
    versions = {name: match[1] for name, form in _TABLE_VERSIONS if (match := form.search(text))}
    processes_at = next((n for n, line in enumerate(lines) if re.match(r"^\s*\|\s*Processes:", line)), None)
    if processes_at is None:
        raise Unreadable("the table ends before its list of processes: GPUs may be missing", "table")
    gpus = _table_gpus(lines[:processes_at])
    if not gpus:
        raise Unreadable("no GPU row in the table", "table")
    processes = [
        {"gpu": match[1], "pid": match[2], "type": match[3], "process_name": match[4], "used_memory": match[5]}
        for line in lines[processes_at:]
        if (match := _TABLE_PROCESS.match(line))
    ]
    return {
        "kind": "table",
        "nvidia_smi_version": head[1] if head else None,
        **versions,
        "gpu_count": len(gpus),
        "gpus": gpus,
        "processes": processes,
        **stated([*errors, *_errors_in(gpus)]),
    }


def _table_gpus(lines: Iterable[str]) -> list[Gpu]:
    gpus: list[Gpu] = []
    for line in lines:
        first = _TABLE_FIRST.match(line)
        second = _TABLE_SECOND.match(line)
        third = _TABLE_THIRD.match(line)
        if first:
            keys = ("index", "name", "persistence_mode", "pci.bus_id", "display_active",
                    "ecc.errors.uncorrected.volatile.total")  # fmt: skip
            gpus.append(dict(zip(keys, first.groups(), strict=True)))
        elif second and gpus:
            gpus[-1].update(_second_line(second))
        elif third and gpus:
            gpus[-1]["mig.mode.current"] = third[1]
    halves = [gpu["index"] for gpu in gpus if "memory.total" not in gpu]
    if halves:
        raise Unreadable(f"GPU {', '.join(halves)} lacks its second line: the table is cut off or altered", "table")
    return gpus


def _spaced(value: str) -> str:
    """Return a value of the table as ``--query-gpu`` prints it: ``188W`` is ``188 W``."""
    return re.sub(r"(?<=\d)(?=[A-Za-z%])", " ", value)


def _second_line(match: re.Match[str]) -> Gpu:
    return {
        "fan.speed": _spaced(match["fan"]),
        "temperature.gpu": match["temp"].rstrip("C"),
        "pstate": match["pstate"],
        "power.draw": _spaced(match["draw"]),
        "power.limit": _spaced(match["limit"]),
        "memory.used": _spaced(match["used"]),
        "memory.total": _spaced(match["total"]),
        "utilization.gpu": _spaced(match["util"]),
        "compute_mode": match["mode"],
    }
