# SPDX-License-Identifier: Apache-2.0
"""Ansible filters: thin adapters of the domain. Each is documented in the file beside this one that has its name."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleFilterError

PROJECT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(PROJECT / "plugins" / "module_utils"))

from inference import engine_args, inventory, ledger, nccl, systemd, toolkit  # noqa: E402
from inference.findings import Report  # noqa: E402


@functools.cache
def _options() -> frozenset[str]:
    """Return every variable that a role documents."""
    found: set[str] = set()
    for file in (PROJECT / "roles").glob("*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(file.read_text())["argument_specs"].values():
            found |= set(entry.get("options") or {})
    return frozenset(found)


def inventory_findings(variables: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is wrong with a host's variables."""
    return [finding.as_dict() for finding in inventory.check(variables, _options())]


def findings_text(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return findings as text for people."""
    blocks = [
        f"{finding['level'].upper()} {finding['id']}: {finding['what']}\n  seen:     {finding['seen']}\n"
        f"  expected: {finding['expected']}\n  fix:      {finding['fix']}"
        for finding in findings
    ]
    return "\n".join(blocks) or Report().summary()


def engine_command(instance: Mapping[str, Any], engine: str, python: str, model: Mapping[str, Any]) -> list[str]:
    """Return an engine's command line as a list of words."""
    return list(engine_args.command(engine, python, instance, model).words)


def nccl_environment(profile: str, overrides: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the NCCL variables of a profile."""
    try:
        return dict(nccl.environment(profile, overrides or {}))
    except nccl.NcclError as error:
        raise AnsibleFilterError(str(error)) from error


def systemd_command(words: Sequence[str]) -> str:
    """Return words as an ExecStart= value."""
    return systemd.command_line(words)


def systemd_environment(settings: Mapping[str, Any]) -> str:
    """Return Environment= lines."""
    return systemd.environment_line({name: str(value) for name, value in settings.items()})


def patch_ledger(folder: str) -> list[dict[str, Any]]:
    """Return the entries of the patch ledger in a folder."""
    return [yaml.safe_load(file.read_text()) for file in sorted(Path(folder).glob("*.yml"))]


def patches_id(entries: Sequence[Mapping[str, Any]], chosen: Sequence[str]) -> str:
    """Return what the chosen patches contribute to a release's id."""
    try:
        return str(ledger.content_id(entries, chosen))
    except ledger.LedgerError as error:
        raise AnsibleFilterError(str(error)) from error


def toolkit_files(project: str) -> dict[str, Any]:
    """Return the toolkit's version, its folder on a host, and the entries for managed_files."""
    content = toolkit.files(Path(project))
    version = toolkit.version(content)
    root = f"{toolkit.ROOT}/{version}"
    folders = {root} | {f"{root}/{parent}" for path in content for parent in Path(path).parents if str(parent) != "."}
    entries: list[dict[str, Any]] = [{"path": toolkit.ROOT, "state": "directory"}]
    entries += [{"path": folder, "state": "directory"} for folder in sorted(folders)]
    for path, text in content.items():
        mode = "0755" if path.startswith("scripts/") else "0644"
        entries.append({"path": f"{root}/{path}", "state": "file", "content": text, "mode": mode})
    return {"version": version, "path": root, "files": entries}


class FilterModule:
    """Tell Ansible the filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "engine_command": engine_command,
            "findings_text": findings_text,
            "inventory_findings": inventory_findings,
            "nccl_environment": nccl_environment,
            "patch_ledger": patch_ledger,
            "patches_id": patches_id,
            "systemd_command": systemd_command,
            "systemd_environment": systemd_environment,
            "toolkit_files": toolkit_files,
        }
