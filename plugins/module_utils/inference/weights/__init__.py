# SPDX-License-Identifier: Apache-2.0
"""Model weights: whole on disk, what was meant, served by this release, and small enough for these GPUs."""

from __future__ import annotations

from .files import account_exists, problems, replaceable, size
from .hub import ENDPOINT, Hub, HubError, HubPausedError
from .record import Record, RecordError
from .sources import Source, SourceError, parse_source
from .state import Model, ModelError, fetch, look, model_of, place, remove

__all__ = [
    "ENDPOINT",
    "Hub",
    "HubError",
    "HubPausedError",
    "Model",
    "ModelError",
    "Record",
    "RecordError",
    "Source",
    "SourceError",
    "account_exists",
    "fetch",
    "look",
    "model_of",
    "parse_source",
    "place",
    "problems",
    "remove",
    "replaceable",
    "size",
]
