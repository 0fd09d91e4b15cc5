# SPDX-License-Identifier: Apache-2.0
"""Undo what terminals, logs, chats and editors did to a tool's output on its way here."""

from __future__ import annotations

import ast
import html
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # window titles
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # colours, underline, cursor
    r"|\x1b[()][A-Za-z0-9]|\x1b[=>78cDEHMNOZ]"
    r"|(?:\^\[|\\x1b|\\u001b|\\033|\\e)?\[(?:\d+(?:;\d+)*)?m"  # the same, made visible or bereft of its ESC
)
_BLANKS = str.maketrans({"\u00a0": " ", "\u2007": " ", "\u202f": " ", "\u200b": "", "\ufeff": "", "\x00": ""})
_FENCE = re.compile(r"^\s*(?:(?:```|~~~)\S*|</?(?:pre|code|details|summary|div|p|br)\b[^>]*>)\s*$", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d{1,4}|#x[0-9a-fA-F]{1,4}|nbsp|lt|gt|quot|amp|apos);")
_BORDERS = re.compile(r"[│┃║]")
_PROMPT_ONLY = re.compile(
    r"^(?:\([^)]*\)\s*)?\[?[\w.-]+@[\w.-]+(?:[:\s][^\s\]]*)?\]?\s*[$#%>\u276f]\s*$|^[$#%\u276f]\s*$"
)
_OTHER_COMMAND = re.compile(
    r"^(?:\([^)]*\)\s*)?(?:\[?[\w.-]+@[\w.-]+[^$#%]{0,80}[$#%]|[$%])\s+(?:sudo\s+)?[a-z/][\w./-]*(?:\s.*)?$"
    r"|^#\s+(?:sudo\s+)?(?:cat|dmesg|find|grep|journalctl|ls|lscpu|lspci|numactl)\b.*$"
)
"""A command line of another program, with its prompt."""
_COMMAND = re.compile(
    r"(?:^|.*?[\s$#%>+:\u276f`])(?:\S*/)?nvidia-smi(?:\.exe)?(?P<arguments>(?:\s+-{0,2}[\w=.,/-]+)*)`?\s*$"
)

_REFUSAL = re.compile(r"(?i)not found|unknown command|permission denied")
"""What shells say of a program that they can't run, after which its name may stand like a command."""

_TIMES: tuple[re.Pattern[str], ...] = (
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [^\s:\[]+(?:\[\d+\])?: ?"),  # syslog, journal
    re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]? ?"),
)
_VARYING: tuple[re.Pattern[str], ...] = (
    re.compile(r"\s*(?:>\s?)+"),  # quoted mail or Markdown
    re.compile(
        r"\[?(?:DEBUG|INFO|WARN(?:ING)?|ERROR)\]?(?::[\w.]+)?:?"  # logging
        r"(?: \d\d-\d\d \d\d:\d\d:\d\d)?(?: ?\[[^\]]*\])?:? ?"
    ),
    re.compile(r" {0,6}\d+\t| {1,6}\d+(?: {2}|$)"),  # cat -n, nl
    re.compile(r"\d{1,4}:(?=[\sGN]|$)"),  # grep -n; of PCI addresses, none goes on like that
)
_CONSTANT: tuple[re.Pattern[str], ...] = (
    re.compile(r"\s{0,3}(?:#|//|;|\*|\+) ?(?=\s|\w|$)"),  # commented out, or of a diff
    re.compile(r"[\w.-]+ *\| ?"),  # docker compose
)
"""What may stand before every line (the constant ones: the same before each). Each takes at most one blank after
itself: the rest is the line's own."""

_ITEM = re.compile(r"\s*(?:- )?(?P<quoted>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.|'')*'),?\s*")
"""A line of a list of strings, as Ansible prints ``stdout_lines`` in JSON and YAML."""
_PIPED = re.compile(r"^\s*\|(.*)\|\s*$")
_LONG_GAP = re.compile(r" {60,}")
_MOST_PIECES = 6
_MOST_PREFIXES = 3


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
    if _ENTITY.search(text) and "<nvidia_smi_log" not in text:
        text = html.unescape(text)
    text = _ESCAPES.sub("", _unescaped(text).translate(_BLANKS)).lstrip("\ufffd")
    lines = [line.rstrip(" ") for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    lines = _without_quotes(lines)
    lines = _without_prefixes([_BORDERS.sub(" ", line) for line in _blanked(lines, _FENCE.match)])
    commands = [found for line in lines if (found := _command(line)) is not None]
    kept = _blanked(_without_pipes(lines), _is_shell)
    return Pasted(tuple(kept), tuple(commands))


def _blanked(lines: Sequence[str], is_other: Callable[[str], object]) -> list[str]:
    """Return the lines, those of others blank: what follows them is a paragraph of its own. None is left at the end."""
    kept = [None if is_other(line) else line for line in lines]
    while kept and kept[-1] is None:
        kept.pop()
    return [line or "" for line in kept]


def _command(line: str) -> str | None:
    """Return the arguments of an echoed nvidia-smi, or None where the line is none."""
    found = _COMMAND.match(line) if "nvidia-smi" in line else None
    return " ".join(found["arguments"].split()) if found and "name=" not in line and not _REFUSAL.search(line) else None


def _is_shell(line: str) -> bool:
    return _command(line) is not None or bool(_PROMPT_ONLY.match(line) or _OTHER_COMMAND.match(line))


def _unescaped(text: str) -> str:
    r"""Return ``text`` with ``\n`` and ``\t`` made real where it is one quoted string, or a list of them, of a log."""
    bare = text.strip()
    if "\n" in bare:
        return text
    if bare[:1] + bare[-1:] in ("''", '""', "[]"):
        try:
            found = ast.literal_eval(bare)
            return "\n".join(found) if isinstance(found, list) else found
        except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
            pass  # it only looked like one
    if "\\n" not in bare:
        return text
    return bare.strip("'\"").replace("\\r", "").replace("\\n", "\n").replace("\\t", "\t")


def _without_quotes(lines: list[str]) -> list[str]:
    """Return the strings where (nearly) every line is one of a list; their tabs are real then."""
    filled = [line for line in lines if line.strip(" []{},")]
    quoted = [found for line in filled if (found := _ITEM.fullmatch(line))]
    if 2 * len(quoted) <= len(filled):
        return lines
    return [_string(found["quoted"]) for found in quoted]


def _string(quoted: str) -> str:
    try:
        return str(json.loads(quoted)) if quoted[0] == '"' else quoted[1:-1].replace("''", "'")
    except ValueError:  # an escape that JSON does not know
        return quoted[1:-1].replace("\\t", "\t")


def _without_prefixes(lines: list[str]) -> list[str]:
    """Strip what stands before (nearly) every line. A kernel log keeps its times: they are its own."""
    times = () if any("NVRM:" in line for line in lines) else _TIMES
    for _ in range(_MOST_PREFIXES):
        filled = [line for line in lines if line.strip()]
        prefix = next((prefix for prefix in (*times, *_VARYING, *_CONSTANT) if _is_prefix(prefix, filled)), None)
        if prefix is None:
            break
        lines = [prefix.sub("", line, count=1) if prefix.match(line) else line for line in lines]
    return lines


def _is_prefix(prefix: re.Pattern[str], lines: list[str]) -> bool:
    """Whether ``prefix`` stands before more than half of the lines."""
    found = [match.group().strip() for line in lines if (match := prefix.match(line))]
    return 2 * len(found) > len(lines) and (prefix not in _CONSTANT or len(set(found)) == 1)


def _without_pipes(lines: list[str]) -> list[str]:
    """Turn a Markdown table that holds a matrix into the tab form."""
    if not any(re.match(r"\s*\|[^|]*\|\s*\**GPU\d+\**\s*\|", line) for line in lines):
        return lines
    turned = []
    for line in lines:
        row = _PIPED.match(line)
        if row is None:
            turned.append(line)
        elif not set(row[1]) <= set("|-: "):
            turned.append("\t".join(cell.strip(" *`") for cell in row[1].split("|")))
    return turned


def rejoinings(pieces: Sequence[str], width: int = 0) -> Iterator[str]:
    """Yield every way to put a wrapped line together: at each break either directly or with a blank.

    A gap of 60 blanks or more inside a piece is a break too (terminals that pad a wrapped line copy like that).
    ``width`` is that of the widest piece of the text: a narrower one lost a blank where it was cut.
    """
    parts: list[str] = []
    choices: list[tuple[str, ...]] = []
    for piece in pieces:
        gapped = _LONG_GAP.split(piece)
        parts += gapped
        choices += [("", " ")] * (len(gapped) - 1)
        choices.append((" ",) if len(piece.expandtabs()) < width else ("", " "))
    if len(parts) > _MOST_PIECES:
        return
    for joints in itertools.product(*choices[:-1]):
        yield parts[0] + "".join(joint + part for joint, part in zip(joints, parts[1:], strict=True))
