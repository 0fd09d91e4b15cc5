# SPDX-License-Identifier: Apache-2.0
"""What is tried against NCCL's own choice, as data: the profiles that a service can run with, and single settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import nccl
from ..findings import Finding, Report
from ..nccl.lint import lint_environment
from ..nccl.together import TopologyError
from ..nccl.variables import BUILD_NAMES, PLUGIN_PREFIXES, PYTORCH_NAMES, VARIABLES, VersionError
from ..program import nearest

BASELINE = "none"
"""The profile that sets nothing: NCCL's own choice."""

QUICK = ("none", "latency", "balanced", "throughput")

SINGLE: Mapping[str, Mapping[str, str]] = {
    "p2p-off": {"NCCL_P2P_DISABLE": "1"},
    "p2p-sys": {"NCCL_P2P_LEVEL": "SYS"},
    **{f"channels-{count}": {"NCCL_MIN_CTAS": str(count), "NCCL_MAX_CTAS": str(count)} for count in (2, 4, 8, 16, 32)},
    "p2p-sys-channels-8": {"NCCL_P2P_LEVEL": "SYS", "NCCL_MIN_CTAS": "8", "NCCL_MAX_CTAS": "8"},
}
"""Peer access on and off, and numbers of channels: what public measurements on such hosts found to matter."""


_BETWEEN = re.compile(r",(?=\s*\w+=)")
"""A comma that a name and an equals sign follow ends a setting; any other belongs to its value."""


class CandidateError(ValueError):
    """A candidate that can't be read. The message says what was seen and expected."""


@dataclass(frozen=True)
class Candidate:
    """A set of NCCL settings with a name. ``environment`` is what it sets beyond the host's own settings."""

    name: str
    environment: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"name": self.name, "environment": dict(self.environment)}


def of_profiles(names: Iterable[str] = QUICK) -> list[Candidate]:
    """Return the profiles as candidates. Raises NcclError for an unknown name."""
    return [Candidate(name, dict(nccl.profile(name).settings)) for name in names]


def quick() -> list[Candidate]:
    """Return NCCL's own choice and every built-in profile."""
    return of_profiles()


def thorough() -> list[Candidate]:
    """Return the quick ones, then the single settings."""
    return [*quick(), *(Candidate(name, settings) for name, settings in SINGLE.items())]


def parse(text: str) -> Candidate:
    """Read ``NAME:NCCL_X=1,NCCL_Y=2``; a value may hold commas (``NCCL_PROTO=LL,Simple``). Raises CandidateError."""
    name, colon, rest = text.partition(":")
    pairs = [pair.partition("=") for pair in _BETWEEN.split(rest) if pair.strip()]
    if not name.strip() or not colon or not pairs or not all(mark and value for _, mark, value in pairs):
        raise CandidateError(f"candidate {text!r}: expected NAME:NCCL_X=VALUE,NCCL_Y=VALUE")
    if not re.fullmatch(r"[\w.+-]+", name.strip()):
        raise CandidateError(f"candidate {name!r}: expected a name of letters, digits, . _ + and -; it names a folder")
    try:
        checked = nccl.environment(BASELINE, {key.strip(): value.strip() for key, _, value in pairs})
    except nccl.NcclError as error:
        raise CandidateError(f"candidate {name}: {error}") from error
    unknown = next((key for key in checked if key not in VARIABLES and not key.startswith(PLUGIN_PREFIXES)), None)
    if unknown:
        raise CandidateError(f"candidate {name}: no NCCL release reads {unknown}{nearest(unknown, VARIABLES)}")
    return Candidate(name.strip(), checked)


def unique(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return them with NCCL's own choice first and each set of settings once. Raises CandidateError on a name twice."""
    result = [Candidate(BASELINE)]
    for candidate in candidates:
        if any(candidate.environment == known.environment for known in result):
            continue
        if any(candidate.name == known.name for known in result):
            raise CandidateError(f"two different candidates are called {candidate.name!r}; give one another name")
        result.append(candidate)
    return result


def base_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the NCCL settings of the calling environment: they hold for every candidate, since this host needs them.

    Left out are those that say what NCCL logs and where, since measuring sets them itself, and names that only look
    like NCCL's: images note a release in NCCL_VERSION, PyTorch has settings of its own.
    """
    own = ("NCCL_DEBUG", "NCCL_RAS_ADDR")
    names = (name for name in environment if name.startswith("NCCL_") and not name.startswith(own))
    return {name: environment[name] for name in sorted(names) if name not in BUILD_NAMES | PYTORCH_NAMES}


def under(tried: Sequence[Candidate], base: Mapping[str, str], report: Report) -> list[Candidate]:
    """Return the candidates with the host's own settings on top, as a service runs them; ``report`` says what is lost.

    What is then the same as another one is left out.
    """
    result = []
    for candidate in tried:
        overruled = {name: value for name, value in candidate.environment.items() if base.get(name, value) != value}
        if overruled:
            words = ", ".join(f"{name}={value} (here {base[name]})" for name, value in overruled.items())
            report.skip(f"tune-{candidate.name}", f"without {words}: this host's own settings hold for every candidate")
        own = {name: value for name, value in candidate.environment.items() if name not in base}
        result.append(Candidate(candidate.name, own))
    return unique(result)


def refused(
    candidate: Candidate, base: Mapping[str, str], nccl_version: str, topology: Mapping[str, Any] | None
) -> list[Finding]:
    """Return the critical findings of the lint: such settings are not even tried."""
    report = lint_environment({**base, **candidate.environment}, nccl_version, topology=topology)
    return report.at("critical")


def legal(
    tried: list[Candidate],
    base: Mapping[str, str],
    nccl_version: str | None,
    topology: Mapping[str, Any] | None,
    report: Report,
) -> list[Candidate]:
    """Return the candidates that the lint lets through; the others are named as not measured. Raises CandidateError."""
    if nccl_version is None:
        report.skip("tune-lint", "no NCCL version is known, so no candidate was judged before it ran")
        return tried
    result = []
    for candidate in tried:
        try:
            against = refused(candidate, base, nccl_version, topology)
        except (VersionError, TopologyError) as error:
            raise CandidateError(f"candidate {candidate.name}: {error}") from error
        if against:
            report.skip(f"tune-{candidate.name}", f"refused without a run: {against[0].what} ({against[0].seen})")
        else:
            result.append(candidate)
    return result
