# SPDX-License-Identifier: Apache-2.0
"""The tables of the guide about engine options, and the text forms of what scripts/engine-args shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..program import ProgramError, read_document
from . import inventory_file, strategies, tables
from .command import TITLES
from .options import Option
from .renames import RENAMES
from .rules import ANYTHING, RULES, Rule

Rows = Iterable[Sequence[str]]


def markdown(head: Sequence[str], rows: Rows) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(page: str, bodies: Mapping[str, str], where: str) -> str:
    """Return a page with each body between its markers. Raise ProgramError where the page lacks them."""
    for name, body in bodies.items():
        begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        if page.count(begin) != 1 or page.count(end) != 1:
            raise ProgramError(f"{where}: it has not one {begin} and one {end}")
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n\n{body}\n{end}{rest.partition(end)[2]}"
    return page


def pages(project: Path) -> dict[Path, dict[str, str]]:
    """Return the generated tables by page."""
    docs = project / "docs"
    known = strategies.load(read_document(str(tables.FOLDER / "strategies.yml")))
    return {
        docs / "engine-args.md": {"releases": releases(), "renames": renames(), "rules": rules()},
        docs / "strategies.md": {"strategies": strategies.table(known)},
        docs / "presets.md": {"presets": presets(project)},
    }


def releases() -> str:
    """Return the table of the releases whose options are known."""
    found = [table for engine in TITLES for table in tables.load_all(engine)]
    rows = [
        [
            f"{TITLES[table.engine]} {table.version}",
            str(len(table.options)),
            f"`{table.wheel}`",
            f"`{table.sha256[:16]}…`",
        ]
        for table in found
    ]
    return markdown(["release", "options", "asked of", "sha256"], rows)


def renames() -> str:
    """Return the table of options that have another name in another release."""
    rows = []
    for rename in RENAMES:
        values = (
            "the same" if rename.values is None else ", ".join(f"{old} = {new}" for old, new in rename.values.items())
        )
        rows.append([f"`{rename.old}`", f"`{rename.new}`", values, rename.source])
    return markdown(["old name", "new name", "values", "source"], rows)


def rules() -> str:
    """Return the table of the rules about settings that do not go together."""
    rows = [[f"`{r.id}`", r.level, TITLES[r.engine], _releases(r), _condition(r), r.what, r.source] for r in RULES]
    return markdown(["id", "level", "engine", "releases", "when", "what", "source"], rows)


def _releases(rule: Rule) -> str:
    since = "" if rule.since == "0" else f"from {rule.since}"
    until = "" if rule.until == "9999" else f"to {rule.until}"
    return f"{since} {until}".strip() or "all"


def _condition(rule: Rule) -> str:
    parts = [f"{' or '.join(map(_name, rule.options))}{_values(rule.values)}"] if rule.options else []
    parts += [f"with {_name(name)}{_values(values)}" for name, values in rule.also.items()]
    parts += [f"without {_name(name)}{_values(values)}" for name, values in rule.unless.items()]
    parts += [f"on {' or '.join(map(str, rule.ranks))} GPUs"] if rule.ranks else []
    parts += [f"not on {', '.join(map(str, rule.not_ranks))} GPUs"] if rule.not_ranks else []
    parts += {"sm120": ["on SM120"], "cpu": ["on a CPU"]}.get(rule.scope, [])
    return ", ".join(parts)


def _name(name: str) -> str:
    return f"`{name.removeprefix('env:')}`"


def _values(values: Sequence[Any]) -> str:
    return "" if tuple(values) == ANYTHING else f" {' or '.join(map(str, values))}"


def presets(project: Path) -> str:
    """Return every line of every preset with its reason and its source."""
    parts = []
    for name, preset in sorted(inventory_file.presets(project).items()):
        since = ", ".join(f"{TITLES[engine]} {oldest} or newer" for engine, oldest in preset.since.items())
        rows = [
            [f"`{'.'.join(s.at)}`", TITLES[s.engine] if s.engine else "any", f"`{_yaml(s.value)}`", s.why, s.source]
            for s in preset.settings
        ]
        parts.append(f"### {name}\n\n{preset.title}. For {since}.\n")
        parts.append(markdown(["setting", "engine", "value", "why", "source"], rows))
    return "\n".join(parts)


def _yaml(value: Any) -> str:
    return (
        {True: "true", False: "false", None: "null"}.get(value, str(value))
        if not isinstance(value, list)
        else str(value)
    )


def option_line(option: Option) -> str:
    """Return one option as a line for people."""
    takes = "" if option.kind != "value" else f" {'|'.join(option.choices) or option.takes.upper()}"
    more = " ..." if option.many or option.repeat else ""
    also = "".join(f", --{name}" for name in (*option.also, *option.off))
    default = f"  (default {option.default})" if option.kind == "value" and option.default not in (None, [], {}) else ""
    note = f"  deprecated{': ' + option.instead if option.instead else ''}" if option.deprecated else ""
    return re.sub(r"\s+$", "", f"--{option.name}{also}{takes}{more}{default}{note}")


def preview(rows: Mapping[str, Sequence[Mapping[str, Any]]], pins: Sequence[Mapping[str, str | None]]) -> str:
    """Return a preview as text: each instance's options that move, then the packages."""
    lines = []
    for name, found in rows.items():
        moved = [row for row in found if row["state"] != "same"]
        lines.append(f"{name}: {len(found) - len(moved)} of its options stay as they are")
        lines += [f"  {row['state']:<10} {row['option']}: {row['now']} -> {row['then'] or 'nothing'}" for row in moved]
    lines += [f"  {pin['package']}: {pin['now'] or 'none'} -> {pin['then'] or 'none'}" for pin in pins]
    return "\n".join(lines) + "\n"
