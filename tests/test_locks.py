# SPDX-License-Identifier: Apache-2.0
"""Locks: their form, which wheel fits, whether packages agree; and every lock that comes with the toolkit."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

from inference.releases import locks, resolver, wheelhouse
from inference.releases.locks import Lock, LockError, Pin, Target

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "roles" / "engine" / "files" / "locks"
INDEX = yaml.safe_load((LOCKS / "locks.yml").read_text())
NAMES = [name for entry in locks.read_index(INDEX) for name in entry.names]
SHA = "0" * 64


def pin(name: str, version: str, **more: object) -> Pin:
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Pin(name=name, version=version, **{"file": file, "size": 1, "sha256": SHA, **more})


def make(*pins: Pin, engine: str = "sglang", version: str = "0.5.23", variant: str = "cu130") -> Lock:
    head = {"engine": engine, "version": version, "variant": variant, "python": "3.12"}
    return locks.parse_lock(locks.render_lock(head, pins, "a test"))


GOOD = (
    pin("sglang", "0.5.23"),
    pin("sglang-kernel", "0.4.10"),
    pin("torch", "2.14.1"),
    pin("torchvision", "0.29.2"),
    pin("flashinfer-python", "0.7.2"),
    pin("flashinfer-cubin", "0.7.2"),
    pin("nvidia-cuda-runtime", "13.0.96"),
    pin("nvidia-nccl-cu13", "2.30.7"),
)


def swapped(name: str, version: str) -> Lock:
    return make(*(pin(p.name, version) if p.name == name else p for p in GOOD))


# --- form ---


def test_a_lock_is_read_as_it_was_written() -> None:
    lock = make(*GOOD)
    assert {p.name for p in lock.pins} == {p.name for p in GOOD}
    assert lock.name == "sglang-0.5.23-cu130-cp312"
    assert lock.versions["torch"] == "2.14.1"


def test_the_hash_is_that_of_the_file_however_ansible_strips_it(tmp_path: Path) -> None:
    text = (LOCKS / f"{NAMES[0]}.txt").read_text()
    expected = hashlib.sha256((LOCKS / f"{NAMES[0]}.txt").read_bytes()).hexdigest()
    assert {locks.parse_lock(form).sha256 for form in (text, text.rstrip(), text + "\n")} == {expected}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("torch==2.14.1", "line 7: 'torch==2.14.1' is not"),
        (pin("torch", "2.14.1", sha256="abc").as_line(), "line 7"),
        (pin("torch", "2.14.1").as_line().replace("#", "; python_version > '3' #"), "line 7"),
        ("torch @ https://example.org/torch.whl", "line 7"),
        (pin("torch", "2.14.1", size=0).as_line(), "line 7"),
        (pin("torch", "2.14.1").as_line() + "\n" + pin("torch", "2.13.0").as_line(), "torch is named twice"),
        (pin("torch", "2.14.1", file="torch-2.13.0-py3-none-any.whl").as_line(), "a file of another name"),
        (pin("torch", "2.14.1", file="vision-2.14.1-py3-none-any.whl").as_line(), "a file of another name"),
        ("", "it names no package"),
    ],
)
def test_a_wrong_line_is_named(line: str, problem: str) -> None:
    head = locks.render_lock({"engine": "e", "version": "1", "variant": "cpu", "python": "3.12"}, [], "a test")
    with pytest.raises(LockError, match=re.escape(problem)):
        locks.parse_lock(head + line + "\n", "engine.txt")


def test_a_missing_head_is_named() -> None:
    with pytest.raises(LockError, match=r"no line '# python: \.\.\.'"):
        locks.parse_lock("# engine: e\n# version: 1\n# variant: cpu\n" + pin("e", "1").as_line())


def test_an_index_entry_with_an_unknown_key_is_refused() -> None:
    entry = {"engine": "e", "version": 1, "variant": "cpu", "python": ["3.12"]}
    with pytest.raises(LockError, match=r"unknown keys \['python'\], missing keys \['pythons'\]"):
        locks.read_index({"locks": [entry]})


# --- which wheel ---


def expected_best(files: list[str], target: Target) -> str | None:
    """Ask packaging, which pip uses."""
    major, minor = map(int, target.python.split("."))
    glibc = [f"manylinux_2_{n}_x86_64" for n in range(target.glibc[1], 4, -1)]
    old = {"manylinux_2_17_x86_64": "manylinux2014_x86_64", "manylinux_2_12_x86_64": "manylinux2010_x86_64"}
    old["manylinux_2_5_x86_64"] = "manylinux1_x86_64"
    platforms = [tag for name in glibc for tag in (name, old.get(name)) if tag] + ["linux_x86_64"]
    interpreter = f"cp{major}{minor}"
    order: list[Tag] = [
        *cpython_tags((major, minor), [interpreter], platforms),
        *compatible_tags((major, minor), interpreter, platforms),
    ]
    rank = {tag: number for number, tag in reversed(list(enumerate(order)))}
    ranked = [
        (min(rank[tag] for tag in parse_wheel_filename(file)[3] if tag in rank), file)
        for file in files
        if any(tag in rank for tag in parse_wheel_filename(file)[3])
    ]
    return min(ranked)[1] if ranked else None


TAGS = [
    "py3-none-any",
    "py2.py3-none-any",
    "py312-none-any",
    "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64",
    "cp312-cp312-manylinux_2_28_x86_64",
    "cp312-cp312-manylinux_2_39_x86_64",
    "cp312-cp312-musllinux_1_2_x86_64",
    "cp312-cp312-manylinux_2_28_aarch64",
    "cp313-cp313-manylinux_2_28_x86_64",
    "cp313-cp313t-manylinux_2_28_x86_64",
    "cp39-abi3-manylinux_2_17_x86_64",
    "cp311-abi3-manylinux1_x86_64",
    "cp313-abi3-manylinux_2_17_x86_64",
    "cp312-none-manylinux_2_17_x86_64",
    "py3-none-manylinux_2_27_x86_64",
    "py3-none-manylinux2014_x86_64",
    "py310-none-manylinux2014_x86_64",
    "cp312-abi3-linux_x86_64",
    "cp312-cp312-win_amd64",
]


@pytest.mark.parametrize("target", [Target("3.12", (2, 35)), Target("3.13", (2, 28)), Target("3.10", (2, 39))])
def test_the_wheel_is_the_one_that_pip_would_take(target: Target) -> None:
    files = [f"p-1-{tag}.whl" for tag in TAGS]
    for number in range(len(files)):
        for other in range(number, len(files)):
            pair = [files[number], files[other]]
            assert locks.best_wheel(pair, target) == expected_best(pair, target), pair


def test_a_wheel_that_needs_a_newer_glibc_does_not_fit() -> None:
    lock = make(pin("sglang", "0.5.23", file="sglang-0.5.23-cp312-cp312-manylinux_2_34_x86_64.whl"))
    assert locks.misfits(lock, Target("3.12", (2, 35))) == []
    assert locks.misfits(lock, Target("3.12", (2, 31))) == ["sglang-0.5.23-cp312-cp312-manylinux_2_34_x86_64.whl"]
    assert locks.misfits(lock, Target("3.11", (2, 35)))
    assert locks.misfits(lock, Target("3.12", (2, 35), "aarch64"))


# --- agreement ---


def test_packages_that_agree_give_no_finding() -> None:
    assert locks.agreement(make(*GOOD)) == []


@pytest.mark.parametrize(
    ("name", "version", "seen"),
    [
        ("flashinfer-cubin", "0.7.1", "flashinfer-python 0.7.2, flashinfer-cubin 0.7.1"),
        ("torch", "2.13.0", "torch 2.13.0 with torchvision 0.29.2"),
        ("torchvision", "0.28.0", "torch 2.14.1 with torchvision 0.28.0"),
        ("nvidia-cuda-runtime", "12.8.90", "nvidia-cuda-runtime 12.8.90"),
        ("sglang", "0.5.22", "sglang 0.5.22"),
    ],
)
def test_a_version_that_does_not_agree_is_named(name: str, version: str, seen: str) -> None:
    found = locks.agreement(swapped(name, version))
    assert [(finding.seen, finding.level) for finding in found] == [(seen, "critical")]


@pytest.mark.parametrize("name", ["sglang", "torch", "flashinfer-python", "sglang-kernel", "nvidia-cuda-runtime"])
def test_a_package_that_is_missing_is_named(name: str) -> None:
    found = locks.agreement(make(*(p for p in GOOD if p.name != name)))
    assert any(name in finding.seen for finding in found) or "kernel" in found[0].seen


def test_both_names_of_the_kernel_package_disagree() -> None:
    found = locks.agreement(make(*GOOD, pin("sgl-kernel", "0.3.21")))
    assert [finding.seen for finding in found] == ["sgl-kernel 0.3.21, sglang-kernel 0.4.10"]


def test_a_package_for_another_cuda_is_named() -> None:
    found = locks.agreement(make(*GOOD, pin("nvidia-nvshmem-cu12", "3.3.20")))
    assert [finding.seen for finding in found] == ["nvidia-nvshmem-cu12"]


def test_cuda_in_a_cpu_lock_is_named() -> None:
    pins = (pin("sglang", "0.5.23"), pin("torch", "2.13.0"), pin("nvidia-nccl-cu13", "2.30.7"))
    seen = [finding.seen for finding in locks.agreement(make(*pins, variant="cpu"))]
    assert seen == ["torch 2.13.0", "nvidia-nccl-cu13"]


def test_an_unknown_variant_is_named() -> None:
    assert locks.agreement(make(*GOOD, variant="rocm"))[0].seen == "variant rocm"


# --- the locks that come with the toolkit ---


@pytest.mark.parametrize("name", NAMES)
def test_each_lock_is_what_the_index_says_and_agrees(name: str) -> None:
    lock = locks.parse_lock((LOCKS / f"{name}.txt").read_text(), name)
    assert lock.name == name
    assert locks.agreement(lock) == []
    assert locks.misfits(lock, resolver.target(lock.python)) == []


def test_no_lock_is_left_that_the_index_does_not_name() -> None:
    assert {path.stem for path in LOCKS.glob("*.txt")} == {*NAMES, "installer"}


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("sglang-0.5.23-cu130", {"torch": "2.14.1", "flashinfer-python": "0.7.2", "sglang-kernel": "0.4.10"}),
        ("sglang-0.5.22-cu130", {"torch": "2.14.1", "flashinfer-python": "0.7.1", "sglang-kernel": "0.4.9"}),
        ("sglang-0.5.17-cu130", {"torch": "2.11.0", "flashinfer-python": "0.6.15.post1", "sglang-kernel": "0.4.5"}),
        ("sglang-0.5.9-cu128", {"torch": "2.9.1", "flashinfer-cubin": "0.6.3", "sgl-kernel": "0.3.21"}),
    ],
)
def test_the_locks_have_the_pins_that_the_releases_metadata_names(release: str, expected: dict[str, str]) -> None:
    for name in (name for name in NAMES if name.startswith(release)):
        versions = locks.parse_lock((LOCKS / f"{name}.txt").read_text()).versions
        assert {package: versions.get(package) for package in expected} == expected


def test_the_cpu_lock_names_torch_by_the_hash_that_serves_in_the_sandbox() -> None:
    lock = locks.parse_lock((LOCKS / "sglang-0.5.23-cpu-cp311.txt").read_text())
    torch = next(p for p in lock.pins if p.name == "torch")
    assert (torch.version, torch.local) == ("2.13.0+cpu", "cpu")
    assert torch.sha256 == "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"


def test_hosts_and_the_controller_have_the_same_uv() -> None:
    controller = re.search(r"^uv==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    installer = locks.parse_lock((LOCKS / "installer.txt").read_text())
    assert controller is not None
    assert installer.versions == {"uv": controller[1]}
    assert installer.pins[0].sha256 in (ROOT / "requirements.txt").read_text()


def test_no_lock_says_where_packages_come_from() -> None:
    for path in LOCKS.iterdir():
        assert not re.search(r"https?://|file:|/opt/", path.read_text()), path


def test_the_stand_ins_of_the_lock_are_those_of_the_source() -> None:
    file, content = wheelhouse.build_standins(ROOT / "roles" / "engine" / "files" / "cpu-shim")
    lock = locks.parse_lock((LOCKS / "sglang-0.5.23-cpu-cp311.txt").read_text())
    made = next(p for p in lock.pins if p.name == wheelhouse.STANDINS)
    assert (made.file, made.size, made.sha256) == (file, len(content), hashlib.sha256(content).hexdigest())


# --- the program ---


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "lock", *arguments], capture_output=True, text=True, check=False
    )


def test_check_finds_nothing_in_the_locks_of_the_toolkit() -> None:
    done = program("check", "--json")
    assert done.returncode == 0, done.stdout
    assert len(json.loads(done.stdout)["not_checked"]) == len(NAMES) + 1


def test_an_unknown_lock_is_refused_with_the_nearest_name() -> None:
    done = program("check", "sglang-0.5.23-cu130-cp313")
    assert done.returncode == 3
    assert "did you mean 'sglang-0.5.23-cu130-cp31" in done.stderr


# --- asking an index: here a folder ---


def test_resolving_against_a_folder_gives_the_file_its_place_and_hash(tmp_path: Path) -> None:
    from tiny_wheels import PYTHON, uv, write_wheel

    made = write_wheel(tmp_path, "tiny", "1.0", {"tiny.py": b""})
    write_wheel(tmp_path, "tiny", "1.0", {"tiny.py": b""}, tag="py3-none-win_amd64")
    sources = resolver.Sources(find_links=(str(tmp_path),))
    found = resolver.resolve(str(uv()), ["tiny==1.0"], PYTHON, sources, options=["--no-index"])
    assert [(c.name, c.file, c.sha256) for c in found] == [("tiny", made.file, made.sha256)]
    assert found[0].path == tmp_path / made.file


def test_a_file_of_another_hash_is_not_the_locks(tmp_path: Path) -> None:
    from tiny_wheels import lock_text, uv, write_wheel

    made = write_wheel(tmp_path, "tiny", "1.0", {"tiny.py": b""})
    wrong = replace(made, sha256=SHA)
    sources = resolver.Sources(find_links=(str(tmp_path),), index_url=tmp_path.as_uri())
    lock = locks.parse_lock(lock_text([wrong]))
    with pytest.raises(resolver.ResolveError, match=r"with the hash of the lock: tiny-1\.0-py3-none-any\.whl"):
        resolver.locate(str(uv()), [lock], lock.pins, sources)


def test_find_links_of_the_environment_keep_uv_from_pytorchs_index() -> None:
    bare = resolver.Sources.from_environment({})
    linked = resolver.Sources.from_environment({"PIP_FIND_LINKS": "/a /b", "UV_FIND_LINKS": "/b"}, find_links=("/c",))
    assert bare.backend("cpu") == ["--torch-backend", "cpu"]
    assert bare.backend(None) == []
    assert linked.find_links == ("/c", "/b", "/a")
    assert linked.backend("cpu") == []


# --- a new version is one line and one command ---


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Copy what scripts/lock needs, with an index of locks of its own and a folder as package index."""
    import shutil

    from tiny_wheels import PYTHON, write_wheel

    root = tmp_path / "project"
    for part in ("scripts", "plugins/module_utils", "roles/engine/files/cpu-shim"):
        shutil.copytree(ROOT / part, root / part)
    (root / "roles/engine/files/locks").mkdir()
    line = f"{{engine: tiny, version: 1.0, variant: cu130, pythons: ['{PYTHON}'], overrides: [helper==2.0], "
    line += "excludes: [unwanted]}"
    (root / "roles/engine/files/locks/locks.yml").write_text(f"installer: 1.0\nlocks:\n  - {line}\n")
    wheels = root / "wheels"
    wheels.mkdir()
    needs = b"Requires-Dist: helper==1.0\nRequires-Dist: unwanted\nRequires-Dist: nvidia-cuda-runtime==13.0.96\n"
    write_wheel(wheels, "tiny", "1.0", {"tiny.py": b""}, metadata=needs)
    for name, version in (("helper", "1.0"), ("helper", "2.0"), ("unwanted", "1"), ("nvidia-cuda-runtime", "13.0.96")):
        write_wheel(wheels, name, version, {f"{name.replace('-', '_')}.py": version.encode()})
    write_wheel(wheels, "uv", "1.0", {"uv.py": b""})
    return root


