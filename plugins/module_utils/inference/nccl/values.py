# SPDX-License-Identifier: Apache-2.0
"""What a value of an NCCL variable means to NCCL: legal or not, the default or not, and what NCCL makes of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from string import digits

from ..findings import Finding, Level
from ..program import nearest
from .rules import report
from .variables import (
    ALGORITHMS,
    FUNCTIONS,
    LEGACY_LEVELS,
    PER_FUNCTION,
    PROTOCOLS,
    UNDOCUMENTED_LEVELS,
    WORDS,
    Variable,
    Version,
    version_text,
)

_INTEGER = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_INT64 = 2**63
_LONGEST = 25
"""More digits than this are more than 64 bits in any base."""
_SMI_WORDS = {"NODE": "PHB", "SOC": "SYS", "NVLINK": "NVL", "NV": "NVL", "NVB": "NVL", "ALL": "SYS"}
"""What people write for a distance, most of it from ``nvidia-smi topo -m``, and NCCL's word for it."""

_EMPTY: Mapping[str, tuple[Level, str]] = {
    "NCCL_NET": ("critical", "NCCL looks for a network of that name, finds none and doesn't start"),
    "NCCL_COMM_ID": ("critical", "NCCL can't read it as an address and doesn't start"),
    "NCCL_TOPO_FILE": ("warning", "NCCL no longer looks for its default topology file"),
    "NCCL_DEBUG_TIMESTAMP_LEVELS": ("info", "no line of the log has a time"),
}


def c_integer(text: str) -> tuple[int, str]:
    """Return the integer that ``strtoll(text, 0, 0)`` reads, and what it leaves unread. No digits read as 0."""
    match = _INTEGER.match(text)
    if match is None:
        return 0, text
    sign, number = match.groups()
    if len(number) > _LONGEST:
        return _INT64, text[match.end() :]
    base = 16 if number[:2] in ("0x", "0X") else 8 if number.startswith("0") else 10
    return (-1 if sign == "-" else 1) * int(number, base), text[match.end() :]


def parse_list(text: str, words: Sequence[str], version: Version) -> dict[str, dict[str, bool | None]]:
    """Return which ``words`` a list selects for each collective: chosen, excluded, or None where NCCL still decides.

    Since 2.24 a list can name collectives (``allreduce:^LL128;broadcast:LL``). Raises ValueError with what NCCL objects
    to; before 2.24 it objects to nothing, and words that it doesn't know count for nothing.
    """
    chosen: dict[str, dict[str, bool | None]] = {function: dict.fromkeys(words) for function in FUNCTIONS}
    if version < PER_FUNCTION:
        _select(chosen, FUNCTIONS, text, words, strict=False)
        return chosen
    # strtok skips empty pieces, so does this
    for position, entry in enumerate([piece for piece in text.split(";") if piece]):
        pieces = [piece for piece in entry.split(":") if piece]
        if not pieces:
            raise ValueError(f"{entry!r} names nothing")
        if len(pieces) == 1 and position:
            raise ValueError(f"{entry!r} names no collective; only the first part may leave it out")
        functions = FUNCTIONS if len(pieces) == 1 else [f for f in FUNCTIONS if f.lower() == pieces[0].lower()]
        if not functions:
            raise ValueError(f"{pieces[0]!r} is none of {', '.join(FUNCTIONS)}{nearest(pieces[0], FUNCTIONS)}")
        _select(chosen, functions, pieces[min(1, len(pieces) - 1)], words, strict=True)
    return chosen


def _select(
    chosen: dict[str, dict[str, bool | None]],
    functions: Sequence[str],
    text: str,
    words: Sequence[str],
    *,
    strict: bool,
) -> None:
    exclude = text.startswith("^")
    known = {word.lower(): word for word in words}
    named = [piece for piece in text.removeprefix("^").split(",") if piece]
    unknown = [piece for piece in named if piece.lower() not in known]
    if unknown and strict:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(words)}{nearest(unknown[0].strip(), words)}")
    selected = {known[piece.lower()] for piece in named if piece.lower() in known}
    for function in functions:
        chosen[function] = {word: (word in selected) != exclude for word in words}


