# SPDX-License-Identifier: Apache-2.0
"""Quoting against an independent reading of systemd's syntax, and against the real systemd-analyze where it is."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference import systemd
from inference.systemd import SystemdError

WORDS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=30)
needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")

_ESCAPED = {"\\": "\\", '"': '"', "n": "\n", "t": "\t", "r": "\r"}


def split(text: str) -> list[str]:
    """Read words as systemd.syntax(7) says: quotes, C escapes, backslash and line end continue a line."""
    words: list[str] = []
    word: str | None = None
    quoted = False
    letters = iter(text.replace("\\\n", " "))
    for letter in letters:
        if letter == "\\":
            word = (word or "") + _ESCAPED[next(letters)]
        elif letter == '"':
            quoted, word = not quoted, word or ""
        elif letter in " \t\n\r" and not quoted:
            if word is not None:
                words.append(word)
            word = None
        else:
            word = (word or "") + letter
    assert not quoted
    return [*words, word] if word is not None else words


@given(WORDS)
def test_a_quoted_word_is_read_back(word: str):
    assert split(systemd.quote(word)) == [word.replace("%", "%%")]


@given(st.lists(WORDS, min_size=1, max_size=6))
def test_a_command_line_is_read_back_word_by_word(words: list[str]):
    expected = [word.replace("%", "%%").replace("$", "$$") for word in words]
    assert split(systemd.command_line(words)) == expected


@given(WORDS)
def test_nothing_begins_a_comment_or_another_directive(word: str):
    for line in systemd.command_line(["/bin/true", word, word]).split("\n"):
        assert line.strip()[:1] not in ("#", ";", "[")


@pytest.mark.parametrize(
    ("word", "plain", "command"),
    [
        ("131072", "131072", "131072"),
        ("/srv/models/kimi-k2.5", "/srv/models/kimi-k2.5", "/srv/models/kimi-k2.5"),
        ("", '""', '""'),
        ("a b", '"a b"', '"a b"'),
        ("50%", "50%%", "50%%"),
        ("$HOME", '"$HOME"', '"$$HOME"'),
        ('{"a": 1}', '"{\\"a\\": 1}"', '"{\\"a\\": 1}"'),
        ("a\nb", '"a\\nb"', '"a\\nb"'),
        (";", '";"', '";"'),
        ("#x", '"#x"', '"#x"'),
        ("it's", '"it\'s"', '"it\'s"'),
        ("a\\b", '"a\\\\b"', '"a\\\\b"'),
    ],
)
def test_words_that_need_care(word: str, plain: str, command: str):
    assert systemd.quote(word) == plain
    assert systemd.quote(word, command=True) == command


def test_a_command_has_one_option_a_line():
    line = systemd.command_line(["/usr/bin/python3", "-m", "x", "--port", "30000", "--flag", "--list", "a", "b"])
    assert line.split(" \\\n  ") == ["/usr/bin/python3", "-m", "x", "--port 30000", "--flag", "--list a", "b"]


def test_environment_lines_are_sorted_and_quoted():
    lines = systemd.environment_line({"B": "two words", "A": "1"})
    assert lines == 'Environment=A=1\nEnvironment="B=two words"'
    assert systemd.environment_line({}) == ""


# the real systemd-analyze


def unit_folder(tmp_path: Path, service: str, dropin: str = "") -> Path:
    (tmp_path / "x@.service").write_text("[Service]\nExecStart=/bin/true\n")
    (tmp_path / "x@a.service").write_text(f"[Unit]\nDescription=x\n[Service]\n{service}\n")
    (tmp_path / "x@a.service.d").mkdir()
    (tmp_path / "x@a.service.d/10-more.conf").write_text(f"[Service]\n{dropin}\n")
    return tmp_path


@needs_systemd
def test_a_right_unit_has_no_complaints(tmp_path: Path):
    folder = unit_folder(tmp_path, "Type=notify\nExecStart=/bin/true --x", "LimitCORE=0")
    assert systemd.verify(folder, "x@a.service") == []


@needs_systemd
@pytest.mark.parametrize(
    ("service", "dropin", "said"),
    [
        ("ExecStart=/bin/true\nMemoryMaxx=1", "", "Unknown key"),
        ("ExecStart=/bin/true\nType=notifyy", "", "notifyy"),
        ("ExecStart=/bin/true", "TemporaryFileSystem=shm", "x@a.service.d/10-more.conf:2"),
        ("ExecStart=/nowhere/python3 x", "", "/nowhere/python3"),
        ("", "", "ExecStart"),
    ],
)
def test_what_systemd_only_grumbles_about_is_a_complaint(tmp_path: Path, service: str, dropin: str, said: str):
    complaints = systemd.verify(unit_folder(tmp_path, service, dropin), "x@a.service")
    assert any(said in line for line in complaints), complaints
    assert not any(str(tmp_path) in line for line in complaints)


@needs_systemd
@pytest.mark.parametrize("word", ["%", "$x ${y}", "a b", '"', "\\", "\t\n", "é ", "'", ";", "#", "50%i", "{}", "\\x41"])
def test_systemd_takes_every_quoted_word(tmp_path: Path, word: str):
    line = systemd.command_line(["/bin/true", word])
    environment = systemd.environment_line({"A": word})
    assert systemd.verify(unit_folder(tmp_path, f"ExecStart={line}\n{environment}"), "x@a.service") == []


# a systemd that answers what a test wants


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def program(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!{sys.executable}\nimport sys\nwords = sys.argv[1:]\n{body}\n")
    (folder / name).chmod(0o755)


ANALYZE = """
if "--recursive-errors=no" in words and VERSION < 250:
    sys.exit("systemd-analyze: unrecognized option '--recursive-errors=no'")
