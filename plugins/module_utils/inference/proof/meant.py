# SPDX-License-Identifier: Apache-2.0
"""What an instance was meant to be: read from its generation (unit, drop-ins, settings) and its release's record."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import environment_text
from ..generations import Generation

SEPARATOR = "--"
"""Stands between the supervisor's own words and the engine's command line."""

Option = str | tuple[str, ...] | bool
"""An option's value: True for a flag without one, a tuple for several."""


class MeantError(ValueError):
    """A generation that does not say what it runs."""


@dataclass(frozen=True)
class Meant:
    """What a generation asks for."""

    instance: str
    generation: str
    unit: str
    release: str
    engine: str
    host: str
    port: int
    key_file: str | None
    command: tuple[str, ...]
    """The engine's own command line."""
    environment: Mapping[str, str]
    """The variables that unit and drop-ins set, as far as their values are known here."""
    files: tuple[str, ...]
    """Paths of the unit and its drop-ins."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """The release's release.json; empty when it can't be read."""

    @property
    def options(self) -> dict[str, Option]:
        """Return the engine's options by name with underscores."""
        return options_of(self.command)

    @property
    def nccl(self) -> dict[str, str]:
        """Return the NCCL settings among the variables."""
        return {name: value for name, value in self.environment.items() if name.startswith("NCCL_")}


def read(generation: Generation, record: Mapping[str, Any] | None = None) -> Meant:
    """Return what a generation asks for. Raises MeantError."""
    files = {entry.path: entry.content for entry in generation.entries() if entry.state == "file"}
    units = sorted((p for p in files if p.startswith("/etc/systemd/system/")), key=lambda path: (path.count("/"), path))
    text = environment_text.read("\n".join(files[path] for path in units))
    settings = _settings(files, generation.instance)
    known = {name: entry.value for name, entry in text.effective().items() if not entry.unresolved}
    if SEPARATOR not in text.command:
        raise MeantError(f"generation {generation.id}: its unit's ExecStart has no {SEPARATOR} before the engine")
    return Meant(
        instance=generation.instance,
        generation=generation.id,
        unit=generation.unit,
        release=generation.release,
        engine=settings["engine"],
        host=settings["host"],
        port=int(settings["port"]),
        key_file=settings.get("api_key_file"),
        command=engine_command([_expanded(word, {**known, **_systemd(generation.unit)}) for word in text.command]),
        environment=known,
        files=tuple(units),
        record=dict(record or {}),
    )


def _settings(files: Mapping[str, str], instance: str) -> dict[str, Any]:
    path = f"/etc/inference/{instance}/supervisor.json"
    try:
        settings: dict[str, Any] = json.loads(files[path])
        missing = [key for key in ("engine", "host", "port") if key not in settings]
    except (KeyError, ValueError, TypeError) as error:
        raise MeantError(f"{path}: not in the generation, or not readable ({error})") from error
    if missing:
        raise MeantError(f"{path}: says no {', '.join(missing)}")
    return settings


def _systemd(unit: str) -> dict[str, str]:
    """Return the variables that systemd sets itself and that a command line may use."""
    return {"CREDENTIALS_DIRECTORY": f"/run/credentials/{unit}"}


def _expanded(word: str, variables: Mapping[str, str]) -> str:
    """Return a word of ExecStart= as the program gets it (systemd.service, "Command lines").

    ``%%`` and ``$$`` stand for one of each, ``${NAME}`` for a variable.
    """
    return re.sub(r"%%|\$\$|\$\{(\w+)\}", lambda found: variables.get(found[1], "") if found[1] else found[0][0], word)


def engine_command(words: Sequence[str]) -> tuple[str, ...]:
    """Return the words behind the supervisor's own; all of them where there is no supervisor."""
    position = list(words).index(SEPARATOR) + 1 if SEPARATOR in words else 0
    return tuple(words[position:])


def options_of(command: Sequence[str]) -> dict[str, Option]:
    """Return the options of a command line, by name without dashes and with underscores; the last of a name counts."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for word in command:
        if word.startswith("--") and len(word) > len(SEPARATOR):
            name, equals, value = word[2:].partition("=")
            current = [value] if equals else []
            found[name.replace("-", "_")] = current
        elif current is not None:
            current.append(word)
    return {name: _value(values) for name, values in found.items()}


def _value(values: Sequence[str]) -> Option:
    if not values:
        return True
    return values[0] if len(values) == 1 else tuple(values)
