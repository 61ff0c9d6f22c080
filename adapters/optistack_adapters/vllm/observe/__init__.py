"""What a running vLLM says about the settings of a plan, and where it says so.

Sources, strongest first: what it did (``vllm:cache_config_info``, counters, log lines of the workers), its resolved
configuration (``/server_info``, in development mode only), and what it was told (the line with its non-default
arguments). A word such as ``auto`` is never passed on as an answer.
"""

from __future__ import annotations

from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import Observed
from optistack_adapters.vllm.observe.evidence import read_evidence
from optistack_adapters.vllm.observe.kv import observe_kv
from optistack_adapters.vllm.observe.serving import observe_serving
from optistack_adapters.vllm.observe.speculation import observe_speculation
from optistack_adapters.vllm.observe.tiers import observe_tiers
from optistack_adapters.vllm.observe.weights import observe_weights

__all__ = ["observe"]


def observe(endpoint: Endpoint, log: str | None) -> dict[str, Observed]:
    """By setting path; a path is absent when vLLM says nothing, its value None when what it says is no evidence.

    Raises InputError when nobody answers at the endpoint.
    """
    evidence = read_evidence(endpoint, log)
    found: dict[str, Observed | None] = {}
    for part in (observe_serving, observe_kv, observe_speculation, observe_tiers, observe_weights):
        found.update(part(evidence))
    return {path: seen for path, seen in found.items() if seen is not None}
