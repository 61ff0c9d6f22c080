"""What lies in a storage tier's folder."""

from __future__ import annotations

import json
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from optistack.errors import InputError
from optistack_hicache.storage.folder import Folder
from optistack_hicache.storage.names import Holding, holding, leftover, vllm_config

DEPTH = 7
"""Folders below the one that is given: a folder for each key, and vLLM's three in it, with room to spare."""

STRANGERS = 2000
"""Files of somebody else, without a single one of an engine among them, after which a folder is taken for no tier."""

CONFIG_BYTES = 2**20
HASHES_FILE = ".optistack-hashes.jsonl"


@dataclass(frozen=True, slots=True)
class Entry:
    """A KV file. ``used_s`` is the later of its last access and its last write, as the file system keeps them."""

    parts: tuple[str, ...]
    holding: Holding
    size_bytes: int
    used_s: float
    written_ns: int
    inode: int

    @property
    def name(self) -> str:
        return "/".join(self.parts)


@dataclass
class Scan:
    """``entries`` KV files; ``leftovers`` files that a writer that died left behind; ``others`` files of somebody else,
    links among them, which nothing here touches; ``configs`` vLLM's descriptions by digest;
    ``times`` whether the file system keeps times of access."""

    entries: list[Entry] = field(default_factory=list)
    leftovers: list[Entry] = field(default_factory=list)
    others: int = 0
    stranger: str = ""
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    times: bool = True

    def by_holding(self) -> dict[Holding, list[Entry]]:
        found: dict[Holding, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            found[entry.holding].append(entry)
        return found


def scan(folder: Folder) -> Scan:
    """Everything below ``folder``, no link followed and no other file system entered.

    Raises InputError where there are files and none of them is an engine's: it is no tier then.
    """
    found = Scan(times=not os.fstatvfs(folder.descriptor).f_flag & getattr(os, "ST_NOATIME", 1024))
    device = os.fstat(folder.descriptor).st_dev
    for parts, status in _walk(folder, (), device):
        _sort(folder, found, parts, status)
        if found.others > STRANGERS and not found.entries:
            break
    if found.others and not found.entries:  # a temporary file's name alone may be anybody's
        raise InputError(
            f"{folder.path} is no storage tier: it holds {found.stranger} and nothing that SGLang or vLLM wrote.",
            fix="Give the folder of option storage_dir.",
        )
    return found


def _walk(folder: Folder, above: tuple[str, ...], device: int) -> Iterator[tuple[tuple[str, ...], os.stat_result]]:
    below: list[tuple[str, ...]] = []
    try:
        with folder.parent((*above, "")) as descriptor, os.scandir(descriptor) as names:
            for one in names:
                try:
                    status = one.stat(follow_symlinks=False)
                except FileNotFoundError:  # an engine goes on while we look
                    continue
                if stat.S_ISDIR(status.st_mode) and status.st_dev == device and len(above) < DEPTH:
                    below.append((*above, one.name))
                else:
                    yield (*above, one.name), status
    except PermissionError:
        raise InputError(
            f"{folder.path.joinpath(*above)} may not be read.", fix="Run this as the user that the engine runs as."
        ) from None
    except FileNotFoundError:
        return
    for parts in sorted(below):
        yield from _walk(folder, parts, device)


def _sort(folder: Folder, found: Scan, parts: tuple[str, ...], status: os.stat_result) -> None:
    if parts == (HASHES_FILE,):
        return
    regular = stat.S_ISREG(status.st_mode)
    digest = vllm_config(parts) if regular else None
    if digest is not None:
        found.configs[digest] = _read_config(folder, parts)
        return
    whose = holding(parts) if regular else None
    left = regular and leftover(parts[-1])
    if whose is None and not left:
        found.others += 1
        found.stranger = found.stranger or "/".join(parts)
        return
    entry = Entry(
        parts=parts,
        holding=whose or Holding("/".join(parts[:-1]) or ".", "", "", "leftover"),
        size_bytes=status.st_size,
        used_s=max(status.st_atime, status.st_mtime),
        written_ns=status.st_mtime_ns,
        inode=status.st_ino,
    )
    (found.leftovers if left else found.entries).append(entry)


def _read_config(folder: Folder, parts: tuple[str, ...]) -> dict[str, Any]:
    """What vLLM wrote down; empty where it cannot be read, since a description is worth no failure."""
    try:
        with os.fdopen(folder.open(parts), "rb") as file:
            says = json.loads(file.read(CONFIG_BYTES))
    except (OSError, ValueError):
        return {}
    return says if isinstance(says, dict) else {}


def total_bytes(entries: Iterable[Entry]) -> int:
    return sum(entry.size_bytes for entry in entries)
