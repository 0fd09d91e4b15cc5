# SPDX-License-Identifier: Apache-2.0
"""What is said of a running engine against what was meant. A silent fallback is critical; what isn't known is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..engine_args import is_secret
from ..findings import Finding, Level, NotChecked
from ..nccl import log as nccl_log
from ..nccl.variables import same_release
from ..redact import redact
from .journal import FEATURES, Journal, asked_for, log_level_hides
from .meant import Meant, Option
from .process import Process


@dataclass(frozen=True)
class ModuleFile:
    """A file of the release that patches touch: its hash now, the sealed one, and when it last changed on disk."""

    path: str
    sha256: str | None
    sealed: str | None
    changed: float | None
    """Seconds since 1970 (the later of modification and change of status)."""


@dataclass(frozen=True)
class Nccl:
    """The NCCL library that is loaded: its path, its version, and where that is known from."""

    path: str
    version: str | None
    source: str


@dataclass
class Case:
    """Everything that is known of one running engine. None is what could not be had; ``why`` says why, by subject."""

    meant: Meant
    started_with: str | None
    """The generation that the supervisor says it was started with."""
    main: Process | None
    supervisor: Process | None
    children: Sequence[Process] = ()
    info: Mapping[str, Any] | None = None
    """What the engine answers about its settings."""
    journal: Journal | None = None
    modules: Sequence[ModuleFile] = ()
    nccl: Nccl | None = None
    strangers: Mapping[str, str] = field(default_factory=dict)
    """Variables that units' files of others than this toolkit set, and in which file."""
    releases: str = "/opt/inference/releases"
    why: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str] | None:
        """Return the engine's environment: its main process's, or the supervisor's where a title overwrote that.

        The supervisor hands on what it got, but for systemd's own variables.
        """
        main = self.main.environment if self.main else None
        given = self.supervisor.environment if self.supervisor else None
        if main is None or (self.main and self.main.whole):
            return main if main is not None else given
        return {**(given or {}), **main}

    @property
    def command(self) -> tuple[str, ...] | None:
        """Return the engine's command line as it was started: what the supervisor was told to run."""
        words = self.supervisor.command if self.supervisor else ()
        if "--" in words:
            return words[words.index("--") + 1 :]
        return self.main.command if self.main else None


Check = Callable[[Case], Iterator["Finding | NotChecked"]]


def check(case: Case) -> list[Finding | NotChecked]:
    """Return everything that is to be said about a running engine."""
    if case.main is None:
        return [_no_process(case)]
    return [entry for rule in CHECKS for entry in rule(case)]


def _no_process(case: Case) -> Finding:
    return _found(
        "proof-no-process", "the engine's main process can't be found, so nothing is proved",
        seen=case.why.get("process", "no such process"), expected=f"a process of {case.meant.unit}",
        fix=f"systemctl status {case.meant.unit}", level="unknown",
    )  # fmt: skip


def _found(
    finding_id: str, what: str, *, seen: str, expected: str, fix: str, level: Level = "critical"
) -> Finding:  # fmt: skip
    return Finding(finding_id, level, what, seen, expected, fix)


_AGAIN = "Run site.yml, which restarts what does not run what is installed."


def _generation(case: Case) -> Iterator[Finding | NotChecked]:
    if case.started_with is None:
        yield NotChecked("proof-generation", case.why.get("state", "the supervisor's state.json can't be read"))
    elif case.started_with != case.meant.generation:
        yield _found(
            "proof-generation", "the process was started with another generation than the installed one",
            seen=case.started_with, expected=case.meant.generation, fix=_AGAIN,
        )  # fmt: skip


def _command(case: Case) -> Iterator[Finding | NotChecked]:
    if case.command is None:
        yield NotChecked("proof-command", "no process shows the engine's command line")
    elif tuple(case.command) != case.meant.command:
        yield _found(
            "proof-command", "the engine was started with another command line than its generation's",
            seen=_difference(case.command, case.meant.command), expected=_difference(case.meant.command, case.command),
            fix=f"systemctl cat {case.meant.unit} shows which file sets ExecStart; put it into the inventory instead.",
        )  # fmt: skip


