"""Apply the laptop stack to a real vLLM and read the receipt; then break the engine on purpose and read it again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.e2e.conftest import FP8_KV, LAPTOP, LAPTOP_ON_VLLM, Optistack
from tests.e2e.polling import until
from tests.e2e.receipts import lines_of

from optistack.verify.endpoint import Endpoint
from optistack_conformance.greedy import Generation, generate, score
from optistack_conformance.margin import ScoredToken, bound_nat
from optistack_dflash.probe import CODE_PROMPTS

pytestmark = pytest.mark.engine
only_with_fp8_kv = pytest.mark.skipif(not FP8_KV, reason="vLLM has FP8 KV only on a CPU with AVX-512 or AMX")

PROVEN = (
    "engine.version",
    "model.served_name",
    "kv.dtype",
    *(("kv.draft_dtype",) if FP8_KV else ()),
    "kv.page_size_tokens",
    "serving.prefix_caching",
    "speculation.method",
    "speculation.draft_checkpoint",
    "speculation.num_draft_tokens",
    "budget.kv_tokens",
    "dflash/drafts-move",
    "dflash/draft-tokens",
    "dflash/acceptance-length",
    "dflash/greedy-margin",
    "dflash/warm-acceptance",
    "routing/prefix-cache",
)
"""What the receipt of the laptop stack must prove."""


def marked(deployment_id: str) -> list[psutil.Process]:
    """Every process of a deployment, by the mark in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get("OPTISTACK_DEPLOYMENT")
            if mark == deployment_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.skipif(FP8_KV, reason="this machine's CPUs have what the stack asks for")
def test_fp8_kv_is_refused_where_the_engine_would_not_start_with_it(optistack: Optistack) -> None:
    refused = optistack("apply", "--backend", "vllm", "--stack", LAPTOP)
    assert (refused.code, "vllm-cpu-fp8-isa" in refused.err) == (2, True)


@pytest.fixture(scope="module")
def applied(optistack: Optistack) -> Iterator[dict[str, Any]]:
    result = optistack("apply", *LAPTOP_ON_VLLM, "--json")
    assert result.code == 0, result.err
    yield result.json()
    assert optistack("down", "laptop").code == 0


def test_the_receipt_proves_every_promise_of_the_stack(applied: dict[str, Any]) -> None:
    lines = lines_of(applied)
    assert {name: lines[name]["status"] for name in PROVEN} == dict.fromkeys(PROVEN, "pass")
    assert not [line for line in lines.values() if line["status"] == "fail"]


def test_the_drafter_earns_its_keep_on_code(applied: dict[str, Any]) -> None:
    """The floor is the stack's; 2.15 was measured."""
    lines = lines_of(applied)
    accepted = lines["dflash/acceptance-length"]
    assert accepted["asked"] == "at least 1.8 tokens a step"
    assert accepted["engine_says"].endswith("steps of 8 code prompts")
    assert float(accepted["engine_says"].split()[0]) >= 1.8
    assert float(re.findall(r"largest margin ([0-9.]+) nat", lines["dflash/greedy-margin"]["engine_says"])[0]) <= 2.0
    assert not lines["dflash/warm-acceptance"]["why"]


