"""What is read back from an engine. Field names, log lines and metrics are those of sglang 0.5.23."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import Observed
from optistack_adapters.sglang import backend

INFO: dict[str, Any] = {
    "version": "0.5.23",
    "model_path": "nvidia/Kimi-K2.6-NVFP4",
    "device": "cuda",
    "tp_size": 4,
    "attn_dp_size": 1,
    "page_size": 64,
    "kv_cache_dtype": "auto",
    "quantization": "fp8",  # the word that was asked for; the checkpoint is NVFP4
    "attention_backend": "trtllm_mla",
    "prefill_attention_backend": None,
    "moe_runner_backend": "flashinfer_trtllm",
    "fp4_gemm_runner_backend": "auto",
    "context_length": 131072,
    "chunked_prefill_size": 16384,
    "max_running_requests": 16,
    "schedule_policy": "fcfs",
    "disable_radix_cache": False,
    "enable_metrics": True,
    "enable_cache_report": True,
    "cuda_graph_config": {"decode": {"backend": "full", "max_bs": 16}, "prefill": {"backend": "disabled"}},
    "speculative_algorithm": "DFLASH",
    "speculative_draft_model_path": "z-lab/Kimi-K2.6-DFlash",
    "speculative_num_draft_tokens": 8,
    "speculative_draft_model_quantization": None,
    "speculative_draft_kv_cache_dtype": None,
    "speculative_draft_attention_backend": "flashinfer",
    "speculative_draft_window_size": None,
    "enable_hierarchical_cache": True,
    "hicache_size": 127,
    "hicache_ratio": 2.0,
    "hicache_write_policy": "write_through",
    "hicache_io_backend": "direct",
    "hicache_mem_layout": "page_first_direct",
    "hicache_storage_backend": "file",
    "hicache_storage_prefetch_policy": "timeout",
    "max_total_num_tokens": 601280,
    "internal_states": [
        {
            "effective_max_running_requests_per_dp": 16,
            "memory_usage": {"weight": 141.2, "kvcache": 19.7, "token_capacity": 601280},
        }
    ],
}

METRICS = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="kimi-k2.6"} 0.0
# TYPE sglang:hicache_host_total_tokens gauge
sglang:hicache_host_total_tokens{model_name="kimi-k2.6"} 3614720.0
# TYPE sglang:context_len gauge
sglang:context_len{model_name="kimi-k2.6"} 131072.0
"""

RANK = """\
[2026-11-29 12:00:01 TP{rank}] Load weight end. elapsed=61.20 s, type=KimiK25ForConditionalGeneration, quant=modelopt, \
quant_algo=NVFP4, avail mem=32.10 GB, mem usage=141.20 GB.
[2026-11-29 12:00:05 TP{rank}] Load weight end. elapsed=2.10 s, type=DFlashDraftModel, avail mem=30.00 GB, \
mem usage=2.10 GB.
[2026-11-29 12:00:06 TP{rank}] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 601280, KV size: 19.68 GB
[2026-11-29 12:00:06 TP{rank}] Memory pool end. avail mem=10.10 GB
[2026-11-29 12:00:07 TP{rank}] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 601280, K size: 1.72 GB, \
V size: 1.72 GB
[2026-11-29 12:00:07 TP{rank}] Memory pool end. avail mem=6.60 GB
[2026-11-29 12:00:08 TP{rank}] Allocating kv hierarchical KV host pool: 3614464 tokens, 127.00 GB host memory.
[2026-11-29 12:00:09 TP{rank}] Allocating draft hierarchical KV host pool: 3614464 tokens, 22.21 GB host memory.
[2026-11-29 12:00:09 TP{rank}] Creating storage backend 'file' (sglang.srt.mem_cache.hicache_storage.HiCacheFile)
[2026-11-29 12:00:09 TP{rank}] Tree cache initialized: source=builtin impl=UnifiedRadixCache hybrid_swa=False \
hybrid_ssm=False hicache_attached=True
"""

LOG = (
    "[2026-11-29 12:00:00] server_args=ServerArgs(...)\n"
    + "".join(RANK.format(rank=rank) for rank in range(4))
    + "[2026-11-29 12:00:09 TP0] Created HiCacheFile storage directory at /mnt/nvme/kv/9f2c\n"
    + "[2026-11-29 12:00:10 TP0] Initialized DFLASH draft runner. attention_backend=flashinfer, "
    "model=DFlashDraftModel, block_size=8, draft_window_size=None, compact_cache=False\n"
    + "[2026-11-29 12:00:11 TP0] max_total_num_tokens=601280, chunked_prefill_size=16384, max_prefill_tokens=16384, "
    "max_running_requests=16, context_len=131072, available_gpu_mem=5.20 GB\n"
)


