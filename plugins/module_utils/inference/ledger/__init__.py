# SPDX-License-Identifier: Apache-2.0
"""The patch ledger: which source changes an installed SGLang can take, in which state each is, and making them.

An entry is one mapping (one YAML file in the repository, JSON on a host); ``docs/patches.md`` describes its keys. The
state of a patch follows from the code in the tree, never from a version string. Work has two phases: :func:`plan` reads
everything and decides; :meth:`Plan.execute` writes, and writes nothing when one chosen patch can't go in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..releases.wheels import order
from . import source_edit
from .entry import DEFAULT, Clause, Condition, Edit, Entry, LedgerError, choose, content_id, load
from .source_edit import EditError, Span
from .tree import Change, Tree, sweep, write

__all__ = [
    "BLOCKING",
    "DEFAULT",
    "Entry",
    "LedgerError",
    "PatchState",
    "Plan",
    "State",
    "choose",
    "content_id",
    "load",
    "plan",
]

State = Literal["applies", "applied", "upstream", "not-needed", "conflict", "refused"]
"""``applies``: can be put in. ``upstream``: the release has the change. ``not-needed``: the release lacks the fault, or
a setting does it. ``conflict``: the code is none that the entry knows. ``refused``: harmful, or not acknowledged."""

BLOCKING: tuple[State, ...] = ("conflict", "refused")
"""States in which a chosen patch stops the whole plan."""


@dataclass(frozen=True)
class PatchState:
    """What one patch is in one tree, and why."""

    id: str
    state: State
    reason: str


@dataclass(frozen=True)
class _Site:
    """One edit in one tree: there already, possible at a place, or neither (``problem``)."""

    edit: Edit
    mark: str
    there: int = 0
    """Line of the mark, 0 where the edit is not in."""
    span: Span | None = None
    problem: str = ""

    @property
    def place(self) -> str:
        """Return ``file:line`` of the added lines or of the anchor."""
        return f"{self.edit.file}:{self.there or (self.span.first if self.span else 0)}"


def _site(tree: Tree, edit: Edit, mark: str) -> _Site:
    source = tree.read(edit.file)
    if source is None:
        return _Site(edit, mark, problem=f"no file {edit.file}")
    place = edit.file + (f" in {edit.within}" if edit.within else "")
    try:
        without = source_edit.remove(source, edit.insert, mark)
        base = source if without is None else without
        spans = source_edit.find(tree.syntax(base), edit.within, source_edit.pattern(edit.anchor))
        if len(spans) != 1:
            code = source_edit.headline(edit.anchor)
            return _Site(edit, mark, problem=f"{place}: the code `{code}` is there {len(spans)} times, expected once")
        source_edit.insert(base, spans[0], edit.at, edit.insert, mark)
    except EditError as error:
        return _Site(edit, mark, problem=f"{edit.file}: {error}")
    return _Site(edit, mark, source_edit.mark_line(source, mark), spans[0])


def _sites(tree: Tree, entry: Entry) -> list[list[_Site]]:
    """Return the sites of each variant. The mark of an edit is its patch and its place in the variant."""
    return [
        [_site(tree, edit, f"{entry.id}/{number}") for number, edit in enumerate(variant.edits, 1)]
        for variant in entry.variants
    ]


def _fitting(sites: Iterable[list[_Site]]) -> list[_Site] | None:
    return next((group for group in sites if not any(site.problem for site in group)), None)


def _holds(tree: Tree, condition: Condition) -> bool:
    return _is_present(tree, condition) == condition.present


def _is_present(tree: Tree, condition: Condition) -> bool:
    source = tree.read(condition.file)
    if source is None or not (condition.code or condition.keyword):
        return source is not None
    try:
        syntax = tree.syntax(source)
        if condition.keyword:
            values = source_edit.keyword_values(syntax, condition.within, condition.keyword)
            return any(condition.contains in value for value in values if isinstance(value, list | tuple))
        return source_edit.holds(syntax, condition.within, source_edit.pattern(condition.code))
    except EditError:
        return False


def _first_true(tree: Tree, clauses: Iterable[Clause]) -> str | None:
    return next((c.why for c in clauses if all(_holds(tree, condition) for condition in c.when)), None)


def _unmet(tree: Tree, clauses: Iterable[Clause]) -> str | None:
    return next((c.why for c in clauses if not all(_holds(tree, condition) for condition in c.when)), None)


def state_of(tree: Tree, entry: Entry, acknowledged: Iterable[str] = ()) -> PatchState:
    """Return the state of one patch in the tree. The order of the questions is the order of the states' weight."""
    if entry.forbidden:
        return PatchState(entry.id, "refused", entry.forbidden)
    sites = _sites(tree, entry)
    fitting = _fitting(sites)
    if fitting and all(site.there for site in fitting):
        return PatchState(entry.id, "applied", _applied_reason(tree, fitting))
    questions: list[tuple[State, Callable[[], str | None]]] = [
        ("upstream", lambda: _first_true(tree, entry.upstream)),
        ("not-needed", lambda: _first_true(tree, entry.not_needed)),
        ("not-needed", lambda: None if entry.variants else str(entry.instead)),
        ("refused", lambda: _unmet(tree, entry.needs)),
        ("refused", lambda: None if entry.id in set(acknowledged) else _unacknowledged(entry)),
        ("conflict", lambda: None if fitting else _conflict_reason(entry, sites)),
    ]
    for state, ask in questions:
        reason = ask()
        if reason is not None:
            return PatchState(entry.id, state, reason)
    return PatchState(entry.id, "applies", _applies_reason(tree, entry, fitting or []))


