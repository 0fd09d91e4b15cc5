# SPDX-License-Identifier: Apache-2.0
"""Whole engines compared: what is tried and refused, how engines are run and left, and what figures decide."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from free_ports import free_port

from inference.findings import Report
from inference.tune import Record, Result, Row, Shape
from inference.tune.ab import Session
from inference.tune.comparison import (
    ORDER,
    ComparisonError,
    EngineRun,
    Expectation,
    compare,
    findings,
    recommend,
    text,
)
from inference.tune.engines import Engines, judge
from inference.tune.trials import Base, Trial, TrialError, chosen, known, peer_access_proved, refused

ROOT = Path(__file__).parent.parent
ENGINE = Path(__file__).parent / "stand_in_engine.py"
RECORDED = ROOT / "bench" / "results" / "tune"

BASE = {
    "engine": "sglang",
    "version": "0.5.23",
    "python": "/opt/python",
    "nccl_version": "2.28.9",
    "model": {"name": "m", "path": "/m"},
    "instance": {"port": 30099, "tensor_parallel_size": 8},
}


def base(**other):
    return Base.from_dict({**BASE, **other})


def runs(a, b, metric="single.decode_tok_s"):
    """Return runs in the order of measuring, from the figures of each side."""
    left = {"A": list(a), "B": list(b)}
    return [EngineRun(side, {metric: left[side].pop(0)}) for side in ORDER]


# what is tried


def test_the_nccl_profiles_are_those_of_the_service_and_no_second_list():
    names = {trial.nccl_profile for trial in known("sglang").values() if trial.nccl_profile}
    assert names == {"latency", "balanced", "throughput", "none"}
    assert base().nccl_environment(Trial("x", nccl_profile="balanced"))["NCCL_ALGO"] == "Ring"
    assert not [trial for trial in known("vllm").values() if trial.arguments]


def test_a_trial_is_the_command_line_of_the_service_with_one_difference():
    plain, other = base().command(None), base().command(Trial("x", {"num-continuous-decode-steps": 1}))
    changed = [(one, two) for one, two in zip(plain, other, strict=True) if one != two]
    assert changed == [("4", "1")]
    assert base().environment(Trial("x", environment={"A": "1"}, nccl_profile="none")) == {"A": "1"}


@pytest.mark.parametrize(
    ("trial", "version", "words"),
    [
        (Trial("x", {"attention-backend": "trtllm_mla"}), "0.5.23", "trtllm-mla-sm120"),
        (Trial("x", {"no-such-option": 1}), "0.5.23", "argument-unknown"),
        (Trial("x", {"enable-mscclpp": True}), "0.5.23", "mscclpp-package"),
    ],
)
def test_what_a_lint_calls_critical_is_refused_without_a_run(trial, version, words):
    found = refused(base(version=version), trial)
    assert any(words in finding.id for finding in found), [f.id for f in found]


def test_what_nccl_itself_would_refuse_is_refused():
    instance = {**BASE["instance"], "nccl_environment": {"NCCL_PROTO": "LL,NOPE"}}
    assert refused(base(instance=instance), Trial("x", nccl_profile="none"))
    assert not refused(base(), Trial("x", {"attention-backend": "triton"}))


def instance(**other):
    return {**BASE, "instance": {**BASE["instance"], **other}}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({}, "expected engine"),
        ([], "expected engine"),
        ({**BASE, "engine": "other"}, "engine is 'other'"),
        ({**BASE, "engine": ["sglang"]}, "engine is"),
        ({**BASE, "version": None}, "version is None"),
        ({**BASE, "scope": "sm90"}, "scope is 'sm90'"),
        ({**BASE, "nccl_version": 2}, "nccl_version is 2"),
        ({**BASE, "model": {"name": "m"}}, "model's path is None"),
        ({**BASE, "model": []}, "model is"),
        ({**BASE, "instance": {}}, "port is None"),
        ({**BASE, "instance": []}, "instance is"),
        (instance(port=True), "port is True"),
        (instance(port=70000), "port is 70000"),
        (instance(tensor_parallel_size="x"), "tensor_parallel_size is 'x'"),
        (instance(nccl_profile=1), "nccl_profile is 1"),
        (instance(arguments="x"), "arguments is 'x'"),
        (instance(environment=["A=1"]), "environment is"),
    ],
)
def test_what_is_no_base_is_refused_with_what_is_wrong(document, words):
    with pytest.raises(TrialError, match=re.escape(words)):
        Base.from_dict(document)


@pytest.mark.parametrize(
    "own", [5, {"name": "x"}, ["x"], [{}], [{"name": ""}], [{"name": "../x"}], [{"name": "x", "arguments": []}],
            [{"name": "x", "nccl_profile": 5}]],
)  # fmt: skip
def test_what_is_no_list_of_trials_is_refused(own):
    with pytest.raises(TrialError, match="expected"):
        chosen("sglang", [], own)
    assert chosen("sglang", [], [{"name": "x", "arguments": None}]) == [Trial("x")]


def test_unknown_and_doubled_trials_are_refused_with_the_nearest_name():
    with pytest.raises(TrialError, match="did you mean 'nccl-none'"):
        chosen("sglang", ["nccl-nope"])
    with pytest.raises(TrialError, match="two trials"):
        chosen("sglang", ["mscclpp"], [{"name": "mscclpp"}])
    with pytest.raises(TrialError, match="expected an object with name"):
        chosen("sglang", [], [{"title": "x"}])


def test_peer_access_is_proved_by_values_that_were_right_over_it():
    with_it = json.loads((RECORDED / "h200x2" / "p2p-on-1.json").read_text())
    without = json.loads((RECORDED / "h200x2" / "p2p-off-1.json").read_text())
    assert peer_access_proved(with_it)
    assert not peer_access_proved(without)
    assert not peer_access_proved(None)
    with_it["outcomes"][0]["verdict"] = "wrong-data"
    assert not peer_access_proved(with_it)


# the decision


@pytest.mark.parametrize(
    ("a", "b", "status"),
    [
        ((100, 101), (120, 121), "wins"),
        ((100, 101), (90, 91), "loses"),
        ((100, 101), (101, 102), "within-noise"),
        ((100, 140), (135, 136), "within-noise"),  # the starts of A differ by more than the gain
    ],
)
def test_a_gain_has_to_be_beyond_what_starts_differ_by(a, b, status):
    outcome = compare("x", runs(a, b))
    assert outcome.status == status, outcome
    assert recommend([outcome]) == ("x" if status == "wins" else None)


def test_times_and_rates_point_the_same_way():
    faster = compare("x", runs((2.0, 2.0), (1.0, 1.0), "prefill.6000.ttft_s"))
    assert faster.status == "wins"
    assert faster.changes[0].ratio == 0.5
    assert compare("x", runs((1.0, 1.0), (2.0, 2.0), "single.decode_tok_s")).changes[0].ratio == 0.5


def test_better_decode_for_worse_prefill_is_a_trade_and_never_taken():
    left = [
        ({"single.decode_tok_s": 120, "prefill.6000.ttft_s": 0.7}),
        ({"single.decode_tok_s": 100, "prefill.6000.ttft_s": 0.3}),
    ]
    outcome = compare("x", [EngineRun(side, left[side == "A"]) for side in ORDER])
    assert outcome.status == "trade"
    assert recommend([outcome]) is None
    assert next(findings([outcome])).id == "tune-trial-trade"


def test_wrong_answers_are_out_however_fast():
    wrong = [EngineRun("B", {"single.decode_tok_s": 1e6}, wrong="degenerate: garbage")]
    outcome = compare("x", wrong)
    assert outcome.status == "wrong"
    assert recommend([outcome]) is None
    assert next(findings([outcome])).level == "warning"


def test_a_base_that_fails_is_no_base():
    outcome = compare("x", [EngineRun("B", {"m": 1.0}), EngineRun("A", failed="it ended with 1")])
    assert (outcome.status, outcome.reason) == ("no-base", "it ended with 1")
    assert [(one.id, one.level) for one in findings([outcome])] == [("tune-no-base", "critical")]
    assert recommend([outcome]) is None
    with pytest.raises(ComparisonError, match="no figure in common"):
        compare("x", [EngineRun("B", {"m": 1.0}), EngineRun("A", {"n": 1.0})])


def test_what_all_reduces_alone_would_give_stands_beside_what_was_seen():
    """As seen on two H200 without peer access: decode alike, prefill of LL far slower."""
    rows = {
        "none": (Row("decode", 1, 10_240, ((18.4,),)), Row("prefill", 8192, 83_886_080, ((3000.0,),))),
        "latency": (Row("decode", 1, 10_240, ((17.7,),)), Row("prefill", 8192, 83_886_080, ((9500.0,),))),
    }
    one, other = (Result(name, {}, "healthy", "", rows[name]) for name in ("none", "latency"))
    expectation = Expectation(Shape(5120, 40), one, other)
    assert expectation.ratio("single.decode_tok_s", 178.0) == pytest.approx(1 - 0.7 * 80 / (1e6 / 178.0))
    # 6000 of 8192 tokens: 80 calls that take 6500 us x 6000/8192 longer, of 0.315 s
    assert expectation.ratio("prefill.6000.ttft_s", 0.315) == pytest.approx(1 + 80 * 6500e-6 * 6000 / 8192 / 0.315)
    assert expectation.ratio("concurrent.tok_s", 2000.0) is None
    outcome = compare("latency", runs((0.315, 0.315), (0.754, 0.754), "prefill.6000.ttft_s"), expectation)
    assert "expected +120" in text([outcome])
    assert "+139" in text([outcome])


# what a smoke test's report means


def report(*findings, metrics=None):
    return {"findings": list(findings), "gate": {"metrics": metrics or {}}}


NAN = {"id": "nan-logprobs", "level": "critical", "what": "not numbers", "seen": "nan"}


def test_right_answers_come_before_figures():
    assert judge("B", report(NAN, metrics={"single.decode_tok_s": 500})).wrong.startswith("nan-logprobs")
    assert judge("B", report(metrics={"single.decode_tok_s": 500})).metrics == {"single.decode_tok_s": 500.0}
    assert "unhealthy" in judge("B", report({"id": "unhealthy", "level": "critical", "what": "x", "seen": ""})).failed
    assert judge("B", report()).failed
    assert "is nan" in judge("B", report(metrics={"single.decode_tok_s": float("nan")})).failed


BROKE = {"id": "http-error", "level": "critical", "what": "a completion failed", "seen": "9 of 16 requests"}


def test_figures_beside_requests_that_failed_are_no_figures():
    seen = judge("B", report(BROKE, metrics={"concurrent.tok_s": 900}))
    assert (seen.metrics, seen.failed) == ({}, "http-error: a completion failed (9 of 16 requests)")
    slow = {"id": "below-floor", "level": "critical", "what": "a figure misses the floor", "seen": "9"}
    assert judge("B", report(slow, metrics={"concurrent.tok_s": 900})).metrics


# which trials are worth a start, and whose fault it is


class Starts:
    """Engines by side: what each start gives, one after the other; the last one for ever."""

    def __init__(self, **by_side):
        self.by_side, self.ran = by_side, []

    def run(self, side, name, *_command_environment_port):
        self.ran.append(name)
        left = self.by_side[side]
        return left.pop(0) if len(left) > 1 else left[0]


def outcomes_of(starts, *names):
    session = Session(base(), chosen("sglang", names))
    session.prepare(Report())
    return session.run(starts, {}, keep=lambda _: None, say=lambda _: None)


def test_where_the_first_start_fails_the_base_shows_whose_fault_it_is():
    dead, well = EngineRun("B", failed="no weights"), EngineRun("A", {"m": 1.0})
    starts = Starts(A=[EngineRun("A", failed="no weights")], B=[dead])
    assert [one.status for one in outcomes_of(starts, "attention-triton", "decode-steps-1")] == ["no-base"]
    assert starts.ran == ["attention-triton-1-B", "attention-triton-2-A"]
    starts = Starts(A=[well], B=[dead])
    assert [one.status for one in outcomes_of(starts, "attention-triton", "decode-steps-1")] == ["failed", "failed"]
    assert starts.ran == ["attention-triton-1-B", "attention-triton-2-A", "decode-steps-1-1-B"]  # proved once


@pytest.mark.parametrize(("here", "starts"), [("f00d", True), (None, True), ("beef", False)])
def test_peer_access_of_another_host_proves_nothing_here(here, starts):
    document = json.loads((RECORDED / "h200x2" / "p2p-on-1.json").read_text())
    document["host"] = {**(document.get("host") or {}), "fingerprint": "f00d"}
    session = Session(base(), chosen("sglang", ["pcie-ipc"]), record=Record.from_dict(document), fingerprint=here)
    session.prepare(Report())
    assert session.starts is starts
    assert starts or "f00d, here beef" in session.against["pcie-ipc"]


# real processes


@pytest.fixture
def port():
    return free_port()


def smoke(folder, body):
    """Return the command of a smoke test that writes this report."""
    script = folder / "smoke.py"
    script.write_text(
        f"import sys, pathlib\npathlib.Path(sys.argv[sys.argv.index('--out') + 1]).write_text({body!r})\n"
    )
    return (sys.executable, str(script))


def engine(port, *options):
    return [sys.executable, str(ENGINE), "--port", str(port), *options]


def session_of(folder, name):
    """Return the processes that still have the log open, which every descendant inherits."""
    log = str(folder / f"{name}.log")
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                targets = [str(link.readlink()) for link in (process / "fd").iterdir()]
            except OSError:
                continue
            found += [int(process.name)] if log in targets else []
    return found


def test_an_engine_runs_through_its_test_and_nothing_is_left(tmp_path, port):
    body = json.dumps(report(metrics={"single.decode_tok_s": 50}))
    engines = Engines(smoke(tmp_path, body), tmp_path, 30, 30, 10)
    run = engines.run("B", "one", engine(port), os.environ, port)
    assert run == EngineRun("B", {"single.decode_tok_s": 50.0})
    assert not session_of(tmp_path, "one")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--die-in-load", "3", "--say", "RuntimeError: no kernel image"), "it ended with 3"),
        (("--no-listener",), "did not generate within 3 s"),
        (("--hang", "quiet"), "did not generate within 3 s"),
    ],
)
def test_an_engine_that_does_not_come_up_is_bounded_and_explained(tmp_path, port, options, words):
    ends = "--die-in-load" in options  # which it does when it is that far, on any machine
    engines = Engines(smoke(tmp_path, "{}"), tmp_path, 300 if ends else 3, 30, 2)
    start = time.monotonic()
    run = engines.run("B", "bad", engine(port, *options), os.environ, port)
    assert words in run.failed
    assert time.monotonic() - start < 30  # far less than any default
    assert not session_of(tmp_path, "bad")


def test_one_that_generates_but_is_not_healthy_is_not_tested_yet(tmp_path, port):
    engines = Engines(smoke(tmp_path, json.dumps(report(metrics={"m": 1}))), tmp_path, 6, 30, 2)
    assert "was not healthy" in engines.run("A", "ill", engine(port, "--never-ready"), os.environ, port).failed


def test_a_signal_just_as_an_engine_starts_leaves_none(tmp_path, port, monkeypatch):
    started, popen = [], subprocess.Popen

    def start(*words, **options):
        started.append(popen(*words, **options))
        signal.raise_signal(signal.SIGTERM)
        return started[-1]

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    monkeypatch.setattr(subprocess, "Popen", start)
    try:
        with pytest.raises(SystemExit):
            Engines(smoke(tmp_path, "{}"), tmp_path, 30, 30, 10).run("B", "x", engine(port), os.environ, port)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [process.poll() is None for process in started] == [False]


def test_another_server_on_the_port_is_not_taken_for_the_engine(tmp_path, port):
    engines = Engines(smoke(tmp_path, json.dumps(report(metrics={"m": 1}))), tmp_path, 30, 30, 2)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert "something else answers" in engines.run("A", "x", engine(port), os.environ, port).failed
    assert not (tmp_path / "x.log").exists()


def test_a_test_that_does_not_end_and_one_without_a_report_are_failures(tmp_path, port):
    slow = (sys.executable, "-c", "import time; time.sleep(60)")
    assert "longer than 2 s" in Engines(slow, tmp_path, 30, 2, 5).run("B", "a", engine(port), os.environ, port).failed
    none = (sys.executable, "-c", "pass")
    assert "left no report" in Engines(none, tmp_path, 30, 20, 5).run("B", "b", engine(port), os.environ, port).failed


# the program


AS_ROOT = ["--as-root"] if os.geteuid() == 0 else []


def tune(*words, consent=True, **environment):
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "tune", *map(str, words), *(AS_ROOT if consent else [])],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=300,
    )


@pytest.fixture
def base_file(tmp_path):
    def write(**other):
        file = tmp_path / "base.json"
        file.write_text(json.dumps({**BASE, **other}))
        return file

    return write


def test_the_program_lists_its_trials_and_refuses_unknown_ones(base_file):
    listed = json.loads(tune("ab", base_file(), "--list", "--json").stdout)
    assert {"nccl-none", "decode-steps-1", "pcie-ipc"} <= {trial["name"] for trial in listed["trials"]}
    wrong = tune("ab", base_file(), "--trial", "decode-step-1")
    assert wrong.returncode == 3
    assert "did you mean 'decode-steps-1'" in wrong.stderr


def test_the_program_starts_nothing_that_is_refused_or_runs_today(base_file, tmp_path):
    own = tmp_path / "own.json"
    own.write_text(json.dumps([{"name": "mla", "arguments": {"attention-backend": "trtllm_mla"}}]))
    done = tune("ab", base_file(), "--trial", "decode-steps-4", "--trials", own, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [trial["status"] for trial in said["trials"]] == ["refused", "refused"]
    assert "start 1" not in done.stderr
    assert {entry["id"] for entry in said["not_checked"]} == {"tune-mla", "tune-decode-steps-4"}
    assert said["recommended"] is None


def test_names_that_can_not_be_checked_are_said_to_be_so(base_file):
    for version, unchecked in (("0.5.23", False), ("0.5.16", True)):
        done = tune("ab", base_file(version=version), "--trial", "decode-steps-4", "--json")
        assert ("tune-options" in {entry["id"] for entry in json.loads(done.stdout)["not_checked"]}) is unchecked


@pytest.mark.parametrize(("result", "reason"), [(None, "peer access"), ("p2p-off-1", "peer access"), ("p2p-on-1", "")])
def test_an_all_reduce_over_peer_access_waits_for_its_proof(base_file, result, reason):
    proof = ["--result", RECORDED / "h200x2" / f"{result}.json"] if result else []
    done = tune("ab", base_file(python="/bin/false"), "--trial", "pcie-ipc", "--json", *proof)
    if reason:
        assert reason in json.loads(done.stdout)["trials"][0]["reason"]
    else:
        assert "start 1 of 4" in done.stderr


SMOKE_PROFILE = {
    "timeouts": {"health": 60, "first_token": 60, "stall": 60},
    "correctness": {"repeats": 2, "leak_streams": 4, "slow_first_token": 60},
    "load": {"output_tokens": 16, "repeats": 2, "concurrency": 2},
    "prefill": {"lengths": [64], "repeats": 1},
    "client": {"max_lag_ms": 5000, "max_cpu_share": 10},
}


RESULT = RECORDED / "h200x2" / "8b-p2p-off.json"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "/nowhere/out.json"], "--out /nowhere/out.json"),
        (["--smoke-python", "/nowhere/python"], "/nowhere/python"),
        (["--smoke-profile", "PROFILE"], "no such setting"),
        (["--trials", "PROFILE"], "expected a list of trials"),
        (["--result", "PROFILE"], "not the result of a run"),
        (["--result", "LIST"], "expected an object"),
        (["--measured-profile", "LIST"], "expected an object"),
    ],
)
def test_what_can_not_be_used_is_said_before_an_engine_starts(base_file, tmp_path, options, words):
    (tmp_path / "profile.json").write_text('{"lod": {}}')
    (tmp_path / "list.json").write_text("[]")
    files = {"PROFILE": tmp_path / "profile.json", "LIST": tmp_path / "list.json"}
    options = [files.get(word, word) for word in options]
    done = tune("ab", base_file(python="/bin/false"), "--trial", "nccl-none", *options)
    assert done.returncode == 3
    assert words in done.stderr
    assert "start 1" not in done.stderr


@pytest.mark.parametrize(("user", "as_root", "starts"), [(0, False, False), (0, True, True), (1000, False, True)])
def test_root_starts_no_engine_unless_that_is_asked_for(monkeypatch, port, user, as_root, starts):
    monkeypatch.setattr(os, "geteuid", lambda: user)
    session = Session(base(python="/bin/true", instance={"port": port}), [])
    with contextlib.nullcontext() if starts else pytest.raises(TrialError, match="runuser -u inference"):
        session.check_startable(None, as_root=as_root)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is refused")
def test_the_program_refuses_root_before_an_engine_starts_and_lists_for_anybody(base_file):
    file = base_file(python="/bin/false")
    done = tune("ab", file, "--trial", "nccl-none", consent=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert "seen: root, expected: the account of the service" in done.stderr
    assert "start 1" not in done.stderr
    assert tune("ab", file, "--list", consent=False).returncode == 0


def test_a_served_port_and_a_python_that_is_not_there_are_said_before_an_engine_starts(base_file, port):
    assert "/opt/python: no such program" in tune("ab", base_file(), "--trial", "nccl-none").stderr
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        file = base_file(python="/bin/false", instance={"port": port})
        assert f"port {port} is in use" in tune("ab", file, "--trial", "nccl-none").stderr


def test_a_measurement_of_another_model_expects_nothing_of_this_one(base_file, tmp_path):
    for hidden, other in ((4096, False), (5120, True)):
        config = {"architectures": ["A"], "hidden_size": hidden, "num_hidden_layers": 32}
        (tmp_path / "config.json").write_text(json.dumps(config))
        file = base_file(python="/bin/false", model={"name": "m", "path": str(tmp_path)})
        done = tune("ab", file, "--trial", "nccl-none", "--result", RESULT, "--json")
        ids = {entry["id"]: entry["why"] for entry in json.loads(done.stdout)["not_checked"]}
        assert ("tune-nccl-none-expected" in ids) is other, ids
        assert not other or "32, hidden 5120" in ids["tune-nccl-none-expected"]


def wrapped(tmp_path, body):
    """Return a Python that runs ``body`` with the engine's options in $*."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    return str(python)


