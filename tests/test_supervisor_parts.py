# SPDX-License-Identifier: Apache-2.0
"""The supervisor's parts by themselves: settings, lines, HTTP, /proc, and what is concluded from what is seen."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference import signatures
from inference.supervisor import Supervisor, log, notify, proc, voice
from inference.supervisor import settings as settings_file
from inference.supervisor.engine import Engine
from inference.supervisor.failure import FIXES, Failure, explain, stalled
from inference.supervisor.http import BODY_LIMIT, NoAnswerError, NoGenerationError, Server
from inference.supervisor.inbox import Inbox
from inference.supervisor.log import LINE_LIMIT, LineSplitter, LogPump, Redactor
from inference.supervisor.notify import STATUS_LIMIT, Notifier
from inference.supervisor.probe import Begun, Crashed
from inference.supervisor.proc import Process, Work
from inference.supervisor.record import Record, release_of, write_json
from inference.supervisor.watch import COMMUNICATION, Liveness, Look, StartWatch

GOOD = {
    "instance": "kimi",
    "engine": "sglang",
    "host": "127.0.0.1",
    "port": 30000,
    "model": "m",
    "generation": "g",
    "start_grace_s": 600,
    "stall_s": 180,
    "probe_interval_s": 5,
    "probe_timeout_s": 8,
    "failed_probes": 3,
    "drain_s": 60,
    "completion": {"prompt": "The capital of France is", "max_tokens": 8},
}

KEY = "k3y-that-must-stay-hidden-0123456789"

# ---- settings


def test_settings_have_two_defaults():
    settings = settings_file.from_dict(GOOD)
    assert settings.runtime_dir == "/run/inference/kimi"
    assert settings.api_key_file is None
    assert settings.completion.max_tokens == 8
    assert settings.freeze_bound_s == 5 + 3 * (8 + 2)


def test_a_prompt_may_be_in_any_language_and_have_lines():
    prompt = "\u6d4b\u8bd5\r\n\tA:\u3000\u2028\U0001f600"
    assert (
        settings_file.from_dict({**GOOD, "completion": {"prompt": prompt, "max_tokens": 1}}).completion.prompt == prompt
    )


@pytest.mark.parametrize("key", sorted(GOOD))
def test_every_key_is_needed(key):
    with pytest.raises(settings_file.SettingsError, match=f"missing key {key}"):
        settings_file.from_dict({name: value for name, value in GOOD.items() if name != key})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("instance", "../kimi"),
        ("engine", "llama"),
        ("port", 0),
        ("port", 65536),
        ("port", True),
        ("start_grace_s", 0),
        ("stall_s", "180"),
        ("failed_probes", 1),
        ("failed_probes", 2.5),
        ("stall_s", float("inf")),
        ("stall_s", float("nan")),
        ("model", "half a character: \ud800"),
        *(
            (key, f"a{letter}b")
            for key in ("model", "host", "generation", "api_key_file")
            for letter in "\0\n\t\x1b\x9b\u2028"
        ),
        ("runtime_dir", "/run/\0"),
        *(("completion", {"prompt": f"a{letter}", "max_tokens": 8}) for letter in "\0\x07\x1b\x7f\x85"),
        ("drain_s", -1),
        ("drain_s", 1e300),
        ("runtime_dir", "run"),
        ("api_key_file", ""),
        ("completion", "hello"),
        ("completion", {"prompt": "", "max_tokens": 8}),
        ("completion", {"prompt": "p"}),
        ("completion", {"prompt": "p", "max_tokens": 1, "temperature": 0}),
        ("generation", None),
    ],
)
def test_a_wrong_value_is_named(key, value):
    with pytest.raises(settings_file.SettingsError, match=key) as caught:
        settings_file.from_dict({**GOOD, key: value})
    assert str(caught.value).isprintable()


def test_all_problems_come_at_once():
    with pytest.raises(settings_file.SettingsError) as caught:
        settings_file.from_dict({**GOOD, "port": 0, "engine": "x", "extra": 1})
    assert all(word in str(caught.value) for word in ("port", "engine", "extra"))


def test_a_long_value_is_shown_short():
    with pytest.raises(settings_file.SettingsError) as caught:
        settings_file.from_dict({**GOOD, "port": "3" * 100_000})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "1" * 5000, "\0"])
def test_a_file_that_is_no_object(tmp_path, text):
    file = tmp_path / "s.json"
    file.write_text(text)
    with pytest.raises(settings_file.SettingsError, match=r"s\.json"):
        settings_file.load(str(file))


def test_a_file_that_is_not_there():
    with pytest.raises(settings_file.SettingsError, match="/nonexistent: No such file"):
        settings_file.load("/nonexistent")


def test_the_key_file(tmp_path):
    (tmp_path / "key").write_text("secret-1\n")
    assert settings_file.read_key(str(tmp_path / "key"), {}) == "secret-1"
    assert settings_file.read_key("key", {"CREDENTIALS_DIRECTORY": str(tmp_path)}) == "secret-1"
    assert settings_file.read_key(None, {}) is None


@pytest.mark.parametrize("raw", [b"", b"two words", b"two\nlines", "schl\u00fcssel".encode()])
def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(tmp_path, raw):
    (tmp_path / "key").write_bytes(raw)
    with pytest.raises(settings_file.SettingsError) as caught:
        settings_file.read_key(str(tmp_path / "key"), {})
    assert not raw or raw.decode() not in str(caught.value)


# ---- lines


CHUNKS = st.lists(st.sampled_from([b"a", b"bcdefgh", b"\r", b"\n", b"\r\n", b"0123456789" * 3])).map(b"".join)


@given(st.lists(CHUNKS))
def test_lines_do_not_depend_on_how_they_arrive(chunks):
    whole = b"".join(chunks)
    at_once, in_parts = LineSplitter(20), LineSplitter(20)
    lines = [line for chunk in chunks for line in in_parts.feed(chunk)]
    assert lines == at_once.feed(whole)
    assert in_parts.release() == at_once.release()


@given(st.binary(max_size=300))
def test_short_lines_are_not_changed(raw):
    raw = raw.replace(b"\r", b"")
    splitter = LineSplitter(1000)
    assert [*splitter.feed(raw), splitter.held] == raw.split(b"\n")


def test_a_long_line_is_cut_and_says_so():
    splitter = LineSplitter(10)
    assert splitter.feed(b"0123456789abc") == []
    assert len(splitter.held) == 10
    assert splitter.feed(b"de\nnext\n") == [b"01234567 [7 bytes left out]", b"next"]
    assert splitter.feed(b"01234567 9abc\n") == [b"01234567 [5 bytes left out]"]


@pytest.mark.parametrize("length", range(LINE_LIMIT - len(KEY), LINE_LIMIT + 2))
@pytest.mark.parametrize("form", ["x %s y", "api_key='%s'", "{'api_key':'%s'}", '["--api-key", "%s"]', "--api-key=%s"])
def test_a_line_that_is_cut_within_a_secret_shows_no_part_of_it(form, length):
    text = form % KEY
    (line,) = LineSplitter().feed(b"x " * (length // 2) + text.encode() + b" more" * 9999 + b"\n")
    (shown,) = Redactor(KEY).clean_lines([line])
    assert not any(KEY[:end].encode() in shown for end in range(8, len(KEY)))


def test_a_progress_bar_is_what_a_terminal_shows_last():
    splitter = LineSplitter()
    assert splitter.feed(b"\r 1%\r 2%") == []
    assert splitter.held == b" 2%"
    assert splitter.feed(b"\r100%\r\nnext\r\n") == [b"100%", b"next"]


def test_secrets_are_hidden():
    clean = Redactor("k3y").clean
    assert "k3y" not in clean("the k3y is k3y")
    assert "abc123" not in clean("ServerArgs(api_key='abc123', port=1)")
    assert clean("#new-token: 8192, token usage: 0.10") == "#new-token: 8192, token usage: 0.10"


def pumped(*chunks: bytes):
    """Return a pump that has taken ``chunks``, what it passed on, and the phases it told of."""
    source, inlet = os.pipe()
    outlet, target = os.pipe()
    phases: list[str] = []
    pump = LogPump(source, target, Redactor(None), phases.append, pytest.fail)
    pump.start()
    for chunk in chunks:
        os.write(inlet, chunk)
    os.close(inlet)
    pump.join(60)
    assert not pump.is_alive()
    os.close(target)
    with os.fdopen(outlet, "rb") as passed:
        return pump, passed.read(), phases


def test_the_pump_passes_on_and_understands():
    raw = b"Load weight begin.\nnot utf-8: \xff\nPrefill batch, #new-seq: 1\nlast, without an end"
    pump, passed, phases = pumped(raw)
    assert passed == raw + b"\n"
    assert phases == ["loading weights"]
    assert time.monotonic() - pump.last_batch < 60
    assert list(pump.lines)[-1] == "last, without an end"
    json.dumps(list(pump.lines)).encode()


def test_answers_to_probes_are_no_progress():
    pump, _, _ = pumped(b'INFO:     127.0.0.1:0 - "GET /health HTTP/1.1" 503 Service Unavailable\n' * 10)
    assert pump.progress_bytes == 0
    pump, _, _ = pumped(b"\rLoading 1/4\rLoading 2/4")
    assert pump.progress_bytes > 0, "a progress bar has no line end for minutes"


def test_troubles_of_a_start_do_not_explain_a_later_failure():
    pump, _, _ = pumped(b"torch.OutOfMemoryError: CUDA out of memory.\n")
    assert explain(Failure("engine-ended", "x"), pump.matches).cause == "cuda-out-of-memory"
    pump.begin_serving()
    assert explain(Failure("engine-ended", "x"), pump.matches).cause == "engine-ended"


def test_a_warning_explains_no_failure():
    warning = next(row for row in signatures.SIGNATURES if row.level == "warning" and row.role == "cause")
    match = signatures.Match(warning, "line", 1)
    assert signatures.root_cause([match]) is match
    assert explain(Failure("engine-ended", "x"), [match]).cause == "engine-ended"


def test_every_failure_says_what_to_do():
    assert all(FIXES.values())
    failure = stalled(COMMUNICATION, "no progress")
    assert failure.cause == "nccl-init-stalled"
    assert "NCCL_P2P_DISABLE" in failure.fix
    assert COMMUNICATION in signatures.PHASE_NAMES


# ---- lines of an engine that serves

FIXTURES = Path(__file__).parent / "fixtures" / "reports"
SERVING = [
    line.encode()
    for line in (FIXTURES / "healthy_sglang_0.5.16_start_serve_stop.log").read_text().splitlines()
    if " batch, #" in line or '"POST' in line
]


@contextlib.contextmanager
def serving_pump():
    """Give a pump of a serving engine, its pipe, and a socket that keeps its writes apart."""
    source, inlet = os.pipe()
    target, journal = socket.socketpair(type=socket.SOCK_SEQPACKET)
    pump = LogPump(source, target.fileno(), Redactor(KEY), lambda _: None, pytest.fail)
    pump.begin_serving()
    pump.start()
    journal.settimeout(60)
    yield pump, inlet, journal
    with contextlib.suppress(OSError):
        os.close(inlet)
    pump.finish(60)
    assert not pump.is_alive()
    os.close(source)
    target.close()
    journal.close()


@pytest.fixture
def serving():
    with serving_pump() as made:
        yield made


def test_lines_of_a_serving_engine_gather_for_no_longer_than_said(serving, monkeypatch):
    assert log.GATHER_S <= 0.1
    monkeypatch.setattr(log, "GATHER_S", 3)  # for a machine that is slow to write ten lines
    _, inlet, journal = serving
    os.write(inlet, b"first\n")
    assert journal.recv(1000) == b"first\n", "a line after a silence waits for nothing"
    began = time.monotonic()
    for number in range(10):
        os.write(inlet, b"line %d\n" % number)
        time.sleep(0.002)
    assert journal.recv(1000) == b"".join(b"line %d\n" % number for number in range(10))
    assert time.monotonic() - began < 30


def test_while_lines_gather_the_engine_is_not_stopped(serving, monkeypatch):
    pump, inlet, journal = serving
    monkeypatch.setattr(log, "GATHER_S", 60)
    os.write(inlet, b"first\n")
    journal.recv(1000)
    time.sleep(0.1)
    os.set_blocking(inlet, False)
    written = sum(os.write(inlet, SERVING[0] + b"\n") for _ in range(1_000_000 // len(SERVING[0])))
    assert written > 900_000

    def read_all() -> None:
        with contextlib.suppress(OSError):
            while journal.recv(1 << 20):
                pass

    threading.Thread(target=read_all, daemon=True).start()
    os.close(inlet)
    began = time.monotonic()
    pump.finish(50)
    assert time.monotonic() - began < 30


def test_a_reader_that_fails_says_so(monkeypatch):
    def broken(_: bytes) -> bool:
        raise ValueError("broken")

    monkeypatch.setattr(signatures, "may_match", broken)
    source, inlet = os.pipe()
    crashes: list[Exception] = []
    pump = LogPump(source, inlet, Redactor(None), lambda _: None, crashes.append)
    os.write(inlet, b"line\n")
    pump.run()
    assert Crashed.of("reader of the log", *crashes) == Crashed("reader of the log", "ValueError: broken")
    os.close(source)
    os.close(inlet)


def test_where_the_pipe_stays_small_nothing_gathers(monkeypatch):
    monkeypatch.setattr(log, "PIPE_BYTES", 1 << 40)
    monkeypatch.setattr(log, "GATHER_S", 60)
    with serving_pump() as (_, inlet, journal):
        for line in (b"first\n", b"second\n"):
            os.write(inlet, line)
            assert journal.recv(1000) == line


@pytest.mark.parametrize("how", ["settle", "finish"])
def test_the_reason_of_a_failure_does_not_gather(serving, monkeypatch, how):
    pump, inlet, journal = serving
    monkeypatch.setattr(log, "GATHER_S", 60)
    os.write(inlet, b"first\n")
    journal.recv(1000)
    os.write(inlet, b"torch.OutOfMemoryError: CUDA out of memory.\n")
    began = time.monotonic()
    if how == "settle":
        pump.settle(quiet_s=0.2, at_most_s=50)
    else:
        os.close(inlet)
        pump.finish(50)
    assert time.monotonic() - began < 30
    assert explain(Failure("engine-ended", "x"), pump.matches).cause == "cuda-out-of-memory"
    assert pump.lines[-1] == "torch.OutOfMemoryError: CUDA out of memory."


def test_what_is_still_in_the_pipe_is_waited_for(serving, monkeypatch):
    pump, inlet, journal = serving
    monkeypatch.setattr(pump._at_once, "wait", lambda _: time.sleep(0.5))  # as if the thread got no CPU time
    os.write(inlet, b"first\n")
    journal.recv(1000)
    os.write(inlet, b"torch.OutOfMemoryError: CUDA out of memory.\n")
    pump.last_output = 0.0
    pump.settle(quiet_s=0.2, at_most_s=50)
    assert explain(Failure("engine-ended", "x"), pump.matches).cause == "cuda-out-of-memory"


def one_by_one(raw: bytes):
    """Return what is passed on, matched and kept when each line is searched by itself, in full."""
    scanner, texts = signatures.Scanner(), []
    for line in raw.removesuffix(b"\n").split(b"\n"):
        text = Redactor(KEY).clean(line.decode(errors="surrogateescape"))
        scanner.feed(text)
        texts.append(text.encode(errors="surrogateescape"))
    return b"\n".join(texts) + b"\n", scanner.matches, [line.decode(errors="replace") for line in texts[-50:]]


SAID = [
    *SERVING,
    KEY.encode() + b" is it",
    b"server_args=ServerArgs(api_key='abc123', port=1)",
    b"--api-key sk-0123456789abcdef",
    b"torch.OutOfMemoryError: CUDA out of memory.",
    b"\x1b[31mOSError: [Errno 98] Address already in use\x1b[0m",
    b"not utf-8: \xff\xfe",
    "\u6d4b\u8bd5 No space left on device".encode(),
    b"",
]


@given(st.lists(st.sampled_from(SAID), min_size=1, max_size=120), st.lists(st.integers(1, 400), min_size=1))
@settings(deadline=None, max_examples=100)
def test_many_lines_at_once_are_understood_as_one_by_one(lines, sizes):
    raw = b"\n".join(lines) + b"\n"
    outlet, target = os.pipe()
    pump = LogPump(outlet, target, Redactor(KEY), lambda _: None, pytest.fail)
    pump.begin_serving()
    sent = io.BytesIO(raw)
    for size in itertools.cycle(sizes):
        if not (chunk := sent.read(size)):
            break
        pump.take(chunk)
    os.close(target)
    with os.fdopen(outlet, "rb") as passed:
        assert (passed.read(), pump.matches, pump.lines) == one_by_one(raw)


def test_a_serving_engines_lines_cost_little():
    """Measured: 3 us a line on a core that other work shared; the bound is for slow machines."""
    raw = b"\n".join(SERVING * (20_000 // len(SERVING))) + b"\n"
    source, inlet = os.pipe()
    threading.Thread(target=lambda: (os.write(inlet, raw), os.close(inlet)), daemon=True).start()
    with Path("/dev/null").open("wb") as nothing:
        pump = LogPump(source, nothing.fileno(), Redactor(KEY), lambda _: None, pytest.fail)
        pump.begin_serving()
        began = time.thread_time()
        pump.run()
        spent = time.thread_time() - began
    os.close(source)
    assert spent / raw.count(b"\n") < 20e-6
    assert time.monotonic() - pump.last_batch < 60


# ---- HTTP


def serve_once(*parts: bytes, pause: float = 0.0) -> Server:
    """Answer one connection with ``parts``, then close it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        channel, _ = listener.accept()
        with channel, listener:
            channel.recv(65536)
            for part in parts:
                try:
                    channel.sendall(part)
                except OSError:
                    return
                time.sleep(pause)

    threading.Thread(target=answer, daemon=True).start()
    return Server("127.0.0.1", listener.getsockname()[1], key="k")


