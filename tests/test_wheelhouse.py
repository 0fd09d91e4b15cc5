# SPDX-License-Identifier: Apache-2.0
"""Wheelhouses: fetched whole or not at all, verified by name, packed the same each time."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tiny_wheels import lock_text, write_wheel

from inference import fetching
from inference.releases import locks, wheelhouse
from inference.releases.locks import Pin
from inference.releases.wheelhouse import Download, WheelhouseError

ROOT = Path(__file__).resolve().parent.parent
SHIM = ROOT / "roles" / "engine" / "files" / "cpu-shim"
CONTENT = random.Random(1).randbytes(300_000)
FILE = "big-1-py3-none-any.whl"
BIG = Pin("big", "1", FILE, len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


class Server(ThreadingHTTPServer):
    """Serves CONTENT; how badly is set on it."""

    cut_after: int | None = None
    """Bytes after which the first answer ends."""
    ranges = True
    status = 200
    content = CONTENT

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str | None, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{FILE}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        server.seen.append((self.headers["Range"], self.headers["Authorization"]))
        if server.status != 200:
            self.send_error(server.status)
            return
        asked = self.headers["Range"] if server.ranges else None
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(206 if asked else 200)
        body = server.content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut, server.cut_after = server.cut_after, None
        self.wfile.write(body[:cut])
        self.close_connection = True

    def log_message(self, *_arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("inference.fetching.time.sleep", lambda _seconds: None)
    made = Server()
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


# --- fetching ---


def test_a_broken_download_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cut_after = 100_000
    wheelhouse.fetch([Download(BIG, server.url)], tmp_path)
    assert [ranged for ranged, _ in server.seen] == [None, "bytes=100000-"]
    assert (tmp_path / FILE).read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_what_an_earlier_run_left_is_used(server: Server, tmp_path: Path) -> None:
    (tmp_path / (FILE + ".part")).write_bytes(CONTENT[:200_000])
    assert wheelhouse.fetched([BIG], tmp_path) == 200_000
    wheelhouse.fetch([Download(BIG, server.url)], tmp_path)
    assert [ranged for ranged, _ in server.seen] == ["bytes=200000-"]
    assert wheelhouse.check([BIG], tmp_path) == []


def test_a_server_without_ranges_begins_again(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / (FILE + ".part")).write_bytes(b"x" * 1000)
    wheelhouse.fetch([Download(BIG, server.url)], tmp_path)
    assert (tmp_path / FILE).read_bytes() == CONTENT


def test_other_content_is_refused_by_name_and_not_kept(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(WheelhouseError, match=rf"{FILE}: what came has sha256 [0-9a-f]+, the lock names {BIG.sha256}"):
        wheelhouse.fetch([Download(BIG, server.url)], tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_sends_on_and_on_fills_no_disk(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT * 20
    with pytest.raises(WheelhouseError, match=f"more than the {BIG.size} bytes"):
        wheelhouse.fetch([Download(BIG, server.url)], tmp_path)
    assert (list(tmp_path.iterdir()), len(server.seen)) == ([], 1)
    server.content = CONTENT
    wheelhouse.fetch([Download(BIG, server.url)], tmp_path)
    assert wheelhouse.check([BIG], tmp_path) == []


def test_a_refusal_is_not_asked_again_and_an_outage_is(server: Server, tmp_path: Path) -> None:
    server.status = 404
    with pytest.raises(WheelhouseError, match="404"):
        wheelhouse.fetch([Download(BIG, server.url)], tmp_path)
    assert len(server.seen) == 1
    server.status = 503
    with pytest.raises(WheelhouseError, match="503"):
        wheelhouse.fetch([Download(BIG, server.url)], tmp_path)
    assert len(server.seen) == 1 + fetching.ATTEMPTS


def test_one_failure_does_not_keep_the_others_from_coming(server: Server, tmp_path: Path) -> None:
    lost = replace(BIG, name="lost", file="lost-1-py3-none-any.whl")
    with pytest.raises(WheelhouseError, match=r"^lost-1-py3-none-any\.whl: "):
        wheelhouse.fetch([Download(lost, "file:///nowhere/lost"), Download(BIG, server.url)], tmp_path)
    assert wheelhouse.check([BIG], tmp_path) == []


def test_credentials_of_an_index_url_go_to_its_host_only(server: Server, tmp_path: Path) -> None:
    wheelhouse.fetch([Download(BIG, server.url)], tmp_path, credentials=["http://me:se%3Acret@127.0.0.1/simple"])
    (tmp_path / FILE).unlink()
    wheelhouse.fetch([Download(BIG, server.url)], tmp_path, credentials=["http://me:secret@example.org/simple"])
    assert [login for _, login in server.seen] == ["Basic bWU6c2U6Y3JldA==", None]


# --- verifying ---


def test_missing_short_and_wrong_files_are_named(tmp_path: Path) -> None:
    pins = [write_wheel(tmp_path, name, "1", {f"{name}.py": b""}) for name in ("good", "gone", "short", "wrong")]
    (tmp_path / pins[1].file).unlink()
    (tmp_path / pins[2].file).write_bytes(b"short")
    content = bytearray((tmp_path / pins[3].file).read_bytes())
    content[10] ^= 1
    (tmp_path / pins[3].file).write_bytes(content)
    assert [finding.id for finding in wheelhouse.check(pins, tmp_path)] == [
        "wheelhouse.missing",
        "wheelhouse.size.short",
        "wheelhouse.hash.wrong",
    ]
    assert [finding.id for finding in wheelhouse.check(pins, tmp_path, hashes=False)] == [
        "wheelhouse.missing",
        "wheelhouse.size.short",
    ]


def test_what_is_missing_is_one_finding_with_every_name(tmp_path: Path) -> None:
    pins = [write_wheel(tmp_path, name, "1", {f"{name}.py": b""}) for name in ("here", "one", "two", "three")]
    for pin in pins[1:]:
        (tmp_path / pin.file).unlink()
    (finding,) = wheelhouse.check(iter(pins), tmp_path)
    assert finding.where == tuple(pin.file for pin in pins[1:])
    assert "lacks 3 of 4 files" in finding.what
    assert all(pin.file in finding.seen for pin in pins[1:])
    assert pins[0].file not in finding.seen


def test_a_folder_that_is_not_there_is_one_finding(tmp_path: Path) -> None:
    (finding,) = wheelhouse.check([BIG, replace(BIG, file="other.whl")], tmp_path / "none")
    assert (finding.id, finding.level, finding.seen) == ("wheelhouse.missing", "critical", "no such folder")
    assert finding.where == (BIG.file, "other.whl")


# --- the stand-ins ---


def test_stand_ins_are_the_same_bytes_each_time_and_a_whole_wheel(tmp_path: Path) -> None:
    file, content = wheelhouse.build_standins(SHIM)
    for path in SHIM.rglob("*.p*"):
        os.utime(path)
    assert wheelhouse.build_standins(SHIM) == (file, content)
    (tmp_path / file).write_bytes(content)
    with zipfile.ZipFile(tmp_path / file) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
    assert {"sgl_kernel/__init__.py", "inference_cpu_standins.py", "inference_cpu_standins.pth"} < names
    assert not any("__pycache__" in name for name in names)


STAND_IN_USE = """
import sys, types
torch = types.ModuleType("torch")
torch.Tensor = object
defined = []
class Library:
    def __init__(self, *names): defined.append(names)
    def define(self, schema): defined.append(schema)
