# SPDX-License-Identifier: Apache-2.0
"""The program scripts/nccl: its contract on exit codes and JSON, run as a person runs it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOGS = Path(__file__).parent / "fixtures" / "nccl"
BUDGET = ["budget", "--hidden", "5632", "--layers", "78", "--gpus", "8", "--bandwidth", "63"]
TOPOLOGY = {
    "kind": "topo_m",
    "gpu_count": 2,
    "gpu_ids": [0, 1],
    "links": [["X", "SYS"], ["SYS", "X"]],
}


def run(*arguments, stdin="", program=ROOT / "scripts" / "nccl"):
    return subprocess.run(
        [sys.executable, str(program), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def document(done):
    result = json.loads(done.stdout)
    assert result["schema"] == 1
    assert result["ok"] is (done.returncode in (0, 1))
    assert isinstance(result["findings"], list)
    assert isinstance(result["not_checked"], list)
    return result


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("NCCL_P2P_LEVEL=SYS\n", 0),
        ("NCCL_P2P_LEVEL=sys\n", 1),
        ("NCCL_GRAPH_FILE=\n", 2),
        ("export NCCL_PROTO=LL128\n", 1),
        ("", 3),
        ("\x00\x01\x02\n", 3),
        ("\x01A=1 # \ufffd\r\nB_C = \x02\n", 3),
        ("\x01A=1\nNCCL_GRAPH_FILE=\n\x02B=1\n", 2),
        ("hello world\n", 3),
        ("# a comment\n", 3),
        ('# NCCL profile "none"\n', 0),
        ("[Service]\n", 0),
        ("OTHER=1\n", 0),
    ],
)
def test_lint_exits_by_the_gravest_finding(text, code):
    done = run("lint", "-", "--nccl-version", "2.28.9", "--json", stdin=text)
    assert done.returncode == code, done.stderr
    for finding in document(done)["findings"]:
        assert set(finding) == {"id", "level", "what", "seen", "expected", "fix"}


def test_lint_takes_a_file_a_topology_and_options_in_any_order(tmp_path):
    unit = tmp_path / "20-nccl.conf"
    unit.write_text("[Service]\nEnvironment=NCCL_PROTO=LL,LL128\n")
    host = tmp_path / "topology.json"
    host.write_text(json.dumps(TOPOLOGY))
    done = run("lint", "--json", "--topology", str(host), str(unit), "--nccl-version", "2.28.9+cuda13")
    assert done.returncode == 2
    assert "nccl-ll128-across-sys" in {f["id"] for f in document(done)["findings"]}


def test_lint_reads_conf_files_and_arguments(tmp_path):
    conf = tmp_path / "nccl.conf"
    conf.write_text("NCCL_P2P_DISABLE=1\n")
    options = ["lint", "-", "--nccl-version", "2.28.9", "--conf", str(conf), "--json"]
    done = run(*options, "--arguments", "python -m vllm.entrypoints.openai.api_server")
    assert {"nccl-conf-file", "nccl-custom-all-reduce"} <= {f["id"] for f in document(done)["findings"]}
    done = run(*options, "--arguments", "vllm serve --disable-custom-all-reduce")
    assert "nccl-custom-all-reduce" not in {f["id"] for f in document(done)["findings"]}


def test_nccl_s_own_file_is_known_by_its_name(tmp_path):
    conf = tmp_path / "nccl.conf"
    conf.write_text('NCCL_PROTO="LL"\n')
    done = run("lint", str(conf), "--nccl-version", "2.28.9", "--json")
    assert "nccl-quotes-kept" in {f["id"] for f in document(done)["findings"]}
    assert run("lint", "-", "--nccl-version", "2.28.9", stdin=conf.read_text()).returncode == 0
    conf.write_text('[Service]\nEnvironment=NCCL_PROTO="LL"\n')  # a drop-in of that name is none
    assert run("lint", str(conf), "--nccl-version", "2.28.9").returncode == 0


def test_lint_for_people_ends_with_a_count():
    done = run("lint", "-", "--nccl-version", "2.28.9", stdin="NCCL_P2P_LEVEL=sys\n")
    assert "WARNING nccl-value-case" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("1 warning")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["lint", "-"], "--nccl-version"),
        (["lint", "-", "--nccl-version", "new"], "--nccl-version"),
        (["lint", "/nowhere", "--nccl-version", "2.28.9"], "/nowhere"),
        (["lint", "-", "--nccl-version", "2.28.9", "--topology", "/nowhere"], "/nowhere"),
        (["lint", "-", "--nccl-version", "2.28.9", "--conf", "/nowhere"], "/nowhere"),
        (["lnit"], "did you mean 'lint'"),
        ([*BUDGET[:-1], "0"], "bandwidth"),
        ([*BUDGET, "--tokens", "1,x"], "--tokens"),
        ([*BUDGET, "--tokens", "1,0"], "tokens is 0"),
        ([*BUDGET, "--bandwidth", "nan"], "bandwidth"),
        ([*BUDGET, "--hidden", "9" * 400], "hidden is 99999"),
        ([*BUDGET, "--gpus", "1"], "a single GPU"),
        ([*BUDGET, "--latency", "-1"], "latency"),
        ([*BUDGET, "--latency", "1", "--measured", "x"], "not allowed with"),
        ([*BUDGET, "--measured", "/nowhere"], "/nowhere"),
        (["environment", "quick"], "no NCCL profile"),
        (["environment", "measured"], "measure"),
        (["environment", "latency", "--set", "NCCL_PROTO="], "empty"),
        (["log", "-", "--profile", "quick"], "no NCCL profile"),
    ],
)
def test_what_cannot_be_understood_exits_3_and_says_what(arguments, names):
    done = run(*arguments)
    assert done.returncode == 3
    assert names in done.stderr
    assert "Traceback" not in done.stderr


def test_a_topology_of_another_kind_is_named(tmp_path):
    other = tmp_path / "p2p.json"
    other.write_text('{"kind": "p2p", "status": []}')
    done = run("lint", "-", "--nccl-version", "2.28.9", "--topology", str(other))
    assert done.returncode == 3
    assert str(other) in done.stderr


@pytest.mark.parametrize("content", ["", "\n", "null", '{"links": []}', "{}", '"X"', "[", "GPU0 GPU1"])
def test_a_topology_that_is_none_is_refused(tmp_path, content):
    other = tmp_path / "topology.json"
    other.write_text(content)
    done = run("lint", "-", "--nccl-version", "2.28.9", "--topology", str(other), stdin="NCCL_P2P_LEVEL=SYS\n")
    assert done.returncode == 3
    assert done.stdout == ""
    assert str(other) in done.stderr
    assert "Traceback" not in done.stderr


def test_profiles_are_listed_with_cost_and_evidence():
    profiles = document(run("profiles", "--json"))["profiles"]
    assert [p["name"] for p in profiles] == ["latency", "balanced", "throughput", "none"]
    assert [p["name"] for p in profiles if p["default"]] == ["latency"]
    assert all(p["cost"] and p["evidence"] for p in profiles)
    assert {p["name"]: p["arguments"] for p in profiles}["throughput"] == ["--disable-custom-all-reduce"]
    text = run("profiles").stdout
    assert all(p["name"] in text for p in profiles)


def test_a_profile_feeds_the_lint(tmp_path):
    for name in ("latency", "balanced", "throughput", "none"):
        rendered = run("environment", name)
        assert rendered.returncode == 0
        assert run("lint", "-", "--nccl-version", "2.28.9", stdin=rendered.stdout).returncode == 0


def test_environment_takes_overrides_and_a_measurement(tmp_path):
    done = run("environment", "--set", "NCCL_PROTO", "--set", "NCCL_DEBUG=WARN", "--json")
    result = document(done)["environment"]
    assert "NCCL_PROTO" not in result
    assert result["NCCL_DEBUG"] == "WARN"
    chosen = tmp_path / "nccl.json"
    chosen.write_text('{"nccl_version": "2.28.9", "environment": {"NCCL_MIN_CTAS": "8"}}')
    assert run("environment", "measured", "--measured", str(chosen)).stdout == "NCCL_MIN_CTAS=8\n"
    assert "measured" in run("profiles", "--measured", str(chosen)).stdout


@pytest.mark.parametrize("text", ["", "null", "3", "{}"])
@pytest.mark.parametrize("verb", [["profiles"], ["environment", "measured"], ["environment"], ["log", "-"]])
def test_a_measurement_that_is_none_is_named(tmp_path, verb, text):
    (tmp_path / "chosen.json").write_text(text)
    profile = ["--profile", "measured"] if verb[0] == "log" else []
    done = run(*verb, *profile, "--measured", str(tmp_path / "chosen.json"))
    assert (done.returncode, done.stdout) == (3, "")
    assert f"--measured {tmp_path}/chosen.json: measured settings: " in done.stderr


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"\x1b[2J\x00" + b"\xff" * 5000, "columns are"),
        (b"bytes,us\n" + b"1" * 200_000, "no CSV"),
        (b"[" * 100_000, "no JSON"),
        (b'[{"bytes": 1' + b"0" * 4000 + b', "us": 1}]', "bytes is 1000"),
        (b'[{"bytes": 1' + b"0" * 5000 + b', "us": 1}]', "no JSON"),
        (b'[{"bytes": true, "us": 1}]', "bytes is True"),
    ],
    ids=["bytes", "field", "deep", "large", "larger", "bool"],
)
def test_a_measurement_that_can_not_be_read_is_shown_short_and_printable(tmp_path, raw, said):
    (tmp_path / "m").write_bytes(raw)
    done = run(*BUDGET, "--measured", str(tmp_path / "m"))
    assert done.returncode == 3
    assert done.stderr.startswith(f"nccl: --measured {tmp_path}/m: ")
    assert said in done.stderr
    assert len(done.stderr) < 400
    assert done.stderr.rstrip("\n").isprintable()


def test_budget_rows_have_the_keys_of_the_contract():
    rows = document(run(*BUDGET, "--tokens", "1,128,1024", "--json"))["rows"]
    assert set(rows[0]) == {
        *("tokens", "bytes", "calls", "bandwidth_us", "latency_us", "total_us"),
        *("forward_bandwidth_ms", "forward_total_ms"),
    }
    assert [row["bytes"] for row in rows] == [11264, 1441792, 11534336]
    assert [round(row["bandwidth_us"], 1) for row in rows] == [0.3, 40.0, 320.4]
    assert {row["latency_us"] for row in rows} == {None}


def test_budget_for_people_prints_the_field_report_s_figures():
    text = run(*BUDGET, "--tokens", "1,128,1024").stdout
    for figure in ("11.0 KB", "1.38 MB", "11.0 MB", "0.3", "40.0", "320.4", "156", "0.05", "6.25"):
        assert figure in text
    assert "only a measurement on this host decides" in " ".join(text.split())


def test_budget_says_which_term_dominates(tmp_path):
    text = " ".join(run(*BUDGET, "--latency", "30").stdout.split())
    assert "Latency dominates at 1 tokens; bandwidth dominates at 128, 1024 tokens." in text
    measured = tmp_path / "all_reduce.csv"
    measured.write_text("bytes,us\n11264,18.4\n1468006,85\n")
    rows = document(run(*BUDGET, "--measured", str(measured), "--json"))["rows"]
    assert rows[0]["total_us"] == pytest.approx(18.4)


def test_log_compares_with_a_profile():
    log = str(LOGS / "p2p_latency_settings.log")
    done = run("log", log, "--profile", "latency", "--nccl-version", "2.28.9", "--json")
    assert done.returncode == 0
    assert document(done)["facts"]["channels"] == [16]
    assert run("log", str(LOGS / "shm_latency_settings.log"), "--profile", "latency").returncode == 1
    assert run("log", str(LOGS / "p2p_no_settings.log"), "--profile", "latency").returncode == 2
    assert run("log", "-", "--profile", "latency", stdin="nothing\n").returncode == 3


def test_log_compares_with_a_unit(tmp_path):
    unit = tmp_path / "20-nccl.conf"
    unit.write_text(
        "[Service]\nEnvironment=NCCL_P2P_DISABLE=1 NCCL_MIN_CTAS=16 NCCL_MAX_CTAS=16 NCCL_BUFFSIZE=33554432\n"
    )
    done = run("log", str(LOGS / "shm_throughput_settings.log"), "--environment", str(unit), "--json")
    assert done.returncode == 2  # NCCL took a maximum of 32
    assert any("NCCL_MAX_CTAS=32" in f["seen"] for f in document(done)["findings"])


def test_an_environment_that_can_not_be_read_proves_nothing(tmp_path):
    (tmp_path / "env").write_bytes(bytes(range(256)) * 20)
    done = run("log", str(LOGS / "p2p_latency_settings.log"), "--environment", str(tmp_path / "env"), "--json")
    assert done.returncode == 3
    assert [f["id"] for f in document(done)["findings"]] == ["nccl-unreadable"]


def test_log_without_a_wish_says_what_it_did_not_check():
    done = run("log", str(LOGS / "p2p_no_settings.log"), "--json")
    assert done.returncode == 0
    assert "nccl-not-engaged" in {entry["id"] for entry in document(done)["not_checked"]}


def test_it_runs_where_program_and_domain_were_copied_together(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "nccl", tmp_path / "scripts" / "nccl")
    domain = ROOT / "plugins" / "module_utils" / "inference"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(domain, tmp_path / "plugins" / "module_utils" / "inference", ignore=ignore)
    done = run(
        "lint", "-", "--nccl-version", "2.28.9", stdin="NCCL_P2P_LEVEL=sys\n", program=tmp_path / "scripts" / "nccl"
    )
    assert done.returncode == 1
