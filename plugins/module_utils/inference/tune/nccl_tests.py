# SPDX-License-Identifier: Apache-2.0
"""Measure with NVIDIA's nccl-tests where it is installed: its command line, and what its JSON says.

Its all-reduce runs in one process with one thread a GPU, captured in a graph and value-checked. NCCL then takes direct
pointers where an engine's processes share memory handles, and the program brings the NCCL that it was linked with:
``library`` puts a release's own before it. Options and fields are those of nccl-tests at commit a0b82b2 (2026-07).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .launching import GroupRun
from .protocol import Job, Message

PROGRAM = "all_reduce_perf"
_TYPES = {"bfloat16": "bfloat16", "float32": "float"}
_LAUNCHES = 5


def find(path: str | None = None) -> str | None:
    """Return the program's path: the one given, or the one on PATH; None without."""
    return shutil.which(path or PROGRAM)


def command(program: str, job: Job, message: Message, output: Path) -> list[str]:
    """Return the command for one message of a job: a figure a repeat, over graphs of ``message.calls`` all-reduces."""
    options = {
        "-b": message.bytes,
        "-e": message.bytes,
        "-t": job.world,
        "-g": 1,
        "-d": _TYPES[job.dtype],
        "-n": message.calls,
        "-w": job.warmups,
        "-G": _LAUNCHES,
        "-N": job.repeats,
        "-c": 1,
        "-J": output,
    }
    return [program, *(str(word) for option in options.items() for word in option)]


def environment(base: Mapping[str, str], devices: Sequence[int], library: str | None) -> dict[str, str]:
    """Return the environment: the GPUs by their numbers among the visible ones, and the release's NCCL first."""
    visible = [word.strip() for word in base.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    chosen = [visible[device] if visible else str(device) for device in devices]
    result = {**base, "CUDA_VISIBLE_DEVICES": ",".join(chosen)}
    if library:
        known = base.get("LD_LIBRARY_PATH")
        result["LD_LIBRARY_PATH"] = f"{library}:{known}" if known else library
    return result


def events(text: str, size: int) -> list[dict[str, Any]]:
    """Return what the program's JSON says as the events of a worker, so that it is judged the same way.

    In place is what engines do. A file that is cut off or holds no results gives ``failed``.
    """
    try:
        document = json.loads(text)
        rows = [row["in_place"] for row in document["results"]]
        times = [float(row["time"]) for row in rows]
        bad = [float(row["nwrong"]) for row in rows if row["nwrong"] is not None]
    except (ValueError, KeyError, TypeError) as error:
        return [{"event": "failed", "reason": f"nccl-tests wrote no results that can be read: {error!r}"}]
    if not times or not bad:
        return [{"event": "failed", "reason": "nccl-tests wrote no checked results"}]
    wrong = {"count": int(max(bad)), "when": "in its own check"}
    return [
        {"event": "imported", "torch": None, "nccl": _version(document.get("nccl_version"))},
        {"event": "checking", "bytes": size},
        {"event": "timed", "bytes": size, "us": times, "wrong": wrong if max(bad) > 0 else None},
        {"event": "done"},
    ]


def _version(code: object) -> str | None:
    """Return 2.28.9 for 22809, as NCCL numbers its releases since 2.9."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}" if isinstance(code, int) and code else None


def merged(runs: Sequence[GroupRun]) -> GroupRun:
    """Return the runs of several sizes, one process each, as one."""
    bad = next((run for run in runs if run.end != "done"), runs[-1])
    return GroupRun(
        end=bad.end,
        seconds=round(sum(run.seconds for run in runs), 3),
        events=[[event for run in runs for event in run.events[0]]],
        exits=bad.exits,
        logs=[log for run in runs for log in run.logs],
        tails=bad.tails,
        ras=bad.ras,
    )
