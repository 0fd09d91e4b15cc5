# SPDX-License-Identifier: Apache-2.0
"""Generations of an instance: what is installed, what was proved good, and the way back.

A generation is everything that decides what an instance runs: its release, the toolkit's version, its unit, drop-ins
and settings. All of one instance's generations lie under ``/var/lib/inference/<instance>``, which is root's alone::

    generations/<id>/manifest.json   what it consists of, with the content of every file
    current.json                     the generation whose files are installed
    last-known-good.json             the generation that last passed its smoke test

Files are installed one by one and ``current.json`` is written last, so a run that is killed in between leaves a state
that the next run recognises as unfinished and repeats.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from . import managed_files, runtime, systemd, toolkit
from .managed_files import Entry

SCHEMA = 1
STATE_ROOT = Path(toolkit.STATE)
RUNTIME_ROOT = Path("/run/inference")
SETTINGS_ROOT = Path("/etc/inference")
UNITS = Path("/etc/systemd/system")

_CREDENTIAL = re.compile(r"(?m)^LoadCredential=[\w.-]+:(\S+)$")

PLACEHOLDER = "@generation@"
"""Stands in a file's content for the id of its generation, which cannot be known before the content is."""


class GenerationError(Exception):
    """A generation cannot be found or read."""


@dataclass(frozen=True)
class Generation:
    """One generation of one instance."""

    instance: str
    unit: str
    release: str
    """Id of the engine release, the name of its folder under ``/opt/inference/releases``."""
    toolkit: str
    """Version of the toolkit, the name of its folder under ``/usr/local/lib/inference``."""
    files: tuple[Entry, ...]
    """What makes it up, folders not included, with PLACEHOLDER where its id will stand."""

    @property
    def id(self) -> str:
        """First 12 hex digits of a hash over everything above, each file's mode and owner included."""
        return hashlib.sha256(json.dumps(self._facts(), sort_keys=True).encode()).hexdigest()[:12]

    def _facts(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "instance": self.instance,
            "unit": self.unit,
            "release": self.release,
            "toolkit": self.toolkit,
            "files": sorted((asdict(entry) for entry in self.files), key=lambda entry: entry["path"]),
        }

    def entries(self) -> list[Entry]:
        """Return the files as they are installed, the folders that belong to them first."""
        own = self.id
        files = [replace(entry, content=entry.content.replace(PLACEHOLDER, own)) for entry in self.files]
        return [*_folders(files), *files]

    def manifest(self) -> dict[str, Any]:
        """Return the JSON form, from which the generation can be installed again."""
        return {"id": self.id, **self._facts()}

    def unit_files(self) -> list[Entry]:
        """Return the unit and its drop-ins."""
        return [entry for entry in self.files if Path(entry.path).is_relative_to(UNITS)]

    def for_systemd(self, version: int) -> Generation:
        """Return the generation as this systemd can read it."""
        units = {entry.path for entry in self.unit_files()}
        adapted = (
            replace(entry, content=systemd.for_version(entry.content, version)) if entry.path in units else entry
            for entry in self.files
        )  # fmt: skip
        return replace(self, files=tuple(adapted))

    def credentials(self) -> list[Path]:
        """Return the files that its unit loads as credentials (LoadCredential=)."""
        text = "\n".join(entry.content for entry in self.unit_files())
        return [Path(path.replace("%i", self.instance)) for path in _CREDENTIAL.findall(text)]

    @property
    def listens(self) -> dict[str, Any]:
        """``host`` and ``port`` of the instance, as its supervisor's settings say; empty where they do not."""
        for entry in self.files:
            if Path(entry.path).name == "supervisor.json":
                settings = json.loads(entry.content)
                return {key: settings[key] for key in ("host", "port") if key in settings}
        return {}

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Generation:
        """Read the JSON form. Raises GenerationError when its content does not have the id that it claims."""
        generation = cls(
            instance=manifest["instance"],
            unit=manifest["unit"],
            release=manifest["release"],
            toolkit=manifest["toolkit"],
            files=tuple(Entry(**entry) for entry in manifest["files"]),
        )
        if generation.id != manifest["id"]:
            raise GenerationError(
                f"generation {manifest['id']} of {generation.instance} was altered: its content has id {generation.id}"
            )
        return generation


