# SPDX-License-Identifier: Apache-2.0
"""What a check has to say: findings, what was not checked, and the exit code that follows from both."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

SCHEMA = 1
"""Version of the JSON object that every checking program prints."""

Level = Literal["info", "warning", "critical", "unknown"]
"""``critical`` forbids serving, ``warning`` does not, ``unknown`` means the answer could not be had."""

LEVELS: tuple[Level, ...] = ("critical", "unknown", "warning", "info")
"""All levels, the most pressing first."""

EXIT_CODES: Mapping[Level, int] = {"critical": 2, "unknown": 3, "warning": 1, "info": 0}
"""Exit code of the most pressing finding. The numbers are those of monitoring plugins (Nagios and kin)."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that tell a terminal what to do, or that are none; logs and answers of engines may hold some."""


def printable(text: str) -> str:
    """Return ``text`` with control characters other than tab and line feed as escapes."""
    return _CONTROL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004 - two digits


def excerpt(text: str, most: int = 60) -> str:
    """Return ``text`` as ``printable`` does, and only its two ends where it is longer than ``most`` characters."""
    if len(text) > most:
        text = f"{text[: most * 3 // 4]}...{text[-(most // 4) :]}"
    return printable(text)


@dataclass(frozen=True)
class Finding:
    """One thing a check found. ``fix`` is an instruction, ``id`` is stable and names the page section about it."""

    id: str
    level: Level
    what: str
    seen: str
    expected: str
    fix: str
    repaired_by: str | None = None
    """The host role's variable that repairs it when enabled, or None when a person has to."""
    where: tuple[str, ...] = ()
    """The parts of the host that it is about, where they have names: ``GPU3``, ``GPU2-GPU5``, ``0000:03:01.1``."""

    def __post_init__(self) -> None:
        if self.level not in EXIT_CODES:
            raise ValueError(f"finding {self.id}: level {self.level!r} is none of {', '.join(LEVELS)}")

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; ``repaired_by`` and ``where`` only where they say something."""
        entry = asdict(self) | {"where": list(self.where)}
        return {name: item for name, item in entry.items() if item or name not in ("repaired_by", "where")}


@dataclass(frozen=True)
class NotChecked:
    """A check that could not be made, and why. It never changes the exit code and is never shown as fine."""

    id: str
    why: str


@dataclass
class Report:
    """The findings of one program or module call, in the order in which they were made."""

    findings: list[Finding] = field(default_factory=list)
    not_checked: list[NotChecked] = field(default_factory=list)

    def extend(self, findings: Iterable[Finding]) -> None:
        """Add findings."""
        self.findings.extend(findings)

    def skip(self, check_id: str, why: str) -> None:
        """Record that the check ``check_id`` could not be made."""
        self.not_checked.append(NotChecked(check_id, why))

    def at(self, level: Level) -> list[Finding]:
        """Return the findings of one level."""
        return [finding for finding in self.findings if finding.level == level]

    @property
    def exit_code(self) -> int:
        """2 with any critical finding, else 3 with any unknown, else 1 with any warning, else 0."""
        present = {finding.level for finding in self.findings}
        return next((EXIT_CODES[level] for level in LEVELS if level in present), 0)

    @property
    def ok(self) -> bool:
        """True when nothing is critical and nothing is unknown."""
        return self.exit_code in (0, 1)

    def as_dict(self, **extra: Any) -> dict[str, Any]:
        """Return the JSON object of the contract; ``extra`` keys are added to it."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "findings": [finding.as_dict() for finding in self.findings],
            "not_checked": [asdict(entry) for entry in self.not_checked],
            **extra,
        }

    def as_text(self) -> str:
        """Return the report for people: the most pressing first, then what was not checked, then a count."""
        blocks = [_finding_text(finding) for level in LEVELS for finding in self.at(level)]
        if self.not_checked:
            blocks.append("not checked\n" + "\n".join(f"  {e.id}: {e.why}" for e in self.not_checked))
        blocks.append(self.summary())
        return printable("\n\n".join(blocks))

    def summary(self) -> str:
        """Return one line that counts the findings, such as ``1 critical, 2 warning, 3 not checked``."""
        counts = [f"{len(self.at(level))} {level}" for level in LEVELS if self.at(level)]
        counts += [f"{len(self.not_checked)} not checked"] if self.not_checked else []
        return ", ".join(counts) if counts else "nothing found"


def _finding_text(finding: Finding) -> str:
    lines = [f"{finding.level.upper()} {finding.id}: {finding.what}"]
    for label in ("seen", "expected", "fix"):
        value = getattr(finding, label)
        if value:
            lines.append(textwrap.indent(f"{label + ':':<10}{value}", "  "))
    return "\n".join(lines)
