# SPDX-License-Identifier: Apache-2.0
"""Compares a variable with the option that a role documents (the form of Ansible's argument specs), and strictly.

Ansible's own check converts: it takes ``"60"`` for a number and ``3.10`` (which YAML reads as 3.1) for a string, and
the role then works with what was written. Here a value has the type that its option names, or is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .findings import Finding
from .program import nearest
from .redact import redact

Option = Mapping[str, Any]
"""``type`` (default ``str``), ``elements``, ``options``, ``choices``, ``required``, ``default``."""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


TYPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a string", lambda v: isinstance(v, str)),
    "path": ("an absolute path", lambda v: isinstance(v, str) and v.startswith("/")),
    "bool": ("true or false", lambda v: isinstance(v, bool)),
    "int": ("a whole number", lambda v: _is_number(v) and isinstance(v, int)),
    "float": ("a number", _is_number),
    "list": ("a list", lambda v: isinstance(v, list)),
    "dict": ("a mapping", lambda v: isinstance(v, Mapping)),
    "raw": ("any value", lambda v: v is not None),
}
"""Types of options, what people are told, and the test."""


def check(where: str, value: Any, option: Option) -> list[Finding]:
    """Return what is wrong with ``value``; ``where`` names it, such as ``service_instances[0].port``."""
    kind = option.get("type", "str")
    expected, fits = TYPES[kind]
    if value is None:
        return [] if _may_be_null(option) else [_null(where, expected)]
    if not fits(value):
        seen = "a value of another type (not shown)" if option.get("no_log") else _shown(value)
        return [_finding(where, seen, expected, _advice(where, value, kind))]
    choices = option.get("choices")
    if choices and value not in choices:
        known = ", ".join(map(str, choices))
        return [_finding(where, _shown(value), f"one of {known}{nearest(str(value), choices)}", "Change it.")]
    if kind == "list" and "elements" in option:
        element = {"type": option["elements"], "options": option.get("options"), "required": True}
        return [f for i, entry in enumerate(value) for f in check(f"{where}[{i}]", entry, element)]
    if kind == "dict" and option.get("options"):
        return _check_keys(where, value, option["options"])
    return []


def _may_be_null(option: Option) -> bool:
    """Null is what an option without a default is by itself, and what one is whose default is null."""
    return not option.get("required") and option.get("default") is None


def _check_keys(where: str, value: Mapping[str, Any], options: Mapping[str, Option]) -> list[Finding]:
    findings = []
    for key in value:
        if key not in options:
            expected = f"one of {', '.join(options)}{nearest(str(key), options)}"
            findings.append(_finding(f"{where}.{key}", "a key that nothing reads", expected, "Correct or remove it."))
    for key, option in options.items():
        if key in value:
            findings += check(f"{where}.{key}", value[key], option)
        elif option.get("required"):
            expected = TYPES[option.get("type", "str")][0]
            findings.append(_finding(f"{where}.{key}", "nothing", expected, f"Add {key}."))
    return findings


def _null(where: str, expected: str) -> Finding:
    return _finding(where, "no value (null)", expected, "Give it a value, or remove the line to have the default.")


def _advice(where: str, value: Any, kind: str) -> str:
    if kind == "str" and not isinstance(value, (list, Mapping)):
        return "Put it in quotes; without them YAML reads a number or true and false."
    if kind == "path" and isinstance(value, str):
        return "Write it in full, from the root; ~ is not expanded."
    if isinstance(value, str) and kind in ("bool", "int", "float"):
        return f"Remove the quotes; on the command line write -e '{{\"{where}\": VALUE}}'."
    return "Change it."


def _shown(value: Any) -> str:
    """Show a scalar, secrets hidden; of a whole list or mapping only say what it is."""
    if isinstance(value, (list, Mapping)):
        return f"a {'list' if isinstance(value, list) else 'mapping'} ({len(value)} entries)"
    kind = next(kind for kind in (bool, int, float, str, object) if isinstance(value, kind))
    return redact(f"{value!r} ({kind.__name__})")


def _finding(where: str, seen: str, expected: str, fix: str) -> Finding:
    return Finding("variable-value", "critical", f"{where} has the wrong type or value", seen, expected, fix)
