# SPDX-License-Identifier: Apache-2.0
"""The soak, seconds long, against the stand-in and with hand-made answers of nvidia-smi."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from misbehaving_server import MODEL, Server

from inference.smoke import soak as smoke_soak
from inference.smoke.client import Client
from inference.smoke.context import Context
from inference.smoke.profile import load_profile
from inference.smoke.run import run_stages, stages_for
from inference.smoke.soak import Host, gpu_memory_by_gpu, growth, numbers, soak

PROFILE = load_profile({"model": MODEL, "soak": {"streams": 8, "output_tokens": 16}, "load": {"prompt_tokens": 32}})


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each round take a second, however slow the machine is."""
    rounds = itertools.count()
    monkeypatch.setattr(smoke_soak, "time", SimpleNamespace(monotonic=lambda: next(rounds)))


def context(server: Server, rounds: int = 3) -> Context:
    ctx = Context(Client(server.url), PROFILE, soak_minutes=(rounds + 0.5) / 60)
    ctx.model = MODEL
    return ctx


async def run(ctx: Context, command: Callable[[list[str]], str | None]) -> None:
    async with ctx.client:
        await soak(ctx, command)


def found(ctx: Context) -> list[str]:
    return [f.id for f in ctx.result.report.findings]


def test_a_sound_server_soaks_quietly_and_is_kept_busy() -> None:
    with Server() as server:
        ctx = context(server)
        asyncio.run(run(ctx, lambda _: "40, 1000, 96000\n" * 8))
    assert found(ctx) == []
    seen = ctx.result.throughput["soak"]
    assert seen["rounds"] == 3
    assert (seen["requests"], seen["failed"]) == (seen["rounds"] * 8, 0)
    assert seen["temperature_max"] == 40
    assert set(seen["memory_growth"]) == {"host", *(f"GPU {i}" for i in range(8))}


@pytest.mark.parametrize(("fault", "name"), [("every-fifth-truncated", "truncated"), ("nan-logprobs", "nan-logprobs")])
def test_faults_in_the_long_run_are_named(fault: str, name: str) -> None:
    with Server(fault) as server:
        ctx = context(server)
        asyncio.run(run(ctx, lambda _: None))
    assert found(ctx)[0] == name


def test_a_wrong_answer_ends_the_soak_at_once_and_is_told_once() -> None:
    with Server("wrong-answer") as server:
        ctx = context(server, 600)
        asyncio.run(run(ctx, lambda _: None))
    assert found(ctx) == ["golden"]
    assert ctx.result.throughput["soak"]["rounds"] == 1


def test_degenerate_answers_are_counted() -> None:
    with Server("repeated-token") as server:
        ctx = context(server, 1)
        asyncio.run(run(ctx, lambda _: None))
    assert ctx.result.throughput["soak"]["degenerate"] == ctx.result.throughput["soak"]["requests"]
    assert "degenerate" in found(ctx)


def test_a_dead_server_ends_the_soak_at_once() -> None:
    with Server("status-503") as server:
        ctx = context(server, 600)
        ctx.api = "completion"
        result = asyncio.run(run_stages(ctx, ("reachable", "identity", "soak")))
    assert [f.id for f in result.report.findings] == ["http-error"]
    assert result.facts["seconds"] < 30


def test_heat_and_growing_memory_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(smoke_soak, "MEMINFO", meminfo)
    looks = 0

    def command(_: list[str]) -> str:
        nonlocal looks
        looks += 1
        meminfo.write_text(f"MemTotal: 1000 kB\nMemAvailable: {max(900 - 20 * looks, 1)} kB\n")
        return f"95, {1000 * looks}, 96000\n[N/A], [N/A], [N/A]\n"

    command([])
    with Server() as server:
        ctx = context(server, 10)
        asyncio.run(run(ctx, command))
    assert looks == 11
    assert found(ctx) == ["memory-growth", "memory-growth", "hot"]
    assert ctx.result.report.exit_code == 1


def test_growth_compares_thirds() -> None:
    assert growth([0.5] * 5) is None
    assert growth([0.5] * 9) == 0
    assert growth([0.1, 0.1, 0.9, 0.2, 0.2, 0.2, 0.3, 0.3, 0.3]) == pytest.approx(0.2)


def test_a_gpu_that_disappears_does_not_shift_the_others() -> None:
    assert gpu_memory_by_gpu([[0.1, 0.2], [0.2], [0.3, 0.4]]) == [(0.1, 0.3), (0.2, 0.4)]
    assert gpu_memory_by_gpu([]) == []


def test_what_the_driver_does_not_know_is_left_out() -> None:
    assert numbers("40, 1000, 96000") == [40, 1000, 96000]
    assert numbers("[N/A], 1, 2") is None
    assert numbers("40, 0, 0") is None
    assert numbers("") is None
    host = Host()
    host.look(lambda _: None)
    assert host.temperatures == []


def test_the_soak_runs_only_when_asked_for() -> None:
    assert "soak" not in stages_for("full")
    assert "soak" in stages_for("default", soaks=True)
    assert stages_for("quick", ["health"], soaks=True) == ("reachable", "health", "identity", "soak")
