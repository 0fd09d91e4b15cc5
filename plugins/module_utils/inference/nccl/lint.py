# SPDX-License-Identifier: Apache-2.0
"""The lint of NCCL settings: names and values for one release, and settings together, against the host and the engine.

Input is a text in any form that ``environment_text`` reads, or a mapping. The topology is what ``scripts/topology
parse`` prints of ``nvidia-smi topo -m``; ``together`` says which keys count.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .. import environment_text
from ..environment_text import Assignment, EnvironmentText
from ..findings import Finding, Report
from ..program import nearest
from .foreign import as_shell
from .profiles import p2p_is_off
from .rules import report
from .together import TOGETHER, Case, Topology
from .values import check_value
from .variables import (
    BUILD_NAMES,
    NEWEST,
    PLUGIN_PREFIXES,
    PYTORCH_NAMES,
    SUCCESSORS,
    VARIABLES,
    Variable,
    parse_version,
    version_text,
)


def lint(
    text: str,
    nccl_version: str,
    *,
    topology: Mapping[str, Any] | None = None,
    command: Sequence[str] | None = None,
    conf_files: Sequence[tuple[str, str]] = (),
    is_conf: bool = False,
) -> Report:
    """Judge the settings in ``text`` for one NCCL release and return the report.

    ``is_conf`` says that the text is a configuration file of NCCL itself, where quotes and white space count.
    ``command`` is the engine's command line where the text has none. ``conf_files`` are (path, text) of NCCL's own
    configuration files in the order in which NCCL reads them: NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf.
    Raises VersionError and TopologyError; a text never raises.
    """
    text, garbage = _without_garbage(text)
    content = environment_text.read_conf(text) if is_conf else _content(text)
    case = _lint(content, nccl_version, topology, command, conf_files)
    case.report.extend(garbage or _unread(text, case.settings))
    return case.report


def unreadable(text: str) -> list[Finding]:
    """Return the finding (level unknown) that a text can't be read as settings, or nothing where it can."""
    text, garbage = _without_garbage(text)
    return garbage or _unread(text, _content(text).effective())


_LINE = re.compile(r"[^\0\n]+")
_NO_TEXT = re.compile(r"[\x01-\x06\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\ufffd]")
"""Bytes that are no text in any encoding that is read here; what colours a terminal or sets its title is none."""


def _without_garbage(text: str) -> tuple[str, list[Finding]]:
    """Return ``text``; where most of its lines are no text, without these, and with the finding that says so.

    By chance, bytes hold what looks like settings. A comment may be in any encoding, and what concerns NCCL is judged.
    """
    lines = [line for line in _LINE.findall(text) if line.strip() and not line.lstrip().startswith(("#", ";"))]
    count = sum(map(_is_garbage, lines))
    if not count or 2 * count < len(lines):
        return text, []
    finding = report(
        "nccl-unreadable",
        level="unknown",
        what="the file is no text, so what it sets is not known",
        seen=f"{count} of {len(lines)} lines hold bytes that are no text",
        expected=_FORMS,
        fix="Look whether this is the file that was meant, and whether it is compressed or damaged.",
    )
    return _LINE.sub(lambda found: "" if _is_garbage(found[0]) else found[0], text), [finding]


def _is_garbage(line: str) -> bool:
    return _NO_TEXT.search(line) is not None and not _concerns_nccl(line)


_FORMS = "NAME=VALUE or export lines, a unit or drop-in, or an environment as in /proc/PID/environ"


def _unread(text: str, settings: Mapping[str, Assignment]) -> list[Finding]:
    return [] if settings or _sets_nothing_on_purpose(text) else [_no_setting(text)]


def _content(text: str) -> EnvironmentText:
    return environment_text.read(text if environment_text.is_unit(text) else as_shell(text))


_SETS_NOTHING = re.compile(r'^# NCCL profile "none"', re.MULTILINE)
"""What the rendered profile ``none`` says of itself."""


