# SPDX-License-Identifier: Apache-2.0
"""Runs the module of the same name, and shows how far a download from a hub is while it lasts."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

PATIENCE_S = 30
"""Seconds that one call downloads; the next one goes on where it stopped."""

display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible has no types here
    """Ask again until everything has come."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module; a download that is not finished goes on."""
        super().run(tmp, task_vars)
        began, first = time.monotonic(), None
        while True:
            arguments = {"hub_patience": PATIENCE_S, **self._task.args}
            result = dict(self._execute_module(module_args=arguments, task_vars=task_vars))
            if result.get("failed") or "hub_progress" not in result:
                return result
            progress = result["hub_progress"]
            first = progress["there"] if first is None else first
            rate = (progress["there"] - first) / (time.monotonic() - began)
            left = f", {(progress['whole'] - progress['there']) / rate / 60:.0f} min left" if rate > 0 else ""
            line = f"{progress['there'] / 1e9:.1f} of {progress['whole'] / 1e9:.1f} GB, {rate / 1e6:.0f} MB/s{left}"
            display.display(f"  {progress['model']}: {line}")
