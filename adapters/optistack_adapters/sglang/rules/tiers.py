"""The host tier, HiCache."""

from __future__ import annotations

from optistack.plugin import Domain
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang.flags.tiers import NATIVE
from optistack_adapters.sglang.rules.common import BACKENDS, on_cpu
from optistack_adapters.sglang.traits import HOST_RESERVE_BYTES

CHOICES = {
    "write_policy": ("write_back", "write_through", "write_through_selective"),
    "io_backend": ("direct", "kernel"),
    "layout": ("layer_first", "page_first", "page_first_direct", "page_first_kv_split", "page_head"),
    "prefetch_policy": ("best_effort", "wait_complete", "timeout"),
}
"""Words of the parsers of 0.5.17 to 0.5.23."""

CAPACITY_TOLERANCE = 0.03


def hicache(context: RuleContext) -> bool:
    host = context.stack.tier(2)
    return host is not None and not on_cpu(context) and (host.backend.value or NATIVE[0]) in NATIVE


def _other_host_tier(context: RuleContext) -> str | None:
    host = context.stack.tier(2)
    other = host is not None and not on_cpu(context) and not hicache(context)
    return str(host.backend.value) if host is not None and other else None


def _radix(context: RuleContext) -> bool:
    return hicache(context) and context.stack.serving.prefix_caching.value is False


def _said(context: RuleContext) -> tuple[str, str]:
    """Layout and io backend, with SGLang's own defaults for what nobody says."""
    host = context.stack.tier(2)
    layout = host.layout.value if host is not None else None
    io = host.io_backend.value if host is not None else None
    return layout or "page_first", io or "kernel"


def _direct_layout(context: RuleContext) -> bool:
    return hicache(context) and _said(context) == ("page_first_direct", "kernel")


def _direct_io(context: RuleContext) -> bool:
    return hicache(context) and _said(context) == ("page_first", "direct")


def _mooncake_layout(context: RuleContext) -> bool:
    storage = context.stack.tier(3)
    mooncake = storage is not None and storage.backend.value == "mooncake"
    return hicache(context) and mooncake and _said(context)[0] == "layer_first"


def _words(context: RuleContext) -> str | None:
    for tier in context.stack.tiers:
        for name, words in CHOICES.items():
            word = getattr(tier, name).value
            if word is not None and word not in words:
                return f"{name} {word}; there is {', '.join(words)}"
    return None


def _host_ram(context: RuleContext) -> str | None:
    host = context.stack.tier(2)
    capacity = host.capacity_bytes.value if host is not None else None
    room = context.node.host_ram_bytes - HOST_RESERVE_BYTES
    if not hicache(context) or capacity is None or capacity <= room:
        return None
    return f"{capacity / 1e9:.0f} GB are asked, and {max(0, room) / 1e9:.0f} GB are left after the reserve"


def _whole_gigabytes(context: RuleContext) -> str | None:
    host = context.stack.tier(2)
    size = context.launch.value_of("--hicache-size")
    capacity = host.capacity_bytes.value if host is not None else None
    if not size or capacity is None or context.budget is None:
        return None
    draft = sum(charge.per_kv_token_bytes for charge in context.stack.charges)
    per_token = context.budget.bytes_per_kv_token
    said = int(size) * 1e9 * context.spec.parallel.tensor * per_token / max(1, per_token - draft)
    return f"{said / 1e9:.1f} of {capacity / 1e9:.1f} GB" if said < capacity * (1 - CAPACITY_TOLERANCE) else None


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-host-tier-backend",
        severity=Severity.ERROR,
        message="SGLang's host tier is HiCache (native), not {detail}.",
        fix="Set the host tier's backend to native, or use vLLM.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:434",
        backends=BACKENDS,
        domain=Domain.CACHE,
        fires=_other_host_tier,
    ),
    Rule(
        id="sglang-hicache-needs-radix",
        severity=Severity.ERROR,
        message="HiCache extends the prefix cache, and the stack switches the prefix cache off.",
        fix="Leave serving.prefix_caching on, or leave the cache tiers out.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:393",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        domain=Domain.CACHE,
        fires=_radix,
    ),
    Rule(
        id="sglang-hicache-direct-layout",
        severity=Severity.OVERRIDE,
        message="The kernel io backend cannot copy page_first_direct: SGLang would take direct.",
        fix="Set io_backend to direct, or layout to page_first.",
        upstream="sglang 0.5.23 arg_groups/hicache_hook.py:176",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_direct_layout,
    ),
    Rule(
        id="sglang-hicache-direct-io",
        severity=Severity.OVERRIDE,
        message="The direct io backend cannot copy page_first: SGLang would take page_first_direct.",
        fix="Set layout to page_first_direct, or io_backend to kernel.",
        upstream="sglang 0.5.23 arg_groups/hicache_hook.py:189",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_direct_io,
    ),
    Rule(
        id="sglang-hicache-mooncake-layout",
        severity=Severity.OVERRIDE,
        message="Mooncake does not store layer_first pages: SGLang would take another layout.",
        fix="Set layout to page_first, or to page_first_direct with the direct io backend.",
        upstream="sglang 0.5.23 arg_groups/hicache_hook.py:200",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_mooncake_layout,
    ),
    Rule(
        id="sglang-hicache-words",
        severity=Severity.ERROR,
        message="SGLang does not know {detail}.",
        fix="Change the option of the cache plugin.",
        upstream="sglang 0.5.23 arg_groups/fields/memory.py",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        domain=Domain.CACHE,
        fires=_words,
    ),
    Rule(
        id="sglang-hicache-host-ram",
        severity=Severity.ERROR,
        message="HiCache leaves 10 GiB of host RAM alone: {detail}.",
        fix="Make the host tier smaller.",
        upstream="sglang 0.5.23 mem_cache/pool_host/base.py:252",
        backends=BACKENDS,
        domain=Domain.CACHE,
        fires=_host_ram,
    ),
    Rule(
        id="sglang-hicache-whole-gigabytes",
        severity=Severity.DEGRADED,
        message="HiCache takes whole gigabytes for each rank: {detail} are used.",
        fix="Make the host tier a multiple of 1 GB for each rank.",
        upstream="sglang 0.5.23 arg_groups/fields/memory.py (hicache_size: int)",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        fires=_whole_gigabytes,
    ),
)
