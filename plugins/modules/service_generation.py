#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter of ``inference.generations``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_generation
short_description: Keep, install, prove or restore a generation of an instance
description:
  - A generation is everything that decides what an instance runs. Its files are checked with the host's own
    C(systemd-analyze verify) before any of them is installed.
  - Whether the service has to be (re)started is decided from state, by comparing the generation that the running
    process was started with and the one on disk, and its start with the age of its credentials. So a play that was
    killed between the two heals on its next run.
  - Directives that the host's systemd does not know are left out, each with a comment.
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
options:
  instance: {description: Name of the instance., type: str, required: true}
  operation:
    description:
      - V(prepare) checks the given files and keeps them as a generation. What is installed and what runs stay as they
        are, so that the gateways can be told before anything is touched.
      - V(install) makes the kept generation that O(generation) names the installed one. A unit of another engine that
        it takes the place of is stopped and disabled.
      - V(promote) records that the installed generation passed its smoke test.
      - V(restore) installs the last generation that passed, or the one named with O(generation).
      - V(remove) stops and disables the instance and removes its unit, settings, secrets and generations.
      - V(status) only looks.
    type: str
    choices: [prepare, install, promote, restore, remove, status]
    required: true
  unit: {description: Name of the unit. Required to prepare., type: str}
  release: {description: Id of the engine release. Required to prepare., type: str}
  toolkit: {description: Version of the toolkit on the host. Required to prepare., type: str}
  files:
    description: As for M(managed_files); C(@generation@) in a content stands for the generation's id.
    type: list
    elements: dict
    suboptions:
      path: {description: Where it lies on the host., type: path, required: true}
      state: {description: What it is., type: str, choices: [file], default: file}
      content: {description: The whole text., type: str, required: true}
      mode: {description: "Its mode as an octal string; V(0644) when absent.", type: str}
      owner: {description: Its owner., type: str, default: root}
      group: {description: Its group., type: str, default: root}
  generation: {description: The generation to install or to restore. Required to install., type: str}
  evidence: {description: What the smoke test measured; kept with V(promote)., type: dict, default: {}}
  keep: {description: How many generations to keep beside those in use., type: int, default: 3}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Record that the smoke test passed
  service_generation:
    instance: kimi
    operation: promote
    evidence: "{{ smoke.gate }}"
