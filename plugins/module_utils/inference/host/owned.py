# SPDX-License-Identifier: Apache-2.0
"""Files that the host role writes: each knows by a checksum whether somebody has changed it since.

A file is written, altered and removed only while its checksum fits. One that was changed by hand, or that somebody else
made under the same name, is left as it is and named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from ..managed_files import Entry
from .machine import HostError, Machine

MARK = "# Written by the host role. Checksum of the lines below, which tells a change by hand: "
"""First line of a file; all of them belong to programs that take # for a comment."""

State = Literal["absent", "ours", "changed", "foreign"]


def sealed(content: str) -> str:
    """Return the text of a file with its first line."""
    return f"{MARK}{_digest(content)}\n{content}"


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def state_of(path: Path) -> State:
    """Return whose file this is."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "absent"
    except OSError:
        return "foreign"
    first, _, rest = text.partition("\n")
    if not first.startswith(MARK):
        return "foreign"
    return "ours" if first == MARK + _digest(rest) else "changed"


def entries(files: Mapping[str, str], machine: Machine, *, overwrite: bool) -> list[Entry]:
    """Return what the paths are to be: their content, or absent where that is blank.

    Raises HostError that names every file which somebody else has a hand in, unless ``overwrite``.
    """
    wanted = []
    refused = []
    for path, content in files.items():
        state = state_of(machine.path(path))
        blank = not content.strip()
        if state == "foreign" and blank:
            continue  # somebody else's, and we want nothing there
        if state in ("changed", "foreign") and not overwrite:
            refused.append(f"{path} ({'changed by hand' if state == 'changed' else 'not written by this role'})")
        where = str(machine.path(path))
        wanted.append(Entry(where, "absent") if blank else Entry(where, content=sealed(content.strip() + "\n")))
    if refused:
        raise HostError(
            f"seen: {', '.join(refused)}; expected: files as the host role left them, or none; fix: put your own lines"
            " into a file of another name, which wins if it sorts later, and remove this one, or set host_overwrite to"
            " have it replaced"
        )
    return wanted


def folders(wanted: Iterable[Entry]) -> list[Entry]:
    """Return the folders that the files need and that may not be there."""
    parents = dict.fromkeys(str(Path(entry.path).parent) for entry in wanted if entry.state == "file")
    return [Entry(path, "directory", mode=0o755) for path in parents if not Path(path).is_dir()]
