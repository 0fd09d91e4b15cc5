# SPDX-License-Identifier: Apache-2.0
"""Find code by its syntax tree, add marked lines next to it, and take exactly those lines out again.

Every edit only *adds* lines: nothing that the release holds is rewritten. The added lines stand between two comment
lines that name the edit, so that whoever reads the file sees what was added, and removing them gives back the very
bytes that were there before, without a stored copy of the original.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Side = Literal["before", "after"]
"""On which side of the anchor the lines are added."""

_SCOPES = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class EditError(Exception):
    """The code is not what an edit expects. The message says what was seen."""


@dataclass(frozen=True)
class Span:
    """Statements of a file: 1-based line numbers, both inclusive."""

    first: int
    last: int


def parse(source: bytes) -> ast.Module:
    """Return the syntax tree of Python source. Raise :class:`EditError` where it is none."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise EditError(f"not readable as Python: {error}") from error


def pattern(code: str) -> list[ast.stmt]:
    """Return the statements that ``code`` stands for.

    ``...`` stands for any expression. A compound statement whose body is ``...`` stands for its header alone,
    whatever its body and its ``else``.
    """
    return parse(textwrap.dedent(code).encode()).body


def headline(code: str) -> str:
    """Return the first statement of ``code``, or its header, on one line."""
    return ast.unparse(pattern(code)[0]).splitlines()[0]


def find(tree: ast.Module, within: str, wanted: Sequence[ast.stmt]) -> list[Span]:
    """Return where the statements ``wanted`` follow each other in a scope (``Class.method``; an empty one: the file).

    Raise :class:`EditError` when the scope is not there.
    """
    found = []
    for block in _blocks(_scope(tree, within)):
        for start in range(len(block) - len(wanted) + 1):
            candidate = block[start : start + len(wanted)]
            if all(map(_matches, wanted, candidate)):
                found.append(Span(_first_line(candidate[0]), candidate[-1].end_lineno or candidate[-1].lineno))
    return found


def holds(tree: ast.Module, within: str, wanted: Sequence[ast.stmt]) -> bool:
    """Tell whether the scope has the statements ``wanted``; a lone expression may stand inside a statement."""
    if len(wanted) == 1 and isinstance(wanted[0], ast.Expr):
        expression = wanted[0].value
        return any(_matches(expression, node) for node in ast.walk(_scope(tree, within)) if isinstance(node, ast.expr))
    return bool(find(tree, within, wanted))


def keyword_values(tree: ast.Module, within: str, name: str) -> list[Any]:
    """Return the literal values that calls in the scope ``within`` give to the keyword ``name``."""
    calls = (node for node in ast.walk(_scope(tree, within)) if isinstance(node, ast.Call))
    keywords = (keyword for call in calls for keyword in call.keywords if keyword.arg == name)
    values = []
    for keyword in keywords:
        try:
            values.append(ast.literal_eval(keyword.value))
        except ValueError:
            continue
    return values


def insert(source: bytes, span: Span, side: Side, code: str, mark: str) -> bytes:
    """Return ``source`` with ``code`` added beside ``span``, at its indentation, between lines that name ``mark``."""
    lines = source.splitlines(keepends=True)
    at = span.first - 1 if side == "before" else span.last
    indent = _indent(lines[span.first - 1])
    newline = b"\r\n" if lines[span.first - 1].endswith(b"\r\n") else b"\n"
    if at == len(lines) and not lines[-1].endswith(b"\n"):
        raise EditError("the anchor is the last line and that line has no end")
    return b"".join([*lines[:at], _block(code, mark, indent, newline), *lines[at:]])


