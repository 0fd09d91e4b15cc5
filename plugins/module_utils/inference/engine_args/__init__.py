# SPDX-License-Identifier: Apache-2.0
"""An instance's settings as the command line of its engine: what a release takes, what it does not, what is unwise."""

from .checks import check
from .command import (
    DATA,
    DEFAULT_ARGUMENTS,
    OWNED,
    PIPELINE,
    RUNS_FOREIGN_CODE,
    TITLES,
    Argument,
    arguments,
    command,
    gpus_needed,
    is_secret,
    plain_name,
    resolve,
    resolved,
)
from .options import Option, Table, TableError
from .presets import Preset, PresetError, expand, expand_all
from .presets import load as load_presets
from .rules import RULES, Scope, Settings, lint, settings
from .tables import load as load_table
from .tables import load_all as load_tables

__all__ = [
    "DATA",
    "DEFAULT_ARGUMENTS",
    "OWNED",
    "PIPELINE",
    "RULES",
    "RUNS_FOREIGN_CODE",
    "TITLES",
    "Argument",
    "Option",
    "Preset",
    "PresetError",
    "Scope",
    "Settings",
    "Table",
    "TableError",
    "arguments",
    "check",
    "command",
    "expand",
    "expand_all",
    "gpus_needed",
    "is_secret",
    "lint",
    "load_presets",
    "load_table",
    "load_tables",
    "plain_name",
    "resolve",
    "resolved",
    "settings",
]