def list_words(variable_kind: str, version: Version) -> tuple[str, ...]:
    """Return the words that a list of the kind ``list algorithm`` or ``list protocol`` can hold in that release."""
    if variable_kind == "list protocol":
        return PROTOCOLS
    return tuple(
        name for name, (first, last) in ALGORITHMS.items() if first <= version and (not last or version <= last)
    )


def check_value(variable: Variable, value: str, version: Version) -> Iterator[Finding]:
    """Yield what is to be said about one value in that release."""
    if not value:
        yield from _check_empty(variable, version)
        return
    if variable.kind(version) != "free" and _has_stray_characters(value):
        yield from _check_stray(variable, value)
        value = value.strip().strip("\"'").strip()
        if not value:
            return
    kind, _, arguments = variable.kind(version).partition(" ")
    yield from _CHECKS[kind](variable, value, version, arguments)
    if _is_default(variable, value, version):
        yield report(
            "nccl-no-op",
            what=f"{variable.name} repeats what NCCL {version_text(version)} does anyway",
            seen=f"{variable.name}={value}",
            expected=f"nothing: {variable.default(version)} is the default",
            fix="Leave it out, or keep it to pin the value over an upgrade.",
            source=variable.reference,
        )


def _has_stray_characters(value: str) -> bool:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value != value.strip() or quoted or any(ord(character) < ord(" ") for character in value)


def _check_stray(variable: Variable, value: str) -> Iterator[Finding]:
    quotes = value.strip()[:1] in ("'", '"')
    yield report(
        "nccl-quotes-kept" if quotes else "nccl-white-space",
        what=f"the {'quotes' if quotes else 'white space'} around it belong to the value of {variable.name}",
        seen=repr(value),
        expected="the bare value: NCCL removes neither quotes nor white space",
        fix=f"Write {variable.name}={value.strip().strip(chr(34) + chr(39)).strip()}.",
    )


def _check_empty(variable: Variable, version: Version) -> Iterator[Finding]:
    if variable.name == "NCCL_GRAPH_FILE":
        yield report(
            "nccl-empty-graph-file",
            what="NCCL opens the file of the empty name, fails, and no communicator is made",
            seen="NCCL_GRAPH_FILE=",
            expected="the path of an XML graph, or the variable not set at all",
            fix="Remove the variable: an empty value doesn't unset it.",
        )
        return
    if variable.name in ("NCCL_ALGO", "NCCL_PROTO") and version < PER_FUNCTION:
        level: Level = "critical"
        effect = "before 2.24 an empty list allows nothing at all"
    else:
        level, effect = _EMPTY.get(variable.name, ("info", "NCCL treats it as if it were not set"))
    if variable.kind(version) == "free":  # an empty NCCL_DEBUG_TIMESTAMP_FORMAT is how times are left out
        return
    yield report(
        "nccl-empty-value",
        level=level,
        what=f"{variable.name} is set to nothing: {effect}",
        seen=f"{variable.name}=",
        expected="a value, or the variable not set at all",
        fix="Remove the variable.",
    )


def _is_default(variable: Variable, value: str, version: Version) -> bool:
    default = variable.default(version)
    if not default:
        return False
    number, rest = c_integer(value)
    return default.lower() == value.lower() or (not rest and default == str(number))


_Check = Callable[[Variable, str, Version, str], Iterator[Finding]]


def _check_number(variable: Variable, value: str, version: Version, limits: str) -> Iterator[Finding]:
    number, rest = c_integer(value)
    if rest or not -_INT64 <= number < _INT64:
        yield _not_a_number(variable, value, number, rest)
        return
    if re.match(r"[+-]?0[0-7]", value):
        yield report(
            "nccl-number-base",
            what=f"NCCL reads a number with a leading zero as octal: {number}",
            seen=f"{variable.name}={value}",
            expected="decimal digits without a leading zero, or 0x for hexadecimal",
            fix=f"Write {variable.name}={value.lstrip('0') or '0'} if that is meant.",
        )
    low, _, high = limits.partition("..")
    if (low and number < int(low)) or (high and number > int(high)):
        only_one = "; nothing but 1 turns it on" if limits == "0..1" else ""
        yield report(
            "nccl-out-of-range",
            what=f"{variable.name} is outside what NCCL {version_text(version)} accepts{only_one}",
            seen=f"{variable.name}={value}",
            expected=f"{low} to {high}" if high else f"{low} or more",
            fix=f"Choose such a number, or remove {variable.name}.",
            source=variable.reference,
        )


