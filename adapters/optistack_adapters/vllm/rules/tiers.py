"""KV tiers in host RAM and storage."""

from __future__ import annotations

from optistack.errors import nearest
from optistack.facts.node import GIB
from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.vllm.rules.reading import WITH_TARGET_STATES, is_mla, method, on_cpu
from optistack_adapters.vllm.tiers import SELECTIVE, backend_of

HOST_BACKENDS = ("native", "lmcache")
POLICIES = ("write_through", SELECTIVE)
MOONCAKE_KEYS = ("master_server_address", "metadata_server")
_WORDLESS = ("layout", "io_backend", "prefetch_policy")


def _native(context: RuleContext) -> bool:
    host = context.stack.tier(2)
    lmcache = "lmcache" in (backend_of(host), backend_of(context.stack.tier(3)))
    return host is not None and not lmcache and not on_cpu(context)


def _host_backend(context: RuleContext) -> str | None:
    word = backend_of(context.stack.tier(2))
    return None if word is None or word in HOST_BACKENDS else f"{word}. {nearest(word, HOST_BACKENDS)}"


def _storage(context: RuleContext) -> str | None:
    word, known = backend_of(context.stack.tier(3)), context.engine.trait("storage_backends", ())
    if word is None or word in known or on_cpu(context):
        return None
    return f"{word}. {nearest(word, known)}"


def _no_size(context: RuleContext) -> bool:
    host = context.stack.tier(2)
    return _native(context) and host is not None and not host.capacity_bytes.value


def _no_directory(context: RuleContext) -> bool:
    storage = context.stack.tier(3)
    return storage is not None and backend_of(storage) == "file" and not storage.directory.value


def _policy(context: RuleContext) -> str | None:
    for tier in context.stack.tiers:
        word = tier.write_policy.value
        if word is not None and word not in POLICIES:
            return word
    return None


def _selective_storage(context: RuleContext) -> bool:
    host, storage = context.stack.tier(2), context.stack.tier(3)
    return storage is not None and host is not None and host.write_policy.value == SELECTIVE and _native(context)


def _wordless(context: RuleContext) -> str | None:
    found = [
        f"tiers.{tier.level}.{name}" for tier in context.stack.tiers for name in _WORDLESS if getattr(tier, name).is_set
    ]
    return ", ".join(found) or None


def _copies(context: RuleContext) -> str | None:
    ranks = context.spec.parallel.tensor // context.spec.parallel.attention_data
    if not (_native(context) and is_mla(context) and ranks > 1):
        return None
    drafted = method(context) in WITH_TARGET_STATES and method(context) != "mtp"
    if context.engine.trait("host_kv_copies") == "shared" and not drafted:
        return None
    why = "the draft's KV is divided over them" if drafted else "this version always does"
    return f"{ranks} ranks, {why}"


def _mooncake(context: RuleContext) -> str | None:
    storage = context.stack.tier(3)
    if storage is None or backend_of(storage) != "mooncake":
        return None
    given = storage.extra_config.value or {}
    return ", ".join(key for key in MOONCAKE_KEYS if key not in given) or None


def _lmcache(context: RuleContext) -> bool:
    return "lmcache" in (backend_of(context.stack.tier(2)), backend_of(context.stack.tier(3)))


def _in_shm(context: RuleContext) -> bool:
    return _native(context) and context.engine.host_tier_in_shm(backend_of(context.stack.tier(3)))


def _shm_half(context: RuleContext) -> str | None:
    host, half = context.stack.tier(2), context.node.host_ram_bytes / 2
    size = (host.capacity_bytes.value or 0) if host is not None else 0
    return f"the tier {size / GIB:.0f} GiB, the half {half / GIB:.0f}" if _in_shm(context) and size > half else None


def _tiering_mtp(context: RuleContext) -> bool:
    return context.stack.tier(3) is not None and method(context) in WITH_TARGET_STATES and _native(context)


