# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the entries of ``service_instances``, each by itself and against the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import claims, engine_args, nccl, ports
from .findings import Finding
from .gateway import LOOPBACK
from .nccl.lint import lint_environment
from .nccl.variables import VersionError
from .program import nearest
from .smoke.profile import ProfileError, load_profile
from .topology.expectations import ExpectationError, expectation_of

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""What a unit takes as its instance without escaping (systemd.unit, "String Escaping"), and a folder as its name."""

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound
"""Addresses that mean every interface."""

EPHEMERAL = range(32768, 61000)
"""Ports that Linux gives to outgoing connections (net.ipv4.ip_local_port_range, its default)."""

INTERNAL = range(ports.BLOCKS.start, ports.BLOCKS.stop)
"""Where instances have their internal ports, and where SGLang draws others (get_free_port_below_ephemeral)."""

SIZE = r"[1-9][0-9]*[KMG]?"
SIZE_EXPECTED = "a size such as 16G"
"""How large a file system in memory is, as mount(8) reads it."""

KEY_LENGTH = 16
KEY = re.compile(rf"[!-~]{{{KEY_LENGTH},}}")
"""What an API key looks like: printable ASCII, long enough not to be guessed over a network."""

GENERATION = re.compile(r"|[0-9a-f]{12}")

OWNED_VARIABLES: Mapping[str, str] = {"CUDA_VISIBLE_DEVICES": "gpus"}
"""Variables that the service renders itself, and the instance's key that sets each."""


@dataclass(frozen=True)
class Case:
    """One instance, and what it is judged against."""

    where: str
    instance: Mapping[str, Any]
    settings: Mapping[str, Any]
    """The host's variables over the roles' defaults, all of the right type."""
    nccl_version: str | None
    """The NCCL release in the engine's lock, or None where it has none."""
    tables: Sequence[engine_args.Table] = ()
    """The options of every engine release."""
    presets: Mapping[str, engine_args.Preset] = field(default_factory=dict)

    @property
    def engine(self) -> str:
        """The engine's name."""
        return str(self.settings.get("engine_name", "sglang"))

    @property
    def profile(self) -> str:
        """The name of its NCCL profile."""
        named = self.instance.get("nccl_profile") or self.settings.get("service_nccl_profile")
        return str(named or nccl.DEFAULT_PROFILE)

    @property
    def table(self) -> engine_args.Table | None:
        """The options of the engine release, or None where they are not known."""
        release = self.engine, self.settings.get("engine_version")
        return next((table for table in self.tables if (table.engine, table.version) == release), None)

    @property
    def scope(self) -> engine_args.Scope:
        """What the rules about options hold for: GPUs of compute capability 12, unless something else is meant."""
        if self.settings.get("engine_variant") == "cpu":
            return "cpu"
        try:
            capability = expectation_of(self.settings.get("topology_expect", "any")).compute_capability
        except ExpectationError:
            return "other"
        return "sm120" if capability is None or capability.startswith("12.") else "other"

    @property
    def gpu_count(self) -> int | None:
        """How many GPUs the host is meant to have; None for a host without GPUs or an open expectation."""
        if self.settings.get("engine_variant") == "cpu":
            return None
        try:
            return expectation_of(self.settings.get("topology_expect", "any")).gpu_count
        except ExpectationError:
            return None

    @property
    def meets_on_loopback(self) -> bool:
        """Whether it has ranks that meet, in a unit that reaches loopback only."""
        listens = self.instance.get("host") or LOOPBACK[0]
        closed = bool(self.settings.get("service_loopback_only", True)) and listens in LOOPBACK
        return closed and engine_args.gpus_needed(self.engine, self.instance) > 1

    def wrong(self, finding_id: str, key: str, seen: object, expected: str) -> Finding:
        """Return a critical finding about one key of the instance."""
        return _wrong(finding_id, f"{self.where}.{key}" if key else self.where, str(seen), expected)


