"""Weights with the awkward values in them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the codec needs the extra `convert`")


def _boundaries(dtype: Any) -> Any:
    """[rows, 16]: each block's largest value is 6, so its scale is as the tensor's, and the rest sit at every point
    between two E2M1 values, just under it and just over it, in both signs."""
    points = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], dtype=dtype)
    near = torch.cat([points, torch.nextafter(points, points * 0), torch.nextafter(points, points * 9)])
    both = torch.cat([near, -near, torch.tensor([0.0, -0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0], dtype=dtype)])
    rows = torch.nn.functional.pad(both, (0, -both.numel() % 15)).view(-1, 15)
    return torch.cat([torch.full((rows.shape[0], 1), 6.0, dtype=dtype), rows], 1)


def _scale_boundaries() -> Any:
    """[rows, 16] whose block scales, for a global scale of 1, fall on every point between two E4M3 values and next to
    it: subnormal, normal, and past 448."""
    codes = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
    middle = (codes[1:] + codes[:-1]) / 2
    wanted = torch.cat([codes, middle, torch.nextafter(middle, middle * 0), torch.nextafter(middle, middle * 9)])
    wanted = torch.cat([wanted, torch.tensor([448.0, 449.0, 464.0, 465.0, 500.0, 1e6])])
    spread = torch.linspace(-1.0, 1.0, 16).repeat(wanted.numel(), 1)
    return spread * (wanted * 6.0).unsqueeze(1)


@pytest.fixture(scope="session")
def weights() -> dict[str, Any]:
    """By name: float32 or bfloat16 matrices."""
    draw = torch.Generator().manual_seed(7)

    def normal(*shape: int, scale: float = 0.02) -> Any:
        return torch.randn(*shape, generator=draw) * scale

    outliers = normal(33, 80)
    outliers[5, 3], outliers[20, 79] = 9.0, -7.5
    zeros = normal(9, 48)
    zeros[2:5], zeros[:, 16:32] = 0.0, -0.0
    return {
        "usual": normal(64, 256).to(torch.bfloat16),
        "ragged": normal(37, 112).to(torch.bfloat16),
        "one block": normal(1, 16),
        "float32": normal(19, 96),
        "heavy tails": (normal(24, 128, scale=1.0) ** 5).to(torch.bfloat16),
        "outliers": outliers,
        "zero blocks": zeros,
        "all zero": torch.zeros(3, 32),
        "values between": _boundaries(torch.float32),
        "values between, bf16": _boundaries(torch.bfloat16),
        "scales between": _scale_boundaries(),
        "denormals": normal(16, 64, scale=1e-39),
        "some denormals": torch.cat([normal(8, 64, scale=1e-36), normal(8, 64, scale=1e-39)]),
        "bf16 denormals": normal(16, 64, scale=1e-38).to(torch.bfloat16),
        "huge": normal(16, 64, scale=8e37).to(torch.bfloat16),
    }
