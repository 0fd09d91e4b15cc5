# SPDX-License-Identifier: Apache-2.0
"""The gate: absolute marks of the profile, and regression against the host's own history.

A history is a file of JSON lines, one a run, for each host, engine, model, release, fingerprint and shape of load:
figures of different ones are not comparable. Runs that failed the gate are kept in it, but never become a baseline, so
that a slow decline cannot lower its own bar. A history of fewer than ``min_runs`` runs cannot tell noise from decline:
a regression against it is a warning.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .profile import LOWER_IS_BETTER, Gate, Mark, Profile, Regression
from .stats import mad

HISTORY_SCHEMA = 1

_FIGURES = (
    ("decode_tok_s", "median", "decode_tok_s", ("single",)),
    ("tok_s", "median", "tok_s", ("concurrent",)),
    ("ttft_s", "p50", "ttft_s", ("single", "concurrent", "prefill")),
    ("ttft_s", "p99", "ttft_p99_s", ("concurrent",)),
)
"""Figure, statistic, name of the metric, stages that have it."""


def shapes_of(throughput: Mapping[str, Any]) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Return stage, name and figures of every shape of load that was measured; prefill has one for each length."""
    shapes = [(stage, stage, throughput[stage]) for stage in ("single", "concurrent") if throughput.get(stage)]
    return shapes + [("prefill", f"prefill.{row['length']}", row) for row in throughput.get("prefill") or []]


def bound_stages(throughput: Mapping[str, Any]) -> set[str]:
    """Return the stages with a shape whose figures are the client's own."""
    return {stage for stage, _, figures in shapes_of(throughput) if figures["client"]["bound"]}


def _gated(throughput: Mapping[str, Any]) -> Iterator[tuple[str, float, bool]]:
    """Yield the gated figures that were measured: metric name, value, whether it says something of the server."""
    for stage, name, figures in shapes_of(throughput):
        client = figures["client"]
        for figure, statistic, metric, stages in _FIGURES:
            if stage in stages and figures.get(figure):
                unsound = client["bound"] or (client["late"] and figure == "ttft_s")
                yield f"{name}.{metric}", figures[figure][statistic], not unsound


def metrics_of(throughput: Mapping[str, Any]) -> dict[str, float]:
    """Return the gated figures by metric name. Those that are the client's own are not among them.

    Of a stage that was measured ``again``, the better value counts: other work on the machine only ever slows. A figure
    that was the client's own the first time counts as measured the second time.
    """
    found = {metric: value for metric, value, sound in _gated(throughput) if sound}
    again = throughput.get("again")
    for metric, value in (metrics_of(again) if again else {}).items():
        if metric not in found or worse(metric, found[metric], value):
            found[metric] = value
    return found


def at_worst(throughput: Mapping[str, Any]) -> dict[str, float]:
    """Return every gated figure by metric name, the client's own ones too, as bad as the client's lateness allows.

    Lateness only lengthens the time to a first token, a whole answer and a whole phase. The time between first and last
    token it may shorten, to nothing where both were noticed at once: what is certain is the whole answer's time.
    """
    found = {metric: value for metric, value, _ in _gated(throughput)}
    single = throughput.get("single") or {}
    if single.get("e2e_s"):
        tokens = single["completion_tokens"] / max(single["requests"] - single["failed"], 1)
        found["single.decode_tok_s"] = max(tokens - 1, 0) / single["e2e_s"]["p50"]
    return found


UNSTABLE = ("concurrent.ttft_p99_s",)
"""Gated by a floor only: the 99th percentile of some fifty requests is their maximum, which says nothing of a trend."""


