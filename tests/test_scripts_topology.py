# SPDX-License-Identifier: Apache-2.0
"""The program scripts/topology, as a person or another tool calls it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "scripts" / "topology"
FIXTURES = ROOT / "tests" / "fixtures" / "nvidia-smi"
HOST = ROOT / "tests" / "fixtures" / "hosts" / "rtx-pro-6000-x8"


def run(*arguments: object, stdin: str | bytes = "", python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    given = stdin if isinstance(stdin, bytes) else stdin.encode()
    done = subprocess.run(
        [python, PROGRAM, *map(str, arguments)], input=given, capture_output=True, check=False, timeout=60
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def parsed(*arguments: object, stdin: str | bytes = "") -> tuple[int, dict[str, Any]]:
    done = run("parse", *arguments, stdin=stdin)
    return done.returncode, json.loads(done.stdout)


def test_parse_prints_the_facts() -> None:
    code, document = parsed(FIXTURES / "topo_2x_l4_sys_numa0_2.txt")
    assert code == 0
    assert document == {
        "schema": 1,
        "kind": "topo_m",
        "gpu_count": 2,
        "gpu_ids": [0, 1],
        "links": [["X", "SYS"], ["SYS", "X"]],
        "numa_per_gpu": ["0", "2"],
        "cpu_affinity_per_gpu": ["0-7,32-39", "16-23,48-55"],
        "nic_count": 0,
        "nics": [],
        "nic_links": [[], []],
        "all_on_pcie": True,
    }


def test_parse_reads_standard_input_and_takes_json_anywhere() -> None:
    text = (FIXTURES / "p2p_2x_l4_cns_r.txt").read_bytes()
    for arguments in (["-"], ["--json", "-"], ["-", "--json"]):
        code, document = parsed(*arguments, stdin=text)
        assert code == 0
        assert document["status"] == [["X", "CNS"], ["CNS", "X"]]


def test_parse_exits_2_on_an_error_message() -> None:
    code, document = parsed("-", stdin="No devices were found\n")
    assert code == 2
    assert document["kind"] == "error"
    assert document["gpu_count"] == 0
    assert document["errors"] == ["No devices were found"]


@pytest.mark.parametrize("text", ["", "hello\n", "\tGPU0\tGPU1\nGPU0\t X \tPIX\n"])
def test_parse_exits_3_with_a_reason(text: str) -> None:
    code, document = parsed("-", stdin=text)
    assert code == 3
    assert document["reason"]


def test_parse_names_columns() -> None:
    code, document = parsed("-", "--columns", "index,mig.mode.current", stdin="0, Enabled\n1, Disabled\n")
    assert code == 0
    assert [gpu["mig.mode.current"] for gpu in document["gpus"]] == ["Enabled", "Disabled"]


def test_parse_refuses_columns_that_do_not_fit() -> None:
    code, document = parsed("-", "--columns", "index", stdin="0, Enabled\n1, Disabled\n")
    assert code == 3
    assert "1 fields" in document["reason"]


def test_a_missing_file_and_an_unknown_kind_are_named() -> None:
    done = run("parse", "/no/such/file")
    assert done.returncode == 3
    assert "/no/such/file" in done.stderr
    done = run("parse", "-", "--kind", "topology")
    assert done.returncode == 3
    assert "--kind" in done.stderr


def recorded() -> list[Path]:
    return [HOST / name for name in ("topo_m.txt", "topo_p2p_r.txt", "query_gpu.csv", "q_x.xml")]


def test_check_files_of_a_healthy_host() -> None:
    done = run("check", "--json", *recorded())
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["ok"] is True
    assert report["findings"] == []
    assert report["expectation"] == "rtx-pro-6000-x8"
    assert {entry["id"] for entry in report["not_checked"]} >= {"acs-redirect", "p2p-read", "xid"}
    assert len(report["fingerprint"]) == 16


def test_check_of_another_host_is_critical_and_readable() -> None:
    done = run("check", FIXTURES / "topo_8x_dgxa100_nv12_12mlx5.txt")
    assert done.returncode == 2
    assert "CRITICAL nvlink" in done.stdout
    assert "fix:" in done.stdout


def test_check_of_a_cut_text_is_unknown() -> None:
    done = run("check", "--json", FIXTURES / "topo_8x_quadro_pxb_truncated.txt")
    report = json.loads(done.stdout)
    assert done.returncode == 3
    assert report["ok"] is False
    assert [finding["id"] for finding in report["findings"]] == ["input"]


def test_check_against_a_file(tmp_path: Path) -> None:
    expectation = tmp_path / "host.json"
    expectation.write_text(json.dumps({"base": "any", "gpu_count": 2}))
    topo = FIXTURES / "topo_2x_l4_sys_numa0_2.txt"
    assert run("check", topo, "--expect", expectation).returncode == 0
    expectation.write_text(json.dumps({"base": "any", "gpu_count": 4}))
    assert run("check", topo, "--expect", expectation).returncode == 2
    written = tmp_path / "host.yml"
    written.write_text("base: rtx-pro-6000-x4\ndriver_minimum: null\n")
    assert run("check", FIXTURES / "topo_4x_rtxpro6000_vm_phb.txt", "--expect", written).returncode == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"gpu_cuont": 8}', "unknown key 'gpu_cuont'; did you mean 'gpu_count'?"),
        ('{"compute_capability": 12.0}', "compute_capability: 12.0 is not a string"),
        ('{"links_same_numa": ["NODES"]}', "no link class 'NODES'; did you mean 'NODE'?"),
        ('{"gpu_count": 4, "numa_split": [4, 4]}', "are 8 GPUs, but gpu_count is 4"),
        ("[1]", "a profile's name or a mapping, not list"),
        ("{", "neither JSON nor YAML"),
    ],
)
def test_an_expectation_that_is_not_understood_is_refused(tmp_path: Path, text: str, words: str) -> None:
    expectation = tmp_path / "host.json"
    expectation.write_text(text)
    done = run("check", "--expect", expectation, *recorded())
    assert done.returncode == 3
    assert words in done.stderr
    assert str(expectation) in done.stderr
    assert done.stdout == ""


def test_an_unknown_profile_names_the_nearest() -> None:
    done = run("check", "--expect", "rtx-pro-6000-x9", *recorded())
    assert done.returncode == 3
    assert "did you mean 'rtx-pro-6000-x" in done.stderr


def test_what_changed_since_an_earlier_run_is_said(tmp_path: Path) -> None:
    before = json.loads(run("check", "--json", *recorded()).stdout)
    stored = tmp_path / "parts.json"
    stored.write_text(json.dumps(before["fingerprint_parts"]))
    same = run("check", "--json", "--previous", stored, *recorded())
    assert same.returncode == 0
    changed = tmp_path / "query.csv"
    changed.write_text((HOST / "query_gpu.csv").read_text().replace("98.02.67.00.0A", "98.02.70.00.01"))
    xml = tmp_path / "q.xml"
    xml.write_text((HOST / "q_x.xml").read_text().replace("98.02.67.00.0A", "98.02.70.00.01"))
    done = run("check", "--json", "--previous", stored, *recorded()[:2], changed, xml)
    assert done.returncode == 1
    found = json.loads(done.stdout)["findings"][0]
    assert found["id"] == "topology-changed"
    assert "gpus 0000:01:00.0 vbios_version: 98.02.67.00.0A is now 98.02.70.00.01" in found["seen"]


def test_the_built_in_expectations_can_be_shown_and_used_as_files(tmp_path: Path) -> None:
    document = json.loads(run("expectations", "--json").stdout)
    assert document["schema"] == 1
    shown = document["expectations"]
    assert {"rtx-pro-6000-x8", "rtx-pro-6000-x8-direct", "rtx-pro-6000-x8-switched", "rtx-pro-6000-x4"} <= set(shown)
    expectation = tmp_path / "mine.json"
    expectation.write_text(json.dumps(shown["rtx-pro-6000-x8"]))
    assert run("check", "--expect", expectation, *recorded()).returncode == 0


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e9", "x"])
def test_a_time_limit_that_is_none_is_refused(seconds: str) -> None:
    done = run("check", f"--timeout={seconds}", *recorded())
    assert done.returncode == 3
    assert done.stdout == ""
    assert "--timeout" in done.stderr


def test_show_draws_what_check_finds_and_exits_alike() -> None:
    healthy = run("show", *recorded())
    assert (healthy.returncode, healthy.stderr) == (0, "")
    assert "NUMA node 1, CPUs 64-127,192-255" in healthy.stdout
    assert "\x1b" not in healthy.stdout
    narrow = run("show", HOST / "topo_m.txt", HOST.parent / "link-x8" / "q_x.xml")
    assert narrow.returncode == run("check", HOST / "topo_m.txt", HOST.parent / "link-x8" / "q_x.xml").returncode == 2
    assert "! pcie-width" in narrow.stdout
    document = json.loads(run("show", "--json", *recorded()).stdout)
    assert document["schema"] == 1
    assert document["facts"]["gpus"][7]["pci.bus_id"] == "00000000:F1:00.0"


def test_show_colours_on_a_terminal_only() -> None:
    command = shlex.join([sys.executable, str(PROGRAM), "show", *map(str, recorded())])
    plain = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    for colourless in ({}, {"NO_COLOR": "1"}):
        done = subprocess.run(
            ["script", "--quiet", "--return", "--command", command, "/dev/null"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60, env=plain | colourless,
        )  # fmt: skip
        assert ("\x1b[1m8 GPUs" in done.stdout) is not bool(colourless)


def test_it_runs_from_where_a_host_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "topology").write_text(PROGRAM.read_text())
    library = Path("plugins", "module_utils", "inference")
    shutil.copytree(ROOT / library, tmp_path / library)
    done = subprocess.run(
        [sys.executable, "-I", tmp_path / "scripts" / "topology", "parse", FIXTURES / "version_595.txt"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["driver_version"] == "595.80"


def test_a_matrix_is_parsed_within_milliseconds() -> None:
    """Two on the machine that this was written on, ten on one that is five times slower."""
    sys.path.insert(0, str(ROOT / "plugins" / "module_utils"))
    from inference import topology

    text = (HOST / "topo_m.txt").read_text()
    times = []
    for _ in range(50):
        started = time.thread_time()
        topology.parse(text)
        times.append(time.thread_time() - started)
    assert min(times) < 0.01
