#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the smoke test's client and other benchmark clients can take from the same server, in one run.

Each client is a process of its own. Its rate is what it reports itself: socket buffers take in a flood long before a
slow client has read it, so that the server's clock would flatter. Its processor time is read from /proc, from the first
request (the server's clock) for as long as the client says that it took. Clients take turns, so that a machine that
changes changes for all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "plugins" / "module_utils"))

from inference.smoke.client import Client, Request
from inference.smoke.stats import Phase, figures
from inference.smoke.stream import Limits

MODEL = "stand-in/paced"
TICKS = os.sysconf("SC_CLK_TCK")
LOOK_SECONDS = 0.05
TREE_SECONDS = 1.0
"""How often a client's processes are looked for: reading all of /proc is not free."""

Row = dict[str, Any]
Command = Callable[[argparse.Namespace, str, int, Path], list[str]]


def smoke(options: argparse.Namespace, url: str, tokens: int, folder: Path) -> list[str]:
    """Return the command for this project's own client."""
    words = [sys.executable, __file__, "--drive", url, "--streams", options.streams, "--tokens", tokens]
    return [*map(str, words), "--out", str(folder / "smoke.json")]


def vllm(options: argparse.Namespace, url: str, tokens: int, folder: Path) -> list[str]:
    """Return the command of ``vllm bench serve``."""
    words = [
        options.vllm, "bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions", "--base-url", url,
        "--model", MODEL, "--tokenizer", options.tokenizer, "--dataset-name", "random", "--random-input-len", 16,
        "--random-output-len", tokens, "--num-prompts", options.streams, "--max-concurrency", options.streams,
        "--ignore-eos", "--ready-check-timeout-sec", 0, "--disable-tqdm", "--percentile-metrics", "ttft,tpot,itl",
        "--save-result", "--result-dir", folder, "--result-filename", "vllm.json",
    ]  # fmt: skip
    return [str(word) for word in words]


def sglang(options: argparse.Namespace, url: str, tokens: int, folder: Path) -> list[str]:
    """Return the command of ``sglang.bench_serving``."""
    words = [
        options.sglang, "-m", "sglang.bench_serving", "--backend", "sglang-oai", "--base-url", url, "--model", MODEL,
        "--tokenizer", options.tokenizer, "--dataset-name", "random-ids", "--random-input-len", 16,
        "--random-output-len", tokens, "--random-range-ratio", 1, "--num-prompts", options.streams,
        "--max-concurrency", options.streams, "--warmup-requests", 0, "--disable-tqdm",
        "--output-file", folder / "sglang.json",
    ]  # fmt: skip
    return [str(word) for word in words]


def guidellm(options: argparse.Namespace, url: str, tokens: int, folder: Path) -> list[str]:
    """Return the command of ``guidellm run``."""
    count = options.streams
    words = [
        options.guidellm, "run", "--disable-console", "--profile", f"kind=concurrent,streams={count}",
        "--backend", f"kind=openai_http,target={url},model={MODEL},request_format=/v1/completions",
        "--constraint", f"kind=max_requests,count={count}", "--tokenizer",
        f"kind=huggingface_auto,model={options.tokenizer}", "--data",
        f"kind=synthetic_text,prompt_tokens=16,output_tokens={tokens}", "--output",
        f"kind=json,path={folder / 'guidellm.json'}",
    ]  # fmt: skip
    return [str(word) for word in words]


def reported(name: str, folder: Path) -> Row:
    """Return what a client itself reports: tokens and seconds in all; median time a token, TTFT p99, chunk gap p99."""
    text = (folder / f"{name}.json").read_text(encoding="utf-8")
    if name == "smoke":
        row = json.loads(text)
        return {
            "tokens": row["completion_tokens"], "seconds": row["completion_tokens"] / row["tok_s"]["median"],
            "tpot_p50_s": row["tpot_s"]["p50"], "ttft_p99_s": row["ttft_s"]["p99"],
            "gap_p99_s": row["chunk_gap_s"]["p99"], "lag_p99_s": row["client"]["lag_p99_ms"] / 1000,
            "parsing_us_a_token": row["parsing_us_a_token"],
        }  # fmt: skip
    if name == "guidellm":
        return of_guidellm(json.loads(text)["benchmarks"][0])
    row = json.loads(text.splitlines()[-1] if name == "sglang" else text)
    plain = {"tpot_p50_s": "median_tpot_ms", "ttft_p99_s": "p99_ttft_ms", "gap_p99_s": "p99_itl_ms"}
    sums = {"tokens": row["total_output_tokens"], "seconds": row["duration"]}
    return {**sums, **{to: row[figure] / 1000 for to, figure in plain.items()}}


def of_guidellm(benchmark: Row) -> Row:
    """Return the same figures of guidellm's report, which gives the moments of each request."""
    done = benchmark["requests"]["successful"]
    begun, ended = min(r["request_start_time"] for r in done), max(r["request_end_time"] for r in done)
    seen = {
        name: benchmark["metrics"][figure]["successful"]["percentiles"][percent] / 1000
        for name, figure, percent in (
            ("tpot_p50_s", "inter_token_latency_ms", "p50"), ("ttft_p99_s", "time_to_first_token_ms", "p99"),
        )
    }  # fmt: skip
    return {"tokens": sum(r["output_tokens"] for r in done), "seconds": ended - begun, **seen}


CLIENTS: dict[str, Command] = {"smoke": smoke, "vllm": vllm, "sglang": sglang, "guidellm": guidellm}


def tree(root: int) -> list[int]:
    """Return the process ``root`` and its descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text(errors="replace").rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            continue
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_seconds(pid: int) -> float | None:
    """Return the processor time of a process, or None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS


