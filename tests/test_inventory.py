# SPDX-License-Identifier: Apache-2.0
"""Inventories: a right one is quiet, and each mistake has its own finding, named before any host is asked."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
from loading import load

from inference import engine_args, inventory, inventory_instances, inventory_values, nccl
from inference.inventory import Known

ROOT = Path(__file__).resolve().parent.parent

RIGHT: dict[str, Any] = {
    "ansible_host": "gpu-1",
    "topology_expect": "rtx-pro-6000-x8",
    "engine_name": "sglang",
    "engine_version": "0.5.23",
    "engine_variant": "cu130",
    "engine_python_version": "3.12",
    "model_catalog": [
        {"name": "kimi", "path": "/srv/models/kimi", "source": "/data/kimi"},
        {"name": "glm", "path": "/srv/models/glm"},
    ],
    "service_instances": [
        {"name": "a", "model": "kimi", "port": 30000, "tensor_parallel_size": 4, "gpus": [0, 1, 2, 3]},
        {"name": "b", "model": "glm", "port": 30001, "tensor_parallel_size": 4, "gpus": [4, 5, 6, 7]},
    ],
}


@pytest.fixture(scope="session")
def known() -> Known:
    """Return what the roles of this project really document, default to and bring."""
    filters = load("inference_filters", ROOT / "plugins/filter/inference.py")
    found: Known = filters._known()
    return found


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return RIGHT with one place changed, such as ``service_instances.0.port``; ``...`` removes it."""
    variables = copy.deepcopy(RIGHT)
    place: Any = variables
    *folders, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    for part in folders:
        place = place.setdefault(part, {}) if isinstance(place, dict) else place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return variables


def one(variables: dict[str, Any], known: Known) -> Any:
    """Return the one finding there is, whose every part says something."""
    findings = inventory.check(variables, known)
    assert len(findings) == 1, [(f.id, f.seen, f.expected) for f in findings]
    (finding,) = findings
    assert all((finding.what, finding.seen, finding.expected, finding.fix))
    return finding


def test_a_right_inventory_is_quiet(known: Known):
    assert inventory.check(RIGHT, known) == []


def test_the_defaults_of_the_roles_are_right(known: Known):
    assert [f.id for f in inventory.check(dict(known.defaults), known)] == ["nothing-served"]


def test_other_peoples_variables_are_not_looked_at(known: Known):
    theirs = {
        "ansible_user": "x",
        "inventory_hostname": "x",
        "modelx": 1,
        "my_model_path": 2,
        "hostname": 3,
        "engine": 4,
    }
    assert inventory.check({**RIGHT, **theirs}, known) == []
    assert inventory.check({**RIGHT, **{name: {} for name in inventory.REGISTERED}}, known) == []


# names and types


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("service_instance", "service_instances"),
        ("model_catalogue", "model_catalog"),
        ("smoke_rolback", "smoke_rollback"),
    ],
)
def test_an_unknown_variable_names_the_nearest(known: Known, name: str, nearest: str):
    finding = one({**RIGHT, name: 1}, known)
    assert (finding.id, finding.level, finding.seen) == ("variable-unknown", "critical", name)
    assert f"did you mean {nearest!r}?" in finding.expected


def test_a_renamed_variable_says_its_new_name(known: Known, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inventory, "RENAMED", {"service_old": "service_drain"})
    finding = one({**RIGHT, "service_old": 1}, known)
    assert (finding.id, finding.expected) == ("variable-renamed", "service_drain")