def _sets_nothing_on_purpose(text: str) -> bool:
    """Return whether a text without any setting is whole all the same: a unit, or the profile ``none``."""
    return environment_text.is_unit(text) or _SETS_NOTHING.search(text) is not None


def _no_setting(text: str) -> Finding:
    lines = sum(bool(line.strip()) for line in text.splitlines())
    return report(
        "nccl-unreadable",
        level="unknown",
        what="the text sets nothing, so there is nothing to judge",
        seen=f"{lines} lines, and no NAME=VALUE among them" if lines else "an empty text",
        expected=_FORMS,
        fix="Look whether this is the file that was meant. The profile none is told by its first line.",
    )


def settings_of(text: str) -> dict[str, str]:
    """Return the NCCL settings that hold in the end, by name; those that only the unit or shell knows are left out."""
    effective = _content(text).effective()
    return {name: a.value for name, a in effective.items() if name.startswith("NCCL_") and not a.unresolved}


def lint_environment(
    environment: Mapping[str, str],
    nccl_version: str,
    *,
    topology: Mapping[str, Any] | None = None,
    command: Sequence[str] | None = None,
    conf_files: Sequence[tuple[str, str]] = (),
    loopback_only: bool = False,
) -> Report:
    """Judge settings that are already names and values, as ``lint`` does.

    ``loopback_only``: they are for a unit whose processes reach no address but those of loopback.
    """
    content = EnvironmentText([Assignment(name, value, 0) for name, value in environment.items()])
    content.addresses["IPAddressDeny"] += ["any"] if loopback_only else []
    return _lint(content, nccl_version, topology, command, conf_files).report


def _lint(
    content: EnvironmentText,
    nccl_version: str,
    topology: Mapping[str, Any] | None,
    command: Sequence[str] | None,
    conf_files: Sequence[tuple[str, str]],
) -> Case:
    version = parse_version(nccl_version)
    host = None if topology is None else Topology.from_dict(topology)
    settings = content.effective()
    engine = list(command) if command is not None else _engine_command(content.command)
    case = Case(settings, version, host, engine, loopback_only=content.loopback_only)
    case.report.extend(_reading(content))
    case.report.extend(_duplicates(content))
    case.report.extend(_conf_files(case, conf_files))
    if host is not None:
        case.topology = host.visible(case.value("CUDA_VISIBLE_DEVICES"))
    for name, assignment in settings.items():
        case.report.extend(_name_and_value(case, name, assignment))
    for check in TOGETHER:
        case.report.extend(check(case))
    _not_checked(case, content, conf_files)
    return case


def _engine_command(command: Sequence[str]) -> list[str] | None:
    """Return a command line if it starts an engine; that of a wrapper says nothing about the engine's options."""
    return list(command) if any("sglang" in word or "vllm" in word for word in command) else None


# how it was read

_PROBLEM_RULES = {
    "unreadable": "nccl-unreadable",
    "wrong-section": "nccl-wrong-section",
    "inline-comment": "nccl-inline-comment",
    "several": "nccl-several-in-a-line",
    "specifier": "nccl-specifier",
    "quotes-kept": "nccl-quotes-kept",
    "white-space": "nccl-white-space",
    "unexpanded": "nccl-unexpanded",
}

_READING_FIXES = {
    "unreadable": "Write it as NAME=VALUE; quote a value that holds white space.",
    "wrong-section": "Write Environment=NAME=VALUE in the section [Service].",
    "inline-comment": "Put the comment on a line of its own.",
    "several": "Put each setting on a line of its own.",
    "specifier": "Double the percent sign.",
    "quotes-kept": "Remove the quotes.",
    "white-space": "Remove the white space.",
    "unexpanded": "Write the value out.",
}


def _reading(content: EnvironmentText) -> Iterator[Finding]:
    for problem in content.problems:
        if problem.kind in ("unreadable", "specifier", "unexpanded") and not _concerns_nccl(problem.seen):
            continue
        yield report(
            _PROBLEM_RULES[problem.kind],
            what=f"line {problem.line}: {problem.what}",
            seen=_without_secrets(problem.seen),
            expected="a setting that reads the same everywhere",
            fix=_READING_FIXES[problem.kind],
        )


