# SPDX-License-Identifier: Apache-2.0
"""Ansible callback: where the time of a play went, one line a stage."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: stages
type: aggregate
short_description: Print the seconds that each stage (role) took
description:
  - At the end of a play, prints one line a stage in the order in which they ran, the slowest task of each named.
author: The inference toolkit's authors
"""

INTERNAL = ("transfer", "report")
"""Roles whose tasks count for the stage that called them."""


class CallbackModule(CallbackBase):  # type: ignore[misc]  # ansible has no types here
    """Add up wall-clock seconds between task starts, by role."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "stages"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._seconds: dict[str, dict[str, float]] = {}
        self._open: tuple[str, str, float] | None = None
        self._stage = ""

    def _close(self) -> None:
        if self._open is not None:
            stage, task, began = self._open
            tasks = self._seconds.setdefault(stage, {})
            tasks[task] = tasks.get(task, 0.0) + time.monotonic() - began
            self._open = None

    def _begin(self, task: Any) -> None:
        self._close()
        stage = task._role.get_name() if task._role else ""
        if stage not in INTERNAL:
            self._stage = stage
        self._open = (self._stage, task.get_name(), time.monotonic())

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002
        """Begin a task."""
        self._begin(task)

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Begin a handler."""
        self._begin(task)

    def v2_playbook_on_stats(self, stats: Any) -> None:  # noqa: ARG002
        """Print the table."""
        self._close()
        if not self._seconds:
            return
        self._display.banner("SECONDS PER STAGE")
        for stage, tasks in self._seconds.items():
            slowest = max(tasks, key=lambda name: tasks[name])
            self._display.display(f"{stage or '(play)':<12} {sum(tasks.values()):7.1f}   slowest: {slowest}")
        total = sum(sum(tasks.values()) for tasks in self._seconds.values())
        self._display.display(f"{'all':<12} {total:7.1f}")
