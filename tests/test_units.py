# SPDX-License-Identifier: Apache-2.0
"""The unit and drop-ins as the role renders them: each directive known by version, verified, and closed enough."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from loading import load

from inference import environment_text, systemd
from inference.nccl import environment

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "templates"
UNIT = "sglang@kimi.service"
DROP_INS = ("10-command", "20-nccl", "30-resources", "40-sandbox")
THRESHOLD = 25
"""The most that ``systemd-analyze security`` may score, times ten: 2.5 of 10, where 10 is wide open."""

needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze here")

ON_ONE_NODE = {"gpus": [0, 1, 2, 3], "gpu_nodes": [0] * 4, "node": 0, "cpus": "0-63", "spans": False}
OVER_BOTH = {"gpus": list(range(8)), "gpu_nodes": [0] * 4 + [1] * 4, "node": None, "cpus": "", "spans": True}
NO_GPUS = {"gpus": [], "gpu_nodes": [], "node": None, "cpus": "", "spans": False}


def filters() -> Any:
    made = load("inference_filters", ROOT / "plugins/filter/inference.py")
    return made.FilterModule().filters()


SETTINGS: dict[str, Any] = {
    "engine_release": {"engine": "sglang"}, "service_user": "root", "service_start_limit_burst": 3,
    "service_start_timeout": 3600, "service_restart_delay": 5, "__service_longest_delay": 60,
    "service_start_grace": 600, "service_drain": 60, "service_watchdog": 90, "__service_shm_size": "16G",
    "service_numa_policy": "preferred", "__service_note": "A note.", "__service_engine_title": "SGLang",
    "__service_release_id": "r", "__service_toolkit_path": "/usr/local/lib/inference/v", "__service_keyed": True,
    "__service_command": ["/bin/true", "--config", "@credentials@/engine.yaml", "--x", "$y"],
    "__service_environment": {"A": "b c"}, "__service_loopback": True,
    "__service_place": {**ON_ONE_NODE, "nccl": {"profile": "latency", "environment": environment("latency")}},
}  # fmt: skip


def templates() -> jinja2.Environment:
    """Return what renders the templates as the roles do."""
    jinja = jinja2.Environment(  # noqa: S701 - units, not HTML
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, trim_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip
    jinja.filters |= filters()
    return jinja


def render(**more: Any) -> dict[str, str]:
    """Return unit and drop-ins by path below /etc/systemd/system."""
    place = {**SETTINGS["__service_place"], **more.pop("place", {})}
    names = {UNIT: "engine.service.j2"} | {f"{UNIT}.d/{n}.conf": f"engine.service.d/{n}.conf.j2" for n in DROP_INS}
    given = {**SETTINGS, **more, "__service_place": place}
    return {path: templates().get_template(name).render(given) for path, name in names.items()}


def every_unit() -> dict[str, str]:
    """Return whatever any template makes for systemd's [Service], by the template's name."""
    gateway = [yaml.safe_load((ROOT / f"roles/gateway/{part}/main.yml").read_text()) for part in ("defaults", "vars")]
    given = {**SETTINGS, **gateway[0], **gateway[1], "__gateway_release": {"python": "/opt/x/venv/bin/python"}}
    given |= {"__host_at_boot": {"unit": "acs", "variable": "host_acs", "value": "off"}}
    names = [str(path.relative_to(TEMPLATES)) for path in TEMPLATES.rglob("*.j2") if "[Service]" in path.read_text()]
    return {name: templates().get_template(name).render(given) for name in names}


def directives(text: str) -> list[tuple[str, str]]:
    joined = text.replace("\\\n", " ")
    return re.findall(r"(?m)^(\w+)=(.*)$", joined)


def values(texts: dict[str, str], name: str) -> list[str]:
    return [value for text in texts.values() for key, value in directives(text) if key == name]


def lay(folder: Path, texts: dict[str, str]) -> Path:
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


# versions


@pytest.mark.parametrize("place", [ON_ONE_NODE, OVER_BOTH, NO_GPUS])
def test_the_first_version_of_every_directive_is_known(place: dict[str, Any]):
    used = {name for text in render(place=place).values() for name, _ in directives(text)}
    assert used <= set(systemd.SINCE)


def test_no_directive_is_listed_that_nothing_uses():
    used = {
        name
        for place in (ON_ONE_NODE, NO_GPUS)
        for text in render(place=place).values()
        for name, _ in directives(text)
    }
    assert set(systemd.SINCE) == used


@pytest.mark.parametrize(("version", "dropped"), [(243, 8), (249, 2), (252, 2), (254, 0), (255, 0), (257, 0)])
def test_what_a_systemd_does_not_know_becomes_a_comment(version: int, dropped: int):
    texts = render()
    fitted = {path: systemd.for_version(text, version) for path, text in texts.items()}
    assert all(systemd.SINCE[name] <= version for text in fitted.values() for name, _ in directives(text))
    left = sum(text.count(f"this host has {version}\n") for text in fitted.values())
    assert left == dropped
    assert sum(len(text.splitlines()) for text in fitted.values()) == sum(len(t.splitlines()) for t in texts.values())


def test_only_directives_are_looked_at():
    text = "# RestartSteps=1\n[Service]\nExecStart=/bin/x \\\n  RestartSteps=2\nMine=3\n"
    assert systemd.for_version(text, 1) == text


# the real systemd


@needs_systemd
@pytest.mark.parametrize("place", [ON_ONE_NODE, OVER_BOTH, NO_GPUS])
@pytest.mark.parametrize("keyed", [True, False])
def test_systemd_has_nothing_to_complain_about(tmp_path: Path, place: dict[str, Any], keyed: bool):
    texts = {
        p: systemd.for_version(t, systemd.version()) for p, t in render(place=place, __service_keyed=keyed).items()
    }
    assert systemd.verify(lay(tmp_path, texts), UNIT) == []


@needs_systemd
def test_without_the_gate_an_older_systemd_complains(tmp_path: Path):
    if systemd.version() >= systemd.SINCE["RestartSteps"]:
        pytest.skip("this systemd knows all")
    assert any("RestartSteps" in line for line in systemd.verify(lay(tmp_path, render()), UNIT))


def score(folder: Path, texts: dict[str, str]) -> tuple[int, float]:
    """Return the exit code of systemd's own judgement and its figure."""
    lay(folder, {path: systemd.for_version(text, systemd.version()) for path, text in texts.items()})
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={THRESHOLD}", "--no-pager"]
    done = subprocess.run([*command, str(folder / UNIT)], capture_output=True, text=True, check=False)
    found = re.search(r"exposure level for \S+ (\d+\.\d+)", done.stdout)
    assert found is not None, done.stderr
    return done.returncode, float(found[1])


