# SPDX-License-Identifier: Apache-2.0
"""The program scripts/tune as a person runs it, with a stand-in for the worker: no GPU and no torch are needed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inference.tune import BANNED

ROOT = Path(__file__).parent.parent
STAND_IN = f"{sys.executable} {Path(__file__).parent / 'stand_in_tune_worker.py'}"
MODEL = ["--hidden", "512", "--layers", "10"]
SMALL = [*MODEL, "--decode", "1", "--prefill", "9"]  # 1024 and 9216 bytes

HOST = ROOT / "tests" / "fixtures" / "hosts" / "rtx-pro-6000-x8"
SMI = f"""#!{sys.executable}
import json, pathlib, sys
host = pathlib.Path({str(HOST)!r})
answer = json.loads((host / "commands.json").read_text())["commands"].get(" ".join(["nvidia-smi", *sys.argv[1:]]))
print((host / answer["file"]).read_text(), end="") if answer else sys.exit(9)
"""


def run(*arguments, stdin="", program=ROOT / "scripts" / "tune", **environment):
    base = {key: value for key, value in os.environ.items() if not key.startswith(("NCCL_", "STAND_IN"))}
    return subprocess.run(
        [sys.executable, str(program), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**base, "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )


def measure(*arguments, **environment):
    return run(
        "run", "--worker", STAND_IN, "--json", "--timeout", "1.5", "--pairs", "none", *SMALL, *arguments, **environment
    )


def document(done):
    assert done.stdout, done.stderr
    result = json.loads(done.stdout)
    assert result["schema"] == 1
    assert result["ok"] is (done.returncode in (0, 1))
    return result


def times(**by_setting):
    return json.dumps({"1024": 20.0, "9216": 90.0, **by_setting})


FASTER = {"NCCL_ALGO=Ring": {"1024": 15.0, "9216": 70.0}}
TRADE = {"NCCL_PROTO=LL": {"1024": 15.0, "9216": 200.0}}


def test_plan_needs_no_gpu(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architectures": ["A"], "hidden_size": 7168, "num_hidden_layers": 61}))
    done = run("plan", "--config", str(config), "--json")
    assert done.returncode == 0, done.stderr
    shown = document(done)
    assert shown["shape"]["calls"] == 122
    assert [size["bytes"] for size in shown["sizes"]] == [14336, 229376, 29360128, 117440512]
    assert [c["name"] for c in shown["candidates"]] == ["none", "latency", "balanced", "throughput"]
    assert "122 all-reduces a forward pass" in run("plan", "--config", str(config)).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan"], "--config, or --hidden and --layers"),
        (["plan", "--hidden", "8", "--layers", "-1"], "layers is -1"),
        (["plan", *MODEL, "--profile", "latncy"], "did you mean 'latency'?"),
        (["plan", *MODEL, "--candidate", "x"], "expected NAME:NCCL_X=VALUE"),
        (["plan", *MODEL, "--decode", "a"], "numbers separated by commas"),
        (["plan", *MODEL, "--decode", "0"], "--prefill: tokens is 0"),
        (["plan", *MODEL, "--prefill", "9" * 40], "tokens is 999"),
        (["plan", *MODEL, "--candidate", "../x:NCCL_ALGO=Ring"], "it names a folder"),
        (["run", *MODEL, "--worker", STAND_IN, "--out", "/nowhere/out.json"], "--out /nowhere/out.json"),
        (["run", *MODEL, "--worker", STAND_IN, "--measured", "/"], "--measured /"),
        (["run", *MODEL, "--worker", STAND_IN, "--logs", "/dev/null/logs"], "/dev/null"),
        (["decide", "-", "--prompt", "9" * 400], "from 1 to 1000000000"),
        (["plan", "--config", "/nowhere"], "/nowhere"),
        (["run", *MODEL, "--python", "/nowhere/python"], "/nowhere/python"),
        (["run", *MODEL, "--worker", STAND_IN, "--gpus", "0"], "expected two or more"),
        (["run", *MODEL, "--worker", STAND_IN, "--gpus", "0,7"], "no GPU 7"),
        (["run", *MODEL, "--worker", STAND_IN, "--with", "nccl-tests", "--nccl-tests", "/nowhere"], "no /nowhere"),
        (["decide", "-"], "not the result of a run"),
    ],
)
def test_what_can_not_be_understood_is_named_and_measures_nothing(arguments, words):
    done = run(*arguments, stdin="{}")
    assert done.returncode == 3, done.stdout
    assert words in done.stderr
    assert done.stdout == ""


def test_a_run_measures_decides_and_records(tmp_path):
    out = tmp_path / "result.json"
    done = measure(
        "--profile", "balanced", "--profile", "latency", "--out", str(out), STAND_IN_TIMES=times(**{**FASTER, **TRADE})
    )
    shown = document(done)
    decision = shown["decision"]
    assert decision["chosen"] == "balanced"
    assert [r["verdict"] for r in shown["results"]] == ["healthy"] * 3
    assert decision["trades"] == ["latency"] or "latency" not in decision["banned"]
    assert shown["base"] == {}
    assert json.loads(out.read_text())["decision"] == decision
    assert oct(out.stat().st_mode & 0o777) == "0o644"
    assert [o["proof"]["environment"].get("NCCL_ALGO") for o in shown["outcomes"]][1] == "Ring"
    assert "balanced: healthy" in done.stderr
    assert shown["budget"][0]["calls"] == 20


def test_a_recorded_run_can_be_decided_again_for_another_workload(tmp_path):
    out = tmp_path / "result.json"
    measure("--profile", "balanced", "--out", str(out), STAND_IN_TIMES=times(**FASTER))
    done = run("decide", str(out), "--json", "--decode-share", "0.25", "--bandwidth", "63")
    shown = document(done)
    assert (done.returncode, shown["decision"]["decode_share"]) == (0, 0.25)
    assert shown["budget"][0]["bandwidth_us"] > 0
    text = run("decide", str(out), "--bandwidth", "63", "--step-ms", "10").stdout
    assert "choice: balanced" in text
    assert "The formula divides bytes by bandwidth" in text
    assert "decode 1 (1.0 KB)" in text


@pytest.mark.parametrize(
    ("fault", "code", "finding", "level"),
    [
        ("wrong:1", 2, "tune-wrong-data", "critical"),
        ("hang:1", 2, "tune-hang", "critical"),
        ("die:0", 3, "tune-inconclusive", "unknown"),
        ("no-torch", 3, "tune-inconclusive", "unknown"),
    ],
)
def test_a_fault_of_the_own_choice_is_the_exit_code(tmp_path, fault, code, finding, level):
    profile = tmp_path / "measured.json"
    done = measure("--profile", "none", "--measured", str(profile), STAND_IN=fault)
    shown = document(done)
    assert done.returncode == code, shown
    assert (finding, level) in {(f["id"], f["level"]) for f in shown["findings"]}
    assert shown["decision"]["chosen"] is None
    assert not profile.exists()


def test_one_bad_pair_of_four_gpus_is_named():
    done = measure("--profile", "none", STAND_IN_GPUS="4", STAND_IN="wrong", STAND_IN_PAIR="1-3")
    shown = document(done)
    bad = [f["what"] for f in shown["findings"] if f["id"] == "tune-bad-pair"]
    assert done.returncode == 2
    assert bad == ["GPU1-GPU3 (unknown): wrong-data"]
    assert len(shown["pairs"]) == 6


def test_the_callers_own_nccl_settings_hold_for_every_candidate():
    shown = document(measure("--profile", "balanced", NCCL_P2P_DISABLE="1", NCCL_NVLS_ENABLE="0"))
    assert shown["base"] == {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1"}
    for outcome in shown["outcomes"]:
        assert outcome["proof"]["environment"]["NCCL_P2P_DISABLE"] == "1"
        assert outcome["proof"]["transports"] == {"SHM": 1}


def test_what_the_caller_sets_is_on_top_of_a_candidate_as_a_service_has_it():
    shown = document(measure("--profile", "latency", "--candidate", "ll:NCCL_PROTO=LL", NCCL_PROTO="Simple"))
    assert {outcome["proof"]["environment"]["NCCL_PROTO"] for outcome in shown["outcomes"]} == {"Simple"}
    assert [result["name"] for result in shown["results"]] == ["none", "latency"]  # ll is NCCL's own choice here
    said = {entry["id"]: entry["why"] for entry in shown["not_checked"]}
    assert all("NCCL_PROTO=LL (here Simple)" in said[f"tune-{name}"] for name in ("latency", "ll"))


def test_a_candidate_that_the_lint_refuses_is_not_run():
    shown = document(measure("--profile", "none", "--candidate", "bad:NCCL_BUFFSIZE=16M"))
    assert [r["name"] for r in shown["results"]] == ["none"]
    assert any(e["id"] == "tune-bad" and "refused without a run" in e["why"] for e in shown["not_checked"])


def test_a_profile_is_written_with_the_hosts_fingerprint_and_checked_against_it(tmp_path):
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    path, profile = f"{tmp_path}:{os.environ['PATH']}", tmp_path / "measured.json"
    done = measure("--profile", "balanced", "--measured", str(profile), STAND_IN_TIMES=times(**FASTER), PATH=path)
    shown = document(done)
    written = json.loads(profile.read_text())
    assert written["receipt"]["fingerprint"] == shown["host"]["fingerprint"]
    assert written["environment"]["NCCL_ALGO"] == "Ring"
    environment = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "nccl"), "environment", "measured", "--measured", str(profile)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "NCCL_ALGO=Ring" in environment
    same = run("check", str(profile), "--json", "--nccl-version", "2.28.9", PATH=path)
    assert (same.returncode, document(same)["findings"]) == (0, [])
    other = run("check", str(profile), "--json", "--nccl-version", "2.30.7", PATH=path)
    assert [f["id"] for f in document(other)["findings"]] == ["tune-expired-nccl"]


def test_without_a_fingerprint_no_profile_is_written(tmp_path):
    profile = tmp_path / "measured.json"
    shown = document(measure("--profile", "none", "--measured", str(profile), PATH="/usr/bin:/bin"))
    if shutil.which("nvidia-smi"):
        pytest.skip("this host has GPUs")
    assert not profile.exists()
    assert any(f["id"] == "tune-no-fingerprint" and f["level"] == "warning" for f in shown["findings"])


def test_logs_of_every_group_are_kept_where_asked(tmp_path):
    measure("--profile", "none", "--logs", str(tmp_path / "logs"))
    assert sorted(path.name for path in (tmp_path / "logs").iterdir()) == ["none", "none-2"]
    assert "NCCL version" in (tmp_path / "logs" / "none" / "nccl-0.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_when_it_is_ended_nothing_goes_on(tmp_path, number):
    out = tmp_path / "result.json"
    words = ["run", "--worker", STAND_IN, *SMALL, "--logs", str(tmp_path / "logs"), "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "tune"), *words],
        env={**os.environ, "STAND_IN": "hang"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    started = tmp_path / "logs" / "none" / "events-1.jsonl"
    wait_until(lambda: started.exists() and "checking" in started.read_text())
    events = [started.parent / f"events-{rank}.jsonl" for rank in (0, 1)]
    wait_until(lambda: all(file.exists() and "\n" in file.read_text() for file in events))
    workers = [json.loads(file.read_text().splitlines()[0])["pid"] for file in events]
    process.send_signal(number)
    assert process.wait(timeout=300) == 3
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert not out.exists()


def wait_until(condition):
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_it_works_from_a_copy_of_the_programs_and_the_domain(tmp_path):
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copytree(ROOT / "plugins/module_utils/inference", tmp_path / "plugins/module_utils/inference")
    assert run("plan", *MODEL, program=tmp_path / "scripts" / "tune").returncode == 0


PERF = ["--nccl-tests", str(Path(__file__).parent / "stand_in_all_reduce_perf.py"), "--rounds", "1"]


def test_nccl_tests_measures_where_it_is_found(tmp_path):
    shown = document(measure("--profile", "balanced", "--logs", str(tmp_path / "logs"), *PERF))
    assert shown["measured_with"] == "nccl-tests"
    assert [row["median_us"] for row in shown["results"][0]["rows"]] == pytest.approx([21.094, 29.286])
    # the stand-in's NCCL names NCCL_ALGO only, so that the other settings are not proved
    assert shown["results"][1]["verdict"] == "inconclusive"
    written = json.loads((tmp_path / "logs" / "none" / "1024" / "results.json").read_text())
    assert written["visible"] == "0,1"
    torch = document(measure("--profile", "none", "--with", "torch", *PERF))
    assert torch["measured_with"] == "torch.distributed, nccl"


def test_settings_that_nccl_tests_ran_with_can_win():
    shown = document(measure("--profile", "none", "--candidate", "ring:NCCL_ALGO=Ring", *PERF))
    assert shown["decision"]["chosen"] == "ring"


@pytest.mark.parametrize(
    ("fault", "code", "words"),
    [
        ("wrong", 2, "4 values"),
        ("hang", 2, "no progress at 1024 bytes"),
        ("fail", 3, "ended with exit code 1; no CUDA device"),
    ],
)
def test_faults_of_nccl_tests_are_results(fault, code, words):
    done = measure("--profile", "none", "--start-timeout", "0.5", *PERF, PERF=fault)
    shown = document(done)
    assert done.returncode == code
    assert words in shown["results"][0]["reason"]


def test_figures_of_another_nccl_than_the_releases_own_decide_nothing():
    """A nccl-tests linked against its own NCCL: the receipt would name the release's."""
    done = measure("--profile", "none", *PERF, PERF_NCCL="2.30.7")
    shown = document(done)
    assert (done.returncode, shown["results"][0]["verdict"]) == (3, "inconclusive")
    assert "seen 2.30.7+cuda13.0, expected 2.28.9" in shown["results"][0]["reason"]


def test_every_finding_has_a_section_in_the_guide():
    sources = [*(ROOT / "plugins/module_utils/inference/tune").glob("*.py"), ROOT / "scripts" / "tune"]
    named = {name for path in sources for name in re.findall(r'id(?:=|": )"(tune-[a-z-]+)"', path.read_text())}
    named |= {f"tune-{verdict}" for verdict in BANNED}
    named |= {f"tune-trial-{status}" for status in ("wrong", "failed")}
    named |= {f"tune-expired-{part}" for part in ("fingerprint", "driver", "nccl", "receipt")}
    sections = set(re.findall(r"^### (tune-[a-z-]+)$", (ROOT / "docs" / "tune.md").read_text(), re.MULTILINE))
    assert sections == named
