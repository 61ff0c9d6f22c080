"""What is known about cache tiers beside other settings."""

from __future__ import annotations

from typing import Any

from optistack.facts.node import GIB
from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack.settings import CacheTier
from optistack_hicache.rules_guards import GUARDS
from optistack_hicache.rules_reads import READS
from optistack_hicache.sizing import host_kv, host_room

PLACES = ("file_storage_path", "root_dir", "storage_dir")
"""Keys of storage backends that say where files lie."""


def _native(context: RuleContext) -> CacheTier | None:
    tier = context.stack.tier(2)
    return tier if tier is not None and tier.backend.value == "native" else None


def _drafting(context: RuleContext) -> bool:
    return _native(context) is not None and context.stack.speculation.draft_checkpoint.is_set


def _storage(context: RuleContext) -> str | None:
    tier = context.stack.tier(3)
    return None if tier is None else tier.backend.value


def _smaller_than_device(context: RuleContext) -> str | None:
    tier, budget = _native(context), context.budget
    if tier is None or budget is None or not budget.feasible or tier.capacity_bytes.value is None:
        return None
    kv = host_kv(context.model, context.stack, context.engine, context.spec.parallel)
    tokens = kv.tokens(tier.capacity_bytes.value)
    if tokens >= budget.kv_tokens:
        return None
    copies = context.engine.backend == "sglang" and tier.write_policy.value != "write_back"
    why = "copies of what the device has, which go only after that does" if copies else "it forgets before the device"
    return f"{tokens:,} tokens of the device's {budget.kv_tokens:,}: {why}"


def _late_rank(context: RuleContext) -> str | None:
    tier = _native(context)
    room = host_room(context.node, context.engine, context.spec.parallel)
    if tier is None or tier.capacity_bytes.value is None or not room.late_rank:
        return None
    largest = room.largest_bytes(host_kv(context.model, context.stack, context.engine, context.spec.parallel))
    asked = tier.capacity_bytes.value
    return f"{asked / GIB:.0f} GiB, at most {largest // GIB}" if asked > largest else None


def _direct(context: RuleContext) -> str | None:
    tier = _native(context)
    if tier is None or tier.io_backend.value != "direct":
        return None
    reasons = ["on B300"] if context.node.sm == 103 else []
    reasons += ["with a draft's pool beside the target's"] if _drafting(context) else []
    return " and ".join(reasons) or None


def _without_quota(context: RuleContext) -> bool:
    tier = context.stack.tier(3)
    return tier is not None and not tier.capacity_bytes.is_set and _keeps_a_quota(context)


def _without_limit(context: RuleContext) -> str | None:
    tier = context.stack.tier(3)
    unlimited = tier is not None and not tier.capacity_bytes.is_set and not _keeps_a_quota(context)
    return tier.backend.value if tier is not None and unlimited else None


def _keeps_a_quota(context: RuleContext) -> bool:
    return context.engine.backend == "sglang" and _storage(context) == "file"


def _quota_ignored(context: RuleContext) -> str | None:
    tier = context.stack.tier(3)
    if tier is None or not tier.capacity_bytes.is_set:
        return None
    return None if _keeps_a_quota(context) else f"the {tier.backend.value} tier"


def _file_names(context: RuleContext) -> str | None:
    tier = context.stack.tier(3)
    return tier.directory.value if tier is not None and tier.backend.value == "file" else None


def _own_place(context: RuleContext) -> str | None:
    tier = context.stack.tier(3)
    config: dict[str, Any] = (tier.extra_config.value if tier is not None else None) or {}
    return next((key for key in PLACES if key in config), None)


def _write_back_storage(context: RuleContext) -> bool:
    tier = _native(context)
    return tier is not None and tier.write_policy.value == "write_back" and _storage(context) is not None


def _prompt_only(context: RuleContext) -> bool:
    tier = _native(context)
    config: dict[str, Any] = (tier.extra_config.value if tier is not None else None) or {}
    return tier is not None and config.get("offload_prompt_only") is not False