@pytest.mark.parametrize(
    ("path", "value", "expected", "fix"),
    [
        ("engine_python_version", 3.1, "a string", "quotes"),
        ("engine_version", True, "a string", "quotes"),
        ("service_drain", "60", "a whole number", "Remove the quotes"),
        ("service_drain", True, "a whole number", ""),
        ("service_drain", 1.5, "a whole number", ""),
        ("service_drain", None, "a whole number", "remove the line"),
        ("smoke_rollback", "false", "true or false", "-e '{\"smoke_rollback\": VALUE}'"),
        ("smoke_rollback", 1, "true or false", ""),
        ("smoke_mode", "ful", "one of auto, full, quick; did you mean 'full'?", ""),
        ("engine_name", "sglng", "did you mean 'sglang'?", ""),
        ("engine_find_links", "/x", "a list", ""),
        ("engine_find_links", [1], "a string", ""),
        ("engine_wheelhouse", "wheelhouse", "an absolute path", "from the root"),
        ("engine_wheelhouse", "~/wheelhouse", "an absolute path", "~ is not expanded"),
        ("smoke_reports", "", "an absolute path", ""),
        ("topology_waive", ["mig"], "a mapping", ""),
        ("topology_expect", None, "any value", ""),
        ("model_catalog", {"name": "kimi"}, "a list", ""),
        ("model_catalog.0", "kimi", "a mapping", ""),
        ("model_catalog.0.path", "models/kimi", "an absolute path", ""),
        ("model_catalog.0.name", ..., "a string", "Add name."),
        ("model_catalog.0.pth", "/x", "did you mean 'path'?", ""),
        ("service_instances.0.port", "30000", "a whole number", ""),
        ("service_instances.0.port", ..., "a whole number", "Add port."),
        ("service_instances.0.gpus", "0,1", "a list", ""),
        ("service_instances.0.gpus", ["0"], "a whole number", ""),
        ("service_instances.0.environment", None, "a mapping", ""),
        ("service_instances.0.argument", {}, "did you mean 'arguments'?", ""),
    ],
)
def test_the_wrong_type_or_value_is_named_once(known: Known, path: str, value: Any, expected: str, fix: str):
    finding = one(changed(path, value), known)
    assert (finding.id, finding.level) == ("variable-value", "critical")
    parts = path.split(".")
    named = "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in parts).lstrip(".")
    assert named in finding.what
    assert expected in finding.expected
    assert fix in finding.fix


def test_null_stands_where_there_is_no_default(known: Known):
    for key in ("nccl_profile", "gpus"):
        variables = changed(f"service_instances.1.{key}", None)
        variables["service_instances"] = variables["service_instances"][1:]
        assert inventory.check(variables, known) == []


def test_a_secret_in_the_wrong_place_is_not_shown(known: Known):
    for value in ("api_key=abc123secret", "hf_ABCDEFGHIJKLMNOPQRSTUV"):
        finding = one(changed("service_instances.0.environment", value), known)
        assert "abc123secret" not in str(finding)
        assert "ABCDEFGH" not in str(finding)
    finding = one(changed("service_drain", {"api_key": "abc123secret"}), known)
    assert "abc123secret" not in str(finding)


@pytest.mark.parametrize("kind", sorted(inventory_values.TYPES))
def test_every_type_takes_something_and_refuses_something(kind: str):
    values: dict[str, Any] = {"a": "x", "b": "/x", "c": True, "d": 1, "e": 1.5, "f": [], "g": {}}
    taken = [value for value in values.values() if not inventory_values.check("v", value, {"type": kind})]
    assert taken
    assert inventory_values.check("v", None, {"type": kind, "required": True})
    assert (len(taken) < len(values)) is (kind != "raw")


def test_every_type_that_the_roles_use_is_known(known: Known):
    def types(options: Any) -> set[str]:
        found = set()
        for option in options.values():
            found |= {option.get("type", "str"), option.get("elements", "str")} | types(option.get("options") or {})
        return found

    assert types(known.options) <= set(inventory_values.TYPES)


# settings of a host


@pytest.mark.parametrize(
    ("path", "value", "finding_id"),
    [
        ("service_drain", -1, "variable-value"),
        ("service_start_stall", 0, "variable-value"),
        ("service_keep", -1, "variable-value"),
        ("service_limit", 0, "variable-unknown"),
        ("service_shm_size", "16GB", "variable-value"),
        ("service_shm_size", "50%", "variable-value"),
        ("service_shm_size", "16G,exec", "variable-value"),
        ("service_restore", "latest", "variable-value"),
        ("engine_python", "python3", "variable-value"),
        ("host_user", "root", "variable-value"),
        ("host_user", "Inference User", "variable-value"),
        ("host_sysctls", {"vm.swappiness": 10}, "variable-value"),
        ("topology_waive", {"mig": ""}, "variable-value"),
        ("topology_waive", {"mig": True}, "variable-value"),
        ("topology_waive", {"mgi": "why"}, "topology-waive"),
        ("topology_expect", "rtx-pro-6000-x9", "topology-expect"),
        ("topology_expect", {"gpu_cuont": 4}, "topology-expect"),
        ("service_start_timeout", 300, "start-timeout"),
        ("patches_enable", ["P99"], "patch-unknown"),
        ("patches_acknowledge", ["P99"], "patch-unknown"),
        ("patches_enable", ["default", "P15"], "patch-forbidden"),
        ("patches_enable", ["P07"], "patch-not-acknowledged"),
        ("engine_version", "0.5.24", "release-without-lock"),
        ("engine_variant", "cu129", "release-without-lock"),
        ("engine_version", "0.5.7", "release-refused"),
    ],
)
def test_a_setting_that_cannot_be_used(known: Known, path: str, value: Any, finding_id: str):
    finding = one(changed(path, value), known)
    assert (finding.id, finding.level) == (finding_id, "critical")


