# SPDX-License-Identifier: Apache-2.0
"""Model weights on disk: that every file is there, as long as its own header says, and readable by the service."""

from __future__ import annotations

import json
import os
import pwd
import stat
from pathlib import Path
from typing import Any

MAX_HEADER = 100_000_000
"""Bytes; the safetensors format allows no longer header."""

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")
"""One of these has to be there."""


def problems(folder: Path, user: str | None = None) -> list[str]:
    """Return what keeps an engine from loading the model in ``folder``; an empty list when it is whole.

    ``user`` is the account that has to be able to read it; None leaves that out.
    """
    if not folder.is_dir():
        return [f"{folder}: there is no such folder"]
    found = _config(folder) + _tokenizer(folder)
    shards, missing = _shards(folder)
    found += missing
    for shard in shards:
        found += _shard(shard)
    if user is not None:
        found += unreadable(folder, user)
    return found


def size(folder: Path) -> int:
    """Return the bytes of all safetensors files."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def replaceable(folder: Path) -> bool:
    """Say whether nothing but (part of) a model would be lost with ``folder``."""
    if folder.is_symlink() or not folder.is_dir():
        return not os.path.lexists(folder)
    names = [path.name for path in folder.iterdir()]
    return not names or any(name == "config.json" or name.endswith(".safetensors") for name in names)


def account_exists(user: str) -> bool:
    """Say whether the host has this account."""
    return any(account.pw_name == user for account in pwd.getpwall())


def _config(folder: Path) -> list[str]:
    file = folder / "config.json"
    try:
        config = json.loads(file.read_text())
    except FileNotFoundError:
        return [f"{file}: missing"]
    except (OSError, ValueError, RecursionError) as error:
        return [f"{file}: not readable as JSON ({error})"]
    if not isinstance(config, dict):
        return [f"{file}: not a JSON object"]
    return [] if config.get("architectures") else [f"{file}: names no architecture"]


def _tokenizer(folder: Path) -> list[str]:
    if any((folder / name).is_file() for name in TOKENIZERS):
        return []
    return [f"{folder}: no tokenizer; expected one of {', '.join(TOKENIZERS)}"]


def _shards(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the weight files that are there, and a line for each that is named by the index and is not."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        single = sorted(folder.glob("*.safetensors"))
        return single, [] if single else [f"{folder}: no *.safetensors file"]
    try:
        named = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        if not named:
            raise ValueError("it names no file")
        if outside := [name for name in named if Path(name).is_absolute() or ".." in Path(name).parts]:
            raise ValueError(f"it names {outside[0]}, which is outside of the folder")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return [], [f"{index}: not an index of weights ({error!r})"]
    paths = [folder / name for name in named]
    missing = [path for path in paths if not path.is_file()]
    lines = [f"{path.name}: missing ({len(missing)} of {len(paths)} shards are)" for path in missing[:3]]
    return [path for path in paths if path not in missing], lines


def _shard(file: Path) -> list[str]:
    """Compare a safetensors file's length with its header: eight bytes, the header, then the tensors."""
    try:
        with file.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if not 0 < length <= MAX_HEADER:
                return [f"{file.name}: not a safetensors file (its header would be {length} bytes)"]
            header: dict[str, Any] = json.loads(handle.read(length))
        data = max((int(t["data_offsets"][1]) for name, t in header.items() if name != "__metadata__"), default=0)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        return [f"{file.name}: its header cannot be read ({error!r})"]
    expected, actual = 8 + length + data, file.stat().st_size
    return [] if expected == actual else [f"{file.name}: {actual} bytes, and its header says {expected}"]


def unreadable(folder: Path, user: str) -> list[str]:
    """Return what a user cannot read, by owner, group and mode bits: the caller is root, who may read all."""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        return [f"no such user: {user}"]
    groups = set(os.getgrouplist(user, account.pw_gid))
    closed: list[Path] = []
    for path in [*reversed(folder.resolve().parents), folder, *sorted(folder.iterdir())]:
        found = path.stat() if path.exists() else None  # a dangling link is reported as a missing file, or matters not
        if found and not _may_read(found, account.pw_uid, groups, listed=path == folder):
            closed.append(path)
    return [f"{path}: {user} cannot read it; chmod a+rX" for path in closed[:3]]


def writable(folder: Path, user: str) -> list[Path]:
    """Return the folder or the files in it that a user may change, by owner, group and mode bits. Nothing for root."""
    account = pwd.getpwnam(user)
    groups = set(os.getgrouplist(user, account.pw_gid))
    there = [path for path in (folder, *sorted(folder.iterdir())) if path.exists()]
    return [path for path in there if account.pw_uid and _bits(path.stat(), account.pw_uid, groups) & stat.S_IWOTH]


def _bits(found: os.stat_result, uid: int, groups: set[int]) -> int:
    """Return the mode bits that count for a user, as those of others."""
    shift = 6 if found.st_uid == uid else 3 if found.st_gid in groups else 0
    return stat.S_IMODE(found.st_mode) >> shift


def _may_read(found: os.stat_result, uid: int, groups: set[int], *, listed: bool) -> bool:
    """Say whether the bits let a user read the file or enter the folder; ``listed``: see its names as well."""
    if uid == 0:
        return True
    bits = _bits(found, uid, groups)
    if not stat.S_ISDIR(found.st_mode):
        return bool(bits & stat.S_IROTH)
    needed = stat.S_IXOTH | (stat.S_IROTH if listed else 0)
    return bits & needed == needed
