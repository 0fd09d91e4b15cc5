# SPDX-License-Identifier: Apache-2.0
"""How long an engine's own threads waited for a processor: what tells a slow engine from a busy host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

Look = Callable[[], "Waited | None"]
"""Looks at the engine now; None where nothing can be seen."""


@dataclass(frozen=True)
class Waited:
    """Seconds that an engine's threads ran, and waited while they could have run (the kernel's schedstat)."""

    ran: float
    waited: float

    def since(self, before: Waited) -> Waited:
        """Return the difference. A thread that ended in between takes its time with it: never below nothing."""
        return Waited(max(self.ran - before.ran, 0.0), max(self.waited - before.waited, 0.0))


def share(looks: Iterable[Waited | None]) -> float | None:
    """Return the share of their time that the threads waited; None when anything was not seen."""
    seen = list(looks)
    known = [look for look in seen if look is not None]
    total = sum(look.ran + look.waited for look in known)
    return sum(look.waited for look in known) / total if total and len(known) == len(seen) else None


def looker(control_group: str, root: Path = Path("/")) -> Look:
    """Return what looks at the processes of a unit; ``control_group`` as systemd names it, empty for none."""
    groups = [
        folder
        for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified", "sys/fs/cgroup/systemd")
        if control_group and (folder := root / mount / control_group.lstrip("/")).is_dir()
    ]
    return lambda: _look(groups[0], root / "proc") if groups else None


def _look(group: Path, proc: Path) -> Waited | None:
    ran = waited = 0.0
    for pid in _processes(group):
        for task in (proc / pid / "task").glob("*/schedstat"):
            try:
                on, off, *_ = map(int, task.read_text(encoding="ascii").split())
            except (OSError, ValueError):
                continue
            ran, waited = ran + on / 1e9, waited + off / 1e9
    return Waited(ran, waited) if ran else None


def _processes(group: Path) -> list[str]:
    try:
        return [pid for file in group.rglob("cgroup.procs") for pid in file.read_text(encoding="ascii").split()]
    except OSError:
        return []