def test_an_unknown_waiver_names_the_nearest_id(known: Known):
    assert "did you mean 'acs-redirect'?" in one(changed("topology_waive", {"acs-redirct": "why"}), known).expected
    assert inventory.check(changed("topology_waive", {"acs-redirect": "why"}), known) == []


def test_minima_and_forms_name_variables_that_exist(known: Known):
    assert set(inventory.MINIMUM) | set(inventory.FORMS) <= set(known.options)


def test_a_missing_lock_names_those_that_are_there(known: Known):
    finding = one(changed("engine_python_version", "3.9"), known)
    assert finding.seen == "sglang-0.5.23-cu130-cp39"
    assert "sglang-0.5.23-cu130-cp312" in finding.expected
    assert "vllm" not in finding.expected
    assert "0.5.23" in one(changed("engine_version", "0.5.32"), known).expected


def test_an_acknowledged_patch_is_quiet(known: Known):
    assert inventory.check({**RIGHT, "patches_enable": ["P07"], "patches_acknowledge": ["P07"]}, known) == []


def test_a_short_watchdog_is_a_warning(known: Known):
    finding = one(changed("service_watchdog", 30), known)
    assert (finding.id, finding.level) == ("watchdog-too-short", "warning")
    assert inventory.check(changed("service_watchdog", 90), known) == []


# folders that are filled, and emptied first


@pytest.mark.parametrize(
    ("path", "value", "finding_id"),
    [
        ("model_catalog.0.path", "/srv/models/kimi/", "path-form"),
        ("model_catalog.0.path", "/srv/models/../kimi", "path-form"),
        ("model_catalog.0.path", "/srv//kimi", "path-form"),
        ("model_catalog.0.path", "/srv", "path-shared"),
        ("engine_wheelhouse_target", "/", "path-shared"),
        ("engine_wheelhouse_target", "/var", "path-shared"),
        ("engine_wheelhouse_target", "/var/lib", "path-shared"),
        ("engine_wheelhouse_target", "/usr/lib/python3", "path-shared"),
        ("engine_wheelhouse_target", "/etc/wheels", "path-shared"),
        ("engine_wheelhouse_target", "/opt/inference/releases", "path-shared"),
        ("model_catalog.0.path", "/home/me/kimi", "path-hidden"),
        ("model_catalog.1.path", "/root/kimi", "path-hidden"),
        ("model_catalog.1.path", "/tmp/kimi", "path-hidden"),
        ("model_catalog.1.path", "/srv/models/kimi", "path-overlap"),
        ("model_catalog.1.path", "/srv/models/kimi/more", "path-overlap"),
        ("model_catalog.0.path", "/srv/models", "path-overlap"),
        ("engine_wheelhouse_target", "/srv/models/glm/wheels", "path-overlap"),
    ],
)
def test_a_folder_that_would_lose_something(known: Known, path: str, value: str, finding_id: str):
    assert one(changed(path, value), known).id == finding_id


def test_a_folder_that_is_only_read_loses_nothing(known: Known):
    for path in ("/models", "/usr/share/models/glm"):
        assert inventory.check(changed("model_catalog.1.path", path), known) == []


def test_two_names_of_one_model_on_the_host_are_fine(known: Known):
    variables = changed("model_catalog.0.source", ...)
    variables["model_catalog"][1]["path"] = "/srv/models/kimi"
    assert inventory.check(variables, known) == []
    assert inventory.check(changed("model_catalog.1.path", "/srv/models/kimi-2"), known) == []


def test_model_names_are_different_and_not_empty(known: Known):
    finding = inventory.check(changed("model_catalog.1.name", "kimi"), known)[0]
    assert (finding.id, finding.level) == ("model-twice", "critical")
    assert "model-name" in [f.id for f in inventory.check(changed("model_catalog.1.name", " "), known)]


