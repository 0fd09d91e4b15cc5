# SPDX-License-Identifier: Apache-2.0
"""Whole engines one after the other, B A B A: which trials are worth a start, in what order, and what came of them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import nccl
from ..findings import Report
from . import comparison, engines, trials
from .comparison import Comparison, EngineRun, Expectation
from .engines import Engines
from .record import Record
from .shapes import Shape, shape_of
from .trials import Base, Trial, TrialError

Keep = Callable[[Sequence[Comparison]], None]
"""Takes what there is so far, so that a run of an hour that is killed leaves what it measured."""

Say = Callable[[str], None]

_ROOT = (
    "engines would run as root, and with them the release's code and, with trust-remote-code, code that comes with the "
    "weights; seen: root, expected: the account of the service; run it as that (runuser -u inference -- scripts/tune "
    "ab ..., see docs/tune.md), or give --as-root where there is no other account"
)


@dataclass
class Session:
    """One comparison of ``tried`` with what runs today (``base``).

    ``measured`` is the document of the profile of that name, ``record`` a run's on this host, ``chunk`` how many tokens
    of a prompt the engine takes at once.
    """

    base: Base
    tried: Sequence[Trial]
    measured: Mapping[str, Any] | None = None
    record: Record | None = None
    chunk: int = 8192
    fingerprint: str | None = None
    """Of this host, where it is known."""
    against: dict[str, str] = field(default_factory=dict)
    """By trial why it is not run; empty for one that is."""
    expectations: dict[str, Expectation | None] = field(default_factory=dict)

    def prepare(self, report: Report) -> None:
        """Find out which trials are not worth a start, and what to expect of the others. Raises TrialError."""
        self.against = {trial.name: self._against(trial) for trial in self.tried}
        self.expectations = {trial.name: self._expectation(trial, report) for trial in self.tried}

    @property
    def starts(self) -> bool:
        """Whether any engine will be started."""
        return not all(self.against.values())

    def _against(self, trial: Trial) -> str:
        try:
            found = trials.refused(self.base, trial, self.measured)
            if found:
                return f"{found[0].what} ({found[0].seen})"
            unproved = self._peer_access_unproved() if trial.peer_access else ""
            if unproved:
                return unproved
            same = self.base.command(trial) == self.base.command(None) and self._settings(trial) == self._settings(None)
        except (nccl.NcclError, TrialError) as error:
            raise TrialError(f"trial {trial.name}: {error}") from error
        return "it is what runs today" if same else ""

    def _peer_access_unproved(self) -> str:
        """Return why nothing shows that GPUs here read each other's memory rightly, or nothing."""
        document = self.record.document if self.record else {}
        if not trials.peer_access_proved(document):
            return "no --result of run here proves peer access with values"
        host = document.get("host")
        there = host.get("fingerprint") if isinstance(host, Mapping) else None
        if there and self.fingerprint and there != self.fingerprint:
            return f"--result is of another host or of this one before a change: {there}, here {self.fingerprint}"
        return ""

    def _settings(self, trial: Trial | None) -> dict[str, str]:
        return self.base.environment(trial, self.measured)

    def _expectation(self, trial: Trial, report: Report) -> Expectation | None:
        """Return what a measurement of all-reduces says of a change of NCCL profiles alone."""
        if not self.record or not trial.nccl_profile or trial.arguments or trial.environment:
            return None
        other = _other_model(self.record.shape, self.base)
        if other:
            report.skip(f"tune-{trial.name}-expected", other)
            return None
        by_name = {result.name: result for result in self.record.results}
        names = (self.base.with_trial(None)["nccl_profile"], trial.nccl_profile)
        one, two = (by_name.get(name) for name in names)
        return Expectation(self.record.shape, one, two, self.chunk) if one and two and one.rows and two.rows else None

    def check_startable(self, smoke_python: str | None, *, as_root: bool = False) -> None:
        """Refuse what would only show after an engine's start, and root unless ``as_root``. Raises TrialError."""
        if os.geteuid() == 0 and not as_root:
            raise TrialError(_ROOT)
        for program in filter(None, (self.base.python, smoke_python)):
            if not shutil.which(program):
                raise TrialError(f"{program}: no such program; expected the Python of the release (python in BASE)")
        port = self.base.instance["port"]
        if engines.listens(port):
            raise TrialError(f"port {port} is in use: seen a server there, expected none; stop the instance first")

    def run(self, start: Engines, environment: Mapping[str, str], *, keep: Keep, say: Say) -> list[Comparison]:
        """Run the trials one after the other; a base that fails ends it. ``environment`` is what engines inherit."""
        outcomes: list[Comparison] = []
        for trial in self.tried:
            against = self.against[trial.name]
            if against:
                outcomes.append(Comparison(trial.name, "refused", against))
            else:
                outcomes.append(Comparison(trial.name, "unfinished", "it was ended before its last start"))
                proved = any(_sound(run) for outcome in outcomes for run in outcome.runs if run.side == "A")
                for so_far in self._runs(trial, start, environment, say, proved=proved):
                    outcomes[-1] = replace(outcomes[-1], runs=so_far)
                    keep(outcomes)
                outcomes[-1] = _compared(trial, outcomes[-1].runs, self.expectations[trial.name])
            keep(outcomes)
            say(f"{trial.name}: {outcomes[-1].status}; {outcomes[-1].reason}")
            if outcomes[-1].status == "no-base":
                break
        return outcomes

    def _runs(
        self, trial: Trial, start: Engines, inherited: Mapping[str, str], say: Say, *, proved: bool
    ) -> Iterator[tuple[EngineRun, ...]]:
        """Yield the runs so far after each start; the first that is wrong or fails is the last.

        Unless the base is not ``proved`` yet: then it is started once, since the fault may be its own.
        """
        runs: list[EngineRun] = []
        for number, side in enumerate(comparison.ORDER, 1):
            what = trial if side == "B" else None
            say(f"{trial.name}: start {number} of {len(comparison.ORDER)}, {side}")
            environment = {**inherited, **self._settings(what)}
            name = f"{trial.name}-{number}-{side}"
            runs.append(start.run(side, name, self.base.command(what), environment, self.base.instance["port"]))
            yield tuple(runs)
            proved = proved or (side == "A" and _sound(runs[-1]))
            if not all(map(_sound, runs)) and (proved or side == "A"):
                return

    def add_findings(self, outcomes: Sequence[Comparison], report: Report) -> None:
        """Add what has to be said of the outcomes, and what was not run."""
        report.extend(comparison.findings(outcomes))
        if trials.options_unknown(self.base):
            title = f"{self.base.engine} {self.base.version}"
            report.skip("tune-options", f"no table of {title}'s options here: names were not checked")
        for outcome in outcomes:
            if outcome.status == "refused":
                report.skip(f"tune-{outcome.name}", f"refused without a run: {outcome.reason}")
        for trial in self.tried[len(outcomes) :]:
            report.skip(f"tune-{trial.name}", "not run: there is nothing to compare it with")

    def text(self, outcomes: Sequence[Comparison], report: Report) -> str:
        """Return figures, findings and the choice for people."""
        best = comparison.recommend(outcomes) or "what runs today stays"
        choice = "nothing can be chosen" if len(outcomes) < len(self.tried) or report.at("critical") else best
        return "\n\n".join([comparison.text(outcomes), report.as_text(), f"choice: {choice}."])


