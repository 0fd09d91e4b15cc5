# SPDX-License-Identifier: Apache-2.0
"""The options of an engine release, as its own parser declares them: one table a release, made by a command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["value", "flag", "switch"]
"""``flag`` takes no value, ``switch`` has a second name that turns it off, ``value`` takes one or more."""


class TableError(ValueError):
    """A table that cannot be read. The message names the release."""


@dataclass(frozen=True)
class Option:
    """One option. Names are without the leading dashes."""

    name: str
    also: tuple[str, ...] = ()
    """Further names that mean the same."""
    off: tuple[str, ...] = ()
    """Names that turn a switch off."""
    kind: Kind = "value"
    takes: str = "text"
    """What one value looks like: text, int, size (1000 or 1k), float, json; special: only the engine knows."""
    many: bool = False
    """It takes several values behind one name."""
    repeat: bool = False
    """It is given once for each value."""
    bare: bool = False
    """It may also stand without a value."""
    choices: tuple[str, ...] = ()
    default: Any = None
    deprecated: bool = False
    instead: str = ""
    """What the parser itself names as the replacement of a deprecated option."""


@dataclass(frozen=True)
class Table:
    """The options of one release, and where they are from."""

    engine: str
    version: str
    wheel: str
    sha256: str
    options: Mapping[str, Option]
    _names: dict[str, Option] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for option in self.options.values():
            for name in (option.name, *option.also, *option.off):
                self._names[name] = option

    @property
    def names(self) -> Mapping[str, Option]:
        """Return every name, also further ones and those that turn a switch off."""
        return self._names

    def find(self, name: str) -> Option | None:
        """Return the option with this name; vLLM's ``config.key`` belongs to the option ``config``."""
        if name in self._names:
            return self._names[name]
        option = self._names.get(name.partition(".")[0])
        return option if option and option.takes in ("json", "special") and "." in name else None


def order(version: str) -> tuple[int, ...]:
    """Return a sort key for release numbers such as ``0.5.10.post1``."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def option_of(row: Mapping[str, Any]) -> Option:
    """Return the option of one row of ``engine-args-worker options``."""
    kind = _kind(row)
    names = list(row["names"])
    on = names[::2] if kind == "switch" else names  # argparse lists each name with its opposite behind it
    return Option(
        name=names[0],
        also=tuple(on[1:]),
        off=tuple(names[1::2]) if kind == "switch" else (),
        kind=kind,
        takes=_takes(row) if kind == "value" else "text",
        many=kind == "value" and row["nargs"] in ("+", "*"),
        repeat=row["action"] == "_AppendAction",
        bare=kind == "value" and row["nargs"] in ("?", "*"),
        choices=tuple(choice for choice in row["choices"] or () if choice != "None"),
        default=row["default"],
        deprecated=bool(row["deprecated"]),
        instead=str(row["instead"] or "").lstrip("-"),
    )


def _kind(row: Mapping[str, Any]) -> Kind:
    if row["nargs"] != 0:
        return "value"
    return "switch" if row["action"] in ("BooleanOptionalAction", "EnableDisableAction") else "flag"


def _takes(row: Mapping[str, Any]) -> str:
    if row["choices"]:
        return "text"
    return "json" if row["takes"] == "list" else str(row["takes"] or "special")


def render(table: Table) -> str:
    """Return a table as the text of its file: a head, then one option a line."""
    blank = Option("")
    head = {name: getattr(table, name) for name in ("engine", "version", "wheel", "sha256")}
    rows = []
    for name, option in sorted(table.options.items()):
        known = {key: value for key, value in vars(option).items() if key != "name" and value != getattr(blank, key)}
        rows.append(f"  {json.dumps(name)}: {json.dumps(known, ensure_ascii=False)}")
    lines = [f"{json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    return "{\n" + "\n".join([*lines, '"options": {', ",\n".join(rows), "}"]) + "\n}\n"


def parse(text: str, where: str) -> Table:
    """Return the table in the text of a file; ``where`` names it for the person who reads the error."""
    try:
        document = json.loads(text)
        options = {name: _option(name, row) for name, row in document["options"].items()}
        engine, version, wheel, sha256 = (str(document[name]) for name in ("engine", "version", "wheel", "sha256"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TableError(f"{where}: not a table of options ({error!r}); make it: scripts/engine-args make") from error
    return Table(engine, version, wheel, sha256, options)


def _option(name: str, row: Mapping[str, Any]) -> Option:
    lists = ("also", "off", "choices")
    known: dict[str, Any] = {key: tuple(value) if key in lists else value for key, value in row.items()}
    return Option(name, **known)


def file_name(engine: str, version: str) -> str:
    """Return the name of a release's table."""
    return f"{engine}-{version}.json"


def table_of(engine: str, version: str, wheel: str, sha256: str, rows: Iterable[Mapping[str, Any]]) -> Table:
    """Return the table of what a parser printed."""
    found = [option_of(row) for row in rows if row["names"]]
    return Table(engine, version, wheel, sha256, {option.name: option for option in found})


def difference(old: Table, new: Table) -> dict[str, list[str]]:
    """Return the names that are ``gone`` and ``new``, and options whose ``values`` or ``default`` changed."""
    both = sorted(old.options.keys() & new.options.keys())
    return {
        "gone": sorted(old.names.keys() - new.names.keys()),
        "new": sorted(new.names.keys() - old.names.keys()),
        "values": [name for name in both if _values(old.options[name]) != _values(new.options[name])],
        "default": [name for name in both if old.options[name].default != new.options[name].default],
    }


def _values(option: Option) -> tuple[Any, ...]:
    return option.kind, option.takes, option.many, option.choices


def words(option: Option | None, name: str, value: Any) -> list[str]:
    """Return an option and its value as words of a command line. Nothing for null, nor for a flag that is false."""
    if value is None:
        return []
    if isinstance(value, bool):
        return _switch_words(option, name, value)
    if isinstance(value, Mapping) or (isinstance(value, list) and option is not None and option.takes == "json"):
        return [f"--{name}", json.dumps(value)]
    values = [str(entry) for entry in value] if isinstance(value, (list, tuple)) else [str(value)]
    if option is not None and option.repeat:
        return [word for entry in values for word in (f"--{name}", entry)]
    return [*_joined(name, values)]


def _joined(name: str, values: Sequence[str]) -> list[str]:
    """Join a value that begins with a dash to its option: it would be taken for an option itself. Numbers are not."""
    if len(values) == 1 and re.match(r"-(?!\d+$|\d*\.\d+$)", values[0]):
        return [f"--{name}={values[0]}"]
    return [f"--{name}", *values]


def _switch_words(option: Option | None, name: str, value: bool) -> list[str]:
    if value:
        return [f"--{name}"]
    if option is not None and option.kind == "switch" and name not in option.off:
        return [f"--{option.off[0]}"]
    return []