def _not_a_number(variable: Variable, value: str, number: int, rest: str) -> Finding:
    units = re.fullmatch(r"\s*([0-9]{1,12})\s*([kKmMgG])(?:i?[bB])?", value)
    if units:
        fix = f"Write {variable.name}={int(units[1]) << (10 * ('kmg'.index(units[2].lower()) + 1))}."
    elif value.strip().lower() in ("true", "yes", "on", "false", "no", "off"):
        fix = f"Write {variable.name}={int(value.strip().lower() in ('true', 'yes', 'on'))}."
    else:
        fix = f"Give {variable.name} a number, or leave it out."
    too_large = "a number that needs more than 64 bits, so NCCL uses its default"
    return report(
        "nccl-not-a-number",
        what=too_large if not rest else f"NCCL reads {number} and says nothing: it stops at {rest.strip()[:20]!r}",
        seen=f"{variable.name}={value}",
        expected="a whole number, without unit, sign or word",
        fix=fix,
    )


def _check_bytes(variable: Variable, value: str, version: Version, _arguments: str) -> Iterator[Finding]:
    findings = list(_check_number(variable, value, version, "1.."))
    yield from findings
    number, _ = c_integer(value)
    if not findings and variable.name == "NCCL_BUFFSIZE" and number & (number - 1):
        yield report(
            "nccl-not-power-of-two",
            what=f"{variable.name} is no power of two",
            seen=f"{variable.name}={value}",
            expected="a power of two is recommended",
            fix=f"Write {variable.name}={1 << (number.bit_length() - 1)} or {1 << number.bit_length()}.",
        )


def _check_one(variable: Variable, value: str, version: Version, arguments: str) -> Iterator[Finding]:
    findings = list(_check_number(variable, value, version, ""))
    yield from findings
    number, rest = c_integer(value)
    if not rest and str(number) not in arguments.split():
        yield _illegal(variable, value, arguments.split(), "NCCL may replace it by another")


def _check_boolean(variable: Variable, value: str, _version: Version, _arguments: str) -> Iterator[Finding]:
    if value.lower() not in ("0", "1", "t", "f", "true", "false"):
        yield _illegal(variable, value, ["1", "T", "TRUE", "0", "F", "FALSE"], "NCCL uses its default")


def _check_word(variable: Variable, value: str, _version: Version, arguments: str) -> Iterator[Finding]:
    if value.upper() not in arguments.split():
        yield _illegal(variable, value, arguments.split(), "NCCL ignores it")


def _check_exact_word(variable: Variable, value: str, _version: Version, arguments: str) -> Iterator[Finding]:
    words = arguments.split()
    if value not in words:
        yield _wrong_case(variable, value) if value.upper() in words else _illegal(variable, value, words, "ignored")


def _check_words(variable: Variable, value: str, _version: Version, arguments: str) -> Iterator[Finding]:
    known = WORDS[arguments]
    unknown = [word for word in value.removeprefix("^").split(",") if word and word.upper() not in known]
    if unknown:
        yield _illegal(variable, ",".join(unknown), known, "NCCL ignores these words and keeps the others")


def _check_level(variable: Variable, value: str, version: Version, arguments: str) -> Iterator[Finding]:
    words = arguments.split()
    if value in words:
        return
    if value[0] in digits:
        yield _legacy_integer(variable, value)
    elif value.upper() in words:
        yield _wrong_case(variable, value)
    else:
        means = _SMI_WORDS.get(value.upper())
        hint = f"; NCCL's word for that is {means}" if means else ""
        known = value in UNDOCUMENTED_LEVELS and version >= (2, 19, 0)
        effect = (
            "NCCL's source compares with it, but the guide doesn't list it" if known else "NCCL ignores it silently"
        )
        yield _illegal(variable, value, words, effect + hint, means=means)