torch.library = types.SimpleNamespace(Library=Library)
torch.backends = types.SimpleNamespace(cuda=types.SimpleNamespace(is_built=lambda: BUILT))
sys.modules["torch"] = torch
import inference_cpu_standins, sgl_kernel
from sgl_kernel import any_kernel_at_all
try:
    any_kernel_at_all(1, a=2)
except NotImplementedError as error:
    print(error)
try:
    import torchvision
except ImportError:
    pass
print(defined)
"""


@pytest.mark.parametrize("built", [False, True])
def test_a_kernel_can_be_imported_and_not_called(built: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", STAND_IN_USE.replace("BUILT", str(built))],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SHIM), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    message, defined = done.stdout.splitlines()
    assert message == "sgl_kernel.any_kernel_at_all: there are no kernels here, this is the CPU stand-in"
    assert ("nms(Tensor dets" in defined) is not built


# --- the program ---


def program(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "wheelhouse", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**clean, **environment},
    )


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Return a wheelhouse without an installer, with its lock beside it."""
    directory = tmp_path / "house"
    directory.mkdir()
    pins = [write_wheel(directory, name, "1.0", {f"{name}.py": b"pass\n"}) for name in ("tiny", "other")]
    (directory / "tiny.txt").write_text(lock_text(pins))
    return directory


