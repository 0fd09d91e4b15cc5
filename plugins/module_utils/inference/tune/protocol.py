# SPDX-License-Identifier: Apache-2.0
"""What the measuring program and its worker processes say to each other: a job as a file, events as lines of JSON.

A worker is one process a GPU. It reads the job, takes its rank from the command line, and appends one object a line
to ``events-RANK.jsonl`` in the job's folder, each with ``event``. An event that is missing tells where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

JOB = "job.json"
EVENTS = ("started", "imported", "initialised", "checking", "replayed", "timed", "done", "failed")
"""In order; ``checking`` and ``timed`` once a message, with ``bytes``, between them ``replayed`` whenever a replay,
or the run before a capture, has ended, so that slow and stuck can be told apart; ``failed`` instead of what comes next.

``imported`` has ``torch``, ``nccl`` (version or null); ``timed`` has ``us`` (one figure a replay, us an all-reduce) and
``wrong`` (null, or ``count``, ``when``, and where it can be seen ``index``, ``got``, ``expected``); ``failed``
has ``reason``.
"""

_CALLS = ((1 << 20, 50), (1 << 24, 20))
_CALLS_ABOVE = 5


@dataclass(frozen=True)
class Message:
    """One message: ``bytes``, and how many all-reduces of it one replay of a graph makes."""

    bytes: int
    calls: int


@dataclass(frozen=True)
class Job:
    """What a group of workers does. ``devices`` are CUDA ordinals by rank (ignored by gloo)."""

    backend: str
    devices: tuple[int, ...]
    dtype: str
    messages: tuple[Message, ...]
    repeats: int
    warmups: int
    folder: str

    @property
    def world(self) -> int:
        """How many ranks."""
        return len(self.devices)

    @property
    def rendezvous(self) -> str:
        """Where the ranks find each other: a file, so that no port has to be free."""
        return f"file://{Path(self.folder) / 'rendezvous'}"

    def write(self) -> Path:
        """Write the job into its folder and return the file."""
        path = Path(self.folder) / JOB
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: Path) -> Job:
        """Read what :meth:`write` wrote."""
        document = json.loads(path.read_text())
        messages = tuple(Message(**message) for message in document.pop("messages"))
        return cls(devices=tuple(document.pop("devices")), messages=messages, **document)

    def events_file(self, rank: int) -> Path:
        """Where a rank writes its events."""
        return Path(self.folder) / f"events-{rank}.jsonl"


def message(size: int, world: int) -> Message:
    """Return a message with as many calls a replay as keep it short and its values finite.

    Each call of a replay multiplies the sum by the number of ranks; 16-bit brain floats end at 2^127.
    """
    calls = next((count for limit, count in _CALLS if size <= limit), _CALLS_ABOVE)
    doublings = max(1, (world - 1).bit_length())
    return Message(size, min(calls, 1 + 110 // doublings))


def dtype_of(dtype_bytes: int) -> str:
    """Return the type that is sent, by its size; brain floats for all 16-bit ones, which cost the same."""
    return "float32" if dtype_bytes == 4 else "bfloat16"  # noqa: PLR2004 - bytes of a 32-bit float


class Events:
    """Reads what the ranks have written so far; a line that is still being written waits."""

    def __init__(self, job: Job) -> None:
        self._files = [job.events_file(rank) for rank in range(job.world)]
        self._offsets = [0] * job.world
        self.by_rank: list[list[dict[str, Any]]] = [[] for _ in range(job.world)]

    def poll(self) -> bool:
        """Read on. Returns whether anything new came."""
        return sum(self._poll(rank) for rank in range(len(self._files))) > 0

    def rest(self) -> list[list[dict[str, Any]]]:
        """Read what is left and return all events by rank."""
        self.poll()
        return self.by_rank

    def _poll(self, rank: int) -> bool:
        try:
            with self._files[rank].open("rb") as file:
                file.seek(self._offsets[rank])
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return False
        self._offsets[rank] += len(whole) + len(newline)
        read = [self._event(line) for line in whole.splitlines()]
        self.by_rank[rank] += read
        return bool(read)

    @staticmethod
    def _event(line: bytes) -> dict[str, Any]:
        try:
            event = json.loads(line)
        except ValueError:
            event = None
        if isinstance(event, Mapping) and event.get("event") in EVENTS:
            return dict(event)
        return {"event": "failed", "reason": f"the worker wrote {line[:80]!r}, which is no event"}

    def seen(self, name: str) -> int:
        """Return how many ranks have got as far as the event ``name``."""
        return sum(any(event["event"] == name for event in events) for events in self.by_rank)
