# SPDX-License-Identifier: Apache-2.0
"""Proof of engagement: a running engine that is what was meant, and each way in which it is not."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from inference import generations, proof, systemd
from inference.findings import Finding, NotChecked
from inference.generations import Generation
from inference.managed_files import Entry
from inference.proof import answer, gather, journal, meant, process
from inference.proof.checks import Case, ModuleFile, Nccl, check, same
from inference.releases import sealing

FIXTURES = Path(__file__).parent / "fixtures"
RELEASE = "sglang-0.5.23-abc"
PACKAGES = f"/opt/inference/releases/{RELEASE}/venv/lib/python3.12/site-packages"
PYTHON = f"/opt/inference/releases/{RELEASE}/venv/bin/python"
COMMAND = (
    *(PYTHON, "-m", "sglang.launch_server", "--model-path", "/srv/models/kimi", "--tp-size", "8"),
    *("--attention-backend", "flashinfer", "--disable-custom-all-reduce", "--enable-mscclpp"),
)
UNIT = "sglang@kimi.service"
DROPINS = f"/etc/systemd/system/{UNIT}.d"
RECORD = {
    "name": RELEASE,
    "version": "0.5.23",
    "interpreter": {"real_path": "/usr/bin/python3.12"},
    "packages": {"sglang": "0.5.23", "nvidia-nccl-cu13": "2.28.9"},
    "patches": [{"id": "P02", "state": "applied"}, {"id": "P01", "state": "applies"}],
}
SETTINGS = {"engine": "sglang", "host": "127.0.0.1", "port": 30000}
ENVIRONMENT = {"NCCL_P2P_LEVEL": "SYS", "NCCL_MAX_NCHANNELS": "16", "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin"}
INFO = {
    "version": "0.5.23", "model_path": "/srv/models/kimi", "attention_backend": "flashinfer",
    "tp_size": 8, "disable_custom_all_reduce": True,
    "enable_mscclpp": True, "api_key": "hunter2", "sampling_backend": "flashinfer",
}  # fmt: skip


def generation(command=COMMAND, settings=SETTINGS):
    nccl = "[Service]\nEnvironment=NCCL_P2P_LEVEL=SYS\nEnvironment=NCCL_MAX_NCHANNELS=16\n"
    settings_file = json.dumps(settings)
    exec_start = "/usr/bin/python3 -I /x/supervisor --settings /etc/inference/%i/supervisor.json -- " + " ".join(
        command
    )
    started = f"[Service]\nExecStart={exec_start}\nEnvironment=HF_HUB_OFFLINE=1 PATH=/usr/bin\n"
    return Generation(
        "kimi", UNIT, RELEASE, "1.0",
        (
            Entry(f"{DROPINS}/20-nccl.conf", content=nccl),
            Entry(f"{DROPINS}/10-command.conf", content=started),
            Entry(f"/etc/systemd/system/{UNIT}", content="[Service]\nType=notify\nEnvironment=HF_HUB_OFFLINE=0\n"),
            Entry("/etc/inference/kimi/supervisor.json", content=settings_file),
        ),
    )  # fmt: skip


MEANT = meant.read(generation(), RECORD)


def running(**changes):
    facts = {
        "pid": 42, "exe": "/usr/bin/python3.12", "command": COMMAND, "environment": dict(ENVIRONMENT), "whole": True,
        "started": 1000.0, "mapped": (f"{PACKAGES}/torch/lib/libtorch.so", f"{PACKAGES}/nvidia/nccl/lib/libnccl.so.2"),
    }  # fmt: skip
    return process.Process(**{**facts, **changes})


SUPERVISOR = running(pid=41, command=("/usr/bin/python3", "-I", "/x/supervisor", "--", *COMMAND), mapped=())
LINES = ("[2026-11-30 04:55:07 TP0] sglang is using nccl==2.28.9", "Created MSCCL++ communicator: group=tp")


def case(**changes):
    facts = {
        "meant": MEANT,
        "started_with": MEANT.generation,
        "main": running(),
        "supervisor": SUPERVISOR,
        "info": INFO,
        "journal": journal.parse(LINES),
        "modules": [ModuleFile("venv/x.py", "aa", "aa", 900.0)],
        "nccl": Nccl(f"{PACKAGES}/nvidia/nccl/lib/libnccl.so.2", "2.28.9", "its package"),
    }
    return Case(**{**facts, **changes})


def found(given):
    return {(entry.id, entry.level) for entry in check(given) if isinstance(entry, Finding)}


def skipped(given):
    return {entry.id for entry in check(given) if isinstance(entry, NotChecked)}


def test_what_runs_as_meant_is_proved():
    result = proof.prove(case())
    assert result["ok"] is True
    assert result["findings"] == []
    assert {entry["id"] for entry in result["not_checked"]} == {"nccl-transport", "nccl-channels", "nccl-protocol"}
    assert result["facts"]["nccl"]["operator"] == MEANT.nccl
    assert result["facts"]["release"]["applied"] == ["P02"]
    assert "hunter2" not in json.dumps(result)
    assert proof.line(result).startswith(f"{UNIT}: proved (sglang 0.5.23, attention flashinfer")


def with_environment(**changes):
    environment = {name: value for name, value in {**ENVIRONMENT, **changes}.items() if value is not None}
    return {"main": running(environment=environment)}


WRONG = [
    ({"main": None}, "proof-no-process", "unknown"),
    ({"started_with": "other"}, "proof-generation", "critical"),
    ({"supervisor": replace(SUPERVISOR, command=("python3", "--", *COMMAND[:-1]))}, "proof-command", "critical"),
    ({"main": running(exe="/usr/bin/python3.11")}, "proof-release", "critical"),
    ({"main": running(exe="/usr/bin/python3.12 (deleted)")}, "proof-replaced-code", "warning"),
    ({"main": running(mapped=("/usr/lib/python3/dist-packages/numpy/x.so",))}, "proof-foreign-code", "critical"),
    ({"main": running(mapped=(f"{PACKAGES}/torch/libtorch.so (deleted)",))}, "proof-replaced-code", "critical"),
    ({"modules": [ModuleFile("venv/x.py", "bb", "aa", 900.0)]}, "proof-patched-file", "critical"),
    ({"modules": [ModuleFile("venv/x.py", "aa", "aa", 1100.0)]}, "proof-replaced-code", "critical"),
    (with_environment(NCCL_P2P_LEVEL="PHB"), "proof-environment", "critical"),
    (with_environment(NCCL_P2P_LEVEL=None), "proof-environment", "critical"),
    (with_environment(NCCL_PROTO="Simple"), "proof-extra-variable", "warning"),
    (with_environment(LD_PRELOAD="/x.so"), "proof-extra-variable", "critical"),
    ({"info": {**INFO, "version": "0.5.22"}}, "proof-version", "critical"),
    ({"info": {**INFO, "attention_backend": "triton"}}, "proof-option", "critical"),
    ({"info": {**INFO, "disable_custom_all_reduce": False}}, "proof-option", "critical"),
    ({"info": {**INFO, "tp_size": 4}}, "proof-option", "critical"),
    ({"journal": journal.parse([*LINES[:1], "PyMscclpp is unavailable because"])}, "proof-fallback", "critical"),
    (
        {"journal": journal.parse([*LINES, "KimiForX has no SGLang implementation, falling back to Transformers x"])},
        "proof-fallback",
        "critical",
    ),
    ({"journal": journal.parse([*LINES, "x is missing, falling back to Triton"])}, "proof-fallback-line", "warning"),
    ({"nccl": Nccl("/usr/lib/libnccl.so.2", "2.28.9", "the library itself")}, "proof-nccl-library", "critical"),
    ({"nccl": Nccl(f"{PACKAGES}/nvidia/nccl/lib/libnccl.so.2", "2.29.3", "x")}, "proof-nccl-version", "critical"),
    ({"journal": journal.parse([LINES[0].replace("2.28.9", "2.27.7"), LINES[1]])}, "proof-nccl-version", "critical"),
]


@pytest.mark.parametrize(("changes", "rule", "level"), WRONG)
def test_each_difference_is_found(changes, rule, level):
    given = case(**changes)
    assert found(given) == {(rule, level)}
    result = proof.prove(given)
    assert result["ok"] is (level == "warning")
    assert ("NOT what was meant" in proof.line(result)) is (level != "warning")


UNKNOWN = [
    ({"started_with": None}, "proof-generation"),
    ({"main": running(command=()), "supervisor": None}, None),
    ({"main": running(exe=None)}, "proof-release"),
    ({"main": running(mapped=None)}, "proof-foreign-code"),
    ({"modules": [ModuleFile("venv/x.py", None, "aa", None)]}, "proof-patched-file"),
    ({"main": running(environment=None), "supervisor": replace(SUPERVISOR, environment=None)}, "proof-environment"),
    ({"info": None, "journal": None}, "proof-option"),
    ({"info": None, "journal": None}, "proof-version"),
    ({"journal": None}, "proof-fallback"),
    ({"journal": journal.parse(LINES[:1])}, "proof-fallback"),
    ({"nccl": None}, "proof-nccl-library"),
    ({"info": {"version": "0.5.23"}}, "proof-option"),
]


@pytest.mark.parametrize(("changes", "rule"), UNKNOWN)
def test_what_cannot_be_read_is_not_checked_and_fails_nothing(changes, rule):
    given = case(**changes)
    if rule is None:  # an empty command line is a difference, not a lack of knowledge
        assert ("proof-command", "critical") in found(given)
        return
    assert rule in skipped(given)
    assert proof.prove(given)["ok"] is True


def test_a_title_that_overwrote_the_environment_is_no_difference():
    """A title takes the beginning of the environment: the supervisor's, which it handed on, still has it."""
    torn = running(environment={"PATH": "/usr/bin"}, whole=False, command=("vllm::api",))
    assert found(case(main=torn)) == set()
    assert ("proof-environment", "critical") in found(case(main=replace(torn, whole=True)))


