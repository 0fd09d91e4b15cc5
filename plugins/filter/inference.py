# SPDX-License-Identifier: Apache-2.0
"""Ansible filters: thin adapters of the domain. Each is documented in the file beside this one that has its name."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleError, AnsibleFilterError
from jinja2 import Undefined, UndefinedError

PROJECT = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(PROJECT / "plugins" / "module_utils"))

from inference import (  # noqa: E402
    engine_args,
    gateway,
    host_lock,
    inventory,
    inventory_gateway,
    ledger,
    nccl,
    systemd,
    toolkit,
)
from inference.findings import Finding, Report  # noqa: E402
from inference.releases import locks  # noqa: E402


@functools.cache
def _known() -> inventory.Known:
    """Return what the roles of this project document, default to, and bring."""
    roles = PROJECT / "roles"
    options: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for file in sorted(roles.glob("*/meta/argument_specs.yml")):
        for entry in yaml.safe_load(file.read_text())["argument_specs"].values():
            options |= entry.get("options") or {}
    for file in sorted(roles.glob("*/defaults/main.yml")):
        given = yaml.safe_load(file.read_text()) or {}
        defaults |= {name: value for name, value in given.items() if "{{" not in str(value)}
    found = [locks.parse_lock(file.read_text(), file.name) for file in roles.glob("engine/files/locks/*-cp*.txt")]
    return inventory.Known(
        options=options,
        defaults=defaults,
        locks={lock.name: _nccl_release(lock) for lock in found},
        patches=ledger.load(patch_ledger(str(roles / "patches/files/ledger"))),
        tables=[table for engine in engine_args.TITLES for table in engine_args.load_tables(engine)],
        presets=_presets(),
    )


@functools.cache
def _presets() -> Mapping[str, engine_args.Preset]:
    folder = PROJECT / "roles/service/files/presets"
    return engine_args.load_presets(yaml.safe_load(file.read_text()) for file in sorted(folder.glob("*.yml")))


def _nccl_release(lock: locks.Lock) -> str | None:
    return next((version for name, version in lock.versions.items() if name.startswith("nvidia-nccl-cu")), None)


def _plain(value: Any) -> Any:
    """Return a value with every template in it resolved, or raise AnsibleError for one that cannot be."""
    if isinstance(value, Undefined):
        raise AnsibleError(str(value._undefined_message))
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    return value


def inventory_findings(
    variables: Mapping[str, Any], hosts: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Return what is wrong with the variables of hosts; hosts with the same findings together."""
    upstreams = [upstream for host in groups.get("inference", []) for upstream in _upstreams(host, variables[host])]
    found: dict[tuple[Finding, ...], list[str]] = {}
    for host in hosts:
        resolved, findings, known = _resolved(variables[host])
        if host in groups.get("inference", []):
            findings += inventory.check(resolved, known)
        if host in groups.get("gateway", []):
            findings += inventory.check_gateway(resolved, known, upstreams, host)
        found.setdefault(tuple(dict.fromkeys(findings)), []).append(host)
    return [
        {"hosts": names, "findings": [f.as_dict() for f in findings]} for findings, names in found.items() if findings
    ]


def _upstreams(host: str, variables: Mapping[str, Any]) -> list[inventory_gateway.Upstream]:
    """Return the instances of a host that a gateway can be asked about; what is wrong with others is said elsewhere."""
    try:
        instances = _plain(variables.get("service_instances", []))
        address = str(_plain(variables.get("ansible_host", host)))
    except (AnsibleError, UndefinedError):
        return []
    whole = [entry for entry in instances if isinstance(entry, Mapping)] if isinstance(instances, list) else []
    return [inventory_gateway.Upstream(host, address, entry) for entry in whole if {"name", "port"} <= entry.keys()]


def _resolved(variables: Mapping[str, Any]) -> tuple[dict[str, Any], list[Finding], inventory.Known]:
    """Return a host's settings, what is wrong with their templates, and what is known without those."""
    known, resolved, broken = _known(), {}, {}
    for name in variables:
        if inventory.is_ours(name, known):
            try:
                resolved[name] = _plain(variables[name])
            except (AnsibleError, UndefinedError) as error:
                broken[name] = str(error)
    # what cannot be resolved is unknown: its default says nothing about this host
    defaults = {name: value for name, value in known.defaults.items() if name not in broken}
    findings = [inventory.unresolved(name, why) for name, why in broken.items()]
    return resolved, findings, dataclasses.replace(known, defaults=defaults)


