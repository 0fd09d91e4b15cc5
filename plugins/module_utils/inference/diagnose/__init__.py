# SPDX-License-Identifier: Apache-2.0
"""Says what is wrong with whatever an operator has at hand: a log, a journal, a unit, a process list, an exchange.

Every reader looks over the whole input and takes what it knows, so several captures in one file are no trouble.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .. import signatures, topology, xid
from ..findings import Finding, NotChecked, Report
from ..redact import redact, secret_names
from . import host as diagnose_host
from . import http as diagnose_http
from . import travelled
from . import unit as diagnose_unit
from .rules import RULES, Reading, Rule

FAILED_PROBES = 3
"""Failed health checks in a row, without progress between them, that mean a hang."""

LONGEST_SEEN = 600
"""Characters of a line that a finding repeats."""

_LOG_LINE = re.compile(
    r"^\W*\d{4}-\d\d-\d\d[T ]\d\d:\d\d|^\W*[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d |^\[\s*\d+\.\d+\] "
    r"|(?<![=\w])(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b[: ]|^[WIEF]\d{4} |NCCL (?:INFO|WARN)|^Traceback \(most"
    r"|^NVRM: "
)
_PROGRESS = re.compile(r"\b(?:Prefill|Decode) batch\b|Avg generation throughput: (?!0\.0 )")
_CLIENT = re.compile(r"^\W*curl\b|^>|^\s*-H\b")
"""Lines in which a client gives its own key: nothing leaked there."""
_NOT_SEEN: Mapping[str, str] = {
    "log": "no log in the input: what an engine, systemd or the kernel reported cannot be seen",
    "kernel": "no kernel log in the input: Xid, IOMMU faults and out-of-memory kills cannot be seen (`journalctl -k`)",
    "unit": "no unit or environment file in the input: caches and NCCL settings cannot be seen (`systemctl cat UNIT`)",
    "exchange": "no exchange with the server in the input: whether it really generates cannot be seen",
    "processes": "no process list in the input: processes that stayed behind cannot be seen (`ps -eo pid,ppid,args`)",
}
_NCCL_PHASE = "initialising communication"
_CONNECTING = re.compile(
    r"NCCL INFO (?:Channel \d+(?:/\d+)? : .* via |Bootstrap ?: Using|\w+/Plugin ?:|cudaDriverVersion)|^NCCL version \d"
)
"""NCCL's lines before a communicator begins and while its ranks connect."""


_REFUSES = re.compile(
    r"\b(?:not (?:yet |currently )?(?:supported|implemented|allowed|compatible)|unsupported|unrecogni[sz]ed"
    r"|incompatible|only (?:supports?|supported|works?)|(?:does not|doesn't|cannot) support|requires?"
    r"|must (?:be|have|match|not))\b",
    re.IGNORECASE,
)
"""How an engine says that it cannot do what it was asked to, whatever that was."""


@dataclass
class Diagnosis:
    """The findings, and the kinds of input that were recognised."""

    report: Report
    kinds: list[str]


def diagnose(text: str) -> Diagnosis:
    """Return what is wrong, by everything the text holds. No text makes it fail; a secret in it is never repeated."""
    lines = travelled.lines_of(text)
    readings = [reading for read in READERS if (reading := read(lines))]
    readings = readings or [reading for reading in [read_host_facts(lines)] if reading]
    report = Report()
    for reading in readings:
        report.extend(_without_secrets(finding) for finding in _once(reading.findings))
        for entry in reading.not_checked:
            report.skip(entry.id, entry.why)
    kinds = [reading.kind for reading in readings]
    if kinds:
        _note_missing(kinds, report)
    else:
        rule = RULES["unrecognised-input"]
        seen = f"{len(lines)} lines" if text.strip() else "an empty input"
        report.extend([Finding(rule.id, rule.level, rule.what, seen, rule.expected, rule.fix)])
    return Diagnosis(report, kinds)


def _note_missing(kinds: Sequence[str], report: Report) -> None:
    for kind, why in _NOT_SEEN.items():
        if kind not in kinds:
            report.skip(kind, why)


def _once(findings: Sequence[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))


def _without_secrets(finding: Finding) -> Finding:
    return replace(finding, what=redact(finding.what), seen=redact(finding.seen)[:LONGEST_SEEN])


