"""What the launch says of speculation and of cache tiers."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.errors import PlanRefusedError
from optistack.settings import CacheTier, KVLayout, MemoryCharge, Speculation, WeightQuantization, choose

GB = 10**9
DFLASH = Speculation(method=choose("dflash"), draft_checkpoint=choose("some/draft"), num_draft_tokens=choose(7))


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


def test_a_mooncake_store_is_tagged_with_the_key(build: Any) -> None:
    def config(**tier: Any) -> str | None:
        host = CacheTier(level=2, capacity_bytes=choose(40 * GB))
        planned = build(host, CacheTier(level=3, key=choose("abc"), **tier), parallel={"tensor": 4})
        value: str | None = planned.launch.value_of("--hicache-storage-backend-extra-config")
        return value

    assert config(backend=choose("mooncake")) == '{"extra_backend_tag": "abc"}'
    own = choose({"extra_backend_tag": "mine"})
    assert config(backend=choose("mooncake"), extra_config=own) == '{"extra_backend_tag": "mine"}'
    assert config(backend=choose("file"), directory=choose("/kv/abc")) is None


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
