# SPDX-License-Identifier: Apache-2.0
"""The real worker on a CPU: torch.distributed over gloo, with faults in one rank. Skipped where no torch is found."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest

from inference.tune import WorkerError, versions
from inference.tune.launching import Limits, run_group
from inference.tune.outcome import judge
from inference.tune.protocol import Job, message

ROOT = Path(__file__).parent.parent
WORKER = ROOT / "scripts" / "tune-worker"
FAULTY = Path(__file__).parent / "faulty_tune_worker.py"
PATIENT = Limits(60, 5, 90)
RELEASES = ROOT / ".cache" / "sandbox" / "layers" / "engine" / "opt" / "inference" / "releases"


@functools.cache
def torch_python():
    """Return a Python with torch and the environment that it needs, or None: this one, or a sandbox release's."""
    found = [(sys.executable, {})]
    for record in sorted(RELEASES.glob("*/release.json")):
        site = next(iter(record.parent.glob("venv/lib/python3*/site-packages")), None)
        found.append((json.loads(record.read_text())["interpreter"]["path"], {"PYTHONPATH": str(site)}))
    for python, extra in found:
        try:
            done = subprocess.run(
                [python, "-c", "import torch.distributed as d; assert d.is_gloo_available()"],
                env={**os.environ, **extra},
                capture_output=True,
                check=False,
                timeout=120,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return python, extra
    return None


@pytest.fixture
def torch():
    found = torch_python()
    if found is None:
        pytest.skip("no Python with torch: neither this one nor a release in .cache/sandbox has it")
    return found


def measured(torch, folder, fault="", *, world=2, sizes=(1024, 40_000), limits=PATIENT):
    python, extra = torch
    job = Job("gloo", tuple(range(world)), "bfloat16", tuple(message(n, world) for n in sizes), 3, 1, str(folder))
    worker = (python, str(FAULTY if fault else WORKER))
    run = run_group(worker, job, {**os.environ, **extra, "FAULT": fault, "OMP_NUM_THREADS": "1"}, limits)
    return judge(run, job, {})


@pytest.mark.parametrize("world", [2, 3])
def test_sums_are_right_and_timed_on_every_rank(torch, tmp_path, world):
    seen = measured(torch, tmp_path, world=world)
    assert seen.verdict == "healthy", (seen.reason, seen.kept)
    assert {size: len(times) for size, times in seen.times.items()} == {1024: 3, 40_000: 3}
    assert all(us > 0 for times in seen.times.values() for us in times)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (2, "wrong sums on rank 1: 1 values at 1024 bytes before"),
        (20, "wrong sums on ranks 0, 1: 1 values at 1024 bytes in a replay, not the last"),  # warm-up
        (2 + 50 + 60, "wrong sums on ranks 0, 1: 1 values at 1024 bytes in a replay, not the last"),
        (2 + 50 + 110, "wrong sums on ranks 0, 1: 1 values at 1024 bytes in the timed replays; on rank 0"),
        (2 + 200 + 1, "wrong sums on rank 1: 1 values at 1024 bytes after"),
    ],
)
def test_one_wrong_value_in_any_call_is_found(torch, tmp_path, call, words):
    seen = measured(torch, tmp_path, f"wrong@{call}:1", sizes=(1024,))
    assert seen.verdict == "wrong-data", (seen.reason, seen.kept)
    assert seen.reason.startswith(words)


def test_values_of_an_earlier_message_are_found(torch, tmp_path):
    seen = measured(torch, tmp_path, "stale:0")
    assert seen.verdict == "wrong-data", (seen.reason, seen.kept)
    assert seen.reason.startswith("wrong sums on ranks 0, 1: 512 values")


def test_a_slow_rank_is_slow_and_no_hang(torch, tmp_path):
    seen = measured(torch, tmp_path, "slow:1", sizes=(1024,))
    assert seen.verdict == "healthy", (seen.reason, seen.kept)
    assert median(seen.times[1024]) > 5000


def test_a_rank_that_stops_is_a_hang(torch, tmp_path):
    seen = measured(torch, tmp_path, "hang@3:1", limits=Limits(60, 3, 90))
    assert seen.verdict == "hang"
    assert "at 1024 bytes" in seen.reason


def test_a_python_without_torch_is_named(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    job = Job("gloo", (0, 1), "bfloat16", (message(1024, 2),), 3, 1, str(tmp_path))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    seen = judge(run_group((sys.executable, str(WORKER)), job, environment, Limits(30, 5, 60)), job, {})
    assert seen.verdict == "inconclusive"
    assert "No module named 'torch'" in seen.reason


def test_versions_need_a_torch_and_say_so(torch, tmp_path, monkeypatch):
    python, extra = torch
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(WorkerError, match="No module named 'torch'; give --python"):
        versions((sys.executable, str(WORKER)))
    with pytest.raises(WorkerError, match="/nowhere/python"):
        versions(("/nowhere/python", str(WORKER)))
    monkeypatch.setenv("PYTHONPATH", extra.get("PYTHONPATH", ""))
    assert versions((python, str(WORKER)))["torch"]
