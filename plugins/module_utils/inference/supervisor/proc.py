# SPDX-License-Identifier: Apache-2.0
"""Processes as /proc shows them: an engine's process tree, the work it does, and who listens on a port."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import socket
import struct
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

PROC = "/proc"

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
PF_EXITING = 0x4  # linux/sched.h

HELPERS = (
    "multiprocessing.resource_tracker",  # Python's own; restarted when it is needed
    "multiprocessing.forkserver",
    "_inductor/compile_worker",  # torch ends its idle compile workers
)
"""Parts of the command lines of Python processes that come and go in a healthy engine: their end is no failure."""

TOOLS = frozenset(
    (
        *("ninja", "cmake", "nvcc", "cicc", "ptxas", "fatbinary", "nvlink", "cudafe++"),
        *("gcc", "g++", "cc", "c++", "cc1", "cc1plus", "collect2", "as", "ld", "clang", "clang++"),
        *("nvidia-smi", "ldconfig"),
    )
)
"""Programs that do the same, with whatever they start: FlashInfer, Triton and torch compile kernels on demand."""

_STARTERS = re.compile(r"(?:sh|bash|dash|env|python[\d.]*|-.*)")
"""Words of a command line before the name of the program that it is about."""


@dataclass(frozen=True)
class Process:
    """One process. ``started`` (clock ticks since boot) tells it from a later one with the same number."""

    pid: int
    parent: int
    state: str
    cpu_ticks: int
    started: int
    resident_pages: int


def become_subreaper() -> bool:
    """Make this process the parent of every descendant whose own parent ends (prctl(2)), daemons included.

    Without it a worker that was started with a double fork would leave the tree. Returns False when refused.
    """
    return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def give_back_memory() -> None:
    """Have the C library return what it holds free: 3 MB when the modules had to be compiled at the start."""
    with contextlib.suppress(AttributeError):  # a C library other than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - read each second for each process
        return file.read()


def _stat(pid: int, proc: str) -> list[bytes]:
    """Return the fields of /proc/pid/stat from the third on (proc(5)), the state. Raise OSError when it is gone."""
    # The name before them stands in parentheses and may hold spaces and parentheses itself.
    return _read(f"{proc}/{pid}/stat").rpartition(b")")[2].split()


def process(pid: int, proc: str = PROC) -> Process | None:
    """Return the process ``pid``, or None when it is gone (proc(5), /proc/pid/stat)."""
    try:
        fields = _stat(pid, proc)
    except OSError:
        return None
    state, parent = fields[0].decode(), int(fields[1])
    return Process(pid, parent, state, int(fields[11]) + int(fields[12]), int(fields[19]), int(fields[21]))


def dying(pid: int, proc: str = PROC) -> bool:
    """Tell whether a process has been killed or is exiting while one of its threads still runs.

    Neither waitpid(2) nor a pidfd tells of its end before the last thread is gone, which takes a process with much
    memory a while (proc(5): state and flags in stat, SigPnd and ShdPnd in status).
    """
    try:
        fields = _stat(pid, proc)
        rows = dict(row.split(b":\t") for row in _read(f"{proc}/{pid}/status").splitlines() if row[3:6] == b"Pnd")
    except OSError:
        return False
    pending = int(rows[b"SigPnd"], 16) | int(rows[b"ShdPnd"], 16)
    return fields[0] == b"Z" or bool(int(fields[6]) & PF_EXITING or pending >> (signal.SIGKILL - 1) & 1)


def processes(proc: str = PROC) -> dict[int, Process]:
    """Return every process that /proc shows, by number."""
    found = (process(int(name), proc) for name in os.listdir(proc) if name.isdigit())  # noqa: PTH208
    return {entry.pid: entry for entry in found if entry}


def descendants(root: int, table: Mapping[int, Process]) -> dict[int, Process]:
    """Return the processes below ``root``, without itself."""
    children: dict[int, list[Process]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry)
    below: dict[int, Process] = {}
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            if child.pid not in below and child.pid != root:
                below[child.pid] = child
                todo.append(child.pid)
    return below


def title(pid: int, proc: str = PROC) -> str:
    """Return a process's command line, or its name where it has none, "" when it is gone; at most 200 characters."""
    with contextlib.suppress(OSError):
        words = _read(f"{proc}/{pid}/cmdline").replace(b"\0", b" ").strip() or _read(f"{proc}/{pid}/comm").strip()
        return words.decode(errors="replace")[:200]
    return ""


