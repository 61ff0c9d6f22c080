"""The decisions: what the checkpoint's weights are, and which kernels run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.errors import PlanRefusedError
from optistack.settings import UNSET, Value, WeightQuantization, choose
from optistack_quant_nvfp4 import kernels
from optistack_quant_nvfp4.checkpoint import describe, recognise

if TYPE_CHECKING:
    from optistack.context import PlanContext
    from optistack_quant_nvfp4.checkpoint import Recognised
    from optistack_quant_nvfp4.options import Options


def decide(ctx: PlanContext) -> WeightQuantization:
    """The checkpoint's precisions as facts, and kernels as suggestions, or as wishes where an option names them.

    ``engine_quantization`` is never set: both engines read the checkpoint, and a word on the command line can only
    contradict it. Raises PlanRefusedError when the checkpoint is not NVFP4, or not where option ``scope`` says.
    """
    found = recognise(ctx.model)
    on_gpu = ctx.engine.device == "cuda"
    if on_gpu:  # a CPU has no NVFP4 at all, which the rule nvfp4-no-cpu-kernel says better
        _require(ctx, found)
    return WeightQuantization(
        checkpoint_format=_read(ctx, found.method),
        experts=_read(ctx, found.routed),
        shared_experts=_read(ctx, found.shared),
        dense=_read(ctx, found.dense),
        moe_backend=_moe_backend(ctx, found) if on_gpu else UNSET,
        fp4_gemm_backend=_gemm_backend(ctx, found) if on_gpu else UNSET,
    )


def _require(ctx: PlanContext, found: Recognised) -> None:
    options: Options = ctx.options
    if not found.nvfp4:
        raise PlanRefusedError(
            f"quant-nvfp4 is in the stack and {ctx.model.source} has no NVFP4 weights ({describe(ctx.model)}).",
            fix="Give an NVFP4 checkpoint, or take quant-nvfp4 out of the stack.",
        )
    if options.scope not in ("any", found.scope):
        raise PlanRefusedError(
            f"Option scope of quant-nvfp4 is {options.scope} and {ctx.model.source} is NVFP4 in "
            f"{found.scope} ({describe(ctx.model)}).",
            fix=f"Give another checkpoint, or set scope to {found.scope} or any.",
        )


def _read(ctx: PlanContext, word: str | None) -> Value[str]:
    if word is None:
        return UNSET
    evidence = "safetensors headers" if ctx.model.evidence == "headers" else "quantization metadata"
    return choose(word, why=f"the checkpoint is so ({evidence})", reference=str(ctx.model.config_file))


def _moe_backend(ctx: PlanContext, found: Recognised) -> Value[str]:
    asked = ctx.options.moe_backend
    if asked:
        return choose(asked, why="option moe_backend")
    return kernels.moe_backend(ctx.engine.backend, ctx.node.sm, found) if found.experts else UNSET


def _gemm_backend(ctx: PlanContext, found: Recognised) -> Value[str]:
    asked = ctx.options.fp4_gemm_backend
    if asked:
        return choose(asked, why="option fp4_gemm_backend")
    return kernels.gemm_backend(ctx.engine.backend, ctx.node.sm, found) if found.linears else UNSET
