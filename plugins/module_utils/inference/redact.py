# SPDX-License-Identifier: Apache-2.0
"""Takes secrets out of a text before it is shown: in arguments, variables, JSON, headers, and by their form."""

from __future__ import annotations

import re

HIDDEN = "[redacted]"

SENSITIVE_NAME = (
    r"(?:[a-z0-9]{1,30}[_-]){0,6}(?:api[_-]?keys?|auth[_-]?token|access[_-]?token|hf[_-]token|hugging[_-]?face(?:[_-]hub)?[_-]token"
    r"|secret(?:[_-](?:access[_-])?key)?|password|passwd|keyfile[_-]password|hub[_-]token)"
)
"""Names of settings whose value is a secret; ``token`` alone is not one (engines count tokens in every line)."""

_EMPTY = r"(?:\[?['\"]?(?:none|null|true|false|\*+)['\"]?\]?|''|\"\"|\[\]|\[redacted\])(?=[\s,;)}\]'\"]|$)"
"""What stands for no value, or for one that is hidden already."""
_VALUE = r"(?:\$\{\w+\}|'[^'\n]*'?|\"[^\"\n]*\"?|\[[^\]\n]*\]|[^\s'\";)}\]]+)"

_FLAG = re.compile(
    rf"(?P<name>--{SENSITIVE_NAME})(?P<gap>=|\s+|['\"],\s*)(?!--|{_EMPTY})(?P<value>{_VALUE})", re.IGNORECASE
)
_SETTING = re.compile(
    rf"(?<![\w-])(?P<name>['\"]?{SENSITIVE_NAME}['\"]?)(?P<gap>\s*[=:]\s*)(?!{_EMPTY})(?P<value>{_VALUE})",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(?P<name>\bBearer|Authorization['\"]?: *['\"]?Basic)(?P<gap>\s+)(?P<value>(?=\S*[0-9=])[\w.~+/=-]{6,})",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"\b(?:sk-[A-Za-z0-9_-]{6,}|hf_[A-Za-z0-9]{16,}|nvapi-[A-Za-z0-9_-]{16,}|gsk_[A-Za-z0-9]{20,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|AKIA[A-Z0-9]{16})\b"
)
_HINTS = (
    *("key", "secret", "passw", "auth", "access", "bearer"),
    *("hub_", "hub-", "face_", "face-", "hf_", "hf-"),
    *("sk-", "nvapi-", "gsk_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "akia"),
)
"""A text without any of these (lower case) holds no secret that is known here; looking for them is cheap."""
_HINTS_BYTES = tuple(hint.encode() for hint in _HINTS)

_REFERENCE = re.compile(r"\$\{?\w+\}?|(?:[$%]\w+)?(?:/[\w.@%-]+){2,}|%d/\S+|<[^>]*>", re.ASCII)
"""Values that only point at a secret: a variable, a file, a credential (``%d/NAME``), a placeholder."""


def redact(text: str) -> str:
    """Return ``text`` with every secret's value replaced by ``[redacted]``; names stay."""
    if not _may_hold(text):
        return text
    for pattern in (_FLAG, _SETTING, _HEADER):
        text = pattern.sub(_hide, text)
    return _TOKEN.sub(HIDDEN, text)


def _hide(found: re.Match[str]) -> str:
    value = found["value"] if _REFERENCE.fullmatch(found["value"].strip("'\"")) else HIDDEN
    return f"{found['name']}{found['gap']}{value}"


def _may_hold(text: str) -> bool:
    lower = text.lower()
    return any(hint in lower for hint in _HINTS)


def keeping(characters: str) -> bytes:
    """Return a table for ``bytes.translate``: ASCII in lower case, and a space for all but these characters."""
    lower = (chr(code).lower() for code in range(128))
    return "".join(letter if letter in characters else " " for letter in lower).encode().ljust(256)


_OF_HINTS = keeping("".join(_HINTS))


def may_hold_secret(lines: bytes) -> bool:
    """Tell whether there may be a secret in these lines: where this is False, ``redact`` changes none of them."""
    words = b" ".join(set(lines.translate(_OF_HINTS).split()))  # a log repeats its words: each is searched once
    return any(hint in words for hint in _HINTS_BYTES) or not lines.isascii()


def secret_names(text: str) -> list[str]:
    """Return the names under which ``text`` shows a secret in clear; a reference to a file or variable is none."""
    found: list[str] = []
    if not _may_hold(text):
        return found
    for pattern in (_FLAG, _SETTING, _HEADER):
        for match in pattern.finditer(text):
            if not _REFERENCE.fullmatch(match["value"].strip("'\"")):
                found.append(match["name"].strip("'\""))
    if not found and _TOKEN.search(text):
        found.append("a token")
    return found
