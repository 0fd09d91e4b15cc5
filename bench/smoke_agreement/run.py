#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Do scripts/smoke and `vllm bench serve` measure the same? Pairs of runs against one real engine, in turn.

Both sides send as many requests at the same concurrency, of prompts that one generator makes (each new, so that no
prefix cache helps), for answers of the same length at temperature 0. Each pair gives one ratio a figure; the result is
the median ratio with an interval of order statistics, which assumes nothing of the distribution.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "plugins" / "module_utils"))

from inference.smoke.text import filler, nonce

CONFIDENCE = 0.95
FIGURES = {"tok_s": 0.05, "tpot_s": 0.05, "ttft_s": 0.10}
"""Figure and how far its median ratio may be from 1, the interval included."""

Figures = dict[str, float]


def interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return low, high and the real confidence of the narrowest symmetric order-statistic interval of the median.

    With n values the median lies between the k-th smallest and the k-th largest with probability
    1 - 2 P(Binomial(n, 1/2) < k). ValueError for too few values (below six for 95%).
    """
    ordered, size = sorted(values), len(values)
    found = None
    for k in range(1, size // 2 + 1):
        outside = 2 * sum(math.comb(size, i) for i in range(k)) / 2**size
        if 1 - outside >= confidence:
            found = (ordered[k - 1], ordered[size - k], 1 - outside)
    if found is None:
        raise ValueError(f"{size} values give no {confidence:.0%} interval of a median")
    return found


def ours(options: argparse.Namespace, folder: Path) -> Figures:
    """Run scripts/smoke as an operator would; return what it reports of its stage ``concurrent``."""
    load = {
        "prompt_tokens": options.prompt_tokens, "output_tokens": options.output_tokens, "warmups": 0, "repeats": 1,
        "concurrency": options.concurrency, "rounds": options.rounds,
    }  # fmt: skip
    profile, out = folder / "profile.json", folder / "smoke.json"
    profile.write_text(json.dumps({"model": options.model, "load": load}))
    command = [sys.executable, ROOT / "scripts/smoke", "--url", options.url, "--profile", profile, "--out", out]
    done = subprocess.run([*command, "--stages", "concurrent"], capture_output=True, text=True, check=False)
    row = json.loads(out.read_text())["throughput"].get("concurrent") if out.exists() else None
    if not row or row["failed"]:
        raise SystemExit(f"scripts/smoke failed: {done.stdout}{done.stderr}")
    return {
        "tok_s": row["tok_s"]["median"], "tpot_s": row["tpot_s"]["p50"], "ttft_s": row["ttft_s"]["p50"],
        "prompt_tokens": row["prompt_tokens"], "completion_tokens": row["completion_tokens"],
        "client_lag_p99_ms": row["client"]["lag_p99_ms"],
    }  # fmt: skip


def theirs(options: argparse.Namespace, folder: Path) -> Figures:
    """Run ``vllm bench serve`` on prompts of the same generator; return the figures of the same names."""
    data, out = folder / "prompts.jsonl", folder / "vllm.json"
    rng, count = random.SystemRandom(), options.concurrency * options.rounds
    words = round(options.prompt_tokens / options.tokens_per_word)
    prompts = [f"{nonce(rng)} {filler(rng, words)}. Tell a story with these words." for _ in range(count)]
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    command = [
        options.vllm, "bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions",
        "--base-url", options.url, "--model", options.model, "--tokenizer", options.tokenizer,
        "--dataset-name", "custom", "--dataset-path", data, "--custom-output-len", options.output_tokens,
        "--skip-chat-template", "--disable-shuffle", "--num-prompts", count, "--ignore-eos", "--temperature", 0,
        "--max-concurrency", options.concurrency, "--ready-check-timeout-sec", 0, "--disable-tqdm",
        "--percentile-metrics", "ttft,tpot", "--save-result", "--result-dir", folder, "--result-filename", out.name,
    ]  # fmt: skip
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, env=environment, cwd=folder
    )
    seen: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    if done.returncode or seen.get("completed") != count:
        raise SystemExit(f"vllm bench serve failed: {done.stdout}{done.stderr}")
    return {
        "tok_s": seen["output_throughput"], "tpot_s": seen["median_tpot_ms"] / 1000,
        "ttft_s": seen["median_ttft_ms"] / 1000, "prompt_tokens": seen["total_input_tokens"] / count,
        "completion_tokens": seen["total_output_tokens"],
    }  # fmt: skip


def pairs(options: argparse.Namespace) -> list[dict[str, Figures]]:
    """Measure the pairs, each side first in turn, and append each to the file of raw figures."""
    kept: list[dict[str, Figures]] = []
    if options.raw and options.raw.exists():
        kept = [json.loads(line) for line in options.raw.read_text().splitlines()]
    sides = {"smoke": ours, "vllm": theirs}
    with tempfile.TemporaryDirectory() as name:
        if options.pairs and not kept:
            ours(options, Path(name))  # warm-up: the first requests of an engine are not like the others
        for _ in range(options.pairs):
            order = list(sides) if len(kept) % 2 == 0 else list(reversed(sides))
            pair = {}
            for side in order:
                folder = Path(name) / f"{len(kept)}-{side}"
                folder.mkdir()
                pair[side] = sides[side](options, folder)
            kept.append(pair)
            if options.raw:
                with options.raw.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(pair) + "\n")
    return kept


def result(kept: Sequence[dict[str, Figures]]) -> dict[str, Any]:
    """Return the median ratio (smoke over vllm) of each figure with its interval, and whether that is close enough."""
    rows = {}
    for figure, bound in FIGURES.items():
        ratios = [pair["smoke"][figure] / pair["vllm"][figure] for pair in kept]
        low, high, confidence = interval(ratios)
        rows[figure] = {
            "smoke": statistics.median(pair["smoke"][figure] for pair in kept),
            "vllm": statistics.median(pair["vllm"][figure] for pair in kept),
            "ratio": statistics.median(ratios), "low": low, "high": high, "confidence": confidence,
            "bound": bound, "agrees": 1 - bound <= low and high <= 1 + bound,
        }  # fmt: skip
    return rows


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="the engine, such as http://127.0.0.1:30000")
    parser.add_argument("--model", required=True, help="served model")
    parser.add_argument("--vllm", required=True, help="the program vllm of an environment that has it")
    parser.add_argument("--tokenizer", required=True, help="folder of the model, for vllm's own count of tokens")
    parser.add_argument("--pairs", type=int, default=9, help="pairs to measure; 0: only read --raw")
    parser.add_argument("--raw", type=Path, help="file of raw figures, one pair a line: more pairs are added to it")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=6, help="requests a stream makes in one run")
    parser.add_argument("--tokens-per-word", type=float, default=1.3, help="as scripts/smoke assumes before it learns")
    options = parser.parse_args()
    kept = pairs(options)
    environment = {"python": platform.python_version(), "cores": os.cpu_count(), "load_average": os.getloadavg()}
    shape = {name: getattr(options, name) for name in ("prompt_tokens", "output_tokens", "concurrency", "rounds")}
    print(json.dumps({**environment, "shape": shape, "pairs": len(kept), "figures": result(kept)}, indent=2))


if __name__ == "__main__":
    main()
