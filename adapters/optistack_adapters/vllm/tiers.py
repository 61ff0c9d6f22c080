"""Flags for KV tiers below the GPU.

A host tier alone is ``--kv-offloading-size`` (GiB over all ranks of an engine). Anything more is
``--kv-transfer-config``; the two are never given together, since the former silently replaces the latter's connector
(vllm 0.33 config/vllm.py:1151).

With data parallelism every attention group is an engine of its own, which takes the size that is given for itself
(v1/kv_offload/cpu/spec.py knows nothing of the others): each is told its part of the replica's tier.
"""

from __future__ import annotations

import json
import math
from typing import Any

from optistack.facts.node import GIB
from optistack.launch import FOLDER, RUN
from optistack.settings import CacheTier
from optistack.settings.resolved import ResolvedStack
from optistack_adapters.base import LaunchBuilder, credit
from optistack_adapters.vllm.credits import joint_credit

SELECTIVE = "write_through_selective"
STORE_AFTER = 2
"""Offers of a block before it is kept; below 2 vLLM filters nothing (v1/kv_offload/cpu/spec.py)."""

MOONCAKE_FILE = "mooncake.json"
_BOTH = {"kv_role": "kv_both"}


def add_tiers(builder: LaunchBuilder, stack: ResolvedStack, groups: int = 1) -> None:
    """``groups`` attention groups of the replica share its tier evenly."""
    host, storage = stack.tier(2), stack.tier(3)
    if host is None:
        return
    size_bytes = (host.capacity_bytes.value or 0) // groups
    if "lmcache" in (backend_of(host), backend_of(storage)):
        _add_lmcache(builder, host, storage)
    elif backend_of(storage) == "mooncake" and storage is not None:
        _add_mooncake(builder, host, storage, size_bytes)
    elif storage is not None or _special(host):
        _add_transfer(builder, native_connector(host, storage, size_bytes), host, storage)
        if storage is not None:
            _add_hash_seed(builder)
    else:
        builder.flag(
            "--kv-offloading-size",
            gib_word(size_bytes),
            setting="tiers.2.capacity_bytes",
            **credit(host.capacity_bytes),
        )
        builder.flag("--kv-offloading-backend", "native", setting="tiers.2.backend", **_credit_of(host))


def backend_of(tier: CacheTier | None) -> str | None:
    """The tier's backend; ``native`` when nobody named one, None without a tier."""
    return None if tier is None else tier.backend.value or "native"


def gib_word(size_bytes: int) -> str:
    """``size_bytes`` in GiB, rounded down to three decimals."""
    return f"{math.floor(1000 * size_bytes / GIB) / 1000:.3f}".rstrip("0").rstrip(".")


def native_connector(host: CacheTier, storage: CacheTier | None, size_bytes: int) -> dict[str, Any]:
    """vLLM's own connector: ``size_bytes`` of host RAM, and below it files when there is a storage tier.

    vLLM tells folders apart by model path and KV dtype, not by layout, scales or content of the checkpoint
    (v1/kv_offload/file_mapper.py), so the tier's directory has to be one for exactly these bytes.

    With files below it the host tier is one in /dev/shm, called by the engine's id, which a vLLM that is killed leaves
    there (v1/kv_offload/tiering/spec.py, from 0.26 to 0.33); by our id for it the file is found and removed.
    """
    extra: dict[str, Any] = {"cpu_bytes_to_use": size_bytes}
    if host.write_policy.value == SELECTIVE:
        extra["store_threshold"] = STORE_AFTER
    extra.update(host.extra_config.value or {})
    connector: dict[str, Any] = {"kv_connector": "OffloadingConnector", **_BOTH}
    if storage is not None:
        connector["engine_id"] = RUN
        extra["spec_name"] = "TieringOffloadingSpec"
        extra["secondary_tiers"] = [
            {"type": "fs", "root_dir": storage.directory.value, **(storage.extra_config.value or {})}
        ]
    return {**connector, "kv_connector_extra_config": extra}


def _special(host: CacheTier) -> bool:
    return host.write_policy.value == SELECTIVE or bool(host.extra_config.value)


def _add_transfer(
    builder: LaunchBuilder, connector: dict[str, Any], host: CacheTier, storage: CacheTier | None
) -> None:
    names = ("backend", "capacity_bytes", "write_policy", "directory", "key", "extra_config")
    tiers = [tier for tier in (host, storage) if tier is not None]
    parts = {
        f"tiers.{tier.level}.{name}": value for tier in tiers for name in names if (value := getattr(tier, name)).is_set
    }
    builder.flag("--kv-transfer-config", json.dumps(connector), setting="tiers", **joint_credit(parts))


def _add_hash_seed(builder: LaunchBuilder) -> None:
    builder.variable(
        "PYTHONHASHSEED",
        0,
        source="vllm",
        why="block names start from it; equal in every process that shares the storage, and after a restart",
        reference="vllm 0.33 v1/kv_offload/tiering/fs/manager.py",
    )


def _add_mooncake(builder: LaunchBuilder, host: CacheTier, storage: CacheTier, size_bytes: int) -> None:
    native = native_connector(host, None, size_bytes)
    connector = {
        "kv_connector": "MultiConnector",
        **_BOTH,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": [native, {"kv_connector": "MooncakeStoreConnector", **_BOTH}]},
    }
    _add_transfer(builder, connector, host, storage)
    part = _credit_of(storage)
    settings = json.dumps(storage.extra_config.value or {}, indent=2, sort_keys=True)
    builder.file(MOONCAKE_FILE, settings, setting="tiers.3.extra_config", **part)
    builder.variable(
        "MOONCAKE_CONFIG_PATH", f"{FOLDER}/{MOONCAKE_FILE}", source="vllm", why="where the Mooncake store is described"
    )
    _add_hash_seed(builder)


def _add_lmcache(builder: LaunchBuilder, host: CacheTier, storage: CacheTier | None) -> None:
    """LMCache runs as a server of its own, which holds both tiers; vLLM only connects to it."""
    extra = dict(host.extra_config.value or {})
    if storage is not None:
        extra.update(storage.extra_config.value or {})
    connector: dict[str, Any] = {"kv_connector": "LMCacheMPConnector", **_BOTH}
    if extra:
        connector["kv_connector_extra_config"] = extra
    _add_transfer(builder, connector, host, storage)
    builder.flag(
        "--disable-hybrid-kv-cache-manager",
        source="vllm",
        why="the LMCache connector has one block table; vLLM would switch it off by itself",
        reference="vllm 0.33 config/vllm.py:2267",
    )
    _add_hash_seed(builder)


def _credit_of(tier: CacheTier) -> dict[str, str]:
    value = tier.backend if tier.backend.is_set else tier.capacity_bytes
    return credit(value)