def completion(text: str = "Paris", tokens: object = 1) -> bytes:
    return json.dumps({"choices": [{"text": text}], "usage": {"completion_tokens": tokens}}).encode()


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def test_the_forms_of_an_answer():
    body = completion()
    sized = HEAD + b"content-length: %d\r\n\r\n" % len(body)
    chunked = HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n" + body[:5] + b"\r\n%x;x=y\r\n" % len(body[5:])
    for parts in (
        [sized + body],
        [sized, body[:4], body[4:]],
        [HEAD + b"\r\n" + body],
        [chunked + body[5:] + b"\r\n0\r\n\r\n"],
    ):
        assert serve_once(*parts).generate("m", "p", 1, 60).text == "Paris"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        HEAD,
        HEAD + b"Content-Length: 100\r\n\r\nshort",
    ],
)
def test_what_is_no_answer(raw):
    with pytest.raises(NoAnswerError):
        serve_once(raw).request("GET", "/health", timeout_s=60)


def test_nobody_answers():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(NoAnswerError, match="refused"):
            Server("127.0.0.1", unused.getsockname()[1]).request("GET", "/", timeout_s=60)


def test_a_trickle_does_not_stretch_the_timeout():
    server, began = serve_once(*[b"x"] * 1000, pause=0.1), time.monotonic()
    with pytest.raises(NoAnswerError):
        server.request("GET", "/", timeout_s=0.5)
    assert time.monotonic() - began < 30


