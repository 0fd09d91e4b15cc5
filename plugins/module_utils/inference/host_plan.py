# SPDX-License-Identifier: Apache-2.0
"""What the instances of a host need to know of it before any of them is changed: asked once, for all of them.

Which GPUs, CPUs and ports each gets, what its NCCL profile comes to on this host, where the CUDA toolkit is, and which
instances lie there that the inventory no longer has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import claims, engine_args, environment_text, generations, nccl, placement, ports, systemd, topology
from .findings import Finding
from .topology.collect import COMMANDS, TIMEOUT, run_command
from .tune.receipt import validate

MEMORY = "/var/lib/inference/topology.json"
"""What the topology role remembers of the host."""


@dataclass(frozen=True)
class Removed:
    """An instance that is installed and that the inventory does not have, with what it claims."""

    name: str
    unit: str
    active: str
    enabled: bool
    ports: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    listens: Mapping[str, Any] = field(default_factory=dict)
    """Its host and port."""

    @property
    def runs(self) -> bool:
        """Whether it uses what it claims, now or after the next boot."""
        return self.enabled or self.active not in ("inactive", "failed", "")

    def as_dict(self) -> dict[str, Any]:
        """Return the form that a play reads."""
        known = {"name": self.name, "unit": self.unit, "active": self.active, "enabled": self.enabled}
        return {**known, "listens": dict(self.listens)}

    def finding(self, *, pruned: bool) -> Finding:
        """Return what is said of it."""
        how = f"{self.unit} is {self.active or 'not loaded'} and {'enabled' if self.enabled else 'not enabled'}"
        fix = "Nothing: service_prune is set, so it is removed now." if pruned else (
            "Put it back into service_instances, or run with service_prune=true, which stops, disables and removes it."
        )  # fmt: skip
        return Finding(
            "instance-removed", "info" if pruned else "warning", f"{self.name} is installed and not in the inventory",
            seen=how, expected="the instances of service_instances and no others", fix=fix,
        )  # fmt: skip


@dataclass(frozen=True)
class Cuda:
    """A CUDA toolkit: its folder and its version, such as 13.0."""

    home: str
    version: str

    @property
    def major(self) -> str:
        """Its major version."""
        return self.version.split(".")[0]


@dataclass(frozen=True)
class Host:
    """What is read from a host."""

    machine: placement.Machine = field(default_factory=placement.Machine)
    parts: Mapping[str, Any] | None = None
    """The parts of the topology's fingerprint."""
    architecture: str = "unknown"
    """The GPUs' architecture as compilers name it, such as sm120."""
    toolkits: tuple[Cuda, ...] = ()
    nccl_version: str | None = None
    removed: tuple[Removed, ...] = ()
    root: Path = Path("/")


@dataclass(frozen=True)
class Request:
    """What the inventory asks for. ``instances`` are entries of ``service_instances``."""

    engine: str
    variant: str
    instances: Sequence[Mapping[str, Any]]
    nccl_profile: str = nccl.DEFAULT_PROFILE
    nccl_measured: str = ""
    prune: bool = False


@dataclass
class Plan:
    """What comes of both: one entry for each instance, and what is wrong."""

    instances: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


# ---- what is asked of the host


def read(release: str, wanted: Sequence[str], root: Path = Path("/")) -> Host:
    """Read a host. ``release`` is the folder of the engine's release, ``wanted`` the instances of the inventory."""
    parts = _json(root / MEMORY.lstrip("/"))
    return Host(
        machine=_machine(parts, root),
        parts=parts,
        architecture=architecture(),
        toolkits=tuple(_toolkits(Path(release), root)),
        nccl_version=_nccl_version(Path(release)),
        removed=tuple(_removed(wanted)),
        root=root,
    )


def _machine(parts: Mapping[str, Any] | None, root: Path) -> placement.Machine:
    known = parts or _live_topology()
    nodes = root / placement.NODES.lstrip("/")
    return placement.Machine(
        gpu_nodes=tuple(int(n) if str(n).isdecimal() else None for n in known.get("numa") or ()),
        links=known.get("links") or (),
        node_cpus={
            int(folder.name.removeprefix("node")): (folder / "cpulist").read_text().strip()
            for folder in nodes.glob("node[0-9]*")
            if (folder / "cpulist").is_file()
        },
    )


def _live_topology() -> dict[str, Any]:
    """Ask the host, where nothing is remembered yet: in a rehearsal, or when only this role runs."""
    said = topology.parse(run_command(COMMANDS["topo -m"], TIMEOUT).out)
    return {"numa": said.get("numa_per_gpu"), "links": said.get("links")}