def test_what_runs_today_failing_ends_the_comparison_and_keeps_what_was_measured(base_file, tmp_path, port):
    """The base says 0.05 s a token and then nothing at all; a second trial has nothing to be compared with."""
    server, out = ROOT / "tests" / "misbehaving_server.py", tmp_path / "out.json"
    python = wrapped(
        tmp_path,
        f"""case "$*" in *"--attention-backend triton"*) ;; *) echo 'error: no kernel'; exit 7 ;; esac
exec {sys.executable} {server} --port {port} --delay 0.01""",
    )
    (tmp_path / "profile.json").write_text(json.dumps(SMOKE_PROFILE))
    model = {"name": "stand-in/SmolLM2-135M-Instruct", "path": "/m"}
    file = base_file(python=python, model=model, instance={"port": port, "nccl_profile": "none"})
    words = ["--trial", "attention-triton", "--trial", "decode-steps-1", "--smoke-profile", tmp_path / "profile.json"]
    done = tune("ab", file, *words, "--smoke-python", sys.executable, "--start-timeout", 60, "--out", out)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "CRITICAL tune-no-base" in done.stdout
    assert "it ended with 7" in done.stdout
    assert "nothing can be chosen" in done.stdout
    assert "tune-decode-steps-1: not run" in done.stdout
    (trial,) = json.loads(out.read_text())["trials"]
    assert trial["status"] == "no-base"
    assert trial["runs"][0]["metrics"]["single.decode_tok_s"] > 0


