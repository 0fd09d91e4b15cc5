#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter: start, restart or stop a unit and wait for the truth about it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_control
short_description: Start, restart or stop an inference unit and follow it until it serves
description:
  - Queues the job without blocking and follows C(STATUS=), so that the phases of the start are known. In a play they
    are shown while the start lasts, since an action plugin of the same name asks again every O(patience) seconds.
  - A start that fails reports the supervisor's cause and the last lines of the journal.
  - A unit that failed before is reset first, since manual starts count against C(StartLimitBurst).
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
options:
  unit: {description: Name of the unit., type: str, required: true}
  instance: {description: Name of the instance., type: str, required: true}
  state:
    description: What to do; V(started) leaves a serving unit alone, V(followed) only waits.
    type: str
    choices: [started, restarted, stopped, followed]
    required: true
  enabled:
    description: Start the unit at boot. With O(state=stopped), V(false) takes that back and V(true) leaves it.
    type: bool
    default: true
  timeout: {description: Seconds to wait at most., type: int, default: 3600}
  patience:
    description: Seconds after which a start that goes on is reported as it is; V(0) waits until O(timeout).
    type: int
    default: 0
  since: {description: "With O(state=followed), when the start was asked for, in seconds since 1970.", type: float}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Restart an instance and wait until it serves
  service_control: {unit: sglang@kimi.service, instance: kimi, state: restarted}
"""

RETURN = r"""
seconds: {description: From the request until the unit served or had stopped., returned: success, type: float}
settled: {description: False while the start goes on after O(patience) seconds., returned: success, type: bool}
since: {description: When the start was asked for., returned: "when it is not settled", type: float}
status: {description: "What the unit says of itself (C(STATUS=)) at the end.", returned: success, type: str}
phases: {description: "What STATUS= said, each with the seconds since the request.", returned: success, type: list}
active: {description: The unit's ActiveState at the end., returned: success, type: str}
cause: {description: What the supervisor recorded about a failed start., returned: failure, type: dict}
journal: {description: The last lines of the unit's journal., returned: failure, type: list}
"""

import re
import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import generations, runtime, systemd

POLL_S = 0.5
"""Seconds between two looks at the unit; on two cores a tighter loop slows the start that it watches."""


def phase(status: str) -> str:
    """Return the phase without its running clock, so that each is recorded once."""
    return re.sub(r"(?<!after)(?<!after )(?<![\d.])[,;:]? ?(for )?\d+(\.\d+)? ?s\b", "", status).strip()


def follow(unit: str, since: float, until: float) -> tuple[systemd.UnitState, list[dict[str, Any]], bool]:
    """Wait until the unit is active or has given up; return its state, the phases seen, and whether it has settled.

    ``since`` is when the start was asked for and ``until`` when to stop waiting, in seconds since 1970.
    """
    phases: list[dict[str, Any]] = []
    while True:
        state, now = systemd.unit_state(unit), time.time()
        seen = phase(state.status) or state.sub
        if not phases or phases[-1]["phase"] != seen:
            phases.append({"seconds": round(now - since, 1), "phase": seen})
        # a job that is still queued says nothing yet: the unit waits for others, or has not begun to stop;
        # after a failed start systemd waits RestartSec and tries again: the first failure is the answer
        settled = not state.job and state.active not in ("activating", "deactivating", "reloading")
        if settled or state.sub == "auto-restart":
            return state, phases, True
        if now > until:
            return state, phases, False
        time.sleep(POLL_S)


def cause(instance: str, since: float) -> dict[str, Any]:
    """Return what the supervisor recorded about a failure after ``since`` (Unix time): a record outlives success."""
    return runtime.read_json(generations.RUNTIME_ROOT / instance / "last-failure.json", since) or {}


def begin(module: AnsibleModule, unit: str) -> float:
    """Ask for the (re)start and return when that was."""
    since = time.time()
    state = systemd.unit_state(unit)
    if state.load != "loaded":
        module.fail_json(msg=f"{unit} cannot be started: systemd says {state.load}. See systemctl status {unit}.")
    if state.active == "failed" or state.sub == "auto-restart":
        systemd.systemctl("stop", unit, check=False)
        systemd.systemctl("reset-failed", unit, check=False)
    systemd.systemctl("restart" if module.params["state"] == "restarted" else "start", "--no-block", "--", unit)
    return since


def see_through(module: AnsibleModule, unit: str, since: float) -> None:
    """Follow a start that was asked for, and leave the module with the result."""
    end = since + module.params["timeout"]
    patience = module.params["patience"]
    state, phases, settled = follow(unit, since, min(end, time.time() + patience) if patience else end)
    seconds = round(time.time() - since, 1)
    result = {"seconds": seconds, "phases": phases, "active": state.active, "status": state.status, "settled": True}
    if state.serving:
        module.exit_json(changed=True, **result)
    if not settled and time.time() < end:
        module.exit_json(changed=True, **{**result, "settled": False, "since": since})
    # stopped, so that nothing keeps retrying behind the play while files are exchanged
    systemd.systemctl("stop", unit, check=False)
    fail(module, unit, state, since, result)


def fail(module: AnsibleModule, unit: str, state: systemd.UnitState, since: float, result: dict[str, Any]) -> None:
    """End the module with the supervisor's cause and the journal's last lines."""
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
    module.fail_json(msg="\n".join(lines), cause=known, journal=systemd.journal(unit), **result)


def stop(unit: str, *, at_boot: bool) -> dict[str, Any]:
    """Stop the unit, and with ``at_boot`` never start it again."""
    began = time.monotonic()
    if at_boot:
        systemd.systemctl("disable", "--quiet", "--", unit)
    systemd.systemctl("stop", "--", unit)
    return quiet(systemd.unit_state(unit), time.monotonic() - began)


def quiet(state: systemd.UnitState, seconds: float = 0.0) -> dict[str, Any]:
    """Return the result of something without phases."""
    known = {"active": state.active, "status": state.status, "settled": True}
    return {"seconds": round(seconds, 1), "phases": [], **known}


def run(module: AnsibleModule) -> None:
    """Do what is asked, and leave the module with the result."""
    unit, wanted, enable = module.params["unit"], module.params["state"], module.params["enabled"]
    if wanted == "followed":
        see_through(module, unit, module.params["since"] or time.time())
    state = systemd.unit_state(unit)
    unwilling = enable and not systemd.enabled(unit)
    at_boot = not enable and systemd.enabled(unit)
    changed = {
        "started": unwilling or not state.serving,
        "restarted": True,
        "stopped": at_boot or state.active not in ("inactive", "failed"),
    }[wanted]
    if module.check_mode or not changed:
        module.exit_json(changed=changed, **quiet(state))
    if wanted == "stopped":
        module.exit_json(changed=True, **stop(unit, at_boot=at_boot))
    if enable:
        systemd.systemctl("enable", "--quiet", "--", unit)
    if wanted == "started" and state.serving:
        module.exit_json(changed=True, **quiet(state))
    see_through(module, unit, begin(module, unit))


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "required": True},
            "instance": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["started", "restarted", "stopped", "followed"], "required": True},
            "enabled": {"type": "bool", "default": True},
            "timeout": {"type": "int", "default": 3600},
            "patience": {"type": "int", "default": 0},
            "since": {"type": "float"},
        },
        supports_check_mode=True,
    )
    if not module.params["unit"]:
        module.fail_json(msg=f"nothing is installed for {module.params['instance']}; run site.yml first")
    try:
        run(module)
    except systemd.SystemdError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
