# SPDX-License-Identifier: Apache-2.0
"""Ways to more speed that were proposed for this hardware: the form of the data, and its table in the guide."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Verdict = Literal["default", "try with tune", "refused", "not built here"]
"""What the toolkit does: sets it, leaves it to a measurement, refuses it (or calls it idle), has nothing for it."""


@dataclass(frozen=True)
class Strategy:
    """One row. ``settings`` are options, or variables as ``env:NAME``; ``rules`` judge them."""

    name: str
    releases: str
    sm120: str
    settings: tuple[str, ...]
    verdict: Verdict
    why: str
    source: str
    rules: tuple[str, ...] = ()
    engine: str = "sglang"


def load(documents: Iterable[Mapping[str, Any]]) -> list[Strategy]:
    """Return the rows of roles/engine/files/options/strategies.yml. Raise ValueError for one that cannot be used."""
    found = []
    for document in documents:
        lists = {key: tuple(document.get(key, ())) for key in ("settings", "rules")}
        strategy = Strategy(**{**document, **lists})
        if strategy.verdict not in get_args(Verdict):
            raise ValueError(f"{strategy.name}: the verdict {strategy.verdict!r} is none of {get_args(Verdict)}")
        found.append(strategy)
    return found


def table(strategies: Iterable[Strategy]) -> str:
    """Return the Markdown table of docs/strategies.md."""
    rows = [["strategy", "releases", "on SM120", "setting", "verdict", "why", "source"], ["---"] * 7]
    for each in strategies:
        settings = ", ".join(f"`{name.removeprefix('env:')}`" for name in each.settings)
        rows.append([each.name, each.releases, each.sm120, settings, f"**{each.verdict}**", each.why, each.source])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
