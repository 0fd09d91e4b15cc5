# SPDX-License-Identifier: Apache-2.0
"""The look at the host, with commands answered by hand-made output."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from inference.smoke import after as smoke_after
from inference.smoke.after import after, is_local, run_command
from inference.smoke.client import Client
from inference.smoke.context import Context
from inference.smoke.profile import load_profile

HERE = "http://127.0.0.1:1"
GPUS = "".join(f"GPU {i}: NVIDIA RTX PRO 6000 Blackwell Server Edition (UUID: GPU-{i})\n" for i in range(8))
XID = "2026-11-30T06:00:00+0000 h kernel: NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus.\n"


def look(
    url: str = "http://127.0.0.1:1", *, gpus: str | None = GPUS, kernel: str | None = "", unit: str = ""
) -> Context:
    def run(command: list[str]) -> str | None:
        if command[0] == "nvidia-smi":
            return gpus
        return kernel if "-k" in command else unit

    profile = load_profile({"gpus": 8, "unit": "sglang@kimi.service"})
    ctx = Context(Client(url), profile)
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
    (finding,) = look(unit="-- Boot --\nfirst\nlast\n").result.report.findings
    assert finding.id == "journal-errors"
    assert finding.seen.startswith("2 lines; the last: last")


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
