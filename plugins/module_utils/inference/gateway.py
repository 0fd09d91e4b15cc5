# SPDX-License-Identifier: Apache-2.0
"""The pool of a gateway: which engines its router sends requests to, and how one leaves it without losing any.

The pool is a file on the gateway, so that a router that is restarted gets the same engines again, and none that was
taken out. Everything else is asked of the router itself, which takes and gives up engines while it runs
(sglang-router 0.3.2: ``GET``, ``POST`` and ``DELETE /workers``; a request that runs on an engine is not cut when the
engine is removed).
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .atomic import alone, write_atomically

TIMEOUT_S = 10
"""For one answer of the router or of an engine."""
POLL_S = 0.3
QUIET_POLLS = 5
"""How often in a row an engine has to be seen idle: a request may be on its way while the first look is taken, and what
the engine says of itself is that much old."""

UP = "http"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound


class GatewayError(Exception):
    """The router or an engine does not do what it was asked for. The message says what was seen and the fix."""


@dataclass(frozen=True)
class Worker:
    """An engine as the router sees it."""

    id: str
    url: str
    healthy: bool
    load: int
    """Requests that this router has running on it."""


def request(method: str, url: str, body: Mapping[str, Any] | None = None, key: str = "") -> tuple[int, Any]:
    """Return status and JSON (or text) of an answer; status 0 and the reason when there is none."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    made = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - of our own making, http
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(made, timeout=TIMEOUT_S) as answer:
            status, raw = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, raw = error.code, error.read()
    except (OSError, ValueError) as error:
        return 0, str(getattr(error, "reason", error))
    text = raw.decode(errors="replace")
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


@dataclass
class Router:
    """A running router, by its address on the gateway."""

    url: str
    ask: Callable[..., tuple[int, Any]] = field(default=request)

    def running(self) -> bool:
        """Say whether it answers at all."""
        return self.ask("GET", f"{self.url}/liveness")[0] != 0

    def ready(self) -> tuple[bool, str]:
        """Say whether it has a healthy engine: its ``/health`` is 200 before it knows any, ``/readiness`` is not."""
        status, said = self.ask("GET", f"{self.url}/readiness")
        return status == 200, json.dumps(said)  # noqa: PLR2004 - HTTP's OK

    def workers(self) -> list[Worker]:
        """Return the engines in its pool."""
        status, said = self.ask("GET", f"{self.url}/workers")
        if status != 200 or not isinstance(said, dict):  # noqa: PLR2004 - HTTP's OK
            raise GatewayError(f"router {self.url}: seen {status} {said!r} from /workers; see its unit's journal")
        return [Worker(w["id"], w["url"], bool(w["is_healthy"]), int(w["load"])) for w in said["workers"]]

    def add(self, entry: Mapping[str, Any]) -> None:
        """Ask it to take an engine; it looks at the engine first, so this takes effect later."""
        wish = {"url": entry["url"], **({"api_key": entry["api_key"]} if entry.get("api_key") else {})}
        self._accepted("POST", f"{self.url}/workers", wish)

    def remove(self, worker: Worker) -> None:
        """Ask it to send an engine nothing more; one that is gone by now has been sent its last."""
        self._accepted("DELETE", f"{self.url}/workers/{worker.id}", gone=404)

    def _accepted(self, method: str, url: str, body: Mapping[str, Any] | None = None, gone: int | None = None) -> None:
        status, said = self.ask(method, url, body)
        if status // 100 != 2 and status != gone:  # noqa: PLR2004 - HTTP's class of success
            raise GatewayError(f"router: {method} {url} was answered {status} {said!r}")


# --- the pool ---------------------------------------------------------------------------------------------------------


def address(instance: Mapping[str, Any], host: str, *, same_host: bool) -> str:
    """Return an instance's URL for a gateway, or raise GatewayError when it listens where no gateway reaches it."""
    listens = instance.get("host") or LOOPBACK[0]
    if listens in LOOPBACK and not same_host:
        raise GatewayError(
            f"instance {instance['name']} listens on {listens} and the gateway is another host; expected an address "
            f"that the gateway reaches; fix: give the instance a host, such as its private address {host}"
        )
    name = host if listens in ANYWHERE else listens
    return f"{UP}://{'[' + name + ']' if ':' in name else name}:{instance['port']}"


@contextlib.contextmanager
def changing(file: Path) -> Iterator[None]:
    """Let one at a time change the pool and the router: the hosts of a batch take engines out at the same moment."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with alone(file.parent):
        yield


def read_pool(file: Path) -> dict[str, dict[str, Any]]:
    """Return the pool by URL. Raises GatewayError for a file that is none."""
    try:
        given = json.loads(file.read_text())
        return {entry["url"]: dict(entry) for entry in given["workers"]}
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:  # which holds the file, keys and all
        raise GatewayError(f"{file}: no pool (not UTF-8); remove it and run site.yml") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise GatewayError(f"{file}: no pool ({error!r}); remove it and run site.yml") from error


def write_pool(file: Path, pool: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the pool; it may hold the engines' keys."""
    file.parent.mkdir(parents=True, exist_ok=True)
    content = json.dumps({"schema": 1, "workers": [dict(pool[url]) for url in sorted(pool)]}, indent=1) + "\n"
    write_atomically(file, content.encode(), 0o600)


