"""What a draft costs in device memory: weights, its own KV, and the target's hidden states that it reads.

With attention groups each of them has a whole draft, divided over its own GPUs (sglang 0.5.23
speculative/dflash_worker_v2.py:418; in vLLM a group is an engine of its own).
"""

from __future__ import annotations

from optistack.context import PlanContext
from optistack.memory.kv import attention_ranks, bytes_per_token
from optistack.memory.weights import Placement, weight_bytes
from optistack.settings import MemoryCharge
from optistack_dflash.draft import Draft

ASSUMED_PREFILL_TOKENS = 8192
ASSUMED_COPIES = 2


def charges(ctx: PlanContext, draft: Draft) -> tuple[MemoryCharge, ...]:
    """The memory charges of ``draft``, for each GPU of a replica."""
    return (_weights(ctx, draft), *_embedding(ctx), _kv(ctx, draft), _hidden_states(ctx, draft))


def draft_kv_dtype(ctx: PlanContext, draft: Draft) -> str:
    """The dtype that the draft's KV will have: its own setting, else the target's, which both engines pass on to it."""
    return ctx.so_far.kv.draft_dtype.value or ctx.so_far.kv.dtype.value or draft.facts.dtype


def ranks_of(ctx: PlanContext) -> int:
    """GPUs that a draft is divided over."""
    return attention_ranks(ctx.parallel.tensor, ctx.parallel.attention_data)


def _weights(ctx: PlanContext, draft: Draft) -> MemoryCharge:
    ranks = ranks_of(ctx)
    whole = sum(part.bytes for part in draft.facts.components if part.replicated)
    held = f"{draft.facts.weight_bytes / 1e9:.2f} GB"
    if ranks > 1:
        held += f"; {whole / 1e9:.2f} GB of it, the projection of the captured states and the norms, is whole on each "
        held += f"of {ranks} ranks"
    return MemoryCharge(
        what="draft weights",
        per_gpu_bytes=weight_bytes(draft.facts, Placement(tensor_parallel=ranks)),
        weights=True,
        why=held,
        reference=str(draft.facts.config_file),
    )


def _embedding(ctx: PlanContext) -> tuple[MemoryCharge, ...]:
    """SGLang's draft has the target's whole embedding on every GPU where it is divided within a group, since other
    groups can be idle when this one drafts."""
    groups, ranks = ctx.parallel.attention_data, ranks_of(ctx)
    if ctx.engine.backend != "sglang" or groups == 1 or ranks == 1:
        return ()
    charge = MemoryCharge(
        what="draft embedding",
        per_gpu_bytes=sum(part.bytes for part in ctx.model.parts("embeddings")),
        why=f"the target's, whole beside the part that each of {ranks} ranks of a group has",
        reference="sglang 0.5.23 speculative/dflash_dp.py gather_draft_embedding",
    )
    return (charge,)


def _kv(ctx: PlanContext, draft: Draft) -> MemoryCharge:
    dtype = draft_kv_dtype(ctx, draft)
    attention, ranks = draft.facts.attention, ranks_of(ctx)
    over = f" over {ranks} ranks" if ranks > 1 else ""
    return MemoryCharge(
        what="draft KV",
        per_kv_token_bytes=bytes_per_token(draft.facts, dtype, ranks),
        why=f"{draft.facts.layers} layers of {attention.kv_heads} KV heads{over} in {dtype}; the draft's "
        "pool has a slot for every token of the target's, window or not",
        reference="sglang 0.5.23 mem_cache/draft_kv_budget.py",
    )


def _hidden_states(ctx: PlanContext, draft: Draft) -> MemoryCharge:
    tokens = ctx.so_far.serving.chunked_prefill_tokens.value
    tokens = tokens or ctx.engine.trait("default_prefill_tokens", ASSUMED_PREFILL_TOKENS)
    copies = ctx.engine.trait("aux_hidden_state_copies", ASSUMED_COPIES)
    captured, value_bytes = len(draft.captured_layers), 4 if ctx.model.dtype == "float32" else 2
    how = "written into one buffer in place" if copies == 1 else "gathered one by one and then concatenated"
    return MemoryCharge(
        what="draft hidden states",
        per_gpu_bytes=copies * tokens * captured * ctx.model.hidden * value_bytes,
        why=f"{copies} x {tokens} prefill tokens x {captured} captured layers x {ctx.model.hidden} x {value_bytes} "
        f"bytes; in {ctx.engine.backend} {ctx.engine.version} they are {how}",
        while_serving=True,
        reference="https://github.com/sgl-project/sglang/pull/28956",
    )
