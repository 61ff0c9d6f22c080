"""What the plugin asks of the engine, and why."""

from __future__ import annotations

import math
from typing import Any

from optistack.context import PlanContext
from optistack.errors import InputError, PlanRefusedError
from optistack.facts.node import GIB
from optistack.settings import CacheTier, MemoryCharge, Serving, Value, choose, suggest
from optistack_hicache.key import storage_key
from optistack_hicache.options import HiCacheOptions
from optistack_hicache.sizing import DEFAULT_FRACTION, HostKV, HostRoom, host_kv, host_room

STORAGE_OPTIONS = ("storage_dir", "storage_tag", "storage_quota_gib", "storage_config", "prefetch_policy")
NEEDS_DIRECTORY = ("file", "nixl")
LAYOUT_OF = {"kernel": "page_first", "direct": "page_first_direct"}
IO_OF = {"layer_first": "kernel", "page_first": "kernel", "page_first_direct": "direct"}
"""Pairs that SGLang does not rewrite (sglang 0.5.23 arg_groups/hicache_hook.py:176)."""


def decide(ctx: PlanContext) -> list[CacheTier]:
    """The host tier and, where one is asked for, the storage tier below it.

    Raises PlanRefusedError, with the numbers, when the host tier does not fit into the replica's RAM.
    """
    options: HiCacheOptions = ctx.options
    if options.host_gib is not None and options.host_fraction is not None:
        raise InputError("hicache is given both host_gib and host_fraction.", fix="Give one of them.")
    storage = "file" if options.storage == "fs" else options.storage
    _refuse_unused(options, storage)
    layout, io_backend = _copying(ctx, options)
    tiers = [_host(ctx, options, storage, layout, io_backend)]
    if storage not in ("none", "lmcache"):
        tiers.append(_storage(ctx, options, storage, layout.value))
    return tiers


def _refuse_unused(options: HiCacheOptions, storage: str) -> None:
    if storage not in ("none", "lmcache"):
        return
    names = [name for name in STORAGE_OPTIONS if getattr(options, name)]
    if names:
        why = "there is no storage tier" if storage == "none" else "the LMCache server has its settings of its own"
        raise InputError(
            f"hicache: {', '.join(names)} would do nothing: {why}.",
            fix="Set the option storage, such as file, or take the others out.",
        )


def _host(
    ctx: PlanContext, options: HiCacheOptions, storage: str, layout: Value[str], io_backend: Value[str]
) -> CacheTier:
    kv = host_kv(ctx.model, ctx.so_far, ctx.engine, ctx.parallel)
    room = host_room(ctx.node, ctx.engine, ctx.parallel)
    # An engine that has no host tier here is the adapter's to refuse; the size is then beside the point.
    possible = ctx.engine.trait("host_tier", True)
    shm = storage != "lmcache" and ctx.engine.host_tier_in_shm(storage)
    capacity = _capacity(options, room, kv, shm=shm) if possible else Value(value=GIB, why="nominal")
    size = capacity.value or 0
    charge = MemoryCharge(
        what="host KV tier",
        host_bytes=round(size * room.overhead),
        why=f"{kv.tokens(size):,} tokens of {kv.bytes_per_token:,} bytes over {kv.ranks} ranks"
        + (f", times {room.overhead:g} for this version's rounding" if room.overhead > 1 else ""),
        reference="https://github.com/vllm-project/vllm/issues/53042" if room.overhead > 1 else "",
    )
    return CacheTier(
        level=2,
        backend=choose("lmcache", why="option storage: LMCache holds both tiers")
        if storage == "lmcache"
        else choose("native", why="the engine's own host tier"),
        capacity_bytes=capacity,
        write_policy=choose(options.write_policy, why="option write_policy"),
        layout=layout,
        io_backend=io_backend,
        charges=(charge,) if possible else (),
        serving=Serving(prefix_caching=choose(True, why="cache tiers hold what the prefix cache finds")),
    )


def _capacity(options: HiCacheOptions, room: HostRoom, kv: HostKV, *, shm: bool) -> Value[int]:
    reference = (
        "sglang 0.5.23 mem_cache/pool_host/base.py:86, https://github.com/sgl-project/sglang/issues/38156"
        if room.late_rank
        else ""
    )
    if options.host_gib is not None:
        asked = room.rounded(round(options.host_gib * GIB), kv)
        if asked * room.overhead > room.usable_bytes:
            times = f", taken {room.overhead:g} times by this version," if room.overhead > 1 else ""
            raise PlanRefusedError(
                f"A host tier of {options.host_gib:g} GiB{times} does not fit into {room.usable_bytes / GIB:.0f} GiB: "
                f"{room.describe()}.",
                fix=f"Ask for at most {room.largest_bytes(kv) // GIB} GiB."
                if room.largest_bytes(kv) > GIB
                else "Leave hicache out, or use a host with more RAM.",
            )
        why = "option host_gib"
    else:
        fraction = DEFAULT_FRACTION if options.host_fraction is None else options.host_fraction
        by_fraction = int(fraction * room.usable_bytes / room.overhead)
        asked = room.rounded(min(by_fraction, room.largest_bytes(kv)), kv)
        why = f"{fraction:.0%} of {room.describe()}"
        if shm and options.host_fraction is None and asked > room.shm_bytes:
            asked = room.shm_bytes
            why = (
                f"half of {room.describe()}: this engine keeps the tier in /dev/shm, which on most hosts is half of "
                "the RAM"
            )
            reference = "vllm 0.33 v1/kv_offload/cpu/shared_offload_region.py"
        if room.largest_bytes(kv) < by_fraction:
            why += (
                ", lowered so that SGLang starts: each rank checks the RAM that is free when it asks, and the last one "
                "finds the others' pools taken already"
            )
    least = room.smallest_bytes(kv)
    if asked < least <= room.largest_bytes(kv):
        gib = math.ceil(1000 * least / GIB) / 1000
        raise PlanRefusedError(
            "The host tier is too small"
            + (
                f": SGLang takes whole GB, at least 1 GB on each of {room.ranks} ranks."
                if room.whole_gb
                else " for a token."
            ),
            fix=f"Give a host_gib of at least {gib:g}, or leave the size to the plugin.",
        )
    if asked < least:
        raise PlanRefusedError(
            f"There is no room for a host tier: {room.describe()}"
            + (f", and SGLang takes at least 1 GB on each of {room.ranks} ranks." if room.whole_gb else "."),
            fix="Leave hicache out, or use a host with more RAM.",
        )
    why = f"{why}; holds {kv.tokens(asked):,} tokens"
    return Value(
        value=asked,
        default=options.host_gib is None,
        why=why,
        reference=reference,
    )