def test_an_endless_answer_is_cut():
    page = serve_once(HEAD + b"\r\n", *[b"x" * 65536] * 64).request("GET", "/metrics", timeout_s=60)
    assert BODY_LIMIT <= len(page.body) < BODY_LIMIT + 65536


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"not json",
        b'{"choices": []}',
        completion(tokens=0),
        completion(tokens=None),
        completion(tokens="8"),
        b"[" * 60000,
    ],
)
def test_what_is_no_generation(body):
    with pytest.raises(NoGenerationError):
        serve_once(HEAD + b"\r\n" + body).generate("m", "p", 1, 60)


def test_the_key_is_not_in_the_representation():
    assert "secret" not in repr(Server("h", 1, key="secret"))


# ---- /proc


def test_a_tree_is_what_lies_below():
    rows = [(1, 0), (10, 1), (11, 10), (12, 11), (13, 1), (10_000, 12)]
    table = {pid: Process(pid, parent, "S", 0, 0, 0) for pid, parent in rows}
    assert set(proc.descendants(10, table)) == {11, 12, 10_000}


def test_names_with_parentheses_do_not_shift_the_fields(tmp_path):
    (tmp_path / "7").mkdir()
    numbers = " ".join(str(number) for number in range(4, 53))
    (tmp_path / "7" / "stat").write_text(f"7 (a) b) R (c) S {numbers}\n")
    (tmp_path / "self").mkdir()
    found = proc.processes(str(tmp_path))[7]
    assert (found.parent, found.state, found.cpu_ticks, found.started, found.resident_pages) == (
        4,
        "S",
        14 + 15,
        22,
        24,
    )


