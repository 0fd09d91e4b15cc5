# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an inventory, found before any host is asked anything."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import PurePosixPath
from typing import Any

from . import inventory_gateway, inventory_instances, inventory_values
from .engine_args import Preset, Table
from .findings import Finding
from .ledger.entry import Entry, LedgerError, choose
from .program import nearest
from .releases.locks import python_tag
from .topology import IDS as TOPOLOGY_IDS
from .topology import ExpectationError, expectation_of
from .weights import SourceError, parse_source

REGISTERED = ("engine_release", "host_result", "model_result", "topology_result")
"""Results that one role leaves for the next ones, under a name of its own."""

RENAMED: Mapping[str, str] = {}
"""Variables that had another name in an earlier release: old to new."""

REFUSED_RELEASES: Mapping[tuple[str, str], str] = {
    ("sglang", "0.5.7"): "it enables all-reduce fusion by itself on SM120 and crashes (sglang#15650); 0.5.8 does not",
}
"""Engine releases that are never installed, and why."""

MINIMUM: Mapping[str, int] = {
    "engine_keep": 0,
    "service_start_grace": 1,
    "service_start_stall": 1,
    "service_start_timeout": 1,
    "service_start_limit_burst": 1,
    "service_restart_delay": 0,
    "service_restart_delay_max": 0,
    "service_drain": 0,
    "service_watchdog": 1,
    "service_keep": 0,
}
"""The smallest number that makes sense; seconds where the role says so."""

FREEZE_NOTICED_S = 66
"""Seconds within which the supervisor notices a frozen engine by itself, less one ping (docs/supervisor.md)."""

FORMS: Mapping[str, tuple[str, str]] = {
    "service_shm_size": (r"[1-9][0-9]*[KMG]?", "a size such as 16G"),
    "engine_python_version": (r"3\.[0-9]+", "a Python such as 3.12, in quotes"),
    "engine_python": (r"auto|/.+", "auto, or the interpreter's absolute path on the host"),
    "host_user": (r"(?!root$)[a-z_][a-z0-9_-]{0,31}", "the name of a system user of its own, not root"),
}
"""Texts of a certain form: pattern, and what people are told."""

