# SPDX-License-Identifier: Apache-2.0
"""Reading settings out of units, shell lines, KEY=VALUE lines and NCCL's own files."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.environment_text import read, read_conf, split_words


def values(text):
    return {name: a.value for name, a in read(text).effective().items()}


def kinds(text):
    return [problem.kind for problem in read(text).problems]


class TestUnit:
    def test_several_assignments_stand_in_one_line_in_any_quotes(self):
        text = '[Service]\nEnvironment="A=x y" \'B=1\' C=2 D="3 4"\n'
        assert values(text) == {"A": "x y", "B": "1", "C": "2", "D": "3 4"}

    def test_an_empty_one_resets(self):
        assert values("[Service]\nEnvironment=A=1 B=2\nEnvironment=\nEnvironment=B=3\n") == {"B": "3"}

    def test_lines_continue_over_comments(self):
        text = "[Service]\nEnvironment=A=1 \\\n# between\n  B=2 \\\n  C=3\nEnvironment=D=4\n"
        assert values(text) == {"A": "1", "B": "2", "C": "3", "D": "4"}

    def test_escapes_are_those_of_c(self):
        assert split_words(r"A=\x41\101\t\"\s") == ['A=AA\t" ']
        assert split_words(r"A=\q") is None
        assert split_words("A=\\") is None
        assert split_words('A="x') is None
        assert split_words(r"A=\x00") is None

    def test_quotes_in_the_middle_of_a_word_count_too(self):
        assert split_words('"A"B=2 C=\'x\'y"z"') == ["AB=2", "C=xyz"]

    def test_a_line_with_an_open_quote_is_lost_whole(self):
        text = '[Service]\nEnvironment=NCCL_A=1 "NCCL_B=2\nEnvironment=NCCL_C=3\n'
        assert values(text) == {"NCCL_C": "3"}
        assert kinds(text) == ["unreadable"]

    def test_specifiers(self):
        result = read("[Service]\nEnvironment=A=%i/x B=100%% C=%Z\n")
        effective = result.effective()
        assert (effective["A"].value, effective["A"].unresolved) == ("%i/x", True)
        assert (effective["B"].value, effective["B"].unresolved) == ("100%", False)
        assert "C" not in effective
        assert [p.kind for p in result.problems] == ["specifier"]

    def test_nccl_s_own_percent_signs_are_a_trap(self):
        assert kinds("[Service]\nEnvironment=NCCL_DEBUG_FILE=/var/log/nccl.%h.%p\n") == ["specifier"]
        assert values("[Service]\nEnvironment=NCCL_DEBUG_FILE=/l.%%h.%%p\n") == {"NCCL_DEBUG_FILE": "/l.%h.%p"}

    def test_the_section_counts(self):
        text = "[Unit]\nEnvironment=A_B=1\n[Service]\nEnvironment=C=2\nNCCL_PROTO=LL\nexport NCCL_ALGO=Ring\n"
        assert values(text) == {"C": "2"}
        assert kinds(text) == ["wrong-section"] * 3

    def test_other_directives_are_no_settings(self):
        text = "[Service]\nType=notify\nUser=inference\nLimitMEMLOCK=infinity\nEnvironment=A=1\n"
        assert values(text) == {"A": "1"}
        assert kinds(text) == []

    def test_a_comment_behind_a_setting_is_none(self):
        text = "[Service]\nEnvironment=NCCL_PROTO=LL # was NCCL_PROTO=Simple\n"
        assert values(text) == {"NCCL_PROTO": "Simple"}  # as systemd reads it
        assert "inline-comment" in kinds(text)

    def test_unset_environment_takes_away(self):
        text = "[Service]\nEnvironment=A=1 B=2 C=3\nUnsetEnvironment=A B=2 C=4\n"
        assert values(text) == {"C": "3"}

    def test_files_and_command(self):
        text = (
            "[Service]\nEnvironmentFile=-/etc/x\nExecStart=\n"
            "ExecStart=/usr/bin/env A=1 /opt/python -m sglang.launch_server \\\n"
            "  --tp 8 --disable-custom-all-reduce\n"
        )
        result = read(text)
        assert result.files == ["-/etc/x"]
        assert result.command[-1] == "--disable-custom-all-reduce"
        assert result.effective()["A"].value == "1"

    def test_units_in_a_row_are_one(self):
        text = "# /etc/a.service\n[Service]\nEnvironment=A=1\n\n# /etc/a.service.d/b.conf\n[Service]\nEnvironment=A=2\n"
        assert values(text) == {"A": "2"}

    def test_a_dollar_stays_one(self):
        assert kinds("[Service]\nEnvironment=NCCL_TOPO_FILE=$HOME/x\n") == ["unexpanded"]

    @pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here to compare with")
    @pytest.mark.parametrize(
        ("line", "lost"),
        [
            ("NCCL_A='x' \"NCCL_B=1\"", False),
            ('"NCCL_A=1', True),
            (r"NCCL_A=\q", True),
            (r"NCCL_A=\x41", False),
            ("NCCL_A=%k", True),
            ("NCCL_A=%%k", False),
            ("NCCL_A", True),
            ("1A=2", True),
        ],
    )
    def test_systemd_agrees_on_what_is_lost(self, tmp_path, line, lost):
        unit = tmp_path / "x.service"
        unit.write_text(f"[Service]\nType=oneshot\nExecStart=/bin/true\nEnvironment={line}\n")
        says = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False, timeout=60
        ).stderr
        assert ("x.service:4:" in says) is lost
        assert bool(read(unit.read_text()).problems) is lost


class TestShell:
    def test_exports_and_plain_lines(self):
        assert values("export A=1 B=\"x y\"\nC=3\n# D=4\n; E=5\n\nF='6'\n") == {
            "A": "1",
            "B": "x y",
            "C": "3",
            "F": "6",
        }

    def test_the_last_one_wins_and_unset_takes_away(self):
        assert values("A=1\nA=2\nB=3\nunset B\n") == {"A": "2"}

    def test_one_line_of_several_is_read_as_a_shell_does(self):
        text = "NCCL_PROTO=LL NCCL_ALGO=Ring NCCL_P2P_LEVEL=SYS"
        assert values(text) == {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_P2P_LEVEL": "SYS"}
        assert kinds(text) == ["several"]

    def test_assignments_in_front_of_a_command(self):
        result = read("NCCL_A=1 \\\nNCCL_B=2 python -m sglang.launch_server \\\n  --tp 8\n")
        assert {n: a.value for n, a in result.effective().items()} == {"NCCL_A": "1", "NCCL_B": "2"}
        assert result.command == ["python", "-m", "sglang.launch_server", "--tp", "8"]
        assert result.problems == []

    def test_statements_of_a_shell(self):
        assert values("export NCCL_A=1; export NCCL_B='x;y' && unset NCCL_A\n") == {"NCCL_B": "x;y"}
        assert values("NCCL_PROTO=^LL128;allreduce:LL\n") == {"NCCL_PROTO": "^LL128;allreduce:LL"}
        assert values("set -a\nif true; then export NCCL_A=1; fi\n") == {"NCCL_A": "1"}

    def test_a_container_s_options(self):
        assert values("docker run -e NCCL_A=1 --env=NCCL_B=2 -e NCCL_C --gpus all image\n") == {
            "NCCL_A": "1",
            "NCCL_B": "2",
        }

    def test_a_value_with_white_space_is_kept_whole(self):
        assert values("NCCL_PROTO=LL, Simple\n") == {"NCCL_PROTO": "LL, Simple"}

    def test_what_a_shell_expands_is_not_known(self):
        effective = read("export A=$HOME/x\nB='$5'\nC=`id`\n").effective()
        assert [effective[name].unresolved for name in "ABC"] == [True, False, True]

    @pytest.mark.parametrize(
        ("text", "kind"),
        [
            ("NCCL_PROTO=LL # fast\n", "inline-comment"),
            ("NCCL_PROTO = LL\n", "white-space"),
            ("NCCL_PROTO LL\n", "unreadable"),
            ("NCCL_PROTO='LL\n", "unreadable"),
            ("NCCL_PROTO=LL\r\nNCCL_ALGO=Ring\r\n", "white-space"),
        ],
    )
    def test_traps(self, text, kind):
        assert kind in kinds(text)

    def test_nul_separated_as_the_kernel_shows_it(self):
        assert values("A=1\0NCCL_B=x y\0") == {"A": "1", "NCCL_B": "x y"}


class TestConf:
    def test_every_character_counts(self):
        result = read_conf('# c\nNCCL_PROTO="LL"\nNCCL_SOCKET_IFNAME==ens1\nNCCL_ALGO =Ring\nwords\n')
        assert [(a.name, a.value) for a in result.assignments] == [
            ("NCCL_PROTO", '"LL"'),
            ("NCCL_SOCKET_IFNAME", "=ens1"),
            ("NCCL_ALGO ", "Ring"),
        ]
        assert [p.kind for p in result.problems] == ["quotes-kept", "white-space", "unreadable"]


@given(st.text())
def test_no_text_raises(text):
    read(text)
    read_conf(text)
    read("[Service]\nEnvironment=" + text)


@given(
    st.lists(
        st.tuples(st.from_regex(r"[A-Z]{1,4}", fullmatch=True), st.text(max_size=20).filter(lambda t: "\0" not in t))
    )
)
def test_what_is_quoted_for_systemd_reads_back(pairs):
    def quote(word):
        escaped = "".join(f"\\U{ord(c):08x}" if not c.isalnum() else c for c in word)
        return f'"{escaped}"'

    line = " ".join(quote(f"{name}={value}") for name, value in pairs)
    words = split_words(line)
    assert words == [f"{name}={value}" for name, value in pairs]


def test_a_line_that_no_program_can_be_given_is_named_and_not_split():
    found = read("A=1\n" + "a" * 3_000_000 + "\nB=2\n")
    assert [(problem.kind, problem.line, len(problem.seen)) for problem in found.problems] == [("unreadable", 2, 80)]
    assert set(found.effective()) == {"A", "B"}
