# SPDX-License-Identifier: Apache-2.0
"""What the runs left in ``reports/HOST``, read and checked: a document of another shape is named, never drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.program import ProgramError, nearest

Json = dict[str, Any]

FACTS = "facts"
"""Folder below that of a host for what is no report of an instance: topology, settings, histories."""


@dataclass(frozen=True)
class Each:
    """A mapping whose keys may be any, with values of one shape."""

    of: Any


NUMBER = (int, float)
_NAMES = {str: "a text", bool: "true or false", int: "a whole number", NUMBER: "a number", dict: "a mapping",
          list: "a list"}  # fmt: skip
_MOST_SHOWN = 60

NOT_CHECKED = [{"id": str, "why": str}]
FINDINGS = [{
    **dict.fromkeys(("id", "level", "what", "seen", "expected", "fix", "repaired_by"), str), "where": [str],
}]  # fmt: skip
_GPU = {
    **dict.fromkeys(("index", "name", "pci.bus_id", "memory.total", "vbios_version", "mig.mode.current"), str),
    **dict.fromkeys((f"pcie.link.{what}" for what in ("gen.max", "gen.current", "width.max", "width.current")), str),
    "bridges": [str],
    "numa_node": str,
}
_MATRIX = [[str]]
TOPOLOGY = {
    "ok": bool,
    "summary": str,
    "expectation": str,
    "fingerprint": str,
    "findings": FINDINGS,
    "not_checked": NOT_CHECKED,
    "waived": Each(str),
    "facts": {
        "gpu_count": int, "driver_version": str, "firmware": Each(str), "gpus": [_GPU], "gpu_ids": [int],
        "links": _MATRIX, "nic_links": _MATRIX, "nics": [str], "p2p": Each(_MATRIX),
        "numa_per_gpu": [str], "cpu_affinity_per_gpu": [str],
    },
}  # fmt: skip
_MARK = {"value": NUMBER, "source": str, "better_by_percent": NUMBER}
_SPREAD = {"median": NUMBER, "min": NUMBER, "max": NUMBER}
_SHAPE = {"concurrency": int, "tok_s": _SPREAD, "decode_tok_s": _SPREAD, "ttft_s": Each(NUMBER)}
PROOF = {
    "ok": bool,
    "findings": FINDINGS,
    "not_checked": NOT_CHECKED,
    "facts": {
        "command": str, "settings": Each(Any), "nccl": Each(Any), "process": {"program": str, "processes": int},
    },
}  # fmt: skip
SMOKE = {
    "ok": bool,
    "findings": FINDINGS,
    "not_checked": NOT_CHECKED,
    "run": {"started": str, "model": str, "engine": str, "seconds": NUMBER, "settings": Each(Any)},
    "stages": [{"name": str, "status": str, "note": str, "seconds": NUMBER}],
    "gate": {
        "verdict": str,
        "metrics": Each(NUMBER),
        "rows": [{
            "metric": str, "value": NUMBER, "floor": _MARK, "target": _MARK, "reference": _MARK, "baseline": NUMBER,
            "baseline_runs": int, "allowed": NUMBER, "failures": [str], "warnings": [str],
        }],
    },
    "proof": PROOF,
    "throughput": {"single": _SHAPE, "concurrent": _SHAPE, "sweep": [_SHAPE],
                   "prefill": [{"length": int, "ttft_s": Each(NUMBER)}]},
}  # fmt: skip
REPORT = {
    "host": str,
    "instance": str,
    "generation": str,
    "passed": bool,
    "mode": str,
    "smoke": SMOKE,
    "engaged": {
        "unit": {"name": str, "active": str, "status": str, "restarts": int},
        "release": {"name": str, "version": str, "variant": str, "engine": str, "created": str,
                    "patches": [{"id": str, "state": str, "reason": str}], "changed_files": [str]},
        "start": {"ready_after_s": NUMBER, "started_at": str, "model": str,
                  "phases": [{"phase": str, "seconds": NUMBER}]},
        "nccl_environment": Each(str),
    },
    "topology": TOPOLOGY,
}  # fmt: skip
SETTINGS = {
    "settings": [{"setting": str, "state": str, "what": str, "why": str, "reboot": bool}],
    "not_done": [str],
    "findings": FINDINGS,
    "reboot": [str],
}
RUN = {"when": str, "passed": bool, "release": str, "generation": str, "metrics": Each(NUMBER)}
"""A line of a history."""

REQUIRED = ("host", "instance", "generation", "passed", "mode", "engaged")
"""Keys without which a document is no report of an instance."""


def check_shape(document: Any, shape: Any, path: str = "") -> None:
    """Raise ProgramError where a value is of another type than ``shape`` says. Null and absent are always fine."""
    if document is None or shape is Any:
        return
    if isinstance(shape, Each):
        for key, value in _a(dict, document, path).items():
            check_shape(value, shape.of, f"{path}.{key}")
    elif isinstance(shape, Mapping):
        known = _a(dict, document, path)
        for key, inner in shape.items():
            check_shape(known.get(key), inner, f"{path}.{key}".lstrip("."))
    elif isinstance(shape, list):
        for place, value in enumerate(_a(list, document, path)):
            check_shape(value, shape[0], f"{path}[{place}]")
    else:
        _a(shape, document, path)


def _a(kind: Any, value: Any, path: str) -> Any:
    """Return ``value`` if it is of ``kind``; true and false are no numbers."""
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    shown = json.dumps(value)
    shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."
    raise ProgramError(f"{path}: {_NAMES[kind]} is expected, seen {shown}")


def document_of(text: str, name: str, shape: Any) -> Json:
    """Return the JSON object in ``text`` if it has this shape; ProgramError names the file and the place."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = error if text.strip() else "it is empty"
        raise ProgramError(f"{name}: not JSON ({why})") from error
    if not isinstance(document, dict):
        raise ProgramError(f"{name}: a JSON object is expected")
    try:
        check_shape(document, shape)
    except ProgramError as error:
        raise ProgramError(f"{name}: {error}") from error
    return document


