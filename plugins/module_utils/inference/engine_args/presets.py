# SPDX-License-Identifier: Apache-2.0
"""Presets: what is known to suit a model on this hardware, as settings that an instance's own override."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..program import nearest
from .command import TITLES, plain_name
from .options import order

KEYS = ("tensor_parallel_size", "arguments", "environment", "nccl_profile", "nccl_environment", "smoke")
"""Keys of an instance that a preset may set."""

MARKS = ("floors", "targets", "references")
"""Tables of the smoke test's gate; an entry there carries its source with it."""


class PresetError(ValueError):
    """A preset that does not exist or cannot be used. The message names it."""


@dataclass(frozen=True)
class Setting:
    """One line of a preset: where in an instance, what, for which engine (None: any), why, and by whose word."""

    at: tuple[str, ...]
    value: Any
    why: str
    source: str
    engine: str | None = None


@dataclass(frozen=True)
class Preset:
    """What suits one model."""

    name: str
    title: str
    since: Mapping[str, str]
    """The engines it is for, each with the oldest release that it suits."""
    settings: tuple[Setting, ...]

    def unfit(self, engine: str, version: str) -> str | None:
        """Return what the preset is for, when it is not for this release."""
        if engine in self.since and order(self.since[engine]) <= order(version):
            return None
        return ", ".join(f"{TITLES[engine]} {oldest} or newer" for engine, oldest in self.since.items())

    def instance(self, engine: str) -> dict[str, Any]:
        """Return the settings for one engine in the form of an instance."""
        made: dict[str, Any] = {}
        for setting in self.settings:
            if setting.engine in (None, engine):
                *folders, last = setting.at
                place = made
                for folder in folders:
                    place = place.setdefault(folder, {})
                place[last] = setting.value
                if setting.at[:2] == ("smoke", "gate") and setting.at[2] in MARKS:
                    place[last] = {"value": setting.value, "source": setting.source}
        return made


def load(documents: Iterable[Mapping[str, Any]]) -> dict[str, Preset]:
    """Return presets by name. Raise PresetError for a document that is not of the form docs/presets.md describes."""
    found: dict[str, Preset] = {}
    for document in documents:
        try:
            preset = _preset(document)
        except (KeyError, TypeError) as error:
            raise PresetError(f"preset {document.get('name', '?')}: {error!r} is missing or misplaced") from error
        if preset.name in found:
            raise PresetError(f"preset {preset.name}: there are two of this name")
        found[preset.name] = preset
    return found


def _preset(document: Mapping[str, Any]) -> Preset:
    name, since, rows = document["name"], document["since"], document["settings"]
    settings = tuple(Setting(**{**row, "at": tuple(row["at"])}) for row in rows)
    if not set(since) <= set(TITLES):
        raise PresetError(f"preset {name}: since names another engine than {', '.join(TITLES)}")
    for setting in settings:
        where = f"preset {name}: {'.'.join(map(str, setting.at))}"
        if not setting.at or setting.at[0] not in KEYS:
            raise PresetError(f"{where}: begins with none of {', '.join(KEYS)}")
        if not all(isinstance(text, str) and text.strip() for text in (setting.why, setting.source)):
            raise PresetError(f"{where}: every line says why, and by whose word (source)")
        if setting.engine is not None and setting.engine not in TITLES:
            raise PresetError(f"{where}: engine {setting.engine!r} is none of {', '.join(TITLES)}")
    return Preset(name, document["title"], {engine: str(oldest) for engine, oldest in since.items()}, settings)


def expand(instance: Mapping[str, Any], engine: str, presets: Mapping[str, Preset]) -> dict[str, Any]:
    """Return an instance over its preset: what it says itself wins, entry by entry.

    Raise PresetError where there is no such preset. An argument is the same however its name is written; null drops
    one of the preset's.
    """
    name = instance.get("preset")
    if name is None:
        return dict(instance)
    if name not in presets:
        raise PresetError(f"no preset {name!r}; there are {', '.join(sorted(presets))}{nearest(str(name), presets)}")
    base = presets[name].instance(engine)
    own = {plain_name(key) for key in instance.get("arguments") or {}}
    base["arguments"] = {key: value for key, value in base.get("arguments", {}).items() if plain_name(key) not in own}
    return _over(base, instance)


def expand_all(
    instances: Sequence[Mapping[str, Any]], engine: str, presets: Mapping[str, Preset]
) -> list[dict[str, Any]]:
    """Return instances over their presets."""
    return [expand(instance, engine, presets) for instance in instances]


def _over(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and value is None:
            continue  # an empty section says nothing
        merged[key] = _over(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged
