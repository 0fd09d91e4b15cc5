# SPDX-License-Identifier: Apache-2.0
"""Ask NCCL itself what a hanging job waits for: its RAS service (NCCL 2.24 and newer).

One process of each job listens on a local port, 28028 unless NCCL_RAS_ADDR says otherwise. The exchange is lines of
text, the one that ``ncclras`` has: a greeting with the protocol's number, then a command, then the report until the
other side closes (NCCL source: src/ras/client.cc).
"""

from __future__ import annotations

import socket
import time

PORT = 28028
VARIABLE = "NCCL_RAS_ADDR"
_GREETING = b"CLIENT PROTOCOL 2\n"
_COMMAND = b"VERBOSE STATUS\n"
_LIMIT = 1 << 20


def free_address() -> str:
    """Return ``localhost:PORT`` with a port that was free just now, so that a running engine's service is not met."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"localhost:{probe.getsockname()[1]}"


def report(address: str, timeout: float = 12.0) -> str | None:
    """Return the report of the job at ``address`` (``host:port``), or None where none came within ``timeout`` s.

    NCCL waits up to 5 s for processes that don't answer, and 5 s more; the time is for all of it.
    """
    host, _, port = address.rpartition(":")
    end = time.monotonic() + timeout
    received = b""
    try:
        with socket.create_connection((host, int(port)), timeout=timeout) as connection:
            connection.sendall(_GREETING)
            if not _line(connection, end).startswith(b"SERVER PROTOCOL"):
                return None
            connection.sendall(_COMMAND)
            while len(received) < _LIMIT and (part := _receive(connection, end)):
                received += part
    except (OSError, ValueError):
        # what came before it fell silent is still worth reading
        pass
    return received.decode("utf-8", errors="replace").strip() or None


def _receive(connection: socket.socket, end: float) -> bytes:
    connection.settimeout(max(0.01, end - time.monotonic()))
    return connection.recv(4096)


def _line(connection: socket.socket, end: float) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (byte := connection.recv(1) if time.monotonic() < end else b""):
        line += byte
    return line
