# SPDX-License-Identifier: Apache-2.0
"""Can this release serve this model on this GPU: architecture and quantisation, asked of the release's source."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..findings import Finding
from .fit import _text_part


@dataclass(frozen=True)
class Release:
    """The release that is to serve: engine, version such as ``0.5.23``, and its site-packages folder."""

    engine: str
    version: str
    site_packages: Path


@dataclass(frozen=True)
class Places:
    """Where an engine's source names the architectures and the quantisations that it has."""

    models: str
    quantisation: str


PLACES: Mapping[str, Places] = {
    "sglang": Places("sglang/srt/models", "sglang/srt/layers/quantization/__init__.py"),
    "vllm": Places("vllm/model_executor/models", "vllm/model_executor/layers/quantization/__init__.py"),
}


@dataclass(frozen=True)
class Trouble:
    """A quantisation that a range of releases does not serve well on compute capability 12.0."""

    engine: str
    methods: tuple[str, ...]
    before: tuple[int, ...]
    """Releases below this one are concerned."""
    level: str
    what: str
    fix: str
    source: str


TROUBLES: tuple[Trouble, ...] = (
    Trouble(
        "sglang", ("fp8",), (0, 5, 10), "critical",
        "block-quantised FP8 takes DeepGEMM by itself, which has no kernels for compute capability 12.0",
        "take SGLang 0.5.10 or newer, or set fp8-gemm-backend: triton",
        "sglang#18870; server_args.py of 0.5.9 and 0.5.10.post1",
    ),
    Trouble(
        "sglang", ("modelopt_fp4", "nvfp4"), (0, 5, 13), "warning",
        "no rule chooses a mixture-of-experts kernel for NVFP4 on compute capability 12.0",
        "take SGLang 0.5.13 or newer, or set moe-runner-backend: flashinfer_cutlass",
        "server_args.py of 0.5.12.post1 and 0.5.13",
    ),
)  # fmt: skip

ALIASES: Mapping[str, tuple[str, ...]] = {"modelopt": ("modelopt", "modelopt_fp8", "modelopt_fp4")}


def suitability(
    config: Mapping[str, Any], release: Release, *, sm120: bool, settings: Mapping[str, Any]
) -> list[Finding]:
    """Return what keeps ``release`` from serving a model with this ``config.json``.

    ``sm120``: the GPUs have compute capability 12.0. ``settings`` are the instance's engine arguments by name; one that
    a trouble's fix names settles it.
    """
    found = [*_architecture(config, release)]
    method = quantisation(config)
    if method is not None:
        found += _known_method(method, release)
        if sm120:
            found += _troubles(method, config, release, settings)
    return found


def quantisation(config: Mapping[str, Any]) -> str | None:
    """Return the quantisation's name in a configuration, or None without one. ModelOpt says the kind beside it."""
    given = config.get("quantization_config") or _text_part(config).get("quantization_config")
    if not isinstance(given, Mapping):
        return None
    method = str(given.get("quant_method") or "").lower()
    kind = str(given.get("quant_algo") or "").lower()
    if method == "modelopt" and kind:
        return "modelopt_fp4" if "fp4" in kind else "modelopt_fp8" if "fp8" in kind else method
    return method or None


def _architecture(config: Mapping[str, Any], release: Release) -> Iterator[Finding]:
    wanted = [str(name) for name in config.get("architectures") or []]
    folder = release.site_packages / PLACES[release.engine].models
    if not wanted or not folder.is_dir():
        return
    text = "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in sorted(folder.rglob("*.py")))
    if any(re.search(rf"(?:class {re.escape(name)}\b|[\"']{re.escape(name)}[\"'])", text) for name in wanted):
        return
    transformers = release.site_packages / "transformers" / "models"
    generic = any(_names(transformers, name) for name in wanted)
    yield Finding(
        "model-architecture", "warning" if generic else "critical",
        f"{release.engine} {release.version} has no implementation of this model's architecture"
        + (", and would run that of transformers, which is slower and may lack tensor parallelism" if generic else ""),
        ", ".join(wanted), f"an architecture in {PLACES[release.engine].models}",
        "take a release that has it, or another model",
    )  # fmt: skip


def _names(transformers: Path, architecture: str) -> bool:
    """Say whether transformers has the architecture: it lists them all in one file."""
    listing = transformers / "auto" / "modeling_auto.py"
    return listing.is_file() and f'"{architecture}"' in listing.read_text(encoding="utf-8", errors="replace")


def _known_method(method: str, release: Release) -> Iterator[Finding]:
    file = release.site_packages / PLACES[release.engine].quantisation
    if not file.is_file():
        return
    names = set(re.findall(r"[\"']([a-z0-9_-]+)[\"']", file.read_text(encoding="utf-8", errors="replace")))
    if not names & {method, method.replace("-", "_"), *ALIASES.get(method, ())}:
        yield Finding(
            "model-quantisation", "critical", f"{release.engine} {release.version} does not know this quantisation",
            method, f"one that {PLACES[release.engine].quantisation} names", "take other weights or another release",
        )  # fmt: skip


def _troubles(
    method: str, config: Mapping[str, Any], release: Release, settings: Mapping[str, Any]
) -> Iterator[Finding]:
    version = tuple(int(part) for part in re.findall(r"\d+", release.version)[:3])
    for trouble in TROUBLES:
        settled = any(f"{name}:" in trouble.fix and value is not None for name, value in settings.items())
        blocked = method != "fp8" or bool((config.get("quantization_config") or {}).get("weight_block_size"))
        concerned = trouble.engine == release.engine and method in trouble.methods and version < trouble.before
        if concerned and blocked and not settled:
            yield Finding(
                "model-quantisation-sm120", "critical" if trouble.level == "critical" else "warning", trouble.what,
                f"{method} with {release.engine} {release.version}",
                f"release {'.'.join(map(str, trouble.before))} or newer",
                f"{trouble.fix} ({trouble.source})",
            )  # fmt: skip
