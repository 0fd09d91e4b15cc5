# SPDX-License-Identifier: Apache-2.0
"""The modules around a service: generations, control, smoke test and weights.

They run in this process with a systemd that a test scripts; files are real, below pytest's folder.
"""

from __future__ import annotations

import dataclasses
import getpass
import grp
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from loading import load as load_file
from test_weights import shard

import inference.host.preparation
import inference.host.system
import inference.instances
import inference.toolkit
import inference.weights  # noqa: F401 - the modules import the domain under Ansible's name for it
from inference import generations, host_plan, managed_files, placement, systemd
from inference.generations import Generation, Store
from inference.managed_files import Entry
from inference.systemd import SystemdError, UnitState

ROOT = Path(__file__).resolve().parent.parent
ME = {"owner": getpass.getuser(), "group": grp.getgrgid(os.getgid()).gr_name}
UNIT = "sglang@kimi.service"
MODULES = ("service_plan", "service_generation", "service_control", "smoke_test", "model_weights", "host_settings")

Result = dict[str, Any]
Run = Callable[..., Result]


def load(name: str) -> ModuleType:
    """Return a module's code, with the domain where Ansible puts it."""
    for loaded in [key for key in sys.modules if key == "inference" or key.startswith("inference.")]:
        sys.modules[f"ansible.module_utils.{loaded}"] = sys.modules[loaded]
    return load_file(name, ROOT / f"plugins/modules/{name}.py")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs a module and returns what it prints; ``rc`` is added."""

    def call(module: ModuleType, *, check: bool = False, **arguments: Any) -> Result:
        capsys.readouterr()
        with patch_module_args({**arguments, "_ansible_check_mode": check}), pytest.raises(SystemExit) as ended:
            module.main()
        return {**json.loads(capsys.readouterr().out), "rc": ended.value.code}

    return call


def state(active: str, sub: str = "", *, load: str = "loaded", status: str = "", job: int = 0) -> UnitState:
    return UnitState(load, active, sub or active, "success", status, 1, 0, "exited 1", job)


class Systemd:
    """A systemd that shows the given states one after the other (the last one for good) and notes what it is told.

    A unit that ``of`` has is in that state, whatever the others are.
    """

    def __init__(self, *states: UnitState) -> None:
        self.states = list(states) or [state("inactive", "dead")]
        self.of: dict[str, UnitState] = {}
        self.told: list[str] = []
        self.enabled = True
        self.complaints: list[str] = []

    def unit_state(self, unit: str) -> UnitState:
        if unit in self.of:
            return self.of[unit]
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def systemctl(self, *words: str, **_: Any) -> str:
        self.told.append(" ".join(word for word in words if word != "--"))
        return ""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Systemd:
    made = Systemd()
    for name in ("unit_state", "systemctl"):
        monkeypatch.setattr(systemd, name, getattr(made, name))
    monkeypatch.setattr(systemd, "enabled", lambda _: made.enabled)
    monkeypatch.setattr(systemd, "verify", lambda *_: made.complaints)
    monkeypatch.setattr(systemd, "version", lambda: 252)
    monkeypatch.setattr(systemd, "journal", lambda *_: ["the last line"])
    return made


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a root with the folders of a host, which the domain takes for the real ones."""
    (tmp_path / "etc").mkdir()
    monkeypatch.setattr(generations, "STATE_ROOT", tmp_path / "state")
    monkeypatch.setattr(generations, "RUNTIME_ROOT", tmp_path / "run")
    monkeypatch.setattr(generations, "SETTINGS_ROOT", tmp_path / "etc/inference")
    monkeypatch.setattr(generations, "UNITS", tmp_path / "etc/systemd")
    if os.getuid():
        monkeypatch.setattr(managed_files, "_own", lambda path, entry: path.chmod(entry.mode))
    return tmp_path


def files(host: Path, text: str = "one", unit: str = UNIT) -> list[Result]:
    return [
        {"path": f"{host}/etc/{unit}", "content": f"{text}\n", **ME},
        {"path": f"{host}/etc/inference/kimi/supervisor.json", "content": "{}", "mode": "0640", **ME},
    ]


def wanted(host: Path, text: str = "one", unit: str = UNIT) -> Result:
    return {
        "instance": "kimi", "unit": unit, "release": f"r-{text}", "toolkit": "0.1-a", "files": files(host, text, unit)
    }  # fmt: skip


def runs(host: Path, generation: str) -> None:
    """Let the supervisor's record say that the generation runs."""
    (host / "run/kimi").mkdir(parents=True, exist_ok=True)
    (host / "run/kimi/state.json").write_text(json.dumps({"generation": generation}))


# what all of them owe


@pytest.mark.parametrize("name", MODULES)
def test_documentation_matches_the_code(name: str, monkeypatch: pytest.MonkeyPatch):
    module = load(name)
    seen: Result = {}

    class Stop(Exception):  # noqa: N818 - no error: the specification is all that is wanted
        pass

    def catch(**given: Any) -> None:
        seen.update(given)
        raise Stop

    monkeypatch.setattr(module, "AnsibleModule", catch)
    with pytest.raises(Stop):
        module.main()
    options = yaml.safe_load(module.DOCUMENTATION)["options"]
    assert seen["supports_check_mode"] is True
    assert set(options) == set(seen["argument_spec"])
    for option, spec in seen["argument_spec"].items():
        for key in ("type", "required", "default", "choices", "elements"):
            documented = options[option].get(key, {"type": "str", "required": False}.get(key))
            assert documented == spec.get(key, {"type": "str", "required": False}.get(key)), (option, key)
    assert isinstance(yaml.safe_load(module.EXAMPLES), list)
    assert yaml.safe_load(module.RETURN)


