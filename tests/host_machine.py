# SPDX-License-Identifier: Apache-2.0
"""A host below a folder, for tests of its settings: files by path, programs that answer from a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from inference.host.machine import Machine
from inference.topology.collect import Answer

Program = Callable[[Sequence[str]], Answer]


class Host(Machine):
    """A machine with hand-made files. ``programs`` goes by the first words of a command; others succeed in silence."""

    def __init__(self, root: Path, files: Mapping[str, str] | None = None, *, contained: bool = False) -> None:
        self.calls: list[str] = []
        self.programs: dict[str, Answer | Program] = {}
        super().__init__(root=root, run=self._run, contained=contained)
        for path, text in (files or {}).items():
            self.write(path, text)

    def write(self, path: str, text: str) -> None:
        """Write a file of the host."""
        self.path(path).parent.mkdir(parents=True, exist_ok=True)
        self.path(path).write_text(text)

    def _run(self, argv: Sequence[str], _timeout: float) -> Answer:
        line = " ".join(argv)
        self.calls.append(line)
        for start in sorted(self.programs, key=len, reverse=True):
            if line.startswith(start):
                answer = self.programs[start]
                return answer if isinstance(answer, Answer) else answer(argv)
        return Answer(0, "")
