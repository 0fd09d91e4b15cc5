# SPDX-License-Identifier: Apache-2.0
"""The role tune, run by Ansible on this machine with stand-ins: systemd, nvidia-smi, the worker, and the other roles.

What a real systemd does with it is the scenario tune's to show. Here: in which order things happen, who is refused,
which document stays, and that the instances are started whatever happens.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parent.parent
ANSIBLE = Path(sys.executable).parent / "ansible-playbook"
WORKER = ROOT / "tests" / "stand_in_tune_worker.py"

QUICK = shlex.split(
    "--profile none --profile balanced --pairs none --decode 1 --prefill 64 --rounds 1 --repeats 2 --timeout 3"
)

NVIDIA_SMI = f"""#!{sys.executable}
import json, os, pathlib, sys
if any("compute-apps" in word for word in sys.argv):
    sys.exit(print(end=pathlib.Path(os.environ["FAKE"], "apps").read_text()))
folder = pathlib.Path({str(ROOT / "tests" / "fixtures" / "hosts" / "rtx-pro-6000-x8")!r})
answer = json.loads((folder / "commands.json").read_text())["commands"][" ".join(["nvidia-smi", *sys.argv[1:]])]
print(end=(folder / answer["file"]).read_text())
"""

SYSTEMCTL = """#!/bin/sh
case "$1 $2" in
  "show --property=Environment"*) cat "$FAKE/environment" ;;
  "show "*) if [ -e "$FAKE/pid" ] && kill -0 "$(cat "$FAKE/pid")" 2>/dev/null
    then echo ActiveState=active; else echo ActiveState=inactive; fi ;;
  *) echo "systemctl $*" >> "$FAKE/log"
    case "$*" in "stop -- inference-tune.service") [ ! -e "$FAKE/pid" ] || kill "$(cat "$FAKE/pid")" 2>/dev/null ;; esac
    true ;;
esac
"""

SYSTEMD_RUN = """#!/usr/bin/env python3
import os, subprocess, sys
fake = os.environ["FAKE"]
words = sys.argv[1:]
options = [word for word in words if word.startswith("--")]
at = next(i for i, word in enumerate(words) if not word.startswith("--"))
if "--unit=inference-tune-return" in options:
    print("promise", *words[at:], file=open(f"{fake}/log", "a"))
    sys.exit(0)
print("measure", file=open(f"{fake}/log", "a"))
path = {o.split("=")[1]: o.split("truncate:")[1] for o in options if "truncate:" in o}
limit = next(o for o in options if "RuntimeMaxSec" in o).split("=")[-1]
environment = dict(os.environ, **dict(o[9:].split("=", 1) for o in options if o.startswith("--setenv=")))
out, err = (open(path[name], "wb") for name in ("StandardOutput", "StandardError"))
command = ["timeout", limit, *words[at:]]
started = subprocess.Popen(command, stdout=out, stderr=err, env=environment, start_new_session=True)
open(f"{fake}/pid", "w").write(str(started.pid))
"""

STATUS = """#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule(argument_spec={"instance": {}, "operation": {}}, supports_check_mode=True)
name = module.params["instance"]
unit = "" if name == "absent" else f"sglang@{name}.service"
about = {"toolkit_path": "%s", "release": "r", "active": "active", "started": 1.0, "listens": {}, "action": "none",
         "will_listen": {}, "running": "g", "last_known_good": "g"}
module.exit_json(changed=False, unit=unit, **about)
"""

CONTROL = """#!/usr/bin/python
import os
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule({"unit": {}, "instance": {}, "state": {}, "enabled": {"type": "bool"}})
with open(os.environ["FAKE"] + "/log", "a") as log:
    log.write(f"{module.params['state']} {module.params['unit']}\\n")
