# SPDX-License-Identifier: Apache-2.0
"""Environment settings in the forms that operators keep them in: units, drop-ins, shell, KEY=VALUE, NCCL's own files.

A text with a section header or an ``Environment=``-like directive is read as systemd reads a unit (systemd.exec(5),
"Environment", systemd.syntax(7), "Quoting", systemd.unit(5), "Specifiers"; checked against systemd 252). Any other text
is read line by line as a shell would read assignments. ``read_conf`` reads what NCCL itself reads from its own files.
Whatever is lost or altered on the way is a Problem; nothing raises.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

ProblemKind = Literal[
    "unreadable", "wrong-section", "inline-comment", "several", "specifier", "quotes-kept", "white-space", "unexpanded"
]


@dataclass(frozen=True)
class Assignment:
    """One setting. ``unresolved`` is True where the value depends on something that the text doesn't hold."""

    name: str
    value: str
    line: int
    unresolved: bool = False


@dataclass(frozen=True)
class Problem:
    """Something that is lost or altered when the text is read: which line, what was seen, and what happens to it."""

    kind: ProblemKind
    line: int
    seen: str
    what: str


@dataclass
class EnvironmentText:
    """What a text sets, in order; ``command`` is the last command line in it, ``files`` further files that it names."""

    assignments: list[Assignment] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    addresses: dict[str, list[str]] = field(default_factory=lambda: {"IPAddressDeny": [], "IPAddressAllow": []})
    """What a unit says of the addresses that its processes may speak to."""

    @property
    def loopback_only(self) -> bool:
        """Return whether a unit lets its processes speak to no address but those of loopback."""
        allowed = self.addresses["IPAddressAllow"]
        return "any" in self.addresses["IPAddressDeny"] and all(_LOOPBACK.fullmatch(word) for word in allowed)

    def effective(self) -> dict[str, Assignment]:
        """Return the settings that hold in the end: the last one of each name."""
        return {assignment.name: assignment for assignment in self.assignments}

    def unset(self, name: str) -> None:
        """Take every assignment of ``name`` away."""
        self.assignments = [entry for entry in self.assignments if entry.name != name]


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_SECTION = re.compile(r"\s*\[([^\]]+)\]\s*")
_DIRECTIVE = re.compile(r"\s*([A-Za-z]\w*)\s*=\s*(.*)", re.DOTALL)
_UNIT_LINE = re.compile(
    r"^[ \t]*(?:\[(?:Unit|Service|Install)\][ \t]*$|(?:Environment|EnvironmentFile|UnsetEnvironment|ExecStart)[ \t]*=)",
    re.MULTILINE,
)
_LOOPBACK = re.compile(r"localhost|127(?:\.\d{1,3}){3}(?:/\d+)?|::1(?:/128)?")
_PROGRAMS = frozenset(
    {
        "exec",
        "python",
        "python3",
        "torchrun",
        "vllm",
        "sglang",
        "numactl",
        "docker",
        "podman",
        "nohup",
        "mpirun",
        "mpiexec",
    }
)
_SHELL_WORDS = frozenset({"if", "then", "else", "fi", "do", "done", "{", "}"})
_SPECIFIERS = frozenset("aAbBCdDEfFgGhHiIjJlLmMnNopPqsStTuUvVwWyY")
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "s": " "}
_DIGITS = {8: "0-7", 16: "0-9a-fA-F"}
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}
_MAX_CODE_POINT = 0x10FFFF
LONGEST_LINE = 1 << 17
"""Bytes of one string that a program can be given (MAX_ARG_STRLEN, execve(2)). Splitting takes time by the square."""


def read(text: str) -> EnvironmentText:
    """Read a unit or drop-in, shell lines, or KEY=VALUE lines (also NUL-separated, as in /proc/PID/environ)."""
    if "\0" in text:
        text = "\n".join(shlex.quote(entry) if "\n" in entry else entry for entry in text.split("\0"))
    clean = text.replace("\r\n", "\n").lstrip("\ufeff")
    result = _UnitReader().read(clean) if is_unit(clean) else _ShellReader().read(clean)
    return _report_carriage_returns(text, result)


def is_unit(text: str) -> bool:
    """Return whether a text is a unit or drop-in, or a part of one."""
    return _UNIT_LINE.search(text) is not None


def read_conf(text: str) -> EnvironmentText:
    """Read a configuration file of NCCL (/etc/nccl.conf): no quoting, no trimming; every character counts."""
    result = EnvironmentText()
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if line.startswith("#") or "=" not in line:
            if line.strip() and not line.startswith("#"):
                result.problems.append(Problem("unreadable", number, line, "it has no = and is skipped"))
            continue
        name, value = line.split("=", 1)
        if name != name.strip():
            result.problems.append(
                Problem(
                    "white-space", number, line, "white space before = becomes part of the name, which nothing reads"
                )
            )
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            result.problems.append(Problem("quotes-kept", number, line, "the quotes become part of the value"))
        result.assignments.append(Assignment(name, value, number))
    return _report_carriage_returns(text, result)