@needs_systemd
@pytest.mark.parametrize("loopback", [True, False])
def test_the_sandbox_scores_at_most_what_is_allowed(tmp_path: Path, loopback: bool):
    code, exposure = score(tmp_path, render(__service_loopback=loopback))
    assert (code, exposure <= THRESHOLD / 10) == (0, True), exposure


@needs_systemd
@pytest.mark.parametrize("gone", ["=", "SystemCallFilter", "CapabilityBoundingSet"])
def test_an_opened_sandbox_is_noticed(tmp_path: Path, gone: str):
    texts = render(__service_loopback=False)
    sandbox = f"{UNIT}.d/40-sandbox.conf"
    kept = "\n".join(line for line in texts[sandbox].splitlines() if gone not in line)
    _, whole = score(tmp_path / "whole", texts)
    code, opened = score(tmp_path / "opened", {**texts, sandbox: kept})
    assert opened > whole
    assert (code != 0) is (opened > THRESHOLD / 10)
    assert gone != "=" or code != 0


# what is in them


def test_a_key_is_a_credential_and_the_engine_gets_its_path():
    texts = render()
    assert values(texts, "LoadCredential") == [
        "engine.yaml:/etc/inference/%i/engine.yaml", "api-key:/etc/inference/%i/api-key"
    ]  # fmt: skip
    (command,) = values(texts, "ExecStart")
    assert "--config ${CREDENTIALS_DIRECTORY}/engine.yaml" in command
    assert '"$$y"' in command
    assert values(render(__service_keyed=False), "LoadCredential") == []


