#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter of ``inference.weights``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_weights
short_description: Have model weights whole, known by their content, and small enough for the GPUs
description:
  - C(operation=check) compares every weight file's length with its own header and the index, and checks that the
    service may read it. What looks as it did when it was last right is not read again. With O(instances) it also says
    whether the release knows the model and whether it fits into the GPUs.
  - C(operation=fetch) brings a model from a repository of a Hugging Face hub, C(operation=place) moves one there that
    was brought beside its place. Both put it in its place only when it is whole.
  - C(operation=remove) removes models that no kept generation names and no process has open.
attributes:
  check_mode: {support: full, description: Says what would change; fetches, moves and removes nothing.}
  diff_mode: {support: none}
options:
  operation: {description: What to do., type: str, choices: [check, fetch, place, remove], default: check}
  models:
    description: Entries with C(name), C(path) and perhaps C(source).
    type: list
    elements: dict
    required: true
  user: {description: The account that has to read them., type: str}
  full: {description: "At C(operation=check), read every file.", type: bool, default: false}
  instances:
    description: Entries of C(service_instances), whose models are held against release and GPUs.
    type: list
    elements: dict
    default: []
  release: {description: "The release that is to serve: C(engine), C(version) and C(site_packages).", type: dict}
  gpus:
    description: Rows with nvidia-smi's C(memory.total) and C(compute_cap).
    type: list
    elements: dict
    default: []
  hub_endpoint: {description: The hub., type: str, default: "https://huggingface.co"}
  hub_token: {description: Its token., type: str}
  hub_proxy: {description: A proxy for it; its URL may hold a password., type: str}
  hub_jobs: {description: How many files are fetched at once., type: int, default: 8}
  hub_patience: {description: Seconds after which a download is left for the next call., type: float}
  state_dir: {description: Where the records of models are., type: path, default: /var/lib/inference/models}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Check a model
  model_weights:
    models: [{name: kimi, path: /srv/models/kimi}]
    user: inference

- name: Fetch one
  model_weights:
    operation: fetch
    models: [{name: smol, path: /srv/models/smol, source: "hf:OWNER/NAME@COMMIT"}]
    hub_token: "{{ vault_hub_token }}"
"""

RETURN = r"""
incomplete: {description: Names of the models that cannot be loaded., returned: success, type: list}
problems: {description: "Name to what is wrong, as text.", returned: success, type: dict}
bytes: {description: "Name to the bytes of its weights.", returned: success, type: dict}
budgets: {description: "Instance to bytes on one GPU and room for tokens.", returned: success, type: dict}
hub_progress:
  description: "The model that is not finished, bytes that are there, and bytes in all."
  returned: when hub_patience was over
  type: dict
findings: {description: What an operator should know., returned: success, type: list}
not_checked: {description: What could not be checked and why., returned: success, type: list}
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import weights
from ansible.module_utils.inference.weights.service import examine, gpus_of, unguarded
from ansible.module_utils.inference.weights.suitability import Release

ERRORS = (weights.SourceError, weights.RecordError, weights.ModelError, weights.HubError, OSError)


class ModelFailedError(Exception):
    """What failed, with the name of the model that it failed for."""


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Have an error name the model."""
    try:
        yield
    except ERRORS as error:
        said = str(error)
        raise ModelFailedError(said if said.startswith(f"model {name}:") else f"model {name}: {said}") from error


def bring(module: AnsibleModule, models: list[weights.Model]) -> None:
    """Fetch or place models."""
    params = module.params
    hub = weights.Hub(
        endpoint=params["hub_endpoint"],
        token=params["hub_token"],
        proxy=params["hub_proxy"],
        jobs=params["hub_jobs"],
        patience=params["hub_patience"],
    )
    for model in models:
        try:
            with naming(model.name):
                if params["operation"] == "place":
                    weights.place(model)
                else:
                    weights.fetch(model, hub)
        except weights.HubPausedError as paused:
            progress = {"model": model.name, "there": paused.there, "whole": paused.whole}
            module.exit_json(changed=True, hub_progress=progress)


def look(model: weights.Model, user: str | None, *, full: bool, write: bool) -> list[str]:
    """Return what is wrong with a model."""
    with naming(model.name):
        found: list[str] = weights.look(model, user, full=full, write=write)
    return found


def model_of(entry: dict[str, str], state_dir: Path) -> weights.Model:
    """Return the model of a catalog's entry."""
    with naming(entry["name"]):
        return weights.model_of(entry, state_dir)


