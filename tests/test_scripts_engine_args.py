# SPDX-License-Identifier: Apache-2.0
"""The program engine-args: what it says of a host's variables, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = "inventory/example/group_vars/inference.yml"


def run(*words: str, given: Any = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts/engine-args"), *words],
        input=None if given is None else yaml.safe_dump(given), capture_output=True, text=True, check=False, cwd=ROOT,
        timeout=60,
    )  # fmt: skip


def host(arguments: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    instance = {"name": "a", "model": "m", "port": 30000, "tensor_parallel_size": 8, "arguments": arguments or {}}
    return {"engine_name": "sglang", "engine_version": "0.5.23", "service_instances": [instance], **settings}


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("arguments", "code", "ids"),
    [
        ({}, 0, []),
        ({"cuda-graph-max-bs": 8}, 0, ["argument-renamed"]),
        ({"enable-single-batch-overlap": True}, 1, ["sbo-without-a2a"]),
        ({"attention-backend": "trtllm_mla"}, 2, ["trtllm-mla-sm120"]),
        ({"atention-backend": "triton"}, 2, ["argument-unknown"]),
    ],
)
def test_lint_exits_as_the_contract_says(arguments: dict[str, Any], code: int, ids: list[str]):
    done = run("lint", "-", "--json", given=host(arguments))
    assert done.returncode == code
    said = answer(done)
    assert [finding["id"] for finding in said["findings"]] == ids
    assert (said["schema"], said["ok"], said["release"]) == (1, code < 2, "sglang-0.5.23")
    assert run("lint", "-", given=host(arguments)).returncode == code


@pytest.mark.parametrize("name", ["example", "sandbox"])
def test_the_inventories_of_this_project_have_no_findings(name: str):
    done = run("lint", f"inventory/{name}/group_vars/inference.yml")
    assert (done.returncode, done.stdout) == (0, "nothing found\n")


def test_the_host_decides_what_a_rule_is_about():
    backend = {"attention-backend": "trtllm_mla"}
    assert run("lint", "-", given=host(backend, engine_variant="cpu")).returncode == 0
    assert run("lint", "-", given=host(backend, topology_expect={"compute_capability": "9.0"})).returncode == 0
    assert run("lint", "-", given=host(backend, topology_expect="any")).returncode == 2


def test_nccl_settings_count():
    given = host({"disable-custom-all-reduce": None})
    given["service_instances"][0]["nccl_environment"] = {"NCCL_P2P_DISABLE": 1}
    done = run("lint", "-", "--json", given=given)
    assert "instance-custom-all-reduce" in [finding["id"] for finding in answer(done)["findings"]]


def test_what_only_ansible_resolves_is_not_checked():
    given = host({"context-length": "{{ length }}"})
    said = answer(run("lint", "-", "--json", given=given))
    assert [entry["id"] for entry in said["not_checked"]] == ["a"]


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        (["lint", "nowhere.yml"], None, "nowhere.yml"),
        (["lint", "-"], ["x"], "not the variables of a host"),
        (["lint", "-"], {"service_instances": "x"}, "not a list of instances"),
        (["lint", "-", "--instance", "b"], host(), "no instance 'b'"),
        (["lint", "-"], host(engine_version="0.5.24"), "no options of sglang 0.5.24; did you mean"),
        (["render", "-"], {"service_instances": [{"name": "a", "arguments": "x"}]}, "arguments of a is not a mapping"),
        (["render", "-"], {"service_instances": [{"name": "a", "preset": "x"}]}, "no preset 'x'"),
        (["preview", "-", "--to", "0.5.2"], host(), "no options of sglang 0.5.2"),
        (["options", "sglang-0.5.23", "nope"], None, "has no option nope"),
        (["make", "sglang-9"], None, "no lock of sglang-9"),
        (["lnt"], None, "did you mean 'lint'"),
    ],
)  # fmt: skip
def test_bad_input_exits_3_and_says_what(words: list[str], given: Any, message: str):
    done = run(*words, given=given)
    assert (done.returncode, done.stdout) == (3, "")
    assert message in done.stderr


def test_render_prints_the_line_of_each_instance():
    done = run("render", EXAMPLE, "--python", "/r/bin/python")
    assert done.returncode == 0
    assert done.stdout.startswith("/r/bin/python -m sglang.launch_server --model-path /srv/models/kimi-k2.5 ")
    given = host()
    given["service_instances"][0]["preset"] = "glm-5-nvfp4"
    commands = answer(run("render", "-", "--json", given=given))["commands"]
    assert "--disable-shared-experts-fusion" in commands["a"]


def test_preview_says_what_moves():
    given = host({"cuda-graph-max-bs": 8, "enable-double-sparsity": True}, engine_version="0.5.9")
    done = run("preview", "-", "--to", "0.5.23", "--json", given=given)
    assert done.returncode == 2
    said = answer(done)
    states = {row["option"]: row for row in said["options"]["a"]}
    assert states["cuda-graph-max-bs"] == {
        "option": "cuda-graph-max-bs", "now": "--cuda-graph-max-bs 8", "then": "--cuda-graph-max-bs-decode 8",
        "state": "renamed",
    }  # fmt: skip
    assert (states["enable-double-sparsity"]["state"], states["enable-double-sparsity"]["then"]) == ("gone", "")
    assert {"package": "torch", "now": "2.9.1", "then": "2.14.1"} in said["pins"]
    assert [entry["id"] for entry in said["not_checked"]] == ["patches"]
    text = run("preview", "-", "--to", "0.5.23", given=given).stdout
    assert "renamed    cuda-graph-max-bs: --cuda-graph-max-bs 8 -> --cuda-graph-max-bs-decode 8" in text
    assert "torch: 2.9.1 -> 2.14.1" in text


def test_preview_of_a_harmless_move():
    done = run("preview", EXAMPLE, "--to", "0.5.22")
    assert done.returncode == 0
    assert "kimi: 4 of its options stay as they are" in done.stdout


def test_options_are_listed():
    done = run("options", "sglang-0.5.23", "attention_backend", "cuda-graph-bs-decode", "enable-tf32-matmul")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("--attention-backend aiter|")
    assert lines[1:] == ["--cuda-graph-bs-decode INT ...", "--enable-tf32-matmul, --no-enable-tf32-matmul"]
    assert len(answer(run("options", "vllm-0.33.0", "--json"))["options"]) > 300
    assert "deprecated: attn-dp-size" in run("options", "sglang-0.5.23", "enable-dp-attention").stdout


def test_the_tables_of_the_guide_are_current():
    done = run("document", "--check")
    assert (done.returncode, done.stdout) == (0, "")


def test_the_guide_names_every_verb():
    text = (ROOT / "docs/engine-args.md").read_text()
    verbs = [line.split()[0] for line in run("--help").stdout.split("\n\n")[2].splitlines()]
    assert len(verbs) == 6
    assert [verb for verb in verbs if f"scripts/engine-args {verb}" not in text.replace("  ", " ")] == []