def pythons(text: str) -> list[bool]:
    """Say for each line that runs the host's Python whether it leaves environment, folder and user's packages aside."""
    lines = [value.split() for name, value in directives(text) if name.startswith("Exec")]
    return [words[1] == "-I" for words in lines if words[0].lstrip("-+!@:").startswith("/usr/bin/python3")]


def test_the_hosts_python_takes_nothing_from_its_surroundings():
    found = {name: pythons(text) for name, text in every_unit().items()}
    assert {name: isolated for name, isolated in found.items() if isolated} == {
        "engine.service.d/10-command.conf.j2": [True],
        "gateway/router.service.j2": [True],
        "host/at-boot.service.j2": [True, True],
    }


@pytest.mark.parametrize("name", ["engine.service.d/10-command.conf.j2", "host/at-boot.service.j2"])
def test_a_python_that_is_not_isolated_is_found(name: str):
    assert pythons(every_unit()[name].replace("-I ", "", 1))[0] is False


def test_the_interval_holds_one_start_more_than_the_burst():
    texts = render()
    (interval,), (burst,) = values(texts, "StartLimitIntervalSec"), values(texts, "StartLimitBurst")
    longest = 3600 + max(int(value) for value in values(texts, "RestartMaxDelaySec"))
    assert int(interval) >= (int(burst) + 1) * longest


def test_a_stop_outlasts_the_drain():
    assert int(values(render(), "TimeoutStopSec")[0]) > 60 + 15


def test_gpus_and_binding_of_one_node():
    texts = render()
    resources = environment_text.read(texts[f"{UNIT}.d/30-resources.conf"]).effective()
    assert {n: a.value for n, a in resources.items()} == {
        "CUDA_VISIBLE_DEVICES": "0,1,2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"
    }  # fmt: skip
    assert [values(texts, n) for n in ("AllowedCPUs", "NUMAPolicy", "NUMAMask")] == [["0-63"], ["preferred"], ["0"]]
    assert values(render(service_numa_policy="off"), "NUMAPolicy") == []


@pytest.mark.parametrize("place", [OVER_BOTH, NO_GPUS])
def test_nothing_is_bound_that_has_no_one_node(place: dict[str, Any]):
    texts = render(place=place)
    assert values(texts, "AllowedCPUs") + values(texts, "NUMAMask") == []


def test_only_a_loopback_instance_is_kept_from_other_hosts():
    assert values(render(), "IPAddressDeny") == ["any"]
    assert values(render(__service_loopback=False), "IPAddressDeny") == []


def test_shared_memory_is_the_instances_own_with_its_size():
    assert values(render(__service_shm_size="3G"), "TemporaryFileSystem") == ["/dev/shm:mode=1777,size=3G"]


@pytest.mark.parametrize(
    ("driver", "gpus", "expected"),
    [(False, 0, []), (True, 2, ["-c 0", "-c 1", "-u -c 0"])],
)
def test_device_nodes_are_made_where_there_is_a_driver_and_only_there(
    tmp_path: Path, driver: bool, gpus: int, expected: list[str]
):
    """The line of the unit, with /proc and the program in a folder of the test."""
    (line,) = values(render(), "ExecStartPre")
    flags, program, words = line[:2], "/bin/sh", environment_text.split_words(line[2:].replace("$$", "$"))
    assert (flags, words is not None and words[0]) == ("-+", program)
    proc = tmp_path / "proc"
    if driver:
        (proc / "version").parent.mkdir(parents=True)
        (proc / "version").write_text("NVRM")
        for number in range(gpus):
            (proc / f"gpus/0000:0{number}:00.0").mkdir(parents=True)
    called = tmp_path / "called"
    tool = tmp_path / "nvidia-modprobe"
    tool.write_text(f'#!/bin/sh\necho "$@" >>{called}\n')
    tool.chmod(0o755)
    assert words is not None
    script = words[2].replace("/proc/driver/nvidia", str(proc))
    done = subprocess.run(["/bin/sh", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=False)
    assert done.returncode == 0
    assert (called.read_text().splitlines() if called.exists() else []) == expected


def test_the_supervisors_settings_are_json():
    jinja = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES))  # noqa: S701
    jinja.filters["to_nice_json"] = lambda value, indent: json.dumps(value, indent=indent)
    assert json.loads(jinja.get_template("supervisor.json.j2").render(__service_supervisor={"a": 1})) == {"a": 1}
