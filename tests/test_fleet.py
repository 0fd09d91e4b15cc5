# SPDX-License-Identifier: Apache-2.0
"""The order in which many hosts are changed, with roles that stand in for the service and its test.

Real are the playbooks' fleet part, the lock and Ansible; the hosts are this machine under several names, each with a
lock folder of its own. What the real roles do on real hosts is shown by the scenario ``rolling``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from inference import host_lock

pytestmark = pytest.mark.slow
"""Each runs a playbook or two over four hosts."""

ROOT = Path(__file__).resolve().parent.parent

STAND_INS = {
    "service/tasks/main.yml": "- include_tasks: restart.yml\n",
    "service/tasks/restart.yml": """
- name: Change it
  shell: |
    echo "$(date +%s.%N) {{ __service_state | default('changed') }} {{ which }}" >>{{ events }}
    sleep {{ change_seconds | default(0) }}
    test {{ fail_at | default('none') }} != {{ which }}
""",
    "host/tasks/main.yml": """
- name: Prepare it
  shell: |
    echo "$(date +%s.%N) prepared {{ inventory_hostname }}" >>{{ events }}
    test {{ unfit | default('none') }} != {{ inventory_hostname }}
""",
    "smoke/tasks/main.yml": """
- name: Test it
  shell: |
    echo "$(date +%s.%N) {{ smoke_mode | default('auto') }} {{ which }}" >>{{ events }}
