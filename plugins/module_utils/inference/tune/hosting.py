# SPDX-License-Identifier: Apache-2.0
"""A measurement as a job of the host's systemd: it outlives the controller, and so does the instances' return.

Two transient units: ``inference-tune.service`` measures; ``inference-tune-return.timer`` starts the stopped instances
when its time is over. Whoever stopped them starts them again and takes the timer away, or else it does it.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..findings import SCHEMA

UNIT = "inference-tune.service"
RETURN = "inference-tune-return"

ENDED, LOG, OUTPUT, MEASURED = "ended", "log", "output.json", "measured.json"
"""Files of a measurement's folder: exit code, progress, what it printed, and the document that it wrote."""

_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?:/|$)")


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a GPU; ``unit`` is the service or scope that it belongs to, or empty."""

    pid: int
    name: str
    unit: str

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def holders(apps: str, cgroups: Mapping[int, str]) -> list[Holder]:
    """Return who holds a GPU, from ``nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader``.

    ``cgroups`` is each process's ``/proc/PID/cgroup``.
    """
    found = []
    for row in csv.reader(apps.splitlines(), skipinitialspace=True):
        if row and row[0].isdecimal():
            pid = int(row[0])
            within = _UNIT.findall(cgroups.get(pid, ""))
            found.append(Holder(pid, row[1] if len(row) > 1 else "", within[0] if within else ""))
    return found


def strangers(found: Iterable[Holder], units: Iterable[str]) -> list[Holder]:
    """Return the processes that are not of ``units``, nor of a measurement that was left behind."""
    own = {*units, UNIT}
    return [holder for holder in found if holder.unit not in own]


def gpus_of(environment: str) -> list[int]:
    """Return the GPUs that a unit's ``Environment=`` names by number in CUDA_VISIBLE_DEVICES."""
    named = re.search(r"(?:^|\s)CUDA_VISIBLE_DEVICES=([\d,]+)(?:\s|$)", environment)
    return [int(number) for number in named[1].split(",") if number] if named else []


def measuring(command: Sequence[str], environment: Mapping[str, str | None], folder: Path, seconds: int) -> list[str]:
    """Return the command that has systemd measure, for ``seconds`` at most; its whole process tree ends with it.

    A setting without a value is one that an instance leaves out.
    """
    properties = {
        "StandardOutput": f"truncate:{folder / OUTPUT}",
        "StandardError": f"truncate:{folder / LOG}",
        "RuntimeMaxSec": str(seconds),
        "LimitMEMLOCK": "infinity",
        "TimeoutStopSec": "15",
    }
    return [
        *("systemd-run", "--quiet", "--collect", f"--unit={UNIT}", "--service-type=exec"),
        *(f"--property={name}={value}" for name, value in properties.items()),
        *(f"--setenv={name}={value}" for name, value in {"HOME": "/root", **environment}.items() if value is not None),
        # the unit is gone once it has ended, so its exit code has to be written down
        *("/bin/sh", "-c", '"$@"; echo $? > "$0"', str(folder / ENDED), *command),
    ]


def returning(units: Sequence[str], seconds: int) -> list[str]:
    """Return the command that has systemd start ``units`` in ``seconds``, whatever becomes of the one who asks."""
    return [
        *("systemd-run", "--quiet", "--collect", f"--unit={RETURN}", f"--on-active={seconds}"),
        *("--timer-property=AccuracySec=1s", "systemctl", "start", "--", *units),
    ]


@dataclass(frozen=True)
class Ended:
    """How a measurement ended. ``code`` is tune's exit code, None where it did not end by itself."""

    code: int | None
    report: Mapping[str, Any]
    installable: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form: what a play shows and keeps."""
        return {"code": self.code, "report": dict(self.report), "installable": self.installable}


def ended(folder: Path) -> Ended:
    """Read what a measurement left. The old document stays where it found nothing or only faults (exit 2 and 3)."""
    text = _text(folder / ENDED).strip()
    code = int(text) if text.isdecimal() else None
    try:
        report = json.loads(_text(folder / OUTPUT))
    except ValueError:
        report = {}
    if not isinstance(report, dict) or not report:
        report = {"schema": SCHEMA, "ok": False, "findings": [_no_result(code, _text(folder / LOG))], "not_checked": []}
    return Ended(code, report, code in (0, 1) and (folder / MEASURED).is_file())


def _no_result(code: int | None, log: str) -> dict[str, str]:
    last = next((line for line in reversed(log.splitlines()) if line.strip()), "nothing")
    return {
        "id": "tune-no-result",
        "level": "unknown",
        "what": "the measurement left no result",
        "seen": f"{'it was ended from outside, or its time was over' if code is None else f'exit code {code}'}; {last}",
        "expected": "a result, also of a hang",
        "fix": "Read the log in the measurement's folder on the host; give it more time with tune_timeout.",
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
