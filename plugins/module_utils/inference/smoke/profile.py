# SPDX-License-Identifier: Apache-2.0
"""The profile of a smoke test: what is meant to run, how it is measured, and what it has to reach.

A profile is one object (JSON on a host, YAML on the controller). Everything has a default; an unknown name is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any

from ..program import nearest
from ..topology.fingerprint import fingerprint
from .text import Golden

STAGES = ("reachable", "health", "identity", "correctness", "single", "concurrent", "prefill", "soak", "after")
"""In the order in which they run."""

ENGINES = ("auto", "sglang", "vllm")

LOWER_IS_BETTER = re.compile(r"_s$(?<!tok_s)")
"""Metrics in seconds; those in tok/s are better when higher."""

METRIC = re.compile(r"(single\.(decode_tok_s|ttft_s)|concurrent\.(tok_s|ttft_s|ttft_p99_s)|prefill\.\d+\.ttft_s)$")
"""Every metric that a gate can hold: see docs/smoke.md."""


class ProfileError(ValueError):
    """A profile that cannot be used. The message names the place, what was seen and what is expected."""


Check = Callable[[Any], Any]
"""Returns the value as used, or raises ValueError that says what is expected."""


def _number(low: float = 0.0) -> Check:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < float("inf"):
            raise ValueError(f"a number of at least {low:g}")
        return float(value)

    return check


def _integer(low: int = 0) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise ValueError(f"a whole number of at least {low}")
        return value

    return check


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    return value


def _choice(*allowed: str) -> Check:
    def check(value: Any) -> str:
        if value not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return str(value)

    return check


def _many(item: Check) -> Check:
    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, (list, tuple)):
            raise ValueError("a list")
        return tuple(item(entry) for entry in value)

    return check


def _maybe(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("a mapping")
    return {str(k): v for k, v in value.items()}


def _stage_seconds(value: Any) -> dict[str, float]:
    given = _mapping(value)
    for name in given:
        if name not in STAGES:
            raise ValueError(f"stages among {', '.join(STAGES)}, not {name!r}{nearest(name, STAGES)}")
    return {**STAGE_SECONDS, **{name: _number(0.1)(seconds) for name, seconds in given.items()}}


def _golden(value: Any) -> Golden:
    try:
        entry = Golden(**_mapping(value))
        re.compile(entry.expect)
    except (TypeError, re.error) as error:
        raise ValueError(f"prompt, expect (a regular expression), api, max_tokens ({error})") from error
    _choice("chat", "completion")(entry.api)
    _text(entry.prompt)
    _integer(1)(entry.max_tokens)
    return entry


@dataclass(frozen=True)
class Mark:
    """A figure to reach, and whose it is."""

    value: float
    source: str = ""


def _marks(value: Any) -> dict[str, Mark]:
    """Read metrics with a number, or with ``value`` and ``source``."""
    marks = {}
    for name, given in _mapping(value).items():
        if not METRIC.match(name):
            raise ValueError(
                f"metrics single.decode_tok_s, single.ttft_s, concurrent.tok_s, concurrent.ttft_s, "
                f"concurrent.ttft_p99_s, prefill.<tokens>.ttft_s; not {name!r}"
            )
        entry = given if isinstance(given, Mapping) else {"value": given}
        if set(entry) - {"value", "source"} or "value" not in entry:
            raise ValueError(f"for {name} a number, or value and source")
        marks[name] = Mark(_number()(entry["value"]), _text(entry.get("source", "")))
    return marks


def _about(check: Check, about: str) -> dict[str, Any]:
    return {"check": check, "about": about}


def _is(default: Any, check: Check, about: str) -> Any:
    """Declare a setting: its default, its check and what it is."""
    return field(default=default, metadata=_about(check, about))


STAGE_SECONDS = {
    "reachable": 10.0, "health": 40.0, "identity": 40.0, "correctness": 300.0,
    "single": 300.0, "concurrent": 900.0, "prefill": 900.0, "soak": 600.0, "after": 30.0,
}  # fmt: skip


@dataclass(frozen=True)
class Timeouts:
    """Seconds. ``stages`` holds one for each stage: what takes longer counts as hung."""

    connect: float = _is(5.0, _number(0.01), "to open a connection")
    control: float = _is(10.0, _number(0.01), "for a control call")
    health: float = _is(25.0, _number(0.01), "for a health call (SGLang takes 20 s to say that it hangs)")
    first_token: float = _is(60.0, _number(0.01), "to the first token of a completion")
    stall: float = _is(30.0, _number(0.01), "between two pieces of a stream")
    request: float = _is(300.0, _number(0.01), "for a whole completion")
    stages: dict[str, float] = field(
        default_factory=lambda: dict(STAGE_SECONDS),
        metadata=_about(_stage_seconds, "for each stage"),
    )


@dataclass(frozen=True)
class Correctness:
    """What is asked before anything is measured."""

    golden: tuple[Golden, ...] | None = _is(
        None, _maybe(_many(_golden)), "prompts with known continuations; null: by the model's name; []: none"
    )
    tokens: int = _is(64, _integer(1), "length of the free answer that is looked at for degeneration")
    repeats: int = _is(3, _integer(1), "greedy repetitions of one prompt")
    agree_characters: int = _is(24, _integer(1), "leading characters in which they have to agree")
    leak_streams: int = _is(64, _integer(0), "simultaneous requests with markers; 0: none")
    slow_first_token: float = _is(2.0, _number(0.01), "seconds to the first token of a short prompt that is too slow")


@dataclass(frozen=True)
class Load:
    """Shapes of the measured load."""

    prompt_tokens: int = _is(128, _integer(8), "length of a prompt, about")
    output_tokens: int = _is(64, _integer(2), "length of an answer")
    warmups: int = _is(1, _integer(0), "unmeasured runs before each shape")
    repeats: int = _is(3, _integer(1), "measured runs of each shape")
    concurrency: int = _is(16, _integer(1), "simultaneous requests of the gated figure")
    rounds: int = _is(1, _integer(1), "requests a stream makes in one run")
    sweep: tuple[int, ...] = _is((1, 2, 4, 8, 16, 32, 64), _many(_integer(1)), "concurrencies measured by --full")
    rates: tuple[float, ...] = _is((), _many(_number(0.001)), "requests a second of the open loop, by --full")
    rate_requests: int = _is(100, _integer(1), "requests at each rate")


@dataclass(frozen=True)
class Prefill:
    """Time to first token of long prompts."""

    lengths: tuple[int, ...] = _is((512, 2048), _many(_integer(16)), "prompt lengths in tokens, capped by the context")
    warmups: int = _is(1, _integer(0), "unmeasured runs before each length")
    repeats: int = _is(3, _integer(1), "measured runs of each length")


@dataclass(frozen=True)
class Soak:
    """What ``--soak`` keeps up, and what the host may not do meanwhile."""

    streams: int = _is(64, _integer(1), "simultaneous requests")
    output_tokens: int = _is(256, _integer(2), "length of an answer at most")
    max_temperature: float = _is(90.0, _number(1), "degrees Celsius of the hottest GPU")
    max_growth_percent: float = _is(3.0, _number(0.1), "growth of used memory, per cent of all, first to last third")


@dataclass(frozen=True)
class Regression:
    """A figure fails when it is worse than the baseline's median by more than max(percent, mads x MAD)."""

    min_runs: int = _is(5, _integer(1), "earlier runs below which a regression only warns")

    percent: float = _is(25.0, _number(0.1), "per cent of the baseline's median, for tok/s")
    seconds_percent: float = _is(50.0, _number(0.1), "per cent of it for times, which scatter more")
    seconds_slack: float = _is(0.02, _number(0.0), "seconds by which a time may always be worse")
    mads: float = _is(5.0, _number(0.0), "median absolute deviations of the baseline")
    max_engine_wait: float = _is(
        0.3,
        _number(0.0),
        "share of their time that the engine's threads may wait for a processor; beyond it only warns",
    )
    again: bool = _is(True, _flag, "measure a stage once more when a figure fails; the better value counts")


