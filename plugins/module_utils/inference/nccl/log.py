# SPDX-License-Identifier: Apache-2.0
"""What NCCL says about itself: facts from the log that it writes with NCCL_DEBUG=INFO, and whether they fit the plan.

A setting in a unit proves nothing; NCCL's own lines do: which release runs, which settings it took from its
environment, which transport each connection has, how many channels there are, which protocol a message went by. The
patterns are those of NCCL 2.23 to 2.30 (source: src/debug.cc, src/init.cc, src/enqueue.cc, src/graph/tuning.cc,
src/transport).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..findings import Finding
from .profiles import p2p_is_off
from .rules import report
from .values import c_integer, list_words, parse_list
from .variables import NEWEST, VARIABLES, VersionError, parse_version


@dataclass
class Facts:
    """What a log shows. Everything is empty or None where the log doesn't show it."""

    version: str | None = None
    driver: int | None = None
    """CUDA version of the driver, as 13000."""
    ranks: int | None = None
    """The largest number of ranks of a communicator."""
    hosts: int = 0
    """How many hosts the lines come from; NCCL's own count of nodes takes ranks without P2P and SHM for several."""
    complete: int = 0
    """How many communicators of a rank were initialised to the end."""
    started: int = 0
    """How many began."""
    environment: dict[str, str] = field(default_factory=dict)
    """Settings that NCCL says it took from its environment."""
    channels: list[int] = field(default_factory=list)
    """Channels for collectives, one number for each different communicator that says so."""
    connections: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """Pairs of ranks by transport, such as ``P2P/CUMEM``, ``SHM/direct/direct``, ``NET/Socket/0``."""
    protocols: dict[str, list[str]] = field(default_factory=dict)
    """Protocols that NCCL_PROTO leaves to each collective; NCCL says so only when NCCL_PROTO or NCCL_ALGO is set."""
    algorithms: dict[str, list[str]] = field(default_factory=dict)
    used: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Sizes by ``AllReduce RING LL``: ``calls``, ``smallest`` and ``largest`` in bytes (subsystem TUNING)."""
    network: str | None = None
    plugins: dict[str, str | None] = field(default_factory=dict)
    """Plugins by kind (ENV, NET, TUNER, PROFILER); None where NCCL looked for one and found none."""
    warnings: list[str] = field(default_factory=list)
    lines: int = 0
    """How many lines are NCCL's."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form; connections are lists of pairs."""
        result = dict(vars(self))
        result["connections"] = {name: [list(pair) for pair in pairs] for name, pairs in self.connections.items()}
        return result

    def transports(self) -> Counter[str]:
        """Return how many pairs of ranks each kind of transport (P2P, SHM, NET, ...) connects."""
        counts: Counter[str] = Counter()
        for name, pairs in self.connections.items():
            counts[name.partition("/")[0]] += len({tuple(sorted(pair)) for pair in pairs})
        return counts


_LINE = re.compile(r"(?:(\S{1,255}):\d+:\d+ )?(?:\[\d+\] )?(?:\S+ )?NCCL (INFO|WARN)\s?(.*)")
_MATRIX_ROW = re.compile(r"\s*([A-Za-z]+) \|((?:\s+[012])+)\s+\|((?:\s+[012])+)\s*")
_MATRIX_HEAD = re.compile(r"\s*Function \|([^|]+)\|([^|]+)")


def parse(text: str) -> Facts:
    """Read a log. Lines of others, prefixes, times and interleaved ranks don't matter; nothing raises."""
    facts = Facts()
    heads: tuple[list[str], list[str]] | None = None
    hosts: set[str] = set()
    for line in text.splitlines():
        match = _LINE.search(line) if "NCCL " in line else None
        if match:
            facts.lines += 1
            host, level, message = match.groups()
            hosts |= {host} if host else set()
            if level == "WARN":
                _add(facts.warnings, message.strip())
            else:
                _message(facts, message.strip())
        version = re.search(r"NCCL version (2\.\S+)", line)
        if version:
            facts.version = facts.version or version[1]
        head = _MATRIX_HEAD.fullmatch(line)
        if head:
            heads = head[1].split(), head[2].split()
        row = _MATRIX_ROW.fullmatch(line)
        if row and heads:
            _matrix(facts, row, heads)
    facts.hosts = len(hosts)
    return facts


