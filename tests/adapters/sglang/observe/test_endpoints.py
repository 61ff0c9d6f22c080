"""What is read from ``/server_info`` and ``/metrics``."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.facts.node import GIB


def test_everything_of_the_reference_deployment_is_proven_from_endpoints_and_log(engine: Any) -> None:
    assert engine.values() == {
        "engine.version": "0.5.23",
        "budget.kv_tokens": 601280,
        "budget.weight_bytes": round(143.3 * GIB),
        "kv.dtype": "fp8_e4m3",
        "kv.draft_dtype": "bfloat16",
        "kv.scales": None,
        "kv.page_size_tokens": 64,
        "quantization.checkpoint_format": "modelopt",
        "quantization.experts": "nvfp4",
        "quantization.moe_backend": "flashinfer_trtllm",
        "quantization.fp4_gemm_backend": None,
        "serving.attention_backend": "trtllm_mla",
        "serving.cache_report": True,
        "serving.chunked_prefill_tokens": 16384,
        "serving.context_tokens": 131072,
        "serving.cuda_graphs": True,
        "serving.cuda_graph_max_batch": 16,
        "serving.max_running_requests": 16,
        "serving.metrics": True,
        "serving.prefix_caching": True,
        "serving.schedule_policy": "fcfs",
        "speculation.method": "dflash",
        "speculation.num_draft_tokens": 7,
        "speculation.draft_checkpoint": "z-lab/Kimi-K2.6-DFlash",
        "speculation.draft_quantization": "none",
        "speculation.draft_attention_backend": "flashinfer",
        "tiers.2.backend": "native",
        "tiers.2.capacity_bytes": 596_840_000_000,
        "tiers.2.write_policy": "write_through",
        "tiers.2.io_backend": "direct",
        "tiers.2.layout": "page_first_direct",
        "tiers.3.backend": "file",
        "tiers.3.prefetch_policy": "timeout",
        "tiers.3.directory": "/mnt/nvme/kv/9f2c",
    }


def test_every_observation_says_where_it_comes_from(engine: Any) -> None:
    for observed in engine.observe().values():
        assert observed.proof.startswith(("/server_info ", "/metrics ", "log")), observed


def test_a_word_that_is_no_auto_counts_without_a_log(engine: Any) -> None:
    seen = engine.observe(engine.but(kv_cache_dtype="bf16", speculative_draft_kv_cache_dtype="fp8_e4m3"), log=None)
    assert (seen["kv.dtype"].value, seen["kv.draft_dtype"].value) == ("bfloat16", "fp8_e4m3")


@pytest.mark.parametrize(
    "changes",
    [{"attn_dp_size": 2}, {"attn_dp_size": None, "enable_dp_attention": True, "dp_size": 2}],
)
def test_attention_groups_are_added_up(engine: Any, changes: dict[str, Any]) -> None:
    one = engine.info["internal_states"][0]
    both = engine.but(**changes, internal_states=[one, one])
    assert engine.values(both)["budget.kv_tokens"] == 2 * 601280
    assert engine.values(both)["serving.max_running_requests"] == 32
    assert engine.values(engine.but(**changes, internal_states=[]))["budget.kv_tokens"] == 2 * 601280


def test_no_speculation(engine: Any) -> None:
    plain = engine.but(
        speculative_algorithm=None,
        speculative_draft_model_path=None,
        speculative_num_draft_tokens=None,
        speculative_draft_attention_backend=None,
    )
    seen = engine.values(plain, log=None)
    assert seen["speculation.method"] == "none"
    assert [path for path in seen if path.startswith("speculation.")] == ["speculation.method"]
    assert "kv.draft_dtype" not in seen


def test_metrics_that_are_off(engine: Any) -> None:
    seen = engine.observe(engine.but(enable_metrics=False), metrics=None)
    assert seen["serving.metrics"].value is False
    assert "serving.metrics" not in engine.observe(None, metrics=None)


def test_a_page_that_is_no_metrics_page_is_no_metrics(engine: Any) -> None:
    assert engine.observe(metrics="<html>not found</html>")["serving.metrics"].value is False


def test_context_length_when_nobody_set_one(engine: Any) -> None:
    unset = engine.but(context_length=None)
    assert "sglang:context_len" in engine.observe(unset)["serving.context_tokens"].proof
    assert "context_len=131072" in engine.observe(unset, metrics=None)["serving.context_tokens"].proof
    assert "serving.context_tokens" not in engine.observe(unset, metrics=None, log=None)


def test_prefix_caching_and_graphs_that_are_off(engine: Any) -> None:
    info = engine.but(disable_radix_cache=True, cuda_graph_config={"decode": {"backend": "disabled", "max_bs": 16}})
    seen = engine.values(info)
    assert seen["serving.prefix_caching"] is False
    assert seen["serving.cuda_graphs"] is False
    assert "serving.cuda_graph_max_batch" not in seen


def test_a_server_that_is_not_sglang_gives_nothing(engine: Any) -> None:
    assert not [path for path in engine.observe(None, metrics=None, log=None) if not path.startswith("quantization.")]
