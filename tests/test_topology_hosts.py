# SPDX-License-Identifier: Apache-2.0
"""A live host, played by recordings: what collect() gathers, and the finding that each fault leads to."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
from loading import load

from inference import topology
from inference.topology.collect import COMMANDS, NVIDIA_SMI, Answer, run_command

ROOT = Path(__file__).parent.parent
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
HEALTHY = "rtx-pro-6000-x8"
FAULTS = {
    "seven-gpus": {"gpu-count"},
    "link-x8": {"pcie-width"},
    "p2p-cns": {"p2p-read", "p2p-write"},
    "gpu-lost": {"gpu-lost", "gpu-count"},
    "wrong-sm": {"compute-capability"},
    "ecc": {"ecc-uncorrected"},
    "driver-mismatch": {"driver-mismatch"},
    "mig": {"mig"},
}


def replay() -> ModuleType:
    return load("replay", ROOT / "molecule" / "shared" / "nvidia-smi")


def player(host: str):
    commands = replay().recording(HOSTS / host)

    def run(argv: Sequence[str], timeout: float) -> Answer:
        line = " ".join(argv)
        if line not in commands:
            return Answer(9, "", "no recording of this command")
        path, code = commands[line]
        return Answer(code, path.read_text())

    return run


def collect(host: str, root: Path) -> topology.Facts:
    return topology.collect(player(host), root)


def report_on(host: str, root: Path, **options):
    return topology.check(collect(host, root), topology.expectation_of(HEALTHY), **options)


def test_the_healthy_recording_answers_everything_that_nvidia_smi_can_answer(tmp_path: Path) -> None:
    facts = collect(HEALTHY, tmp_path)
    assert facts.unread.keys().isdisjoint(NVIDIA_SMI)
    assert facts.errors == []
    assert set(facts.counts.values()) == {8}
    assert [gpu["index"] for gpu in facts.gpus] == [str(number) for number in range(8)]
    assert facts.gpus[7]["ecc.errors.uncorrected.volatile.dram"] == "0"
    assert facts.gpus[7]["compute_cap"] == "12.0"


def test_the_healthy_recording_has_no_findings(tmp_path: Path) -> None:
    report = report_on(HEALTHY, tmp_path)
    assert report.findings == []
    assert report.exit_code == 0
    assert {entry.id for entry in report.not_checked} == {
        "acs-redirect", "cpu-affinity", "driver-mismatch", "iommu-translated", "kernel-events", "memlock",
        "pcie-aspm", "pcie-gen-load", "retired-pages", "shm-space", "shm-stale", "uvm-hmm", "xid",
    }  # fmt: skip


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_each_fault_has_its_own_finding(fault: str, tmp_path: Path) -> None:
    report = report_on(fault, tmp_path)
    assert {finding.id for finding in report.at("critical")} >= FAULTS[fault]
    assert {finding.id for finding in report.at("critical")} - FAULTS[fault] == set()
    assert report.exit_code == 2
    for finding in report.findings:
        assert finding.seen
        assert finding.expected
        assert finding.fix


def test_every_recorded_fault_is_tested() -> None:
    assert {path.name for path in HOSTS.iterdir() if path.is_dir()} == {HEALTHY, *FAULTS}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("seven-gpus", "7 GPUs instead of 8"),
        ("link-x8", "GPU3 0000:71:00.0: x8 of x16"),
        ("p2p-cns", "GPU2-GPU5: CNS; GPU5-GPU2: CNS"),
        ("gpu-lost", "0000:91:00.0"),
        ("wrong-sm", "GPU0 0000:01:00.0: 9.0"),
        ("ecc", "GPU1 0000:11:00.0: dram 3"),
        ("driver-mismatch", "NVML library version: 595.80"),
        ("mig", "GPU7 0000:f1:00.0: Enabled"),
    ],
)
def test_a_finding_names_what_was_seen(fault: str, words: str, tmp_path: Path) -> None:
    assert words in report_on(fault, tmp_path).as_text()


def test_manifests_name_files_that_exist_and_no_others() -> None:
    for manifest in HOSTS.glob("*/commands.json"):
        stated = {answer["file"] for answer in json.loads(manifest.read_text())["commands"].values()}
        assert stated == {path.name for path in manifest.parent.iterdir()} - {"commands.json"}


def test_the_base_records_every_command_that_is_run() -> None:
    recorded = json.loads((HOSTS / HEALTHY / "commands.json").read_text())["commands"]
    assert {" ".join(COMMANDS[name]) for name in NVIDIA_SMI} <= set(recorded)


def test_a_driver_mismatch_is_pending_when_a_reboot_is_enabled(tmp_path: Path) -> None:
    report = report_on("driver-mismatch", tmp_path, repairs=["host_reboot"])
    assert report.at("critical") == []
    assert any("pending, host_reboot repairs it" in finding.what for finding in report.at("info"))


def test_a_waiver_is_repeated_with_its_reason(tmp_path: Path) -> None:
    report = report_on("link-x8", tmp_path, waive={"pcie-width": "GPU3 sits in an x8 slot on purpose"})
    assert report.exit_code == 0
    assert "waived (GPU3 sits in an x8 slot on purpose)" in report.as_text()


def test_a_waiver_for_an_unknown_id_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(topology.WaiverError, match="did you mean 'pcie-width'"):
        report_on(HEALTHY, tmp_path, waive={"pcie-with": "typing"})


def test_a_waiver_needs_a_reason(tmp_path: Path) -> None:
    with pytest.raises(topology.WaiverError, match="give the reason"):
        report_on(HEALTHY, tmp_path, waive={"pcie-width": " "})


def test_a_command_that_hangs_is_a_finding(tmp_path: Path) -> None:
    play = player(HEALTHY)

    def run(argv: Sequence[str], timeout: float) -> Answer:
        return Answer(124, "", "", timeout, timed_out=True) if argv[1] == "topo" else play(argv, timeout)

    report = topology.check(topology.collect(run, tmp_path), topology.expectation_of(HEALTHY))
    assert {finding.id for finding in report.at("critical")} == {"nvidia-smi-timeout"}
    assert ("nvlink", "the command gave no answer in time") in [(e.id, e.why) for e in report.not_checked]


def test_commands_run_at_the_same_time(tmp_path: Path) -> None:
    play, together = player(HEALTHY), threading.Barrier(len(COMMANDS))

    def run(argv: Sequence[str], timeout: float) -> Answer:
        together.wait(60)  # until every command runs; raises where one waits for another
        return play(argv, timeout)

    assert topology.collect(run, tmp_path).live


def test_a_command_past_its_time_is_given_up(tmp_path: Path) -> None:
    started = time.monotonic()
    answer = run_command(["sleep", "300"], 0.2)
    assert answer.timed_out
    assert time.monotonic() - started < 60


def test_a_missing_program_is_told_as_such() -> None:
    answer = run_command(["nvidia-smi-that-is-not-here"], 5)
    assert answer.code == 127
    document = topology.parse(answer.err.replace("-that-is-not-here", ""))
    assert document["causes"][0]["cause"] == "program-missing"


def test_an_answer_that_is_not_understood_is_never_fine(tmp_path: Path) -> None:
    play = player(HEALTHY)

    def run(argv: Sequence[str], timeout: float) -> Answer:
        return Answer(9, "", "cannot answer") if argv[1:3] == ("topo", "-m") else play(argv, timeout)

    report = topology.check(topology.collect(run, tmp_path), topology.expectation_of(HEALTHY))
    assert report.exit_code == 3
    assert "cannot answer" in report.as_text()


class TestReplay:
    @pytest.fixture
    def program(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        module = replay()
        setting = tmp_path / "nvidia-smi-replay"
        setting.write_text(f"{HOSTS / 'link-x8'}\n")
        monkeypatch.setattr(module, "SETTING", setting)
        return module

    def run(self, program: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["nvidia-smi", *arguments])
        return program.main()

    def test_it_prints_what_was_recorded(self, program, monkeypatch, capfdbinary) -> None:
        assert self.run(program, monkeypatch, "topo", "-m") == 0
        sys.stdout.flush()
        assert capfdbinary.readouterr().out == (HOSTS / HEALTHY / "topo_m.txt").read_bytes()

    def test_an_overlay_answers_before_its_base(self, program) -> None:
        commands = program.recording(HOSTS / "link-x8")
        assert commands[" ".join(COMMANDS["--query-gpu"])][0].parent.name == "link-x8"
        assert commands[" ".join(COMMANDS["topo -m"])][0].parent.name == HEALTHY

    @pytest.mark.parametrize("arguments", [["--help"], ["dmon"], ["topo", "-x"]])
    def test_it_says_that_it_is_a_replay(self, arguments, program, monkeypatch, capfd) -> None:
        with pytest.raises(SystemExit) as left:
            self.run(program, monkeypatch, *arguments)
        assert left.value.code == 9
        told = capfd.readouterr().err
        assert "a replay of recordings" in told
        assert "no recording of this command" in told

    def test_without_a_setting_it_says_what_is_missing(self, program, monkeypatch, tmp_path, capfd) -> None:
        monkeypatch.setattr(program, "SETTING", tmp_path / "nothing")
        with pytest.raises(SystemExit) as left:
            self.run(program, monkeypatch)
        assert left.value.code == 9
        assert "names the recording to replay" in capfd.readouterr().err