def _report_carriage_returns(text: str, result: EnvironmentText) -> EnvironmentText:
    if "\r\n" in text:
        what = "lines end in CR LF; a shell and NCCL before 2.30 keep the CR as part of the value: read without it"
        result.problems.append(Problem("white-space", 1, "CR LF", what))
    return result


class _UnitReader:
    """Reads a unit or drop-in; several in a row, as ``systemctl cat`` prints them, are one."""

    def __init__(self) -> None:
        self.result = EnvironmentText()
        self.section: str | None = None
        self.sectioned = False
        self.removals: list[str] = []

    def read(self, text: str) -> EnvironmentText:
        self.sectioned = any(_SECTION.fullmatch(line) for line in text.split("\n"))
        for number, line in _logical_lines(text):
            header = _SECTION.fullmatch(line)
            if header:
                self.section = header[1]
            else:
                self._directive(number, line)
        for entry in self.removals:
            name, _, value = entry.partition("=")
            current = self.result.effective().get(name)
            if current and ("=" not in entry or current.value == value):
                self.result.unset(name)
        return self.result

    def _directive(self, number: int, line: str) -> None:
        match = _DIRECTIVE.fullmatch(line)
        key, value = (match[1], match[2].strip()) if match else (line.partition("=")[0].strip(), "")
        handler = {
            "Environment": self._environment,
            "EnvironmentFile": self._environment_file,
            "UnsetEnvironment": self._unset_environment,
            "ExecStart": self._exec_start,
        }.get(key)
        if key in self.result.addresses and self.section in (None, "Service"):
            self.result.addresses[key] = [*self.result.addresses[key], *value.split()] if value else []
        elif handler is None:
            self._other(number, line, key)
        elif self.section not in (None, "Service"):
            self._problem("wrong-section", number, line, f"systemd ignores {key}= in [{self.section}]")
        else:
            handler(number, value)

    def _other(self, number: int, line: str, key: str) -> None:
        bare = key.removeprefix("export ").strip()
        if not _looks_like_variable(bare):
            return
        if self.sectioned:
            what = "systemd knows no such directive and ignores it; only Environment= sets a variable"
            self._problem("wrong-section", number, line, what)
        else:
            _merge(self.result, _ShellReader().read(line), number)

    def _environment(self, number: int, value: str) -> None:
        if not value:
            self.result.assignments.clear()
            return
        words = split_words(value)
        if words is None:
            what = "systemd ignores the whole line: a quote is never closed, or an escape is unknown"
            self._problem("unreadable", number, value, what)
            return
        if any(word.startswith("#") for word in words):
            what = "systemd knows no comment behind a directive: it reads the words after # as settings too"
            self._problem("inline-comment", number, value, what)
            words = [word for word in words if "=" in word and not word.startswith("#")]
        stray = [word for word in words if not _ASSIGNMENT.fullmatch(word)]
        if stray:  # the whole line is shown: the word is the rest of a value that stands before it
            what = f"{len(stray)} of its words are no NAME=VALUE; systemd ignores them and keeps the value before short"
            self._problem("unreadable", number, value, what)
        for word in words:
            self._word(number, word)

    def _word(self, number: int, word: str) -> None:
        assignment = _ASSIGNMENT.fullmatch(word)
        if assignment is None:
            return
        resolved, unknown, known = _resolve_specifiers(assignment[2])
        if unknown:
            what = f"systemd knows no specifier %{unknown} and ignores this word; a percent sign is written %%"
            self._problem("specifier", number, word, what)
            return
        entry = Assignment(assignment[1], resolved, number, unresolved=bool(known))
        if known and entry.name == "NCCL_DEBUG_FILE":
            what = "systemd replaces %h and %p by its own values; NCCL's host name and process id are %%h and %%p here"
            self._problem("specifier", number, word, what)
        if not known and re.search(r"\$\w|\$\{", resolved):
            self._problem("unexpanded", number, word, "systemd expands no $ in Environment=; it stays as it is")
        self.result.assignments.append(entry)

    def _environment_file(self, _number: int, value: str) -> None:
        self.result.files = [*self.result.files, value] if value else []

    def _unset_environment(self, _number: int, value: str) -> None:
        self.removals = [*self.removals, *(split_words(value) or [])] if value else []

    def _exec_start(self, number: int, value: str) -> None:
        words = split_words(value.lstrip("@-:+!|")) or []
        self.result.command = words
        if words and words[0].rsplit("/", 1)[-1] == "env":
            for word in words[1:]:
                match = _ASSIGNMENT.fullmatch(word)
                if match:
                    self.result.assignments.append(Assignment(match[1], match[2], number))
        if (script := _script(words)) is not None:
            inner = _ShellReader().read(script)
            self.result.command = inner.command or words
            _merge(self.result, inner, number)

    def _problem(self, kind: ProblemKind, number: int, seen: str, what: str) -> None:
        self.result.problems.append(Problem(kind, number, seen.strip(), what))