module.exit_json(changed=True)
"""


def note(what):
    return [
        {"name": "Note it", "ansible.builtin.shell": f"echo {shlex.quote(what)} >> $FAKE/log", "changed_when": True}
    ]


class Site:
    """A project with stand-ins, and what was written down while the role ran."""

    def __init__(self, folder):
        self.folder = folder
        for part in ("bin", "library", "action", "host"):
            (folder / part).mkdir()
        for name, text in (("systemctl", SYSTEMCTL), ("systemd-run", SYSTEMD_RUN), ("nvidia-smi", NVIDIA_SMI)):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        (folder / "library" / "service_generation.py").write_text(STATUS % ROOT)
        (folder / "library" / "service_control.py").write_text(CONTROL)
        for name in ("tune_measure.py", "report_document.py"):
            (folder / "library" / name).symlink_to(ROOT / "plugins" / "modules" / name)
            (folder / "action" / name).symlink_to(ROOT / "plugins" / "action" / name)
        self.role("service", "main", note("render"))
        self.role("service", "restart", note("start {{ __service_state }}"))
        self.role("engine", "main", note("engine"))
        self.role("smoke", "main", [*note("smoke"), {"ansible.builtin.set_fact": {"__smoke_result": {"listens": {}}}}])
        for name in ("tune", "fleet"):
            (folder / "roles" / name).symlink_to(ROOT / "roles" / name)
        self.inventories = ["-i", "localhost,"]
        (folder / "apps").write_text("")
        (folder / "environment").write_text("CUDA_VISIBLE_DEVICES=0,1\n")
        (folder / "config.json").write_text(json.dumps({"hidden_size": 64, "num_hidden_layers": 2}))
        (folder / "ansible.cfg").write_text("[defaults]\ninterpreter_python=auto_silent\n")

    def role(self, name, file, tasks):
        target = self.folder / "roles" / name / "tasks"
        target.mkdir(parents=True, exist_ok=True)
        (target / f"{file}.yml").write_text(yaml.safe_dump(tasks))

    def run(self, fault="none", more=(), **variables):
        times = json.dumps({"128": 20, "8192": 200, "NCCL_ALGO=Ring": {"128": 10, "8192": 100}})
        worker = f"/usr/bin/env STAND_IN={fault} STAND_IN_TIMES='{times}' {sys.executable} {WORKER}"
        given = {
            "service_instances": [{"name": "demo", "model": "m", "port": 1, "tensor_parallel_size": 2}],
            "model_catalog": [{"name": "m", "path": str(self.folder)}],
            "service_nccl_measured": str(self.document),
            "tune_reports": str(self.folder / "reports"),
            "__tune_root": str(self.folder / "host"),
            "tune_arguments": [*QUICK, "--worker", worker, *more],
            "ansible_python_interpreter": sys.executable,
            **variables,
        }
        book = self.folder / "book.yml"
        roles = [{"include_role": {"name": "tune"}}, {"include_role": {"name": "tune", "tasks_from": "verdict"}}]
        play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": roles}
        book.write_text(yaml.safe_dump([play]))
        (self.folder / "given.json").write_text(json.dumps(given))
        environment = {
            **os.environ,
            "FAKE": str(self.folder),
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "ANSIBLE_CONFIG": str(self.folder / "ansible.cfg"),
            "ANSIBLE_LIBRARY": str(self.folder / "library"),
            "ANSIBLE_ACTION_PLUGINS": str(self.folder / "action"),
            "ANSIBLE_MODULE_UTILS": str(ROOT / "plugins" / "module_utils"),
            "ANSIBLE_FILTER_PLUGINS": str(ROOT / "plugins" / "filter"),
        }
        return subprocess.run(
            [ANSIBLE, *self.inventories, "-e", f"@{self.folder / 'given.json'}", book],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    @property
    def document(self):
        return self.folder / "host" / "nccl.json"

    @property
    def log(self):
        file = self.folder / "log"
        return [line for line in file.read_text().splitlines() if "reset-failed" not in line] if file.exists() else []

    def report(self, name="demo"):
        return json.loads((self.folder / "reports" / "localhost" / f"tune-{name}.json").read_text())


@pytest.fixture
def site(tmp_path):
    if not ANSIBLE.exists():
        pytest.skip("no ansible-playbook beside this Python")
    return Site(tmp_path)


AFTER = [
    "start started",
    "systemctl stop -- inference-tune.service",
    "systemctl stop -- inference-tune-return.timer",
    "smoke",
]


def test_it_promises_stops_measures_starts_and_tests_in_this_order(site):
    done = site.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.log[2:] == [
        "promise systemctl start -- sglang@demo.service",
        "stopped sglang@demo.service",
        "measure",
        *AFTER,
    ]
    assert "balanced: healthy" in done.stdout  # progress, as it came
    assert site.report()["decision"]["chosen"] == "balanced"
    assert site.report()["gpus"] == [0, 1]
    assert json.loads(site.document.read_text())["environment"]["NCCL_ALGO"] == "Ring"


def test_instances_leave_the_pool_before_they_stop_and_come_back_when_they_passed(site):
    for file, word in (("drain", "left"), ("enter", "entered")):
        site.role("gateway", file, note(word + " {{ __gateway_instance.name }}"))
    (site.folder / "gateway.yml").write_text("gateway: {hosts: {localhost: {}}}\n")
    site.inventories += ["-i", str(site.folder / "gateway.yml")]
    done = site.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.log[0] == "left demo"
    assert site.log[4] == "stopped sglang@demo.service"
    assert site.log[-2:] == ["smoke", "entered demo"]


def test_an_instance_that_runs_by_the_document_is_rendered_from_it(site):
    done = site.run(service_nccl_profile="measured")
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.log[5:7] == ["engine", "render"]
    assert json.loads(site.document.read_text())["environment"]["NCCL_ALGO"] == "Ring"


@pytest.mark.parametrize(("fault", "words"), [("hang:1", "hang"), ("wrong", "wrong"), ("no-torch", "torch")])
def test_what_is_found_wrong_leaves_the_document_and_the_instance_serves(site, fault, words):
    site.document.write_text("the old one")
    done = site.run(fault)
    assert done.returncode != 0
    assert words in done.stdout
    assert "stays" in done.stdout
    assert site.document.read_text() == "the old one"
    assert site.log[-4:] == AFTER


def test_one_whose_time_is_over_is_ended_and_the_instance_serves(site):
    done = site.run("hang", ["--timeout", "60"], tune_timeout=3)
    assert done.returncode != 0
    assert site.log[-4:] == AFTER
    assert site.report()["findings"]


def test_gpus_that_somebody_uses_are_refused_before_anything_is_stopped(site):
    (site.folder / "apps").write_text(f"{os.getpid()}, python3\n")
    done = site.run()
    assert done.returncode != 0
    assert f"{os.getpid()} python3" in done.stdout
    assert site.log == []


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"tune_instances": ["nobody"]}, "Expected: instances that span several GPUs"),
        (
            {"service_instances": [{"name": "demo", "model": "m", "port": 1}]},
            "Expected: instances that span several GPUs",
        ),
        (
            {
                "service_instances": [
                    {"name": n, "model": "m", "port": 1, "tensor_parallel_size": 2} for n in ("a", "b")
                ]
            },
            "nccl_measured of its own",
        ),
        (
            {"service_instances": [{"name": "absent", "model": "m", "port": 1, "tensor_parallel_size": 2}]},
            "never installed",
        ),
    ],
)
def test_what_can_not_be_measured_is_refused_before_anything_is_stopped(site, variables, words):
    done = site.run(**variables)
    assert done.returncode != 0
    assert words in " ".join(done.stdout.split())
    assert site.log == []


def test_a_failing_measurement_job_still_brings_the_instance_back(site):
    (site.folder / "bin" / "systemd-run").write_text(
        '#!/bin/sh\ncase "$*" in *inference-tune-return*) exit 0 ;; esac; echo "no such property" >&2; exit 1\n'
    )
    done = site.run()
    assert done.returncode != 0
    assert "no such property" in done.stdout
    assert site.log[-4:] == AFTER
