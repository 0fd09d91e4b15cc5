# SPDX-License-Identifier: Apache-2.0
"""Know a GPU host: read what its tools print, collect from a live one, compare with what it should be.

This is the door to the room: :func:`parse` for one text; :func:`collect` or :func:`facts_of` for the facts of a host,
:func:`check` to compare them with an :class:`Expectation`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..findings import EXIT_CODES, SCHEMA
from . import collect as collecting
from . import host_files, kernel_log, nvidia_smi, pcie, smi_q
from .collect import TIMEOUT, Run, run_command, seconds
from .expectations import BUILT_IN, DEFAULT, Expectation, ExpectationError, expectation_of
from .facts import Facts, brief, facts_of
from .fingerprint import fingerprint, parts_of
from .machine import Machine, machine_of
from .matrix import Unreadable, read_matrices
from .pasted import Pasted, clean
from .report import IDS, WaiverError, check, check_waivers
from .smi_error import SmiError, take_errors
from .view import view

KINDS = ("topo_m", "p2p", "query", "q", "list", "version", "table", "lspci", "kernel_log", "host_file", "error")
"""Kinds of text that :func:`parse` knows."""

Document = dict[str, Any]


def parse(text: str, kind: str | None = None, columns: Sequence[str] | None = None) -> Document:
    """Return ``{schema, kind, …}``: the facts of one text. It never guesses and never raises for any text.

    ``kind`` (one of KINDS) skips recognition; ``columns`` names the fields of a CSV without header.
    ``errors`` holds messages and GPUs that are lost or unreadable; ``reason`` says why facts can't be known.
    """
    pasted = clean(text)
    remaining, errors, warnings = take_errors(pasted.text)
    pasted = Pasted(tuple(remaining.split("\n")), pasted.commands)
    try:
        document = _read(pasted, text, errors, kind, columns)
    except Unreadable as unreadable:
        document = {"kind": unreadable.kind or kind, "reason": unreadable.reason}
    except RecursionError:
        document = {"kind": kind, "reason": "it is nested deeper than any tool's output"}
    if errors and not document.get("errors"):
        document.update(nvidia_smi.stated(errors))
    return {"schema": SCHEMA, **document, **({"warnings": warnings} if warnings else {})}


def collect(run: Run = run_command, root: Path = Path("/"), timeout: float = TIMEOUT) -> Facts:
    """Return the facts of this host. ``run`` runs a command; ``root`` is where /proc, /sys, /dev and /etc lie."""
    return collecting.collect(parse, run, root, timeout)


def exit_code(document: Document) -> int:
    """Return 2 for errors and lost GPUs, 3 where facts can't be known, 0 for a whole answer."""
    if document.get("errors"):
        return EXIT_CODES["critical"]
    return EXIT_CODES["unknown"] if document.get("reason") else 0


def _read(
    pasted: Pasted, original: str, errors: list[SmiError], kind: str | None, columns: Sequence[str] | None
) -> Document:
    filled = any(line.strip() for line in pasted.lines)
    if kind == "error" or (errors and not filled):
        return _error(errors, kind)
    matrix = _matrix(pasted, kind) if kind in (None, "topo_m", "p2p") else None
    if matrix:
        return matrix
    for name, recognises, read in _readers(pasted, original, errors, columns):
        if kind == name or (kind is None and recognises()):
            document = read()
            if document is None:
                raise Unreadable(f"this is no {name}", name)
            return document
    if errors:
        return _error(errors, kind)
    what = f"no {kind}" if kind else "no output of a known tool"
    raise Unreadable(f"{what} was recognised" if filled else "the text is empty", kind)


Reader = tuple[str, Callable[[], bool], Callable[[], "Document | None"]]


def _readers(pasted: Pasted, original: str, errors: list[SmiError], columns: Sequence[str] | None) -> list[Reader]:
    """Return kind, recogniser and reader of each form, the most distinctive first."""
    lines, text = pasted.lines, pasted.text
    return [
        ("q", lambda: smi_q.looks_like_xml(text) or smi_q.looks_like_text(lines), lambda: _q(pasted, errors)),
        ("table", lambda: nvidia_smi.looks_like_table(lines), lambda: nvidia_smi.read_table(lines, errors)),
        ("kernel_log", lambda: kernel_log.looks_like(lines), lambda: kernel_log.read(clean(original).lines)),
        ("list", lambda: nvidia_smi.looks_like_list(lines), lambda: nvidia_smi.read_list(lines, errors)),
        ("version", lambda: _is_version(lines), lambda: nvidia_smi.read_version(lines, errors)),
        ("host_file", lambda: bool(host_files.read(text)), lambda: host_files.read(text)),
        ("lspci", lambda: pcie.looks_like(lines), lambda: _lspci(lines)),
        (
            "query",
            lambda: bool(columns) or nvidia_smi.looks_like_query(lines),
            lambda: nvidia_smi.read_query(lines, errors, columns),
        ),
    ]


def _q(pasted: Pasted, errors: list[SmiError]) -> Document:
    if smi_q.looks_like_xml(pasted.text):
        return smi_q.read_xml(pasted.text, errors)
    return smi_q.read_text(pasted.lines, errors)


def _lspci(lines: Sequence[str]) -> Document:
    document = pcie.read_lspci(lines)
    pcie.check_whole(document["devices"])
    return document


def _is_version(lines: Sequence[str]) -> bool:
    try:
        return nvidia_smi.read_version(lines, []) is not None
    except Unreadable:
        return True


def _matrix(pasted: Pasted, kind: str | None) -> Document | None:
    found = read_matrices(pasted, kind)
    if len(found) > 1:
        kinds = sorted({facts["kind"] for facts in found})
        what = f"{len(found)} matrices that differ ({', '.join(kinds)})"
        raise Unreadable(f"the text holds {what}: give one of them", kinds[0] if len(kinds) == 1 else None)
    return found[0] if found else None


def _error(errors: list[SmiError], kind: str | None) -> Document:
    if not errors:
        raise Unreadable("no message of nvidia-smi was recognised", kind)
    return {
        "kind": "error",
        "gpu_count": 0 if any(error.cause == "no-devices" for error in errors) else None,
        "gpus": [],
        **nvidia_smi.stated(errors),
    }


__all__ = [
    "BUILT_IN",
    "DEFAULT",
    "IDS",
    "KINDS",
    "SCHEMA",
    "TIMEOUT",
    "Document",
    "Expectation",
    "ExpectationError",
    "Facts",
    "Machine",
    "WaiverError",
    "brief",
    "check",
    "check_waivers",
    "collect",
    "exit_code",
    "expectation_of",
    "facts_of",
    "fingerprint",
    "machine_of",
    "parse",
    "parts_of",
    "seconds",
    "view",
]