class _ShellReader:
    """Reads lines as a shell would: assignments, ``export``, ``unset``, and assignments in front of a command."""

    def __init__(self) -> None:
        self.result = EnvironmentText()

    def read(self, text: str) -> EnvironmentText:
        for number, line in _shell_lines(text):
            self._line(number, line)
        return self.result

    def _line(self, number: int, line: str) -> None:
        stripped = line.strip()
        if not stripped or stripped.startswith(("#", ";")):
            return
        spaced = re.fullmatch(r"(?:export\s+)?([A-Za-z_]\w*)(\s*=\s*)(.*)", stripped, re.DOTALL)
        if spaced and spaced[2] != "=" and _looks_like_variable(spaced[1]) and not re.match(r"\s+\w+=", spaced[2][1:]):
            what = "a shell and systemd's Environment= don't accept white space around =; read without it"
            self._problem("white-space", number, stripped, what)
            stripped = f"{spaced[1]}={spaced[3]}"
        for words in _statements(self._words(number, stripped)):
            self._statement(number, stripped, words)

    def _words(self, number: int, line: str) -> list[str]:
        if len(line) > LONGEST_LINE:
            what = f"not readable: {len(line)} characters, and Linux takes no string above {LONGEST_LINE}"
            self._problem("unreadable", number, line[:80], what)
            return []
        try:
            words = _shell_words(line)
        except ValueError as error:
            self._problem("unreadable", number, line, f"not readable: {str(error).lower()}")
            return []
        comment = next((i for i, word in enumerate(words) if word.startswith("#")), len(words))
        if comment < len(words) and _ASSIGNMENT.match(line):
            what = "a shell drops the comment, but EnvironmentFile= and NCCL's own files keep it as part of the value"
            self._problem("inline-comment", number, line, what)
        return words[:comment]

    def _statement(self, number: int, line: str, words: list[str]) -> None:
        if words[0] == "unset":
            for name in words[1:]:
                self.result.unset(name)
            return
        exported = words[0] in ("export", "declare", "typeset", "env")
        rest = words[1:] if exported else words
        rest = [word for word in rest if not (exported and word.startswith("-"))]
        count = next((i for i, word in enumerate(rest) if not _ASSIGNMENT.fullmatch(word)), len(rest))
        behind = rest[count:]
        if count and behind and not exported and not _is_command(behind):
            # an EnvironmentFile= takes all of the line as the value, and nothing else makes sense of it
            name, _, value = line.partition("=")
            self.result.assignments.append(Assignment(name, value.strip(), number))
            return
        self._assign(number, line, rest[:count])
        contained = _container_settings(behind)
        self._assign(number, line, contained)
        if _is_command(behind):
            self.result.command = behind
        elif behind and (exported or re.search(r"\bNCCL_", line)):
            self._problem("unreadable", number, line, f"{behind[0]!r} is no NAME=VALUE and sets nothing")
        if count > 1 and not exported and not behind:
            what = "read as separate settings, as a shell does; in an EnvironmentFile= it is one value"
            self._problem("several", number, line, what)

    def _assign(self, number: int, line: str, words: Sequence[str]) -> None:
        for word in words:
            name, _, value = word.partition("=")
            unresolved = bool(re.search(r"\$\w|\$\{|\$\(|`", value)) and f"'{value}'" not in line
            self.result.assignments.append(Assignment(name, value, number, unresolved))

    def _problem(self, kind: ProblemKind, number: int, seen: str, what: str) -> None:
        self.result.problems.append(Problem(kind, number, seen, what))


def split_words(text: str) -> list[str] | None:
    """Split as systemd does: at white space, with quotes and C escapes. None if systemd refuses the line."""
    words: list[str] = []
    current: str | None = None
    quote = ""
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\\":
            escape = _escape(text, position)
            if escape is None:
                return None
            current = (current or "") + escape[0]
            position = escape[1]
        elif character == quote:
            quote = ""
        elif not quote and character in "\"'":
            quote, current = character, current or ""
        elif not quote and character.isspace():
            words += [] if current is None else [current]
            current = None
        else:
            current = (current or "") + character
    if quote:
        return None
    return words if current is None else [*words, current]


