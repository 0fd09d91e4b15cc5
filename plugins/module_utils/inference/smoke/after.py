# SPDX-License-Identifier: Apache-2.0
"""Stage after: what the load did to the host, as far as it can be seen from here."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import shutil
import socket
import subprocess
import urllib.parse
from collections.abc import Callable
from pathlib import Path

from ..xid import parse_xid_lines
from .context import Context

Run = Callable[[list[str]], "str | None"]
"""Runs a command and returns its output; None when it is not there or fails."""

MIN_AVAILABLE = 0.02
"""Share of the host's memory that has to be left."""

MEMINFO = Path("/proc/meminfo")
COMMAND_SECONDS = 20


def run_command(command: list[str]) -> str | None:
    """Return the standard output of a command, or None when it cannot be run, fails or hangs."""
    if not shutil.which(command[0]):
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def is_local(url: str) -> bool:
    """Return whether the server's address is one of this machine's."""
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return any(
        ipaddress.ip_address(str(address).split("%")[0]).is_loopback or _own(str(address)) for address in addresses
    )


def _own(address: str) -> bool:
    """Only an own address can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


async def after(ctx: Context, run: Run = run_command) -> str:
    """Look at GPUs, kernel log, memory and journal. What cannot be seen is said, never passed over."""
    if not is_local(ctx.client.url):
        for check in ("gpus", "xid", "memory", "journal"):
            ctx.skip(check, "the server runs on another host: run it there to see")
        return "not on this host"
    notes = [await asyncio.to_thread(look, ctx, run) for look in (_gpus, _xid, _memory, _journal)]
    return ", ".join(filter(None, notes))


def _gpus(ctx: Context, run: Run) -> str:
    listed = run(["nvidia-smi", "--list-gpus"])
    if listed is None:
        ctx.skip("gpus", "nvidia-smi is not here or does not answer")
        return ""
    count = len(re.findall(r"^GPU \d+:", listed, re.MULTILINE))
    if ctx.profile.gpus is None:
        ctx.skip("gpu count", "the profile does not say how many there should be")
    elif count < ctx.profile.gpus:
        ctx.add("gpu-count", str(count), expected=str(ctx.profile.gpus))
    return f"{count} GPUs"


def _xid(ctx: Context, run: Run) -> str:
    log = run(["journalctl", "-k", "--no-pager", "-o", "short-iso", "--since", f"@{int(ctx.begun)}"])
    if log is None:
        ctx.skip("xid", "the kernel log cannot be read here")
        return ""
    events = parse_xid_lines(log)
    for event in events:
        ctx.add("xid", f"Xid {event.number} on {event.bdf}: {event.detail}", level=event.level)
    return f"{len(events)} Xid"


def memory_kilobytes(path: Path) -> dict[str, int]:
    """Return the host's memory by the kernel's names; empty when it cannot be read."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError:
        return {}
    return {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}


def _memory(ctx: Context, _run: Run) -> str:
    kilobytes = memory_kilobytes(MEMINFO)
    if not kilobytes:
        ctx.skip("memory", f"{MEMINFO} cannot be read")
        return ""
    share = kilobytes["MemAvailable"] / kilobytes["MemTotal"]
    if share < MIN_AVAILABLE:
        ctx.add("memory-low", f"{share:.1%} available")
    return f"{share:.0%} of memory available"


def _journal(ctx: Context, run: Run) -> str:
    unit = ctx.profile.unit
    if unit is None:
        ctx.skip("journal", "the profile names no unit")
        return ""
    log = run(["journalctl", "--no-pager", "-o", "cat", "-p", "err", "-u", unit, "--since", f"@{int(ctx.begun)}"])
    if log is None:
        ctx.skip("journal", f"the journal of {unit} cannot be read here")
        return ""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith("-- ")]
    if lines:
        ctx.add("journal-errors", f"{len(lines)} lines; the last: {lines[-1][:200]}")
    return f"{len(lines)} journal errors"
