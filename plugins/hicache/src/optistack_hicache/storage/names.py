"""The names that engines give to their files, and what can be read from them.

SGLang, ``file`` (0.5.17 to 0.5.23 mem_cache/hicache_storage.py, HiCacheFile): flat,
``<page hash>[.<pool>]_<model>[_<rank>_<ranks>][...].bin``; of MLA without the rank. Neither KV dtype nor layout nor,
but for DCP, page size. Written as ``<name>.tmp.<pid>.<thread>.<hex>`` (0.5.17) or ``.<hex>.tmp`` (0.5.21 on) and moved.

vLLM, ``fs`` (0.26 to 0.33 v1/kv_offload/file_mapper.py): ``<model>_<digest>_r<rank>/<hhh>/<hh>_g<group>/<hash>.bin``,
and beside it ``<model>_<digest>/config.json`` with what the digest is over: model name, tokens of a block, KV dtype,
parallelism, layer names. Not the layout of the KV, its scales, or what the checkpoint holds.
Written as ``<name>_<number>.tmp`` and moved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_POOLS = (
    r"draft_indexer|draft_swa|draft|mamba|auxiliary_swa|swa|indexer"
    r"|deepseek_v4_c\d+(?:_indexer_scale|_indexer_state|_indexer|_state|_rope)?"
)
"""PoolName of 0.5.17 to 0.5.23, whose words may hold the underscore that ends them."""
_SGLANG = re.compile(rf"[0-9a-f]{{64}}(?:\.(?P<pool>{_POOLS}))?_(?P<owner>.*)\.bin")
_SGLANG_RANKS = re.compile(r"(?:_\d+_\d+)*(?:_cp\d+_\d+)?(?:_tp\d+_dcp\d+_\d+_page\d+)?$")
_VLLM_FOLDER = re.compile(r"(?P<model>.+)_(?P<digest>[0-9a-f]{12})_r(?P<rank>\d+)")
_VLLM_CONFIG_FOLDER = re.compile(r"(?P<model>.+)_(?P<digest>[0-9a-f]{12})")
_VLLM_GROUP = re.compile(r"[0-9a-f]{2}_g(?P<group>\d+)")
_VLLM_FILE = re.compile(r"[0-9a-f]{16,128}\.bin")
_LEFTOVER = re.compile(
    r"\.[0-9a-f]{32}\.tmp"
    r"|[0-9a-f]{64}.*\.bin\.tmp\.\d+\.\d+\.[0-9a-f]{32}"
    r"|[0-9a-f]{16,128}\.bin_\d+\.tmp"
    r"|\.o_direct_probe_\d+\.tmp"
)
_KEY = re.compile(
    r"(?P<model>.+)-(?P<dtype>[a-z0-9_]+)-p(?P<page>\d+|auto)-(?P<layout>[a-z_]+)-tp(?P<tensor>\d+)"
    r"-(?P<engine>sglang|vllm)(?P<version>[0-9][^-]*)-(?P<digest>[0-9a-f]{12})"
)


@dataclass(frozen=True)
class Holding:
    """Whose KV a file is. Files of one holding are all equally long.

    ``place``  folder that the engine was given, relative to the folder that is looked at; ``.`` for that itself
    ``engine`` ``sglang`` or ``vllm``
    ``model``  the model's name as the engine writes it
    ``part``   what tells apart files of different lengths: rank, pool or group, and vLLM's digest
    """

    place: str
    engine: str
    model: str
    part: str


@dataclass(frozen=True)
class KeyName:
    """What a folder named by this plugin says of its bytes. ``page`` is ``auto`` where nobody chose one."""

    model: str
    dtype: str
    page: str
    layout: str
    tensor: int
    engine: str
    version: str
    digest: str


def read_key(name: str) -> KeyName | None:
    """The parts of a folder's name that :func:`optistack_hicache.key.storage_key` made; None for any other."""
    found = _KEY.fullmatch(name)
    if found is None:
        return None
    words = {name: found[name] for name in ("model", "dtype", "page", "layout", "engine", "version", "digest")}
    return KeyName(tensor=int(found["tensor"]), **words)


def holding(parts: tuple[str, ...]) -> Holding | None:
    """Whose file the relative path ``parts`` is; None where no engine writes such a name."""
    if len(parts) >= 4 and _VLLM_FILE.fullmatch(parts[-1]):
        folder, group = _VLLM_FOLDER.fullmatch(parts[-4]), _VLLM_GROUP.fullmatch(parts[-2])
        if folder and group and re.fullmatch(r"[0-9a-f]{3}", parts[-3]):
            part = f"{folder['digest']} r{folder['rank']} g{group['group']}"
            return Holding(_place(parts[:-4]), "vllm", folder["model"], part)
    found = _SGLANG.fullmatch(parts[-1])
    if found is None:
        return None
    ranks = _SGLANG_RANKS.search(found["owner"])
    start = ranks.start() if ranks is not None else len(found["owner"])
    part = " ".join(word for word in (found["pool"], found["owner"][start:].strip("_")) if word)
    return Holding(_place(parts[:-1]), "sglang", found["owner"][:start], part)


def leftover(name: str) -> bool:
    """Whether ``name`` is what a writer that died leaves behind."""
    return _LEFTOVER.fullmatch(name) is not None


def vllm_folder(name: str) -> bool:
    """Whether ``name`` is that of a folder that vLLM keeps the KV of a rank in."""
    return _VLLM_FOLDER.fullmatch(name) is not None


def vllm_config(parts: tuple[str, ...]) -> str | None:
    """The digest whose description ``parts`` is, if it is vLLM's config.json."""
    if len(parts) < 2 or parts[-1] != "config.json":
        return None
    found = _VLLM_CONFIG_FOLDER.fullmatch(parts[-2])
    return None if found is None else found["digest"]


def _place(parts: tuple[str, ...]) -> str:
    return "/".join(parts) or "."
