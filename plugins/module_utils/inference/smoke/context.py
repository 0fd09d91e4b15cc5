# SPDX-License-Identifier: Apache-2.0
"""What the stages of a smoke test share: the client, the profile, who answers, and the result so far."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from ..findings import Level, NotChecked
from . import Result, finding, problem_id
from .client import Client, Request, RequestProgress
from .profile import Profile
from .stream import Completion, Limits
from .text import Golden, filler, nonce

Depth = Literal["quick", "default", "full"]

COMPLETION_PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}

Progress = Callable[[str, int, int], None]
"""Called with what is measured, how many requests are done and how many there are."""


class StopError(Exception):
    """Later stages would say nothing. The message says why."""


@dataclass
class Context:
    """One run. ``api`` is the kind of completion that the server offers, chat where it can."""

    client: Client
    profile: Profile
    depth: Depth = "default"
    result: Result = field(default_factory=Result)
    progress: Progress = lambda _what, _done, _all: None
    rng: random.Random = field(default_factory=random.SystemRandom)
    begun: float = field(default_factory=time.time)
    model: str = ""
    engine: str = "unknown"
    api: str = "chat"
    context_length: int | None = None
    tokens_per_word: float = 1.3
    right: list[Golden] = field(default_factory=list)
    """Golden prompts that were answered rightly, one at a time."""
    soak_minutes: float = 0.0
    sweep: tuple[int, ...] = ()
    """Concurrencies to measure besides the gated one."""
    rates: tuple[float, ...] = ()
    """Requests a second of the open loop."""

    @property
    def limits(self) -> Limits:
        """How long a completion may take."""
        timeouts = self.profile.timeouts
        return Limits(timeouts.first_token, timeouts.stall, timeouts.request)

    def add(
        self,
        name: str,
        seen: str,
        *,
        expected: str | None = None,
        level: Level | None = None,
        where: str = "",
        fix: str | None = None,
    ) -> None:
        """Add a finding of the catalogue; ``where`` says in which stage or request it was."""
        seen = self.client.clean(seen)
        self.result.report.extend([finding(name, seen, expected=expected, level=level, where=where, fix=fix)])

    def skip(self, check: str, why: str) -> None:
        """Record what could not be checked, once."""
        if NotChecked(check, why) not in self.result.report.not_checked:
            self.result.report.skip(check, why)

    def progress_of(self, what: str) -> RequestProgress:
        """Return the progress function of one measurement."""
        return lambda done, total: self.progress(what, done, total)

    def request(
        self, prompt: str, max_tokens: int, *, api: str | None = None, temperature: float = 0.0, exact: bool = False
    ) -> Request:
        """Return a request. ``exact``: go on to ``max_tokens`` even where the answer would end (engines' extension)."""
        api = api or self.api
        body: dict[str, Any] = {"model": self.model, "max_tokens": max_tokens, "temperature": temperature}
        if api == "chat":
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        if exact and self.engine in ("sglang", "vllm"):
            body["ignore_eos"] = True
        return Request(COMPLETION_PATHS[api], body)

    def fresh_prompt(self, tokens: int) -> str:
        """Return a prompt of about ``tokens`` tokens which nobody sent before, different from its first word on."""
        words = max(round(tokens / self.tokens_per_word), 1)
        return f"{nonce(self.rng)} {filler(self.rng, words)}. Tell a story with these words."

    def learn_ratio(self, asked_tokens: int, completions: Iterable[Completion]) -> None:
        """Correct the tokens a word from how long a prompt of ``asked_tokens`` really was."""
        real = next((c.prompt_tokens for c in completions if c.prompt_tokens), None)
        if real:
            self.tokens_per_word *= max(real, 1) / asked_tokens

    def count_problems(self, stage: str, completions: list[Completion]) -> int:
        """Add one finding for each kind of failed request; return how many failed."""
        kinds: dict[str, list[Completion]] = {}
        for completion in completions:
            if completion.problem is not None:
                kinds.setdefault(problem_id(completion.problem), []).append(completion)
        for name, failed in kinds.items():
            first = failed[0]
            status = f"{first.problem}: " if name == "http-error" else ""
            seen = f"{len(failed)} of {len(completions)} requests; the first: {status}{first.detail or 'no detail'}"
            self.add(name, seen, where=stage)
        return sum(map(len, kinds.values()))
