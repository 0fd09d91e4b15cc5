# SPDX-License-Identifier: Apache-2.0
"""The document of a host's measured profile: settings, the receipt that says where they come from, and its expiry.

The document is what the profile ``measured`` reads (environment, nccl_version, evidence); ``banned`` and ``receipt``
are added. It holds for one host, one driver and one NCCL release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..findings import Finding, Report
from ..nccl.lint import lint_environment
from ..nccl.profiles import Measured, NcclError
from ..nccl.variables import VersionError, same_release
from ..topology.facts import Facts
from ..topology.fingerprint import changes, parts_of
from ..topology.fingerprint import fingerprint as fingerprint_of
from .candidates import base_of
from .decision import Decision, Result

SCHEMA = 1


@dataclass(frozen=True)
class Host:
    """What a measurement depends on. ``parts`` are the fingerprint's; None is what is not known."""

    fingerprint: str | None = None
    driver: str | None = None
    nccl_version: str | None = None
    parts: Mapping[str, Any] | None = None


def host_of(facts: Facts, nccl_version: str | None) -> Host:
    """Return what a measurement on this host depends on. Without a GPU that can be seen there is no fingerprint."""
    if not facts.gpus:
        return Host(nccl_version=nccl_version, driver=facts.driver_version)
    parts = parts_of(facts)
    return Host(fingerprint_of(parts), facts.driver_version, nccl_version, parts)


def profile_of(
    decision: Decision,
    results: Iterable[Result],
    host: Host,
    base: Mapping[str, str],
    about: Mapping[str, Any],
    *,
    report: Report,
) -> dict[str, Any] | None:
    """Return the document, or None where it could not say when it expires; the report then says why."""
    if decision.chosen is None:
        return None
    if host.nccl_version is None:
        report.skip("tune-profile", "no NCCL version is known: a profile holds for one release of it")
        return None
    if host.fingerprint is None:
        report.extend([_no_fingerprint()])
        return None
    return document(decision, results, host, base, about)


def _no_fingerprint() -> Finding:
    return Finding(
        id="tune-no-fingerprint",
        level="warning",
        what="the host's fingerprint isn't known, so a profile could not tell when it has expired",
        seen="no GPU found by nvidia-smi",
        expected="a host whose GPUs nvidia-smi lists",
        fix="Run on the host itself, with nvidia-smi on PATH. No profile was written.",
    )


