# SPDX-License-Identifier: Apache-2.0
"""The benches of the smoke test: what they make of figures, and that they run against stand-ins."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from loading import load as load_file
from misbehaving_server import MODEL, Server

BENCH = Path(__file__).parent.parent / "bench"


def load(name: str) -> ModuleType:
    return load_file(name, BENCH / name / "run.py")


AGREEMENT, CLIENT = load("smoke_agreement"), load("smoke_client")


@pytest.mark.parametrize(
    ("count", "low", "high", "confidence"), [(6, 1, 6, 0.969), (7, 1, 7, 0.984), (9, 2, 8, 0.961), (12, 3, 10, 0.961)]
)
def test_the_interval_of_a_median_is_that_of_order_statistics(
    count: int, low: int, high: int, confidence: float
) -> None:
    found = AGREEMENT.interval(list(range(count, 0, -1)))
    assert found == (low, high, pytest.approx(confidence, abs=0.001))


def test_too_few_values_have_no_interval() -> None:
    with pytest.raises(ValueError, match="5 values give no 95% interval"):
        AGREEMENT.interval([1.0] * 5)


def pair(ratio: float) -> dict[str, dict[str, float]]:
    return {"smoke": dict.fromkeys(AGREEMENT.FIGURES, ratio), "vllm": dict.fromkeys(AGREEMENT.FIGURES, 1.0)}


def test_agreement_needs_the_whole_interval() -> None:
    close = AGREEMENT.result([pair(1 + i / 100) for i in range(-3, 4)])
    assert {row["agrees"] for row in close.values()} == {True}
    apart = AGREEMENT.result([pair(1.07)] * 7)
    assert {name: row["agrees"] for name, row in apart.items()} == {"tok_s": False, "tpot_s": False, "ttft_s": True}
    wide = AGREEMENT.result([pair(1.0)] * 5 + [pair(0.9), pair(1.1)])
    assert wide["tok_s"]["ratio"] == 1.0
    assert not wide["tok_s"]["agrees"]


FAKE_VLLM = """#!{python}
import json, sys
words = sys.argv
option = lambda name: words[words.index(name) + 1]
prompts = [json.loads(line)["prompt"] for line in open(option("--dataset-path"))]
assert len(set(prompts)) == int(option("--num-prompts")) == 4, prompts
tokens = 4 * int(option("--custom-output-len"))
figures = {{"completed": 4, "output_throughput": 100.0, "median_tpot_ms": 2.0, "median_ttft_ms": 30.0,
           "total_input_tokens": 40, "total_output_tokens": tokens}}
json.dump(figures, open(option("--result-dir") + "/" + option("--result-filename"), "w"))
"""


def test_pairs_are_of_the_same_shape_and_are_kept(tmp_path: Path) -> None:
    fake = tmp_path / "vllm"
    fake.write_text(FAKE_VLLM.format(python=sys.executable))
    fake.chmod(0o755)
    options = Namespace(
        vllm=str(fake), model=MODEL, tokenizer="x", pairs=2, raw=tmp_path / "raw", prompt_tokens=32, output_tokens=8,
        concurrency=2, rounds=2, tokens_per_word=1.3, url="",
    )  # fmt: skip
    with Server() as server:
        options.url = server.url
        kept = AGREEMENT.pairs(options)
    assert len(kept) == 2
    assert kept[0]["vllm"] == {
        "tok_s": 100.0, "tpot_s": 0.002, "ttft_s": 0.03, "prompt_tokens": 10, "completion_tokens": 32,
    }  # fmt: skip
    assert kept[0]["smoke"]["completion_tokens"] == 32
    assert [json.loads(line) for line in options.raw.read_text().splitlines()] == kept
    options.pairs = 0
    assert AGREEMENT.pairs(options) == kept


def test_the_client_is_driven_and_timed_from_outside() -> None:
    command = [sys.executable, str(BENCH / "smoke_client" / "run.py"), "--streams", "4", "--flood-tokens", "200"]
    done = subprocess.run(
        [*command, "--repeats", "1", "--shape", "flood"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    row: dict[str, Any] = json.loads(done.stdout)["flood"]["smoke"]
    assert row["tok_s"] > 100
    assert row["tok_s_min"] == row["tok_s_max"] == row["tok_s"]
    assert {"cpu_share", "cpu_us_a_token", "lag_p99_s", "tpot_p50_s", "gap_p99_s"} <= set(row)


def test_processor_time_is_that_between_two_moments() -> None:
    meter = CLIENT.Meter(1)
    meter.looks = [(0.0, 1.0), (1.0, 1.5), (2.0, 3.0), (3.0, 3.0)]
    assert meter.between(1.0, 2.0) == 1.5
    assert meter.between(0.0, 99.0) == 2.0
