# SPDX-License-Identifier: Apache-2.0
"""What is wrong with an inventory, found before any host is asked anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from . import engine_args, nccl
from .findings import Finding
from .program import nearest

STAGES = ("topology", "host", "engine", "patches", "model", "service", "smoke", "verify")
"""The roles; every variable of a role begins with its name."""

RENAMED: Mapping[str, str] = {}
"""Variables that had another name in an earlier release: old to new."""

INSTANCE_KEYS = (
    *("name", "model", "port", "host", "gpus", "tensor_parallel_size", "arguments", "environment"),
    *("nccl_profile", "nccl_environment", "smoke"),
)
"""What an entry of ``service_instances`` may have."""

REFUSED_RELEASES: Mapping[tuple[str, str], str] = {
    (
        "sglang",
        "0.5.7",
    ): "it enables all-reduce fusion by itself on SM120 and crashes (sglang#15650); use 0.5.8 or newer",
}
"""Engine releases that are never installed, and why."""


def check(variables: Mapping[str, Any], options: Iterable[str]) -> list[Finding]:
    """Return what is wrong with one host's variables.

    ``options`` are all variables that the roles document. Only variables that begin with a role's name are looked at:
    anything else belongs to the operator.
    """
    known = set(options)
    findings = [_unknown(name, known) for name in sorted(variables) if _ours(name) and name not in known]
    engine = str(variables.get("engine_name") or "sglang")
    version = str(variables.get("engine_version") or "")
    if engine not in engine_args.TITLES:
        findings.append(_wrong("engine-unknown", "engine_name", engine, f"one of {', '.join(engine_args.TITLES)}"))
    if (engine, version) in REFUSED_RELEASES:
        why = REFUSED_RELEASES[(engine, version)]
        findings.append(_wrong("release-refused", "engine_version", version, f"another release: {why}"))
    return findings + _check_instances(variables)


def _ours(name: str) -> bool:
    return name.split("_", 1)[0] in STAGES and "_" in name


def _unknown(name: str, known: set[str]) -> Finding:
    if name in RENAMED:
        return Finding(
            "variable-renamed", "critical", "A variable has another name now",
            seen=name, expected=RENAMED[name], fix=f"Rename it to {RENAMED[name]}.",
        )  # fmt: skip
    return Finding(
        "variable-unknown", "critical", "A variable that no role knows",
        seen=name, expected=f"a variable of the role {name.split('_', 1)[0]}{nearest(name, known)}",
        fix=f"Correct it, or remove it: ansible-doc -t role {name.split('_', 1)[0]} lists them.",
    )  # fmt: skip


def _wrong(finding_id: str, where: str, seen: object, expected: str) -> Finding:
    return Finding(
        finding_id, "critical", f"{where} cannot be used", seen=str(seen), expected=expected, fix=f"Change {where}."
    )


def _check_instances(variables: Mapping[str, Any]) -> list[Finding]:
    instances = variables.get("service_instances") or []
    models = {model.get("name") for model in variables.get("model_catalog") or []}
    findings: list[Finding] = []
    taken: dict[tuple[str, Any], str] = {}
    for position, instance in enumerate(instances):
        where = f"service_instances[{position}]"
        for key in instance:
            if key not in INSTANCE_KEYS:
                findings.append(_wrong("instance-key", where, key, "a known key" + nearest(key, INSTANCE_KEYS)))
        if instance.get("model") not in models:
            expected = f"the name of a model in model_catalog ({', '.join(sorted(map(str, models))) or 'it is empty'})"
            findings.append(_wrong("instance-model", f"{where}.model", instance.get("model"), expected))
        findings += _check_overlap(instance, where, taken)
        findings += _check_parallel(instance, where)
        findings += _check_nccl(instance, where, variables)
        findings += engine_args.check(instance, where)
    return findings


def _check_overlap(instance: Mapping[str, Any], where: str, taken: dict[tuple[str, Any], str]) -> list[Finding]:
    """Names, ports and GPUs belong to one instance each."""
    claims = [("name", instance.get("name")), ("port", instance.get("port"))]
    claims += [("GPU", gpu) for gpu in instance.get("gpus") or []]
    findings = []
    for claim in claims:
        kind, value = claim
        if claim in taken:
            expected = f"a {kind} of its own; {taken[claim]} has this one"
            findings.append(_wrong("instance-overlap", where, f"{kind} {value}", expected))
        taken[claim] = where
    return findings


def _check_parallel(instance: Mapping[str, Any], where: str) -> list[Finding]:
    size, gpus = int(instance.get("tensor_parallel_size") or 1), instance.get("gpus")
    if gpus is not None and len(gpus) != size:
        seen = f"tensor_parallel_size {size} with {len(gpus)} GPUs"
        return [_wrong("instance-gpus", where, seen, "as many GPUs as tensor_parallel_size")]
    return []


def _check_nccl(instance: Mapping[str, Any], where: str, variables: Mapping[str, Any]) -> list[Finding]:
    profile = instance.get("nccl_profile") or variables.get("service_nccl_profile") or nccl.DEFAULT_PROFILE
    try:
        nccl.environment(profile, instance.get("nccl_environment") or {})
    except nccl.NcclError as error:
        return [_wrong("instance-nccl", f"{where}.nccl_profile", profile, str(error))]
    return []
