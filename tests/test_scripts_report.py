# SPDX-License-Identifier: Apache-2.0
"""The program scripts/report: what a deployment measured, from reports as the smoke role writes them (hand-made)."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from inference import nccl

ROOT = Path(__file__).resolve().parent.parent

REPORT: dict[str, Any] = {
    "schema": 1,
    "host": "gpu-1",
    "instance": "kimi",
    "generation": "9f495508e8a0",
    "passed": True,
    "mode": "full",
    "topology": {"ok": True, "summary": "1 warning", "facts": {"gpu_count": 8}},
    "engaged": {
        "unit": {"name": "sglang@kimi.service", "active": "active", "status": "serving", "restarts": 0},
        "release": {
            "name": "sglang-0.5.23-d9fb5decee02",
            "variant": "cu130",
            "patches": [{"id": "P02", "state": "applied"}, {"id": "P03", "state": "not-needed"}],
        },
        "start": {"ready_after_s": 142.66, "pid": 1},
        "nccl_environment": dict(nccl.PROFILES["latency"].settings),
    },
    "smoke": {
        "ok": True,
        "findings": [],
        "gate": {
            "metrics": {
                "single.decode_tok_s": 63.64, "single.ttft_s": 0.1234,
                "concurrent.tok_s": 2370.0, "concurrent.ttft_s": 0.5,
            }
        },
    },
}  # fmt: skip


def run(*words: str, stdin: str = "", python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, ROOT / "scripts/report", *words], input=stdin, capture_output=True, text=True, check=False, timeout=60,
        env={"COLUMNS": "200", "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def changed(path: str, value: Any) -> str:
    report = copy.deepcopy(REPORT)
    place = report
    *folders, last = path.split(".", path.count(".") if "gate" not in path else 2)
    for part in folders:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return json.dumps(report)


def row(text: str) -> dict[str, Any]:
    done = run("--json", "-", stdin=text)
    assert done.returncode in (0, 2), done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    (found,) = document["reports"]
    return dict(found)


def test_a_passed_report_as_json():
    found = row(json.dumps(REPORT))
    assert found == {
        "file": "-",
        "verdict": "passed (full smoke test)",
        "topology": "fits: 8 GPUs; 1 warning",
        "release": "sglang-0.5.23-d9fb5decee02 (cu130)",
        "patches": "P02",
        "unit": "sglang@kimi.service active: serving",
        "generation": "9f495508e8a0",
        "nccl": "profile latency (6 settings), read from the engine's process",
        "ready": "142.7 s from start to the first generation",
        "single": "63.6 tok/s, first token 0.123 s",
        "concurrent": "2370.0 tok/s, first token 0.500 s",
    }


def test_a_table_for_people(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps({**REPORT, "instance": name}))
    done = run(str(tmp_path / "a.json"), str(tmp_path / "b.json"))
    assert done.returncode == 0, done.stderr
    for said in ("a on gpu-1", "b on gpu-1", "passed (full smoke test)", "time to ready", "63.6 tok/s", "b.json"):
        assert said in done.stdout


def test_a_failed_test_exits_2_and_says_why(tmp_path: Path):
    findings = [
        {"id": "smoke-floor", "level": "critical", "what": "too slow"},
        {"id": "smoke-x", "level": "info", "what": "by the way"},
    ]
    failed = {**REPORT, "passed": False, "smoke": {"findings": findings}}
    (tmp_path / "ok.json").write_text(json.dumps(REPORT))
    (tmp_path / "bad.json").write_text(json.dumps(failed))
    for words in ((), ("--json",)):
        done = run(str(tmp_path / "ok.json"), str(tmp_path / "bad.json"), *words)
        assert done.returncode == 2
        assert "FAILED (full smoke test)" in done.stdout
        assert "smoke-floor: too slow" in done.stdout
        assert "by the way" not in done.stdout
        assert "none were measured" in done.stdout


@pytest.mark.parametrize(
    ("path", "value", "label", "said"),
    [
        ("topology", {}, "topology", "not checked in this run"),
        ("topology.ok", False, "topology", "DOES NOT FIT: 8 GPUs"),
        ("engaged.release", None, "release", "unknown (?)"),
        ("engaged.release", None, "patches", "none"),
        ("engaged.unit", None, "unit", "? ?: "),
        ("engaged.start", None, "ready", "unknown"),
        ("engaged.nccl_environment", None, "nccl", "could not be read from the process"),
        ("engaged.nccl_environment", {}, "nccl", "none set: NCCL's own choice"),
        ("engaged.nccl_environment", {"NCCL_DEBUG": "INFO"}, "nccl", "NCCL_DEBUG=INFO, read from"),
        ("smoke.gate.metrics", {"single.decode_tok_s": 2.0}, "single", "2.0 tok/s"),
        ("smoke", {}, "figures", "none were measured"),
        ("engaged", None, "release", "unknown (?)"),
    ],
)
def test_what_is_missing_is_said_and_never_made_up(path: str, value: Any, label: str, said: str):
    assert said in row(changed(path, value))[label]


def test_a_quick_test_measures_nothing():
    text = json.dumps({**REPORT, "mode": "quick", "smoke": {}})
    assert row(text)["figures"] == "a quick test measures none"


@pytest.mark.parametrize("name", [name for name, profile in nccl.PROFILES.items() if profile.settings])
def test_every_profile_is_recognised_and_settings_beyond_it_are_shown(name: str):
    settings = dict(nccl.PROFILES[name].settings)
    assert row(changed("engaged.nccl_environment", settings))["nccl"].startswith(f"profile {name} (")
    more = row(changed("engaged.nccl_environment", {**settings, "NCCL_DEBUG": "WARN"}))["nccl"]
    assert more.startswith(f"profile {name} (")
    assert "and NCCL_DEBUG=WARN" in more


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a report"),
        ("[1]", "not a report"),
        ("3", "not a report"),
        ("{}", "it has no host, instance, generation, passed, mode, engaged"),
        (changed("passed", ...), "it has no passed"),
    ],
)
def test_what_is_no_report_is_named(text: str, said: str):
    done = run("--json", "-", stdin=text)
    assert done.returncode == 3
    assert done.stdout == ""
    assert "report: -: " in done.stderr
    assert said in done.stderr


def test_a_file_that_is_not_there_is_named_and_nothing_is_shown(tmp_path: Path):
    (tmp_path / "ok.json").write_text(json.dumps(REPORT))
    done = run(str(tmp_path / "ok.json"), str(tmp_path / "none.json"))
    assert (done.returncode, done.stdout) == (3, "")
    assert "none.json" in done.stderr
    assert run().returncode == 3


def test_without_rich_the_way_out_is_said():
    code = (
        "import runpy, sys; sys.modules['rich.console'] = None; sys.argv = sys.argv[1:]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT / "scripts/report"), "-"],
        input=json.dumps(REPORT), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3
    assert "--json" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_lies_beside_a_report_is_no_report_and_is_passed_over(tmp_path: Path):
    (tmp_path / "demo.json").write_text(json.dumps(REPORT))
    (tmp_path / "proof-demo.json").write_text('{"ok": true, "findings": []}')
    done = run("--json", str(tmp_path / "demo.json"), str(tmp_path / "proof-demo.json"))
    assert done.returncode == 0, done.stderr
    assert [Path(found["file"]).name for found in json.loads(done.stdout)["reports"]] == ["demo.json"]
    alone = run("--json", str(tmp_path / "proof-demo.json"))
    assert alone.returncode == 3
    assert "not a report of this toolkit" in alone.stderr


def test_the_help_names_the_verbs_beside_the_table():
    text = run("--help").stdout
    assert "report html: write a page for each host" in " ".join(text.split())
    assert "report picture: print the topology as SVG" in " ".join(text.split())


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("passed", "yes", 'passed: true or false is expected, seen "yes"'),
        ("mode", 3, "mode: a text is expected, seen 3"),
        ("engaged", [1], "engaged: a mapping is expected, seen [1]"),
        ("engaged.start", {"ready_after_s": "soon"}, 'engaged.start.ready_after_s: a number is expected, seen "soon"'),
        ("engaged.nccl_environment", {"NCCL_PROTO": 3}, "engaged.nccl_environment.NCCL_PROTO: a text is expected"),
        ("smoke.gate.metrics", {"single.decode_tok_s": True}, "a number is expected, seen true"),
        ("smoke.findings", [3], "smoke.findings[0]: a mapping is expected, seen 3"),
        ("topology.facts", {"gpus": {"a": 1}}, "topology.facts.gpus: a list is expected"),
    ],
)
def test_a_value_of_the_wrong_type_is_named_with_its_place(path: str, value: Any, said: str):
    for words in (("--json", "-"), ("-",)):
        done = run(*words, stdin=changed(path, value))
        assert (done.returncode, done.stdout) == (3, "")
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_markup_of_the_terminal_in_a_name_is_text():
    done = run("-", stdin=json.dumps({**REPORT, "instance": "[red]kimi[/red]", "mode": "[/x]"}))
    assert done.returncode == 0, done.stderr
    assert "[red]kimi[/red] on gpu-1" in done.stdout
    assert "[/x]" in done.stdout
