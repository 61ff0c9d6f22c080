"""What the launch says of the engine as a whole, and when it cannot be said."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.errors import PlanRefusedError
from optistack.plan.core_rules import CORE_RULES
from optistack.settings import CacheTier, EngineArgument, KVLayout, Serving, WeightQuantization, choose

GB = 10**9


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


def test_a_cpu_launch_is_the_one_that_was_seen_to_work(build: Any, llama: Any, cpu: Any) -> None:
    launch = build(facts=llama, node=cpu, serving={"kv_memory_gib": 1}).launch
    assert launch.env(port=1, folder="") == {"SGLANG_USE_CPU_ENGINE": "0"}
    expected = {
        "--device": "cpu",
        "--attention-backend": "torch_native",
        "--sampling-backend": "pytorch",
        "--max-total-tokens": "8192",  # 1 GiB at 131,072 bytes a token
        "--mem-fraction-static": "0.95",
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
    with pytest.raises(PlanRefusedError, match=r"is given by hand.* (\w+ sets|set by) "):
        build(tier, parallel={"tensor": 4}, engine_args=words)


def test_engine_args_come_last(build: Any) -> None:
    planned = build(parallel={"tensor": 4}, engine_args=["--log-requests", "--watchdog-timeout", "600"])
    assert planned.words[-3:] == ["--log-requests", "--watchdog-timeout", "600"]


def test_requests_are_whole_ones_in_each_attention_group(build: Any) -> None:
    """SGLang rounds down a group's part of --max-running-requests, to none at last."""
    groups = {"tensor": 4, "attention_data": 4}
    asked = build(parallel=groups, serving={"max_running_requests": 10})
    assert asked.launch.value_of("--max-running-requests") == "12"
    rule = next(rule for rule in CORE_RULES if rule.id == "requests-over-groups")
    assert rule.fires(asked.context) == "12 instead of 10"
    assert not rule.fires(build(parallel=groups, serving={"max_running_requests": 12}).context)
    left = build(parallel=groups, workload={"concurrency": 25})
    assert left.launch.value_of("--max-running-requests") == "52", "twice 25, and no less"
    assert not rule.fires(left.context)


def test_a_graph_holds_all_requests_of_a_group_padded_to_its_gpus(build: Any) -> None:
    for parallel, batch in (({"tensor": 4, "attention_data": 2}, "4"), ({"tensor": 4}, "6")):
        launch = build(parallel=parallel, serving={"max_running_requests": 6}).launch
        assert launch.value_of("--cuda-graph-max-bs-decode") == batch


def test_sessions_are_scattered_over_attention_groups(build: Any) -> None:
    rule = next(rule for rule in CORE_RULES if rule.id == "sessions-over-groups")
    turns, groups = {"turns": 30}, {"tensor": 4, "attention_data": 4}
    assert rule.fires(build(parallel=groups, workload=turns).context) == "4"
    assert not rule.fires(build(parallel=groups).context)
    assert not rule.fires(build(parallel={"tensor": 4}, workload=turns).context)
    assert not rule.fires(build(parallel=groups, workload=turns, serving={"prefix_caching": False}).context)
