#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter of ``inference.gateway``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gateway_pool
short_description: Put engines into a gateway's pool and take them out of it
description:
  - Changes the pool's file and, where the router runs, the router itself, and waits until it has done so.
  - With O(idle) it waits until an engine has answered everything that it was sent.
attributes:
  check_mode: {support: full}
  diff_mode: {support: full}
options:
  present:
    description: Engines that belong into the pool, and have to be healthy in it afterwards.
    type: list
    elements: dict
    default: []
    suboptions:
      url: {description: Where the gateway reaches it., type: str, required: true}
      api_key: {description: Its key., type: str}
  absent: {description: URLs of engines that are sent nothing more., type: list, elements: str, default: []}
  exact: {description: Whether O(present) is the whole pool., type: bool, default: false}
  idle: {description: "An engine to wait for until it has nothing to do; nothing else is done then.", type: str}
  idle_key_files:
    description: Files with its key. The first that is there counts; without any it is asked without a key.
    type: list
    elements: path
    default: []
  seconds: {description: The longest wait., type: int, default: 60}
  router: {description: Where the router listens on the gateway., type: str, default: "http://127.0.0.1:30100"}
  file: {description: The pool's file., type: path, default: /var/lib/inference-gateway/pool.json}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Send an engine nothing more
  gateway_pool: {absent: ["http://10.0.0.11:30000"]}
"""

RETURN = r"""
pool: {description: URLs of the pool afterwards., returned: success, type: list}
router: {description: "V(settled), or V(not running).", returned: success, type: str}
idle: {description: "V(idle), V(busy) after the longest wait, or V(unknown).", returned: with O(idle), type: str}
seconds: {description: How long it took., returned: success, type: float}
"""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import gateway

Pool = dict[str, dict[str, Any]]


def pool(module: AnsibleModule) -> dict[str, Any]:
    """Bring file and router to the wanted pool; in check mode only say what would change."""
    given, file = module.params, Path(module.params["file"])
    present = [{key: value for key, value in entry.items() if value} for entry in given["present"]]
    router = gateway.Router(given["router"])
    urls = [entry["url"] for entry in present]
    with nullcontext() if module.check_mode else gateway.changing(file):
        before = gateway.read_pool(file)
        wanted = gateway.change(before, present, given["absent"], exact=given["exact"])
        if module.check_mode:
            return result(before, wanted, changed=wanted != before, router="not asked")
        if wanted != before or not file.exists():
            gateway.write_pool(file, wanted)
        runs = router.running()
        told = runs and tell(router, before, wanted, urls, given["seconds"])
    # others can change the pool while these become healthy
    if runs:
        gateway.await_healthy(router, file, urls, given["seconds"])
    return result(before, wanted, changed=wanted != before or told, router="settled" if runs else "not running")


def tell(router: gateway.Router, before: Pool, wanted: Pool, entering: list[str], seconds: int) -> bool:
    """Have the router do what the file says, and say whether that changed anything."""
    # the router keeps the key with which it was given an engine: one that has another now leaves first
    kept = {url: entry for url, entry in wanted.items() if before.get(url, entry) == entry}
    renewed = kept != wanted and gateway.settle(router, kept, seconds, [])
    return bool(gateway.settle(router, wanted, seconds, entering) or renewed)


def result(before: Pool, wanted: Pool, *, changed: bool, router: str) -> dict[str, Any]:
    """Return what the module says; the pool's keys are no part of it."""
    diff = {"before": "".join(f"{url}\n" for url in sorted(before)), "after": "".join(f"{u}\n" for u in sorted(wanted))}
    return {"changed": changed, "pool": sorted(wanted), "router": router, "diff": diff}


def idle(module: AnsibleModule) -> dict[str, Any]:
    """Wait until the engine has nothing to do."""
    url, seconds = module.params["idle"], module.params["seconds"]
    # read here: the key that an engine was started with need not be the one that the inventory has by now
    keys = [path.read_text().strip() for path in map(Path, module.params["idle_key_files"]) if path.is_file()]
    found = "not asked" if module.check_mode else gateway.wait_idle(url, seconds, next(iter(keys), ""))
    if found == "busy":
        module.warn(
            f"{url} still answers requests after {seconds} s; those that its own drain does not wait for are cut"
        )
    return {"changed": False, "idle": found}


def main() -> None:
    """Run the module."""
    entry = {"url": {"type": "str", "required": True}, "api_key": {"type": "str", "no_log": True}}
    module = AnsibleModule(
        argument_spec={
            "present": {"type": "list", "elements": "dict", "default": [], "options": entry},
            "absent": {"type": "list", "elements": "str", "default": []},
            "exact": {"type": "bool", "default": False},
            "idle": {"type": "str"},
            "idle_key_files": {"type": "list", "elements": "path", "default": [], "no_log": False},
            "seconds": {"type": "int", "default": 60},
            "router": {"type": "str", "default": "http://127.0.0.1:30100"},
            "file": {"type": "path", "default": "/var/lib/inference-gateway/pool.json"},
        },
        supports_check_mode=True,
    )
    began = time.monotonic()
    try:
        result = idle(module) if module.params["idle"] else pool(module)
    except (gateway.GatewayError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result, seconds=round(time.monotonic() - began, 1))


if __name__ == "__main__":
    main()
