# SPDX-License-Identifier: Apache-2.0
"""NCCL settings judged together: against each other, the links between the GPUs, and the engine's command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..environment_text import Assignment
from ..findings import Finding, Report
from .profiles import required_arguments
from .rules import report
from .values import c_integer, list_words, parse_list
from .variables import (
    FUNCTIONS,
    LEGACY_LEVELS,
    NEWEST,
    PER_FUNCTION,
    PROTOCOLS,
    VARIABLES,
    Variable,
    Version,
    version_text,
)

_REACH = {"NVL": 1, "PIX": 2, "PXB": 3, "PHB": 4, "SYS": 5}
"""NCCL's distances, nearest first; LOC reaches no other GPU."""

_SMI_REACH = {"PIX": 2, "PXB": 3, "PHB": 4, "NODE": 4, "SYS": 5, "SOC": 5}
"""The same for ``nvidia-smi topo -m``, where NVLink (NV<n>) is 1. NCCL's PHB covers nvidia-smi's PHB and NODE."""

_SYS = 5
_SHARED_MEMORY_HANDLES = (
    "--enable-pcie-oneshot-allreduce",
    "--enable-flashinfer-allreduce-fusion",
    "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
    "VLLM_ENABLE_PCIE_ALLREDUCE",
)
"""Options and variables that turn on an all-reduce which opens its peers' memory by CUDA IPC handles."""


class TopologyError(ValueError):
    """A topology that is not what ``scripts/topology parse`` prints of ``topo -m``."""


@dataclass(frozen=True)
class Topology:
    """The distances between the GPUs that take part: ``pairs`` of (GPU, GPU, word of nvidia-smi)."""

    pairs: tuple[tuple[int, int, str], ...]

    @classmethod
    def from_dict(cls, document: object) -> Topology:
        """Read the JSON of a parsed ``topo -m``. Raises TopologyError."""
        content: Mapping[str, Any] = document if isinstance(document, Mapping) else {}
        rows = content.get("links")
        if (
            not isinstance(rows, list)
            or not rows
            or not all(isinstance(row, list) and len(row) == len(rows) for row in rows)
        ):
            raise TopologyError("no links in it; expected what scripts/topology parse prints of nvidia-smi topo -m")
        ids = content.get("gpu_ids") or list(range(len(rows)))
        cells = [(a, b, str(rows[a][b])) for a in range(len(rows)) for b in range(a + 1, len(rows))]
        unknown = sorted({word for _, _, word in cells if word not in _SMI_REACH and not re.fullmatch(r"NV\d+", word)})
        if unknown or len(ids) != len(rows):
            raise TopologyError(f"unknown links {', '.join(unknown)}" if unknown else "gpu_ids and links don't match")
        return cls(tuple((int(ids[a]), int(ids[b]), word) for a, b, word in cells))

    def visible(self, devices: str | None) -> Topology:
        """Return what is left with CUDA_VISIBLE_DEVICES; anything but a list of indices leaves it as it is."""
        if not devices or not re.fullmatch(r"\d{1,4}(,\d{1,4})*", devices):
            return self
        chosen = {int(index) for index in devices.split(",")}
        return Topology(tuple(pair for pair in self.pairs if pair[0] in chosen and pair[1] in chosen))

    def at(self, reach: int) -> list[tuple[int, int, str]]:
        """Return the pairs of exactly that distance."""
        return [pair for pair in self.pairs if _reach(pair[2]) == reach]

    @property
    def farthest(self) -> int:
        """Return the greatest distance, 0 where there is only one GPU."""
        return max((_reach(word) for _, _, word in self.pairs), default=0)

    @property
    def all_on_pcie(self) -> bool:
        """Return whether there are several GPUs and no NVLink between any two."""
        return bool(self.pairs) and not self.at(1)


def _reach(word: str) -> int:
    return _SMI_REACH.get(word, 1)


@dataclass
class Case:
    """What is judged: the effective settings, where each stands, the release, the host, the engine's command line."""

    settings: dict[str, Assignment]
    version: Version
    topology: Topology | None
    command: list[str] | None
    report: Report = field(default_factory=Report)
    loopback_only: bool = False
    """Whether the unit lets its processes speak to no address but those of loopback."""

    def value(self, name: str) -> str | None:
        """Return a value, or None where it isn't set, is empty or depends on what the text doesn't hold."""
        assignment = self.settings.get(name)
        return assignment.value or None if assignment and not assignment.unresolved else None

    def number(self, name: str) -> int | None:
        """Return the number that NCCL reads from a value, or None as ``value`` does."""
        value = self.value(name)
        return c_integer(value)[0] if value else None

    def plain(self) -> dict[str, str]:
        """Return the settings whose values are known, as a mapping."""
        return {name: a.value for name, a in self.settings.items() if not a.unresolved}

    def known(self) -> Iterator[tuple[Variable, Assignment]]:
        """Yield the settings that are NCCL's own variables."""
        for name, assignment in self.settings.items():
            if name in VARIABLES:
                yield VARIABLES[name], assignment