def report_of(text: str, name: str) -> Json:
    """Return the report of an instance in ``text``."""
    try:
        report = document_of(text, name, REPORT)
    except ProgramError as error:
        why = str(error).removeprefix(f"{name}: ")
        raise ProgramError(f"{name}: not a report of this toolkit ({why})") from error
    missing = [key for key in REQUIRED if report.get(key, ...) is ...]
    missing += [key for key in ("host", "instance", "passed", "mode") if key in report and report[key] is None]
    if missing:
        raise ProgramError(f"{name}: not a report of this toolkit (it has no {', '.join(missing)})")
    return report


@dataclass
class Instance:
    """What is known of one instance."""

    name: str
    report: Json
    proof: Json | None = None
    history: list[Json] = field(default_factory=list)


@dataclass
class Host:
    """What is known of one host."""

    name: str
    topology: Json | None = None
    settings: Json | None = None
    instances: list[Instance] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is known of it."""
        return not (self.instances or self.topology or self.settings)


def is_report(path: Path) -> bool:
    """Whether a file in a host's folder is the report of an instance, by its name."""
    return path.suffix == ".json" and not path.name.startswith("proof-")


def reports_in(folder: Path) -> list[str]:
    """Return the instances that have a report in a host's folder. JSON that names no instance is another's."""
    paths = [path for path in sorted(folder.glob("*.json")) if is_report(path)]
    return [path.stem for path in paths if "instance" in kept(path, {})]


def read_report(folder: Path, instance: str) -> Json:
    """Return the report of an instance."""
    path = folder / f"{instance}.json"
    with mendable():
        return report_of(_text(path), str(path))


@contextmanager
def mendable() -> Iterator[None]:
    """Say of a file of ours that was damaged how it is mended: nothing in it is worth more than a run."""
    try:
        yield
    except ProgramError as error:
        raise ProgramError(
            f"{error}; remove the file: the next run of the play that wrote it writes it anew"
        ) from error


def kept(path: Path, shape: Any) -> Json:
    """Return a document that a run has left."""
    with mendable():
        return document_of(_text(path), str(path), shape)


def read_host(folder: Path) -> Host:
    """Return what ``reports/HOST`` holds."""
    facts = folder / FACTS
    host = Host(folder.name, _optional(facts / "topology.json", TOPOLOGY), _optional(facts / "settings.json", SETTINGS))
    for name in reports_in(folder):
        report = read_report(folder, name)
        proof = _optional(folder / f"proof-{name}.json", PROOF) or (report.get("smoke") or {}).get("proof")
        host.instances.append(Instance(name, report, proof, list(read_history(facts, name))))
        host.topology = host.topology or report.get("topology") or None
    return host


def _optional(path: Path, shape: Any) -> Json | None:
    if not path.exists():
        return None
    return kept(path, shape) or None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ProgramError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ProgramError(f"{path}: not text ({error})") from error


def history_file(facts: Path, instance: str) -> Path:
    """Return where the measured runs of an instance are kept, a line each."""
    return facts / f"history-{instance}.jsonl"


def read_history(facts: Path, instance: str) -> Iterator[Json]:
    """Yield the runs of an instance, the oldest first."""
    path = history_file(facts, instance)
    for number, line in enumerate(_text(path).splitlines() if path.exists() else (), 1):
        try:
            yield document_of(line, f"{path}:{number}", RUN)
        except ProgramError as error:
            raise ProgramError(f"{error}; remove this line") from error


def hosts_in(folder: Path, wanted: str | None = None) -> list[Path]:
    """Return the folders of hosts; ``wanted`` has to be one of them."""
    found = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if wanted is None:
        return found
    if wanted not in [path.name for path in found]:
        raise ProgramError(f"{folder}: no reports of a host {wanted!r}{nearest(wanted, [p.name for p in found])}")
    return [path for path in found if path.name == wanted]