def _difference(words: Sequence[str], other: Sequence[str]) -> str:
    """Return what only the one command line has, without values that may be secrets."""
    left = list(other)
    only: list[str] = []
    for position, word in enumerate(words):
        if word in left:
            left.remove(word)
            continue
        option = next((w for w in reversed(words[:position]) if w.startswith("--")), "")
        hidden = not word.startswith("--") and is_secret(option.lstrip("-"), word)
        only.append("..." if hidden else redact(word))
    return " ".join(only) or "nothing more"


# which program, which code


def _program(case: Case) -> Iterator[Finding | NotChecked]:
    """Say where the interpreter is not the release's, or was replaced since."""
    exe = case.main.exe if case.main else None
    recorded = (case.meant.record.get("interpreter") or {}).get("real_path")
    if exe is None or not recorded:
        yield NotChecked("proof-release", "the process's program, or the release's record, can't be read")
    elif exe.endswith(" (deleted)"):
        yield _found(
            "proof-replaced-code", "the interpreter was replaced since the engine was started",
            seen=exe, expected=str(recorded), fix="Run restart.yml.", level="warning",
        )  # fmt: skip
    elif exe != recorded:
        yield _found(
            "proof-release", "the engine runs under another interpreter than its release was built for",
            seen=exe, expected=str(recorded), fix=_AGAIN,
        )  # fmt: skip


def _packages(case: Case) -> Iterator[Finding | NotChecked]:
    """Say where compiled modules come from other folders than the release's packages."""
    own = f"{case.releases}/{case.meant.release}/"
    seen = [process for process in (case.main, *case.children) if process and process.mapped is not None]
    if not seen:
        yield NotChecked("proof-foreign-code", "the memory maps of the processes can't be read")
        return
    packages = sorted({folder for process in seen for folder in process.packages})
    foreign = [folder for folder in packages if not folder.startswith(own)]
    if foreign:
        yield _found(
            "proof-foreign-code", "the engine has loaded packages from outside its release",
            seen=", ".join(foreign), expected=f"packages below {own} alone",
            fix="Remove PYTHONPATH and other ways in (user site, .pth files) from the unit; run site.yml.",
        )  # fmt: skip
    elif not packages:
        yield NotChecked("proof-foreign-code", "no compiled module of any package is loaded")
    replaced = sorted({path for process in seen for path in process.replaced if path.startswith(own)})
    if replaced:
        yield _found(
            "proof-replaced-code", f"{len(replaced)} files of the release were replaced since the engine loaded them",
            seen=", ".join(replaced[:3]), expected="a sealed release, which nothing alters",
            fix="Run verify.yml to see what was changed, then site.yml.",
        )  # fmt: skip


CLOCK_S = 2.0
"""Seconds by which the time of a start can be off: the kernel tells the time of boot in whole seconds."""


def _modules(case: Case) -> Iterator[Finding | NotChecked]:
    """Say which patched files are not as they were sealed, or changed after the engine could import them."""
    started = case.main.started if case.main else None
    for module in case.modules:
        if module.sha256 is None or module.sealed is None:
            yield NotChecked("proof-patched-file", f"{module.path}: it or its sealed hash can't be read")
        elif module.sha256 != module.sealed:
            yield _found(
                "proof-patched-file", f"{module.path} is not what was sealed with the release",
                seen=f"sha256 {module.sha256}", expected=f"sha256 {module.sealed}",
                fix="Install the release again: the engine role names and rebuilds it.",
            )  # fmt: skip
        elif started is not None and module.changed is not None and module.changed > started + CLOCK_S:
            yield _found(
                "proof-replaced-code", f"{module.path} changed on disk after the engine was started",
                seen=f"changed {module.changed - started:.0f} s after the start",
                expected="a file that was there before", fix="Run restart.yml.",
            )  # fmt: skip


