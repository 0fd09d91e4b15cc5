# SPDX-License-Identifier: Apache-2.0
"""The thread that asks the engine: until it has generated once, and then for as long as it serves."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from . import proc
from .http import Generation, NoAnswerError, NoGenerationError, Server
from .settings import COUNTERS_TIMEOUT_S, Settings

POLL_S = 0.25
"""Seconds between two looks at a port on which nobody listens yet."""

GENERATING = "generating"
"""The phase in which the first completion is made."""

_OK, _NOT_FOUND = 200, 404

_COUNTERS = re.compile(
    rb"(?m)^(?:sglang|vllm):\w*(?:_tokens_total|iteration_tokens_total_\w+|num_used_tokens|token_usage|cache_usage_perc)\b.*$"
)
"""Metrics that move only when the engine's core works on requests, not when one merely arrives."""


@dataclass(frozen=True)
class Begun:
    """A phase that the prober knows of has begun."""

    phase: str


@dataclass(frozen=True)
class Ready:
    """A first completion was generated."""

    generation: Generation


@dataclass(frozen=True)
class Refused:
    """The engine can't become ready. ``cause`` names why, ``what`` was seen."""

    cause: str
    what: str


@dataclass(frozen=True)
class Probed:
    """A probe of the serving engine: why it failed (None when it did not), and the engine's token counters then."""

    why: str | None = None
    counters: bytes | None = None


@dataclass(frozen=True)
class Crashed:
    """A thread of the supervisor's own failed."""

    thread: str
    error: str

    @classmethod
    def of(cls, thread: str, error: Exception) -> Crashed:
        """Return the event that says so."""
        return cls(thread, f"{type(error).__name__}: {error}")


Event = Begun | Ready | Refused | Probed | Crashed


class Prober(threading.Thread):
    """Asks the engine and tells what it heard. ``engine_pids`` returns the engine's processes as they are now."""

    def __init__(
        self,
        settings: Settings,
        server: Server,
        engine_pids: Callable[[], Iterable[int]],
        tell: Callable[[Event], None],
    ) -> None:
        super().__init__(name="probe", daemon=True)
        self._settings, self._server, self._engine_pids, self._tell = settings, server, engine_pids, tell
        self._ended = threading.Event()
        self._strangers = 0
        self._listening = False

    def end(self) -> None:
        """Have the thread end before its next request."""
        self._ended.set()

    def run(self) -> None:
        """Wait for the first generation, then probe."""
        try:
            if self._wait_until_ready():
                self._probe_for_ever()
        except Exception as error:  # noqa: BLE001, RUF100 - a dead prober must not look like a healthy engine
            self._tell(Crashed.of("prober", error))

    def _wait_until_ready(self) -> bool:
        failures: list[str] = []
        while len(failures) < self._settings.failed_probes:
            if self._ended.wait(POLL_S if not failures else self._settings.probe_interval_s):
                return False
            if stranger := self._stranger():
                self._tell(Refused("port-in-use", stranger))
                return False
            if not self._answers_health():
                continue
            self._tell(Begun(GENERATING))
            failure = self._generate_first()
            if failure is None:
                return True
            failures.append(failure)
        self._tell(
            Refused("generation-failed", f"{len(failures)} generations in a row failed; the last: {failures[-1]}")
        )
        return False

    def _stranger(self) -> str | None:
        """Return who else listens on the port; a look may be out of date, so only the second in a row counts."""
        self._listening = False
        if not self._server.accepts():
            return None
        found = proc.listeners(self._settings.host, self._settings.port)
        mine = proc.holders({entry.inode for entry in found}, self._engine_pids())
        others = [entry for entry in found if entry.inode not in mine]
        self._listening = bool(found) and not others
        self._strangers = self._strangers + 1 if others else 0
        if self._strangers < 2:  # noqa: PLR2004
            return None
        return f"port {self._settings.port} is held by {proc.describe_holder(others[0])}, which is not the engine"

    def _answers_health(self) -> bool:
        """Tell whether the engine says that it is up. Only a generation proves it; this keeps from asking too early."""
        if not self._listening:
            return False
        try:
            answer = self._server.request("GET", "/health", timeout_s=self._settings.probe_timeout_s)
        except NoAnswerError:
            return False
        return answer.status in (_OK, _NOT_FOUND)

    def _generate_first(self) -> str | None:
        """Generate; tell of success, or return why it failed. A first request may compile kernels for minutes."""
        wish = self._settings.completion
        patience = max(self._settings.start_grace_s, self._settings.probe_timeout_s)
        try:
            made = self._server.generate(self._settings.model, wish.prompt, wish.max_tokens, patience)
        except (NoAnswerError, NoGenerationError) as error:
            return str(error)
        if not made.text:
            return f"{made.tokens} tokens without any text"
        self._tell(Ready(made))
        return None

    def _probe_for_ever(self) -> None:
        number, began = 0, time.monotonic()
        while not self._ended.wait(max(0.0, began + self._settings.probe_interval_s - time.monotonic())):
            number, began = number + 1, time.monotonic()
            self._tell(self._probe(number))

    def _probe(self, number: int) -> Probed:
        """Have one token generated: a health endpoint may answer for an engine that is frozen behind it.

        The number makes each prompt a new one, so that no prefix cache answers it.
        """
        try:
            self._server.generate(self._settings.model, f"{number} probe", 1, self._settings.probe_timeout_s)
        except (NoAnswerError, NoGenerationError) as error:
            return Probed(str(error), self._counters())
        return Probed()

    def _counters(self) -> bytes | None:
        try:
            page = self._server.request("GET", "/metrics", timeout_s=COUNTERS_TIMEOUT_S)
        except NoAnswerError:
            return None
        return b"\n".join(_COUNTERS.findall(page.body)) or None if page.status == _OK else None
