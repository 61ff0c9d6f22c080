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
    """PlanRefusedError when the file of KV scales cannot be read, or holds none: no engine starts with it."""
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
    if not isinstance(scales, dict) or not scales.get("scaling_factor"):
        raise PlanRefusedError(f"{file} holds no KV scales (kv_cache.scaling_factor).", fix=FIX)
