# SPDX-License-Identifier: Apache-2.0
"""How an engine's threads waited, from hand-made trees of /proc and /sys and from a process of this machine."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from inference.smoke import after as smoke_after
from inference.smoke.after import engine_looker
from inference.smoke.client import Client
from inference.smoke.context import Context
from inference.smoke.profile import load_profile
from inference.smoke.waiting import Waited, looker, share

GROUP = "/system.slice/sglang@kimi.service"


def tree(root: Path, mount: str = "sys/fs/cgroup") -> Path:
    """Make a unit with two processes of two threads; each thread ran 2 s and waited 1 s."""
    for name, pids in ((GROUP, (10,)), (f"{GROUP}/workers", (11,))):
        folder = root / mount / name.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
    for pid in (10, 11):
        for thread in (pid, pid + 100):
            task = root / f"proc/{pid}/task/{thread}"
            task.mkdir(parents=True)
            (task / "schedstat").write_text("2000000000 1000000000 42\n")
    return root


@pytest.mark.parametrize("mount", ["sys/fs/cgroup", "sys/fs/cgroup/unified", "sys/fs/cgroup/systemd"])
def test_all_threads_of_a_unit_are_added_up(tmp_path: Path, mount: str) -> None:
    assert looker(GROUP, tree(tmp_path, mount))() == Waited(8.0, 4.0)


def test_what_cannot_be_seen_is_nothing(tmp_path: Path) -> None:
    tree(tmp_path)
    assert looker("", tmp_path)() is None
    assert looker("/system.slice/other.service", tmp_path)() is None
    (tmp_path / "proc/10/task/110/schedstat").write_text("nonsense")
    assert looker(GROUP, tmp_path)() == Waited(6.0, 3.0)


def test_the_share_of_what_was_seen() -> None:
    assert share([Waited(3.0, 1.0), Waited(1.0, 3.0)]) == 0.5
    assert share([Waited(3.0, 1.0), None]) is None
    assert share([Waited(0.0, 0.0)]) is None
    assert share([]) is None
    assert Waited(3.0, 1.0).since(Waited(1.0, 2.0)) == Waited(2.0, 0.0)


def test_a_real_process_runs_and_is_counted(tmp_path: Path) -> None:
    folder = tmp_path / "sys/fs/cgroup/mine"
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text(str(os.getpid()))
    (tmp_path / "proc").symlink_to("/proc")
    look = looker("/mine", tmp_path)
    before = look()
    if before is None:
        pytest.skip("this kernel keeps no schedstat")
    worker = threading.Thread(target=lambda: sum(range(3_000_000)))
    worker.start()
    worker.join()
    after = look()
    assert after is not None
    assert after.ran > 0


def test_only_a_unit_of_this_host_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(command: list[str]) -> str:
        asked.append(command)
        return f"{GROUP}\n"

    seen: list[str] = []
    monkeypatch.setattr(smoke_after, "looker", lambda group: seen.append(group) or (lambda: None))
    for url, profile in (
        ("http://127.0.0.1:1", {"unit": "sglang@kimi.service"}),
        ("http://192.0.2.1:1", {"unit": "sglang@kimi.service"}),
        ("http://127.0.0.1:1", {}),
    ):
        engine_looker(Context(Client(url), load_profile(profile)), run)
    assert seen == [GROUP, "", ""]
    assert asked == [["systemctl", "show", "--property=ControlGroup", "--value", "sglang@kimi.service"]]
