"""What loading the weights took of a GPU.

SGLang takes the GPU's free memory before and after each model that it loads (model_executor/model_runner.py, the same
in 0.5.17 to 0.5.23): GiB, though it says GB. The copies of ``kv_b_proj`` that MLA models keep are made while they load
(``post_load_weights``) and are in the figure: on an H200, 0.5.17 said 60.77 of a DeepSeek-V3 shape in BF16 where the
plan has 60.64, 320 MiB of copies with it. What another process takes of the GPU or gives back meanwhile is in it too
(``whole_device``): three engines of 0.27 GiB that were started on one H200 together said 1.37 to 1.43.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from optistack.facts.node import GIB
from optistack.verify.receipt import Observed
from optistack_adapters.sglang.log import LogFacts
from optistack_adapters.sglang.server_info import Info, Observations, section, states

if TYPE_CHECKING:
    from optistack.verify.metrics import Metrics

METRIC = "sglang:weight_memory_usage_gb"
FIELD = "/server_info internal_states[].memory_usage.weight"


def read_weight_memory(info: Info, facts: LogFacts, metrics: Metrics) -> Observations:
    """Of target and draft together, on the GPU where they take most.

    Only the log has a line for the draft; field and metric are the target's. On a CPU all are the machine's free memory
    over its NUMA nodes (``get_available_gpu_memory``), and nothing is said.
    """
    if not info or info.get("device") == "cpu":
        return {}
    drafts = info.get("speculative_draft_model_path") is not None
    if len(facts.loaded_lines) > drafts:
        return _seen(facts.loaded_gib, f"log: {'; '.join(facts.loaded_lines)}")
    target, proof = _target(info, metrics)
    if target is None:
        return _seen(None, f"neither the log nor {FIELD} nor /metrics {METRIC} says it")
    if drafts:
        return _seen(None, f"{proof} is the target's alone; the log would say the draft's")
    return _seen(target, proof)


def _target(info: Info, metrics: Metrics) -> tuple[float | None, str]:
    said = [section(state, "memory_usage").get("weight") for state in states(info)]
    taken = [gib for gib in said if isinstance(gib, int | float) and 0 < gib < math.inf]
    if taken:
        return max(taken), f"{FIELD}={max(taken)}"
    taken = [sample.value for sample in metrics.find(METRIC) if 0 < sample.value < math.inf]
    return (max(taken), f"/metrics {METRIC} {max(taken)}") if taken else (None, "")


def _seen(gib: float | None, proof: str) -> Observations:
    size = None if gib is None else round(gib * GIB)
    return {"budget.weight_bytes": Observed(value=size, proof=proof, whole_device=size is not None)}