# environment


CODE = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VLLM_NCCL_SO_PATH")
"""Variables that make a process load other code."""

OF_THE_ENGINE = re.compile(r"(?:NCCL|SGLANG|SGL|VLLM|CUDA|TORCH|PYTORCH|FLASHINFER|TRITON|TILELANG|HF)_\w+")
"""Variables that change what an engine does."""


def _environment(case: Case) -> Iterator[Finding | NotChecked]:
    """Say which variables of the generation the engine does not have, or has with another value."""
    environment = case.environment
    if environment is None:
        yield NotChecked("proof-environment", "the environment of the engine's process can't be read")
        return
    for name, value in case.meant.environment.items():
        if environment.get(name) != value:
            where = f", set by {case.strangers[name]}" if name in case.strangers else ""
            yield _found(
                "proof-environment", f"{name} is not what the generation sets",
                seen=f"{_setting(name, environment.get(name))}{where}", expected=_setting(name, value),
                fix="Put the setting into the inventory (environment or nccl_environment) and run site.yml; a drop-in "
                "that overrides one of the generation's settings is not part of what was tested.",
            )  # fmt: skip


def _extras(case: Case) -> Iterator[Finding | NotChecked]:
    """Say what else is in its environment that matters to an engine."""
    extra = {n: v for n, v in (case.environment or {}).items() if n not in case.meant.environment}
    for name in sorted(extra):
        if name in CODE or OF_THE_ENGINE.fullmatch(name):
            where = f", set by {case.strangers[name]}" if name in case.strangers else ""
            yield _found(
                "proof-extra-variable", f"{name} is set although the generation doesn't set it",
                seen=f"{_setting(name, extra[name])}{where}", expected="variables of the generation alone",
                fix="Put it into the inventory or remove it.", level="critical" if name in CODE else "warning",
            )  # fmt: skip


def _setting(name: str, value: str | None) -> str:
    if value is None:
        return f"{name} not set"
    return f"{name}={'...' if is_secret(name, value) else value}"


# what the engine says of itself

DECISIVE = frozenset(
    (
        *("attention_backend", "prefill_attention_backend", "decode_attention_backend", "moe_runner_backend"),
        *("moe_a2a_backend", "moe_backend", "sampling_backend", "fp4_gemm_runner_backend", "fp8_gemm_runner_backend"),
        *("quantization", "kv_cache_dtype", "dtype", "tp_size", "pp_size", "dp_size", "ep_size", "model_path"),
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_model_len", "context_length"),
        *("disable_custom_all_reduce", "enable_mscclpp", "enable_torch_symm_mem", "enable_dp_attention"),
        *("flashinfer_allreduce_fusion_backend", "speculative_algorithm", "enable_two_batch_overlap"),
        *(
            "enable_single_batch_overlap",
            "disable_shared_experts_fusion",
            "num_continuous_decode_steps",
            "enforce_eager",
        ),
    )
)
"""Settings whose silent change is a failed deployment. Another one that differs is a warning."""

SAME = {
    "fp4_gemm_backend": "fp4_gemm_runner_backend",
    "fp8_gemm_backend": "fp8_gemm_runner_backend",
    "tp": "tp_size",
    "pp": "pp_size",
    "dp": "dp_size",
    "ep": "ep_size",
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "data_parallel_size": "dp_size",
    "expert_parallel_size": "ep_size",
    "model": "model_path",
}
"""Options of SGLang that its answer calls otherwise."""


def told(case: Case) -> dict[str, Any]:
    """Return the settings that the engine tells: in its answer, and in the lines of its log."""
    journal = case.journal
    lines = {key: values[-1] for key, values in journal.told.items()} if journal else {}
    return {**lines, **(journal.settings if journal else {}), **(case.info or {})}


