# SPDX-License-Identifier: Apache-2.0
"""Programs: verbs, --json anywhere, standard input, errors that name the file, and exit codes."""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from inference import program
from inference.findings import Finding, Report
from inference.program import USAGE, Program, ProgramError, nearest, print_report, read_document, read_text

ROOT = Path(__file__).resolve().parent.parent


def verb(arguments: argparse.Namespace) -> int:
    sys.stdout.write(" ".join(["json" if arguments.json else "text", *arguments.file]) + "\n")
    return 1


@pytest.fixture
def tool() -> Program:
    made = Program("tool", "A tool.")
    parser = made.verb("look", verb, "look at files")
    parser.add_argument("file", nargs="*")
    parser.add_argument("--level")
    return made


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["look", "a", "b"], "text a b"),
        (["look", "--json", "a", "b"], "json a b"),
        (["look", "a", "--json", "b"], "json a b"),
        (["look", "a", "--level", "x", "b", "--json"], "json a b"),
        (["look", "-"], "text -"),
    ],
)
def test_options_stand_anywhere_after_the_verb(
    tool: Program, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
):
    assert tool.main(argv) == 1
    assert capsys.readouterr().out == said + "\n"


def test_help_goes_to_where_it_was_asked_from(tool: Program, capsys: pytest.CaptureFixture[str]):
    assert tool.main(["--help"]) == 0
    assert "look  look at files" in capsys.readouterr().out
    assert tool.main([]) == USAGE
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "usage: tool VERB" in printed.err


def test_an_unknown_verb_names_the_nearest(tool: Program, capsys: pytest.CaptureFixture[str]):
    assert tool.main(["lok"]) == USAGE
    assert "tool: no verb 'lok'; did you mean 'look'?" in capsys.readouterr().err


def test_an_unknown_option_is_no_critical_finding(tool: Program, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        tool.main(["look", "--nothing"])
    assert caught.value.code == USAGE
    assert "--nothing" in capsys.readouterr().err


def test_a_program_without_verbs(capsys: pytest.CaptureFixture[str]):
    made = Program("tool", "A tool.")
    made.only(verb).add_argument("file", nargs="*")
    assert made.main(["a", "--json"]) == 1
    assert capsys.readouterr().out == "json a\n"


def test_an_error_names_the_program_and_goes_to_stderr(capsys: pytest.CaptureFixture[str]):
    def fail(_: argparse.Namespace) -> int:
        raise ProgramError("x.json: not there")

    made = Program("tool", "")
    made.verb("go", fail, "")
    assert made.main(["go"]) == USAGE
    assert capsys.readouterr() == ("", "tool: x.json: not there\n")


def test_what_an_error_quotes_of_a_file_is_printable_and_short(capsys: pytest.CaptureFixture[str]):
    def fail(_: argparse.Namespace) -> int:
        raise ProgramError(f"f: seen \x1b[31m\x00\x9b\u202e{'x' * 10_000_000}; expected a number\nsecond line \ud800")

    made = Program("tool", "")
    made.verb("go", fail, "").add_argument("--known")
    assert made.main(["go"]) == USAGE
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(r"tool: f: seen \x1b[31m\x00\x9b\u202exxx")
    assert first.endswith("xxx; expected a number")
    assert len(first) < 1100
    assert second == r"second line \ud800"
    with pytest.raises(SystemExit):
        made.main(["go", "--unknown\x1b[31m"])
    assert "\x1b" not in capsys.readouterr().err


def test_half_a_character_is_printed_as_an_escape(capsys: pytest.CaptureFixture[str]):
    made = Program("tool", "")
    made.only(lambda _: program.print_json({"name": "\ud800"}) or 0)
    assert made.main([]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "\ud800"}


def test_a_closed_pipe_is_no_traceback():
    code = (
        "import sys; sys.path.insert(0, 'plugins/module_utils')\n"
        "from inference.program import Program\n"
        "p = Program('tool', ''); p.only(lambda a: print('x' * 100000) or 0); sys.exit(p.main([]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert b"Traceback" not in said


# reading


def test_text_is_read_from_a_file_or_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "f").write_bytes(b"a\xffb")
    assert read_text(str(tmp_path / "f")) == "a\ufffdb"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from stdin")))
    assert read_text("-") == "from stdin"


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ProgramError, match=f"{tmp_path}/x: No such file"):
        read_text(str(tmp_path / "x"))
    with pytest.raises(ProgramError, match="directory"):
        read_text(str(tmp_path))


