# SPDX-License-Identifier: Apache-2.0
"""Building a release on a host: uv out of the wheelhouse, a virtual environment, the lock's files, bytecode, imports.

Everything that can be checked is checked before the first file is written. Files come by hash, from a wheelhouse
without a network or from an index; nothing but the lock's files is installed, and that is checked afterwards.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import shutil
import struct
import subprocess
import time
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..atomic import write_atomically
from ..fetching import CHUNK
from ..findings import Finding
from . import INSTALLED, NOT_IN_MANIFEST, Release, ReleaseError, discard, sealing, wheelhouse
from . import seal as seal_release
from .interpreters import Interpreter
from .locks import Lock, Pin, normalise, parse_lock
from .resolver import Sources

IMPORTS: Mapping[str, tuple[str, ...]] = {
    "sglang": ("torch", "transformers", "sglang", "sglang.srt.server_args"),
    "vllm": ("torch", "transformers", "vllm"),
}
"""What is imported to see that a release's packages fit together; nothing of it needs a GPU."""

IMPORT_ENVIRONMENT: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("sglang", "cpu"): {"SGLANG_USE_CPU_ENGINE": "1"},
}

SPARE = 1.3
"""Disk space that is asked for, as a multiple of the unpacked wheels: bytecode comes to about a fifth of them."""


@dataclass(frozen=True)
class Plan:
    """What to install, for which interpreter, from where."""

    lock: Lock
    lock_text: str
    installer: Pin
    interpreter: Interpreter
    patches_id: str
    release: Release
    wheels: Path
    """The wheelhouse; with ``index`` a folder that holds at least the installer's wheel."""
    index: bool = False
    """Take files from package indexes, and from the wheelhouse what it has."""
    sources: Sources = field(default_factory=Sources)
    cache: Path | None = None
    """A folder of root's where uv keeps unpacked wheels for the next release, or None to keep nothing."""
    bytecode: bool = True
    imports: tuple[str, ...] | None = None
    """Modules to import afterwards; None: those of the engine."""

    @property
    def needed(self) -> list[Pin]:
        """The files that have to be in the wheelhouse."""
        standins = [pin for pin in self.lock.pins if pin.name == wheelhouse.STANDINS]
        return [self.installer, *(standins if self.index else self.lock.pins)]


class Clock:
    """Seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0) + time.monotonic() - start, 2)


def obstacles(plan: Plan) -> list[Finding]:
    """Return what keeps the files from being installed: missing or wrong in the wheelhouse, no room."""
    findings = wheelhouse.check(plan.needed, plan.wheels)
    if findings:
        return findings
    known = wheelhouse.unpacked_size(plan.needed, plan.wheels)
    need = int(SPARE * (known if not plan.index else max(known, 4 * plan.lock.size)))
    free = wheelhouse.free_bytes(plan.release.root)
    if free >= need:
        return []
    return [
        Finding(
            id="release.space",
            level="critical",
            what=f"no room for {plan.release.name}",
            seen=f"{free / 1e9:.1f} GB free in {plan.release.root}",
            expected=f"{need / 1e9:.1f} GB",
            fix="remove old releases or enlarge the file system",
        )
    ]


def install(plan: Plan, clock: Clock) -> None:
    """Build the release and mark it as installed. What an earlier, interrupted run left is removed first.

    The caller holds the release's lock and has found no obstacle. Raises ReleaseError; what was built then stays for
    a look and is removed by the next run.
    """
    release = plan.release
    discard(release)
    release.path.mkdir(parents=True, mode=0o755)
    release.work.mkdir(mode=0o700)
    with clock.step("venv"):
        uv = unpack_installer(plan.installer, plan.wheels, release.work)
        _uv(plan, [str(uv), "venv", "--no-project", "--python", plan.interpreter.path, str(release.venv)])
    with clock.step("packages"):
        _packages(plan, uv)
    with clock.step("check"):
        _check_installed(plan)
    if plan.bytecode:
        with clock.step("bytecode"):
            compile_missing(release, plan.interpreter)
    with clock.step("import"):
        check_imports(release, plan.lock, plan.imports)
    shutil.rmtree(release.work)
    # uv's own lock on the environment, which anybody may write
    (release.venv / ".lock").unlink(missing_ok=True)
    inputs = {
        "name": release.name,
        "lock": plan.lock_text,
        "interpreter": plan.interpreter.as_dict(),
        "patches_id": plan.patches_id,
        "bytecode": plan.bytecode,
    }
    write_atomically(release.path / INSTALLED, json.dumps(inputs).encode())


def unpack_installer(pin: Pin, wheels: Path, directory: Path) -> Path:
    """Take the uv program out of its wheel, whose hash is that of its lock."""
    wheel = wheels / pin.file
    if wheelhouse.file_sha256(wheel) != pin.sha256:
        raise ReleaseError(f"{wheel} is not the file that the installer's lock names")
    target = directory / "uv"
    with zipfile.ZipFile(wheel) as archive:
        member = next((name for name in archive.namelist() if name.endswith(".data/scripts/uv")), None)
        if member is None:
            raise ReleaseError(f"{wheel} holds no uv program")
        with archive.open(member) as source, target.open("wb") as stream:
            shutil.copyfileobj(source, stream, CHUNK)
    target.chmod(0o700)
    return target


def _packages(plan: Plan, uv: Path) -> None:
    """Install the lock's files; in index mode those of PyTorch's own indexes by themselves."""
    groups = {pin.local for pin in plan.lock.pins} if plan.index else {None}
    for local in sorted(groups, key=str):
        path = plan.release.work / f"lock-{local}.txt"
        pins = [pin for pin in plan.lock.pins if not plan.index or pin.local == local]
        path.write_text("".join(pin.as_line() + "\n" for pin in pins), encoding="utf-8")
        command = [str(uv), "pip", "install", "--python", str(plan.release.python), "--requirements", str(path)]
        command += ["--no-deps", "--require-hashes", "--no-build", "--find-links", str(plan.wheels)]
        command += [*plan.sources.arguments(), *plan.sources.backend(local)] if plan.index else ["--no-index"]
        # uv compiles on all cores; what it could not compile is looked at afterwards
        _uv(plan, command + (["--compile-bytecode"] if plan.bytecode else []))


def _uv(plan: Plan, command: Sequence[str]) -> None:
    """Run uv with nothing of the surrounding configuration."""
    release = plan.release
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(release.work),
        "UV_NO_CONFIG": "1",
        "UV_NO_PROGRESS": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_CACHE_DIR": str(plan.cache or release.work / "cache"),
        # nobody else writes to either cache: one is deleted after this run, the other is root's own
        "UV_LINK_MODE": "hardlink",
        **plan.sources.environment(),
    }
    environment |= {key: os.environ[key] for key in ("SSL_CERT_FILE", "NO_PROXY") if key in os.environ}
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if answer.returncode:
        raise ReleaseError(f"{' '.join(command[1:3])} failed for {release.name}: {answer.stderr.strip()}")


# --- what is installed --------------------------------------------------------------------------------------------


def site_packages(release: Release, interpreter: Interpreter) -> Path:
    """Return where a release's packages are."""
    return release.venv / "lib" / f"python{interpreter.minor}" / "site-packages"