def remove(model: weights.Model, *, act: bool) -> bool:
    """Remove a model, or say whether it would be."""
    with naming(model.name):
        removed: bool = weights.remove(model, act=act)
    return removed


def check(module: AnsibleModule, models: list[weights.Model]) -> dict[str, Any]:
    """Return what is wrong with the models, and with instances that are to serve them."""
    params, user = module.params, module.params["user"]
    if module.check_mode and user and not weights.account_exists(user):
        user = None  # the host role would have made it
    write = not module.check_mode
    found = {model.name: look(model, user, full=params["full"], write=write) for model in models}
    whole = {model.name: model.path for model in models if not found[model.name]}
    release = (
        Release(**{**params["release"], "site_packages": Path(params["release"]["site_packages"])})
        if params["release"]
        else None
    )
    if release and not release.site_packages.is_dir():
        release = None
    report, budgets = examine(whole, params["instances"], release, gpus_of(params["gpus"]))
    report.extend(unguarded(whole, user) if user else ())
    return {
        "incomplete": sorted(name for name, lines in found.items() if lines),
        "problems": {name: "\n".join(lines) for name, lines in found.items() if lines},
        "bytes": {name: weights.size(path) for name, path in whole.items()},
        "budgets": {name: budget.as_dict() | {"text": budget.as_text()} for name, budget in budgets.items()},
        **{key: value for key, value in report.as_dict().items() if key in ("findings", "not_checked")},
    }


def run(module: AnsibleModule) -> dict[str, Any]:
    """Do what is asked and return the result."""
    params = module.params
    models = [model_of(entry, Path(params["state_dir"])) for entry in params["models"]]
    if params["operation"] == "remove":
        for model in models:
            remove(model, act=False)  # all are checked before one goes
        removed = [model.name for model in models if remove(model, act=not module.check_mode)]
        return {"changed": bool(removed), "removed": removed}
    bringing = params["operation"] != "check"
    if bringing and module.check_mode:
        return {"changed": True, "incomplete": [], "problems": {}, "bytes": {}, "budgets": {}}
    if bringing:
        bring(module, models)
    result = check(module, models)
    if bringing and result["incomplete"]:
        module.fail_json(msg="; ".join(f"model {name}: {text}" for name, text in result["problems"].items()))
    return {"changed": bringing, **result}


def main() -> None:
    """Run the module."""
    text, rows = {"type": "str"}, {"type": "list", "elements": "dict"}
    module = AnsibleModule(
        argument_spec={
            "operation": {"type": "str", "choices": ["check", "fetch", "place", "remove"], "default": "check"},
            "models": {**rows, "required": True},
            "user": text,
            "full": {"type": "bool", "default": False},
            "instances": {**rows, "default": []},
            "release": {"type": "dict"},
            "gpus": {**rows, "default": []},
            "hub_endpoint": {"type": "str", "default": weights.ENDPOINT},
            "hub_token": {"type": "str", "no_log": True},
            "hub_proxy": {"type": "str", "no_log": True},
            "hub_jobs": {"type": "int", "default": 8},
            "hub_patience": {"type": "float"},
            "state_dir": {"type": "path", "default": "/var/lib/inference/models"},
        },
        supports_check_mode=True,
    )
    try:
        result = run(module)
    except (ModelFailedError, *ERRORS) as error:
        module.fail_json(msg=str(error))
    findings = [finding for finding in result.get("findings", []) if finding["level"] == "critical"]
    if findings:
        lines = [f"{f['what']}: seen {f['seen']}; expected {f['expected']}; fix: {f['fix']}" for f in findings]
        module.fail_json(msg="\n".join(lines), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
