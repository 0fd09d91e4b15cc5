# SPDX-License-Identifier: Apache-2.0
"""Runs the module of the same name, and shows the phases of a start in the play's output while it lasts."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

PATIENCE_S = 5
"""Seconds that one call follows the unit: each costs a round trip to the host."""

display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible has no types here
    """Ask again until the start has settled, and say what is new."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module; a start that goes on is followed."""
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        wait = {"patience": PATIENCE_S} if not arguments.get("patience") else {}
        phases: list[dict[str, Any]] = []
        result = self._call({**arguments, **wait}, task_vars)
        while True:
            self._show(result, phases)
            if result.get("failed") or result.get("settled", True):
                return {**result, "phases": phases}
            result = self._call({**arguments, **wait, "state": "followed", "since": result["since"]}, task_vars)

    def _call(self, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        return dict(self._execute_module(module_name="service_control", module_args=arguments, task_vars=task_vars))

    def _show(self, result: dict[str, Any], phases: list[dict[str, Any]]) -> None:
        """Print the phases that were not seen before, and add them."""
        for entry in result.get("phases") or []:
            if not phases or phases[-1]["phase"] != entry["phase"]:
                phases.append(entry)
                display.display(f"  {self._task.args.get('unit')}: {entry['seconds']:6.1f} s  {entry['phase']}")