def check_returned(module: ModuleType, result: Result, also: Iterable[str] = ()) -> None:
    """Every documented success value is there, and nothing undocumented is."""
    documented = yaml.safe_load(module.RETURN)
    promised = {key for key, entry in documented.items() if entry["returned"] == "success"}
    allowed = {"changed", "diff", "invocation", "rc", *also}
    assert promised <= set(result)
    assert set(result) - promised <= allowed


# service_generation

GENERATION = load("service_generation")


def install(run: Run, *, check: bool = False, **given: Any) -> Result:
    """Prepare a generation and install it, as a play does; return what the last of the two says."""
    kept = run(GENERATION, check=check, operation="prepare", **given)
    if check or kept["rc"] or not kept["changed"]:
        return kept
    return run(GENERATION, instance=given["instance"], operation="install", generation=kept["generation"])


def test_a_first_generation_is_installed_and_wants_a_start(host: Path, fake: Systemd, run: Run):
    result = install(run, **wanted(host))
    assert (result["changed"], result["action"], result["previous"]) == (True, "start", None)
    assert Store("kimi").current() == result["generation"]
    assert (host / f"etc/{UNIT}").read_text() == "one\n"
    assert fake.told == ["daemon-reload"]
    assert result["toolkit_path"] == "/usr/local/lib/inference/0.1-a"
    check_returned(GENERATION, result)


def test_a_second_run_changes_nothing(host: Path, fake: Systemd, run: Run):
    first = install(run, **wanted(host))
    runs(host, first["generation"])
    fake.states, fake.told = [state("active", "running")], []
    again = install(run, **wanted(host))
    assert (again["changed"], again["action"], again["paths"]) == (False, "none", [])
    assert fake.told == []


def test_check_mode_predicts_a_bare_host_and_touches_nothing(host: Path, fake: Systemd, run: Run):
    result = install(run, check=True, **wanted(host))
    assert (result["changed"], result["action"]) == (True, "start")
    assert any("one" in entry["after"] for entry in result["diff"])
    assert list((host / "etc").iterdir()) == []
    assert not (host / "state").exists()
    assert fake.told == []


def test_what_systemd_complains_about_is_not_installed(host: Path, fake: Systemd, run: Run):
    fake.complaints = ["sglang@kimi.service:3: Unknown key 'Foo' in section [Service], ignoring."]
    result = install(run, **wanted(host))
    assert result["rc"] == 1
    assert "Unknown key 'Foo'" in result["msg"]
    assert list((host / "etc").iterdir()) == []
    assert not (host / "state").exists()


def test_an_unknown_group_stops_before_anything_is_stopped(host: Path, fake: Systemd, run: Run):
    install(run, **wanted(host))
    fake.told, fake.states = [], [state("active", "running")]
    given = wanted(host, unit="vllm@kimi.service")
    given["files"][0]["group"] = "no-such-group"
    result = install(run, **given)
    assert "no-such-group" in result["msg"]
    assert fake.told == []
    assert Store("kimi").kept() == [Store("kimi").current()]


def test_what_is_prepared_is_kept_and_touches_nothing(host: Path, fake: Systemd, run: Run):
    first = install(run, **wanted(host))["generation"]
    runs(host, first)
    fake.told, fake.states = [], [state("active", "running")]
    for _ in range(2):  # a run that was killed after it prepares the same again
        kept = run(GENERATION, operation="prepare", **wanted(host, "two"))
        assert (kept["changed"], kept["action"], kept["previous"]) == (True, "restart", first)
        assert kept["generation"] != first
        assert any("two" in entry["after"] for entry in kept["diff"])
        check_returned(GENERATION, kept)
    found = run(GENERATION, instance="kimi", operation="status")
    assert (found["generation"], found["action"], found["drift"]) == (first, "none", [])
    assert (host / f"etc/{UNIT}").read_text() == "one\n"
    assert fake.told == []
    assert Store("kimi").kept() == [kept["generation"], first]


def test_a_rehearsal_keeps_nothing(host: Path, fake: Systemd, run: Run):
    first = install(run, **wanted(host))["generation"]
    kept = run(GENERATION, check=True, operation="prepare", **wanted(host, "two"))
    assert (kept["changed"], Store("kimi").kept()) == (True, [first])


def test_another_engine_stops_the_unit_that_it_replaces_when_it_is_installed_and_no_earlier(
    host: Path, fake: Systemd, run: Run
):
    """Between the two the gateways are told, at the address that the old one has."""
    old, new = wanted(host), wanted(host, unit="vllm@kimi.service")
    old["files"][1]["content"] = json.dumps({"host": "10.0.0.1", "port": 30000})
    new["files"][1]["content"] = json.dumps({"host": "10.0.0.1", "port": 30009})
    runs(host, install(run, **old)["generation"])
    fake.told, fake.of = [], {UNIT: state("active", "running"), "vllm@kimi.service": state("inactive", "dead")}
    kept = run(GENERATION, operation="prepare", **new)
    assert (kept["action"], kept["unit"], kept["will_listen"]["port"]) == ("start", "vllm@kimi.service", 30009)
    until = run(GENERATION, instance="kimi", operation="status")
    assert (until["unit"], until["active"], until["action"]) == (UNIT, "active", "none")
    assert until["listens"] == kept["listens"] == {"host": "10.0.0.1", "port": 30000}
    assert fake.told == []
    assert (host / f"etc/{UNIT}").exists()
    run(GENERATION, instance="kimi", operation="install", generation=kept["generation"])
    assert fake.told == [f"disable --now --quiet {UNIT}", "daemon-reload"]
    assert not (host / f"etc/{UNIT}").exists()
    assert (host / "etc/vllm@kimi.service").exists()


