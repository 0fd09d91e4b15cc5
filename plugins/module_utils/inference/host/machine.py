# SPDX-License-Identifier: Apache-2.0
"""The host as the settings see it: its files, its programs, and whether the kernel is its own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..topology.collect import Answer, Run, run_command
from ..topology.host_files import kernel_parameters

PROGRAM_TIMEOUT = 30.0
"""Seconds for a program that only answers."""

BUILD_TIMEOUT = 600.0
"""Seconds for one that builds something: update-initramfs for several kernels takes minutes on slow disks."""


class HostError(Exception):
    """A setting that cannot be used or applied. The message says what was seen, what was expected, how to fix it."""


class CannotActError(Exception):
    """What a setting acts on is not here; the message says why. No error: the setting is reported as not done."""


@dataclass
class Machine:
    """A host. ``root`` is where its files are looked for, ``run`` runs its programs."""

    root: Path = Path("/")
    run: Run = run_command
    contained: bool | None = None
    """True in a container, whose kernel belongs to the machine below. None: find out."""
    answers: dict[tuple[str, ...], Answer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.contained is None:
            self.contained = self.path("/run/systemd/container").exists()

    def path(self, name: str) -> Path:
        """Return where an absolute path of the host is."""
        return self.root / name.lstrip("/")

    def read(self, name: str) -> str | None:
        """Return the text of a file, stripped; None where it cannot be read."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace").strip()
        except (OSError, ValueError):
            return None

    def ask(self, *argv: str) -> Answer:
        """Run a program that only answers, once: its answer is kept."""
        if argv not in self.answers:
            self.answers[argv] = self.run(argv, PROGRAM_TIMEOUT)
        return self.answers[argv]

    def must(self, argv: Sequence[str], timeout: float = PROGRAM_TIMEOUT) -> str:
        """Run a program that has to succeed and return what it printed."""
        answer = self.run(argv, timeout)
        if answer.code:
            said = " ".join((answer.err or answer.out).split())[-600:]
            why = f"no end after {timeout:.0f} s" if answer.timed_out else f"exit {answer.code}"
            raise HostError(f"{' '.join(argv)} failed ({why}): {said or 'it printed nothing'}")
        return answer.out

    def has(self, program: str) -> bool:
        """Whether the host has a program."""
        folders = ":".join(str(self.path(f)) for f in ("/usr/local/sbin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"))
        return shutil.which(program, path=folders) is not None

    @cached_property
    def parameters(self) -> dict[str, str | None]:
        """The command line that the running kernel was started with."""
        return kernel_parameters(self.read("/proc/cmdline") or "")

    def own_kernel(self, what: str) -> None:
        """Raise CannotActError in a container. ``what`` names the thing that is not the container's."""
        if self.contained:
            raise CannotActError(f"a container: {what} belongs to the machine below, set it there")