def _copying(ctx: PlanContext, options: HiCacheOptions) -> tuple[Value[str], Value[str]]:
    """Layout and io backend. SGLang has several of each, not all of which go together; vLLM has no choice."""
    io_backend: str | None = None if options.io_backend == "auto" else options.io_backend
    if ctx.engine.backend != "sglang":
        return (
            choose(options.layout, why="option layout") if options.layout else Value(),
            choose(io_backend, why="option io_backend") if io_backend else Value(),
        )
    reference = "sglang 0.5.23 arg_groups/hicache_hook.py:176"
    io: Value[str]
    if io_backend is not None:
        io = choose(io_backend, why="option io_backend")
    elif options.layout is not None:
        word = IO_OF.get(options.layout, "kernel")
        io = suggest(word, why=f"what copies {options.layout}", reference=reference)
    else:
        io = suggest(
            "kernel",
            why="DMA copies (direct) failed on B300 and with a draft's pool beside the target's",
            reference="https://github.com/sgl-project/sglang/issues/28396, "
            "https://github.com/sgl-project/sglang/issues/31252",
        )
    if options.layout is not None:
        return choose(options.layout, why="option layout"), io
    return suggest(
        LAYOUT_OF[io.value or "kernel"], why=f"what the io backend {io.value} copies", reference=reference
    ), io


def _storage(ctx: PlanContext, options: HiCacheOptions, storage: str, layout: str | None) -> CacheTier:
    if storage in NEEDS_DIRECTORY and options.storage_dir is None:
        raise InputError(f"hicache: storage {storage} needs a folder.", fix="Set the option storage_dir.")
    known = tuple(ctx.engine.trait("storage_backends", ()))
    key = storage_key(ctx, layout)
    tier: dict[str, Value[Any]] = {
        "backend": Value(value=storage, one_of=known, why=f"option storage; {_worth_it(ctx)}"),
        "key": choose(key, why="model, KV dtype, page size, layout, parallelism, draft and engine version"),
    }
    if options.storage_dir is not None:
        tier["directory"] = choose(
            f"{options.storage_dir.rstrip('/')}/{key}",
            why="option storage_dir, and in it a folder for exactly these bytes",
            reference="sglang 0.5.23 mem_cache/hicache_storage.py:762",
        )
    if options.storage_quota_gib is not None:
        tier["capacity_bytes"] = choose(round(options.storage_quota_gib * GIB), why="option storage_quota_gib")
    config = {**_quota(ctx, options, storage), **options.storage_config}
    if config:
        tier["extra_config"] = choose(config, why="options storage_config and storage_quota_gib")
    if options.prefetch_policy is not None:
        tier["prefetch_policy"] = choose(options.prefetch_policy, why="option prefetch_policy")
    elif ctx.engine.backend == "sglang":
        tier["prefetch_policy"] = suggest(
            "timeout", why="a long prefix is worth a wait, and slow storage must not stop a request"
        )
    return CacheTier(level=3, **tier)


def _worth_it(ctx: PlanContext) -> str:
    """What storage must read for a prefix to come sooner from it than computed anew: bytes of a token in storage, times
    the tokens that the engine computes a second, which no plan knows."""
    kv = host_kv(ctx.model, ctx.so_far, ctx.engine, ctx.parallel)
    each = _stored_bytes(ctx, kv) / kv.groups if ctx.engine.backend == "sglang" else kv.bytes_per_token
    needed = f"{each / 1000:,.0f} MB/s for every 1,000 tokens/s"
    return f"it pays where a request reads more than {needed} that the engine would compute"


def _stored_bytes(ctx: PlanContext, kv: HostKV) -> int:
    """Bytes that SGLang's file tier writes for a token in each of its attention groups: of MLA the first rank of each
    group writes everything, of a draft each its part."""
    writers = kv.groups if ctx.model.attention.kind == "mla" else kv.ranks
    return writers * kv.target_bytes + kv.ranks * kv.draft_bytes


def _quota(ctx: PlanContext, options: HiCacheOptions, storage: str) -> dict[str, int]:
    """SGLang's file tier limits each rank by itself and knows nothing of what others have written since its start, in
    another attention group or replica on the same folder (sglang 0.5.17 to 0.5.23
    mem_cache/storage/file/lru_file_evictor.py, where ``tp_rank`` is the rank in its group:
    managers/cache_controller.py, ``_generate_storage_config``)."""
    if options.storage_quota_gib is None or ctx.engine.backend != "sglang" or storage != "file":
        return {}
    kv = host_kv(ctx.model, ctx.so_far, ctx.engine, ctx.parallel)
    stored = _stored_bytes(ctx, kv) * ctx.parallel.replicas
    return {"max_size": int(options.storage_quota_gib * GIB * (kv.target_bytes + kv.draft_bytes) / stored)}
