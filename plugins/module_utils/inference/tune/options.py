# SPDX-License-Identifier: Apache-2.0
"""The options of scripts/tune: how they are declared, and what they say as a model's shape, candidates, and a bench."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..nccl import NcclError
from ..nccl.budget import BudgetError
from ..program import ProgramError, read_document
from ..smoke.profile import ProfileError
from . import candidates, decision, measuring, shapes
from .campaign import Campaign, Plan, results
from .candidates import Candidate, CandidateError
from .decision import Decision, DecisionError, Result, Workload
from .launching import Limits
from .measuring import Bench, WorkerError
from .protocol import dtype_of
from .record import RecordError
from .shapes import PHASES, Shape, ShapeError, Size
from .trials import TrialError

QUICK_SECONDS = 300.0
THOROUGH_SECONDS = 1800.0

_MOST = 10**9
_REFUSED = (
    *(ShapeError, CandidateError, WorkerError, DecisionError, RecordError, TrialError),
    *(NcclError, BudgetError, ProfileError),
)
"""What the domain raises for something that the caller can mend."""


@contextmanager
def mendable(where: str = "") -> Iterator[None]:
    """Make what the domain refuses an error of this call, with the file or option that it is about."""
    try:
        yield
    except _REFUSED as error:
        raise ProgramError(f"{where}: {error}" if where else str(error)) from error


def numbers(text: str) -> list[int]:
    """Read ``1,16,64``."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers separated by commas, such as 1,16,64") from None


def positive(text: str) -> float:
    """Read a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return value


def count(text: str) -> int:
    """Read a whole number from 1 on."""
    if not text.isdecimal() or not 1 <= int(text) <= _MOST:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 to {_MOST}")
    return int(text)


def add_model(verb: argparse.ArgumentParser) -> None:
    """Declare what tells the messages and the candidates."""
    verb.add_argument("--config", metavar="FILE", help="the model's config.json")
    verb.add_argument("--hidden", type=int, help="hidden size, without a config")
    verb.add_argument("--layers", type=int, help="layers, without a config")
    verb.add_argument("--dtype-bytes", type=int, choices=(2, 4), default=2, help="bytes a value, without a config")
    verb.add_argument("--model", metavar="NAME", help="what to call the model")
    how = verb.add_mutually_exclusive_group()
    how.add_argument("--quick", action="store_true", help="every profile at four sizes (the default)")
    how.add_argument("--thorough", action="store_true", help="also single settings, more sizes, every pair of GPUs")
    verb.add_argument("--decode", type=numbers, metavar="N,N,...", help="tokens of decode steps")
    verb.add_argument("--prefill", type=numbers, metavar="N,N,...", help="tokens of prefill chunks")
    verb.add_argument("--profile", action="append", metavar="NAME", help="measure this profile (instead of all)")
    verb.add_argument("--candidate", action="append", metavar="NAME:NCCL_X=V,...", help="measure these settings too")


def add_workload(verb: argparse.ArgumentParser) -> None:
    """Declare what a choice depends on besides times."""
    default = Workload()
    verb.add_argument("--prompt", type=count, default=default.prompt, help="tokens of a typical prompt")
    verb.add_argument("--output", type=count, default=default.output, help="tokens of a typical answer")
    verb.add_argument("--streams", type=count, default=default.streams, help="requests at the same time")
    verb.add_argument("--decode-share", type=float, metavar="0..1", help="decode's share, instead of those three")
    verb.add_argument("--bandwidth", type=positive, metavar="GB/s", help="of one link, one way, for the formula")
    verb.add_argument("--step-ms", type=positive, metavar="ms", help="time of a decode step at one stream")


def add_run(verb: argparse.ArgumentParser) -> None:
    """Declare how to measure, and what to write."""
    verb.add_argument("--python", default=sys.executable, metavar="PATH", help="Python of the release, which has torch")
    verb.add_argument("--gpus", type=numbers, metavar="N,N,...", help="which GPUs (default: all)")
    verb.add_argument("--rounds", type=count, default=2, help="groups of processes a candidate")
    verb.add_argument("--most-rounds", type=count, default=6, help="the same, for candidates in doubt")
    verb.add_argument("--repeats", type=count, default=15, help="timed replays a size and group")
    verb.add_argument("--seconds", type=positive, help="begin no group that would end later (300, thorough 1800)")
    verb.add_argument("--timeout", type=positive, default=30.0, metavar="s", help="without progress: a hang")
    verb.add_argument("--start-timeout", type=positive, default=120.0, metavar="s", help="until torch is imported")
    verb.add_argument("--pairs", choices=("none", "classes", "all"), help="two GPUs at a time: one pair a link class")
    verb.add_argument("--with", dest="measure_with", choices=("auto", "torch", "nccl-tests"), default="auto")
    verb.add_argument("--nccl-tests", metavar="PATH", help="all_reduce_perf, if it isn't on PATH")
    verb.add_argument("--backend", choices=("nccl", "gloo"), default="nccl", help="gloo proves the program on a CPU")
    verb.add_argument("--worker", metavar="COMMAND", help="another worker than tune-worker with --python")
    verb.add_argument("--out", metavar="FILE", help="write the whole result (JSON)")
    verb.add_argument("--measured", metavar="FILE", help="write the profile 'measured' with its receipt (JSON)")
    verb.add_argument("--logs", metavar="FOLDER", help="keep every group's logs")


def add_ab(verb: argparse.ArgumentParser) -> None:
    """Declare how whole engines are compared."""
    verb.add_argument("base", metavar="BASE", help="what runs today (JSON); - for standard input")
    verb.add_argument(
        "--trial", action="append", metavar="NAME", help="a built-in one (default: all; --list shows them)"
    )
    verb.add_argument("--trials", metavar="FILE", help="a list of own ones: name, arguments, environment, nccl_profile")
    verb.add_argument("--list", action="store_true", help="show what would be tried; starts nothing")
    verb.add_argument("--smoke-profile", metavar="FILE", help="what the smoke test asks for (JSON)")
    verb.add_argument("--smoke-python", metavar="PATH", help="its Python, if not the release's")
    verb.add_argument("--measured-profile", metavar="FILE", help="what the NCCL profile 'measured' reads")
    verb.add_argument("--result", metavar="FILE", help="what 'run --out' wrote: tells what to expect of NCCL profiles")
    verb.add_argument("--chunk", type=count, default=8192, help="tokens of a prompt that the engine takes at once")
    verb.add_argument("--as-root", action="store_true", help="start engines as root, where there is no other account")
    verb.add_argument("--start-timeout", type=positive, default=1800.0, metavar="s", help="until it generates")
    verb.add_argument("--test-timeout", type=positive, default=1800.0, metavar="s", help="for one smoke test")
    verb.add_argument("--out", metavar="FILE", help="write the whole result (JSON)")
    verb.add_argument("--logs", metavar="FOLDER", help="keep each engine's log and smoke report")


def shape_of(options: argparse.Namespace) -> Shape:
    """Return what the model sends."""
    with mendable(options.config or "options"):
        if options.config:
            return shapes.shape_of(read_document(options.config), name=options.model or "")
        if not (options.hidden and options.layers):
            raise ProgramError("--config, or --hidden and --layers, tell what is sent; neither was given")
        return Shape(options.hidden, options.layers, options.dtype_bytes, name=options.model or "")


def sizes_of(shape: Shape, options: argparse.Namespace) -> list[Size]:
    """Return the messages to measure."""
    default = shapes.THOROUGH_TOKENS if options.thorough else shapes.QUICK_TOKENS
    with mendable("--decode, --prefill"):
        return shapes.sizes(shape, {phase: tuple(getattr(options, phase) or default[phase]) for phase in PHASES})


def candidates_of(options: argparse.Namespace) -> list[Candidate]:
    """Return what is to be tried, NCCL's own choice first."""
    known = candidates.thorough() if options.thorough else candidates.quick()
    with mendable():
        if options.profile:
            known = candidates.of_profiles(options.profile)
        return candidates.unique([*known, *(candidates.parse(text) for text in options.candidate or [])])


