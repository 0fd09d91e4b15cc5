# SPDX-License-Identifier: Apache-2.0
"""sd_notify: what a service tells systemd (sd_notify(3)), over the datagram socket that $NOTIFY_SOCKET names."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import MutableMapping

STATUS_LIMIT = 400
"""Bytes of STATUS= text that are sent; ``systemctl status`` shows it on one line."""

TIMEOUT_S = 1.0
"""Seconds that a message waits where systemd takes none (it takes ten at a time, and none while it reloads)."""

_SAID_ONCE = ({"READY": 1}, {"STOPPING": 1}, {"WATCHDOG": "trigger"})
"""What no later message would say again."""


class Notifier:
    """Tells systemd. Without a notify socket every call does nothing."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Take the socket's address and the watchdog's period out of ``environ``, so that no child inherits them."""
        address = environ.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        usec = environ.pop("WATCHDOG_USEC", "")
        environ.pop("WATCHDOG_PID", None)
        self.watchdog_s: float | None = int(usec) / 1e6 if usec.isdigit() and int(usec) else None
        """Seconds within which systemd wants a ping, or None when the unit has no WatchdogSec=."""
        self._owed: dict[str, int | str] = {}

    @property
    def active(self) -> bool:
        """Whether there is a systemd to tell."""
        return bool(self._address)

    def send(self, *, status: str = "", **fields: int | str) -> None:
        """Send one message: ``send(READY=1, status="serving")``.

        One that is lost is no error: the next one says more, and what is said only once goes with it.
        """
        text = " ".join(status.split()).encode(errors="replace")[:STATUS_LIMIT].decode(errors="ignore")
        told = {**fields, **self._owed}
        lines = [f"{name}={value}" for name, value in told.items()]
        lines += [f"STATUS={text}"] if text else []
        if not self._address or not lines:
            return
        for once in _SAID_ONCE:
            self._owed |= once if once.items() <= told.items() else {}
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(TIMEOUT_S)
            channel.sendto("\n".join(lines).encode(), self._address)
            self._owed = {}
