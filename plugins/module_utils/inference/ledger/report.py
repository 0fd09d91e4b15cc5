# SPDX-License-Identifier: Apache-2.0
"""What the ledger says of many releases: the table of the guide, and the preview of a move between two releases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .. import ledger
from ..findings import Finding, Report
from ..releases import wheels as release_wheels
from ..releases.wheels import Release


def states(entries: Sequence[ledger.Entry], release: Release) -> list[ledger.PatchState]:
    """Return the state of each patch in one release as its wheels hold it; every risk counts as acknowledged."""
    ids = [entry.id for entry in entries]
    with release_wheels.unpacked(release, entries) as root:
        return list(ledger.plan(entries, root, [], acknowledged=ids).before)


def table(entries: Sequence[ledger.Entry], releases: Iterable[Release]) -> str:
    """Return the Markdown table of each patch's state in each release."""
    ids = [entry.id for entry in entries]
    rows = [["SGLang", "FlashInfer", *ids], ["---"] * (len(ids) + 2)]
    for release in releases:
        pinned = release.pins.get("flashinfer_python", "")
        seen = pinned if release.flashinfer else f"{pinned} (no wheel)"
        rows.append([release.version, seen, *(state.state for state in states(entries, release))])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def catalogue(entries: Iterable[ledger.Entry]) -> str:
    """Return the Markdown table of the patches: what each does, whether it is chosen by default, its risk."""
    rows = [["patch", "what", "choice", "setting instead", "risk"], ["---"] * 5]
    for entry in entries:
        choice = "forbidden" if entry.forbidden else "default" if entry.default else "on request"
        choice = choice if entry.variants or entry.forbidden else "a setting"
        choice += ", acknowledged" if entry.acknowledge else ""
        rows.append([entry.id, entry.title, choice, str(entry.instead or "none"), entry.risk])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def replaced(page: str, name: str, body: str) -> str:
    """Return the page with ``body`` between the markers of ``name``. Raise :class:`LedgerError` where it lacks them."""
    markers = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    before, begin, rest = page.partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not begin or not end:
        raise ledger.LedgerError(f"the page has no {markers[0]} ... {markers[1]}")
    return f"{before}{begin}\n\n{body}\n{end}{after}"


def preview(
    entries: Sequence[ledger.Entry],
    now: Path,
    then: Path,
    chosen: Iterable[str] | str | None = None,
    acknowledged: Iterable[str] = (),
) -> tuple[Report, list[dict[str, Any]]]:
    """Compare two site-packages folders: what becomes of each patch, as findings for the chosen ones and as rows.

    A chosen patch that the next release can't take is critical; one that it no longer needs is information.
    """
    ids = ledger.choose(entries, chosen)
    pair = [ledger.plan(entries, tree, ids, acknowledged=acknowledged).before for tree in (now, then)]
    report, rows = Report(), []
    for old, new in zip(*pair, strict=True):
        rows.append(
            {"id": new.id, "state": new.state, "reason": new.reason, "now": old.state, "selected": new.id in ids}
        )
        if new.id in ids:
            report.extend(_moved(old, new))
    return report, rows


def _moved(old: ledger.PatchState, new: ledger.PatchState) -> list[Finding]:
    if new.state in ledger.BLOCKING:
        fix = "Leave the patch out, or stay with a release that it was measured on."
        what = f"{new.id} can't go into the next release"
        return [Finding(f"patch-{new.id}", "critical", what, f"{new.state}: {new.reason}", "applies", fix)]
    if new.state in ("upstream", "not-needed") and old.state in ("applies", "applied"):
        what = f"{new.id} is not needed in the next release"
        return [Finding(f"patch-{new.id}", "info", what, f"{new.state}: {new.reason}", "", "Drop it from the choice.")]
    return []


def moved_pins(now: Path, then: Path) -> list[dict[str, str | None]]:
    """Return the pins that differ between two releases' metadata: package, version now and then (null: not named)."""
    old, new = _pins(now), _pins(then)
    names = [name for name in release_wheels.PINNED if old.get(name) != new.get(name)]
    return [{"package": name, "now": old.get(name), "then": new.get(name)} for name in names]


def _pins(tree: Path) -> dict[str, str]:
    found = sorted(tree.glob("sglang-*.dist-info/METADATA"))
    return release_wheels.pins(found[0].read_text(encoding="utf-8")) if found else {}
