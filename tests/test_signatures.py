# SPDX-License-Identifier: Apache-2.0
"""The table of known lines: every row has an example, the filter loses nothing, the first real cause is found."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference import signatures
from inference.findings import Finding
from inference.signatures import SIGNATURES, STALLS, Match, Scanner, finding, may_match, root_cause, scan, stall
from inference.signatures.phases import PHASE_NAMES, PHASES, phase_of
from inference.signatures.signature import LONGEST_LINE, WordFilter, clean

FIXTURES = Path(__file__).parent / "fixtures" / "reports"
LINES = [line.split("\t", 2) for line in (FIXTURES / "lines.tsv").read_text().splitlines() if not line.startswith("#")]
SGLANG_LOG = (FIXTURES / "healthy_sglang_0.5.16_start_serve_stop.log").read_text().splitlines()
VLLM_LOG = (FIXTURES / "healthy_vllm_0.33.0_start.log").read_text().splitlines()
HEALTHY = sorted(FIXTURES.glob("healthy_*.log"))


def ids(matches):
    return [match.signature.id for match in matches]


@pytest.mark.parametrize(("signature_id", "source", "line"), LINES)
def test_each_known_line_is_recognised_as_what_it_is(signature_id, source, line):
    assert ids(scan([line])) == [signature_id], source


def test_every_signature_has_an_example():
    assert {row.id for row in SIGNATURES} == {signature_id for signature_id, _, _ in LINES}


def test_ids_are_unique_and_every_row_says_what_to_do():
    assert len({row.id for row in SIGNATURES}) == len(SIGNATURES)
    for row in SIGNATURES:
        assert row.what and row.expected and row.fix and row.source and row.cause, row.id
        assert row.level in ("critical", "warning", "info"), row.id
        assert row.words == tuple(word.lower() for word in row.words), row.id
        assert row.role != "harmless" or row.level == "info", row.id
        assert not any(word.isdigit() for word in row.words), f"{row.id}: every line of a serving log holds numbers"


@pytest.mark.parametrize("line", [line for _, _, line in LINES])
@pytest.mark.parametrize(
    "frame", ["{}", "Nov 30 10:00:00 host vllm[1]: {}", "\x1b[31m{}\x1b[0m\r\n", "(Worker_TP0 pid=7) {}"]
)
def test_prefixes_and_colours_do_not_hide_a_line(line, frame):
    if line.startswith(("No devices", "KeyError", "# Out", "DMA")) and not frame.startswith(("{", "\x1b")):
        pytest.skip("a line that is only told by standing alone")
    assert scan([frame.format(line)]), line


def test_the_word_filter_finds_what_a_full_search_finds():
    for line in [*(line for _, _, line in LINES), *SGLANG_LOG, *VLLM_LOG]:
        cleaned = clean(line)
        slow = next((row.id for row in SIGNATURES if row.search(cleaned)), None)
        fast = WordFilter(SIGNATURES).first(cleaned)
        assert (fast[0].id if fast else None) == slow, line


def test_what_is_ruled_out_for_many_lines_is_in_none_of_them():
    known = [line for _, _, line in LINES]
    forms = [str, str.upper, "\x1b[1m{}\x1b[0m".format, lambda line: line.replace("k", "\u212a")]
    for line in [form(line) for form in forms for line in known]:
        assert may_match(f"another line\n{line}\n".encode()) or not scan([line]), line


@given(st.text(max_size=60), st.sampled_from([line for _, _, line in LINES]), st.integers(0, 200))
@settings(max_examples=300, deadline=None)
def test_nothing_around_a_known_line_hides_it_from_the_search_of_many(noise, line, cut):
    text = noise + line[cut:]
    assert may_match(text.encode()) or not scan([text])


def test_most_lines_of_a_serving_engine_are_ruled_out():
    serving = [line for line in SGLANG_LOG if " batch, #" in line or '"POST' in line]
    assert len(serving) > 10
    assert not may_match("\n".join(serving).encode())


@pytest.mark.parametrize("log", HEALTHY, ids=lambda path: path.name)
def test_a_healthy_log_has_no_cause(log):
    matches = scan(log.read_text().splitlines())
    assert [match for match in matches if match.signature.level != "info"] == []
    assert root_cause(matches) is None


def test_the_first_real_cause_is_found_behind_its_echoes():
    log = [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        "vllm.service: Main process exited, code=exited, status=1/FAILURE",
        "[Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
        "vllm.service: Start request repeated too quickly.",
    ]
    assert root_cause(scan(log)).signature.id == "cuda-out-of-memory"
    assert root_cause(scan(log[1:])).signature.id == "port-in-use"
    assert root_cause(scan(reversed(log[:3]))).signature.id == "cuda-out-of-memory"


def test_a_vague_cause_gives_way_to_one_close_behind_it_and_to_no_later_one():
    vague = "RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
    last = ["Last error:", "Cuda failure 217 'peer access is not supported between these two devices'"]
    later = [*["INFO restarted"] * signatures.NEAR, "OSError: [Errno 98] address already in use"]
    assert root_cause(scan([vague, *last, *later])).signature.id == "nccl-peer-access-failed"
    assert root_cause(scan([vague, *later])).signature.id == "nccl-error"
    assert root_cause(scan([*last, vague])).signature.id == "nccl-peer-access-failed"


def test_an_echo_alone_is_better_than_nothing_and_a_warning_never_hides_an_error():
    echo = "RuntimeError: Engine core initialization failed. See root cause above."
    warning = "WARNING Unknown vLLM environment variable detected: VLLM_X"
    assert root_cause(scan([warning, echo])).signature.id == "worker-died"
    assert root_cause(scan([warning])).signature.id == "variable-unknown"
    assert root_cause([]) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ERROR 11-30 10:00:00 [moe.py:1] cutlass error: x, and falling back failed", "cutlass-failed"),
        ("RuntimeError: No supported CUDA architectures found; fallback=none", "fusion-unsupported-architecture"),
        ("[2026-11-30 10:00:00 TP0] RuntimeError: Failed to initialize GEMM, falling back to none", "cutlass-failed"),
        ("Nov 30 10:00:00 h sglang[7]: RuntimeError: cuDNN error: x (fall back to v8)", "cudnn-failed"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED; for more set the level to INFO", "cudnn-failed"),
        ("ValueError: 'fa3' is not supported on Blackwell GPUs, try using triton instead", "backend-unsupported"),
        ("[2026-11-30 10:00:00] NameError: name 'deep_gemm' is not defined (X=WARNING)", "deepgemm-unsupported"),
        ("[TP0] DeepGEMM is not available on SM120 and there is no fallback", "deepgemm-unsupported"),
        ("[TP0] DeepGEMM is not available on SM120, cannot fall back", "deepgemm-unsupported"),
        ("OSError: m does not appear to have a file named preprocessor_config.json.", "model-not-found"),
    ],
)  # fmt: skip
def test_words_of_a_note_do_not_hide_an_error(line, expected):
    assert ids(scan([line])) == [expected]


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-30 10:00:00 TP0] Failed to use the fused path: RuntimeError: cutlass error; falling back to Triton",
        "[2026-11-30 10:00:00 TP0] DeepGEMM is not available on SM120, but falling back to Triton works",
        "WARNING 11-30 10:00:00 [x.py:1] ValueError: cuDNN error: no plan. The native path serves",
        "2026-11-30 10:00:00,1 - INFO - x.py - Failed to initialize GEMM tactic 3",
        "[rank0]:[W1130 10:00:00.1 x.cpp:2] TCPStore connect failed, retrying",
    ],
)
def test_a_note_stays_a_note(line):
    assert [match for match in scan([line]) if match.signature.level == "critical"] == []


def test_a_users_prompt_is_no_error():
    assert not scan(
        [
            "INFO [logger.py:43] Received request cmpl-1: prompt: 'why CUDA out of memory?', params: x",
            "[2026-11-30 05:00:00] Receive: obj=GenerateReqInput(text='CUDA error: out of memory')",
        ]
    )


def test_a_scanner_counts_and_keeps_the_first_line():
    scanner = Scanner()
    assert scanner.feed("all is well") is None
    assert scanner.feed("ninja: build stopped: one.").number == 2
    again = scanner.feed("ninja: build stopped: two.")
    assert (again.number, again.count, again.line) == (3, 2, "ninja: build stopped: two.")
    first = scanner.matches[0]
    assert (first.number, first.count, first.line) == (2, 2, "ninja: build stopped: one.")


def test_two_unknown_variables_are_two_matches():
    found = scan(
        f"WARNING Unknown vLLM environment variable detected: {name}" for name in ("VLLM_A", "VLLM_B", "VLLM_A")
    )
    assert [(match.subject, match.count) for match in found] == [("VLLM_A", 2), ("VLLM_B", 1)]


def test_a_match_never_holds_a_secret_and_a_long_line_shows_the_part_that_matters():
    secret = "sk-verysecret123456"
    line = f"x api_key='{secret}' " + "y" * 5000 + " CUDA out of memory " + "z" * 9000
    (match,) = scan([line])
    assert secret not in match.line and "CUDA out of memory" in match.line and len(match.line) <= 400


def test_a_finding_says_line_count_and_fix():
    (match,) = scan(["ok", "No space left on device", "No space left on device"])
    made = finding(match)
    assert isinstance(made, Finding)
    assert made.seen.startswith("line 2 (2 times): ") and made.fix and made.expected


def test_unknown_signature_ids_are_an_error():
    assert signatures.signature("port-in-use").id == "port-in-use"
    with pytest.raises(KeyError):
        signatures.signature("no-such-thing")


SGLANG_PHASES = [
    "starting",
    "initialising communication",
    "loading weights",
    "allocating KV cache",
    "capturing CUDA graphs",
    "listening",
    "serving",
    "draining",
    "stopping",
]
VLLM_PHASES = [
    "starting",
    "initialising communication",
    "loading weights",
    "compiling kernels",
    "allocating KV cache",
    "capturing CUDA graphs",
    "listening",
    "serving",
]


@pytest.mark.parametrize(("log", "expected"), [(SGLANG_LOG, SGLANG_PHASES), (VLLM_LOG, VLLM_PHASES)])
def test_phases_of_a_whole_life(log, expected):
    seen = [phase for line in log if (phase := phase_of(line))]
    assert [phase for number, phase in enumerate(seen) if number == 0 or seen[number - 1] != phase] == expected


@pytest.mark.parametrize(
    ("line", "phase"),
    [
        ("[2026-11-30 TP0] Running FlashInfer autotune with cache: /x", "autotuning"),
        ("[TP0] Entering DeepGEMM JIT Pre-Compile session. It may take a long time", "compiling kernels"),
        ("[TP0] Capture cuda graph begin. This can take up to several minutes.", "capturing CUDA graphs"),
        ("Loading safetensors checkpoint shards:  10% Completed | 1/10", "loading weights"),
        ("INFO [gpu_worker.py:971] Compile and warming up model for size 8", "compiling kernels"),
        ("Start of pd disaggregation warmup ...", "warming up"),
        ("INFO [launcher.py:256] [shutdown] API server: shutdown triggered", "draining"),
        ("[2026-11-30 04:59:16 TP0] Decode batch, #running-req: 1, #token: 249", None),
        ('INFO: 127.0.0.1 - "GET /health HTTP/1.1" 200 OK', None),
        ("", None),
    ],
)
def test_phase_of_single_lines(line, phase):
    assert phase_of(line) == phase


def test_phase_names_are_unique_and_stalls_cover_the_start():
    assert len(set(PHASE_NAMES)) == len(PHASES)
    for name in PHASE_NAMES[: PHASE_NAMES.index("serving")]:
        assert stall(name).fix, name
    assert stall("initialising communication").id == "nccl-init-stalled"
    assert stall("allocating KV cache").id == "weights-stalled"
    assert stall(None).id == stall("no such phase").id == "start-stalled"
    assert not {row.id for row in STALLS.values()} & {row.id for row in SIGNATURES}


@given(st.text(max_size=300))
@settings(max_examples=300, deadline=None)
def test_no_line_crashes_it(line):
    assert all(isinstance(match, Match) for match in scan([line]))
    phase_of(line)


@pytest.mark.parametrize(
    "piece", ["a", "=", "_a", "-a ", "api_key=", "'", "error ", "file named config.json ", "/dev/shm/", "NCCL WARN "]
)
def test_a_very_long_line_takes_no_time(piece):
    line = piece * (4 * LONGEST_LINE // len(piece))
    begin = time.process_time()
    scan([line])
    assert time.process_time() - begin < 1.0


def test_a_stream_is_read_fast():
    """Measured: 3 us a line of a serving log, some 300,000 lines/s on one idle core; the bound is for slow machines."""
    serving = [line for line in SGLANG_LOG if " batch, #" in line or "200 OK" in line]
    scanner = Scanner()
    lines = serving * (20_000 // len(serving))
    begin = time.process_time()
    for line in lines:
        scanner.feed(line)
    assert len(lines) / (time.process_time() - begin) > 20_000