@dataclass(frozen=True)
class Row:
    """One metric at the gate. ``better_by`` figures are per cent by which it is better than the target or baseline."""

    metric: str
    value: float
    floor: Mark | None = None
    target: Mark | None = None
    reference: Mark | None = None
    baseline: float | None = None
    baseline_runs: int = 0
    allowed: float | None = None
    """The worst value that is no regression."""
    failures: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What would be a failure, but for the ``excuse``."""
    excuse: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        marks = {
            name: {"value": mark.value, "source": mark.source, "better_by_percent": better_by(self.metric, self, mark)}
            for name in ("floor", "target", "reference")
            if (mark := getattr(self, name))
        }
        return {
            "metric": self.metric,
            "value": self.value,
            **marks,
            "baseline": self.baseline,
            "baseline_runs": self.baseline_runs,
            "allowed": self.allowed,
            "failures": list(self.failures),
            "warnings": list(self.warnings),
            "excuse": self.excuse,
        }


def better_by(metric: str, row: Row, mark: Mark) -> float | None:
    """Return by how many per cent of the mark the row's value is better than it (negative: worse)."""
    if not mark.value:
        return None
    share = (row.value - mark.value) / mark.value * 100
    return -share if LOWER_IS_BETTER.search(metric) else share


def worse(metric: str, value: float, bound: float) -> bool:
    """Return whether ``value`` is on the wrong side of ``bound``."""
    return value > bound if LOWER_IS_BETTER.search(metric) else value < bound


def allowed_from(metric: str, baseline: Sequence[float], rule: Regression) -> float:
    """Return the worst value that is no regression: the median moved by max(percent, mads x MAD) of the baseline.

    One run has no deviation, so that only the percentage counts.
    """
    middle = statistics.median(baseline)
    scatter = rule.mads * mad(baseline)
    if LOWER_IS_BETTER.search(metric):
        return middle + max(middle * rule.seconds_percent / 100, rule.seconds_slack, scatter)
    return max(middle - max(middle * rule.percent / 100, scatter), 0.0)


def waits_of(throughput: Mapping[str, Any]) -> dict[str, float]:
    """Return by stage which share of their time the engine's threads waited; of one measured again, the second time."""
    found = dict.fromkeys(("single", "concurrent", "prefill"), 0.0)
    for stage, _, figures in shapes_of(throughput):
        found[stage] = max(found[stage], figures.get("engine_wait") or 0.0)
    again = throughput.get("again")
    second = {stage: value for stage, value in waits_of(again).items() if again.get(stage)} if again else {}
    return {**found, **second}


def judge(
    metrics: Mapping[str, float],
    gate: Gate,
    history: Sequence[Mapping[str, float]],
    waits: Mapping[str, float] | None = None,
) -> list[Row]:
    """Return one row for each measured metric; ``history`` holds the metrics of the runs that are the baseline.

    A regression is a warning, no failure, against fewer than ``min_runs`` runs, and where the stage's ``waits`` say
    that other work kept the processors from the engine.
    """
    waited = waits or {}
    return [_row(metric, value, gate, history, waited.get(stage_of(metric), 0.0)) for metric, value in metrics.items()]


def stage_of(metric: str) -> str:
    """Return the stage that a metric is measured in."""
    return metric.partition(".")[0]


def _row(metric: str, value: float, gate: Gate, history: Sequence[Mapping[str, float]], wait: float) -> Row:
    past = [run[metric] for run in history if metric in run and metric not in UNSTABLE]
    floor = gate.floors.get(metric)
    allowed = allowed_from(metric, past, gate.regression) if past else None
    missed = ("below-floor",) if floor and worse(metric, value, floor.value) else ()
    regressed = ("regression",) if allowed is not None and worse(metric, value, allowed) else ()
    excuse = _excuse(gate.regression, len(past), wait) if regressed else ""
    return Row(
        metric,
        value,
        floor,
        gate.targets.get(metric),
        gate.references.get(metric),
        statistics.median(past) if past else None,
        len(past),
        allowed,
        missed + (() if excuse else regressed),
        regressed if excuse else (),
        excuse,
    )


def _excuse(rule: Regression, runs: int, wait: float) -> str:
    """Return why a regression only warns, or nothing."""
    if wait > rule.max_engine_wait:
        return f"other work kept the engine's threads waiting for {wait:.0%} of their time: it only warns"
    return f"below {rule.min_runs} runs it only warns" if runs < rule.min_runs else ""


