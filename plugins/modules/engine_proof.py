#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter of ``inference.proof``: what a running engine really is, against what was meant."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_proof
short_description: Prove that a running engine is what its generation says
description:
  - Reads the engine's process (program, packages, environment, command line), its release, its journal since the
    start, and its own answers, and compares them with the generation that is installed.
  - A setting that is not engaged, a backend that was silently replaced, code from elsewhere and a changed file are
    critical findings. What can't be read is listed as not checked. Changes nothing.
attributes:
  check_mode: {support: full, description: Nothing is read; the result is empty.}
  diff_mode: {support: none}
options:
  instance: {description: Name of the instance., type: str, required: true}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Prove what runs
  engine_proof: {instance: kimi}
  register: proof

- name: Refuse what is not what was meant
  ansible.builtin.assert:
    that: proof.report.ok
"""

RETURN = r"""
report:
  description: C(schema), C(ok), C(findings), C(not_checked) and C(facts). Empty in check mode.
  returned: success
  type: dict
line: {description: The outcome in one line., returned: success, type: str}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import generations, proof, systemd
from ansible.module_utils.inference.proof import gather


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={"instance": {"type": "str", "required": True}}, supports_check_mode=True)
    if module.check_mode:
        module.exit_json(changed=False, report={}, line="not proved in a rehearsal")
    try:
        report: dict[str, Any] = proof.prove(gather.gather(module.params["instance"]))
    except (proof.MeantError, generations.GenerationError, systemd.SystemdError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, report=report, line=proof.line(report))


if __name__ == "__main__":
    main()