TIER_RULES: tuple[Rule, ...] = (
    Rule(
        id="vllm-host-backend",
        severity=Severity.ERROR,
        message="vLLM has no such host tier: {detail}",
        fix="Use native.",
        upstream="vllm 0.33 config/cache.py KVOffloadingBackend",
        fires=_host_backend,
        backends=("vllm",),
        domain=Domain.CACHE,
    ),
    Rule(
        id="vllm-storage-backend",
        severity=Severity.ERROR,
        message="The adapter knows no such storage tier for vLLM: {detail}",
        fix="Use file.",
        upstream="vllm 0.33 v1/kv_offload/tiering/factory.py",
        fires=_storage,
        backends=("vllm",),
        domain=Domain.CACHE,
    ),
    Rule(
        id="vllm-host-size",
        severity=Severity.ERROR,
        message="vLLM's host tier needs a size.",
        fix="Give the cache plugin a size for the host tier.",
        upstream="vllm 0.33 v1/kv_offload/cpu/spec.py: cpu_bytes_to_use",
        fires=_no_size,
        backends=("vllm",),
        domain=Domain.CACHE,
    ),
    Rule(
        id="vllm-storage-directory",
        severity=Severity.ERROR,
        message="vLLM's file tier needs a directory.",
        fix="Give the cache plugin a directory.",
        upstream="vllm 0.33 v1/kv_offload/tiering/fs/manager.py: root_dir",
        fires=_no_directory,
        backends=("vllm",),
        domain=Domain.CACHE,
    ),
    Rule(
        id="vllm-write-policy",
        severity=Severity.ERROR,
        message="vLLM writes KV to the host tier when it is computed, all of it or from the second use on; it has no "
        "{detail}.",
        fix="Use write_through or write_through_selective.",
        upstream="vllm 0.33 v1/kv_offload/cpu/spec.py: store_threshold",
        fires=_policy,
        backends=("vllm",),
        domain=Domain.CACHE,
    ),
    Rule(
        id="vllm-selective-storage",
        severity=Severity.ERROR,
        message="vLLM refuses to write selectively to the host tier when there is a storage tier below it.",
        fix="Use write_through, or leave the storage tier out.",
        upstream="vllm 0.33 v1/kv_offload/tiering/spec.py: store_threshold",
        fires=_selective_storage,
        backends=("vllm",),
        domain=Domain.CACHE,
    ),
    Rule(
        id="vllm-tier-words",
        severity=Severity.SILENT,
        message="vLLM has no words for {detail}; they are not passed on.",
        fix="Leave them out for vLLM.",
        upstream="vllm 0.33 distributed/kv_transfer/kv_connector/v1/offloading_connector.py",
        fires=_wordless,
        backends=("vllm",),
        domain=Domain.CACHE,
    ),
    Rule(
        id="vllm-host-copies",
        severity=Severity.DEGRADED,
        message="Every rank keeps a copy of the same MLA KV in host RAM ({detail}), so the tier holds that much less.",
        fix="Size the host tier by it; vLLM from 0.32 on keeps one copy when all KV is replicated over the ranks.",
        upstream="vllm 0.33 distributed/kv_transfer/kv_connector/v1/offloading/config.py replicated_layout",
        fires=_copies,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-mooncake-addresses",
        severity=Severity.ERROR,
        message="The Mooncake store cannot be found without {detail}.",
        fix="Put them into the cache plugin's option storage_config.",
        upstream="vllm 0.33 distributed/mooncake_store.py",
        fires=_mooncake,
        backends=("vllm",),
        domain=Domain.CACHE,
    ),
    Rule(
        id="vllm-lmcache-server",
        severity=Severity.NOTE,
        message="LMCache runs as a server of its own, by default at tcp://localhost:5555, and the sizes of both tiers "
        "are that server's; vLLM does not pass them on, and does not start without the package lmcache beside it.",
        fix="Install lmcache in the engine's environment, start the LMCache server first and give it the sizes.",
        upstream="vllm 0.33 config/vllm.py:1176",
        fires=_lmcache,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-host-memory-0.26",
        severity=Severity.DEGRADED,
        message="vLLM 0.26 was seen to take 1.92 times the host RAM that it is told to.",
        fix="Halve the host tier, or use a newer vLLM.",
        upstream="https://github.com/vllm-project/vllm/issues/53042",
        fires=_native,
        evidence=Evidence.REPORTED,
        backends=("vllm",),
        versions="<0.27",
    ),
    Rule(
        id="vllm-host-shm",
        severity=Severity.NOTE,
        message="vLLM keeps the host tier in /dev/shm: half of the RAM on most hosts, 64 MB in a container.",
        fix="Make it larger than the tier: mount -o remount,size=... /dev/shm, or the container's --shm-size.",
        upstream="vllm 0.33 v1/kv_offload/cpu/shared_offload_region.py",
        fires=_in_shm,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-host-shm-half",
        severity=Severity.DEGRADED,
        message="vLLM does not start where /dev/shm is smaller than the host tier, and on most hosts it is half of the "
        "RAM ({detail}).",
        fix="Make /dev/shm larger than the tier before the start (mount -o remount,size=... /dev/shm), or the tier "
        "smaller.",
        upstream="vllm 0.33 v1/kv_offload/cpu/shared_offload_region.py, "
        "distributed/device_communicators/shm_broadcast.py check_shm_free_space",
        fires=_shm_half,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-storage-drafts-0.26",
        severity=Severity.DEGRADED,
        message="vLLM 0.26 was seen to crash with a storage tier and an MTP drafter together.",
        fix="Use a newer vLLM, or leave the storage tier out.",
        upstream="https://github.com/vllm-project/vllm/issues/55503",
        fires=_tiering_mtp,
        evidence=Evidence.REPORTED,
        backends=("vllm",),
        versions="<0.27",
    ),
)
