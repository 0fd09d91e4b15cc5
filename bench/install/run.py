#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time the installation of a release against pip, from the same wheelhouse and the same lock, in turns.

usage: bench/install/run.py WHEELHOUSE LOCK [--rounds 3] [--python PATH] [--json FILE] [--folder DIR]

Ours is what the role does before it imports modules: every file's hash, virtual environment, packages by hash, check
of what is there, bytecode; once with uv's cache empty, and then warmed, as when another release with the same packages
was installed before. pip makes a virtual environment and installs with --require-hashes --no-deps from the folder.
Both write to the same file system, with the page cache warm.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
LOCKS = PROJECT / "roles" / "engine" / "files" / "locks"
sys.path.insert(0, str(PROJECT / "plugins" / "module_utils"))

from inference import releases
from inference.releases import installing, interpreters, locks


class Bench:
    """One lock from one wheelhouse, installed again and again into a folder that is removed each time."""

    def __init__(self, wheels: Path, lock: str, python: str, folder: Path) -> None:
        self.wheels, self.folder = wheels, folder
        self.text = (LOCKS / f"{lock}.txt").read_text(encoding="utf-8")
        self.lock = locks.parse_lock(self.text)
        self.installer = locks.parse_lock((LOCKS / "installer.txt").read_text(encoding="utf-8")).pins[0]
        self.interpreter = interpreters.probe(interpreters.find(python, self.lock.python))
        self.cache = folder / "cache"

    def ours(self, *, bytecode: bool, warm: bool) -> dict[str, float]:
        """Return seconds by step of one installation."""
        if not warm:
            shutil.rmtree(self.cache, ignore_errors=True)
        root = self.folder / "releases"
        release = releases.place(self.lock, self.interpreter, "none", str(root), str(self.folder / "state"))
        clock = installing.Clock()
        plan = installing.Plan(
            lock=self.lock,
            lock_text=self.text,
            installer=self.installer,
            interpreter=self.interpreter,
            patches_id="none",
            release=release,
            wheels=self.wheels,
            cache=self.cache,
            bytecode=bytecode,
            imports=(),
        )
        with clock.step("all"):
            with clock.step("wheelhouse"):
                if found := installing.obstacles(plan):
                    sys.exit(f"{found[0].what}: {found[0].seen}")
            installing.install(plan, clock)
        shutil.rmtree(root)
        return clock.seconds

    def pip(self, *, bytecode: bool) -> dict[str, float]:
        """Return seconds by step of one installation with pip."""
        venv, clock = self.folder / "pip", installing.Clock()
        requirements = self.folder / "requirements.txt"
        requirements.write_text("".join(pin.as_line() + "\n" for pin in self.lock.pins), encoding="utf-8")
        with clock.step("all"):
            with clock.step("venv"):
                subprocess.run([self.interpreter.path, "-m", "venv", str(venv)], check=True)
            command = [str(venv / "bin" / "pip"), "install", "--quiet", "--no-index", "--no-deps", "--require-hashes"]
            command += ["--disable-pip-version-check", "--find-links", str(self.wheels), "-r", str(requirements)]
            with clock.step("packages"):
                subprocess.run(command + ([] if bytecode else ["--no-compile"]), check=True)
        shutil.rmtree(venv)
        return clock.seconds


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheelhouse", type=Path)
    parser.add_argument("lock")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default="auto")
    parser.add_argument("--folder", type=Path, help="where to install; default: a temporary folder")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-install-", dir=arguments.folder))
    try:
        bench = Bench(arguments.wheelhouse.resolve(), arguments.lock, arguments.python, folder)
        rows = measure(bench, arguments.rounds)
    finally:
        shutil.rmtree(folder)
    result = {
        "schema": 1,
        "lock": bench.lock.name,
        "files": len(bench.lock.pins),
        "bytes": bench.lock.size,
        "python": bench.interpreter.version,
        "cores": os.cpu_count(),
        "rows": rows,
    }
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure(bench: Bench, rounds: int) -> list[dict[str, Any]]:
    """Return one row for each way of installing, all ways once a round."""
    ways: dict[tuple[str, bool], Callable[[], dict[str, float]]] = {}
    for bytecode in (True, False):
        ways["ours, cold cache", bytecode] = partial(bench.ours, bytecode=bytecode, warm=False)
        ways["ours, warmed", bytecode] = partial(bench.ours, bytecode=bytecode, warm=True)
        ways["pip", bytecode] = partial(bench.pip, bytecode=bytecode)
    runs: dict[tuple[str, bool], list[dict[str, float]]] = {way: [] for way in ways}
    bench.ours(bytecode=False, warm=False)  # reads every wheel once
    for number in range(rounds):
        for way, install in ways.items():
            print(f"round {number + 1}: {way[0]}, {'with' if way[1] else 'without'} bytecode", file=sys.stderr)
            began = time.monotonic()
            runs[way].append(install())
            print(f"  {time.monotonic() - began:.1f} s with removal", file=sys.stderr)
    return [{"way": way, "bytecode": bytecode, "seconds": runs[way, bytecode]} for way, bytecode in ways]


def show(result: dict[str, Any]) -> None:
    """Print the table, with the ratio to pip of the same round."""
    print(f"{result['lock']}: {result['files']} files, {result['bytes'] / 1e9:.2f} GB, Python {result['python']}")
    print(f"{'':<20}{'bytecode':>9}{'median s':>10}{'min':>8}{'max':>8}{'pip / this':>12}")
    pip = {row["bytecode"]: [run["all"] for run in row["seconds"]] for row in result["rows"] if row["way"] == "pip"}
    for row in result["rows"]:
        seconds = [run["all"] for run in row["seconds"]]
        ratio = statistics.median(b / a for a, b in zip(seconds, pip[row["bytecode"]], strict=True))
        middle = statistics.median(seconds)
        line = f"{row['way']:<20}{'yes' if row['bytecode'] else 'no':>9}{middle:>10.1f}"
        print(f"{line}{min(seconds):>8.1f}{max(seconds):>8.1f}{ratio:>12.1f}")


if __name__ == "__main__":
    main()
