# SPDX-License-Identifier: Apache-2.0
"""Proof of engagement: what a running engine really is, asked of its process, log and itself, against what was meant.

``meant`` reads the generation, ``process`` the kernel, ``answer`` and ``journal`` the engine; ``checks`` compares.
``gather`` does the reading on a host, ``prove`` makes the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..findings import Finding, Report
from ..redact import redact
from .checks import Case, check, recorded_nccl, told
from .meant import Meant, MeantError

__all__ = ["Case", "Meant", "MeantError", "line", "prove"]

SHOWN_SETTINGS = (
    *(
        "attention_backend",
        "prefill_attention_backend",
        "decode_attention_backend",
        "moe_runner_backend",
        "moe_backend",
    ),
    *("moe_a2a_backend", "sampling_backend", "fp4_gemm_runner_backend", "fp8_gemm_runner_backend", "quantization"),
    *("kv_cache_dtype", "dtype", "tp_size", "pp_size", "dp_size", "ep_size", "tensor_parallel_size", "enforce_eager"),
    *("disable_custom_all_reduce", "enable_mscclpp", "flashinfer_allreduce_fusion_backend", "enable_torch_symm_mem"),
    *("disable_shared_experts_fusion", "speculative_algorithm", "num_continuous_decode_steps", "max_model_len"),
    *("disable_cuda_graph", "disable_radix_cache", "mem_fraction_static", "context_length", "device", "version"),
)
"""Settings that a report shows. An engine's answer holds keys and paths too: nothing else is taken from it."""


def prove(case: Case) -> dict[str, Any]:
    """Return ``schema``, ``ok``, ``findings``, ``not_checked`` and ``facts`` of a running engine. No secrets."""
    report = Report()
    for entry in check(case):
        if isinstance(entry, Finding):
            report.findings.append(entry)
        else:
            report.not_checked.append(entry)
    return report.as_dict(facts=facts(case))


def facts(case: Case) -> dict[str, Any]:
    """Return what is known of the engine, for a report; None where it is not."""
    main, journal, record = case.main, case.journal, case.meant.record
    return {
        "instance": case.meant.instance,
        "unit": case.meant.unit,
        "engine": case.meant.engine,
        "generation": {"installed": case.meant.generation, "running": case.started_with},
        "release": {
            "name": case.meant.release,
            "version": record.get("version"),
            "changed_files": [module.__dict__ for module in case.modules],
            "applied": [entry["id"] for entry in record.get("patches") or () if entry.get("state") == "applied"],
        },
        "process": None
        if main is None
        else {
            "pid": main.pid,
            "started": main.started,
            "program": main.exe,
            "packages": sorted({f for p in (main, *case.children) for f in p.packages}),
            "processes": 1 + len(case.children),
        },
        "command": redact(" ".join(case.command or ())) or None,
        "settings": _settings(case),
        "log": None
        if journal is None
        else {"lines": journal.lines, "on": journal.on, "off": journal.off, "told": journal.told},
        "nccl": _nccl(case),
    }


def _settings(case: Case) -> dict[str, Any] | None:
    known = told(case)
    return {name: known[name] for name in SHOWN_SETTINGS if name in known} or None


def _nccl(case: Case) -> dict[str, Any]:
    """Return what is known of NCCL.

    ``operator`` are the settings that the main process was started with, ``engine`` those that only its workers have:
    the engine set them itself.
    """
    environment = case.environment
    own = {name: value for name, value in (environment or {}).items() if name.startswith("NCCL_")}
    log = case.journal.nccl if case.journal else None
    return {
        "library": case.nccl.path if case.nccl else None,
        "version": case.nccl.version if case.nccl else None,
        "version_from": case.nccl.source if case.nccl else None,
        "locked": recorded_nccl(case.meant.record),
        "operator": None if environment is None else own,
        "engine": _of_the_engine(case, own),
        "log": log.as_dict() if log and log.lines else None,
    }


def _of_the_engine(case: Case, own: Mapping[str, str]) -> dict[str, str]:
    """Return NCCL variables of the workers that the main process was not started with.

    A worker's title overwrites part of its environment: what is missing there proves nothing.
    """
    found: dict[str, str] = {}
    for child in case.children:
        found |= {n: v for n, v in (child.environment or {}).items() if n.startswith("NCCL_") and own.get(n) != v}
    return found


def line(result: Mapping[str, Any]) -> str:
    """Return one line for people out of what ``prove`` returned."""
    known = result["facts"]
    settings = known["settings"] or {}
    names = (("attention", "attention_backend"), ("MoE", "moe_runner_backend"), ("MoE", "moe_backend"))
    parts = [f"{known['engine']} {settings.get('version') or known['release']['version']}"]
    parts += [f"{label} {settings[name]}" for label, name in names if settings.get(name) not in (None, "auto")]
    parts += [f"sampling {settings['sampling_backend']}"] if settings.get("sampling_backend") else []
    nccl = known["nccl"]
    if nccl["library"]:
        parts.append(f"NCCL {nccl['version'] or 'of unknown version'}")
    parts.append(f"{len(nccl['operator'] or {})} NCCL settings in the process")
    log = nccl["log"]
    if log:
        transports = sorted({name.partition("/")[0] for name in log["connections"]})
        parts.append(f"{'+'.join(transports) or 'no transport seen'}, channels {', '.join(map(str, log['channels']))}")
    critical = sum(entry["level"] in ("critical", "unknown") for entry in result["findings"])
    warnings = sum(entry["level"] == "warning" for entry in result["findings"])
    verdict = "proved" if result["ok"] else f"NOT what was meant: {critical} finding{'s' * (critical > 1)}"
    rest = [f"{warnings} warning{'s' * (warnings > 1)}"] if warnings else []
    rest += [f"{len(result['not_checked'])} not checked"] if result["not_checked"] else []
    return f"{known['unit']}: {verdict} ({', '.join(parts)}{'; ' + ', '.join(rest) if rest else ''})"