def _options(case: Case) -> Iterator[Finding | NotChecked]:
    """Say where the engine runs with something else than was asked for."""
    known = told(case)
    if not known:
        why = case.why.get("answer", "the engine tells nothing of its settings")
        yield NotChecked("proof-option", why)
        return
    silent = []
    for option, asked in case.meant.options.items():
        name = SAME.get(option, option) if case.meant.engine == "sglang" else option
        if asked == "auto" or is_secret(option, asked):
            continue
        if name not in known:
            silent += [option] if name in DECISIVE else []
        elif not same(asked, known[name]):
            yield _found(
                "proof-option", f"the engine runs with another {name} than was asked for",
                seen=f"{name} = {known[name]}", expected=f"{name} = {_text(asked)}",
                fix="Read the journal for the reason; ask for what it can do, or mend what keeps it from it.",
                level="critical" if name in DECISIVE else "warning",
            )  # fmt: skip
    if silent:
        yield NotChecked("proof-option", f"the engine doesn't tell {', '.join(silent)}")


def same(asked: Option, told: Any) -> bool:
    """Return whether a value as written on a command line is the value that the engine tells."""
    if isinstance(asked, bool) or isinstance(told, bool):
        return str(asked).lower() == str(told).lower()
    if isinstance(told, list | tuple):
        words = [asked] if isinstance(asked, str) else list(asked)
        return [str(entry) for entry in told] == words
    if isinstance(told, Mapping):
        return True  # given as JSON or as a file: the engine's own form says nothing about it
    try:
        return float(str(asked)) == float(str(told))
    except ValueError:
        return _word(_text(asked)) == _word(str(told))


def _word(text: str) -> str:
    """Return a word as both sides write it: vLLM's log has ``FLASHINFER`` and ``torch.bfloat16``."""
    return text.lower().removeprefix("torch.")


def _text(asked: Option) -> str:
    return " ".join(asked) if isinstance(asked, tuple) else str(asked)


def _version(case: Case) -> Iterator[Finding | NotChecked]:
    answered = told(case).get("version")
    meant = case.meant.record.get("version")
    if not answered or not meant:
        yield NotChecked("proof-version", "the engine's own version, or the release's record, is not known")
    elif str(answered).partition("+")[0] != str(meant).partition("+")[0]:  # 0.33.0+cu130 is a build of 0.33.0
        yield _found(
            "proof-version", "another release of the engine answers than the one that was deployed",
            seen=str(answered), expected=str(meant), fix=_AGAIN,
        )  # fmt: skip


def _features(case: Case) -> Iterator[Finding | NotChecked]:
    """Say what was asked for and is off: an engine leaves some features off without failing."""
    if case.journal is None:
        yield NotChecked("proof-fallback", case.why.get("journal", "the journal can't be read"))
        return
    for feature in FEATURES:
        asked = asked_for(feature, case.meant.options, case.environment or case.meant.environment)
        if asked is None:
            continue
        if feature.name in case.journal.off:
            yield _found(
                "proof-fallback", f"{feature.name} was asked for ({asked}), and the engine does without",
                seen=case.journal.off[feature.name], expected=f"{feature.name} on",
                fix="Mend what the line says, or don't ask for it: what runs is not what was meant.",
            )  # fmt: skip
        elif feature.on and feature.name not in case.journal.on:
            hidden = log_level_hides(case.meant.options)
            why = (
                "the log level hides it" if hidden else "no line of the journal says that it is on, none that it is off"
            )
            yield NotChecked("proof-fallback", f"{feature.name}, asked for by {asked}: {why}")


def _fallback_lines(case: Case) -> Iterator[Finding | NotChecked]:
    lines = case.journal.fallbacks if case.journal else []
    if lines:
        yield _found(
            "proof-fallback-line", f"{len(lines)} lines of the journal speak of a fallback",
            seen="; ".join(lines[:3]), expected="none",
            fix="Read them: does one concern what was meant to run?", level="warning",
        )  # fmt: skip