print("/usr/lib/systemd/system/plymouth.service:3: Unknown key 'Foo'", file=sys.stderr)
print(words[-1] + ":7: Unknown key 'Bar'", file=sys.stderr)
"""


@pytest.mark.parametrize(("version", "expected"), [(249, 1), (252, 2)])
def test_an_old_systemd_is_not_asked_what_it_does_not_know(tmp_path: Path, programs: Path, version: int, expected: int):
    program(programs, "systemctl", f"print('systemd {version} ({version}.11-0ubuntu3)')")
    program(programs, "systemd-analyze", ANALYZE.replace("VERSION", str(version)))
    complaints = systemd.verify(tmp_path, "x@a.service")
    assert len(complaints) == expected
    assert complaints[-1] == "x@a.service:7: Unknown key 'Bar'"


def test_a_failure_without_a_word_is_a_complaint(tmp_path: Path, programs: Path):
    program(programs, "systemctl", "print('systemd 252')")
    program(programs, "systemd-analyze", "sys.exit(1)")
    assert systemd.verify(tmp_path, "x@a.service") == ["systemd-analyze verify exited 1"]


def test_a_version_that_cannot_be_read_is_shown(programs: Path):
    program(programs, "systemctl", "print('upstart 1.0')")
    with pytest.raises(SystemdError, match="upstart"):
        systemd.version()


SHOW = """
assert words[0] == "show" and words[-2:] == ["--", "x@a.service"], words
print('''LoadState=loaded
ActiveState=activating
SubState=start
Result=success
StatusText=loading weights, 12 s = a while
MainPID=42
NRestarts=3
ExecMainCode=2
ExecMainStatus=9
ExecMainStartTimestampMonotonic=12500000
DropInPaths=/etc/systemd/system/x@a.service.d/10.conf /run/x.d/20.conf
Job=77''')
"""


def test_a_units_state_is_read_whole(programs: Path):
    program(programs, "systemctl", SHOW)
    state = systemd.unit_state("x@a.service")
    assert (state.load, state.active, state.sub, state.result) == ("loaded", "activating", "start", "success")
    assert state.status == "loading weights, 12 s = a while"
    assert (state.main_pid, state.restarts, state.exit_code, state.job) == (42, 3, "killed 9", 77)
    assert not state.serving
    assert state.drop_ins == ("/etc/systemd/system/x@a.service.d/10.conf", "/run/x.d/20.conf")
    assert abs(state.started - (time.time() - time.monotonic() + 12.5)) < 1


def test_what_systemd_leaves_out_is_empty(programs: Path):
    program(programs, "systemctl", "print('LoadState=not-found\\nActiveState=inactive\\nMainPID=')")
    state = systemd.unit_state("x@a.service")
    assert (state.load, state.main_pid, state.restarts, state.exit_code, state.job) == ("not-found", 0, 0, "", 0)
    assert (state.started, state.drop_ins) == (0.0, ())


def test_only_active_is_serving():
    base = ("loaded", "running", "success", "", 1, 0, "")
    states = {
        active: systemd.UnitState(base[0], active, *base[1:])
        for active in ("active", "activating", "reloading", "failed")
    }
    assert [active for active, state in states.items() if state.serving] == ["active"]


@pytest.mark.parametrize(("said", "expected"), [("enabled", True), ("disabled", False), ("static", False), ("", False)])
def test_enabled(programs: Path, said: str, expected: bool):
    program(programs, "systemctl", f"print({said!r}); sys.exit({0 if expected else 1})")
    assert systemd.enabled("x@a.service") is expected


def test_a_failure_shows_what_systemctl_said(programs: Path):
    program(programs, "systemctl", "sys.exit('Unit x@a.service not found.')")
    with pytest.raises(SystemdError, match=r"systemctl start x@a\.service: Unit x@a\.service not found"):
        systemd.systemctl("start", "x@a.service")
    assert systemd.systemctl("start", "x@a.service", check=False) == ""


def test_a_missing_or_silent_systemd_is_an_error_with_a_sentence(programs: Path):
    with pytest.raises(SystemdError, match="systemctl cannot be run"):
        systemd.systemctl("start", "x")
    program(programs, "systemctl", "import time; time.sleep(30)")
    with pytest.raises(SystemdError, match="no answer in 1 s"):
        systemd.systemctl("start", "x", timeout=1)


def test_the_journal_is_empty_where_it_cannot_be_read(programs: Path):
    assert systemd.journal("x") == []
    program(programs, "journalctl", "print('one\\ntwo'); assert '--unit' in words and '5' in words")
    assert systemd.journal("x", 5) == ["one", "two"]