def test_a_swap_of_engines_that_was_killed_is_taken_up_again(
    host: Path, fake: Systemd, run: Run, monkeypatch: pytest.MonkeyPatch
):
    """Killed while the old unit stops: the next run still knows both units, and where the old one listened."""
    old, new = wanted(host), wanted(host, unit="vllm@kimi.service")
    old["files"][1]["content"] = json.dumps({"host": "10.0.0.1", "port": 30000})
    runs(host, install(run, **old)["generation"])
    fake.of = {UNIT: state("active", "running"), "vllm@kimi.service": state("inactive", "dead")}

    def killed(_: managed_files.Plan) -> None:
        raise managed_files.ManagedFilesError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(managed_files, "apply", killed)
        assert install(run, **new)["msg"] == "killed"
    fake.told, fake.of[UNIT] = [], state("inactive", "dead")
    again = run(GENERATION, operation="prepare", **new)
    assert (again["changed"], again["action"], again["listens"]["port"]) == (True, "start", 30000)
    assert install(run, **new)["previous"] == again["previous"]
    assert fake.told == [f"disable --now --quiet {UNIT}", "daemon-reload"]
    assert not (host / f"etc/{UNIT}").exists()


def test_going_back_to_the_engine_before_stops_the_other(host: Path, fake: Systemd, run: Run):
    good = install(run, **wanted(host))["generation"]
    run(GENERATION, instance="kimi", operation="promote")
    runs(host, install(run, **wanted(host, unit="vllm@kimi.service"))["generation"])
    fake.told, fake.of = [], {"vllm@kimi.service": state("active", "running"), UNIT: state("inactive", "dead")}
    back = run(GENERATION, instance="kimi", operation="restore")
    assert (back["generation"], back["unit"], back["action"]) == (good, UNIT, "start")
    assert fake.told == ["disable --now --quiet vllm@kimi.service", "daemon-reload"]
    assert (host / f"etc/{UNIT}").exists()


def test_a_replaced_unit_that_is_gone_already_is_left_alone(host: Path, fake: Systemd, run: Run):
    install(run, **wanted(host))
    fake.told, fake.states = [], [state("inactive", "dead", load="not-found")]
    install(run, **wanted(host, unit="vllm@kimi.service"))
    assert fake.told == ["daemon-reload"]


@pytest.mark.parametrize(
    ("unit", "running", "expected"),
    [
        (state("active", "running"), "same", "none"),
        (state("active", "running"), "other", "restart"),
        (state("active", "running"), None, "restart"),
        (state("activating", "start"), "same", "restart"),
        (state("activating", "auto-restart"), "same", "restart"),
        (state("failed"), "same", "start"),
        (state("inactive", "dead"), "same", "start"),
        (state("", "", load="not-found"), None, "start"),
    ],
)
def test_the_action_follows_from_what_runs(unit: UnitState, running: str | None, expected: str):
    assert GENERATION.action(unit, running, "same", []) == expected


def test_a_replaced_key_restarts_what_serves_and_no_more():
    serving = state("active", "running")
    assert GENERATION.action(serving, "same", "same", ["/etc/inference/kimi/api-key"]) == "restart"
    assert GENERATION.action(state("failed"), "same", "same", ["/etc/inference/kimi/api-key"]) == "start"


def test_restore_installs_the_last_good_generation(host: Path, fake: Systemd, run: Run):
    good = install(run, **wanted(host))["generation"]
    assert run(GENERATION, instance="kimi", operation="promote", evidence={"gate": 1})["changed"] is True
    bad = install(run, **wanted(host, "bad"))
    assert bad["last_known_good"] == good
    rehearsal = run(GENERATION, check=True, instance="kimi", operation="restore")
    assert (rehearsal["changed"], rehearsal["generation"]) == (True, good)
    assert (host / f"etc/{UNIT}").read_text() == "bad\n"
    result = run(GENERATION, instance="kimi", operation="restore")
    assert (result["generation"], result["previous"]) == (good, bad["generation"])
    assert (host / f"etc/{UNIT}").read_text() == "one\n"
    named = run(GENERATION, instance="kimi", operation="restore", generation=bad["generation"])
    assert named["generation"] == bad["generation"]


def test_there_may_be_nothing_to_restore(host: Path, fake: Systemd, run: Run):
    install(run, **wanted(host))
    result = run(GENERATION, instance="kimi", operation="restore")
    assert "no generation to go back to" in result["msg"]
    result = run(GENERATION, instance="kimi", operation="restore", generation="123456789012")
    assert "no generation 123456789012" in result["msg"]


def test_promotion_is_predicted_and_needs_something_installed(host: Path, fake: Systemd, run: Run):
    assert "nothing is installed" in run(GENERATION, instance="kimi", operation="promote")["msg"]
    install(run, **wanted(host))
    assert run(GENERATION, check=True, instance="kimi", operation="promote")["changed"] is True
    assert Store("kimi").last_known_good() is None
    run(GENERATION, instance="kimi", operation="promote")
    assert run(GENERATION, check=True, instance="kimi", operation="promote")["changed"] is False


def test_status_shows_drift_and_changes_nothing(host: Path, fake: Systemd, run: Run):
    bare = run(GENERATION, instance="kimi", operation="status")
    assert (bare["changed"], bare["generation"], bare["unit"], bare["action"]) == (False, None, "", "start")
    install(run, **wanted(host))
    (host / f"etc/{UNIT}").write_text("mine\n")
    fake.states = [state("active", "running", status="serving")]
    found = run(GENERATION, instance="kimi", operation="status")
    assert found["drift"] == [f"{host}/etc/{UNIT}"]
    assert (found["active"], found["status"]) == ("active", "serving")
    assert (host / f"etc/{UNIT}").read_text() == "mine\n"
    check_returned(GENERATION, found)


