"""What this machine must have for the KV scales of a plan: looked at before a start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from optistack.errors import PlanRefusedError

if TYPE_CHECKING:
    from optistack.plan.plan import Plan

FIX = "Give what `optistack kv-fp8 calibrate` wrote as kv-scales.sglang.json, or leave option scales_file out."


def before_start(plan: Plan) -> None:
    """PlanRefusedError when the file of KV scales cannot be read, holds none, or is for other ranks or layers.

    SGLang starts all the same, with scales of 1.0, and logs that they were loaded (0.5.23 model_loader/weight_utils.py
    kv_cache_scales_loader).
    """
    file = plan.stack.kv.scales_file.value
    if file is None:
        return
    try:
        given = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanRefusedError(f"The KV scales {file} cannot be read: {error.strerror}.", fix=FIX) from None
    except (ValueError, RecursionError):
        raise PlanRefusedError(f"The KV scales {file} are no JSON.", fix=FIX) from None
    scales = given.get("kv_cache") if isinstance(given, dict) else None
    factors = scales.get("scaling_factor") if isinstance(scales, dict) else None
    if not isinstance(factors, dict) or not factors:
        raise PlanRefusedError(f"{file} holds no KV scales (kv_cache.scaling_factor).", fix=FIX)
    ranks, layers = plan.spec.parallel.tensor, {str(layer) for layer in range(plan.model.layers)}
    if set(factors) != {str(rank) for rank in range(ranks)}:
        raise PlanRefusedError(
            f"The KV scales {file} are for {len(factors)} rank(s), and this plan has {ranks}.",
            fix=f"Give what `optistack kv-fp8 calibrate --ranks {ranks}` wrote as kv-scales.sglang.json.",
        )
    if any(not isinstance(each, dict) or set(each) != layers for each in factors.values()):
        raise PlanRefusedError(f"The KV scales {file} are not those of the model's {len(layers)} layers.", fix=FIX)
