# SPDX-License-Identifier: Apache-2.0
"""What a known log line is: a row of the signature tables, and the word filter that keeps searching them cheap."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Literal, Protocol, TypeVar

from ..findings import Level
from ..redact import keeping

Role = Literal["cause", "consequence", "harmless"]
"""``consequence``: always the echo of something else (a dead worker, a failed unit), so it never explains a failure."""


@dataclass(frozen=True)
class Signature:
    """A line that is known, from an engine, a library, the kernel or systemd.

    ``pattern`` is searched ignoring case. Every line it matches holds one of ``words`` as a whole word (``[a-z0-9_]+``,
    lower case): lines without any are never searched. ``cause`` is the class that a supervisor reports
    (``port``, ``gpu-memory``, ...). ``source`` says where the wording is from. ``errors_only``: what the line says is a
    fault only as an error (:func:`is_note`). ``vague``: it says that something failed, not what, so a cause in the next
    few lines is the better one.
    """

    id: str
    level: Level
    cause: str
    words: tuple[str, ...]
    pattern: str
    what: str
    expected: str
    fix: str
    source: str
    role: Role = "cause"
    errors_only: bool = False
    vague: bool = False

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """Return the compiled pattern."""
        return re.compile(self.pattern, re.IGNORECASE)

    def search(self, line: str) -> re.Match[str] | None:
        """Return the match of a cleaned ``line`` that this row knows, or None."""
        found = self.regex.search(line)
        return None if found and self.errors_only and is_note(line) else found


_ERROR_LEVEL = r"(?<![=\w])(?:ERROR|CRITICAL|FATAL)\b"
_NOTE_LEVEL = r"(?<![=\w])(?:(?:DEBUG|INFO|WARNING)\b|[WI]\d{4} )"
_EXCEPTION = r"[\w.]*(?:Error|Exception): "
_NOTED = re.compile(rf"(?:(?!{_ERROR_LEVEL}|{_EXCEPTION}).){{0,200}}?{_NOTE_LEVEL}")
"""A line at the level of a note. What stands behind an exception's name, or behind = (NCCL_DEBUG=INFO), is no level."""
_RAISED = re.compile(rf".{{0,200}}?{_ERROR_LEVEL}|(?:.{{0,200}}?[\])|]:? )?\W*{_EXCEPTION}")
"""A line at the level of an error, or whose message begins with an exception."""
_GOES_ON = re.compile(
    r"(?<!no )(?<!not )(?<!n't )(?<!without )(?<!unable to )\bfall(?:ing|s)? ?back\b(?! (?:failed|is disabled|not ))"
    r"|\b(?:serving|using) .{0,80}\binstead\b",
    re.IGNORECASE,
)


def is_note(line: str) -> bool:
    """Tell whether an engine only notes here what it does without, and goes on.

    A line that raises is none, whatever else it says: only a line without a level may excuse itself by falling back.
    """
    return bool(_NOTED.match(line) or (not _RAISED.match(line) and _GOES_ON.search(line)))


class Row(Protocol):
    """What :class:`WordFilter` needs of a row."""

    @property
    def words(self) -> tuple[str, ...]:
        """Words of which a matching line holds one."""

    def search(self, line: str) -> re.Match[str] | None:
        """Return the match of a line that the row knows, or None."""


R = TypeVar("R", bound=Row)

_WORD = re.compile(r"[a-z0-9_]+")
_OF_WORDS = keeping(string.ascii_lowercase + string.digits + "_")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
LONGEST_LINE = 32_768
"""Characters of a line that are kept: progress bars and argument dumps reach some ten thousand."""

SEARCHED = 8192
"""Characters of a line that are searched: it bounds the time that a line made up for it can take."""


def clean(line: str) -> str:
    """Return the line without its end, terminal colours and NUL, cut at :data:`LONGEST_LINE`."""
    line = line[:LONGEST_LINE].rstrip("\r\n")
    return _ESCAPES.sub("", line) if "\x1b" in line else line


class WordFilter(Generic[R]):
    """Finds the first row, in table order, whose pattern occurs in a line; the words keep it from trying them all."""

    def __init__(self, rows: Iterable[R]) -> None:
        self._rows = tuple(rows)
        self._index: dict[str, tuple[int, ...]] = {}
        for number, row in enumerate(self._rows):
            for word in row.words:
                self._index[word] = (*self._index.get(word, ()), number)
        self._known = frozenset(self._index)
        self._known_bytes = frozenset(word.encode() for word in self._index)

    def may_match(self, lines: bytes) -> bool:
        """Tell whether any of these lines may match: False is certain. Much cheaper than asking line by line."""
        if b"\x1b" in lines or not lines.isascii():  # colours hide words, and some letters' lower case is ASCII
            return True
        return not self._known_bytes.isdisjoint(lines.translate(_OF_WORDS).split())

    def first(self, line: str) -> tuple[R, re.Match[str]] | None:
        """Return the row and its match in a cleaned ``line``, or None."""
        line = line[:SEARCHED]
        present = self._known.intersection(_WORD.findall(line.lower()))
        if not present:
            return None
        for number in sorted({number for word in present for number in self._index[word]}):
            if found := self._rows[number].search(line):
                return self._rows[number], found
        return None