HIDDEN_FOLDERS = ("/home", "/root", "/run/user", "/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - named, not used
"""What the unit's sandbox shows the engine as empty (ProtectHome=, PrivateTmp=, TemporaryFileSystem=)."""

OWN_FOLDERS = ("/opt/inference", "/etc/inference", "/var/lib/inference", "/usr/local/lib/inference")
"""Folders of the toolkit, where nothing else may be put."""

SYSTEM_FOLDERS = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")
"""Folders of the operating system (hier(7))."""


RESEMBLANCE = 0.93
"""How alike two names are (difflib's ratio) to be taken for a slip: one letter more or less in a name of ours."""

PLAYBOOK_VARIABLES = ("serial",)
"""What playbooks read that belongs to no role."""

SHORT_RESEMBLANCE = 0.82
"""The same for those: they are short, so that a letter is more of them (serail, seral, serials; not serial_number)."""


@dataclass(frozen=True)
class Known:
    """What this project has, for an inventory to be compared with."""

    options: Mapping[str, Mapping[str, Any]]
    """Every variable that a role documents, with its option."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The roles' defaults; those that are templates are left out."""
    locks: Mapping[str, str | None] = field(default_factory=dict)
    """The locks by name, with the NCCL release in each (None: a build without NCCL)."""
    patches: Sequence[Entry] = ()
    """The patch ledger."""
    tables: Sequence[Table] = ()
    """The options of every engine release."""
    presets: Mapping[str, Preset] = field(default_factory=dict)
    """The presets that an instance can name."""


def check(variables: Mapping[str, Any], known: Known) -> list[Finding]:
    """Return what is wrong with the variables of one host that serves."""
    findings, usable = _usable(variables, known)
    for rule in RULES:
        findings += rule(usable, known)
    lock = lock_name(usable)
    if lock in known.locks and known.tables:
        findings += _without_table(usable, known)
    return findings + inventory_instances.check(
        usable, known.locks.get(lock or ""), tables=known.tables, presets=known.presets
    )


def check_gateway(
    variables: Mapping[str, Any], known: Known, upstreams: Sequence[inventory_gateway.Upstream], host: str
) -> list[Finding]:
    """Return what is wrong with the variables of the gateway ``host``, which is to reach ``upstreams``."""
    findings, usable = _usable(variables, known)
    return findings + inventory_gateway.check(usable, known.locks, upstreams, host)


def _usable(variables: Mapping[str, Any], known: Known) -> tuple[list[Finding], dict[str, Any]]:
    """Return what is wrong with names and types, and the settings that are right, over the roles' defaults.

    Only variables that begin with a role's name are looked at: anything else belongs to the operator. What has the
    wrong type is reported once and not looked into further.
    """
    ours = {name: variables[name] for name in variables if is_ours(name, known)}
    findings = [_unknown(name, known) for name in sorted(ours) if name not in known.options]
    findings += _resembling(sorted(variables.keys() - ours.keys()), known)
    usable = dict(known.defaults)
    for name in sorted(ours.keys() & known.options.keys()):
        wrong = inventory_values.check(name, ours[name], known.options[name])
        findings += wrong
        if wrong:
            usable.pop(name, None)
        else:
            usable[name] = ours[name]
    return findings, usable


def _without_table(settings: Mapping[str, Any], known: Known) -> Iterator[Finding]:
    release = settings["engine_name"], settings["engine_version"]
    if release not in {(table.engine, table.version) for table in known.tables}:
        yield Finding(
            "release-without-options", "info", "The options of this engine release are not known, so none is checked",
            seen=" ".join(release), expected="a table in roles/engine/files/options",
            fix=f"Make it: scripts/engine-args make {'-'.join(release)}.",
        )  # fmt: skip


def is_ours(name: str, known: Known) -> bool:
    """Say whether a variable's name begins as a role's settings do."""
    roles = {option.split("_", 1)[0] for option in known.options}
    return "_" in name and name.split("_", 1)[0] in roles and name not in REGISTERED


def lock_name(settings: Mapping[str, Any]) -> str | None:
    """Return the name of the lock that the settings ask for, or None when they are not whole."""
    names = ("engine_name", "engine_version", "engine_variant", "engine_python_version")
    if any(name not in settings for name in names):
        return None
    engine, version, variant, python = (settings[name] for name in names)
    return f"{engine}-{version}-{variant}-{python_tag(python)}"


def unresolved(name: str, error: str) -> Finding:
    """Return the finding about a variable whose template cannot be resolved."""
    return Finding(
        "variable-template", "critical", "A variable cannot be resolved", seen=f"{name}: {error}",
        expected="variables that exist, in a template that Ansible understands", fix=f"Correct {name}.",
    )  # fmt: skip


def _unknown(name: str, known: Known) -> Finding:
    role = name.split("_", 1)[0]
    if name in RENAMED:
        return Finding(
            "variable-renamed", "critical", "A variable has another name now",
            seen=name, expected=RENAMED[name], fix=f"Rename it to {RENAMED[name]}.",
        )  # fmt: skip
    return Finding(
        "variable-unknown", "critical", "A variable that no role knows",
        seen=name, expected=f"a variable of the role {role}{nearest(name, known.options)}",
        fix=f"Correct it, or remove it: ansible-doc -t role -r roles {role} lists them.",
    )  # fmt: skip


def _resembling(names: Sequence[str], known: Known) -> Iterator[Finding]:
    """Names that belong to the operator and differ from one of ours by a letter: services_instances."""
    for name in names:
        close = difflib.get_close_matches(name, known.options, n=1, cutoff=RESEMBLANCE)
        close += difflib.get_close_matches(name, PLAYBOOK_VARIABLES, n=1, cutoff=SHORT_RESEMBLANCE)
        if close and name not in (*REGISTERED, *PLAYBOOK_VARIABLES):
            yield Finding(
                "variable-resembles", "warning", "A variable that nothing reads, written nearly like one that is read",
                seen=name, expected=close[0], fix=f"Rename it to {close[0]}, or give it a name of its own.",
            )  # fmt: skip


def _nothing_served(settings: Mapping[str, Any], _known: Known) -> Iterator[Finding]:
    if "service_instances" in settings and not settings["service_instances"]:
        yield Finding(
            "nothing-served", "warning", "The host will be prepared and serve nothing",
            seen="service_instances is empty", expected="at least one instance",
            fix="Add one to service_instances; inventory/example shows how.",
        )  # fmt: skip


def _wrong(finding_id: str, where: str, seen: object, expected: str) -> Finding:
    return Finding(
        finding_id, "critical", f"{where} cannot be used", seen=str(seen), expected=expected, fix=f"Change {where}."
    )


def _forms(settings: Mapping[str, Any], _: Known) -> Iterator[Finding]:
    for name, least in MINIMUM.items():
        if name in settings and settings[name] < least:
            yield _wrong("variable-value", name, settings[name], f"{least} or more")
    for name, (pattern, expected) in FORMS.items():
        if name in settings and not re.fullmatch(pattern, settings[name]):
            yield _wrong("variable-value", name, repr(settings[name]), expected)
    for name, value in settings.get("host_sysctls", {}).items():
        if not isinstance(value, str):
            yield _wrong("variable-value", f"host_sysctls.{name}", repr(value), "a string; put it in quotes")
    for name, why in settings.get("topology_waive", {}).items():
        if not isinstance(why, str) or not why.strip():
            yield _wrong(
                "variable-value", f"topology_waive.{name}", repr(why), "the reason, which every report repeats"
            )
        if name not in TOPOLOGY_IDS:
            expected = f"the id of a finding (docs/topology.md){nearest(str(name), TOPOLOGY_IDS)}"
            yield _wrong("topology-waive", f"topology_waive.{name}", name, expected)


def _times(settings: Mapping[str, Any], _: Known) -> Iterator[Finding]:
    watchdog, grace = settings.get("service_watchdog", FREEZE_NOTICED_S), settings.get("service_start_grace", 0)
    if 0 < watchdog < FREEZE_NOTICED_S:
        yield Finding(
            "watchdog-too-short", "warning", "systemd gives a frozen engine up before the supervisor can say why",
            seen=f"service_watchdog {watchdog} s", expected=f"{FREEZE_NOTICED_S} s or more",
            fix="Raise service_watchdog.",
        )  # fmt: skip
    if settings.get("service_start_timeout", grace) < grace:
        seen = f"{settings['service_start_timeout']} s, with service_start_grace {grace} s"
        yield _wrong("start-timeout", "service_start_timeout", seen, "service_start_grace or longer")


def _topology(settings: Mapping[str, Any], _: Known) -> Iterator[Finding]:
    try:
        expectation_of(settings.get("topology_expect", "any"))
    except ExpectationError as error:
        yield _wrong("topology-expect", "topology_expect", settings["topology_expect"], str(error))


def _release(settings: Mapping[str, Any], known: Known) -> Iterator[Finding]:
    name = lock_name(settings)
    refused = REFUSED_RELEASES.get((str(settings.get("engine_name")), str(settings.get("engine_version"))))
    if refused:
        yield _wrong("release-refused", "engine_version", settings["engine_version"], f"another release: {refused}")
    elif name is not None and name not in known.locks:
        engine = settings["engine_name"]
        there = ", ".join(sorted(lock for lock in known.locks if lock.startswith(f"{engine}-"))) or "none"
        yield Finding(
            "release-without-lock", "critical", "There is no lock for this engine, version, variant and Python",
            seen=name, expected=f"one of {there}{nearest(name, known.locks)}",
            fix="Choose one of these, or make the lock: scripts/lock make NAME.",
        )  # fmt: skip


def _patches(settings: Mapping[str, Any], known: Known) -> Iterator[Finding]:
    acknowledged = settings.get("patches_acknowledge", [])
    for name in ("patches_enable", "patches_acknowledge"):
        try:
            choose(known.patches, settings.get(name, []))
        except LedgerError as error:
            yield _wrong("patch-unknown", name, ", ".join(settings[name]), str(error))
    enabled = settings.get("patches_enable", [])
    other = sorted(set(enabled) - {"default"}) if settings.get("engine_name", "sglang") != "sglang" else []
    if other:
        yield _wrong("patch-engine", "patches_enable", ", ".join(other), "no patches: the ledger is about SGLang")
    for entry in known.patches:
        if entry.id not in enabled:
            continue
        if entry.forbidden:
            yield _wrong("patch-forbidden", "patches_enable", entry.id, f"never this one: {entry.forbidden}")
        elif entry.acknowledge and entry.id not in acknowledged:
            yield Finding(
                "patch-not-acknowledged", "critical", f"The patch {entry.id} has a risk that has to be accepted",
                seen=f"{entry.id} in patches_enable and not in patches_acknowledge", expected=entry.acknowledge,
                fix=f"Add {entry.id} to patches_acknowledge, or take it out of patches_enable.",
            )  # fmt: skip


def _folders(settings: Mapping[str, Any], _: Known) -> Iterator[Finding]:
    """Folders on the host that the engine reads; those with a source are filled, and emptied first."""
    models = settings.get("model_catalog", [])
    targets = {f"model_catalog[{i}].path": m["path"] for i, m in enumerate(models)}
    filled = {f"model_catalog[{i}].path" for i, m in enumerate(models) if m.get("source")}
    if "engine_wheelhouse_target" in settings:
        targets["engine_wheelhouse_target"] = settings["engine_wheelhouse_target"]
        filled.add("engine_wheelhouse_target")
    wrong = {where: list(_folder(where, path, filled=where in filled)) for where, path in targets.items()}
    yield from (finding for findings in wrong.values() for finding in findings)
    for one, other in combinations([where for where in targets if not wrong[where]], 2):
        if (one in filled or other in filled) and _nested(targets[one], targets[other]):
            yield _wrong("path-overlap", other, targets[other], f"a folder outside of {one} ({targets[one]})")


def _folder(where: str, path: str, *, filled: bool) -> Iterator[Finding]:
    if str(PurePosixPath(path)) != path or ".." in PurePosixPath(path).parts:
        yield _wrong("path-form", where, path, "a path without . or .. and without a slash at its end")
        return
    taken = [own for own in OWN_FOLDERS if _nested(path, own)]
    taken += [system for system in SYSTEM_FOLDERS if PurePosixPath(path).is_relative_to(system)]
    if filled and (taken or path.count("/") < 2):  # noqa: PLR2004 - /srv or /data itself holds other things
        expected = "a folder of its own, such as /srv/models/NAME, since whatever else is in it is removed"
        yield _wrong("path-shared", where, path, expected)
    hidden = next((h for h in HIDDEN_FOLDERS if PurePosixPath(path).is_relative_to(h)), None)
    if hidden and where.startswith("model_catalog"):
        yield _wrong("path-hidden", where, path, f"a folder that the unit can see; its sandbox hides {hidden}")


def _nested(one: str, other: str) -> bool:
    first, second = PurePosixPath(one), PurePosixPath(other)
    return first.is_relative_to(second) or second.is_relative_to(first)


def _catalog(settings: Mapping[str, Any], _: Known) -> Iterator[Finding]:
    catalog = settings.get("model_catalog", [])
    for position, model in enumerate(catalog):
        try:
            parse_source(model.get("source") or "/")
        except SourceError as error:
            yield _wrong("model-source", f"model_catalog[{position}].source", model["source"], str(error))
    names = [model["name"] for model in catalog]
    for position, name in enumerate(names):
        if not name.strip():
            yield _wrong("model-name", f"model_catalog[{position}].name", repr(name), "a name")
        elif name in names[:position]:
            first = f"model_catalog[{names.index(name)}]"
            yield _wrong("model-twice", f"model_catalog[{position}].name", name, f"another name; {first} has this one")


RULES = (_nothing_served, _forms, _times, _topology, _release, _patches, _folders, _catalog)
"""Checks of settings that have the right types."""
