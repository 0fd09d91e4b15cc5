# SPDX-License-Identifier: Apache-2.0
"""One measurement on this host: which processes run, under which environment, with which program."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import nccl_tests, pairs
from .candidates import Candidate, base_of
from .launching import End, GroupRun, Limits, run_group, run_program
from .outcome import Outcome, judge
from .pairs import Pair
from .protocol import Job, message

REPEATS = 15
WARMUPS = 3
"""Replays a size: timed, and before that. A choice: how far a median of 15 moves between groups is what the spread of
the results tells on each host."""

_VERSIONS_SECONDS = 120


class WorkerError(RuntimeError):
    """The Python that was named can't measure. The message is what it said."""


@dataclass(frozen=True)
class Bench:
    """How this host measures. ``worker`` is the command of one rank without job and rank; ``backend`` nccl or gloo.

    ``environment`` is the whole environment of the processes but for the candidate's settings. With ``tests``, the path
    of nccl-tests' program, that one measures instead; ``library`` is the folder of the release's NCCL.
    """

    worker: tuple[str, ...]
    backend: str
    gpus: tuple[int, ...]
    environment: Mapping[str, str]
    sizes: tuple[int, ...]
    dtype: str = "bfloat16"
    limits: Limits = field(default_factory=Limits)
    repeats: int = REPEATS
    tests: str | None = None
    library: str | None = None
    nccl: str | None = None
    """The release's NCCL, which has to be the one that runs."""
    keep: Path | None = None
    """Where to keep every group's folder with its logs; without, they are deleted."""

    def measure(self, candidate: Candidate) -> Outcome:
        """Run one fresh group on all GPUs with a candidate's settings."""
        return self._outcome(candidate.name, candidate.environment, self.gpus, self.sizes)

    def measure_pair(self, pair: Pair) -> Outcome:
        """Run one fresh group on two GPUs with NCCL's own choice."""
        return self._outcome(f"GPU{pair.one}-GPU{pair.other}", {}, (pair.one, pair.other), pairs.SIZES)

    def _outcome(self, name: str, settings: Mapping[str, str], gpus: Sequence[int], sizes: Sequence[int]) -> Outcome:
        environment = {**self.environment, **settings}
        with tempfile.TemporaryDirectory(prefix="tune-") as temporary:
            folder = Path(temporary) if self.keep is None else _numbered(self.keep, name)
            messages = tuple(message(size, len(gpus)) for size in sizes)
            job = Job(self.backend, tuple(gpus), self.dtype, messages, self.repeats, WARMUPS, str(folder))
            run = self._tests(job, environment) if self.tests else run_group(self.worker, job, environment, self.limits)
            return judge(run, job, settings, base_of(self.environment), self.nccl)

    def _tests(self, job: Job, environment: Mapping[str, str]) -> GroupRun:
        """Run nccl-tests once a size, since the sizes of a model are no series."""
        runs = []
        for one in job.messages:
            folder = Path(job.folder) / str(one.bytes)
            folder.mkdir()
            output = folder / "results.json"
            runs.append(
                run_program(
                    nccl_tests.command(str(self.tests), job, one, output),
                    nccl_tests.environment(environment, job.devices, self.library),
                    folder,
                    self.limits.stall + self.limits.start,
                    _reader(output, one.bytes),
                )
            )
            if runs[-1].end != "done":
                break
        return nccl_tests.merged(runs)

    def alone(self, name: str) -> Bench:
        """Return the same with its folders kept below ``name``."""
        return self if self.keep is None else replace(self, keep=self.keep / name)


def gpus_of(asked: Sequence[int] | None, found: Sequence[str], backend: str, python: str) -> tuple[int, ...]:
    """Return the GPUs to measure: those asked for, else all that were ``found``. Raises WorkerError."""
    gpus = tuple(asked or range(len(found)))
    if len(gpus) < 2:  # noqa: PLR2004 - nothing to reduce with one
        raise WorkerError(f"{len(gpus)} GPUs for {python}; expected two or more (--gpus, --python)")
    absent = [gpu for gpu in gpus if gpu >= len(found)] if backend == "nccl" else []
    if absent:
        raise WorkerError(f"--gpus: no GPU {absent[0]}; there are {len(found)}")
    return gpus


def tests_of(asked: str, path: str | None) -> str | None:
    """Return nccl-tests' program, unless ``asked`` (auto, torch, nccl-tests) is against it. Raises WorkerError."""
    tests = None if asked == "torch" else nccl_tests.find(path)
    if asked == "nccl-tests" and not tests:
        raise WorkerError(f"--with nccl-tests: no {path or nccl_tests.PROGRAM} on PATH")
    return tests


def _reader(path: Path, size: int) -> Callable[[End], list[dict[str, Any]]]:
    """Return what tells nccl-tests' events: its results, or how far it must have got where it stopped without any."""

    def read(end: End) -> list[dict[str, Any]]:
        if end == "done":
            return nccl_tests.events(path.read_text() if path.exists() else "", size)
        return [{"event": "imported"}, {"event": "checking", "bytes": size}] if end == "stalled" else []

    return read


def _numbered(parent: Path, name: str) -> Path:
    """Return a new folder ``name``, or ``name-2`` and so on."""
    number = 1
    while True:
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
            continue
        return folder.resolve()


def versions(worker: Sequence[str]) -> dict[str, Any]:
    """Return what the worker's Python has: ``torch``, ``nccl``, ``gpus``, ``python``. Raises WorkerError."""
    command = [*worker, "--versions"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_VERSIONS_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WorkerError(f"{worker[0]}: {error}") from error
    try:
        # a torch that warns may print before it
        found = json.loads(done.stdout.strip().splitlines()[-1]) if done.returncode == 0 else None
    except (ValueError, IndexError):
        found = None
    if not isinstance(found, dict):
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise WorkerError(f"{worker[0]} can't measure: {said}; give --python of a release that has torch")
    return found
