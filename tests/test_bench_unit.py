# SPDX-License-Identifier: Apache-2.0
"""bench/unit/run: a rendered unit without systemd, its system-call filter included."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import free_ports
import pytest

ROOT = Path(__file__).parent.parent
RUN = ROOT / "bench" / "unit" / "run"
ENGINE = ROOT / "tests" / "stand_in_engine.py"
MKDIR, MKDIRAT = 83, 258
"""Numbers of x86-64; the filter is written for that alone."""

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or not shutil.which("setpriv") or os.geteuid() != 0,
    reason="needs x86-64, setpriv and root",
)


def everything_but(*numbers):
    return [number for number in range(470) if number not in numbers]


def filtered(folder, allowed):
    (folder / "filter.json").write_text(json.dumps(allowed))
    program = f"import os; os.getpid(); os.mkdir({str(folder / 'made')!r})"
    command = [sys.executable, "-I", RUN, "--filtered", folder / "filter.json", sys.executable, "-c", program]
    return subprocess.run(["setpriv", "--no-new-privs", *command], capture_output=True, text=True, check=False)


def test_the_filter_answers_eperm_to_what_it_does_not_name_and_lets_the_rest_through(tmp_path):
    assert "PermissionError: [Errno 1]" in filtered(tmp_path, everything_but(MKDIR, MKDIRAT)).stderr
    assert not (tmp_path / "made").exists()
    assert filtered(tmp_path, everything_but()).returncode == 0
    assert (tmp_path / "made").exists()


def rendered(folder, port, model="stand-in"):
    unit = folder / "unit"
    unit.mkdir()
    settings = {
        **{"instance": "t", "engine": "sglang", "host": "127.0.0.1", "port": port, "model": model, "generation": "g"},
        **{"start_grace_s": 100, "stall_s": 100, "probe_interval_s": 1, "probe_timeout_s": 50, "failed_probes": 2},
        **{"drain_s": 50, "runtime_dir": str(folder), "completion": {"prompt": "1", "max_tokens": 1}},
    }
    (unit / "supervisor.json").write_text(json.dumps(settings))
    (unit / "filter.json").write_text(json.dumps(everything_but()))
    (unit / "10-command.conf").write_text(
        "[Service]\nExecStart=/usr/bin/python3 -I /x/scripts/supervisor \\\n"
        f"  --settings /etc/x/supervisor.json -- \\\n  {sys.executable} {ENGINE} \\\n  --port {port}\n"
        'Environment=PLAIN=1\nEnvironment="SPACED=a b"\n'
    )
    return unit


def run(unit, out, *options):
    return subprocess.run([RUN, unit, out, *options], capture_output=True, text=True, check=False, timeout=600)


def test_a_unit_starts_stops_and_starts_again_as_systemd_would_have_it(tmp_path, free_port):
    done = run(rendered(tmp_path, free_port), tmp_path / "out", "--starts", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    starts = json.loads((tmp_path / "out" / "result-1.json").read_text())["starts"]
    assert len(starts) == 2
    for start in starts:
        assert start["ready_s"] is not None
        assert start["stop"]["exit_code"] == 0
        assert start["stop"]["left_behind"] == []


def test_the_environment_is_exactly_the_units(tmp_path, free_port):
    run(rendered(tmp_path, free_port), tmp_path / "out", "--starts", "1")
    environment = json.loads((tmp_path / "out" / "result-1.json").read_text())["environment"]
    assert environment == {"PLAIN": "1", "SPACED": "a b"}


def test_one_that_never_gets_ready_is_a_failure(tmp_path, free_port):
    unit = rendered(tmp_path, free_port, model="another")
    done = run(unit, tmp_path / "out", "--longest-start", "4")
    assert done.returncode == 1
    assert json.loads((tmp_path / "out" / "result-1.json").read_text())["starts"][0]["ready_s"] is None


MAIN = """
import http.server, json, os, signal, socket, subprocess, sys, threading, time
mode, port = sys.argv[3], int(sys.argv[4])
streaming = threading.Lock()

class Answers(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with streaming:
            self.send_response(200)
            self.end_headers()
            for number in range(asked["max_tokens"]):
                self.wfile.write(b'data: {"choices": [{"text": "a"}]}\\n\\n')
                time.sleep(0.05)
            self.wfile.write(b'data: {"choices": [], "usage": {"completion_tokens": %d}}\\n\\n' % asked["max_tokens"])
            self.wfile.write(b"data: [DONE]\\n\\n")

def end(*_):
    if mode == "drain":
        streaming.acquire()
    os._exit(0)

if mode == "leave":
    subprocess.Popen(["sleep", "611"], start_new_session=True)
signal.signal(signal.SIGTERM, end)
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answers)
threading.Thread(target=server.serve_forever, daemon=True).start()
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
    notify.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
while True:
    time.sleep(0.1)
"""
"""A unit's main process that streams an answer; when it is stopped it waits for the end, cuts it, or leaves a child."""


def of_mode(folder, port, mode):
    unit = rendered(folder, port)
    (folder / "main.py").write_text(MAIN)
    command = f"{sys.executable} {folder}/main.py --settings x {mode} {port}"
    (unit / "10-command.conf").write_text(f"[Service]\nExecStart={command}\n")
    return unit


def started(tmp_path, port, mode, *options):
    done = run(of_mode(tmp_path, port, mode), tmp_path / "out", "--starts", "1", "--no-filter", *options)
    return done, json.loads((tmp_path / "out" / "result-1.json").read_text())["starts"][0]


@pytest.mark.parametrize(("mode", "whole"), [("drain", True), ("cut", False)])
def test_an_answer_that_streams_while_the_unit_stops_is_followed_to_its_end(tmp_path, free_port, mode, whole):
    done, start = started(tmp_path, free_port, mode, "--at-stop", "100")  # 5 s, within which it is asked to stop
    answer = start["answer_at_stop"]
    assert done.returncode == 0
    assert 0 < answer["pieces_before_the_stop"] < 100
    assert answer["done"] is whole
    assert answer["tokens"] == (100 if whole else None)


def test_a_process_that_outlives_the_unit_in_a_session_of_its_own_is_found_and_ended(tmp_path, free_port):
    done, start = started(tmp_path, free_port, "leave")
    assert done.returncode == 1
    assert start["stop"]["left_behind"] == ["sleep 611"]
    assert "sleep 611" not in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout


def test_one_that_is_itself_stopped_leaves_nothing(tmp_path, free_port):
    unit = of_mode(tmp_path, free_port, "drain")
    with subprocess.Popen(
        [RUN, unit, tmp_path / "out", "--no-filter", "--at-stop", "400"], stdout=subprocess.PIPE
    ) as program:
        program.stdout.readline()
        program.stdout.readline()
        time.sleep(1)
        program.send_signal(signal.SIGTERM)
        assert program.wait(120) != 0
    shown = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"{tmp_path}/main.py" not in shown


@pytest.fixture
def free_port():
    return free_ports.free_port()
