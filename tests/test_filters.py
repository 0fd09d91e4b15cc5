# SPDX-License-Identifier: Apache-2.0
"""The filters: called directly, documented, and in a play of the role inventory as Ansible hands variables over."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from loading import load

from inference import __version__
from inference.ledger import entry as patch_entry

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / ".venv/bin"
LEDGER = str(ROOT / "roles/patches/files/ledger")


@pytest.fixture(scope="module")
def filters() -> ModuleType:
    return load("inference_filters", ROOT / "plugins/filter/inference.py")


def ansible(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    given = {"PATH": f"{BIN}:{os.environ['PATH']}", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_LOCALHOST_WARNING": "0"}
    return subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120,
        env={**os.environ, **given, **(environment or {})},
    )  # fmt: skip


# documentation


def names() -> list[str]:
    text = (ROOT / "plugins/filter/inference.py").read_text()
    return re.findall(r'^            "([a-z_]+)": ', text, re.MULTILINE)


def test_the_names_are_those_that_ansible_is_told(filters: ModuleType):
    assert sorted(names()) == sorted(filters.FilterModule().filters())
    documented = {path.stem for path in (ROOT / "plugins/filter").glob("*.yml")}
    assert documented == set(names())


@pytest.mark.parametrize("name", names())
def test_every_filter_is_documented_in_ansibles_form(name: str):
    document = yaml.safe_load((ROOT / f"plugins/filter/{name}.yml").read_text())
    assert set(document) == {"DOCUMENTATION", "EXAMPLES", "RETURN"}
    about = document["DOCUMENTATION"]
    assert about["name"] == name
    assert about["short_description"]
    assert about["options"]["_input"]["description"]
    assert set(about.get("positional", "").replace(",", " ").split()) == set(about["options"]) - {"_input"}
    assert document["RETURN"]["_value"]["type"]
    assert name in document["EXAMPLES"]
    assert isinstance(yaml.safe_load(document["EXAMPLES"]), list)


def test_ansible_doc_finds_every_filter():
    done = ansible("ansible-doc", "-t", "filter", "--json", *names())
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert sorted(found) == sorted(names())
    assert all(entry["doc"]["short_description"] for entry in found.values())


def test_the_documented_options_are_the_parameters(filters: ModuleType):
    for name, function in filters.FilterModule().filters().items():
        parameters = list(function.__annotations__)
        document = yaml.safe_load((ROOT / f"plugins/filter/{name}.yml").read_text())
        options = list(document["DOCUMENTATION"]["options"])
        assert options == ["_input", *[p for p in parameters if p != "return"][1:]], name


# each filter


def test_engine_command(filters: ModuleType):
    command = filters.engine_command({"port": 1}, "vllm", "/py", {"name": "m", "path": "/m"})
    assert command[:3] == ["/py", "-m", "vllm.entrypoints.openai.api_server"]
    assert isinstance(command, list)


def test_engine_command_in_the_words_of_the_release(filters: ModuleType):
    instance, model = {"port": 1, "arguments": {"cuda-graph-max-bs": 8}}, {"name": "m", "path": "/m"}
    assert "--cuda-graph-max-bs-decode" in filters.engine_command(instance, "sglang", "/py", model, "0.5.23")
    for version in ("0.5.9", "0.0.1", None):
        assert "--cuda-graph-max-bs" in filters.engine_command(instance, "sglang", "/py", model, version)


def test_with_presets(filters: ModuleType):
    own = {"name": "b", "preset": "kimi-k2.5", "arguments": {"context-length": 1}}
    plain, kimi = filters.with_presets([{"name": "a"}, own], "sglang")
    assert plain == {"name": "a"}
    assert kimi["arguments"]["kv-cache-dtype"] == "bf16"
    assert kimi["arguments"]["context-length"] == 1
    assert kimi["nccl_profile"] == "latency"
    with pytest.raises(AnsibleFilterError, match=r"did you mean 'kimi-k2\.5'"):
        filters.with_presets([{**own, "preset": "kimi-2.5"}], "sglang")


def test_nccl_environment(filters: ModuleType):
    assert filters.nccl_environment("latency")["NCCL_PROTO"] == "LL"
    assert filters.nccl_environment("none", {"NCCL_DEBUG": "INFO"}) == {"NCCL_DEBUG": "INFO"}
    assert filters.nccl_environment("none", None) == {}
    with pytest.raises(AnsibleFilterError, match="latancy"):
        filters.nccl_environment("latancy")


def test_systemd_text(filters: ModuleType):
    assert filters.systemd_command(["/bin/x", "--a", "b c"]) == '/bin/x \\\n  --a "b c"'
    assert filters.systemd_environment({"B": 2, "A": "x y"}) == 'Environment="A=x y"\nEnvironment=B=2'


def test_patches(filters: ModuleType):
    ledger = filters.patch_ledger(LEDGER)
    assert [entry["id"] for entry in ledger] == sorted(entry["id"] for entry in ledger)
    assert filters.patches_id(ledger, ["default"]) == patch_entry.content_id(ledger, ["default"])
    assert filters.patches_id(ledger, []) != filters.patches_id(ledger, [ledger[0]["id"]])
    with pytest.raises(AnsibleFilterError, match="P99"):
        filters.patches_id(ledger, ["P99"])
    with pytest.raises(AnsibleFilterError):
        filters.patches_id([{"id": "P01"}], ["P01"])


def test_toolkit_files(filters: ModuleType):
    version, entries = filters.toolkit_version(str(ROOT)), filters.toolkit_files(str(ROOT))
    assert version.startswith(f"{__version__}-")
    path = f"/usr/local/lib/inference/{version}"
    seen = {"/usr/local/lib"}
    for entry in entries:
        assert str(Path(entry["path"]).parent) in seen, entry["path"]
        seen.add(entry["path"])
    modes = {entry["path"].removeprefix(f"{path}/"): entry.get("mode") for entry in entries}
    assert modes["scripts/supervisor"] == "0755"
    assert modes["plugins/module_utils/inference/nccl/__init__.py"] == "0644"


@pytest.mark.parametrize("name", ["toolkit_files", "host_program_files", "gateway_files"])
def test_programs_come_with_their_folders_each_once(filters: ModuleType, name: str):
    """A folder that is named twice could not be made on a fresh host: it is there already the second time."""
    given = [str(ROOT), *(["/usr/local/lib/inference/gateway"] if name == "gateway_files" else [])]
    paths = [entry["path"] for entry in getattr(filters, name)(*given)]
    assert paths[0] == "/usr/local/lib/inference"
    assert len(set(paths)) == len(paths)
    for number, path in enumerate(paths[1:], 1):
        assert str(Path(path).parent) in paths[:number]
    role = yaml.safe_load((ROOT / "roles/host/tasks/main.yml").read_text())
    (folders,) = [task["vars"]["__host_folders"] for task in role if "__host_folders" in task.get("vars", {})]
    assert not {folder["path"] for folder in folders} & set(paths)


def test_findings_text(filters: ModuleType):
    entry = {"id": "x", "level": "critical", "what": "w", "seen": "s", "expected": "e", "fix": "f", "more": 1}
    text = filters.findings_text([{**entry, "level": "info", "id": "y"}, entry])
    assert text.index("CRITICAL x: w") < text.index("INFO y: w")
    assert "  fix:      f" in text
    assert filters.findings_text([]) == "nothing found"


def test_by_which_address_a_pool_knows_an_instance(filters: ModuleType):
    instance = {"name": "a", "port": 30000}
    assert filters.gateway_urls({**instance, "host": "10.0.0.1"}, "gpu-1") == ["http://10.0.0.1:30000"]
    assert filters.gateway_urls(instance, "gpu-1") == []
    assert filters.gateway_urls(instance, "gpu-1", True) == ["http://127.0.0.1:30000"]


def test_inventory_findings_know_this_project(filters: ModuleType):
    def ids(**hosts: Any) -> list[tuple[list[str], list[str]]]:
        found = filters.inventory_findings(hosts, list(hosts), {"inference": list(hosts)})
        return [(entry["hosts"], [f["id"] for f in entry["findings"]]) for entry in found]

    assert ids(a={"ansible_host": "x"}, b={}) == [(["a", "b"], ["nothing-served"])]
    assert ids(a={"service_drian": 1}, b={}) == [
        (["a"], ["variable-unknown", "nothing-served"]),
        (["b"], ["nothing-served"]),
    ]
    known = filters._known()
    assert {"service_instances", "host_user", "topology_expect"} <= set(known.options)
    assert known.locks["sglang-0.5.23-cu130-cp312"] == "2.30.7"
    assert known.locks["sglang-0.5.23-cpu-cp311"] is None
    assert len(known.patches) == len(list(Path(LEDGER).glob("*.yml")))
    assert not any("{{" in str(value) for value in known.defaults.values())


# in a play


PLAY = """
- hosts: inference
  gather_facts: false
  roles: [inventory]
