# SPDX-License-Identifier: Apache-2.0
"""The result of a run as a document: what is written, and what is read of it to decide again or to compare engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from .campaign import Campaign
from .decision import Decision, DecisionError, Result, Workload, read_results
from .measuring import Bench
from .outcome import Outcome
from .receipt import Host
from .shapes import Shape, ShapeError


class RecordError(ValueError):
    """A document that is not the result of a run. The message says what is wrong with it."""


@dataclass(frozen=True)
class Record:
    """What a run measured. ``document`` is all of it, as it was written."""

    results: list[Result]
    shape: Shape
    gpus: Sequence[Any]
    document: Mapping[str, Any]

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Record:
        """Read what a run wrote. Raises RecordError."""
        try:
            len(document["gpus"])
            return cls(
                read_results(document["results"]), Shape.from_dict(document["shape"]), document["gpus"], document
            )
        except (KeyError, TypeError, DecisionError, ShapeError) as error:
            raise RecordError(f"not the result of a run: {error!r}") from error


def now() -> str:
    """Return the date and time, UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def about(
    bench: Bench, found: Mapping[str, Any], model: str, workload: Workload, *, seconds: float, command: str
) -> dict[str, Any]:
    """Return where figures come from. ``found`` is what the worker's Python has, ``command`` what was typed."""
    names = sorted(set(found["gpus"]))
    return {
        "date": now(),
        "machine": f"{len(bench.gpus)}x {', '.join(names) or 'CPU process'}",
        "model": model,
        "gpus": list(bench.gpus),
        "versions": dict(found),
        "measured_with": "nccl-tests" if bench.tests else f"torch.distributed, {bench.backend}",
        "command": command,
        "workload": asdict(workload),
        "seconds": round(seconds, 1),
    }


def document(
    origin: Mapping[str, Any],
    host: Host,
    base: Mapping[str, str],
    shape: Shape,
    campaign: Campaign,
    *,
    results: Sequence[Result],
    decision: Decision,
) -> dict[str, Any]:
    """Return the whole result; ``origin`` is :func:`about`, ``base`` the settings that held for every candidate."""
    return {
        **origin,
        "host": asdict(host),
        "base": base,
        "shape": shape.as_dict(),
        "results": [entry.as_dict() for entry in results],
        "outcomes": [{"candidate": name, **_brief(outcome)} for name, outcome in campaign.outcomes],
        "pairs": [entry.as_dict() for entry in campaign.pairs],
        "decision": decision.as_dict(),
    }


def _brief(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome without its times, which the results hold."""
    return {key: value for key, value in outcome.as_dict().items() if key != "times"}
