# SPDX-License-Identifier: Apache-2.0
"""Runs the module of the same name; a measurement is followed, with its progress in the play's output."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible has no types here
    """Ask again until the measurement has ended, and say what is new."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Run the module."""
        super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        result = self._call(arguments, task_vars)
        while not result.get("failed") and not result.get("settled", True):
            again = {"operation": "follow", "folder": arguments["folder"], "offset": result["offset"]}
            result = self._call(again, task_vars)
            for line in result.get("lines") or []:
                display.display(f"  {line}")
        return result

    def _call(self, arguments: dict[str, Any], task_vars: dict[str, Any] | None) -> dict[str, Any]:
        return dict(self._execute_module(module_name="tune_measure", module_args=arguments, task_vars=task_vars))
