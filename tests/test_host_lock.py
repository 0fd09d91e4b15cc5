# SPDX-License-Identifier: Apache-2.0
"""The lock of a host: who gets it, who is told what, and that nothing of it is ever taken silently."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from loading import load as load_file

from inference import host_lock
from inference.host_lock import Holder, HostLockError, acquire, is_gone, look, refusal, release

ROOT = Path(__file__).resolve().parent.parent

ANN = Holder("aaaaaaaaaaaa", "ann", "ctl-1", "boot-1", 10, "site.yml")
BOB = Holder("bbbbbbbbbbbb", "bob", "ctl-2", "boot-2", 20, "restart.yml --limit gpu-2")


def test_a_lock_belongs_to_one_run_until_it_is_given_back(tmp_path: Path):
    root = tmp_path / "lib"
    first = acquire(root, ANN)
    assert (first.state, first.before) == ("taken", None)
    assert acquire(root, ANN).state == "ours"
    refused = acquire(root, BOB)
    assert (refused.state, refused.holder) == ("refused", first.holder)
    assert release(root, BOB.run) == first.holder
    assert look(root) == first.holder
    assert release(root, ANN.run) == first.holder
    assert look(root) is None
    assert acquire(root, BOB).state == "taken"


def test_taking_over_needs_the_id_of_the_run_that_holds_it(tmp_path: Path):
    held = acquire(tmp_path, ANN).holder
    assert acquire(tmp_path, BOB, takeover="cccccccccccc").state == "refused"
    outcome = acquire(tmp_path, BOB, takeover=ANN.run)
    assert (outcome.state, outcome.before) == ("taken-over", held)
    assert look(tmp_path) == outcome.holder
    # the run that lost it neither has it nor gives it away
    assert acquire(tmp_path, ANN).state == "refused"
    release(tmp_path, ANN.run)
    assert look(tmp_path) == outcome.holder


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": "x"}'])
def test_a_lock_that_cannot_be_read_is_nobodys_to_take(tmp_path: Path, text: str):
    (tmp_path / host_lock.FILE).write_text(text)
    for attempt in (lambda: acquire(tmp_path, ANN, takeover=BOB.run), lambda: release(tmp_path, ANN.run)):
        with pytest.raises(HostLockError, match=r"lock\.json.*then remove it"):
            attempt()
    assert (tmp_path / host_lock.FILE).read_text() == text


def test_only_one_of_many_processes_gets_it(tmp_path: Path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path; from inference import host_lock as h;"
        "print(h.acquire(Path(sys.argv[2]), h.Holder(sys.argv[3], 'u', 'c', 'b', 1, 'x')).state)"
    )
    path = str(Path(host_lock.__file__).parent.parent)
    running = [
        subprocess.Popen([sys.executable, "-c", code, path, str(tmp_path), f"{n:012x}"], stdout=subprocess.PIPE)
        for n in range(6)
    ]
    said = sorted(process.communicate()[0].decode().strip() for process in running)
    assert said == ["refused"] * 5 + ["taken"]


@pytest.mark.parametrize(
    ("asking", "alive", "seen", "fix"),
    [
        (BOB, set(), "cannot be seen from here", "Ask ann"),
        (replace(BOB, boot="boot-1"), {ANN.run}, "still runs on this controller", "Wait"),
        (replace(BOB, boot="boot-1"), {BOB.run}, "is gone: it was killed", "fleet_takeover=aaaaaaaaaaaa"),
    ],
)
def test_the_refusal_says_who_since_when_and_what_to_do(asking: Holder, alive: set[str], seen: str, fix: str):
    held = replace(ANN, since="2026-01-01T00:00:00Z")
    finding = refusal(held, asking, alive)
    assert seen in finding.seen
    assert fix in finding.fix
    for word in ("ann", "ctl-1", "site.yml", "10", "2026-01-01T00:00:00Z", ANN.run):
        assert word in finding.seen


def test_only_a_run_of_this_controllers_boot_is_certainly_gone():
    here = replace(BOB, boot=ANN.boot)
    assert is_gone(ANN, here, {BOB.run})
    assert not is_gone(ANN, here, {ANN.run, BOB.run})
    assert not is_gone(ANN, BOB, {BOB.run})


def process(proc: Path, pid: int, parent: int, *words: str, name: str = "python3") -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "cmdline").write_text("".join(f"{word}\0" for word in words))
    stat = ["S", str(parent), *["0"] * 17, str(pid * 100), "0"]
    (folder / "stat").write_text(f"{pid} ({name}) " + " ".join(stat))


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    root = tmp_path / "proc"
    (root / "sys/kernel/random").mkdir(parents=True)
    (root / "sys/kernel/random/boot_id").write_text("boot-1\n")
    process(root, 1, 0, "init")
    process(root, 5, 1, "-bash")
    playbook = ("/usr/bin/python3", "/opt/bin/ansible-playbook", "-i", "inventory/hosts.yml", "deploy/site.yml")
    process(root, 50, 5, *playbook, "--limit", "gpu-1", "-e", "token=secret", name="a) b (c")
    process(root, 51, 50, *playbook)
    process(root, 60, 5, "ansible-playbook", "restart.yml")
    process(root, 70, 5, "vi", "ansible.cfg")
    return root


def test_a_run_is_the_topmost_process_of_ansible(proc: Path):
    runs = host_lock.living(proc)
    assert sorted(runs) == [50, 51, 60]
    assert len(set(runs.values())) == 3
    worker, other = host_lock.own(proc, 51), host_lock.own(proc, 60)
    assert (worker.pid, worker.run, worker.boot) == (50, runs[50], "boot-1")
    assert worker.command == "hosts.yml site.yml --limit gpu-1"
    assert "secret" not in json.dumps(worker.__dict__)
    assert other.run == runs[60]


def test_a_playbook_that_a_program_of_another_playbook_runs_is_a_run_of_its_own(proc: Path):
    process(proc, 52, 51, "/usr/bin/python3", "./prove")
    process(proc, 53, 52, "ansible-playbook", "restart.yml")
    process(proc, 54, 53, "ansible-playbook", "restart.yml")
    process(proc, 55, 54, "/usr/bin/python3", "a module")
    assert [host_lock.own(proc, number).pid for number in (51, 52, 53, 54, 55, 70)] == [50, 50, 53, 53, 53, 70]


def test_the_same_number_after_a_reboot_or_reused_is_another_run(proc: Path):
    before = host_lock.own(proc, 60).run
    stat = proc / "60/stat"
    stat.write_text(stat.read_text().replace("6000", "6001"))
    reused = host_lock.own(proc, 60).run
    (proc / "sys/kernel/random/boot_id").write_text("boot-2\n")
    assert len({before, reused, host_lock.own(proc, 60).run}) == 3


def test_this_process_has_a_run_of_its_own():
    mine = host_lock.own()
    assert mine.boot == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert mine.pid <= os.getpid() or mine.run


# the module


def load(name: str) -> ModuleType:
    """Return a module's code, with the domain where Ansible puts it."""
    for part in ("host_lock", "findings"):
        sys.modules[f"ansible.module_utils.inference.{part}"] = importlib.import_module(f"inference.{part}")
    sys.modules["ansible.module_utils.inference"] = importlib.import_module("inference")
    return load_file(name, ROOT / f"plugins/modules/{name}.py")


