"""Figures that were published or measured elsewhere, beside what the budget says. Each test has both."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from optistack.facts import ModelFacts
from optistack.memory import BudgetRequest, budget, bytes_per_token

GB = 1e9
GIB = 1024**3
Make = Callable[..., BudgetRequest]


def within_1_percent(value: float) -> object:
    return pytest.approx(value, rel=0.01)


def test_kimi_weights(kimi: ModelFacts) -> None:
    # Published: 595 GB with NVFP4 routed experts. Ours: 595.1.
    assert kimi.weight_bytes / GB == within_1_percent(595)


def test_kimi_kv_token(kimi: ModelFacts) -> None:
    assert bytes_per_token(kimi, "bfloat16") == 576 * 2 * 61 == 70_272
    # TensorRT-LLM on 8xB300 reported 166.02 GiB for 5,073,376 tokens of FP8: 35,137 bytes each.
    assert bytes_per_token(kimi, "fp8_e4m3") == 35_136 == pytest.approx(166.02 * GIB / 5_073_376, rel=0.001)


@pytest.mark.parametrize(("tensor_parallel", "short_gb"), [(1, 415), (2, 235)])
def test_too_few_gpus_are_refused_with_the_shortfall(kimi_request: Make, tensor_parallel: int, short_gb: float) -> None:
    result = budget(kimi_request(tensor_parallel=tensor_parallel, gross_hbm_gb=180))
    assert not result.feasible
    assert result.shortfall_bytes / GB == within_1_percent(short_gb)
    assert result.kv_tokens == 0
    assert f"{short_gb}.1 GB short" in result.reason


@pytest.mark.parametrize(("tensor_parallel", "kv_gb", "tokens"), [(4, 31.3, 0.445e6), (8, 105.6, 1.50e6)])
def test_gross_kv(kimi_request: Make, tensor_parallel: int, kv_gb: float, tokens: float) -> None:
    # Ours: 31.2 GB and 444 thousand tokens; 105.6 GB and 1.503 million.
    result = budget(kimi_request(tensor_parallel=tensor_parallel, gross_hbm_gb=180))
    assert result.feasible
    assert result.kv_bytes / GB == within_1_percent(kv_gb)
    assert result.kv_tokens == within_1_percent(tokens)


@pytest.mark.parametrize("tensor_parallel", [4, 8])
def test_fp8_kv_doubles_the_tokens(kimi_request: Make, tensor_parallel: int) -> None:
    bf16 = budget(kimi_request(tensor_parallel=tensor_parallel, gross_hbm_gb=180))
    fp8 = budget(kimi_request(tensor_parallel=tensor_parallel, gross_hbm_gb=180, kv_dtype="fp8_e4m3"))
    assert fp8.kv_tokens - 2 * bf16.kv_tokens in (0, 1)


def test_like_for_like_eight_gpus_hold_3_4_times_what_four_do(kimi_request: Make) -> None:
    four, eight = (budget(kimi_request(tensor_parallel=n, gross_hbm_gb=180)).kv_tokens for n in (4, 8))
    assert eight / four == pytest.approx(3.4, abs=0.03)


def test_shared_experts_to_nvfp4(kimi: ModelFacts) -> None:
    assert kimi.bytes_freed("shared_experts", "nvfp4") / GB == within_1_percent(3.80)
    assert kimi.bytes_freed("shared_experts", "nvfp4", before="fp8") / GB == within_1_percent(1.16)


def test_slice_of_kimi_in_bf16(kimi_slice: ModelFacts) -> None:
    # vLLM 0.26 on one H200 reported 60.39 GiB after loading, rotary caches and buffers included. Ours: 60.32.
    assert kimi_slice.weight_bytes / GIB == pytest.approx(60.39, rel=0.002)
    # It reported 63.62 GiB for 2,965,104 tokens: 23,038 bytes each.
    assert bytes_per_token(kimi_slice, "bfloat16") == 576 * 2 * 20 == 23_040
    assert bytes_per_token(kimi_slice, "bfloat16") == pytest.approx(63.62 * GIB / 2_965_104, rel=0.001)
    # With FP8 KV: 63.52 GiB for 5,919,522 tokens.
    assert bytes_per_token(kimi_slice, "fp8_e4m3") == pytest.approx(63.52 * GIB / 5_919_522, rel=0.001)


def test_small_llama(smollm2: ModelFacts) -> None:
    # vLLM 0.26 on one H200 reported 126.34 GiB of FP8 KV for 11,775,312 tokens: 11,520 bytes each.
    assert bytes_per_token(smollm2, "fp8_e4m3") == pytest.approx(126.34 * GIB / 11_775_312, rel=0.001)
    assert bytes_per_token(smollm2, "bfloat16") == 2 * 3 * 64 * 2 * 30 == 23_040
    assert smollm2.parameters == within_1_percent(134.5e6)
