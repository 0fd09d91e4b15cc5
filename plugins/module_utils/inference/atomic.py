# SPDX-License-Identifier: Apache-2.0
"""Files that are either the old or the new one, whatever happens while they are written."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
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


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Let one process of this machine at a time work in ``folder``, which has to be there; the others wait."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
