# SPDX-License-Identifier: Apache-2.0
"""Undo what chats, terminals and log shippers did to a log on its way here: entities, blanks, escapes, hard wraps."""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from .. import signatures
from ..signatures.signature import clean

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u00a0\u2007\u202f\u2009", " "),
        **dict.fromkeys("\u2018\u2019\u201a\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u201e", '"'),
        **dict.fromkeys("\u200b\ufeff", ""),
        "\0": "\n",
    }
)
_ENTITY = re.compile(r"&(?:#\d{1,4}|#x[0-9a-fA-F]{1,4}|nbsp|lt|gt|quot|amp|apos);")
_ESCAPES = re.compile(r"(?:\x1b|\^\[|\\x1b|\\u001b|\\033|\\e)\[[0-9;?]*[A-Za-z]")
"""Terminal escapes, also those that were made visible."""

_PLACES = {row.id: place for place, row in enumerate(signatures.SIGNATURES)}
_FENCE = re.compile(r"^\s*(?:```|~~~)\w*\s*$")

NARROWEST = 60
"""Characters from which on a line may be one that was cut at the edge of a terminal."""
WIDEST = 250
_MOST_PIECES = 4
_BLANK_CUT = 20
"""Where words are kept whole, a line is at most this much shorter than the widest."""
_BEGINS = re.compile(
    r"\s{2}|\s*$|\W{0,2}(?:\d{4}[-/]\d\d|\d\d:\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:|\d{1,3}(?:\.\d{1,3}){3} )"
    r"|[\[({<#$>|]|(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b|Traceback|[\w.]*(?:Error|Exception)\b|NVRM:"
)
"""How a line of its own begins; what begins otherwise may be the rest of the line before."""


def lines_of(text: str) -> list[str]:
    """Return the lines of ``text`` as the program that wrote them had them; hard wraps stay."""
    text = text.translate(_CHARACTERS)
    if _ENTITY.search(text):
        text = html.unescape(text).replace("\u00a0", " ")
    lines = [clean(line) for line in _ESCAPES.sub("", text).splitlines()]
    return ["" if _FENCE.match(line) else line for line in lines]


def rejoined(lines: Sequence[str]) -> list[str]:
    """Return ``lines`` with those put together that only together hold a known line; their number stays.

    A terminal cuts at its edge: the piece is as wide as the widest, or as others. Nothing is joined unless that makes
    a line known, or better known: as a row further up in the table, or as a cause where the pieces are mere echoes.
    """
    widths = Counter(len(line) for line in lines)
    widest = max((width for width in widths if width <= WIDEST), default=0)
    found = list(lines)
    for number, line in enumerate(lines):
        full = len(line) == widest or widths[len(line)] > 1
        cut_between_words = 0 < widest - len(line) <= _BLANK_CUT
        if not (NARROWEST <= len(line) <= WIDEST and (full or cut_between_words)):
            continue
        for joint in ("",) * full + (" ",) * cut_between_words:
            if pieces := _across(lines, number, joint):
                found[number : number + len(pieces)] = [joint.join(pieces), *[""] * (len(pieces) - 1)]
                break
    return found


def _across(lines: Sequence[str], number: int, joint: str) -> Sequence[str]:
    """Return the fewest pieces from ``number`` on that are better known together than apart, or none."""
    first = _rank(lines[number])
    for end in range(number + 1, min(number + _MOST_PIECES, len(lines))):
        if _BEGINS.match(lines[end]):
            return ()
        rest = _rank(joint.join(lines[number + 1 : end + 1]))
        if _rank(joint.join(lines[number : end + 1])) < min(first, rest):
            return lines[number : end + 1]
    return ()


def _rank(line: str) -> int:
    """Return the place of the row that knows ``line``: echoes behind all causes, what is not known last."""
    known = signatures.scan([line])
    if not known:
        return 2 * len(_PLACES)
    row = known[0].signature
    return _PLACES[row.id] + len(_PLACES) * (row.role == "consequence")


_TRACEBACK = "Traceback (most recent call last)"
_EXCEPTION = re.compile(
    r"(?:^|[\s\])|:])(?P<said>(?:[A-Za-z_]\w*\.)*[A-Z]\w*"
    r"(?:(?:Error|Exception|Exit|Interrupt)(?:: \S|\([\"']).*|(?<!Cancelled)Error))$"
)
"""What an exception says; an error may say nothing (a bare assert)."""
_CODE = re.compile(r"^.*\s{4}(?=\S)")
"""What stands before a traceback's line of code."""
_LIFE = re.compile(r"\b(?:Prefill|Decode) batch\b|HTTP/1\.1\" 200\b|Avg generation throughput: (?!0\.0 )")
_SHORT = 5
"""Lines up to which an exception counts without its traceback: somebody copied only what it says."""


def unexplained(lines: Sequence[str]) -> tuple[int, str] | None:
    """Return number and text of the last exception that the program does not seem to have survived, or None."""
    tracebacks = any(_TRACEBACK in line for line in lines)
    if not tracebacks and len(lines) > _SHORT:
        return None
    said = [(number, _with_code(found["said"], lines[number - 2 : number - 1])) for number, found in _exceptions(lines)]
    if not said or any(_LIFE.search(line) for line in lines[said[-1][0] :]):
        return None
    return said[-1]


def _with_code(said: str, before: Sequence[str]) -> str:
    """Return what an exception says, with the line of code before it where it says nothing."""
    return said if " " in said or not before else f"{said} ({_CODE.sub('', before[0]).strip()})"


def _exceptions(lines: Sequence[str]) -> Iterator[tuple[int, re.Match[str]]]:
    for number, line in enumerate(lines, 1):
        if ("Error" in line or "Exc" in line or "rrupt" in line or "Exit" in line) and (
            found := _EXCEPTION.search(line)
        ):
            yield number, found
