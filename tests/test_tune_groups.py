# SPDX-License-Identifier: Apache-2.0
"""Groups of worker processes: what each fault becomes, and that nothing is left running. No torch is needed."""

import os
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from inference.tune import ras
from inference.tune.launching import Limits, run_group, run_program
from inference.tune.outcome import Outcome, judge
from inference.tune.protocol import Events, Job, message

STAND_IN = (sys.executable, str(Path(__file__).parent / "stand_in_tune_worker.py"))
GENEROUS = Limits(start=60, stall=60, total=120)
QUICK = Limits(start=60, stall=2.5, total=60)
"""For what hangs. What stops by itself, or runs to its end, has time however busy the machine is."""


def job(folder, world=2, backend="nccl", sizes=(1024, 4096)):
    return Job(backend, tuple(range(world)), "bfloat16", tuple(message(n, world) for n in sizes), 5, 1, str(folder))


def outcome(folder, fault="", wanted=None, limits=GENEROUS, world=2, **more):
    settings = dict(wanted or {})
    environment = {"PATH": os.environ["PATH"], "STAND_IN": fault, **settings, **more}
    group = job(folder, world)
    return judge(run_group(STAND_IN, group, environment, limits), group, settings)


def test_a_group_that_does_its_job_is_healthy_and_its_settings_are_proved(tmp_path):
    seen = outcome(tmp_path, wanted={"NCCL_PROTO": "LL", "NCCL_P2P_DISABLE": "1"}, world=3)
    assert (seen.verdict, sorted(seen.times)) == ("healthy", [1024, 4096]), seen
    assert seen.times[1024] == pytest.approx([10, 10.02, 10.04, 10.06, 10.08])
    assert seen.proof["environment"] == {"NCCL_PROTO": "LL", "NCCL_P2P_DISABLE": "1"}
    assert seen.proof["transports"] == {"SHM": 3}
    assert seen.versions["nccl"] == "2.28.9"
    assert seen.kept == {}


def test_an_outcome_survives_json(tmp_path):
    seen = outcome(tmp_path)
    assert Outcome.from_dict(seen.as_dict()) == seen


def test_settings_that_nccl_did_not_take_are_no_measurement_of_them(tmp_path):
    seen = outcome(tmp_path, "deaf", wanted={"NCCL_PROTO": "LL"})
    assert seen.verdict == "inconclusive"
    assert "NCCL_PROTO" in seen.reason
    assert seen.times == {}


def test_a_wrong_sum_names_rank_and_place(tmp_path):
    seen = outcome(tmp_path, "wrong:1")
    assert seen.verdict == "wrong-data"
    assert "wrong sums on rank 1: 3 values at 1024 bytes" in seen.reason
    assert "value 7 is 1.0, expected 2.0" in seen.reason
    assert seen.times == {}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("hang:1", "at 1024 bytes; ranks 1 of 2 are behind, last event 'checking'"),
        ("hang", "at 1024 bytes; every rank"),
        ("hang-at-start", "while the communicator was made; every rank"),
    ],
)
def test_a_hang_is_a_result_within_its_limit(tmp_path, fault, words):
    start = time.monotonic()
    seen = outcome(tmp_path, fault, limits=QUICK)
    assert seen.verdict == "hang"
    assert words in seen.reason
    assert time.monotonic() - start < QUICK.total
    assert any(seen.kept["logs"]) or fault == "hang-at-start"


def several_starts(folder):
    """Return seconds in which a group starts on this machine as it is now, and little more."""
    first = folder / "first"
    first.mkdir()
    return 1.5 + 5 * outcome(first).seconds


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("no-torch:0", "rank 0: ModuleNotFoundError: No module named 'torch'"),
        ("die:1", "rank 1 ended with signal 8"),
        ("garbage:0", "which is no event"),
        ("import-hang:1", "ranks 1 did not get as far as importing torch"),
    ],
)
def test_what_is_no_fault_of_communication_is_inconclusive(tmp_path, fault, words):
    limits = Limits(start=several_starts(tmp_path), stall=60, total=120)
    seen = outcome(tmp_path, fault, limits=limits)
    assert seen.verdict == "inconclusive", seen
    assert words in seen.reason


