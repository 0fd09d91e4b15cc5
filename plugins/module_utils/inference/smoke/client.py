# SPDX-License-Identifier: Apache-2.0
"""A client for OpenAI-compatible servers that measures: control calls by ``requests``, streams by ``aiohttp``.

Both libraries are imported when first used: they come with the engine (its Python has them) or with the controller's
environment. Neither proxies nor ``~/.netrc`` are taken from the environment: a proxy between this client and a server
on loopback would be what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .stats import Phase
from .stream import MAX_BYTES, Limits, RawStream, complete
from .waiting import Look, Waited

LAG_INTERVAL = 0.01
"""Seconds between two looks at the event loop's own lateness."""

KEEP_ALIVE = 2.0
"""Seconds an idle connection is kept: less than the 5 s after which uvicorn (both engines' server) closes it, since
a request sent at that very moment would look like a dropped connection."""

CONTROL_MAX = 4 * 1024 * 1024
"""Bytes of a control answer that are read."""


class MissingLibraryError(Exception):
    """A library is not installed here. The message says where it is."""


def _library(name: str) -> Any:
    try:
        return __import__(name)
    except ImportError as error:
        raise MissingLibraryError(
            f"{name} is not installed for this Python: run it with the engine's own "
            f"(/opt/inference/releases/<release>/venv/bin/python) or install {name}"
        ) from error


def require_libraries() -> None:
    """Raise :class:`MissingLibraryError` when one of the two libraries is absent."""
    for name in ("requests", "aiohttp"):
        _library(name)


