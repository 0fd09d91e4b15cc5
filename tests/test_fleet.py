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

CHANGE = """
- name: Change it
  shell: |
    test {{{{ refuse_at | default('none') }}}} != {{{{ which }}}} || exit 1
    echo "$(date +%s.%N) {} {{{{ which }}}}" >>{{{{ events }}}}
    sleep {{{{ change_seconds | default(0) }}}}
    while test -e {{{{ events }}}}.held; do sleep 0.1; done
    test {{{{ fail_at | default('none') }}}} != {{{{ which }}}}
"""

NOTE = """
- name: Note it
  shell: |
    echo "$(date +%s.%N) {} {{{{ which }}}}" >>{{{{ events }}}}
    test {{{{ {}_fails_at | default('none') }}}} != {{{{ which }}}}
"""

ADDRESS = """
- name: Note its address
  shell: echo "{{ __gateway_instance.host }}" >>{{ events }}.addresses
"""

STAND_INS = {
    "service/tasks/main.yml": NOTE.format("planned", "plan"),
    "service/tasks/instance.yml": """
- include_role: {name: fleet, tasks_from: drain}
  vars: {__fleet_draining: "{{ __service_name }}"}
"""
    + CHANGE.format("changed"),
    "service/tasks/restart.yml": CHANGE.format("{{ __service_state }}"),
    "service/tasks/rollback_plan.yml": """
- command: echo {{ __service_name }}
  loop: [one, two]
  loop_control: {loop_var: __service_name}
  register: looked
- set_fact:
    __service_looked:
      results:
        - {__service_name: one, action: none, will_listen: {}}
        - {__service_name: two, action: restart, will_listen: {}}
""",
    "service/tasks/rollback_instance.yml": CHANGE.format("restored"),
    "gateway/tasks/main.yml": "[]\n",
    "gateway/tasks/drain.yml": NOTE.format("left", "drain") + ADDRESS,
    "gateway/tasks/enter.yml": NOTE.format("entered", "enter") + ADDRESS,
    "tune/tasks/main.yml": NOTE.format("tuned", "tune"),
    "tune/tasks/verdict.yml": NOTE.format("judged", "verdict"),
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
    test {{ smoke_fails_at | default('none') }} != {{ which }}
- set_fact: {__smoke_result: {listens: {host: where-it-passed}}}
""",
}

GENERATION = """#!/usr/bin/python
import os, time
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"instance": {}, "operation": {}}, supports_check_mode=True)
with open(os.environ["FLEET_EVENTS"], "a+") as file:
    file.seek(0)
    words = [line.split() for line in file]
touched = [1 for _, what, where in words if what in ("restarted", "changed", "restored", "tuned") and
           where.split("/")[1] in (module.params["instance"], "-")]
module.exit_json(changed=False, unit="sglang@%s.service" % module.params["instance"], active="active",
                 running="proved", last_known_good="proved", will_listen={}, listens={"host": "where-it-is"},
                 started=60.0 * len(touched) + time.time() % 1e-3)
