# SPDX-License-Identifier: Apache-2.0
"""Wheels, locks and wheelhouses of a few hundred bytes, made here, for tests that install with the real uv."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

from inference.releases import locks

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
INTERPRETER = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


def uv() -> Path:
    beside = Path(sys.executable).with_name("uv")
    found = beside if beside.exists() else Path(shutil.which("uv") or "")
    assert found.is_file(), "uv is part of the controller's requirements"
    return found


def write_wheel(
    directory: Path,
    name: str,
    version: str,
    files: dict[str, bytes],
    *,
    tag: str = "py3-none-any",
    metadata: bytes = b"",
) -> locks.Pin:
    """Write a wheel and return its pin."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode() + metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    record = [
        f"{path},sha256={urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for path, data in content.items()
    ]
    content[f"{info}/RECORD"] = ("".join(record) + f"{info}/RECORD,,\n").encode()
    path = directory / f"{module}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in content.items():
            entry = zipfile.ZipInfo(file, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if file.endswith("/uv") else 0o644) << 16
            archive.writestr(entry, data)
    return pin(name, version, path)


def pin(name: str, version: str, path: Path) -> locks.Pin:
    return locks.Pin(name, version, path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())


def lock_text(pins: list[locks.Pin], engine: str = "tiny", version: str = "1.0", variant: str = "cpu") -> str:
    head = {"engine": engine, "version": version, "variant": variant, "python": PYTHON}
    return locks.render_lock(head, pins, "tests")


def installer(directory: Path) -> str:
    """Put a wheel with the real uv into the folder; return the text of its lock."""
    version = subprocess.run([uv(), "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    program = f"uv-{version}.data/scripts/uv"
    made = write_wheel(directory, "uv", version, {program: uv().read_bytes()})
    return lock_text([made], "uv", version, "host")


def wheelhouse(directory: Path) -> tuple[str, str]:
    """Fill a folder; return the text of the engine's lock and of the installer's."""
    directory.mkdir(parents=True)
    pins = [
        write_wheel(
            directory,
            "tiny",
            "1.0",
            {
                "tiny/__init__.py": b"from tiny.part import answer\n",
                "tiny/part.py": b"def answer():\n    return 42\n",
                "tiny/future.py": b"match = 1\nfrom __future__ import no_such_feature\n",
            },
        ),
        write_wheel(directory, "helper-of-tiny", "2.5.post1", {"helper_of_tiny.py": b"NAME = 'helper'\n"}),
    ]
    return lock_text(pins), installer(directory)
