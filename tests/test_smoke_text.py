# SPDX-License-Identifier: Apache-2.0
"""Golden prompts, degenerate output, leakage. The texts are made by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.smoke.text import (
    CAPITAL,
    COUNT,
    GOLDEN,
    bad_logprobs,
    common_prefix,
    degenerate,
    filler,
    garbage,
    golden_for,
    leaks,
    logprobs_of,
    nonce,
    repeated_unit,
)


@pytest.mark.parametrize(
    "text",
    ["!" * 24, " the" * 12, "\n\n\n\n", "", " Paris" + "!" * 22, "ab" * 20, " 的" * 16, "0.0.0.0.0.0.0.0.0.0.0.0.",
     " Paris. It" + " is" * 20],
)  # fmt: skip
def test_degenerate_text_is_seen(text: str) -> None:
    assert degenerate(text)


@pytest.mark.parametrize(
    "text",
    [
        " Paris.\n\nThe capital of France is Paris.\n\nThe capital of France is Paris.\n\nThe capital of France",
        " 8, 9, 10, 11, 12, 13, 14, 15, 16,",
        " Paris",
        "!!!",
        "Hmm... no. Well, well, well: a town by the sea, with boats.",
        "| a | b |\n|---|---|\n| 1 | 2 |\n",
        "The end of the story is near the end of the sea ------",
    ],
)
def test_sound_text_is_not(text: str) -> None:
    assert degenerate(text) is None
    assert garbage(text) is None


@given(st.text(alphabet="abc ", min_size=1, max_size=8), st.integers(6, 40))
def test_any_short_unit_repeated_long_enough_is_seen(unit: str, count: int) -> None:
    text = unit * count
    assert (repeated_unit(text) is not None) == (len(text) >= 16)


@given(st.integers())
def test_text_of_random_words_is_never_degenerate(seed: int) -> None:
    assert degenerate(filler(random.Random(seed), 40)) is None


def test_garbage_is_unreadable_or_a_mixture() -> None:
    assert garbage("���abc")
    assert garbage(" word слово 言葉")
    assert garbage("Paris \x00\x01\x02")
    assert garbage("naïve café, 5 kΩ at 50 °C, Δ and λ") is None  # Latin and Greek
    assert garbage("東京 Tokyo") is None


@pytest.mark.parametrize(
    ("model", "known"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("moonshotai/Kimi-K2.5", True),
        ("/var/lib/models/GLM-5-NVFP4", True),
        ("meta-llama/Llama-3.3-70B-Instruct", True),
        ("mistralai/Mixtral-8x7B", True),
        ("tiny-random-llama-3", False),
        ("our-own-model", False),
    ],
)
def test_golden_prompts_by_name(model: str, known: bool) -> None:
    assert bool(golden_for(model)) == known


def test_every_model_with_golden_prompts_has_a_sustained_one() -> None:
    assert all(COUNT in prompts for _, prompts in GOLDEN if prompts)


def test_golden_expectations_tell_right_from_wrong() -> None:
    import re

    assert re.search(CAPITAL.expect, " Paris, and")
    assert not re.search(CAPITAL.expect, " Parisian? no, Berlin")
    assert re.search(COUNT.expect, " 8, 9, 10, 11, 12, 13")
    assert not re.search(COUNT.expect, " 8, 9, 9, 9, 9, 9")


@pytest.mark.parametrize(
    ("values", "word"),
    [([-0.1, float("nan")], "NaN"), ([None], "NaN"), ([-float("inf")], "infinite"), ([0.5], "above zero")],
)
def test_bad_logprobs(values: list[object], word: str) -> None:
    assert word in str(bad_logprobs(values))


def test_good_logprobs() -> None:
    assert bad_logprobs([-0.1, 0.0, 1e-6, -9999.0]) is None
    assert bad_logprobs([]) is None


def test_logprobs_of_both_kinds_of_completion() -> None:
    assert logprobs_of({"logprobs": {"content": [{"logprob": -1.0}, {"logprob": None}]}}) == [-1.0, None]
    assert logprobs_of({"logprobs": {"token_logprobs": [-1.0]}}) == [-1.0]
    assert logprobs_of({"logprobs": None}) is None


@given(st.lists(st.text(alphabet="ab", max_size=6), min_size=1, max_size=5))
def test_common_prefix_is_common_and_longest(texts: list[str]) -> None:
    size = common_prefix(texts)
    assert len({text[:size] for text in texts}) == 1
    longer = {text[: size + 1] for text in texts}
    assert len(longer) > 1 or any(len(text) == size for text in texts)


def test_leaks_name_both_requests() -> None:
    assert leaks(["AAAA1111", "BBBB2222"], ["x AAAA1111", "y AAAA1111"]) == [(1, 0)]
    assert leaks(["AAAA1111", "BBBB2222"], ["AAAA1111", "BBBB2222"]) == []


def test_markers_differ() -> None:
    rng = random.SystemRandom()
    assert len({nonce(rng) for _ in range(1000)}) == 1000
