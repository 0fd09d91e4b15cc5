# SPDX-License-Identifier: Apache-2.0
"""What a supervisor leaves in the instance's runtime directory for other programs: state.json and last-failure.json."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .settings import Settings

SCHEMA = 1
STATE = "state.json"
LAST_FAILURE = "last-failure.json"

_RELEASES = "/releases/"


def release_of(command: Sequence[str]) -> str | None:
    """Return the release that ``command`` runs from (``…/releases/<id>/…``), or None."""
    for word in command:
        _, found, rest = word.partition(_RELEASES)
        if found and "/" in rest:
            return rest.partition("/")[0]
    return None


def write_json(path: str, document: Mapping[str, Any]) -> None:
    """Replace ``path`` atomically, so that a reader sees the old document or the new one."""
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:  # noqa: PTH123 - pathlib costs memory
        json.dump(document, file, indent=1, ensure_ascii=False)
        file.write("\n")
    os.replace(temporary, path)  # noqa: PTH105


def utc(seconds: float) -> str:
    """Return a time of the clock as ``2026-01-31T12:00:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class Record:
    """The state of one run, with the phases that it went through and their lengths in seconds."""

    def __init__(self, settings: Settings, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._directory = settings.runtime_dir
        self._began = self._phase_began = time.monotonic()
        self._phases: list[dict[str, Any]] = []
        self.phase = "starting"
        self._facts: dict[str, Any] = {
            "schema": SCHEMA,
            "instance": settings.instance,
            "generation": settings.generation,
            "release": release_of(command),
            "engine": settings.engine,
            "model": settings.model,
            "host": settings.host,
            "port": settings.port,
            "invocation_id": environ.get("INVOCATION_ID"),
            "supervisor_pid": os.getpid(),
            "pid": None,
            "started_at": utc(time.time()),
            "ready_at": None,
            "ready_after_s": None,
        }

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def phase_seconds(self) -> float:
        """Seconds since the current phase began."""
        return time.monotonic() - self._phase_began

    def enter(self, phase: str) -> None:
        """Begin ``phase``, unless it is the current one."""
        if phase == self.phase:
            return
        self._phases.append({"phase": self.phase, "seconds": round(self.phase_seconds, 3)})
        self.phase, self._phase_began = phase, time.monotonic()
        self.save()

    def started(self, pid: int) -> None:
        """Note the engine's process number."""
        self._facts["pid"] = pid
        self.save()

    def ready(self) -> None:
        """Note that the engine serves from now on."""
        self._facts |= {"ready_at": utc(time.time()), "ready_after_s": round(self.seconds, 3)}
        self.enter("serving")

    def open(self) -> None:
        """Make the directory, if the unit has not, and write the first state. Raise OSError."""
        os.makedirs(self._directory, exist_ok=True)  # noqa: PTH103
        write_json(self._path(STATE), self._state())

    def save(self) -> None:
        """Write the state. A full or missing directory is no reason to stop serving."""
        with contextlib.suppress(OSError):
            write_json(self._path(STATE), self._state())

    def failed(self, failure: Mapping[str, Any]) -> None:
        """Write the record of a failure, with what is known of the run."""
        facts = {key: self._facts[key] for key in ("schema", "instance", "generation", "release", "engine")}
        where = {"at": utc(time.time()), "phase": self.phase, "seconds": round(self.seconds, 3)}
        write_json(self._path(LAST_FAILURE), {**facts, **where, **failure})

    def _state(self) -> dict[str, Any]:
        return {**self._facts, "phase": self.phase, "phase_s": round(self.phase_seconds, 3), "phases": self._phases}

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
