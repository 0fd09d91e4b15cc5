# SPDX-License-Identifier: Apache-2.0
"""A measurement as a job of the host: who holds the GPUs, what systemd is asked for, and what its end means."""

import json
import subprocess
from pathlib import Path

import pytest

from inference.tune import hosting

CGROUPS = {
    11: "0::/system.slice/system-sglang.slice/sglang@kimi.service\n",
    12: "0::/user.slice/user-1000.slice/session-4.scope\n",
    13: f"0::/system.slice/{hosting.UNIT}\n",
}
APPS = "11, sglang::scheduler_TP0\n12, python3\n13, python3\n14, [Not Found]\n"


def test_only_what_is_not_ours_is_a_stranger():
    found = hosting.holders(APPS, CGROUPS)
    assert [holder.unit for holder in found] == ["sglang@kimi.service", "session-4.scope", hosting.UNIT, ""]
    strange = hosting.strangers(found, ["sglang@kimi.service"])
    assert [(holder.pid, holder.name) for holder in strange] == [(12, "python3"), (14, "[Not Found]")]
    assert 11 in {holder.pid for holder in hosting.strangers(found, ["sglang@other.service"])}


def test_an_idle_host_has_nobody():
    assert hosting.holders("", {}) == []
    assert hosting.holders("No running processes found\n", {}) == []


@pytest.mark.parametrize(
    ("environment", "gpus"),
    [
        ("A=1 CUDA_VISIBLE_DEVICES=0,3 B=2", [0, 3]),
        ("CUDA_VISIBLE_DEVICES=7", [7]),
        ("A=1", []),
        ("CUDA_VISIBLE_DEVICES=GPU-1234", []),
        ("MY_CUDA_VISIBLE_DEVICES=1", []),
    ],
)
def test_the_gpus_of_a_unit_are_those_of_its_environment(environment, gpus):
    assert hosting.gpus_of(environment) == gpus


def test_systemd_ends_a_measurement_with_all_its_processes_and_keeps_its_exit_code(tmp_path):
    settings = {"NCCL_P2P_DISABLE": "1", "NCCL_PROTO": None}
    command = hosting.measuring(["sh", "-c", "exit 2"], settings, tmp_path, 60)
    assert not any("NCCL_PROTO" in word for word in command)  # left out by the instance, not set to "None"
    assert {"--property=RuntimeMaxSec=60", "--setenv=NCCL_P2P_DISABLE=1", f"--unit={hosting.UNIT}"} <= set(command)
    inner = command[command.index("/bin/sh") :]
    assert subprocess.run(inner, check=False).returncode == 0
    assert (tmp_path / hosting.ENDED).read_text() == "2\n"


def test_the_return_is_the_hosts_own():
    command = hosting.returning(["sglang@a.service", "sglang@b.service"], 2700)
    assert "--on-active=2700" in command
    assert command[-5:] == ["systemctl", "start", "--", "sglang@a.service", "sglang@b.service"]


def left(folder: Path, code=None, report=None, document=False, log=""):
    if code is not None:
        (folder / hosting.ENDED).write_text(f"{code}\n")
    if report is not None:
        (folder / hosting.OUTPUT).write_text(json.dumps(report))
    if document:
        (folder / hosting.MEASURED).write_text("{}")
    (folder / hosting.LOG).write_text(log)
    return hosting.ended(folder)


REPORT = {"schema": 1, "ok": True, "findings": []}


@pytest.mark.parametrize(("code", "installable"), [(0, True), (1, True), (2, False), (3, False)])
def test_the_old_document_stays_where_nothing_or_only_faults_were_found(tmp_path, code, installable):
    assert left(tmp_path, code, REPORT, document=True).installable is installable


def test_without_a_document_there_is_nothing_to_install(tmp_path):
    assert not left(tmp_path, 0, REPORT).installable


def test_one_that_was_ended_says_so_with_its_last_words(tmp_path):
    outcome = left(tmp_path, document=True, log="none: healthy\nlatency: he")
    assert outcome.code is None
    assert not outcome.installable
    assert "its time was over; latency: he" in outcome.report["findings"][0]["seen"]
    assert "exit code 3; tune: no torch" in left(tmp_path, 3, log="tune: no torch\n").report["findings"][0]["seen"]
