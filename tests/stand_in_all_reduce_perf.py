#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""all_reduce_perf without GPUs: writes what the real one writes with -J; PERF is wrong, hang or fail."""

import json
import os
import sys
import time
from pathlib import Path

options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
size, fault = int(options["-b"]), os.environ.get("PERF", "")
lines = [f"NCCL version {os.environ.get('PERF_NCCL', '2.28.9')}+cuda13.0"]
lines += [f"{name} set by environment to {value}." for name, value in os.environ.items() if name == "NCCL_ALGO"]
Path(os.environ["NCCL_DEBUG_FILE"]).write_text("".join(f"h:1:1 [0] NCCL INFO {line}\n" for line in lines))
if fault == "hang":
    time.sleep(600)
if fault == "fail":
    sys.exit("no CUDA device")
faster = 0.5 if "NCCL_ALGO" in os.environ else 1.0
times = [faster * (20 + size / 1000 + 0.01 * i) for i in range(int(options["-N"]))]
rows = [{"size": size, "in_place": {"time": us, "nwrong": 4.0 if fault == "wrong" else 0.0}} for us in times]
document = {"version": 3, "nccl_version": 22809, "visible": os.environ["CUDA_VISIBLE_DEVICES"], "results": rows}
Path(options["-J"]).write_text(json.dumps(document))