"""

RETURN = r"""
generation: {description: Id of the generation that is prepared or installed., returned: success, type: str}
running: {description: Id of the generation that the running process was started with., returned: success, type: str}
action: {description: "What the service needs: V(none), V(start) or V(restart).", returned: success, type: str}
last_known_good: {description: Id of the generation that last passed its smoke test., returned: success, type: str}
previous: {description: Id of the generation that was installed when the module began., returned: success, type: str}
drift: {description: Files that were changed by hand since they were installed., returned: success, type: list}
local: {description: Drop-ins that are not of this toolkit and that the unit reads., returned: success, type: list}
stale_credentials: {description: Secrets that were replaced since the process started., returned: success, type: list}
paths: {description: "Files that were changed now; with V(prepare), those that differ.", returned: success, type: list}
unit: {description: Name of the unit., returned: success, type: str}
release: {description: Id of the release that the generation runs., returned: success, type: str}
toolkit_path: {description: Folder of the toolkit that the generation uses., returned: success, type: str}
active: {description: The unit's ActiveState., returned: success, type: str}
started: {description: When its main process was started (seconds since 1970)., returned: success, type: float}
listens:
  description: C(host) and C(port) of the generation that runs or ran last; where that is unknown, of the installed one.
  returned: success
  type: dict
will_listen: {description: C(host) and C(port) of RV(generation)., returned: success, type: dict}
status: {description: What the service says of itself (STATUS=)., returned: success, type: str}
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import generations, managed_files, systemd, toolkit

OPERATIONS = ["prepare", "install", "promote", "restore", "remove", "status"]

ENTRY = {
    "path": {"type": "path", "required": True},
    "state": {"type": "str", "choices": ["file"], "default": "file"},
    "content": {"type": "str", "required": True},
    "mode": {"type": "str"},
    "owner": {"type": "str", "default": "root"},
    "group": {"type": "str", "default": "root"},
}


def given_generation(module: AnsibleModule) -> generations.Generation:
    """Return the generation that the given files make, as this host's systemd can read it."""
    given = module.params
    files = tuple(map(managed_files.Entry.from_dict, given["files"]))
    made = generations.Generation(given["instance"], given["unit"], given["release"], given["toolkit"], files)
    return made.for_systemd(systemd.version())


def kept_generation(module: AnsibleModule, store: generations.Store) -> generations.Generation:
    """Return the kept generation that is to be installed."""
    target = module.params["generation"] or store.rollback_target()
    if target is None:
        raise generations.GenerationError(
            f"{store.instance} has no generation to go back to: no other one ever passed its smoke test"
        )
    return store.load(target)


def usable(module: AnsibleModule, generation: generations.Generation, *, rehearse: bool) -> None:
    """End the module when the generation could not run here, before anything is changed."""
    missing = [str(path) for path in generation.credentials() if not path.is_file()]
    if missing and not (module.check_mode and module.params["operation"] == "prepare"):
        raise generations.GenerationError(
            f"generation {generation.id} of {generation.instance} needs {', '.join(missing)}, which is not there; "
            "give the key again in service_api_keys and run site.yml"
        )
    said = complaints(generation) if rehearse else []
    if said:
        module.fail_json(msg=f"{generation.unit} is not right; nothing was changed:\n  " + "\n  ".join(said))


def complaints(generation: generations.Generation) -> list[str]:
    """Check the unit and its drop-ins with the host's own systemd, before they are installed."""
    folder = Path(tempfile.mkdtemp(prefix="inference-verify."))
    try:
        for entry in generation.entries():
            path = Path(entry.path)
            if path.is_relative_to("/etc/systemd/system") and entry.state == "file":
                staged = folder / path.relative_to("/etc/systemd/system")
                staged.parent.mkdir(parents=True, exist_ok=True)
                staged.write_text(entry.content)
        said: list[str] = systemd.verify(folder, generation.unit)
        return said
    finally:
        shutil.rmtree(folder)


def retire(unit: str) -> None:
    """Stop a unit that another one takes the place of, and never start it again."""
    if systemd.unit_state(unit).load == "loaded":
        systemd.systemctl("disable", "--now", "--quiet", "--", unit)


def compare(
    module: AnsibleModule, store: generations.Store, wanted: generations.Generation
) -> tuple[generations.Difference, dict[str, Any]]:
    """Hold what is installed against the wanted generation; end the module when that could not run here."""
    previous = store.current()
    difference = store.compare(wanted)
    changed = bool(difference.plan.changes) or previous != wanted.id
    # a rehearsal on a bare host lacks what the unit names; a generation that is kept lacks nothing
    usable(module, wanted, rehearse=changed and (not module.check_mode or module.params["operation"] != "prepare"))
    if difference.drift:
        # in the same words by whoever prepares it and installs it: Ansible shows a warning once
        module.warn(
            f"changed by hand since it was installed, which is undone: {', '.join(difference.drift)} (--diff shows "
            "how; a drop-in of another name, such as 90-local.conf, is left alone)"
        )
    if difference.plan.unknown_owners and not module.check_mode:
        raise managed_files.ManagedFilesError(f"no such user or group: {', '.join(difference.plan.unknown_owners)}")
    return difference, {
        "changed": changed,
        "generation": wanted.id,
        "previous": previous,
        "drift": difference.drift,
        "paths": difference.plan.paths,
        "diff": difference.plan.diff(),
        **about(wanted),
    }


def about(generation: generations.Generation | None) -> dict[str, Any]:
    """Return what a generation is made for; nothing in it where there is none."""
    return {
        "unit": generation.unit if generation else "",
        "release": generation.release if generation else "",
        "toolkit_path": f"{toolkit.ROOT}/{generation.toolkit}" if generation else "",
        "will_listen": generation.listens if generation else {},
    }


def prepare(module: AnsibleModule, store: generations.Store) -> dict[str, Any]:
    """Keep the given files as a generation that can be installed."""
    wanted = given_generation(module)
    _, result = compare(module, store, wanted)
    if result["changed"] and not module.check_mode:
        store.keep(wanted)
    return result


def install(module: AnsibleModule, store: generations.Store) -> dict[str, Any]:
    """Make a kept generation the installed one."""
    wanted = kept_generation(module, store)
    difference, result = compare(module, store, wanted)
    if result["changed"] and not module.check_mode:
        if difference.replaced_unit:  # while systemd still has its file: it would go on serving on the same port
            retire(difference.replaced_unit)
        managed_files.apply(difference.plan)
        systemd.systemctl("daemon-reload")
        store.installed(wanted)
    return result


def look(store: generations.Store) -> dict[str, Any]:
    """Report what is installed."""
    current = store.current()
    generation = store.load(current) if current else None
    return {
        "changed": False,
        "generation": current,
        "previous": current,
        "drift": store.compare(generation).plan.paths if generation else [],
        "paths": [],
        **about(generation),
    }


def remove(module: AnsibleModule, store: generations.Store) -> dict[str, Any]:
    """Stop the instance for good and remove what was installed for it; the caches stay with their release."""
    found = look(store)
    settings = generations.SETTINGS_ROOT / store.instance
    changed = bool(found["generation"]) or settings.is_dir() or store.folder.is_dir()
    if changed and not module.check_mode:
        if found["unit"]:
            retire(found["unit"])
            for path in [path for path in store.removable() if path.exists()]:
                path.unlink(missing_ok=True)
                if path.parent.suffix == ".d" and not any(path.parent.iterdir()):
                    path.parent.rmdir()
            systemd.systemctl("daemon-reload")
            systemd.systemctl("reset-failed", "--", found["unit"], check=False)
        shutil.rmtree(settings, ignore_errors=True)
        shutil.rmtree(generations.RUNTIME_ROOT / store.instance, ignore_errors=True)
        store.forget()
    return {**found, "changed": changed}


def promote(module: AnsibleModule, store: generations.Store, generation: str | None) -> bool:
    """Record that the installed generation passed, and say whether that is news."""
    if generation is None:
        raise generations.GenerationError(f"nothing is installed for {store.instance}; run site.yml first")
    if module.check_mode:
        return bool(generation != store.last_known_good())
    return bool(store.promote(generation, module.params["evidence"], module.params["keep"]))


def action(unit: systemd.UnitState, running: str | None, generation: str | None, stale: list[str]) -> str:
    """Say what the service needs so that it runs the installed generation with the files and secrets that it names."""
    if unit.active in ("inactive", "failed", ""):
        return "start"
    return "none" if running == generation and unit.serving and not stale else "restart"


def state(store: generations.Store, result: dict[str, Any]) -> dict[str, Any]:
    """Return what the unit does now, and what it needs."""
    running = generations.running(store.instance)
    # out of root's own record: what the service says of itself may name any address
    last = next((one for one in (running, result["previous"]) if one in store.kept()), None)
    listens = store.load(last).listens if last else {}
    known = {"running": running, "listens": listens, "last_known_good": store.last_known_good()}
    if not result["unit"]:
        nothing = {"active": "", "started": 0.0, "status": "", "stale_credentials": [], "local": []}
        return {**known, "action": "start", **nothing}
    unit = systemd.unit_state(result["unit"])
    generation = store.load(result["generation"]) if result["generation"] in store.kept() else None
    stale = generations.stale_credentials(generation, unit.started) if generation else []
    altered = generations.started_with(result["drift"], unit.started)
    own = {entry.path for entry in generation.files} if generation else set()
    return {
        **known,
        "action": action(unit, running, result["generation"], stale + altered),
        "active": unit.active,
        "started": unit.started,
        "status": unit.status,
        "stale_credentials": stale,
        "local": [path for path in unit.drop_ins if generation and path not in own],
    }


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "operation": {"type": "str", "choices": OPERATIONS, "required": True},
            "unit": {"type": "str"},
            "release": {"type": "str"},
            "toolkit": {"type": "str"},
            "files": {"type": "list", "elements": "dict", "options": ENTRY},
            "generation": {"type": "str"},
            "evidence": {"type": "dict", "default": {}},
            "keep": {"type": "int", "default": 3},
        },
        required_if=[
            ("operation", "prepare", ("unit", "release", "toolkit", "files")),
            ("operation", "install", ("generation",)),
        ],
        supports_check_mode=True,
    )
    store = generations.Store(module.params["instance"])
    operation = module.params["operation"]
    steps = {"prepare": prepare, "install": install, "restore": install, "remove": remove}
    try:
        result = steps[operation](module, store) if operation in steps else look(store)
        if operation == "promote":
            result["changed"] = promote(module, store, result["generation"])
        result |= state(store, result) if operation != "remove" else {}
    except (generations.GenerationError, managed_files.ManagedFilesError, systemd.SystemdError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
