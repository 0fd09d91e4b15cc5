# SPDX-License-Identifier: Apache-2.0
"""The module engine_release: real installations with uv of two tiny wheels, and everything that may go wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from loading import load
from tiny_wheels import INTERPRETER, PYTHON, lock_text, wheelhouse, write_wheel

import inference
import inference.releases
import inference.releases.installing
import inference.releases.interpreters
import inference.releases.resolver
from inference.releases import INSTALLED, RELEASE, Release, locks

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Return a wheelhouse, the engine's lock and the installer's."""
    directory = tmp_path_factory.mktemp("house") / "wheels"
    return directory, *wheelhouse(directory)


@pytest.fixture(scope="session")
def module() -> ModuleType:
    """Return the module's code, with the domain where Ansible puts it."""
    for name, loaded in list(sys.modules.items()):
        if name == "inference" or name.startswith("inference."):
            sys.modules[f"ansible.module_utils.{name}"] = loaded
    return load("engine_release", ROOT / "plugins/modules/engine_release.py")


class Host:
    """A host's folders, and the module run against them."""

    def __init__(
        self, tmp_path: Path, house: tuple[Path, str, str], module: ModuleType, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.root, self.state_dir = tmp_path / "releases", tmp_path / "state"
        self.wheels, self.lock, self.installer = house
        self.module, self.capsys = module, capsys

    def arguments(self, **more: Any) -> dict[str, Any]:
        given = {
            "lock": self.lock,
            "installer_lock": self.installer,
            "wheelhouse": str(self.wheels),
            "python": INTERPRETER,
            "imports": ["tiny", "helper_of_tiny"],
            "root": str(self.root),
            "state_dir": str(self.state_dir),
            **more,
        }
        return {key: value for key, value in given.items() if value is not None}

    def run(self, phase: str, *, check: bool = False, **more: Any) -> dict[str, Any]:
        arguments = {"phase": phase, **self.arguments(**more), "_ansible_check_mode": check}
        self.capsys.readouterr()
        with patch_module_args(arguments), pytest.raises(SystemExit):
            self.module.main()
        return json.loads(self.capsys.readouterr().out)

    def install(self, **more: Any) -> Release:
        done = self.run("install", **more)
        assert "failed" not in done, done
        return Release(done["name"], self.root, self.state_dir)

    def sealed(self, **more: Any) -> Release:
        release = self.install(**more)
        assert "failed" not in self.run("seal", release=release.name)
        return release

    def snapshot(self) -> dict[Path, tuple[int, int]]:
        """Return all files with size and time of change."""
        paths = [*self.root.rglob("*"), *self.state_dir.rglob("*")]
        return {path: (path.lstat().st_size, path.lstat().st_ctime_ns) for path in paths}


@pytest.fixture
def host(tmp_path: Path, house: tuple[Path, str, str], module: ModuleType, capsys: pytest.CaptureFixture[str]) -> Host:
    return Host(tmp_path, house, module, capsys)


# --- the usual course ---


def test_install_seal_verify_and_again(host: Host) -> None:
    first = host.run("install")
    assert (first["changed"], first["state"], first["problems"]) == (True, "unsealed", [])
    assert set(first["timings"]) == {"wheelhouse", "venv", "packages", "check", "bytecode", "import"}
    release = Release(first["name"], host.root, host.state_dir)
    assert first["path"] == str(release.path)
    answer = subprocess.run(
        [first["python"], "-c", "import tiny; print(tiny.answer())"], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "42\n"
    again = host.run("install")
    assert (again["changed"], again["state"]) == (False, "unsealed")
    sealed = host.run("seal", release=release.name, patched_files=[])
    assert (sealed["changed"], sealed["state"]) == (True, "sealed")
    assert host.run("seal", release=release.name)["changed"] is False
    before = host.snapshot()
    look = host.run("install")
    assert (look["changed"], look["state"], look["files"]["read"]) == (False, "sealed", 0)
    assert host.run("verify", release=release.name)["changed"] is False
    assert host.run("verify", release=release.name, full=True)["files"]["read"] > 10
    assert {path for path in host.snapshot() if path.parent != host.state_dir} == {
        path for path in before if path.parent != host.state_dir
    }
    record = release.record()
    assert record["packages"] == {"tiny": "1.0", "helper-of-tiny": "2.5.post1"}
    assert record["not_compiled"] == ["tiny/future.py"]
    assert (record["changed_files"], record["contested_files"]) == ([], [])


def test_nothing_is_hard_linked_and_nothing_is_left(host: Host) -> None:
    release = host.sealed()
    files = [path for path in release.path.rglob("*") if path.is_file() and not path.is_symlink()]
    assert {path.lstat().st_nlink for path in files} == {1}
    assert [path.name for path in host.root.iterdir()] == [release.name]
    assert not any(path.stat().st_mode & 0o022 for path in files), "nobody but the owner writes"


def test_a_kept_cache_fills_and_the_release_is_whole_without_it(host: Host, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    release = host.sealed(cache=str(cache))
    assert cache.is_dir()
    shutil.rmtree(cache)
    assert host.run("verify", release=release.name)["problems"] == []


def test_other_patches_are_another_release(host: Host) -> None:
    assert host.install().path != host.install(patches_id="P02:0123").path


def test_without_bytecode_nothing_is_compiled(host: Host) -> None:
    release = host.sealed(bytecode=False)
    assert not [path for path in release.path.rglob("*.pyc") if "tiny" in path.name]


def test_every_valid_source_has_fresh_bytecode(host: Host) -> None:
    release = host.install()
    interpreter = inference.releases.interpreters.probe(INTERPRETER)
    packages = inference.releases.installing.site_packages(release, interpreter)
    lacking = inference.releases.installing.without_bytecode(packages, interpreter)
    assert [path.name for path in lacking] == ["future.py"]


# --- check mode and status ---


def test_check_mode_tells_the_truth_and_touches_nothing(host: Host) -> None:
    absent = host.run("install", check=True)
    assert (absent["changed"], absent["state"]) == (True, "absent")
    assert host.snapshot() == {}
    assert host.run("seal", check=True, release=absent["name"])["changed"] is True
    release = host.install()
    assert release.name == absent["name"], "the name that check mode foretold"
    before = host.snapshot()
    assert host.run("install", check=True)["changed"] is False
    assert host.run("seal", check=True, release=release.name)["changed"] is True
    assert host.snapshot() == before
    host.run("seal", release=release.name)
    os.utime(release.path / "venv" / "pyvenv.cfg", (1, 1))
    before = host.snapshot()
    assert host.run("install", check=True)["changed"] is False
    assert host.run("verify", check=True, release=release.name)["files"]["read"] == 1
    assert host.snapshot() == before


def test_check_mode_on_a_host_without_the_interpreter(host: Host) -> None:
    done = host.run("install", check=True, python="/nowhere/python")
    assert (done["changed"], done["name"]) == (True, None)
    assert "/nowhere/python" in done["why"]
    assert "there is no /nowhere/python" in host.run("install", python="/nowhere/python")["msg"]
    assert host.run("status", python="/nowhere/python")["name"] is None


def test_status_builds_nothing(host: Host) -> None:
    done = host.run("status")
    assert (done["changed"], done["state"]) == (False, "absent")
    assert host.snapshot() == {}
    release = host.sealed()
    assert (done["name"], host.run("status")["state"]) == (release.name, "sealed")


# --- bad input: a clear error, and nothing has changed ---


def bad_lock(host: Host, change: Callable[[str], str]) -> str:
    return host.run("install", lock=change(host.lock))["msg"]


def test_a_wrong_hash_in_the_lock_is_named_and_nothing_is_built(host: Host) -> None:
    tiny = locks.parse_lock(host.lock).pins[-1]
    done = host.run("install", lock=host.lock.replace(tiny.sha256, "0" * 64))
    assert tiny.file in done["msg"]
    assert [finding["id"] for finding in done["problems"]] == ["wheelhouse.hash.tiny"]
    assert not host.root.exists()


def test_a_lock_that_is_not_one_or_not_the_named_one(host: Host) -> None:
    assert "line 7" in bad_lock(host, lambda text: text.replace(" --hash", "--hash", 1))
    assert "not for version 1.1" in host.run("install", version="1.1")["msg"]
    assert "not for engine sglang" in host.run("install", engine="sglang")["msg"]
    assert not host.root.exists()


def test_a_lock_for_another_python(host: Host) -> None:
    done = bad_lock(host, lambda text: text.replace(f"# python: {PYTHON}", "# python: 3.9"))
    assert "install python3.9" in done
    assert not host.root.exists()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "no such file"),
        (lambda path: path.write_bytes(b"half"), "4 bytes"),
        (lambda path: path.write_bytes(bytes(path.stat().st_size)), "sha256"),
    ],
)
@pytest.mark.parametrize("name", ["tiny", "uv"])
def test_a_missing_or_wrong_wheel_is_named_and_nothing_is_built(
    host: Host, tmp_path: Path, damage: Callable[[Path], Any], problem: str, name: str
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(host.wheels, broken)
    victim = next(broken.glob(f"{name}-*.whl"))
    damage(victim)
    done = host.run("install", wheelhouse=str(broken))
    assert done["failed"]
    assert victim.name in done["msg"]
    assert problem in done["msg"]
    assert "scripts/wheelhouse build" in done["msg"]
    assert not host.root.exists()


def test_no_room_is_said_before_anything_is_built(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.releases.wheelhouse.free_bytes", lambda _path: 1000)
    assert "no room for tiny-1.0" in host.run("install")["msg"]
    assert not host.root.exists()


def test_missing_headers_are_said_for_a_gpu(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    real = inference.releases.interpreters.probe
    bare = type(real(INTERPRETER))
    monkeypatch.setattr(
        "inference.releases.interpreters.probe", lambda path: bare(**{**real(path).as_dict(), "headers": False})
    )
    gpu = host.lock.replace("# variant: cpu", "# variant: cu130")
    assert "Python.h" in host.run("install", lock=gpu)["msg"]
    assert "failed" not in host.run("install")
    assert "failed" not in host.run("install", lock=gpu, headers=False)


def test_a_package_that_cannot_be_imported_fails_with_the_traceback(host: Host) -> None:
    done = host.run("install", imports=["tiny", "not_there"])
    assert "No module named 'not_there'" in done["msg"]
    assert host.run("status")["state"] == "absent"
    assert "is no module's name" in host.run("install", imports=["os; print(1)"])["msg"]


def test_a_source_that_cannot_be_compiled_for_another_reason_than_syntax_fails(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = host.install()
    interpreter = inference.releases.interpreters.probe(INTERPRETER)
    packages = inference.releases.installing.site_packages(release, interpreter)
    (packages / "dangling.py").symlink_to("nowhere")
    with pytest.raises(inference.releases.ReleaseError, match=r"could not be compiled: .*dangling\.py"):
        inference.releases.installing.compile_missing(release, interpreter)


# --- interrupted ---


def test_a_half_finished_install_is_removed_and_built_again(host: Host) -> None:
    release = host.install()
    (release.path / INSTALLED).unlink()
    (release.venv / "stray").write_text("left behind")
    (release.work / "cache").mkdir(parents=True)
    done = host.run("install")
    assert (done["changed"], done["state"]) == (True, "unsealed")
    assert not (release.venv / "stray").exists()
    assert not release.work.exists()


DRIVER = """
import json, sys
sys.path.insert(0, {utils!r})
from pathlib import Path
from inference.releases import installing, interpreters, locks
from inference import releases
a = json.load(open({arguments!r}))
lock, installer = locks.parse_lock(a["lock"]), locks.parse_lock(a["installer_lock"]).pins[0]
interpreter = interpreters.probe(a["python"])
release = releases.place(lock, interpreter, "none", a["root"], a["state_dir"])
plan = installing.Plan(lock, a["lock"], installer, interpreter, "none", release, Path(a["wheelhouse"]),
    imports=("tiny", "helper_of_tiny"))
with release.locked(30):
    installing.install(plan, installing.Clock())
"""


def test_killed_at_any_moment_it_is_never_taken_for_finished(host: Host, tmp_path: Path) -> None:
    (tmp_path / "arguments.json").write_text(json.dumps(host.arguments()))
    driver = DRIVER.format(utils=str(ROOT / "plugins" / "module_utils"), arguments=str(tmp_path / "arguments.json"))
    for delay in (0.25, 0.4, 0.55, 0.7):
        child = subprocess.Popen([sys.executable, "-c", driver], start_new_session=True)
        time.sleep(delay)
        os.killpg(child.pid, signal.SIGKILL)
        finished = child.wait() == 0
        assert host.run("status")["state"] == ("unsealed" if finished else "absent")
    done = host.run("install")
    assert done["state"] == "unsealed"
    assert "failed" not in host.run("seal", release=done["name"], patched_files=[])


def test_two_runs_at_once_build_it_once(host: Host, tmp_path: Path) -> None:
    (tmp_path / "arguments.json").write_text(json.dumps(host.arguments()))
    driver = DRIVER.format(utils=str(ROOT / "plugins" / "module_utils"), arguments=str(tmp_path / "arguments.json"))
    first = subprocess.Popen([sys.executable, "-c", driver])
    while not list(host.root.glob("tiny-*")) and first.poll() is None:
        time.sleep(0.01)
    done = host.run("install")
    assert first.wait() == 0
    assert (done["changed"], done["state"]) == (False, "unsealed")


def test_another_run_that_does_not_end_is_named(host: Host) -> None:
    name = host.run("status")["name"]
    with Release(name, host.root, host.state_dir).locked(0):
        done = host.run("install", lock_timeout=0)
    assert f"process {os.getpid()}" in done["msg"]
    assert not host.root.exists()


# --- tampered with ---


def test_a_changed_and_a_missing_file_are_named_until_it_is_rebuilt(host: Host) -> None:
    release = host.sealed()
    packages = next(release.venv.glob("lib/python*/site-packages"))
    (packages / "tiny" / "part.py").write_text("def answer():\n    return 43\n")
    (packages / "helper_of_tiny.py").unlink()
    for phase in ("install", "verify", "status"):
        done = host.run(phase, release=release.name)
        assert done["failed"]
        found = {(Path(problem["path"]).name, problem["kind"]) for problem in done["problems"]}
        assert found == {("part.py", "changed"), ("helper_of_tiny.py", "missing")}
        assert "part.py (changed)" in done["msg"]
    assert host.run("install", rebuild=True)["state"] == "unsealed"
    host.run("seal", release=release.name, patched_files=[])
    assert host.run("verify", release=release.name)["problems"] == []


def test_a_half_deleted_release_is_no_release(host: Host) -> None:
    release = host.sealed()
    shutil.rmtree(release.venv / "lib")
    assert "helper_of_tiny" in host.run("verify", release=release.name)["msg"]
    (release.path / RELEASE).unlink()
    assert "is absent, not sealed" in host.run("verify", release=release.name)["msg"]
    assert host.run("install")["state"] == "unsealed"


def test_a_broken_seal_is_said_and_can_be_rebuilt(host: Host) -> None:
    release = host.sealed()
    (release.path / "manifest.tsv").write_text("")
    assert "the seal is broken" in host.run("install")["msg"]
    assert host.run("install", rebuild=True)["changed"] is True


def test_rebuild_leaves_a_good_release_alone(host: Host) -> None:
    host.sealed()
    assert host.run("status", rebuild=True)["to_build"] is False
    assert host.run("install", rebuild=True)["changed"] is False


def test_a_file_that_was_written_through_its_link_does_not_come_back_from_the_cache(host: Host) -> None:
    cache = str(host.root.parent / "cache")
    release = host.install(cache=cache)
    host.run("seal", release=release.name, patched_files=[])
    (file,) = release.venv.glob("lib/python*/site-packages/tiny/__init__.py")
    assert file.stat().st_nlink > 1
    with file.open("a") as stream:
        stream.write("# tampered\n")
    assert "is not what was sealed" in host.run("status", cache=cache)["msg"]
    host.run("install", cache=cache, rebuild=True)
    assert "failed" not in host.run("seal", release=release.name, patched_files=[])
    assert "tampered" not in file.read_text()


def test_status_says_what_is_to_be_built(host: Host) -> None:
    assert host.run("status")["to_build"] is True
    release = host.install()
    assert host.run("status")["to_build"] is False
    assert host.run("status", rebuild=True)["to_build"] is True
    host.run("seal", release=release.name, patched_files=[])
    (release.path / "manifest.tsv").write_text("")
    assert "engine_rebuild" not in host.run("status", rebuild=True).get("msg", "")
    assert host.run("status", rebuild=True)["to_build"] is True


def test_a_release_that_runs_is_not_rebuilt(host: Host) -> None:
    release = host.sealed()
    (release.path / "manifest.tsv").write_text("")
    running = subprocess.Popen([release.python, "-I", "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert running.stdout is not None
    running.stdout.readline()
    try:
        assert f"in use by processes [{running.pid}]" in host.run("install", rebuild=True)["msg"]
    finally:
        running.communicate()
    assert release.state == "sealed"


# --- patches ---


def test_a_patched_file_is_accepted_and_another_is_not(host: Host) -> None:
    release = host.install(patches_id="T1:abc")
    packages = next(release.venv.glob("lib/python*/site-packages"))
    (packages / "tiny" / "part.py").write_text("def answer():\n    return 44\n")
    refused = host.run("seal", release=release.name, patched_files=[])
    assert "tiny/part.py" in refused["msg"]
    assert release.state == "unsealed"
    (packages / "added.py").write_text("")
    refused = host.run("seal", release=release.name, patched_files=["tiny/part.py"])
    assert "added.py" in refused["msg"]
    (packages / "added.py").unlink()
    for cached in (packages / "__pycache__").glob("added.*"):
        cached.unlink()
    done = host.run("seal", release=release.name, patched_files=["tiny/part.py"], patches=[{"id": "T1"}])
    assert done["state"] == "sealed"
    record = release.record()
    assert [Path(path).name for path in record["changed_files"]] == ["part.py"]
    assert (record["patches"], record["patches_id"]) == ([{"id": "T1"}], "T1:abc")
    interpreter = inference.releases.interpreters.probe(INTERPRETER)
    assert [p.name for p in inference.releases.installing.without_bytecode(packages, interpreter)] == ["future.py"]


def test_a_patched_file_that_is_no_python_is_not_sealed(host: Host) -> None:
    release = host.install()
    packages = next(release.venv.glob("lib/python*/site-packages"))
    (packages / "helper_of_tiny.py").write_text("def (:\n")
    done = host.run("seal", release=release.name, patched_files=["helper_of_tiny.py"])
    assert "no valid Python: helper_of_tiny.py" in done["msg"]
    assert release.state == "unsealed"


def test_an_absent_release_is_not_sealed(host: Host) -> None:
    assert "is not installed" in host.run("seal", release="tiny-1.0-000000000000")["msg"]


# --- old ones ---


def test_old_releases_go_and_those_in_use_stay(host: Host) -> None:
    made = [host.sealed(patches_id=f"patches {number}") for number in range(4)]
    for number, release in enumerate(made):
        record = release.record()
        record["created"] = f"2026-01-0{number + 1}T00:00:00+00:00"
        record["record_sha256"] = inference.releases._record_sha256(record)
        (release.path / RELEASE).write_text(json.dumps(record))
    (host.root / ".going-left-by-a-killed-run").mkdir()
    cache = host.root.parent / "cache"
    (cache / "archive-v0").mkdir(parents=True)
    arguments: dict[str, Any] = {"engine": "tiny", "lock": None, "keep": 1, "in_use": [made[0].name]}
    arguments["cache"] = str(cache)
    assert host.run("prune", **(arguments | {"keep": 4}))["removed"] == []
    assert cache.is_dir(), "no release was removed, so what the next installation needs stays"
    (host.root / ".going-left-by-a-killed-run").mkdir()
    before = host.snapshot()
    look = host.run("prune", check=True, **arguments)
    assert (look["changed"], set(look["removed"])) == (True, {made[1].name, made[2].name})
    assert host.snapshot() == before
    assert set(host.run("prune", **arguments)["removed"]) == {made[1].name, made[2].name}
    assert {path.name for path in host.root.iterdir()} == {made[0].name, made[3].name}
    assert not cache.exists()
    assert host.run("prune", **arguments)["changed"] is False


# --- from an index ---


def test_files_come_from_an_index_and_the_hash_still_decides(host: Host, tmp_path: Path) -> None:
    index, wheels = tmp_path / "index", tmp_path / "wheels"
    wheels.mkdir()
    for path in host.wheels.glob("uv-*.whl"):
        shutil.copy(path, wheels)
    for path in host.wheels.glob("*.whl"):
        page = index / path.name.split("-")[0].replace("_", "-")
        page.mkdir(parents=True)
        shutil.copy(path, page)
        (page / "index.html").write_text(f'<a href="{path.name}">{path.name}</a>')
    given = {"wheelhouse": str(wheels), "index": True, "index_url": index.as_uri()}
    release = host.install(**given)
    assert "failed" not in host.run("seal", release=release.name, patched_files=[])
    other = tmp_path / "other"
    other.mkdir()
    made = write_wheel(other, "tiny", "1.0", {"tiny/__init__.py": b"evil = True\n"})
    shutil.copy(other / made.file, index / "tiny")
    done = host.run("install", patches_id="another", **given)
    assert "tiny" in done["msg"]
    assert "ash" in done["msg"]
    assert host.run("status", patches_id="another")["state"] == "absent"


# --- as Ansible runs it ---


def test_ansible_finds_the_module_and_the_domain(host: Host) -> None:
    done = subprocess.run(
        [
            *(Path(sys.executable).with_name("ansible"), "localhost", "-i", "localhost,", "-c", "local", "-o"),
            *("-m", "engine_release", "-a", json.dumps({"phase": "status", **host.arguments()})),
            *("-e", f"ansible_python_interpreter={INTERPRETER}"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
    )
    assert '"state": "absent"' in done.stdout, done.stdout + done.stderr


def test_the_lock_of_a_wheelhouse_says_what_it_is_for(host: Host) -> None:
    assert locks.parse_lock(host.lock).name == f"tiny-1.0-cpu-{locks.python_tag(PYTHON)}"
    assert locks.parse_lock(lock_text(list(locks.parse_lock(host.lock).pins))).sha256
