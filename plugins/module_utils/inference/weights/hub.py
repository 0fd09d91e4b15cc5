# SPDX-License-Identifier: Apache-2.0
"""Weights from a repository of a Hugging Face hub, at one commit.

Not by huggingface_hub, which throws half a file away when it is stopped (2.4) and refuses files above 50 GB over plain
HTTP: with shards of gigabytes an interrupted download would begin anew. The hub is asked once which files the commit
has, with their sizes and hashes; the files come as those of a wheelhouse do.
"""

from __future__ import annotations

import fnmatch
import http.client
import json
import os
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import fetching
from ..releases.wheelhouse import file_sha256
from .record import MARK, Record, git_blob

ENDPOINT = "https://huggingface.co"
"""The hub where none is given."""

IGNORE = (
    *("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle", "*.gguf", "*.onnx", "*.h5", "*.msgpack"),
    *("original/*", "onnx/*", "metal/*"),
)
"""Files that the engines do not load where safetensors are there, so that they are not fetched; pickles among them."""

SPARE = 1 << 30
"""Bytes that stay free in the file system beside the model."""

_FIXES: Mapping[int | None, str] = {
    401: "set model_hub_token: a private or gated repository is not shown without it, nor is one that does not exist",
    403: "accept its terms on the hub with the account of the token, or take a token that may read it",
    404: "correct the name or the commit; a private repository needs model_hub_token",
    None: "run it again, which goes on where it stopped; model_hub_endpoint names a mirror, model_hub_proxy a proxy",
}
"""What to do, by the hub's status; None for everything that may pass."""


class HubError(RuntimeError):
    """What could not be had from a hub, and what to do."""


class HubPausedError(RuntimeError):
    """A download is not finished yet: bytes that are there, and bytes in all."""

    def __init__(self, there: int, whole: int) -> None:
        super().__init__(f"{there} of {whole} bytes")
        self.there, self.whole = there, whole


@dataclass(frozen=True)
class Hub:
    """How to reach a hub. ``token`` is a secret and never part of an error."""

    endpoint: str = ENDPOINT
    token: str | None = None
    proxy: str | None = None
    jobs: int = 8
    """Files that are fetched at once."""
    pause: float = 2.0
    """Seconds before the second attempt, doubled with each; a server's Retry-After counts more."""
    patience: float | None = None
    """Seconds after which a call stops with HubPausedError, so that whoever called can say how far it is."""

    @property
    def authorization(self) -> str | None:
        """The header's value."""
        return f"Bearer {self.token}" if self.token else None


@dataclass(frozen=True)
class File:
    """A file of a repository at a commit: its size, and its sha256 or, for small ones, git's name for its content."""

    path: str
    size: int
    sha256: str | None
    blob: str | None

    def wrong(self, there: Path) -> str | None:
        """Say what is wrong with the content of a file that came, or None."""
        found = file_sha256(there) if self.sha256 else git_blob(there)
        expected = self.sha256 or self.blob
        return None if found == expected else f"what came has the hash {found}, the hub names {expected}: refused"


