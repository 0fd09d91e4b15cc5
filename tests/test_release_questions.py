# SPDX-License-Identifier: Apache-2.0
"""Questions to a release: what follows from its answers, and the asking itself of a hand-made release.

The hand-made release is a real virtual environment whose torch and sglang are a few lines each.
"""

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args
from loading import load

from inference import release_questions, releases
from inference.release_questions import GATES, asked, judge

ROOT = Path(__file__).resolve().parent.parent
RECORD = {
    "engine": "sglang",
    "variant": "cu130",
    "packages": {
        "sglang": "0.5.23", "torch": "2.14.1", "nvidia-nccl-cu13": "2.28.9", "sglang-kernel": "0.4.10",
        "flashinfer-python": "0.7.2", "flashinfer-cubin": "0.7.2", "flashinfer-jit-cache": "0.7.2+cu130",
    },
}  # fmt: skip
ANSWERS = {
    "torch": {
        "version": "2.14.1+cu130", "cuda": "13.0", "nccl": "2.28.9", "gpus": 8, "capability": [12, 0],
        "name": "NVIDIA RTX PRO 6000", "architectures": ["sm_90", "sm_100", "sm_120", "compute_120"],
    },
    "packages": {"flashinfer-python": "0.7.2", "flashinfer-cubin": "0.7.2", "flashinfer-jit-cache": "0.7.2+cu130"},
    "gates": dict(GATES[12]),
    "fusion": {"kimi": {"architecture": "KimiK25", "shared_experts": 1, "active": True, "why": None}},
}  # fmt: skip


def changed(**parts):
    """Return the answers with parts of them changed; ``part__key`` names one entry."""
    answers = copy.deepcopy(ANSWERS)
    for path, value in parts.items():
        *above, last = path.split("__")
        target = answers
        for key in above:
            target = target[key.replace("_dash_", "-")]
        target[last.replace("_dash_", "-")] = value
    return answers


def found(answers, record=RECORD):
    return {(finding["id"], finding["level"]) for finding in judge(answers, record)["findings"]}


def skipped(answers, record=RECORD):
    return {entry["id"] for entry in judge(answers, record)["not_checked"]}


def test_a_release_that_fits_has_no_surprises():
    result = judge(ANSWERS, RECORD)
    assert result["ok"] is True
    assert result["findings"] == result["not_checked"] == []
    line = release_questions.line(result)
    assert line.startswith("as expected (torch 2.14.1+cu130, CUDA 13.0, NCCL 2.28.9, capability 12.0")
    assert "is_sm120_supported" in line


BROKEN = {"error": "ImportError: libcudart.so.13"}
SURPRISES = [
    ({"torch": BROKEN}, "release-torch", "critical"),
    ({"torch__cuda": "12.4"}, "release-cuda", "critical"),
    ({"torch__cuda": None}, "release-cuda", "critical"),
    ({"torch__architectures": ["sm_80", "sm_90"]}, "release-architectures", "critical"),
    ({"torch__gpus": 0}, "release-gpus", "critical"),
    ({"torch__nccl": "2.27.3"}, "release-nccl", "critical"),
    ({"packages__flashinfer_dash_cubin": "0.7.1"}, "release-flashinfer", "critical"),
    ({"packages__flashinfer_dash_cubin": None}, "release-flashinfer", "critical"),
    ({"packages": dict.fromkeys(ANSWERS["packages"], "0.7.1")}, "release-flashinfer", "critical"),
    ({"gates__is_sm100_supported": True}, "release-gates", "critical"),
    ({"gates__is_sm120_supported": False}, "release-gates", "critical"),
    ({"gates__is_blackwell": False}, "release-gates", "critical"),
    ({"torch__capability": [9, 0]}, "release-gates", "critical"),
    ({"fusion__kimi": {"active": False, "why": "the weights' precision"}}, "release-fusion", "info"),
]


@pytest.mark.parametrize(("parts", "rule", "level"), SURPRISES)
def test_each_surprise_is_a_finding(parts, rule, level):
    answers = changed(**parts)
    assert found(answers) == {(rule, level)}
    result = judge(answers, RECORD)
    assert result["ok"] is (level == "info")
    assert ("surprise" in release_questions.line(result)) is (level != "info")


@pytest.mark.parametrize(
    ("parts", "rule"),
    [
        ({"gates": BROKEN}, "release-gates"),
        ({"gates__is_blackwell": None}, "release-gates"),
        ({"torch__capability": [7, 0], "torch__architectures": ["sm_70"]}, "release-gates"),
        ({"fusion": {}}, "release-fusion"),
        ({"fusion__kimi": BROKEN}, "release-fusion"),
        ({"fusion__kimi": {"active": None, "why": "decided while it loads"}}, "release-fusion"),
        ({"packages": BROKEN}, "release-flashinfer"),
        ({"torch": BROKEN}, "release-cuda"),
        ({"torch": BROKEN}, "release-nccl"),
        ({"torch": BROKEN}, "release-architectures"),
        ({"torch": BROKEN}, "release-gpus"),
    ],
)
def test_what_could_not_be_asked_is_said(parts, rule):
    assert rule in skipped(changed(**parts))


