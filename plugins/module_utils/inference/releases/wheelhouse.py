# SPDX-License-Identifier: Apache-2.0
"""A wheelhouse: a folder with every file of one or more locks, from which hosts install without a network.

Files are fetched in parallel into ``NAME.part``, continued where a broken download stopped, and get their name only
when size and hash are those of the lock: what has its name is whole.
"""

from __future__ import annotations

import base64
import hashlib
import io
import netrc
import os
import shutil
import tarfile
import urllib.parse
import zipfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .. import fetching
from ..fetching import CHUNK, PART
from ..findings import Finding
from .locks import Lock, Pin

STANDINS = "inference-cpu-standins"
"""The package of a CPU lock that no index has: it is built from the toolkit's own source."""


class WheelhouseError(RuntimeError):
    """A file could not be had, or what was had is not what the lock names."""


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's content."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


# --- is everything there ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """What is wrong with a lock's file in the folder: it is ``missing``, or of another ``size`` or ``hash``."""

    pin: Pin
    kind: str
    seen: str


def faults(pins: Iterable[Pin], directory: Path, *, hashes: bool = True) -> list[Fault]:
    """Return what is wrong with each of the files, in the order of the pins. Hashes are made on all cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda pin: _fault(pin, directory, hashes), pins)
        return [fault for fault in results if fault is not None]


def _fault(pin: Pin, directory: Path, hashes: bool) -> Fault | None:
    path = directory / pin.file
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        return Fault(pin, "missing", "no such file")
    if size != pin.size:
        return Fault(pin, "size", f"{size} bytes")
    if hashes and (sha256 := file_sha256(path)) != pin.sha256:
        return Fault(pin, "hash", f"sha256 {sha256}")
    return None


def check(pins: Iterable[Pin], directory: Path, *, hashes: bool = True) -> list[Finding]:
    """Return a finding for all that is missing, and one for each file that is another."""
    pins = list(pins)
    found = faults(pins, directory, hashes=hashes)
    missing = [fault.pin for fault in found if fault.kind == "missing"]
    others = [fault for fault in found if fault.kind != "missing"]
    return ([_missing(missing, len(pins), directory)] if missing else []) + [_other(f, directory) for f in others]


FIX = "on the controller: scripts/wheelhouse build DIR LOCK, which fetches only what is missing or wrong"


def _missing(pins: Sequence[Pin], of: int, directory: Path) -> Finding:
    names = tuple(pin.file for pin in pins)
    return Finding(
        id="wheelhouse.missing",
        level="critical",
        what=f"the wheelhouse {directory} lacks {len(pins)} of {of} files",
        seen="no such file: " + ", ".join(names) if directory.is_dir() else "no such folder",
        expected=f"{len(pins)} more files, {sum(pin.size for pin in pins) / 1e6:,.1f} MB",
        fix=FIX,
        where=names,
    )


def _other(fault: Fault, directory: Path) -> Finding:
    pin = fault.pin
    return Finding(
        id=f"wheelhouse.{fault.kind}.{pin.name}",
        level="critical",
        what=f"the wheelhouse {directory} does not hold {pin.file} as the lock names it",
        seen=fault.seen,
        expected=f"{pin.size} bytes, sha256 {pin.sha256}",
        fix=FIX,
    )


def unpacked_size(pins: Iterable[Pin], directory: Path) -> int:
    """Return how many bytes the wheels come to when they are unpacked."""
    total = 0
    for pin in pins:
        with zipfile.ZipFile(directory / pin.file) as archive:
            total += sum(entry.file_size for entry in archive.infolist())
    return total


# --- fetching -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Download:
    """A file of a lock and where it is: an ``http(s)`` or ``file`` URL."""

    pin: Pin
    url: str


def fetched(pins: Iterable[Pin], directory: Path) -> int:
    """Return how many bytes of the files are in the folder, whole or in part: what a progress line shows."""
    total = 0
    for pin in pins:
        for path in (directory / pin.file, directory / (pin.file + PART)):
            if path.exists():
                total += path.stat().st_size
                break
    return total


def fetch(
    downloads: Sequence[Download],
    directory: Path,
    *,
    jobs: int = 4,
    proxy: str | None = None,
    credentials: Sequence[str] = (),
) -> None:
    """Fetch files that are not in the folder. Raises WheelhouseError that names every file that could not be had.

    ``credentials`` are index URLs that may hold a user and password, used for files on the same host.
    """

    def planned(pin: Pin, url: str) -> fetching.Download:
        return fetching.Download(url, directory / pin.file, pin.size, partial(_refused, pin), _login(url, credentials))

    try:
        fetching.fetch([planned(item.pin, item.url) for item in downloads], jobs=jobs, proxy=proxy)
    except fetching.FetchError as error:
        raise WheelhouseError(str(error)) from error


def _refused(pin: Pin, part: Path) -> str | None:
    """Say what is wrong with a file that came."""
    sha256 = file_sha256(part)
    return None if sha256 == pin.sha256 else f"what came has sha256 {sha256}, the lock names {pin.sha256}: refused"


def _login(url: str, credentials: Sequence[str]) -> str | None:
    """Return the Authorization header for a URL's host, from an index URL or from ``~/.netrc``."""
    host = urllib.parse.urlsplit(url).hostname
    for known in map(urllib.parse.urlsplit, credentials):
        if known.hostname == host and known.username:
            return _basic(urllib.parse.unquote(known.username), urllib.parse.unquote(known.password or ""))
    try:
        entry = netrc.netrc().authenticators(host) if host else None
    except (OSError, netrc.NetrcParseError):
        entry = None
    return _basic(entry[0], entry[2]) if entry else None


