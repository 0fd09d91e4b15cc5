# SPDX-License-Identifier: Apache-2.0
"""Who needs a model's folder: generations that would be restored with it, and processes that have it open."""

from __future__ import annotations

import os
import re
from pathlib import Path

STATE_ROOT = Path("/var/lib/inference")


def generations_with(folder: Path, root: Path = STATE_ROOT) -> list[str]:
    """Return ``INSTANCE (generation ID)`` of every kept generation with a file that names the folder."""
    word = re.compile(rf"(?<![\w./-]){re.escape(os.fspath(folder))}(?![\w.-]|/\w)")
    found = []
    for manifest in sorted(root.glob("*/generations/*/manifest.json")):
        if word.search(manifest.read_text(encoding="utf-8", errors="replace")):
            found.append(f"{manifest.parents[2].name} (generation {manifest.parent.name})")
    return found


def processes_with(folder: Path, proc: Path = Path("/proc")) -> list[int]:
    """Return the processes that have a file of the folder open or mapped, or that name it in their command line."""
    inside = os.fsencode(folder.resolve()) + b"/"
    named = os.fsencode(folder)
    found = []
    for process in proc.glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if named in words or inside in (process / "maps").read_bytes() or _opened(process, inside):
                found.append(int(process.name))
        except OSError:
            continue
    return sorted(found)


def _opened(process: Path, inside: bytes) -> bool:
    return any(
        os.fsencode(link.readlink()).startswith(inside) for link in (process / "fd").iterdir() if link.is_symlink()
    )