def check(
    settings: Mapping[str, Any],
    nccl_version: str | None,
    *,
    tables: Sequence[engine_args.Table] = (),
    presets: Mapping[str, engine_args.Preset] | None = None,
    only_options: bool = False,
) -> list[Finding]:
    """Return what is wrong with the instances of a host, or with the engine options alone.

    ``settings`` have the right types.
    """
    rules = OPTION_RULES if only_options else RULES
    instances = settings.get("service_instances", [])
    known = presets or {}
    raw = [
        Case(f"service_instances[{i}]", entry, settings, nccl_version, tables, known)
        for i, entry in enumerate(instances)
    ]
    if any(case.engine not in engine_args.TITLES for case in raw):
        return []  # said already, by the choices of engine_name
    cases, findings = _with_presets(raw)
    findings += [finding for case in cases for rule in rules for finding in rule(case)]
    if rules is not RULES:
        return findings
    return [*findings, *_overlaps(cases), *_too_many(cases), *_keys(settings, cases), *_restore(settings, cases)]


def _with_presets(cases: Sequence[Case]) -> tuple[list[Case], list[Finding]]:
    """Return the instances over their presets, and what is wrong with the presets that they name."""
    found: list[Finding] = []
    made = []
    for case in cases:
        try:
            made.append(replace(case, instance=engine_args.expand(case.instance, case.engine, case.presets)))
        except engine_args.PresetError as error:
            found.append(case.wrong("instance-preset", "preset", case.instance["preset"], str(error)))
            made.append(case)
    return made, found


def _name(case: Case) -> Iterator[Finding]:
    name = case.instance["name"]
    if not NAME.fullmatch(name):
        expected = "letters, digits, _ . - (64 at most, not beginning with . or -), since it is part of the unit's name"
        yield case.wrong("instance-name", "name", repr(name), expected)


def _model(case: Case) -> Iterator[Finding]:
    if "model_catalog" not in case.settings:
        return  # it cannot be used, as another finding says
    catalog = case.settings.get("model_catalog", [])
    models = [model["name"] for model in catalog if model.get("state") != "absent"]
    name = case.instance["model"]
    if name not in models:
        known = ", ".join(models) or "it is empty"
        expected = f"the name of a model in model_catalog ({known}){nearest(name, models)}"
        yield case.wrong("instance-model", "model", name, expected)


def _address(case: Case) -> Iterator[Finding]:
    host = case.instance.get("host", "127.0.0.1")
    if host in EVERYWHERE:
        yield Finding(
            "instance-everywhere", "warning", f"{case.where} listens on every network of the host",
            seen=f"host {host!r}", expected="127.0.0.1, or one address that only a gateway reaches: engines trust "
            "whoever reaches their port (docs/security.md)",
            fix="Remove host, and put a gateway with keys and TLS before the port.",
        )  # fmt: skip
    elif not re.fullmatch(r"[A-Za-z0-9.:-]+", host):
        yield case.wrong("instance-host", "host", repr(host), "an address without brackets, or a host name")


def _port(case: Case) -> Iterator[Finding]:
    port = case.instance["port"]
    if not 1024 <= port <= 65535:  # noqa: PLR2004 - what a user without privileges may bind
        yield case.wrong("instance-port", "port", port, "1024 to 65535; the engine's user may not bind lower ones")
    if port in EPHEMERAL or port in INTERNAL:
        whose = "engines have their internal ports" if port in INTERNAL else "Linux gives ports to outgoing connections"
        taken = INTERNAL if port in INTERNAL else EPHEMERAL
        yield Finding(
            "instance-port-drawn", "warning", f"{case.where}.port may be taken by chance when the engine starts",
            seen=f"port {port}; from {taken[0]} to {taken[-1]} {whose}", expected="a port that nothing else draws",
            fix="Use one from 30000 to 32767, or reserve it with net.ipv4.ip_local_reserved_ports in host_sysctls.",
        )  # fmt: skip


def _gpus(case: Case) -> Iterator[Finding]:
    size, named, count = case.instance.get("tensor_parallel_size", 1), case.instance.get("gpus"), case.gpu_count
    if size < 1:
        yield case.wrong("instance-gpus", "tensor_parallel_size", size, "1 or more")
        return
    needed = engine_args.gpus_needed(case.engine, case.instance)
    if named is not None and len(named) != needed:
        expected = f"as many as it spans: {needed} (tensor_parallel_size times pipeline and data parallelism)"
        yield case.wrong("instance-gpus", "gpus", f"{len(named)} GPUs", expected)
    if named is not None and (len(set(named)) != len(named) or any(gpu < 0 for gpu in named)):
        yield case.wrong("instance-gpus", "gpus", named, "different numbers, 0 or more")
    if count is not None and named and max(named) >= count:
        expected = f"GPUs 0 to {count - 1}: topology_expect says that the host has {count}"
        yield case.wrong("instance-gpus-beyond", "gpus", ", ".join(map(str, named)), expected)


