#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter of ``inference.kernel_settings``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_settings
short_description: Set sysctls now and for every boot
description:
  - Compares the running values as well as the file for the next boot, so that a value which was changed by hand, or
    a run that was killed in between, is healed.
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
options:
  sysctls: {description: Name to value; values are strings., type: dict, required: true}
  path: {description: The file for the next boot., type: path, default: /etc/sysctl.d/60-inference.conf}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Keep weights in memory
  kernel_settings:
    sysctls: {vm.swappiness: "10"}
"""

RETURN = r"""
running: {description: The values before the change., returned: success, type: dict}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import kernel_settings, managed_files


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "sysctls": {"type": "dict", "required": True},
            "path": {"type": "path", "default": "/etc/sysctl.d/60-inference.conf"},
        },
        supports_check_mode=True,
    )
    try:
        settings = kernel_settings.read(module.params["sysctls"])
        planned = managed_files.plan([kernel_settings.boot_file(module.params["sysctls"], module.params["path"])])
        differing = [setting for setting in settings if setting.differs]
        if not module.check_mode:
            kernel_settings.set_running(settings)
            managed_files.apply(planned)
    except (kernel_settings.KernelSettingsError, managed_files.ManagedFilesError) as error:
        module.fail_json(msg=str(error))
    diff = planned.diff()
    if differing:
        before = "".join(f"{s.name} = {s.running}\n" for s in differing)
        after = "".join(f"{s.name} = {s.wanted}\n" for s in differing)
        diff.append({"before_header": "running", "after_header": "running", "before": before, "after": after})
    module.exit_json(
        changed=bool(differing or planned.changes), running={s.name: s.running for s in settings}, diff=diff
    )


if __name__ == "__main__":
    main()