def document(
    decision: Decision, results: Iterable[Result], host: Host, base: Mapping[str, str], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the document. ``base`` are the settings that held for every candidate: the choice holds only with them.

    ``about`` goes into the receipt as it is: date, machine, model, command, versions. ValueError without a choice or
    without NCCL's version.
    """
    if decision.chosen is None or not host.nccl_version:
        raise ValueError(f"no profile to write: {decision.reason if decision.chosen is None else 'no NCCL version'}")
    measured = list(results)
    return {
        "schema": SCHEMA,
        "environment": {**base, **decision.environment},
        "nccl_version": host.nccl_version,
        "evidence": [_evidence(result, host, about) for result in measured if result.rows],
        "banned": [
            {"name": s.name, "environment": {**base, **s.environment}, "why": s.reason} for s in decision.at("banned")
        ],
        "receipt": {
            **about,
            "fingerprint": host.fingerprint,
            "fingerprint_parts": host.parts,
            "driver": host.driver,
            "nccl_version": host.nccl_version,
            "base": dict(base),
            "decision": decision.as_dict(),
            "results": [_figures(result) for result in measured],
        },
    }


def _evidence(result: Result, host: Host, about: Mapping[str, Any]) -> dict[str, str]:
    figures = "; ".join(f"{row.tokens} tokens ({row.bytes} B) {row.median_us:.1f}" for row in result.rows)
    return {
        "what": f"all-reduce in us, {result.name}: {figures}",
        "where": f"{about.get('machine', 'this host')}, NCCL {host.nccl_version}, driver {host.driver}",
        "by": f"scripts/tune on this host, {about.get('date', 'no date')}, medians",
    }


def _figures(result: Result) -> dict[str, Any]:
    """Return a result without its single replays, which a receipt doesn't need."""
    shown = result.as_dict()
    for row in shown["rows"]:
        del row["groups"]
    return shown


def validate(
    document: object,
    fingerprint: str | None,
    driver: str | None,
    nccl_version: str | None,
    *,
    environment: Mapping[str, str] | None = None,
) -> Report:
    """Judge a measured document before a host runs by it: what follows from it here, today.

    ``environment`` are the settings that are to run, those of the document unless given (an override on top, or another
    profile on a host where something was found to hang). Critical: it can't be read (``tune-unusable``), or these
    settings hung or computed wrong sums on this very host (``tune-banned``). Warnings: what has changed since
    (``tune-expired-...``), and the lint's for this NCCL. What isn't known is under "not checked".
    """
    report = Report()
    try:
        measured = Measured.from_dict(document)
    except NcclError as error:
        report.extend([_unusable(str(error))])
        return report
    profile = document if isinstance(document, Mapping) else {}
    settings = dict(measured.environment if environment is None else environment)
    if environment is None or settings == dict(measured.environment):
        since = expired(profile, Host(fingerprint, driver, nccl_version))
        report.extend(since.findings)
        report.not_checked += since.not_checked
    why = ban(profile, settings, fingerprint)
    if why:
        report.extend([_banned(why, settings)])
    elif not fingerprint:
        report.skip("tune-banned", "the host's fingerprint is not known")
    _lint(report, settings, nccl_version)
    return report


def _lint(report: Report, settings: Mapping[str, str], nccl_version: str | None) -> None:
    try:
        report.extend(lint_environment(settings, nccl_version or "").findings)
    except VersionError:
        report.skip("nccl-unknown-name", "the NCCL release is not known")


def _unusable(why: str) -> Finding:
    return Finding(
        id="tune-unusable",
        level="critical",
        what="the measured profile can't be used",
        seen=why,
        expected="a document that tune wrote: environment, nccl_version, evidence, banned, receipt",
        fix="Measure again (tune run --measured FILE), or run with another profile.",
    )


def _banned(why: str, settings: Mapping[str, str]) -> Finding:
    return Finding(
        id="tune-banned",
        level="critical",
        what="these settings failed on this very host when they were measured",
        seen=f"{why} ({', '.join(f'{n}={v}' for n, v in base_of(settings).items()) or 'no setting'})",
        expected="settings that ended and gave right sums here",
        fix="Use the measured profile or another one; measure again after a change of firmware, driver or wiring.",
    )


def expired(profile: Mapping[str, Any], now: Host) -> Report:
    """Return what has changed since the profile was measured; what isn't known now goes under "not checked"."""
    report = Report()
    receipt = profile.get("receipt")
    if not isinstance(receipt, Mapping):
        report.extend([_finding("receipt", "the profile has no receipt", "none", "one written by tune")])
        return report
    for part, same in (("fingerprint", _equal), ("driver", _equal), ("nccl_version", same_release)):
        before, current = receipt.get(part), getattr(now, part)
        name = part.removesuffix("_version")
        if not before or not current:
            report.skip(f"tune-expired-{name}", f"not known {'now' if before else 'when it was measured'}")
        elif not same(str(before), str(current)):
            seen = _changes(receipt, now) if part == "fingerprint" else str(current)
            report.extend([_finding(name, f"another {name} than when it was measured", seen, str(before))])
    return report


def _equal(one: str, other: str) -> bool:
    return one == other


def _changes(receipt: Mapping[str, Any], now: Host) -> str:
    before = receipt.get("fingerprint_parts")
    if isinstance(before, Mapping) and now.parts is not None:
        return "; ".join(changes(before, now.parts)) or str(now.fingerprint)
    return str(now.fingerprint)


def _finding(part: str, what: str, seen: str, expected: str) -> Finding:
    return Finding(
        id=f"tune-expired-{part}",
        level="warning",
        what=f"{what}; the measured settings say nothing about this host as it is",
        seen=seen,
        expected=expected,
        fix="Measure again (tune run), or run with another profile.",
    )


def ban(profile: Mapping[str, Any], environment: Mapping[str, str], fingerprint: str | None) -> str | None:
    """Return why settings are banned on the host with this fingerprint, or None.

    A ban holds for exactly the NCCL settings that failed; what NCCL logs is no part of them.
    """
    receipt = profile.get("receipt")
    if not isinstance(receipt, Mapping) or not fingerprint or receipt.get("fingerprint") != fingerprint:
        return None
    settings = base_of(environment)
    entries = [entry for entry in profile.get("banned") or () if isinstance(entry, Mapping)]
    return next((f"{e.get('name')}: {e.get('why')}" for e in entries if e.get("environment") == settings), None)