def _classes(case: Case) -> Iterator[Finding]:
    groups: dict[str, list[str]] = {"debugging": [], "undocumented": []}
    for variable, _ in case.known():
        if variable.variable_class != "system":
            groups[variable.variable_class].append(variable.name)
    if groups["debugging"]:
        yield report(
            "nccl-debugging-class",
            what="NCCL's guide keeps these for experiments: not for production, nor to be left in scripts",
            seen=", ".join(groups["debugging"]),
            expected="a measurement on this host that justifies each, repeated at each new NCCL release",
            fix="Measure with and without; remove what gains nothing.",
        )
    if groups["undocumented"]:
        yield report(
            "nccl-undocumented",
            what="NCCL reads these, but its guide doesn't describe them: a new release may drop or change them unsaid",
            seen=", ".join(groups["undocumented"]),
            expected="documented settings",
            fix="Keep them only with a measurement, and look again at each new NCCL release.",
        )


def _without_effect(case: Case) -> Iterator[Finding]:
    network = [variable.name for variable, _ in case.known() if variable.scope == "network"]
    if network and case.number("NCCL_SHM_DISABLE") in (None, 0):
        yield report(
            "nccl-one-host",
            what="these matter between hosts only: inside one host NCCL uses peer access or shared memory",
            seen=", ".join(network),
            expected="nothing, on a single host",
            fix="Remove them, or keep them for other hosts.",
        )
    nvlink = [variable.name for variable, _ in case.known() if variable.scope == "nvlink"]
    if nvlink and case.topology and case.topology.all_on_pcie:
        yield report(
            "nccl-nvlink-only",
            what="these matter where there is NVLink; all GPUs of this host are on PCIe",
            seen=", ".join(nvlink),
            expected="nothing",
            fix="Remove them.",
        )


def _chosen(case: Case, name: str) -> dict[str, dict[str, bool | None]] | None:
    """Return what NCCL_PROTO or NCCL_ALGO selects, None where it isn't set or can't be read."""
    value = case.value(name)
    if not value:
        return None
    try:
        return parse_list(value, list_words(VARIABLES[name].kind(case.version), case.version), case.version)
    except ValueError:
        return None


def _low_latency_128(case: Case) -> Iterator[Finding]:
    protocols = _chosen(case, "NCCL_PROTO")
    forced = [function for function in FUNCTIONS if protocols and protocols[function]["LL128"]]
    if not forced:
        return
    seen = f"NCCL_PROTO={case.value('NCCL_PROTO')}"
    if "^" in seen:
        seen += " (a list after ^ allows all that it doesn't name, LL128 with it)"
    fix = "Name the protocols without it: NCCL_PROTO=LL,Simple; or remove NCCL_PROTO."
    expected = "LL128 chosen by NCCL, which inside one host uses it over NVLink only"
    if case.topology is None:
        case.report.skip(
            "nccl-ll128-across-sys", "no topology given: whether any pair of GPUs is SYS apart is not known"
        )
    across = case.topology.at(_SYS) if case.topology else []
    if across:
        first = f"GPU{across[0][0]} and GPU{across[0][1]}"
        yield report(
            "nccl-ll128-across-sys",
            what=f"LL128 is forced for {', '.join(forced)} across sockets: data can be corrupted",
            seen=f"{seen}; {len(across)} pairs are SYS apart, {first} for one",
            expected=expected,
            fix=fix,
        )
    elif case.topology is None or case.topology.farthest > 1:
        yield report(
            "nccl-ll128-forced",
            what=f"LL128 is forced for {', '.join(forced)}: a path that doesn't keep 128 bytes together corrupts data",
            seen=seen,
            expected=expected,
            fix=fix,
        )


def _low_latency_only(case: Case) -> Iterator[Finding]:
    protocols = _chosen(case, "NCCL_PROTO")
    if protocols and [name for name in PROTOCOLS if protocols["AllReduce"][name]] == ["LL"]:
        yield report(
            "nccl-ll-for-all-sizes",
            what="LL alone for AllReduce: half of what it sends is flags, which slows large messages, and so prefill",
            seen=f"NCCL_PROTO={case.value('NCCL_PROTO')}",
            expected="NCCL's own choice by size, unless a measurement at the model's own sizes says otherwise",
            fix="Compare with the profile balanced, which leaves NCCL_PROTO out.",
        )


