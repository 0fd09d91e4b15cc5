# SPDX-License-Identifier: Apache-2.0
"""The part of this toolkit that lives on a host: which files, and under which version."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

from . import __version__

ROOT = "/usr/local/lib/inference"
"""Where hosts keep the toolkit, one folder a version."""

STATE = "/var/lib/inference"
"""Where hosts keep what they know of their instances, which says which versions are in use."""

PROGRAMS = ("supervisor", "smoke", "diagnose", "topology", "nccl", "patches", "tune", "tune-worker")
"""Programs of ``scripts/`` that are of use on a host."""

VERSION = re.compile(r"\d+\.\d+\.\d+\S*-[0-9a-f]{8}")
"""How a version is named: the release's number and a hash."""

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


def mode(path: str) -> int:
    """Return the mode of a file or folder, by its path below the version's folder."""
    return 0o644 if path.endswith(".py") else 0o755


def entries(root: str, content: Mapping[str, str]) -> list[dict[str, str]]:
    """Return files below the folder ``root``, with all folders that they need, as entries for ``managed_files``."""
    folders = {f"{root}/{parent}" for path in content for parent in Path(path).parents if str(parent) != "."}
    made = [{"path": folder, "state": "directory"} for folder in (ROOT, root, *sorted(folders))]
    return made + [{"path": f"{root}/{p}", "content": text, "mode": f"{mode(p):04o}"} for p, text in content.items()]


def intact(name: str, root: Path = Path(ROOT), owner: int = 0) -> bool:
    """Say whether the version ``name`` lies on this host as it was installed: these files and no others, of this mode.

    The name is made from the content, so nothing has to be sent here to be compared with. What Python compiled does
    not count. ``owner``: user and group that everything belongs to.
    """
    folder = root / name
    paths = [folder, *(path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts)]
    try:
        if any(not _as_installed(path, str(path.relative_to(folder)), owner) for path in paths):
            return False
        return version({str(p.relative_to(folder)): p.read_text() for p in paths if p.is_file()}) == name
    except (OSError, UnicodeDecodeError):
        return False


def _as_installed(path: Path, name: str, owner: int) -> bool:
    found = os.lstat(path)
    wanted = mode(name) | (stat.S_IFDIR if stat.S_ISDIR(found.st_mode) else stat.S_IFREG)
    return (found.st_mode, found.st_uid, found.st_gid) == (wanted, owner, owner)


def prune(used: Collection[str], root: Path = Path(ROOT)) -> list[str]:
    """Remove the versions on this host that nothing uses, and return them.

    A folder whose name is no version of ours is left alone, and so is everything while nothing at all is in use.
    """
    found = [folder for folder in sorted(root.glob("*")) if folder.is_dir() and VERSION.fullmatch(folder.name)]
    unused = [folder for folder in found if folder.name not in used] if used else []
    for folder in unused:
        shutil.rmtree(folder)
    return [folder.name for folder in unused]
