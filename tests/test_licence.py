# SPDX-License-Identifier: Apache-2.0
"""Every file of the kinds that name their licence names it: programs, Python, pages, tables of data, locks."""

from __future__ import annotations

import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINE = "SPDX-License-Identifier: Apache-2.0"

KINDS = ("*.py", "*.md", "*.css", "*.html", "plugins/filter/*.yml", "roles/*/files/*.yml", "roles/*/files/locks/*.txt")
"""By path. Programs are known by their first line. The others (tasks, inventories, templates, recordings) name none."""

EXCEPTIONS = {
    "molecule/shared/init": "its content is part of the name of the sandbox's base image: a line builds it anew"
}


def carries(text: str) -> bool:
    """Say whether a file names its licence, in its first line or below ``#!`` or ``<!doctype html>``."""
    return any(LINE in line for line in text.splitlines()[:2])


def of_a_kind(path: str, text: str) -> bool:
    return text.startswith("#!") or any(fnmatch(path, kind) for kind in KINDS)


def tracked() -> dict[str, str]:
    """Return the project's own files with their text; captured outputs, which stay as they were, are left out."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    plain = [path for path in paths if path.is_file() and not path.is_symlink()]
    ours = [path for path in plain if "fixtures" not in path.parts or path.name == "README.md"]
    return {path.relative_to(ROOT).as_posix(): path.read_text(errors="replace") for path in ours}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout: which files are the project's is not known")
def test_every_file_of_these_kinds_names_its_licence():
    files = {path: text for path, text in tracked().items() if of_a_kind(path, text)}
    lacking = {path for path, text in files.items() if not carries(text)}
    assert lacking - EXCEPTIONS.keys() == set()
    assert EXCEPTIONS.keys() - lacking == set(), "an exception that is none any more"
    for kind in KINDS:
        assert any(fnmatch(path, kind) for path in files), f"no file is {kind}"


def test_a_file_that_names_none_is_found():
    assert of_a_kind("docs/x.md", "# X\n") and of_a_kind("scripts/x", "#!/bin/sh\n")
    assert not of_a_kind("roles/x/tasks/main.yml", "- name: X\n")
    assert carries(f"#!/bin/sh\n# {LINE}\n") and carries(f"<!-- {LINE} -->\n# X\n")
    assert not carries("# X\n") and not carries(f"# X\n\n\n# {LINE}\n")
