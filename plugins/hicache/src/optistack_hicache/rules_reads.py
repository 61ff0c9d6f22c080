"""Rules about what comes back from storage: how fast, and how much of it."""

from __future__ import annotations

from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_hicache.sizing import host_kv


def _slow_files(context: RuleContext) -> bool:
    """With several ranks the scheduler waits for the others in each round (managers/scheduler_components/
    request_receiver.py, broadcast_pyobj) and lets the reading thread go on."""
    tier = context.stack.tier(3)
    return tier is not None and tier.backend.value == "file" and context.spec.parallel.tensor == 1


def _room_beside_device(context: RuleContext) -> str | None:
    """What the host tier holds besides its copy of the device's KV, where that is less than the longest prompt.

    Only ``write_through``, SGLang's default, copies everything.
    """
    host, budget, prompt = context.stack.tier(2), context.budget, context.stack.serving.context_tokens.value
    if host is None or context.stack.tier(3) is None or not prompt:
        return None
    if host.write_policy.value not in (None, "write_through"):
        return None
    if host.backend.value != "native" or host.capacity_bytes.value is None or not budget.feasible:
        return None
    kv = host_kv(context.model, context.stack, context.engine, context.spec.parallel)
    room = max(0, kv.tokens(host.capacity_bytes.value) - budget.kv_tokens) // kv.groups
    return f"{room:,} tokens of a prompt of {prompt:,}" if room < prompt else None


READS = (
    Rule(
        id="hicache-sglang-file-reads",
        severity=Severity.DEGRADED,
        backends=("sglang",),
        versions="<0.5.21",
        fires=_slow_files,
        message="On one GPU this version reads a page from files in 6 to 8 ms while no batch runs, since its scheduler "
        "spins and keeps the interpreter from the thread that reads: with pages of 64 tokens about 9,000 tokens/s, on "
        "an H200 no faster than computing them again.",
        fix="Use SGLang 0.5.21 or later, or leave storage out and give the host tier more RAM.",
        upstream="sglang 0.5.17 managers/scheduler.py:3930 on_idle, 0.5.21 :4945, "
        "https://github.com/sgl-project/sglang/pull/40394",
        evidence=Evidence.OBSERVED,
    ),
    Rule(
        id="hicache-sglang-storage-room",
        severity=Severity.DEGRADED,
        backends=("sglang",),
        fires=_room_beside_device,
        message="Once the device is full at most {detail} come back from storage: the host tier keeps a copy of what "
        "is on the device, and what is read must fit beside it.",
        fix="Give the host tier room for the device's KV and the longest prompt (host_gib).",
        upstream="sglang 0.5.17 mem_cache/hiradix_cache.py:636, :1318, "
        "0.5.23 mem_cache/unified_cache/unified_tree_core.py:2367",
        evidence=Evidence.OBSERVED,
    ),
)
