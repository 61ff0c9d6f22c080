"""What the launch says in each situation, and when it cannot be said."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.errors import PlanRefusedError
from optistack.settings import (
    CacheTier,
    EngineArgument,
    KVLayout,
    MemoryCharge,
    Serving,
    Speculation,
    WeightQuantization,
    choose,
)

GB = 10**9
DFLASH = Speculation(method=choose("dflash"), draft_checkpoint=choose("some/draft"), num_draft_tokens=choose(7))


def test_bfloat16_kv_is_spelled_so_that_every_kernel_takes_it(build: Any) -> None:
    launch = build(KVLayout(dtype=choose("bfloat16")), parallel={"tensor": 4}).launch
    assert launch.value_of("--kv-cache-dtype") == "bf16"


def test_half_precision_kv_is_left_to_a_half_precision_model(build: Any, llama: Any) -> None:
    half = llama.model_copy(update={"dtype": "float16"})
    assert build(facts=half, node="h200x1").launch.value_of("--kv-cache-dtype") == "auto"


@pytest.mark.parametrize(
    ("node", "model", "backend", "page"),
    [
        ("b200x8", "kimi", "trtllm_mla", "64"),
        ("b300x8", "kimi", "trtllm_mla", "64"),
        ("h200x8", "kimi", "fa3", "64"),
        ("b200x8", "llama", "trtllm_mha", "64"),
        ("h200x8", "llama", "fa3", "64"),
    ],
)
def test_attention_kernels_follow_model_and_gpu(
    build: Any, request: pytest.FixtureRequest, node: str, model: str, backend: str, page: str
) -> None:
    launch = build(facts=request.getfixturevalue(model), node=node, parallel={"tensor": 8}).launch
    assert launch.value_of("--attention-backend") == backend
    assert launch.value_of("--page-size") == page


def test_a_page_size_that_the_kernels_do_not_take_names_both(build: Any) -> None:
    with pytest.raises(PlanRefusedError, match=r"mine says 128.*sglang says default 64, one of 32, 64"):
        build(KVLayout(page_size_tokens=choose(128)), parallel={"tensor": 4})


def test_the_user_may_choose_other_kernels_and_pages_follow(build: Any) -> None:
    planned = build(KVLayout(page_size_tokens=choose(1)), parallel={"tensor": 4}, serving={"attention_backend": "fa4"})
    assert planned.launch.value_of("--attention-backend") == "fa4"
    assert planned.launch.value_of("--page-size") == "1"


@pytest.mark.parametrize(("replica", "gpus"), [(0, "0,1,2,3"), (1, "4,5,6,7")])
def test_replicas_get_their_own_gpus(build: Any, replica: int, gpus: str) -> None:
    planned = build(node="b200x8", parallel={"tensor": 4}, replicas=2, replica=replica)
    assert planned.launch.env(port=1, folder="")["CUDA_VISIBLE_DEVICES"] == gpus
    assert planned.launch.replica == replica


@pytest.mark.parametrize(
    ("version", "flags"),
    [
        ("0.5.23", {"--attn-dp-size": "4", "--dp-size": None, "--enable-dp-attention": None}),
        ("0.5.21", {"--attn-dp-size": None, "--dp-size": "4", "--enable-dp-attention": ""}),
    ],
)
def test_attention_data_parallelism_by_version(build: Any, version: str, flags: dict[str, str | None]) -> None:
    launch = build(node="b200x8", version=version, parallel={"tensor": 8, "attention_data": 4}).launch
    assert {flag: launch.value_of(flag) for flag in flags} == flags


def test_prefill_chunks_are_said_for_all_attention_groups(build: Any) -> None:
    """SGLang divides the chunk among the groups; the setting is what one of them runs."""
    planned = build(
        node="b200x8",
        parallel={"tensor": 8, "attention_data": 8},
        serving={"chunked_prefill_tokens": 4096, "max_running_requests": 64},
    )
    assert planned.launch.value_of("--chunked-prefill-size") == "32768"
    assert planned.launch.value_of("--cuda-graph-max-bs-decode") == "8"


@pytest.mark.parametrize(("node", "tokens"), [("h100x8", "8192"), ("h200x8", "8192"), ("b200x8", "16384")])
def test_the_prefill_chunk_is_said_aloud(build: Any, llama: Any, node: str, tokens: str) -> None:
    assert build(facts=llama, node=node, parallel={"tensor": 8}).launch.value_of("--chunked-prefill-size") == tokens


def test_running_requests_are_said_aloud_with_room_for_bursts(build: Any) -> None:
    few = build(parallel={"tensor": 4}, workload={"concurrency": 5}).launch
    many = build(parallel={"tensor": 4}, workload={"concurrency": 100}).launch
    assert few.value_of("--max-running-requests") == "48"
    assert many.value_of("--max-running-requests") == "200"


def test_switched_off(build: Any) -> None:
    off = Serving(metrics=choose(False), cache_report=choose(False))
    planned = build(off, parallel={"tensor": 4}, serving={"prefix_caching": False, "cuda_graphs": False})
    words = planned.words
    assert "--disable-radix-cache" in words
    assert {"--disable-decode-cuda-graph", "--disable-prefill-cuda-graph"} <= set(words)
    assert not {"--enable-metrics", "--enable-cache-report", "--cuda-graph-max-bs-decode"} & set(words)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("dflash", {"--speculative-num-steps": None, "--speculative-num-draft-tokens": "8"}),
        ("eagle3", {"--speculative-num-steps": "7", "--speculative-num-draft-tokens": "8"}),
        ("ngram", {"--speculative-num-steps": None, "--speculative-num-draft-tokens": "8"}),
    ],
)
def test_draft_tokens_are_said_as_a_verified_window(build: Any, method: str, expected: dict[str, str | None]) -> None:
    speculation = Speculation(method=choose(method), draft_checkpoint=choose("d"), num_draft_tokens=choose(7))
    launch = build(speculation, parallel={"tensor": 4}).launch
    assert {flag: launch.value_of(flag) for flag in expected} == expected


def test_a_method_that_the_adapter_does_not_know_is_passed_on(build: Any) -> None:
    """SGLang plugins can register methods of their own."""
    launch = build(Speculation(method=choose("lookahead"), num_draft_tokens=choose(3)), parallel={"tensor": 4}).launch
    assert launch.value_of("--speculative-algorithm") == "LOOKAHEAD"
    assert launch.value_of("--speculative-num-draft-tokens") == "4"


def test_an_ngram_tree_is_a_chain_where_pages_are_larger_than_a_token(build: Any, llama: Any) -> None:
    ngram = Speculation(method=choose("ngram"), num_draft_tokens=choose(7))
    paged = build(ngram, facts=llama, node="h200x1").launch
    single = build(ngram, KVLayout(page_size_tokens=choose(1)), facts=llama, node="h200x1").launch
    assert paged.value_of("--speculative-ngram-max-bfs-breadth") == "1"
    assert not single.has("--speculative-ngram-max-bfs-breadth")


def test_a_draft_does_not_inherit_a_quantization_word(build: Any) -> None:
    words = WeightQuantization(engine_quantization=choose("modelopt_fp4"))
    launch = build(words, DFLASH, parallel={"tensor": 4}).launch
    assert launch.value_of("--quantization") == "modelopt_fp4"
    assert launch.value_of("--speculative-draft-model-quantization") == "unquant"


def test_no_quantization_word_without_need(full: Any) -> None:
    assert not full.launch.has("--quantization")


@pytest.mark.parametrize(("node", "backend"), [("b200x8", "flashinfer"), ("h200x8", "fa3")])
def test_a_draft_gets_kernels_that_it_runs_on(build: Any, node: str, backend: str) -> None:
    launch = build(DFLASH, node=node, parallel={"tensor": 8}).launch
    assert launch.value_of("--speculative-draft-attention-backend") == backend


def test_draft_kv_dtype_is_said_where_the_version_can_say_it(build: Any) -> None:
    kv = KVLayout(dtype=choose("fp8_e4m3"), draft_dtype=choose("bfloat16"))
    flag = "--speculative-draft-kv-cache-dtype"
    assert build(DFLASH, kv, version="0.5.18", parallel={"tensor": 4}).launch.value_of(flag) == "bf16"
    assert not build(DFLASH, kv, version="0.5.17", parallel={"tensor": 4}).launch.has(flag)
    assert not build(kv, parallel={"tensor": 4}).launch.has(flag)


def test_dflash_with_attention_groups_gets_what_sglang_demands(build: Any) -> None:
    launch = build(DFLASH, node="b200x8", parallel={"tensor": 8, "attention_data": 8}).launch
    assert launch.has("--enable-dp-lm-head")


def test_the_host_tier_is_divided_among_ranks_in_whole_gigabytes(build: Any) -> None:
    launch = build(CacheTier(level=2, capacity_bytes=choose(602 * GB)), parallel={"tensor": 4}).launch
    assert launch.value_of("--hicache-size") == "150"


def test_the_draft_mirror_comes_out_of_the_host_tier(build: Any) -> None:
    """Target 35,136 bytes a token, draft as many: half of each rank's 150 GB is the target's."""
    charge = MemoryCharge(what="draft KV", per_kv_token_bytes=35136)
    drafting = DFLASH.model_copy(update={"charges": (charge,)})
    fp8 = KVLayout(dtype=choose("fp8_e4m3"))
    tier = CacheTier(level=2, capacity_bytes=choose(600 * GB))
    assert build(drafting, fp8, tier, parallel={"tensor": 4}).launch.value_of("--hicache-size") == "75"


def test_a_host_tier_below_a_gigabyte_a_rank_is_refused(build: Any) -> None:
    with pytest.raises(PlanRefusedError, match="less than the 1 GB a rank"):
        build(CacheTier(level=2, capacity_bytes=choose(3 * GB)), parallel={"tensor": 4})


def test_a_storage_directory_carries_its_key_once(build: Any) -> None:
    def directory(**tier: Any) -> str:
        host = CacheTier(level=2, capacity_bytes=choose(40 * GB))
        planned = build(host, CacheTier(level=3, backend=choose("file"), **tier), parallel={"tensor": 4})
        return planned.launch.env(port=1, folder="")["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"]

    assert directory(directory=choose("/kv/"), key=choose("abc")) == "/kv/abc"
    assert directory(directory=choose("/kv/abc"), key=choose("abc")) == "/kv/abc"
    assert directory(directory=choose("/kv")) == "/kv"


def test_storage_settings_reach_the_engine(build: Any) -> None:
    planned = build(
        CacheTier(level=2, capacity_bytes=choose(40 * GB)),
        CacheTier(
            level=3,
            backend=choose("mooncake"),
            prefetch_policy=choose("wait_complete"),
            extra_config=choose({"master_server_address": "10.0.0.1:50051", "b": 1}),
        ),
        parallel={"tensor": 4},
    )
    launch = planned.launch
    assert launch.value_of("--hicache-storage-backend") == "mooncake"
    assert launch.value_of("--hicache-storage-prefetch-policy") == "wait_complete"
    assert launch.value_of("--hicache-storage-backend-extra-config") == (
        '{"b": 1, "master_server_address": "10.0.0.1:50051"}'
    )


def test_development_endpoints_prove_the_storage_directory(build: Any) -> None:
    tiers = (
        CacheTier(level=2, capacity_bytes=choose(40 * GB)),
        CacheTier(level=3, backend=choose("file"), directory=choose("/kv")),
    )
    shown = build(*tiers, parallel={"tensor": 4}, serving={"dev_endpoints": True}).launch
    assert shown.env(port=1, folder="")["SGLANG_EXPOSE_OWN_ENV_VARS"] == "1"
    older = build(*tiers, version="0.5.18", parallel={"tensor": 4}, serving={"dev_endpoints": True}).launch
    assert "SGLANG_EXPOSE_OWN_ENV_VARS" not in older.env(port=1, folder="")


def test_a_cpu_launch_is_the_one_that_was_seen_to_work(build: Any, llama: Any, cpu: Any) -> None:
    launch = build(facts=llama, node=cpu, serving={"kv_memory_gib": 1}).launch
    assert launch.env(port=1, folder="") == {"SGLANG_USE_CPU_ENGINE": "0"}
    expected = {
        "--device": "cpu",
        "--attention-backend": "torch_native",
        "--sampling-backend": "pytorch",
        "--max-total-tokens": "8192",  # 1 GiB at 131,072 bytes a token
        "--mem-fraction-static": "0.9",
        "--cuda-graph-max-bs-decode": None,
    }
    assert {flag: launch.value_of(flag) for flag in expected} == expected


def test_a_plugin_of_another_kind_brings_its_own_flags(build: Any) -> None:
    own = WeightQuantization(
        arguments=(
            EngineArgument(backend="sglang", name="--enable-mixed-chunk", why="more prefill in decode steps"),
            EngineArgument(backend="sglang", name="SGLANG_X", value="1", env=True, why="a switch"),
            EngineArgument(backend="vllm", name="--other", why="not ours"),
        )
    )
    planned = build(own, parallel={"tensor": 4})
    assert planned.words[-1] == "--enable-mixed-chunk"
    assert planned.launch.env(port=1, folder="")["SGLANG_X"] == "1"


def test_a_plugin_that_sets_a_flag_of_the_plan_is_refused_with_both_names(build: Any) -> None:
    own = WeightQuantization(
        arguments=(EngineArgument(backend="sglang", name="--chunked-prefill-size", value="2048", why="x"),)
    )
    with pytest.raises(PlanRefusedError, match=r"sglang sets '16384', mine sets '2048'"):
        build(own, parallel={"tensor": 4})


@pytest.mark.parametrize("words", [["--page-size", "32"], ["--tp", "8"], ["--enable-hicache"], ["--model=x"]])
def test_engine_args_may_not_repeat_a_flag_of_the_plan(build: Any, words: list[str]) -> None:
    tier = CacheTier(level=2, capacity_bytes=choose(40 * GB))
    with pytest.raises(PlanRefusedError, match=r"engine_args repeats .* which \w+ sets to"):
        build(tier, parallel={"tensor": 4}, engine_args=words)


def test_engine_args_come_last(build: Any) -> None:
    planned = build(parallel={"tensor": 4}, engine_args=["--log-requests", "--watchdog-timeout", "600"])
    assert planned.words[-3:] == ["--log-requests", "--watchdog-timeout", "600"]
