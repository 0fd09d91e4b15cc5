# SPDX-License-Identifier: Apache-2.0
"""Options and fixtures of the proof: real releases, unpatched and patched, asked with pretended capabilities.

models.json is hand-made: configurations two layers deep, real in architecture and in the shapes that SGLang decides by.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import patch_decisions
import patch_trees
import pytest

from inference import ledger
from inference.ledger import report as ledger_report
from inference.releases import wheels as release_wheels
from inference.releases.wheels import Release

HERE = Path(__file__).parent
CAPABILITIES = ("8.9", "9.0", "10.0", "12.0", "12.1")
DEFAULT_RELEASES = "0.5.6,0.5.7,0.5.8,0.5.9,0.5.12.post1,0.5.15.post1,0.5.17,0.5.18,0.5.20,0.5.23"
NVIDIA_SMI = """\
#!/bin/sh
# stand-in: SGLang asks for the memory of the GPUs
case "$*" in *memory.total*) for gpu in 0 1 2 3 4 5 6 7; do echo 97887; done ;; *) echo 590.48.01 ;; esac
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("proof of the patches on real releases")
    group.addoption("--wheels", metavar="DIR", help="folder with sglang-*.whl and the flashinfer_python-*.whl they pin")
    group.addoption("--engine-python", metavar="FILE", help="interpreter with CPU torch and requirements.txt")
    group.addoption("--layers", metavar="DIR", help="folder with transformers-VERSION folders (pip install --target)")
    group.addoption("--releases", default=DEFAULT_RELEASES, help="releases to ask, separated by commas")
    group.addoption("--write", metavar="PAGE", help="put the table of decisions between the markers of this page")


@dataclass
class Laboratory:
    """Unpacked releases and what they answered."""

    wheels: Path
    python: str
    layers: Path
    scratch: Path
    answers: dict[tuple[str, bool, str], dict[str, Any]] = field(default_factory=dict)

    def release(self, version: str) -> Release:
        found = [r for r in release_wheels.find(self.wheels) if r.version == version]
        if not found:
            pytest.skip(f"{self.wheels} has no wheel of sglang {version}")
        return found[0]

    def tree(self, version: str, *, patched: bool) -> Path:
        """Return the release's site-packages; patched with everything that applies, every risk acknowledged."""
        tree = self.scratch / f"{version}-{'patched' if patched else 'plain'}"
        if tree.exists():
            return tree
        if not patched:
            return unpack(self.release(version), tree)
        shutil.copytree(self.tree(version, patched=False), tree, copy_function=os.link)
        ids = [i for i, state in self.states(version).items() if state.state == "applies"]
        ledger.plan(patch_trees.real(), tree, ids, acknowledged=ids).execute()
        return tree

    def states(self, version: str) -> dict[str, ledger.PatchState]:
        """Return the states in the unpatched release, every risk acknowledged."""
        documents = patch_trees.real()
        plan = ledger.plan(documents, self.tree(version, patched=False), [], acknowledged=[d["id"] for d in documents])
        return {state.id: state for state in plan.before}

    def ask(self, version: str, capability: str, *, patched: bool) -> dict[str, Any]:
        """Return the release's answers; each combination is asked once."""
        key = (version, patched, capability)
        if key not in self.answers:
            self.answers[key] = self._ask(version, capability, self.tree(version, patched=patched))
        return self.answers[key]

    def _ask(self, version: str, capability: str, tree: Path) -> dict[str, Any]:
        layer = self.layers / f"transformers-{self.release(version).pins['transformers']}"
        if not layer.is_dir():
            pytest.skip(f"no {layer}: pip install --target {layer} {layer.name.replace('-', '==')}")
        done = subprocess.run(
            [self.python, "-W", "ignore", HERE / "ask.py", capability, self.scratch / "models"],
            capture_output=True,
            text=True,
            check=False,
            env={
                "PATH": f"{self.scratch / 'bin'}:{os.environ['PATH']}",
                "PYTHONPATH": f"{tree}:{layer}",
                "PYTHONDONTWRITEBYTECODE": "1",
                "HF_HUB_OFFLINE": "1",
                "HOME": str(self.scratch),
            },
        )
        assert done.returncode == 0, done.stderr[-3000:]
        answers: dict[str, Any] = json.loads(done.stdout)
        failed = {name: a["error"] for name, a in answers.items() if isinstance(a, dict) and "error" in a}
        assert not failed, f"{version} at {capability} could not answer: {failed}"
        return answers


def unpack(release: Release, tree: Path) -> Path:
    with zipfile.ZipFile(release.wheel) as archive:
        archive.extractall(tree)
    if release.flashinfer:
        with zipfile.ZipFile(release.flashinfer) as archive:
            archive.extract("flashinfer/jit/comm.py", tree)
    return tree


@pytest.fixture(scope="session")
def laboratory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    wheels = request.config.getoption("--wheels", default=None)
    python = request.config.getoption("--engine-python", default=None)
    layers = request.config.getoption("--layers", default=None)
    if not (wheels and python and layers):
        pytest.skip(
            "needs real wheels and CPU torch: pytest tests/proof --wheels DIR --engine-python FILE --layers DIR"
        )
    scratch = tmp_path_factory.mktemp("proof")
    for name, model in json.loads((HERE / "models.json").read_text()).items():
        (scratch / "models" / name).mkdir(parents=True)
        (scratch / "models" / name / "config.json").write_text(json.dumps(model))
    (scratch / "bin").mkdir()
    (scratch / "bin" / "nvidia-smi").write_text(NVIDIA_SMI)
    (scratch / "bin" / "nvidia-smi").chmod(0o755)
    laboratory = Laboratory(Path(wheels), python, Path(layers), scratch)
    yield laboratory
    page = request.config.getoption("--write")
    if page:
        text = Path(page).read_text(encoding="utf-8")
        body = patch_decisions.table(laboratory.answers)
        Path(page).write_text(ledger_report.replaced(text, "measured decisions", body), encoding="utf-8")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "version" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--wheels", default=None)
        releases = metafunc.config.getoption("--releases") if asked else "no-release"
        metafunc.parametrize("version", releases.split(","), scope="session")
