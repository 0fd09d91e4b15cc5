# SPDX-License-Identifier: Apache-2.0
"""Roles are consistent: settings, their documentation and their use agree. Every check is shown to fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from jinja2 import nodes
from loading import load

from inference import inventory, inventory_values

ROOT = Path(__file__).resolve().parent.parent
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
PLAYBOOKS = sorted(ROOT.glob("*.yml"))

EXPRESSIONS = ("when", "that", "failed_when", "changed_when", "until")
"""Keys whose value is an expression without braces."""

MAGIC = {"inventory_hostname", "inventory_dir"}
"""Ansible's own variables that begin like a role's."""

BLOCKS = ("block", "rescue", "always")


class Tree:
    """The roles below a folder, with the templates and playbooks beside them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = sorted(path.name for path in (root / "roles").iterdir() if path.is_dir())

    def document(self, role: str, path: str) -> Any:
        file = self.root / "roles" / role / path
        return yaml.safe_load(file.read_text()) if file.is_file() else None

    def entries(self, role: str) -> dict[str, Any]:
        return dict((self.document(role, "meta/argument_specs.yml") or {}).get("argument_specs") or {})

    def options(self, role: str) -> dict[str, Any]:
        return {name: spec for e in self.entries(role).values() for name, spec in (e.get("options") or {}).items()}

    def tasks(self, role: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Return every task and handler with the file it is in, those in blocks as well."""
        for folder in ("tasks", "handlers"):
            for file in sorted((self.root / "roles" / role / folder).glob("*.yml")):
                yield from ((f"{role}/{folder}/{file.name}", task) for task in flat(yaml.safe_load(file.read_text())))


def flat(tasks: Any) -> Iterator[dict[str, Any]]:
    for task in tasks or []:
        yield task
        for key in BLOCKS:
            yield from flat(task.get(key))


# the variables that a document uses and makes


def used(value: Any, *, expression: bool = False) -> set[str]:
    """Return the variables that the templates and expressions in a document read."""
    if isinstance(value, dict):
        return {n for key, entry in value.items() for n in used(entry, expression=key in EXPRESSIONS) | used(key)}
    if isinstance(value, list):
        return {name for entry in value for name in used(entry, expression=expression)}
    if not isinstance(value, str) or not (expression or "{{" in value or "{%" in value):
        return set()
    braced = "{{ " + value + " }}" if expression and "{{" not in value else value
    tree = jinja2.Environment(autoescape=False).parse(braced)  # noqa: S701 - parsed, never rendered
    return {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"}


def made(task: dict[str, Any]) -> set[str]:
    """Return the variables that a task defines."""
    names = set(task.get("vars") or {}) | {task["register"]} if "register" in task else set(task.get("vars") or {})
    names |= set(task.get("set_fact") or task.get("ansible.builtin.set_fact") or {})
    loop = (task.get("loop_control") or {}).get("loop_var")
    return names | ({loop} if loop else set())


# checks: each returns what is wrong


def settings_are_documented(tree: Tree, role: str) -> list[str]:
    defaults = tree.document(role, "defaults/main.yml")
    if defaults is None:
        return [f"{role}: no defaults/main.yml"]
    options = tree.options(role)
    wrong = [f"{role}: {name} has a default and no option" for name in defaults.keys() - options.keys()]
    wrong += [f"{role}: {name} has an option and no default" for name in options.keys() - defaults.keys()]
    for name in defaults.keys() & options.keys():
        if "default" in options[name] and options[name]["default"] != defaults[name]:
            wrong.append(
                f"{role}: {name} is {defaults[name]!r} by default and {options[name]['default']!r} by its option"
            )
        if not (options[name].get("required") or "default" in options[name]):
            wrong.append(f"{role}: the option {name} has neither default nor required")
    return wrong


def settings_have_their_types(tree: Tree, role: str) -> list[str]:
    defaults, options = tree.document(role, "defaults/main.yml") or {}, tree.options(role)
    whole = {name for name, value in defaults.items() if "{{" not in str(value) and not options[name].get("required")}
    return [
        f.what for name in whole & options.keys() for f in inventory_values.check(name, defaults[name], options[name])
    ]


def specs_say_what_a_role_is_for(tree: Tree, role: str) -> list[str]:
    entries = tree.entries(role)
    wrong = [] if "main" in entries else [f"{role}: argument_specs.yml has no entry main"]
    wrong += [
        f"{role}: {name} has no short_description" for name, e in entries.items() if not e.get("short_description")
    ]
    return wrong + [
        f"{role}: {name} has no description" for name, o in tree.options(role).items() if not o.get("description")
    ]


def names_begin_with_the_role(tree: Tree, role: str) -> list[str]:
    wrong = [f"{role}: the setting {name}" for name in tree.options(role) if not name.startswith(f"{role}_")]
    internal = set(tree.document(role, "vars/main.yml") or {})
    for _, task in tree.tasks(role):
        internal |= made(task) - (set(task.get("vars") or {}) if calls_a_role(task) else set())
    allowed = {*inventory.REGISTERED, *tree.options(role)}
    prefix = (f"__{role}_", f"__{role}")
    return wrong + [f"{role}: the variable {n}" for n in sorted(internal - allowed) if not n.startswith(prefix)]


def calls_a_role(task: dict[str, Any]) -> bool:
    return any(key.rsplit(".", 1)[-1] in ("include_role", "import_role") for key in task)


def variables_are_defined(tree: Tree, role: str) -> list[str]:
    """Every variable with a role's prefix is a setting, a role's internal one, or made by a task."""
    known = set(inventory.REGISTERED) | MAGIC
    for name in tree.names:
        known |= set(tree.options(name)) | set(tree.document(name, "vars/main.yml") or {})
        known |= {variable for _, task in tree.tasks(name) for variable in made(task)}
    asked = {n: where for where, task in tree.tasks(role) for n in used(task)}
    for path in ("vars/main.yml", "defaults/main.yml"):
        asked |= dict.fromkeys(used(tree.document(role, path) or {}), f"{role}/{path}")
    for file in sorted((tree.root / "roles" / role / "templates").rglob("*.j2")):
        asked |= dict.fromkeys(used("{##}{{ '' }}" + file.read_text()), f"{role}/{file.name}")
    prefixes = tuple(f"{mark}{name}_" for name in tree.names for mark in ("", "__"))
    return [
        f"{where}: {n} is defined nowhere" for n, where in asked.items() if n.startswith(prefixes) and n not in known
    ]


def settings_are_used(tree: Tree, role: str) -> list[str]:
    names = set()
    for name in tree.names:
        names |= {variable for _, task in tree.tasks(name) for variable in used(task)}
        names |= used(tree.document(name, "vars/main.yml") or {}) | used(tree.document(name, "defaults/main.yml") or {})
    for file in (tree.root / "templates").rglob("*.j2"):
        names |= used("{{ '' }}" + file.read_text())
    return [f"{role}: nothing uses {name}" for name in tree.options(role) if name not in names]


def every_task_has_a_name(tree: Tree, role: str) -> list[str]:
    return [
        f"{where}: a task without a name: {json.dumps(task)[:80]}"
        for where, task in tree.tasks(role)
        if not task.get("name")
    ]


def nothing_is_ignored(tree: Tree, role: str) -> list[str]:
    return [f"{where}: {task['name']} has ignore_errors" for where, task in tree.tasks(role) if "ignore_errors" in task]


def renders_from_the_shared_templates(tree: Tree, role: str) -> list[str]:
    """Look for ``templates -> ../../templates`` in a role that renders, and for the templates that it names."""
    text = "".join(f.read_text() for f in (tree.root / "roles" / role / "tasks").glob("*.yml"))
    named = re.findall(r"ansible\.builtin\.template', '([^']+)'", text)
    link = tree.root / "roles" / role / "templates"
    if not named:
        return [f"{role}: templates, and nothing is rendered"] if link.exists() else []
    if not link.is_symlink() or str(link.readlink()) != "../../templates":
        return [f"{role}: templates is no link to ../../templates"]
    return [f"{role}: no template {name}" for name in named if not (link / name).is_file()]


CHECKS: tuple[Callable[[Tree, str], list[str]], ...] = (
    settings_are_documented,
    settings_have_their_types,
    specs_say_what_a_role_is_for,
    names_begin_with_the_role,
    variables_are_defined,
    settings_are_used,
    every_task_has_a_name,
    nothing_is_ignored,
    renders_from_the_shared_templates,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("role", ROLES)
def test_role(role: str, check: Callable[[Tree, str], list[str]]):
    assert check(Tree(ROOT), role) == []


def test_every_template_is_rendered_by_some_role():
    text = "".join(file.read_text() for file in (ROOT / "roles").glob("*/tasks/*.yml"))
    templates = [str(file.relative_to(ROOT / "templates")) for file in (ROOT / "templates").rglob("*.j2")]
    assert templates
    assert [name for name in templates if f"'{name}'" not in text] == []


# every check fails when it should

GOOD = {
    "roles/web/defaults/main.yml": "web_port: 80\nweb_names: []\n",
    "roles/web/meta/argument_specs.yml": """
argument_specs:
  main:
    short_description: Serve
    options:
      web_port: {type: int, default: 80, description: Port.}
      web_names: {type: list, elements: str, default: [], description: Names.}
""",
    "roles/web/vars/main.yml": "__web_all: '{{ web_names }}'\n",
    "roles/web/tasks/main.yml": """
- name: Look
  ansible.builtin.command: {cmd: "look {{ web_port }}"}
  register: __web_seen
  when: __web_all | length > 0
- name: Write
  block:
    - name: Render
      ansible.builtin.copy: {content: "{{ lookup('ansible.builtin.template', 'web.conf.j2') }}"}
  vars: {__web_text: "{{ __web_seen.stdout }}"}
""",
    "templates/web.conf.j2": "{% if web_port %}{{ __web_text }}{% endif %}\n",
}

BROKEN: list[tuple[Callable[[Tree, str], list[str]], str, Any, str, str]] = [
    (settings_are_documented, "roles/web/defaults/main.yml", "web_port: 80\n", "", "an option and no default"),
    (settings_are_documented, "roles/web/defaults/main.yml", "web_port: 80", "web_port: 80\nweb_x: 1", "and no option"),
    (settings_are_documented, "roles/web/defaults/main.yml", "80", "81", "is 81 by default and 80"),
    (settings_are_documented, "roles/web/meta/argument_specs.yml", "default: 80, ", "", "neither default nor required"),
    (settings_are_documented, "roles/web/defaults/main.yml", ..., "", "no defaults/main.yml"),
    (settings_have_their_types, "roles/web/defaults/main.yml", "80", "'80'", "web_port has the wrong type"),
    (settings_have_their_types, "roles/web/defaults/main.yml", "[]", "[1]", "web_names[0] has the wrong type"),
    (
        specs_say_what_a_role_is_for,
        "roles/web/meta/argument_specs.yml",
        "short_description: Serve",
        "x: y",
        "no short_desc",
    ),
    (
        specs_say_what_a_role_is_for,
        "roles/web/meta/argument_specs.yml",
        ", description: Port.",
        "",
        "web_port has no desc",
    ),
    (specs_say_what_a_role_is_for, "roles/web/meta/argument_specs.yml", ..., "", "no entry main"),
    (names_begin_with_the_role, "roles/web/meta/argument_specs.yml", "web_port", "port", "the setting port"),
    (names_begin_with_the_role, "roles/web/tasks/main.yml", "register: __web_seen", "register: seen", "variable seen"),
    (names_begin_with_the_role, "roles/web/tasks/main.yml", "{__web_text:", "{web_text:", "variable web_text"),
    (names_begin_with_the_role, "roles/web/vars/main.yml", "__web_all", "web_all", "variable web_all"),
    (variables_are_defined, "roles/web/tasks/main.yml", "look {{ web_port", "look {{ web_prot", "web_prot is defined"),
    (variables_are_defined, "roles/web/tasks/main.yml", "when: __web_all", "when: __web_al", "__web_al is defined"),
    (variables_are_defined, "templates/web.conf.j2", "__web_text", "__web_txt", "__web_txt is defined nowhere"),
    (variables_are_defined, "roles/web/vars/main.yml", "{{ web_names", "{{ web_name", "web_name is defined nowhere"),
    (settings_are_used, "roles/web/vars/main.yml", "'{{ web_names }}'", "[]", "nothing uses web_names"),
    (every_task_has_a_name, "roles/web/tasks/main.yml", "- name: Look\n ", "-", "a task without a name"),
    (every_task_has_a_name, "roles/web/tasks/main.yml", "- name: Render\n     ", "-", "a task without a name"),
    (
        nothing_is_ignored,
        "roles/web/tasks/main.yml",
        "register:",
        "ignore_errors: true\n  register:",
        "Look has ignore",
    ),
    (renders_from_the_shared_templates, "templates/web.conf.j2", ..., "", "no template web.conf.j2"),
    (renders_from_the_shared_templates, "roles/web/templates", ..., "", "no link to ../../templates"),
    (renders_from_the_shared_templates, "roles/web/tasks/main.yml", ..., "", "and nothing is rendered"),
]


@pytest.fixture
def good(tmp_path: Path) -> Tree:
    for name, text in GOOD.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "roles/web/templates").symlink_to("../../templates")
    return Tree(tmp_path)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_consistent_role_passes(good: Tree, check: Callable[[Tree, str], list[str]]):
    assert check(good, "web") == []


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: f"{case[0].__name__}: {case[-1]}")
def test_an_inconsistent_role_is_found(good: Tree, case: tuple[Callable[[Tree, str], list[str]], str, Any, str, str]):
    check, path, old, new, said = case
    file = good.root / path
    if old is ...:
        file.unlink()
    else:
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    problems = check(good, "web")
    assert any(said in problem for problem in problems), problems


def test_every_check_is_shown_to_fail():
    assert {check for check, *_ in BROKEN} == set(CHECKS)


# playbooks


@pytest.mark.parametrize("file", PLAYBOOKS, ids=lambda file: file.name)
def test_playbooks_ignore_nothing_name_everything_and_call_roles_that_exist(file: Path):
    plays = yaml.safe_load(file.read_text())
    for play in plays:
        assert play["name"]
        for role in play.get("roles", []):
            assert (role if isinstance(role, str) else role["role"]) in ROLES
        for task in flat(play.get("tasks")):
            assert task["name"]
            if "ansible.builtin.include_role" in task:
                called = task["ansible.builtin.include_role"]
                assert (ROOT / f"roles/{called['name']}/tasks/{called.get('tasks_from', 'main')}.yml").is_file()
    assert "ignore_errors" not in file.read_text()


@pytest.mark.parametrize("file", PLAYBOOKS, ids=lambda file: file.name)
def test_the_inventory_is_checked_before_any_host_is_asked(file: Path):
    if file.name != "check.yml":
        first = yaml.safe_load(file.read_text())[0]
        assert first["ansible.builtin.import_playbook"] == "check.yml"
        assert "tags" not in first
        return
    nobody, checked = yaml.safe_load(file.read_text())
    assert nobody["hosts"] == "localhost"
    assert checked["roles"] == ["inventory"]
    assert checked["gather_facts"] is False
    assert checked["any_errors_fatal"] is True
    assert nobody["tags"] == checked["tags"] == ["always"]


# what the domain says of the roles


def test_the_results_that_roles_leave_are_those_that_the_inventory_leaves_alone():
    tree = Tree(ROOT)
    registered = {task["register"] for role in ROLES for _, task in tree.tasks(role) if "register" in task}
    assert {name for name in registered if not name.startswith("__")} == set(inventory.REGISTERED)


def test_renamed_variables_are_gone_and_their_new_names_are_there():
    options = {name for role in ROLES for name in Tree(ROOT).options(role)}
    assert set(inventory.RENAMED.values()) <= options
    assert not set(inventory.RENAMED) & options


def test_what_is_read_of_an_instance_is_documented():
    """Keys that the domain, the templates and the role read of an entry are options of ``service_instances``."""
    options = set(Tree(ROOT).options("service")["service_instances"]["options"])
    domain = ROOT / "plugins/module_utils/inference"
    text = "".join(
        (domain / f"{name}.py").read_text() for name in ("engine_args/command", "inventory_instances", "host_plan")
    )
    read = set(re.findall(r'instance(?:\.get\(|\[)"([a-z_]+)"', text))
    roles = "".join((ROOT / f"roles/{role}/tasks/{file}").read_text() for role, file in (("service", "instance.yml"),))
    read |= set(re.findall(r"__service_instance\.([a-z_]+)", roles))
    assert read == options


def test_what_is_read_of_a_model_is_documented():
    options = set(Tree(ROOT).options("model")["model_catalog"]["options"])
    read = set(re.findall(r"__model\.([a-z_]+)", (ROOT / "roles/model/tasks/fetch.yml").read_text()))
    for file in ("vars/main.yml", "tasks/main.yml"):
        read |= set(re.findall(r"selectattr\('([a-z_]+)'", (ROOT / "roles/model" / file).read_text()))
    assert read == options


# inventories


def listed(folder: str) -> dict[str, Any]:
    done = subprocess.run(
        [ROOT / ".venv/bin/ansible-inventory", "-i", folder, "--list"], capture_output=True, text=True, check=False,
        cwd=ROOT, timeout=120, env={**os.environ, "PATH": f"{ROOT}/.venv/bin:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout)["_meta"]["hostvars"])


def without_templates(variables: dict[str, Any], folder: str) -> dict[str, Any]:
    """Resolve the few variables that the inventories of this project refer to."""
    text = json.dumps(variables)
    values = {"inventory_dir": str(ROOT / folder), "playbook_dir": str(ROOT)}
    values["sandbox_project"] = str(ROOT)
    for name, value in values.items():
        text = text.replace("{{ " + name + " }}", value)
    assert "{{" not in text, re.findall(r"{{.*?}}", text)
    return dict(json.loads(text))


@pytest.mark.parametrize("folder", ["inventory/example", "inventory/sandbox"])
def test_the_inventories_of_this_project_have_no_findings(folder: str):
    filters = load("inference_filters", ROOT / "plugins/filter/inference.py")
    hosts = listed(folder)
    assert hosts
    for variables in hosts.values():
        assert inventory.check(without_templates(variables, folder), filters._known()) == []
        host = {"x": {**without_templates(variables, folder), "service_drian": 1}}
        assert filters.inventory_findings(host, ["x"], {"inference": ["x"]})
