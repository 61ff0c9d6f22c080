"""Apply the laptop stack to a real SGLang and read the receipt; then hold another engine against the same plan."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.conftest import LAPTOP, Optistack
from tests.e2e.receipts import lines_of

from optistack.engines.environment import installed_engines

pytestmark = pytest.mark.engine

STACK = ("--backend", "sglang", "--stack", LAPTOP, "--allow-degraded")

PROVEN = (
    "engine.version",
    "model.served_name",
    "serving.attention_backend",
    "serving.context_tokens",
    "serving.max_running_requests",
    "serving.chunked_prefill_tokens",
    "serving.prefix_caching",
    "serving.metrics",
    "serving.cache_report",
    "kv.dtype",
    "kv.page_size_tokens",
    "budget.kv_tokens",
    "kv-fp8/bytes-per-token",
    "routing/prefix-cache",
)
"""What the receipt of the laptop stack must prove on SGLang."""


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    if any(environment.name == "sglang-cpu" for environment in installed_engines()):
        return
    missing = "sglang-cpu is not installed: run `optistack engine install sglang-cpu`"
    if os.environ.get("OPTISTACK_REQUIRE_ENGINES") == "1":
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture(scope="module")
def applied(optistack: Optistack) -> Iterator[dict[str, Any]]:
    result = optistack("apply", *STACK, "--set", "name=laptop-sglang", "--json")
    assert result.code == 0, result.err
    assert "Asking sglang 0.5.23 what it makes of the launch" in result.err
    yield result.json()
    optistack("down", "laptop-sglang")


def test_the_receipt_proves_every_promise_of_the_stack(applied: dict[str, Any]) -> None:
    lines = lines_of(applied)
    assert {name: lines[name]["status"] for name in PROVEN} == dict.fromkeys(PROVEN, "pass")
    assert not [line for line in lines.values() if line["status"] == "fail"]


def test_the_receipt_says_that_the_drafter_was_left_out_and_why(applied: dict[str, Any]) -> None:
    dropped = applied["receipts"][0]["dropped"]
    assert [(entry["plugin"], entry["rule"]) for entry in dropped] == [("dflash", "sglang-cpu-dflash")]


def test_it_answers(applied: dict[str, Any]) -> None:
    body = {"model": "smollm2-135m", "prompt": "def fibonacci(n):\n", "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(
        f"{applied['endpoints'][0]}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 24


def test_what_the_whole_stack_asks_for_is_refused_without_leave_to_drop_it(optistack: Optistack) -> None:
    refused = optistack("apply", "--backend", "sglang", "--stack", LAPTOP)
    assert (refused.code, "sglang-cpu-dflash" in refused.err) == (2, True)


@pytest.fixture(scope="module")
def plain(optistack: Optistack, applied: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The receipt of an engine with BF16 KV, half the pool and no radix cache, held against the whole stack."""
    assert optistack("down", "laptop-sglang").code == 0
    other = ("--no-plugin", "kv-fp8", "--set", "serving.prefix_caching=false", "--set", "serving.kv_memory_gib=0.5")
    started = optistack("apply", *STACK, *other, "--set", "name=plain-sglang", "--json", "--no-verify")
    assert started.code == 0, started.err
    result = optistack("verify", *STACK, "--endpoint", started.json()["endpoints"][0], "--json")
    assert result.code == 1, result.err
    assert optistack("down", "plain-sglang").code == 0
    return lines_of(result.json())


@pytest.mark.parametrize(
    "check",
    ["kv.dtype", "kv-fp8/bytes-per-token", "budget.kv_tokens", "serving.prefix_caching", "routing/prefix-cache"],
)
def test_a_check_fails_on_an_engine_without_the_feature(plain: dict[str, dict[str, Any]], check: str) -> None:
    assert plain[check]["status"] == "fail", plain[check]
