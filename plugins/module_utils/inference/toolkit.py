# SPDX-License-Identifier: Apache-2.0
"""The part of this toolkit that lives on a host: which files, and under which version."""

from __future__ import annotations

import hashlib
from pathlib import Path

from . import __version__

ROOT = "/usr/local/lib/inference"
"""Where hosts keep the toolkit, one folder a version."""

PROGRAMS = ("supervisor", "smoke", "diagnose", "topology", "nccl", "patches", "tune", "tune-worker")
"""Programs of ``scripts/`` that are of use on a host."""

DOMAIN = "plugins/module_utils/inference"


def files(project: Path) -> dict[str, str]:
    """Return what a host gets, path below the version's folder to content, laid out as in the project."""
    sources = sorted((project / DOMAIN).rglob("*.py"))
    sources += [project / "scripts" / name for name in PROGRAMS if (project / "scripts" / name).is_file()]
    return {str(path.relative_to(project)): path.read_text() for path in sources}


def version(content: dict[str, str]) -> str:
    """Return the version of these files: the release's number and a hash, so that a change never alters an old one."""
    digest = hashlib.sha256()
    for path in sorted(content):
        digest.update(f"{path}\0{len(content[path])}\0{content[path]}".encode())
    return f"{__version__}-{digest.hexdigest()[:8]}"