def test_what_goes_on_without_an_end_is_no_hang(tmp_path):
    seen = outcome(tmp_path, "hang", limits=Limits(start=120, stall=120, total=several_starts(tmp_path)))
    assert seen.verdict == "inconclusive"
    assert "not finished after" in seen.reason


def test_a_worker_that_can_not_be_started_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        run_group(["/nowhere/python"], job(tmp_path), {}, QUICK)


def running(stat):
    try:
        return stat.read_text().split()[2] != "Z"  # a zombie that nobody reaps here is over as well
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_children_of_a_hanging_worker_are_ended_too(tmp_path):
    assert outcome(tmp_path, "child:0", limits=QUICK).verdict == "hang"
    child = Path("/proc") / (tmp_path / "child").read_text() / "stat"
    end = time.monotonic() + 60
    while running(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not running(child)


def test_gloo_logs_nothing_and_is_not_asked_to_prove_settings(tmp_path):
    group = job(tmp_path, backend="gloo")
    seen = judge(run_group(STAND_IN, group, {"PATH": os.environ["PATH"]}, QUICK), group, {"NCCL_PROTO": "LL"})
    assert (seen.verdict, seen.proof) == ("healthy", {})


def test_half_a_line_waits_for_its_end(tmp_path):
    group = job(tmp_path)
    events, file = Events(group), group.events_file(0).open("w")
    file.write('{"event": "star')
    file.flush()
    assert not events.poll()
    file.write('ted"}\n')
    file.flush()
    assert events.poll()
    assert events.by_rank == [[{"event": "started"}], []]


def test_a_program_without_events_has_its_limit_and_its_own_events(tmp_path):
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    run = run_program(sleeping, {}, tmp_path, 1.0, lambda end: [{"event": end}])
    assert (run.end, run.events) == ("stalled", [[{"event": "stalled"}]])
    run = run_program([sys.executable, "-c", "pass"], {}, tmp_path, 20.0, lambda end: [{"event": end}])
    assert (run.end, run.events) == ("done", [[{"event": "done"}]])
    run = run_program([sys.executable, "-c", "raise SystemExit(3)"], {}, tmp_path, 20.0, lambda _: [])
    assert (run.end, run.exits) == ("failed", [3])


class Ras(threading.Thread):
    """Answers like NCCL's RAS service, or falls silent at ``silent_after`` lines."""

    def __init__(self, greeting=b"SERVER PROTOCOL 2\n", report=b"RAS says: rank 1 is behind\n", silent=False):
        super().__init__(daemon=True)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.greeting, self.report, self.silent, self.heard = greeting, report, silent, b""
        self.start()

    @property
    def address(self):
        return f"localhost:{self.socket.getsockname()[1]}"

    def run(self):
        connection, _ = self.socket.accept()
        with connection:
            self.heard += connection.recv(100)
            connection.sendall(self.greeting)
            if not self.greeting.startswith(b"SERVER"):
                return
            self.heard += connection.recv(100)
            connection.sendall(self.report)
            if self.silent:
                time.sleep(600)


def test_ras_is_asked_in_its_own_words():
    service = Ras()
    assert ras.report(service.address) == "RAS says: rank 1 is behind"
    assert service.heard == b"CLIENT PROTOCOL 2\nVERBOSE STATUS\n"


def test_ras_that_falls_silent_keeps_what_it_said_and_is_not_waited_for():
    start = time.monotonic()
    assert ras.report(Ras(silent=True).address, timeout=3.0) == "RAS says: rank 1 is behind"
    assert time.monotonic() - start < 60


def test_something_else_on_the_port_is_no_report():
    assert ras.report(Ras(greeting=b"HTTP/1.1 400 Bad Request\r\n").address, timeout=2.0) is None


def test_nothing_on_the_port_is_no_report():
    assert ras.report(ras.free_address(), timeout=1.0) is None
    assert ras.report("no port", timeout=1.0) is None