def read(
    info: dict[str, Any] | None = INFO, *, metrics: str | None = METRICS, log: str | None = LOG
) -> Mapping[str, Observed]:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/server_info" and info is not None:
            return httpx.Response(200, text=json.dumps(info))
        if request.url.path == "/model_info":
            return httpx.Response(200, json={"architectures": ["KimiK25ForConditionalGeneration"]})
        if request.url.path == "/metrics" and metrics is not None:
            return httpx.Response(200, text=metrics)
        return httpx.Response(404)

    with Endpoint("http://engine", transport=httpx.MockTransport(answer)) as endpoint:
        return backend.observe(endpoint, log)


def values(seen: Mapping[str, Observed]) -> dict[str, Any]:
    return {path: observed.value for path, observed in seen.items()}


def but(**changes: Any) -> dict[str, Any]:
    return {**INFO, **changes}


def test_everything_of_the_reference_deployment_is_proven_from_endpoints_and_log() -> None:
    assert values(read()) == {
        "engine.version": "0.5.23",
        "budget.kv_tokens": 601280,
        "kv.dtype": "fp8_e4m3",
        "kv.draft_dtype": "bfloat16",
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


def test_every_observation_says_where_it_comes_from() -> None:
    for observed in read().values():
        assert observed.proof.startswith(("/server_info ", "/metrics ", "log")), observed


def test_the_log_is_believed_over_a_word() -> None:
    seen = read(but(kv_cache_dtype="bf16"))["kv.dtype"]
    assert seen.value == "fp8_e4m3"
    assert "KV Cache is allocated. dtype: torch.float8_e4m3fn" in seen.proof


def test_auto_proves_nothing_without_a_log() -> None:
    seen = read(log=None)
    for path in ("kv.dtype", "kv.draft_dtype", "quantization.experts", "quantization.checkpoint_format"):
        assert seen[path].value is None
        assert "log" in seen[path].proof


def test_a_word_that_is_no_auto_counts_without_a_log() -> None:
    seen = read(but(kv_cache_dtype="bf16", speculative_draft_kv_cache_dtype="fp8_e4m3"), log=None)
    assert (seen["kv.dtype"].value, seen["kv.draft_dtype"].value) == ("bfloat16", "fp8_e4m3")


def test_a_bf16_checkpoint_is_told_from_a_quantized_one() -> None:
    log = LOG.replace("quant=modelopt, quant_algo=NVFP4, ", "")
    seen = values(read(log=log))
    assert seen["quantization.checkpoint_format"] == "none"
    assert seen["quantization.experts"] is None


def test_compressed_tensors_names_its_format_and_not_its_precision() -> None:
    log = LOG.replace("quant=modelopt, quant_algo=NVFP4, ", "quant=compressed-tensors, ")
    seen = read(log=log)
    assert seen["quantization.checkpoint_format"].value == "compressed-tensors"
    assert seen["quantization.experts"].value is None
    assert "gives no quant_algo" in seen["quantization.experts"].proof


def test_hicache_fields_are_not_believed_when_hicache_is_off() -> None:
    bare = METRICS.replace("sglang:hicache_host_total_tokens", "sglang:other")
    seen = values(read(but(enable_hierarchical_cache=False), metrics=bare, log=None))
    assert seen["tiers.2.backend"] == "none"
    assert seen["tiers.3.backend"] == "none"
    assert not any(path.startswith("tiers.2.") and path != "tiers.2.backend" for path in seen)


def test_hicache_that_was_asked_for_and_is_not_attached_is_told() -> None:
    """The tree cache's own line outranks the argument."""
    log = LOG.replace("hicache_attached=True", "hicache_attached=False")
    bare = METRICS.replace("sglang:hicache_host_total_tokens", "sglang:other")
    assert values(read(log=log, metrics=bare))["tiers.2.backend"] == "none"


def test_the_older_spelling_of_the_tree_cache_line() -> None:
    bare = METRICS.replace("sglang:hicache_host_total_tokens", "sglang:other")
    log = LOG.replace("hicache_attached=True", "hierarchical=True streaming_wrapped=False")
    assert "hierarchical=True" in read(log=log, metrics=bare)["tiers.2.backend"].proof


def test_the_size_of_the_host_tier_without_a_log() -> None:
    with_draft = read(log=None)["tiers.2.capacity_bytes"]
    assert with_draft.value is None
    assert "draft's pool" in with_draft.proof
    alone = but(speculative_algorithm=None, speculative_draft_model_path=None)
    assert read(alone, log=None)["tiers.2.capacity_bytes"].value == 508_000_000_000
    assert read(but(hicache_size=0), log=None)["tiers.2.capacity_bytes"].value is None


def test_the_storage_directory_from_the_engines_own_variables() -> None:
    states = [{"env_vars": {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": "/kv/x"}}]
    assert read(but(internal_states=states), log=None)["tiers.3.directory"].value == "/kv/x"
    missing = read(log=None)["tiers.3.directory"]
    assert missing.value is None
    assert "dev_endpoints" in missing.proof


@pytest.mark.parametrize(
    "changes",
    [{"attn_dp_size": 2}, {"attn_dp_size": None, "enable_dp_attention": True, "dp_size": 2}],
)
def test_attention_groups_are_added_up(changes: dict[str, Any]) -> None:
    one = INFO["internal_states"][0]
    both = but(**changes, internal_states=[one, one])
    assert values(read(both))["budget.kv_tokens"] == 2 * 601280
    assert values(read(both))["serving.max_running_requests"] == 32
    assert values(read(but(**changes, internal_states=[])))["budget.kv_tokens"] == 2 * 601280


def test_no_speculation() -> None:
    plain = but(
        speculative_algorithm=None,
        speculative_draft_model_path=None,
        speculative_num_draft_tokens=None,
        speculative_draft_attention_backend=None,
    )
    seen = values(read(plain, log=None))
    assert seen["speculation.method"] == "none"
    assert [path for path in seen if path.startswith("speculation.")] == ["speculation.method"]
    assert "kv.draft_dtype" not in seen


def test_the_kernels_that_the_draft_really_got() -> None:
    log = LOG.replace("attention_backend=flashinfer", "attention_backend=triton")
    assert read(log=log)["speculation.draft_attention_backend"].value == "triton"


def test_metrics_that_are_off() -> None:
    seen = read(but(enable_metrics=False), metrics=None)
    assert seen["serving.metrics"].value is False
    assert "serving.metrics" not in read(None, metrics=None)


def test_a_page_that_is_no_metrics_page_is_no_metrics() -> None:
    assert read(metrics="<html>not found</html>")["serving.metrics"].value is False


def test_context_length_when_nobody_set_one() -> None:
    unset = but(context_length=None)
    assert "sglang:context_len" in read(unset)["serving.context_tokens"].proof
    assert "context_len=131072" in read(unset, metrics=None)["serving.context_tokens"].proof
    assert "serving.context_tokens" not in read(unset, metrics=None, log=None)


def test_prefix_caching_and_graphs_that_are_off() -> None:
    info = but(disable_radix_cache=True, cuda_graph_config={"decode": {"backend": "disabled", "max_bs": 16}})
    seen = values(read(info))
    assert seen["serving.prefix_caching"] is False
    assert seen["serving.cuda_graphs"] is False
    assert "serving.cuda_graph_max_batch" not in seen


def test_a_server_that_is_not_sglang_gives_nothing() -> None:
    assert not [path for path in read(None, metrics=None, log=None) if not path.startswith("quantization.")]


def test_a_log_of_one_rank_has_no_rank_in_its_lines() -> None:
    log = (
        "INFO supervisor: [2026-11-29 12:00:06] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 32768, "
        "K size: 0.70 GB, V size: 0.70 GB\n"
    )
    assert read(log=log)["kv.dtype"].value == "bfloat16"


def test_two_pools_of_one_model_are_not_a_draft() -> None:
    """A model with sliding windows has two pools; a draft's comes after the target's are closed."""
    log = (
        "[2026-11-29 12:00:06 TP0] Full KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 4, KV size: 1 GB\n"
        "[2026-11-29 12:00:06 TP0] SWA KV Cache is allocated. dtype: torch.bfloat16, #tokens: 4, KV size: 1.00 GB\n"
        "[2026-11-29 12:00:06 TP0] Memory pool end. avail mem=1.00 GB\n"
    )
    seen = read(but(speculative_algorithm=None, speculative_draft_model_path=None), log=log)
    assert seen["kv.dtype"].value == "fp8_e4m3"
    assert "kv.draft_dtype" not in seen