def test_the_engine_s_own_settings_are_told_apart():
    child = running(pid=43, environment={**ENVIRONMENT, "NCCL_CUMEM_ENABLE": "0"}, whole=False)
    facts = proof.prove(case(children=[child]))["facts"]["nccl"]
    assert facts["operator"] == MEANT.nccl
    assert facts["engine"] == {"NCCL_CUMEM_ENABLE": "0"}


def test_the_file_of_a_stranger_is_named_and_secrets_are_not_shown():
    given = case(**with_environment(NCCL_P2P_LEVEL="PHB", SGLANG_API_KEY="hunter2"))
    given.strangers = {"NCCL_P2P_LEVEL": f"{DROPINS}/90-local.conf"}
    text = json.dumps(proof.prove(given))
    assert "90-local.conf" in text
    assert "SGLANG_API_KEY" in text
    assert "hunter2" not in text


def test_a_command_line_with_a_key_does_not_show_it():
    words = ("python3", "--", *COMMAND, "--api-key", "hunter2", "--context-length", "4096")
    given = case(supervisor=replace(SUPERVISOR, command=words))
    result = proof.prove(given)
    (finding,) = result["findings"]
    assert finding["seen"] == "--api-key ... --context-length 4096"
    assert "hunter2" not in json.dumps(result)