def architecture() -> str:
    """Return the architecture of the host's GPUs (``sm120``), joined by ``+``; ``unknown`` without an answer."""
    said = topology.parse(run_command(COMMANDS["--query-gpu"], TIMEOUT).out)
    found = {str(gpu.get("compute_cap") or "") for gpu in said.get("gpus") or []}
    names = sorted("sm" + cap.replace(".", "") for cap in found if re.fullmatch(r"\d+\.\d+", cap))
    return "+".join(names) or "unknown"


def _toolkits(release: Path, root: Path) -> Iterator[Cuda]:
    """Yield the toolkits that can compile: an nvcc with the headers of the runtime beside it."""
    own = sorted(release.glob("venv/lib/python3*/site-packages/nvidia/cu[0-9]*"))
    for home in [root / "usr/local/cuda", *own]:
        if (home / "bin/nvcc").is_file() and (home / "include/cuda_runtime.h").is_file():
            yield Cuda(f"/{home.relative_to(root)}" if home not in own else str(home), _cuda_version(home))


def _cuda_version(home: Path) -> str:
    header = home / "include/cuda.h"
    found = re.search(r"#define CUDA_VERSION (\d+)", header.read_text(errors="replace") if header.is_file() else "")
    return f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}" if found else home.name.removeprefix("cu")


def _nccl_version(release: Path) -> str | None:
    found = sorted(release.glob("venv/lib/python3*/site-packages/nvidia_nccl_cu*.dist-info"))
    return found[0].name.removesuffix(".dist-info").rpartition("-")[2] if found else None


def _removed(wanted: Sequence[str]) -> Iterator[Removed]:
    for name in generations.installed():
        store = generations.Store(name)
        current = store.current()
        if name in wanted or current is None:
            continue
        generation = store.load(current)
        unit = systemd.unit_state(generation.unit)
        yield Removed(
            name, generation.unit, unit.active, systemd.enabled(generation.unit), *_claimed(generation),
            generation.listens,
        )  # fmt: skip


