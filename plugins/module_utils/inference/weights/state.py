# SPDX-License-Identifier: Apache-2.0
"""A model of a host: whole or not, known or not, brought beside its place and moved there, removed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from . import files, uses
from .hub import Hub, download, is_of
from .record import MARK, STATE_DIR, Record, adopt, known_sums, record_path
from .sources import Source, parse_source


class ModelError(RuntimeError):
    """What keeps a model from being put in its place or removed."""


@dataclass(frozen=True)
class Model:
    """An entry of the catalog: ``source`` is None where the weights are the host's own affair."""

    name: str
    path: Path
    source: Source | None = None
    state_dir: Path = STATE_DIR

    @property
    def incoming(self) -> Path:
        """Where the model is brought, beside its place."""
        return self.path.with_name(self.path.name + ".incoming")

    @property
    def origin(self) -> str:
        """What the record of this model calls its source; empty without one that can change."""
        found = self.source
        return f"hf:{found.name}@{found.revision}" if found and found.kind == "hub" else ""

    @property
    def record_file(self) -> Path:
        """Where its record lies."""
        return record_path(self.path, self.state_dir)


def model_of(entry: dict[str, str], state_dir: Path = STATE_DIR) -> Model:
    """Return the model of a catalog's entry. Raises SourceError."""
    source = parse_source(entry["source"]) if entry.get("source") else None
    return Model(entry["name"], Path(entry["path"]), source, state_dir)


def look(model: Model, user: str | None, *, full: bool = False, write: bool = True) -> list[str]:
    """Return what is wrong with a model where it is; an empty list when it may be loaded. Raises RecordError.

    What looks as it did when it was last right is not read again: sizes, times and inodes of all files are compared,
    and only what differs is read. ``full`` reads everything, and knows it by its content from then on. ``write``:
    whether the record may be saved.
    """
    record = Record.load(model.record_file)
    if model.origin and model.path.is_dir() and (record is None or record.origin != model.origin):
        seen = record.origin if record and record.origin else "files of an unknown revision"
        return [f"{model.path}: seen {seen}; expected {model.origin}"]
    known = record or Record(origin=str(model.path))
    unchanged = record is not None and not full and not known.changed(model.path) and not known.missing(model.path)
    if not unchanged and (lines := files.problems(model.path)):
        return lines
    lines = [] if unchanged else _compare(model.path, known, full=full)
    if not lines and not unchanged and write:
        known.save(model.record_file)
    return lines or (files.unreadable(model.path, user) if user is not None else [])


def _compare(folder: Path, record: Record, *, full: bool) -> list[str]:
    """Read what has a known content and looks different, or everything; remember how the rest looks."""
    adopt(record, known_sums(folder))
    if full or record.sums or record.blobs:
        return record.verify(folder, full=full)
    record.accept(folder)
    return []


def place(model: Model, record: Record | None = None) -> None:
    """Move a model that was brought into its place, with the record of what it is. Raises ModelError.

    It has to be whole, and what it replaces has to be a model that nothing has open.
    """
    found = files.problems(model.incoming)
    if found:
        raise ModelError(f"model {model.name}: what was brought is not whole: " + "; ".join(found))
    if not files.replaceable(model.path):
        raise ModelError(
            f"model {model.name}: seen {model.path}, which is a link, a file or a folder of something else; "
            "expected an incomplete model or nothing; fix: move it away, or give the model another path. "
            f"What was brought waits in {model.incoming}."
        )
    if pids := uses.processes_with(model.path):
        raise ModelError(
            f"model {model.name}: processes {pids} have {model.path} open; fix: give this revision a path of its own "
            f"and let the instance name it, or stop them. What was brought waits in {model.incoming}."
        )
    if model.path.exists():
        shutil.rmtree(model.path)
    model.incoming.rename(model.path)
    model.record_file.unlink(missing_ok=True)
    if record is not None:
        record.verify(model.path)
        record.save(model.record_file)
    (model.path / MARK).unlink(missing_ok=True)


def fetch(model: Model, hub: Hub) -> None:
    """Bring a model of a hub into its place. Raises HubError and ModelError; what has come stays for the next run."""
    source = model.source
    if source is None or source.kind != "hub":
        raise ModelError(f"model {model.name}: its source is no repository of a hub")
    unrecorded = not model.record_file.exists() and not model.incoming.exists()
    if unrecorded and is_of(model.path, model.origin):  # a run was killed when it had just put it there
        model.path.rename(model.incoming)
    place(model, download(hub, source.name, source.revision, model.incoming))


def remove(model: Model, *, act: bool) -> bool:
    """Remove a model that nothing uses; return whether there was one. Raises ModelError with what uses it."""
    there = [path for path in (model.path, model.incoming) if path.exists()]
    if not there and not model.record_file.exists():
        return False
    if users := uses.generations_with(model.path):
        raise ModelError(f"model {model.name}: {model.path} is not removed: seen in use by {', '.join(users)}")
    if pids := uses.processes_with(model.path):
        raise ModelError(f"model {model.name}: {model.path} is not removed: processes {pids} have it open")
    strange = [path for path in there if not files.replaceable(path)]
    if strange:
        raise ModelError(f"model {model.name}: {strange[0]} is not removed: it is a link or holds no model")
    if act:
        for path in there:
            shutil.rmtree(path)
        model.record_file.unlink(missing_ok=True)
    return True