@dataclass(frozen=True)
class Key:
    """What has to be the same for two runs to be compared."""

    host: str
    engine: str
    model: str
    release: str
    fingerprint: str
    shape: str

    @property
    def file_name(self) -> str:
        """Return the history's file name: readable, and unique by a hash of the whole key."""
        digest = hashlib.sha256("\0".join(vars(self).values()).encode()).hexdigest()[:12]
        readable = re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.engine}-{self.model.rsplit('/', 1)[-1]}").strip("-")
        return f"{readable[:60]}-{digest}.jsonl"


def shape_of(profile: Profile) -> str:
    """Return the shapes of load in a profile: figures of other shapes are other figures."""
    load, prefill = profile.load, profile.prefill
    return (
        f"{load.prompt_tokens}+{load.output_tokens} c{load.concurrency}x{load.rounds} "
        f"prefill {','.join(map(str, prefill.lengths))}"
    )


@dataclass(frozen=True)
class History:
    """The runs in a history file. ``damaged`` counts lines that could not be read."""

    baseline: list[dict[str, float]] = field(default_factory=list)
    runs: int = 0
    damaged: int = 0


def read_history(text: str) -> History:
    """Return the runs of a history file; only runs that passed are a baseline. A torn line is counted, not fatal."""
    baseline, runs, damaged = [], 0, 0
    for line in filter(str.strip, text.splitlines()):
        try:
            entry = json.loads(line)
            metrics = _numbers(entry["metrics"])
            passed = entry["schema"] == HISTORY_SCHEMA and entry["passed"] is True
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            damaged += 1
            continue
        runs += 1
        if passed:
            baseline.append(metrics)
    return History(baseline, runs, damaged)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics as numbers; ValueError for one that is none: nothing is better or worse than NaN."""
    numbers = {str(name): float(value) for name, value in metrics.items()}
    if not all(map(math.isfinite, numbers.values())):
        raise ValueError("not a number")
    return numbers


def history_line(key: Key, metrics: Mapping[str, float], *, when: str, passed: bool) -> str:
    """Return the line that records a run."""
    entry = {"schema": HISTORY_SCHEMA, "when": when, "key": vars(key), "metrics": dict(metrics), "passed": passed}
    return json.dumps(entry, ensure_ascii=False) + "\n"


def read_baseline(document: Any) -> dict[str, float]:
    """Return the metrics in a smoke test's JSON (``--out`` of an earlier run), or raise ValueError."""
    try:
        return _numbers(document["gate"]["metrics"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError("not the JSON of a smoke test: it has no gate.metrics with numbers") from error


FORGIVEN = ("regression", "client-bound", "floor-unknown")
"""Findings that say how fast an engine is, or that it could not be measured, and not that it is wrong or too slow."""


def forgive_regressions(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a smoke test's JSON in which a regression is a warning, with ``ok`` as that makes it.

    For a generation that is being restored: a slow one that is sound is better than none, and so is one that a busy
    host could not measure. The history has it as a run that failed all the same.
    """
    findings = [{**f, "level": "warning"} if f["id"] in FORGIVEN else f for f in document["findings"]]
    ok = not {f["level"] for f in findings} & {"critical", "unknown"}
    gate = dict(document.get("gate") or {})
    gate["rows"] = [_forgiven(row) for row in gate.get("rows") or []]
    if gate.get("verdict") == "fail" and not any(row["failures"] for row in gate["rows"]):
        gate["verdict"] = "pass"
    return {**document, "findings": findings, "ok": ok, "gate": gate}


def _forgiven(row: Mapping[str, Any]) -> dict[str, Any]:
    if "regression" not in row["failures"]:
        return dict(row)
    failures = [name for name in row["failures"] if name != "regression"]
    return {**row, "failures": failures, "warnings": ["regression"], "excuse": "it is being restored: it only warns"}