def _legacy_integer(variable: Variable, value: str) -> Finding:
    number, _ = c_integer(value)
    word = LEGACY_LEVELS[max(0, min(number, len(LEGACY_LEVELS) - 1))]
    return report(
        "nccl-legacy-integer",
        what=f"{variable.name}={value} means {word} to NCCL; what a number means can change",
        seen=f"{variable.name}={value}",
        expected="a word; the numbers are LOC 0, PIX 1, PXB 2, PHB 3, SYS 4 and above, and NVL has none",
        fix=f"Write {variable.name}={word}, if that is what was meant.",
        source=variable.reference,
    )


def _wrong_case(variable: Variable, value: str) -> Finding:
    return report(
        "nccl-value-case",
        what=f"NCCL compares {variable.name} with capitals only and ignores this value silently",
        seen=f"{variable.name}={value}",
        expected=value.upper(),
        fix=f"Write {variable.name}={value.upper()}.",
        source=variable.reference,
    )


def _illegal(variable: Variable, value: str, legal: Sequence[str], effect: str, means: str | None = None) -> Finding:
    return report(
        "nccl-illegal-value",
        what=f"{value!r} is no value of {variable.name}{nearest(value.upper(), legal)}: {effect}",
        seen=f"{variable.name}={value}",
        expected=f"one of {', '.join(legal)}",
        fix=f"Write {variable.name}={means}." if means else f"Choose a legal value, or remove {variable.name}.",
        source=variable.reference,
    )


def _check_list(variable: Variable, value: str, version: Version, arguments: str) -> Iterator[Finding]:
    words = list_words(f"list {arguments}", version)
    if version < PER_FUNCTION:
        known = {word.lower() for word in words}
        unknown = [word for word in value.removeprefix("^").split(",") if word and word.lower() not in known]
        if unknown:
            where = "lists by collective came with 2.24" if re.search("[:;]", value) else "NCCL ignores it silently"
            yield _list_error(variable, value, words, f"{unknown[0]!r} is none of its words: {where}")
        return
    try:
        parse_list(value, words, version)
    except ValueError as error:
        yield _list_error(variable, value, words, f"NCCL doesn't start with it: {error}")


def _list_error(variable: Variable, value: str, words: Sequence[str], what: str) -> Finding:
    later = [word for word in ALGORITHMS if word.lower() in value.lower().split(",") and word not in words]
    hint = f" {later[0]} is not known to this release." if later and variable.name == "NCCL_ALGO" else ""
    return report(
        "nccl-list-syntax",
        what=what,
        seen=f"{variable.name}={value}",
        expected=f"names out of {', '.join(words)}, separated by commas without spaces, after ^ to exclude",
        fix=f"Correct the list or remove {variable.name}.{hint}",
        source=variable.reference,
    )


def _check_policy(variable: Variable, value: str, version: Version, _arguments: str) -> Iterator[Finding]:
    if value[0] in digits:
        yield from _check_number(variable, value, version, "0..2")
        return
    legal = ("DEFAULT", "EFFICIENCY", "ZERO")
    for word in value.split("|"):
        if word.upper() not in legal:
            yield _illegal(variable, word, legal, "NCCL uses DEFAULT instead")


def _check_devices(variable: Variable, value: str, _version: Version, _arguments: str) -> Iterator[Finding]:
    if not re.fullmatch(r"AUTO|ALL|MAX:[1-9]\d*", value, re.IGNORECASE):
        yield _illegal(variable, value, ("AUTO", "ALL", "MAX:N"), "NCCL ignores it")


def _check_path(variable: Variable, value: str, _version: Version, _arguments: str) -> Iterator[Finding]:
    if value.startswith("~"):
        yield report(
            "nccl-unexpanded",
            what=f"NCCL doesn't expand ~ in {variable.name}, and neither does systemd",
            seen=f"{variable.name}={value}",
            expected="an absolute path",
            fix=f"Write {variable.name} as an absolute path.",
        )


def _accept(_variable: Variable, _value: str, _version: Version, _arguments: str) -> Iterator[Finding]:
    return iter(())


_CHECKS: Mapping[str, _Check] = {
    "int": _check_number,
    "bytes": _check_bytes,
    "one": _check_one,
    "bool": _check_boolean,
    "word": _check_word,
    "exactly": _check_exact_word,
    "words": _check_words,
    "level": _check_level,
    "list": _check_list,
    "policy": _check_policy,
    "netdevs": _check_devices,
    "path": _check_path,
    "text": _accept,
    "free": _accept,
}