def _concerns_nccl(text: str) -> bool:
    return "NCCL" in text.upper()


def _without_secrets(text: str) -> str:
    """Return the words about NCCL and white-space traps; whatever else stands in a line may be a secret."""
    words = [word if _concerns_nccl(word) or word in ("#", "=", "CR", "LF") else "..." for word in text.split()]
    shown = [word for i, word in enumerate(words) if word != "..." or words[i - 1 : i] != ["..."]]
    return " ".join(shown)[:200]


def _duplicates(content: EnvironmentText) -> Iterator[Finding]:
    by_name: dict[str, list[Assignment]] = {}
    for entry in content.assignments:
        by_name.setdefault(entry.name, []).append(entry)
    for name, (*earlier, last) in by_name.items():
        if not earlier or not _concerns_nccl(name):
            continue
        same = all(entry.value == last.value for entry in earlier)
        yield report(
            "nccl-duplicate",
            level="info" if same else "warning",
            what=f"{name} is set {len(earlier) + 1} times; the last one wins",
            seen="; ".join(f"line {entry.line}: {entry.value}" for entry in [*earlier, last]),
            expected="one line a setting",
            fix=f"Keep {name}={last.value} and remove the others, or the other way round.",
        )


# configuration files


def _conf_files(case: Case, conf_files: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    for path, given in conf_files:
        text, garbage = _without_garbage(given)
        yield from (replace(finding, what=f"{path}: {finding.what}") for finding in garbage)
        content = environment_text.read_conf(text)
        yield from _reading(content)
        first: dict[str, Assignment] = {}
        for entry in content.assignments:
            first.setdefault(entry.name, entry)  # NCCL never overwrites what is already set
        for name, entry in first.items():
            if _concerns_nccl(name):
                yield _conf_setting(case, path, entry)


def _conf_setting(case: Case, path: str, entry: Assignment) -> Finding:
    current = case.settings.get(entry.name)
    if current is None:
        case.settings[entry.name] = entry
        return report(
            "nccl-conf-file",
            what=f"{path} sets {entry.name} for every process on the host; the settings that are judged leave it open",
            seen=f"{path}, line {entry.line}: {entry.name}={entry.value}",
            expected="settings in one place: NCCL takes from its files what the environment doesn't set",
            fix=f"Remove the line, or set {entry.name} in the environment, which wins.",
        )
    return report(
        "nccl-conf-shadowed",
        what=f"{path} sets {entry.name} too, without effect: what is set already wins",
        seen=f"{path}, line {entry.line}: {entry.name}={entry.value}; in force: {current.value}",
        expected="settings in one place",
        fix="Remove the line from the file.",
    )


# one setting


def _name_and_value(case: Case, name: str, assignment: Assignment) -> Iterator[Finding]:
    if name not in VARIABLES:
        yield from _other_name(case, name)
        return
    variable = VARIABLES[name]
    if not variable.known_in(case.version):
        yield _wrong_release(case, variable)
        return
    if name in SUCCESSORS and SUCCESSORS[name][0] <= case.version:
        since, successor = SUCCESSORS[name]
        yield report(
            "nccl-old-name",
            what=f"{name} is deprecated since {version_text(since)}; it still works",
            seen=f"{name}={assignment.value}",
            expected=successor,
            fix=f"Use {successor}.",
            source=variable.reference,
        )
    if not assignment.unresolved:
        yield from check_value(variable, assignment.value, case.version)


def _wrong_release(case: Case, variable: Variable) -> Finding:
    running = version_text(case.version)
    if variable.since > case.version:
        return report(
            "nccl-not-yet",
            what=f"NCCL {running} doesn't know {variable.name} yet: it has no effect",
            seen=f"{variable.name} with NCCL {running}",
            expected=f"NCCL {version_text(variable.since)} or newer",
            fix=f"Remove {variable.name}, or use a newer NCCL.",
            source=variable.reference,
        )
    successor = f": {SUCCESSORS[variable.name][1]}" if variable.name in SUCCESSORS else ""
    return report(
        "nccl-gone",
        what=f"NCCL {running} no longer reads {variable.name}: it has no effect",
        seen=f"{variable.name} with NCCL {running}",
        expected=f"a variable of this release{successor}",
        fix=f"Remove {variable.name}.",
        source=variable.reference,
    )


def _other_name(case: Case, name: str) -> Iterator[Finding]:
    upper = name.upper()
    if not upper.startswith("NCCL_"):
        yield from _misspelt_prefix(name)
        return
    if upper != name:
        yield report(
            "nccl-name-case",
            what="names of variables are case-sensitive: NCCL doesn't see this one",
            seen=name,
            expected=f"{upper}{nearest(upper, VARIABLES) if upper not in VARIABLES else ''}",
            fix=f"Write {upper}.",
        )
    elif name in PYTORCH_NAMES or name in BUILD_NAMES or name.startswith(PLUGIN_PREFIXES):
        owner = "PyTorch" if name in PYTORCH_NAMES else "a plugin" if name not in BUILD_NAMES else "builds and images"
        yield report(
            "nccl-foreign-name",
            what=f"NCCL itself doesn't read {name}; it is a name of {owner}",
            seen=name,
            expected=f"TORCH_{name}" if name in PYTORCH_NAMES else "that whoever reads it is in use",
            fix=f"Use TORCH_{name}." if name in PYTORCH_NAMES else f"Keep {name} only if that is so.",
        )
    else:
        beyond = "" if case.version <= NEWEST else f" up to {version_text(NEWEST)}, the newest that is known here"
        yield report(
            "nccl-unknown-name",
            what=f"no release of NCCL{beyond} reads {name}{nearest(name, _known_names(case))}",
            seen=name,
            expected="a variable that NCCL reads; it says nothing about others",
            fix=f"Correct or remove {name}.",
        )


def _known_names(case: Case) -> list[str]:
    return [name for name, variable in VARIABLES.items() if variable.known_in(case.version)]


_CLOSE = 0.88
"""Likeness (difflib) above which a name that begins with a permutation of NCCL is a slip: one letter of ten."""


def _misspelt_prefix(name: str) -> Iterator[Finding]:
    """Report names such as NCLL_PROTO; RCCL_... and MCCL_... are other libraries' own."""
    upper = name.upper()
    if set(upper.partition("_")[0]) != set("NCL"):
        return
    close = difflib.get_close_matches(upper, VARIABLES, n=1, cutoff=_CLOSE)
    if close:
        yield report(
            "nccl-unknown-name",
            what=f"nothing reads {name}; did you mean {close[0]!r}?",
            seen=name,
            expected="a name that begins with NCCL_",
            fix=f"Correct or remove {name}.",
        )


def _not_checked(case: Case, content: EnvironmentText, conf_files: Sequence[tuple[str, str]]) -> None:
    if case.topology is None and case.settings.keys() & {"NCCL_P2P_LEVEL", "NCCL_NVLS_ENABLE"}:
        case.report.skip("nccl-p2p-level-topology", "no topology given")
    if not conf_files:
        case.report.skip("nccl-conf-file", "no configuration file of NCCL given (/etc/nccl.conf, ~/.nccl.conf)")
    for name in content.files:
        case.report.skip("nccl-unreadable", f"EnvironmentFile={name} sets more, and wins over Environment=; not read")
    for name, assignment in case.settings.items():
        if assignment.unresolved and _concerns_nccl(name):
            case.report.skip("nccl-illegal-value", f"{name} is known only when the unit or shell runs")
    if p2p_is_off(case.plain()) and case.command is None:
        case.report.skip("nccl-custom-all-reduce", "no command line of the engine given")
