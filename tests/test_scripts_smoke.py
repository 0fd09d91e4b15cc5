# SPDX-License-Identifier: Apache-2.0
"""The program as an operator calls it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from misbehaving_server import MODEL, Server

PROGRAM = Path(__file__).parent.parent / "scripts" / "smoke"
FAST = {
    "timeouts": {"control": 60, "health": 60, "first_token": 60, "stall": 60, "request": 300},
    "correctness": {"repeats": 2, "leak_streams": 8, "slow_first_token": 60},
    "load": {"output_tokens": 16, "repeats": 2, "concurrency": 4},
    "prefill": {"lengths": [64], "repeats": 1},
    "client": {"max_lag_ms": 10000, "max_cpu_share": 10},
    # Neighbours on the testing machine are no regression.
    "gate": {"regression": {"percent": 90, "seconds_percent": 900, "seconds_slack": 1}},
}


ONLY = ("--stages", "single")


def smoke(*arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture
def fast(tmp_path: Path) -> Path:
    path = tmp_path / "fast.json"
    path.write_text(json.dumps(FAST))
    return path


def test_a_sound_server_exits_0_with_the_object_of_the_contract(fast: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with Server() as server:
        done = smoke("--url", server.url + "/v1/", "--json", "--profile", fast, "--model", MODEL, "--out", out)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads(out.read_text())
    assert {"schema", "ok", "findings", "not_checked", "run", "stages", "throughput", "gate"} == set(result)
    assert (result["schema"], result["ok"], result["findings"]) == (1, True, [])
    assert result["run"]["url"] == server.url
    assert set(result["throughput"]) == {"single", "concurrent", "prefill"}
    assert result["gate"]["verdict"] == "pass"


def test_text_is_for_people(fast: Path) -> None:
    with Server() as server:
        done = smoke("--url", server.url, "--profile", fast)
    assert "concurrent.tok_s" in done.stdout
    assert "not checked" in done.stdout
    assert done.stderr.splitlines()[0].startswith("reachable: passed")
    assert "\r" not in done.stderr


@pytest.mark.parametrize(
    ("fault", "code", "name"),
    [("silent-truncation", 2, "truncated"), ("wrong-model", 2, "wrong-model"), ("cached", 1, "cached")],
)
def test_faults_have_the_exit_code_of_their_level(fast: Path, fault: str, code: int, name: str) -> None:
    with Server(fault) as server:
        done = smoke("--json", "--url", server.url, "--profile", fast, "--model", MODEL)
    result = json.loads(done.stdout)
    assert done.returncode == code
    assert next(f["id"] for f in result["findings"] if f["level"] != "info") == name
    assert result["ok"] == (code == 1)


def test_the_first_run_is_the_baseline_and_says_so_and_the_next_compares(fast: Path, tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.mkdir()
    results: list[dict[str, Any]] = []
    with Server(delay=0.01) as server:
        for _ in range(2):
            done = smoke("--url", server.url, "--profile", fast, "--history", history, "--json", *ONLY)
            assert done.returncode == 0, done.stdout
            results.append(json.loads(done.stdout))
    assert [f["id"] for f in results[0]["findings"]] == ["baseline-recorded"]
    assert (results[0]["gate"]["verdict"], results[1]["gate"]["verdict"]) == ("baseline", "pass")
    assert results[1]["findings"] == []
    assert results[1]["gate"]["baseline_runs"] == 1
    (file,) = history.iterdir()
    assert [json.loads(line)["passed"] for line in file.read_text().splitlines()] == [True, True]


def test_a_slower_server_is_a_regression_and_never_lowers_the_bar(tmp_path: Path) -> None:
    history = tmp_path / "history"
    history.mkdir()
    profile = tmp_path / "p.json"
    rule = {"percent": 40, "seconds_slack": 9, "min_runs": 2, "mads": 0}
    short = {**FAST["load"], "output_tokens": 8}  # type: ignore[dict-item]
    profile.write_text(json.dumps({**FAST, "host": "h", "load": short, "gate": {"regression": rule}}))
    outcomes = []
    for delay in (0.03, 0.03, 0.12, 0.12):  # milliseconds of a busy machine are little of it
        with Server(delay=delay) as server:
            done = smoke("--url", server.url, "--profile", profile, "--history", history, "--json", *ONLY)
        outcomes.append((done.returncode, {f["id"] for f in json.loads(done.stdout)["findings"]}))
    assert outcomes == [(0, {"baseline-recorded"}), (0, set()), (2, {"regression"}), (2, {"regression"})]
    (file,) = history.iterdir()
    assert [json.loads(line)["passed"] for line in file.read_text().splitlines()] == [True, True, False, False]


def test_an_earlier_result_can_be_the_baseline(fast: Path, tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps({"gate": {"metrics": {"single.decode_tok_s": 1e9}}}))
    with Server() as server:
        done = smoke("--url", server.url, "--profile", fast, "--baseline", earlier, "--json")
    assert done.returncode == 2
    assert [f["id"] for f in json.loads(done.stdout)["findings"]] == ["regression"]


def test_chosen_stages_and_the_ones_they_need(fast: Path) -> None:
    with Server() as server:
        done = smoke("--url", server.url, "--profile", fast, "--stages", "single", "--json")
    stages = {s["name"] for s in json.loads(done.stdout)["stages"] if s["status"] == "passed"}
    assert stages == {"reachable", "identity", "single"}


def test_a_sweep_and_an_open_loop_on_request(fast: Path) -> None:
    with Server() as server:
        done = smoke("--url", server.url, "--profile", fast, "--stages", "concurrent", "--json", "--sweep", "1,4,8",
                     "--rates", "50,100.5")  # fmt: skip
    throughput = json.loads(done.stdout)["throughput"]
    assert set(throughput) == {"concurrent", "sweep", "open_loop"}
    assert [row["concurrency"] for row in throughput["sweep"]] == [1, 4, 8]
    assert [row["rate"] for row in throughput["open_loop"]] == [50, 100.5]
    for row in throughput["sweep"]:
        assert row["tok_s"]["median"] > 0
        assert row["ttft_s"]["p50"] > 0
        assert row["decode_tok_s"]["median"] > 0


def test_the_key_comes_from_a_file_and_is_not_shown(fast: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("sk-very-secret\n")
    with Server("status-503") as server:
        done = smoke("--url", server.url, "--profile", fast, "--api-key-file", key)
        assert server.keys == {"Bearer sk-very-secret"}
    assert "sk-very-secret" not in done.stdout + done.stderr
    assert "overloaded, Bearer ***" in done.stdout


def test_a_terminal_gets_a_bar(fast: Path) -> None:
    main, side = pty.openpty()
    with Server() as server:
        command = [sys.executable, str(PROGRAM), "--url", server.url, "--profile", str(fast)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=side, timeout=600, check=False)
    os.close(side)
    drawn = b""
    while True:
        try:
            piece = os.read(main, 65536)
        except OSError:
            break
        drawn += piece
    os.close(main)
    assert done.returncode == 0
    assert "█" in drawn.decode()
    assert "█" not in done.stdout.decode()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--url"),
        (["--url", "ftp://x"], "expected http://HOST:PORT"),
        (["--url", "http://127.0.0.1:port"], "expected http://HOST:PORT"),
        (["--url", "http://user:sk-1@h"], "--api-key-file"),
        (["--url", "http://user:sk-1@[::1"], "--api-key-file"),
        (["--url", "http://[::1"], "expected http://HOST:PORT"),
        (["--url", "http://h:99999"], "expected http://HOST:PORT"),
        (["--url", "http://h:0"], "expected http://HOST:PORT"),
        (["--url", "http://h/?model=x"], "expected http://HOST:PORT"),
        (["--url", "http://a b"], "expected http://HOST:PORT"),
        (["--url", f"http://{'x' * 70}"], "expected http://HOST:PORT"),
        (["--url", ""], "expected http://HOST:PORT"),
        (["--url", "http://h", "--sweep", "1,x"], "'1,x': expected numbers from 1 to 100000"),
        (["--url", "http://h", "--sweep", "0"], "expected numbers from 1"),
        (["--url", "http://h", "--sweep", "1,,4"], "expected numbers from 1"),
        (["--url", "http://h", "--rates", "nan"], "expected numbers from 1"),
        (["--url", "http://h", "--profile", "/no/such"], "/no/such"),
        (["--url", "http://h", "--out", "/no/such/out.json"], "--out: /no/such is no folder"),
        (["--url", "http://h", "--history", "/no/such"], "--history"),
        (["--url", "http://h", "--stages", "singel"], "did you mean 'single'"),
        (["--url", "http://h", "--stages", ","], "names no stage"),
        (["--url", "http://h", "--stages", "soak"], "needs --soak MINUTES"),
        (["--url", "http://h", "--soak", "0"], "expected minutes above 0"),
        (["--url", "http://h", "--soak", "nan"], "expected minutes above 0"),
        (["--url", "http://h", "--quick", "--full"], "not allowed with"),
    ],
)
def test_what_cannot_be_understood_exits_3(arguments: list[str], words: str) -> None:
    done = smoke(*arguments)
    assert (done.returncode, done.stdout) == (3, "")
    assert words in done.stderr
    assert "sk-1" not in done.stderr


def test_a_wrong_profile_is_named(tmp_path: Path) -> None:
    done = smoke("--url", "http://h", "--profile", "-", given='{"load": {"concurency": 3}}')
    assert done.returncode == 3
    assert "load.concurency: no such setting; did you mean 'concurrency'?" in done.stderr
    for given in ("[" * 100_000, '{"load":' * 50_000, "null", '"x"', "{", "\0"):
        done = smoke("--url", "http://h", "--profile", "-", given=given)
        assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
        assert "-: " in done.stderr
    wrong = tmp_path / "baseline.json"
    wrong.write_text("{}")
    done = smoke("--url", "http://h", "--baseline", wrong)
    assert done.returncode == 3
    assert f"{wrong}: not the JSON of a smoke test" in done.stderr
