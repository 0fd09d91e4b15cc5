#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what the smoke test's client can take: at a pace, and from a server that streams as fast as it can."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "plugins" / "module_utils"))

from inference.smoke.client import Client, Request
from inference.smoke.stats import Phase, percentile
from inference.smoke.stream import Limits

MODEL = "stand-in/paced"
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure(streams: int, tokens: int, pace: float, repeats: int) -> dict[str, Any]:
    """Run one shape against a server of its own; return medians over the repeats after one warm-up."""
    command = [sys.executable, str(HERE / "server.py"), "--pace", str(pace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            port = server.stdout.readline() if server.stdout else ""
            url = f"http://127.0.0.1:{int(port)}"
            runs = [asyncio.run(once(url, streams, tokens, server.pid)) for _ in range(repeats + 1)][1:]
        finally:
            server.terminate()
    return {
        "streams": streams, "tokens": tokens, "pace": pace or None, "repeats": repeats,
        **{name: statistics.median(run[name] for run in runs) for name in runs[0]},
        "tok_s_min": min(run["tok_s"] for run in runs), "tok_s_max": max(run["tok_s"] for run in runs),
    }  # fmt: skip


async def once(url: str, streams: int, tokens: int, server: int) -> dict[str, float]:
    """Run one closed loop of one request a stream; a failed request ends the benchmark."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": tokens, "temperature": 0}
    before, cpu = cpu_seconds(server), time.process_time()
    async with Client(url) as client:
        phase: Phase = await client.closed_loop([Request("/v1/completions", body)] * streams, streams, Limits())
    everything = time.process_time() - cpu
    if phase.failures or phase.tokens != streams * tokens:
        raise SystemExit(f"not all answers were whole: {dict(phase.failures)}")
    return {
        "tok_s": phase.tok_s,
        "client_cpu_share": phase.cpu_share,
        "client_cpu_us_a_token": phase.cpu_seconds / phase.tokens * 1e6,
        "parsing_us_a_token": (everything - phase.cpu_seconds) / phase.tokens * 1e6,
        "server_cpu_share": (cpu_seconds(server) - before) / phase.seconds,
        "lag_p99_ms": phase.lag_p99 * 1000,
        "ttft_p99_ms": percentile([c.ttft or 0.0 for c in phase.completions], 99) * 1000,
        "reads_a_token": statistics.fmean(len({*c.content_times}) for c in phase.completions) / tokens,
    }


def main() -> None:
    """Measure the shapes and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tok-s", type=float, default=2370.0, help="aggregate pace of the paced shape")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shape", choices=("paced", "flood"), help="only this one")
    options = parser.parse_args()
    shapes = {"paced": (256, options.tok_s / options.streams), "flood": (2000, 0.0)}
    chosen = [options.shape] if options.shape else list(shapes)
    rows = {name: measure(options.streams, *shapes[name], options.repeats) for name in chosen}
    environment = {"python": platform.python_version(), "aiohttp": version("aiohttp"), "cores": os.cpu_count()}
    result = {**environment, "load_average": os.getloadavg(), **rows}
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