def test_patches_are_for_sglang(known: Known):
    vllm = {**RIGHT, "engine_name": "vllm", "engine_version": "0.33.0"}
    assert inventory.check({**vllm, "patches_enable": ["default"]}, known) == []
    assert "patch-engine" in [f.id for f in inventory.check({**vllm, "patches_enable": ["P02"]}, known)]


def test_a_source_that_is_none_is_refused_before_any_host_is_asked(known: Known):
    for source in ("models/kimi", "hf:someone/tiny", "hf:someone/tiny@main", "ftp://x/y"):
        assert one(changed("model_catalog.1.source", source), known).id == "model-source", source
    for source in ("/data/kimi", "gpu-2:/srv/models/kimi", f"hf:someone/tiny@{'0123456789' * 4}"):
        assert inventory.check(changed("model_catalog.1.source", source), known) == [], source


def test_a_model_that_is_to_go_serves_no_instance(known: Known):
    assert one(changed("model_catalog.0.state", "absent"), known).id == "instance-model"


# instances


@pytest.mark.parametrize(
    ("path", "value", "finding_id"),
    [
        ("name", "my model", "instance-name"),
        ("name", "a@b", "instance-name"),
        ("name", "a/b", "instance-name"),
        ("name", "..", "instance-name"),
        ("name", "-a", "instance-name"),
        ("name", "", "instance-name"),
        ("name", "x" * 65, "instance-name"),
        ("name", "b", "instance-overlap"),
        ("model", "kimy", "instance-model"),
        ("port", 30001, "instance-overlap"),
        ("port", 80, "instance-port"),
        ("port", 70000, "instance-port"),
        ("host", "[::1]", "instance-host"),
        ("host", "127.0.0.1 ", "instance-host"),
        ("gpus", [0, 1], "instance-gpus"),
        ("gpus", [0, 1, 2, 2], "instance-gpus"),
        ("gpus", [0, 1, 2, -3], "instance-gpus"),
        ("gpus", [0, 1, 2, 4], "instance-overlap"),
        ("gpus", [0, 1, 2, 8], "instance-gpus-beyond"),
        ("tensor_parallel_size", 0, "instance-gpus"),
        ("tensor_parallel_size", 2, "instance-gpus"),
        ("arguments", {"pp-size": 2}, "instance-gpus"),
        ("arguments", {"port": 1}, "argument-owned"),
        ("arguments", {"api-key": "x"}, "secret-in-arguments"),
        ("arguments", {"nccl-port": 30001}, "instance-overlap"),
        ("shm_size", "16 GB", "instance-shm-size"),
        ("shm_size", "0", "instance-shm-size"),
        ("nccl_profile", "latancy", "instance-nccl"),
        ("nccl_environment", {"NCCL_PROTO": True}, "instance-nccl"),
        ("nccl_environment", {"nccl_proto": "LL"}, "instance-nccl"),
        ("nccl_environment", {"PATH": "/x"}, "instance-nccl"),
        ("nccl_environment", {"NCCL_BUFFSIZE": "16M"}, "nccl-not-a-number"),
        ("environment", {"NCCL_PROTO": "LL"}, "environment-nccl"),
        ("environment", {"CUDA_VISIBLE_DEVICES": "0"}, "environment-owned"),
        ("environment", {"A B": "x"}, "environment-name"),
        ("environment", {"1A": "x"}, "environment-name"),
        ("environment", {"A": True}, "environment-value"),
        ("environment", {"A": None}, "environment-value"),
        ("environment", {"A": ["x"]}, "environment-value"),
        ("environment", {"A": "x\ny"}, "environment-value"),
        ("smoke", {"gate": {"floors": {"single.tok": 1}}}, "instance-smoke"),
        ("smoke", {"lode": {}}, "instance-smoke"),
    ],
)
def test_an_instance_that_cannot_run(known: Known, path: str, value: Any, finding_id: str):
    finding = one(changed(f"service_instances.0.{path}", value), known)
    assert finding.id == finding_id
    assert finding.level == "critical"


@pytest.mark.parametrize(
    ("path", "value", "finding_id"),
    [
        ("host", "0.0.0.0", "instance-everywhere"),
        ("host", "::", "instance-everywhere"),
        ("host", "", "instance-everywhere"),
        ("port", 40000, "instance-port-drawn"),
        ("port", 25000, "instance-port-drawn"),
        ("arguments", {"trust-remote-code": True}, "trust-remote-code"),
        ("nccl_environment", {"NCCL_PROTOO": "LL"}, "nccl-unknown-name"),
    ],
)
def test_what_deserves_a_second_look_is_a_warning(known: Known, path: str, value: Any, finding_id: str):
    finding = one(changed(f"service_instances.0.{path}", value), known)
    assert (finding.id, finding.level) == (finding_id, "warning")
    assert "service_instances[0]" in finding.what + finding.seen