def test_where_it_listens_is_what_the_generation_that_runs_says(host: Path, fake: Systemd, run: Run):
    """What the service writes itself does not count, but for which of the kept generations it is.

    Where that is unknown (a host that was rebooted has no record any more), it is what the installed one says.
    """
    old = wanted(host)
    old["files"][1]["content"] = json.dumps({"host": "10.0.0.1", "port": 30000})
    made = install(run, **old)
    assert made["listens"] == {}
    runs(host, made["generation"])
    new = wanted(host)
    new["files"][1]["content"] = json.dumps({"host": "10.0.0.1", "port": 30009})
    install(run, **new)
    assert run(GENERATION, instance="kimi", operation="status")["listens"] == {"host": "10.0.0.1", "port": 30000}
    (host / "run/kimi/state.json").write_text(json.dumps({"generation": "0" * 12, "host": "evil", "port": 1}))
    assert run(GENERATION, instance="kimi", operation="status")["listens"] == {"host": "10.0.0.1", "port": 30009}
    (host / "run/kimi/state.json").unlink()
    assert run(GENERATION, instance="kimi", operation="status")["listens"] == {"host": "10.0.0.1", "port": 30009}


def test_an_altered_generation_is_an_error_with_a_sentence(host: Path, fake: Systemd, run: Run):
    made = install(run, **wanted(host))["generation"]
    manifest = host / f"state/kimi/generations/{made}/manifest.json"
    manifest.write_text(manifest.read_text().replace("one\\n", "evil\\n"))
    result = run(GENERATION, instance="kimi", operation="status")
    assert "was altered" in result["msg"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")
@pytest.mark.parametrize(("line", "said"), [("MemoryMaxx=1", "Unknown key"), ("MemoryMax=1G", "")])
def test_the_hosts_own_systemd_checks_unit_and_drop_ins(line: str, said: str):
    etc = "/etc/systemd/system"
    entries = (
        Entry(f"{etc}/x@a.service", content="[Service]\nExecStart=/bin/true\n"),
        Entry(f"{etc}/x@a.service.d/10-more.conf", content=f"[Service]\n{line}\n"),
        Entry("/etc/inference/a/supervisor.json", content="not for systemd"),
    )
    complaints = GENERATION.complaints(Generation("a", "x@a.service", "r", "t", entries))
    assert bool(complaints) is bool(said)
    assert said in "".join(complaints)


# what changed by hand, keys, going back, removal


def unit_files(host: Path, text: str, unit: str = UNIT) -> Result:
    given = wanted(host, unit=unit)
    (host / "etc/systemd").mkdir(exist_ok=True)
    given["files"].append({"path": f"{host}/etc/systemd/{unit}", "content": text, **ME})
    return given


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what modules warn of; where it goes depends on whether this process has loaded Ansible's controller."""
    said: list[str] = []
    monkeypatch.setattr(GENERATION.AnsibleModule, "warn", lambda _, text: said.append(text))
    return said


def test_a_change_by_hand_is_said_shown_and_put_back(host: Path, fake: Systemd, run: Run, warned: list[str]):
    install(run, **wanted(host))
    (host / f"etc/{UNIT}").write_text("by hand\n")
    for check in (True, False):
        warned.clear()
        result = install(run, check=check, **wanted(host))
        (warning,) = set(warned)  # Ansible shows what is said twice once
        assert f"{host}/etc/{UNIT}" in warning
        assert "which is undone" in warning
        assert "by hand" in result["diff"][0]["before"]
        assert result["drift"] == [f"{host}/etc/{UNIT}"]
    assert (host / f"etc/{UNIT}").read_text() == "one\n"
    warned.clear()
    install(run, **wanted(host))
    assert warned == []


@pytest.mark.usefixtures("warned")
@pytest.mark.parametrize(("started", "action"), [(-60, "none"), (60, "restart")])
@pytest.mark.parametrize("change", [lambda file: file.write_text("by hand\n"), Path.unlink], ids=["edited", "removed"])
def test_what_was_started_with_a_change_by_hand_is_started_again(
    host: Path,
    fake: Systemd,
    run: Run,
    *,
    change: Callable[[Path], Any],
    started: int,
    action: str,
):
    runs(host, install(run, **wanted(host))["generation"])
    change(host / f"etc/{UNIT}")
    fake.states = [dataclasses.replace(state("active", "running"), started=time.time() + started)]
    assert run(GENERATION, operation="prepare", **wanted(host))["action"] == action


def test_what_a_killed_run_wrote_already_was_not_changed_by_hand(
    host: Path, fake: Systemd, run: Run, warned: list[str]
):
    install(run, **wanted(host))
    (host / f"etc/{UNIT}").write_text("two\n")
    assert (install(run, **wanted(host, "two"))["drift"], warned) == ([], [])


def test_drop_ins_of_others_are_named_and_left_alone(host: Path, fake: Systemd, run: Run):
    install(run, **wanted(host))
    fake.states = [dataclasses.replace(state("active"), drop_ins=(f"{host}/etc/{UNIT}", "/etc/local/90-mine.conf"))]
    assert run(GENERATION, instance="kimi", operation="status")["local"] == ["/etc/local/90-mine.conf"]


def test_directives_that_the_hosts_systemd_does_not_know_are_left_out(host: Path, fake: Systemd, run: Run):
    install(run, **unit_files(host, "[Service]\nRestartSec=5\nRestartSteps=3\n"))
    text = (host / f"etc/systemd/{UNIT}").read_text()
    assert text == "[Service]\nRestartSec=5\n# RestartSteps= needs systemd 254; this host has 252\n"


def keyed(host: Path) -> Result:
    (host / "key").write_text("secret")
    return unit_files(host, f"[Service]\nLoadCredential=api-key:{host}/key\n")


def test_a_key_that_was_replaced_restarts_the_service_once(host: Path, fake: Systemd, run: Run):
    first = install(run, **keyed(host))
    runs(host, first["generation"])
    written = (host / "key").stat().st_mtime
    fake.states = [dataclasses.replace(state("active"), started=written + 1)]
    assert install(run, **keyed(host))["action"] == "none" or written == 0
    os.utime(host / "key", (written + 2, written + 2))
    result = run(GENERATION, instance="kimi", operation="status")
    assert (result["action"], result["stale_credentials"]) == ("restart", [f"{host}/key"])
    fake.states = [dataclasses.replace(state("active"), started=written + 3)]
    assert run(GENERATION, instance="kimi", operation="status")["action"] == "none"
    assert "secret" not in json.dumps(result)


def test_a_generation_whose_key_is_gone_is_refused_before_anything_changes(host: Path, fake: Systemd, run: Run):
    kept = install(run, **keyed(host))["generation"]
    now = install(run, **wanted(host))["generation"]
    (host / "key").unlink()
    fake.told = []
    for check in (True, False):
        result = run(GENERATION, check=check, instance="kimi", operation="restore", generation=kept)
        assert f"needs {host}/key" in result["msg"]
    assert Store("kimi").current() == now
    assert fake.told == []
    assert install(run, check=True, **unit_files(host, f"LoadCredential=a:{host}/key\n"))["rc"] == 0


def test_a_restore_is_checked_in_a_rehearsal_too(host: Path, fake: Systemd, run: Run):
    kept = install(run, **wanted(host))["generation"]
    install(run, **wanted(host, "two"))
    fake.complaints = ["Unknown key"]
    result = run(GENERATION, check=True, instance="kimi", operation="restore", generation=kept)
    assert (result["rc"], "Unknown key" in result["msg"]) == (1, True)
    assert "no generation 0123" in run(
        GENERATION, check=True, instance="kimi", operation="restore", generation="0123"
    )["msg"]  # fmt: skip


def test_an_instance_is_removed_whole_and_its_neighbour_is_not(host: Path, fake: Systemd, run: Run):
    install(run, **wanted(host))
    install(run, **wanted(host, "two"))
    neighbour = wanted(host, unit="sglang@glm.service") | {"instance": "glm"}
    neighbour["files"][1]["path"] = f"{host}/etc/inference/glm/supervisor.json"
    install(run, **neighbour)
    (host / "etc/inference/kimi/api-key").write_text("secret")
    runs(host, "x")
    fake.states, fake.told = [state("active", "running")], []
    assert run(GENERATION, check=True, instance="kimi", operation="remove")["changed"] is True
    assert fake.told == []
    assert run(GENERATION, instance="kimi", operation="remove")["changed"] is True
    assert fake.told == [f"disable --now --quiet {UNIT}", "daemon-reload", f"reset-failed {UNIT}"]
    gone = [f"etc/{UNIT}", "etc/inference/kimi", "state/kimi", "run/kimi"]
    assert [path for path in gone if (host / path).exists()] == []
    assert (host / "etc/sglang@glm.service").exists()
    assert generations.installed() == ["glm"]
    fake.told = []
    assert run(GENERATION, instance="kimi", operation="remove")["changed"] is False
    assert fake.told == []


# service_plan

PLAN = load("service_plan")
ASKED = {"engine": "sglang", "variant": "cu130", "release": "/nowhere"}


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = placement.Machine((0, 0, 0, 0, 1, 1, 1, 1), (), {0: "0-63", 1: "64-127"})
    monkeypatch.setattr(host_plan, "_machine", lambda *_: machine)
    monkeypatch.setattr(host_plan, "architecture", lambda: "sm120")
    monkeypatch.setattr(host_plan, "_toolkits", lambda *_: ())


def four(name: str, port: int, **more: Any) -> Result:
    return {"name": name, "model": "m", "port": port, "tensor_parallel_size": 4, **more}


@pytest.mark.usefixtures("eight")
def test_a_plan_says_where_each_instance_runs(host: Path, fake: Systemd, run: Run):
    result = run(PLAN, **ASKED, instances=[four("a", 30000), four("b", 30001)])
    assert {name: one["cpus"] for name, one in result["instances"].items()} == {"a": "0-63", "b": "64-127"}
    assert (result["changed"], result["architecture"], result["removed"]) == (False, "sm120", [])
    assert [f["id"] for f in result["findings"]] == ["cuda-toolkit-missing"]
    check_returned(PLAN, result, also=["findings"])


@pytest.mark.usefixtures("eight")
def test_a_plan_that_cannot_be_is_refused_with_all_reasons(host: Path, fake: Systemd, run: Run):
    both = [four("a", 30000, gpus=[0, 1, 2, 3]), four("a", 30000, gpus=[3, 4, 5, 6])]
    result = run(PLAN, **ASKED, instances=both)
    assert result["rc"] == 1
    assert [word in result["msg"] for word in ("share a name", "share a port", "share a GPU", "nothing was changed")]
    assert sum(f["id"] == "instance-overlap" for f in result["findings"]) == 3


@pytest.mark.usefixtures("eight")
def test_an_instance_that_left_the_inventory_is_reported_and_its_claims_count(host: Path, fake: Systemd, run: Run):
    old = wanted(host)
    old["files"][1]["content"] = json.dumps({"port": 30000})
    install(run, **old)
    fake.states = [state("active", "running")]
    result = run(PLAN, **ASKED, instances=[four("renamed", 30001)])
    assert result["removed"] == [
        {"name": "kimi", "unit": UNIT, "active": "active", "enabled": True, "listens": {"port": 30000}}
    ]
    assert [f["level"] for f in result["findings"] if f["id"] == "instance-removed"] == ["warning"]
    taken = run(PLAN, **ASKED, instances=[four("renamed", 30000)])
    assert (taken["rc"], f"{UNIT}, which is not in the inventory" in taken["msg"]) == (1, True)
    pruned = run(PLAN, **ASKED, instances=[four("renamed", 30000)], prune=True)
    assert pruned["rc"] == 0
    assert [f["level"] for f in pruned["findings"] if f["id"] == "instance-removed"] == ["info"]


# service_control

CONTROL = load("service_control")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CONTROL, "POLL_S", 0)


