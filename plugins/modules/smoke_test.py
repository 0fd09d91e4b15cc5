#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter: run the smoke test on the host and draw the consequence for the generation."""

from __future__ import annotations

DOCUMENTATION = r"""
module: smoke_test
short_description: Smoke-test an instance on its own host and record a pass
description:
  - Runs the program C(smoke) of the installed generation's toolkit under its release's own Python.
  - A pass makes the installed generation the last known good one. A failure changes nothing here.
attributes:
  check_mode: {support: full, description: The test is not run.}
  diff_mode: {support: none}
options:
  instance: {description: Name of the instance., type: str, required: true}
  mode:
    description: V(auto) is V(quick) when the installed generation has passed before, else V(full).
    type: str
    choices: [auto, full, quick]
    default: auto
  promote: {description: Whether a pass makes the generation the last known good one., type: bool, default: true}
  restoring:
    description:
      - The generation is being restored because another one failed. A regression against the host's history is reported
        and fails nothing then, since a slow engine that is sound is better than none.
    type: bool
    default: false
  topology:
    description:
      - The host's topology record, as the role C(topology) leaves it; it may be absent. How many GPUs the host has to
        show afterwards, and the fingerprint that keeps histories apart, come from it where the profile does not say.
    type: path
    default: /var/lib/inference/topology.json
  keep: {description: Generations to keep besides those in use., type: int, default: 3}
  timeout: {description: Seconds that the test may take., type: int, default: 3600}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Test an instance
  smoke_test: {instance: kimi}
"""

RETURN = r"""
passed: {description: True when nothing critical and nothing unknown was found., returned: success, type: bool}
mode: {description: "What was run: V(full) or V(quick).", returned: success, type: str}
report: {description: The JSON object of the program., returned: success, type: dict}
generation: {description: The generation that was tested., returned: success, type: str}
listens: {description: C(host) and C(port) of that generation., returned: success, type: dict}
promoted: {description: True when it became the last known good one now., returned: success, type: bool}
engaged: {description: "What unit, process and release say of themselves afterwards.", returned: success, type: dict}
"""

import json
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import generations, instances, systemd, toolkit
from ansible.module_utils.inference.findings import Finding, Report
from ansible.module_utils.inference.smoke.gate import forgive_regressions
from ansible.module_utils.inference.smoke.profile import with_topology

ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to reach an engine that listens everywhere


def url(host: str, port: int) -> str:
    """Return the engine's URL as seen from its own host."""
    host = ANYWHERE.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def command(generation: generations.Generation, mode: str, folder: Path) -> list[str]:
    """Return the command line of the test for an installed generation."""
    settings = Path(f"/etc/inference/{generation.instance}")
    engine = json.loads((settings / "supervisor.json").read_text())
    return [
        f"/opt/inference/releases/{generation.release}/venv/bin/python", "-I",
        f"{toolkit.ROOT}/{generation.toolkit}/scripts/smoke", "--json",
        "--url", url(engine["host"], engine["port"]),
        "--profile", "-",
        "--history", str(folder / "smoke"),
        # the key's file, never the key: what this program is called with, every local user can read
        *(["--api-key-file", str(settings / "api-key")] if engine.get("api_key_file") else []),
        *(["--quick"] if mode == "quick" else []),
    ]  # fmt: skip


def profile(instance: str, record: Path) -> str:
    """Return the smoke profile of an instance, with what the host's topology record adds to it."""
    document = json.loads(Path(f"/etc/inference/{instance}/smoke.json").read_text())
    if record.is_file():
        document = with_topology(document, json.loads(record.read_text()))
    return json.dumps(document)


TIMED_OUT = (124, 137)
"""Exit codes of timeout(1): ended, and killed."""


def run(module: AnsibleModule, words: list[str], given: str) -> dict[str, Any]:
    """Run the program with ``given`` as standard input and return its JSON object."""
    seconds = module.params["timeout"]
    code, out, err = module.run_command(["timeout", "--kill-after=10", str(seconds), *words], data=given)
    if code in TIMED_OUT and not out.strip():
        # an engine that hangs is a failure like any other: it is to be rolled back, and not to end the play here
        late = Finding(
            "smoke-did-not-finish", "critical", "The smoke test did not finish", seen=f"nothing after {seconds} s",
            expected="an answer within the timeouts of its profile",
            fix="Read the unit's journal; raise timeout if the test is meant to take longer.",
        )  # fmt: skip
        return dict(Report([late]).as_dict())
    try:
        report: dict[str, Any] = json.loads(out)
    except ValueError:
        module.fail_json(msg=f"the smoke test did not run (exit {code}): {(err or out).strip()[-2000:]}", cmd=words)
    return report


def test(module: AnsibleModule, store: generations.Store) -> dict[str, Any]:
    """Test the instance and promote its generation after a full pass; in check mode say what would come of it."""
    current = store.current()
    proved = current is not None and current == store.last_known_good()
    mode = ("quick" if proved else "full") if module.params["mode"] == "auto" else module.params["mode"]
    generation = store.load(current) if current else None
    result: dict[str, Any] = {"mode": mode, "generation": current, "listens": generation.listens if generation else {}}
    if module.check_mode:
        news = not proved and mode == "full"
        return {**result, "changed": news, "passed": True, "promoted": news, "report": {}, "engaged": {}}
    if generation is None:
        raise generations.GenerationError(f"nothing is installed for {store.instance}; run site.yml first")
    running = generations.running(store.instance)
    if running not in (None, current):
        raise generations.GenerationError(
            f"{store.instance}: generation {current} is installed and {running} still runs, so a test would prove the "
            "wrong one; run site.yml, which restarts it"
        )
    (store.folder / "smoke").mkdir(mode=0o700, exist_ok=True)
    given = profile(store.instance, Path(module.params["topology"]))
    report = run(module, command(generation, mode, store.folder), given)
    if module.params["restoring"]:
        report = forgive_regressions(report)
    passed, promoted = bool(report.get("ok")), False
    if passed and mode == "full" and module.params["promote"]:
        promoted = store.promote(generation.id, {"gate": report.get("gate")}, module.params["keep"])
    engaged = instances.describe(store.instance)
    return {
        **result, "changed": promoted, "passed": passed, "promoted": promoted, "report": report, "engaged": engaged
    }  # fmt: skip


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "instance": {"type": "str", "required": True},
            "mode": {"type": "str", "choices": ["auto", "full", "quick"], "default": "auto"},
            "promote": {"type": "bool", "default": True},
            "restoring": {"type": "bool", "default": False},
            "topology": {"type": "path", "default": "/var/lib/inference/topology.json"},
            "keep": {"type": "int", "default": 3},
            "timeout": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    try:
        module.exit_json(**test(module, generations.Store(module.params["instance"])))
    except KeyError as error:
        module.fail_json(msg=f"{module.params['instance']}: supervisor.json says no {error}; run site.yml")
    except (generations.GenerationError, systemd.SystemdError, OSError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