@pytest.mark.parametrize("profile", sorted(nccl.PROFILES))
def test_every_profile_is_quiet_with_every_engine(known: Known, profile: str):
    for engine, version in (("sglang", "0.5.23"), ("sglang", "0.5.17"), ("vllm", "0.33.0")):
        variables = changed("service_instances.0.nccl_profile", profile)
        variables |= {"engine_name": engine, "engine_version": version}
        assert inventory.check(variables, known) == []


def test_ranks_of_a_unit_that_reaches_loopback_only_meet_nowhere_else(known: Known):
    elsewhere = changed("service_instances.0.nccl_environment", {"NCCL_SOCKET_IFNAME": "eth0"})
    finding = one(elsewhere, known)
    assert (finding.id, finding.level) == ("nccl-loopback-unit", "critical")
    assert finding.what.startswith("service_instances[0].nccl_environment: the unit reaches loopback only")
    assert "NCCL_SOCKET_IFNAME=eth0" in finding.seen
    assert inventory.check({**elsewhere, "service_loopback_only": False}, known) == []
    instance = elsewhere["service_instances"][0]
    for other in ({"host": "10.0.0.1"}, {"tensor_parallel_size": 1, "gpus": [0]}):
        assert inventory.check({**RIGHT, "service_instances": [{**instance, **other}]}, known) == []
    assert inventory.check(changed("service_instances.0.nccl_environment", {"NCCL_SOCKET_IFNAME": "=lo"}), known) == []


@pytest.mark.parametrize(
    "nccl_settings", [{"nccl_profile": "throughput"}, {"nccl_environment": {"NCCL_P2P_DISABLE": 1}}]
)
@pytest.mark.parametrize("given", [None, False])
def test_without_peer_access_the_engines_own_all_reduce_has_to_be_off(
    known: Known, nccl_settings: dict[str, Any], given: Any
):
    variables = changed("service_instances.0.arguments", {"disable-custom-all-reduce": given})
    assert inventory.check(variables, known) == []
    variables["service_instances"][0] |= nccl_settings
    found = [f.id for f in inventory.check(variables, known)]
    assert "instance-custom-all-reduce" in found
    variables["service_instances"][0]["arguments"] = {}
    assert "instance-custom-all-reduce" not in [f.id for f in inventory.check(variables, known)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hunter2"),
        ("OPENAI_API_KEY", "hunter2"),
        ("AWS_SECRET_ACCESS_KEY", "hunter2"),
        ("DB_PASSWORD", "hunter2"),
        ("HARMLESS", "hf_hunter2hunter2hunter2"),
    ],
)
def test_a_secret_in_the_environment_is_refused_and_not_shown(known: Known, name: str, value: str):
    finding = one(changed("service_instances.0.environment", {name: value}), known)
    assert (finding.id, finding.level) == ("secret-in-environment", "critical")
    assert "hunter2" not in str(finding)


def test_what_only_sounds_like_a_secret_is_fine(known: Known):
    harmless = {"TOKENIZERS_PARALLELISM": "false", "SGLANG_MAX_TOKENS": 5, "OMP_NUM_THREADS": "2", "KEYS_ON": "x"}
    assert inventory.check(changed("service_instances.0.environment", harmless), known) == []


def test_instances_may_leave_the_choice_of_gpus_to_the_host(known: Known):
    variables = changed("service_instances.0.gpus", ...)
    assert inventory.check(variables, known) == []
    del variables["service_instances"][1]["gpus"]
    assert inventory.check(variables, known) == []
    variables["service_instances"].append({"name": "c", "model": "glm", "port": 30002})
    (finding,) = inventory.check(variables, known)
    assert (finding.id, finding.seen) == (
        "instance-gpus-beyond",
        "service_instances[0] 4, service_instances[1] 4, service_instances[2] 1",
    )


def test_a_profile_that_only_the_host_can_read_is_left_to_it(known: Known):
    assert inventory.check(changed("service_instances.0.nccl_profile", "measured"), known) == []