def control(run: Run, wanted_state: str, **more: Any) -> Result:
    return run(CONTROL, unit=UNIT, instance="kimi", state=wanted_state, **more)


def test_a_serving_unit_is_left_alone(host: Path, fake: Systemd, run: Run):
    fake.states = [state("active", "running")]
    result = control(run, "started")
    assert (result["changed"], fake.told) == (False, [])
    check_returned(CONTROL, result)


def test_a_serving_unit_that_does_not_start_at_boot_is_enabled_only(host: Path, fake: Systemd, run: Run):
    fake.states, fake.enabled = [state("active", "running")], False
    assert control(run, "started")["changed"] is True
    assert fake.told == [f"enable --quiet {UNIT}"]
    fake.told = []
    assert control(run, "started", enabled=False)["changed"] is False
    assert fake.told == []


def test_a_start_is_followed_through_its_phases(host: Path, fake: Systemd, run: Run):
    fake.states = [
        state("inactive", "dead"), state("inactive", "dead"),
        state("activating", "start", status="loading weights, 3 s"),
        state("activating", "start", status="loading weights, 9.5 s"),
        state("activating", "start", status="capturing graphs for 2 s"),
        state("active", "running", status="serving"),
    ]  # fmt: skip
    result = control(run, "started")
    assert result["changed"] is True
    assert [p["phase"] for p in result["phases"]] == ["loading weights", "capturing graphs", "serving"]
    assert fake.told[-1] == f"start --no-block {UNIT}"
    check_returned(CONTROL, result)


