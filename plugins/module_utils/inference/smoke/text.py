# SPDX-License-Identifier: Apache-2.0
"""Is the text right: golden prompts, degenerate output, repeatability, leakage between requests."""

from __future__ import annotations

import math
import random
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIN_LENGTH = 16
"""Characters (or tokens) below which nothing can be said about repetition."""

MAX_UNIT = 16
"""Longest repeated unit, in characters, that counts as one token over and over. A small model may repeat a sentence
under greedy decoding and be sound."""

MIN_REPEATS = 6
DOMINANT = 0.6
"""Share of the text that the repetition has to cover."""

MAX_UNREADABLE = 0.1
"""Share of replacement and control characters above which text is garbage."""

ROUNDING = 1e-3
"""How far above zero rounding may lift a log probability."""

MAX_SCRIPTS = 2
"""Writing systems that one short English answer may mix; broken weights or wrong kernels mix many."""


@dataclass(frozen=True)
class Golden:
    """A prompt whose continuation is known: ``expect`` is a regular expression searched in the answer."""

    prompt: str
    expect: str
    api: str = "completion"
    """``completion`` continues the prompt as text; ``chat`` sends it as a user's message."""
    max_tokens: int = 24


CAPITAL = Golden("The capital of France is", r"\bParis\b")
COUNT = Golden("1, 2, 3, 4, 5, 6, 7,", r"^\s*8,\s*9,\s*10,\s*11,\s*12")
"""Right only while the answer stays right: it shows garbage that begins after the first token."""

GOLDEN: Sequence[tuple[str, tuple[Golden, ...]]] = (
    (r"random|tiny|dummy|toy", ()),
    (r"smollm2?-.*instruct", (CAPITAL, Golden(CAPITAL.prompt, CAPITAL.expect, api="chat"), COUNT)),
    (r"kimi|glm-?[45]|deepseek|qwen-?[23]|llama-?[34]|mi[sx]tral|gpt-oss|minimax|nemotron|gemma|phi-?[34]|step-?3",
     (CAPITAL, COUNT)),
)  # fmt: skip
"""Golden prompts by model name (searched without case, the first match counts). Weights made at random know nothing."""


def golden_for(model: str) -> tuple[Golden, ...]:
    """Return the golden prompts known for a model name or path; none for a model that the table does not know."""
    return next((prompts for pattern, prompts in GOLDEN if re.search(pattern, model, re.IGNORECASE)), ())


def nonce(rng: random.Random, length: int = 8) -> str:
    """Return a marker that no cache and no other request has: upper-case letters and digits."""
    return "".join(rng.choices(string.ascii_uppercase + string.digits, k=length))


def mark(rng: random.Random, prompt: str) -> str:
    """Return ``prompt`` behind a number that nobody sent before, so that no cache can answer it.

    A number, since random letters mislead a small model: in chats with SmolLM2-135M-Instruct (transformers, float32,
    greedy) 26 of 48 missed the capital of France behind a marker of letters, none of 192 behind a number.
    """
    return f"Note {rng.randrange(10**8, 10**9)}.\n\n{prompt}"


def degenerate(text: str) -> str | None:
    """Return what makes ``text`` no answer at all (nothing, only blanks, one token repeated), or None."""
    if not text:
        return "no text"
    stripped = text.strip()
    if not stripped:
        return f"only blanks ({len(text)} characters)"
    unit = repeated_unit(text)
    return f"{unit!r} over and over" if unit else None


def repeated_unit(text: str) -> str | None:
    """Return the short unit that the end of ``text`` repeats over most of its length, or None."""
    size = len(text)
    if size < MIN_LENGTH:
        return None
    for period in range(1, min(MAX_UNIT, size // MIN_REPEATS) + 1):
        matching = 0
        while matching < size - period and text[size - 1 - matching] == text[size - 1 - matching - period]:
            matching += 1
        covered = matching + period
        if matching and covered >= max(period * MIN_REPEATS, MIN_LENGTH, DOMINANT * size):
            return text[-period:]
    return None


def garbage(text: str) -> str | None:
    """Return what makes ``text`` unreadable as an answer in English, or None."""
    unreadable = sum(1 for c in text if c == "�" or (ord(c) < ord(" ") and c not in "\n\r\t"))
    if text and unreadable > MAX_UNREADABLE * len(text):
        return f"{unreadable} of {len(text)} characters are unreadable"
    scripts = Counter(script for c in text if (script := _script(c)))
    if len(scripts) > MAX_SCRIPTS:
        return f"a mixture of {', '.join(sorted(scripts))} letters"
    return None


_SCRIPTS = (
    ("Latin", 0x41, 0x24F), ("Greek", 0x370, 0x3FF), ("Cyrillic", 0x400, 0x52F), ("Armenian", 0x530, 0x58F),
    ("Hebrew", 0x590, 0x5FF), ("Arabic", 0x600, 0x6FF), ("Devanagari", 0x900, 0x97F), ("Bengali", 0x980, 0x9FF),
    ("Tamil", 0xB80, 0xBFF), ("Telugu", 0xC00, 0xC7F), ("Thai", 0xE00, 0xE7F), ("Georgian", 0x10A0, 0x10FF),
    ("Hangul", 0x1100, 0x11FF), ("Kana", 0x3040, 0x30FF), ("Han", 0x4E00, 0x9FFF), ("Hangul", 0xAC00, 0xD7AF),
)  # fmt: skip


def _script(character: str) -> str | None:
    if not character.isalpha():
        return None
    return next((name for name, low, high in _SCRIPTS if low <= ord(character) <= high), None)


def bad_logprobs(values: Iterable[Any]) -> str | None:
    """Return what is wrong with log probabilities: NaN, missing, infinite or above zero; None when nothing is.

    A server that serialises NaN strictly sends ``null``.
    """
    seen = list(values)
    numbers = [v for v in seen if isinstance(v, (int, float)) and not math.isnan(v)]
    counts = (
        ("missing or NaN", len(seen) - len(numbers)),
        ("infinite", sum(map(math.isinf, numbers))),
        ("above zero", sum(v > ROUNDING for v in numbers)),
    )
    return next((f"{count} of {len(seen)} are {name}" for name, count in counts if count), None)


def logprobs_of(choice: Mapping[str, Any]) -> list[Any] | None:
    """Return the token log probabilities of a choice of a chat or text completion, or None when it has none."""
    block = choice.get("logprobs")
    if not isinstance(block, dict):
        return None
    if isinstance(block.get("content"), list):
        return [entry.get("logprob") for entry in block["content"]]
    return block.get("token_logprobs")


def common_prefix(texts: Sequence[str]) -> int:
    """Return the number of leading characters that all texts share."""
    shortest, longest = min(texts), max(texts)
    for index, (a, b) in enumerate(zip(shortest, longest)):  # noqa: B905 - up to the shorter
        if a != b:
            return index
    return min(len(shortest), len(longest))


def leaks(markers: Sequence[str], answers: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs (i, j): answer ``i`` holds the marker that only request ``j`` was given."""
    return [
        (i, j)
        for i, answer in enumerate(answers)
        for j, marker in enumerate(markers)
        if i != j and marker in answer
    ]  # fmt: skip


_WORDS = (
    "the time people way water day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work number night point home room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father "
    "power hour game line end member law car city"
)
WORDS = _WORDS.split()


def filler(rng: random.Random, words: int) -> str:
    """Return common English words in random order: about 1.1 to 1.4 tokens each with the usual tokenizers."""
    return " ".join(rng.choices(WORDS, k=words))
