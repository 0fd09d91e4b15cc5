# SPDX-License-Identifier: Apache-2.0
"""Files that are either the old or the new one, whatever happens while they are written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_atomically(
    path: Path, content: bytes, mode: int = 0o644, prepare: Callable[[Path], None] = lambda _: None
) -> None:
    """Replace ``path``, also across a power cut. ``prepare`` is called with the new file before it gets its name.

    Raises OSError, and the old file stays as it was.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(mode)
        prepare(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
