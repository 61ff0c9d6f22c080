"""Where FP8 scales come from: the checkpoint's tensors, its metadata where no tensors are at hand, or 1.0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optistack.errors import PlanRefusedError
from optistack.settings import Value, choose

if TYPE_CHECKING:
    from optistack.context import PlanContext
    from optistack.facts.model import ModelFacts
    from optistack_kv_fp8.options import Options

CHECKPOINT = "checkpoint"
UNIT = "unit"
FILE = "file"


def has_scales(model: ModelFacts) -> bool:
    """Whether the checkpoint carries KV scales.

    The tensors decide where they are at hand: metadata that asks for FP8 KV without any scale in the weights leaves an
    engine at 1.0. Without tensors the metadata is believed (rule ``kv-fp8-scales-unseen``).
    """
    return claims_scales(model) if model.kv_scales is None else model.kv_scales


def claims_scales(model: ModelFacts) -> bool:
    """Whether the metadata says FP8 KV: ModelOpt's ``kv_cache_quant_algo``, or ``kv_cache_scheme``."""
    return model.quantization is not None and model.quantization.kv_cache_algo == "FP8"


def decide_scales(ctx: PlanContext) -> Value[str]:
    """``checkpoint``, ``unit`` or ``file``. Raises PlanRefusedError when scales are asked of a checkpoint without."""
    options: Options = ctx.options
    model = ctx.model
    if options.scales_file:
        return choose(FILE, why="option scales_file")
    found = has_scales(model)
    if options.scales == CHECKPOINT and not found:
        raise PlanRefusedError(
            f"Option scales of kv-fp8 is checkpoint and {model.source} has no KV scales.",
            fix="Calibrate it (optistack kv-fp8 calibrate), or set scales to unit and compare answers with BF16 KV.",
        )
    if options.scales == UNIT:
        return choose(UNIT, why="option scales")
    if found:
        seen = "has scale tensors" if model.kv_scales else "has quantization metadata that says FP8 KV"
        return choose(CHECKPOINT, why=f"the checkpoint {seen}", reference=str(model.config_file))
    missing = "no scale tensors" if model.kv_scales is False else "no metadata about KV"
    return choose(UNIT, why=f"the checkpoint has {missing}: engines then use 1.0", reference=str(model.config_file))
