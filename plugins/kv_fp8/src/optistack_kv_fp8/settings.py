"""The decisions: KV dtypes, scales, and the attention kernels that may read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.memory.kv import bytes_per_token
from optistack.settings import UNSET, KVLayout, Serving, Value, choose, suggest
from optistack_kv_fp8.attention import attention_backends
from optistack_kv_fp8.scales import decide_scales

if TYPE_CHECKING:
    from optistack.context import PlanContext
    from optistack_kv_fp8.options import Options


def decide(ctx: PlanContext) -> KVLayout:
    """FP8 for the target's KV, a dtype of its own for a draft's, and the scales.

    The draft's dtype is a wish whether or not there is a draft: KV is settled before speculation, and an adapter
    renders it only beside one.
    """
    options: Options = ctx.options
    scales = decide_scales(ctx)
    backends = attention_backends(ctx.engine.backend, ctx.node.sm, ctx.model, options.dtype, str(scales.value))
    return KVLayout(
        dtype=choose(options.dtype, why=_saved(ctx)),
        draft_dtype=_draft_dtype(options, ctx.engine.backend),
        scales=scales,
        scales_file=choose(options.scales_file, why="option scales_file") if options.scales_file else UNSET,
        serving=Serving(attention_backend=backends),
    )


def _saved(ctx: PlanContext) -> str:
    ranks = (ctx.parallel.tensor, ctx.parallel.attention_data)
    small = bytes_per_token(ctx.model, ctx.options.dtype, *ranks)
    large = bytes_per_token(ctx.model, "bfloat16", *ranks)
    return f"{small:,} bytes a token on each GPU instead of {large:,} in BF16"


BROKEN_DRAFT_KV = {
    "vllm": "vllm-project/vllm#41559, #42692, #48787",
    "sglang": "sglang 0.5.23 mem_cache/kv_cache_dtype.py (fa4 drafts ignore it)",
}
"""Where it broke, by engine."""


def _draft_dtype(options: Options, backend: str) -> Value[str]:
    if options.draft_dtype == "same":
        return choose(options.dtype, why="option draft_dtype: the same as the target's")
    if "draft_dtype" in options.model_fields_set:
        return choose(options.draft_dtype, why="option draft_dtype")
    return suggest(
        options.draft_dtype,
        why="a draft's KV is small, and quantized KV under a draft's non-causal attention has broken repeatedly",
        reference=BROKEN_DRAFT_KV.get(backend, ""),
    )
