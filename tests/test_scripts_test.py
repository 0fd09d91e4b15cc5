# SPDX-License-Identifier: Apache-2.0
"""The program scripts/test: its steps, how it counts, and that what fails is seen."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from loading import load

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the program's code; logs go to pytest's folder and a stand-in does the set-up."""
    made = load("test_program", ROOT / "scripts/test")
    monkeypatch.setattr(made, "PROJECT", tmp_path)
    monkeypatch.setattr(made, "LOGS", tmp_path / ".cache/test")
    for name, code in (("scripts/setup", 0), ("molecule/shared/supplies", 0)):
        script(tmp_path / name, f'echo "$0 $@" >> {tmp_path}/calls; exit {code}')
    return made


def script(file: Path, body: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)
    return file


def run(program: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["test", *words])
    code: int = program.main()
    return code


# the steps


def test_the_steps_are_lint_unit_and_every_scenario_there_is(program: ModuleType):
    names = [step.name for step in program.steps(True)]
    assert names[:2] == ["lint", "unit"]
    scenarios = {path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml")}
    assert set(names[2:]) == scenarios


def test_long_runs_are_left_out_unless_asked_for(program: ModuleType):
    (short,) = (step for step in program.steps(False) if step.name == "unit")
    (full,) = (step for step in program.steps(True) if step.name == "unit")
    assert short.command[-2:] == ("-m", "not slow")
    assert not set(program.LONG) & {step.name for step in program.steps(False)}
    assert "-m" not in full.command


def test_what_a_step_needs_is_something_that_can_be_supplied(program: ModuleType):
    supplies = (ROOT / "molecule/shared/supplies").read_text()
    for step in program.steps(True):
        for need in step.needs:
            assert need in supplies


# counting


@pytest.mark.parametrize(
    ("text", "code", "expected"),
    [
        ("....\n10 passed in 1.2s", 0, (10, 0, 0)),
        ("10 passed, 2 skipped, 1 warning in 1.2s\n", 0, (10, 0, 2)),
        ("===== 1 failed, 9 passed, 3 errors in 5s =====", 1, (9, 4, 0)),
        ("1 error in 0.1s", 2, (0, 1, 0)),
        ("5 passed, 2 xfailed, 1 xpassed in 1s", 0, (5, 0, 0)),
        ("no tests ran in 0.01s", 5, (0, 1, 0)),
        ("5 passed in 1s\nINTERNALERROR", 3, (0, 1, 0)),
        ("", 1, (0, 1, 0)),
        ("", 0, (0, 0, 0)),
    ],
)
def test_counts_come_from_pytests_last_line(program: ModuleType, text: str, code: int, expected: tuple[int, int, int]):
    assert program.count(text, code) == expected


# running


def steps_of(program: ModuleType, monkeypatch: pytest.MonkeyPatch, **bodies: str) -> None:
    """Replace the steps by scripts; ``unit`` counts."""
    folder = program.PROJECT / "bin"
    made = [
        program.Step(
            name, (str(script(folder / name, body)),), counts=name == "unit", needs=("layer",) * (name == "site")
        )
        for name, body in bodies.items()
    ]
    monkeypatch.setattr(program, "steps", lambda _: iter(made))


def test_all_steps_run_and_are_counted(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    steps_of(program, monkeypatch, lint="true", unit="echo 7 passed, 1 skipped in 1s", site="true")
    assert run(program, monkeypatch) == 0
    printed = capsys.readouterr().out
    assert printed.rstrip().endswith("9 passed, 0 failed, 1 skipped")
    calls = (program.PROJECT / "calls").read_text().splitlines()
    assert calls[0].endswith("scripts/setup --sandbox")
    assert calls[1:] == ["molecule/shared/supplies layer"]


def test_a_failure_is_counted_shown_and_stops_nothing(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    steps_of(
        program, monkeypatch, lint="echo E501 too long; exit 1", unit="echo 2 failed, 7 passed in 1s; exit 1", x="true"
    )
    assert run(program, monkeypatch) == 1
    printed = capsys.readouterr().out
    assert "    | E501 too long" in printed
    assert printed.rstrip().endswith("8 passed, 3 failed, 0 skipped")
    assert "E501" in (program.LOGS / "lint.log").read_text()


def test_a_crash_without_a_count_is_a_failure(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    steps_of(program, monkeypatch, unit="echo Segmentation fault; exit 139")
    assert run(program, monkeypatch) == 1
    assert "0 passed, 1 failed" in capsys.readouterr().out


def test_a_step_whose_supplies_fail_is_not_run(program: ModuleType, monkeypatch: pytest.MonkeyPatch):
    script(program.PROJECT / "molecule/shared/supplies", "echo no network; exit 1")
    steps_of(program, monkeypatch, site=f"touch {program.PROJECT}/ran")
    assert run(program, monkeypatch) == 1
    assert not (program.PROJECT / "ran").exists()


def test_only_what_was_asked_for_runs(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    steps_of(program, monkeypatch, lint="exit 1", unit="echo 1 passed in 1s")
    assert run(program, monkeypatch, "--only", "unit") == 0
    assert "1 passed, 0 failed" in capsys.readouterr().out


def test_an_unknown_step_names_those_there_are(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    steps_of(program, monkeypatch, lint="true", unit="true")
    with pytest.raises(SystemExit):
        run(program, monkeypatch, "--only", "unti")
    assert "no step unti; there are: lint, unit; with --full also vllm" in capsys.readouterr().err
    assert not (program.PROJECT / "calls").exists()


def test_a_failed_set_up_is_said_and_nothing_is_tested(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    script(program.PROJECT / "scripts/setup", "exit 4")
    steps_of(program, monkeypatch, lint=f"touch {program.PROJECT}/ran")
    assert run(program, monkeypatch) == 1
    assert "nothing was tested" in capsys.readouterr().err
    assert not (program.PROJECT / "ran").exists()