def read_log(lines: Sequence[str]) -> Reading | None:
    """Return the known lines, the root cause first, and what the log as a whole shows; None when there is no log."""
    matches = signatures.scan(travelled.rejoined(lines))
    reading = Reading("log")
    _judge_log_secrets(lines, reading)
    unexplained = travelled.unexplained(lines)
    if not (
        matches
        or unexplained
        or reading.findings
        or any(_LOG_LINE.search(line) or signatures.phase_of(line) for line in lines)
    ):
        return None
    cause = signatures.root_cause(matches)
    ordered = sorted(matches, key=lambda match: match is not cause)
    reading.findings += [signatures.finding(match) for match in ordered if match.signature.id != "xid"]
    _judge_health_failures(lines, reading)
    _judge_silence(lines, reading)
    if unexplained and (cause is None or cause.signature.level != "critical" or cause.signature.role == "consequence"):
        _judge_exception(*unexplained, cause, reading)
    if cause is None or cause.signature.level != "critical":
        _judge_end(lines, reading)
    return reading


def _judge_exception(number: int, said: str, cause: signatures.Match | None, reading: Reading) -> None:
    """Report what no table knows: before echoes that say nothing of the cause, behind those that do."""
    if signatures.scan([said]):
        return
    reading.add("combination-refused" if _REFUSES.search(said) else "exception-unknown", f"line {number}: {said}")
    if cause is None or cause.signature.cause in ("worker", "unit", "restart"):
        reading.findings.insert(0, reading.findings.pop())


def _judge_end(lines: Sequence[str], reading: Reading) -> None:
    """Report a log that ends while NCCL initialises: the known hang. In another phase it may just be cut off."""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if signatures.phase_of(last) == _NCCL_PHASE or ("NCCL" in last and _nccl_open(lines, last)):
        row = signatures.stall(_NCCL_PHASE)
        reading.findings.append(
            Finding(row.id, row.level, row.what, f"the last line is: {last}", row.expected, row.fix)
        )


def _nccl_open(lines: Sequence[str], last: str) -> bool:
    """Whether a communicator was begun and not finished, or its ranks still connect for the first collective."""
    begun = sum("Init START" in line for line in lines)
    done = sum("Init COMPLETE" in line for line in lines)
    return begun > done or "Init COMPLETE" in last or bool(_CONNECTING.search(last))


def _judge_health_failures(lines: Sequence[str], reading: Reading) -> None:
    """Several failed checks in a row, with no batch between them, are more than one long prefill."""
    row = signatures.signature("health-check-failed")
    run = worst = 0
    for line in lines:
        if row.regex.search(line):
            run += 1
            worst = max(worst, run)
        elif _PROGRESS.search(line):
            run = 0
    if worst >= FAILED_PROBES:
        reading.add("engine-does-not-generate", f"{worst} failed health checks in a row and no batch between them")


def _judge_silence(lines: Sequence[str], reading: Reading) -> None:
    """Report a hang where the log ends with nothing but vLLM's waiting for its workers; a few are a slow start."""
    silent = signatures.signature("workers-silent").regex
    last = list(itertools.takewhile(silent.search, (line for line in reversed(lines) if line.strip())))
    if len(last) >= FAILED_PROBES:
        row = signatures.signature("engine-hung")
        seen = f"the last {len(last)} lines, and the first of them: {last[-1]}"
        reading.findings.insert(0, Finding(row.id, row.level, row.what, seen, row.expected, row.fix))


def _judge_log_secrets(lines: Sequence[str], reading: Reading) -> None:
    apart = _judged_apart(lines)
    shown = [
        (number, names) for number, line in enumerate(lines, 1) if number not in apart and (names := secret_names(line))
    ]
    if shown:
        number, names = shown[0]
        reading.add("secret-in-log", f"line {number}: {', '.join(names)} (lines with secrets: {len(shown)})")


def _judged_apart(lines: Sequence[str]) -> set[int]:
    """Return the numbers of lines that are none of a log or an answer, with what continues them behind a backslash.

    Units, process lists, containers' commands and a client's own words have judges of their own.
    """
    numbers: set[int] = set()
    continued = False
    for number, line in enumerate(lines, 1):
        if (
            continued
            or _CLIENT.search(line)
            or diagnose_unit.belongs(line)
            or diagnose_host.is_process(line)
            or diagnose_host.runs_container(line)
        ):
            numbers.add(number)
            continued = line.endswith("\\")
    return numbers


