# SPDX-License-Identifier: Apache-2.0
"""What whole engines are compared with, as data: engine settings, and the NCCL profiles that a service can run with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, get_args

from .. import engine_args, nccl
from ..engine_args.rules import Scope
from ..findings import Finding
from ..nccl.lint import lint_environment
from ..nccl.profiles import PROFILES
from ..nccl.variables import VersionError
from ..program import nearest
from .outcome import BANNED

_LAST_PORT = 65535


class TrialError(ValueError):
    """A trial or a base that can't be used. The message says what was seen and expected."""


@dataclass(frozen=True)
class Trial:
    """A difference to the base. ``arguments`` and ``environment`` as an instance has them; ``nccl_profile`` by name."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    nccl_profile: str | None = None
    peer_access: bool = False
    """Whether it makes the GPUs read each other's memory: then that has to be proved first, with values."""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


ENGINE: tuple[Trial, ...] = (
    Trial("decode-steps-1", {"num-continuous-decode-steps": 1}),
    Trial("decode-steps-4", {"num-continuous-decode-steps": 4}),
    Trial("attention-triton", {"attention-backend": "triton"}),
    Trial("attention-flashinfer", {"attention-backend": "flashinfer"}),
    Trial("pcie-ipc", environment={"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "1"}, peer_access=True),
    Trial("mscclpp", {"enable-mscclpp": True}, peer_access=True),
    Trial("fp4-flashinfer-cutlass", {"fp4-gemm-backend": "flashinfer_cutlass"}),
    Trial("fp4-flashinfer-cudnn", {"fp4-gemm-backend": "flashinfer_cudnn"}),
    Trial("moe-flashinfer-cutlass", {"moe-runner-backend": "flashinfer_cutlass"}),
    Trial("moe-triton", {"moe-runner-backend": "triton"}),
    Trial("ngram", {"speculative-algorithm": "NGRAM"}),
    Trial("single-batch-overlap", {"enable-single-batch-overlap": True}),
    Trial("no-overlap-schedule", {"disable-overlap-schedule": True}),
)
"""Settings that the reports on such hosts contradict each other about. SGLang's names."""


def known(engine: str) -> dict[str, Trial]:
    """Return the built-in trials by name; the NCCL profiles are those that a service can run with."""
    profiles = [Trial(f"nccl-{name}", nccl_profile=name) for name in PROFILES]
    return {trial.name: trial for trial in (*(ENGINE if engine == "sglang" else ()), *profiles)}


@dataclass(frozen=True)
class Base:
    """What runs today: an instance as the inventory has it, its model, the release, and where that is installed."""

    engine: str
    version: str
    python: str
    model: Mapping[str, Any]
    instance: Mapping[str, Any]
    scope: Scope = "sm120"
    nccl_version: str | None = None

    @classmethod
    def from_dict(cls, document: object) -> Base:
        """Read it. Raises TrialError."""
        expected = "engine, version, python, model (name, path), instance (port, ...), and maybe scope and nccl_version"
        try:
            base = cls(**document)  # type: ignore[arg-type]
        except TypeError as error:
            raise TrialError(f"not the base of a comparison: {error}; expected {expected}") from error
        if wrong := next(base._wrong(), None):
            raise TrialError(f"not the base of a comparison: {wrong}; expected {expected}")
        return base

    def _wrong(self) -> Iterator[str]:
        """Yield what can't be used."""
        if self.engine not in tuple(engine_args.TITLES):
            yield f"engine is {self.engine!r}, not one of {', '.join(engine_args.TITLES)}"
        if self.scope not in get_args(Scope):
            yield f"scope is {self.scope!r}, not one of {', '.join(get_args(Scope))}"
        texts: dict[str, Any] = {
            "version": self.version,
            "python": self.python,
            "nccl_version": self.nccl_version or "none",
        }
        if isinstance(self.model, Mapping):
            texts |= {f"model's {part}": self.model.get(part) for part in ("name", "path")}
        else:
            yield f"model is {self.model!r}"
        yield from (f"{name} is {text!r}" for name, text in texts.items() if not (isinstance(text, str) and text))
        if not isinstance(self.instance, Mapping):
            yield f"instance is {self.instance!r}"
            return
        port, ranks = self.instance.get("port"), self.instance.get("tensor_parallel_size") or 1
        numbers = {"port": port, "tensor_parallel_size": ranks}
        yield from (f"{name} is {n!r}" for name, n in numbers.items() if type(n) is not int or not 0 < n <= _LAST_PORT)
        yield from _wrong_settings(self.instance)

    def with_trial(self, trial: Trial | None) -> dict[str, Any]:
        """Return the instance with a trial's difference."""
        trial = trial or Trial("base")
        profile = trial.nccl_profile or self.instance.get("nccl_profile") or nccl.profiles.DEFAULT_PROFILE
        return {
            **self.instance,
            "arguments": {**(self.instance.get("arguments") or {}), **trial.arguments},
            "environment": {**(self.instance.get("environment") or {}), **trial.environment},
            "nccl_profile": profile,
        }

    def nccl_environment(self, trial: Trial | None, measured: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Return the NCCL settings of a trial. Raises NcclError."""
        instance = self.with_trial(trial)
        return nccl.environment(instance["nccl_profile"], instance.get("nccl_environment"), measured=measured)

    def command(self, trial: Trial | None) -> list[str]:
        """Return the engine's command line, as the service would run it."""
        table = engine_args.load_table(self.engine, self.version)
        return engine_args.command(self.engine, self.python, self.with_trial(trial), self.model, table)

    def environment(self, trial: Trial | None, measured: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Return what is set for the engine beyond the calling environment."""
        own = {key: str(value) for key, value in self.with_trial(trial)["environment"].items()}
        return {**self.nccl_environment(trial, measured), **own}


def _wrong_settings(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield which of an instance's or a trial's settings are no mapping, or name no NCCL profile."""
    for name in ("arguments", "environment", "nccl_environment"):
        if given.get(name) is not None and not isinstance(given[name], Mapping):
            yield f"{name} is {given[name]!r}, not a mapping"
    if not isinstance(given.get("nccl_profile") or "", str):
        yield f"nccl_profile is {given['nccl_profile']!r}, not a name"


def refused(base: Base, trial: Trial, measured: Mapping[str, Any] | None = None) -> list[Finding]:
    """Return the critical findings of both lints on a trial: it is not run with any. Raises NcclError, TrialError."""
    instance, where = base.with_trial(trial), f"trial {trial.name}"
    table = engine_args.load_table(base.engine, base.version)
    others = engine_args.load_tables(base.engine)
    settings = base.nccl_environment(trial, measured)
    given = engine_args.settings(
        instance,
        engine=base.engine,
        version=base.version,
        table=table,
        scope=base.scope,
        nccl_environment=settings,
    )
    found = [*engine_args.check(instance, where, table, others), *engine_args.lint(given, where)]
    if base.nccl_version:
        try:
            found += lint_environment(settings, base.nccl_version).findings
        except VersionError as error:
            raise TrialError(f"nccl_version: {error}") from error
    return [finding for finding in found if finding.level == "critical"]


def options_unknown(base: Base) -> bool:
    """Say whether names of options can't be checked: hosts have no tables of them, and not every release has one."""
    return engine_args.load_table(base.engine, base.version) is None


def peer_access_proved(recorded: Mapping[str, Any] | None) -> bool:
    """Say whether a measurement of all-reduces (what ``run --out`` wrote) had right values over peer access."""
    try:
        outcomes = (recorded or {}).get("outcomes") or ()
        via = [o for o in outcomes if ((o.get("proof") or {}).get("transports") or {}).get("P2P")]
        bad_pair = any(pair.get("verdict") in BANNED for pair in (recorded or {}).get("pairs") or ())
        return bool(via) and all(outcome.get("verdict") == "healthy" for outcome in via) and not bad_pair
    except (AttributeError, TypeError):
        return False


def _own(entry: object) -> Trial:
    expected = "expected an object with name, and any of arguments, environment, nccl_profile"
    if not isinstance(entry, Mapping):
        raise TrialError(f"trial {entry!r}: {expected}")
    wrong = next(_wrong_settings(entry), "")
    try:
        trial = Trial(**{key: value for key, value in entry.items() if value is not None})
    except TypeError as error:
        raise TrialError(f"trial {entry!r}: {error}; {expected}") from error
    if wrong or not re.fullmatch(r"[\w.-]+", str(trial.name)):  # the name is part of a file's name
        raise TrialError(f"trial {entry!r}: {wrong or f'its name is {trial.name!r}'}; {expected}")
    return trial


def chosen(engine: str, names: Iterable[str], own: Any = ()) -> list[Trial]:
    """Return trials by name, then those of a list of objects. Raises TrialError."""
    table, result = known(engine), []
    if not isinstance(own, (list, tuple)):
        raise TrialError(f"seen {type(own).__name__}; expected a list of trials")
    for name in names:
        if name not in table:
            raise TrialError(f"no trial {name!r}{nearest(name, table)}; there are {', '.join(table)}")
        result.append(table[name])
    result += [_own(entry) for entry in own]
    doubled = {trial.name for trial in result if [t.name for t in result].count(trial.name) > 1}
    if doubled:
        raise TrialError(f"two trials are called {', '.join(sorted(doubled))}")
    return result