# NCCL


def recorded_nccl(record: Mapping[str, Any]) -> str | None:
    """Return the version of NCCL in the release's lock, or None where it has none."""
    packages: Mapping[str, str] = record.get("packages") or {}
    return next((version for name, version in packages.items() if name.startswith("nvidia-nccl-cu")), None)


def _library(case: Case) -> Iterator[Finding | NotChecked]:
    """Say where the NCCL that is loaded is not the release's own."""
    locked = recorded_nccl(case.meant.record)
    if case.nccl is None:
        if locked is None:
            yield NotChecked("proof-nccl-library", "the release has no NCCL, and none is loaded")
        else:
            yield NotChecked("proof-nccl-library", f"no process has NCCL mapped (the release brings {locked})")
        return
    own = f"{case.releases}/{case.meant.release}/"
    if not case.nccl.path.startswith(own):
        yield _found(
            "proof-nccl-library", "NCCL is loaded from outside the release",
            seen=case.nccl.path, expected=f"the library below {own}",
            fix="Remove LD_PRELOAD, LD_LIBRARY_PATH or VLLM_NCCL_SO_PATH from the unit.",
        )  # fmt: skip
    said = case.journal.told.get("nccl_version", []) if case.journal else []
    for seen, source in ((case.nccl.version, case.nccl.source), *((version, "the engine's log") for version in said)):
        if seen and locked and not same_release(seen, locked):
            yield _found(
                "proof-nccl-version", "another NCCL runs than the release's lock names",
                seen=f"{seen} ({source})", expected=locked, fix="See which library is loaded.",
            )  # fmt: skip


_DECISIVE_IN_LOG = frozenset({"nccl-transport", "nccl-protocol", "nccl-version-differs"})
"""What is a warning when one reads a log is a silent fallback when a deployment asked for something else."""


def _nccl_log(case: Case) -> Iterator[Finding | NotChecked]:
    """Say what in NCCL's own lines (settings, transport, channels, protocols) does not fit the profile."""
    if case.journal is None or case.journal.nccl.lines == 0:
        level = (case.environment or {}).get("NCCL_DEBUG", "")
        why = "the journal can't be read" if case.journal is None else "NCCL wrote nothing into the journal"
        hint = "" if level.upper() in ("INFO", "TRACE") else "; nccl_environment: {NCCL_DEBUG: INFO} makes it tell"
        for subject in ("transport", "channels", "protocol"):
            yield NotChecked(f"nccl-{subject}", f"{why}{hint}")
        return
    yield from _untold(case.journal.nccl)
    wanted = {name: value for name, value in case.meant.nccl.items() if not name.startswith("NCCL_DEBUG")}
    for finding in nccl_log.compare(case.journal.nccl, wanted, nccl_version=recorded_nccl(case.meant.record)):
        yield replace(finding, level="critical") if finding.id in _DECISIVE_IN_LOG else finding


def _untold(facts: nccl_log.Facts) -> Iterator[NotChecked]:
    """Say what the lines that NCCL wrote leave open."""
    if not facts.connections:
        yield NotChecked("nccl-transport", "NCCL's lines name no connection: NCCL_DEBUG_SUBSYS needs P2P, SHM and NET")
    if not facts.channels:
        yield NotChecked("nccl-channels", "NCCL's lines name no channels: NCCL_DEBUG_SUBSYS needs INIT")
    if not facts.used:
        yield NotChecked("nccl-protocol", "NCCL's lines name no protocol: NCCL_DEBUG_SUBSYS needs TUNING")


CHECKS: tuple[Check, ...] = (
    *(_generation, _command, _program, _packages, _modules, _environment, _extras),
    *(_version, _options, _features, _fallback_lines, _library, _nccl_log),
)