@pytest.mark.parametrize(
    ("title", "passes"),
    [
        ("/v/bin/python -c from multiprocessing.resource_tracker import main;main(12)", True),
        ("/v/bin/python -m torch/_inductor/compile_worker/__main__.py --workers=8", True),
        ("/v/bin/python3.12 /v/bin/ninja -v -C /cache", True),
        ("/usr/local/cuda/bin/nvcc --generate-dependencies-with-compile -c x.cu", True),
        ("sh -c -- /usr/local/cuda/nvvm/bin/cicc --c++17", True),
        ("/usr/bin/gcc -O3 -shared -fPIC main.c", True),
        ("/usr/lib/gcc/x86_64-linux-gnu/13/cc1 -quiet main.c", True),
        ("sglang::scheduler_TP0", False),
        ("VLLM::EngineCore", False),
        ("/v/bin/python /v/bin/vllm serve /models/nvcc-coder --served-model-name ninja", False),
        ("python3 -m sglang.launch_server --model-path /models/ninja", False),
        ("", False),
    ],
)
def test_processes_that_come_and_go_are_known_by_their_program(title, passes):
    assert proc.passing({7: Process(7, 1, "S", 0, 0, 0)}, {7: title}) == ({7} if passes else set())


def test_what_a_compiler_starts_comes_and_goes_with_it():
    rows = [(2, 1), (3, 2), (4, 3), (5, 4), (6, 2), (7, 6)]
    table = {pid: Process(pid, parent, "S", 0, 0, 0) for pid, parent in rows}
    forkserver = "python -c from multiprocessing.forkserver import main; main(5)"
    titles = {
        2: "vllm",
        3: "ninja -v",
        4: "/bin/sh -c cd /cache && whatever x",
        5: "whatever x",
        6: forkserver,
        7: "worker",
    }
    assert proc.passing(table, titles) == {3, 4, 5, 6}