def remove(source: bytes, code: str, mark: str) -> bytes | None:
    """Return ``source`` without the lines that :func:`insert` added for ``mark``, or None where there are none.

    Raise :class:`EditError` when the marked lines are not the ones that ``code`` would have added.
    """
    begin, end = (re.escape(line.encode()) for line in _marks(mark))
    found = list(re.finditer(rb"(?m)^([ \t]*)" + begin + rb"(\r?\n)", source))
    if not found:
        if re.search(rb"(?m)^[ \t]*" + end + rb"\r?$", source):
            raise EditError(f"an end mark of {mark} without its beginning: the file was edited by hand")
        return None
    if len(found) > 1:
        raise EditError(f"the lines of {mark} are there {len(found)} times: the file was edited by hand")
    start = found[0].start()
    block = _block(code, mark, found[0][1], found[0][2])
    if not source.startswith(block, start):
        raise EditError(
            f"the lines marked {mark} are not those of this ledger: another version of it or a hand made them"
        )
    return source[:start] + source[start + len(block) :]


def mark_line(source: bytes, mark: str) -> int:
    """Return the 1-based number of the line that begins the edit ``mark``, 0 where it is not in."""
    found = re.search(rb"(?m)^[ \t]*" + re.escape(_marks(mark)[0].encode()) + rb"\r?$", source)
    return source.count(b"\n", 0, found.start()) + 1 if found else 0


def without_marked(source: bytes) -> bytes:
    """Return ``source`` without any marked lines, whichever patch they belong to: what the release itself holds."""
    return re.sub(rb"(?ms)^[ \t]*# >>> patch (\S+)\r?\n.*?^[ \t]*# <<< patch \1\r?\n", b"", source)


def _block(code: str, mark: str, indent: bytes, newline: bytes) -> bytes:
    begin, end = _marks(mark)
    lines = [begin, *textwrap.dedent(code).strip("\n").split("\n"), end]
    return b"".join((indent + line.encode("ascii") if line else b"") + newline for line in lines)


def mark_of(patch: str) -> bytes:
    """Return the bytes that begin every mark of one patch."""
    return f"# >>> patch {patch}/".encode()


def _marks(mark: str) -> tuple[str, str]:
    return f"# >>> patch {mark}", f"# <<< patch {mark}"


def _indent(line: bytes) -> bytes:
    return line[: len(line) - len(line.lstrip(b" \t"))]


def _first_line(statement: ast.stmt) -> int:
    decorators: Sequence[ast.expr] = getattr(statement, "decorator_list", ())
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def _scope(tree: ast.Module, within: str) -> ast.AST:
    scope: ast.AST = tree
    for name in within.split(".") if within else []:
        inner = [node for node in _definitions(scope) if node.name == name]
        if len(inner) != 1:
            raise EditError(f"{within}: {name} is defined {len(inner)} times, expected once")
        scope = inner[0]
    return scope


def _definitions(scope: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the classes and functions of a scope, also those under an ``if`` or ``try``, but not the nested ones."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, _SCOPES):
            yield node
        else:
            yield from _definitions(node)


def _blocks(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(scope):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block:
                yield block


def _is_ellipsis(node: object) -> bool:
    if isinstance(node, ast.Expr):
        node = node.value
    return isinstance(node, ast.Constant) and node.value is ...


def _matches(wanted: object, seen: object) -> bool:
    if isinstance(wanted, list) and isinstance(seen, list):
        return len(wanted) == len(seen) and all(map(_matches, wanted, seen))
    if _is_ellipsis(wanted) and isinstance(seen, ast.expr | ast.Expr):
        return True
    if not isinstance(wanted, ast.AST):
        return type(wanted) is type(seen) and wanted == seen
    if type(wanted) is not type(seen):
        return False
    return all(_matches(getattr(wanted, name, None), getattr(seen, name, None)) for name in _compared(wanted))


def _compared(wanted: ast.AST) -> list[str]:
    """Return the fields to compare: all, or those of the header where the body is ``...``."""
    body = getattr(wanted, "body", None)
    fields = [name for name in wanted._fields if name != "type_comment"]
    if isinstance(body, list) and len(body) == 1 and _is_ellipsis(body[0]):
        return [name for name in fields if name not in ("body", "orelse", "finalbody", "handlers")]
    return fields