def _shared_memory(case: Case) -> Iterator[Finding]:
    size = case.instance.get("shm_size")
    if size is not None and not re.fullmatch(SIZE, size):
        yield case.wrong("instance-shm-size", "shm_size", repr(size), SIZE_EXPECTED)


def _nccl(case: Case) -> Iterator[Finding]:
    measured = {"environment": {}, "nccl_version": ""}  # what it holds is known on the host alone
    try:
        environment = nccl.environment(case.profile, case.instance.get("nccl_environment"), measured=measured)
    except nccl.NcclError as error:
        yield case.wrong("instance-nccl", "nccl_profile or nccl_environment", case.profile, str(error))
        return
    if case.table is not None or not case.tables:
        version = str(case.settings.get("engine_version", ""))
        given = engine_args.settings(
            case.instance,
            engine=case.engine,
            version=version,
            table=case.table,
            scope=case.scope,
            nccl_environment=environment,
        )
        yield from engine_args.lint(given, case.where)
    yield from _lint(case, environment)


def _lint(case: Case, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Judge the variables for the NCCL release of the lock; what needs the host's topology is left to the host."""
    if case.nccl_version is None:
        return
    alone = case.meets_on_loopback  # the role sets the first one there, and what the instance says of it wins
    given = {**({"NCCL_SOCKET_IFNAME": "lo"} if alone else {}), **environment}
    try:
        report = lint_environment(given, case.nccl_version, loopback_only=alone)
    except VersionError:
        return
    for finding in report.findings:
        if finding.level in ("critical", "warning"):
            yield replace(finding, what=f"{case.where}.nccl_environment: {finding.what}")


def _environment(case: Case) -> Iterator[Finding]:
    for name, value in case.instance.get("environment", {}).items():
        key = f"environment.{name}"
        if not VARIABLE.fullmatch(str(name)):
            yield case.wrong("environment-name", key, repr(name), "the name of a variable: letters, digits and _")
        elif engine_args.is_secret(name, value):
            expected = "no secret in a unit: every local user can read it with systemctl show"
            yield case.wrong("secret-in-environment", key, f"{name}=[redacted]", expected)
        elif name.startswith("NCCL_"):
            yield case.wrong("environment-nccl", key, name, f"{case.where}.nccl_environment, on top of the profile")
        elif name in OWNED_VARIABLES:
            yield case.wrong("environment-owned", key, name, f"{case.where}.{OWNED_VARIABLES[name]}")
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)):
            yield case.wrong("environment-value", key, repr(value), "a string or a number; put '1', '0' or a word")
        elif not str(value).isprintable():
            yield case.wrong("environment-value", key, repr(value), "one line without control characters")


def _preset(case: Case) -> Iterator[Finding]:
    preset = case.presets.get(case.instance.get("preset") or "")
    meant = preset.unfit(case.engine, str(case.settings.get("engine_version", ""))) if preset else None
    if meant:
        yield Finding(
            "preset-release", "warning", f"{case.where}.preset was made for other releases",
            seen=f"{case.instance['preset']} with {case.engine} {case.settings.get('engine_version')}", expected=meant,
            fix="Choose such a release, or write the settings yourself.",
        )  # fmt: skip


def _arguments(case: Case) -> Iterator[Finding]:
    others = [table for table in case.tables if table.engine == case.engine and table is not case.table]
    yield from engine_args.check(case.instance, case.where, case.table, others)


def _smoke(case: Case) -> Iterator[Finding]:
    try:
        load_profile(case.instance.get("smoke", {}))
    except ProfileError as error:
        yield case.wrong("instance-smoke", "smoke", str(error), "a smoke profile (docs/smoke.md)")