# NCCL's own log

REAL_LOG = (FIXTURES / "nccl" / "shm_latency_settings.log").read_text()
LATENCY = {"NCCL_PROTO": "LL", "NCCL_ALGO": "Ring", "NCCL_MAX_NCHANNELS": "16", "NCCL_BUFFSIZE": "16777216"}


def of_profile(**settings):
    return replace(MEANT, environment={**ENVIRONMENT, **settings})


def test_nccl_s_log_in_the_journal_is_compared_with_the_profile():
    environment = {**ENVIRONMENT, **LATENCY}
    given = case(
        meant=of_profile(**LATENCY), main=running(environment=environment),
        journal=journal.parse([*LINES, *REAL_LOG.splitlines()]),
    )  # fmt: skip
    rules = found(given)
    assert ("nccl-bound-without-effect", "info") in rules  # 4 channels: MAX_NCHANNELS=16 bounded nothing
    assert ("nccl-transport", "critical") in rules  # P2P_LEVEL=SYS was asked for, shared memory runs
    result = proof.prove(given)
    assert result["ok"] is False
    assert result["facts"]["nccl"]["log"]["channels"] == [4]
    assert "SHM, channels 4" in proof.line(result)


MEETING = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}


def test_the_meeting_place_of_a_unit_on_loopback_is_part_of_what_was_meant():
    line = "host:0:0 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to {}"
    as_meant = case(
        meant=of_profile(**MEETING), main=running(environment={**ENVIRONMENT, **MEETING}),
        journal=journal.parse([*LINES, line.format("lo"), *REAL_LOG.splitlines()]),
    )  # fmt: skip
    without = case(journal=journal.parse([*LINES, *REAL_LOG.splitlines()]))
    assert found(as_meant) == found(without)
    assert not any("SOCKET_IFNAME" in str(entry) for entry in check(as_meant))
    elsewhere = {**ENVIRONMENT, **MEETING, "NCCL_SOCKET_IFNAME": "eth0"}
    overridden = replace(
        as_meant, main=running(environment=elsewhere), strangers={"NCCL_SOCKET_IFNAME": f"{DROPINS}/90-local.conf"},
        journal=journal.parse([*LINES, line.format("eth0"), *REAL_LOG.splitlines()]),
    )  # fmt: skip
    told = [entry for entry in check(overridden) if "SOCKET_IFNAME" in str(entry)]
    assert {(entry.id, entry.level) for entry in told} >= {("proof-environment", "critical")}
    assert any("90-local.conf" in str(entry) for entry in told)


