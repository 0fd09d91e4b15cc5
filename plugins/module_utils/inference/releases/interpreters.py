# SPDX-License-Identifier: Apache-2.0
"""The Python interpreter of a release: asked what it is before anything is installed for it."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import asdict, dataclass
from typing import Any

from .locks import Lock, Target, misfits

QUESTION = """
import importlib.util, json, os, platform, sys, sysconfig
libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
include = sysconfig.get_path("include")
print(json.dumps({
    "path": sys.executable, "real_path": os.path.realpath(sys.executable),
    "implementation": sys.implementation.name, "version": platform.python_version(),
    "abi": sysconfig.get_config_var("SOABI") or "", "magic": importlib.util.MAGIC_NUMBER.hex(),
    "cache_tag": sys.implementation.cache_tag, "machine": platform.machine(), "libc": libc or "",
    "include": include, "headers": os.path.exists(os.path.join(include, "Python.h")),
}))
"""


class InterpreterError(RuntimeError):
    """No interpreter that can be used; the message says what to install."""


@dataclass(frozen=True)
class Interpreter:
    """What an interpreter says of itself. ``libc`` is such as ``glibc 2.36``; ``magic`` is its bytecode's, in hex."""

    path: str
    real_path: str
    implementation: str
    version: str
    abi: str
    magic: str
    cache_tag: str
    machine: str
    libc: str
    include: str
    headers: bool

    @property
    def minor(self) -> str:
        """``3.11`` for 3.11.2."""
        return ".".join(self.version.split(".")[:2])

    @property
    def identity(self) -> dict[str, str]:
        """What of it decides a release's content. Not the patch level: the distribution's fixes keep releases valid."""
        return {"implementation": self.implementation, "version": self.minor, "abi": self.abi}

    @property
    def target(self) -> Target:
        """What wheels have to fit."""
        numbers = self.libc.rpartition(" ")[2].split(".")
        glibc = (int(numbers[0]), int(numbers[1])) if self.libc.startswith("glibc ") else (0, 0)
        return Target(self.minor, glibc, self.machine)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def find(name: str, python: str) -> str:
    """Return the path of the interpreter: ``name`` itself, or for ``auto`` ``pythonX.Y`` from PATH."""
    word = f"python{python}" if name == "auto" else name
    path = shutil.which(word, path=None if name != "auto" else "/usr/local/bin:/usr/bin:/bin")
    if path is None:
        raise InterpreterError(f"there is no {word} on this host; {_advice(python)}")
    return path


def _advice(python: str) -> str:
    return (
        f"the lock is for Python {python}: install python{python}, with its headers if the engine runs on a GPU "
        f"(Debian, Ubuntu: apt install python{python} python{python}-dev), or choose a lock for a Python that is here"
    )


def probe(path: str) -> Interpreter:
    """Ask an interpreter what it is. Raises InterpreterError when it doesn't answer."""
    try:
        answer = subprocess.run(
            [path, "-I", "-S", "-c", QUESTION], capture_output=True, text=True, check=True, timeout=60
        )
        return Interpreter(**json.loads(answer.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as error:
        detail = getattr(error, "stderr", "") or str(error)
        raise InterpreterError(f"{path} is no usable Python interpreter: {detail.strip()}") from error


def unfit(interpreter: Interpreter, lock: Lock, *, headers: bool) -> list[str]:
    """Return why a lock can't be installed for an interpreter; empty when it can."""
    problems = []
    if interpreter.implementation != "cpython" or interpreter.minor != lock.python:
        problems.append(
            f"{interpreter.path} is {interpreter.implementation} {interpreter.version}; {_advice(lock.python)}"
        )
    elif files := misfits(lock, interpreter.target):
        system = f"{interpreter.machine}, {interpreter.libc or 'no glibc'}"
        problems.append(f"{interpreter.path} ({system}) can't load {', '.join(files)}")
    if headers and not interpreter.headers:
        problems.append(
            f"{interpreter.include}/Python.h is not there, and kernels are compiled against it when the engine "
            f"starts; install it (Debian, Ubuntu: apt install python{interpreter.minor}-dev)"
        )
    return problems
