"""The live probe: the bytes that a KV token takes on the running engine, by the engine's own pool and token count.

A word for the KV dtype can stay ``auto`` or repeat the command line; the pool's size divided by its tokens cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optistack.memory.kv import bytes_per_token
from optistack.verify.receipt import CheckResult, Status

if TYPE_CHECKING:
    from optistack.plan.plan import Plan
    from optistack.verify.endpoint import Endpoint

TOLERANCE = 0.02
"""Allowed difference; BF16 KV would be 100% above. Measured on an H200 (vLLM 0.26.0): 23,040 bytes a token by the plan,
by the engine 63.62 GiB for 2,965,104 tokens, which is 0.01% less. On a CPU (vLLM 0.32.0, FP8 KV under a BF16 draft's)
13,056 by the plan and 13,066 by the engine, whose last page is not whole: +0.08%; started with BF16 KV, +88%."""

SGLANG_ROUNDING_BYTES = 0.0005 * 2**30
"""SGLang gives its pool's size to three decimals of a GiB."""


@dataclass(frozen=True)
class Pool:
    """A KV pool as the engine tells it; ``tokens`` 0 when it does not, and ``proof`` is then the reason."""

    proof: str
    size_bytes: float = 0.0
    tokens: int = 0
    rounding_bytes: float = 0.0


def probe(plan: Plan, endpoint: Endpoint) -> CheckResult:
    """Compare measured with planned bytes for each KV token on one GPU (or CPU rank)."""
    planned = plan.budget.bytes_per_kv_token
    if plan.engine.backend == "sglang":
        parallel = plan.spec.parallel
        # SGLang gives a draft a pool of its own, of which this figure does not speak.
        planned = bytes_per_token(plan.model, plan.budget.kv_dtype, parallel.tensor, parallel.attention_data)
        pool = _sglang(endpoint)
    elif plan.engine.backend == "vllm":
        pool = _vllm(endpoint)
    else:
        pool = Pool(f"where {plan.engine.backend} reports the size of its KV pool is not known")
    if not pool.tokens:
        return _result(plan, planned, "nothing", pool.proof, Status.UNPROVEN)
    measured = pool.size_bytes / pool.tokens
    kept = abs(measured - planned) <= TOLERANCE * planned + pool.rounding_bytes / pool.tokens
    why = f"{(measured - planned) / planned:+.2%} of the plan, {TOLERANCE:.0%} allowed"
    return _result(plan, planned, f"{measured:,.0f} bytes", pool.proof, Status.PASS if kept else Status.FAIL, why)


def _sglang(endpoint: Endpoint) -> Pool:
    info = endpoint.get_json("/server_info") or {}
    states = info.get("internal_states") or [{}]
    memory = (states[0].get("memory_usage") if isinstance(states[0], dict) else None) or {}
    size_gib, tokens = memory.get("kvcache"), memory.get("token_capacity")
    if not size_gib or not tokens:
        return Pool("/server_info says nothing of memory_usage.kvcache and token_capacity")
    proof = f"/server_info internal_states[0].memory_usage: kvcache {size_gib} GiB, token_capacity {tokens:,}"
    return Pool(proof, float(size_gib) * 2**30, int(tokens), SGLANG_ROUNDING_BYTES)


def _vllm(endpoint: Endpoint) -> Pool:
    """The pool as it was given in bytes; it holds the KV of the target and of a draft together."""
    name = "vllm:cache_config_info"
    metrics = endpoint.metrics()
    size, tokens = (metrics.label(name, label) or "" for label in ("kv_cache_memory_bytes", "kv_cache_size_tokens"))
    if not (size.isdigit() and tokens.isdigit()):  # an unset field's label is the word None
        return Pool(f"{name} gives no pool in bytes: it was sized by a fraction of the memory")
    proof = f'{name}{{kv_cache_memory_bytes="{size}", kv_cache_size_tokens="{tokens}"}}'
    return Pool(proof, float(size), int(tokens))


def _result(plan: Plan, planned: int, says: str, proof: str, status: Status, why: str = "") -> CheckResult:
    where = "GPU" if plan.engine.device == "cuda" else "rank"
    return CheckResult(
        id="kv-fp8/bytes-per-token",
        promised_by="kv-fp8",
        asked=f"{planned:,} bytes for each KV token on a {where}",
        engine_says=says,
        proof=proof,
        status=status,
        why=why,
    )