def test_each_kind_of_overlap_makes_one_finding_that_names_all(known: Known):
    variables = changed("service_instances.1.gpus", [0, 1, 2, 3])
    variables["service_instances"][1] |= {"port": 30000, "name": "a"}
    findings = inventory.check(variables, known)
    assert [(f.id, f.what.rsplit(" ", 1)[1]) for f in findings] == [
        ("instance-overlap", kind) for kind in ("name", "port", "GPU")
    ]
    assert findings[2].seen == "GPU 0, 1, 2, 3: service_instances[0] (a) and service_instances[1] (a)"


def test_a_host_without_gpus_has_none_to_share(known: Known):
    variables = changed("engine_variant", "cpu") | {"engine_python_version": "3.11"}
    for instance in variables["service_instances"]:
        del instance["gpus"]
        instance["tensor_parallel_size"] = 1
    assert inventory.check(variables, known) == []


def test_more_gpus_than_the_host_has(known: Known):
    variables = changed("topology_expect", "rtx-pro-6000-x4")
    assert [f.id for f in inventory.check(variables, known)] == ["instance-gpus-beyond"]
    assert inventory.check(changed("topology_expect", "any"), known) == []


@pytest.mark.parametrize("port", [30500, 30500 + 500])
def test_instances_whose_internal_ports_meet_overlap(known: Known, port: int):
    (finding,) = inventory.check(changed("service_instances.1.port", port), known)
    assert (finding.id, finding.what) == ("instance-overlap", "Instances of this host share a port")
    assert "22014" in finding.seen


def test_a_port_among_the_internal_ones_is_pointed_out(known: Known):
    finding = one(changed("service_instances.0.port", 25000), known)
    assert (finding.id, finding.level) == ("instance-port-drawn", "warning")


# keys and generations


KEY = "hunter2-hunter2-hunter2"


def test_a_key_for_each_instance_is_fine(known: Known):
    assert inventory.check({**RIGHT, "service_api_keys": {"a": KEY, "b": KEY}}, known) == []


@pytest.mark.parametrize(
    ("keys", "finding_id"),
    [
        ({"c": KEY}, "api-key-for-nobody"),
        ({KEY: "a"}, "api-key-for-nobody"),
        ({"c": [KEY]}, "api-key-for-nobody"),
        ({"a": 1234567890123456}, "api-key-form"),
        ({"a": "hunter2"}, "api-key-form"),
        ({"a": f"{KEY} {KEY}"}, "api-key-form"),
        ({"a": f"{KEY}\n"}, "api-key-form"),
        ({"a": f"-{KEY}"}, "api-key-form"),
        ({"a": None}, "api-key-form"),
        ([KEY], "variable-value"),
        (KEY, "variable-value"),
    ],
)
def test_a_key_that_cannot_be_used_is_never_shown(known: Known, keys: Any, finding_id: str):
    finding = one({**RIGHT, "service_api_keys": keys}, known)
    assert (finding.id, finding.level) == (finding_id, "critical")
    assert "hunter2" not in str(finding)
    assert "1234567890" not in str(finding)


def test_a_key_that_engines_would_take_for_an_option_says_so(known: Known):
    finding = one({**RIGHT, "service_api_keys": {"a": f"-{KEY}"}}, known)
    assert "begins with -" in finding.seen
    assert inventory.check({**RIGHT, "service_api_keys": {"a": f"{KEY}-"}}, known) == []


def test_an_instance_with_a_key_has_no_other_file_of_options(known: Known):
    variables = changed("service_instances.0.arguments", {"--config": "/x.yaml"})
    assert inventory.check(variables, known) == []
    assert one({**variables, "service_api_keys": {"a": KEY}}, known).id == "api-key-config"


@pytest.mark.parametrize("wish", ["", "9f495508e8a0", {"a": "9f495508e8a0"}, {"a": "", "b": "9f495508e8a0"}, {}])
def test_generations_to_go_back_to(known: Known, wish: Any):
    assert inventory.check({**RIGHT, "service_restore": wish}, known) == []


@pytest.mark.parametrize(
    ("wish", "place"),
    [
        ("9F495508E8A0", "service_restore"),
        (["9f495508e8a0"], "service_restore"),
        (123456789012, "service_restore"),
        ({"a": "last"}, "service_restore.a"),
        ({"c": "9f495508e8a0"}, "service_restore.c"),
    ],
)
def test_a_generation_that_is_none(known: Known, wish: Any, place: str):
    assert one({**RIGHT, "service_restore": wish}, known).what.startswith(f"{place} ")


