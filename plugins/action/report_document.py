# SPDX-License-Identifier: Apache-2.0
"""Writes what a run found into the reports on the controller, without starting a module for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))

from inference.atomic import write_atomically


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible has no types here
    """One document."""

    _requires_connection = False
    _VALID_ARGS = frozenset({"path", "content"})
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Replace the file, unless this is a rehearsal. It is what a run says, not what a run changes."""
        result = super().run(tmp, task_vars)
        given = self._task.args
        if not isinstance(given.get("path"), str) or "content" not in given:
            raise AnsibleActionFail("report_document: expected path, a file on the controller, and content")
        path = Path(given["path"]).absolute()
        try:
            text = json.dumps(given["content"], indent=1, sort_keys=True, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise AnsibleActionFail(f"report_document: content for {path} is no JSON ({error})") from error
        if not self._task.check_mode:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                # an answer may hold half a character, which JSON has as an escape and UTF-8 has not
                write_atomically(path, f"{text}\n".encode(errors="backslashreplace"))
            except OSError as error:
                raise AnsibleActionFail(f"{path}: cannot be written ({error.strerror})") from error
        return {**result, "changed": False, "path": str(path)}