def test_what_nccl_s_log_leaves_open_is_said():
    lines = [line for line in REAL_LOG.splitlines() if " via " not in line and "coll channels" not in line]
    without_sizes = [line for line in lines if "Algo" not in line]
    given = case(journal=journal.parse([*LINES, *without_sizes]))
    assert {"nccl-transport", "nccl-channels", "nccl-protocol"} <= skipped(given)
    assert not {"nccl-transport", "nccl-channels", "nccl-protocol"} & skipped(
        case(journal=journal.parse([*LINES, *REAL_LOG.splitlines()]))
    )


# the parts


def test_the_generation_says_what_is_meant():
    assert MEANT.command == COMMAND
    assert dict(MEANT.environment) == ENVIRONMENT
    assert MEANT.options == {
        "model_path": "/srv/models/kimi", "tp_size": "8", "attention_backend": "flashinfer",
        "disable_custom_all_reduce": True, "enable_mscclpp": True,
    }  # fmt: skip
    keyed = meant.read(generation((*COMMAND, "--config", "${CREDENTIALS_DIRECTORY}/engine.yaml", "100%%", "$$x")))
    assert keyed.command[-3:] == (f"/run/credentials/{UNIT}/engine.yaml", "100%", "$x")
    assert meant.options_of(["--a=1", "--b", "x", "y", "--a", "2"]) == {"a": "2", "b": ("x", "y")}


@pytest.mark.parametrize(
    "broken", [generation(settings={"engine": "sglang"}), replace(generation(), files=()), generation(settings=[])]
)
def test_a_generation_that_says_nothing_is_an_error(broken):
    with pytest.raises(meant.MeantError):
        meant.read(broken)


@pytest.mark.parametrize(
    ("asked", "told", "equal"),
    [
        ("flashinfer", "FLASHINFER", True), ("bfloat16", "torch.bfloat16", True), ("triton", "flashinfer", False),
        ("8", 8, True), ("0.90", 0.9, True), ("8", 4, False), (True, True, True), (True, False, False),
        ("kimi", ["kimi"], True), (("1", "2"), [1, 2], True), ("1", [1, 2], False), ("x", None, False),
        ('{"a": 1}', {"a": 1}, True), ("true", True, True),
    ],
)  # fmt: skip
def test_values_are_compared_as_both_sides_write_them(asked, told, equal):
    assert same(asked, told) is equal