@dataclass
class Difference:
    """How the disk differs from a generation."""

    plan: managed_files.Plan
    drift: list[str] = field(default_factory=list)
    """Paths that somebody changed by hand since the current generation was installed."""
    replaced_unit: str | None = None
    """The unit that the instance ran as until now, when the wanted generation has another one (another engine)."""


class Store:
    """The generations of one instance on this host."""

    def __init__(self, instance: str, root: Path | None = None) -> None:
        self.instance = instance
        self.folder = (root or STATE_ROOT) / instance

    def current(self) -> str | None:
        """Return the id of the generation that is installed, or None."""
        return self._pointer("current")

    def last_known_good(self) -> str | None:
        """Return the id of the generation that last passed its smoke test, or None."""
        return self._pointer("last-known-good")

    def load(self, generation_id: str) -> Generation:
        """Return a kept generation."""
        file = self.folder / "generations" / generation_id / "manifest.json"
        try:
            return Generation.from_manifest(json.loads(file.read_text()))
        except FileNotFoundError:
            known = ", ".join(self.kept()) or "none"
            raise GenerationError(f"{self.instance} has no generation {generation_id}; it has {known}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise GenerationError(f"{file}: not a generation's manifest ({error})") from error

    def kept(self) -> list[str]:
        """Return the ids of all kept generations, the newest first."""
        manifests = (self.folder / "generations").glob("*/manifest.json")
        return [file.parent.name for file in sorted(manifests, key=lambda file: -file.stat().st_mtime_ns)]

    def compare(self, wanted: Generation) -> Difference:
        """Compare the disk with the wanted generation, and with the one that was installed last."""
        previous = self._installed()
        keep = {entry.path for entry in wanted.files}
        gone = [entry.path for entry in previous.files if entry.path not in keep] if previous else []
        entries = [*wanted.entries(), *(Entry(path, "absent") for path in gone)]
        planned = managed_files.plan(entries)
        # what is as wanted already was put there by a run that was killed, not by hand
        drift = (
            [path for path in managed_files.plan(previous.entries()).paths if path in planned.paths] if previous else []
        )
        replaced = previous.unit if previous and previous.unit != wanted.unit else None
        return Difference(planned, drift, replaced)

    def keep(self, generation: Generation) -> None:
        """Write the generation's manifest, unless it is there already."""
        folder = self.folder / "generations" / generation.id
        if (folder / "manifest.json").is_file():
            return
        folder.mkdir(parents=True, exist_ok=True)
        _write_json(folder / "manifest.json", generation.manifest())

    def installed(self, generation: Generation) -> None:
        """Record that the generation's files are all in place."""
        if self.current() != generation.id:
            _write_json(self.folder / "current.json", {"id": generation.id, "at": _now()})

    def promote(self, generation_id: str, evidence: Mapping[str, Any], keep: int) -> bool:
        """Record that the generation passed its smoke test, and drop the oldest beyond ``keep``.

        Returns True when that is news. ``evidence`` says what was measured.
        """
        if self.last_known_good() == generation_id:
            return False
        record = {"id": generation_id, "at": _now(), "previous": self.last_known_good(), "evidence": dict(evidence)}
        _write_json(self.folder / "last-known-good.json", record)
        self._prune(keep)
        if self.folder.parent == Path(toolkit.STATE):
            toolkit.prune(in_use("toolkit", self.folder.parent))
        return True

    def removable(self) -> list[Path]:
        """Return every file that any kept generation of the instance has."""
        files = {Path(entry.path) for kept in self.kept() for entry in self.load(kept).files}
        return sorted(files)

    def forget(self) -> None:
        """Remove everything that is known of the instance: its generations, and what its smoke tests measured."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def rollback_target(self) -> str | None:
        """Return the generation to go back to: the last known good one, or if that is current the one before it."""
        record = self._record("last-known-good")
        candidates = [record.get("id"), record.get("previous")]
        return next((c for c in candidates if c and c != self.current() and c in self.kept()), None)

    def _installed(self) -> Generation | None:
        current = self.current()
        return self.load(current) if current and current in self.kept() else None

    def _prune(self, keep: int) -> None:
        good = self._record("last-known-good")
        used = {self.current(), good.get("id"), good.get("previous")}
        for old in [g for g in self.kept() if g not in used][max(keep, 0) :]:
            shutil.rmtree(self.folder / "generations" / old)

    def _pointer(self, name: str) -> str | None:
        found: str | None = self._record(name).get("id")
        return found

    def _record(self, name: str) -> dict[str, Any]:
        file = self.folder / f"{name}.json"
        try:
            found: dict[str, Any] = dict(json.loads(file.read_text()))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            raise GenerationError(f"{file}: not readable ({error}); remove it and run site.yml") from error
        return found


def running(instance: str, root: Path | None = None) -> str | None:
    """Return the generation that the instance's supervisor says it was started with, or None."""
    state = runtime.read_json((root or RUNTIME_ROOT) / instance / "state.json") or {}
    found = state.get("generation")
    return found if isinstance(found, str) else None


def stale_credentials(generation: Generation, started: float) -> list[str]:
    """Return the credentials that were replaced since ``started`` (Unix time): a process keeps what it was given."""
    return [str(path) for path in generation.credentials() if path.is_file() and path.stat().st_mtime > started]


def started_with(paths: Iterable[str], started: float) -> list[str]:
    """Return the paths that were changed or removed before ``started`` (Unix time), so that a process has them so."""
    return [path for path in paths if _changed_at(Path(path)) < started]


def _changed_at(path: Path) -> float:
    """Return when a file was changed, or the folder that it is gone from; never for what has no folder either."""
    there = next((one for one in (path, path.parent) if one.exists()), None)
    return there.stat().st_mtime if there else float("inf")


def installed(root: Path | None = None) -> list[str]:
    """Return the names of the instances that have ever been installed on this host and were not removed."""
    return sorted(file.parent.name for file in (root or STATE_ROOT).glob("*/current.json"))


def releases_in_use(root: Path = STATE_ROOT) -> set[str]:
    """Return the ids of all releases that any kept generation of any instance names. Raises as in_use does."""
    return in_use("release", root)


def in_use(what: str, root: Path = STATE_ROOT) -> set[str]:
    """Return every ``release`` or ``toolkit`` that a kept generation of any instance names.

    Raises GenerationError for a manifest that cannot be read: what it names may be in use.
    """
    found = set()
    for manifest in root.glob("*/generations/*/manifest.json"):
        try:
            found.add(str(json.loads(manifest.read_text())[what]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise GenerationError(f"{manifest}: not a generation's manifest ({error!r})") from error
    return found


def _folders(files: Iterable[Entry]) -> list[Entry]:
    """Return the folders of a generation: its ``*.service.d``, ``/etc/inference`` and ``/etc/inference/<instance>``.

    The host role makes ``/etc/inference`` as well; here it lets a rehearsal (check mode) see a bare host through.
    """
    wanted: list[Entry] = []
    for entry in files:
        parent = Path(entry.path).parent
        if parent.name.endswith(".d"):
            wanted.append(Entry(str(parent), "directory", mode=0o755))
        elif parent.parent == SETTINGS_ROOT:
            wanted += [Entry(str(f), "directory", mode=0o750, group=entry.group) for f in (SETTINGS_ROOT, parent)]
    return list(dict.fromkeys(wanted))


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    content = json.dumps(document, indent=1, sort_keys=True) + "\n"
    managed_files.write(path, content.encode(), Entry(str(path), mode=0o600))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
