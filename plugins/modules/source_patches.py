#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: the source changes that an installed SGLang takes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: source_patches
short_description: Apply or revert patches of the SM120 ledger in an installed SGLang
description:
  - Decides the state of each patch from the code in the tree and puts the chosen ones in, or takes them out.
  - Everything is checked before anything is written. When one chosen patch conflicts or is refused, the module fails
    and nothing has changed.
  - Files are replaced whole and keep owner and mode. Their stale bytecode is removed.
options:
  site_packages:
    description: The folder that SGLang (and FlashInfer) is installed in.
    type: path
    required: true
  ledger:
    description: The entries of the ledger, one mapping each.
    type: list
    elements: dict
    required: true
  patches:
    description: Ids of the patches; V(default) stands for those that are on by default.
    type: list
    elements: str
    default: [default]
  state:
    description: Whether the chosen patches are to be in the tree.
    type: str
    choices: [present, absent]
    default: present
  acknowledge:
    description: Ids of patches whose stated risk is accepted.
    type: list
    elements: str
    default: []
attributes:
  check_mode: {support: full, description: Says what would change.}
  diff_mode: {support: full, description: Returns the unified diff of the files.}
author: the authors of this project
"""

EXAMPLES = r"""
- name: Put the default patches into the release
  source_patches:
    site_packages: /opt/inference/releases/sglang-0.5.23-0f3a/venv/lib/python3.12/site-packages
    ledger: "{{ patches_ledger }}"

- name: Take one patch out
  source_patches:
    site_packages: /opt/inference/releases/sglang-0.5.23-0f3a/venv/lib/python3.12/site-packages
    ledger: "{{ patches_ledger }}"
    patches: [P01]
    state: absent
"""

RETURN = r"""
patches:
  description: Every entry of the ledger as it is afterwards (in check mode as it would be; after a failure as found).
  returned: when the ledger and the tree can be read
  type: list
  elements: dict
  contains:
    id: {description: Id of the patch., type: str}
    state:
      description: One of V(applies), V(applied), V(upstream), V(not-needed), V(conflict), V(refused).
      type: str
    reason: {description: Why it is in this state., type: str}
files:
  description: Files that were (in check mode would be) replaced, relative to O(site_packages).
  returned: success
  type: list
  elements: str
content_id:
  description: SHA-256 of the ids and the effective content of the chosen patches.
  returned: success
  type: str
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import ledger

ARGUMENTS = {
    "site_packages": {"type": "path", "required": True},
    "ledger": {"type": "list", "elements": "dict", "required": True},
    "patches": {"type": "list", "elements": "str", "default": [ledger.DEFAULT]},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "acknowledge": {"type": "list", "elements": "str", "default": []},
}


def main() -> None:
    """Plan, then write unless it is a rehearsal or something is refused."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    given = module.params
    try:
        entries = ledger.load(given["ledger"])
        plan = ledger.plan(
            entries,
            given["site_packages"],
            given["patches"],
            revert=given["state"] == "absent",
            acknowledged=given["acknowledge"],
        )
        found = [asdict(state) for state in plan.before]
        if plan.refusals:
            reasons = "; ".join(f"{s.id} is {s.state}: {s.reason}" for s in plan.refusals)
            module.fail_json(msg=f"Nothing was changed. {reasons}", patches=found)
        if not module.check_mode:
            plan.execute()
    except (ledger.LedgerError, OSError) as error:
        module.fail_json(msg=f"Nothing was changed. {error}")
    module.exit_json(
        changed=bool(plan.changes),
        patches=[asdict(state) for state in plan.after],
        files=[change.file for change in plan.changes],
        content_id=ledger.content_id(entries, given["patches"]),
        diff={"prepared": plan.diff()},
    )


if __name__ == "__main__":
    main()
