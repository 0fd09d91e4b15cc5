# SPDX-License-Identifier: Apache-2.0
"""Asking package indexes through uv: which files a set of requirements comes to, and where they are.

Where packages come from is never written into a lock; it is said here, by options or the environment.
Reading uv's answer needs Python 3.11 (tomllib): resolving is the controller's work, a host only installs.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .locks import Lock, Pin, Target, normalise
from .wheelhouse import Download

PLATFORM = "x86_64-manylinux_2_35"
"""Locks are for x86-64 Linux with glibc 2.35 (Ubuntu 22.04) or newer: the oldest that the toolkit supports."""

GLIBC = (2, 35)


class ResolveError(RuntimeError):
    """uv could not resolve the requirements; the message is uv's own."""


@dataclass(frozen=True)
class Sources:
    """Where packages come from. Empty: uv's own default index."""

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    proxy: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ, **given: Any) -> Sources:
        """Return the given settings, with find-links that only pip knows (``PIP_FIND_LINKS``) added.

        uv reads its own variables (``UV_DEFAULT_INDEX``, ``UV_INDEX``, ``UV_FIND_LINKS``) by itself.
        """
        found = environment.get("UV_FIND_LINKS", "").split(",") + environment.get("PIP_FIND_LINKS", "").split()
        links = tuple(given.pop("find_links", ())) + tuple(link for link in found if link)
        return cls(find_links=tuple(dict.fromkeys(links)), **given)

    def arguments(self) -> list[str]:
        """Return uv's options."""
        options = ["--default-index", self.index_url] if self.index_url else []
        for url in self.extra_index_urls:
            options += ["--index", url]
        for link in self.find_links:
            options += ["--find-links", link]
        return options

    def environment(self) -> dict[str, str]:
        """Return the variables by which uv and this toolkit's downloads find the proxy."""
        return dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), self.proxy) if self.proxy else {}

    def backend(self, local: str | None) -> list[str]:
        """Return the option that sends uv to PyTorch's index for versions such as ``2.13.0+cpu``.

        With find-links set, those files are expected there: uv would not look there any more with the option.
        """
        return ["--torch-backend", local] if local and not self.find_links else []


@dataclass(frozen=True)
class Candidate:
    """A file that an index offers for a resolved package. ``size`` is in bytes, None when the index doesn't say."""

    name: str
    version: str
    file: str
    url: str
    size: int | None
    sha256: str

    @property
    def path(self) -> Path | None:
        """The file itself when it is a local one."""
        parts = urllib.parse.urlsplit(self.url)
        return Path(urllib.parse.unquote(parts.path)) if parts.scheme == "file" else None


def find_uv() -> str:
    """Return uv: the one beside this Python, else the one in PATH."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise ResolveError("uv is not here; install what requirements.txt names")
    return found


def target(python: str) -> Target:
    """Return what locks for this Python are made for."""
    return Target(python, GLIBC)


def resolve(
    uv: str,
    requirements: Iterable[str],
    python: str,
    sources: Sources,
    *,
    no_deps: bool = False,
    options: Sequence[str] = (),
) -> list[Candidate]:
    """Return every wheel that fits, of every package the requirements come to. Raises ResolveError."""
    command = [uv, "pip", "compile", "-", "--format", "pylock.toml", "--no-header", "--quiet"]
    command += ["--no-python-downloads", "--python-version", python, "--python-platform", PLATFORM]
    command += ["--only-binary", ":all:", *sources.arguments(), *options]
    command += ["--no-deps"] if no_deps else []
    answer = subprocess.run(
        command,
        input="\n".join(requirements) + "\n",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **sources.environment(), "NO_COLOR": "1"},
    )
    if answer.returncode:
        raise ResolveError(answer.stderr.strip() or f"{uv} exited with {answer.returncode}")
    return read_pylock(answer.stdout)


def read_pylock(text: str) -> list[Candidate]:
    """Return the wheels of a ``pylock.toml`` (PEP 751)."""
    if sys.version_info < (3, 11):
        raise ResolveError("resolving needs Python 3.11 or newer: run this on the controller's Python")
    tomllib = importlib.import_module("tomllib")  # by name: the type checker reads this file as Python 3.10

    return [
        _candidate(package, wheel)
        for package in tomllib.loads(text).get("packages", [])
        for wheel in package.get("wheels", [])
    ]


def _candidate(package: Mapping[str, Any], wheel: Mapping[str, Any]) -> Candidate:
    url = wheel["url"] if "url" in wheel else Path(wheel["path"]).absolute().as_uri()
    file = wheel.get("name") or urllib.parse.unquote(url.rpartition("/")[2].partition("#")[0])
    return Candidate(
        name=normalise(package["name"]),
        version=package["version"],
        file=file,
        url=url,
        size=wheel.get("size"),
        sha256=wheel["hashes"]["sha256"],
    )


def locate(uv: str, locks: Iterable[Lock], wanted: Iterable[Pin], sources: Sources) -> list[Download]:
    """Return where each wanted file of the locks is. Raises ResolveError that names files no source has."""
    left = {pin.file: pin for pin in wanted}
    downloads = []
    for lock in locks:
        for local in {pin.local for pin in lock.pins if pin.file in left}:
            lines = [f"{pin.name}=={pin.version}" for pin in lock.pins if pin.file in left and pin.local == local]
            options = sources.backend(local)
            for candidate in resolve(uv, lines, lock.python, sources, no_deps=True, options=options):
                pin = left.get(candidate.file)
                if pin and pin.sha256 == candidate.sha256:
                    downloads.append(Download(left.pop(candidate.file), candidate.url))
    if left:
        names = ", ".join(f"{pin.file} (sha256 {pin.sha256})" for pin in left.values())
        raise ResolveError(f"no source offers, with the hash of the lock: {names}")
    return downloads
