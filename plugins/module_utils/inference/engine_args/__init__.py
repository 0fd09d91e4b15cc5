# SPDX-License-Identifier: Apache-2.0
"""An instance's settings as the command line of its engine: what a release takes, what it does not, what is unwise."""

from .checks import check
from .command import (
    DATA,
    DEFAULT_ARGUMENTS,
    OWNED,
    PIPELINE,
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
from .rules import RULES, Settings, lint

__all__ = [
    "DATA",
    "DEFAULT_ARGUMENTS",
    "OWNED",
    "PIPELINE",
    "RULES",
    "TITLES",
    "Argument",
    "Option",
    "Settings",
    "Table",
    "TableError",
    "arguments",
    "check",
    "command",
    "gpus_needed",
    "is_secret",
    "lint",
    "plain_name",
    "resolve",
    "resolved",
]
