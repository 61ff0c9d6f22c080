"""The command lines of vLLM: whole ones for Kimi on four B200s and for a laptop, and each flag's owner."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from optistack.errors import PlanRefusedError
from optistack.facts.model import ModelFacts
from optistack.launch import Launch
from optistack.settings import (
    CacheTier,
    EngineArgument,
    KVLayout,
    Serving,
    Speculation,
    Value,
    WeightQuantization,
    choose,
)
from optistack_adapters.base import USER
from optistack_adapters.vllm import backend

Make = Callable[..., Any]

DFLASH = Speculation(
    method=choose("dflash", why="the draft is one"),
    draft_checkpoint=choose("org/kimi-dflash", why="option draft"),
    num_draft_tokens=7,
    draft_quantization="none",
    draft_attention_backend="FLASH_ATTN",
)
FP8 = KVLayout(dtype=choose("fp8_e4m3", why="half the bytes"), draft_dtype="bfloat16")
HOST = CacheTier(level=2, backend="native", capacity_bytes=int(700.5 * 2**30))
FILE = CacheTier(level=3, backend="file", directory="/kv/a1b2", key="a1b2")
NVFP4 = WeightQuantization(experts="nvfp4", moe_backend="flashinfer_trtllm")

KIMI = {
    "model": {"checkpoint": "org/kimi", "served_name": "kimi-k2.6", "trust_remote_code": True},
    "serving": {"host": "0.0.0.0", "reasoning_parser": "kimi_k2", "tool_call_parser": "kimi_k2"},
    "workload": {"concurrency": 5},
}


@pytest.fixture
def render(make_request: Make) -> Callable[..., Launch]:
    def make(*arguments: Any, **options: Any) -> Launch:
        launch: Launch = backend.render(make_request(*arguments, **options))
        return launch

    return make


def argv(launch: Launch) -> list[str]:
    return launch.argv("python", port=8000, folder="/run")


def test_kimi_on_four_b200s_with_every_plugin(kimi: ModelFacts, make_request: Make) -> None:
    request = make_request(kimi, NVFP4, FP8, DFLASH, HOST, FILE, spec=KIMI, replica=1, gpus=(4, 5, 6, 7))
    launch = backend.render(request)
    speculative = {
        "method": "dflash",
        "model": "org/kimi-dflash",
        "num_speculative_tokens": 7,
        "kv_cache_dtype": "bfloat16",
        "attention_backend": "FLASH_ATTN",
    }
    transfer = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "engine_id": "{run}",  # filled in when it is started: what is left in /dev/shm is found by it
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": int(700.5 * 2**30),
            "spec_name": "TieringOffloadingSpec",
            "secondary_tiers": [{"type": "fs", "root_dir": "/kv/a1b2"}],
        },
    }
    assert argv(launch) == [
        *("python", "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", "org/kimi", "--served-model-name", "kimi-k2.6", "--trust-remote-code"),
        *("--tensor-parallel-size", "4"),
        *("--max-model-len", "4096", "--max-num-seqs", "10", "--max-num-batched-tokens", "8192"),
        "--enable-prefix-caching",
        *("--gpu-memory-utilization", "0.968", "--kv-cache-memory-bytes", str(request.budget.kv_bytes)),
        *("--kv-cache-dtype", "fp8_e4m3", "--block-size", "64", "--attention-backend", "FLASHINFER_MLA"),
        *("--moe-backend", "flashinfer_trtllm"),
        *("--speculative-config", json.dumps(speculative)),
        *("--kv-transfer-config", json.dumps(transfer)),
        *("--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2", "--enable-auto-tool-choice"),
        "--enable-prompt-tokens-details",
        *("--host", "0.0.0.0", "--port", "8000"),
    ]
    assert launch.env(port=8000, folder="/run") == {
        "CUDA_VISIBLE_DEVICES": "4,5,6,7",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONHASHSEED": "0",
    }
    assert launch.host == "0.0.0.0"
    assert launch.ready_path == "/health"


def test_a_given_pool_leaves_the_rest_of_a_gpu_to_others(small: ModelFacts, render: Callable[..., Launch]) -> None:
    shared = render(small, FP8, node="b200x4", version="0.33.0", spec={"serving": {"kv_memory_gib": 8}})
    alone = render(small, FP8, node="b200x4", version="0.33.0")
    needed, whole = (float(one.value_of("--gpu-memory-utilization") or 0) for one in (shared, alone))
    assert 8 / 180 < needed < 16 / 180 < 0.9 < whole


def test_a_laptop_gets_exact_kv_bytes_and_nothing_for_gpus(small: ModelFacts, render: Callable[..., Launch]) -> None:
    spec = {"serving": {"kv_memory_gib": 0.5, "dev_endpoints": True}}
    launch = render(small, FP8, node="cpu", version="0.32.0", spec=spec)
    words = argv(launch)
    assert words[words.index("--model") + 1] == str(small.path)
    assert launch.value_of("--kv-cache-memory-bytes") == str(2**29)
    assert launch.value_of("--block-size") == "128"
    assert launch.has("--enforce-eager")
    assert not launch.has("--gpu-memory-utilization")
    assert not launch.has("--attention-backend")
    assert launch.env(port=1, folder="/run") == {
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_SERVER_DEV_MODE": "1",
    }


def test_a_float32_model_stays_float32_on_a_cpu(small: ModelFacts, render: Callable[..., Launch]) -> None:
    """vLLM would make 16 bits of its weights, and has no word for its KV."""
    launch = render(
        small.model_copy(update={"dtype": "float32"}),
        KVLayout(dtype="float32"),
        node="cpu",
        spec={"serving": {"kv_memory_gib": 1}},
    )
    assert (launch.value_of("--dtype"), launch.value_of("--kv-cache-dtype")) == ("float32", "auto")
    assert not render(small, node="cpu", spec={"serving": {"kv_memory_gib": 1}}).has("--dtype")
    assert not render(small.model_copy(update={"dtype": "float32"}), FP8).has("--dtype")


def test_every_part_says_who_set_it_and_why(kimi: ModelFacts, render: Callable[..., Launch]) -> None:
    launch = render(kimi, FP8, DFLASH, HOST, FILE, spec=KIMI)
    for part in (*launch.arguments, *launch.variables):
        assert part.source, part
    by_flag = {argument.flag: argument for argument in launch.arguments}
    assert by_flag["--kv-cache-dtype"].setting == "kv.dtype"
    assert by_flag["--kv-cache-dtype"].source == "plugin"
    assert by_flag["--kv-cache-dtype"].why == "half the bytes"
    assert by_flag["--attention-backend"].source == "vllm"
    assert by_flag["--model"].source == USER
    assert by_flag["--kv-cache-memory-bytes"].source == "plan"
    why = by_flag["--speculative-config"].why
    assert "method: the draft is one" in why and "model: option draft" in why


def test_a_hub_draft_keeps_the_hub_open(small: ModelFacts, render: Callable[..., Launch]) -> None:
    spec = {"serving": {"kv_memory_gib": 1}}
    near = DFLASH.model_copy(update={"draft_checkpoint": Value(value="/models/draft")})
    assert "HF_HUB_OFFLINE" in render(small, near, node="cpu", spec=spec).env(port=1, folder="")
    assert "HF_HUB_OFFLINE" not in render(small, DFLASH, node="cpu", spec=spec).env(port=1, folder="")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "my_host", "127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_development_endpoints_stay_shut_on_an_open_address(
    small: ModelFacts, render: Callable[..., Launch], host: str
) -> None:
    spec = {"serving": {"host": host, "dev_endpoints": True}}
    opened = "VLLM_SERVER_DEV_MODE" in render(small, node="h200x1", spec=spec).env(port=1, folder="")
    assert opened is (host.startswith("127.") or host in ("::1", "localhost"))


def test_a_host_tier_alone_is_a_size_in_gib(kimi: ModelFacts, render: Callable[..., Launch]) -> None:
    launch = render(kimi, HOST)
    assert launch.value_of("--kv-offloading-size") == "700.5"
    assert launch.value_of("--kv-offloading-backend") == "native"
    assert not launch.has("--kv-transfer-config")
    assert "PYTHONHASHSEED" not in launch.env(port=1, folder="")


def test_attention_groups_share_the_host_tier(kimi: ModelFacts, render: Callable[..., Launch]) -> None:
    spec = {"parallel": {"tensor": 4, "attention_data": 4, "expert": 4}}
    assert render(kimi, HOST, spec=spec).value_of("--kv-offloading-size") == "175.125"
    transfer = render(kimi, HOST, FILE, spec=spec).value_of("--kv-transfer-config") or ""
    assert json.loads(transfer)["kv_connector_extra_config"]["cpu_bytes_to_use"] == int(700.5 * 2**30) // 4


def test_selective_writes_need_the_connector(kimi: ModelFacts, render: Callable[..., Launch]) -> None:
    launch = render(kimi, HOST, CacheTier(level=2, write_policy="write_through_selective"))
    assert not launch.has("--kv-offloading-size")
    extra = json.loads(launch.value_of("--kv-transfer-config") or "")["kv_connector_extra_config"]
    assert extra == {"cpu_bytes_to_use": int(700.5 * 2**30), "store_threshold": 2}


def test_mooncake_is_described_in_a_file(kimi: ModelFacts, render: Callable[..., Launch]) -> None:
    settings = {"master_server_address": "10.0.0.1:50051", "metadata_server": "http://10.0.0.1:8080/metadata"}
    launch = render(kimi, HOST, CacheTier(level=3, backend="mooncake", extra_config=choose(settings)))
    transfer = json.loads(launch.value_of("--kv-transfer-config") or "")
    children = transfer["kv_connector_extra_config"]["connectors"]
    assert [child["kv_connector"] for child in children] == ["OffloadingConnector", "MooncakeStoreConnector"]
    assert transfer["kv_load_failure_policy"] == "recompute"
    assert json.loads(launch.files[0].content) == settings
    assert launch.env(port=1, folder="/run")["MOONCAKE_CONFIG_PATH"] == "/run/mooncake.json"


def test_lmcache_is_one_connector_for_both_tiers(kimi: ModelFacts, render: Callable[..., Launch]) -> None:
    host = CacheTier(level=2, backend="lmcache", extra_config=choose({"lmcache.mp.port": 6555}))
    launch = render(kimi, host, CacheTier(level=3, backend="lmcache"))
    assert json.loads(launch.value_of("--kv-transfer-config") or "") == {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"lmcache.mp.port": 6555},
    }
    assert launch.has("--disable-hybrid-kv-cache-manager")


def test_attention_groups_are_data_parallelism(kimi: ModelFacts, render: Callable[..., Launch]) -> None:
    launch = render(kimi, spec={"parallel": {"tensor": 4, "attention_data": 4, "expert": 4}})
    assert launch.value_of("--tensor-parallel-size") == "1"
    assert launch.value_of("--data-parallel-size") == "4"
    assert launch.value_of("--max-num-seqs") == "3", "12 running requests over 4 groups"
    assert launch.has("--enable-expert-parallel")


def test_switches_have_both_positions(small: ModelFacts, render: Callable[..., Launch]) -> None:
    off = render(
        small, Serving(prefix_caching=False, metrics=False, cache_report=False, cuda_graphs=False), node="h200x1"
    )
    assert off.has("--no-enable-prefix-caching") and not off.has("--enable-prefix-caching")
    assert off.has("--disable-log-stats") and off.has("--enforce-eager")
    assert not off.has("--enable-prompt-tokens-details")


def test_the_largest_graph_is_counted_in_tokens(small: ModelFacts, render: Callable[..., Launch]) -> None:
    launch = render(small, DFLASH, Serving(cuda_graph_max_batch=16), node="h200x1")
    assert launch.value_of("--max-cudagraph-capture-size") == "128"


def test_words_of_other_kinds_of_plugins_pass_through(small: ModelFacts, render: Callable[..., Launch]) -> None:
    eagle = Speculation(method="eagle3", draft_checkpoint="org/eagle", num_draft_tokens=3, draft_quantization="fp8")
    launch = render(
        small,
        eagle,
        KVLayout(
            arguments=(
                EngineArgument(backend="vllm", name="--kv-cache-dtype-skip-layers", value="0", why="first layer"),
                EngineArgument(backend="vllm", name="--gone", versions="<0.30", why="old"),
                EngineArgument(backend="sglang", name="--other", why="other engine"),
                EngineArgument(backend="vllm", name="VLLM_X", value="1", env=True, why="variable"),
            )
        ),
        Serving(prefill_attention_backend="FLASH_ATTN", schedule_policy="priority"),
        node="h200x1",
    )
    assert json.loads(launch.value_of("--speculative-config") or "") == {
        "method": "eagle3",
        "model": "org/eagle",
        "num_speculative_tokens": 3,
        "quantization": "fp8",
    }
    assert launch.value_of("--kv-cache-dtype-skip-layers") == "0"
    assert not launch.has("--gone") and not launch.has("--other")
    assert launch.env(port=1, folder="")["VLLM_X"] == "1"
    assert launch.value_of("--scheduling-policy") == "priority"


def test_ngram_has_no_draft_model_to_describe(small: ModelFacts, render: Callable[..., Launch]) -> None:
    launch = render(small, Speculation(method="ngram", num_draft_tokens=4), FP8, node="h200x1")
    assert json.loads(launch.value_of("--speculative-config") or "") == {"method": "ngram", "num_speculative_tokens": 4}


def test_mla_has_prefill_kernels_of_its_own(kimi: ModelFacts, render: Callable[..., Launch]) -> None:
    launch = render(kimi, Serving(prefill_attention_backend="TRTLLM_RAGGED"))
    assert launch.value_of("--attention-config") == '{"mla_prefill_backend": "TRTLLM_RAGGED"}'


def test_engine_args_come_last_and_as_they_are(small: ModelFacts, render: Callable[..., Launch]) -> None:
    launch = render(small, node="h200x1", spec={"engine_args": ["--language-model-only", "--seed", "7"]})
    assert argv(launch)[-3:] == ["--language-model-only", "--seed", "7"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--max-model-len", "10"], "--max-model-len"),
        (["--max_model_len=10"], "--max_model_len"),
        (["-tp", "8"], "-tp"),
        (["--no-enable-prefix-caching"], "--no-enable-prefix-caching"),
        (["--spec-method", "ngram"], "--spec-method"),
        (["--speculative-config.method", "ngram"], "--speculative-config"),
        (["--kv-transfer-config", "{}"], "--kv-transfer-config"),
    ],
)
def test_engine_args_that_repeat_a_flag_are_refused(
    words: list[str], named: str, kimi: ModelFacts, render: Callable[..., Launch]
) -> None:
    with pytest.raises(PlanRefusedError, match=named):
        render(kimi, DFLASH, HOST, spec={"engine_args": words})


def test_two_owners_of_a_flag_are_refused(small: ModelFacts, render: Callable[..., Launch]) -> None:
    extra = KVLayout(arguments=(EngineArgument(backend="vllm", name="--block-size", value="32", why="mine"),))
    with pytest.raises(PlanRefusedError, match="--block-size has two owners"):
        render(small, extra, node="h200x1")
