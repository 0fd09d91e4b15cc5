# SPDX-License-Identifier: Apache-2.0
"""What a host gets of the toolkit: complete, usable there, and versioned by its content."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inference import __version__, toolkit

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def content() -> dict[str, str]:
    return toolkit.files(ROOT)


def test_every_program_that_is_named_exists():
    assert [name for name in toolkit.PROGRAMS if not (ROOT / "scripts" / name).is_file()] == []


def test_the_domain_is_whole_and_nothing_else_goes_along(content: dict[str, str]):
    domain = {str(path.relative_to(ROOT)) for path in (ROOT / toolkit.DOMAIN).glob("**/*.py")}
    assert set(content) == domain | {f"scripts/{name}" for name in toolkit.PROGRAMS}


def test_what_a_host_gets_works_there_without_the_project(content: dict[str, str], tmp_path: Path):
    for path, text in content.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    done = subprocess.run(
        [sys.executable, "-I", "-B", tmp_path / "scripts/nccl", "profiles", "--json"],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == 1


def test_the_version_changes_with_any_name_or_content():
    base = {"a": "1", "b": "2"}
    versions = {
        toolkit.version(files)
        for files in (base, {"a": "2", "b": "1"}, {"a": "12", "b": ""}, {"a": "1", "c": "2"}, {"a": "1"}, {})
    }
    assert len(versions) == 6
    assert all(version.startswith(f"{__version__}-") for version in versions)


def test_the_version_does_not_change_with_the_order():
    assert toolkit.version({"a": "1", "b": "2"}) == toolkit.version({"b": "2", "a": "1"})


def test_versions_that_no_generation_names_are_removed(tmp_path: Path):
    for name in ("0.1.0-0123abcd", "0.1.0-ffffffff", "1.2.3rc1-00000000", "mine", "0.1.0-short"):
        (tmp_path / name / "scripts").mkdir(parents=True)
    (tmp_path / "0.1.0-eeeeeeee").write_text("a file")
    assert toolkit.prune({"0.1.0-0123abcd"}, tmp_path) == ["0.1.0-ffffffff", "1.2.3rc1-00000000"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0.1.0-0123abcd",
        "0.1.0-eeeeeeee",
        "0.1.0-short",
        "mine",
    ]
    assert toolkit.prune({"0.1.0-0123abcd"}, tmp_path) == []


def test_nothing_is_removed_while_nothing_is_known_to_be_in_use(tmp_path: Path):
    (tmp_path / "0.1.0-0123abcd").mkdir()
    assert toolkit.prune(set(), tmp_path) == []
    assert (tmp_path / "0.1.0-0123abcd").is_dir()


def test_a_version_is_named_so_that_pruning_knows_it(content: dict[str, str]):
    assert toolkit.VERSION.fullmatch(toolkit.version(content))


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return the folder of a version that was installed, with what Python compiled there since."""
    content = {"plugins/a/__init__.py": "1\n", "plugins/a/b.py": "2\n", "scripts/run": "3\n"}
    folder = tmp_path / toolkit.version(content)
    for name, text in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else toolkit.mode(str(path.relative_to(folder))))
    (folder / "plugins/a/__pycache__").mkdir()
    (folder / "plugins/a/__pycache__/b.cpython-313.pyc").write_bytes(b"\xff")
    return folder


def test_an_installed_version_is_intact(installed: Path):
    assert toolkit.intact(installed.name, installed.parent, os.getuid())
    assert not toolkit.intact(installed.name, installed.parent, os.getuid() + 1)
    assert not toolkit.intact("0.1.0-0123abcd", installed.parent, os.getuid())


DAMAGE: dict[str, Callable[[Path], object]] = {
    "content": lambda folder: (folder / "plugins/a/b.py").write_text("4\n"),
    "no text": lambda folder: (folder / "plugins/a/b.py").write_bytes(b"\xff"),
    "missing": lambda folder: (folder / "plugins/a/b.py").unlink(),
    "another": lambda folder: (folder / "plugins/a/c.py").write_text(""),
    "mode": lambda folder: (folder / "plugins/a/b.py").chmod(0o666),
    "mode of a program": lambda folder: (folder / "scripts/run").chmod(0o644),
    "mode of a folder": lambda folder: (folder / "plugins").chmod(0o777),
    "a link": lambda folder: (
        (folder / "plugins/a/b.py").rename(folder.parent / "b.py")
        and (folder / "plugins/a/b.py").symlink_to(folder.parent / "b.py")
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_version_that_was_altered_is_not_intact(installed: Path, damage: Callable[[Path], object]):
    damage(installed)
    assert not toolkit.intact(installed.name, installed.parent, os.getuid())