def call(capsys: pytest.CaptureFixture[str], root: Path, holder: Holder, *, check: bool = False, **given: object):
    arguments = {"root": str(root), "holder": {**holder.__dict__, "alive": [holder.run]}, **given}
    with patch_module_args({**arguments, "_ansible_check_mode": check}), pytest.raises(SystemExit):
        load("host_lock").main()
    return json.loads(capsys.readouterr().out)


def test_the_module_locks_refuses_and_gives_back(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert call(capsys, tmp_path, ANN, state="held")["state"] == "taken"
    refused = call(capsys, tmp_path, BOB, state="held")
    assert refused["state"] == "refused"
    assert "ann on ctl-1" in refused["refused"]
    assert refused["gone"] == ""
    assert call(capsys, tmp_path, replace(BOB, boot=ANN.boot), state="held")["gone"] == ANN.run
    assert call(capsys, tmp_path, BOB, state="held", takeover=ANN.run)["before"]["run"] == ANN.run
    given_back = call(capsys, tmp_path, BOB, state="released")
    assert (given_back["state"], given_back["changed"]) == ("released", False)
    assert look(tmp_path) is None


def test_the_module_locks_nothing_in_check_mode(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    warned: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _, text: warned.append(text))
    assert call(capsys, tmp_path, ANN, state="held", check=True)["refused"] == ""
    assert look(tmp_path) is None
    acquire(tmp_path, ANN)
    call(capsys, tmp_path, BOB, state="held", check=True)
    assert "ann on ctl-1" in "".join(warned)
    call(capsys, tmp_path, ANN, state="released", check=True)
    assert look(tmp_path) is not None


def test_a_lock_that_cannot_be_read_refuses_with_the_way_out(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / host_lock.FILE).write_text("{")
    refused = call(capsys, tmp_path, ANN, state="held")
    assert refused["state"] == "refused"
    assert "then remove it" in refused["refused"]
