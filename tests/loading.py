# SPDX-License-Identifier: Apache-2.0
"""Loads what has no name to import it by: programs without a suffix, and plugins that Ansible finds by their folder."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType


def load(name: str, path: Path) -> ModuleType:
    """Return the code of ``path`` as a new module ``name``, not kept in ``sys.modules``; no bytecode is written."""
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    made = module_from_spec(spec)
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    before, sys.modules[name] = sys.modules.get(name), made  # dataclasses look their module up while they are made
    try:
        loader.exec_module(made)
    finally:
        sys.dont_write_bytecode = kept
        del sys.modules[name]
        if before is not None:
            sys.modules[name] = before
    return made
