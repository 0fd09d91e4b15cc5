# SPDX-License-Identifier: Apache-2.0
"""What a deployment measured, in words: the lines of the table and of the page. What is missing is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference import nccl
from inference.smoke.stats import figure

Json = Mapping[str, Any]

LABELS = {"ready": "time to ready", "single": "single stream", "nccl": "NCCL settings"}
"""Labels of rows that are not called as in the JSON."""


def rows(report: Json) -> dict[str, str]:
    """Return the lines of the table, label to text."""
    engaged = report["engaged"] or {}
    return {
        "verdict": verdict(report),
        "topology": _topology(report.get("topology") or {}),
        "release": release_name(engaged.get("release") or {}),
        "patches": _patches(engaged.get("release") or {}),
        "unit": unit_state(engaged.get("unit") or {}),
        "generation": str(report["generation"]),
        "nccl": nccl_settings(engaged.get("nccl_environment")),
        "ready": ready_after(engaged.get("start") or {}),
        **_figures(report.get("smoke") or {}, report["mode"]),
        **_findings(report),
    }


def verdict(report: Json) -> str:
    """Return whether the test passed, and which it was."""
    return ("passed" if report["passed"] else "FAILED") + f" ({report['mode']} smoke test)"


def _topology(topology: Json) -> str:
    if not topology.get("summary"):
        return "not checked in this run"
    count = (topology.get("facts") or {}).get("gpu_count")
    return f"{'fits' if topology.get('ok') else 'DOES NOT FIT'}: {count or '?'} GPUs; {topology['summary']}"


def release_name(release: Json) -> str:
    """Return name and variant of a release."""
    return f"{release.get('name') or 'unknown'} ({release.get('variant') or '?'})"


def _patches(release: Json) -> str:
    applied = [str(patch.get("id")) for patch in release.get("patches") or [] if patch.get("state") == "applied"]
    return ", ".join(applied) or "none"


def unit_state(unit: Json) -> str:
    """Return a unit's name and what systemd says of it."""
    return f"{unit.get('name') or '?'} {unit.get('active') or '?'}: {unit.get('status') or ''}"


def nccl_settings(environment: Mapping[str, str] | None) -> str:
    """Name the profile whose settings the engine's process really has, and what it has beyond them."""
    if environment is None:
        return "could not be read from the process"
    whole = (p for p in nccl.PROFILES.values() if p.settings and p.settings.items() <= environment.items())
    profile = next(whole, nccl.PROFILES["none"])
    named = f"profile {profile.name} ({len(profile.settings)} settings)" if profile.settings else ""
    more = [f"{name}={environment[name]}" for name in sorted(environment.keys() - profile.settings.keys())]
    found = " and ".join(part for part in (named, ", ".join(more)) if part)
    return f"{found}, read from the engine's process" if found else "none set: NCCL's own choice"


def ready_after(start: Json) -> str:
    """Return how long the start took."""
    seconds = start.get("ready_after_s")
    return f"{seconds:.1f} s from start to the first generation" if seconds else "unknown"


def _figures(smoke: Json, mode: str) -> dict[str, str]:
    metrics = (smoke.get("gate") or {}).get("metrics") or {}
    found = {}
    for label, speed, first in (
        ("single", "single.decode_tok_s", "single.ttft_s"),
        ("concurrent", "concurrent.tok_s", "concurrent.ttft_s"),
    ):
        if metrics.get(speed) is not None:
            token = f", first token {metrics[first]:.3f} s" if metrics.get(first) is not None else ""
            found[label] = f"{metrics[speed]:.1f} tok/s{token}"
    return found or {"figures": no_figures(mode)}


def no_figures(mode: str) -> str:
    """Return why there are no figures."""
    return "a quick test measures none" if mode == "quick" else "none were measured"


def _findings(report: Json) -> dict[str, str]:
    """Say why a test failed."""
    findings = (report.get("smoke") or {}).get("findings") or []
    grave = [f"{f.get('id')}: {f.get('what')}" for f in findings if f.get("level") in ("critical", "unknown")]
    return {} if report["passed"] else {"found": "; ".join(grave) or "nothing that explains it; see the JSON"}


_METRICS = {
    "decode_tok_s": ("speed of a stream", "tok/s"),
    "tok_s": ("throughput", "tok/s"),
    "ttft_s": ("time to first token", "s"),
    "ttft_p99_s": ("time to first token, 99th percentile", "s"),
}


def metric_label(metric: str) -> tuple[str, str]:
    """Return what a metric is called and its unit: ``("single: time to first token", "s")``."""
    stage, _, name = metric.rpartition(".")
    what, unit = _METRICS.get(name, (name, ""))
    stage = f"{stage.partition('.')[2]}-token prompt" if stage.startswith("prefill.") else stage
    return f"{stage}: {what}", unit


def figure_rows(smoke: Json) -> list[dict[str, str]]:
    """Return the measured figures against floor, target, reference and history, as texts."""
    return [_figure_row(row) for row in (smoke.get("gate") or {}).get("rows") or [] if row.get("value") is not None]


def _figure_row(row: Json) -> dict[str, str]:
    label, unit = metric_label(str(row.get("metric")))
    past, runs = row.get("baseline"), row.get("baseline_runs") or 0
    bad, doubtful = row.get("failures") or [], row.get("warnings") or []
    allowed = f"; allowed {quantity(row['allowed'], unit)}" if row.get("allowed") is not None else ""
    return {
        "figure": label,
        "value": quantity(row["value"], unit),
        **{name: _mark(row.get(name), unit) for name in ("floor", "target", "reference")},
        "history": f"{quantity(past, unit)} ({runs} run{'' if runs == 1 else 's'}{allowed})"
        if past is not None
        else "",
        "verdict": ", ".join(bad) or (f"{', '.join(doubtful)} (warning)" if doubtful else "pass"),
        "level": "critical" if bad else "warning" if doubtful else "good",
    }


def quantity(value: float, unit: str) -> str:
    """Return a figure with its unit; short times in milliseconds."""
    if unit == "s" and abs(value) < 1:
        return f"{figure(float(f'{value * 1000:.3g}'))} ms"
    return f"{figure(value)} {unit}".strip()


def _mark(mark: Json | None, unit: str) -> str:
    if not mark or mark.get("value") is None:
        return ""
    distance = mark.get("better_by_percent")
    shown = f" ({distance:+.0f} %)" if distance is not None else ""
    source = f", {mark['source']}" if mark.get("source") else ""
    return f"{quantity(mark['value'], unit)}{shown}{source}"