"""
"""Says of an instance that it runs since it was changed last; good for one host at a time. The time of a start is
reckoned from two clocks, so that no two answers are the same."""


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
            "ANSIBLE_LIBRARY": f"{self.folder}/library:{plugins}/modules", "FLEET_EVENTS": f"{self.folder}/events",
            "ANSIBLE_MODULE_UTILS": f"{plugins}/module_utils",
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
        return [event.split()[1] for event in self.events() if event.split()[0] in ("restarted", "changed", "restored")]

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
    (tmp_path / "library").mkdir()
    (tmp_path / "library/service_generation.py").write_text(GENERATION)
    for playbook in ("check.yml", "restart.yml", "site.yml", "rollback.yml", "tune.yml"):
        text = (ROOT / playbook).read_text()
        (tmp_path / playbook).write_text(text.replace("become: true", "become: false"))
    hosts = ["a", "b", "c", "d"]
    common = {
        "ansible_connection": "local",
        "ansible_python_interpreter": "{{ ansible_playbook_python }}",
        # the entries differ from host to host, as they do where each listens on an address of its own
        "service_instances": [{"name": name, "host": "{{ inventory_hostname }}"} for name in ("one", "two")],
        "which": "{{ inventory_hostname }}/{{ __fleet_name | default('-') }}",
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
    held = fleet.folder / "events.held"
    held.touch()
    first = subprocess.Popen(fleet.command(), env=fleet.environment, stdout=subprocess.DEVNULL)
    while not fleet.changed():
        assert first.poll() is None
    second = fleet.run()
    held.unlink()
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
    assert events[4:9] == ["planned a/-", "changed a/one", "auto a/one", "changed a/two", "auto a/two"]
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
    smoke = site.run("--tags", "smoke")
    assert smoke.returncode == 0, smoke.stdout
    assert site.changed() == []
    assert sum(event.startswith("auto ") for event in site.events()) == 8


def test_what_is_the_same_for_all_instances_is_done_once_a_host(site: Fleet):
    assert site.run("-e", "serial=100%").returncode == 0
    assert sorted(event for event in site.events() if event.startswith("planned")) == [f"planned {h}/-" for h in "abcd"]


@pytest.mark.parametrize(("playbook", "word"), [("site.yml", "changed"), ("restart.yml", "restarted")])
def test_hosts_of_a_batch_go_together_though_their_entries_differ(fleet: Fleet, playbook: str, word: str):
    fleet.playbook = playbook
    assert fleet.run("-e", '{"serial": [1, 3]}').returncode == 0
    batch = [event for event in fleet.events() if event.split()[0] in (word, "auto") and event.split()[1][0] in "bcd"]
    steps = [(what, name) for name in ("one", "two") for what in (word, "auto")]
    assert [sorted(batch[n : n + 3]) for n in range(0, 12, 3)] == [
        [f"{what} {host}/{name}" for host in "bcd"] for what, name in steps
    ]


# --- with a gateway


@pytest.fixture
def pooled(fleet: Fleet) -> Fleet:
    """Return the fleet with a gateway before it: what leaves its pool and enters it is an event."""
    file = fleet.folder / "gateway.yml"
    own = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    file.write_text(
        yaml.safe_dump({"gateway": {"hosts": {"gw": {**own, "fleet_lock_folder": str(fleet.folder / "gw")}}}})
    )
    return fleet


def run_pooled(fleet: Fleet, playbook: str, *words: str) -> tuple[bool, list[str], str]:
    """Return whether it succeeded, the events of the hosts a and b, and what was said, on one line."""
    fleet.playbook = playbook
    ended = fleet.run("-i", str(fleet.folder / "gateway.yml"), "--limit", "a,b,gw", "-e", "serial=1", *words)
    assert fleet.locks() == []
    events = [event for event in fleet.events() if not event.startswith(("planned", "prepared"))]
    return ended.returncode == 0, events, " ".join(ended.stdout.split())


def whole(word: str, host: str, name: str, test: str = "auto") -> list[str]:
    return [f"{what} {host}/{name}" for what in ("left", word, test, "entered")]


@pytest.mark.parametrize(
    ("playbook", "word", "first"), [("restart.yml", "restarted", "full"), ("site.yml", "changed", "auto")]
)
def test_each_instance_leaves_the_pool_and_comes_back_when_it_passed(
    pooled: Fleet, playbook: str, word: str, first: str
):
    succeeded, events, said = run_pooled(pooled, playbook)
    assert succeeded, said
    assert events == [
        *(event for name in ("one", "two") for event in whole(word, "a", name, first)),
        *(event for name in ("one", "two") for event in whole(word, "b", name)),
    ]


def test_going_back_takes_the_lock_and_leaves_what_does_not_change_in_the_pool(pooled: Fleet):
    """It goes in again, which does nothing to one that is there: a run that failed may have left it out."""
    succeeded, events, said = run_pooled(pooled, "rollback.yml")
    assert succeeded, said
    of_a = ["restored a/one", "auto a/one", "entered a/one", *whole("restored", "a", "two")]
    assert events == [*of_a, *(event.replace(" a/", " b/") for event in of_a)]


@pytest.mark.parametrize("playbook", ["rollback.yml", "tune.yml"])
def test_going_back_and_tuning_are_refused_while_another_run_holds_a_host(fleet: Fleet, playbook: str):
    fleet.playbook = playbook
    lock(fleet, "c")
    ended = fleet.run()
    assert ended.returncode != 0
    assert fleet.events() == []
    assert fleet.locks() == ["c"]
    assert "eve on elsewhere" in ended.stdout


@pytest.mark.parametrize("failing", ["tune_fails_at", "verdict_fails_at"])
def test_tuning_ends_at_the_first_host_that_fails_and_unlocks_all(fleet: Fleet, failing: str):
    fleet.playbook = "tune.yml"
    ended = fleet.run("-e", f"{failing}=b/-")
    assert ended.returncode != 0
    assert fleet.events()[:3] == ["tuned a/-", "judged a/-", "tuned b/-"]
    assert not [event for event in fleet.events() if event[-3] in "cd"]
    assert fleet.locks() == []


@pytest.mark.parametrize(
    ("playbook", "failing"),
    [
        (playbook, failing)
        for playbook in ("restart.yml", "site.yml", "rollback.yml")
        for failing in ("refuse_at", "drain_fails_at")
    ],
)
def test_what_has_not_been_touched_goes_back_into_the_pool(pooled: Fleet, playbook: str, failing: str):
    succeeded, events, said = run_pooled(pooled, playbook, "-e", f"{failing}=b/two")
    assert not succeeded
    assert events[-2:] == ["left b/two", "entered b/two"]
    assert "two serves as before and is in the pools again." in said


@pytest.mark.parametrize("playbook", ["restart.yml", "site.yml", "rollback.yml"])
@pytest.mark.parametrize("failing", ["fail_at", "smoke_fails_at"])
def test_what_has_been_touched_stays_out_of_the_pool_and_that_is_said(pooled: Fleet, playbook: str, failing: str):
    succeeded, events, said = run_pooled(pooled, playbook, "-e", f"{failing}=b/two")
    assert not succeeded
    assert "left b/two" in events
    assert "entered b/two" not in events
    assert "two is out of the pools until a run has tested it." in said


def test_an_instance_that_cannot_be_put_back_is_said_to_be_out(pooled: Fleet):
    succeeded, events, said = run_pooled(pooled, "restart.yml", "-e", "refuse_at=b/two", "-e", "enter_fails_at=b/two")
    assert not succeeded
    assert events[-2:] == ["left b/two", "entered b/two"]
    assert "Putting two back into the pools failed" in said
    assert "two is out of the pools until a run has tested it." in said
    assert "went out of reach" not in said


@pytest.mark.parametrize("playbook", ["restart.yml", "rollback.yml", "site.yml"])
def test_an_instance_leaves_and_enters_the_pool_at_the_address_that_it_has(pooled: Fleet, playbook: str):
    succeeded, events, said = run_pooled(pooled, playbook, "-e", "refuse_at=b/two")
    assert not succeeded, said
    pool = [event for event in events if event.startswith(("left", "entered"))]
    assert {"left a/two", "entered a/two", "left b/two", "entered b/two"} <= set(pool)
    # the last is untouched and was not tested
    passed = [event.startswith("entered") and event != "entered b/two" for event in pool]
    where = ["where-it-passed" if word else "where-it-is" for word in passed]
    assert (pooled.folder / "events.addresses").read_text().split() == where
