# SPDX-License-Identifier: Apache-2.0
"""The tables of this project: one file a release, read where they lie on the controller."""

from __future__ import annotations

from pathlib import Path

from .options import Table, file_name, order, parse

FOLDER = Path(__file__).resolve().parents[4] / "roles" / "engine" / "files" / "options"
"""Where the project keeps them. A host has none: what they tell is checked before it is asked."""


def load(engine: str, version: str, folder: Path = FOLDER) -> Table | None:
    """Return the table of a release, or None where there is none. Raise TableError for one that cannot be read."""
    file = folder / file_name(engine, version)
    return parse(file.read_text(encoding="utf-8"), file.name) if file.is_file() else None


def load_all(engine: str, folder: Path = FOLDER) -> list[Table]:
    """Return the tables of an engine, the oldest release first."""
    found = [parse(file.read_text(encoding="utf-8"), file.name) for file in folder.glob(f"{engine}-*.json")]
    return sorted(found, key=lambda table: order(table.version))
