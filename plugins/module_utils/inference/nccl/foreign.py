# SPDX-License-Identifier: Apache-2.0
"""Settings as containers, orchestrators, other shells and programs hold them, turned into a shell's assignments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping

_NAME = r"(?P<name>[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"
_QUOTED = r"(?P<quote>[\"'])(?P<value>[^\"'\n]*)(?P=quote)"
_PLAIN = r"(?P<value>.*)"

_PROMPT = re.compile(
    rf"^\s*(?:[$%>\u276f\u279c]|(?:\([^)]*\)\s*)?\[?[\w.-]+@[\w.-]+[^$#%\n]{{0,80}}[$#%])\s+"
    rf"(?=(?:export|declare|setenv|set|env|unset)\s|{_NAME}=)"
)
_FENCE = re.compile(r"^\s*(?:```|~~~)\w*\s*$")
_STRUCTURE = re.compile(r"^\s*(?:[\[\]{}(),]+|(?:-\s+)?[\w./-]+:(?:\s*[|>{\[])?|---)\s*$")
"""Lines of YAML and JSON that only hold others together."""

_LINES: tuple[re.Pattern[str], ...] = (
    re.compile(rf"^\s*setenv\s+{_NAME}\s+{_PLAIN}$"),  # csh
    re.compile(rf"^\s*set\s+-(?:gx|xg|x|Ux)\s+{_NAME}\s+{_PLAIN}$"),  # fish
    re.compile(rf"^\s*(?:set|SET)\s+\"?{_NAME}={_PLAIN}$"),  # Windows
    re.compile(rf"^\s*\$env:{_NAME}\s*=\s*{_QUOTED}\s*;?\s*$"),  # PowerShell
    re.compile(rf"^\s*ENV\s+{_NAME}\s+{_PLAIN}$"),  # Dockerfile, the old form
    re.compile(rf"^\s*os\.environ(?:\[|\.setdefault\()[\"']{_NAME}[\"'](?:\]\s*=|,)\s*{_QUOTED}\)?\s*$"),  # Python
    re.compile(rf"^\s*(?:-\s+)?(?P<mark>[\"']?){_NAME}(?P=mark)\s*:\s+{_QUOTED}\s*,?\s*$"),  # YAML, JSON
    re.compile(rf"^\s+(?:-\s+)?{_NAME}:\s+{_PLAIN}$"),  # YAML
    re.compile(rf"^\s*-\s+(?P<quote>[\"']?){_NAME}=(?P<value>[^\"'\n]*)(?P=quote)\s*$"),  # YAML list
)
_ENV = re.compile(rf"^\s*ENV\s+(?={_NAME}=)")
_K8S_NAME = re.compile(rf"^\s*-?\s*name:\s*[\"']?{_NAME}[\"']?\s*$")
_K8S_VALUE = re.compile(rf"^\s*value:\s*(?:{_QUOTED}|(?P<bare>.*))$")
_JSON_PAIR = re.compile(rf"\"{_NAME}\"\s*:\s*\"(?P<value>[^\"]*)\"")


def as_shell(text: str) -> str:
    """Return ``text`` with every foreign line as ``NAME=VALUE``; the numbers of the lines stay.

    A text without any comes back as it is.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    turned: dict[int, str] = {}
    for turn in (_turn_pairs, _turn_lines):
        turn(lines, turned)
    if not turned:
        return text
    return "\n".join(
        turned.get(number, "" if _STRUCTURE.match(line) or _FENCE.match(line) else line)
        for number, line in enumerate(lines)
    )


def _turn_pairs(lines: list[str], turned: dict[int, str]) -> None:
    """Take ``- name: X`` with ``value: Y`` in the next line, as Kubernetes writes it."""
    for number in range(len(lines) - 1):
        name, value = _K8S_NAME.match(lines[number]), _K8S_VALUE.match(lines[number + 1])
        if name and value:
            turned[number] = ""
            turned[number + 1] = f"{name['name']}={shlex.quote((value['value'] or value['bare'] or '').strip())}"


def _turn_lines(lines: list[str], turned: dict[int, str]) -> None:
    for number, line in enumerate(lines):
        if number in turned:
            continue
        for turn in _TURNS:
            if (shell := turn(line)) is not None:
                turned[number] = shell
                break


def _one(line: str) -> str | None:
    found = next((found for form in _LINES if (found := form.match(line))), None)
    return None if found is None else _assignment(found.groupdict())


def _assignment(parts: Mapping[str, str]) -> str:
    value = parts["value"].strip().rstrip(";").rstrip()
    if value.count('"') == 1:
        value = value.rstrip('"')  # set "NAME=VALUE"
    return f"{parts['name']}={value}" if re.search(r"[\"'#$`]", value) else f"{parts['name']}={shlex.quote(value)}"


def _several(line: str) -> str | None:
    """Take the pairs of a JSON object in one line."""
    pairs = [f"{found['name']}={shlex.quote(found['value'])}" for found in _JSON_PAIR.finditer(line)]
    return "export " + " ".join(pairs) if pairs and line.lstrip().startswith("{") else None


def _stripped(line: str) -> str | None:
    """Take what stands behind a prompt or a Dockerfile's ENV."""
    for prefix, put in ((_PROMPT, ""), (_ENV, "export ")):
        if found := prefix.match(line):
            return put + line[found.end() :]
    return None


_TURNS: tuple[Callable[[str], str | None], ...] = (_stripped, _several, _one)
