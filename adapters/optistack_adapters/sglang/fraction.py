"""``--mem-fraction-static``, from the budget.

SGLang sizes the KV pool as (mem_cache/kv_cache_configurator.py, ``_profile_available_bytes``)::

    pool = free after loading - before * (1 - fraction) - media

``before`` is what the driver has free on the fullest rank once contexts and communicators exist and before any weight
is loaded (distributed/bootstrap.py, ``measure_pre_model_load_memory``); target and draft weights are both loaded by
the time of "after"; ``media`` is the embedding cache of a multimodal model (from 0.5.18). The slack that is left,
``before * (1 - fraction)``, is for all that is allocated later: CUDA graphs, activations, captured hidden states::

    fraction = 1 - slack / before
"""

from __future__ import annotations

import math

from optistack.memory.budget import MemoryBudget

BEFORE_LOADING = ("driver", "context", "collectives")
"""Labels of reserves that are taken before the first measurement (:class:`~optistack.memory.budget.EngineReserves`)."""

CPU_FRACTION = 0.95
"""On a CPU "free" is whatever RAM happens to be free at the start, divided by the number of NUMA nodes, so the fraction
only has to leave room for the cap of ``--max-total-tokens``, which decides."""

STEPS = 10_000


def mem_fraction_static(budget: MemoryBudget, *, media_bytes: int = 0) -> float:
    """The fraction that makes SGLang's pool ``budget.kv_bytes``, rounded down to four decimals (18 MiB on a B200).

    ``media_bytes`` are part of the budget's activations, and SGLang takes them out of the pool by itself.
    """
    if budget.device == "cpu":
        return CPU_FRACTION
    early = sum(line.bytes for line in budget.reserves if line.label in BEFORE_LOADING)
    late = sum(line.bytes for line in budget.reserves if line.label not in BEFORE_LOADING)
    late += sum(line.bytes for line in budget.charges if line.while_serving)
    before = budget.capacity_bytes - early
    slack = late - media_bytes
    return max(1, math.floor((1 - slack / before) * STEPS)) / STEPS