def test_a_process_is_read_from_proc(tmp_path):
    folder = tmp_path / "7"
    folder.mkdir()
    (tmp_path / "stat").write_text("cpu 1 2\nbtime 1700000000\n")
    (folder / "cmdline").write_bytes(b"python\0-m\0sglang.launch_server\0")
    (folder / "environ").write_bytes(b"\0\0\0NCCL_PROTO=LL\0PATH=/bin\0")
    (folder / "stat").write_text("7 (a b) c) S 1 " + "0 " * 17 + "500 0 0")
    (folder / "maps").write_text(
        f"7f00-7f01 r-xp 0000 08:01 12 {' ' * 20}{PACKAGES}/torch/lib/libtorch.so\n"
        "7f02-7f03 rw-p 0000 00:00 0 \n7f04-7f05 rw-p 0000 00:01 9 /dev/shm/nccl-x\n"
        "7f06-7f07 r-xp 0000 08:01 13 /a/libx.so (deleted)\n"
    )
    (folder / "exe").symlink_to("/usr/bin/python3.12")
    seen = process.read(7, str(tmp_path))
    assert seen.command == ("python", "-m", "sglang.launch_server")
    assert (seen.environment, seen.whole) == ({"NCCL_PROTO": "LL", "PATH": "/bin"}, False)
    assert seen.started == pytest.approx(1700000005.0)
    assert seen.packages == [PACKAGES]
    assert seen.replaced == ["/a/libx.so"]
    assert process.read(8, str(tmp_path)) is None
    assert process.library([seen], "libtorch") == (7, f"{PACKAGES}/torch/lib/libtorch.so")
    assert process.library([seen], "libnccl") is None


def test_this_very_process_can_be_read():
    seen = process.read(os.getpid())
    assert seen.whole
    assert seen.environment["PATH"]
    before = time.time()
    shown = subprocess.run(["ps", "-o", "etimes=", "-p", str(os.getpid())], capture_output=True, check=True).stdout
    assert before - int(shown) - 2 <= seen.started <= time.time() - int(shown) + 2


def test_vllm_s_own_lines_are_understood():
    told = journal.parse(
        [
            "(EngineCore pid=1) INFO 11-30 10:00:05 [core.py:140] Initializing a V1 LLM engine (v0.33.0) with config: "
            "model='/m', dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=8, "
            "disable_custom_all_reduce=True, quantization=None, kv_cache_dtype=auto",
            "(W pid=2) INFO 11-30 10:00:05 [cuda.py:448] Using AttentionBackendEnum.FLASHINFER backend.",
            "(W pid=2) INFO 11-30 10:00:05 [fp8.py:1] Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of potential",
            "(W pid=2) INFO 11-30 10:00:05 [x.py:1] Using FlashInfer for top-p & top-k sampling.",
        ]
    )
    assert told.told == {
        "version": ["0.33.0"], "attention_backend": ["FLASHINFER"], "moe_backend": ["FLASHINFER_CUTLASS"],
        "sampling_backend": ["FlashInfer"],
    }  # fmt: skip
    assert told.settings["max_model_len"] == "4096"
    assert told.settings["quantization"] is None
    vllm = replace(
        MEANT, engine="vllm", record={**RECORD, "version": "0.33.0"},
        command=("python", "--attention-backend", "FLASHINFER", "--tensor-parallel-size", "8", "--max-model-len=4096"),
    )  # fmt: skip
    words = ("python3", "--", *vllm.command)
    given = case(meant=vllm, info={"version": "0.33.0"}, journal=told, supervisor=replace(SUPERVISOR, command=words))
    assert found(given) == set()
    triton = replace(told, told={**told.told, "attention_backend": ["TRITON_ATTN"]})
    assert found(replace(given, journal=triton)) == {("proof-option", "critical")}


def test_the_suffix_of_a_build_is_no_other_release():
    assert found(case(info={**INFO, "version": "0.5.23+cu130"})) == set()


def test_a_user_s_words_are_no_line_of_the_engine_s():
    line = "[2026-11-30 10:00:00] Receive: obj=GenerateReqInput(text='PyMscclpp is disabled, falling back to NCCL')"
    assert found(case(journal=journal.parse([*LINES, line]))) == set()


