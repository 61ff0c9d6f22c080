"""The probe against honest engines and faulty ones."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import optistack_kv_fp8
from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import CheckResult, Status

FP8, BF16 = 35_136, 70_272
TOKENS = 890_048
DRAFT_KV = 10_240


def check(world: Any, routes: dict[str, Any]) -> CheckResult:
    def answer(request: httpx.Request) -> httpx.Response:
        body = routes.get(request.url.path)
        if body is None:
            return httpx.Response(404)
        return httpx.Response(200, text=body) if isinstance(body, str) else httpx.Response(200, json=body)

    with Endpoint("http://engine", transport=httpx.MockTransport(answer)) as endpoint:
        (result,) = optistack_kv_fp8.optistack_probe(plan=world.plan(), endpoint=endpoint)
    return result


def sglang(bytes_per_token: int, tokens: int = TOKENS) -> dict[str, Any]:
    gib = round(bytes_per_token * (tokens + 64) / 2**30, 3)  # a page to spare, three decimals
    memory = {"kvcache": gib, "token_capacity": tokens}
    return {"/server_info": {"internal_states": [{"memory_usage": memory}]}}


def vllm(pool: object, tokens: object) -> dict[str, Any]:
    labels = f'block_size="64",kv_cache_memory_bytes="{pool}",kv_cache_size_tokens="{tokens}"'
    return {"/metrics": f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels}}} 1.0\n"}


def test_sglang_with_fp8_kv_passes_and_names_its_figures(world: Any) -> None:
    result = check(world, sglang(FP8))
    assert (result.id, result.status) == ("kv-fp8/bytes-per-token", Status.PASS)
    assert result.asked == "35,136 bytes for each KV token on a GPU"
    assert "token_capacity 890,048" in result.proof


def test_sglang_with_bf16_kv_fails(world: Any) -> None:
    result = check(world, sglang(BF16))
    assert (result.status, result.engine_says) == (Status.FAIL, "70,277 bytes")


def test_a_draft_has_a_pool_of_its_own_on_sglang(world: Any) -> None:
    assert check(world.charging(DRAFT_KV), sglang(FP8)).status is Status.PASS


def test_a_tiny_pool_is_judged_within_its_rounding(world: Any, small: Any) -> None:
    tiny = world.of(small).spread(tensor=1)  # 11,520 bytes a token
    assert check(tiny, sglang(11_520, tokens=4_096)).status is Status.PASS
    assert check(tiny, sglang(23_040, tokens=4_096)).status is Status.FAIL


def test_vllm_shares_one_pool_between_target_and_draft(world: Any) -> None:
    plan = world.by("vllm").charging(DRAFT_KV)
    assert check(plan, vllm((FP8 + DRAFT_KV) * TOKENS, TOKENS)).status is Status.PASS
    assert check(plan, vllm((BF16 + DRAFT_KV) * TOKENS, TOKENS)).status is Status.FAIL
    assert check(plan, vllm(FP8 * TOKENS, TOKENS)).status is Status.FAIL  # no draft, or one without KV


@pytest.mark.parametrize("routes", [{}, {"/metrics": "up 1\n"}, vllm("None", TOKENS), vllm(10**9, "None")])
def test_vllm_without_figures_proves_nothing(world: Any, routes: dict[str, Any]) -> None:
    assert check(world.by("vllm"), routes).status is Status.UNPROVEN


@pytest.mark.parametrize("routes", [{}, {"/server_info": {}}, {"/server_info": {"internal_states": [{}]}}])
def test_sglang_without_figures_proves_nothing(world: Any, routes: dict[str, Any]) -> None:
    assert check(world, routes).status is Status.UNPROVEN


def test_an_engine_that_the_plugin_does_not_know_proves_nothing(world: Any) -> None:
    assert check(world.by("another"), sglang(FP8)).status is Status.UNPROVEN
