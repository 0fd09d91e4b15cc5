# SPDX-License-Identifier: Apache-2.0
"""docs/host.md has every variable of the role with its default, and a section with reason and source for each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/host.md").read_text()
OPTIONS: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "roles/host/meta/argument_specs.yml").read_text())[
    "argument_specs"
]["main"]["options"]

WITHOUT_SECTION = {"host_reboot", "host_reboot_timeout", "host_overwrite"}
"""Explained in the text itself."""


def shown(value: object) -> str:
    text = json.dumps(value) if not isinstance(value, str) else value or '""'
    return f"`{text}`"


def table() -> str:
    rows = [
        f"| `{name}` | {shown(option['default'])} | {option['description'].rstrip('.')} |"
        for name, option in OPTIONS.items()
    ]
    return "\n".join(["| variable | default | what it is |", "|---|---|---|", *rows])


def test_the_table_of_variables_is_that_of_the_argument_specs():
    match = re.search(r"<!-- begin variables.*?-->\n(.*?)\n?<!-- end variables -->", PAGE, re.S)
    assert match
    assert match[1].strip() == table(), f"put this into docs/host.md:\n{table()}"


def test_every_setting_has_a_section_with_its_source():
    sections = re.findall(r"^### ([^\n]*)\n(.*?)(?=^##)", PAGE, re.M | re.S)
    assert {name for title, _ in sections for name in title.split(", ")} == OPTIONS.keys() - WITHOUT_SECTION
    assert [title for title, text in sections if not re.search(r"^Source: ", text, re.M)] == []


def test_what_the_topology_stage_says_repairs_a_finding_is_a_setting_of_this_role():
    sources = (ROOT / "plugins/module_utils/inference/topology").glob("*.py")
    named = {name for file in sources for name in re.findall(r'repaired_by="(\w+)"|"(host_reboot)"', file.read_text())}
    named = {name for pair in named for name in pair if name}
    switches = yaml.safe_load((ROOT / "roles/host/vars/main.yml").read_text())["__host_switches"]
    assert named == set(switches)
    assert set(switches) <= set(OPTIONS)
    assert switches == {name: "{{ " + name + " }}" for name in switches}