- hosts: inference
  gather_facts: false
  tasks:
    - debug: {msg: the play goes on}
"""


@pytest.fixture(scope="module")
def playbook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("play") / "play.yml"
    file.write_text(PLAY)
    return file


def play(playbook: Path, inventory: str, **variables: Any) -> subprocess.CompletedProcess[str]:
    return ansible(
        "ansible-playbook", "-i", f"inventory/{inventory}", str(playbook), "-e", json.dumps(variables),
        environment={"ANSIBLE_ROLES_PATH": str(ROOT / "roles")},
    )  # fmt: skip


@pytest.mark.parametrize("inventory", ["example", "sandbox"])
def test_the_inventories_of_this_project_are_right(playbook: Path, inventory: str):
    done = play(playbook, inventory)
    assert done.returncode == 0, done.stdout
    assert "the play goes on" in done.stdout
    assert "WARNING" not in done.stdout


def test_critical_findings_end_the_play_before_any_host_is_asked(playbook: Path):
    done = play(
        playbook, "example", service_drain="60", engine_proxy="{{ typo }}", host_sysctls={"a": "{{ nope }}"},
        service_watchdog=30, model_catalog="{{ missing }}",
    )  # fmt: skip
    assert done.returncode != 0
    assert "the play goes on" not in done.stdout
    for said in (
        "variable-template: A variable cannot be resolved",
        "engine_proxy: 'typo' is undefined",
        "host_sysctls: 'nope' is undefined",
        "model_catalog: 'missing' is undefined",
        "CRITICAL variable-value: service_drain has the wrong type or value",
        "WARNING watchdog-too-short",
        "4 critical, 1 warning",
    ):
        assert said in done.stdout, done.stdout


def test_an_option_that_the_release_lacks_ends_the_play_before_any_host_is_asked(playbook: Path):
    instance = {"name": "a", "model": "kimi-k2.5", "port": 30000, "tensor_parallel_size": 8, "preset": "kimi-k2.5"}
    arguments = {"atention-backend": "triton", "trust-remote-code": None}
    done = play(playbook, "example", service_instances=[{**instance, "arguments": arguments}])
    assert done.returncode != 0
    assert "the play goes on" not in done.stdout
    assert "CRITICAL argument-unknown" in done.stdout
    assert "did you mean 'attention-backend'?" in done.stdout
    assert "1 critical, 1 info" in done.stdout


def test_warnings_are_shown_and_stop_nothing(playbook: Path):
    done = play(playbook, "example", service_watchdog=30)
    assert done.returncode == 0, done.stdout
    assert "WARNING watchdog-too-short" in done.stdout
    assert "the play goes on" in done.stdout


def test_a_slip_on_the_command_line_ends_rollback_before_any_host_is_asked():
    """Else rollback.yml would go back to the last good generation instead of the one that was meant."""
    done = ansible(
        "ansible-playbook", "-i", "inventory/example", "rollback.yml", "-e", "service_retsore=9f495508e8a0",
        "-e", "ansible_host=127.0.0.1 ansible_port=1", "--check",
    )  # fmt: skip
    assert done.returncode != 0
    assert "did you mean 'service_restore'?" in done.stdout
    tasks = re.findall(r"^TASK \[(.*)\]", done.stdout, re.MULTILINE)
    assert tasks[-1] == "inventory : Refuse variables that cannot be used"
    assert not [task for task in tasks if not task.startswith("inventory :")][1:]


def test_no_key_of_a_wrong_type_is_shown(playbook: Path, tmp_path: Path):
    """Neither by the inventory check nor by Ansible's own of a role's arguments."""
    keys = {"gateway_keys": "team-a: A-secret-0123456789", "gateway_certificate_key": ["A-secret-0123456789"]}
    keys |= {"service_api_keys": "a: A-secret-0123456789", "model_hub_token": {"a": "A-secret-0123456789"}}
    (tmp_path / "hosts.yml").write_text("inference: {hosts: {a: }}\ngateway: {hosts: {a: }}\n")
    (tmp_path / "vars.json").write_text(json.dumps({**keys, "ansible_host": "127.0.0.1", "ansible_port": 1}))
    for role in ("inventory", "gateway", "service"):
        (tmp_path / "play.yml").write_text(PLAY.replace("[inventory]", f"[{role}]"))
        done = ansible(
            "ansible-playbook", "-i", str(tmp_path / "hosts.yml"), str(tmp_path / "play.yml"),
            "-e", f"@{tmp_path}/vars.json", environment={"ANSIBLE_ROLES_PATH": str(ROOT / "roles")},
        )  # fmt: skip
        assert done.returncode == 2, done.stdout  # refused; 4 would be a host that was asked
        assert "the play goes on" not in done.stdout
        assert "A-secret" not in done.stdout + done.stderr, role
