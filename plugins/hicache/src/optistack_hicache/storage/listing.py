"""Whose KV a tier holds: one line for each folder, engine and model in it."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from optistack_hicache.storage.names import Holding, read_key
from optistack_hicache.storage.scan import Entry, Scan, total_bytes


@dataclass(frozen=True)
class Line:
    """``key`` the digest of a folder that this plugin named, else None: nothing then says how its bytes lie.

    ``written_as`` the model's name as the engine writes it into its files' names
    ``page``    tokens of a file, where a name or vLLM's description says so
    ``lengths`` different sizes among its files, ranks, pools and groups counted apart: more than one is a mixture
    ``written_s``, ``oldest_s``, ``used_s``  seconds ago: the last write, the first, the last use
    """

    place: str
    engine: str
    version: str | None
    model: str
    written_as: str
    dtype: str | None
    page: str | None
    layout: str | None
    key: str | None
    files: int
    bytes: int
    mixed: bool
    oldest_s: float
    written_s: float
    used_s: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def lines(found: Scan, *, here: str = "", now_s: float | None = None) -> list[Line]:
    """A line for each folder, engine and model, the largest first. ``here`` is the name of the folder looked at."""
    now = time.time() if now_s is None else now_s
    groups: dict[tuple[str, str, str], list[tuple[Holding, list[Entry]]]] = defaultdict(list)
    for one, entries in found.by_holding().items():
        groups[one.place, one.engine, one.model].append((one, entries))
    made = [_line(found, parts, here, now) for parts in groups.values()]
    return sorted(made, key=lambda line: (-line.bytes, line.place, line.model))


def _line(found: Scan, parts: list[tuple[Holding, list[Entry]]], here: str, now: float) -> Line:
    one = parts[0][0]
    entries = [entry for _, some in parts for entry in some]
    name = here if one.place == "." else one.place.rpartition("/")[2]
    key = read_key(name)
    config = found.configs.get(one.part.partition(" ")[0], {}) if one.engine == "vllm" else {}
    page = _vllm_page(config) or (key.page if key else None)
    written = [entry.written_ns / 1e9 for entry in entries]
    return Line(
        place=one.place,
        engine=one.engine,
        version=key.version if key else None,
        model=key.model if key else one.model,
        written_as=one.model,
        dtype=key.dtype if key else config.get("dtype"),
        page=page,
        layout=key.layout if key else None,
        key=key.digest if key else None,
        files=len(entries),
        bytes=total_bytes(entries),
        mixed=any(len({entry.size_bytes for entry in some}) > 1 for _, some in parts),
        oldest_s=now - min(written),
        written_s=now - max(written),
        used_s=now - max(entry.used_s for entry in entries),
    )


def _vllm_page(config: dict[str, Any]) -> str | None:
    groups = config.get("kv_cache_groups")
    blocks = config.get("blocks_per_file")
    if not isinstance(groups, list) or not isinstance(blocks, int):
        return None
    tokens = [group.get("tokens_per_block") for group in groups if isinstance(group, dict)]
    sizes = sorted({size * blocks for size in tokens if isinstance(size, int)})
    return "/".join(map(str, sizes)) or None


def by_place(found: list[Line]) -> list[dict[str, Any]]:
    """Bytes and files of each folder, the largest first."""
    sizes: dict[str, dict[str, Any]] = {}
    for line in found:
        one = sizes.setdefault(line.place, {"folder": line.place, "files": 0, "bytes": 0})
        one["files"] += line.files
        one["bytes"] += line.bytes
    return sorted(sizes.values(), key=lambda one: -one["bytes"])
