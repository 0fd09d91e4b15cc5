#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter of ``inference.host_lock``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_lock
short_description: Lock a host for one run, so that two operators never change it at once
description:
  - A lock that another run holds is a result and not an error, since what follows is the fleet's to decide.
  - It is no change of the host, so it is never reported as one. In check mode nothing is locked, and a lock that is
    held is a warning.
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
options:
  state: {description: What is wanted., type: str, choices: [held, released], required: true}
  holder: {description: The run that asks, from the filter P(lock_holder#filter)., type: dict, required: true}
  takeover: {description: Id of the run that this one takes the lock from., type: str, default: ""}
  root: {description: Folder of the lock on the host., type: path, default: /var/lib/inference}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Lock the host
  host_lock: {state: held, holder: "{{ [] | lock_holder }}"}
"""

RETURN = r"""
state: {description: "V(taken), V(ours), V(taken-over), V(refused) or V(released).", returned: success, type: str}
refused: {description: "Who holds the lock and what can be done; empty unless refused.", returned: success, type: str}
gone: {description: "The run that holds the lock, if it was killed on this controller.", returned: success, type: str}
since: {description: "Since when, by the host's clock.", returned: success, type: str}
before: {description: The run that the lock was taken from., returned: success, type: dict}
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import host_lock
from ansible.module_utils.inference.findings import Report


def result(outcome: host_lock.Outcome, asking: host_lock.Holder, alive: set[str]) -> dict[str, Any]:
    """Return what the task returns."""
    refused = outcome.state == "refused"
    finding = host_lock.refusal(outcome.holder, asking, alive)
    return {
        "state": outcome.state,
        "refused": Report([finding]).as_text() if refused else "",
        "gone": outcome.holder.run if refused and host_lock.is_gone(outcome.holder, asking, alive) else "",
        "since": outcome.holder.since,
        "before": asdict(outcome.before) if outcome.before else {},
    }


def hold(module: AnsibleModule, asking: host_lock.Holder, alive: set[str]) -> dict[str, Any]:
    """Take the lock; in check mode only look."""
    root, takeover = Path(module.params["root"]), module.params["takeover"]
    if not module.check_mode:
        try:
            outcome = host_lock.acquire(root, asking, takeover)
        except host_lock.HostLockError as error:
            return {"state": "refused", "refused": str(error), "gone": "", "since": "", "before": {}}
        if outcome.before:
            found = outcome.before
            module.warn(
                f"the lock of {found.command} (run {found.run}), held since {found.since}, was taken over: it is over"
            )
        return result(outcome, asking, alive)
    found = host_lock.look(root)
    if found is not None and found.run not in (asking.run, takeover):
        module.warn(Report([host_lock.refusal(found, asking, alive)]).as_text())
    return result(host_lock.Outcome("taken", asking), asking, alive)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["held", "released"], "required": True},
            "holder": {"type": "dict", "required": True},
            "takeover": {"type": "str", "default": ""},
            "root": {"type": "path", "default": str(host_lock.ROOT)},
        },
        supports_check_mode=True,
    )
    given = dict(module.params["holder"])
    alive = set(given.pop("alive", []))
    try:
        asking = host_lock.Holder.from_dict(given)
        if module.params["state"] == "held":
            module.exit_json(changed=False, **hold(module, asking, alive))
        if not module.check_mode:
            host_lock.release(Path(module.params["root"]), asking.run)
        module.exit_json(changed=False, state="released", refused="", gone="", since="", before={})
    except (host_lock.HostLockError, OSError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