def test_a_job_that_waits_is_no_answer(host: Path, fake: Systemd, run: Run):
    fake.states = [
        state("inactive", "dead"), state("inactive", "dead"),
        state("inactive", "dead", job=7), state("inactive", "dead", job=7),
        state("activating", "start", job=7), state("active", "running"),
    ]  # fmt: skip
    assert control(run, "started")["active"] == "active"


def test_a_restart_is_not_over_while_the_old_process_still_serves(host: Path, fake: Systemd, run: Run):
    fake.states = [
        state("active", "running"), state("active", "running"),
        state("active", "running", job=7, status="serving"),
        state("deactivating", "stop-sigterm", job=7, status="draining"),
        state("activating", "start", job=7, status="loading weights"),
        state("active", "running", status="serving"),
    ]  # fmt: skip
    result = control(run, "restarted")
    assert [p["phase"] for p in result["phases"]] == ["serving", "draining", "loading weights", "serving"]
    assert fake.told[-1] == f"restart --no-block {UNIT}"


def failing() -> list[UnitState]:
    down = state("inactive", "dead")
    return [down, down, state("activating", "start", job=7), state("activating", "auto-restart")]


def test_a_failed_start_reports_the_supervisors_cause_and_stops_retrying(host: Path, fake: Systemd, run: Run):
    record = host / "run/kimi/last-failure.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"cause": "oom", "what": "out of GPU memory", "fix": "lower mem-fraction-static"}))
    os.utime(record, (2**33, 2**33))
    fake.states = failing()
    result = control(run, "started")
    assert result["rc"] == 1
    assert "out of GPU memory" in result["msg"]
    assert "lower mem-fraction-static" in result["msg"]
    assert result["cause"]["cause"] == "oom"
    assert result["journal"] == ["the last line"]
    assert fake.told[-1] == f"stop {UNIT}"


def test_the_record_of_an_earlier_failure_explains_nothing(host: Path, fake: Systemd, run: Run):
    record = host / "run/kimi/last-failure.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"what": "out of GPU memory"}))
    os.utime(record, (1, 1))
    fake.states = failing()
    result = control(run, "started")
    assert "out of GPU memory" not in result["msg"]
    assert result["cause"] == {}


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_broken_record_is_no_cause(host: Path, text: str):
    (host / "run/kimi").mkdir(parents=True)
    (host / "run/kimi/last-failure.json").write_text(text)
    assert CONTROL.cause("kimi", 0) == {}
    assert CONTROL.cause("other", 0) == {}


@pytest.mark.parametrize("before", [state("failed"), state("activating", "auto-restart")])
def test_a_unit_that_failed_before_is_reset_first(host: Path, fake: Systemd, run: Run, before: UnitState):
    fake.states = [before, before, state("active", "running")]
    control(run, "restarted")
    assert fake.told == [
        f"enable --quiet {UNIT}", f"stop {UNIT}", f"reset-failed {UNIT}", f"restart --no-block {UNIT}"
    ]  # fmt: skip


def test_a_start_that_takes_too_long_is_stopped(host: Path, fake: Systemd, run: Run):
    fake.states = [state("inactive", "dead"), state("inactive", "dead"), state("activating", "start", status="slow")]
    result = control(run, "started", timeout=0)
    assert "did not become ready" in result["msg"]
    assert fake.told[-1] == f"stop {UNIT}"


def test_a_start_that_outlasts_patience_is_handed_back_and_followed(host: Path, fake: Systemd, run: Run):
    loading = state("activating", "start", status="loading weights, 3 s")
    fake.states = [state("inactive", "dead"), state("inactive", "dead"), loading]
    result = control(run, "started", patience=1)
    assert (result["rc"], result["settled"], result["status"]) == (0, False, "loading weights, 3 s")
    fake.told, fake.states = [], [loading, state("active", "running", status="serving")]
    after = control(run, "followed", since=result["since"])
    assert (after["settled"], after["active"], fake.told) == (True, "active", [])
    assert after["phases"][0]["seconds"] >= 1


def test_a_start_that_is_followed_too_long_is_stopped(host: Path, fake: Systemd, run: Run):
    fake.states = [state("activating", "start", status="slow")]
    result = control(run, "followed", since=1.0, timeout=5, patience=1)
    assert (result["rc"], fake.told) == (1, [f"stop {UNIT}"])


def test_a_unit_that_is_not_there_is_named(host: Path, fake: Systemd, run: Run):
    fake.states = [state("inactive", "dead", load="not-found")]
    assert "systemd says not-found" in control(run, "started")["msg"]
    assert "nothing is installed for kimi" in run(CONTROL, unit="", instance="kimi", state="restarted")["msg"]


