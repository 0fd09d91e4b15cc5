# SPDX-License-Identifier: Apache-2.0
"""What an instance leaves in /run/inference, read by root: the folder is the service's own, and so is what lies in it.

An engine that somebody has taken over may put anything there. A link would have root read another file, a pipe would
have it wait for ever, a file without an end would fill its memory.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20
"""A supervisor's records have a few thousand."""


def read_json(path: Path, since: float = 0) -> dict[str, Any] | None:
    """Return the JSON object in a plain file that was written after ``since`` (Unix time); None for anything else."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as stream:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES or status.st_mtime < since:
                return None
            found = json.loads(stream.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