def _algorithm_gap(case: Case) -> Iterator[Finding]:
    algorithms = _chosen(case, "NCCL_ALGO")
    if algorithms is None:
        return
    nvlink = case.topology is None or not case.topology.all_on_pcie
    gaps = [function for function in FUNCTIONS if not _usable(function, algorithms[function], nvlink=nvlink)]
    if gaps:
        fails = case.version >= PER_FUNCTION
        yield report(
            "nccl-algorithm-gap",
            level="critical" if fails else "warning",
            what=f"no algorithm that works in one host is left for {', '.join(gaps)}: "
            + ("NCCL fails" if fails else "NCCL falls back to Ring"),
            seen=f"NCCL_ALGO={case.value('NCCL_ALGO')}",
            expected="Ring, which all have; Tree is for AllReduce only, NVLS needs an NVSwitch, PAT several hosts",
            fix="Add Ring, or limit the list to AllReduce: NCCL_ALGO=allreduce:... (since 2.24).",
        )


def _usable(function: str, chosen: Mapping[str, bool | None], *, nvlink: bool) -> bool:
    candidates = ["Ring"]
    candidates += ["Tree"] if function == "AllReduce" else []
    candidates += ["NVLS"] if nvlink and function in ("AllGather", "ReduceScatter", "AllReduce") else []
    return any(chosen.get(name, False) in (True, None) for name in candidates)


_MINIMA = ("NCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS")
_MAXIMA = ("NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS")


def _channels(case: Case) -> Iterator[Finding]:
    for low in _MINIMA:
        for high in _MAXIMA:
            smallest, largest = case.number(low), case.number(high)
            if smallest is None or largest is None or smallest <= largest or largest < 1:
                continue
            both = low == "NCCL_MIN_CTAS" and high == "NCCL_MAX_CTAS"
            yield report(
                "nccl-min-above-max",
                what=f"{low} is above {high}: NCCL "
                + ("lowers the minimum to the maximum" if both else "raises the number of channels to the minimum"),
                seen=f"{low}={smallest}, {high}={largest}",
                expected="a minimum that is not above the maximum",
                fix=f"Lower {low} or raise {high}.",
            )
    for names, winner in ((_MAXIMA, "lower"), (_MINIMA, "higher")):
        values = {name: case.number(name) for name in names[:2] if case.number(name) is not None}
        if len(values) > 1:
            yield report(
                "nccl-two-names",
                level="info" if len(set(values.values())) == 1 else "warning",
                what=f"these are the new and the old name of one limit; the {winner} value wins",
                seen=", ".join(f"{name}={value}" for name, value in values.items()),
                expected=f"{names[0]} alone",
                fix=f"Remove {names[1]}.",
            )


def _peer_access(case: Case) -> Iterator[Finding]:
    level = case.value("NCCL_P2P_LEVEL")
    if case.number("NCCL_P2P_DISABLE") == 1:
        if level not in (None, "LOC", "0"):
            yield report(
                "nccl-p2p-contradiction",
                what="NCCL_P2P_DISABLE=1 turns peer access off; NCCL doesn't look at NCCL_P2P_LEVEL then",
                seen=f"NCCL_P2P_DISABLE={case.value('NCCL_P2P_DISABLE')}, NCCL_P2P_LEVEL={level}",
                expected="one of the two",
                fix="Remove the one that isn't meant.",
            )
        if case.number("NCCL_SHM_DISABLE") not in (None, 0):
            yield report(
                "nccl-no-transport",
                what="with peer access and shared memory both off, GPUs of one host talk through the network stack",
                seen=f"NCCL_P2P_DISABLE=1, NCCL_SHM_DISABLE={case.value('NCCL_SHM_DISABLE')}",
                expected="at least one of the two",
                fix="Remove NCCL_SHM_DISABLE.",
            )
        return
    if level and case.topology and case.topology.pairs:
        yield from _level_against_host(level, case.topology)


def _level_against_host(level: str, topology: Topology) -> Iterator[Finding]:
    word = level
    if level[0] in "0123456789":
        word = LEGACY_LEVELS[min(c_integer(level)[0], len(LEGACY_LEVELS) - 1)]
    if word == "LOC" or word not in _REACH:
        return
    within = [pair for pair in topology.pairs if _reach(pair[2]) <= _REACH[word]]
    words = sorted({found for _, _, found in topology.pairs if _reach(found) > _REACH[word]})
    if words:
        yield report(
            "nccl-p2p-level-topology",
            level="info" if within else "warning",
            what=f"{len(within)} of {len(topology.pairs)} pairs of GPUs are near enough for peer access at this level; "
            "the others go through shared memory",
            seen=f"NCCL_P2P_LEVEL={level}; links beyond it: {', '.join(words)}",
            expected="a level that reaches the pairs that are to use peer access (NODE counts as PHB)",
            fix="Raise NCCL_P2P_LEVEL, if peer access was tested to work there; or say NCCL_P2P_DISABLE=1 plainly.",
        )