def _matrix(facts: Facts, row: re.Match[str], heads: tuple[list[str], list[str]]) -> None:
    for cells, names, target in ((row[2], heads[0], facts.protocols), (row[3], heads[1], facts.algorithms)):
        values = cells.split()
        if len(values) == len(names):
            # 2 is NCCL's own choice, which the matrix doesn't tell
            target[row[1]] = [name for name, value in zip(names, values, strict=True) if value != "0"]


def _message(facts: Facts, message: str) -> None:
    for pattern, take in _PATTERNS:
        match = pattern.match(message)
        if match:
            take(facts, match)
            return


def _environment(facts: Facts, match: re.Match[str]) -> None:
    facts.environment[match[1]] = match[2].strip().removesuffix(".")


def _connection(facts: Facts, match: re.Match[str]) -> None:
    pairs = facts.connections.setdefault(match[3].rstrip("/"), [])
    _add(pairs, (int(match[1]), int(match[2])))


def _channels(facts: Facts, match: re.Match[str]) -> None:
    _add(facts.channels, int(match[1]))


def _started(facts: Facts, match: re.Match[str]) -> None:
    facts.ranks = max(facts.ranks or 0, int(match[1]))
    facts.started += match[2] == "START"
    facts.complete += match[2] == "COMPLETE"


def _used(facts: Facts, match: re.Match[str]) -> None:
    collective, size, algorithm, protocol = match[1], int(match[2]), match[3], match[4]
    entry = facts.used.setdefault(
        f"{collective} {algorithm} {protocol}", {"calls": 0, "smallest": size, "largest": size}
    )
    entry["calls"] += 1
    entry["smallest"] = min(entry["smallest"], size)
    entry["largest"] = max(entry["largest"], size)


def _no_plugin(facts: Facts, match: re.Match[str]) -> None:
    facts.plugins.setdefault(match[1], None)


def _plugin(facts: Facts, match: re.Match[str]) -> None:
    facts.plugins[match[1]] = match[2].strip()


def _network(facts: Facts, match: re.Match[str]) -> None:
    facts.network = match[1]


def _driver(facts: Facts, match: re.Match[str]) -> None:
    facts.driver = int(match[1])


