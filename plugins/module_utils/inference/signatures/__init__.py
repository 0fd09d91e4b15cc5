# SPDX-License-Identifier: Apache-2.0
"""The one table of known log lines and its scanner: used by the supervisor, the smoke test and ``diagnose``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ..findings import Finding
from ..redact import redact
from .engine import ENGINE_SIGNATURES
from .harmless import HARMLESS_SIGNATURES, VAGUE_SIGNATURES
from .host import HOST_SIGNATURES
from .phases import PHASE_NAMES, PHASES, phase_of
from .signature import Signature, WordFilter, clean

__all__ = [
    "PHASES",
    "PHASE_NAMES",
    "SIGNATURES",
    "STALLS",
    "Match",
    "Scanner",
    "Signature",
    "finding",
    "may_match",
    "phase_of",
    "root_cause",
    "scan",
    "signature",
    "stall",
]

SIGNATURES: tuple[Signature, ...] = (*HARMLESS_SIGNATURES, *HOST_SIGNATURES, *ENGINE_SIGNATURES, *VAGUE_SIGNATURES)
"""Every known line. The first row that matches a line counts."""

_BY_ID: Mapping[str, Signature] = {row.id: row for row in SIGNATURES}
_FILTER = WordFilter(SIGNATURES)

REQUEST_LOG = re.compile(r"Received request \S+: |Receive: obj=|Finish: obj=|\bprompt: ['\"]")
"""Lines in which an engine repeats a user's prompt: whatever they say, they are no error."""

_SHOWN = 400
"""Characters of a line that a match keeps."""


def signature(signature_id: str) -> Signature:
    """Return the signature with this id; KeyError when there is none."""
    return _BY_ID[signature_id]


@dataclass(frozen=True)
class Match:
    """A known line. ``line`` is shortened and free of secrets; ``number`` counts from 1; ``count``: how often."""

    signature: Signature
    line: str
    number: int
    count: int = 1
    subject: str | None = None
    """What the line is about where the pattern names it (the variable of ``variable-unknown``), else None."""


class Scanner:
    """Reads a log line by line. ``matches`` holds the first line of each signature with its count, in order."""

    def __init__(self) -> None:
        self._number = 0
        self._first: dict[str, Match] = {}

    @property
    def matches(self) -> list[Match]:
        """Return one match a signature (and subject): the first line, with how often it came."""
        return list(self._first.values())

    def skip(self, lines: int) -> None:
        """Count lines that :func:`may_match` has ruled out."""
        self._number += lines

    def feed(self, line: str) -> Match | None:
        """Take the next line; return its match, whose ``count`` says how often this signature has come, or None."""
        self._number += 1
        line = clean(line)
        found = _FILTER.first(line)
        if found is None or REQUEST_LOG.search(line):
            return None
        row, span = found
        subject = next((value for value in span.groupdict().values() if value), None)
        key = f"{row.id} {subject}"
        first = self._first.get(key)
        if first is None:
            first = Match(row, _shown(line, row), self._number, subject=subject)
            self._first[key] = first
            return first
        self._first[key] = replace(first, count=first.count + 1)
        return Match(row, _shown(line, row), self._number, first.count + 1, subject)


def may_match(lines: bytes) -> bool:
    """Tell whether a known line may be among these; False is certain, and found out much faster than line by line."""
    return _FILTER.may_match(lines)


