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
from collections.abc import Callable, Sequence
from pathlib import Path

from ..findings import Level
from ..signatures import scan
from ..xid import parse_xid_lines
from .context import Context
from .waiting import Look, looker

Run = Callable[[list[str]], "str | None"]
"""Runs a command and returns its output; None when it is not there or fails."""

MIN_AVAILABLE = 0.02
"""Share of the host's memory that has to be left."""

MEMINFO = Path("/proc/meminfo")
COMMAND_SECONDS = 20

JOURNAL_LINES = 20_000
"""Lines of the unit's journal that are read at most: an engine that has served for weeks has logged millions."""


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
    """Look at what the unit logged since it was started: error priority, and lines that are known to mean trouble."""
    unit = ctx.profile.unit
    if unit is None:
        ctx.skip("journal", "the profile names no unit")
        return ""
    which = ["journalctl", "--no-pager", "--quiet", f"--lines={JOURNAL_LINES}", *_since_start(ctx, run, unit)]
    log, errors = (run([*which, "--output=short-unix", *more]) for more in ([], ["--priority=err"]))
    if log is None or errors is None:
        ctx.skip("journal", f"the journal of {unit} cannot be read here")
        return ""
    lines = log.splitlines()
    if len(lines) >= JOURNAL_LINES:
        ctx.skip("older journal", f"only the last {JOURNAL_LINES} lines of {unit} were read")
    known = _known_trouble(ctx, lines)
    bad = [line for line in errors.splitlines() if line.strip() and not _harmless(line)]
    if bad:
        ctx.add("journal-errors", f"{len(bad)} lines; the last: {_message(bad[-1])[:200]}")
    return f"{len(bad)} journal errors, {known} known signs of trouble"


def _since_start(ctx: Context, run: Run, unit: str) -> list[str]:
    """Return how to ask for the journal since the unit was started; since the test began where systemd is not here."""
    invocation = (run(["systemctl", "show", "--property=InvocationID", "--value", unit]) or "").strip()
    if re.fullmatch(r"[0-9a-f]{32}", invocation):
        return [f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"]
    return [f"--unit={unit}", f"--since=@{int(ctx.begun)}"]


def _known_trouble(ctx: Context, lines: Sequence[str]) -> int:
    """Add what the table of signatures says about the lines; what came before the test only warns: it serves now."""
    during = next((i for i, line in enumerate(lines) if _seconds(line) >= ctx.begun), len(lines))
    count = 0
    for part, most in ((lines[:during], "warning"), (lines[during:], "critical")):
        for match in scan(map(_message, part)):
            row = match.signature
            if row.role == "harmless" or row.level not in ("warning", "critical"):
                continue
            count += 1
            level: Level = "warning" if most == "warning" else row.level
            seen = f"{row.id}: {row.what} ({match.count} times): {match.line[:200]}"
            when = "before the test" if most == "warning" else "during the test"
            ctx.add("journal-signature", seen, level=level, where=when, fix=row.fix)
    return count


def engine_looker(ctx: Context, run: Run = run_command) -> Look:
    """Return what looks at the threads of the profile's unit; at nothing where it does not run on this host."""
    unit = ctx.profile.unit
    if unit is None or not is_local(ctx.client.url):
        return looker("")
    return looker((run(["systemctl", "show", "--property=ControlGroup", "--value", unit]) or "").strip())


def _harmless(line: str) -> bool:
    return any(match.signature.role == "harmless" for match in scan([_message(line)]))


def _seconds(line: str) -> float:
    """Return the moment of a line of ``short-unix``: 1764500000.123456 host unit[1]: message."""
    first = line.split(" ", 1)[0]
    return float(first) if re.fullmatch(r"\d+\.\d+", first) else 0.0


def _message(line: str) -> str:
    """Return a journal line without time, host and unit."""
    return line.split(": ", 1)[-1] if _seconds(line) else line