def _escape(text: str, position: int) -> tuple[str, int] | None:
    """Return what the escape after a backslash at ``position`` stands for and where it ends, None if it is none."""
    letter = text[position : position + 1]
    if letter and letter in "\\\"'":
        return letter, position + 1
    if letter in _ESCAPES and letter:
        return _ESCAPES[letter], position + 1
    base, length, start = (16, _HEX_LENGTHS[letter], position + 1) if letter in _HEX_LENGTHS else (8, 3, position)
    digits = text[start : start + length]
    if len(digits) != length or not re.fullmatch(f"[{_DIGITS[base]}]+", digits):
        return None
    code = int(digits, base)
    return (chr(code), start + length) if 0 < code <= _MAX_CODE_POINT else None


def _resolve_specifiers(value: str) -> tuple[str, str, list[str]]:
    """Return the value with %% resolved, the first unknown specifier or "", and the known ones, which stay in it."""
    known: list[str] = []
    unknown = ""
    pieces: list[str] = []
    position = 0
    while position < len(value):
        if value[position] != "%" or position + 1 == len(value):
            pieces.append(value[position])
            position += 1
            continue
        letter = value[position + 1]
        pieces.append("%" if letter == "%" else value[position : position + 2])
        position += 2
        if letter in _SPECIFIERS:
            known.append(letter)
        elif letter != "%":
            unknown = unknown or letter
    return "".join(pieces), unknown, known


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield a unit's lines, continuations joined, without comments and empty lines, each with its first number."""
    pending, start = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith(("#", ";")) or (not pending and not line.strip()):
            continue
        start = start if pending else number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1] + " "
            continue
        yield start, pending + line
        pending = ""
    if pending:
        yield start, pending


def _shell_lines(text: str) -> Iterator[tuple[int, str]]:
    pending, start = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        start = start if pending else number
        if line.endswith("\\") and not line.endswith("\\\\"):
            pending += line[:-1] + " "
            continue
        yield start, pending + line
        pending = ""
    if pending:
        yield start, pending


def _looks_like_variable(name: str) -> bool:
    """Return whether a word can only be meant as a variable: systemd's own directives are in camel case."""
    return "_" in name and _NAME.fullmatch(name) is not None


def _shell_words(line: str) -> list[str]:
    """Split as a shell does, comments as words. Raises ValueError where a quote isn't closed.

    A ; parts statements only where ``export`` says that it is a shell's: lists of protocols hold ; too.
    """
    shell = re.search(r"\b(?:export|unset)\s", line)
    for commenters in ("", "#"):  # a comment can hold a lone quote
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|" if shell else False)
        lexer.whitespace_split = True
        lexer.commenters = commenters
        try:
            words = list(lexer)
        except ValueError:
            if commenters:
                raise
            continue
        return [*words, "#"] if commenters else words
    return []


def _statements(words: Sequence[str]) -> Iterator[list[str]]:
    current: list[str] = []
    for word in words:
        if word in _SHELL_WORDS or (word and not word.strip(";&|")):
            if current:
                yield current
            current = []
        else:
            current.append(word)
    if current:
        yield current


def _container_settings(words: Sequence[str]) -> list[str]:
    """Return the settings in the options of a container (``-e``, ``--env``, ``--env=``) and of mpirun (``-x``)."""
    settings = [words[i + 1] for i, word in enumerate(words[:-1]) if word in ("-e", "--env", "-x")]
    settings += [word.removeprefix("--env=") for word in words if word.startswith("--env=")]
    return [setting for setting in settings if _ASSIGNMENT.fullmatch(setting)]


def _script(words: Sequence[str]) -> str | None:
    """Return what ``sh -c`` runs, None where the command is no shell's."""
    if not words or words[0].rsplit("/", 1)[-1] not in ("sh", "bash", "dash", "zsh"):
        return None
    option = next((i for i, word in enumerate(words) if re.fullmatch(r"-[a-z]*c[a-z]*", word)), len(words))
    return next(iter(words[option + 1 : option + 2]), None)


def _is_command(words: Sequence[str]) -> bool:
    """Return whether words behind assignments are a program with its arguments rather than the rest of a value."""
    return bool(words) and (words[0] in _PROGRAMS or "/" in words[0] or any(word.startswith("-") for word in words[1:]))


def _merge(target: EnvironmentText, other: EnvironmentText, number: int) -> None:
    target.assignments += [replace(entry, line=number) for entry in other.assignments]
    target.problems += [replace(problem, line=number) for problem in other.problems]
