# SPDX-License-Identifier: Apache-2.0
"""Reads on a host what ``checks`` judges: processes, the release, the journal, and the engine's own answers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from .. import environment_text, generations, runtime, systemd
from ..releases import sealing
from ..supervisor import proc as processes
from . import answer, journal, process
from .checks import Case, ModuleFile, Nccl
from .meant import Meant, MeantError, read

RELEASES = Path("/opt/inference/releases")
CREDENTIALS = Path("/run/credentials")
MOST_PROCESSES = 64
_STRING = re.compile(rb"NCCL version (2\.\d+\.\d+)")
_PACKAGE = re.compile(r"nvidia_nccl_cu\d+-([\d.]+)\.dist-info")


def gather(instance: str) -> Case:
    """Read everything that this host can tell of an instance. Raises MeantError and GenerationError."""
    store = generations.Store(instance)
    current = store.current()
    if current is None:
        raise MeantError(f"nothing is installed for {instance}; run site.yml first")
    generation = store.load(current)
    record = _json(RELEASES / generation.release / "release.json") or {}
    meant = read(generation, record)
    state = runtime.read_json(generations.RUNTIME_ROOT / instance / "state.json") or {}
    why: dict[str, str] = {}
    main, supervisor, children = _processes(meant, state, why)
    family = [entry for entry in (main, *children) if entry]
    info, why["answer"] = answer.ask(meant.engine, answer.getter(meant.host, meant.port, _key(meant, supervisor)))
    return Case(
        meant=meant,
        started_with=state.get("generation"),
        main=main,
        supervisor=supervisor,
        children=children,
        info=info,
        journal=_journal(state.get("invocation_id"), why),
        modules=modules(RELEASES / meant.release, record),
        nccl=nccl(family),
        strangers=strangers(_unit_files(meant.unit), meant.files),
        releases=str(RELEASES),
        why=why,
    )


def _processes(
    meant: Meant, state: Mapping[str, Any], why: dict[str, str]
) -> tuple[process.Process | None, process.Process | None, list[process.Process]]:
    """Return the engine's main process, the supervisor, and the engine's other processes.

    The numbers in state.json are believed only while systemd names the same supervisor, since they outlive the process,
    and only of a process below it: the service could write any number there.
    """
    supervisor, main = state.get("supervisor_pid"), state.get("pid")
    seen = systemd.unit_state(meant.unit)
    if not isinstance(main, int) or not isinstance(supervisor, int):
        why["process"] = "the supervisor's state.json names no process"
        return None, None, []
    if seen.main_pid != supervisor:
        why["process"] = f"{meant.unit} is {seen.active}, its main process {seen.main_pid or 'none'}, not {supervisor}"
        return None, None, []
    table = processes.processes()
    if main not in processes.descendants(supervisor, table):
        why["process"] = f"the supervisor's state.json names process {main}, which is none of {meant.unit}'s"
        return None, None, []
    below = list(processes.descendants(main, table))[:MOST_PROCESSES]
    children = [found for found in map(process.read, below) if found]
    return process.read(main), process.read(supervisor), children


def _key(meant: Meant, supervisor: process.Process | None) -> str | None:
    """Return the engine's key, where it has one that can be read here; without it the engine may say 401."""
    if meant.key_file is None:
        return None
    file = CREDENTIALS / meant.unit / meant.key_file
    # the unit's own view of the file system has the credentials wherever the host's has not
    inside = [Path(f"/proc/{supervisor.pid}/root{file}")] if supervisor else []
    for path in (file, *inside):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return path.read_text(encoding="ascii").strip()
    return None


def _journal(invocation: object, why: dict[str, str]) -> journal.Journal | None:
    """Return what the journal of this very start tells."""
    if not isinstance(invocation, str):
        why["journal"] = (
            "the supervisor doesn't know its invocation, so the journal since the start can't be told apart"
        )
        return None
    words = ["journalctl", "--no-pager", "--quiet", "--output=cat", f"_SYSTEMD_INVOCATION_ID={invocation}"]
    try:
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, errors="replace") as reader:
            found = journal.parse(islice(reader.stdout or (), journal.MOST_LINES))
            reader.terminate()
    except OSError as error:
        why["journal"] = f"journalctl: {error.strerror}"
        return None
    if not found.lines:
        why["journal"] = "the journal holds no line of this start"
        return None
    return found


# the release


def modules(release: Path, record: Mapping[str, Any]) -> list[ModuleFile]:
    """Return the files that the release's patches changed, as they are now and as they were sealed."""
    changed: Sequence[str] = record.get("changed_files") or ()
    sealed: Mapping[str, sealing.Entry] = {}
    with contextlib.suppress(sealing.SealError):
        sealed = sealing.read_manifest(release, str(record.get("manifest_sha256")))
    return [_module(release, path, sealed.get(path)) for path in changed]


def _module(release: Path, path: str, entry: sealing.Entry | None) -> ModuleFile:
    try:
        content = (release / path).read_bytes()
        status = (release / path).stat()
    except OSError:
        return ModuleFile(path, None, entry.content if entry else None, None)
    changed = max(status.st_mtime, status.st_ctime)
    return ModuleFile(path, hashlib.sha256(content).hexdigest(), entry.content if entry else None, changed)


def nccl(family: Iterable[process.Process]) -> Nccl | None:
    """Return the NCCL library that a process of the engine has loaded, with its version from its package or itself."""
    found = process.library(family, "libnccl")
    if found is None:
        return None
    pid, path = found
    # nvidia/nccl/lib/libnccl.so.2 in site-packages, beside nvidia_nccl_cuXX-V.dist-info
    packages = next((p for p in Path(path).parents if p.name in ("site-packages", "dist-packages")), None)
    names = [_PACKAGE.fullmatch(entry.name) for entry in packages.glob("nvidia_nccl_cu*.dist-info")] if packages else []
    versions = [match[1] for match in names if match]
    if len(versions) == 1 and "/nvidia/nccl/" in path:
        return Nccl(path, versions[0], "its package")
    version = version_in(Path(f"/proc/{pid}/root{path}"))
    return Nccl(path, version, "the library itself" if version else "nowhere")


def version_in(library: Path) -> str | None:
    """Return the version that an NCCL library holds as text, as it writes it into its log."""
    try:
        with library.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            match = _STRING.search(content)
            return match[1].decode() if match else None
    except (OSError, ValueError):
        return None


# files of others


def _unit_files(unit: str) -> list[str]:
    """Return the files that systemd reads for a unit."""
    shown = systemd.systemctl("show", "--property=FragmentPath,DropInPaths", "--", unit, check=False)
    return [path for entry in shown.splitlines() for path in entry.partition("=")[2].split()]


def strangers(files: Iterable[str], own: Iterable[str]) -> dict[str, str]:
    """Return the variables that unit files of others than the toolkit set, and the last file that sets each."""
    found: dict[str, str] = {}
    for path in files:
        if path not in set(own):
            with contextlib.suppress(OSError):
                text = Path(path).read_text(encoding="utf-8", errors="replace")
                found |= dict.fromkeys(environment_text.read(text).effective(), path)
    return found


def _json(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    return None
