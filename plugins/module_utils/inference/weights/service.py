# SPDX-License-Identifier: Apache-2.0
"""Whether the instances of a host can serve their models: by this release, on these GPUs, within their memory."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..findings import Finding, Report
from . import files
from .fit import FRACTION, Fit, Instance, fit, judge
from .suitability import Release, suitability

_FRACTIONS = ("mem-fraction-static", "gpu-memory-utilization")
_CONTEXTS = ("context-length", "max-model-len")


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a host: bytes of memory of the smallest, and whether they have compute capability 12.0."""

    bytes: int | None = None
    sm120: bool = False


def gpus_of(rows: Iterable[Mapping[str, Any]]) -> Gpus:
    """Return the GPUs from rows with nvidia-smi's ``memory.total`` (such as ``97887 MiB``) and ``compute_cap``."""
    rows = list(rows)
    texts = [str(row.get("memory.total") or "") for row in rows]
    sizes = [int(text.removesuffix(" MiB")) << 20 for text in texts if text.endswith(" MiB")]
    whole = sizes and len(sizes) == len(rows)
    return Gpus(min(sizes) if whole else None, any(str(row.get("compute_cap")) == "12.0" for row in rows))


def instance_of(entry: Mapping[str, Any], engine: str) -> Instance:
    """Return what an entry of service_instances makes of its model."""
    given = {str(key).lstrip("-").replace("_", "-"): value for key, value in (entry.get("arguments") or {}).items()}
    fraction = next((float(given[name]) for name in _FRACTIONS if given.get(name)), FRACTION[engine])
    context = next((int(given[name]) for name in _CONTEXTS if given.get(name)), None)
    pipeline = given.get("pp-size") or given.get("pipeline-parallel-size") or 1
    size = int(entry.get("tensor_parallel_size") or 1)
    return Instance(str(entry["name"]), size, int(pipeline), fraction, context, given.get("kv-cache-dtype"))


def unguarded(models: Mapping[str, Path], user: str) -> list[Finding]:
    """Return a finding for each model that its service may change: what an engine is made to write, it loads later."""
    found = {name: files.writable(folder, user) for name, folder in models.items()}
    return [
        Finding(
            id="model-writable",
            level="warning",
            what=f"{user}, under which engines run, may change the weights of {name} in {len(paths)} places",
            seen=", ".join(map(str, paths[:3])),
            expected="weights that only root or another account may write",
            fix=f"chown -R root: {shlex.quote(str(models[name]))} && chmod -R go-w {shlex.quote(str(models[name]))}",
        )
        for name, paths in found.items()
        if paths
    ]


def examine(
    models: Mapping[str, Path], instances: Iterable[Mapping[str, Any]], release: Release | None, gpus: Gpus
) -> tuple[Report, dict[str, Fit]]:
    """Return what keeps instances from serving their models, and the memory budget of each instance by name.

    ``models``: the folders of whole models by name; instances of others are left out.
    """
    report, budgets = Report(), {}
    for entry in instances:
        folder = models.get(str(entry.get("model")))
        if folder is None:
            continue
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if release is None:
            report.skip(f"model-architecture.{entry['name']}", "the release is not there yet")
        else:
            settings = entry.get("arguments") or {}
            report.extend(suitability(config, release, sm120=gpus.sm120, settings=settings))
        engine = release.engine if release else "sglang"
        if gpus.bytes is None:
            report.skip(f"model-fit.{entry['name']}", "the memory of the GPUs is not known")
            continue
        instance = instance_of(entry, engine)
        try:
            found = fit(config, files.size(folder), instance, gpus.bytes)
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            report.skip(f"model-fit.{entry['name']}", f"{folder / 'config.json'} does not say enough: {error!r}")
            continue
        budgets[instance.name] = found
        report.extend(judge(str(entry["model"]), instance, found))
    return report, budgets