def test_vllm_names_the_gpu_as_torch_does():
    record = {**RECORD, "engine": "vllm"}
    own = {name: part for name, part in ANSWERS.items() if name in ("torch", "packages")}
    answers = {**own, "platform": {"platform": "CudaPlatform", "capability": [12, 0]}}
    assert found(answers, record) == set()
    assert "release-fusion" in skipped(answers, record)
    other = {**answers, "platform": {"platform": "CpuPlatform", "capability": None}}
    assert found(other, record) == {("release-gates", "critical")}
    assert "release-gates" in skipped({**answers, "platform": BROKEN}, record)


# the asking

TORCH = """
import sys
print("a package that prints")
__version__ = "2.14.1+cu130"
class version: cuda = "13.0"
class cuda:
    get_arch_list = staticmethod(lambda: ["sm_120"])
    device_count = staticmethod(lambda: 2)
    get_device_capability = staticmethod(lambda index: (12, 0))
    get_device_name = staticmethod(lambda index: "hand-made")
"""
FILES = {
    "torch/__init__.py": TORCH,
    "torch/cuda/nccl.py": "def version(): return (2, 28, 9)\n",
    "sglang/srt/utils.py": "is_sm120_supported = lambda: True\nis_sm100_supported = lambda: False\n",
    "torch-2.14.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.14.1\n",
}
NAME = "sglang-0.5.23-0123456789ab"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return the folder of a hand-made release, which is sealed."""
    root = tmp_path_factory.mktemp("releases")
    venv = root / NAME / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    packages = next(venv.glob("lib/python*/site-packages"))
    # torch.cuda is a class in torch here and a package on disk for torch.cuda.nccl
    files = {**FILES, "torch/__init__.py": FILES["torch/__init__.py"].replace("class cuda:", "class _cuda:")}
    files["torch/__init__.py"] += "from . import cuda\nvars(cuda).update(vars(_cuda))\n"
    files["torch/cuda/__init__.py"] = ""
    for path, text in files.items():
        (packages / path).parent.mkdir(parents=True, exist_ok=True)
        (packages / path).write_text(text)
    return root


def seal(root, **changes):
    record = {**RECORD, "name": NAME, "version": "0.5.23", **changes}
    record["record_sha256"] = releases._record_sha256(record)
    (root / NAME / "release.json").write_text(json.dumps(record))


def release_probe():
    for loaded in [key for key in sys.modules if key == "inference" or key.startswith("inference.")]:
        sys.modules[f"ansible.module_utils.{loaded}"] = sys.modules[loaded]
    return load("release_probe", ROOT / "plugins/modules/release_probe.py")


@pytest.fixture
def probe(made, tmp_path, capsys):
    """Return a function that runs the module on the hand-made release."""
    module = release_probe()
    module.DRIVER = tmp_path / "driver"
    module.account = lambda _: {}  # no other account comes into the tests' folders

    def call(*, check=False, **arguments):
        given = {"release": NAME, "root": str(made), "state_dir": str(tmp_path / "state"), **arguments}
        with patch_module_args({**given, "_ansible_check_mode": check}), pytest.raises(SystemExit):
            module.main()
        return json.loads(capsys.readouterr().out)

    call.module = module
    return call


def files_of(root):
    return {path: path.stat().st_mtime_ns for path in (root / NAME).rglob("*")}


def test_a_release_is_asked_once_and_nothing_is_written_into_it(made, probe, tmp_path):
    seal(made)
    before = files_of(made)
    first = probe()
    assert files_of(made) == before
    assert first["report"]["facts"]["torch"]["capability"] == [12, 0]
    assert first["report"]["facts"]["packages"]["torch"] == "2.14.1"
    assert first["report"]["facts"]["gates"]["is_sm120_supported"] is True
    assert first["report"]["facts"]["gates"]["is_blackwell"] is None
    assert {f["id"] for f in first["report"]["findings"]} == {"release-flashinfer"}  # none is installed here
    assert (first["cached"], first["changed"]) == (False, False)
    again = probe()
    assert again["cached"] is True
    assert again["report"] == first["report"]
    assert (tmp_path / "state" / f"{NAME}.answers.json").stat().st_mode & 0o777 == 0o600


def test_another_driver_or_another_model_is_asked_again(made, probe, tmp_path):
    seal(made)
    probe()
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "version").write_text("NVRM version: 590.48.01")
    assert probe()["cached"] is False
    assert probe()["cached"] is True
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    given = {
        "instances": [{"name": "kimi", "model": "m", "port": 30000}, {"name": "other", "model": "absent", "port": 1}],
        "catalog": [{"name": "m", "path": str(model)}],
    }
    asked_again = probe(**given)
    assert asked_again["cached"] is False
    assert asked_again["report"]["facts"]["fusion"] == {
        "kimi": {"architecture": "LlamaForCausalLM", "shared_experts": 0, "active": None,
                 "why": "the model has no shared experts"}
    }  # fmt: skip


# what comes with weights is not run as root


@pytest.mark.parametrize("name", ["trust-remote-code", "trust_remote_code", "--trust-remote-code"])
def test_code_of_the_weights_is_not_asked_for(tmp_path, name):
    (tmp_path / "config.json").write_text("{}")
    instance = {"name": "kimi", "model": "m", "port": 1, "arguments": {name: True, "mem-fraction-static": 0.9}}
    (entry,) = release_probe().present("sglang", [instance], [{"name": "m", "path": str(tmp_path)}])
    assert "--mem-fraction-static" in entry["arguments"]
    assert not [word for word in entry["arguments"] if "trust" in word]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("user", ["nobody", "no-such-account"])
def test_a_release_is_asked_under_an_account_without_rights(tmp_path, user, monkeypatch):
    module = release_probe()
    module.DRIVER = tmp_path / "driver"
    identity = module.account(user)
    shown = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True, **identity).stdout
    assert shown == "nobody\n"
    seen = {}

    def run(words, **given):
        seen.update(given, owner=Path(given["cwd"]).owner(), words=words)
        return subprocess.CompletedProcess(words, 0, '{"torch": {}}', "")

    monkeypatch.setattr(module.subprocess, "run", run)
    assert module.ask(releases.Release(NAME, tmp_path, tmp_path), {}, user, 1) == {"torch": {}}
    assert (seen["user"], seen["group"], seen["owner"]) == (identity["user"], identity["group"], "nobody")
    assert 0 not in seen["extra_groups"]
    assert {seen["env"][name] for name in module.HOMES} == {seen["cwd"]}


def test_nodes_are_made_as_the_unit_makes_them(tmp_path, monkeypatch):
    module = release_probe()
    module.DRIVER = tmp_path / "driver"
    called = []
    monkeypatch.setattr(module.subprocess, "run", lambda words, **_: called.append(" ".join(words)))
    monkeypatch.setattr(module.shutil, "which", lambda _: "/usr/bin/nvidia-modprobe")
    module.make_device_nodes()
    assert called == []
    for number in range(2):
        (module.DRIVER / f"gpus/0000:0{number}:00.0").mkdir(parents=True)
    (module.DRIVER / "version").write_text("NVRM")
    module.make_device_nodes()
    assert called == ["nvidia-modprobe -c 0", "nvidia-modprobe -c 1", "nvidia-modprobe -u -c 0"]


def test_answers_that_were_damaged_are_asked_again(made, probe, tmp_path):
    seal(made)
    probe()
    (tmp_path / "state" / f"{NAME}.answers.json").write_text("{")
    assert probe()["cached"] is False


def test_a_rehearsal_asks_nothing(made, probe):
    seal(made)
    rehearsed = probe(check=True)
    assert rehearsed["report"]["ok"] is True
    assert "rehearsal" in rehearsed["line"]


def test_a_release_for_cpus_and_one_that_is_not_sealed_are_not_asked(made, probe):
    seal(made, variant="cpu")
    result = probe()
    assert result["report"]["ok"] is True
    assert {e["id"] for e in result["report"]["not_checked"]} == set(release_questions.QUESTIONS)
    assert "for CPUs" in result["line"]
    (made / NAME / "release.json").unlink()
    assert "once it is sealed" in probe()["line"]


def test_a_release_that_does_not_answer_in_time_is_a_finding_and_is_not_remembered(made, probe, tmp_path, monkeypatch):
    seal(made)
    monkeypatch.setattr(probe.module.inspect, "getsource", lambda _: "import time; time.sleep(30)")
    result = probe(timeout=1)
    assert ("release-torch", "no answer in 1 s") in {(f["id"], f["seen"]) for f in result["report"]["findings"]}
    assert not (tmp_path / "state" / f"{NAME}.answers.json").exists()


def test_a_python_that_ends_without_an_answer_is_a_finding(made, probe, monkeypatch):
    seal(made)
    monkeypatch.setattr(probe.module.inspect, "getsource", lambda _: "import sys; sys.exit('the driver is too old')")
    result = probe()
    (finding,) = [f for f in result["report"]["findings"] if f["id"] == "release-torch"]
    assert "the driver is too old" in finding["seen"]


def test_a_question_that_fails_spoils_its_own_answer_alone(monkeypatch):
    def leave():
        raise SystemExit("no GPU")

    monkeypatch.setattr(asked, "torch", leave)
    answers = asked.answer({"engine": "vllm", "packages": ["pytest", "no-such-package"], "models": []})
    assert answers["torch"] == {"error": "SystemExit: no GPU"}
    assert answers["packages"]["pytest"]
    assert answers["packages"]["no-such-package"] is None
    assert "ModuleNotFoundError" in answers["platform"]["error"]


def test_the_guide_has_a_section_for_every_question():
    page = (ROOT / "docs" / "proof.md").read_text()
    assert set(re.findall(r"^### (release-[a-z-]+)$", page, re.MULTILINE)) == set(release_questions.QUESTIONS)