def test_verify_names_what_is_wrong_and_exits_2(built: Path) -> None:
    assert program("verify", built).returncode == 0
    (built / "other-1.0-py3-none-any.whl").unlink()
    done = program("verify", built, "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["ok"]) == (2, False)
    assert [finding["where"] for finding in answer["findings"]] == [["other-1.0-py3-none-any.whl"]]


def test_verify_says_once_that_there_is_no_folder(built: Path, tmp_path: Path) -> None:
    done = program("verify", tmp_path / "none", built / "tiny.txt")
    assert (done.returncode, done.stdout.count("CRITICAL"), len(done.stdout.splitlines())) == (2, 1, 6)
    assert "no such folder" in done.stdout
    done = program("verify", tmp_path / "none")
    assert (done.returncode, done.stdout, "none: no such folder" in done.stderr) == (3, "", True)


def test_pack_gives_the_same_tar_each_time(built: Path, tmp_path: Path) -> None:
    assert program("pack", built, tmp_path / "one.tar").returncode == 0
    for path in built.iterdir():
        os.utime(path)
    (built / "unrelated.whl").write_bytes(b"not in the lock")
    assert program("pack", built, tmp_path / "two.tar").returncode == 0
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    with tarfile.open(tmp_path / "one.tar") as tar:
        assert tar.getnames() == ["other-1.0-py3-none-any.whl", "tiny-1.0-py3-none-any.whl", "tiny.txt"]


def test_pack_refuses_a_wrong_wheelhouse_and_leaves_no_tar(built: Path, tmp_path: Path) -> None:
    (built / "tiny-1.0-py3-none-any.whl").write_bytes(b"?")
    assert program("pack", built, tmp_path / "one.tar").returncode == 2
    assert not list(tmp_path.glob("one.tar*"))


def test_a_folder_without_a_lock_and_an_unknown_lock_are_refused(tmp_path: Path) -> None:
    done = program("verify", tmp_path)
    assert (done.returncode, "no lock (*.txt) in it" in done.stderr) == (3, True)
    done = program("build", tmp_path / "new", "sglang-0.5.23-cpu-cp312")
    assert (done.returncode, "did you mean" in done.stderr) == (3, True)
    assert not (tmp_path / "new").exists()


def test_build_fetches_what_is_missing_and_then_nothing(tmp_path: Path, built: Path) -> None:
    target, installer = tmp_path / "new", tmp_path / "installer.txt"
    installer.write_text(lock_text([write_wheel(built, "uv", "1", {"uv": b""})], "uv", "1", "host"))
    arguments = ("build", target, built / "tiny.txt", "--installer", installer, "--index-url", built.as_uri(), "--json")
    first = program(*arguments, PIP_FIND_LINKS=str(built))
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["fetched"] == 3
    assert sorted(path.name for path in target.iterdir()) == [
        "installer.txt",
        "other-1.0-py3-none-any.whl",
        "tiny-1.0-py3-none-any.whl",
        "tiny.txt",
        "uv-1-py3-none-any.whl",
    ]
    # nothing is asked for what is there: with no source left the second run still succeeds
    again = program(*arguments)
    assert (again.returncode, json.loads(again.stdout)["fetched"]) == (0, 0)
    (target / "tiny-1.0-py3-none-any.whl").write_bytes(b"damaged")
    third = program(*arguments, PIP_FIND_LINKS=str(built))
    assert (third.returncode, json.loads(third.stdout)["fetched"]) == (0, 1)
    assert program("verify", target).returncode == 0


def test_build_refuses_a_wheel_that_is_not_the_locks(tmp_path: Path, built: Path) -> None:
    installer = tmp_path / "installer.txt"
    installer.write_text(lock_text([write_wheel(built, "uv", "1", {"uv": b""})], "uv", "1", "host"))
    lock = (built / "tiny.txt").read_text()
    right = locks.parse_lock(lock).pins[0]
    wrong = tmp_path / "wrong.txt"
    wrong.write_text(lock.replace(right.sha256, "0" * 64))
    done = program(
        *("build", tmp_path / "new", wrong, "--installer", installer, "--index-url", built.as_uri()),
        PIP_FIND_LINKS=str(built),
    )
    assert done.returncode == 3
    assert right.file in done.stderr
    assert "with the hash of the lock" in done.stderr


def test_for_an_index_only_the_installer_is_fetched(tmp_path: Path, built: Path) -> None:
    installer = tmp_path / "installer.txt"
    installer.write_text(lock_text([write_wheel(built, "uv", "1", {"uv": b""})], "uv", "1", "host"))
    done = program(
        *("build", tmp_path / "new", built / "tiny.txt", "--installer", installer, "--for-index"),
        *("--index-url", built.as_uri()),
        PIP_FIND_LINKS=str(built),
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "new").glob("*.whl")] == ["uv-1-py3-none-any.whl"]