def _other_model(shape: Shape, base: Base) -> str:
    """Return why a measurement says nothing of this model: it sends other messages. Unknown is not another."""
    try:
        own = shape_of(json.loads((Path(base.model["path"]) / "config.json").read_text()))
    except (OSError, ValueError):
        return ""
    if (own.hidden, own.layers) == (shape.hidden, shape.layers):
        return ""
    return (
        f"--result is of a model of {shape.layers} layers, hidden {shape.hidden}; "
        f"{base.model['name']} has {own.layers}, hidden {own.hidden}"
    )


def _sound(run: EngineRun) -> bool:
    return not (run.wrong or run.failed)


def _compared(trial: Trial, runs: tuple[EngineRun, ...], expectation: Expectation | None) -> Comparison:
    try:
        return comparison.compare(trial.name, runs, expectation)
    except comparison.ComparisonError as error:
        return Comparison(trial.name, "failed", str(error), (), runs)


def document(base: Base, outcomes: Sequence[Comparison], command: str) -> dict[str, Any]:
    """Return what there is as a document; ``command`` is what was typed."""
    return {
        "base": asdict(base),
        "trials": [outcome.as_dict() for outcome in outcomes],
        "recommended": comparison.recommend(outcomes),
        "command": command,
    }


def list_text(tried: Iterable[Trial]) -> str:
    """Return a line for each trial."""
    lines = []
    for trial in tried:
        words = [f"{k}={v}" for k, v in {**trial.arguments, **trial.environment}.items()]
        lines.append(f"{trial.name:<24} {' '.join(words) or f'NCCL profile {trial.nccl_profile}'}")
    return "\n".join(lines)
