# SPDX-License-Identifier: Apache-2.0
"""What an operator brings comes out as what it is; healthy input stays quiet; no text crashes it; no secret shows."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.diagnose import READERS, diagnose, known_as_text
from inference.diagnose import unit as diagnose_unit
from inference.diagnose.http import read_exchange
from inference.diagnose.rules import RULES
from inference.signatures import SIGNATURES, STALLS

ROOT = Path(__file__).parent.parent
FIXTURES = ROOT / "tests" / "fixtures" / "reports"

# Report, finding, level, and words that the finding has to hold: the left half of "expected" in INDEX.tsv, then the
# right half's advice.
REPORTS = [
    ("R01", "acs-redirect", "critical", ["ReqRedir", "--disable-custom-all-reduce", "IOMMU"]),
    ("R02", "collective-without-timeout", "warning", ["time limit", "IOMMU", "ACS", "P2P"]),
    ("R04", "p2p-level-is-no-cure", "info", ["NCCL_P2P_LEVEL=SYS", "no cure", "IOMMU", "/proc/cmdline"]),
    ("R05", "pair-classes", "info", ["0-1 (PXB)", "2-3 (PIX)", "0-2 (SYS)"]),
    ("R07", "degenerate-output", "critical", ["degenerate", "GGML_CUDA_P2P=0", "leave out"]),
    ("R09", "nccl-init-stalled", "critical", ["NCCL", "pynccl", "peer-to-peer"]),
    ("R11", "engine-does-not-generate", "critical", ["engine hangs", "prompt of its own"]),
    ("R13", "health-check-failed", "warning", ["no restart for one failed probe", "SGLANG_HEALTH_CHECK_TIMEOUT"]),
    ("R14", "engine-does-not-generate", "critical", ["/health -> 200", "completion"]),
    ("R16", "health-probe-time", "info", ["ready", "5 s or more"]),
    ("R17", "stray-engine-processes", "critical", ["3 found", "refuse to start", "KillMode=mixed"]),
    ("R19", "start-timeouts-contradict", "critical", ["600", "300", "raise TimeoutStartSec"]),
    ("R21", "gpu-memory-in-use", "critical", ["StartLimitBurst", "compute-apps"]),
    ("R22", "unit-start-timeout", "critical", ["raise TimeoutStartSec", "ExecStartPost", "infinity"]),
    ("R24", "port-in-use", "critical", ["find the owner", "ss -ltnp", "TIME_WAIT", "RestartSec"]),
    ("R25", "cuda-home-malformed", "critical", ["CUDA_HOME", "leading colon", "one absolute path"]),
    ("R27", "jit-environment", "info", ["nvcc's directory and the system's are both in PATH", "first request"]),
    ("R29", "home-unset", "critical", ["HOME is unset or /", "CacheDirectory=", "VLLM_CACHE_ROOT", "XDG_CACHE_HOME"]),
    ("R30", "triton-cache-overridden", "warning", ["TRITON_CACHE_DIR", "VLLM_CACHE_ROOT"]),
    ("R32", "dev-shm-full", "critical", ["/dev/shm is full", "nccl-*", "psm_*", "df -h"]),
    ("R34", "driver-upgraded", "warning", ["unattended upgrade", "reboot is pending", "apt-mark hold"]),
    ("R35", "secret-in-command-line", "critical", ["ExecStart=", "LoadCredential="]),
    ("R37", "file-mode", "critical", ["664 .sglang.log", "chmod 600", "journal"]),
    ("R38", "metrics-not-scrapeable", "warning", ["/metrics", "401", "loopback or firewall"]),
    ("R39", "xid-8", "critical", ["Xid 8 on 0000:01:00"]),
    ("R41", "gpu-count-dropped", "critical", ["1 GPU lost", "temperature"]),
    ("R42", "xid-154", "critical", ["Reboot Required", "IO_PAGE_FAULT"]),
    ("R43", "gpu-names", "info", ["compute capability 12.0", "do not restart for ever"]),
    ("R44", "gpu-names", "info", ["all 5", "Blackwell PCIe workstation/server class", "RTX 6000D", "prefix"]),
    ("R45", "variable-unknown", "warning", ["VLLM_ATTENTION_BACKEND", "no effect"]),
]
NOT_FAULTY = {"R05", "R16", "R27", "R43", "R44"}
"""Reports whose input itself is in order."""


def fixture(report):
    return next(FIXTURES.glob(f"report_{report}_*.txt")).read_text()


def found(text):
    return {finding.id: finding for finding in diagnose(text).report.findings}


def pressing(text):
    return {finding.id for finding in diagnose(text).report.findings if finding.level != "info"}


@pytest.mark.parametrize(("report", "finding_id", "level", "words"), REPORTS)
def test_each_report_comes_out_as_it_has_to(report, finding_id, level, words):
    findings = found(fixture(report))
    assert finding_id in findings, list(findings)
    finding = findings[finding_id]
    assert finding.level == level
    whole = " ".join((finding.what, finding.seen, finding.expected, finding.fix))
    assert [word for word in words if word not in whole] == []


def test_every_report_of_the_index_is_tested():
    rows = (FIXTURES / "INDEX.tsv").read_text().splitlines()[1:]
    assert {row.split("_")[1] for row in rows} == {report for report, *_ in REPORTS}


@pytest.mark.parametrize(("report", "finding_id", "level", "words"), REPORTS)
def test_the_exit_code_says_whether_something_is_wrong(report, finding_id, level, words):
    code = diagnose(fixture(report)).report.exit_code
    assert code == (0 if report in NOT_FAULTY else {"critical": 2, "warning": 1, "info": 1}[level])


def test_all_reports_in_one_input_are_all_found():
    text = "\n\n".join(fixture(report) for report, *_ in REPORTS)
    expected = {finding_id for _, finding_id, _, _ in REPORTS} - {
        # these say that nothing else is in the input: the log ends, the server generates, the file is no unit
        "nccl-init-stalled", "health-probe-time", "jit-environment", "triton-cache-overridden",
    }  # fmt: skip
    assert expected - set(found(text)) == set()


@pytest.mark.parametrize("log", sorted(FIXTURES.glob("healthy_*.log")), ids=lambda path: path.name)
def test_healthy_logs_are_quiet(log):
    diagnosis = diagnose(log.read_text())
    assert [f for f in diagnosis.report.findings if f.level != "info"] == []
    assert diagnosis.kinds == ["log"]
    assert diagnosis.report.exit_code == 0


def test_what_cannot_be_seen_is_said_and_changes_nothing():
    report = diagnose((FIXTURES / "healthy_stop_journal.log").read_text()).report
    assert {entry.id for entry in report.not_checked} == {"kernel", "unit", "exchange", "processes"}
    assert report.exit_code == 0


@pytest.mark.parametrize("text", ["", "\n\n", "hello world\nthis is nothing", "\0\0"])
def test_unknown_input_is_not_called_fine(text):
    report = diagnose(text).report
    assert [finding.id for finding in report.findings] == ["unrecognised-input"]
    assert report.exit_code == 3


def test_what_only_the_topology_room_knows_is_recognised():
    version = "NVIDIA-SMI version  : 595.80\nNVML version        : 595.80\n"
    version += "DRIVER version      : 595.80\nCUDA Version        : 13.2\n"
    diagnosis = diagnose(version)
    assert diagnosis.kinds == ["version"] and diagnosis.report.exit_code == 0
    assert "topology" in {entry.id for entry in diagnosis.report.not_checked}


# logs

JOURNAL = """\
Dec 01 10:00:01 h systemd[1]: vllm.service: State 'stop-sigterm' timed out. Killing.
Dec 01 10:00:02 h vllm[1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
Dec 01 10:00:03 h vllm[1]: RuntimeError: Engine core initialization failed. See root cause above.
Dec 01 10:00:05 h vllm[1]: [Errno 98] error while attempting to bind on address ('::', 80): address already in use
Dec 01 10:00:06 h systemd[1]: vllm.service: Scheduled restart job, restart counter is at 35.
"""


def test_the_root_cause_comes_first():
    assert diagnose(JOURNAL).report.findings[0].id == "cuda-out-of-memory"
    assert {"port-in-use", "restart-storm", "unit-stop-timeout", "worker-died"} <= set(found(JOURNAL))


def test_a_few_restarts_are_no_storm():
    assert "restart-storm" not in found(
        "Dec 01 10:00:06 h systemd[1]: x: Scheduled restart job, restart counter is at 2."
    )


FAILED = (
    "[2026-11-30 05:00:{:02}] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds."
)
BATCH = "[2026-11-30 05:00:30 TP0] Prefill batch, #new-seq: 1, #new-token: 8192"


def test_failed_health_checks_with_batches_between_them_are_a_long_prefill():
    lines = [FAILED.format(1), BATCH, FAILED.format(2), BATCH, FAILED.format(3)]
    assert pressing("\n".join(lines)) == {"health-check-failed"}


def test_failed_health_checks_in_a_row_are_a_hang():
    assert "engine-does-not-generate" in pressing("\n".join(FAILED.format(n) for n in range(3)))


def test_a_log_that_goes_on_after_nccl_is_no_stall():
    text = fixture("R09") + "INFO [gpu_model_runner.py:4979] Starting to load model /m...\n"
    assert "nccl-init-stalled" not in found(text)


def test_an_error_explains_a_log_that_ends_in_nccl():
    text = "RuntimeError: CUDA error: out of memory\n" + fixture("R09")
    assert "nccl-init-stalled" not in found(text)


NCCL_START = "host:9:9 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 2 busId 60 commId 0xe - Init START"
NCCL_CHANNEL = "host:9:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
NCCL_DONE = NCCL_START.replace("START", "COMPLETE")
NCCL_WORK = "host:9:9 [0] NCCL INFO AllReduce: 11264 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"


@pytest.mark.parametrize(
    ("lines", "stalled"),
    [
        ([NCCL_START], True),
        ([NCCL_START, NCCL_CHANNEL], True),
        ([NCCL_START, NCCL_CHANNEL, NCCL_DONE], True),
        ([NCCL_START, NCCL_CHANNEL, NCCL_DONE, NCCL_WORK], False),
        ([NCCL_WORK], False),
    ],
)
def test_ends_of_an_nccl_log(lines, stalled):
    assert ("nccl-init-stalled" in found("\n".join(lines))) is stalled


def test_xids_are_grouped_by_gpu_and_number():
    line = "NVRM: Xid (PCI:0000:{}:00): 119, pid=6211, name=nvidia-smi, Timeout after 45s of waiting\n"
    findings = [f for f in diagnose(line.format("01") * 2 + line.format("02")).report.findings if f.id == "xid-119"]
    assert ["2 times" in finding.seen for finding in findings] == [True, False]


# secrets

SECRET = "s3cr3tV4lue99"
LEAKS = [
    (f"ExecStart=/opt/v/bin/vllm serve /m --api-key {SECRET}", "secret-in-command-line"),
    (f"ExecStart=/opt/v/bin/vllm serve /m \\\n  --port 8000 \\\n  --api-key={SECRET}", "secret-in-command-line"),
    (f"[Service]\nEnvironment=HF_TOKEN={SECRET}", "secret-in-unit"),
    (f"VLLM_API_KEY={SECRET}", "secret-in-environment-file"),
    (f"[2026-11-30 04:58:35] server_args=ServerArgs(model_path='/m', api_key='{SECRET}')", "secret-in-log"),
    (f"INFO non-default args: {{'api_key': ['{SECRET}']}}", "secret-in-log"),
    (f'{{"model_path":"/m","admin_api_key":"{SECRET}"}}', "secret-in-log"),
    (f"infer 21913 1 0 10:00 ? 00:01:00 python -m sglang.launch_server --api-key {SECRET}", "secret-in-command-line"),
    (f"  21913 vllm serve /m --api-key {SECRET}", "secret-in-command-line"),
]


@pytest.mark.parametrize(("text", "finding_id"), LEAKS)
def test_a_secret_is_found_and_never_repeated(text, finding_id):
    diagnosis = diagnose(text)
    assert finding_id in {finding.id for finding in diagnosis.report.findings}
    assert SECRET not in json.dumps(diagnosis.report.as_dict())
    assert SECRET not in diagnosis.report.as_text()


@pytest.mark.parametrize(
    "command",
    [
        "ExecStart=/opt/v/bin/vllm serve /m \\\n    --port 8000 \\\n    --api-key {}\n",
        "docker run --ipc=host \\\n  vllm/vllm-openai --model m \\\n  --api-key {}\n",
        "$ curl http://127.0.0.1:8000/v1/models \\\n  -H 'Authorization: Bearer {}'\n",
    ],
)
def test_the_rest_of_a_command_is_no_log(command):
    assert "secret-in-log" not in found(command.format(SECRET))
    assert "secret-in-log" in found(command.format(SECRET) + f"INFO api_key='{SECRET}'\n")


def test_a_client_that_gives_its_key_leaked_nothing():
    text = f"$ curl -s http://127.0.0.1:8000/v1/models -H 'Authorization: Bearer {SECRET}'\nHTTP/1.1 200 OK\n"
    assert not {finding_id for finding_id in found(text) if finding_id.startswith("secret")}
    assert SECRET not in diagnose(text).report.as_text()


# units

UNIT = """\
[Unit]
Description=SGLang
StartLimitIntervalSec=7200
StartLimitBurst=5
[Service]
Type=notify
User=inference
Environment=HOME=/var/lib/inference CUDA_HOME=/usr/local/cuda
Environment=PATH=/usr/local/cuda/bin:/opt/x/bin:/usr/local/bin:/usr/bin:/bin
ExecStart=/opt/x/bin/python -m sglang.launch_server --model-path /m --host 127.0.0.1 --config %d/config
LoadCredential=config:/etc/inference/kimi/config
Restart=on-failure
RestartSec=30
TimeoutStartSec=900
TimeoutStopSec=180
KillMode=mixed
LimitNOFILE=1048576
LimitMEMLOCK=infinity
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
[Install]
WantedBy=multi-user.target
"""

FAULTS = [
    ("Restart=on-failure", "Restart=unless-stopped", "unit-value-invalid"),
    ("StartLimitIntervalSec=7200\n", "", "restart-without-limit"),
    ("StartLimitIntervalSec=7200", "StartLimitIntervalSec=0", "restart-without-limit"),
    ("StartLimitIntervalSec=7200", "StartLimitIntervalSec=120", "restart-without-limit"),
    ("StartLimitIntervalSec=7200", "StartLimitIntervalSec=1h", "restart-without-limit"),
    ("TimeoutStartSec=900\n", "", "start-timeout-too-small"),
    ("TimeoutStartSec=900", "TimeoutStartSec=2min", "start-timeout-too-small"),
    ("TimeoutStopSec=180", "TimeoutStopSec=10", "stop-timeout-too-small"),
    ("KillMode=mixed", "KillMode=process", "kill-mode-leaves-workers"),
    ("KillMode=mixed", "SuccessExitStatus=SIGKILL", "crash-counts-as-success"),
    ("KillMode=mixed", "SuccessExitStatus=0 143 137", "crash-counts-as-success"),
    ("HOME=/var/lib/inference", "HOME=/", "home-unset"),
    ("HOME=/var/lib/inference", "HOME=/nonexistent", "home-unset"),
    ("User=inference\nEnvironment=HOME=/var/lib/inference", "DynamicUser=yes\nEnvironment=X_Y=1", "home-unset"),
    ("User=inference\n", "", "runs-as-root"),
    ("CUDA_HOME=/usr/local/cuda", "CUDA_HOME=:/usr/local/cuda", "cuda-home-malformed"),
    ("CUDA_HOME=/usr/local/cuda", "CUDA_HOME=", "cuda-home-malformed"),
    ("CUDA_HOME=/usr/local/cuda", "CUDA_HOME=${CUDA_HOME}:/usr/local/cuda", "cuda-home-malformed"),
    ("CUDA_HOME=/usr/local/cuda", "CUDA_HOME=/usr/local/cuda/bin", "cuda-home-malformed"),
    ("CUDA_HOME=/usr/local/cuda", "CUDA_HOME=usr/local/cuda", "cuda-home-malformed"),
    ("PATH=/usr/local/cuda/bin:/opt/x/bin:/usr/local/bin:/usr/bin:/bin", "PATH=/opt/x/bin", "path-incomplete"),
    ("PATH=/usr/local/cuda/bin:/opt/x/bin", "PATH=$PATH:/opt/x/bin", "path-incomplete"),
    ("--host 127.0.0.1", "--host 0.0.0.0", "listens-everywhere"),
    ("LimitNOFILE=1048576", "LimitNOFILE=1024", "limits-too-small"),
    ("LimitMEMLOCK=infinity", "LimitMEMLOCK=64K", "limits-too-small"),
    ("[Install]", "PrivateDevices=yes\n[Install]", "sandbox-breaks-engine"),
    ("[Install]", "MemoryDenyWriteExecute=true\n[Install]", "sandbox-breaks-engine"),
    ("[Install]", "ProcSubset=pid\n[Install]", "sandbox-breaks-engine"),
    ("~@privileged", "~@privileged @resources", "sandbox-breaks-engine"),
    (" AF_NETLINK", "", "sandbox-breaks-engine"),
    ("--config %d/config", "--api-key abcdef", "secret-in-command-line"),
]


def test_a_good_unit_is_quiet():
    assert pressing(UNIT) == set()


@pytest.mark.parametrize(("before", "after", "finding_id"), FAULTS)
def test_each_fault_of_a_unit_is_found(before, after, finding_id):
    assert before in UNIT
    assert finding_id in pressing(UNIT.replace(before, after, 1))


def test_information_about_a_unit():
    assert "jit-environment" in found(UNIT)
    assert "remote-code-trusted" in found(UNIT.replace("--host", "--trust-remote-code --host"))
    assert "start-timeout-without-effect" in found(UNIT.replace("Type=notify", "Type=simple"))


def test_a_supervised_unit_may_have_a_short_start_timeout():
    unit = UNIT.replace("TimeoutStartSec=900", "TimeoutStartSec=60\nWatchdogSec=30")
    assert pressing(unit) == set()
    assert (
        pressing(
            "[Service]\nType=notify\nWatchdogSec=30\nTimeoutStartSec=60\nEnvironment=VLLM_ENGINE_READY_TIMEOUT_S=600"
        )
        == set()
    )


def test_a_drop_in_is_not_blamed_for_what_it_leaves_to_the_unit():
    assert (
        pressing("[Service]\nExecStart=\nExecStart=/opt/x/bin/python -m sglang.launch_server --host 127.0.0.1") == set()
    )
    assert pressing("Restart=on-failure") == set()


def test_fragments_that_are_certainly_wrong():
    assert "restart-without-limit" in pressing("Restart=always\nRestartSec=3")
    assert "start-timeout-too-small" in pressing("Type=notify\nTimeoutStartSec=90")
    assert "kill-mode-leaves-workers" in pressing("KillMode=process")


def test_timeouts_in_order_do_not_contradict():
    assert pressing("VLLM_ENGINE_READY_TIMEOUT_S=600\nTimeoutStartSec=900") == set()


def test_triton_cache_is_only_vllms_trouble():
    assert pressing("TRITON_CACHE_DIR=/a\nVLLM_CACHE_ROOT=/b") == set()
    assert pressing("# SGLang's caches\nSGLANG_CACHE_DIR=/c\nTRITON_CACHE_DIR=/a") == set()


def test_nccl_settings_are_linted_with_the_topology_and_version_in_the_input():
    settings_and_log = "NCCL_PROTO=LL,LL128,Simple\nsglang is using nccl==2.28.9\n" + fixture("R05")
    assert "nccl-ll128-across-sys" in pressing(settings_and_log) | set(found(settings_and_log))
    assert "nccl-ll128-forced" in pressing("NCCL_PROTO=LL,LL128,Simple")


def test_the_default_profile_is_quiet():
    report_a = "PROTO=LL,ALGO=Ring,P2P_LEVEL=SYS,MAX_NCHANNELS=16,BUFFSIZE=16777216,NTHREADS=512"
    assert pressing("\n".join(f"NCCL_{setting}" for setting in report_a.split(","))) == set()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("5min 20s", 320),
        ("infinity", float("inf")),
        ("1h", 3600),
        ("500ms", 0.5),
        ("2 minutes", 120),
        ("soon", None),
        ("", None),
    ],
)
def test_time_spans(text, seconds):
    assert diagnose_unit.span_seconds(text) == seconds


# exchanges

CURL_HANG = """\
$ curl -i http://127.0.0.1:30000/health
HTTP/1.1 200 OK

$ curl -m 60 http://127.0.0.1:30000/v1/completions -d '{"prompt":"x"}'
curl: (28) Operation timed out after 60001 milliseconds with 0 bytes received
"""
CURL_REFUSED = "$ curl http://127.0.0.1:30000/health\ncurl: (7) Failed to connect to 127.0.0.1 port 30000"
VERBOSE = "> GET /metrics HTTP/1.1\n> Host: x\n< HTTP/1.1 403 Forbidden\n"


@pytest.mark.parametrize(
    ("text", "finding_id"),
    [
        (CURL_HANG, "engine-does-not-generate"),
        ("POST /generate -> (no response after 120 s)", "engine-does-not-generate"),
        ("GET /health -> 200 OK\nPOST /v1/chat/completions -> connection reset by peer", "engine-does-not-generate"),
        ("POST /v1/completions -> 500 Internal Server Error", "generation-refused"),
        ("POST /v1/completions -> 404", "generation-refused"),
        ("POST /v1/completions -> 401", "key-needed"),
        ("GET /health -> 401", "key-needed"),
        ("POST /v1/completions -> connection refused", "server-not-listening"),
        (CURL_REFUSED, "server-not-listening"),
        ("GET /health -> 503", "server-not-ready"),
        ("GET /health -> timeout after 1 s", "server-not-ready"),
        ("/health 200\n/v1/completions timeout", "engine-does-not-generate"),
        ("/metrics: 401", "metrics-not-scrapeable"),
        (VERBOSE, "metrics-not-scrapeable"),
        ("GET /metrics -> 404", "metrics-not-scrapeable"),
        ('INFO: 10.0.0.5:4 - "GET /metrics HTTP/1.1" 401 Unauthorized', "metrics-not-scrapeable"),
        ('INFO: 10.0.0.5:4 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error', "generation-refused"),
        ('{"choices":[{"text":"++++++++++++++++++++++++"}]}', "degenerate-output"),
        ('{"choices":[{"message":{"content":"the the the the the the the the the "}}]}', "degenerate-output"),
        ('{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}', "degenerate-output"),
        ('{"text":"!!!!!!!!!!!!!!!!!!!!","meta_info":{}}', "degenerate-output"),
        ('POST /v1/completions -> 200 {"choices": [{"text": "!!!!!!!!!!!!!!!!!!!!"}]}', "degenerate-output"),
        ("\n".join(['data: {"choices":[{"delta":{"content":"!!!!!!!!!!"}}]}'] * 2), "degenerate-output"),
        ('{"choices":[{"text":"answer 中文 это العربية"}]}', "suspicious-output"),
    ],
)  # fmt: skip
def test_each_fault_of_an_exchange(text, finding_id):
    assert finding_id in pressing(text)


@pytest.mark.parametrize(
    "text",
    [
        "GET /health -> 200\nPOST /v1/completions -> 200",
        "GET /health -> 200 in 0.05 s",
        "GET /metrics -> 200",
        "GET /health -> 503\nGET /health -> 200",
        '{"choices":[{"message":{"content":"The capital of France is Paris."},"finish_reason":"stop"}]}',
        '{"choices":[{"message":{"content":null,"tool_calls":[{"id":"x"}]}}]}',
        'data: {"choices":[{"delta":{"content":""}}]}\ndata: {"choices":[{"delta":{"content":"Paris"}}]}\ndata: [DONE]',
        'INFO: 127.0.0.1:4 - "GET /health HTTP/1.1" 503 Service Unavailable',
    ],
)
def test_a_healthy_exchange_is_quiet(text):
    assert pressing(text) == set()


def test_one_failed_probe_beside_a_completion_is_no_fault():
    findings = found("POST /v1/completions -> 200\nGET /health -> timeout")
    assert findings["server-not-ready"].level == "info"


def test_a_slow_probe_gets_a_longer_timeout():
    slow = found("GET /health -> 200 in 9 s")["health-probe-time"]
    assert (slow.level, "18 s or more" in slow.fix) == ("warning", True)
    assert "5 s or more" in found("GET /health -> 200 in 1500 ms")["health-probe-time"].fix


@pytest.mark.parametrize(
    "body", ["{", '{"choices": 3}', '{"choices": [3, {"message": 4}]}', "[" * 5000, '{"choices":' * 500]
)
def test_broken_bodies_are_no_trouble(body):
    read_exchange([body, f"data: {body}"])


# hosts

PS_AUX = """\
USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND
infer      21913  5.0  0.3 9000000 800000 ?      Ssl  10:00   1:00 /opt/v/bin/python -m sglang.launch_server --model /m
infer      21950 99.0  1.3 9000000 800000 ?      Rl   10:00  10:00 sglang::scheduler_TP0
"""
PS_EF = """\
UID          PID    PPID  C STIME TTY          TIME CMD
infer      31950       1 99 10:00 ?        00:10:00 sglang::scheduler_TP0
infer      31951   31950  1 10:00 ?        00:00:10 sglang::detokenizer
"""
PS_O = "21913 1 /opt/v/bin/vllm serve /m\n21950 21913 VLLM::EngineCore\n21960 21950 VLLM::Worker_TP0\n"
PS_STATE = "  PID  PPID STAT                  STARTED CMD\n77637     1 R    Wed Sep 17 12:51:13 2025 VLLM::EngineCore\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (PS_AUX, 0),
        ("\n".join(line for line in PS_AUX.splitlines() if "launch_server" not in line), 1),
        (PS_EF, 2),
        (PS_O, 0),
        (PS_O.replace("vllm serve", "bash"), 2),
        (PS_STATE, 1),
        ("21960, VLLM::Worker_TP0, 90112 MiB\n21961, VLLM::Worker_TP1, 90112 MiB\n", 2),
        ("21950 VLLM::EngineCore\n21913 vllm serve /m\n", 0),
        ("5 5 VLLM::Worker\n", 1),
        ("|    0   N/A  N/A           21950      C   VLLM::Worker_TP0                      90112MiB |\n", 1),
    ],
)
def test_stray_processes_are_counted(text, count):
    stray = found(text).get("stray-engine-processes")
    assert (f"{count} found" in stray.what) if count else stray is None
    assert "processes" in diagnose(text).kinds


def test_other_processes_are_no_engine():
    assert "processes" not in diagnose("1 0 systemd\n77 1 sshd\n").kinds


@pytest.mark.parametrize(
    ("line", "finding_id"),
    [
        ("664 .sglang.log", "file-mode"),
        ("0644 /var/log/sglang.log", "file-mode"),
        ("-rw-rw-r-- 1 infer infer 1234 Nov 30 10:00 sglang.log", "file-mode"),
        ("-rw-r--r-- 1 root root 33 2026-11-30 10:00 api_key", "file-mode"),
        ("640 root:inference /etc/inference/kimi/api-key.txt", "file-mode"),
        ("-rwxrwxrwx 1 root root 33 Nov 30 10:00 supervisor", "file-mode"),
        ("  File: /var/log/vllm.log\nAccess: (0664/-rw-rw-r--)  Uid: ( 1000/ infer)", "file-mode"),
        ("-rw------- 1 root root 4.9G Nov 30 10:00 model-00001-of-00002.safetensors", "model-file-mode"),
        ("600 config.json", "model-file-mode"),
    ],
)
def test_wrong_modes(line, finding_id):
    assert finding_id in pressing(line)


@pytest.mark.parametrize(
    "line",
    [
        "600 .sglang.log",
        "0640 /var/log/sglang.log",
        "-rw------- 1 root root 33 Nov 30 10:00 api_key",
        "-rw-r--r-- 1 root root 33 Nov 30 10:00 tokenizer.json",
        "644 special_tokens_map.json",
        "drwxrwxrwt 9 root root 4096 Nov 30 10:00 tmp",
        "lrwxrwxrwx 1 root root 7 Nov 30 10:00 bin -> usr/bin",
        "644 model-00001-of-00002.safetensors",
    ],
)
def test_right_modes(line):
    diagnosis = diagnose(line)
    assert pressing(line) == set() and diagnosis.kinds == ["files"]


def test_acs():
    assert found("ACSCtl: SrcValid+ TransBlk- ReqRedir- CmpltRedir-")["acs-redirect"].level == "warning"
    grepped = "ACSCtl: SrcValid+ ReqRedir+ CmpltRedir+\nACSCtl: SrcValid- ReqRedir- CmpltRedir-"
    assert found(grepped)["acs-redirect"].level == "critical"
    assert pressing("ACSCtl: SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-") == set()


def test_a_narrow_link():
    device, capability = "41:00.0 VGA compatible controller: NVIDIA", "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16"
    text = f"{device}\n{capability}\n\t\tLnkSta:\tSpeed 32GT/s, Width x8 (downgraded)\n"
    assert "link-narrow" in pressing(text)


def test_pairs_without_peer_access():
    legend = "\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n"
    text = " \tGPU0\tGPU1\n GPU0\tX\tCNS\n GPU1\tCNS\tX" + legend
    assert "CNS: 0-1" in found(text)["p2p-not-ok"].seen


def test_a_matrix_that_is_cut_off_is_not_judged():
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tPIX\n"
    assert "pair-classes" not in found(text)


@pytest.mark.parametrize(
    ("line", "capability"),
    [
        ("GPU 0: NVIDIA RTX PRO 6000 Blackwell Server Edition (UUID: GPU-1)", "12.0"),
        ("NVIDIA RTX 6000D", "12.0"),
        ("0, NVIDIA RTX PRO 6000D Blackwell Workstation Edition, 0, 97887 MiB", "12.0"),
        ("NVIDIA GeForce RTX 5090", "12.0"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9"),
        ("GPU 0: NVIDIA H200 (UUID: GPU-2)", "9.0"),
        ("NVIDIA B200", "10.0"),
    ],
)
def test_names_and_capabilities(line, capability):
    assert f"compute capability {capability}" in found(line)["gpu-names"].what


def test_package_history():
    dpkg = "2026-11-30 06:50:54 upgrade nvidia-dkms-595-open:amd64 595.45.04-1 595.58.03-1"
    assert "by hand" in found(dpkg)["driver-upgraded"].what
    assert pressing("Start-Date: x\nCommandline: apt upgrade\nUpgrade: curl:amd64 (1, 2)\nEnd-Date: x") == set()


def test_driver_versions():
    module = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.90.07  Fri May 31 09:35:42 UTC 2024\n"
    assert "driver-mismatch" in pressing(module + "NVML library version: 550.120")
    assert "driver-mismatch" in pressing(
        module + "| NVIDIA-SMI 555.42  Driver Version: 555.42.06  CUDA Version: 12.5 |"
    )
    assert pressing(module + "NVML library version: 550.90") == set()
    assert diagnose(module).report.not_checked[0].id == "driver-mismatch"


@pytest.mark.parametrize(
    "listing", ["nccl-Ewjreo\nnccl-AbC123\npsm_1a2b3c4d", "/dev/shm/nccl-Ewjreo", "nccl-Ewjreo  sem.mp-x1"]
)
def test_leftover_segments(listing):
    assert "shm-leftovers" in pressing(listing)


def test_containers():
    command = "docker run --gpus all \\\n  -p 8000:8000 vllm/vllm-openai --model m"
    assert "container-shm-small" in pressing(command)
    assert pressing(command.replace("--gpus", "--ipc=host --gpus")) == set()
    assert "secret-in-command-line" in pressing(command + " --api-key s3cr3t99")


def test_the_result_of_a_collective_test_is_recognised_and_quiet():
    result = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 21.3\n"
    assert diagnose(result).kinds == ["commands"] and pressing(result) == set()
    assert "collective-wrong-data" in pressing(result.replace("0 OK", "8 FAILED"))


def test_counts():
    assert pressing("before: 8\nafter: 8") == set()
    assert "2 GPUs lost" in found("expected: 8\nfound: 6 GPUs")["gpu-count-dropped"].what
    assert "counts" not in diagnose("after: 3").kinds


@pytest.mark.parametrize(
    ("command", "faulty"),
    [
        ("./build/all_reduce_perf -b 8 -e 512M -g 2", True),
        ("mpirun -np 8 ./alltoall_perf -b 8", True),
        ("timeout 120 ./build/all_reduce_perf -b 8 -e 512M -g 2", False),
        ("./build/all_reduce_perf -b 8 -e 512M -g 2 -T 60", False),
        ("$ ./build/all_reduce_perf -g 2\n# Avg bus bandwidth    : 21.3", False),
    ],
)
def test_collective_commands(command, faulty):
    assert ("collective-without-timeout" in pressing(command)) is faulty


# tables and robustness


def test_every_rule_can_be_read_and_none_has_the_id_of_a_harmless_line():
    harmless = {row.id for row in SIGNATURES if row.role == "harmless"}
    for rule in RULES.values():
        assert rule.what and rule.expected and rule.source, rule.id
        assert rule.fix or rule.level == "info", rule.id
        assert rule.id not in harmless


def test_the_guide_holds_the_tables_as_they_are():
    guide = (ROOT / "docs" / "diagnose.md").read_text()
    assert guide.endswith(known_as_text() + "\n"), "print them anew: scripts/diagnose --known"
    ids = {row.id for row in SIGNATURES} | set(RULES) | {row.id for row in STALLS.values()}
    assert {finding_id for finding_id in ids if f"| `{finding_id}` |" not in guide} == set()


FRAGMENTS = st.sampled_from(
    [
        *(line for path in FIXTURES.glob("report_*.txt") for line in path.read_text().splitlines()),
        *UNIT.splitlines(),
        *PS_AUX.splitlines(),
    ]
)


@given(st.lists(st.one_of(st.text(max_size=60), FRAGMENTS), max_size=30))
@settings(max_examples=300, deadline=None)
def test_no_text_crashes_it(lines):
    report = diagnose("\n".join(lines)).report
    json.dumps(report.as_dict())
    assert report.as_text()


@given(FRAGMENTS, st.integers(0, 120), st.text(max_size=5))
@settings(max_examples=300, deadline=None)
def test_no_damaged_line_crashes_it(line, position, noise):
    diagnose(line[:position] + noise + line[position:])


def test_each_reader_is_none_for_nothing():
    for read in READERS:
        assert read([]) is None
        assert read(["lorem ipsum"]) is None


# what a log went through on its way here

OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 94.97 GiB in all."
NOT_THERE = "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"
WRAPPED = (
    "(EngineCore pid=1810465) ERROR 11-30 11:03:37 [core.py:712] ValueError: Free memo\n"
    "ry on device (7.34/94.97 GiB) on startup is less than desired GPU memory utilizat\n"
    "ion (0.9, 85.47 GiB).\n"
)
BETWEEN_WORDS = "[core.py:712] ValueError: Free memory on device (7.34/94.97 GiB) on startup is\nless than desired.\n"


@pytest.mark.parametrize(
    ("text", "finding_id"),
    [
        (OUT_OF_MEMORY.replace(" ", "\u00a0"), "cuda-out-of-memory"),
        (OUT_OF_MEMORY.replace("CUDA", "^[[31mCUDA^[[0m"), "cuda-out-of-memory"),
        (OUT_OF_MEMORY.replace("CUDA", r"\u001b[31mCUDA\u001b[0m"), "cuda-out-of-memory"),
        (OUT_OF_MEMORY.replace("\n", "\r"), "cuda-out-of-memory"),
        (NOT_THERE.replace("'", "&#x27;"), "ninja-missing"),
        (NOT_THERE.replace("'", "\u2019"), "ninja-missing"),
        (WRAPPED, "gpu-memory-in-use"),
        (BETWEEN_WORDS, "gpu-memory-in-use"),
    ],
)
def test_traces_of_a_journey_hide_nothing(text, finding_id):
    assert finding_id in pressing(text)


@pytest.mark.parametrize(
    "text",
    [
        # two records of their own, a short piece, and pieces that are known by themselves
        WRAPPED.replace("\nry", "\n[2026-11-30 10:00:00] ry"),
        "Free memo\nry on device is less than desired",
        "x" * 80 + "\n" + "y" * 80,
    ],
)
def test_lines_that_belong_apart_stay_apart(text):
    assert "gpu-memory-in-use" not in found(text)


def test_a_joined_line_keeps_the_number_of_its_first_piece():
    assert found("INFO starting\n" + WRAPPED)["gpu-memory-in-use"].seen.startswith("line 2: ")


TRACEBACK = 'Traceback (most recent call last):\n  File "/x/a.py", line 3, in f\n    g()\nAcmeError: no such gadget\n'


def test_an_error_that_no_table_knows_is_shown_and_not_called_fine():
    report = diagnose(TRACEBACK).report
    assert report.exit_code == 3
    assert [(f.id, "AcmeError: no such gadget" in f.seen) for f in report.findings] == [("exception-unknown", True)]
    echo = "[2026-11-30 10:00:00] Received sigquit from a child process. It usually means the child failed."
    assert [f.id for f in diagnose(TRACEBACK + echo).report.findings] == ["exception-unknown", "worker-died"]
    assert "exception-unknown" in found("AcmeError: no such gadget")


def test_a_bare_assertion_is_shown_with_its_line_of_code():
    prefix = "(Worker_TP1 pid=9) ERROR 11-30 10:00:00 [multiproc_executor.py:888] "
    text = "".join(
        f"{prefix}{line}\n" for line in ("Traceback (most recent call last):", "    assert a.ok", "AssertionError")
    )
    (finding,) = [f for f in diagnose(text).report.findings if f.id == "exception-unknown"]
    assert "AssertionError (assert a.ok)" in finding.seen
    cancelled = TRACEBACK.replace("AcmeError: no such gadget", "asyncio.exceptions.CancelledError")
    assert "exception-unknown" not in found(cancelled)


@pytest.mark.parametrize(
    "said",
    [
        "ValueError: Unrecognized dtype: auto",
        "RuntimeError: query and key must have the same dtype",
        "RuntimeError: Worker failed with error 'an fp8 KV cache requires an fp8 prefill query'",
        "NotImplementedError: MLA with this cache is not supported.",
        'ValueError("the drafter does not support prefix caching")',
    ],
)
def test_a_refused_combination_is_told_from_an_unknown_error(said):
    findings = found(TRACEBACK.replace("AcmeError: no such gadget", said))
    assert findings["combination-refused"].level == "critical" and "exception-unknown" not in findings
    assert "combination-refused" not in found(TRACEBACK.replace("AcmeError: no such gadget", said) + BATCH)


def test_an_error_that_is_known_or_was_survived_is_not_called_unknown():
    assert "exception-unknown" not in found(TRACEBACK + OUT_OF_MEMORY)
    assert "exception-unknown" not in found(TRACEBACK + BATCH)
    assert "exception-unknown" not in found("INFO 1\n" * 9 + "the AcmeError: nobody knows it\n")


SILENT = (
    "(EngineCore pid=2) INFO 11-30 14:44:{} [shm_broadcast.py:681] No available shared memory broadcast block found in "
)
SILENT += "60 seconds.\n"


def test_workers_that_are_silent_to_the_end_hang_and_others_only_build():
    waits = "".join(SILENT.format(second) for second in (10, 11, 12))
    assert pressing(waits) == {"engine-hung", "workers-silent"}
    assert diagnose(waits).report.findings[0].id == "engine-hung"
    assert pressing(waits + "INFO 11-30 14:45:10 [gpu_worker.py:232] Available KV cache memory: 26.91 GiB") == {
        "workers-silent"
    }


@pytest.mark.parametrize(
    "last",
    [
        "h:9:9 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>",
        "h:9:9 [0] NCCL INFO cudaDriverVersion 13000",
        "NCCL version 2.28.9+cuda13.0",
        "h:9:9 [1] NCCL INFO Channel 01 : 1[1] -> 0[0] via SHM/direct/direct",
    ],
)
def test_a_log_that_ends_in_the_midst_of_nccl_is_a_stall(last):
    assert "nccl-init-stalled" in pressing("INFO vLLM is using nccl==2.28.9\n" + last)


POINTER = "-rw-r--r-- 1 root root {} {} 14:27 model-00004-of-00015.safetensors"


def test_a_pointer_in_place_of_weights():
    assert "135 bytes" in found(POINTER.format(135, "Nov 30"))["weight-file-small"].seen
    assert "weight-file-small" in found(POINTER.format(135, "8月   1"))
    assert "weight-file-small" not in found(POINTER.format("9.3G", "Nov 30"))
    assert "weight-file-small" not in found(POINTER.format(135, "Nov 30").replace("safetensors", "json"))


NUMASTAT = """\
                           node0           node1
numa_hit              1000000000      1000000000
numa_miss                      0       {:10d}
numa_foreign                   0               0
"""


def test_numastat():
    assert "node 1: 33.3%" in found(NUMASTAT.format(500_000_000))["numa-misses"].seen
    assert "numa-misses" not in found(NUMASTAT.format(0)) and diagnose(NUMASTAT.format(0)).kinds == ["numastat"]


@pytest.mark.parametrize(
    ("text", "endless"),
    [
        ("services:\n  vllm:\n    restart: unless-stopped\n", True),
        ("docker run --restart=always --ipc=host vllm/vllm-openai --model m", True),
        ("docker run --restart unless-stopped --ipc=host vllm/vllm-openai --model m", True),
        ("docker run --restart=on-failure:5 --ipc=host vllm/vllm-openai --model m", False),
        ("services:\n  vllm:\n    restart: on-failure\n", False),
    ],
)
def test_containers_that_restart_for_ever(text, endless):
    assert ("container-restarts-for-ever" in pressing(text)) is endless


@pytest.mark.parametrize(
    ("text", "finding_id"),
    [
        ("curl: (7) Failed to connect to localhost port 8000: Connection refused", "server-not-listening"),
        ("curl: (52) Empty reply from server", "server-not-ready"),
        ("curl: (28) Operation timed out after 5001 milliseconds with 0 bytes received", "server-not-ready"),
    ],
)
def test_an_error_of_curl_without_its_request(text, finding_id):
    assert finding_id in pressing(text)
