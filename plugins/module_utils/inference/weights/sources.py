# SPDX-License-Identifier: Apache-2.0
"""Where weights come from: a folder on the controller, a folder on another host, a repository of a hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ..redact import HIDDEN, redact

_REPOSITORY = re.compile(r"hf:(?P<name>[\w.-]+/[\w.-]+)@(?P<revision>.+)")
_HOST = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]*):(?P<path>/[^/].*)")
_COMMIT = re.compile(r"[0-9a-f]{40}")


_USER = re.compile(r"(?<=//)[^/@\s]+@")
"""User and password in a URL."""


class SourceError(ValueError):
    """A source that is none, with what is one."""


@dataclass(frozen=True)
class Source:
    """One place that weights come from.

    ``folder``: ``path`` on the controller. ``host``: ``path`` on the inventory's host ``name``. ``hub``: the repository
    ``name`` of a Hugging Face hub at the commit ``revision``.
    """

    kind: Literal["folder", "host", "hub"]
    path: str = ""
    name: str = ""
    revision: str = ""


def parse_source(text: str) -> Source:
    """Parse ``/folder``, ``HOST:/folder`` or ``hf:OWNER/NAME@COMMIT``. Raises SourceError.

    A commit is all of its 40 digits: a branch or tag can be moved, and would then be another model on another day.
    """
    if found := _REPOSITORY.fullmatch(text):
        if not _COMMIT.fullmatch(found["revision"]):
            raise SourceError(
                f"seen revision {found['revision']!r}; expected a commit of 40 hexadecimal digits, since a branch or "
                f"tag can be moved; fix: take the newest one from the list of commits of {found['name']}"
            )
        return Source("hub", name=found["name"], revision=found["revision"])
    seen = _USER.sub(f"{HIDDEN}@", redact(text))
    if text.startswith("hf:"):
        raise SourceError(f"seen {seen!r}; expected hf:OWNER/NAME@COMMIT")
    if found := _HOST.fullmatch(text):
        return Source("host", path=found["path"], name=found["host"])
    if text.startswith(("/", "~")):
        return Source("folder", path=text)
    raise SourceError(
        f"seen {seen!r}; expected a folder of the controller as an absolute path, HOST:/FOLDER of another host of the "
        "inventory, or hf:OWNER/NAME@COMMIT"
    )