@dataclass(frozen=True)
class Answer:
    """A control call's outcome. ``failure`` (timeout, refused, dropped) is set when there was no whole answer."""

    path: str
    status: int | None = None
    body: str = ""
    seconds: float = 0.0
    failure: str | None = None
    detail: str = ""

    @property
    def found(self) -> bool:
        """False when the server does not have this path."""
        return self.status not in (404, 405)

    @property
    def ok(self) -> bool:
        """True for a whole answer with status 200."""
        return self.failure is None and self.status == 200  # noqa: PLR2004 - HTTP's OK

    def document(self) -> Any:
        """Return the JSON document in the body, or None."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def describe(self) -> str:
        """Return one line for a report."""
        if self.failure:
            return f"{self.path}: {self.failure} after {self.seconds:.1f} s{f' ({self.detail})' if self.detail else ''}"
        return f"{self.path}: {self.status} in {self.seconds:.2f} s"


@dataclass(frozen=True)
class Request:
    """One completion to be made: the path and its JSON body."""

    path: str
    body: Mapping[str, Any]


RequestProgress = Callable[[int, int], None]
"""Called with the number of finished requests and of all."""


class Client:
    """Talks to one server. Use as an asynchronous context manager; control calls also work outside of it."""

    def __init__(self, url: str, *, api_key: str | None = None, connect_timeout: float = 5.0) -> None:
        self.url = url
        self.connect_timeout = connect_timeout
        self._key = api_key
        self._session: Any = None
        self.engine: Look = lambda: None
        """Looks at how long the engine's threads waited, where they run on this host."""

    def clean(self, text: str) -> str:
        """Return ``text`` without the key, should a server have echoed it."""
        return text.replace(self._key, "***") if self._key else text

    # control calls

    def call(self, path: str, *, body: Mapping[str, Any] | None = None, timeout: float = 10.0) -> Answer:
        """Make one call (POST with a ``body``) that is over after ``timeout`` seconds and never raises."""
        requests = _library("requests")
        begun = time.perf_counter()
        failure, detail, status, data = None, "", None, b""
        try:
            with requests.Session() as session:
                session.trust_env = False
                session.headers.update(self._headers())
                response = session.request(
                    "GET" if body is None else "POST", self.url + path, json=body, stream=True, allow_redirects=False,
                    timeout=(min(self.connect_timeout, timeout), timeout),
                )  # fmt: skip
                status = response.status_code
                for piece in response.iter_content(65536):
                    data += piece
                    if time.perf_counter() - begun > timeout or len(data) > CONTROL_MAX:
                        raise requests.exceptions.ReadTimeout("the answer does not end")
        except requests.exceptions.ConnectionError as error:
            failure, detail = _connection_failure(error), _cause(error)
        except requests.exceptions.Timeout as error:
            failure, detail = "timeout", _cause(error)
        except requests.exceptions.RequestException as error:
            failure, detail = "dropped", _cause(error)
        text = self.clean(data.decode("utf-8", errors="replace"))
        return Answer(path, status, text, time.perf_counter() - begun, failure, self.clean(detail))

    async def calls(self, paths: Sequence[str], *, timeout: float) -> list[Answer]:
        """Make several GET calls at once."""
        return list(await asyncio.gather(*(asyncio.to_thread(self.call, path, timeout=timeout) for path in paths)))

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    # streams

    async def __aenter__(self) -> Client:
        aiohttp = _library("aiohttp")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.connect_timeout),
            headers={**self._headers(), "Accept-Encoding": "identity", "Content-Type": "application/json"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def stream(self, request: Request, limits: Limits, *, scheduled: float = 0.0) -> RawStream:
        """Make one streamed completion. Failures are in the result; only cancellation is raised."""
        body = {**request.body, "stream": True, "stream_options": {"include_usage": True}}
        raw = RawStream(asked_model=body.get("model", ""), scheduled=scheduled, started=time.perf_counter())
        task = asyncio.ensure_future(self._receive(request.path, json.dumps(body).encode(), raw))
        try:
            while not task.done():
                over, left = raw.overdue(limits, time.perf_counter())
                if over:
                    raw.ending = over
                    break
                await asyncio.wait({task}, timeout=left)
        finally:
            if not task.done():
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        raw.ended = time.perf_counter()
        raw.detail = self.clean(raw.detail)
        return raw

    async def _receive(self, path: str, body: bytes, raw: RawStream) -> None:
        aiohttp = _library("aiohttp")
        try:
            async with self._session.post(self.url + path, data=body, allow_redirects=False) as response:
                raw.status = response.status
                while data := await response.content.readany():
                    raw.add(time.perf_counter(), data)
                    if raw.size > MAX_BYTES:
                        raw.ending = "endless"
                        return
            raw.ending = "complete"
        except aiohttp.ClientConnectorError as error:
            raw.ending, raw.detail = "refused", _cause(error)
        except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
            raw.ending, raw.detail = "dropped", _cause(error)

    # load

    async def closed_loop(
        self, requests: Sequence[Request], concurrency: int, limits: Limits, progress: RequestProgress | None = None
    ) -> Phase:
        """Keep ``concurrency`` requests in flight until all are done; the completions come in the order of requests."""
        queue = iter(enumerate(requests))
        raws: dict[int, RawStream] = {}

        async def worker() -> None:
            for index, request in queue:
                raws[index] = await self.stream(request, limits)
                if progress:
                    progress(len(raws), len(requests))

        async with _observed(self.engine) as seen:
            await asyncio.gather(*(worker() for _ in range(min(concurrency, len(requests)))))
        return seen.phase([raws[index] for index in range(len(requests))])

    async def open_loop(
        self,
        requests: Sequence[Request],
        rate: float,
        limits: Limits,
        rng: random.Random,
        progress: RequestProgress | None = None,
    ) -> Phase:
        """Send requests at ``rate`` a second on average, at exponential intervals (Poisson), whatever is in flight."""
        raws: list[RawStream] = []

        async def one(request: Request, due: float) -> None:
            await asyncio.sleep(max(due - time.perf_counter(), 0.0))
            raws.append(await self.stream(request, limits, scheduled=due))
            if progress:
                progress(len(raws), len(requests))

        async with _observed(self.engine) as seen:
            due = time.perf_counter()
            tasks = []
            for request in requests:
                due += rng.expovariate(rate)
                tasks.append(one(request, due))
            await asyncio.gather(*tasks)
        return seen.phase(raws)


@dataclass
class _Observation:
    begun: float = 0.0
    ended: float = 0.0
    cpu: float = 0.0
    waited: Waited | None = None
    lags: list[float] = field(default_factory=list)

    def phase(self, raws: Sequence[RawStream]) -> Phase:
        return Phase([complete(raw) for raw in raws], self.ended - self.begun, self.lags, self.cpu, self.waited)


@contextlib.asynccontextmanager
async def _observed(engine: Look) -> AsyncIterator[_Observation]:
    """Measure the body's duration, processor time and event-loop lag of this process, and how the engine waited."""
    seen = _Observation()

    async def look() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(LAG_INTERVAL)
            seen.lags.append(max(time.perf_counter() - before - LAG_INTERVAL, 0.0))

    meter = asyncio.ensure_future(look())
    before = engine()
    cpu, seen.begun = time.process_time(), time.perf_counter()
    try:
        yield seen
    finally:
        seen.ended, seen.cpu = time.perf_counter(), time.process_time() - cpu
        now = engine()
        seen.waited = now.since(before) if now and before else None
        meter.cancel()


def _connection_failure(error: Any) -> str:
    """Tell apart what requests calls a ConnectionError: a read timeout in the middle of a body is one, too."""
    if "timed out" in str(error).lower():
        return "timeout"
    reason = getattr(error.args[0] if error.args else None, "reason", None)
    return "refused" if type(reason).__name__ in ("NewConnectionError", "NameResolutionError") else "dropped"


def _cause(error: BaseException) -> str:
    """Return the innermost reason of a chain of wrapped errors, in few words."""
    inner: Any = error
    while True:
        deeper = getattr(inner, "reason", None) or next((a for a in inner.args if isinstance(a, BaseException)), None)
        if not isinstance(deeper, BaseException):
            break
        inner = deeper
    return str(getattr(inner, "strerror", None) or inner or type(inner).__name__)[:200]