def test_real_logs_of_healthy_engines_speak_of_no_fallback():
    for name in ("healthy_sglang_0.5.16_start_serve_stop.log", "healthy_vllm_0.33.0_start.log"):
        parsed = journal.parse((FIXTURES / "reports" / name).read_text().splitlines())
        assert parsed.told["nccl_version"] == ["2.28.9"]
        assert (parsed.fallbacks, parsed.off) == ([], {})


REAL = FIXTURES / "proof"
REAL_INFO = json.loads((REAL / "sglang_0.5.23_cpu_server_info.json").read_text())
REAL_COMMAND = (
    *(PYTHON, "-m", "sglang.launch_server", "--model-path", "/srv/models/smollm2-135m-instruct"),
    *("--served-model-name", "smollm2-135m-instruct", "--host", "127.0.0.1", "--port", "30000", "--tp-size", "1"),
    *("--attention-backend", "torch_native", "--num-continuous-decode-steps", "4", "--disable-custom-all-reduce"),
    *("--device", "cpu", "--max-total-tokens", "20000", "--mem-fraction-static", "0.1", "--enable-metrics"),
)


def real(*more):
    command = (*REAL_COMMAND, *more)
    told = journal.parse((REAL / "sglang_0.5.23_cpu_start.log").read_text().splitlines())
    return case(
        meant=replace(MEANT, command=command), info=REAL_INFO, journal=told, nccl=None,
        supervisor=replace(SUPERVISOR, command=("python3", "--", *command)),
    )  # fmt: skip


def test_a_real_engine_is_proved():
    assert found(real()) == set()


@pytest.mark.parametrize(
    ("more", "level"),
    [
        (("--sampling-backend", "flashinfer"), "critical"),  # SGLang on CPUs takes pytorch and says nothing
        (("--kv-cache-dtype", "fp8_e4m3"), "critical"),
        (("--max-total-tokens", "30000"), "warning"),
    ],
)
def test_a_real_engine_that_was_asked_for_something_else_is_not(more, level):
    assert found(real(*more)) == {("proof-option", level)}


def test_graphs_that_a_gpu_loses_are_missed_and_those_of_a_cpu_are_not():
    lines = (REAL / "sglang_0.5.23_cpu_start.log").read_text().splitlines()
    on_gpu = case(journal=journal.parse([*LINES, *lines]))
    assert found(on_gpu) == {("proof-fallback", "critical")}


def test_nothing_of_a_real_answer_but_known_settings_is_kept():
    kept = proof.prove(replace(real(), info={**REAL_INFO, "api_key": "hunter2", "admin_api_key": "hunter2"}))
    assert "hunter2" not in json.dumps(kept)
    assert set(kept["facts"]["settings"]) <= set(proof.SHOWN_SETTINGS)


def test_a_fused_all_reduce_that_is_none_is_not_asked_for():
    fused = next(f for f in journal.FEATURES if "fused" in f.name)
    assert journal.asked_for(fused, {"flashinfer_allreduce_fusion_backend": "none"}, {}) is None
    assert journal.asked_for(fused, {"enable_flashinfer_allreduce_fusion": True}, {})


class _Engine(BaseHTTPRequestHandler):
    def do_GET(self):
        allowed = self.headers.get("Authorization") == "Bearer k"
        answers = {"/get_server_info": b'{"version": "0.5.9"}', "/list": b"[]", "/deep": b"[" * 200_000}
        known = answers.get(self.path)
        self.send_response(401 if not allowed else 200 if known else 404)
        self.end_headers()
        self.wfile.write(known or b"")

    def log_message(self, *_):
        pass


def test_the_engine_is_asked_by_its_new_path_then_by_the_old_one():
    server = HTTPServer(("127.0.0.1", 0), _Engine)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    try:
        assert answer.ask("sglang", answer.getter("0.0.0.0", port, "k")) == ({"version": "0.5.9"}, "")
        assert answer.ask("sglang", answer.getter("127.0.0.1", port)) == (None, "/get_server_info: status 401")
        assert answer.getter("127.0.0.1", port, "k")("/list") == "no JSON object"
        assert answer.getter("127.0.0.1", port, "k")("/deep") == "no answer (RecursionError)"
    finally:
        server.shutdown()
        server.server_close()