@dataclass(frozen=True)
class Gate:
    """What has to be reached (``floors``: a lower bound for tok/s, an upper one for seconds) and what is shown."""

    floors: dict[str, Mark] = field(default_factory=dict, metadata=_about(_marks, "fails beyond it"))
    targets: dict[str, Mark] = field(default_factory=dict, metadata=_about(_marks, "the report shows the distance"))
    references: dict[str, Mark] = field(default_factory=dict, metadata=_about(_marks, "figures from elsewhere"))
    regression: Regression = field(default_factory=Regression)


@dataclass(frozen=True)
class ClientLimits:
    """When a run says more about the client than about the server."""

    max_lag_ms: float = _is(20.0, _number(0.1), "event-loop lag (p99) that is always allowed")
    max_lag_share_ttft: float = _is(0.25, _number(0.0), "share of the median TTFT that is allowed too, for the TTFT")
    max_lag_share_e2e: float = _is(0.05, _number(0.0), "share of the median E2E that is allowed too, for all figures")
    max_cpu_share: float = _is(0.85, _number(0.01), "share of one core")


@dataclass(frozen=True)
class Profile:
    """All of it. ``model``, ``release`` and ``backends`` are what is meant: null or absent is not compared."""

    name: str = _is("default", _text, "shown in the report")
    model: str | None = _is(None, _maybe(_text), "served model; null: the first one that the server names")
    engine: str = _is("auto", _choice(*ENGINES), "which engine it is")
    release: str | None = _is(None, _maybe(_text), "the engine's version")
    backends: dict[str, Any] = field(
        default_factory=dict, metadata=_about(_mapping, "settings by the engine's own names")
    )
    gpus: int | None = _is(None, _maybe(_integer(0)), "GPUs that the host has to show afterwards")
    unit: str | None = _is(None, _maybe(_text), "systemd unit whose journal is read afterwards")
    host: str | None = _is(None, _maybe(_text), "name of the host in the history; null: from the URL")
    fingerprint: str = _is("", _text, "the topology's fingerprint: another one starts another history")
    timeouts: Timeouts = field(default_factory=Timeouts)
    correctness: Correctness = field(default_factory=Correctness)
    load: Load = field(default_factory=Load)
    prefill: Prefill = field(default_factory=Prefill)
    soak: Soak = field(default_factory=Soak)
    gate: Gate = field(default_factory=Gate)
    client: ClientLimits = field(default_factory=ClientLimits)


