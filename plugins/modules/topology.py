#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter of ``inference.topology``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: topology
short_description: Compare a GPU host with what it is meant to be
description:
  - Collects what nvidia-smi, the kernel log, C(/proc) and C(/sys) say, in one call, and compares it with an
    expectation. Changes nothing.
  - Fails on critical findings and where the answer could not be had, naming what was seen, what was expected and how
    to fix it, unless O(report_only) is set.
attributes:
  check_mode: {support: full, description: The module only reads.}
  diff_mode: {support: none, description: The module changes nothing.}
options:
  expect:
    description:
      - Name of a built-in expectation, or a mapping that alters one (its key C(base) says which).
      - C(scripts/topology expectations --json) shows them with all their keys.
    type: raw
    default: rtx-pro-6000-x8
  waive:
    description: Findings that are accepted, by id, each with the reason, which the report repeats.
    type: dict
    default: {}
  repairs:
    description: Enabled settings of the host role. In the first pass, what one of them repairs is pending.
    type: list
    elements: str
    default: []
  pass:
    description: V(first) before the host was prepared, V(second) after it; the second knows no pending.
    type: str
    choices: [first, second]
    default: second
  previous:
    description: A file on the host with the RV(fingerprint_parts) of an earlier run. What changed since is reported.
    type: path
  report_only:
    description: Report and do not fail.
    type: bool
    default: false
  timeout:
    description: Seconds for each command; nvidia-smi can hang on a GPU that does not answer.
    type: float
    default: 20
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Is this the machine that was meant?
  topology:
    expect: rtx-pro-6000-x8
    pass: first
    repairs: [host_persistence, host_pcie_aspm]

- name: Four cards on one socket, and a link class that is known to differ
  topology:
    expect: {base: rtx-pro-6000-x8, gpu_count: 4, numa_split: [4]}
    waive:
      link-class: a virtual machine hides the real topology here
"""

RETURN = r"""
ok: {description: Whether nothing is critical or unknown., returned: always, type: bool}
findings:
  description: What was found, each with id, level, what, seen, expected, fix and, if a setting repairs it, repaired_by.
  returned: always
  type: list
  elements: dict
not_checked: {description: What could not be checked, by id, and why., returned: always, type: list, elements: dict}
waived: {description: What was accepted by its id and the reason., returned: always, type: dict}
summary: {description: The findings counted by level, in one line., returned: always, type: str}
expectation: {description: Name of the expectation., returned: always, type: str}
facts: {description: GPUs, links and NICs in short., returned: always, type: dict}
fingerprint: {description: Changes when topology, driver or firmware do., returned: always, type: str}
fingerprint_parts: {description: What the fingerprint is made of., returned: always, type: dict}
"""

import json
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import topology
from ansible.module_utils.inference.findings import Report


def _previous(path: str | None) -> dict[str, Any] | None:
    """Return the fingerprint parts in ``path``; None where there is no such file. ValueError for another content."""
    if path is None or not Path(path).is_file():
        return None
    parts = json.loads(Path(path).read_text(encoding="utf-8"))
    if not isinstance(parts, dict):
        raise ValueError(f"{path}: not the parts of a fingerprint")
    return parts


def _message(report: Report) -> str:
    """Return what stops the play, for the person who reads it."""
    lines = [f"the host is not as expected: {report.summary()}"]
    for finding in report.at("critical") + report.at("unknown"):
        lines += [f"{finding.level.upper()} {finding.id}: {finding.what}", f"  seen:     {finding.seen}"]
        lines += [f"  expected: {finding.expected}", f"  fix:      {finding.fix}"]
    return "\n".join(lines)


ARGUMENTS = {
    "expect": {"type": "raw", "default": topology.DEFAULT},
    "waive": {"type": "dict", "default": {}},
    "repairs": {"type": "list", "elements": "str", "default": []},
    "pass": {"type": "str", "choices": ["first", "second"], "default": "second", "no_log": False},
    "previous": {"type": "path"},
    "report_only": {"type": "bool", "default": False},
    "timeout": {"type": "float", "default": topology.TIMEOUT},
}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    try:
        expectation = topology.expectation_of(params["expect"])
        topology.check_waivers(params["waive"])
        previous = _previous(params["previous"])
        timeout = topology.seconds(params["timeout"])
    except (topology.ExpectationError, topology.WaiverError, ValueError, OSError) as error:
        module.fail_json(msg=str(error))
    facts = topology.collect(timeout=timeout)
    parts = topology.parts_of(facts)
    repairs = params["repairs"] if params["pass"] == "first" else []  # noqa: S105 (a pass of the play, no password)
    report = topology.check(
        facts, expectation, repairs=repairs, waive=params["waive"], previous=previous, current=parts
    )
    result = report.as_dict(
        changed=False,
        summary=report.summary(),
        waived=params["waive"],
        expectation=expectation.name,
        facts=topology.brief(facts),
        fingerprint=topology.fingerprint(parts),
        fingerprint_parts=parts,
    )
    if report.ok or params["report_only"]:
        module.exit_json(**result)
    module.fail_json(msg=_message(report), **result)


if __name__ == "__main__":
    main()
