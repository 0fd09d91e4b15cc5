#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter of ``inference.weights``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_weights
short_description: Check model weights, and put a model that was brought into its place
description:
  - Compares every weight file's length with its own header and the index, and checks that the service may read it.
  - A model that is brought arrives beside its place and is moved there only when it is whole.
attributes:
  check_mode: {support: full}
  diff_mode: {support: none}
options:
  models: {description: "Entries with C(name) and C(path).", type: list, elements: dict, required: true}
  user: {description: The account that has to read them., type: str}
  incoming: {description: "Check C(<path>.incoming) and move it to C(path).", type: bool, default: false}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Check a model
  model_weights:
    models: [{name: kimi, path: /srv/models/kimi}]
    user: inference
"""

RETURN = r"""
incomplete: {description: Names of the models that cannot be loaded., returned: success, type: list}
problems: {description: "Name to what is wrong, as text.", returned: success, type: dict}
bytes: {description: "Name to the bytes of its weights.", returned: success, type: dict}
"""

import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import weights


def place(module: AnsibleModule, model: dict[str, str]) -> None:
    """Move a model that was brought into its place, if it is whole."""
    target = Path(model["path"])
    incoming = Path(f"{target}.incoming")
    found = weights.problems(incoming)
    if found:
        module.fail_json(msg=f"model {model['name']}: what was brought is not whole: " + "; ".join(found))
    if not weights.replaceable(target):
        module.fail_json(
            msg=f"model {model['name']}: seen {target}, which is a link, a file or a folder of something else; "
            "expected an incomplete model or nothing; fix: move it away, or give the model another path. "
            f"What was brought waits in {incoming}."
        )
    if target.exists():
        shutil.rmtree(target)
    incoming.rename(target)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "models": {"type": "list", "elements": "dict", "required": True},
            "user": {"type": "str"},
            "incoming": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    models = module.params["models"]
    if module.params["incoming"] and module.check_mode:
        module.exit_json(changed=True, incomplete=[], problems={}, bytes={})
    if module.params["incoming"]:
        for model in models:
            place(module, model)
    user = module.params["user"]
    if module.check_mode and user and not weights.account_exists(user):
        user = None  # the host role would have made it
    found = {model["name"]: weights.problems(Path(model["path"]), user) for model in models}
    found = {name: lines for name, lines in found.items() if lines}
    if module.params["incoming"] and found:
        module.fail_json(msg="; ".join(f"model {name}: {', '.join(lines)}" for name, lines in found.items()))
    module.exit_json(
        changed=module.params["incoming"],
        incomplete=sorted(found),
        problems={name: "\n".join(lines) for name, lines in found.items()},
        bytes={m["name"]: weights.size(Path(m["path"])) for m in models if m["name"] not in found},
    )


if __name__ == "__main__":
    main()
