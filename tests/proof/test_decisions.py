# SPDX-License-Identifier: Apache-2.0
"""What real SGLang releases decide before and after the patches, for five compute capabilities.

Opt-in: it needs the wheels and CPU torch (docs/patches.md has the commands). Without them it is skipped and says so.
"""

from __future__ import annotations

from typing import Any

import pytest
from patch_decisions import OTHERS, SM120, fused

REFUSAL = "trtllm_mla has no SM120 prefill kernel"


def both(laboratory: Any, version: str, capability: str) -> tuple[dict[str, Any], dict[str, Any]]:
    return tuple(laboratory.ask(version, capability, patched=patched) for patched in (False, True))  # type: ignore[return-value]  # a pair


def state(laboratory: Any, version: str, patch: str) -> str:
    return laboratory.states(version)[patch].state


@pytest.mark.parametrize("capability", OTHERS)
def test_other_gpus_decide_as_before(laboratory: Any, version: str, capability: str) -> None:
    before, after = both(laboratory, version, capability)
    assert before["capabilities"]["is_sm120_supported"] is False
    assert after == before


@pytest.mark.parametrize("capability", SM120)
def test_the_pretended_gpu_is_an_sm120(laboratory: Any, version: str, capability: str) -> None:
    expected = {"is_sm90_supported": False, "is_sm100_supported": False, "is_sm120_supported": True}
    assert both(laboratory, version, capability)[0]["capabilities"] == expected


@pytest.mark.parametrize("capability", SM120)
def test_p01_mla_takes_flashinfer_with_a_bf16_kv_cache(laboratory: Any, version: str, capability: str) -> None:
    assert state(laboratory, version, "P01") == "applies"
    before, after = both(laboratory, version, capability)
    assert before["mla"]["attention_backend"] == "triton"
    assert after["mla"]["attention_backend"] == "flashinfer"
    for answers in (before, after):
        assert answers["mla_fp8_kv"]["attention_backend"] == "triton"
        assert answers["mha"]["attention_backend"] == before["mha"]["attention_backend"]


@pytest.mark.parametrize("capability", SM120)
@pytest.mark.parametrize("question", ["trtllm_mla", "trtllm_mla_decode", "trtllm_mla_prefill"])
def test_p02_trtllm_mla_is_refused_at_the_start(laboratory: Any, version: str, capability: str, question: str) -> None:
    assert state(laboratory, version, "P02") == "applies"
    before, after = both(laboratory, version, capability)
    assert before[question] == "accepted"
    assert after[question].startswith(REFUSAL)


def test_p02_trtllm_mla_is_still_accepted_where_it_works(laboratory: Any, version: str) -> None:
    assert both(laboratory, version, "10.0")[1]["trtllm_mla"] == "accepted"


@pytest.mark.parametrize("capability", SM120)
def test_p03_extend_tiles_are_those_of_gpus_with_as_little_shared_memory(
    laboratory: Any, version: str, capability: str
) -> None:
    before, after = both(laboratory, version, capability)
    small = laboratory.ask(version, "8.9", patched=False)["extend_tiles"]
    applies = state(laboratory, version, "P03") == "applies"
    assert after["extend_tiles"] == (small if applies else before["extend_tiles"])
    assert after["extend_tiles"]["576/512"][3:5] == [32, 32]
    assert (before["extend_tiles"] != after["extend_tiles"]) is applies


@pytest.mark.parametrize("capability", SM120)
def test_p04_vision_tiles_are_halved(laboratory: Any, version: str, capability: str) -> None:
    assert state(laboratory, version, "P04") == "applies"
    before, after = both(laboratory, version, capability)
    assert (before["vit_block"], after["vit_block"]) == (128, 64)


@pytest.mark.parametrize("capability", SM120)
def test_p05_deep_gemm_is_off(laboratory: Any, version: str, capability: str) -> None:
    before, after = both(laboratory, version, capability)
    if state(laboratory, version, "P05") == "applies":
        assert set(before["deep_gemm"].values()) == {True}
        assert set(after["deep_gemm"].values()) == {False}
    else:
        assert after["deep_gemm"] == before["deep_gemm"]


@pytest.mark.parametrize("capability", SM120)
def test_p07_fusion_runs_with_two_gpus_alone(laboratory: Any, version: str, capability: str) -> None:
    before, after = both(laboratory, version, capability)
    if state(laboratory, version, "P07") == "refused":
        assert "FlashInfer 0.6.17" in laboratory.states(version)["P07"].reason
        assert after["fusion"] == before["fusion"]
        return
    refused = dict.fromkeys(("trtllm, tp 2", "auto, tp 2", "trtllm, tp 8", "auto, tp 8"), "refused")
    assert before["fusion"] == {"applies": False, **refused}
    assert after["fusion"] == {"applies": True, **refused, "trtllm, tp 2": "trtllm"}
    assert not fused(after["mla"])


@pytest.mark.parametrize("capability", SM120)
def test_p08_fusion_is_not_enabled_by_itself(laboratory: Any, version: str, capability: str) -> None:
    before, after = both(laboratory, version, capability)
    models = ("mla", "mha", "gpt_oss")
    assert not any(fused(after[model]) for model in models)
    assert any(fused(before[model]) for model in models) is (state(laboratory, version, "P08") == "applies")