RULES = (
    Rule(
        id="hicache-smaller-than-device",
        severity=Severity.DEGRADED,
        fires=_smaller_than_device,
        message="The host tier holds {detail}, and is of little use.",
        fix="Give it more RAM (host_gib), or leave hicache out.",
        upstream="sglang 0.5.23 mem_cache/pool_host/base.py:239, mem_cache/unified_cache/unified_tree_core.py:2366",
    ),
    Rule(
        id="hicache-sglang-late-rank",
        severity=Severity.DEGRADED,
        backends=("sglang",),
        fires=_late_rank,
        message="The host tier may fail to start, depending on which rank asks last ({detail}): SGLang divides what is "
        "free at that moment by all ranks, also by those that have theirs already.",
        fix="Ask for less, or leave host_gib out.",
        upstream="https://github.com/sgl-project/sglang/issues/38156",
        evidence=Evidence.REPORTED,
    ),
    Rule(
        id="hicache-sglang-direct-copies",
        severity=Severity.DEGRADED,
        backends=("sglang",),
        fires=_direct,
        message="Copies with io_backend direct were seen to fail {detail} (cudaMemcpyBatchAsync, invalid argument).",
        fix="Leave io_backend at auto.",
        upstream="https://github.com/sgl-project/sglang/issues/28396, https://github.com/sgl-project/sglang/issues/28528",
        evidence=Evidence.REPORTED,
    ),
    Rule(
        id="hicache-sglang-draft-after-load-back",
        severity=Severity.DEGRADED,
        backends=("sglang",),
        fires=_drafting,
        message="A draft's acceptance was seen to collapse silently after KV came back from the host (EAGLE on 0.5.15: "
        "4.49 to 1.59; lower too on 0.5.17 with disaggregation); /flush_cache brought it back.",
        fix="Watch sglang:spec_accept_length under load, and set dflash's min_acceptance_length.",
        upstream="https://github.com/sgl-project/sglang/issues/32176",
        evidence=Evidence.REPORTED,
    ),
    Rule(
        id="hicache-vllm-draft-hits",
        severity=Severity.NOTE,
        backends=("vllm",),
        fires=_drafting,
        message="vLLM's host tier was seen never to hit beside a drafter of another attention kind.",
        fix="Watch vllm:external_prefix_cache_hits_total under load; the receipt says when it has moved.",
        upstream="https://github.com/vllm-project/vllm/issues/47890",
        evidence=Evidence.REPORTED,
    ),
    Rule(
        id="hicache-vllm-prompt-only",
        severity=Severity.NOTE,
        backends=("vllm",),
        fires=_prompt_only,
        message="vLLM keeps the prompt's KV on the host and not the answer's: the next turn computes that anew.",
        fix="It matters where answers are long beside prompts; offload_prompt_only: false keeps both.",
        upstream="vllm 0.33 v1/kv_offload/base.py:730",
    ),
    Rule(
        id="hicache-storage-unbounded",
        severity=Severity.NOTE,
        fires=_without_quota,
        message="Nothing limits the size of the file tier.",
        fix="Set storage_quota_gib, or a quota of the file system.",
        upstream="sglang 0.5.23 mem_cache/storage/file/lru_file_evictor.py",
    ),
    Rule(
        id="hicache-storage-no-limit",
        severity=Severity.NOTE,
        fires=_without_limit,
        message="The engine does not limit the size of the {detail} tier.",
        fix="Run `optistack hicache gc` on files, or set a quota of the file system or the limit of the service.",
        upstream="vllm 0.33 v1/kv_offload/tiering/fs/manager.py",
    ),
    Rule(
        id="hicache-storage-quota-ignored",
        severity=Severity.SILENT,
        fires=_quota_ignored,
        message="The engine has no size limit for {detail}; storage_quota_gib is not enforced.",
        fix="Set a quota of the file system, or the limit of the storage service.",
        upstream="vllm 0.33 v1/kv_offload/tiering/fs/manager.py",
    ),
    Rule(
        id="hicache-sglang-file-names",
        severity=Severity.NOTE,
        backends=("sglang",),
        fires=_file_names,
        message="SGLang's file names carry neither KV dtype nor layout: only the folder {detail} keeps apart bytes "
        "that mean different things.",
        fix="Point no engine at it that was not started from this plan.",
        upstream="sglang 0.5.23 mem_cache/hicache_storage.py:762",
    ),
    Rule(
        id="hicache-storage-place",
        severity=Severity.ERROR,
        fires=_own_place,
        message="storage_config says where files lie ({detail}) and so goes around the folder that is named by what "
        "changes the bytes.",
        fix="Take it out and set storage_dir.",
        upstream="sglang 0.5.23 mem_cache/hicache_storage.py:733",
    ),
    Rule(
        id="hicache-write-back-storage",
        severity=Severity.DEGRADED,
        backends=("sglang",),
        fires=_write_back_storage,
        message="With write_back only what the device evicts reaches the storage tier: the prefixes that are used most "
        "may never be written, and a restart finds chains without their root.",
        fix="Use write_through.",
        upstream="https://github.com/sgl-project/sglang/pull/37172",
        evidence=Evidence.REPORTED,
    ),
    *READS,
    *GUARDS,
)
