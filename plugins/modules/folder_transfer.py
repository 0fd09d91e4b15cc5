#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action ``folder_transfer``, which does its work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: folder_transfer
short_description: Bring a folder to a host with rsync, and show how far it is
description:
  - Brings the content of a folder of the controller, or of another host of the inventory, to the host.
  - An interrupted transfer goes on where it stopped. Long ones print a line every ten seconds.
  - Links that lead out of the folder are refused, or left out where the folder is another host's; a link where it is to
    go is refused. Whoever logs in without being root needs a sudo that asks no password.
  - From another host the data goes straight to this one. For that, the ssh agent of whoever runs the play is forwarded
    to this host while the transfer lasts, and has to hold a key that the other host accepts.
attributes:
  check_mode: {support: none, description: Is skipped.}
  diff_mode: {support: none}
options:
  source:
    description: A folder of the controller, or C(HOST:/FOLDER) of a host of the inventory.
    type: str
    required: true
  target: {description: The folder on the host; made if it is not there., type: str, required: true}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Bring the wheelhouse
  folder_transfer: {source: /srv/wheelhouse, target: /var/cache/inference/wheelhouse}
"""

RETURN = r"""
changes: {description: How many files and folders were changed., returned: success, type: int}
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    """Say that this is not where the work is done."""
    text = {"type": "str", "required": True}
    module = AnsibleModule(argument_spec={"source": text, "target": text})
    module.fail_json(
        msg="folder_transfer runs on the controller; action_plugins in ansible.cfg has to name plugins/action"
    )


if __name__ == "__main__":
    main()
