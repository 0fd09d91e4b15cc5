#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter of ``inference.release_questions``: ask a release on its host what it takes the GPU for."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_probe
short_description: Ask an installed release, by its own Python, whether it sees this host as what it is
description:
  - Asks for torch's CUDA, NCCL and architectures, FlashInfer's versions, SGLang's own questions about the GPU
    (is_sm120_supported and its kin), and whether the shared expert of the models is fused.
  - Runs in a process of its own, with a bound, that writes no bytecode and has a home of its own. Answers are kept
    outside of the release and are asked again when release, driver, GPUs or models change.
  - Code that comes with weights is not run for it, whatever an instance's trust-remote-code says.
attributes:
  check_mode: {support: full, description: Answers that are kept are judged; nothing is asked.}
  diff_mode: {support: none}
options:
  release: {description: Name of the release. One that is not sealed yet is not asked., type: str, required: true}
  instances:
    description: Instances as in C(service_instances), presets expanded; their models are asked about.
    type: list
    elements: dict
    default: []
  catalog: {description: Models as in C(model_catalog)., type: list, elements: dict, default: []}
  user:
    description: Account that the release runs under while it is asked; V(nobody) where the host has no such account.
    type: str
    default: nobody
  timeout: {description: Seconds that the answers may take., type: int, default: 180}
  root: {description: Where releases are., type: path, default: /opt/inference/releases}
  state_dir: {description: Where answers are kept., type: path, default: /var/lib/inference/releases}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Ask the release
  release_probe: {release: "{{ engine_release.name }}"}
  register: asked
"""

RETURN = r"""
report:
  description: C(schema), C(ok), C(findings), C(not_checked) and C(facts).
  returned: success
  type: dict
line: {description: The outcome in one line., returned: success, type: str}
cached: {description: Whether the answers were kept from before., returned: success, type: bool}
"""

import hashlib
import inspect
import json
import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import engine_args, release_questions, releases
from ansible.module_utils.inference.release_questions import asked
from ansible.module_utils.inference.releases import sealing

SCHEMA = 1
DRIVER = Path("/proc/driver/nvidia")
HOMES = ("HOME", "XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE", "TMPDIR")


def host_key() -> list[str]:
    """Return what the answers depend on beside the release: the driver and the GPUs, as the driver tells them."""
    texts = []
    for path in (DRIVER / "version", *sorted(DRIVER.glob("gpus/*/information"))):
        try:
            texts.append(path.read_text())
        except OSError:
            continue
    return texts


def present(engine: str, instances: list[dict[str, Any]], catalog: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the instances whose model's configuration is on the host, with its hash and the engine's arguments."""
    models = {model.get("name"): model for model in catalog}
    found = []
    for instance in instances:
        model = models.get(instance.get("model"))
        try:
            content = (Path(model["path"]) / "config.json").read_bytes() if model else None
        except OSError:
            content = None
        if model and content is not None:
            # asked outside of the unit's sandbox: what comes with the weights is read here, never run
            safe = {**(instance.get("arguments") or {}), engine_args.RUNS_FOREIGN_CODE: None}
            words = engine_args.command(engine, "python", {**instance, "arguments": safe}, model)
            options = words[next(i for i, word in enumerate(words) if word.startswith("--")) :]
            digest = hashlib.sha256(content).hexdigest()
            entry = {"name": instance["name"], "path": model["path"], "arguments": options, "config": digest}
            found.append(entry)
    return found


def account(user: str) -> dict[str, Any]:
    """Return how subprocess starts a program under an account, with its groups, as a unit does. Only root can."""
    if os.geteuid() != 0:
        return {}
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    found = known.get(user) or known["nobody"]
    groups = os.getgrouplist(found.pw_name, found.pw_gid)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": groups}