""",
}


@dataclass
class Fleet:
    """A project folder with stand-ins, and the inventory of its hosts."""

    folder: Path
    hosts: list[str]

    playbook: str = "restart.yml"

    def command(self, *words: str) -> list[str]:
        return [str(ROOT / ".venv/bin/ansible-playbook"), "-i", str(self.folder / "hosts.yml"),
                str(self.folder / self.playbook), "-e", f"events={self.folder}/events", *words]  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        plugins = ROOT / "plugins"
        return os.environ | {
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_ROLES_PATH": f"{self.folder}/roles:{ROOT}/roles",
            "ANSIBLE_LIBRARY": f"{plugins}/modules", "ANSIBLE_MODULE_UTILS": f"{plugins}/module_utils",
            "ANSIBLE_FILTER_PLUGINS": f"{plugins}/filter", "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CALLBACK_PLUGINS": f"{plugins}/callback", "ANSIBLE_RETRY_FILES_ENABLED": "0",
        }  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), env=self.environment, capture_output=True, text=True, check=False, timeout=600
        )

    def events(self) -> list[str]:
        """Return what was done, in order: ``restarted b/one``."""
        file = self.folder / "events"
        lines = sorted(file.read_text().splitlines()) if file.exists() else []
        return [line.split(" ", 1)[1] for line in lines]

    def changed(self) -> list[str]:
        return [event.split()[1] for event in self.events() if event.split()[0] in ("restarted", "changed")]

    def locks(self) -> list[str]:
        return [host for host in self.hosts if (self.folder / host / "lock.json").exists()]


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    for name, text in STAND_INS.items():
        (tmp_path / "roles" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "roles" / name).write_text(text)
    for role in ("inventory", "topology", "engine", "patches", "model"):
        (tmp_path / "roles" / role / "tasks").mkdir(parents=True)
        (tmp_path / "roles" / role / "tasks/main.yml").write_text("[]\n")
    for playbook in ("restart.yml", "site.yml"):
        text = (ROOT / playbook).read_text()
        (tmp_path / playbook).write_text(text.replace("become: true", "become: false"))
    hosts = ["a", "b", "c", "d"]
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": "{{ ansible_playbook_python }}",
        "service_instances": [{"name": "one"}, {"name": "two"}],
        "which": "{{ inventory_hostname }}/{{ (__service_only | default([service_instances[0].name]))[0] }}",
    }
    own = {host: {"fleet_lock_folder": str(tmp_path / host)} for host in hosts}
    inventory = {"inference": {"hosts": own, "vars": common}}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump(inventory))
    return Fleet(tmp_path, hosts)


def test_one_instance_after_the_other_the_first_host_tested_in_full(fleet: Fleet):
    ended = fleet.run()
    assert ended.returncode == 0, ended.stdout
    expected = [f"{event} {host}/{name}" for host in fleet.hosts for name in ("one", "two")
                for event in ("restarted", "full" if host == "a" else "auto")]  # fmt: skip
    assert fleet.events() == expected
    assert fleet.locks() == []


def test_a_failure_ends_it_and_leaves_the_rest_untouched_and_unlocked(fleet: Fleet):
    ended = fleet.run("-e", "fail_at=b/one")
    assert ended.returncode != 0
    assert fleet.changed() == ["a/one", "a/two", "b/one"]
    assert fleet.locks() == []
    assert "Not touched, serving as before: c, d." in ended.stdout
    since = re.search(r"fleet_restart_since=(\S+?Z)", ended.stdout)
    assert since is not None


def test_hosts_of_the_same_batch_come_to_their_own_end(fleet: Fleet):
    ended = fleet.run("-e", '{"serial": [1, 2], "fail_at": "b/one"}')
    assert ended.returncode != 0
    assert sorted(fleet.changed()) == ["a/one", "a/two", "b/one", "c/one", "c/two"]
    assert "auto c/two" in fleet.events()
    assert "serving as before: d." in ended.stdout
    assert fleet.locks() == []


def holder(**given: object) -> dict[str, object]:
    return {"run": "0123456789ab", "user": "eve", "controller": "elsewhere", "boot": "another", "pid": 7,
            "command": "site.yml", "since": "2026-01-01T00:00:00Z", **given}  # fmt: skip


def lock(fleet: Fleet, host: str, **given: object) -> None:
    (fleet.folder / host).mkdir(exist_ok=True)
    (fleet.folder / host / host_lock.FILE).write_text(json.dumps(holder(**given)))


def test_a_host_that_another_run_holds_stops_everything_before_anything_is_changed(fleet: Fleet):
    lock(fleet, "c")
    ended = fleet.run()
    assert ended.returncode != 0
    assert fleet.events() == []
    assert fleet.locks() == ["c"]
    for words in ("eve on elsewhere, site.yml, process 7, since 2026-01-01T00:00:00Z", "cannot be seen from here"):
        assert words in ended.stdout
    assert fleet.run("--limit", "!c").returncode == 0
    assert fleet.locks() == ["c"]


def test_a_rehearsal_locks_nothing_and_says_who_does(fleet: Fleet):
    lock(fleet, "c")
    ended = fleet.run("--check")
    assert ended.returncode == 0, ended.stdout
    assert fleet.locks() == ["c"]
    assert "eve on elsewhere" in ended.stdout + ended.stderr


def test_a_run_that_was_killed_is_explained_taken_over_and_continued(fleet: Fleet):
    began = subprocess.Popen(fleet.command("-e", "change_seconds=60"), env=fleet.environment, stdout=subprocess.DEVNULL)
    while not fleet.changed():
        assert began.poll() is None
    began.kill()
    began.wait()
    assert fleet.locks() == fleet.hosts
    (fleet.folder / "events").unlink()
    continued = fleet.run()
    assert continued.returncode == 0, continued.stdout
    assert "was taken over: it is over" in continued.stdout + continued.stderr
    assert len(fleet.changed()) == 8
    assert fleet.locks() == []


def test_two_runs_at_once_one_is_told_who_works(fleet: Fleet):
    first = subprocess.Popen(fleet.command("-e", "change_seconds=3"), env=fleet.environment, stdout=subprocess.DEVNULL)
    while not fleet.changed():
        assert first.poll() is None
    second = fleet.run()
    assert second.returncode != 0
    assert "still runs on this controller" in second.stdout
    assert first.wait(timeout=600) == 0
    assert len(fleet.changed()) == 8


def test_a_host_out_of_reach_stops_everything_before_anything_is_changed(fleet: Fleet):
    ended = fleet.run("-e", '{"nothing": 1}', "-i", str(unreachable(fleet)))
    assert ended.returncode != 0
    assert fleet.events() == []
    assert fleet.locks() == []
    assert "d: not reachable" in ended.stdout


def unreachable(fleet: Fleet) -> Path:
    """Return an inventory by which the host d is reached over a port that nobody listens on."""
    file = fleet.folder / "unreachable.yml"
    away = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    file.write_text(yaml.safe_dump({"inference": {"hosts": {"d": away}}}))
    return file


@pytest.fixture
def site(fleet: Fleet) -> Fleet:
    fleet.playbook = "site.yml"
    return fleet


def test_site_prepares_all_hosts_before_the_first_is_changed(site: Fleet):
    ended = site.run("-e", '{"serial": [1, 3]}')
    assert ended.returncode == 0, ended.stdout
    events = site.events()
    assert sorted(events[:4]) == [f"prepared {host}" for host in site.hosts]
    assert events[4:8] == ["changed a/one", "auto a/one", "changed a/two", "auto a/two"]
    assert len(site.changed()) == 8
    assert site.locks() == []


def test_site_changes_no_service_while_a_host_is_unfit(site: Fleet):
    ended = site.run("-e", "unfit=c")
    assert ended.returncode != 0
    assert site.changed() == []
    assert site.locks() == []
    assert "c: Prepare it" in ended.stdout


def test_site_stops_at_the_first_host_that_fails(site: Fleet):
    ended = site.run("-e", "fail_at=b/two")
    assert ended.returncode != 0
    assert site.changed() == ["a/one", "a/two", "b/one", "b/two"]
    assert site.locks() == []
    assert "Not touched, serving as before: c, d." in ended.stdout


def test_one_stage_of_site_locks_and_unlocks_all(site: Fleet):
    ended = site.run("--tags", "host")
    assert ended.returncode == 0, ended.stdout
    assert (site.changed(), len(site.events()), site.locks()) == ([], 4, [])
    without = site.run("--skip-tags", "service,smoke")
    assert without.returncode == 0, without.stdout
    assert (site.changed(), site.locks()) == ([], [])
