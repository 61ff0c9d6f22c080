from __future__ import annotations

import torch

from optistack_kv_fp8.calibration.histogram import Magnitudes


def seen(states: torch.Tensor, heads: int = 1) -> Magnitudes:
    magnitudes = Magnitudes(heads)
    magnitudes.add(states)
    return magnitudes


def test_amax_is_exact_for_bf16_and_spans_many_adds() -> None:
    states = (torch.randn(2, 3, 50, 8) * 7).to(torch.bfloat16)
    whole = seen(states, heads=3)
    parts = Magnitudes(3)
    for token in range(50):
        parts.add(states[:, :, token : token + 1])
    assert torch.equal(whole.counts, parts.counts)
    assert torch.equal(whole.amax(), states.float().abs().amax((0, 2, 3)))
    assert float(seen(states).amax()) == float(states.float().abs().max())


def test_the_scale_of_amax_puts_the_largest_value_at_the_largest_code() -> None:
    states = torch.tensor([-896.0, 1.0, 3.0]).view(1, 1, 3, 1)
    assert seen(states).scales("amax").tolist() == [2.0]


def test_a_percentile_lets_outliers_be_clipped() -> None:
    states = torch.ones(1, 1, 10_000, 1)
    states[0, 0, 0] = 1000.0
    assert torch.equal(seen(states).scales("percentile", 99.9) * 448.0, torch.tensor([1.0]))
    assert torch.equal(seen(states).scales("percentile", 100.0), seen(states).scales("amax"))


def test_mse_never_errs_more_than_amax_and_less_where_range_is_short() -> None:
    # Most values are so far under the outlier that they are E4M3's denormals, or nothing, under amax.
    states = torch.cat([torch.randn(20_000) * 0.01, torch.tensor([448.0 * 4])]).view(1, 1, -1, 1)
    magnitudes = seen(states)
    assert float(magnitudes.error(magnitudes.scales("mse"))) <= float(magnitudes.error(magnitudes.scales("amax")))
    plain = seen(torch.randn(1, 1, 5000, 4))
    assert float(plain.error(plain.scales("mse"))) <= float(plain.error(plain.scales("amax"))) < 0.04


def test_only_zeros_give_a_scale_of_one_and_what_is_not_finite_is_told() -> None:
    assert seen(torch.zeros(1, 2, 3, 4), heads=2).scales("mse").tolist() == [1.0, 1.0]
    assert seen(torch.ones(1, 1, 1, 1)).finite
    assert not seen(torch.tensor([float("nan")]).view(1, 1, 1, 1)).finite
    assert not seen(torch.tensor([float("-inf")]).view(1, 1, 1, 1)).finite
