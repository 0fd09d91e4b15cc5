# SPDX-License-Identifier: Apache-2.0
"""scripts/tune-worker with a fault in torch's all-reduce.

FAULT is ``slow``, ``stale``, ``hang@CALL`` or ``wrong@CALL``, and after a colon the rank that has it.

The first call makes the communicator, the second one checks, then come warm-up and timed replays.
"""

import importlib
import itertools
import os
import runpy
import sys
import time
from pathlib import Path

WORKER = Path(__file__).parent.parent / "scripts" / "tune-worker"
fault, _, at = os.environ["FAULT"].partition(":")
fault, _, number = fault.partition("@")

if sys.argv[2:] == [at]:
    dist = importlib.import_module("torch.distributed")
    honest, calls, kept = dist.all_reduce, itertools.count(1), {}

    def all_reduce(tensor):
        call = next(calls)
        if fault == "slow":
            time.sleep(0.005)
        if fault == "hang" and call == int(number):
            time.sleep(600)
        honest(tensor)
        if fault == "wrong" and call == int(number):
            tensor[-1] *= 1.5
        if fault == "stale":  # what came first is returned for ever
            tensor.copy_(kept.setdefault(tensor.numel(), tensor.clone()))

    dist.all_reduce = all_reduce

sys.argv[0] = str(WORKER)
runpy.run_path(str(WORKER), run_name="__main__")