def test_an_engine_that_does_not_answer_is_said():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # kept, so that nobody else gets it, and nobody listens
        info, why = answer.ask("vllm", answer.getter("127.0.0.1", closed.getsockname()[1]))
        other, _ = answer.ask("other", answer.getter("127.0.0.1", closed.getsockname()[1]))
    assert info is other is None
    assert "ConnectionRefusedError" in why


def test_nccl_s_version_is_read_from_its_package_or_from_itself(tmp_path):
    packages = tmp_path / "site-packages"
    library = packages / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"\x7fELF" + b"\0" * 5000 + b"NCCL version 2.28.9 compiled with CUDA" + b"\0")
    seen = running(mapped=(str(library),))
    assert gather.nccl([seen]) is not None
    assert gather.version_in(library) == "2.28.9"
    (packages / "nvidia_nccl_cu13-2.27.3.dist-info").mkdir()
    assert gather.nccl([seen]) == Nccl(str(library), "2.27.3", "its package")
    assert gather.version_in(tmp_path / "none") is None
    assert gather.nccl([running(mapped=())]) is None


def test_files_of_others_are_known_by_what_they_set(tmp_path):
    mine, other = tmp_path / "10-command.conf", tmp_path / "90-local.conf"
    mine.write_text("[Service]\nEnvironment=A=1\n")
    other.write_text("[Service]\nEnvironment=NCCL_PROTO=Simple\n")
    assert gather.strangers([str(mine), str(other), "/nowhere"], [str(mine)]) == {"NCCL_PROTO": str(other)}


# all of it, on real processes

SUPERVISE = (
    "import subprocess, sys\n"
    "child = subprocess.Popen(sys.argv[sys.argv.index('--') + 1:])\n"
    "print(child.pid, flush=True)\n"
    "child.wait()\n"
)
ENGINE = """
import http.server, json, sys
class Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(json.dumps({"version": "0.5.23", "tp_size": 1, "sampling_backend": "pytorch"}).encode())
    def log_message(self, *words): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Engine)
open(sys.argv[1], "w").write(str(server.server_address[1]))
server.serve_forever()
"""


@pytest.fixture
def deployed(tmp_path, monkeypatch):
    """Return a function that deploys options and an environment; a stand-in of an engine runs with them, or others."""
    releases = tmp_path / "releases"
    patched = releases / RELEASE / "x.py"
    patched.parent.mkdir(parents=True)
    patched.write_text("x = 1\n")
    sealed = sealing.make_manifest(patched.parent)
    record = {
        **RECORD, "interpreter": {"real_path": os.path.realpath(sys.executable)}, "changed_files": ["x.py"],
        "manifest_sha256": sealing.write_manifest(patched.parent, sealed),
    }  # fmt: skip
    (patched.parent / "release.json").write_text(json.dumps(record))
    (tmp_path / "engine.py").write_text(ENGINE)
    monkeypatch.setattr(generations, "STATE_ROOT", tmp_path / "state")
    monkeypatch.setattr(generations, "RUNTIME_ROOT", tmp_path / "run")
    monkeypatch.setattr(gather, "RELEASES", releases)
    monkeypatch.setattr(gather, "_unit_files", lambda _: [])
    running_now = []

    def deploy(options=("--tp-size", "1"), started_with=None, **environment):
        port_file = tmp_path / "port"
        words = (sys.executable, str(tmp_path / "engine.py"), str(port_file), *options)
        supervise = [sys.executable, "-I", "-c", SUPERVISE, "--", *(words if started_with is None else started_with)]
        process_environment = {"PATH": "/usr/bin", "NCCL_P2P_LEVEL": "SYS", **environment}
        supervisor = subprocess.Popen(supervise, stdout=subprocess.PIPE, text=True, env=process_environment)
        running_now.append((supervisor, int(supervisor.stdout.readline())))
        while not (port_file.exists() and port_file.read_text()):
            time.sleep(0.01)
        settings = {**SETTINGS, "port": int(port_file.read_text())}
        unit = (
            f"[Service]\nExecStart=/x -- {systemd.command_line(words)}\nEnvironment=NCCL_P2P_LEVEL=SYS PATH=/usr/bin\n"
        )
        wanted = Generation(
            "kimi", UNIT, RELEASE, "1.0",
            (Entry(f"/etc/systemd/system/{UNIT}", content=unit),
             Entry("/etc/inference/kimi/supervisor.json", content=json.dumps(settings))),
        )  # fmt: skip
        store = generations.Store("kimi")
        store.keep(wanted)
        store.installed(wanted)
        state = {"generation": wanted.id, "pid": running_now[-1][1], "supervisor_pid": supervisor.pid}
        (tmp_path / "run" / "kimi").mkdir(parents=True)
        (tmp_path / "run" / "kimi" / "state.json").write_text(json.dumps(state))
        unit_state = systemd.UnitState("loaded", "active", "running", "success", "", supervisor.pid, 0, "")
        monkeypatch.setattr(systemd, "unit_state", lambda _: unit_state)
        return patched

    yield deploy
    for supervisor, child in running_now:
        os.kill(child, signal.SIGKILL)
        supervisor.wait()
        supervisor.stdout.close()


