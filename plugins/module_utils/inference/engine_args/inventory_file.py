# SPDX-License-Identifier: Apache-2.0
"""One host's variables as programs get them: a file of the inventory, or what ``ansible-inventory --host`` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import nccl
from ..program import ProgramError, nearest, read_document
from .presets import Preset, PresetError, expand, load


@dataclass(frozen=True)
class Host:
    """A host's settings over the roles' defaults; instances with a template, which only Ansible resolves, are apart."""

    settings: Mapping[str, Any]
    presets: Mapping[str, Preset]
    unresolved: tuple[str, ...] = ()

    @property
    def release(self) -> tuple[str, str]:
        """Return the engine and its version."""
        return str(self.settings["engine_name"]), str(self.settings["engine_version"])

    @property
    def instances(self) -> list[Mapping[str, Any]]:
        """Return the instances that can be looked at."""
        return list(self.settings.get("service_instances") or [])

    def whole(self, instance: Mapping[str, Any]) -> dict[str, Any]:
        """Return an instance over its preset. Raise ProgramError where there is no such preset."""
        try:
            return expand(instance, self.release[0], self.presets)
        except PresetError as error:
            raise ProgramError(f"{instance.get('name')}: {error}") from error

    def nccl_environment(self, instance: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the NCCL variables of an instance. Raise ProgramError for a profile that does not exist."""
        profile = instance.get("nccl_profile") or self.settings.get("service_nccl_profile") or nccl.DEFAULT_PROFILE
        measured: dict[str, Any] = {"environment": {}, "nccl_version": ""}  # what it holds is known on the host alone
        try:
            return dict(nccl.environment(str(profile), instance.get("nccl_environment"), measured=measured))
        except nccl.NcclError as error:
            raise ProgramError(f"{instance.get('name')}: {error}") from error

    def model(self, instance: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the entry of the catalogue that an instance serves, or a stand-in with its name."""
        catalog = self.settings.get("model_catalog") or []
        stand_in = {"name": instance.get("model", "MODEL"), "path": "PATH"}
        return next((m for m in catalog if m.get("name") == instance.get("model")), stand_in)


def read(name: str, project: Path, only: str | None = None) -> Host:
    """Return the host in a file (``-``: standard input), with one instance or all.

    Raise ProgramError that names what cannot be read.
    """
    document = read_document(name)
    if not isinstance(document, Mapping):
        raise ProgramError(f"{name}: not the variables of a host, but a {type(document).__name__}")
    settings = {**dict(_defaults(project)), **document}
    instances = settings.get("service_instances") or []
    if not isinstance(instances, Sequence) or not all(isinstance(entry, Mapping) for entry in instances):
        raise ProgramError(f"{name}: service_instances is not a list of instances")
    for entry in instances:
        for key in ("arguments", "environment", "nccl_environment", "smoke"):
            if not isinstance(entry.get(key) or {}, Mapping):
                raise ProgramError(f"{name}: {key} of {entry.get('name')} is not a mapping of names to values")
    names = [str(entry.get("name")) for entry in instances]
    if only is not None and only not in names:
        raise ProgramError(
            f"{name}: no instance {only!r}; there are {', '.join(names) or 'none'}{nearest(only, names)}"
        )
    chosen = [entry for entry in instances if only in (None, entry.get("name"))]
    open_ones = tuple(str(entry.get("name")) for entry in chosen if "{{" in str(entry))
    settings["service_instances"] = [entry for entry in chosen if str(entry.get("name")) not in open_ones]
    return Host(settings, presets(project), open_ones)


def presets(project: Path) -> dict[str, Preset]:
    """Return the project's presets."""
    folder = project / "roles" / "service" / "files" / "presets"
    try:
        return load(read_document(str(file)) for file in sorted(folder.glob("*.yml")))
    except PresetError as error:
        raise ProgramError(f"{folder}: {error}") from error


def _defaults(project: Path) -> Iterator[tuple[str, Any]]:
    for role in ("engine", "service", "topology", "model"):
        given = read_document(str(project / "roles" / role / "defaults" / "main.yml")) or {}
        yield from ((name, value) for name, value in given.items() if "{{" not in str(value))
