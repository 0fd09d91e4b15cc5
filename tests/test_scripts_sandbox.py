# SPDX-License-Identifier: Apache-2.0
"""The program scripts/sandbox without booting anything: names, addresses, images, commands, and what it refuses."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from loading import load

from inference.program import ProgramError

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the program's code, with its state below pytest's folder and nothing that touches the machine."""
    made = load("sandbox_program", ROOT / "scripts/sandbox")
    for name, path in (("STATE", "."), ("IMAGES", "images"), ("HOSTS", "hosts"), ("KEY", "key")):
        monkeypatch.setattr(made, name, tmp_path / path)

    def refuse(*command: str, **_: Any) -> None:
        raise AssertionError(f"a test ran {command}")

    monkeypatch.setattr(made, "run", refuse)
    monkeypatch.setattr(made, "require", lambda: None)
    return made


def host(sandbox: ModuleType, name: str, address: str = "192.0.2.11") -> Path:
    folder: Path = sandbox.HOSTS / name
    folder.mkdir(parents=True)
    (folder / "host.json").write_text(json.dumps({"name": name, "address": address, "suite": "bookworm"}))
    return folder


def call(sandbox: ModuleType, *words: str) -> int:
    code: int = sandbox.build_program().main(list(words))
    return code


# names and addresses


@pytest.mark.parametrize("name", ["sandbox", "debian12", "a", "gpu-1", "x" * 12])
def test_names_that_an_interface_can_have(sandbox: ModuleType, name: str):
    assert sandbox.HOST_NAME.fullmatch(name)
    assert len(f"v-{name}") < 16


@pytest.mark.parametrize("name", ["", "-x", "x-", "x" * 13, "a.b", "a_b", "A", "é", "a b", "..", "a/b"])
def test_names_that_it_cannot_have_are_refused_before_anything_is_made(
    sandbox: ModuleType, capsys: pytest.CaptureFixture[str], name: str
):
    with pytest.raises(ProgramError, match="no host name here"):
        sandbox.up(argparse.Namespace(name=name, address=None))
    assert not sandbox.HOSTS.exists()


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("192.0.2.1", "expected 192.0.2.2 to"),
        ("192.0.2.255", "expected"),
        ("192.0.2.x", "expected"),
        ("10.0.0.5", "expected"),
        ("192.0.2.11", "the host other has it"),
    ],
)
def test_an_address_outside_or_taken_is_refused(
    sandbox: ModuleType, capsys: pytest.CaptureFixture[str], address: str, said: str
):
    host(sandbox, "other")
    assert call(sandbox, "up", "new", "--address", address) == 3
    assert said in capsys.readouterr().err
    assert not (sandbox.HOSTS / "new").exists()


def test_a_host_keeps_its_own_address(sandbox: ModuleType):
    host(sandbox, "other")
    sandbox.check_address("other", "192.0.2.11")
    sandbox.check_address("new", "192.0.2.12")


def test_the_first_free_address(sandbox: ModuleType):
    assert sandbox.free_address() == "192.0.2.11"
    host(sandbox, "a", "192.0.2.11")
    host(sandbox, "b", "192.0.2.13")
    assert sandbox.free_address() == "192.0.2.12"
    for number in range(11, 250):
        if number not in (11, 13):
            host(sandbox, f"h{number}", f"192.0.2.{number}")
    with pytest.raises(ProgramError, match="no address is left"):
        sandbox.free_address()


def test_two_checkouts_never_meet(sandbox: ModuleType):
    assert sandbox.CHECKOUT in sandbox.NETWORK
    assert sandbox.netns("gpu-1") == f"{sandbox.NETWORK}-gpu-1"


# what is needed


def test_root_and_missing_programs_are_asked_for(monkeypatch: pytest.MonkeyPatch, sandbox: ModuleType):
    monkeypatch.undo()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sandbox.shutil, "which", lambda tool: None if tool in ("ip", "mmdebstrap") else f"/bin/{tool}")
    with pytest.raises(ProgramError, match=r"apt-get install iproute2 mmdebstrap$"):
        sandbox.require()
    monkeypatch.setattr(sandbox.shutil, "which", lambda tool: f"/bin/{tool}")
    sandbox.require()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ProgramError, match="sudo"):
        sandbox.require()


