"""HiCache together with the flags of other caches and modes."""

from __future__ import annotations

from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.sglang.rules.common import BACKENDS, attention_backends, drafting, is_mla, number, said

UNIFIED_DFLASH = ("fa3", "flashinfer", "triton", "trtllm_mha")


def _on(context: RuleContext) -> bool:
    return context.launch.has("--enable-hierarchical-cache") or context.launch.has("--enable-hicache")


def _buffer(context: RuleContext) -> bool:
    return _on(context) and said(context, "--hicache-host-memory-mode") == "buffer_only"


def _buffer_storage(context: RuleContext) -> bool:
    return _buffer(context) and not context.launch.has("--hicache-storage-backend")


def _buffer_write_back(context: RuleContext) -> bool:
    storage = context.launch.has("--hicache-storage-backend")
    return _buffer(context) and storage and said(context, "--hicache-write-policy") == "write_back"


def _fraction_ignored(context: RuleContext) -> str | None:
    sized = [flag for flag in ("--hicache-size", "--hicache-ratio") if context.launch.has(flag)]
    return sized[0] if _on(context) and sized and context.launch.has("--hicache-host-memory-fraction") else None


def _ratio_ignored(context: RuleContext) -> bool:
    launch = context.launch
    return _on(context) and launch.has("--hicache-ratio") and (number(context, "--hicache-size") or 0) > 0


def _lmcache(context: RuleContext) -> bool:
    return _on(context) and context.launch.has("--enable-lmcache")


def _lmcache_drafts(context: RuleContext) -> bool:
    return context.launch.has("--enable-lmcache") and drafting(context)


def _linker(context: RuleContext) -> bool:
    return _on(context) and context.launch.has("--enable-unified-cache-external-linker")


def _context_parallel(context: RuleContext) -> bool:
    return _on(context) and (number(context, "--dcp-size", "--decode-context-parallel-size") or 1) > 1


def _context_parallel_drafts(context: RuleContext) -> bool:
    return _context_parallel(context) and drafting(context) and not drafting(context, "dspark")


def _context_parallel_model(context: RuleContext) -> bool:
    return _context_parallel(context) and not is_mla(context)


def _unified(context: RuleContext) -> bool:
    return context.launch.has("--enable-unified-memory")


def _unified_layout(context: RuleContext) -> bool:
    return _unified(context) and _on(context) and said(context, "--hicache-mem-layout") == "page_first_direct"


def _unified_eagle(context: RuleContext) -> bool:
    hybrid = bool(context.model.attention.uncounted) and not _on(context)
    return _unified(context) and drafting(context, "eagle", "eagle3", "nextn") and not hybrid


def _unified_dflash(context: RuleContext) -> str | None:
    others = [backend for backend in attention_backends(context) if backend not in UNIFIED_DFLASH]
    return others[0] if _unified(context) and drafting(context, "dflash") and others else None


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-hicache-buffer-storage",
        severity=Severity.ERROR,
        message="In buffer_only mode everything lies in the storage tier, and the stack has none.",
        fix="Add a storage tier, or take --hicache-host-memory-mode out.",
        upstream="sglang 0.5.23 arg_groups/hicache_hook.py:273",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.20",
        fires=_buffer_storage,
    ),
    Rule(
        id="sglang-hicache-buffer-write-back",
        severity=Severity.OVERRIDE,
        message="In buffer_only mode SGLang would take write_through instead of write_back.",
        fix="Set the host tier's write_policy to write_through.",
        upstream="sglang 0.5.23 arg_groups/hicache_hook.py:279",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.20",
        fires=_buffer_write_back,
    ),
    Rule(
        id="sglang-hicache-fraction-ignored",
        severity=Severity.SILENT,
        message="--hicache-host-memory-fraction sizes a host tier that has no size; {detail} outranks it.",
        fix="Take one of the two out.",
        upstream="sglang 0.5.23 arg_groups/hicache_hook.py:126",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.22",
        fires=_fraction_ignored,
    ),
    Rule(
        id="sglang-hicache-ratio-ignored",
        severity=Severity.SILENT,
        message="SGLang ignores --hicache-ratio where the host tier has a size.",
        fix="Take --hicache-ratio out of engine_args.",
        upstream="sglang 0.5.23 mem_cache/pool_host/base.py:220",
        backends=BACKENDS,
        fires=_ratio_ignored,
    ),
    Rule(
        id="sglang-hicache-lmcache",
        severity=Severity.ERROR,
        message="HiCache and LMCache exclude each other.",
        fix="Take --enable-lmcache out of engine_args, or leave the cache tiers out.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:434",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.21",
        fires=_lmcache,
    ),
    Rule(
        id="sglang-lmcache-speculation",
        severity=Severity.ERROR,
        message="SGLang's LMCache has no speculative decoding.",
        fix="Take --enable-lmcache out of engine_args, or leave speculation out.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:449",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.23",
        fires=_lmcache_drafts,
    ),
    Rule(
        id="sglang-hicache-external-linker",
        severity=Severity.ERROR,
        message="HiCache and the external cache linker exclude each other.",
        fix="Take --enable-unified-cache-external-linker out of engine_args, or leave the cache tiers out.",
        upstream="sglang 0.5.23 arg_groups/hicache_hook.py:51",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.21",
        fires=_linker,
    ),
    Rule(
        id="sglang-hicache-context-parallel-drafts",
        severity=Severity.ERROR,
        message="Under decode context parallelism HiCache goes with DSPARK drafts only.",
        fix="Take --dcp-size out of engine_args, or leave the drafter or the cache tiers out.",
        upstream="sglang 0.5.23 arg_groups/hicache_hook.py:141",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.21",
        fires=_context_parallel_drafts,
    ),
    Rule(
        id="sglang-hicache-context-parallel-model",
        severity=Severity.ERROR,
        message="Under decode context parallelism HiCache is for MLA models only.",
        fix="Take --dcp-size out of engine_args, or leave the cache tiers out.",
        upstream="sglang 0.5.23 arg_groups/hicache_hook.py:157",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.21",
        fires=_context_parallel_model,
    ),
    Rule(
        id="sglang-hicache-unified-memory-layout",
        severity=Severity.OVERRIDE,
        message="With --enable-unified-memory SGLang would take page_first and kernel instead of page_first_direct.",
        fix="Set the host tier's layout to page_first and its io_backend to kernel.",
        upstream="sglang 0.5.23 arg_groups/hicache_hook.py:229",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.23",
        fires=_unified_layout,
    ),
    Rule(
        id="sglang-unified-memory-eagle",
        severity=Severity.ERROR,
        message="With --enable-unified-memory EAGLE needs a model that mixes kinds of attention, and no HiCache.",
        fix="Take --enable-unified-memory out of engine_args.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:611, :678",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.23",
        fires=_unified_eagle,
    ),
    Rule(
        id="sglang-unified-memory-dflash",
        severity=Severity.ERROR,
        message="With --enable-unified-memory DFlash's drafts are not verified by {detail}.",
        fix=f"Take --enable-unified-memory out of engine_args, or use one of {', '.join(UNIFIED_DFLASH)}.",
        upstream="sglang 0.5.23 arg_groups/kv_cache_hook.py:646",
        evidence=Evidence.OBSERVED,
        backends=BACKENDS,
        versions=">=0.5.23",
        fires=_unified_dflash,
    ),
)
