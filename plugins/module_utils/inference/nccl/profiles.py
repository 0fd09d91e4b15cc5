# SPDX-License-Identifier: Apache-2.0
"""NCCL profiles as data, and the environment that follows from a profile and an operator's overrides.

A profile is a set of NCCL environment variables with what it costs and on whose measurement that is known. Which
variables and values are legal in which NCCL release is in ``variables``; ``lint`` judges a rendered set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..program import nearest
from .values import c_integer

DEFAULT_PROFILE = "latency"
MEASURED_PROFILE = "measured"
"""The profile whose settings are read from a measurement of this host instead of being built in."""

NO_SETTINGS = "none"
"""The profile that leaves everything to NCCL."""

CUSTOM_ALL_REDUCE_OFF = "--disable-custom-all-reduce"

NAME_PATTERN = re.compile(r"NCCL_[A-Z0-9_]+")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


class NcclError(ValueError):
    """Settings that can't become an environment. The message says what was seen, expected, and how to mend it."""


@dataclass(frozen=True)
class Evidence:
    """A measurement: ``what`` came out, on which host (``where``), and who measured it (``by``)."""

    what: str
    where: str
    by: str


@dataclass(frozen=True)
class Profile:
    """A named set of NCCL settings, with what it costs and what that is known from."""

    name: str
    purpose: str
    settings: Mapping[str, str]
    cost: str
    evidence: tuple[Evidence, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; ``environment`` maps names to strings, ``evidence`` is a list of what, where, by."""
        return {
            "name": self.name,
            "default": self.name == DEFAULT_PROFILE,
            "purpose": self.purpose,
            "environment": dict(self.settings),
            "arguments": required_arguments(self.settings),
            "cost": self.cost,
            "evidence": [{"what": e.what, "where": e.where, "by": e.by} for e in self.evidence],
        }


_TWO_H200_SHM = (
    "two H200, P2P disabled (shared-memory transport), NCCL 2.28.9; not the hardware that the profiles are meant for"
)
_THIS_PROJECT = "this project, one run each, medians"
_WIKI = "local-inference-lab/rtx6kpro, community notes, as of 2026-08; not repeated by this project"

_LATENCY = {
    "NCCL_PROTO": "LL",
    "NCCL_ALGO": "Ring",
    "NCCL_P2P_LEVEL": "SYS",
    "NCCL_MAX_NCHANNELS": "16",
    "NCCL_BUFFSIZE": "16777216",
    "NCCL_NTHREADS": "512",
}

_BALANCED = {name: value for name, value in _LATENCY.items() if name != "NCCL_PROTO"}

_BUILT_IN = (
    Profile(
        name="latency",
        purpose="single-stream decode on PCIe hosts: six settings that a field report from such a host ran with",
        settings=_LATENCY,
        cost=(
            "NCCL_PROTO=LL for every size costs bandwidth: all-reduces of prefill size take two to three times as "
            "long, and the time to the first token of a long prompt more than doubles. Decode gained nothing beyond "
            "noise where it was measured. Peer access across sockets (NCCL_P2P_LEVEL=SYS) needs an IOMMU and ACS that "
            "let it through."
        ),
        evidence=(
            Evidence(
                "vLLM ran with it at 82.5 tok/s single-stream decode; it was not compared with NCCL's own choice there",
                "8x RTX PRO 6000 Blackwell, PCIe, two NUMA nodes, Kimi-K2.5",
                "field report",
            ),
            Evidence(
                "all-reduce in us, NCCL's own choice / this profile: 11 KB 18.4 / 17.7; 64 KB 21.2 / 20.1; "
                "1.4 MB 85 / 170; 11.5 MB 420 / 1280; 64 MB 2350 / 7967",
                _TWO_H200_SHM,
                _THIS_PROJECT,
            ),
            Evidence(
                "SGLang 0.5.16 TP2, NCCL's own choice / this profile: decode 178 / 180 tok/s at 1 stream and "
                "2146 / 2161 at 16; first token of a 6,000-token prompt 0.315 / 0.754 s",
                _TWO_H200_SHM + "; dense model of 40 layers, hidden 5120, random weights",
                _THIS_PROJECT,
            ),
        ),
    ),
    Profile(
        name="balanced",
        purpose="decode and prefill: the latency profile without NCCL_PROTO, so that NCCL chooses the protocol by size",
        settings=_BALANCED,
        cost=(
            "Nothing beyond noise (about 10%) where it was measured. NCCL_ALGO=Ring rules out trees; buffers of 16 MiB "
            "a channel and connection take memory. Has to be measured on eight PCIe cards across two sockets."
        ),
        evidence=(
            Evidence(
                "all-reduce in us, NCCL's own choice / this profile: 1 KB 15.4 / 15.5; 8 KB 16.3 / 16.4; "
                "11 KB 18.5 / 19.1; 64 KB 21.0 / 21.0; 1.4 MB 86 / 83; 11.5 MB 420 / 415; 64 MB 2362 / 2398",
                _TWO_H200_SHM,
                _THIS_PROJECT,
            ),
            Evidence(
                "set alone, NCCL_PROTO=LL loses (1.4 MB 172, 11.5 MB 1304, 64 MB 7978 us); NCCL_ALGO, NCCL_BUFFSIZE "
                "and NCCL_MAX_NCHANNELS are each within noise of NCCL's own choice",
                _TWO_H200_SHM,
                _THIS_PROJECT,
            ),
        ),
    ),
    Profile(
        name="throughput",
        purpose="many concurrent streams on two sockets: host memory instead of peer access, more channels and buffers",
        settings={
            "NCCL_P2P_DISABLE": "1",
            "NCCL_MIN_CTAS": "16",
            "NCCL_MAX_CTAS": "32",
            "NCCL_BUFFSIZE": "33554432",
        },
        cost=(
            "Latency: a single stream loses about a fifth. Memory: every channel of every connection holds buffers of "
            "32 MiB. Each channel occupies one multiprocessor while it communicates. The engine's own all-reduce has "
            "to be off, since it relies on peer access."
        ),
        evidence=(
            Evidence(
                "peer access off, 16 or 32 to 32 or 64 channels, buffers of 32 or 64 MiB: from about 90 to 70 tok/s at "
                "1 stream, from about 5,000 to 10,000 tok/s at 100",
                "8x RTX PRO 6000 Blackwell, two sockets, MiniMax model",
                _WIKI,
            ),
        ),
    ),
    Profile(
        name=NO_SETTINGS,
        purpose="NCCL's own choice: no NCCL variable is set",
        settings={},
        cost=(
            "NCCL doesn't use peer access across the host bridge with more than two GPUs (its level is PXB): it goes "
            "through shared memory there. Everything else NCCL decides by its model of the host."
        ),
        evidence=(
            Evidence(
                "8-GPU all-reduce 48.2 us at 32 KB with NCCL's own ring order, 26.2 us with a hand-made ring order",
                "8x RTX PRO 6000 Blackwell, two AMD Turin sockets",
                _WIKI,
            ),
        ),
    ),
)

PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in _BUILT_IN}
"""The built-in profiles by name."""


@dataclass(frozen=True)
class Measured:
    """What a measurement of this host chose: ``environment``, the NCCL release it holds for, and how it was found."""

    environment: Mapping[str, str]
    nccl_version: str
    evidence: tuple[Evidence, ...]

    @classmethod
    def from_dict(cls, document: object) -> Measured:
        """Read ``environment`` (NAME: VALUE), ``nccl_version``, ``evidence`` (list of what, where, by).

        The first two are required: settings that were measured with one NCCL release say nothing about another.
        Raises NcclError.
        """
        if not isinstance(document, Mapping):
            raise NcclError(f"measured settings: seen {type(document).__name__}, expected an object with environment")
        missing = [key for key in ("environment", "nccl_version") if key not in document]
        if missing:
            raise NcclError(f"measured settings: no {' and no '.join(missing)}; measure again to write a complete file")
        environment = _checked(document["environment"], "measured settings: environment")
        try:
            evidence = tuple(Evidence(**entry) for entry in document.get("evidence", ()))
        except TypeError as error:
            raise NcclError("measured settings: each entry of evidence has what, where and by") from error
        dropped = [name for name, value in environment.items() if value is None]
        if dropped:
            raise NcclError(f"measured settings: {', '.join(dropped)} is null; leave it out")
        settings = {name: value for name, value in environment.items() if value is not None}
        return cls(settings, str(document["nccl_version"]), evidence)

    def profile(self) -> Profile:
        """Return it as a profile."""
        return Profile(
            name=MEASURED_PROFILE,
            purpose=f"what a measurement of this host chose, with NCCL {self.nccl_version}",
            settings=self.environment,
            cost="Known from the measurement itself. It holds for this host and this NCCL release only.",
            evidence=self.evidence,
        )


def profile(name: str, measured: Mapping[str, Any] | None = None) -> Profile:
    """Return the profile ``name``. ``measured`` is the document that the name ``measured`` reads. Raises NcclError."""
    if name == MEASURED_PROFILE:
        if measured is None:
            raise NcclError("profile 'measured': nothing was measured on this host; measure, or use another profile")
        return Measured.from_dict(measured).profile()
    if name not in PROFILES:
        known = (*PROFILES, MEASURED_PROFILE)
        raise NcclError(f"no NCCL profile {name!r}{nearest(name, known)}; there are {', '.join(known)}")
    return PROFILES[name]


def environment(
    name: str = DEFAULT_PROFILE,
    overrides: Mapping[str, Any] | None = None,
    *,
    measured: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Return the environment of the profile ``name`` with ``overrides`` on top, in the profile's order.

    ``overrides`` maps NCCL variables to strings or integers; None takes a setting of the profile away. Raises NcclError
    on an unknown profile, a name that isn't an NCCL variable's, or a value that is empty, a boolean or holds control
    characters. What the values mean to a given NCCL release is the lint's question.
    """
    result: dict[str, str | None] = dict(profile(name, measured).settings)
    result.update(_checked(overrides or {}, "NCCL settings"))
    return {key: value for key, value in result.items() if value is not None}


def required_arguments(environment: Mapping[str, str]) -> list[str]:
    """Return the engine options (SGLang's and vLLM's names agree) without which ``environment`` is incomplete.

    NCCL's settings don't reach the engine's own all-reduce, which goes on using peer access when NCCL must not.
    """
    return [CUSTOM_ALL_REDUCE_OFF] if p2p_is_off(environment) else []


def p2p_is_off(environment: Mapping[str, str]) -> bool:
    """Return whether the settings turn peer access between GPUs off. NCCL takes no other number than 1 for that."""
    disabled = c_integer(environment.get("NCCL_P2P_DISABLE", ""))[0] == 1
    return disabled or environment.get("NCCL_P2P_LEVEL") in ("LOC", "0")


def _checked(settings: object, where: str) -> dict[str, str | None]:
    if not isinstance(settings, Mapping):
        raise NcclError(f"{where}: seen {type(settings).__name__}, expected a mapping of NCCL variables to values")
    return {_name(key, where): _value(key, value, where) for key, value in settings.items()}


def _name(key: object, where: str) -> str:
    if isinstance(key, str) and NAME_PATTERN.fullmatch(key):
        return key
    if isinstance(key, str) and NAME_PATTERN.fullmatch(key.strip().upper()):
        raise NcclError(f"{where}: {key!r} is written {key.strip().upper()}; NCCL doesn't see it otherwise")
    raise NcclError(f"{where}: {key!r} is no NCCL variable; expected a name such as NCCL_BUFFSIZE")


def _value(key: str, value: object, where: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        raise NcclError(
            f"{where}: {key} is the boolean {value}; NCCL reads numbers and words, so write '1', '0' or a word"
        )
    if not isinstance(value, str | int):
        raise NcclError(f"{where}: {key} is {value!r}; expected a string or an integer")
    text = str(value)
    if not text.strip():
        raise NcclError(f"{where}: {key} is empty; give it a value, or null to leave it out")
    if text != text.strip() or _UNPRINTABLE.search(text):
        raise NcclError(
            f"{where}: {key} is {text!r}; NCCL would see the white space or control characters: remove them"
        )
    return text
