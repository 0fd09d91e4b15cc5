# SPDX-License-Identifier: Apache-2.0
"""Model weights: whole on disk, what was meant, served by this release, and small enough for these GPUs."""

from __future__ import annotations

from .files import account_exists, problems, replaceable, size
from .fit import Fit, Instance, fit, judge
from .hub import Hub, HubError, download
from .record import Record, RecordError, adopt, known_sums, record_path
from .sources import Source, SourceError, parse_source
from .suitability import Release, suitability

__all__ = [
    "Fit",
    "Hub",
    "HubError",
    "Instance",
    "Record",
    "RecordError",
    "Release",
    "Source",
    "SourceError",
    "account_exists",
    "adopt",
    "download",
    "fit",
    "judge",
    "known_sums",
    "parse_source",
    "problems",
    "record_path",
    "replaceable",
    "size",
    "suitability",
]
