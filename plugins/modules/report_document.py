#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""The documentation of the action plugin of the same name, which does the work on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: report_document
short_description: Write what a run found into the reports on the controller
description:
  - Replaces one JSON file whole, and makes the folder that it lies in. Nothing is started for it, here or on a host.
  - A report is what a run says and not what it changes, so it is never reported as a change.
attributes:
  check_mode: {support: full, description: Nothing is written.}
  diff_mode: {support: none}
options:
  path: {description: The file., type: path, required: true}
  content: {description: What is written., type: raw, required: true}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Keep what was found
  report_document:
    path: "{{ playbook_dir }}/reports/{{ inventory_hostname }}/found.json"
    content: "{{ found }}"
"""

RETURN = r"""
path: {description: The file., returned: success, type: str}
"""