def read_kernel(lines: Sequence[str]) -> Reading | None:
    """Return the Xids, one finding a number and GPU, or None when the input holds no kernel messages."""
    events = xid.parse_xid_lines("\n".join(lines))
    if not events and not any(re.search(r"NVRM:|AMD-Vi|DMAR|\bkernel: ", line) for line in lines):
        return None
    reading = Reading("kernel")
    groups: dict[tuple[int, str, str | None], list[xid.XidEvent]] = {}
    for event in events:
        groups.setdefault((event.number, event.bdf, event.recovery_action), []).append(event)
    reading.findings += [_xid_finding(group) for group in groups.values()]
    return reading


def _xid_finding(events: Sequence[xid.XidEvent]) -> Finding:
    first = events[0]
    known = xid.xid(first.number)
    asked = f" ({first.recovery_action})" if first.recovery_action else ""
    times = f" ({len(events)} times)" if len(events) > 1 else ""
    who = f", {first.process} pid {first.pid}" if first.pid and first.process else ""
    what = f"Xid {first.number} on {first.bdf}: {known.meaning}{asked}"
    seen = f"line {first.line_number}{times}: {known.name}{who}: {first.detail}"
    return Finding(f"xid-{first.number}", first.level, what, seen, "no Xid while serving", first.action)


def read_host_facts(lines: Sequence[str]) -> Reading | None:
    """Return lost GPUs and error messages in what nvidia-smi and kin print; None when the input is not theirs."""
    document = topology.parse("\n".join(lines))
    kind = document.get("kind")
    if not kind or document.get("reason"):
        return None
    reading = Reading(str(kind))
    for error in document.get("errors") or ():
        reading.add("nvidia-smi-error", str(error), level="unknown" if kind == "error" else None)
    reading.not_checked.append(NotChecked("topology", "`scripts/topology check` compares it with what it should be"))
    return reading


Reader = Callable[[Sequence[str]], "Reading | None"]

READERS: tuple[Reader, ...] = (
    read_log,
    read_kernel,
    diagnose_unit.read_unit,
    diagnose_http.read_exchange,
    diagnose_host.read_processes,
    diagnose_host.read_modes,
    diagnose_host.read_pcie,
    diagnose_host.read_topology,
    diagnose_host.read_gpu_names,
    diagnose_host.read_packages,
    diagnose_host.read_driver_versions,
    diagnose_host.read_segments,
    diagnose_host.read_counts,
    diagnose_host.read_numastat,
    diagnose_host.read_commands,
)
"""All readers, in the order in which their findings are shown."""


def known() -> dict[str, list[dict[str, str]]]:
    """Return everything that is recognised, by section: ``id``, ``level``, ``what``, ``fix`` and ``source``."""
    rows = signatures.SIGNATURES
    sections: dict[str, Iterable[Rule | signatures.Signature]] = {
        "Conclusions from more than one line": RULES.values(),
        "Lines of a log": [row for row in rows if row.role != "harmless"],
        "A log that stops": signatures.STALLS.values(),
        "Harmless lines": [row for row in rows if row.role == "harmless"],
    }
    found = {title: [_known(row) for row in rows] for title, rows in sections.items()}
    found["Xid numbers"] = [
        dict(
            zip(
                _KNOWN,
                (f"xid-{row.number}", row.level, f"{row.name}: {row.meaning}", row.action, row.source),
                strict=True,
            )
        )
        for row in xid.XIDS.values()
    ]
    return found


def known_as_text() -> str:
    """Return what is known as the Markdown tables of the operator's guide."""
    head = ("Id", "Level", "What it is", "What to do", "Source")
    return "\n\n".join(
        f"## {title}\n\n" + _table(head, [[f"`{row['id']}`", *list(row.values())[1:]] for row in rows])
        for title, rows in known().items()
    )


_KNOWN = ("id", "level", "what", "fix", "source")


def _known(row: Rule | signatures.Signature) -> dict[str, str]:
    return {name: getattr(row, name) for name in _KNOWN}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