_PATTERNS: Sequence[tuple[re.Pattern[str], Callable[[Facts, re.Match[str]], None]]] = (
    (re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (.*)"), _environment),
    (re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\] (?:\[\w+\] )?via (.+?)\s*$"), _connection),
    (re.compile(r"(\d+) coll channels"), _channels),
    (re.compile(r"ncclCommInit\w* comm \S+ rank \d+ nranks (\d+) .*Init (START|COMPLETE)"), _started),
    (re.compile(r"(\w+): (\d{1,18}) Bytes -> Algo (\w+) proto (\w+)"), _used),
    (re.compile(r"(ENV|NET|TUNER|PROFILER)/Plugin: (?:Could not find|Failed to find)"), _no_plugin),
    (re.compile(r"(ENV|NET|TUNER|PROFILER)/Plugin: (?:Using|Loaded)(?: net plugin)? (.*)"), _plugin),
    (re.compile(r"Using network (\S+)"), _network),
    (re.compile(r"cudaDriverVersion (\d{1,9})"), _driver),
)


def _add(target: list[Any], value: object) -> None:
    if value not in target:
        target.append(value)


def engaged(facts: Facts, wanted: Mapping[str, str]) -> dict[str, str]:
    """Return for each wanted setting ``yes``, ``no`` (NCCL took another value) or ``unseen`` (NCCL doesn't say)."""
    return {name: _state(facts.environment.get(name), value) for name, value in wanted.items()}


def _state(seen: str | None, wanted: str) -> str:
    if seen is None:
        return "unseen"
    number, rest = c_integer(wanted)
    same = seen.lower() == wanted.lower() or (not rest and seen == str(number))
    return "yes" if same else "no"


def compare(facts: Facts, wanted: Mapping[str, str], *, nccl_version: str | None = None) -> list[Finding]:
    """Return what in the log doesn't fit the wanted environment (and release): what was set but isn't engaged."""
    if facts.version is None and not facts.environment and not facts.channels:
        return [
            report(
                "nccl-log-empty",
                what="the log shows nothing of NCCL's start, so nothing is proved",
                seen=f"{facts.lines} lines of NCCL",
                expected="the lines that NCCL writes at initialisation with NCCL_DEBUG=INFO",
                fix="Start with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING,P2P,SHM,NET, and read again.",
            )
        ]
    checks = (_initialised, _settings, _transport, _bounds, _protocols)
    findings = [*_version(facts, nccl_version)]
    for check in checks:
        findings += check(facts, wanted)
    findings += _warnings(facts)
    return findings


def _version(facts: Facts, nccl_version: str | None) -> Iterator[Finding]:
    if nccl_version is None or facts.version is None:
        return
    try:
        same = parse_version(facts.version) == parse_version(nccl_version)
    except VersionError:
        same = False
    if not same:
        yield report(
            "nccl-version-differs",
            what="another NCCL runs than the one that was meant; what was tuned or judged for that one may not hold",
            seen=facts.version,
            expected=nccl_version,
            fix="See which library is loaded (LD_PRELOAD, VLLM_NCCL_SO_PATH), or judge and tune for this one.",
        )


def _initialised(facts: Facts, _wanted: Mapping[str, str]) -> Iterator[Finding]:
    if facts.started > facts.complete:
        yield report(
            "nccl-init-incomplete",
            level="critical" if facts.warnings else "unknown",
            what=f"{facts.started - facts.complete} of {facts.started} initialisations had not ended when the log did",
            seen=f"{facts.started} Init START, {facts.complete} Init COMPLETE",
            expected="as many ends as starts",
            fix="If it stays so, look at peer access first: IOMMU translation and ACS stall NCCL there.",
        )


def _settings(facts: Facts, wanted: Mapping[str, str]) -> Iterator[Finding]:
    states = engaged(facts, wanted)
    for name in (name for name, state in states.items() if state == "no"):
        yield report(
            "nccl-not-engaged",
            what=f"NCCL took another value of {name} than the one that was wanted",
            seen=f"{name}={facts.environment[name]}",
            expected=f"{name}={wanted[name]}",
            fix="Look for a later assignment: another drop-in, an EnvironmentFile, the engine itself.",
        )
    unseen = [name for name, state in states.items() if state == "unseen" and not _silent(facts, wanted, name)]
    proved = facts.environment and facts.complete and any(name in _READ_AT_START for name in unseen)
    if unseen:
        yield report(
            "nccl-not-engaged",
            level="critical" if proved else "warning",
            what="NCCL doesn't say that it took these; it names each setting when it reads it",
            seen="no line 'set by environment' for " + ", ".join(unseen),
            expected=", ".join(f"{name}={wanted[name]}" for name in unseen),
            fix="See that the engine's main process has them (/proc/PID/environ) and that NCCL_DEBUG_SUBSYS has ENV.",
        )
    taken = facts.environment.items()
    extra = {name: value for name, value in taken if name not in wanted and OF_THE_UNIT.get(name) != value}
    if extra and wanted:
        yield report(
            "nccl-extra-setting",
            what="NCCL took settings that were not asked for: the engine sets some itself, others come from files",
            seen=", ".join(f"{name}={value}" for name, value in extra.items()),
            expected="settings whose author is known",
            fix="Nothing, where the engine sets them; otherwise find who does.",
        )


OF_THE_UNIT: Mapping[str, str] = {"NCCL_SOCKET_IFNAME": "lo"}
"""What the service role sets besides a profile, in a unit that reaches loopback only."""

_READ_AT_START = frozenset(
    f"NCCL_{name}"
    for name in (
        *("PROTO", "ALGO", "P2P_LEVEL", "P2P_DISABLE", "SHM_DISABLE", "BUFFSIZE", "NTHREADS"),
        *("MAX_NCHANNELS", "MIN_NCHANNELS", "MAX_CTAS", "MIN_CTAS"),
    )
)
"""Settings that NCCL reads and names whenever it makes a communicator of several ranks (seen with 2.28.9)."""


def _silent(facts: Facts, wanted: Mapping[str, str], name: str) -> bool:
    """Return whether NCCL has no occasion to name a setting: it isn't NCCL's own, or another one overrules it."""
    if name not in VARIABLES or name.startswith(("NCCL_DEBUG", "NCCL_CONF_FILE")):
        return True
    off = c_integer({**wanted, **facts.environment}.get("NCCL_P2P_DISABLE", ""))[0] == 1
    return (name == "NCCL_P2P_LEVEL" and off) or (name == "NCCL_P2P_DISABLE" and not off)


def _transport(facts: Facts, wanted: Mapping[str, str]) -> Iterator[Finding]:
    counts = facts.transports()
    if not counts:
        return
    seen = ", ".join(f"{count} pairs by {name}" for name, count in counts.most_common())
    if p2p_is_off(wanted):
        expected, wrong = "SHM", counts["P2P"]
    elif wanted.get("NCCL_P2P_LEVEL") == "SYS":
        expected, wrong = "P2P", counts["SHM"] + counts["NET"]
    elif "NCCL_P2P_LEVEL" in wanted:  # a nearer level: some pairs may be farther apart, not all
        expected, wrong = "P2P for the near pairs", 0 if counts["P2P"] else counts["SHM"] + counts["NET"]
    else:
        expected, wrong = "P2P or SHM", counts["NET"] if facts.hosts == 1 else 0
    if wrong:
        off = " NCCL_P2P_DISABLE=1 is in its environment." if p2p_is_off(facts.environment) else ""
        yield report(
            "nccl-transport",
            what=f"{wrong} pairs of ranks are connected by another transport than the settings ask for.{off}",
            seen=seen,
            expected=expected,
            fix="Look at NCCL_P2P_LEVEL against the topology, at nvidia-smi topo -p2p r, and at NCCL_P2P_DISABLE.",
        )


def _bounds(facts: Facts, wanted: Mapping[str, str]) -> Iterator[Finding]:
    if not facts.channels:
        return
    most, fewest = max(facts.channels), min(facts.channels)
    for name in ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS"):
        if name in wanted and c_integer(wanted[name])[0] > most:
            yield report(
                "nccl-bound-without-effect",
                what=f"{name}={wanted[name]} bounded nothing: NCCL chose fewer channels by itself",
                seen=f"{most} channels",
                expected="a limit at or below what NCCL would use, or none",
                fix=f"Leave {name} out, unless a minimum is meant.",
            )
    for name in ("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS"):
        if name in wanted and c_integer(wanted[name])[0] > fewest:
            yield report(
                "nccl-not-engaged",
                what=f"{name}={wanted[name]} is not reached",
                seen=f"{fewest} channels",
                expected=f"{wanted[name]} or more",
                fix="Look for a maximum below it, and for the engine's own settings.",
            )


def _protocols(facts: Facts, wanted: Mapping[str, str]) -> Iterator[Finding]:
    for name, position in (("NCCL_PROTO", 2), ("NCCL_ALGO", 1)):
        allowed = _allowed(facts, name, wanted.get(name))
        wrong = [entry for entry in facts.used if not _permitted(entry.split(), position, allowed)]
        if wrong:
            yield report(
                "nccl-protocol",
                what=f"NCCL used what {name} doesn't allow",
                seen=", ".join(f"{entry} ({facts.used[entry]['calls']} calls)" for entry in wrong),
                expected=f"{name}={wanted[name]}",
                fix="See whether a tuner plugin or the engine chooses for itself.",
            )


def _allowed(facts: Facts, name: str, value: str | None) -> dict[str, dict[str, bool | None]]:
    if not value:
        return {}
    try:
        version = parse_version(facts.version) if facts.version else NEWEST
        return parse_list(value, list_words(VARIABLES[name].kind(version), version), version)
    except ValueError:
        return {}


def _permitted(entry: Sequence[str], position: int, allowed: Mapping[str, Mapping[str, bool | None]]) -> bool:
    chosen = allowed.get(entry[0])
    if chosen is None:
        return True
    words = {word.lower(): choice for word, choice in chosen.items()}
    return words.get(entry[position].replace("_", "").lower()) is not False


def _warnings(facts: Facts) -> Iterator[Finding]:
    for message in facts.warnings[:10]:
        yield report(
            "nccl-log-warning",
            what="NCCL warns",
            seen=message[:300],
            expected="no warning",
            fix="Read the lines before it; 'diagnose' knows the common ones.",
        )


def as_text(facts: Facts) -> str:
    """Return the facts for people, in a few lines."""
    counts = ", ".join(f"{name} {count}" for name, count in facts.transports().most_common())
    details = ", ".join(name for name in facts.connections)
    used = "; ".join(f"{name} {e['smallest']}..{e['largest']} B" for name, e in facts.used.items())
    plugins = ", ".join(f"{kind.lower()} {name or 'none'}" for kind, name in facts.plugins.items())
    rows = (
        ("version", facts.version),
        ("ranks", facts.ranks and f"{facts.ranks}, {facts.complete} of {facts.started} initialisations complete"),
        ("channels", ", ".join(map(str, facts.channels))),
        ("transport", f"{counts} pairs ({details})" if counts else None),
        ("taken from environment", ", ".join(f"{n}={v}" for n, v in facts.environment.items())),
        ("used", used),
        ("plugins", plugins),
        ("warnings", str(len(facts.warnings)) if facts.warnings else None),
    )
    return "\n".join(f"{label + ':':<24}{value}" for label, value in rows if value) or "no line of NCCL"
