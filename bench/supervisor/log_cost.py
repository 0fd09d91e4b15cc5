#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what each line of a serving engine's log costs the supervisor: its LogPump, fed at given rates.

A process of its own writes lines as SGLang prints them, one write each, into a pipe, as an engine does, and takes what
the pump passes on from a socket, as journald does; the CPU time is that of the pump's process alone. Prints one JSON
object. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import socket
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins" / "module_utils"))

from inference.supervisor.log import LogPump, Redactor

KEY = "a-key-of-an-instance-0123456789"

# The wording of SGLang 0.5.16 and 0.5.23 at their default log level: two lines a request, one each 40 decoding steps.
LINES = (
    "[2026-11-30 04:59:15 TP0] Prefill batch, #new-seq: 1, #new-token: 812, #cached-token: 64, token usage: 0.02, "
    "#running-req: 3, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 1822.94",
    '[2026-11-30 04:59:15] INFO:     127.0.0.1:33548 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "[2026-11-30 04:59:16 TP0] Decode batch, #running-req: 4, #token: 3249, token usage: 0.02, cuda graph: True, "
    "gen throughput (token/s): 187.74, #queue-req: 0",
    "[2026-11-30 04:59:16 TP0] Prefill batch, #new-seq: 1, #new-token: 230, #cached-token: 0, token usage: 0.02, "
    "#running-req: 4, #queue-req: 0, #pending-token: 0, cuda graph: False, input throughput (token/s): 911.05",
    '[2026-11-30 04:59:17] INFO:     127.0.0.1:33552 - "POST /v1/completions HTTP/1.1" 200 OK',
)


def engine(pipe: int, journal: socket.socket, rate: float, seconds: float) -> None:
    """Write ``rate`` lines a second, and read what is passed on until its end."""
    threading.Thread(target=lambda: all(iter(lambda: journal.recv(1 << 20), b"")), daemon=True).start()
    began = time.monotonic()
    for number in range(int(rate * seconds)):
        time.sleep(max(0.0, began + number / rate - time.monotonic()))
        os.write(pipe, LINES[number % len(LINES)].encode() + b"\n")


def cost(rate: float, seconds: float) -> dict[str, float]:
    """Return what a line costs, in microseconds of CPU time and as a share of one core."""
    source, pipe = os.pipe()
    target, journal = socket.socketpair()
    child = os.fork()
    if not child:
        os.close(source)
        target.close()
        engine(pipe, journal, rate, seconds)
        os._exit(0)
    os.close(pipe)
    journal.close()
    pump = LogPump(source, target.fileno(), Redactor(KEY), on_phase=print, on_crash=print)
    pump.begin_serving()
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    pump.start()
    pump.join()
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    target.close()
    os.close(source)
    os.waitpid(child, 0)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    switches = after.ru_nvcsw - before.ru_nvcsw
    return {
        "lines_per_s": rate, "seconds": round(took, 1), "us_per_line": round(used / int(rate * seconds) * 1e6, 1),
        "cpu_percent": round(used / took * 100, 3), "wakeups_per_s": round(switches / took, 1),
    }  # fmt: skip


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="20,178,1000", help="lines a second")
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    result = {"kernel": platform.release(), "python": platform.python_version(), "load": os.getloadavg()[0]}
    rows = [cost(float(rate), options.seconds) for rate in options.rates.split(",")]
    print(json.dumps({**result, "rows": rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