@pytest.mark.parametrize(("text", "expected"), [('{"a": 1}', {"a": 1}), ("a: [1, 2]\n", {"a": [1, 2]}), ("3", 3)])
def test_json_and_yaml_are_documents(tmp_path: Path, text: str, expected: object):
    (tmp_path / "f").write_text(text)
    assert read_document(str(tmp_path / "f")) == expected


def test_what_is_neither_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "f").write_text("a: [")
    with pytest.raises(ProgramError, match=f"{tmp_path}/f: neither JSON nor YAML"):
        read_document(str(tmp_path / "f"))
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ProgramError, match="PyYAML is not installed"):
        read_document(str(tmp_path / "f"))


@pytest.mark.parametrize(
    "text",
    ["a: 2026-99-99", "9" * 5000, f'{{"a": {"9" * 5000}}}', "!!bool x", "!!int ''", "!!timestamp x", "0x_"],
    ids=lambda text: text[:20],
)
def test_a_scalar_that_is_not_what_it_looks_like_is_named(tmp_path: Path, text: str):
    (tmp_path / "f").write_text(text)
    with pytest.raises(ProgramError, match=f"{tmp_path}/f: neither JSON nor YAML: a value that is none"):
        read_document(str(tmp_path / "f"))


def test_yaml_of_megabytes_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "f").write_text("a" * (program._MOST_YAML + 1))
    monkeypatch.setitem(sys.modules, "yaml", None)  # it is not even asked for
    with pytest.raises(ProgramError, match=f"{tmp_path}/f: seen 4 MB, not JSON .*expected a document"):
        read_document(str(tmp_path / "f"))


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000])
def test_what_is_nested_without_end_is_refused(tmp_path: Path, text: str):
    (tmp_path / "f").write_text(text)
    with pytest.raises(ProgramError, match=f"{tmp_path}/f: nested too deeply"):
        read_document(str(tmp_path / "f"))


def test_yaml_is_read_with_the_controllers_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "f").write_text("a: 1")
    called: list[object] = []
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(program.os, "execv", lambda *words: called.append(words))
    with pytest.raises(ProgramError):
        read_document(str(tmp_path / "f"))
    expected = ROOT / ".venv/bin/python"
    assert called == ([(expected, [str(expected), *sys.argv])] if expected.exists() else [])


def test_an_old_python_is_named():
    script = f"import sys; sys.version_info = (3, 9, 2); sys.path.insert(0, {str(ROOT / 'plugins/module_utils')!r})"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}\nimport inference.program"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and done.stderr.startswith("seen: Python 3.") and "3.10 or newer" in done.stderr


@pytest.mark.parametrize("text", ["0", "-1", "x", "", "1.5", "\u0661"])
def test_a_whole_number_is_whole_and_large_enough(text: str):
    assert program.whole(1)("7") == 7
    with pytest.raises(argparse.ArgumentTypeError, match="whole number from 1 on"):
        program.whole(1)(text)


def test_an_error_of_the_system_names_its_file(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    tool = Program("tool", "A tool.")
    tool.only(lambda _: int((tmp_path / "missing").read_text()))
    assert tool.main([]) == USAGE
    assert capsys.readouterr().err == f"tool: {tmp_path}/missing: No such file or directory\n"


# printing


def test_a_report_is_printed_in_the_asked_form(capsys: pytest.CaptureFixture[str]):
    report = Report([Finding("x", "critical", "é", seen="s", expected="e", fix="f")])
    assert print_report(report, as_json=True, kind="k") == 2
    printed = capsys.readouterr().out
    assert json.loads(printed) == report.as_dict(kind="k")
    assert "é" in printed
    assert print_report(report, as_json=False) == 2
    assert capsys.readouterr().out.startswith("CRITICAL x: é")


def test_nearest():
    assert nearest("latancy", ["latency", "none"]) == "; did you mean 'latency'?"
    assert nearest("zzz", ["latency"]) == ""
    assert nearest("1", {10: "a", 11: "b"}) in ("; did you mean '10'?", "; did you mean '11'?")
    assert program.nearest("x", []) == ""