def passing(tree: Mapping[int, Process], titles: Mapping[int, str]) -> set[int]:
    """Return the processes of ``tree`` whose end is no failure, by their command lines; TOOLS with all below them."""
    tools = {pid for pid, command in titles.items() if _program(command) in TOOLS}
    below = {pid for tool in tools for pid in descendants(tool, tree)}
    return tools | below | {pid for pid, command in titles.items() if any(part in command for part in HELPERS)}


def _program(command: str) -> str:
    """Return the name of the program that a command line is about: that of a script rather than its interpreter's."""
    names = (word.rpartition("/")[2] for word in command.split())
    return next((name for name in names if not _STARTERS.fullmatch(name)), "")


def io_bytes(pid: int, proc: str = PROC) -> int:
    """Return the bytes that a process has read and written so far; 0 where that may not be read."""
    try:
        rows = dict(row.split(b": ") for row in _read(f"{proc}/{pid}/io").splitlines())
    except (OSError, ValueError):
        return 0
    # rchar leaves out what a memory map faults in, read_bytes what the page cache had.
    return int(rows[b"rchar"]) + int(rows[b"read_bytes"]) + int(rows[b"wchar"])


def exit_signal(pid: int, proc: str = PROC) -> int | None:
    """Return the signal that ended a process whose parent has not collected it yet; None where that can't be known."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        fields = _stat(pid, proc)
        if fields[0] == b"Z":
            return int(fields[49]) & 0x7F or None
    return None


def oom_kills(proc: str = PROC, groups: str = "/sys/fs/cgroup") -> int | None:
    """Return how many processes of this one's control group the kernel has killed for want of memory.

    That is ``oom_kill`` in memory.events (Linux, admin-guide/cgroup-v2), which counts the host's want too; None where
    it can't be known: without version 2, without the memory controller.
    """
    with contextlib.suppress(OSError, StopIteration, ValueError):
        rows = _read(f"{proc}/self/cgroup").decode().splitlines()
        path = next(row.partition("::")[2] for row in rows if row.startswith("0::"))
        events = _read(f"{groups}{path}/memory.events").split()
        return int(events[events.index(b"oom_kill") + 1])
    return None


def kill(target: Process, proc: str = PROC) -> None:
    """Send SIGKILL to exactly ``target``: never to a later process with its number, this one, or number 1."""
    if target.pid <= 1 or target.pid == os.getpid():
        return
    try:
        handle = os.pidfd_open(target.pid)
    except OSError:
        return
    try:
        now = process(target.pid, proc)
        if now and now.started == target.started:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError as error:
        if error.errno not in (errno.ESRCH, errno.EPERM):
            raise
    finally:
        os.close(handle)


def end_descendants(timeout_s: float, keep: Collection[int] = ()) -> list[Process]:
    """Kill every process below this one. Return those that live after ``timeout_s`` seconds.

    Children are collected, but for those in ``keep``, whose exit status is still wanted.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        reap(keep)
        left = [entry for entry in descendants(os.getpid(), processes()).values() if entry.state != "Z"]
        if not left or time.monotonic() > deadline:
            return left
        for entry in left:
            kill(entry)
        time.sleep(0.02)


