# SPDX-License-Identifier: Apache-2.0
"""Questions to an installed release, asked on the host by its own Python: what it takes the GPU for.

``asked`` is what runs in the release; here is what follows from its answers. A release that takes an SM120 card for
another one, or was built for an older CUDA, starts and then chooses kernels that crash or crawl.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..findings import Finding, Level, NotChecked, Report
from ..nccl.variables import same_release

OLDEST_CUDA = (12, 8)
"""The first CUDA with kernels for compute capability 12.0 (NVIDIA, CUDA 12.8 release notes)."""

GATES: Mapping[int, Mapping[str, bool]] = {
    major: {
        "is_sm90_supported": major == 9,  # noqa: PLR2004 - compute capabilities are their own names
        "is_sm100_supported": major == 10,  # noqa: PLR2004
        "is_sm120_supported": major == 12,  # noqa: PLR2004
        "is_blackwell": major in (10, 11, 12),
    }
    for major in (8, 9, 10, 11, 12)
}
"""What SGLang's own questions are to answer for a compute capability's major number (sglang/srt/utils, 0.5.23)."""

FLASHINFER = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")
"""Packages of FlashInfer that have to be of one version: it refuses to be imported otherwise."""

QUESTIONS = (
    *("release-torch", "release-cuda", "release-architectures", "release-gpus", "release-nccl", "release-flashinfer"),
    *("release-gates", "release-fusion"),
)

CPU = "the release is for CPUs: it has neither CUDA nor NCCL, and asks no GPU anything"


def packages(record: Mapping[str, Any]) -> list[str]:
    """Return the packages whose installed version is asked for: FlashInfer's and the kernels' that the lock has."""
    locked = record.get("packages") or {}
    names = (*FLASHINFER, "sglang-kernel", "sgl-kernel", "torch")
    return [name for name in names if name in locked]


def not_asked(why: str) -> dict[str, Any]:
    """Return the result for a release that was not asked at all."""
    report = Report()
    for question in QUESTIONS:
        report.skip(question, why)
    return report.as_dict(facts={})


def judge(answers: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``schema``, ``ok``, ``findings``, ``not_checked`` and ``facts`` (the answers themselves)."""
    report = Report()
    for check in (_torch, _cuda, _architectures, _gpus, _nccl, _flashinfer, _gates, _fusion):
        for entry in check(answers, record):
            if isinstance(entry, Finding):
                report.findings.append(entry)
            else:
                report.not_checked.append(entry)
    return report.as_dict(facts=dict(answers))


Answers = Mapping[str, Any]
Said = Iterator["Finding | NotChecked"]
_REBUILD = "Install a release whose lock is for this GPU (variant cu130), or build this one again."


def _found(  # noqa: PLR0917 - in the order in which a person reads them
    question: str, what: str, seen: object, expected: str, fix: str, level: Level = "critical"
) -> Finding:
    return Finding(question, level, what, str(seen), expected, fix)


def _part(answers: Answers, name: str) -> Mapping[str, Any]:
    part = answers.get(name)
    return part if isinstance(part, Mapping) and "error" not in part else {}


def _error(answers: Answers, name: str) -> str:
    part = answers.get(name)
    return str(part.get("error", "no answer")) if isinstance(part, Mapping) else "no answer"


def _torch(answers: Answers, _record: Answers) -> Said:
    if not _part(answers, "torch"):
        yield _found(
            "release-torch", "the release's torch can't be used on this host", _error(answers, "torch"),
            "torch that can be imported and asked", "Read the error: driver, a missing library, or a broken release.",
        )  # fmt: skip


def _cuda(answers: Answers, _record: Answers) -> Said:
    torch = _part(answers, "torch")
    if not torch:
        yield NotChecked("release-cuda", "torch could not be asked")
        return
    cuda = torch.get("cuda")
    if cuda is None or _numbers(cuda) < OLDEST_CUDA:
        yield _found(
            "release-cuda", "torch is built for a CUDA without kernels for compute capability 12.0", cuda or "no CUDA",
            f"{'.'.join(map(str, OLDEST_CUDA))} or newer", _REBUILD,
        )  # fmt: skip


def _numbers(text: object) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", str(text))[:2])


def _architectures(answers: Answers, _record: Answers) -> Said:
    torch = _part(answers, "torch")
    capability, built = torch.get("capability"), torch.get("architectures")
    if not capability or not built:
        yield NotChecked("release-architectures", "torch names no GPU or no architectures")
        return
    # a binary for X.0 runs on X.y (CUDA programming guide, binary compatibility); PTX is compiled at the first start
    major = capability[0]
    fits = [name for name in built if re.fullmatch(rf"(?:sm|compute)_{major}\d[af]?", name)]
    if not fits:
        yield _found(
            "release-architectures", f"torch has no kernels for compute capability {_dotted(capability)}",
            ", ".join(built), f"sm_{major}0 among them", _REBUILD,
        )  # fmt: skip


def _dotted(numbers: Sequence[object]) -> str:
    return ".".join(map(str, numbers))


def _gpus(answers: Answers, _record: Answers) -> Said:
    torch = _part(answers, "torch")
    if "gpus" not in torch:
        yield NotChecked("release-gpus", "torch could not be asked")
    elif not torch["gpus"]:
        yield _found(
            "release-gpus", "the release's torch sees no GPU", 0, "the GPUs that nvidia-smi lists",
            "Look at the driver's version against torch's CUDA, /dev/nvidia* and nvidia-uvm, CUDA_VISIBLE_DEVICES.",
        )  # fmt: skip