RULES = (_name, _model, _address, _port, _gpus, _shared_memory, _nccl, _environment, _preset, _arguments, _smoke)
"""Checks of one instance."""

OPTION_RULES = (_nccl, _preset, _arguments)
"""Those that are about what the engine is started with."""


def _overlaps(cases: Sequence[Case]) -> list[Finding]:
    """Names, ports and GPUs belong to one instance each; GPUs that nobody names are chosen on the host."""
    return claims.overlaps(
        (
            f"{case.where} ({case.instance['name']})",
            {
                "name": [case.instance["name"]],
                "port": ports.of(case.engine, case.instance).claimed,
                "GPU": case.instance.get("gpus") or [],
            },
        )
        for case in cases
    )


def _too_many(cases: Sequence[Case]) -> Iterator[Finding]:
    """Together they need no more GPUs than the host is meant to have; one that names too many is told so itself."""
    count = cases[0].gpu_count if cases else None
    named = [gpu for case in cases for gpu in case.instance.get("gpus") or []]
    needed = {
        case.where: len(case.instance.get("gpus") or range(engine_args.gpus_needed(case.engine, case.instance)))
        for case in cases
    }
    if count is not None and sum(needed.values()) > count > max(named, default=0):
        yield Finding(
            "instance-gpus-beyond", "critical", "The instances need more GPUs than the host has",
            seen=", ".join(f"{where} {number}" for where, number in needed.items()),
            expected=f"{count} GPUs in all, as topology_expect says",
            fix="Take an instance away, or let one span fewer GPUs (tensor_parallel_size).",
        )  # fmt: skip


def _keys(settings: Mapping[str, Any], cases: Sequence[Case]) -> Iterator[Finding]:
    """Keys are for instances that exist, and of a form that a header can hold. None is ever shown."""
    known = {str(case.instance["name"]): case for case in cases}
    for name, key in settings.get("service_api_keys", {}).items():
        place = f"service_api_keys.{name}"
        if name not in known and isinstance(key, str) and key in known:
            expected = "instances with their keys, in this order"
            yield _wrong("api-key-for-nobody", "service_api_keys", f"{key} in the place of a key", expected)
        elif name not in known:
            expected = f"the name of an instance ({', '.join(known) or 'none'}){nearest(str(name), list(known))}"
            yield _wrong("api-key-for-nobody", place, "a key", expected)
        elif not isinstance(key, str) or not KEY.fullmatch(key):
            expected = f"a text of {KEY_LENGTH} or more letters, digits and punctuation, without spaces, in quotes"
            yield _wrong("api-key-form", place, "a key of another form (not shown)", expected)
        elif key.startswith("-"):
            expected = "a key that does not begin with -: engines would take it for one of their options"
            yield _wrong("api-key-form", place, "a key that begins with - (not shown)", expected)
        elif any(str(argument).lstrip("-") == "config" for argument in known[name].instance.get("arguments") or {}):
            expected = "no option config: the key reaches the engine in that file, and engines read one"
            yield _wrong("api-key-config", f"{known[name].where}.arguments.config", "config", expected)


def _restore(settings: Mapping[str, Any], cases: Sequence[Case]) -> Iterator[Finding]:
    """Judge what rollback.yml is to go back to: a generation, or one for each instance that is named."""
    wish = settings.get("service_restore", "")
    names = [str(case.instance["name"]) for case in cases]
    for place, generation in (
        [(f"service_restore.{name}", value) for name, value in wish.items()]
        if isinstance(wish, Mapping)
        else [("service_restore", wish)]
    ):
        if not isinstance(generation, str) or not GENERATION.fullmatch(generation):
            yield _wrong("variable-value", place, repr(generation), "a generation's id (12 hex digits), or nothing")
    for name in wish if isinstance(wish, Mapping) else ():
        if name not in names:
            expected = f"the name of an instance ({', '.join(names) or 'there is none'}){nearest(str(name), names)}"
            yield _wrong("variable-value", f"service_restore.{name}", repr(name), expected)


def _wrong(finding_id: str, place: str, seen: str, expected: str) -> Finding:
    return Finding(
        finding_id, "critical", f"{place} cannot be used", seen=seen, expected=expected, fix=f"Change {place}."
    )