# engine options


def test_options_are_held_against_the_release(known: Known):
    assert one(changed("service_instances.0.arguments", {"atention-backend": "x"}), known).id == "argument-unknown"
    assert one(changed("service_instances.0.arguments", {"attention-backend": "x"}), known).id == "argument-value"
    assert one(changed("service_instances.0.arguments", {"attention-backend": "trtllm_mla"}), known).level == "critical"


def test_a_preset_is_part_of_its_instance(known: Known):
    variables = changed("service_instances", [{"name": "a", "model": "kimi", "port": 30000, "preset": "kimi-k2.5"}])
    assert {f.id for f in inventory.check(variables, known)} == {"trust-remote-code", "continuous-decode-unread"}
    variables["service_instances"][0]["preset"] = "kimi-k25"
    assert one(variables, known).id == "instance-preset"


def test_a_preset_spans_the_gpus_that_it_says(known: Known):
    variables = changed("service_instances.0.preset", "glm-5-nvfp4")
    del variables["service_instances"][0]["tensor_parallel_size"]
    assert "instance-gpus" in [f.id for f in inventory.check(variables, known)]  # it names four


def test_a_release_without_a_table_is_said_and_not_checked(known: Known):
    less = dataclasses.replace(known, tables=[table for table in known.tables if table.version != "0.5.23"])
    finding = one(changed("service_instances.0.arguments", {"atention-backend": "x"}), less)
    assert (finding.id, finding.level) == ("release-without-options", "info")
    assert "scripts/engine-args make sglang-0.5.23" in finding.fix


# what is wrong already is not looked into further


@pytest.mark.parametrize("name", ["model_catalog", "service_instances", "engine_name", "service_nccl_profile"])
def test_one_mistake_makes_one_finding(known: Known, name: str):
    assert len(inventory.check({**RIGHT, name: 7}, known)) == 1


def test_many_mistakes_are_all_named_at_once(known: Known):
    variables = changed("service_instances.0.port", 80) | {"service_drain": "x", "service_foo": 1, "host_user": "root"}
    found = {finding.id for finding in inventory.check(variables, known)}
    assert found == {"instance-port", "variable-value", "variable-unknown"}
    assert len(inventory.check(variables, known)) == 4


def test_every_rule_can_fail(known: Known):
    """Each rule above is exercised: the ids here are those of all findings that the sources can make."""
    sources = (inventory, inventory_instances, inventory_values, engine_args)
    text = "".join(Path(source.__file__ or "").read_text() for source in sources)
    text += (ROOT / "plugins/module_utils/inference/engine_args/checks.py").read_text()
    here = Path(__file__).read_text() + "".join(path.read_text() for path in ROOT.glob("tests/test_engine_args*.py"))
    here += (ROOT / "tests/test_filters.py").read_text()
    ids = set(re.findall(r'(?:_wrong|wrong|Finding)\(\s*"([a-z][a-z0-9-]+)"', text))
    assert len(ids) > 30
    assert [finding_id for finding_id in sorted(ids) if finding_id not in here] == []


@pytest.mark.parametrize("name", ["services_instances", "service_instance", "models_catalog", "engine_versions"])
def test_a_name_that_is_a_slip_of_ours_is_pointed_out(known: Known, name: str):
    said = [finding for finding in inventory.check({**RIGHT, name: []}, known) if name in finding.seen]
    assert len(said) == 1
    assert said[0].id in ("variable-resembles", "variable-unknown")


@pytest.mark.parametrize("name", ["serail", "seral", "serials"])
def test_a_slip_in_a_variable_of_the_playbooks_is_pointed_out(known: Known, name: str):
    finding = one({**RIGHT, name: 1}, known)
    assert (finding.id, finding.level, finding.expected) == ("variable-resembles", "warning", "serial")


@pytest.mark.parametrize(
    "name", ["serial", "serial_number", "ansible_user", "sandbox_project", "service", "my_engine", "inventory_hostname"]
)
def test_a_name_of_the_operators_own_is_left_alone(known: Known, name: str):
    assert inventory.check({**RIGHT, name: "x"}, known) == []


def test_an_inventory_that_serves_nothing_says_so(known: Known):
    assert [f.id for f in inventory.check(changed("service_instances", ...), known)] == ["nothing-served"]
