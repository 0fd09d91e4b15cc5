#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Ansible adapter of ``inference.host_plan``."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_plan
short_description: Decide where each instance of a host runs, before any of them is changed
description:
  - Reads the host once and changes nothing. Chooses GPUs by NUMA node for instances that name none, derives internal
    ports, resolves NCCL profiles, finds the CUDA toolkit, and names installed instances that are not wanted any more.
  - Fails when instances share a name, a port or a GPU, also with one that is installed and not wanted any more.
attributes:
  check_mode: {support: full, description: The module only reads.}
  diff_mode: {support: none, description: The module changes nothing.}
options:
  engine: {description: The engine that the instances run., type: str, choices: [sglang, vllm], required: true}
  variant: {description: "The release's variant, such as V(cu130); V(cpu) uses no GPU.", type: str, required: true}
  release: {description: Folder of the engine's release., type: path, required: true}
  instances:
    description: The instances as in the role's C(service_instances).
    type: list
    elements: dict
    required: true
  nccl_profile: {description: NCCL profile of instances that name none., type: str, default: latency}
  nccl_measured: {description: File on the host with what the profile V(measured) reads., type: str, default: ""}
  prune: {description: Whether instances that are not wanted any more will be removed., type: bool, default: false}
  toolkit: {description: Version of the toolkit that is wanted on the host., type: str, default: ""}
author: The inference toolkit's authors
"""

EXAMPLES = r"""
- name: Two engines on eight GPUs
  service_plan:
    engine: sglang
    variant: cu130
    release: /opt/inference/releases/sglang-0.5.23-0123456789ab
    instances:
      - {name: a, model: kimi, port: 30000, tensor_parallel_size: 4}
      - {name: b, model: glm, port: 30001, tensor_parallel_size: 4}
"""

RETURN = r"""
instances:
  description: >-
    By name: gpus, gpu_nodes (the NUMA node of each), node and cpus (to bind to, when all GPUs are on one node), spans,
    arguments and environment that the engine is to get, ports, and nccl (profile and environment).
  returned: success
  type: dict
removed:
  description: "Instances that are not wanted: name, unit, active, enabled, listens (host and port)."
  returned: success
  type: list
architecture: {description: "Architecture of the GPUs, such as sm120.", returned: success, type: str}
cuda_home: {description: "Folder of the CUDA toolkit to compile with, or empty.", returned: success, type: str}
cuda_version: {description: "Its version, such as 13.0.", returned: success, type: str}
toolkit: {description: The version that was asked about., returned: success, type: str}
toolkit_intact: {description: Whether O(toolkit) lies on the host as it was installed., returned: success, type: bool}
findings: {description: What was found., returned: always, type: list, elements: dict}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.inference import generations, host_plan, systemd, toolkit
from ansible.module_utils.inference.findings import Report


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "engine": {"type": "str", "choices": ["sglang", "vllm"], "required": True},
            "variant": {"type": "str", "required": True},
            "release": {"type": "path", "required": True},
            "instances": {"type": "list", "elements": "dict", "required": True},
            "nccl_profile": {"type": "str", "default": "latency"},
            "nccl_measured": {"type": "str", "default": ""},
            "prune": {"type": "bool", "default": False},
            "toolkit": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    given = module.params
    request = host_plan.Request(
        given["engine"], given["variant"], given["instances"], given["nccl_profile"], given["nccl_measured"],
        given["prune"],
    )  # fmt: skip
    try:
        host = host_plan.read(given["release"], [str(instance["name"]) for instance in given["instances"]])
    except (generations.GenerationError, systemd.SystemdError) as error:
        module.fail_json(msg=str(error))
    planned = host_plan.plan(request, host)
    report = Report(planned.findings)
    cuda = host_plan.toolkit(request, host)
    result = {
        "changed": False,
        "findings": report.as_dict()["findings"],
        "instances": planned.instances,
        "removed": [removed.as_dict() for removed in host.removed],
        "architecture": "cpu" if request.variant == "cpu" else host.architecture,
        "cuda_home": cuda.home if cuda else "",
        "cuda_version": cuda.version if cuda else "",
        "toolkit": given["toolkit"],
        "toolkit_intact": bool(given["toolkit"]) and toolkit.intact(given["toolkit"]),
    }
    if not report.ok:
        module.fail_json(msg=f"the instances cannot run as they are; nothing was changed\n{report.as_text()}", **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
