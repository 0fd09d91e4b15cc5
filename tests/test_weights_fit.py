# SPDX-License-Identifier: Apache-2.0
"""Memory budgets against figures that can be worked out by hand, and what a release can serve."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from inference.weights import suitability as suitability_module
from inference.weights.fit import GIB, Fit, Instance, fit, judge, kv_bytes_a_token
from inference.weights.service import Gpus, examine, gpus_of, instance_of
from inference.weights.suitability import Release, quantisation, suitability

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
"""The shape of Llama-3.1-8B: 2 x 8 heads x 128 x 2 bytes x 32 layers are 131,072 bytes a token."""

MLA = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "text_config": {
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "hidden_size": 7168,
        "max_position_embeddings": 262144,
        "dtype": "bfloat16",
    },
}
"""The shape of Kimi-K2.5: (512 + 64) x 2 bytes x 61 layers are 70,272 bytes a token, on every GPU."""


@pytest.mark.parametrize(
    ("config", "instance", "expected"),
    [
        (LLAMA, Instance("a"), 131072),
        (LLAMA, Instance("a", tensor_parallel_size=4), 131072 // 4),
        (LLAMA, Instance("a", tensor_parallel_size=16), 131072 // 8),
        (LLAMA, Instance("a", kv_cache_dtype="fp8_e4m3"), 131072 // 2),
        (LLAMA, Instance("a", pipeline_parallel_size=2), 131072 // 2),
        (MLA, Instance("a", tensor_parallel_size=8), 70272),
        (MLA, Instance("a", tensor_parallel_size=8, kv_cache_dtype="fp8_e4m3"), 70272 // 2),
    ],
)
def test_bytes_of_a_token(config: dict[str, object], instance: Instance, expected: int):
    assert kv_bytes_a_token(config, instance) == expected


def test_weights_are_shared_out_and_the_rest_is_room():
    found = fit(MLA, 594 * GIB, Instance("kimi", 8, context_length=131072), 96 * GIB)
    assert found.weights == 594 * GIB // 8 and found.available == int(96 * GIB * 0.9)
    assert found.tokens == (found.available - found.weights) // 70272
    assert judge("kimi-k2.5", Instance("kimi", 8), found) == []
    assert "GiB of weights" in found.as_text() and "131,072" in found.as_text()


def test_a_model_that_is_too_large_for_its_gpus():
    found = fit(MLA, 594 * GIB, Instance("kimi", 4), 96 * GIB)
    assert [f.id for f in judge("kimi-k2.5", Instance("kimi", 4), found)] == ["model-too-large"]


def test_a_context_that_has_no_room():
    assert [f.id for f in judge("m", Instance("a"), Fit(10, 1010, 10, 101))] == ["context-too-long"]
    assert judge("m", Instance("a"), Fit(10, 1010, 10, 100)) == []


def test_gpus_are_those_that_nvidia_smi_shows():
    rows = [{"memory.total": "97887 MiB", "compute_cap": "12.0"}, {"memory.total": "97886 MiB", "compute_cap": "12.0"}]
    assert gpus_of(rows) == Gpus(97886 << 20, sm120=True)
    assert gpus_of([]) == Gpus()
    assert gpus_of([*rows, {"memory.total": None}]).bytes is None


def test_an_instance_in_the_inventorys_words():
    entry = {
        "name": "kimi",
        "tensor_parallel_size": 8,
        "arguments": {"context_length": 1000, "--mem-fraction-static": 0.8, "kv-cache-dtype": "fp8_e4m3"},
    }
    assert instance_of(entry, "sglang") == Instance("kimi", 8, 1, 0.8, 1000, "fp8_e4m3")


@pytest.fixture
def release(tmp_path: Path) -> Release:
    """Return a site-packages folder with the places that are looked at, made by hand."""
    for path, text in {
        "sglang/srt/models/kimi_k25.py": "class KimiK25ForConditionalGeneration:\n    pass\n",
        "sglang/srt/layers/quantization/__init__.py": '{"fp8": Fp8Config, "modelopt_fp4": X, "compressed-tensors": Y}',
        "transformers/models/auto/modeling_auto.py": '("llama", "LlamaForCausalLM"),',
    }.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    return Release("sglang", "0.5.23", tmp_path)


def ids(
    config: dict[str, object], release: Release, *, sm120: bool = True, **settings: object
) -> list[tuple[str, str]]:
    return [(f.id, f.level) for f in suitability(config, release, sm120=sm120, settings=settings)]


def test_an_architecture_that_the_release_has(release: Release):
    assert ids(MLA, release) == []


def test_one_that_only_transformers_has_and_one_that_nothing_has(release: Release):
    assert ids(LLAMA, release) == [("model-architecture", "warning")]
    assert ids({"architectures": ["NoSuchModel"]}, release) == [("model-architecture", "critical")]


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, None),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt_fp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, "modelopt_fp8"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
    ],
)
def test_the_quantisation_of_a_configuration(given: dict[str, str], name: str | None):
    assert quantisation({"quantization_config": given}) == name
    assert quantisation({"text_config": {"quantization_config": given}}) == name


def test_a_quantisation_that_the_release_does_not_know(release: Release):
    assert ids({**MLA, "quantization_config": {"quant_method": "awq"}}, release) == [("model-quantisation", "critical")]
    assert ids({**MLA, "quantization_config": {"quant_method": "compressed-tensors"}}, release) == []


def test_what_sm120_does_with_it_depends_on_the_release_and_on_settings(release: Release):
    blocks = {**MLA, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    old = replace(release, version="0.5.9")
    assert ids(blocks, release) == []
    assert ids(blocks, old) == [("model-quantisation-sm120", "critical")]
    assert ids(blocks, old, sm120=False) == []
    assert ids(blocks, old, **{"fp8-gemm-backend": "triton"}) == []
    assert ids({**MLA, "quantization_config": {"quant_method": "fp8"}}, old) == []
    fp4 = {**MLA, "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}
    assert ids(fp4, replace(release, version="0.5.12.post1")) == [("model-quantisation-sm120", "warning")]
    assert ids(fp4, replace(release, version="0.5.13")) == []


def test_instances_are_examined_and_what_is_not_known_is_said(release: Release, tmp_path: Path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(MLA))
    (folder / "a.safetensors").write_bytes(b"")
    entry = {"name": "kimi", "model": "k", "tensor_parallel_size": 8}
    report, budgets = examine({"k": folder}, [entry, {"name": "o", "model": "else"}], release, Gpus(96 * GIB, True))
    assert report.findings == [] and report.not_checked == [] and list(budgets) == ["kimi"]
    report, budgets = examine({"k": folder}, [entry], None, Gpus())
    assert {item.id for item in report.not_checked} == {"model-architecture.kimi", "model-fit.kimi"} and not budgets
    (folder / "config.json").write_text('{"architectures": ["KimiK25ForConditionalGeneration"]}')
    report, _ = examine({"k": folder}, [entry], release, Gpus(96 * GIB, True))
    assert [item.id for item in report.not_checked] == ["model-fit.kimi"]
    for heads in (0, float("inf")):
        wrong = {**LLAMA, "num_attention_heads": heads, "hidden_size": heads, "num_key_value_heads": heads}
        (folder / "config.json").write_text(json.dumps(wrong))
        report, _ = examine({"k": folder}, [entry], None, Gpus(96 * GIB, True))
        assert "model-fit.kimi" in {item.id for item in report.not_checked}


def test_every_trouble_names_an_engine_a_fix_and_a_source():
    for trouble in suitability_module.TROUBLES:
        assert trouble.engine in suitability_module.PLACES and ":" in trouble.fix and trouble.source
