"""The magnitudes of a layer's K or V as counts of their BF16 bits, and the FP8 scale that suits them.

A BF16 magnitude has 2**15 codes in the order of its values: a histogram of them is exact for BF16 and to one part in
256 for float32, however wide the range, and amax, percentiles and squared errors all follow from it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Method = Literal["amax", "percentile", "mse"]

E4M3_MAX = 448.0
CODES = 1 << 15
_INFINITE = 0x7F80
MSE_STEPS = 64
"""Scales that the MSE search tries: from that of amax down to a sixteenth of it, sixteen an octave."""


class Magnitudes:
    """Counts for each of ``heads``: int64 [heads, 32768] on the CPU."""

    def __init__(self, heads: int) -> None:
        self.counts = torch.zeros((heads, CODES), dtype=torch.int64)

    def add(self, states: Tensor) -> None:
        """Count ``states`` [batch, heads, tokens, dim]; with one head here, those of all of them together."""
        codes = states.detach().to(torch.bfloat16).view(torch.int16).to(torch.int32) & (CODES - 1)
        groups = codes.transpose(0, 1).flatten(1) if self.counts.shape[0] > 1 else codes.reshape(1, -1)
        for head, group in enumerate(groups):
            self.counts[head] += torch.bincount(group, minlength=CODES).cpu()

    @property
    def finite(self) -> bool:
        return int(self.counts[:, _INFINITE:].sum()) == 0

    def amax(self) -> Tensor:
        """float32 [heads]; 0 for one that saw nothing but zeros."""
        return self._at_or_under(1.0)

    def scales(self, method: Method, percentile: float = 99.99) -> Tensor:
        """float32 [heads]: what K or V is divided by before it is cast to E4M3, whose largest number is 448.

        ``amax`` clips nothing; ``percentile`` lets the values past it be clipped; ``mse`` takes the least squared error
        of the values seen. 1.0 for a head that saw only zeros.
        """
        amax = self.amax()
        top = self._at_or_under(percentile / 100) if method == "percentile" else amax
        top = torch.where(top > 0, top, amax)
        scales = top / E4M3_MAX
        if method == "mse":
            scales = torch.stack([self._least_error(head, float(scale)) for head, scale in enumerate(scales)])
        return torch.where(scales > 0, scales, torch.ones_like(scales))

    def error(self, scales: Tensor) -> Tensor:
        """float64 [heads]: the norm of what E4M3 under ``scales`` loses, over the norm of the values."""
        return torch.stack([self._error(head, float(scale)) for head, scale in enumerate(scales)])

    def _at_or_under(self, share: float) -> Tensor:
        """float32 [heads]: the smallest magnitude that at least ``share`` of the values do not exceed."""
        total = self.counts.sum(1, keepdim=True).to(torch.float64)
        reached = self.counts.cumsum(1) >= torch.ceil(total * share).clamp(min=1)
        return _magnitudes()[reached.to(torch.int8).argmax(1)].to(torch.float32)

    def _least_error(self, head: int, widest: float) -> Tensor:
        tried = [widest * 2.0 ** (-step / 16) for step in range(MSE_STEPS + 1)]
        errors = torch.stack([self._error(head, scale) for scale in tried])
        return torch.tensor(tried[int(errors.argmin())], dtype=torch.float32)

    def _error(self, head: int, scale: float) -> Tensor:
        seen = self.counts[head].nonzero().squeeze(1)
        if scale == 0 or seen.numel() == 0:
            return torch.zeros((), dtype=torch.float64)
        count, value = self.counts[head][seen].to(torch.float64), _magnitudes()[seen]
        cast = (value / scale).clamp(max=E4M3_MAX).to(torch.float32).to(torch.float8_e4m3fn).to(torch.float64)
        lost = (count * (value - cast * scale) ** 2).sum()
        whole = (count * value**2).sum()
        return (lost / whole.clamp(min=torch.finfo(torch.float64).tiny)).sqrt()


def _magnitudes() -> Tensor:
    """float64 [32768]: the value of each code."""
    return torch.arange(CODES, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).to(torch.float64)
