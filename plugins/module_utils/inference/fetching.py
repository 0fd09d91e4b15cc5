# SPDX-License-Identifier: Apache-2.0
"""Fetching files of known size and content: several at once, each continued where a broken download stopped.

A file grows as ``NAME.part`` and gets its name only when its content is right: what has its name is whole.
"""

from __future__ import annotations

import errno
import http
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20
PART = ".part"
ATTEMPTS = 4
LONGEST_PAUSE = 300.0
"""Seconds; a server that asks for more is asked again by the next run."""


class PausedError(RuntimeError):
    """The time that a call was given is over; the next call goes on."""


class FetchError(RuntimeError):
    """Files that could not be had. ``status`` is the HTTP status of the first refusal, or None."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Download:
    """A file to fetch. ``wrong`` looks at what came and says what is wrong with its content, or None."""

    url: str
    path: Path
    size: int
    wrong: Callable[[Path], str | None]
    authorization: str | None = None
    """The header's value; it is not passed on when the server sends us elsewhere."""

    @property
    def part(self) -> Path:
        """Where the file grows."""
        return self.path.with_name(self.path.name + PART)


def opener(proxy: str | None = None) -> urllib.request.OpenerDirector:
    """Return what opens URLs, through a proxy if one is given; else the environment's counts."""
    handlers = [urllib.request.ProxyHandler({"http": proxy, "https": proxy})] if proxy else []
    return urllib.request.build_opener(*handlers)


def fetch(
    downloads: Sequence[Download],
    *,
    jobs: int = 4,
    proxy: str | None = None,
    pause: float = 1.0,
    until: float | None = None,
) -> None:
    """Fetch all files. Raises FetchError that names every file that could not be had.

    ``pause``: seconds before the second attempt at a file, doubled with each; a server's Retry-After counts more.
    ``until``: a time of ``time.monotonic()`` at which to stop with PausedError.
    """
    open_url = opener(proxy)
    failures: list[tuple[str, int | None]] = []
    paused = False

    def one(download: Download) -> None:
        nonlocal paused
        try:
            _fetch_one(open_url, download, pause, until)
        except PausedError:
            paused = True
        except (OSError, EOFError, http.client.HTTPException, FetchError) as error:
            failures.append((f"{download.path.name}: {error}", getattr(error, "code", None)))

    with ThreadPoolExecutor(jobs) as pool:
        # the largest first: no long tail with one connection
        list(pool.map(one, sorted(downloads, key=lambda download: -download.size)))
    if failures:
        status = next((status for _, status in failures if status is not None), None)
        raise FetchError("; ".join(sorted(message for message, _ in failures)), status)
    if paused:
        raise PausedError


def _fetch_one(open_url: urllib.request.OpenerDirector, download: Download, pause: float, until: float | None) -> None:
    for attempt in range(ATTEMPTS):
        try:
            _append(open_url, download, until)
            break
        except FetchError:
            download.part.unlink()
            raise
        except (OSError, EOFError, http.client.HTTPException) as error:
            if attempt == ATTEMPTS - 1 or is_final(error):
                raise
            time.sleep(waiting(error, pause * 2**attempt))
    if complaint := download.wrong(download.part):
        download.part.unlink()
        raise FetchError(complaint)
    download.part.replace(download.path)


def is_final(error: BaseException) -> bool:
    """Say whether asking again can't help: the server has answered with a refusal, or there is no room here."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in range(400, 500) and error.code not in (408, 429)
    return isinstance(error, OSError) and error.errno == errno.ENOSPC


def waiting(error: BaseException, otherwise: float) -> float:
    """Return the seconds until the next attempt: what the server asks for, else ``otherwise``."""
    wanted = (error.headers.get("Retry-After") or "") if isinstance(error, urllib.error.HTTPError) else ""
    return min(float(wanted) if wanted.isdigit() else otherwise, LONGEST_PAUSE)


def _append(open_url: urllib.request.OpenerDirector, download: Download, until: float | None) -> None:
    """Add to the part what it lacks; a server without ranges makes it begin again, one that sends more is refused."""
    part = download.part
    have = part.stat().st_size if part.exists() else 0
    if have == download.size and have:
        return
    _check_time(until)
    request = urllib.request.Request(download.url)  # noqa: S310 - the URL is the index's, the content is checked
    if 0 < have < download.size:
        request.add_header("Range", f"bytes={have}-")
    if download.authorization:
        request.add_unredirected_header("Authorization", download.authorization)
    with open_url.open(request, timeout=60) as response:
        resumed = getattr(response, "status", None) == http.HTTPStatus.PARTIAL_CONTENT
        with part.open("ab" if resumed else "wb") as stream:
            while chunk := response.read(CHUNK):
                if stream.tell() + len(chunk) > download.size:
                    raise FetchError(f"more than the {download.size} bytes came that it should have: refused")
                stream.write(chunk)
                _check_time(until)
    if (size := part.stat().st_size) < download.size:
        raise EOFError(f"the connection ended after {size} of {download.size} bytes")


def _check_time(until: float | None) -> None:
    if until is not None and time.monotonic() > until:
        raise PausedError