def load_profile(document: Any) -> Profile:
    """Return the profile in a parsed document, or raise :class:`ProfileError`."""
    profile: Profile = _read(Profile, document, "")
    return profile


def with_topology(document: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return a profile's document with the GPUs and the fingerprint of a host's topology record, where it has none.

    ``parts`` is what the record holds (:func:`inference.topology.fingerprint.parts_of`).
    """
    known: dict[str, Any] = {"fingerprint": fingerprint(parts)}
    if isinstance(parts.get("gpus"), Mapping):
        known["gpus"] = len(parts["gpus"])
    return {**known, **{name: value for name, value in document.items() if value is not None}}


def _read(section: Any, document: Any, where: str) -> Any:
    if not isinstance(document, Mapping):
        raise ProfileError(f"{where or 'profile'}: {document!r} is not a mapping")
    known: dict[str, Field[Any]] = {f.name: f for f in fields(section)}
    values = {}
    for name, value in document.items():
        if name not in known:
            raise ProfileError(f"{where}{name}: no such setting{nearest(name, known)}")
        values[name] = _value(known[name], value, f"{where}{name}")
    return section(**values)


def _value(setting: Field[Any], value: Any, where: str) -> Any:
    if "check" not in setting.metadata:
        return _read(setting.default_factory, value, f"{where}.")
    try:
        return setting.metadata["check"](value)
    except ValueError as error:
        raise ProfileError(f"{where}: {value!r} is not right; expected {error}") from error


def settings(section: Any = Profile, where: str = "") -> list[tuple[str, Any, str]]:
    """Return every setting as (dotted name, default, meaning), in order."""
    rows: list[tuple[str, Any, str]] = []
    for setting in fields(section):
        if "check" in setting.metadata:
            rows.append((where + setting.name, getattr(section(), setting.name), setting.metadata["about"]))
        elif is_dataclass(setting.default_factory):
            rows += settings(setting.default_factory, f"{where}{setting.name}.")
    return rows