def test_a_failing_command_shows_what_it_said(sandbox: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    with pytest.raises(ProgramError, match=r"failed \(7\): oh"):
        sandbox.run("sh", "-c", "echo oh >&2; exit 7")
    assert sandbox.run("sh", "-c", "exit 7", check=False).returncode == 7


# images


def test_a_recipe_changes_with_all_that_the_image_is_made_of(sandbox: ModuleType, monkeypatch: pytest.MonkeyPatch):
    names = {sandbox.recipe("bookworm"), sandbox.recipe("trixie")}
    monkeypatch.setattr(sandbox, "PACKAGES", "systemd")
    names.add(sandbox.recipe("bookworm"))
    monkeypatch.setattr(sandbox, "MASKED", ())
    names.add(sandbox.recipe("bookworm"))
    assert len(names) == 4
    assert all(name.split("-")[0] in sandbox.SUITES for name in names)


def test_an_image_that_is_there_is_not_made_again(sandbox: ModuleType):
    image = sandbox.IMAGES / sandbox.recipe("bookworm")
    image.mkdir(parents=True)
    assert sandbox.base_image("bookworm") == image


def test_a_root_is_prepared_to_boot(sandbox: ModuleType, tmp_path: Path):
    root = tmp_path / "image"
    for folder in ("root", "etc/ssh", "etc/systemd/system", "var/lib/apt/lists/x"):
        (root / folder).mkdir(parents=True)
    (root / "etc/machine-id").write_text("1234\n")
    (root / "etc/resolv.conf").symlink_to("/run/resolv.conf")
    sandbox.KEY.write_text("private")
    sandbox.KEY.with_suffix(".pub").write_text("ssh-ed25519 AAAA")
    sandbox.prepare(root)
    assert (root / "root/.ssh/authorized_keys").read_text() == "ssh-ed25519 AAAA"
    assert (root / "root/.ssh/authorized_keys").stat().st_mode & 0o777 == 0o600
    assert (root / "etc/machine-id").read_text() == ""
    assert not (root / "etc/resolv.conf").is_symlink()
    assert os.access(root / "sandbox-init", os.X_OK)
    assert {(root / "etc/systemd/system" / unit).readlink() for unit in sandbox.MASKED} == {Path("/dev/null")}
    assert not (root / "var/lib/apt/lists").exists()
    assert "private" not in "".join(p.read_text() for p in root.rglob("*") if p.is_file() and not p.is_symlink())
    sandbox.prepare(root)  # it may be run again


# hosts


def test_status_lists_the_hosts_of_this_checkout(sandbox: ModuleType, capsys: pytest.CaptureFixture[str]):
    assert call(sandbox, "status", "--json") == 0
    assert json.loads(capsys.readouterr().out)["hosts"] == []
    host(sandbox, "a")
    (sandbox.HOSTS / "half").mkdir()
    assert call(sandbox, "status", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["hosts"]
    assert found == {"name": "a", "address": "192.0.2.11", "suite": "bookworm", "running": False}
    call(sandbox, "status")
    assert "is down" in capsys.readouterr().out


def test_only_the_hosts_own_keeper_is_its_runner(sandbox: ModuleType):
    folder = host(sandbox, "a")
    assert sandbox.runner("a") is None
    for pid in ("", "x", str(2**22 + 1), str(os.getpid())):
        (folder / "pid").write_text(pid)
        assert sandbox.runner("a") is None
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()", "keep", "a"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as keeper:
        assert keeper.stdout is not None
        keeper.stdout.readline()
        (folder / "pid").write_text(str(keeper.pid))
        assert sandbox.runner("a") == keeper.pid
        assert sandbox.runner("b") is None
        keeper.communicate(b"\n")
    assert sandbox.runner("a") is None


def test_cgroups_are_below_the_callers_own_and_never_nested(sandbox: ModuleType):
    for group in sandbox.own_cgroups("a"):
        assert group.parts[-2:] == (sandbox.NETWORK, "a")
        assert str(group).startswith("/sys/fs/cgroup")
        assert str(group).count(sandbox.NETWORK) == 1


@pytest.mark.parametrize("systemd", [True, False])
def test_the_command_that_runs_a_host(sandbox: ModuleType, monkeypatch: pytest.MonkeyPatch, systemd: bool):
    monkeypatch.setattr(sandbox, "has_systemd", lambda: systemd)
    folder = host(sandbox, "a")
    command = sandbox.nspawn("a", ["/x:/y"])
    assert ("--keep-unit" in command) is not systemd
    assert command[0] == "systemd-nspawn"
    assert command[-1] == "/sandbox-init"
    assert f"--network-namespace-path=/run/netns/{sandbox.NETWORK}-a" in command
    assert "--bind-ro=/x:/y" in command
    assert not any("nvidia-smi" in word for word in command)
    (folder / "root/etc").mkdir(parents=True)
    (folder / "root/etc/nvidia-smi-replay").write_text("x")
    replay = [word for word in sandbox.nspawn("a", []) if "nvidia-smi" in word]
    assert len(replay) == 2
    for word in replay:
        assert Path(word.removeprefix("--bind-ro=").split(":")[0]).exists()


def test_ssh_goes_through_the_sandboxes_network(sandbox: ModuleType):
    options = sandbox.ssh_options()
    proxy = next(word for word in options if word.startswith("ProxyCommand="))
    assert proxy.endswith("scripts/sandbox connect %h %p")
    assert "ProxyUseFdpass=yes" in options


@pytest.mark.parametrize("words", [("ssh", "nobody"), ("commit", "nobody", "/tmp/layer")])
def test_an_unknown_host_names_those_there_are(
    sandbox: ModuleType, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
):
    host(sandbox, "a")
    assert call(sandbox, *words) == 3
    assert "no host 'nobody'; there are: a" in capsys.readouterr().err


def test_a_layer_has_to_be_a_folder(sandbox: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sandbox, "clear", lambda _: None)
    arguments = argparse.Namespace(
        name="a", layer=["/nowhere"], suite="bookworm", address=None, recording=None, bind=None
    )
    with pytest.raises(ProgramError, match="--layer /nowhere: no such folder"):
        sandbox.up(arguments)
    assert not (sandbox.HOSTS / "a").exists()


def test_a_host_whose_ssh_stays_silent_shows_its_console(sandbox: ModuleType, monkeypatch: pytest.MonkeyPatch):
    folder = host(sandbox, "a")
    (folder / "console.log").write_text("Kernel panic")
    monkeypatch.setattr(sandbox, "run", lambda *_, **__: subprocess.CompletedProcess([], 1))
    with pytest.raises(ProgramError, match=r"ssh does not answer on 192\.0\.2\.11; its console says:\nKernel panic"):
        sandbox.wait_for_ssh("a", "192.0.2.11", seconds=0)


@pytest.mark.parametrize("codes", [[0], [133, 0], [133, 133, 1]])
def test_a_host_that_reboots_is_started_again(
    sandbox: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, codes: list[int]
):
    script = "import sys; p = sys.argv[1]; n = len(open(p).read()); open(p, 'a').write('x'); sys.exit({}[n])"
    (tmp_path / "count").write_text("")
    command = [sys.executable, "-c", script.format(codes), str(tmp_path / "count")]
    monkeypatch.setattr(sandbox, "nspawn", lambda *_: command)
    monkeypatch.setattr(sandbox, "has_systemd", lambda: True)
    monkeypatch.setattr(sandbox.signal, "signal", lambda *_: None)
    assert sandbox.keep(argparse.Namespace(name="a", bind=[])) == codes[-1]
    assert (tmp_path / "count").read_text() == "x" * len(codes)
