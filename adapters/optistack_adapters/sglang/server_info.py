"""What ``/server_info`` proves. Pure dictionary in, observations out.

It holds every argument after SGLang's own resolution. Traps: ``quantization`` can be the word that was asked for and
not what the checkpoint is; ``kv_cache_dtype`` stays ``auto``; the ``hicache_*`` fields are there even when HiCache is
off.
"""

from __future__ import annotations

from typing import Any

from optistack.verify.receipt import Observed
from optistack_adapters.sglang.words import kv_dtype

Info = dict[str, Any]
Observations = dict[str, Observed]

PLAIN: tuple[tuple[str, str], ...] = (
    ("engine.version", "version"),
    ("kv.page_size_tokens", "page_size"),
    ("serving.attention_backend", "attention_backend"),
    ("serving.prefill_attention_backend", "prefill_attention_backend"),
    ("serving.chunked_prefill_tokens", "chunked_prefill_size"),
    ("serving.context_tokens", "context_length"),
    ("serving.schedule_policy", "schedule_policy"),
    ("serving.cache_report", "enable_cache_report"),
    ("speculation.draft_checkpoint", "speculative_draft_model_path"),
    ("speculation.draft_attention_backend", "speculative_draft_attention_backend"),
    ("speculation.draft_window_tokens", "speculative_draft_window_size"),
)
"""Settings that a field says in our own words."""


def field(name: str, value: object) -> str:
    return f"/server_info {name}={value}"


def read_server_info(info: Info) -> Observations:
    """Observations by setting path; paths that ``info`` says nothing about are absent."""
    seen = {
        path: Observed(value=info[name], proof=field(name, info[name])) for path, name in PLAIN if _said(info, name)
    }
    for read in (_kv, _speculation, _batches, _cache, _kernels, _capacity):
        seen.update(read(info))
    return seen


def hicache_on(info: Info) -> bool | None:
    """Whether HiCache was asked for; ``None`` when ``info`` does not say."""
    on = info.get("enable_hierarchical_cache")
    return on if isinstance(on, bool) else None


def groups(info: Info) -> int:
    """Attention groups, each with a scheduler and a KV pool of its own."""
    counts = (info.get("attn_dp_size"), info.get("dp_size") if info.get("enable_dp_attention") is True else None)
    return next((count for count in counts if isinstance(count, int) and count > 0), 1)


def states(info: Info) -> list[dict[str, Any]]:
    """``internal_states``: what each scheduler says about itself."""
    given = info.get("internal_states")
    return [state for state in given if isinstance(state, dict)] if isinstance(given, list) else []


def section(info: Info, name: str) -> dict[str, Any]:
    """The object in field ``name``; empty when it is something else."""
    found = info.get(name)
    return found if isinstance(found, dict) else {}


def _said(info: Info, name: str) -> bool:
    return isinstance(info.get(name), str | int | float)


def _kv(info: Info) -> Observations:
    seen = {}
    for path, name in (("kv.dtype", "kv_cache_dtype"), ("kv.draft_dtype", "speculative_draft_kv_cache_dtype")):
        if not _said(info, name):
            continue
        dtype = kv_dtype(str(info[name]))
        proof = field(name, info[name])
        seen[path] = Observed(value=dtype, proof=proof if dtype else f"{proof}, which says nothing; the log would")
    return seen


def _speculation(info: Info) -> Observations:
    if "speculative_algorithm" not in info:
        return {}
    word = info["speculative_algorithm"]
    proof = field("speculative_algorithm", word)
    if word is None:
        return {"speculation.method": Observed(value="none", proof=proof)}
    seen = {"speculation.method": Observed(value=str(word).lower(), proof=proof)}
    window = info.get("speculative_num_draft_tokens")
    if isinstance(window, int):
        why = f"{field('speculative_num_draft_tokens', window)}, the last known token counted"
        seen["speculation.num_draft_tokens"] = Observed(value=window - 1, proof=why)
    if "speculative_draft_model_quantization" in info and info.get("speculative_draft_model_path") is not None:
        word = info["speculative_draft_model_quantization"]
        proof = field("speculative_draft_model_quantization", word)
        if word is None or word == "unquant":
            word, proof = "none", f"{proof}: the draft is loaded as its checkpoint is"
        if isinstance(word, str):
            seen["speculation.draft_quantization"] = Observed(value=word, proof=proof)
    return seen


def _batches(info: Info) -> Observations:
    seen = {}
    effective = [state.get("effective_max_running_requests_per_dp") for state in states(info)]
    if effective and all(isinstance(count, int) for count in effective):
        proof = f"/server_info internal_states[].effective_max_running_requests_per_dp={effective}"
        seen["serving.max_running_requests"] = Observed(value=sum(effective), proof=proof)
    elif _said(info, "max_running_requests"):
        count = info["max_running_requests"]
        seen["serving.max_running_requests"] = Observed(value=count, proof=field("max_running_requests", count))
    decode = section(section(info, "cuda_graph_config"), "decode")
    if decode and info.get("device") == "cuda":
        backend, batch = decode.get("backend"), decode.get("max_bs")
        on = backend not in (None, "disabled")
        proof = field("cuda_graph_config.decode.backend", backend)
        seen["serving.cuda_graphs"] = Observed(value=on, proof=proof)
        if on and isinstance(batch, int):
            proof = field("cuda_graph_config.decode.max_bs", batch)
            seen["serving.cuda_graph_max_batch"] = Observed(value=batch, proof=proof)
    return seen


def _cache(info: Info) -> Observations:
    off = info.get("disable_radix_cache")
    if not isinstance(off, bool):
        return {}
    return {"serving.prefix_caching": Observed(value=not off, proof=field("disable_radix_cache", off))}


def _kernels(info: Info) -> Observations:
    seen = {}
    for path, name in (
        ("quantization.moe_backend", "moe_runner_backend"),
        ("quantization.fp4_gemm_backend", "fp4_gemm_runner_backend"),
    ):
        if _said(info, name):
            word = str(info[name])
            proof = field(name, word)
            if word == "auto":
                proof = f"{proof}: chosen while loading and reported nowhere"
            seen[path] = Observed(value=None if word == "auto" else word, proof=proof)
    return seen


def _capacity(info: Info) -> Observations:
    """KV tokens over all attention groups. Each scheduler reports its own pool."""
    pools = [section(state, "memory_usage").get("token_capacity") for state in states(info)]
    if pools and len(pools) == groups(info) and all(isinstance(tokens, int) for tokens in pools):
        proof = f"/server_info internal_states[].memory_usage.token_capacity={pools}"
        return {"budget.kv_tokens": Observed(value=sum(pools), proof=proof)}
    tokens = info.get("max_total_num_tokens")
    if not isinstance(tokens, int):
        return {}
    proof = field("max_total_num_tokens", tokens)
    if groups(info) > 1:
        proof = f"{proof} of each of {groups(info)} attention groups"
    return {"budget.kv_tokens": Observed(value=tokens * groups(info), proof=proof)}
