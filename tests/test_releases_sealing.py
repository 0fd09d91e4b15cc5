# SPDX-License-Identifier: Apache-2.0
"""Sealed folders: every kind of change is found and named, and changed times alone are not a change."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from inference.releases import sealing


class Sealed:
    """A sealed folder and where its stat file is."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "release"
        self.stat_file = tmp_path / "state" / "release.stat"
        (self.root / "lib" / "deep").mkdir(parents=True)
        for name in ("a.py", "lib/b.so", "lib/deep/c.txt"):
            (self.root / name).write_bytes(name.encode() * 50)
        (self.root / "link").symlink_to("lib/b.so")
        self.seal = sealing.write_manifest(self.root, sealing.make_manifest(self.root))
        (self.root / "release.json").write_text("{}")
        sealing.write_stats(self.stat_file, self.seal, sealing.scan(self.root))

    def verify(self, *, full: bool = False, refresh: bool = True) -> sealing.Verification:
        return sealing.verify(self.root, self.seal, self.stat_file, ["release.json"], full=full, refresh=refresh)

    def snapshot(self) -> dict[Path, tuple[int, int]]:
        return {path: (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns) for path in self.root.rglob("*")}

    def problems(self, **options: bool) -> list[tuple[str, str]]:
        return [(problem.path, problem.kind) for problem in self.verify(**options).problems]


@pytest.fixture
def sealed(tmp_path: Path) -> Sealed:
    return Sealed(tmp_path)


def test_an_untouched_folder_is_compared_without_reading(sealed: Sealed) -> None:
    found = sealed.verify()
    assert (found.problems, found.files, found.hashed) == ((), 6, 0)
    assert sealed.verify(full=True).hashed == 4


def rewrite(root: Path) -> None:
    (root / "a.py").write_bytes(b"other")


def rewrite_with_the_old_times(root: Path) -> None:
    path = root / "lib/b.so"
    status = path.stat()
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_by_a_folder(root: Path) -> None:
    (root / "a.py").unlink()
    (root / "a.py").mkdir()


def turn_the_link(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("a.py")


def link_instead_of_a_file(root: Path) -> None:
    shutil.copy(root / "a.py", root.parent / "elsewhere")
    (root / "a.py").unlink()
    (root / "a.py").symlink_to(root.parent / "elsewhere")


def socket_instead_of_a_file(root: Path) -> None:
    (root / "a.py").unlink()
    here = Path.cwd()
    os.chdir(root)  # a socket's path has little room
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("a.py")
    os.chdir(here)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (rewrite, [("a.py", "changed")]),
        (rewrite_with_the_old_times, [("lib/b.so", "changed")]),
        (lambda root: (root / "lib/b.so").unlink(), [("lib/b.so", "missing")]),
        (lambda root: shutil.rmtree(root / "lib/deep"), [("lib/deep/c.txt", "missing")]),
        (lambda root: (root / "lib/new.py").write_bytes(b""), [("lib/new.py", "extra")]),
        (lambda root: (root / "lib/new").symlink_to("/etc/passwd"), [("lib/new", "extra")]),
        (lambda root: (root / "a.py").chmod(0o666), [("a.py", "changed")]),
        (turn_the_link, [("link", "changed")]),
        (link_instead_of_a_file, [("a.py", "changed")]),
        (replace_by_a_folder, [("a.py", "missing")]),
        (socket_instead_of_a_file, [("a.py", "changed")]),
        (lambda root: (root / "a.py").rename(root / "z.py"), [("a.py", "missing"), ("z.py", "extra")]),
    ],
)
def test_each_change_is_named_and_stays_named(sealed: Sealed, change, expected) -> None:
    change(sealed.root)
    assert sealed.problems() == expected
    assert sealed.problems() == expected, "a second look must not accept what the first one refused"
    assert sealed.problems(full=True) == expected


def test_a_change_that_neither_size_nor_times_show_is_found_by_reading(sealed: Sealed) -> None:
    """What a bad disk does. Here the stat file is made to match the changed file."""
    (sealed.root / "a.py").write_bytes(b"A" + (sealed.root / "a.py").read_bytes()[1:])
    sealing.write_stats(sealed.stat_file, sealed.seal, sealing.scan(sealed.root))
    assert sealed.problems() == []
    assert sealed.problems(full=True) == [("a.py", "changed")]


def test_new_times_are_no_change_and_are_learnt_outside(sealed: Sealed) -> None:
    for path in sealed.root.rglob("*"):
        if not path.is_symlink():
            os.utime(path, (1, 1))
    before = sealed.snapshot()
    kept = sealed.stat_file.read_bytes()
    look = sealed.verify(refresh=False)
    assert (look.problems, look.hashed, sealed.stat_file.read_bytes()) == ((), 3, kept)
    assert sealed.verify().hashed == 3
    assert sealed.verify().hashed == 0
    assert before == sealed.snapshot()


def test_a_copied_folder_is_read_once(sealed: Sealed, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(sealed.root, copy, symlinks=True)
    sealed.root = copy
    first, second = sealed.verify(), sealed.verify()
    assert (first.problems, first.hashed) == ((), 4)
    assert (second.problems, second.hashed) == ((), 0)


@pytest.mark.parametrize("damage", [b"", b"garbage", b"1\t2\tx\ta.py\n"])
def test_a_lost_or_damaged_stat_file_costs_reading_and_nothing_else(sealed: Sealed, damage: bytes) -> None:
    sealed.stat_file.write_bytes(sealed.seal.encode() + b"\n" + damage if damage else b"")
    found = sealed.verify()
    assert (found.problems, found.hashed) == ((), 4)
    sealed.stat_file.unlink()
    assert sealed.verify().problems == ()


def test_a_changed_or_missing_manifest_is_a_broken_seal(sealed: Sealed) -> None:
    path = sealed.root / sealing.MANIFEST
    path.write_text(path.read_text().replace("a.py", "b.py"))
    with pytest.raises(sealing.SealError, match="has been changed"):
        sealed.verify()
    path.unlink()
    with pytest.raises(sealing.SealError, match="No such file"):
        sealed.verify()


def test_what_a_manifest_cannot_hold_is_not_sealed(tmp_path: Path) -> None:
    (tmp_path / "two\nlines").write_bytes(b"")
    with pytest.raises(sealing.SealError, match="unprintable"):
        sealing.make_manifest(tmp_path)
    (tmp_path / "two\nlines").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(sealing.SealError, match="neither a file nor a link"):
        sealing.make_manifest(tmp_path)