def _unacknowledged(entry: Entry) -> str | None:
    return f"{entry.acknowledge} Goes in only when {entry.id} is acknowledged." if entry.acknowledge else None


def _conflict_reason(entry: Entry, sites: Sequence[Sequence[_Site]]) -> str:
    forms = zip(entry.variants, sites, strict=True)
    problems = [f"{v.form}: {'; '.join(s.problem for s in group if s.problem)}" for v, group in forms]
    return "the code is none of the known forms: " + " | ".join(problems)


def _applied_reason(tree: Tree, sites: Iterable[_Site]) -> str:
    return f"its lines are in {', '.join(site.place for site in sites)}{_provenance(tree, sites)}"


def _applies_reason(tree: Tree, entry: Entry, sites: Sequence[_Site]) -> str:
    done = [site for site in sites if site.there]
    started = f"{len(done)} of {len(sites)} edits are in (an interrupted run); the rest goes to " if done else ""
    places = [site.place for site in sites if not site.there]
    return f"{started}{', '.join(places)}{_provenance(tree, sites)}{_age(tree, entry)}"


def _provenance(tree: Tree, sites: Iterable[_Site]) -> str:
    """Say whether the files are those of the published wheel, apart from this ledger's marked lines."""
    foreign = []
    for name in sorted({site.edit.file for site in sites}):
        content = source_edit.without_marked(tree.read(name) or b"")
        if tree.released(name, content) is False:
            foreign.append(name)
    return f"; not as in its wheel apart from marked lines: {', '.join(foreign)}" if foreign else ""


def _age(tree: Tree, entry: Entry) -> str:
    version = tree.version()
    if not version or not entry.releases or order(version) <= order(entry.releases[-1]):
        return ""
    return f"; {version} is newer than {entry.releases[-1]}, the last release that this was measured on"


@dataclass(frozen=True)
class Plan:
    """What a call will do to a tree. Nothing has been written yet."""

    root: Path
    chosen: tuple[str, ...]
    before: tuple[PatchState, ...]
    """State of every entry of the ledger as found; a chosen one that can't be had is ``conflict`` or ``refused``."""
    after: tuple[PatchState, ...]
    """State of every entry once the plan is executed."""
    changes: tuple[Change, ...]
    touched: tuple[str, ...]
    """Files in which a killed run may have left a temporary file."""

    @property
    def refusals(self) -> list[PatchState]:
        """Return the chosen patches that stop the plan."""
        return [state for state in self.before if state.id in self.chosen and state.state in BLOCKING]

    def diff(self) -> str:
        """Return the unified diff of all changes."""
        return "".join(change.diff() for change in self.changes)

    def execute(self) -> None:
        """Write all changes, or none: refusals and everything that can fail come before the first replaced file."""
        if self.refusals:
            raise LedgerError("; ".join(f"{s.id} is {s.state}: {s.reason}" for s in self.refusals))
        sweep(self.root, self.touched)
        write(self.root, self.changes)