def test_kill_takes_only_the_process_that_was_meant():
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        seen = proc.process(sleeper.pid)
        proc.kill(Process(seen.pid, seen.parent, "S", 0, seen.started + 1, 0))
        assert sleeper.poll() is None
        proc.kill(seen)
        assert sleeper.wait(60) == -9
    proc.kill(seen)
    for pid in (0, 1, os.getpid()):
        proc.kill(Process(pid, 0, "S", 0, proc.process(os.getpid()).started, 0))


def test_listeners_by_address(tmp_path):
    (tmp_path / "net").mkdir()
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   0: {} 00000000:0000 {} 00000000:00000000 00:00000000 00000000  1000        0 {} 1 0 100 0 0 10 0\n"
    loopback, other = ("7F000001" if sys.byteorder == "big" else "0100007F"), "0A00000A"
    (tmp_path / "net" / "tcp").write_text(
        head
        + row.format(f"{loopback}:7530", "0A", 11)
        + row.format(f"{other}:7530", "0A", 12)
        + row.format(f"{loopback}:7530", "01", 13)
        + row.format(f"{loopback}:7531", "0A", 14)
    )
    (tmp_path / "net" / "tcp6").write_text(head + row.format("0" * 32 + ":7530", "0A", 15))
    found = proc.listeners("127.0.0.1", 0x7530, str(tmp_path))
    assert [(entry.address, entry.inode, entry.uid) for entry in found] == [
        ("127.0.0.1", "11", 1000),
        ("::", "15", 1000),
    ]
    assert len(proc.listeners("0.0.0.0", 0x7530, str(tmp_path))) == 3


