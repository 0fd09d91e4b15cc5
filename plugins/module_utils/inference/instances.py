# SPDX-License-Identifier: Apache-2.0
"""What an instance on this host really is: asked of its process, its unit and its release, not of what was meant."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from . import generations, runtime, systemd

RELEASES = Path("/opt/inference/releases")
RELEASE_FACTS = ("name", "engine", "version", "variant", "created", "patches", "changed_files")


def describe(instance: str) -> dict[str, Any]:
    """Return ``unit``, ``start`` (the supervisor's record), ``release`` and ``nccl_environment`` of an instance.

    What cannot be read is None: nothing is made up.
    """
    store = generations.Store(instance)
    current = store.current()
    generation = store.load(current) if current else None
    start = runtime.read_json(generations.RUNTIME_ROOT / instance / "state.json")
    release = _json(RELEASES / generation.release / "release.json") if generation else None
    unit = systemd.unit_state(generation.unit) if generation else None
    return {
        "instance": instance,
        "generation": current,
        "last_known_good": store.last_known_good(),
        "unit": {"name": generation.unit, "active": unit.active, "status": unit.status, "restarts": unit.restarts}
        if generation and unit
        else None,
        "start": start,
        "release": {key: release.get(key) for key in RELEASE_FACTS} if release else None,
        "nccl_environment": nccl_environment(start.get("pid") if start else None),
    }


def nccl_environment(pid: object) -> dict[str, str] | None:
    """Return the NCCL variables of the engine's main process, or None when it cannot be read.

    The main process is asked, since setproctitle overwrites the beginning of its children's environment.
    """
    if not isinstance(pid, int):
        return None
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    pairs = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs if name.startswith("NCCL_")}


def _json(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else None
    return None