def project_lock(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    import os

    links = {"UV_FIND_LINKS": str(project / "wheels"), "UV_DEFAULT_INDEX": (project / "wheels").as_uri()}
    return subprocess.run(
        [sys.executable, project / "scripts" / "lock", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **links, "UV_NO_CACHE": "1", "PIP_FIND_LINKS": ""},
    )


def test_a_line_and_a_command_make_a_lock_with_its_deviations(project: Path) -> None:
    from tiny_wheels import PYTHON

    made = project_lock(project, "make")
    assert made.returncode == 0, made.stderr + made.stdout
    path = project / f"roles/engine/files/locks/tiny-1.0-cu130-{locks.python_tag(PYTHON)}.txt"
    lock = locks.parse_lock(path.read_text())
    assert lock.versions == {"tiny": "1.0", "helper": "2.0", "nvidia-cuda-runtime": "13.0.96"}
    assert project_lock(project, "check", "--resolve").returncode == 0
    first = path.read_bytes()
    assert project_lock(project, "make").returncode == 0
    assert path.read_bytes() == first


def test_a_file_that_the_index_has_replaced_is_found(project: Path) -> None:
    from tiny_wheels import write_wheel

    assert project_lock(project, "make").returncode == 0
    write_wheel(project / "wheels", "helper", "2.0", {"helper.py": b"something else"})
    done = project_lock(project, "check", "--resolve", "--json")
    assert done.returncode == 2
    assert all("helper==2.0" in found["seen"] for found in json.loads(done.stdout)["findings"])
    (project / "wheels" / "helper-2.0-py3-none-any.whl").unlink()
    assert project_lock(project, "check", "--resolve").returncode == 2


def test_nothing_is_written_when_packages_do_not_agree(project: Path) -> None:
    index = project / "roles/engine/files/locks/locks.yml"
    index.write_text(index.read_text().replace("cu130", "cu128"))
    done = project_lock(project, "make")
    assert done.returncode == 2
    assert "nvidia-cuda-runtime 13.0.96" in done.stdout
    assert list(index.parent.glob("*.txt")) == []