@pytest.mark.parametrize("host", ["no-such-name.invalid", f"{'a' * 64}.invalid", "a..b"])
def test_a_name_that_stands_for_no_address_is_an_error_of_the_address(host):
    assert isinstance(proc.bind_error(host, 1), OSError)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert len(proc.listeners(host, server.getsockname()[1])) == 1


def test_a_listener_and_its_holder():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = proc.listeners("127.0.0.1", port)
        assert proc.holders([found.inode], [os.getpid()]) == {found.inode: os.getpid()}
        assert proc.holders([found.inode], []) == {}
        assert f"pid {os.getpid()}" in proc.describe_holder(found)
        assert "Address already in use" in str(proc.bind_error("127.0.0.1", port))
    assert proc.bind_error("127.0.0.1", port) is None
    assert proc.bind_error("192.0.2.1", port), "an address of no interface here"
    assert proc.bind_error("no.such.host.invalid", port)


def test_a_holder_that_cannot_be_seen_is_at_least_whose_it_is(tmp_path):
    assert proc.describe_holder(proc.Listener("::", "999", 0), str(tmp_path)) == "a process of user root"


def test_work_is_counted():
    tree = {os.getpid(): proc.process(os.getpid())}
    before = proc.work(tree)
    Path("/proc/self/stat").read_bytes()
    after = proc.work({os.getpid(): proc.process(os.getpid())})
    assert after.io > before.io > 0
    assert after.resident_pages > 0
    assert after.pids == {os.getpid()}


@pytest.mark.parametrize(
    ("group", "events", "expected"),
    [
        ("4:memory:/x\n0::/system.slice/a.service\n", "low 0\noom 3\noom_kill 2\noom_group_kill 0\n", 2),
        ("4:memory:/x\n0::/system.slice/a.service\n", "low 0\n", None),
        ("4:memory:/x\n0::/elsewhere\n", "oom_kill 2\n", None),
        ("4:memory:/x\n", "oom_kill 2\n", None),
    ],
    ids=["counted", "no count", "no such group", "no version 2"],
)
def test_the_kernels_count_of_kills_for_want_of_memory(tmp_path, group, events, expected):
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(group)
    (tmp_path / "groups" / "system.slice" / "a.service").mkdir(parents=True)
    (tmp_path / "groups" / "system.slice" / "a.service" / "memory.events").write_text(events)
    assert proc.oom_kills(str(tmp_path), str(tmp_path / "groups")) == expected


@pytest.mark.parametrize(("now", "cause"), [(3, "host-out-of-memory"), (2, "worker-died"), (None, "worker-died")])
def test_a_worker_that_the_kernel_killed_for_want_of_memory_is_known_as_such(monkeypatch, now, cause):
    monkeypatch.setattr(proc, "oom_kills", lambda: now)
    supervisor = Supervisor.__new__(Supervisor)
    supervisor._kills_before = 2
    failure = supervisor._killed_or("worker-died", "a process of the engine ended: x")
    assert failure.cause == cause
    echo = signatures.scan(["torch.OutOfMemoryError: CUDA out of memory"])
    assert explain(failure, echo).cause == (cause if now == 3 else "cuda-out-of-memory")


# ---- what ends while the main loop is busy


@pytest.fixture
def serving_supervisor(request, tmp_path, monkeypatch):
    """Yield a supervisor that serves, its inbox and two processes that it watches: the main one and an orphan."""
    settings = settings_file.from_dict({**GOOD, "runtime_dir": str(tmp_path)})
    inbox = Inbox()
    command = getattr(request, "param", ["sleep", "60"])
    engine, orphan = Engine(command, dict(os.environ)), subprocess.Popen(["sleep", "60"])
    pids = {"main": engine.pid, "orphan": orphan.pid}
    monkeypatch.setattr(Engine, "tree", lambda *_: {pid: proc.processes()[pid] for pid in pids.values()})
    supervisor = Supervisor(settings, voice.Voice(Record(settings, [], {}), Notifier({}), {}), inbox, engine, None)
    supervisor._start = None
    engine.watch_workers(supervisor._poll)
    yield supervisor, inbox, pids
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.mark.parametrize(("victim", "cause"), [("main", "engine-ended"), ("orphan", "worker-died")])
def test_a_kill_just_before_a_stop_is_seen_wherever_the_loop_is(serving_supervisor, monkeypatch, victim, cause):
    supervisor, inbox, pids = serving_supervisor
    reap = proc.reap

    def reap_after_the_kill(keep):
        monkeypatch.undo()
        os.kill(pids[victim], signal.SIGKILL)
        os.waitid(os.P_PID, pids[victim], os.WEXITED | os.WNOWAIT)
        inbox._signals.append(signal.SIGTERM)
        inbox.put(Begun("serving"))  # wakes the loop, as a signal does
        reap(keep)

    monkeypatch.setattr(proc, "reap", reap_after_the_kill)
    inbox.put(Begun("serving"))
    assert supervisor._step() is False
    with pytest.raises(Failure) as failure:
        supervisor._step()
    assert failure.value.cause == cause
    assert "SIGKILL" in failure.value.event


