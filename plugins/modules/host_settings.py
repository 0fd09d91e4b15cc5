#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter of ``inference.host``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_settings
short_description: Bring all settings of a host to what is wanted, in one round trip
description:
  - Compares kernel command line, module options, sysctls, units, limits and daemons with what is wanted, and changes
    nothing when one of them cannot be used or a file was changed by hand.
  - A setting is in effect only when the kernel, systemd or the driver says so. What waits for a reboot is named, and so
    is what cannot be done here, such as a container's kernel.
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
options:
  phase:
    description: V(look) changes nothing and says how everything stands, V(apply) brings it to what is wanted.
    type: str
    choices: [look, apply]
    default: apply
  settings:
    description: The variables of the role host by name. One that is missing, empty, zero or false is off.
    type: dict
    required: true
  files:
    description:
      - The rendered files by path. Blank content means that the setting is off; a file that this module wrote is
        removed then, and no other.
    type: dict
    default: {}
  python: {description: "The interpreter of the engines, V(auto) for the system's own.", type: str, default: auto}
  findings: {description: Findings of the topology stage; those that a reboot repairs are reasons for one., type: list,
    elements: dict, default: []}
  contained:
    description: Whether the host is a container, whose kernel is not its own. By default it is found out.
    type: bool
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: No translation by the IOMMU, weights stay in memory
  host_settings:
    settings: {host_iommu: pt, host_sysctls: {vm.swappiness: "10"}}
    files: {/etc/default/grub.d/60-inference.cfg: "{{ lookup('ansible.builtin.template', 'host/grub.cfg.j2') }}"}
"""

RETURN = r"""
settings:
  description: How each enabled setting stands, with C(setting), C(state), C(what), C(why) and C(reboot).
  returned: success
  type: list
  elements: dict
not_done: {description: What cannot be done here and why., returned: success, type: list, elements: str}
findings: {description: What is missing or about to break., returned: success, type: list, elements: dict}
missing_packages: {description: Packages that are not installed., returned: success, type: list, elements: str}
reboot: {description: Why a reboot is due; empty when none is., returned: success, type: list, elements: str}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference.host import preparation, system
from ansible.module_utils.inference.host.machine import HostError, Machine


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "phase": {"type": "str", "choices": ["look", "apply"], "default": "apply"},
            "settings": {"type": "dict", "required": True},
            "files": {"type": "dict", "default": {}},
            "python": {"type": "str", "default": "auto"},
            "findings": {"type": "list", "elements": "dict", "default": []},
            "contained": {"type": "bool"},
        },
        supports_check_mode=True,
    )
    params = module.params
    machine = Machine(contained=params["contained"])
    if refusal := system.refusal(machine, params["python"]):
        module.fail_json(msg=refusal)
    result = {"changed": False}
    try:
        if params["phase"] == "apply":
            planned = preparation.plan(params["settings"], params["files"], machine)
            result = {"changed": planned.changed, "diff": planned.diff()}
            if not module.check_mode:
                preparation.apply(planned)
                machine = Machine(contained=params["contained"])
        result |= preparation.report(params["settings"], machine, params["findings"])
        if not module.check_mode:
            preparation.notice(machine, result["reboot"])
    except HostError as error:
        module.fail_json(msg=str(error), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
