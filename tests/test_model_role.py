# SPDX-License-Identifier: Apache-2.0
"""The role model in one play on this machine: a model that cannot be had is named, and nothing secret is shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOKEN = "hf_0123456789abcdef0123456789"
PROXY = "http://user:pa55word@127.0.0.1:1"
COMMIT = "0123456789" * 4


def play(folder: Path, *models: dict[str, str]) -> subprocess.CompletedProcess[str]:
    tasks = [{
        "name": "Bring them",
        "block": [{"include_role": {"name": "model"}}],
        "rescue": [{"name": "Say why", "debug": {"msg": "because: {{ ansible_failed_result.msg }}"}}],
    }]  # fmt: skip
    (folder / "play.yml").write_text(json.dumps([{"hosts": "gpu-1", "gather_facts": False, "tasks": tasks}]))
    given = {
        "ansible_connection": "local", "ansible_python_interpreter": sys.executable, "model_user": "root",
        "model_catalog": models, "model_hub_token": TOKEN, "model_hub_proxy": PROXY,
        "model_hub_endpoint": "http://127.0.0.1:1",
    }  # fmt: skip
    (folder / "given.json").write_text(json.dumps(given))
    environment = {
        **os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
        "ANSIBLE_NOCOLOR": "1",
    }  # fmt: skip
    program = Path(sys.executable).parent / "ansible-playbook"
    return subprocess.run(
        [program, "-vvv", "-i", "gpu-1,", folder / "play.yml", "-e", f"@{folder}/given.json", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800, env=environment,
    )  # fmt: skip


def test_a_model_that_can_not_be_had_is_named_and_no_secret_is_shown(tmp_path: Path):
    hub = {"name": "from-a-hub", "path": str(tmp_path / "hub"), "source": f"hf:someone/tiny@{COMMIT}"}
    done = play(tmp_path, hub, {"name": "nowhere", "path": str(tmp_path / "none")})
    said = " ".join(done.stdout.split())
    assert "because: model nowhere: " in said, done.stdout + done.stderr
    assert "(item=from-a-hub)" in said
    assert "(item=nowhere)" in said
    assert "TASK [model : Fetch it from the hub: from-a-hub]" in said
    assert "someone/tiny" not in " ".join(line for line in done.stdout.splitlines() if "item=" in line)
    for secret in (TOKEN, "pa55word"):
        assert secret not in done.stdout + done.stderr
