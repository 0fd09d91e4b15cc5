# SPDX-License-Identifier: Apache-2.0
"""The program: exit codes, JSON, standard input, errors that name the file, and a copy elsewhere."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "scripts" / "diagnose"
FIXTURES = ROOT / "tests" / "fixtures" / "reports"
KEYS = {"id", "level", "what", "seen", "expected", "fix"}


def run(*arguments, program=PROGRAM, given=""):
    command = [sys.executable, str(program), *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=60)


def report(name):
    return next(FIXTURES.glob(f"report_{name}_*.txt"))


@pytest.mark.parametrize(("name", "code"), [("R24", 2), ("R45", 1), ("R27", 0)])
def test_the_exit_code_follows_the_findings(name, code):
    done = run(report(name), "--json")
    document = json.loads(done.stdout)
    assert done.returncode == code
    assert document["schema"] == 1 and document["ok"] is (code != 2)
    assert document["findings"] and all(set(finding) == KEYS for finding in document["findings"])
    assert all(set(entry) == {"id", "why"} for entry in document["not_checked"])
    assert document["kinds"]


def test_json_may_stand_anywhere_and_standard_input_is_read():
    text = report("R24").read_text()
    before, after = run("--json", "-", given=text), run("-", "--json", given=text)
    assert before.stdout == after.stdout
    assert json.loads(before.stdout)["findings"][0]["id"] == "port-in-use"


def test_text_for_people():
    done = run(report("R24"))
    assert done.stdout.startswith("CRITICAL port-in-use: the port is taken")
    assert "ss -ltnp" in done.stdout and "not checked" in done.stdout


def test_several_files_are_read_as_one():
    document = json.loads(run(report("R24"), report("R45"), "--json").stdout)
    assert {"port-in-use", "variable-unknown"} <= {finding["id"] for finding in document["findings"]}


def test_input_that_is_not_understood_is_unknown():
    assert run("-", given="lorem ipsum").returncode == 3


def test_bytes_that_are_no_text(tmp_path):
    file = tmp_path / "bytes"
    file.write_bytes(bytes(range(256)) * 50)
    assert run(file).returncode == 3


def test_a_missing_file_is_named():
    done = run("/nowhere/engine.log")
    assert (done.returncode, done.stdout) == (3, "")
    assert "/nowhere/engine.log: No such file or directory" in done.stderr


def test_a_call_without_a_file_says_what_is_missing():
    done = run()
    assert done.returncode == 3 and "standard input" in done.stderr


def test_no_secret_in_either_form():
    text = "ExecStart=/x/vllm serve /m --api-key s3cr3tV4lue99"
    for arguments in (["-"], ["-", "--json"]):
        done = run(*arguments, given=text)
        assert done.returncode == 2 and "s3cr3tV4lue99" not in done.stdout + done.stderr


def test_what_is_known_is_printed_as_tables():
    done = run("--known")
    assert done.returncode == 0 and "| `port-in-use` | critical |" in done.stdout and "| `xid-79` |" in done.stdout


def test_what_is_known_is_also_json():
    document = json.loads(run("--known", "--json").stdout)
    rows = {row["id"]: row for section in document["known"].values() for row in section}
    assert document["schema"] == 1 and rows["port-in-use"]["level"] == "critical" and rows["xid-79"]["fix"]


def test_it_runs_where_program_and_domain_are_copied_together(tmp_path):
    (tmp_path / "scripts").mkdir()
    shutil.copy(PROGRAM, tmp_path / "scripts" / "diagnose")
    shutil.copytree(ROOT / "plugins/module_utils/inference", tmp_path / "plugins/module_utils/inference")
    assert run(report("R24"), program=tmp_path / "scripts" / "diagnose").returncode == 2


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_is_obeyed(tmp_path, encoding):
    file = tmp_path / "engine.log"
    file.write_bytes("RuntimeError: CUDA error: out of memory\r\n".encode(encoding))
    assert json.loads(run(file, "--json").stdout)["findings"][0]["id"] == "cuda-out-of-memory"
