# SPDX-License-Identifier: Apache-2.0
"""The ports of an instance: the one that it serves on, and those between its own processes, derived from it.

Engines draw their internal ports at random, or count up from a default, and bind them seconds after they looked whether
they were free. Two engines that start together can meet there. So each instance has a block of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import engine_args

BLOCKS = range(22000, 30000, 16)
"""First ports of the blocks: below those that Linux gives to outgoing connections, where SGLang itself draws."""

DP_ATTENTION = (0, 1, 2, 3, 4, 5, 6, 13)
"""Ports from ``--dist-init-addr`` on that SGLang binds for data-parallel attention (0.5.23: PortArgs.init_new, and
DP_ATTENTION_HANDSHAKE_PORT_DELTA)."""

NCCL = 14
"""Where in its block an SGLang instance's ranks meet (``--nccl-port``)."""


@dataclass(frozen=True)
class Ports:
    """The ports of one instance and how its engine is told of them."""

    claimed: Mapping[int, str]
    """Port to what it is for."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Engine options by name, without the dashes; those that the instance names itself are left out."""
    environment: Mapping[str, str] = field(default_factory=dict)


def block(port: int) -> range:
    """Return the block of internal ports of an instance that serves on ``port``.

    Ports whose numbers differ by less than 500 have different blocks.
    """
    first = BLOCKS[port % len(BLOCKS)]
    return range(first, first + BLOCKS.step)


def of(engine: str, instance: Mapping[str, Any]) -> Ports:
    """Return the ports of an instance (as in ``service_instances``) of ``engine``."""
    given = engine_args.arguments(engine, instance)
    claimed = {instance["port"]: "the server"}
    claimed |= {value: f"--{name}" for name, value in given.items() if name.endswith("-port") and type(value) is int}
    own = block(instance["port"])
    if engine == "vllm":
        claimed |= dict.fromkeys(own, "VLLM_PORT")
        return Ports(claimed, environment={"VLLM_PORT": str(own[0])})
    if not given.get("enable-dp-attention") and any((given.get(name) or 1) != 1 for name in engine_args.DATA):
        return Ports(claimed)  # each replica binds --nccl-port while it looks for one of its own: a fixed one fails
    arguments: dict[str, Any] = {}
    if given.get("nccl-port") is None:
        arguments["nccl-port"] = own[NCCL]
        claimed[own[NCCL]] = "--nccl-port"
    if given.get("enable-dp-attention") and given.get("dist-init-addr") is None:
        arguments["dist-init-addr"] = f"127.0.0.1:{own[0]}"
        claimed |= {own[more]: "--dist-init-addr" for more in DP_ATTENTION}
    return Ports(claimed, arguments)