def test_stopping(host: Path, fake: Systemd, run: Run):
    fake.states = [state("active", "running"), state("inactive", "dead")]
    assert control(run, "stopped")["changed"] is True
    assert fake.told == [f"stop {UNIT}"]
    fake.told = []
    assert control(run, "stopped")["changed"] is False
    assert fake.told == []


@pytest.mark.parametrize(("wanted_state", "changed"), [("started", False), ("restarted", True), ("stopped", True)])
def test_check_mode_predicts(host: Path, fake: Systemd, run: Run, wanted_state: str, changed: bool):
    fake.states = [state("active", "running")]
    result = control(run, wanted_state, check=True)
    assert (result["changed"], fake.told) == (changed, [])


def test_a_failing_systemctl_is_an_error_with_a_sentence(
    host: Path, fake: Systemd, run: Run, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*words: str, **_: Any) -> str:
        raise SystemdError("systemctl enable: Access denied")

    monkeypatch.setattr(systemd, "systemctl", refuse)
    assert control(run, "started")["msg"] == "systemctl enable: Access denied"


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        ("loading weights, 12 s", "loading weights"),
        ("loading weights (3 of 8), 12.5 s", "loading weights (3 of 8)"),
        ("starting for 3s", "starting"),
        ("serving", "serving"),
        ("", ""),
    ],
)
def test_a_phase_has_no_clock(status: str, phase: str):
    assert CONTROL.phase(status) == phase


# smoke_test

SMOKE = load("smoke_test")