def plan_of(options: argparse.Namespace, tried: Sequence[Candidate], sizes: Sequence[Size]) -> Plan:
    """Return what to measure, and for how long."""
    seconds = float(options.seconds or (THOROUGH_SECONDS if options.thorough else QUICK_SECONDS))
    pairs = options.pairs or ("all" if options.thorough else "classes")
    return Plan(tuple(tried), tuple(sizes), options.rounds, options.most_rounds, seconds, pairs)


def worker_of(options: argparse.Namespace, program: Path) -> tuple[str, ...]:
    """Return the command of one rank, ``program`` under the release's Python unless another is named."""
    return tuple(shlex.split(options.worker)) if options.worker else (options.python, str(program))


def bench_of(
    options: argparse.Namespace, worker: tuple[str, ...], found: Mapping[str, Any], plan: Plan, shape: Shape
) -> Bench:
    """Return how this host measures; ``found`` is what the worker's Python has."""
    with mendable():
        gpus = measuring.gpus_of(options.gpus, found["gpus"], options.backend, worker[0])
        tests = measuring.tests_of(options.measure_with, options.nccl_tests)
    return Bench(
        worker=worker,
        backend=options.backend,
        gpus=gpus,
        environment={"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ},  # as nvidia-smi counts them
        sizes=tuple(sorted({size.bytes for size in plan.sizes})),
        dtype=dtype_of(shape.dtype_bytes),
        limits=Limits(options.start_timeout, options.timeout, options.start_timeout + 4 * options.timeout),
        repeats=options.repeats,
        tests=tests if options.backend == "nccl" else None,
        library=found.get("nccl_library"),
        nccl=found.get("nccl"),
        keep=Path(options.logs) if options.logs else None,
    )


def workload_of(options: argparse.Namespace) -> Workload:
    """Return what a request is like."""
    return Workload(options.prompt, options.output, options.streams)


def decide(results: Sequence[Result], options: argparse.Namespace) -> Decision:
    """Return the choice, for the workload or the share of decode that was given."""
    with mendable():
        share = workload_of(options) if options.decode_share is None else options.decode_share
        return decision.decide(results, share)


def doubtful(plan: Plan, campaign: Campaign, options: argparse.Namespace) -> list[str | None]:
    """Return who needs more groups: the candidates in doubt, and what they are compared with."""
    so_far = decide(results(plan, campaign), options)
    names = decision.in_doubt(so_far)
    return [so_far.reference, *names] if names else []


def check_writable(options: argparse.Namespace) -> None:
    """Find out before minutes of measurement whether their result can be kept."""
    for name in ("out", "measured"):
        target = getattr(options, name, None)
        if not target:
            continue
        folder = Path(target).resolve().parent
        if Path(target).is_dir() or not (folder.is_dir() and os.access(folder, os.W_OK)):
            raise ProgramError(f"--{name} {target}: expected a file in a folder that is there and can be written to")
    if options.logs:
        Path(options.logs).mkdir(parents=True, exist_ok=True)