def proved():
    result = proof.prove(gather.gather("kimi"))
    return result, {finding["id"] for finding in result["findings"]}


def test_a_stand_in_that_runs_as_meant_is_proved(deployed):
    deployed()
    result, rules = proved()
    assert rules == set()
    assert result["facts"]["settings"]["tp_size"] == 1
    assert result["facts"]["nccl"]["operator"] == {"NCCL_P2P_LEVEL": "SYS"}
    assert [module["sha256"] == module["sealed"] for module in result["facts"]["release"]["changed_files"]] == [True]
    assert "proof-fallback" in {entry["id"] for entry in result["not_checked"]}  # no journal of this start


@pytest.mark.parametrize(
    ("arguments", "environment", "rule"),
    [
        ({"options": ("--tp-size", "8")}, {}, "proof-option"),
        ({"options": ("--tp-size", "1", "--sampling-backend", "flashinfer")}, {}, "proof-option"),
        ({}, {"NCCL_P2P_LEVEL": "PHB"}, "proof-environment"),
        ({}, {"NCCL_PROTO": "LL"}, "proof-extra-variable"),
        ({}, {"LD_LIBRARY_PATH": "/x"}, "proof-extra-variable"),
    ],
)
def test_a_stand_in_that_does_not_is_not(deployed, arguments, environment, rule):
    deployed(**arguments, **environment)
    assert proved()[1] == {rule}


def test_a_release_that_was_altered_is_found(deployed):
    patched = deployed()
    patched.write_text("x = 2\n")
    assert proved()[1] == {"proof-patched-file"}


def test_a_unit_with_another_main_process_proves_nothing(deployed, monkeypatch):
    deployed()
    gone = systemd.UnitState("loaded", "failed", "failed", "exit-code", "", 0, 0, "exited 1")
    monkeypatch.setattr(systemd, "unit_state", lambda _: gone)
    result, rules = proved()
    assert rules == {"proof-no-process"}
    assert result["ok"] is False


def test_a_process_that_the_service_named_and_that_is_not_below_it_proves_nothing(deployed, tmp_path):
    deployed()
    file = tmp_path / "run/kimi/state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid": os.getpid()}))
    case = gather.gather("kimi")
    assert (case.main, case.supervisor, case.children) == (None, None, [])
    assert f"names process {os.getpid()}, which is none of" in case.why["process"]
    assert proved()[1] == {"proof-no-process"}


def test_what_is_not_installed_is_an_error(deployed):
    with pytest.raises(meant.MeantError, match=r"run site\.yml"):
        gather.gather("other")


def test_the_guide_has_a_section_for_every_finding():
    source = "".join(file.read_text() for file in Path(proof.__file__).parent.glob("*.py"))
    page = (Path(__file__).parent.parent / "docs" / "proof.md").read_text()
    assert set(re.findall(r'"(proof-[a-z-]+)"', source)) == set(
        re.findall(r"^### (proof-[a-z-]+)$", page, re.MULTILINE)
    )
