"""A real engine on a CPU."""

from __future__ import annotations

from typing import Any


def test_an_engine_on_a_cpu(engine: Any) -> None:
    """Taken from a run of 0.5.23 with SmolLM2-135M, FP8 KV and half a GiB of it."""
    info = {
        "version": "0.5.23",
        "device": "cpu",
        "tp_size": 1,
        "attn_dp_size": 1,
        "page_size": 1,
        "kv_cache_dtype": "fp8_e4m3",
        "attention_backend": "torch_native",
        "moe_runner_backend": "auto",
        "disable_radix_cache": False,
        "enable_hierarchical_cache": False,
        "hicache_storage_backend": None,
        "hicache_write_policy": "write_through",
        "speculative_algorithm": None,
        "speculative_draft_model_path": None,
        "speculative_draft_model_quantization": None,
        "cuda_graph_config": {"decode": {"backend": "disabled", "max_bs": 32}},
        "internal_states": [
            {"effective_max_running_requests_per_dp": 48, "memory_usage": {"kvcache": 0.5, "token_capacity": 46603}}
        ],
    }
    metrics = """\
# TYPE sglang:max_total_num_tokens gauge
sglang:max_total_num_tokens{engine_type="unified",model_name="smollm2",pp_rank="0",tp_rank="0"} 46603.0
# TYPE sglang:context_len gauge
sglang:context_len{engine_type="unified",model_name="smollm2",pp_rank="0",tp_rank="0"} 4096.0
"""
    log = """\
[2026-11-29 23:45:13] Load weight end. elapsed=2.93 s, type=LlamaForCausalLM, avail mem=4.59 GB, mem usage=0.52 GB.
[2026-11-29 23:45:18] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 46603, K size: 0.25 GB, \
V size: 0.25 GB
[2026-11-29 23:45:18] Memory pool end. avail mem=3.90 GB
[2026-11-29 23:45:19] Tree cache initialized: source=default impl=UnifiedRadixCache hybrid_swa=False hybrid_ssm=False \
hicache_attached=False
"""
    assert engine.values(info, metrics=metrics, log=log) == {
        "engine.version": "0.5.23",
        "budget.kv_tokens": 46603,
        "kv.dtype": "fp8_e4m3",
        "kv.scales": "unit",
        "kv.page_size_tokens": 1,
        "quantization.checkpoint_format": "none",
        "quantization.experts": None,
        "quantization.moe_backend": None,
        "serving.attention_backend": "torch_native",
        "serving.context_tokens": 4096,
        "serving.max_running_requests": 48,
        "serving.metrics": True,
        "serving.prefix_caching": True,
        "speculation.method": "none",
        "tiers.2.backend": "none",
        "tiers.3.backend": "none",
    }
