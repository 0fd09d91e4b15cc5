#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter: measure on a host as a job of its systemd."""

from __future__ import annotations

DOCUMENTATION = r"""
module: tune_measure
short_description: Measure NCCL settings on a host, and promise that its instances return
description:
  - The measurement is a transient unit, so it does not hang on the connection. An action plugin of the same name shows
    its progress.
  - V(promise) has systemd start the units later, even if nobody comes back to do it; V(kept) takes that away.
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
options:
  operation:
    description:
      - V(look) tells who holds the GPUs and which ones each unit uses; V(promise) and V(kept) are about the return.
      - V(measure) begins; V(follow) waits for its end; V(install) puts what it wrote in its place.
    type: str
    choices: [look, promise, measure, follow, install, kept]
    required: true
  units: {description: Units of the instances., type: list, elements: str, default: []}
  folder: {description: Where the measurement writes., type: path}
  command: {description: What measures., type: list, elements: str, default: []}
  environment: {description: Its environment., type: dict, default: {}}
  seconds: {description: "Time for it, or until the return.", type: int, default: 2400}
  offset: {description: "With V(follow), how much of the log is known.", type: int, default: 0}
  patience: {description: "With V(follow), seconds to wait in one call.", type: int, default: 5}
  dest: {description: "With V(install), where the host's measured document lies.", type: path}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: See who holds the GPUs
  tune_measure: {operation: look, units: [sglang@kimi.service]}
"""

RETURN = r"""
strangers: {description: Processes on a GPU that are not of these units., returned: with look, type: list}
gpus: {description: By unit the numbers of its GPUs., returned: with look, type: dict}
settled: {description: Whether the measurement has ended., returned: with measure and follow, type: bool}
lines: {description: What is new in its log., returned: with follow, type: list}
offset: {description: How much of the log is known now., returned: with follow, type: int}
code: {description: Exit code of the measurement; null when it was ended., returned: when it has settled, type: int}
report: {description: What it found., returned: when it has settled, type: dict}
installable: {description: Whether it wrote a document., returned: when it has settled, type: bool}
"""

import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import systemd
from ansible.module_utils.inference.tune import hosting

QUERY = ["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"]


def look(module: AnsibleModule) -> dict[str, Any]:
    """Return who holds the GPUs."""
    units = module.params["units"]
    apps = ""
    if shutil.which(QUERY[0]):
        code, apps, said = module.run_command(QUERY)
        if code:
            module.fail_json(msg=f"{' '.join(QUERY)} fails: {said.strip() or apps.strip()}. Mend the driver first.")
    pids = [int(word) for word in (line.split(",")[0] for line in apps.splitlines()) if word.isdecimal()]
    cgroups = {pid: path.read_text() for pid in pids if (path := Path(f"/proc/{pid}/cgroup")).exists()}
    strange = hosting.strangers(hosting.holders(apps, cgroups), units)
    shown = {unit: systemd.systemctl("show", "--property=Environment", "--value", "--", unit) for unit in units}
    gpus = {unit: hosting.gpus_of(text) for unit, text in shown.items()}
    return {"changed": False, "strangers": [holder.as_dict() for holder in strange], "gpus": gpus}


def promise(module: AnsibleModule) -> dict[str, Any]:
    """Have the units started later; an older promise gives way."""
    kept(module)
    run(module, hosting.returning(module.params["units"], module.params["seconds"]))
    return {"changed": True}


def kept(_module: AnsibleModule) -> dict[str, Any]:
    """Take the promise back, and end a measurement that was left behind."""
    for unit in (hosting.UNIT, f"{hosting.RETURN}.timer"):
        systemd.systemctl("stop", "--", unit, check=False)
        systemd.systemctl("reset-failed", "--", unit, check=False)
    return {"changed": True}


def measure(module: AnsibleModule) -> dict[str, Any]:
    """Begin anew in an empty folder."""
    folder = Path(module.params["folder"])
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    for name in (hosting.ENDED, hosting.LOG, hosting.OUTPUT, hosting.MEASURED):
        (folder / name).unlink(missing_ok=True)
    given = module.params
    run(module, hosting.measuring(given["command"], given["environment"], folder, given["seconds"]))
    return {"changed": True, "settled": False, "offset": 0}


def follow(module: AnsibleModule) -> dict[str, Any]:
    """Wait for the end, not longer than the patience, and return what is new."""
    folder, end = Path(module.params["folder"]), time.monotonic() + module.params["patience"]
    while True:
        state = systemd.unit_state(hosting.UNIT)
        settled = state.active not in ("active", "activating", "deactivating")
        if settled or time.monotonic() > end:
            break
        time.sleep(0.3)
    log = folder / hosting.LOG
    text = log.read_text(errors="replace") if log.exists() else ""
    whole = text[module.params["offset"] :] if settled else text[module.params["offset"] : text.rfind("\n") + 1]
    result = {"changed": True, "settled": settled, "lines": whole.splitlines()}
    result["offset"] = module.params["offset"] + len(whole)
    return {**result, **hosting.ended(folder).as_dict()} if settled else result


def install(module: AnsibleModule) -> dict[str, Any]:
    """Put the document in its place as a whole; the folder of the former stays readable to all."""
    source, dest = Path(module.params["folder"]) / hosting.MEASURED, Path(module.params["dest"])
    dest.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    temporary = dest.with_name(f".{dest.name}.new")
    shutil.copyfile(source, temporary)
    temporary.chmod(0o644)
    temporary.replace(dest)
    return {"changed": True}


def run(module: AnsibleModule, command: list[str]) -> None:
    """Run a command or end the module with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        module.fail_json(msg=f"{' '.join(command[:3])}: {done.stderr.strip() or done.stdout.strip()}")


OPERATIONS = {
    "look": look, "promise": promise, "measure": measure, "follow": follow, "install": install, "kept": kept,
}  # fmt: skip


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "operation": {"type": "str", "choices": list(OPERATIONS), "required": True},
            "units": {"type": "list", "elements": "str", "default": []},
            "folder": {"type": "path"},
            "command": {"type": "list", "elements": "str", "default": []},
            "environment": {"type": "dict", "default": {}},
            "seconds": {"type": "int", "default": 2400},
            "offset": {"type": "int", "default": 0},
            "patience": {"type": "int", "default": 5},
            "dest": {"type": "path"},
        },
        required_if=[
            ("operation", "measure", ["folder", "command"]),
            ("operation", "follow", ["folder"]),
            ("operation", "install", ["folder", "dest"]),
        ],
        supports_check_mode=True,
    )
    operation = module.params["operation"]
    if module.check_mode and operation != "look":
        module.exit_json(changed=True, settled=True)
    try:
        module.exit_json(**OPERATIONS[operation](module))
    except (systemd.SystemdError, OSError, subprocess.SubprocessError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