@pytest.fixture
def deployed(host: Path, fake: Systemd, run: Run, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the id of a generation that is installed and runs, on a host whose smoke program a test writes."""
    made: str = install(run, **wanted(host))["generation"]
    runs(host, made)
    fake.states = [state("active", "running", status="serving")]
    monkeypatch.setattr(SMOKE, "command", lambda made, mode, _: [str(host / "smoke"), mode, made.id])
    monkeypatch.setattr(SMOKE, "profile", lambda instance, record: json.dumps([instance, str(record)]))
    return made


def program(host: Path, body: str) -> None:
    (host / "smoke").write_text(f"#!{sys.executable}\nimport json, sys\n{body}\n")
    (host / "smoke").chmod(0o755)


PASS = """print(json.dumps({
    "schema": 1, "ok": True, "findings": [], "gate": {"verdict": "pass"}, "ran": sys.argv[1:],
    "given": json.load(sys.stdin),
}))"""
FAIL = 'print(json.dumps({"schema": 1, "ok": False, "findings": [{"id": "x"}]})); sys.exit(2)'


def test_a_full_pass_promotes_and_the_next_run_is_quick(host: Path, deployed: str, run: Run):
    program(host, PASS)
    first = run(SMOKE, instance="kimi")
    assert (first["passed"], first["promoted"], first["changed"], first["mode"]) == (True, True, True, "full")
    assert first["report"]["ran"] == ["full", deployed]
    assert first["report"]["given"] == ["kimi", "/var/lib/inference/topology.json"]
    assert Store("kimi").last_known_good() == deployed
    assert first["engaged"]["generation"] == deployed
    check_returned(SMOKE, first)
    second = run(SMOKE, instance="kimi")
    assert (second["mode"], second["changed"], second["report"]["ran"][0]) == ("quick", False, "quick")


def test_a_quick_pass_proves_nothing_new(host: Path, deployed: str, run: Run):
    program(host, PASS)
    result = run(SMOKE, instance="kimi", mode="quick")
    assert (result["passed"], result["promoted"]) == (True, False)
    assert Store("kimi").last_known_good() is None


def test_a_failure_is_reported_and_changes_nothing(host: Path, deployed: str, run: Run):
    program(host, FAIL)
    result = run(SMOKE, instance="kimi")
    assert (result["rc"], result["passed"], result["changed"]) == (0, False, False)
    assert result["report"]["findings"] == [{"id": "x"}]
    assert Store("kimi").last_known_good() is None


def test_what_is_being_restored_may_be_slower_than_its_history(host: Path, deployed: str, run: Run):
    outcomes = {}
    for found in ("golden", "below-floor", "regression"):
        finding = {"id": found, "level": "critical"}
        program(host, f'print(json.dumps({{"schema": 1, "ok": False, "findings": [{finding}]}})); sys.exit(2)')
        outcomes[found] = [run(SMOKE, instance="kimi", restoring=restoring) for restoring in (False, True)]
    passed = {found: [result["passed"] for result in results] for found, results in outcomes.items()}
    assert passed == {"golden": [False, False], "below-floor": [False, False], "regression": [False, True]}
    assert outcomes["regression"][1]["report"]["findings"] == [{"id": "regression", "level": "warning"}]
    assert outcomes["regression"][1]["report"]["ok"]
    assert Store("kimi").last_known_good() == deployed


@pytest.mark.parametrize(
    "body", ["sys.exit('no module named aiohttp')", "print('half {')", "import time; time.sleep(9)"]
)
def test_a_program_that_gives_no_answer_is_an_error(host: Path, deployed: str, run: Run, body: str):
    program(host, body)
    result = run(SMOKE, instance="kimi")
    assert result["rc"] == 1
    assert "the smoke test did not run (exit " in result["msg"]
    assert Store("kimi").last_known_good() is None


def test_a_generation_that_does_not_run_is_not_proved(host: Path, deployed: str, run: Run):
    program(host, PASS)
    runs(host, "000000000000")
    result = run(SMOKE, instance="kimi")
    assert f"generation {deployed} is installed and 000000000000 still runs" in result["msg"]
    assert Store("kimi").last_known_good() is None


def test_nothing_installed(host: Path, fake: Systemd, run: Run):
    assert "nothing is installed for kimi" in run(SMOKE, instance="kimi")["msg"]


@pytest.mark.parametrize(("mode", "news"), [("auto", True), ("full", True), ("quick", False)])
def test_check_mode_runs_no_test(host: Path, deployed: str, run: Run, mode: str, news: bool):
    result = run(SMOKE, check=True, instance="kimi", mode=mode)
    assert (result["changed"], result["promoted"], result["report"]) == (news, news, {})
    check_returned(SMOKE, result)


def test_the_command_is_that_of_the_installed_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SMOKE, "Path", lambda name: tmp_path if str(name).startswith("/etc/inference/") else Path(name))
    (tmp_path / "supervisor.json").write_text('{"host": "::1", "port": 30000}')
    generation = Generation("kimi", UNIT, "sglang-1", "0.1-a", ())
    words = SMOKE.command(generation, "quick", Path("/var/lib/inference/kimi"))
    assert words[0] == "/opt/inference/releases/sglang-1/venv/bin/python"
    assert words[2] == "/usr/local/lib/inference/0.1-a/scripts/smoke"
    assert words[words.index("--url") + 1] == "http://[::1]:30000"
    assert words[words.index("--profile") + 1] == "-"
    assert words[words.index("--history") + 1] == "/var/lib/inference/kimi/smoke"
    assert words[-1] == "--quick"
    assert "--quick" not in SMOKE.command(generation, "full", tmp_path)
    assert "--api-key-file" not in words
    (tmp_path / "supervisor.json").write_text('{"host": "::1", "port": 30000, "api_key_file": "api-key"}')
    words = SMOKE.command(generation, "quick", tmp_path)
    assert words[words.index("--api-key-file") + 1].endswith("/api-key")


def test_the_profile_has_what_the_topology_record_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SMOKE, "Path", lambda name: tmp_path / Path(name).name)
    (tmp_path / "smoke.json").write_text('{"model": "m"}')
    record = tmp_path / "topology.json"
    assert json.loads(SMOKE.profile("kimi", record)) == {"model": "m"}
    record.write_text('{"gpus": {"0000:01:00.0": {}}, "driver": "590.48"}')
    known = json.loads(SMOKE.profile("kimi", record))
    assert (known["model"], known["gpus"], len(known["fingerprint"])) == ("m", 1, 16)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:30000"),
        ("0.0.0.0", "http://127.0.0.1:30000"),
        ("::", "http://[::1]:30000"),
        ("gpu-1", "http://gpu-1:30000"),
        ("fd00::1", "http://[fd00::1]:30000"),
    ],
)
def test_the_url_reaches_the_engine_from_its_own_host(address: str, url: str):
    assert SMOKE.url(address, 30000) == url


# model_weights

WEIGHTS = load("model_weights")


def model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"architectures": ["X"]}')
    (folder / "tokenizer.json").write_text("{}")
    shard(folder / "model.safetensors")
    return folder


def catalog(*folders: Path) -> list[dict[str, str]]:
    return [{"name": folder.name, "path": str(folder)} for folder in folders]


def test_whole_and_incomplete_models_are_told_apart(tmp_path: Path, run: Run):
    whole, cut = model(tmp_path / "whole"), model(tmp_path / "cut")
    size = (cut / "model.safetensors").stat().st_size
    os.truncate(cut / "model.safetensors", size - 1)
    result = run(WEIGHTS, models=catalog(whole, cut, tmp_path / "none"), state_dir=str(tmp_path / "state"))
    assert (result["changed"], result["incomplete"]) == (False, ["cut", "none"])
    assert f"{size - 1} bytes, and its header says {size}" in result["problems"]["cut"]
    assert result["bytes"] == {"whole": (whole / "model.safetensors").stat().st_size}
    check_returned(WEIGHTS, result)


def test_a_model_that_was_brought_takes_its_place(tmp_path: Path, run: Run):
    for target in (tmp_path / "new", model(tmp_path / "old")):
        incoming = model(Path(f"{target}.incoming"))
        (incoming / "mark").write_text("")
        result = run(WEIGHTS, models=catalog(target), operation="place", state_dir=str(tmp_path / "state"))
        assert result["changed"] is True
        assert (target / "mark").exists()
        assert not incoming.exists()


def test_half_a_model_is_not_moved(tmp_path: Path, run: Run):
    target = model(tmp_path / "m")
    os.truncate(model(tmp_path / "m.incoming") / "model.safetensors", 50)
    result = run(WEIGHTS, models=catalog(target), operation="place", state_dir=str(tmp_path / "state"))
    assert "not whole" in result["msg"]
    assert (target / "model.safetensors").stat().st_size > 50


def test_what_is_no_model_is_never_removed(tmp_path: Path, run: Run):
    model(tmp_path / "m.incoming")
    (tmp_path / "m").mkdir()
    (tmp_path / "m/letter.txt").write_text("dear")
    result = run(WEIGHTS, models=catalog(tmp_path / "m"), operation="place", state_dir=str(tmp_path / "state"))
    assert "folder of something else" in result["msg"]
    assert (tmp_path / "m/letter.txt").read_text() == "dear"
    assert (tmp_path / "m.incoming").is_dir()


def test_weights_in_check_mode(tmp_path: Path, run: Run):
    whole = model(tmp_path / "whole")
    arguments = {"models": catalog(whole), "user": "no-such-user", "state_dir": str(tmp_path / "state")}
    assert run(WEIGHTS, check=True, **arguments)["incomplete"] == []
    assert not (tmp_path / "state").exists()
    assert run(WEIGHTS, **arguments)["incomplete"] == ["whole"]
    model(tmp_path / "new.incoming")
    assert (
        run(
            WEIGHTS, check=True, models=catalog(tmp_path / "new"), operation="place", state_dir=str(tmp_path / "state")
        )["changed"]
        is True
    )
    assert not (tmp_path / "new").exists()