def _custom_all_reduce(case: Case) -> Iterator[Finding]:
    for option in required_arguments(case.plain()):
        if case.command is not None and option in case.command:
            continue
        program = case.command[0] if case.command else "an empty command line"
        yield report(
            "nccl-custom-all-reduce",
            level="info" if case.command is None else "warning",
            what="peer access is off for NCCL only: the engine's own all-reduce still uses it and can hang",
            seen="no command line of the engine was given" if case.command is None else f"{program} without {option}",
            expected=f"{option} on the engine's command line",
            fix=f"Add {option}.",
        )


def _expandable_segments(case: Case) -> Iterator[Finding]:
    names = [
        name
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        if re.search(r"expandable_segments\s*:\s*true", case.value(name) or "", re.IGNORECASE)
    ]
    if not names:
        return
    users = [word for word in case.command or [] if word.partition("=")[0] in _SHARED_MEMORY_HANDLES]
    users += [n for n in _SHARED_MEMORY_HANDLES if (case.value(n) or "").lower() in ("1", "true", "yes", "on")]
    yield report(
        "nccl-expandable-segments",
        level="critical" if users else "info",
        what="memory in expandable segments can't be shared by CUDA IPC handles: an all-reduce that opens its peers' "
        + ("memory crashes" if users else "memory would crash; none is turned on here"),
        seen=", ".join([f"{names[0]}={case.value(names[0])}", *users]),
        expected="one of the two",
        fix=f"Remove expandable_segments from {names[0]}.",
    )


def _meeting_place(case: Case) -> Iterator[Finding]:
    """Judge where ranks meet in a unit with IPAddressDeny=any: not even the host's own other addresses are reached."""
    assignment = case.settings.get("NCCL_SOCKET_IFNAME")
    alone = re.fullmatch(r"\d+", case.value("CUDA_VISIBLE_DEVICES") or "")
    if not case.loopback_only or alone or (assignment and assignment.unresolved):
        return
    value = case.value("NCCL_SOCKET_IFNAME")
    if value and any(word.strip("=").startswith("lo") for word in value.split(",")):
        return
    yield report(
        "nccl-loopback-unit",
        level="critical" if value else "warning",
        what="the unit reaches loopback only, but the ranks of NCCL are to meet on "
        + ("another interface" if value else "the first other interface, which NCCL prefers to loopback")
        + ": with several GPUs the engine doesn't start",
        seen=f"IPAddressDeny=any, NCCL_SOCKET_IFNAME={value}" if value else "IPAddressDeny=any, no NCCL_SOCKET_IFNAME",
        expected="NCCL_SOCKET_IFNAME=lo, which the service role sets in such a unit",
        fix="Set NCCL_SOCKET_IFNAME=lo and GLOO_SOCKET_IFNAME=lo, or open the unit (service_loopback_only: false).",
    )


def _files(case: Case) -> Iterator[Finding]:
    if "NCCL_TUNER_CONFIG_FILE" in case.settings and not case.value("NCCL_TUNER_PLUGIN"):
        yield report(
            "nccl-tuner-without-plugin",
            what="only a tuner plugin reads NCCL_TUNER_CONFIG_FILE, and none is named",
            seen="NCCL_TUNER_CONFIG_FILE without NCCL_TUNER_PLUGIN",
            expected="NCCL_TUNER_PLUGIN with the plugin that reads the file",
            fix="Set NCCL_TUNER_PLUGIN to the plugin's path.",
        )
    path = case.value("NCCL_DEBUG_FILE")
    if path and "%p" not in path and not path.startswith("/dev/"):
        yield report(
            "nccl-debug-file-shared",
            what="every process of the engine writes to this file, and each overwrites what the others wrote",
            seen=f"NCCL_DEBUG_FILE={path}",
            expected="%p in the name, which NCCL replaces by the process id (in a unit: %%p)",
            fix=f"Write NCCL_DEBUG_FILE={path}.%p.",
        )


def _beyond(case: Case) -> Iterator[Finding]:
    if case.version > NEWEST and case.version[:2] != NEWEST[:2]:
        yield report(
            "nccl-version-beyond",
            what="this release is newer than the table of variables: what it changed is not known here",
            seen=version_text(case.version),
            expected=f"{version_text(NEWEST)} or older",
            fix="Compare with the release's own guide.",
        )


TOGETHER: Sequence[Callable[[Case], Iterable[Finding]]] = (
    _low_latency_128,
    _algorithm_gap,
    _channels,
    _peer_access,
    _custom_all_reduce,
    _expandable_segments,
    _meeting_place,
    _files,
    _low_latency_only,
    _without_effect,
    _classes,
    _beyond,
)
