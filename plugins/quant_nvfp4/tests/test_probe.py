"""The probe against honest engines and faulty ones."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import optistack_quant_nvfp4
from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import CheckResult, Status

KIMI_ON_FOUR_GPUS_GIB = 140.987


def check(world: Any, routes: dict[str, Any]) -> CheckResult:
    def answer(request: httpx.Request) -> httpx.Response:
        body = routes.get(request.url.path)
        if body is None:
            return httpx.Response(404)
        return httpx.Response(200, text=body) if isinstance(body, str) else httpx.Response(200, json=body)

    with Endpoint("http://engine", transport=httpx.MockTransport(answer)) as endpoint:
        (result,) = optistack_quant_nvfp4.optistack_probe(plan=world.plan(), endpoint=endpoint)
    return result


def server_info(weight_gib: float | None) -> dict[str, Any]:
    memory = {} if weight_gib is None else {"weight": weight_gib}
    return {"/server_info": {"internal_states": [{"memory_usage": memory}]}}


def test_an_engine_whose_weights_take_what_was_planned_passes(world: Any) -> None:
    result = check(world, server_info(KIMI_ON_FOUR_GPUS_GIB + 0.4))
    assert (result.id, result.status) == ("quant-nvfp4/weight-memory", Status.PASS)
    assert (result.asked, result.engine_says) == ("140.99 GiB of weights on a GPU", "141.39 GiB")
    assert "memory_usage.weight" in result.proof


@pytest.mark.parametrize("factor", [16 / 9, 32 / 9, 0.5])
def test_an_engine_that_loaded_other_weights_fails(world: Any, factor: float) -> None:
    """Experts in FP8, in BF16, or half of them missing."""
    assert check(world, server_info(KIMI_ON_FOUR_GPUS_GIB * factor)).status is Status.FAIL


def test_the_metric_is_evidence_too(world: Any) -> None:
    page = '# TYPE sglang:weight_memory_usage_gb gauge\nsglang:weight_memory_usage_gb{{tp_rank="0"}} {}\n'
    assert check(world, {"/metrics": page.format(141.0)}).status is Status.PASS
    assert check(world, {"/metrics": page.format(250.0)}).status is Status.FAIL


@pytest.mark.parametrize("routes", [{}, {"/server_info": {"internal_states": []}}, server_info(None)])
def test_without_evidence_nothing_is_proven(world: Any, routes: dict[str, Any]) -> None:
    assert check(world, routes).status is Status.UNPROVEN


def test_vllm_gives_no_evidence_and_the_receipt_says_so(world: Any) -> None:
    result = check(world.by("vllm"), {})
    assert result.status is Status.UNPROVEN
    assert "log only" in result.proof
