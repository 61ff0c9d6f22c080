"""KV tiers below the device: HiCache and its storage."""

from __future__ import annotations

import json

from optistack.backend import RenderRequest
from optistack.errors import PlanRefusedError
from optistack.settings import CacheTier
from optistack_adapters.base import LaunchBuilder, credit
from optistack_adapters.sglang import versions

GB = 10**9
"""``--hicache-size`` is in decimal gigabytes for each rank (mem_cache/pool_host/base.py:220)."""

NATIVE = ("native", "hicache")

DIRECTORIES = {
    "file": "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR",
    "nixl": "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR",
}
"""Variables that say where a storage backend keeps its files. They outrank its extra config."""


MOONCAKE_TAG = "extra_backend_tag"
"""Part of the name of every object (mem_cache/storage/mooncake_store/mooncake_store.py, 0.5.17 to 0.5.23)."""


def add_tiers(build: LaunchBuilder, request: RenderRequest) -> None:
    """The host tier and the storage tier. A host tier that is not HiCache is left to the rules, which refuse it."""
    host, storage = request.stack.tier(2), request.stack.tier(3)
    if host is None or (host.backend.is_set and host.backend.value not in NATIVE):
        return
    _host(build, request, host)
    if storage is not None:
        _storage(build, request, storage)


def hicache_gb(request: RenderRequest, capacity_bytes: int) -> int:
    """``--hicache-size`` for a host tier of ``capacity_bytes`` over all ranks of a replica, in whole GB a rank.

    The size is of the target's pool. A draft gets a pool of its own with as many slots
    (mem_cache/hybrid_cache/hybrid_pool_assembler.py, ``host_token_capacity``), so its share is taken off first.
    """
    budget = request.budget
    draft = sum(charge.per_kv_token_bytes for charge in request.stack.charges)
    share = (budget.bytes_per_kv_token - draft) / budget.bytes_per_kv_token if budget.bytes_per_kv_token else 1.0
    return int(capacity_bytes / request.spec.parallel.tensor * share / GB + 1e-9)


def _host(build: LaunchBuilder, request: RenderRequest, tier: CacheTier) -> None:
    owner = tier.backend if tier.backend.is_set else tier.capacity_bytes
    build.flag("--enable-hierarchical-cache", setting="tiers.2.backend", **credit(owner))
    capacity = tier.capacity_bytes.value
    if capacity is not None:
        size_gb = hicache_gb(request, capacity)
        if size_gb < 1:
            raise PlanRefusedError(
                f"A host tier of {capacity / GB:.2f} GB over {request.spec.parallel.tensor} ranks is less than "
                "the 1 GB a rank that SGLang's --hicache-size can say.",
                fix="Give the host tier more RAM, or leave it out.",
            )
        note = f"{capacity / GB:.1f} GB over {request.spec.parallel.tensor} ranks, in whole GB a rank"
        if any(charge.per_kv_token_bytes for charge in request.stack.charges):
            note += ", less the draft's share"
        build.carry("--hicache-size", "tiers.2.capacity_bytes", tier.capacity_bytes, lambda _: size_gb, note=note)
    build.carry("--hicache-write-policy", "tiers.2.write_policy", tier.write_policy)
    build.carry("--hicache-io-backend", "tiers.2.io_backend", tier.io_backend)
    build.carry("--hicache-mem-layout", "tiers.2.layout", tier.layout)


def _storage(build: LaunchBuilder, request: RenderRequest, tier: CacheTier) -> None:
    build.carry("--hicache-storage-backend", "tiers.3.backend", tier.backend)
    build.carry("--hicache-storage-prefetch-policy", "tiers.3.prefetch_policy", tier.prefetch_policy)
    _extra_config(build, tier)
    variable = DIRECTORIES.get(tier.backend.value or "")
    if variable is not None and tier.directory.is_set:
        build.variable(variable, tier.directory.value, setting="tiers.3.directory", **credit(tier.directory))
    if request.spec.serving.dev_endpoints and versions.has("own-variables", request.engine.version):
        build.variable(
            "SGLANG_EXPOSE_OWN_ENV_VARS", 1, source="stack", why="serving.dev_endpoints: proves the directory"
        )


def _extra_config(build: LaunchBuilder, tier: CacheTier) -> None:
    """The backend's own settings. Mooncake has no directories, but a tag that tells apart what shares a store."""
    config, key = dict(tier.extra_config.value or {}), tier.key
    flag = "--hicache-storage-backend-extra-config"
    if tier.backend.value == "mooncake" and key.is_set and MOONCAKE_TAG not in config:
        config[MOONCAKE_TAG] = key.value
        build.flag(flag, json.dumps(config, sort_keys=True), setting="tiers.3.key", **credit(key))
    elif config:
        word = json.dumps(config, sort_keys=True)
        build.flag(flag, word, setting="tiers.3.extra_config", **credit(tier.extra_config))
