# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that a test starts by itself and that are told which one to take."""

from __future__ import annotations

import itertools
import os
import random
import socket

FIRST, EACH = 10000, 500
"""Each worker of a run has ports of its own, all below those that Linux gives to whoever asks for any (from 32768 on):
one of these could be given to another between being found free and being taken."""

WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 16
_NEXT = itertools.count(random.randrange(EACH))


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody has, and that this run gives to no other test for a long while."""
    for number in itertools.islice(_NEXT, EACH):
        port = FIRST + WORKER * EACH + number % EACH
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no port from {FIRST + WORKER * EACH} on is free")
