#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker without torch: speaks the protocol of scripts/tune-worker, logs like NCCL, and misbehaves when told to.

STAND_IN is a fault and, after a colon, the rank that has it (all without one): ``wrong``, ``hang`` (at the first
message), ``hang-at-start`` (while the communicator is made), ``import-hang``, ``die``, ``no-torch``, ``garbage``,
``deaf`` (NCCL takes no setting), ``child`` (leaves a child process and hangs). STAND_IN_PAIR=0-3 gives the fault to the
ranks of that pair of GPUs only. STAND_IN_TIMES is a JSON object: us by bytes, or us by setting and bytes.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

IGNORED = ("NCCL_DEBUG", "NCCL_RAS")


def faulty(rank, devices):
    fault, _, at = os.environ.get("STAND_IN", "").partition(":")
    pair = os.environ.get("STAND_IN_PAIR")
    if pair and set(map(int, pair.split("-"))) - set(devices):
        return ""
    return fault if not at or int(at) == rank else ""


def log_like_nccl(rank, world, fault):
    path = os.environ.get("NCCL_DEBUG_FILE")
    if not path:
        return
    settings = {k: v for k, v in os.environ.items() if k.startswith("NCCL_") and not k.startswith(IGNORED)}
    via = "SHM/direct/direct" if settings.get("NCCL_P2P_DISABLE") == "1" else "P2P/CUMEM"
    lines = [
        "NCCL version 2.28.9+cuda13.0",
        f"ncclCommInitRankConfig comm 0x0 rank {rank} nranks {world} cudaDev {rank} - Init START",
        *([] if fault == "deaf" else [f"{name} set by environment to {value}." for name, value in settings.items()]),
        f"{settings.get('NCCL_MIN_CTAS', 4)} coll channels, 4 collnet channels",
        f"Channel 00/0 : {rank}[{rank}] -> {(rank + 1) % world}[{(rank + 1) % world}] via {via}",
        f"ncclCommInitRankConfig comm 0x0 rank {rank} nranks {world} cudaDev {rank} - Init COMPLETE",
    ]
    Path(path).write_text("".join(f"host:1:1 [{rank}] NCCL INFO {line}\n" for line in lines))


def us(size):
    times = json.loads(os.environ.get("STAND_IN_TIMES", "{}"))
    for setting, own in times.items():
        name, _, value = setting.partition("=")
        if isinstance(own, dict) and os.environ.get(name) == value:
            return own.get(str(size), 10.0)
    return times.get(str(size), 10.0) if not isinstance(times.get(str(size)), dict) else 10.0


def sleep(seconds=600):
    time.sleep(seconds)


WRONG = {"count": 3, "index": 7, "got": "1.0", "expected": "2.0", "when": "before"}


def fail(fault, events):
    if fault == "die":
        os.kill(os.getpid(), signal.SIGFPE)
    if fault == "garbage":
        events.write("no json\n")
        events.flush()
    if fault in ("hang", "garbage"):
        sleep()


def main():
    if sys.argv[1] == "--versions":
        gpus = int(os.environ.get("STAND_IN_GPUS", "2"))
        found = {"torch": "0", "nccl": "2.28.9", "gpus": ["stand-in"] * gpus, "python": "3"}
        sys.stdout.write(f"a torch that warns\n{json.dumps(found)}\n")
        return 0
    job, rank = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    world, fault = len(job["devices"]), faulty(rank, job["devices"])
    events = (Path(job["folder"]) / f"events-{rank}.jsonl").open("a")

    def say(event, **values):
        events.write(json.dumps({"event": event, **values}) + "\n")
        events.flush()

    say("started", pid=os.getpid())
    if fault == "import-hang":
        sleep()
    if fault == "no-torch":
        say("failed", reason="ModuleNotFoundError: No module named 'torch'")
        return 1
    say("imported", torch="0", nccl="2.28.9", gpus=["stand-in"], python="3")
    if fault == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (Path(job["folder"]) / "child").write_text(str(child.pid))
    if fault in ("hang-at-start", "child"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sleep()
    log_like_nccl(rank, world, fault)
    say("initialised")
    for message in job["messages"]:
        say("checking", bytes=message["bytes"])
        fail(fault, events)
        figures = [us(message["bytes"]) * (1 + 0.002 * i) for i in range(job["repeats"])]
        say("timed", bytes=message["bytes"], us=figures, wrong=WRONG if fault == "wrong" else None)
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
