#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible module: install, seal, verify and remove engine releases on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_release
short_description: Install an inference engine from a lock, exactly, and prove that it is still what was installed
description:
  - A release is a virtual environment with the files of one lock, built at its final path
    C(ROOT/ENGINE-VERSION-ID). The id stands for lock, interpreter, chosen patches and the way of building.
  - C(phase=status) says in which state it is, C(phase=install) builds it, C(phase=seal) records every file and makes
    it a release, C(phase=verify) compares every file with that record, C(phase=prune) removes what nothing uses.
  - An installation that was interrupted does not count, and is removed by the next one. Two runs on one host wait
    for each other.
attributes:
  check_mode: {support: full, description: Says what would change; touches nothing.}
  diff_mode: {support: full, description: Shows the release's state before and after.}
options:
  phase:
    description: What to do.
    type: str
    choices: [status, install, seal, verify, prune]
    default: install
  lock:
    description: The lock's text. Needed for C(phase=status) and C(phase=install).
    type: str
  installer_lock:
    description: The text of the lock that names uv's wheel. Needed for C(phase=install).
    type: str
  engine:
    description: The engine. With O(lock) it must be the lock's; C(phase=prune) needs it.
    type: str
  version:
    description: The version that O(lock) must be for.
    type: str
  variant:
    description: The variant that O(lock) must be for, such as C(cu130) or C(cpu).
    type: str
  python:
    description: Path of the interpreter on the host; V(auto) takes C(pythonX.Y) of the lock's version from the
      system's own folders.
    type: str
    default: auto
  headers:
    description: Whether the interpreter's C headers must be there. By default for every variant but C(cpu), since
      kernels are compiled against them when an engine starts.
    type: bool
  patches_id:
    description: Identity of the chosen patches with their content; part of the id.
    type: str
    default: none
  wheelhouse:
    description: Folder on the host with the lock's files, or with at least the installer's wheel if O(index).
    type: path
  index:
    description: Take files from package indexes instead of the wheelhouse.
    type: bool
    default: false
  index_url:
    description: Package index instead of uv's default.
    type: str
  extra_index_urls:
    description: Further indexes.
    type: list
    elements: str
    default: []
  find_links:
    description: Further folders or pages with wheels.
    type: list
    elements: str
    default: []
  proxy:
    description: Proxy for the indexes.
    type: str
  cache:
    description: Folder of root's in which uv keeps unpacked wheels, so that another release with mostly the same
      packages is linked instead of unpacked; on the file system of O(root), it takes no room of its own. When
      C(phase=prune) removes a release, it goes too. By default nothing is kept.
    type: path
  bytecode:
    description: Compile every source. Without it an engine starts slower, each time.
    type: bool
    default: true
  imports:
    description: Modules to import after the installation; by default those that show that the engine's packages fit,
      none with an empty list.
    type: list
    elements: str
  rebuild:
    description: Build a release again that was not sealed, or is no longer what was sealed.
    type: bool
    default: false
  release:
    description: Name of the release, as C(phase=install) returned it. Needed for C(phase=seal) and C(phase=verify).
    type: str
  patches:
    description: What to record about the patches at C(phase=seal).
    type: list
    elements: dict
    default: []
  patched_files:
    description: Paths in site-packages that the patches have changed. If given, any other file that differs from its
      wheel keeps the release from being sealed.
    type: list
    elements: str
  full:
    description: At C(phase=verify), read and hash every file instead of comparing sizes and times.
    type: bool
    default: false
  keep:
    description: At C(phase=prune), how many of the engine's newest releases stay.
    type: int
    default: 2
  in_use:
    description: At C(phase=prune), releases that must stay besides those that a kept generation names, by id, name
      or path.
    type: list
    elements: str
    default: []
  root:
    description: Where releases are.
    type: path
    default: /opt/inference/releases
  state_dir:
    description: Where sizes and times of sealed files are kept, outside of the releases.
    type: path
    default: /var/lib/inference/releases
  lock_timeout:
    description: Seconds to wait for another run on the same release.
    type: int
    default: 900
"""

EXAMPLES = r"""
- name: Install the engine
  engine_release:
    lock: "{{ lookup('ansible.builtin.file', 'locks/sglang-0.5.23-cu130-cp312.txt') }}"
    installer_lock: "{{ lookup('ansible.builtin.file', 'locks/installer.txt') }}"
    wheelhouse: /srv/wheelhouse
  register: engine

- name: Seal it
  engine_release:
    phase: seal
    release: "{{ engine.name }}"
    patched_files: []

- name: Read every file of it
  engine_release:
    phase: verify
    release: "{{ engine.name }}"
    full: true
"""

RETURN = r"""
name:
  description: The release's name. Null when the interpreter is not there yet (C(phase=status), check mode).
  type: str
  returned: always
engine:
  description: The engine.
  type: str
  returned: when the lock was given or the release is sealed
version:
  description: Its version.
  type: str
  returned: when the lock was given or the release is sealed
variant:
  description: What it is built for.
  type: str
  returned: when the lock was given or the release is sealed
id:
  description: The release's id.
  type: str
  returned: always
path:
  description: The release's folder.
  type: str
  returned: always
python:
  description: The release's interpreter.
  type: str
  returned: always
site_packages:
  description: Where its packages are.
  type: str
  returned: for phases status and install
state:
  description: C(sealed), C(unsealed) or C(absent), after this task.
  type: str
  returned: always
to_build:
  description: Whether C(phase=install) would build it, because it is absent or, with O(rebuild), not what was sealed.
  type: bool
  returned: for phase status
why:
  description: Why the name is not known.
  type: str
  returned: when it is not
problems:
  description: Files that are missing, changed or extra, and what was found wrong before an installation.
  type: list
  elements: dict
  returned: always
files:
  description: How many files were compared, and how many of them were read.
  type: dict
  returned: when a sealed release was compared
removed:
  description: Releases that were removed.
  type: list
  elements: str
  returned: for phase prune
timings:
  description: Seconds by step.
  type: dict
  returned: always
"""

import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import generations, releases
from ansible.module_utils.inference.releases import installing, interpreters, locks, resolver, sealing

ERRORS = (
    generations.GenerationError,
    locks.LockError,
    interpreters.InterpreterError,
    releases.ReleaseError,
    sealing.SealError,
    OSError,
)
SHOWN = 20


class Module(AnsibleModule):  # type: ignore[misc]  # ansible has no types here
    """An AnsibleModule that leaves ``path`` alone: the stock one would replace ``state`` by that of a file."""

    def add_path_info(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the result as it is."""
        return kwargs


class Task:
    """One call of the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params: dict[str, Any] = module.params
        self.clock = installing.Clock()
        self.root = Path(self.params["root"])
        self.state_dir = Path(self.params["state_dir"])

    def run(self) -> dict[str, Any]:
        """Do what the phase says and return the result."""
        phases = {
            "status": self.status,
            "install": self.install,
            "seal": self.seal,
            "verify": self.verify,
            "prune": self.prune,
        }
        result = phases[self.params["phase"]]()
        return {"problems": [], "timings": self.clock.seconds, **self._identity(result), **result}

    def _identity(self, result: dict[str, Any]) -> dict[str, Any]:
        """Return engine, version and variant: of the lock, or of the sealed release that was named."""
        keys = ("engine", "version", "variant")
        if self.params["lock"]:
            lock = self._lock()
            return {key: getattr(lock, key) for key in keys}
        if result["state"] == "sealed":
            record = self._named().record()
            return {key: record[key] for key in keys}
        return {}

    # --- status ---

    def status(self) -> dict[str, Any]:
        """Say where the release belongs and in which state it is; compare it when it is sealed."""
        lock = self._lock()
        try:
            interpreter = self._interpreter(lock)
        except interpreters.InterpreterError as error:
            return _result(None, changed=False, to_build=True, why=str(error))
        release = self._place(lock, interpreter)
        result = self._there(release) if release.state != "absent" else None
        packages = str(installing.site_packages(release, interpreter))
        return {**(result or _result(release, changed=False)), "to_build": result is None, "site_packages": packages}

    # --- install ---

    def install(self) -> dict[str, Any]:
        """Build the release unless it is there; compare it when it is sealed."""
        lock = self._lock()
        try:
            interpreter = self._interpreter(lock)
        except interpreters.InterpreterError as error:
            if not self.module.check_mode:
                raise
            return _result(None, changed=True, why=str(error))
        release = self._place(lock, interpreter)
        before = release.state
        result = self._there(release) if before != "absent" else None
        if result is None:
            built = self._build(self._plan(lock, interpreter, release))
            result = _result(release, changed=built, diff=_diff(release, before, "unsealed"))
        return {**result, "site_packages": str(installing.site_packages(release, interpreter))}

    def _lock(self) -> locks.Lock:
        lock = locks.parse_lock(self.params["lock"])
        for key in ("engine", "version", "variant"):
            if self.params[key] not in (None, getattr(lock, key)):
                raise locks.LockError(f"the lock is for {lock.name}, not for {key} {self.params[key]}")
        return lock

    def _interpreter(self, lock: locks.Lock) -> interpreters.Interpreter:
        return interpreters.probe(interpreters.find(self.params["python"], lock.python))

    def _place(self, lock: locks.Lock, interpreter: interpreters.Interpreter) -> releases.Release:
        params = self.params
        return releases.place(lock, interpreter, params["patches_id"], params["root"], params["state_dir"])

    def _plan(
        self, lock: locks.Lock, interpreter: interpreters.Interpreter, release: releases.Release
    ) -> installing.Plan:
        params = self.params
        return installing.Plan(
            lock=lock,
            lock_text=params["lock"],
            installer=locks.parse_lock(params["installer_lock"], "installer_lock").pins[0],
            interpreter=interpreter,
            patches_id=params["patches_id"],
            release=release,
            wheels=Path(params["wheelhouse"]),
            index=params["index"],
            sources=resolver.Sources(
                params["index_url"], tuple(params["extra_index_urls"]), tuple(params["find_links"]), params["proxy"]
            ),
            cache=Path(params["cache"]) if params["cache"] else None,
            bytecode=params["bytecode"],
            imports=None if params["imports"] is None else tuple(params["imports"]),
        )

    def _there(self, release: releases.Release) -> dict[str, Any] | None:
        """Return the result for a release that needs no work, or None when it has to be built again."""
        if release.state == "unsealed":
            return None if self.params["rebuild"] else _result(release, changed=False)
        try:
            result = self._compare(release)
        except releases.ReleaseError:
            if self.params["rebuild"]:
                return None
            raise
        if result["problems"] and self.params["rebuild"]:
            return None
        return self._accept(release, result)

    def _build(self, plan: installing.Plan) -> bool:
        """Check everything, then build; in check mode only check what can be known now. Return whether it was built."""
        headers = plan.lock.variant != "cpu" if self.params["headers"] is None else self.params["headers"]
        problems = interpreters.unfit(plan.interpreter, plan.lock, headers=headers)
        if self.module.check_mode:
            return True
        if problems:
            raise interpreters.InterpreterError("; ".join(problems))
        with plan.release.locked(self.params["lock_timeout"]):
            if plan.release.state != "absent" and not self.params["rebuild"]:
                return False  # another run has built it while this one waited
            if pids := releases.running(plan.release):
                raise releases.ReleaseError(f"{plan.release.path} is in use by processes {pids}; stop them first")
            with self.clock.step("wheelhouse"):
                obstacles = installing.obstacles(plan)
            if obstacles:
                shown = "; ".join(f"{finding.what}: {finding.seen}" for finding in obstacles[:SHOWN])
                found = [finding.as_dict() for finding in obstacles]
                self.module.fail_json(msg=f"{shown}. Fix: {obstacles[0].fix}", problems=found)
            if plan.cache and plan.release.state != "absent":
                # a damaged file may be a link into the cache, which then is damaged as well
                shutil.rmtree(plan.cache, ignore_errors=True)
            installing.install(plan, self.clock)
        return True

    # --- seal, verify, prune ---

    def _named(self) -> releases.Release:
        return releases.Release(self.params["release"], self.root, self.state_dir)

    def seal(self) -> dict[str, Any]:
        """Seal an installed release."""
        release = self._named()
        before = release.state
        if before == "sealed" or self.module.check_mode:
            return _result(release, changed=before != "sealed", diff=_diff(release, before, "sealed"))
        with release.locked(self.params["lock_timeout"]):
            if release.state == "absent":
                raise releases.ReleaseError(f"{release.path} is not installed; run phase install first")
            params = self.params
            installing.seal(release, params["patches"], params["patched_files"], self.clock, params["imports"])
        return _result(release, changed=True, diff=_diff(release, before, "sealed"))

    def verify(self) -> dict[str, Any]:
        """Compare a sealed release."""
        release = self._named()
        if release.state != "sealed":
            raise releases.ReleaseError(f"{release.path} is {release.state}, not sealed: it is no release")
        return self._accept(release, self._compare(release, full=self.params["full"]))

    def _compare(self, release: releases.Release, *, full: bool = False) -> dict[str, Any]:
        with self.clock.step("verify"):
            found = release.verify(full=full, refresh=not self.module.check_mode)
        problems = [asdict(problem) for problem in found.problems]
        return {
            **_result(release, changed=False),
            "problems": problems,
            "files": {"compared": found.files, "read": found.hashed},
        }

    def _accept(self, release: releases.Release, result: dict[str, Any]) -> dict[str, Any]:
        """Fail when files differ, naming them."""
        problems = result["problems"]
        if problems:
            shown = ", ".join(f"{problem['path']} ({problem['kind']})" for problem in problems[:SHOWN])
            more = f" and {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
            self.module.fail_json(
                msg=f"{release.path} is not what was sealed: {shown}{more}. "
                "Find out who changed it; then stop what runs from it and run site.yml with -e engine_rebuild=true",
                **{**result, "timings": self.clock.seconds},
            )
        return result

    def prune(self) -> dict[str, Any]:
        """Remove releases that are neither among the newest nor in use."""
        found = releases.sealed_releases(self.root, self.state_dir, self.params["engine"])
        used = [*self.params["in_use"], *generations.releases_in_use()]
        going = releases.to_remove(found, self.params["keep"], used)
        left = releases.leftovers(self.root)
        if not self.module.check_mode:
            for release in going:
                with release.locked(self.params["lock_timeout"]):
                    releases.discard(release)
            for path in left:
                releases.delete(path)
            if going and self.params["cache"]:
                # it would keep what the removed ones held; uv has no way to drop only that
                shutil.rmtree(self.params["cache"], ignore_errors=True)
        names = [release.name for release in going]
        diff = {
            "before": _listed(found),
            "after": _listed([release for release in found if release not in going]),
        }
        return {**_result(None, changed=bool(going or left)), "removed": names, "diff": diff}


def _result(release: releases.Release | None, *, changed: bool, **more: Any) -> dict[str, Any]:
    if release is None:
        return {"changed": changed, "name": None, "id": None, "path": None, "python": None, "state": "absent", **more}
    return {
        "changed": changed,
        "name": release.name,
        "id": release.name.rpartition("-")[2],
        "path": str(release.path),
        "python": str(release.python),
        "state": release.state,
        **more,
    }


def _listed(found: list[releases.Release]) -> str:
    return "".join(f"{release.name}\n" for release in found)


def _diff(release: releases.Release, before: str, after: str) -> dict[str, str]:
    return {"before": f"{release.path}: {before}\n", "after": f"{release.path}: {after}\n"}


TEXT, FLAG = {"type": "str"}, {"type": "bool", "default": False}
WORDS = {"type": "list", "elements": "str"}
ARGUMENTS = {
    "phase": {"type": "str", "choices": ["status", "install", "seal", "verify", "prune"], "default": "install"},
    "lock": TEXT,
    "installer_lock": TEXT,
    "engine": TEXT,
    "version": TEXT,
    "variant": TEXT,
    "python": {"type": "str", "default": "auto"},
    "headers": {"type": "bool"},
    "patches_id": {"type": "str", "default": "none"},
    "wheelhouse": {"type": "path"},
    "index": FLAG,
    "index_url": TEXT,
    "extra_index_urls": {**WORDS, "default": []},
    "find_links": {**WORDS, "default": []},
    "proxy": TEXT,
    "cache": {"type": "path"},
    "bytecode": {"type": "bool", "default": True},
    "imports": WORDS,
    "rebuild": FLAG,
    "release": TEXT,
    "patches": {"type": "list", "elements": "dict", "default": []},
    "patched_files": WORDS,
    "full": FLAG,
    "keep": {"type": "int", "default": 2},
    "in_use": {**WORDS, "default": []},
    "root": {"type": "path", "default": releases.ROOT},
    "state_dir": {"type": "path", "default": releases.STATE_DIR},
    "lock_timeout": {"type": "int", "default": 900},
}
REQUIRED_IF = [
    ("phase", "status", ("lock",)),
    ("phase", "install", ("lock", "installer_lock", "wheelhouse")),
    ("phase", "seal", ("release",)),
    ("phase", "verify", ("release",)),
    ("phase", "prune", ("engine",)),
]


def main() -> None:
    """Run the module."""
    module = Module(argument_spec=ARGUMENTS, required_if=REQUIRED_IF, supports_check_mode=True)
    os.umask(0o022)
    try:
        result = Task(module).run()
    except ERRORS as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