def download(hub: Hub, name: str, revision: str, folder: Path, ignore: Sequence[str] = IGNORE) -> Record:
    """Bring the files of a commit into ``folder`` and return what the hub says of them. Raises HubError.

    What is in ``folder`` already counts, whole files and halves of them, while its MARK is of this commit; the mark
    stays until the folder is in its place. Everything is checked before the first byte is fetched: that the commit is
    there, holds weights, and fits on the disk. Raises HubPausedError after ``patience``.
    """
    origin = f"hf:{name}@{revision}"
    _check_owner(origin, folder)
    files = [file for file in listed(hub, name, revision) if not _ignored(file.path, ignore)]
    if folder.is_dir() and not is_of(folder, origin):
        shutil.rmtree(folder)
    if not any(file.path.endswith(".safetensors") for file in files):
        raise HubError(f"{origin}: seen no *.safetensors file in it; expected weights that the engines load")
    lacking = [file for file in files if not _there(file, folder)]
    _check_room(origin, lacking, folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text(origin, encoding="utf-8")
    for file in lacking:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
    base = f"{hub.endpoint.rstrip('/')}/{name}/resolve/{revision}/"
    downloads = [
        fetching.Download(
            base + urllib.parse.quote(file.path), folder / file.path, file.size, file.wrong, hub.authorization
        )
        for file in lacking
    ]
    try:
        until = time.monotonic() + hub.patience if hub.patience is not None else None
        fetching.fetch(downloads, jobs=hub.jobs, proxy=hub.proxy, pause=hub.pause, until=until)
    except fetching.PausedError:
        whole = sum(file.size for file in files)
        raise HubPausedError(whole - _lacking_bytes(lacking, folder), whole) from None
    except fetching.FetchError as error:
        raise HubError(f"{origin}: {error}; fix: {_FIXES.get(error.status, _FIXES[None])}") from error
    sums = {file.path: file.sha256 for file in files if file.sha256}
    blobs = {file.path: file.blob for file in files if file.blob and not file.sha256}
    return Record(origin=origin, sums=sums, blobs=blobs)


def listed(hub: Hub, name: str, revision: str) -> list[File]:
    """Return all files of a commit. Raises HubError."""
    origin = f"hf:{name}@{revision}"
    url = f"{hub.endpoint.rstrip('/')}/api/models/{urllib.parse.quote(name)}/revision/{revision}?blobs=true"
    try:
        rows = _ask(hub, url)["siblings"]
        files = [
            File(row["rfilename"], int(row["size"]), (row.get("lfs") or {}).get("sha256"), row.get("blobId"))
            for row in rows
        ]
    except urllib.error.HTTPError as error:
        said = error.headers.get("X-Error-Message") or error.reason
        fix = _FIXES.get(error.code, _FIXES[None])
        raise HubError(f"{origin}: seen HTTP {error.code} ({said}); fix: {fix}") from error
    except (OSError, http.client.HTTPException) as error:
        raise HubError(f"{origin}: {error}; fix: {_FIXES[None]}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HubError(f"{origin}: what {hub.endpoint} answered is not a hub's list of files ({error!r})") from error
    outside = [file.path for file in files if file.path.startswith("/") or ".." in Path(file.path).parts]
    if outside:
        raise HubError(f"{origin}: seen a file with the path {outside[0]!r}; expected paths inside the repository")
    return files


def _ask(hub: Hub, url: str) -> dict[str, Any]:
    """Return a JSON answer; what may pass is tried again."""
    request = urllib.request.Request(url)  # noqa: S310 - the operator's own endpoint
    if hub.authorization:
        request.add_unredirected_header("Authorization", hub.authorization)
    for attempt in range(fetching.ATTEMPTS):
        try:
            with fetching.opener(hub.proxy).open(request, timeout=60) as response:
                found: dict[str, Any] = json.load(response)
                return found
        except (OSError, http.client.HTTPException) as error:
            if attempt == fetching.ATTEMPTS - 1 or fetching.is_final(error):
                raise
            time.sleep(fetching.waiting(error, hub.pause * 2**attempt))
    raise AssertionError("not reached")


def _ignored(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns) or path.startswith(".")


def is_of(folder: Path, origin: str) -> bool:
    """Say whether what is in the folder was fetched for this commit: else names and sizes say nothing."""
    mark = folder / MARK
    return mark.is_file() and mark.read_text(encoding="utf-8") == origin


def _there(file: File, folder: Path) -> bool:
    """Say whether a file has come whole: it has its name only after its content was found right."""
    path = folder / file.path
    return path.is_file() and path.stat().st_size == file.size


def _lacking_bytes(files: Sequence[File], folder: Path) -> int:
    """Return how many bytes of these files have not come yet."""
    parts = [folder / (file.path + fetching.PART) for file in files]
    there = sum(part.stat().st_size for part in parts if part.exists())
    return sum(file.size for file in files if not _there(file, folder)) - there


def _check_owner(origin: str, folder: Path) -> None:
    """Refuse a folder that somebody else has put there: a link in it would have this account write elsewhere."""
    if folder.is_symlink() or (folder.exists() and folder.stat().st_uid != os.geteuid()):
        raise HubError(
            f"{origin}: seen {folder}, which is a link or another account's; expected a folder of the account that "
            "fetches, or nothing; fix: remove it, and let nobody else write into the folder above"
        )


def _check_room(origin: str, files: Sequence[File], folder: Path) -> None:
    need = _lacking_bytes(files, folder)
    place = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(place).free
    if files and need + SPARE > free:
        raise HubError(
            f"{origin}: seen {free / 1e9:.1f} GB free in {place}; expected {(need + SPARE) / 1e9:.1f} GB; "
            "fix: free space, or give the model a path on a larger file system"
        )
