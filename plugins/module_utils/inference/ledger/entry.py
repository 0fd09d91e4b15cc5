# SPDX-License-Identifier: Apache-2.0
"""What a patch of the ledger is: the keys of an entry, their check, the choice of patches and what identifies it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any

from ..program import nearest
from . import source_edit
from .source_edit import EditError

DEFAULT = "default"
"""The word that stands for every patch whose entry says ``default: true``."""


class LedgerError(Exception):
    """The ledger, the selection or the tree is not what it has to be. Nothing has been changed."""


@dataclass(frozen=True)
class Condition:
    """One question to a file, in the scope ``within``: is there ``code``, or a call whose ``keyword`` has ``contains``.

    Without ``code`` and ``keyword`` the question is whether the file exists. ``present: false`` asks for the opposite.
    """

    file: str
    within: str = ""
    code: str = ""
    keyword: str = ""
    contains: int | None = None
    present: bool = True


@dataclass(frozen=True)
class Clause:
    """A reason that holds when all its conditions do."""

    why: str
    when: tuple[Condition, ...]


@dataclass(frozen=True)
class Edit:
    """Lines to add ``at`` (before or after) the one place in ``file`` where the code ``anchor`` stands."""

    file: str
    anchor: str
    insert: str
    within: str = ""
    at: source_edit.Side = "before"


@dataclass(frozen=True)
class Variant:
    """The edits for one form of the code; ``form`` says which releases have it."""

    form: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Instead:
    """The setting that does what a patch does: command-line arguments, environment, and a note for people."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    def __str__(self) -> str:
        arguments = [f"--{name}" if value is True else f"--{name} {value}" for name, value in self.arguments.items()]
        environment = [f"{name}={value}" for name, value in self.environment.items()]
        settings = " ".join([*environment, *arguments])
        return "; ".join(part for part in (settings, self.note) if part)


@dataclass(frozen=True)
class Entry:
    """One patch."""

    id: str
    name: str
    title: str
    why: str
    risk: str
    drop_when: str
    verified: str
    source: tuple[str, ...]
    releases: tuple[str, ...] = ()
    """First and last release the patch was measured on; it never decides, it only warns of a newer release."""
    default: bool = False
    forbidden: str = ""
    acknowledge: str = ""
    requires: tuple[str, ...] = ()
    forbids: tuple[str, ...] = ()
    instead: Instead | None = None
    upstream: tuple[Clause, ...] = ()
    not_needed: tuple[Clause, ...] = ()
    needs: tuple[Clause, ...] = ()
    variants: tuple[Variant, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The mapping it was read from."""

    @property
    def files(self) -> list[str]:
        """Return the files that the patch may change."""
        return sorted({edit.file for variant in self.variants for edit in variant.edits})

    @property
    def asked(self) -> list[str]:
        """Return the files that the patch's state depends on."""
        clauses = (*self.upstream, *self.not_needed, *self.needs)
        return sorted({*self.files, *(condition.file for clause in clauses for condition in clause.when)})


_TEXT_LISTS = ("source", "releases", "requires", "forbids")


def load(documents: Iterable[Mapping[str, Any] | Entry]) -> list[Entry]:
    """Return the entries of a ledger in the order of their ids. Raise :class:`LedgerError` naming entry and key."""
    entries = sorted((d if isinstance(d, Entry) else _entry(d) for d in documents), key=lambda entry: entry.id)
    ids = [entry.id for entry in entries]
    for entry in entries:
        if ids.count(entry.id) > 1:
            raise LedgerError(f"{entry.id}: more than one entry has this id")
        for other in (*entry.requires, *entry.forbids):
            if other not in ids:
                raise LedgerError(f"{entry.id}: names {other}, which the ledger does not have")
    return entries


def _entry(document: Mapping[str, Any]) -> Entry:
    if not isinstance(document, Mapping):
        raise LedgerError(f"an entry is a mapping, not {type(document).__name__}")
    where = str(document.get("id", "an entry without id"))
    values = _checked(Entry, document, where)
    for key in _TEXT_LISTS:
        if key in values:
            values[key] = tuple(str(item) for item in values[key])
    for key in ("upstream", "not_needed", "needs"):
        if key in values:
            values[key] = tuple(_clause(item, f"{where}: {key}") for item in values[key])
    if "instead" in values:
        values["instead"] = Instead(**_checked(Instead, values["instead"], f"{where}: instead"))
    if "variants" in values:
        values["variants"] = tuple(_variant(item, f"{where}: variants") for item in values["variants"])
    if not values.get("variants") and not values.get("forbidden") and not values.get("instead"):
        raise LedgerError(f"{where}: neither variants, nor forbidden, nor instead: it does nothing")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", values["id"]):
        raise LedgerError(f"{where}: an id is made of letters, digits, - and _")
    return Entry(**values, document=dict(document))


def _clause(document: Any, where: str) -> Clause:
    values = _checked(Clause, document, where)
    return Clause(values["why"], tuple(_condition(item, where) for item in values["when"]))


def _condition(document: Any, where: str) -> Condition:
    condition = Condition(**_checked(Condition, document, where))
    _check_path(condition.file, where)
    _check_code(condition.code, where)
    return condition


def _variant(document: Any, where: str) -> Variant:
    values = _checked(Variant, document, where)
    if not values["edits"]:
        raise LedgerError(f"{where}: {values['form']}: no edits")
    return Variant(values["form"], tuple(_edit(item, f"{where}: {values['form']}") for item in values["edits"]))


def _edit(document: Any, where: str) -> Edit:
    edit = Edit(**_checked(Edit, document, where))
    _check_path(edit.file, where)
    _check_code(edit.anchor, where)
    if not edit.anchor.strip() or not edit.insert.strip():
        raise LedgerError(f"{where}: {edit.file}: an edit needs an anchor and lines to insert")
    if edit.at not in ("before", "after"):
        raise LedgerError(f"{where}: at is {edit.at!r}, expected before or after")
    if not edit.insert.isascii():
        raise LedgerError(f"{where}: the lines to insert are not plain ASCII")
    return edit


_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "tuple[": (list, tuple),
    "Instead": Mapping,
    "Mapping[": Mapping,
    "bool": bool,
    "int": int,
    "str": str,
}