def change(
    pool: Mapping[str, Mapping[str, Any]], present: Iterable[Mapping[str, Any]], absent: Iterable[str], *, exact: bool
) -> dict[str, dict[str, Any]]:
    """Return the pool with these engines in and those out of it; with ``exact`` no others are in it."""
    wanted = {} if exact else {url: dict(entry) for url, entry in pool.items()}
    wanted.update({entry["url"]: dict(entry) for entry in present})
    for url in absent:
        wanted.pop(url, None)
    return wanted


def settle(
    router: Router, pool: Mapping[str, Mapping[str, Any]], seconds: float, entering: Iterable[str] | None = None
) -> bool:
    """Have the running router give up what is not in this pool, and ask it to take what it lacks.

    With ``entering`` only those of the pool are asked for: another one may be on its way in for somebody else, and
    would be added twice. Return whether anything had to be done. Raises GatewayError when the router still has what is
    not in the pool after ``seconds``. It takes an engine when it has looked at it: see ``await_healthy``.
    """
    deadline, changed = time.monotonic() + seconds, False
    there = {worker.url: worker for worker in router.workers()}
    for url in sorted((pool.keys() if entering is None else pool.keys() & set(entering)) - there.keys()):
        router.add(pool[url])
        changed = True
    while there.keys() - pool.keys():
        if time.monotonic() > deadline:
            raise _unsettled(router, there, seconds, f"none but {', '.join(sorted(pool)) or 'none'}")
        for url in sorted(there.keys() - pool.keys()):
            router.remove(there[url])
        changed = True
        time.sleep(POLL_S)
        there = {worker.url: worker for worker in router.workers()}
    return changed


def await_healthy(router: Router, file: Path, urls: Iterable[str], seconds: float) -> None:
    """Wait until engines that were put into the pool of ``file`` are healthy in the router.

    Nobody else has to wait meanwhile, so one of them may leave the pool again: that one is waited for no longer.
    Raises GatewayError when they are not healthy after ``seconds``.
    """
    deadline, wanted = time.monotonic() + seconds, set(urls)
    while True:
        there = {worker.url: worker for worker in router.workers()}
        ill = {url for url in wanted if url not in there or not there[url].healthy}
        missing = sorted(ill & read_pool(file).keys())
        if not missing:
            return
        if time.monotonic() > deadline:
            raise _unsettled(router, there, seconds, f"healthy: {', '.join(missing)}")
        time.sleep(POLL_S)


def _unsettled(router: Router, there: Mapping[str, Worker], seconds: float, expected: str) -> GatewayError:
    return GatewayError(
        f"router {router.url}: not settled after {seconds:.0f} s; seen {_shown(there.values())}; expected {expected}; "
        "fix: see whether the gateway reaches the engine (curl URL/health), and the router's journal"
    )


def _shown(workers: Iterable[Worker]) -> str:
    return ", ".join(f"{w.url} ({'healthy' if w.healthy else 'ill'}, {w.load} requests)" for w in workers) or "none"


# --- an engine's own requests -----------------------------------------------------------------------------------------

VLLM_BUSY = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)


def busy(url: str, ask: Callable[..., tuple[int, Any]] = request, key: str = "") -> int | None:
    """Return how many requests an engine has, waiting ones included, or None when it does not tell.

    SGLang says it at ``/v1/loads`` at once; its gauges in ``/metrics`` stand still between batches. vLLM's move.
    """
    status, said = ask("GET", f"{url}/v1/loads?include=core", key=key)
    if status == 200 and isinstance(said, dict) and "loads" in said:  # noqa: PLR2004 - HTTP's OK
        named = [rank.get(f"num_{kind}_reqs") for rank in said["loads"] for kind in ("running", "waiting")]
        return sum(map(int, named)) if named and None not in named else None
    status, said = ask("GET", f"{url}/metrics", key=key)
    found = VLLM_BUSY.findall(said) if status == 200 and isinstance(said, str) else []  # noqa: PLR2004 - HTTP's OK
    return sum(int(float(number)) for number in found) if found else None


def wait_idle(url: str, seconds: float, key: str = "", ask: Callable[..., tuple[int, Any]] = request) -> str:
    """Wait until an engine has nothing to do: ``idle``, ``busy`` after so many seconds, or ``unknown``."""
    deadline, quiet = time.monotonic() + seconds, 0
    while quiet < QUIET_POLLS:
        found = busy(url, ask, key)
        if found is None:
            return "unknown"
        quiet = quiet + 1 if found == 0 else 0
        if time.monotonic() > deadline:
            return "busy"
        time.sleep(POLL_S)
    return "idle"
