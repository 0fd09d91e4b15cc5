# SPDX-License-Identifier: Apache-2.0
"""Run one group of processes under one environment, within bounds of time, and keep what is left when it hangs.

A group is fresh for each set of settings, since NCCL reads its environment once and caches it. Nothing waits for a
process without a limit: when no rank has got any further for a while, NCCL's RAS service is asked what it waits for,
the logs are kept, and every process group that was started is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from . import ras
from .protocol import Events, Job

DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,GRAPH,TUNING,P2P,SHM,NET"}
"""What makes NCCL write down which settings, transports and protocols it uses."""

ENDING = (signal.SIGTERM, signal.SIGINT)
"""The signals by which somebody ends this program."""

_TAIL = 4000
_POLL = 0.05
_GRACE = 3.0

End = Literal["done", "failed", "stalled", "late"]
"""Every rank finished; some rank failed or died; nobody got any further; the time for all of it was over."""


@dataclass(frozen=True)
class Limits:
    """Seconds: until every rank has torch (``start``), without progress (``stall``), and for all (``total``)."""

    start: float = 120.0
    stall: float = 30.0
    total: float = 180.0


@dataclass
class GroupRun:
    """What a group left. ``events`` are lists by rank; ``exits`` are codes by rank, None where it was killed."""

    end: End
    seconds: float
    events: list[list[dict[str, Any]]]
    exits: list[int | None]
    logs: list[str] = field(default_factory=list)
    """NCCL's log by rank."""
    tails: list[str] = field(default_factory=list)
    """The end of each rank's output."""
    ras: str | None = None
    """NCCL's own report of what hangs."""


def run_group(worker: Sequence[str], job: Job, environment: Mapping[str, str], limits: Limits) -> GroupRun:
    """Start one worker a rank with exactly ``environment`` and see them through."""
    path, folder = job.write(), Path(job.folder)
    address = ras.free_address() if job.backend == "nccl" else None
    commands = [[*worker, str(path), str(rank)] for rank in range(job.world)]
    start = time.monotonic()
    with _processes(commands, environment, folder, address) as processes:
        events = Events(job)
        end = _watch(processes, events, job, limits)
        return _left(processes, folder, end=end, start=start, address=address, read=events.rest)


def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    limit: float,
    read: Callable[[End], list[dict[str, Any]]],
) -> GroupRun:
    """Run one program that talks to NCCL by itself; ``read`` tells its events from how it ended.

    Nothing is known of its progress: what has not ended after ``limit`` seconds has stalled.
    """
    address, start = ras.free_address(), time.monotonic()
    with _processes([command], environment, folder, address) as processes:
        _until(lambda: processes[0].poll() is not None, limit)
        code = processes[0].poll()
        end: End = "stalled" if code is None else "failed" if code else "done"
        return _left(processes, folder, end=end, start=start, address=address, read=lambda: [read(end)])


def _left(
    processes: Sequence[subprocess.Popen[bytes]],
    folder: Path,
    *,
    end: End,
    start: float,
    address: str | None,
    read: Callable[[], list[list[dict[str, Any]]]],
) -> GroupRun:
    """Gather what a group leaves, while what hangs can still be asked."""
    report = ras.report(address) if address and end in ("stalled", "late") else None
    count = range(len(processes))
    return GroupRun(
        end=end,
        seconds=round(time.monotonic() - start, 3),
        events=read(),
        exits=[process.poll() for process in processes],
        logs=[_text(folder / f"nccl-{rank}.log") for rank in count],
        tails=[_text(folder / f"output-{rank}.log")[-_TAIL:] for rank in count],
        ras=report,
    )


@contextmanager
def _processes(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], folder: Path, address: str | None
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the commands, each in a session of its own; with the ``address`` of RAS, NCCL logs to files."""
    processes: list[subprocess.Popen[bytes]] = []
    outputs: list[IO[bytes]] = []
    try:
        for rank, command in enumerate(commands):
            outputs.append((folder / f"output-{rank}.log").open("wb"))
            log = {**DEBUG, ras.VARIABLE: address, "NCCL_DEBUG_FILE": str(folder / f"nccl-{rank}.log")}
            settings = {key: value for key, value in log.items() if value} if address else {}
            with signals_held():
                processes.append(
                    subprocess.Popen(
                        list(command),
                        env={**environment, **settings},
                        stdin=subprocess.DEVNULL,
                        stdout=outputs[-1],
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        yield processes
    finally:
        kill(processes)
        for output in outputs:
            output.close()


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold back what would end this program while it starts another, of which nobody would know otherwise.

    A mask would do the same, but be inherited. Only the main thread has handlers to hold back.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda seen, _: came.append(seen)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for seen in came:
            signal.raise_signal(seen)


def kill(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Kill each process with its whole group, and wait for it; one the kernel can't end is left behind."""
    for process in processes:
        try:
            # the group outlives its leader where that left children behind
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    for process in processes:
        try:
            process.wait(timeout=_GRACE)
        except subprocess.TimeoutExpired:
            continue


def _watch(processes: Sequence[subprocess.Popen[bytes]], events: Events, job: Job, limits: Limits) -> End:
    start = progress = time.monotonic()
    while True:
        now = time.monotonic()
        if events.poll():
            progress = now
        if events.seen("done") == job.world:
            return "done"
        codes = [process.poll() for process in processes]
        if events.seen("failed") or any(code for code in codes) or None not in codes:
            return _ending(processes, events, job)
        if now - start > limits.total:
            return "late"
        if now - progress > (limits.stall if events.seen("imported") == job.world else limits.start):
            return "stalled"
        time.sleep(_POLL)


def _ending(processes: Sequence[subprocess.Popen[bytes]], events: Events, job: Job) -> End:
    """Give the other ranks a moment to say why they fail too."""
    _until(lambda: all(process.poll() is not None for process in processes), _GRACE)
    events.poll()
    return "done" if events.seen("done") == job.world else "failed"


def _until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(_POLL)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
