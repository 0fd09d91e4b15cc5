# SPDX-License-Identifier: Apache-2.0
"""The guide: links lead somewhere, docs/variables.md is what the roles declare, variables in examples exist.

After a change of a role's argument_specs.yml, `.venv/bin/python tests/test_docs.py` writes docs/variables.md anew.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(
    page
    for below in ("*.md", "docs/*.md", "bench/**/*.md", "roles/**/*.md", "tests/**/*.md")
    for page in ROOT.glob(below)
)
VARIABLES = ROOT / "docs/variables.md"
LEFT_OUT = {"host", "transfer"}
"""Roles that are not on that page: docs/host.md has the first (test_docs_host.py), other roles call the second."""

HEAD = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- written by `.venv/bin/python tests/test_docs.py` from roles/*/meta/argument_specs.yml -->
# Variables

Everything that an inventory may set; [host](host.md) has the settings of the host itself. Why and when to change one
stands beside its default in `roles/*/defaults/main.yml`. A name that no role knows is refused before any host is asked.
"""


# links


def prose(page: Path) -> str:
    """Return a page without its fenced code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken(page: Path) -> list[str]:
    """Return the relative links of a page that lead to no file, or to no heading in it."""
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not ("://" in link or (target.exists() and (not anchor or anchor in anchors(target)))):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path):
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path):
    (tmp_path / "there.md").write_text("# A `host_acs` heading\n")
    page = tmp_path / "page.md"
    page.write_text(
        "## Here\n[a](there.md) [b](there.md#a-host_acs-heading) [c](#here) [d](https://example.com/x)\n"
        "[e](gone.md) [f](there.md#gone) [g](#gone)\n"
    )
    assert broken(page) == ["gone.md", "there.md#gone", "#gone"]


# variables


def declared(role: str) -> dict[str, Any]:
    """Return the options of all entry points of a role, in their order."""
    entries = yaml.safe_load((ROOT / "roles" / role / "meta/argument_specs.yml").read_text())["argument_specs"]
    return {name: option for entry in entries.values() for name, option in (entry.get("options") or {}).items()}


ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
OPTIONS = {name: option for role in ROLES for name, option in declared(role).items()}


def rows(options: dict[str, Any], prefix: str = "") -> list[str]:
    """Return a row of a table for each option, those of an entry in a list behind their list."""
    lines = []
    for name, option in options.items():
        default = f"`{json.dumps(option['default'])}`" if "default" in option else "none"
        choices = f" One of {', '.join(json.dumps(c) for c in option['choices'])}." if "choices" in option else ""
        cells = (
            f"`{prefix}{name}`",
            option.get("type", "str"),
            "**required**" if option.get("required") else default,
            option["description"].rstrip(".") + "." + choices,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines += rows(option.get("options") or {}, f"{prefix}{name}[].")
    return lines


def variables() -> str:
    """Return the page."""
    text = HEAD
    for role in ROLES:
        if role not in LEFT_OUT and (options := declared(role)):
            table = ["| variable | type | default | what it is |", "|---|---|---|---|", *rows(options)]
            text += f"\n## {role}\n\n" + "\n".join(table) + "\n"
    return text


def test_the_page_of_variables_is_what_the_roles_declare():
    assert VARIABLES.read_text() == variables(), f"write it anew: .venv/bin/python {Path(__file__).relative_to(ROOT)}"


def test_a_row_says_type_default_and_choices():
    option = {
        "type": "list",
        "default": [],
        "description": "Names.",
        "options": {"port": {"type": "int", "required": True, "description": "Port."}},
    }
    mode = {"default": "a | b", "choices": ["a | b", "off"], "description": "How"}
    assert rows({"web": option, "web_mode": mode, "web_host": {"description": "Where."}}) == [
        "| `web` | list | `[]` | Names. |",
        "| `web[].port` | int | **required** | Port. |",
        r'| `web_mode` | str | `"a \| b"` | How. One of "a \| b", "off". |',
        "| `web_host` | str | none | Where. |",
    ]


def misquoted(text: str) -> list[str]:
    """Return what a page says of variables that is not so: a name in an example, a number or truth value as default."""
    prefix = "|".join(ROLES)
    set_here = re.findall(rf"(?:-e |^    |\{{\"?)((?:{prefix})_[a-z_]+)\"?(?:=|:)", text, re.M)
    wrong = [f"{name} is no variable" for name in set_here if name not in OPTIONS]
    for name, said in re.findall(rf"^\| `((?:{prefix})_[a-z_]+)` \| `?(true|false|\d+)`? \|", text, re.M):
        if name in OPTIONS and json.dumps(OPTIONS[name].get("default")) != said:
            wrong.append(f"{name} is not {said} by default")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_pages_say_of_variables_is_so(page: Path):
    assert misquoted(page.read_text()) == []


def test_what_is_not_so_is_found():
    example = "    engine_cash: x\n    engine_cache: x\nsite.yml -e smoke_mood=full -e '{\"host_reebot\": true}'\n"
    assert misquoted(example + "| `engine_keep` | 3 | |\n") == [
        "engine_cash is no variable",
        "smoke_mood is no variable",
        "host_reebot is no variable",
        "engine_keep is not 3 by default",
    ]
    assert misquoted("| `engine_keep` | 2 | |\n| `tune_timeout` | 2400 | |\n") == []


if __name__ == "__main__":
    VARIABLES.write_text(variables())