def _claimed(generation: generations.Generation) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ports and the GPUs that a generation uses, as its own files say."""
    found: list[int] = []
    gpus: list[int] = []
    for entry in generation.files:
        if Path(entry.path).name == "supervisor.json":
            found.append(int(json.loads(entry.content).get("port") or 0))
        elif entry.path.endswith(".conf"):
            effective = environment_text.read(entry.content).effective()
            listed = effective["CUDA_VISIBLE_DEVICES"].value if "CUDA_VISIBLE_DEVICES" in effective else ""
            gpus += [int(gpu) for gpu in listed.split(",") if gpu.isdecimal()]
    internal = [port for own in found for port in ports.block(own)]
    return tuple(found + internal), tuple(gpus)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


# ---- what comes of it


def plan(request: Request, host: Host) -> Plan:
    """Return the plan for a host. Nothing may be changed when any of its findings is critical."""
    result = Plan()
    result.findings += [removed.finding(pruned=request.prune) for removed in host.removed]
    staying = [removed for removed in host.removed if removed.runs and not request.prune]
    placed = _place(request, host, staying, result.findings)
    result.findings += claims.overlaps(_claims(request, placed, staying))
    if request.variant != "cpu" and toolkit(request, host) is None:
        result.findings.append(_no_compiler(request.variant))
    for instance in request.instances:
        name = str(instance["name"])
        own = ports.of(request.engine, instance)
        place = placed.get(name) or placement.Placement(())
        result.instances[name] = {
            **place.as_dict(),
            "arguments": {**own.arguments, **_rank_binding(request.engine, instance, place)},
            "environment": dict(own.environment),
            "ports": sorted(own.claimed),
            "nccl": _nccl(request, instance, host, result.findings),
        }
    return result


def toolkit(request: Request, host: Host) -> Cuda | None:
    """Return the CUDA toolkit to compile with: one of the release's own CUDA version, the host's before the release's.

    The host's is whole; the one out of wheels lacks the libraries' names that linkers look for.
    """
    wanted = re.fullmatch(r"cu(\d+)\d", request.variant)
    fitting = [cuda for cuda in host.toolkits if wanted is None or cuda.major == wanted[1]]
    return next(iter([*fitting, *host.toolkits]), None)


def _no_compiler(variant: str) -> Finding:
    return Finding(
        "cuda-toolkit-missing", "warning", "There is no nvcc to compile kernels with at run time",
        seen="neither /usr/local/cuda nor the release has bin/nvcc and include/cuda_runtime.h",
        expected=f"a CUDA toolkit of the release's own version ({variant})",
        fix="Install it, or see to it that nothing compiles (attention-backend, FlashInfer's prebuilt kernels).",
    )  # fmt: skip


def _place(
    request: Request, host: Host, staying: Sequence[Removed], findings: list[Finding]
) -> dict[str, placement.Placement]:
    wanted = [
        placement.Wanted(
            str(instance["name"]),
            engine_args.gpus_needed(request.engine, instance),
            tuple(instance["gpus"]) if instance.get("gpus") is not None else None,
        )
        for instance in request.instances
        if request.variant != "cpu" or instance.get("gpus")
    ]
    beyond = {
        w.name: [g for g in w.gpus or () if host.machine.gpu_nodes and g >= len(host.machine.gpu_nodes)] for w in wanted
    }
    taken = frozenset(gpu for removed in staying for gpu in removed.gpus)
    try:
        if any(beyond.values()):
            listed = "; ".join(f"{name} names {', '.join(map(str, gpus))}" for name, gpus in beyond.items() if gpus)
            raise placement.PlacementError(f"{listed}; the host has GPUs 0 to {len(host.machine.gpu_nodes) - 1}")
        return placement.place(wanted, host.machine, taken)
    except placement.PlacementError as error:
        findings.append(
            Finding(
                "instance-gpus-beyond", "critical", "The host has not enough GPUs for its instances", seen=str(error),
                expected="GPUs of its own for each instance",
                fix="Take an instance away, or let one span fewer GPUs (tensor_parallel_size, gpus).",
            )
        )  # fmt: skip
        return {}


def _claims(
    request: Request, placed: Mapping[str, placement.Placement], staying: Sequence[Removed]
) -> Iterator[tuple[str, claims.Claims]]:
    for instance in request.instances:
        name = str(instance["name"])
        yield (
            name,
            {
                "name": [name],
                "port": ports.of(request.engine, instance).claimed,
                "GPU": placed[name].gpus if name in placed else instance.get("gpus") or (),
            },
        )
    for removed in staying:
        yield f"{removed.unit}, which is not in the inventory", {"port": removed.ports, "GPU": removed.gpus}


def _rank_binding(engine: str, instance: Mapping[str, Any], place: placement.Placement) -> dict[str, Any]:
    """Return SGLang's option that binds each rank to its GPU's node, for an instance that spans nodes."""
    given = engine_args.arguments(engine, instance)
    if engine != "sglang" or not place.spans or "numa-node" in given:
        return {}
    return {"numa-node": list(place.gpu_nodes)}


def _nccl(request: Request, instance: Mapping[str, Any], host: Host, findings: list[Finding]) -> dict[str, Any]:
    """Return the profile and its variables. What a measurement of this host forbids is critical, so is an old one."""
    profile = str(instance.get("nccl_profile") or request.nccl_profile)
    path = str(instance.get("nccl_measured") or request.nccl_measured)
    document = _json(host.root / path.lstrip("/")) if path else None
    where = f"{instance['name']}, NCCL profile {profile}"
    chosen = profile == nccl.MEASURED_PROFILE
    try:
        environment = nccl.environment(profile, instance.get("nccl_environment"), measured=document)
    except nccl.NcclError as error:
        findings.append(_no_profile(where, f"{path or 'nccl_measured is empty'}: {error}" if chosen else str(error)))
        return {"profile": profile, "environment": {}}
    if document is not None:
        fingerprint = topology.fingerprint(host.parts) if host.parts else None
        driver = (host.parts or {}).get("driver")
        judged = [environment, None] if chosen else [environment]  # with what is put on top, and the document itself
        reports = [validate(document, fingerprint, driver, host.nccl_version, environment=one) for one in judged]
        found = dict.fromkeys(finding for report in reports for finding in report.findings)
        findings += [_of_measurement(one, where, path) for one in found if _counts(one, chosen=chosen)]
    return {"profile": profile, "environment": environment}


def _counts(finding: Finding, *, chosen: bool) -> bool:
    """Say whether a finding matters: a ban always, all else of a document only where the instance runs by it."""
    return finding.id == "tune-banned" or (chosen and finding.level != "info")


def _of_measurement(finding: Finding, where: str, path: str) -> Finding:
    """Return the finding with the instance that it is about. An expired measurement is no ground to run on."""
    level = "critical" if finding.id.startswith("tune-expired") else finding.level
    return replace(finding, level=level, what=f"{where}: {finding.what}", seen=f"{path}: {finding.seen}")


def _no_profile(where: str, seen: str) -> Finding:
    return Finding(
        "nccl-profile", "critical", f"{where} cannot be used", seen=seen, expected="a profile that can be read",
        fix="Measure (scripts/tune run --measured FILE) and put the file there, or choose another profile.",
    )  # fmt: skip