def test_it_answers(applied: dict[str, Any]) -> None:
    body = {"model": "smollm2-135m", "prompt": "def fibonacci(n):\n", "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(
        f"{applied['endpoints'][0]}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] == 24


def test_status_names_it_and_a_second_apply_is_refused(optistack: Optistack, applied: dict[str, Any]) -> None:
    running = optistack("status", "--json").json()["deployments"]
    assert [(d["name"], d["phase"], d["endpoints"]) for d in running] == [("laptop", "ready", applied["endpoints"])]
    again = optistack("apply", *LAPTOP_ON_VLLM)
    assert (again.code, "optistack down laptop" in again.err) == (2, True)


def test_verify_proves_an_engine_that_somebody_else_started(optistack: Optistack, applied: dict[str, Any]) -> None:
    result = optistack("verify", *LAPTOP_ON_VLLM, "--endpoint", applied["endpoints"][0], "--json")
    assert result.code == 0, result.err
    lines = lines_of(result.json())
    assert {name: lines[name]["status"] for name in PROVEN} == dict.fromkeys(PROVEN, "pass")


@pytest.fixture(scope="module")
def drafted(applied: dict[str, Any]) -> list[Generation]:
    """The drafting engine's greedy answers to the built-in code prompts."""
    with Endpoint(applied["endpoints"][0]) as endpoint:
        return [generate(endpoint, prompt, max_tokens=64) for prompt in CODE_PROMPTS]


@pytest.fixture(scope="module")
def both(optistack: Optistack, drafted: list[Generation]) -> list[tuple[Sequence[ScoredToken], Sequence[ScoredToken]]]:
    """For each prompt the text without speculation, all else as in the stack, and the drafted one: both as the engine
    without speculation scores them in one prefill."""
    assert optistack("down", "laptop").code == 0
    words = ("--no-plugin", "dflash", "--set", "name=undrafted", "--json", "--no-verify")
    started = optistack("apply", *LAPTOP_ON_VLLM, *words)
    assert started.code == 0, started.err
    with Endpoint(started.json()["endpoints"][0]) as endpoint:
        plain = [generate(endpoint, prompt, max_tokens=64) for prompt in CODE_PROMPTS]
        found = [(score(endpoint, one), score(endpoint, other)) for one, other in zip(plain, drafted, strict=True)]
    assert optistack("down", "undrafted").code == 0
    return found


def test_where_texts_part_the_target_is_at_a_near_tie(
    both: list[tuple[Sequence[ScoredToken], Sequence[ScoredToken]]],
) -> None:
    bound = bound_nat("fp8_e4m3" if FP8_KV else "float32")
    for texts in both:
        parted = next((pair for pair in zip(*texts, strict=False) if pair[0].emitted != pair[1].emitted), ())
        assert all(token.margin_nat <= bound for token in parted), parted


@pytest.fixture(scope="module")
def plain(optistack: Optistack, applied: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The receipt of an engine that was started plainly, held against the whole stack."""
    assert optistack("down", "laptop").code == 0
    without = ("--no-plugin", "kv-fp8", "--no-plugin", "dflash", "--set", "serving.prefix_caching=false")
    less = ("--set", "serving.kv_memory_gib=0.5", "--set", "name=plain")
    started = optistack("apply", *LAPTOP_ON_VLLM, *without, *less, "--json", "--no-verify")
    assert started.code == 0, started.err
    endpoint = started.json()["endpoints"][0]
    result = optistack("verify", *LAPTOP_ON_VLLM, "--endpoint", endpoint, "--json")
    assert result.code == 1
    assert optistack("down", "plain").code == 0
    return lines_of(result.json())


@pytest.mark.parametrize(
    "check",
    [
        pytest.param("kv.dtype", marks=only_with_fp8_kv),
        "serving.prefix_caching",
        "speculation.method",
        "speculation.num_draft_tokens",
        "budget.kv_tokens",
        pytest.param("kv-fp8/bytes-per-token", marks=only_with_fp8_kv),
        "dflash/drafts-move",
        "routing/prefix-cache",
    ],
)
def test_a_check_fails_on_an_engine_without_the_feature(plain: dict[str, dict[str, Any]], check: str) -> None:
    assert plain[check]["status"] == "fail", plain[check]


@pytest.fixture(scope="module")
def other(
    optistack: Optistack, applied: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """A running engine with another KV dtype where there is one, another draft and another number of draft tokens."""
    draft = tmp_path_factory.mktemp("draft") / "other"
    shutil.copytree(Path(lines_of(applied)["speculation.draft_checkpoint"]["asked"]), draft)
    changes = {"dflash.draft": str(draft), "dflash.num_draft_tokens": "3", "name": "other"}
    changes |= {"kv-fp8.dtype": "fp8_e5m2"} if FP8_KV else {}
    words = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    optistack("down")
    started = optistack("apply", *LAPTOP_ON_VLLM, *words, "--json", "--no-verify")
    assert started.code == 0, started.err
    yield started.json()
    optistack("down", "other")


def test_checks_fail_on_an_engine_with_other_values(optistack: Optistack, other: dict[str, Any]) -> None:
    endpoint = other["endpoints"][0]
    result = optistack("verify", *LAPTOP_ON_VLLM, "--endpoint", endpoint, "--json")
    assert result.code == 1
    lines = lines_of(result.json())
    broken = (
        *(("kv.dtype",) if FP8_KV else ()),
        "speculation.draft_checkpoint",
        "speculation.num_draft_tokens",
        "dflash/draft-tokens",
    )
    assert {name: lines[name]["status"] for name in broken} == dict.fromkeys(broken, "fail")


def test_no_engine_outlives_a_supervisor_that_is_killed(optistack: Optistack, other: dict[str, Any]) -> None:
    running = optistack("status", "--json").json()["deployments"]
    entry = next(deployment for deployment in running if deployment["name"] == "other")
    assert marked(entry["id"])
    os.kill(entry["supervisor_pid"], signal.SIGKILL)
    until(lambda: not marked(entry["id"]), timeout_s=60)