def plan(
    entries: Iterable[Mapping[str, Any] | Entry],
    tree: Path | str,
    chosen: Iterable[str] | str | None = None,
    *,
    revert: bool = False,
    acknowledged: Iterable[str] = (),
) -> Plan:
    """Decide what applying (or reverting) the ``chosen`` patches does to the site-packages folder ``tree``.

    ``chosen`` None: those on by default; for a revert: all. Raise :class:`LedgerError` for an unknown id or tree.
    """
    ledger = load(entries)
    ids = [entry.id for entry in ledger] if revert and chosen is None else choose(ledger, chosen)
    known = choose(ledger, acknowledged)
    view = Tree(Path(tree))
    found = [state_of(view, entry, known) for entry in ledger]
    before = _removable(view, ledger, found, ids) if revert else _allowed(ledger, found, ids)
    if not any(state.id in ids and state.state in BLOCKING for state in before):
        for entry, state in zip(ledger, before, strict=True):
            if entry.id in ids and (revert or state.state == "applies"):
                _lay(view, entry, revert=revert)
    changes = view.changes()
    after = [state_of(view, entry, known) for entry in ledger]
    _check(changes, view)
    touched = sorted({name for entry in ledger for name in entry.files})
    return Plan(view.root, tuple(ids), tuple(before), tuple(after), tuple(changes), tuple(touched))


def _lay(tree: Tree, entry: Entry, *, revert: bool) -> None:
    """Lay one patch over the tree, or take it off: the edits of the variant that fits."""
    for planned in _fitting(_sites(tree, entry)) or []:
        edit = planned.edit
        site = _site(tree, edit, planned.mark)  # again, since an edit before it may have moved its lines
        source = tree.read(edit.file) or b""
        if revert and site.there:
            tree.put(edit.file, source_edit.remove(source, edit.insert, site.mark) or source)
        elif not revert and not site.there and site.span:
            tree.put(edit.file, source_edit.insert(source, site.span, edit.at, edit.insert, site.mark))


def _allowed(ledger: Sequence[Entry], states: Sequence[PatchState], ids: Sequence[str]) -> list[PatchState]:
    """Return the states, with ``refused`` where a chosen patch lacks another one or excludes one chosen or in."""
    by_id = {state.id: state.state for state in states}
    settled = [i for i, s in by_id.items() if i in ids or s in ("applied", "upstream", "not-needed")]
    in_force = [i for i, s in by_id.items() if i in ids or s == "applied"]
    result = []
    for entry, state in zip(ledger, states, strict=True):
        lacking = [other for other in entry.requires if other not in settled]
        excluded = [other for other in entry.forbids if other in in_force]
        if entry.id in ids and state.state == "applies" and (lacking or excluded):
            reason = f"needs {', '.join(lacking)} as well" if lacking else f"excludes {', '.join(excluded)}"
            state = PatchState(entry.id, "refused", reason)  # noqa: PLW2901  # the state found gives way to the verdict
        result.append(state)
    return result


def _removable(
    tree: Tree, ledger: Sequence[Entry], states: Sequence[PatchState], ids: Sequence[str]
) -> list[PatchState]:
    """Return the states for a revert: what is in must come out exactly, and needs no permission to."""
    return [
        _for_revert(tree, entry, state) if entry.id in ids and state.state in BLOCKING else state
        for entry, state in zip(ledger, states, strict=True)
    ]


def _for_revert(tree: Tree, entry: Entry, state: PatchState) -> PatchState:
    if not any(source_edit.mark_of(entry.id) in (tree.read(name) or b"") for name in entry.files):
        return PatchState(entry.id, "not-needed", f"it is not in the tree ({state.state}: {state.reason})")
    sites = _sites(tree, entry)
    if _fitting(sites):
        return PatchState(entry.id, "applied", f"part of it is in the tree ({state.state}: {state.reason})")
    return PatchState(entry.id, "conflict", _conflict_reason(entry, sites))


def _check(changes: Iterable[Change], tree: Tree) -> None:
    """Refuse a plan whose result is not Python, or which would not come out again byte for byte."""
    for change in changes:
        try:
            compile(tree.syntax(change.after), change.file, "exec", dont_inherit=True)
        except (EditError, SyntaxError, ValueError) as error:
            raise LedgerError(f"{change.file}: would not compile with the change: {error}") from error
        if source_edit.without_marked(change.before) != source_edit.without_marked(change.after):
            raise LedgerError(f"{change.file}: the change would not be undone byte for byte")