class Meter(threading.Thread):
    """Keeps looking at the processor time of a process and its descendants until told to stop."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root, self.over = root, threading.Event()
        self.looks: list[tuple[float, float]] = []

    def run(self) -> None:
        """Look. What a process that ended had used stays counted."""
        used: dict[int, float] = {}
        pids, sought = [self.root], 0.0
        while not self.over.wait(LOOK_SECONDS):
            now = time.monotonic()
            if now - sought > TREE_SECONDS:
                pids, sought = tree(self.root), now
            used |= {pid: seconds for pid in pids if (seconds := cpu_seconds(pid)) is not None}
            self.looks.append((now, sum(used.values())))

    def between(self, begun: float, ended: float) -> float:
        """Return the processor time used between two moments, to the nearest look."""
        times = [when for when, _ in self.looks]
        first, last = (min(bisect_left(times, moment), len(times) - 1) for moment in (begun, ended))
        return self.looks[last][1] - self.looks[first][1]


def once(name: str, options: argparse.Namespace, tokens: int, pace: float) -> Row:
    """Run one client against a server of its own; return what the server, /proc and the client itself say."""
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), "--pace", str(pace)], stdout=subprocess.PIPE, text=True
        ) as server,
    ):
        try:
            url = f"http://127.0.0.1:{int(server.stdout.readline() if server.stdout else '')}"
            environment = {**os.environ, "HF_HUB_OFFLINE": "1", "GUIDELLM__MAX_WORKER_PROCESSES": "1"}
            log = Path(folder) / "log"
            with log.open("wb") as stream:
                client = subprocess.Popen(
                    CLIENTS[name](options, url, tokens, Path(folder)), stdout=stream, stderr=stream, env=environment,
                    cwd=folder,
                )  # fmt: skip
                meter = Meter(client.pid)
                meter.start()
                client.wait(timeout=300)
                meter.over.set()
            with urllib.request.urlopen(f"{url}/served") as answer:  # noqa: S310 - a server of our own
                served = json.load(answer)
            streams = sorted(served)[-options.streams :]
            if client.returncode or len(streams) < options.streams:
                raise SystemExit(f"{name} failed: {log.read_text(errors='replace')[-2000:]}")
            row = reported(name, Path(folder))
        finally:
            server.terminate()
    tokens_served, seconds = sum(s[2] for s in streams), row.pop("seconds")
    if row.pop("tokens") != tokens_served:
        raise SystemExit(f"{name} did not count what the server sent: {tokens_served} tokens")
    begun = min(s[0] for s in streams)
    cpu = meter.between(begun, begun + seconds)
    return {
        "tok_s": tokens_served / seconds, "cpu_share": cpu / seconds, "cpu_us_a_token": cpu / tokens_served * 1e6, **row
    }  # fmt: skip


def drive(options: argparse.Namespace) -> None:
    """Be the client: one closed loop of one request a stream."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": options.tokens, "temperature": 0}

    async def loop() -> Phase:
        async with Client(options.drive) as client:
            return await client.closed_loop(
                [Request("/v1/completions", body)] * options.streams, options.streams, Limits()
            )

    limits = {"max_lag_ms": 1e9, "max_cpu_share": 1e9, "max_lag_share_ttft": 0, "max_lag_share_e2e": 0}
    before = time.process_time()
    phase = asyncio.run(loop())
    parsing = time.process_time() - before - phase.cpu_seconds
    row = figures([phase], concurrency=options.streams, client=limits)
    if row["failed"] or row["completion_tokens"] != options.streams * options.tokens:
        raise SystemExit(f"not all answers were whole: {row['failures']}")
    row["parsing_us_a_token"] = parsing / row["completion_tokens"] * 1e6
    Path(options.out).write_text(json.dumps(row), encoding="utf-8")


def compare(options: argparse.Namespace) -> Row:
    """Run the clients in turn, in each shape; return medians, smallest and largest rate."""
    chosen = [name for name in CLIENTS if name == "smoke" or getattr(options, name)]
    shapes = {"paced": (256, options.tok_s / options.streams), "flood": (options.flood_tokens, 0.0)}
    if options.shape:
        shapes = {options.shape: shapes[options.shape]}
    result: Row = {}
    for shape, (tokens, pace) in shapes.items():
        runs: dict[str, list[Row]] = {name: [] for name in chosen}
        for _ in range(options.repeats):
            for name in chosen:
                runs[name].append(once(name, options, tokens, pace))
        result[shape] = {
            name: {
                **{figure: statistics.median(row[figure] for row in rows) for figure in rows[0]},
                "tok_s_min": min(row["tok_s"] for row in rows), "tok_s_max": max(row["tok_s"] for row in rows),
            }
            for name, rows in runs.items()
        }  # fmt: skip
    return result


def main() -> None:
    """Compare the clients that are given, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", help="the program vllm of an environment that has it")
    parser.add_argument("--sglang", help="the Python of an environment with sglang and datasets")
    parser.add_argument("--guidellm", help="the program guidellm of an environment that has it")
    parser.add_argument("--tokenizer", help="folder of a model, whose tokenizer the others want")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tok-s", type=float, default=2370.0, help="aggregate pace of the paced shape")
    parser.add_argument("--flood-tokens", type=int, default=2000, help="tokens of a stream in the flood")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shape", choices=("paced", "flood"), help="only this one")
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--tokens", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        drive(options)
        return
    environment = {"python": platform.python_version(), "cores": os.cpu_count(), "load_average": os.getloadavg()}
    print(json.dumps({**environment, **compare(options)}, indent=2))


if __name__ == "__main__":
    main()
