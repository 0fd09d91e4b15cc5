#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time the looks at a model of many large files: the first, the next, and a stat of every file as the yardstick.

usage: bench/weights/run.py [--files 2000] [--bytes 25000000] [--folder DIR]

The files are sparse: their headers are real, their tensors are holes, so that 50 GB take no room.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "plugins" / "module_utils"))

from inference import weights
from inference.weights.record import looks


def make(folder: Path, files: int, size: int) -> None:
    """Make the model."""
    folder.mkdir()
    (folder / "config.json").write_text('{"architectures": ["X"]}', encoding="utf-8")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    for number in range(files):
        path = folder / f"model-{number:05}.safetensors"
        path.write_bytes(struct.pack("<Q", len(header)) + header)
        os.truncate(path, path.stat().st_size + size)


def timed(what: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    if what() not in ([], None):
        sys.exit("the model is not whole")
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--bytes", type=int, default=25_000_000)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="bench-weights-", dir=arguments.folder))
    try:
        make(root / "model", arguments.files, arguments.bytes)
        model = weights.Model("model", root / "model", None, root / "state")
        first = timed(lambda: weights.look(model, "nobody" if os.getuid() == 0 else None, write=True) and None)
        again = timed(lambda: weights.look(model, None))
        stat = timed(lambda: looks(model.path) and None)
    finally:
        shutil.rmtree(root)
    print(f"{arguments.files} files, {arguments.files * arguments.bytes / 1e9:.0f} GB (sparse)")
    print(
        f"first look {first:.2f} s, again {again:.2f} s, stat of every file alone {stat:.2f} s ({again / stat:.1f} x)"
    )


if __name__ == "__main__":
    main()
