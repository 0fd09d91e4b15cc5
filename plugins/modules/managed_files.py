#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter of ``inference.managed_files``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: managed_files
short_description: Bring many files and folders to a wanted state in one round trip
description:
  - Compares every entry first and changes nothing when one of them cannot be done.
  - Replaces each file atomically, so that a killed run leaves whole files and the next run finishes the work.
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
options:
  files:
    description: The entries, in order; a folder stands before what lies in it.
    type: list
    elements: dict
    required: true
    suboptions:
      path: {description: Absolute path., type: path, required: true}
      state: {description: What the path is to be., type: str, choices: [file, directory, absent], default: file}
      content: {description: "The file's text, rendered on the controller.", type: str}
      mode: {description: 'Octal string; default V(0644), for folders V(0755).', type: str}
      owner: {description: Owning user., type: str, default: root}
      group: {description: Owning group., type: str, default: root}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: A folder and a file in it
  managed_files:
    files:
      - {path: /etc/inference, state: directory, mode: "0750", group: inference}
      - {path: /etc/inference/motd, content: "{{ lookup('ansible.builtin.template', 'motd.j2') }}"}
"""

RETURN = r"""
paths:
  description: The paths that were, or in check mode would be, changed.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import managed_files

ENTRY = {
    "path": {"type": "path", "required": True},
    "state": {"type": "str", "choices": list(managed_files.STATES), "default": "file"},
    "content": {"type": "str"},
    "mode": {"type": "str"},
    "owner": {"type": "str", "default": "root"},
    "group": {"type": "str", "default": "root"},
}
"""Argument spec of one entry, shared with the modules that take files beside other things."""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"files": {"type": "list", "elements": "dict", "required": True, "options": ENTRY}},
        supports_check_mode=True,
    )
    try:
        planned = managed_files.plan(map(managed_files.Entry.from_dict, module.params["files"]))
        if not module.check_mode:
            managed_files.apply(planned)
    except managed_files.ManagedFilesError as error:
        module.fail_json(msg=f"{error}. Nothing was changed.")
    module.exit_json(changed=bool(planned.changes), paths=planned.paths, diff=planned.diff())


if __name__ == "__main__":
    main()
