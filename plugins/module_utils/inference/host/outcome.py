# SPDX-License-Identifier: Apache-2.0
"""How a setting stands, and what has to be done for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["in effect", "to do", "pending", "not done"]
"""``to do``: the next apply does it. ``pending``: written, and in effect only after what ``why`` names.
``not done``: cannot be done here. None of the last two is ever shown as done."""

Settings = Mapping[str, Any]
"""The role's variables by name, such as ``host_iommu``."""


@dataclass(frozen=True)
class Outcome:
    """How one setting stands. ``reboot``: a reboot is what it waits for."""

    setting: str
    state: State
    what: str
    why: str = ""
    reboot: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    def __str__(self) -> str:
        """Return one line for people."""
        return f"{self.setting}: {self.what}: {self.state}" + (f", {self.why}" if self.why else "")


@dataclass(frozen=True)
class Step:
    """Something to do besides writing files. ``before`` and ``after`` are texts for a diff."""

    setting: str
    what: str
    act: Callable[[], None]
    before: str = ""
    after: str = ""
