# SPDX-License-Identifier: Apache-2.0
"""The supervisor's settings: one JSON object, checked as a whole before anything is started."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ENGINES = ("sglang", "vllm")

COUNTERS_TIMEOUT_S = 2.0
"""Seconds that reading an engine's token counters may take, after a probe that failed."""


class SettingsError(ValueError):
    """The settings cannot be used. The message names the file and every wrong key."""


@dataclass(frozen=True)
class Completion:
    """The generation that proves readiness. ``max_tokens`` is what the engine may answer with, in tokens."""

    prompt: str
    max_tokens: int


@dataclass(frozen=True)
class Settings:
    """What one instance's supervisor has to know. Names ending in ``_s`` are seconds."""

    instance: str
    engine: str
    host: str
    port: int
    model: str
    generation: str
    api_key_file: str | None
    start_grace_s: float
    stall_s: float
    probe_interval_s: float
    probe_timeout_s: float
    failed_probes: int
    drain_s: float
    runtime_dir: str
    completion: Completion

    @property
    def freeze_bound_s(self) -> float:
        """The longest time from the freeze of an engine to its detection, in seconds."""
        one = max(self.probe_timeout_s + COUNTERS_TIMEOUT_S, self.probe_interval_s)
        return self.probe_interval_s + self.failed_probes * one


@dataclass(frozen=True)
class _Rule:
    expected: str
    holds: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_count(value: Any, least: int, most: float = float("inf")) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


_CONTROL = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff"
"""Control characters but those of a text with lines, and halves of characters, which JSON may hold."""
_LINES = re.compile(rf"[^{_CONTROL}]+")
_ONE_LINE = re.compile(rf"[^{_CONTROL}\t\n\r\u2028\u2029]+")


def _is_text(value: Any) -> bool:
    """Tell whether it can stand in a command line, a header and a status: text in any language, on one line."""
    return isinstance(value, str) and _ONE_LINE.fullmatch(value) is not None


def _is_prompt(value: Any) -> bool:
    """Tell whether it is text in any language, on any number of lines."""
    return isinstance(value, str) and _LINES.fullmatch(value) is not None


_MOST_SHOWN = 60

YEAR_S = 365 * 86400
"""The longest time that a setting may be: systemd counts in microseconds, and JSON knows no end of numbers."""

_TEXT = _Rule("a text on one line, not empty, without control characters", _is_text)
_PROMPT = _Rule("a text that is not empty, without control characters but line ends and tabs", _is_prompt)
_SECONDS = _Rule("seconds, more than 0, a year at most", lambda v: _is_number(v) and 0 < v <= YEAR_S)
_PATH = _Rule("an absolute path", lambda v: _is_text(v) and v.startswith("/"))

_RULES: Mapping[str, _Rule] = {
    "instance": _Rule("a unit instance name", lambda v: isinstance(v, str) and bool(re.fullmatch(r"[\w:.@-]+", v))),
    "engine": _Rule(f"one of {', '.join(ENGINES)}", lambda v: v in ENGINES),
    "host": _TEXT,
    "port": _Rule("a port from 1 to 65535", lambda v: _is_count(v, 1, 65535)),
    "model": _TEXT,
    "generation": _TEXT,
    "api_key_file": _Rule("a path or null", lambda v: v is None or _is_text(v)),
    "start_grace_s": _SECONDS,
    "stall_s": _SECONDS,
    "probe_interval_s": _SECONDS,
    "probe_timeout_s": _SECONDS,
    # One failed probe proves nothing: a long prefill or a full queue delays any request.
    "failed_probes": _Rule("a count of at least 2", lambda v: _is_count(v, 2)),
    "drain_s": _Rule("seconds, 0 or more, a year at most", lambda v: _is_number(v) and 0 <= v <= YEAR_S),
    "runtime_dir": _PATH,
    "completion": _Rule("an object", lambda v: isinstance(v, dict)),
}
_COMPLETION_RULES: Mapping[str, _Rule] = {
    "prompt": _PROMPT,
    "max_tokens": _Rule("a count of at least 1", lambda v: _is_count(v, 1)),
}
_OPTIONAL = ("api_key_file", "runtime_dir")


def load(path: str) -> Settings:
    """Read the settings in the JSON file ``path``, or raise SettingsError."""
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is not needed and costs memory
            given = json.load(file)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not JSON: {error}") from error
    try:
        return from_dict(given)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def from_dict(given: Any) -> Settings:
    """Return the settings in ``given``, or raise SettingsError naming every key that is wrong, missing or unknown."""
    if not isinstance(given, dict):
        raise SettingsError(f"expected an object, found {type(given).__name__}")
    problems = _problems(given, _RULES, "")
    if isinstance(given.get("completion"), dict):
        problems += _problems(given["completion"], _COMPLETION_RULES, "completion.")
    if problems:
        raise SettingsError("; ".join(problems))
    defaults = {"api_key_file": None, "runtime_dir": f"/run/inference/{given['instance']}"}
    return Settings(**{**defaults, **given, "completion": Completion(**given["completion"])})


def _problems(given: Mapping[str, Any], rules: Mapping[str, _Rule], prefix: str) -> list[str]:
    unknown = [f"unknown key {prefix}{_shown(key)[1:-1]}{_nearest(key, rules)}" for key in given if key not in rules]
    missing = [f"missing key {prefix}{key}" for key in rules if key not in given and key not in _OPTIONAL]
    wrong = [
        f"{prefix}{key} is {_shown(given[key])}, expected {rule.expected}"
        for key, rule in rules.items()
        if key in given and not rule.holds(given[key])
    ]
    return unknown + missing + wrong


def _shown(value: Any) -> str:
    """Return a value as it is shown: where it is long, no more than what tells which it is."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _nearest(word: str, known: Mapping[str, Any]) -> str:
    from ..program import nearest  # only on the way to an error: it brings argparse along

    return nearest(word, known)


def read_key(path: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the API key in ``path``, or None without a path. A relative path is looked up in $CREDENTIALS_DIRECTORY.

    The key is never part of an error message.
    """
    if path is None:
        return None
    full = os.path.join(environ.get("CREDENTIALS_DIRECTORY", ""), path)  # noqa: PTH118
    try:
        with open(full, encoding="ascii") as file:  # noqa: PTH123
            key = file.read().strip()
    except OSError as error:
        raise SettingsError(f"api_key_file {full}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise SettingsError(f"api_key_file {full}: holds bytes that cannot stand in an HTTP header") from None
    if not key or not key.isprintable() or " " in key:
        raise SettingsError(f"api_key_file {full}: expected one key on one line")
    return key
