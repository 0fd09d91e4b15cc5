# SPDX-License-Identifier: Apache-2.0
"""Hand-made miniature site-packages folders for the tests of the ledger: the shape of SGLang's code, none of it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
LEDGER = ROOT / "roles" / "patches" / "files" / "ledger"

TILES = """\
def tiles(capability):
    if capability[0] > 8:
        block = 128  # large
    else:
        block = 64
    return block
"""

CHECK = """\
class Arguments:
    def check(self):
        if self.backend == "fast":
            if not is_new():
                raise ValueError("no")
        return self.backend
"""

FILES = {"sglang/__init__.py": "", "sglang/tiles.py": TILES, "sglang/check.py": CHECK}


def entry(patch: str = "T1", **changes: Any) -> dict[str, Any]:
    """Return a small valid entry that adds a branch for major 12 to ``tiles``."""
    document: dict[str, Any] = {
        "id": patch,
        "name": "tiles",
        "title": "Smaller tiles",
        "why": "They have to fit.",
        "risk": "None.",
        "drop_when": "Never.",
        "verified": "Here.",
        "source": ["hand-made"],
        "default": True,
        "variants": [
            {
                "form": "the only one",
                "edits": [
                    {
                        "file": "sglang/tiles.py",
                        "within": "tiles",
                        "anchor": "if capability[0] > 8:\n    ...\n",
                        "at": "after",
                        "insert": "if capability[0] == 12:\n    block = 64\n",
                    }
                ],
            }
        ],
    }
    return {**document, **changes}


def second(patch: str = "T2", **changes: Any) -> dict[str, Any]:
    """Return an entry for another file: a refusal before the check."""
    edit = {
        "file": "sglang/check.py",
        "within": "Arguments.check",
        "anchor": 'if self.backend == "fast":\n    ...\n',
        "insert": 'if self.backend == "fast" and is_old():\n    raise ValueError("old")\n',
    }
    return entry(patch, **{"variants": [{"form": "the only one", "edits": [edit]}], **changes})


def make(root: Path, files: Mapping[str, str] = FILES, *, version: str = "", record: bool = False) -> Path:
    """Write a site-packages folder; with a version and ``record``, its metadata and the hashes of its files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if version:
        metadata = root / f"sglang-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Name: sglang\nVersion: {version}\n", encoding="utf-8")
        lines = [f"{name},sha256={_digest(text)},{len(text)}\n" for name, text in files.items()] if record else []
        (metadata / "RECORD").write_text("".join(lines), encoding="utf-8")
    return root


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def snapshot(root: Path) -> dict[str, tuple[bytes, int, int]]:
    """Return content, mode and inode of every file: what must not change when nothing is to change."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {str(p.relative_to(root)): (p.read_bytes(), p.stat().st_mode, p.stat().st_ino) for p in files}


def contents(root: Path) -> dict[str, bytes]:
    """Return the content of every file."""
    return {name: content for name, (content, _, _) in snapshot(root).items()}


def real() -> list[dict[str, Any]]:
    """Return the entries of this project's ledger."""
    return [yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(LEDGER.glob("*.yml"))]


def as_json(path: Path, entries: list[dict[str, Any]]) -> Path:
    """Write a ledger as the one JSON file that a host gets."""
    path.write_text(json.dumps(entries), encoding="utf-8")
    return path