def test_one_that_is_ended_keeps_what_it_measured_and_leaves_no_engine(base_file, tmp_path, port):
    server, out, logs = ROOT / "tests" / "misbehaving_server.py", tmp_path / "out.json", tmp_path / "logs"
    body = f"exec {sys.executable} {server} --port {port} --delay 0.01"
    (tmp_path / "profile.json").write_text(json.dumps(SMOKE_PROFILE))
    model = {"name": "stand-in/SmolLM2-135M-Instruct", "path": "/m"}
    file = base_file(python=wrapped(tmp_path, body), model=model, instance={"port": port, "nccl_profile": "none"})
    words = ["--trial", "attention-triton", "--smoke-profile", tmp_path / "profile.json", "--logs", logs]
    command = [sys.executable, ROOT / "scripts" / "tune", "ab", file, *words, "--out", out, *AS_ROOT]
    with subprocess.Popen([*command, "--smoke-python", sys.executable], stderr=subprocess.PIPE, text=True) as program:
        said = next((line for line in program.stderr if "start 2" in line), "")
        assert said, program.wait(60)
        program.send_signal(signal.SIGTERM)
        assert "ended by a signal" in program.stderr.read()
        assert program.wait(60) == 3
    (trial,) = json.loads(out.read_text())["trials"]
    assert (trial["status"], [run["side"] for run in trial["runs"]]) == ("unfinished", ["B"])
    assert trial["runs"][0]["metrics"]
    assert not session_of(logs, "attention-triton-2-A")