LEADER_EXITS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall(60, 0)  # exit(2): of this thread alone
"""


@pytest.mark.parametrize("serving_supervisor", [[sys.executable, "-S", "-c", LEADER_EXITS]], indirect=True)
def test_what_is_dying_is_waited_for_before_a_stop_counts(serving_supervisor, monkeypatch):
    supervisor, inbox, pids = serving_supervisor
    deadline = time.monotonic() + 60
    while not proc.dying(pids["main"]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not proc.dying(pids["orphan"])
    for _ in range(2):
        inbox._signals.append(signal.SIGTERM)
        inbox.put(Begun("serving"))
        assert supervisor._step() is False
        assert supervisor._kill_at is None
    os.kill(pids["main"], signal.SIGKILL)
    with pytest.raises(Failure, match="SIGKILL") as failure:
        supervisor._step()
    assert failure.value.cause == "engine-ended"


@pytest.mark.parametrize("serving_supervisor", [[sys.executable, "-S", "-c", LEADER_EXITS]], indirect=True)
def test_what_does_not_come_to_die_hinders_no_stop(serving_supervisor, monkeypatch):
    supervisor, inbox, pids = serving_supervisor
    monkeypatch.setattr(proc, "dying", lambda pid: pid == pids["main"])
    monkeypatch.setattr("inference.supervisor.KILL_S", 0.05)
    inbox._signals.append(signal.SIGTERM)
    deadline = time.monotonic() + 60
    while supervisor._kill_at is None and time.monotonic() < deadline:
        inbox.put(Begun("serving"))
        assert supervisor._step() is False
    assert supervisor._kill_at is not None


# ---- conclusions

HZ = os.sysconf("SC_CLK_TCK")


def start_watch() -> StartWatch:
    return StartWatch(stall_s=10, cpu_only_s=30, first=Look(0, Work(), 0, "starting"))


@pytest.mark.parametrize(
    "grows",
    [
        lambda t: Look(t, Work(), t, "starting"),
        lambda t: Look(t, Work(io=t * (2 << 20)), 0, "starting"),
        lambda t: Look(t, Work(resident_pages=t * 1024), 0, "starting"),
        lambda t: Look(t, Work(pids=frozenset({t})), 0, "starting"),
        lambda t: Look(t, Work(), 0, f"phase {t}"),
    ],
    ids=["output", "data", "memory", "processes", "phases"],
)
def test_what_counts_as_progress_for_as_long_as_it_lasts(grows):
    watch = start_watch()
    for second in range(1, 200):
        assert watch.look(grows(second))
        assert watch.stalled(second) is None


@pytest.mark.parametrize(
    ("phase", "limit"), [("compiling kernels", 30), (COMMUNICATION, 10)], ids=["compiling", "waiting for a peer"]
)
def test_cpu_time_alone_counts_for_a_while(phase, limit):
    watch = start_watch()
    watch.look(Look(1, Work(), 0, phase))
    for second in range(2, limit + 1):
        assert watch.look(Look(second, Work(cpu_ticks=second * HZ), 0, phase))
        assert watch.stalled(second) is None
    late = limit + 1
    assert not watch.look(Look(late, Work(cpu_ticks=late * HZ), 0, phase))
    assert "nothing but CPU time" in watch.stalled(late)


def test_a_little_of_everything_is_no_progress():
    watch = start_watch()
    for second in range(1, 10):
        assert not watch.look(Look(second, Work(cpu_ticks=second * HZ // 20, io=second * 5000), 0, "starting"))
        assert watch.stalled(second) is None
    assert "no progress for 10 s" in watch.stalled(10)


def test_liveness_needs_several_failures_in_a_row():
    alive = Liveness(3, 8, now=0)
    assert not alive.failed_probe(8, None, float("-inf"))
    assert not alive.failed_probe(16, None, float("-inf"))
    alive.succeeded(20)
    assert alive.failed == 0
    assert [alive.failed_probe(at, None, float("-inf")) for at in (28, 36, 44)] == [False, False, True]


def test_liveness_believes_counters_and_batches():
    alive = Liveness(3, 8, now=0)
    assert not any(alive.failed_probe(8 * n, b"tokens %d" % n, float("-inf")) for n in range(1, 20))
    frozen = [alive.failed_probe(8 * n, b"tokens 19", float("-inf")) for n in range(20, 23)]
    assert frozen == [False, True, True], "counters that stand still are no evidence"
    alive = Liveness(3, 8, now=0)
    assert not any(alive.failed_probe(8 * n, None, 8 * n - 3) for n in range(1, 20))
    assert alive.failed_probe(8 * 22, None, 8 * 19)


def test_instant_failures_are_not_a_freeze_at_once():
    alive = Liveness(3, 8, now=0)
    assert not any(alive.failed_probe(at, None, float("-inf")) for at in (1, 2, 3, 4, 5))


# ---- telling


def test_a_notifier_takes_its_variables_away(tmp_path):
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1", "HOME": "/"}
    notifier = Notifier(environ)
    assert environ == {"HOME": "/"}
    assert notifier.watchdog_s == 30
    assert Notifier({}).watchdog_s is None
    assert not Notifier({}).active
    Notifier({}).send(READY=1)
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).send(READY=1)


@pytest.mark.parametrize("abstract", [False, True])
def test_a_status_is_one_line(tmp_path, abstract):
    name = f"@supervisor-test-{os.getpid()}" if abstract else str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + name[1:] if abstract else name)
        systemd.settimeout(60)
        Notifier({"NOTIFY_SOCKET": name}).send(status="a\nREADY=1 " + "\u00fc" * 1000, WATCHDOG=1)
        raw = systemd.recv(65536)
    assert raw.startswith(b"WATCHDOG=1\nSTATUS=a READY=1 ")
    assert len(raw) < STATUS_LIMIT + 30
    raw.decode()


@pytest.fixture
def busy_systemd(tmp_path, monkeypatch):
    """Return a notifier to a systemd that takes no more messages, and what empties its queue and returns the last."""
    monkeypatch.setattr(notify, "TIMEOUT_S", 0.05)
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, contextlib.ExitStack() as senders:
        systemd.bind(path)
        systemd.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sender = senders.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
                sender.setblocking(False)
                sender.sendto(b"X=1", path)

        def read_all() -> list[str]:
            found = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    found.append(systemd.recv(65536).decode())
            return found

        yield Notifier({"NOTIFY_SOCKET": path}), read_all


@pytest.mark.parametrize("once", [{"READY": 1}, {"STOPPING": 1}, {"WATCHDOG": "trigger"}], ids=str)
def test_what_is_said_only_once_arrives_later_where_systemd_took_nothing(busy_systemd, once):
    notifier, read_all = busy_systemd
    notifier.send(**once, status="once")
    assert set(read_all()) == {"X=1"}, "systemd was not busy"
    notifier.send(WATCHDOG=1, status="later")
    ((name, value),) = once.items()
    (later,) = read_all()
    assert f"{name}={value}" in later.splitlines() and "STATUS=later" in later
    assert later.count("WATCHDOG=") == 1
    notifier.send(WATCHDOG=1)
    assert read_all() == ["WATCHDOG=1"]


def test_what_is_said_again_anyway_is_not_kept(busy_systemd):
    notifier, read_all = busy_systemd
    notifier.send(WATCHDOG=1, EXTEND_TIMEOUT_USEC=5)
    read_all()
    notifier.send(status="\ud800 is no character")
    assert read_all() == ["STATUS=? is no character"]


def test_a_level_is_written_to_the_journal_only(tmp_path):
    source, target = os.pipe()
    with os.fdopen(source), os.fdopen(target, "wb") as pipe, (tmp_path / "file").open("wb") as file:
        found = os.fstat(target)
        stream = f"{found.st_dev}:{found.st_ino}"
        assert voice._is_journal(pipe.fileno(), stream)
        assert not voice._is_journal(file.fileno(), stream)
        assert not voice._is_journal(pipe.fileno(), "")


def test_what_the_supervisor_says_is_one_line(capfd):
    voice.Voice(None, Notifier({}), {}).say("HTTP 500: {\n  <3>x\n}", level=3)
    assert capfd.readouterr().err == "supervisor: HTTP 500: { <3>x }\n"


def test_the_release_is_read_from_the_command():
    assert release_of(["/opt/inference/releases/sglang-0.5.23-ab12/venv/bin/python", "-m", "x"]) == "sglang-0.5.23-ab12"
    assert release_of(["python3", "-m", "x"]) is None


def test_files_are_replaced_whole(tmp_path):
    target = tmp_path / "state.json"
    write_json(str(target), {"a": 1})
    before = target.stat().st_ino
    write_json(str(target), {"a": 2})
    assert json.loads(target.read_text()) == {"a": 2}
    assert target.stat().st_ino != before
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