def make_device_nodes() -> None:
    """Have the nodes of all GPUs and of unified memory made, as the unit does: without root CUDA makes none."""
    if not (DRIVER / "version").exists() or not shutil.which("nvidia-modprobe"):
        return
    gpus = len(list(DRIVER.glob("gpus/*")))
    for words in (*(["-c", str(minor)] for minor in range(gpus)), ["-u", "-c", "0"]):
        subprocess.run(["nvidia-modprobe", *words], capture_output=True, check=False)


def ask(release: releases.Release, request: dict[str, Any], user: str, timeout: int) -> dict[str, Any]:
    """Run the questions under the release's own Python. Raises OSError, ValueError and subprocess.TimeoutExpired."""
    make_device_nodes()
    identity = account(user)
    with tempfile.TemporaryDirectory(prefix="inference-probe.") as home:
        os.chown(home, identity.get("user", -1), identity.get("group", -1))
        environment = dict.fromkeys(HOMES, home) | {
            "PATH": f"{release.venv}/bin:/usr/local/cuda/bin:/usr/bin:/bin",
            "CUDA_HOME": "/usr/local/cuda",
            "HF_HUB_OFFLINE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [str(release.python), "-I", "-B", "-c", inspect.getsource(asked)],
            input=json.dumps(request), env=environment, cwd=home,
            capture_output=True, text=True, errors="replace", check=False, timeout=timeout,
            **identity,
        )  # fmt: skip
    try:
        answers: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.strip()[-300:] or f"exit {done.returncode}"
        return {"torch": {"error": f"the release's Python ended without an answer: {last}"}}
    return answers


def answers_of(module: AnsibleModule, release: releases.Release, record: dict[str, Any]) -> tuple[Any, bool]:
    """Return the answers and whether they were kept; None where they would have to be asked in a rehearsal."""
    request = {
        "engine": record["engine"],
        "packages": release_questions.packages(record),
        "models": present(record["engine"], module.params["instances"], module.params["catalog"]),
    }
    parts = [SCHEMA, record["record_sha256"], host_key(), request, inspect.getsource(asked)]
    key = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    file = release.state_dir / f"{release.name}.answers.json"
    try:
        kept = json.loads(file.read_text())
        if kept["key"] == key:
            return kept["answers"], True
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if module.check_mode:
        return None, False
    try:
        answers = ask(release, request, module.params["user"], module.params["timeout"])
    except subprocess.TimeoutExpired:
        # not kept: a host that was busy may answer the next time
        return {"torch": {"error": f"no answer in {module.params['timeout']} s"}}, False
    if "error" not in answers["torch"]:
        release.state_dir.mkdir(parents=True, exist_ok=True)
        sealing.write_atomically(file, json.dumps({"key": key, "answers": answers}, indent=1).encode(), mode=0o600)
    return answers, False


def probe(module: AnsibleModule) -> dict[str, Any]:
    """Return the module's result."""
    params = module.params
    release = releases.Release(params["release"], Path(params["root"]), Path(params["state_dir"]))
    cached = False
    if release.state != "sealed":
        report = release_questions.not_asked(f"the release is {release.state}: it is asked once it is sealed")
    else:
        record = release.record()
        if record["variant"] == "cpu":
            report = release_questions.not_asked(release_questions.CPU)
        else:
            answers, cached = answers_of(module, release, record)
            report = (
                release_questions.not_asked("nothing is asked in a rehearsal")
                if answers is None
                else release_questions.judge(answers, record)
            )
    return {"changed": False, "report": report, "line": release_questions.line(report), "cached": cached}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "release": {"type": "str", "required": True},
            "instances": {"type": "list", "elements": "dict", "default": []},
            "catalog": {"type": "list", "elements": "dict", "default": []},
            "user": {"type": "str", "default": "nobody"},
            "timeout": {"type": "int", "default": 180},
            "root": {"type": "path", "default": "/opt/inference/releases"},
            "state_dir": {"type": "path", "default": "/var/lib/inference/releases"},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**probe(module))
    except (releases.ReleaseError, OSError, KeyError) as error:
        module.fail_json(msg=f"{module.params['release']}: {error}")


if __name__ == "__main__":
    main()
