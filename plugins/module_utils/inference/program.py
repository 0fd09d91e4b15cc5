# SPDX-License-Identifier: Apache-2.0
"""What every program in ``scripts/`` shares: verbs, ``--json``, ``-`` for standard input, errors and exit codes."""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - said before a line that an older Python cannot read
    sys.exit("seen: Python " + sys.version.split()[0] + "; expected: 3.10 or newer; fix: run this with a newer python3")

import argparse
import codecs
import difflib
import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .findings import Report, excerpt

USAGE = 3
"""Exit code of a call that could not be understood: nothing is known (as monitoring plugins do it)."""

_LONGEST_LINE = 1000
"""Characters of a line of an error: what was seen in a file may be a line of megabytes."""


class ProgramError(Exception):
    """Something the person at the keyboard can mend. The message names the file or option."""


class _Parser(argparse.ArgumentParser):
    """An argument parser that exits with 3, since 2 means a critical finding."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, _told(self.prog, message))


def _told(name: str, message: str) -> str:
    """Return an error as a terminal can show it, whatever of a file is quoted in it."""
    return "".join(f"{excerpt(line, _LONGEST_LINE)}\n" for line in f"{name}: {message}".split("\n"))


def _parser(name: str, description: str) -> _Parser:
    parser = _Parser(prog=name, description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


Verb = Callable[[argparse.Namespace], int]
"""A verb's function: takes the parsed arguments, prints, returns the exit code."""


class Program:
    """A program with verbs, without any (``only``), or with both. Options may stand anywhere after the verb."""

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self.description = description
        self._verbs: dict[str, tuple[_Parser, Verb]] = {}
        self._only: tuple[_Parser, Verb] | None = None

    def verb(self, name: str, run: Verb, summary: str) -> argparse.ArgumentParser:
        """Add a verb and return its parser, which already knows ``--json``."""
        self._verbs[name] = (_parser(f"{self.name} {name}", summary), run)
        return self._verbs[name][0]

    def only(self, run: Verb) -> argparse.ArgumentParser:
        """Set what runs where no verb is named, and return its parser, which already knows ``--json``."""
        self._only = (_parser(self.name, self.description), run)
        return self._only[0]

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the verb that ``argv`` names and return the exit code."""
        if isinstance(sys.stdout, io.TextIOWrapper):  # a name or JSON may hold half a character, which UTF-8 has not
            sys.stdout.reconfigure(errors="backslashreplace")
        arguments = list(sys.argv[1:] if argv is None else argv)
        if self._only and not (arguments and arguments[0] in self._verbs):
            verbs = self._verbs.items()
            self._only[0].epilog = "; ".join(f"{self.name} {name}: {p.description}" for name, (p, _) in verbs)
            return self._call(*self._only, arguments)
        if not arguments or arguments[0] in ("-h", "--help"):
            print(self._help(), file=sys.stdout if arguments else sys.stderr)
            return 0 if arguments else USAGE
        verb, rest = arguments[0], arguments[1:]
        if verb not in self._verbs:
            return self._fail(f"no verb {verb!r}{nearest(verb, self._verbs)}\n{self._help()}")
        return self._call(*self._verbs[verb], rest)

    def _call(self, parser: _Parser, run: Verb, arguments: list[str]) -> int:
        try:
            return run(parser.parse_intermixed_args(arguments))
        except ProgramError as error:
            return self._fail(str(error))
        except BrokenPipeError:
            sys.stderr.close()
            return USAGE
        except OSError as error:
            if error.filename is None:
                raise
            return self._fail(f"{error.filename}: {error.strerror}")

    def _fail(self, message: str) -> int:
        sys.stderr.write(_told(self.name, message))
        return USAGE

    def _help(self) -> str:
        width = max(map(len, self._verbs), default=0)
        verbs = "\n".join(f"  {name:<{width}}  {parser.description}" for name, (parser, _) in self._verbs.items())
        return f"usage: {self.name} VERB ...\n\n{self.description}\n\n{verbs}\n\n{self.name} VERB --help says more."


def whole(least: int) -> Callable[[str], int]:
    """Return an argument's type: a whole number that is at least ``least``."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise argparse.ArgumentTypeError(f"seen {text!r}; expected a whole number from {least} on")
        return int(text)

    return parse


def nearest(word: str, known: Any) -> str:
    """Return ``; did you mean 'X'?`` for the closest known word, else an empty string."""
    close = difflib.get_close_matches(word, [str(k) for k in known], n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def read_text(name: str) -> str:
    """Return what the file ``name`` (``-``: standard input) holds. Bytes that are not UTF-8 are kept as U+FFFD.

    A byte order mark is dropped; one of UTF-16 (what PowerShell's ``>`` writes) is obeyed.
    """
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise ProgramError(f"{name}: {error.strerror}") from error
    encoding = "utf-16" if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    return raw.decode(encoding, errors="replace")


def go_on_under_controller_python() -> None:
    """Run this program again with the controller's environment (``scripts/setup`` makes it), where there is one.

    For programs that find a library missing; returns when there is no such environment, or it is this one. Nothing must
    have been read from standard input before.
    """
    environment = Path(__file__).resolve().parents[3] / ".venv"
    python = environment / "bin" / "python"
    if python.exists() and Path(sys.prefix) != environment:
        os.execv(python, [str(python), *sys.argv])


def read_document(name: str) -> Any:
    """Return the JSON or YAML document in ``name``. YAML needs PyYAML, which a host may lack: JSON always works."""
    text = read_text(name)
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ProgramError(f"{name}: nested too deeply to be a document of this toolkit") from error
    except ValueError as error:  # a number of thousands of digits is none of JSONDecodeError
        return _read_yaml(name, text, error)


_WRONG_SCALARS = (ValueError, LookupError, TypeError, AttributeError)
"""What PyYAML lets through of a scalar that is not what it looks like, such as the date 2026-99-99."""


_MOST_YAML = 4 << 20
"""Characters of YAML that are read: PyYAML takes seconds for each million, and no document of ours is larger."""


def _read_yaml(name: str, text: str, json_error: ValueError) -> Any:
    if len(text) > _MOST_YAML:
        seen = f"{len(text) >> 20} MB, not JSON ({json_error})"
        raise ProgramError(f"{name}: seen {seen}; expected a document, as YAML {_MOST_YAML >> 20} MB at most")
    try:
        import yaml
    except ImportError:
        if name != "-":
            go_on_under_controller_python()
        raise ProgramError(f"{name}: not JSON ({json_error}), and PyYAML is not installed here") from json_error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ProgramError(f"{name}: neither JSON nor YAML: {error}") from error
    except _WRONG_SCALARS as error:
        raise ProgramError(f"{name}: neither JSON nor YAML: a value that is none ({error})") from error
    except RecursionError as error:
        raise ProgramError(f"{name}: nested too deeply to be a document of this toolkit") from error


def print_json(document: Any) -> None:
    """Print one JSON object, indented."""
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_report(report: Report, *, as_json: bool, **extra: Any) -> int:
    """Print the report in the asked form and return its exit code; ``extra`` keys go into the JSON only."""
    if as_json:
        print_json(report.as_dict(**extra))
    else:
        print(report.as_text())  # noqa: T201
    return report.exit_code
