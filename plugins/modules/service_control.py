#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter: start, restart or stop a unit and wait for the truth about it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_control
short_description: Start, restart or stop an inference unit and follow it until it serves
description:
  - Queues the job without blocking and follows C(STATUS=), so that the phases of the start are known afterwards.
  - A start that fails reports the supervisor's cause and the last lines of the journal.
  - A unit that failed before is reset first, since manual starts count against C(StartLimitBurst).
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
options:
  unit: {description: Name of the unit., type: str, required: true}
  instance: {description: Name of the instance., type: str, required: true}
  state:
    description: What to do; V(started) leaves a serving unit alone.
    type: str
    choices: [started, restarted, stopped]
    required: true
  enabled:
    description: Start the unit at boot. With O(state=stopped), V(false) takes that back and V(true) leaves it.
    type: bool
    default: true
  timeout: {description: Seconds to wait at most., type: int, default: 3600}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Restart an instance and wait until it serves
  service_control: {unit: sglang@kimi.service, instance: kimi, state: restarted}
"""

RETURN = r"""
seconds: {description: From the request until the unit served or had stopped., returned: success, type: float}
phases: {description: "What STATUS= said, each with the seconds since the request.", returned: success, type: list}
active: {description: The unit's ActiveState at the end., returned: success, type: str}
cause: {description: What the supervisor recorded about a failed start., returned: failure, type: dict}
journal: {description: The last lines of the unit's journal., returned: failure, type: list}
"""

import json
import re
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import generations, systemd

POLL_S = 0.5
"""Seconds between two looks at the unit; on two cores a tighter loop slows the start that it watches."""


def phase(status: str) -> str:
    """Return the phase without its running clock, so that each is recorded once."""
    return re.sub(r"[,;:]? ?(for )?\d+(\.\d+)? ?s\b", "", status).strip()


def follow(unit: str, timeout: int) -> tuple[systemd.UnitState, list[dict[str, Any]]]:
    """Wait until the unit is active or has given up; return its state and the phases seen."""
    phases: list[dict[str, Any]] = []
    began = time.monotonic()
    while True:
        state, now = systemd.unit_state(unit), time.monotonic() - began
        seen = phase(state.status) or state.sub
        if not phases or phases[-1]["phase"] != seen:
            phases.append({"seconds": round(now, 1), "phase": seen})
        # a job that is still queued says nothing yet: the unit waits for others, or has not begun to stop;
        # after a failed start systemd waits RestartSec and tries again: the first failure is the answer
        settled = not state.job and state.active not in ("activating", "deactivating", "reloading")
        if settled or state.sub == "auto-restart":
            return state, phases
        if now > timeout:
            return state, phases
        time.sleep(POLL_S)


def cause(instance: str, since: float) -> dict[str, Any]:
    """Return what the supervisor recorded about a failure after ``since`` (Unix time): a record outlives success."""
    file = generations.RUNTIME_ROOT / instance / "last-failure.json"
    try:
        if file.stat().st_mtime < since:
            return {}
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def start(module: AnsibleModule, unit: str) -> None:
    """(Re)start the unit, follow it, and leave the module with the result."""
    began, since = time.monotonic(), time.time()
    state = systemd.unit_state(unit)
    if state.load != "loaded":
        module.fail_json(msg=f"{unit} cannot be started: systemd says {state.load}. See systemctl status {unit}.")
    if state.active == "failed" or state.sub == "auto-restart":
        systemd.systemctl("stop", unit, check=False)
        systemd.systemctl("reset-failed", unit, check=False)
    systemd.systemctl("restart" if module.params["state"] == "restarted" else "start", "--no-block", "--", unit)
    state, phases = follow(unit, module.params["timeout"])
    result = {"seconds": round(time.monotonic() - began, 1), "phases": phases, "active": state.active}
    if state.serving:
        module.exit_json(changed=True, **result)
    # stopped, so that nothing keeps retrying behind the play while files are exchanged
    systemd.systemctl("stop", unit, check=False)
    known = cause(module.params["instance"], since)
    said = known.get("what") or state.status or state.result
    lines = [
        f"{unit} did not become ready in {result['seconds']} s: {said} ({state.result or 'timeout'}, main process "
        f"{state.exit_code or 'still running'}).",
        *(
            f"{label}: {known[key]}"
            for label, key in (("cause", "cause"), ("log", "line"), ("fix", "fix"))
            if known.get(key)
        ),
        f"See journalctl -u {unit}.",
    ]
    module.fail_json(
        msg="\n".join(lines),
        cause=known, journal=systemd.journal(unit), **result,
    )  # fmt: skip


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "instance": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["started", "restarted", "stopped"], "required": True},
            "enabled": {"type": "bool", "default": True},
            "timeout": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    unit, wanted = module.params["unit"], module.params["state"]
    if not unit:
        module.fail_json(msg=f"nothing is installed for {module.params['instance']}; run site.yml first")
    try:
        state = systemd.unit_state(unit)
        unwilling = module.params["enabled"] and not systemd.enabled(unit)
        at_boot = not module.params["enabled"] and systemd.enabled(unit)
        changed = {
            "started": unwilling or not state.serving,
            "restarted": True,
            "stopped": at_boot or state.active not in ("inactive", "failed"),
        }[wanted]
        if module.check_mode or not changed:
            module.exit_json(changed=changed, seconds=0.0, phases=[], active=state.active)
        if module.params["enabled"] and wanted != "stopped":
            systemd.systemctl("enable", "--quiet", "--", unit)
        if wanted == "started" and state.serving:
            module.exit_json(changed=True, seconds=0.0, phases=[], active=state.active)
        if wanted != "stopped":
            start(module, unit)
        if at_boot:
            systemd.systemctl("disable", "--quiet", "--", unit)
        began = time.monotonic()
        systemd.systemctl("stop", "--", unit)
        module.exit_json(
            changed=True, seconds=round(time.monotonic() - began, 1), phases=[],
            active=systemd.unit_state(unit).active,
        )  # fmt: skip
    except systemd.SystemdError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
