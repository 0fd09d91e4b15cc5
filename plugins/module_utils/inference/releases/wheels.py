# SPDX-License-Identifier: Apache-2.0
"""SGLang releases as a folder of downloaded wheels: what each pins, and the few files of it that a question needs."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ..ledger.entry import Entry, LedgerError

PINNED = (
    "torch",
    "flashinfer_python",
    "flashinfer_cubin",
    "sgl_kernel",
    "sglang_kernel",
    "sgl_deep_gemm",
    "transformers",
)
"""Packages whose pins decide what a release can do on SM120 (names with ``-`` as ``_``)."""

_METADATA = ("METADATA", "RECORD")


@dataclass(frozen=True)
class Release:
    """One SGLang wheel and the FlashInfer wheel that it pins, where the folder has it."""

    version: str
    wheel: Path
    pins: Mapping[str, str]
    """Version by package, for the packages in :data:`PINNED` that the release names."""
    flashinfer: Path | None


def find(folder: Path) -> list[Release]:
    """Return the SGLang releases in a folder of wheels, the oldest first."""
    wheels = sorted(folder.glob("sglang-*.whl"))
    if not wheels:
        raise LedgerError(f"{folder}: no sglang-*.whl in it; download the wheels there (pip download --no-deps)")
    return sorted((read(wheel) for wheel in wheels), key=lambda release: order(release.version))


def read(wheel: Path) -> Release:
    """Return one release; its FlashInfer wheel is looked for in the same folder."""
    version = wheel.name.split("-")[1]
    try:
        with zipfile.ZipFile(wheel) as archive:
            metadata = archive.read(f"sglang-{version}.dist-info/METADATA").decode("utf-8")
    except OSError as error:
        raise LedgerError(f"{wheel}: not a wheel of sglang: {error.strerror or error}") from error
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise LedgerError(f"{wheel}: not a wheel of sglang: {error}") from error
    known = pins(metadata)
    beside = wheel.parent.glob(f"flashinfer_python-{known.get('flashinfer_python', '-')}-*.whl")
    return Release(version, wheel, known, next(iter(sorted(beside)), None))


def pins(metadata: str) -> dict[str, str]:
    """Return the exact pins of the packages in :data:`PINNED` that a METADATA file names outside extras."""
    found: dict[str, str] = {}
    for line in metadata.splitlines():
        match = re.match(r"Requires-Dist: ([A-Za-z0-9_.-]+)(?:\[[^]]*\])? ?\(?==([^;,) ]+)\)?(.*)", line)
        if match and "extra ==" not in match[3]:
            name = re.sub(r"[-.]+", "_", match[1]).lower()
            if name in PINNED:
                found.setdefault(name, match[2])
    return found


def order(version: str) -> list[int]:
    """Return a sort key for release numbers such as ``0.5.10.post1``."""
    return [int(number) for number in re.findall(r"\d+", version)]


@contextmanager
def unpacked(release: Release, entries: Iterable[Entry]) -> Iterator[Path]:
    """Yield a temporary site-packages folder with the files that the ledger asks about, and the wheels' metadata."""
    files = {name for entry in entries for name in entry.asked}
    with TemporaryDirectory(prefix="release-") as folder:
        root = Path(folder)
        (root / "sglang").mkdir()
        for wheel in (release.wheel, release.flashinfer):
            if wheel is not None:
                _extract(wheel, files, root)
        yield root


def _extract(wheel: Path, files: set[str], root: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name in files or (".dist-info/" in name and name.endswith(_METADATA)):
                archive.extract(name, root)