def test_engines_go_through_the_real_smoke_test_b_a_b_a(tmp_path, port, base_file):
    """The engine is a server that answers by rule: faster with one option, not a number with another."""
    python, profile, out = tmp_path / "python", tmp_path / "profile.json", tmp_path / "out.json"
    server = ROOT / "tests" / "misbehaving_server.py"
    python.write_text(
        f"""#!/bin/sh
case "$*" in
  *"--num-continuous-decode-steps 1"*) set -- --delay 0.001 --fault nan-logprobs ;;
  *"--attention-backend triton"*) set -- --delay 0.01 ;;
  *) set -- --delay 0.05 ;;
esac
exec {sys.executable} {server} --port {port} "$@"
"""
    )
    python.chmod(0o755)
    profile.write_text(json.dumps(SMOKE_PROFILE))
    model = {"name": "stand-in/SmolLM2-135M-Instruct", "path": "/m"}
    file = base_file(python=str(python), model=model, instance={"port": port, "nccl_profile": "none"})
    words = ["--trial", "attention-triton", "--trial", "decode-steps-1", "--smoke-profile", profile, "--out", out]
    done = tune(
        "ab", file, *words, "--smoke-python", sys.executable, "--start-timeout", 60, "--logs", tmp_path / "logs"
    )
    assert done.returncode == 1, done.stdout + done.stderr
    fast, wrong = json.loads(out.read_text())["trials"]
    assert (fast["status"], [run["side"] for run in fast["runs"]]) == ("wins", list(ORDER)), fast
    assert fast["changes"][0]["ratio"] < 0.5
    assert (wrong["status"], len(wrong["runs"])) == ("wrong", 1)
    assert "nan-logprobs" in wrong["reason"]
    assert "choice: attention-triton" in done.stdout
    assert not session_of(tmp_path / "logs", "attention-triton-1-B")