def _basic(user: str, password: str | None) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()


# --- the stand-ins for a CPU --------------------------------------------------------------------------------------


def build_standins(source: Path) -> tuple[str, bytes]:
    """Return (file name, content) of the wheel made of the folder: the same bytes on every machine.

    Entries are stored, not compressed, since the same zlib call gives other bytes in other versions.
    """
    version = (source / "VERSION").read_text(encoding="utf-8").strip()
    module = STANDINS.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for path in sorted(source.rglob("*"))
        if path.suffix in (".py", ".pth") and "__pycache__" not in path.parts
    }
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {STANDINS}\nVersion: {version}\n"
        "Summary: Stand-ins that let SGLang be imported on a CPU; nothing in it computes what a kernel computes\n"
    ).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: inference\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = "".join(
        [f"{name},sha256={_record_hash(data)},{len(data)}\n" for name, data in files.items()] + [f"{info}/RECORD,,\n"]
    ).encode()
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, data)
    return f"{module}-{version}-py3-none-any.whl", content.getvalue()


def _record_hash(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


# --- packing ------------------------------------------------------------------------------------------------------


def pack(files: Iterable[Path], archive: Path) -> None:
    """Write the files into a tar, by name and without times or owners: the same files give the same tar.

    It is not compressed: wheels already are.
    """
    part = archive.with_name(archive.name + ".part")
    try:
        with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
            for path in sorted(files):
                entry = tar.gettarinfo(path, arcname=path.name)
                entry.mtime, entry.mode = 0, 0o644
                entry.uid = entry.gid = 0
                entry.uname = entry.gname = "root"
                with path.open("rb") as stream:
                    tar.addfile(entry, stream)
        part.replace(archive)
    finally:
        part.unlink(missing_ok=True)


def free_bytes(directory: Path) -> int:
    """Return how many bytes fit into the file system of a folder that may not exist yet."""
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free


def files_of(locks: Iterable[Lock]) -> list[Pin]:
    """Return the files of several locks, each once."""
    return list({pin.file: pin for lock in locks for pin in lock.pins}.values())
