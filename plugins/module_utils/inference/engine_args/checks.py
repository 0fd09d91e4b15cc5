# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the arguments of an instance: each by itself, against the options of its release."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..findings import Finding
from ..program import nearest
from .command import OWNED, RUNS_FOREIGN_CODE, Argument, is_secret, plain_name, resolve
from .options import Option, Table, order

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*(\.[A-Za-z0-9_.]+)?")


def check(
    instance: Mapping[str, Any], where: str, table: Table | None = None, others: Sequence[Table] = ()
) -> list[Finding]:
    """Return what is wrong with an instance's arguments; ``where`` names them for the person who wrote them.

    Without the release's ``table``, only what holds for every release is looked at. ``others`` are the tables of the
    engine's other releases: they tell an option that is gone from a mistyped one.
    """
    findings: list[Finding] = []
    seen: set[str] = set()
    for raw, value in (instance.get("arguments") or {}).items():
        place = f"{where}.arguments.{raw}"
        argument = resolve(plain_name(raw), value, table)
        wrong = list(_always(argument, place, table))
        if not wrong and table is not None:
            wrong = list(_by_table(argument, place, table, others))
        findings += wrong
        if argument.name in seen:
            findings.append(_wrong("argument-twice", place, "each argument once"))
        seen.add(argument.name)
    return findings


def owner(argument: Argument, table: Table | None) -> str | None:
    """Return the option that the service sets itself and that this argument would set again, or None."""
    option = argument.option
    names = (option.name, *option.also) if option else (argument.given,)
    whole = next((name for name in names if name in OWNED), None)
    if whole or option or table is not None:
        return whole
    # both engines' parsers take the beginning of an option's name for the option
    return next((o for o in OWNED if len(argument.given) > 1 and o.startswith(argument.given)), None)


def _always(argument: Argument, where: str, table: Table | None) -> Iterator[Finding]:
    owned = owner(argument, table)
    if not _NAME.fullmatch(argument.given):
        yield _wrong("argument-name", where, "the name of an option, such as context-length")
    elif owned:
        yield _wrong("argument-owned", where, f"{OWNED[owned]} of the instance, which sets --{owned}")
    elif is_secret(argument.given, argument.value):
        yield _wrong("secret-in-arguments", where, "no secret in a command line, which every local user can read")
    elif isinstance(argument.value, list) and not argument.value:
        yield _wrong("argument-empty", where, "a value, true for a flag, or null to leave the option out")
    elif argument.given == RUNS_FOREIGN_CODE and argument.value:
        yield Finding(
            "trust-remote-code", "warning", "The engine runs code that ships with the weights",
            seen=where, expected="an engine that knows the model's architecture itself",
            fix="Remove it if the engine does; else read the code and keep the weights where only root can write.",
        )  # fmt: skip


def _by_table(argument: Argument, where: str, table: Table, others: Sequence[Table]) -> Iterator[Finding]:
    if argument.option is None:
        yield _unknown(argument, where, table, others)
        return
    if argument.value is None:
        return
    if argument.rename:
        yield Finding(
            "argument-renamed", "info", "An option has another name in this release and is written so",
            seen=where, expected=f"--{argument.name} with {_named(table)} ({argument.rename.source})",
            fix=f"Write {argument.name}, unless the inventory also serves releases with the other name.",
        )  # fmt: skip
    elif argument.option.deprecated:
        instead = argument.option.instead
        yield Finding(
            "argument-deprecated", "warning", "An option that its own engine calls deprecated",
            seen=where, expected=f"{instead or 'no such option'} with {_named(table)}",
            fix=f"Write {instead} instead." if instead else "Remove it; engine-args options shows what there is.",
        )  # fmt: skip
    expected = mismatch(argument)
    if expected:
        yield Finding(
            "argument-value", "critical", "A value that the engine cannot take", seen=f"{where}: {argument.value!r}",
            expected=f"{expected}, for --{argument.name} of {_named(table)}", fix="Change it.",
        )  # fmt: skip


def _unknown(argument: Argument, where: str, table: Table, others: Sequence[Table]) -> Finding:
    known = sorted((other.version for other in others if other.find(argument.given)), key=order)
    if known:
        return Finding(
            "argument-removed", "critical", "An option that other releases of the engine have, and this one has not",
            seen=where, expected=f"an option of {_named(table)}; {', '.join(known)} knows this one",
            fix="Remove it, or write what has taken its place.",
        )  # fmt: skip
    return Finding(
        "argument-unknown", "critical", "An option that the engine does not have",
        seen=where, expected=f"an option of {_named(table)}{nearest(argument.given, table.names)}",
        fix=f"Correct it: scripts/engine-args options {table.engine}-{table.version} lists them.",
    )  # fmt: skip


def _named(table: Table) -> str:
    return f"{table.engine} {table.version}"


def mismatch(argument: Argument) -> str | None:
    """Return what the option would take when the value is not that, else None."""
    option, value = argument.option, argument.value
    if option is None or value is None or "." in argument.name:
        return None  # a key of a JSON option is something that only the engine knows
    if option.kind != "value":
        return None if isinstance(value, bool) else "true or false without quotes"
    if isinstance(value, bool):
        return None if value and option.bare else f"a value, {_wanted(option)}"
    if isinstance(value, list) and option.takes != "json":
        return _several(option, value)
    return _one(option, value)


def _several(option: Option, values: Sequence[Any]) -> str | None:
    if not (option.many or option.repeat):
        return f"one value, {_wanted(option)}"
    return next((wrong for entry in values if (wrong := _one(option, entry))), None)


def _one(option: Option, value: Any) -> str | None:
    if isinstance(value, (Mapping, list)):
        # what takes text may read JSON in it
        return None if option.takes in ("json", "special", "text") and not option.choices else _wanted(option)
    if option.choices and str(value) not in option.choices:
        return f"{_wanted(option)}{nearest(str(value), option.choices)}"
    return None if TAKES[option.takes](str(value)) else _wanted(option)


def _wanted(option: Option) -> str:
    if option.choices:
        return f"one of {', '.join(option.choices)}"
    return {"int": "a whole number", "float": "a number", "size": "a number such as 4096 or 4k", "json": "JSON"}.get(
        option.takes, "text"
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


TAKES: Mapping[str, Callable[[str], object]] = {
    "text": lambda _: True,
    "special": lambda _: True,
    "int": re.compile(r"[+-]?\d+").fullmatch,
    "size": re.compile(r"[+-]?\d+(\.\d+)?[kKmMgGtT]?(i?[bB])?|auto").fullmatch,
    "float": _is_float,
    "json": _is_json,
}
"""What a value looks like, by the type in the table, and the test."""


_FIXES = {
    "argument-name": "Correct the name.",
    "argument-owned": "Set it there and remove it here.",
    "argument-twice": "Remove one; dashes and underscores are the same.",
    "argument-empty": "Give it a value or remove it.",
    "secret-in-arguments": "Remove it; let the gateway check keys.",
}


def _wrong(finding_id: str, seen: str, expected: str) -> Finding:
    return Finding(
        finding_id, "critical", "An argument that cannot be used", seen=seen, expected=expected, fix=_FIXES[finding_id]
    )
