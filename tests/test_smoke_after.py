# SPDX-License-Identifier: Apache-2.0
"""The look at the host, with commands answered by hand-made output."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from inference.signatures import scan
from inference.smoke import after as smoke_after
from inference.smoke.after import after, is_local, run_command
from inference.smoke.client import Client
from inference.smoke.context import Context
from inference.smoke.profile import load_profile

HERE = "http://127.0.0.1:1"
GPUS = "".join(f"GPU {i}: NVIDIA RTX PRO 6000 Blackwell Server Edition (UUID: GPU-{i})\n" for i in range(8))
XID = "2026-11-30T06:00:00+0000 h kernel: NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.\n"


BEGUN = 1764500000.0
INVOCATION = "0123456789abcdef0123456789abcdef"


def lines(*messages: str, seconds: float = BEGUN + 1) -> str:
    """Return journal lines of the unit as ``short-unix`` prints them."""
    return "".join(f"{seconds:.6f} host sglang@kimi[116]: {message}\n" for message in messages)


def look(
    url: str = "http://127.0.0.1:1",
    *,
    gpus: str | None = GPUS,
    kernel: str | None = "",
    unit: str | None = "",
    errors: str | None = "",
    invocation: str | None = INVOCATION,
    asked: list[list[str]] | None = None,
) -> Context:
    def run(command: list[str]) -> str | None:
        if asked is not None:
            asked.append(command)
        if command[0] == "nvidia-smi":
            return gpus
        if command[0] == "systemctl":
            return invocation
        if "-k" in command:
            return kernel
        return errors if "--priority=err" in command else unit

    profile = load_profile({"gpus": 8, "unit": "sglang@kimi.service"})
    ctx = Context(Client(url), profile, begun=BEGUN)
    asyncio.run(after(ctx, run))
    return ctx


def found(ctx: Context) -> list[str]:
    return [f.id for f in ctx.result.report.findings]


def skipped(ctx: Context) -> set[str]:
    return {entry.id for entry in ctx.result.report.not_checked}


def test_a_sound_host_is_quiet() -> None:
    ctx = look()
    assert (found(ctx), skipped(ctx)) == ([], set())


def test_a_lost_gpu() -> None:
    ctx = look(gpus=GPUS[: GPUS.index("GPU 7:")])
    (finding,) = ctx.result.report.findings
    assert (finding.id, finding.seen, finding.expected) == ("gpu-count", "7", "8")


def test_an_xid_has_its_own_level() -> None:
    (finding,) = look(kernel=XID).result.report.findings
    assert (finding.id, finding.level) == ("xid", "critical")
    assert "0000:41:00" in finding.seen
    assert "79" in finding.seen


def test_journal_errors() -> None:
    (finding,) = look(errors=lines("first", "last")).result.report.findings
    assert (finding.id, finding.level) == ("journal-errors", "warning")
    assert finding.seen == "2 lines; the last: last"


def test_lines_that_look_alarming_and_mean_nothing_are_left_out() -> None:
    harmless = "[W] Fail to set RLIMIT_NOFILE: ..."
    assert found(look(errors=lines(harmless), unit=lines(harmless))) == []


def test_the_journal_is_read_since_the_start_of_the_unit() -> None:
    asked: list[list[str]] = []
    look(asked=asked)
    assert [f"_SYSTEMD_INVOCATION_ID={INVOCATION}" in command for command in asked if "--lines=20000" in command] == [
        True, True,
    ]  # fmt: skip
    asked.clear()
    look(asked=asked, invocation=None)
    assert all(f"--since=@{int(BEGUN)}" in command for command in asked if "--lines=20000" in command)


OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


@pytest.mark.parametrize(
    ("seconds", "level", "when"), [(BEGUN - 60, "warning", "before"), (BEGUN + 1, "critical", "during")]
)
def test_known_trouble_in_the_journal_is_named_with_its_fix(seconds: float, level: str, when: str) -> None:
    ctx = look(unit=lines("Prefill batch, #new-seq: 1", OUT_OF_MEMORY, seconds=seconds))
    (finding,) = ctx.result.report.findings
    assert (finding.id, finding.level) == ("journal-signature", level)
    assert finding.what.startswith(f"{when} the test")
    assert OUT_OF_MEMORY in finding.seen
    assert finding.fix == next(m.signature.fix for m in scan([OUT_OF_MEMORY]))


def test_of_a_long_journal_the_end_is_read_and_that_is_said() -> None:
    ctx = look(unit=lines(*["Decode batch"] * 20_000))
    assert (found(ctx), skipped(ctx)) == ([], {"older journal"})


def test_short_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       1000000 kB\nMemAvailable:      9999 kB\n")
    monkeypatch.setattr(smoke_after, "MEMINFO", meminfo)
    assert found(look()) == ["memory-low"]


def test_what_cannot_be_seen_is_said() -> None:
    ctx = look(gpus=None, kernel=None, unit=None)
    assert (found(ctx), skipped(ctx)) == ([], {"gpus", "xid", "journal"})


def test_another_host_is_not_judged_by_this_one() -> None:
    ctx = look("http://192.0.2.1:30000", gpus="", kernel=XID)
    assert (found(ctx), skipped(ctx)) == ([], {"gpus", "xid", "memory", "journal"})


@pytest.mark.parametrize(
    ("url", "local"),
    [("http://localhost:1", True), ("http://127.0.0.53:1", True), ("http://[::1]:1", True), ("http://192.0.2.1", False),
     ("http://no-such-host.invalid", False)],
)  # fmt: skip
def test_which_addresses_are_local(url: str, local: bool) -> None:
    assert is_local(url) == local


def test_commands_that_fail_or_are_absent_have_no_output() -> None:
    assert run_command(["sh", "-c", "echo yes"]) == "yes\n"
    assert run_command(["sh", "-c", "echo yes; exit 3"]) is None
    assert run_command(["no-such-command"]) is None