def _shown(line: str, row: Signature) -> str:
    """Return the line without secrets; of a long one the part around the match."""
    text = redact(line).strip()
    if len(text) <= _SHOWN:
        return text
    found = row.regex.search(text)
    start = max(0, found.start() - _SHOWN // 4) if found else 0
    return text[start : start + _SHOWN]


def scan(lines: Iterable[str]) -> list[Match]:
    """Return one match a signature over all ``lines``: its first line, its number and count, in order."""
    scanner = Scanner()
    for line in lines:
        scanner.feed(line)
    return scanner.matches


NEAR = 10
"""Lines within which a cause explains a vague one before it: rows such as NCCL's "Last error" follow the exception."""


def root_cause(matches: Iterable[Match]) -> Match | None:
    """Return what explains a failure: the first critical cause, else the first critical echo of one, else a warning.

    A later error (an address in use in the restart loop that follows an out-of-memory) never hides the first, a
    warning never hides an error, and harmless lines never count. A cause closely behind a vague one goes before it.
    """
    ranked = sorted(
        (match for match in matches if match.signature.role != "harmless" and match.signature.level != "info"),
        key=lambda match: (
            match.signature.level != "critical",
            match.signature.role == "consequence",
            match.number + NEAR * match.signature.vague,
        ),
    )
    return ranked[0] if ranked else None


def finding(match: Match) -> Finding:
    """Return the finding that a match stands for."""
    row = match.signature
    times = f" ({match.count} times)" if match.count > 1 else ""
    what = f"{row.what}: {match.subject}" if match.subject else row.what
    return Finding(row.id, row.level, what, f"line {match.number}{times}: {match.line}", row.expected, row.fix)


_STALLED = "a log that moves on within the phase's time"

STALLS: Mapping[str, Signature] = {
    "starting": Signature(
        "start-stalled",
        "critical",
        "stalled",
        (),
        "",
        "the log stops while the engine starts its processes",
        _STALLED,
        "`py-spy dump` of the processes; a remote file system or name service that does not answer is the usual cause",
        "first phase of SGLang and vLLM",
    ),
    "initialising communication": Signature(
        "nccl-init-stalled",
        "critical",
        "nccl",
        (),
        "",
        "the log stops while NCCL (pynccl) initialises its communicator",
        _STALLED,
        "peer-to-peer traffic is the usual cause even where `nvidia-smi topo -p2p` says OK: check IOMMU (translated "
        "mode), ACS redirect and BAR1 mapping with the topology check; to serve meanwhile set NCCL_P2P_DISABLE=1 "
        "together with --disable-custom-all-reduce",
        "club-3090#873, vllm#8058, vllm#51513, nccl#1999",
    ),
    "loading weights": Signature(
        "weights-stalled",
        "critical",
        "stalled",
        (),
        "",
        "the log stops while weights are loaded",
        _STALLED,
        "`iostat -x 1` on the disk of the model; a network file system or a cold page cache is the usual cause; "
        "after the load every rank waits for the slowest",
        "vLLM on network file systems",
    ),
    "compiling kernels": Signature(
        "compile-stalled",
        "critical",
        "jit",
        (),
        "",
        "the log stops while kernels are built",
        _STALLED,
        "`ps -ef | grep -E 'nvcc|cicc|ptxas'`: running compilers mean patience (minutes with a cold cache), none "
        "means a stale lock: remove *.lock in the JIT caches while the engine is stopped",
        "SGLang 0.5.16: 63 s on a cold cache",
    ),
    "autotuning": Signature(
        "autotune-stalled",
        "critical",
        "nccl",
        (),
        "",
        "the log stops while FlashInfer tunes its kernels",
        _STALLED,
        "with NCCL_P2P_DISABLE=1 also set --disable-custom-all-reduce: the engine's own all-reduce still uses peer "
        "access at 2 GPUs",
        "vllm#51513",
    ),
    "capturing CUDA graphs": Signature(
        "graph-capture-stalled",
        "critical",
        "stalled",
        (),
        "",
        "the log stops while CUDA graphs are captured",
        _STALLED,
        "with a cold JIT cache this takes minutes; without a compiler running it is a collective that waits: check "
        "P2P, IOMMU and ACS, and try --disable-custom-all-reduce",
        "SGLang 0.5.16: 63 s on a cold cache",
    ),
    "warming up": Signature(
        "warm-up-stalled",
        "critical",
        "stalled",
        (),
        "",
        "the log stops in the warm-up: the first request never ended",
        _STALLED,
        "kernels built at the first forward, or a collective that waits: look for nvcc in `ps`, then at P2P, IOMMU "
        "and ACS",
        "ProxmoxVED#2047",
    ),
}
"""What it means when the log stops in a phase: reported by who knows how long it has stood still."""


def stall(phase: str | None) -> Signature:
    """Return what a standstill in ``phase`` means; phases without an entry of their own count as the start."""
    aliases = {"allocating KV cache": "loading weights", "listening": "warming up"}
    return STALLS.get(aliases.get(phase or "", phase or ""), STALLS["starting"])