def findings_text(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return findings as text for people, the most pressing first."""
    names = [field.name for field in dataclasses.fields(Finding)]
    report = Report([Finding(**{name: entry[name] for name in names if name in entry}) for entry in findings])
    return report.as_text()


def engine_command(
    instance: Mapping[str, Any], engine: str, python: str, model: Mapping[str, Any], version: str | None = None
) -> list[str]:
    """Return an engine's command line as a list of words, with the names that options have in the release."""
    table = engine_args.load_table(engine, version) if version else None
    return engine_args.command(engine, python, instance, model, table)


def with_presets(instances: Sequence[Mapping[str, Any]], engine: str) -> list[dict[str, Any]]:
    """Return instances over the presets that they name."""
    try:
        return engine_args.expand_all(instances, engine, _presets())
    except engine_args.PresetError as error:
        raise AnsibleFilterError(str(error)) from error


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


@functools.cache
def _toolkit(project: str) -> tuple[str, Mapping[str, str]]:
    content = toolkit.files(Path(project))
    return toolkit.version(content), content


def toolkit_version(project: str) -> str:
    """Return the toolkit's version, which is the name of its folder on a host."""
    return _toolkit(project)[0]


def toolkit_files(project: str) -> list[dict[str, str]]:
    """Return the toolkit's files and folders on a host as entries for managed_files."""
    version, content = _toolkit(project)
    return toolkit.entries(f"{toolkit.ROOT}/{version}", content)


def host_program_files(project: str) -> list[dict[str, str]]:
    """Return the program that a host's units run at boot, and its modules, as entries for managed_files.

    It lies beside the versions of the toolkit, which go with the generations that use them.
    """
    base = Path(project)
    names = [f"{toolkit.DOMAIN}/{name}.py" for name in ("__init__", "findings", "program", "xid")]
    names += [f"{toolkit.DOMAIN}/host/{name}.py" for name in ("__init__", "machine", "at_boot")]
    names += [str(path.relative_to(base)) for path in sorted((base / toolkit.DOMAIN / "topology").glob("*.py"))]
    return _installed(base, f"{toolkit.ROOT}/host", ["scripts/host", *names])


def _installed(project: Path, root: str, paths: Sequence[str]) -> list[dict[str, str]]:
    return toolkit.entries(root, {path: (project / path).read_text() for path in paths})


@functools.cache
def _own_run() -> host_lock.Holder:
    return host_lock.own()


def lock_holder(alive: Sequence[str]) -> dict[str, Any]:
    """Return the run that this playbook is, and the runs that go on beside it."""
    return {**dataclasses.asdict(_own_run()), "alive": sorted({*alive, *host_lock.living().values()})}


def gateway_entry(instance: Mapping[str, Any], host: str, same_host: bool = False, key: str = "") -> dict[str, str]:
    """Return an instance as an entry of a gateway's pool."""
    try:
        return {"url": gateway.address(instance, host, same_host=same_host), **({"api_key": key} if key else {})}
    except gateway.GatewayError as error:
        raise AnsibleFilterError(str(error)) from error


def gateway_urls(instance: Mapping[str, Any], host: str, same_host: bool = False) -> list[str]:
    """Return the address by which a gateway's pool knows an instance, or nothing for one that it cannot reach."""
    try:
        return [gateway.address(instance, host, same_host=same_host)]
    except gateway.GatewayError:
        return []


def gateway_entries(hosts: Sequence[str], variables: Mapping[str, Any], name: str) -> list[dict[str, str]]:
    """Return the pool of a gateway, from the instances that this run has tested."""
    entries = []
    for host in hosts:
        own = variables[host]
        for instance in own.get("__fleet_proved", {}).values():
            key = own.get("service_api_keys", {}).get(instance["name"], "")
            entries.append(gateway_entry(instance, own.get("ansible_host", host), host == name, key))
    return entries


GATEWAY_PARTS = ("__init__", "atomic", "findings", "gateway", "program")
"""Modules of the domain that scripts/gateway needs."""


def gateway_files(project: str, target: str) -> list[dict[str, str]]:
    """Return the program that a gateway's router unit calls."""
    names = [f"{toolkit.DOMAIN}/{name}.py" for name in GATEWAY_PARTS]
    return _installed(Path(project), target, ["scripts/gateway", *names])


class FilterModule:
    """Tell Ansible the filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "engine_command": engine_command,
            "findings_text": findings_text,
            "gateway_entries": gateway_entries,
            "gateway_entry": gateway_entry,
            "gateway_files": gateway_files,
            "gateway_urls": gateway_urls,
            "host_program_files": host_program_files,
            "inventory_findings": inventory_findings,
            "lock_holder": lock_holder,
            "nccl_environment": nccl_environment,
            "patch_ledger": patch_ledger,
            "patches_id": patches_id,
            "systemd_command": systemd_command,
            "systemd_environment": systemd_environment,
            "toolkit_files": toolkit_files,
            "toolkit_version": toolkit_version,
            "with_presets": with_presets,
        }