def reap(keep: Collection[int] = ()) -> None:
    """Collect children that have ended, up to one of ``keep``, whose status is still wanted."""
    with contextlib.suppress(ChildProcessError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid in keep:
                return
            os.waitpid(found.si_pid, 0)


@dataclass(frozen=True)
class Work:
    """What a process tree has done so far."""

    cpu_ticks: int = 0
    io: int = 0
    resident_pages: int = 0
    pids: frozenset[int] = frozenset()


def work(tree: Mapping[int, Process], proc: str = PROC) -> Work:
    """Return the work of the processes in ``tree``."""
    return Work(
        sum(entry.cpu_ticks for entry in tree.values()),
        sum(io_bytes(pid, proc) for pid in tree),
        sum(entry.resident_pages for entry in tree.values()),
        frozenset(tree),
    )


@dataclass(frozen=True)
class Listener:
    """A listening TCP socket."""

    address: str
    inode: str
    uid: int


_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


def addresses(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """Return the family and address of each address that ``host`` stands for. Raise OSError for an unknown name."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except UnicodeError as error:  # what cannot be a name at all
        raise OSError(errno.EINVAL, f"{host!r} is no host name: {error}") from error
    return [(family, str(sockaddr[0])) for family, _, _, _, sockaddr in found]


def listeners(host: str, port: int, proc: str = PROC) -> list[Listener]:
    """Return the sockets that listen on ``port`` at an address that overlaps with ``host``.

    Where ``host`` is a name that stands for no address just now, it may be any.
    """
    wanted = set(_WILDCARDS)
    with contextlib.suppress(OSError):
        wanted = {address for _, address in addresses(host)}
    everywhere = bool(wanted & set(_WILDCARDS))
    found = [entry for table in ("tcp", "tcp6") for entry in _table(f"{proc}/net/{table}", port)]
    return [entry for entry in found if everywhere or entry.address in wanted or entry.address in _WILDCARDS]


def _table(path: str, port: int) -> list[Listener]:
    found = []
    with contextlib.suppress(OSError), open(path, encoding="ascii") as rows:  # noqa: PTH123
        next(rows)
        for row in rows:
            fields = row.split()
            address, _, number = fields[1].partition(":")
            if fields[3] == "0A" and int(number, 16) == port:  # 0A is TCP_LISTEN
                found.append(Listener(_address(address), fields[9], int(fields[7])))
    return found


def _address(text: str) -> str:
    """Decode an address of /proc/net/tcp: 32-bit words in the host's byte order."""
    words = struct.unpack(f">{len(text) // 8}I", bytes.fromhex(text))
    raw = struct.pack(f"={len(words)}I", *words)
    return socket.inet_ntop(socket.AF_INET if len(words) == 1 else socket.AF_INET6, raw).removeprefix("::ffff:")


def holders(inodes: Iterable[str], pids: Iterable[int], proc: str = PROC) -> dict[str, int]:
    """Return which of ``pids`` holds each of the sockets ``inodes``, as far as their descriptors may be read."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found: dict[str, int] = {}
    for pid in pids if wanted else ():
        with contextlib.suppress(OSError):
            for name in os.listdir(f"{proc}/{pid}/fd"):  # noqa: PTH208
                with contextlib.suppress(OSError):
                    link = os.readlink(f"{proc}/{pid}/fd/{name}")  # noqa: PTH115
                    if link in wanted:
                        found.setdefault(wanted[link], pid)
    return found


def describe_holder(listener: Listener, proc: str = PROC) -> str:
    """Return who holds ``listener``, such as ``python3 -m http.server (pid 4711)``, or at least whose it is."""
    pid = holders([listener.inode], map(int, filter(str.isdigit, os.listdir(proc))), proc).get(listener.inode)  # noqa: PTH208
    if pid is None:
        return f"a process of user {_user(listener.uid)}"
    return f"{title(pid, proc) or 'a process'} (pid {pid})"


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def bind_error(host: str, port: int) -> OSError | None:
    """Return why nothing can listen on ``host``:``port`` now, or None. TIME_WAIT left by a run before is no reason."""
    try:
        errors = [_bind_error(family, address, port) for family, address in addresses(host)]
    except OSError as error:
        return error
    taken = [error for error in errors if error and error.errno == errno.EADDRINUSE]
    # A name may stand for an address that this host lacks (localhost without IPv6): one that works is enough.
    return taken[0] if taken else None if None in errors else errors[0]


def _bind_error(family: socket.AddressFamily, address: str, port: int) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, port))
            probe.listen(1)  # two sockets may be bound with SO_REUSEADDR, but only one may listen
    except OSError as error:
        return error
    return None