def installed_versions(directory: Path) -> dict[str, str]:
    """Return name and version of every package in a site-packages folder."""
    versions = {}
    for path in directory.glob("*.dist-info/METADATA"):
        fields: dict[str, str] = {}
        with path.open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                key, colon, value = line.partition(": ")
                if not colon or {"Name", "Version"} <= fields.keys():
                    break
                fields.setdefault(key, value.strip())
        versions[normalise(fields.get("Name", path.parent.name))] = fields.get("Version", "")
    return versions


def _check_installed(plan: Plan) -> None:
    found = installed_versions(site_packages(plan.release, plan.interpreter))
    wanted = plan.lock.versions
    if found != wanted:
        different = sorted(set(found.items()) ^ set(wanted.items()))
        raise ReleaseError(f"{plan.release.path} does not hold the packages of the lock: they differ in {different}")


def check_imports(release: Release, lock: Lock, imports: Sequence[str] | None) -> None:
    """Import modules with the release's interpreter. Raises ReleaseError with the end of the traceback."""
    imports = IMPORTS.get(lock.engine, ()) if imports is None else imports
    if not imports:
        return
    home = release.work if release.work.is_dir() else Path("/nonexistent")
    environment = {
        "PATH": f"{release.venv}/bin:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        **IMPORT_ENVIRONMENT.get((lock.engine, lock.variant), {}),
    }
    for module in imports:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ReleaseError(f"{module!r} is no module's name")
    command = [str(release.python), "-I", "-B", "-c", f"import {', '.join(imports)}"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if answer.returncode:
        tail = "\n".join(answer.stderr.strip().splitlines()[-12:])
        raise ReleaseError(f"{release.python} can't import {', '.join(imports)}:\n{tail}")


# --- bytecode -----------------------------------------------------------------------------------------------------

COMPILE = """
import json, py_compile, sys
failures = {}
for path in json.load(sys.stdin):
    try:
        py_compile.compile(path, doraise=True)
    except py_compile.PyCompileError as error:
        failures[path] = [isinstance(error.__context__, SyntaxError), str(error.exc_value)]
    except Exception as error:
        failures[path] = [False, f"{type(error).__name__}: {error}"]
json.dump(failures, sys.stdout)
"""


def without_bytecode(directory: Path, interpreter: Interpreter) -> list[Path]:
    """Return sources whose bytecode is missing, or not that of their present time and size."""
    magic = bytes.fromhex(interpreter.magic)
    lacking = []
    for folder, _, files in os.walk(directory):
        for name in files:
            if name.endswith(".py"):
                source = Path(folder, name)
                cached = Path(folder, "__pycache__", f"{name[:-3]}.{interpreter.cache_tag}.pyc")
                if not _is_fresh(source, cached, magic):
                    lacking.append(source)
    return lacking


def _is_fresh(source: Path, cached: Path, magic: bytes) -> bool:
    """Return whether Python would take the bytecode: its header names the source's time and size (PEP 552)."""
    try:
        with cached.open("rb") as stream:
            header = stream.read(16)
        status = source.stat()
    except OSError:
        return False
    return header == magic + struct.pack("<III", 0, int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)


def compile_missing(release: Release, interpreter: Interpreter) -> list[str]:
    """Compile what has no bytecode; return the files that are not valid for this interpreter.

    Packages do hold a few of those (torch 2.13 has one file in the syntax of Python 3.12). Any other failure raises
    ReleaseError.
    """
    directory = site_packages(release, interpreter)
    sources = [str(path) for path in without_bytecode(directory, interpreter)]
    if not sources:
        return []
    answer = subprocess.run(
        [str(release.python), "-I", "-S", "-c", COMPILE],
        input=json.dumps(sources),
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        raise ReleaseError(f"{release.python} could not compile {directory}: {answer.stderr.strip()}")
    failures: dict[str, tuple[bool, str]] = json.loads(answer.stdout)
    hard = [f"{path}: {text}" for path, (syntax, text) in failures.items() if not syntax]
    if hard:
        raise ReleaseError("files that could not be compiled: " + "; ".join(hard))
    return sorted(Path(path).relative_to(directory).as_posix() for path in failures)


# --- does the content come from the wheels ------------------------------------------------------------------------


@dataclass(frozen=True)
class Origin:
    """How a release's files compare with what the wheels recorded. Paths are relative to the release."""

    changed: tuple[str, ...]
    """Files with content that no wheel has, and files of site-packages that no wheel brought."""
    contested: tuple[str, ...]
    """Files that several wheels bring with different content: which one is there depends on the installer's order."""


def origin(release: Release, interpreter: Interpreter, entries: Sequence[sealing.Entry]) -> Origin:
    """Compare files with the wheels' records. Bytecode is left out: it is made here."""
    directory = site_packages(release, interpreter)
    packages = directory.relative_to(release.path).as_posix() + "/"
    recorded: dict[str, set[str]] = {}
    for record in directory.glob("*.dist-info/RECORD"):
        for path, sha256 in _recorded(record, packages):
            recorded.setdefault(path, set()).add(sha256)
    mine = {packages + "_virtualenv.py", packages + "_virtualenv.pth"}  # uv's own, in every environment it makes
    changed = [
        entry.path
        for entry in entries
        if (entry.path in recorded or entry.path.startswith(packages))
        and not entry.path.endswith(".pyc")
        and entry.path not in mine
        and not recorded.get(entry.path, set()) & {"", entry.content}
    ]
    return Origin(tuple(changed), tuple(sorted(path for path, hashes in recorded.items() if len(hashes) > 1)))


def _recorded(record: Path, packages: str) -> Iterator[tuple[str, str]]:
    """Yield path in the release and sha256 of a RECORD; without one for entries such as RECORD itself."""
    with record.open(encoding="utf-8", newline="") as stream:
        for row in csv.reader(stream):
            algorithm, _, value = row[1].partition("=") if len(row) > 1 else ("", "", "")
            digest = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex() if algorithm == "sha256" else ""
            yield os.path.normpath(packages + row[0]), digest


def seal(
    release: Release,
    patches: Sequence[Any],
    patched_files: Sequence[str] | None,
    clock: Clock,
    imports: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Seal an installed release and return its record. The caller holds the release's lock.

    ``patched_files`` are the paths in site-packages that the chosen patches may have changed; None accepts what is
    there and only records it. Raises ReleaseError, and the release stays unsealed.
    """
    inputs = json.loads((release.path / INSTALLED).read_bytes())
    lock, interpreter = parse_lock(inputs["lock"]), Interpreter(**inputs["interpreter"])
    with clock.step("bytecode"):
        not_compiled = compile_missing(release, interpreter) if inputs["bytecode"] else []
    with clock.step("manifest"):
        entries = sealing.make_manifest(release.path, NOT_IN_MANIFEST)
    files = origin(release, interpreter, entries)
    packages = site_packages(release, interpreter).relative_to(release.path)
    allowed = {str(packages / path) for path in patched_files or ()}
    _refuse_unexplained(release, files.changed if patched_files is not None else (), allowed)
    broken = [path for path in not_compiled if str(packages / path) in allowed]
    if broken:
        raise ReleaseError(f"{release.path} is not sealed: patched files are no valid Python: {', '.join(broken)}")
    if files.changed:
        with clock.step("import"):
            check_imports(release, lock, imports)
    notes = {
        "patches": list(patches),
        "changed_files": files.changed,
        "contested_files": files.contested,
        "not_compiled": not_compiled,
    }
    with clock.step("seal"):
        return seal_release(release, lock, interpreter, inputs["patches_id"], entries=entries, notes=notes)


def _refuse_unexplained(release: Release, changed: Sequence[str], allowed: Collection[str]) -> None:
    """Raise ReleaseError for a file that differs from its wheel and that no patch may change."""
    unexplained = [path for path in changed if path not in allowed]
    if unexplained:
        raise ReleaseError(
            f"{release.path} is not sealed: files differ from their wheels and no chosen patch changes them: "
            f"{', '.join(unexplained[:20])}; install the release again (rebuild)"
        )