def _nccl(answers: Answers, record: Answers) -> Said:
    seen = _part(answers, "torch").get("nccl")
    locked = next((v for n, v in (record.get("packages") or {}).items() if n.startswith("nvidia-nccl-cu")), None)
    if not seen or not locked:
        yield NotChecked("release-nccl", "torch tells no NCCL" if not seen else "the lock has no NCCL")
        return
    if not same_release(seen, locked):
        yield _found(
            "release-nccl", "torch takes another NCCL than the lock's", seen, locked,
            "Remove LD_LIBRARY_PATH and NCCL packages of the system that come first; build the release again.",
        )  # fmt: skip


def _flashinfer(answers: Answers, record: Answers) -> Said:
    versions = {name: v for name, v in _part(answers, "packages").items() if name in FLASHINFER}
    if not versions:
        yield NotChecked("release-flashinfer", "the lock has no FlashInfer, or its packages could not be asked")
        return
    # flashinfer-jit-cache is 0.7.2+cu130 beside flashinfer-python 0.7.2
    bases = {name: (version or "not installed").partition("+")[0] for name, version in versions.items()}
    locked = {name: str(v).partition("+")[0] for name, v in (record.get("packages") or {}).items() if name in bases}
    if len(set(bases.values())) > 1 or bases != locked:
        yield _found(
            "release-flashinfer", "FlashInfer's packages are not of one version, or not those of the lock",
            ", ".join(f"{n} {v}" for n, v in bases.items()), ", ".join(f"{n} {v}" for n, v in locked.items()), _REBUILD,
        )  # fmt: skip


def _gates(answers: Answers, record: Answers) -> Said:
    if record.get("engine") != "sglang":
        yield from _platform(answers)
        return
    gates, capability = _part(answers, "gates"), _part(answers, "torch").get("capability")
    if not gates:
        yield NotChecked("release-gates", f"SGLang could not be asked: {_error(answers, 'gates')}")
        return
    if not capability or capability[0] not in GATES:
        yield NotChecked("release-gates", "the GPU's compute capability is not known, or none that is known here")
        return
    for name, expected in GATES[capability[0]].items():
        if gates.get(name) is None:
            yield NotChecked("release-gates", f"this release has no {name}()")
        elif gates[name] is not expected:
            yield _found(
                "release-gates", f"SGLang takes the GPU (capability {_dotted(capability)}) for something else",
                f"{name}() is {gates[name]}", str(expected),
                "Look for a source change of this function, and at torch's CUDA: the functions ask for both.",
            )  # fmt: skip


def _platform(answers: Answers) -> Said:
    seen, capability = _part(answers, "platform"), _part(answers, "torch").get("capability")
    if not seen or not capability:
        yield NotChecked("release-gates", f"vLLM could not be asked: {_error(answers, 'platform')}")
    elif seen.get("capability") != capability:
        yield _found(
            "release-gates", "vLLM takes the GPU for something else than torch does",
            f"{seen.get('platform')}, capability {seen.get('capability')}", f"capability {capability}",
            "Look which platform plugin vLLM found.",
        )  # fmt: skip


def _fusion(answers: Answers, record: Answers) -> Said:
    models = answers.get("fusion")
    if not isinstance(models, Mapping) or not models:
        why = "no weights were there to ask about" if record.get("engine") == "sglang" else "vLLM has no such question"
        yield NotChecked("release-fusion", why)
        return
    for name, answer in models.items():
        if "error" in answer:
            yield NotChecked("release-fusion", f"{name}: {answer['error']}")
        elif answer.get("active") is None:
            yield NotChecked("release-fusion", f"{name}: {answer.get('why')}")
        elif not answer["active"]:
            yield _found(
                "release-fusion", f"the shared expert of {name} is computed beside the routed ones, not fused",
                answer.get("why") or "no reason given", "fused, where the release can do it for these weights",
                "Nothing, where the reason is the weights' own; otherwise change the argument that it names.", "info",
            )  # fmt: skip


def line(result: Mapping[str, Any]) -> str:
    """Return one line for people out of what ``judge`` returned."""
    facts = result["facts"]
    if not facts:
        return f"not asked: {result['not_checked'][0]['why']}"
    torch = facts.get("torch") or {}
    gates = [name for name, said in (facts.get("gates") or {}).items() if said is True]
    parts = [f"torch {torch['version']}"] if torch.get("version") else []
    parts += [f"CUDA {torch['cuda']}"] if torch.get("cuda") else []
    parts += [f"NCCL {torch['nccl']}"] if torch.get("nccl") else []
    parts += [f"capability {_dotted(torch['capability'])}"] if torch.get("capability") else []
    parts += [", ".join(gates)] if gates else []
    pressing = [f for f in result["findings"] if f["level"] in ("critical", "unknown")]
    verdict = "as expected" if not pressing else f"{len(pressing)} surprise{'s' * (len(pressing) > 1)}"
    skipped = f"; {len(result['not_checked'])} not checked" if result["not_checked"] else ""
    return f"{verdict} ({', '.join(parts) or 'no answer'}{skipped})"