def _checked(kind: Any, document: Any, where: str) -> dict[str, Any]:
    """Return the mapping's values after a check of its keys and their types against the fields of ``kind``."""
    if not isinstance(document, Mapping):
        raise LedgerError(f"{where}: expected a mapping, seen {document!r}")
    known = {field.name: field for field in fields(kind) if field.name != "document"}
    for key, value in document.items():
        if key not in known:
            raise LedgerError(f"{where}: unknown key {key!r}{nearest(str(key), known)}")
        expected = next((k for start, k in _KINDS.items() if str(known[key].type).startswith(start)), str)
        if not isinstance(value, expected):
            raise LedgerError(f"{where}: {key} is {value!r}, expected {known[key].type}")
    missing = [n for n, f in known.items() if f.default is f.default_factory is MISSING and n not in document]
    if missing:
        raise LedgerError(f"{where}: {', '.join(missing)} missing")
    return dict(document)


def _check_path(name: str, where: str) -> None:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise LedgerError(f"{where}: file {name!r} is not a path inside site-packages")


def _check_code(code: str, where: str) -> None:
    try:
        source_edit.pattern(code)
    except EditError as error:
        raise LedgerError(f"{where}: {code!r}: {error}") from error


def choose(entries: Sequence[Entry], names: Iterable[str] | str | None = None) -> list[str]:
    """Return the ids that ``names`` stand for, in ledger order; ``default`` or None: the entries on by default.

    Raise :class:`LedgerError` for an id that the ledger does not have.
    """
    wanted = [DEFAULT] if names is None else [names] if isinstance(names, str) else list(names)
    known = [entry.id for entry in entries]
    for name in wanted:
        if name not in known and name != DEFAULT:
            raise LedgerError(f"no patch {name!r}{nearest(name, known)} (the ledger has {', '.join(known)})")
    return [e.id for e in entries if e.id in wanted or (DEFAULT in wanted and e.default)]


def content_id(entries: Iterable[Mapping[str, Any] | Entry], chosen: Iterable[str] | str | None = None) -> str:
    """Return the SHA-256 (64 hex digits) of the ids and the effective content of the chosen patches.

    It changes with the choice and with any anchor, condition or inserted line, and not with words for people.
    """
    ledger = load(entries)
    ids = choose(ledger, chosen)
    content = [_content(entry) for entry in ledger if entry.id in ids]
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _content(entry: Entry) -> dict[str, Any]:
    conditions = {
        name: [[asdict(condition) for condition in clause.when] for clause in getattr(entry, name)]
        for name in ("upstream", "not_needed", "needs")
    }
    edits = [[asdict(edit) for edit in variant.edits] for variant in entry.variants]
    return {"id": entry.id, "edits": edits, **conditions}
