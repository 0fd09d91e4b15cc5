# SPDX-License-Identifier: Apache-2.0
"""Undo what terminals, logs, chats and editors did to a tool's output on its way here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # window titles
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # colours, underline, cursor
    r"|\x1b[()][A-Za-z0-9]|\x1b[=>78cDEHMNOZ]"
    r"|(?:\^\[|\\x1b|\\u001b|\\033|\\e)?\[(?:\d+(?:;\d+)*)?m"  # the same, made visible or bereft of its ESC
)
_BLANKS = str.maketrans({"\u00a0": " ", "\u2007": " ", "\u202f": " ", "\u200b": "", "\ufeff": "", "\x00": ""})
_FENCE = re.compile(r"^\s*(?:(?:```|~~~)\S*|</?(?:pre|code|details|summary|div|p|br)\b[^>]*>)\s*$", re.IGNORECASE)
_BORDERS = re.compile(r"[│┃║]")
_PROMPT_ONLY = re.compile(
    r"^(?:\([^)]*\)\s*)?\[?[\w.-]+@[\w.-]+(?:[:\s][^\s\]]*)?\]?\s*[$#%>\u276f]\s*$|^[$#%\u276f]\s*$"
)
_COMMAND = re.compile(
    r"(?:^|.*?[\s$#%>+:\u276f`])(?:\S*/)?nvidia-smi(?:\.exe)?(?P<arguments>(?:\s+-{0,2}[\w=.,/-]+)*)`?\s*$"
)

_PREFIXES: tuple[re.Pattern[str], ...] = (
    re.compile(r"\s*(?:>\s?)+"),  # quoted mail or Markdown
    re.compile(r"\s{0,3}(?:#|//|;|\*) ?(?=\s|\w|$)"),  # commented out
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [^\s:\[]+(?:\[\d+\])?: ?"),  # syslog, journal
    re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]? ?"),
    re.compile(
        r"(?:\S+ )?\[?(?:DEBUG|INFO|WARN(?:ING)?|ERROR)\]?:?(?: \d\d-\d\d \d\d:\d\d:\d\d)?(?: ?\[[^\]]*\])?:? ?"
    ),
    re.compile(r"[\w.-]+ *\| ?(?![^|]*\|)"),  # docker compose
    re.compile(r" {0,6}\d+\t"),  # cat -n
)
"""What may stand before every line. Each takes at most one blank after itself: the rest is the line's own."""

_LONG_GAP = re.compile(r" {60,}")
_MOST_PIECES = 6


@dataclass(frozen=True)
class Pasted:
    """A text without the traces of its journey, and the nvidia-smi commands that were seen beside it."""

    lines: tuple[str, ...]
    commands: tuple[str, ...]
    """The arguments of each echoed command, such as ``topo -p2p r``."""

    @property
    def text(self) -> str:
        """The lines as one string."""
        return "\n".join(self.lines)


def clean(text: str) -> Pasted:
    """Return ``text`` without escapes, fences, prompts, echoed commands and prefixes of logs or quotes."""
    text = _ESCAPES.sub("", _unescaped(text).translate(_BLANKS)).lstrip("\ufffd")
    lines = [line.rstrip(" ") for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    lines = _without_prefixes([_BORDERS.sub(" ", line) for line in lines if not _FENCE.match(line)])
    kept: list[str] = []
    commands: list[str] = []
    for line in lines:
        command = _COMMAND.match(line) if "nvidia-smi" in line else None
        if command and "name=" not in line:
            commands.append(" ".join(command["arguments"].split()))
        elif not _PROMPT_ONLY.match(line):
            kept.append(line)
    return Pasted(tuple(kept), tuple(commands))


def _unescaped(text: str) -> str:
    r"""Return ``text`` with ``\n`` and ``\t`` made real where it is one quoted string of a log or of JSON."""
    if text.count("\n") > 1 or "\\n" not in text:
        return text
    return text.strip().strip("'\"").replace("\\r", "").replace("\\n", "\n").replace("\\t", "\t")


def _without_prefixes(lines: list[str]) -> list[str]:
    """Strip what stands before (nearly) every line. A kernel log keeps its times: they are its own."""
    if any("NVRM:" in line for line in lines):
        return lines
    for _ in range(3):
        filled = [line for line in lines if line.strip()]
        for prefix in _PREFIXES:
            if filled and 2 * sum(1 for line in filled if prefix.match(line)) > len(filled):
                lines = [prefix.sub("", line, count=1) if prefix.match(line) else line for line in lines]
                break
        else:
            return lines
    return lines


def rejoinings(pieces: Sequence[str]) -> Iterator[str]:
    """Yield every way to put a wrapped line together: at each break either directly or with a blank.

    A gap of 60 blanks or more inside a piece is a break too (terminals that pad a wrapped line copy like that).
    """
    parts = [part for piece in pieces for part in _LONG_GAP.split(piece)]
    if len(parts) > _MOST_PIECES:
        return
    for joints in itertools.product(("", " "), repeat=len(parts) - 1):
        yield parts[0] + "".join(joint + part for joint, part in zip(joints, parts[1:], strict=True))
