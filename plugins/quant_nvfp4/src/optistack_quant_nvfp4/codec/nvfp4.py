"""NVFP4: E2M1 values in blocks of 16 along a row, an E4M3 scale for each block, a float32 scale for the tensor.

    weight ~= e2m1 * block_scale * global_scale

The order of operations is that of compressed-tensors (``calculate_qparams`` and ``_quantize`` in 0.17) on the weight in
float32: a block's scale is ``e4m3(amax / 6 * g)`` and its values ``e2m1(w / (block_scale / g))``, where ``g`` is
``1 / global_scale``, what that library stores. The same bytes come out for the same ``g``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from optistack.errors import InputError
from optistack_quant_nvfp4.codec import e2m1
from optistack_quant_nvfp4.codec.errors import NonFiniteError, ShapeError

Method = Literal["amax", "mse", "four-over-six"]

BLOCK = 16
E4M3_MAX = 448.0
NORMALISATION: dict[Method, float] = {"amax": 6.0 * 448.0, "mse": 6.0 * 448.0, "four-over-six": 6.0 * 256.0}
"""What the tensor's largest magnitude is divided by to give ``global_scale``.

Four-over-six needs room above the scale of the largest block, half as much again: 256 * 1.5 = 384 is an E4M3 number and
the largest that fits (Cook et al., arXiv 2512.02010, section 3).
"""

ZERO_BLOCK_SCALE = 0.125
"""The scale of a block whose own rounds to zero; what compressed-tensors puts there."""

MSE_STEPS = (0, -1, 1, -2, 2, -3, 3, -4, 4, 5, 6)
"""Neighbours of a block's amax scale that the search tries, in E4M3 steps (6 to 12% each): from about a third less,
which clips the largest value, to half as much again, where it is a 4. The first of equals wins."""

_CHUNK_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix of [rows, cols] in NVFP4.

    ``values``: uint8 [rows, cols / 2], the even column in the low nibble. ``block_scales``: float8_e4m3fn
    [rows, cols / 16]. ``global_scale``: float32 scalar that multiplies (ModelOpt's ``weight_scale_2``;
    compressed-tensors' ``weight_global_scale`` is its reciprocal).
    """

    values: Tensor
    block_scales: Tensor
    global_scale: Tensor


def global_scale_of(amax: Tensor, method: Method = "amax") -> Tensor:
    """float32 scalar: the global scale for weights whose largest magnitude is the largest of ``amax``.

    1.0 where ``amax`` is zero, or so small that the scale were no normal float32. Raises NonFiniteError.
    """
    largest = amax.detach().to(torch.float32).abs().max()
    if not bool(torch.isfinite(largest)):
        raise NonFiniteError("amax")
    scale = _over(largest, NORMALISATION[method])
    return torch.where(scale < torch.finfo(torch.float32).tiny, torch.ones_like(scale), scale)


def quantize(weight: Tensor, global_scale: Tensor, method: Method = "amax", name: str = "") -> Packed:
    """Pack ``weight``, floats [rows, cols], on its device. ``name`` is for the errors.

    ``global_scale`` comes from ``global_scale_of`` with the same method, of this weight or of all that share it.
    Raises NonFiniteError, ShapeError, and InputError for an unknown method or a scale that is not positive.
    """
    if method not in get_args(Method):
        raise InputError(f"NVFP4 has no method {method!r}.", fix=f"Use {', '.join(get_args(Method))}.")
    if weight.dim() != 2 or weight.numel() == 0 or weight.shape[1] % BLOCK:
        raise ShapeError(name, weight.shape, f"two dimensions and a multiple of {BLOCK} columns")
    rows, cols = weight.shape
    scale = global_scale.detach().to(device=weight.device, dtype=torch.float32).reshape(())
    if not (0.0 < float(scale) < float("inf")):
        raise InputError(f"The global scale of {name or 'a tensor'} is {float(scale):g}, not a positive number.")
    values = torch.empty((rows, cols // 2), dtype=torch.uint8, device=weight.device)
    scales = torch.empty((rows, cols // BLOCK), dtype=torch.float8_e4m3fn, device=weight.device)
    step = max(1, _CHUNK_ELEMENTS // cols)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        floats = weight[part].detach().to(torch.float32)
        signs = e2m1.sign_codes(floats)
        magnitudes = floats.abs()
        amax = max_pool1d(magnitudes, BLOCK)
        if not bool(torch.isfinite(amax).all()):
            raise NonFiniteError(name)
        blocks = magnitudes.unflatten(1, (-1, BLOCK))
        if method == "amax":
            chosen = _block_scales(_over(amax, 6.0), scale)
        elif method == "mse":
            chosen = _searched(blocks, amax, scale)
        else:
            chosen = _four_over_six(blocks, amax, scale)
        codes = e2m1.magnitude_codes(_clipped(blocks, chosen, scale)).flatten(1)
        values[part] = e2m1.pack(codes.bitwise_or_(signs))
        scales[part] = chosen
    return Packed(values, scales, scale)


def dequantize(packed: Packed, dtype: torch.dtype = torch.float32) -> Tensor:
    """[rows, cols] of ``dtype``: value times (block scale times global scale), in float32, rounded once at the end."""
    values = e2m1.unpack(packed.values).unflatten(1, (-1, BLOCK))
    scales = packed.block_scales.to(torch.float32) * packed.global_scale
    return (values * scales.unsqueeze(-1)).flatten(1).to(dtype)


def _over(values: Tensor, divisor: float) -> Tensor:
    """``values / divisor``, correctly rounded on every device: of a Python number CUDA's division multiplies by the
    reciprocal instead (aten/native/cuda/BinaryDivTrueKernel.cu), which is off by one in the last place of a third."""
    return values / torch.full((), divisor, dtype=values.dtype, device=values.device)


def _block_scales(wanted: Tensor, global_scale: Tensor) -> Tensor:
    """E4M3 block scales for float32 ``wanted``, which are in the weight's own units."""
    scales = (wanted * (1.0 / global_scale)).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    return torch.where(scales.view(torch.uint8) == 0, torch.full_like(scales, ZERO_BLOCK_SCALE), scales)


def _scaled(magnitudes: Tensor, scales: Tensor, global_scale: Tensor) -> Tensor:
    """``magnitudes`` [rows, blocks, 16] over what a one of E2M1 stands for under ``scales`` [rows, blocks]."""
    return magnitudes / (scales.to(torch.float32) / (1.0 / global_scale)).unsqueeze(-1)


def _clipped(magnitudes: Tensor, scales: Tensor, global_scale: Tensor) -> Tensor:
    """``_scaled``, and no more than E2M1 has."""
    return _scaled(magnitudes, scales, global_scale).clamp_(max=e2m1.MAX)


def _four_over_six(magnitudes: Tensor, amax: Tensor, global_scale: Tensor) -> Tensor:
    """The block scales that make the largest value a 6 or a 4, whichever errs less; a 6 where they are equal."""
    six = _block_scales(_over(amax, 6.0), global_scale)
    return _best(magnitudes, six, [six, _block_scales(_over(amax, 4.0), global_scale)], global_scale)


def _searched(magnitudes: Tensor, amax: Tensor, global_scale: Tensor) -> Tensor:
    """Of the block scales around that of amax, the one that errs least."""
    base = _block_scales(_over(amax, 6.0), global_scale)
    code = base.view(torch.uint8).to(torch.int32)
    near = [(code + step).clamp(1, 126).to(torch.uint8).view(torch.float8_e4m3fn) for step in MSE_STEPS]
    return _best(magnitudes, base, near, global_scale)


def _best(magnitudes: Tensor, unit: Tensor, candidates: list[Tensor], global_scale: Tensor) -> Tensor:
    """The first of ``candidates`` with the least squared error, which is counted in units of ``unit``.

    So counted it neither overflows nor vanishes, however large or small the weights.
    """
    target = _scaled(magnitudes, unit, global_scale)
    best, least = candidates[0], None
    for scales in candidates:
        ratio = (scales.to(torch.float32) / unit.to(torch.float32)).unsqueeze(-1)
        off = e2m1.rounded_(_clipped(magnitudes, scales, global_scale)).mul_(ratio).sub_(target)
        error = _sum_pairwise(off.mul_(off))
        if least is None:
            least = error
            continue
        better = error < least
        least = torch.where(better, error, least)
        best = torch.where(better, scales.view(torch.uint8), best.view(torch.uint8)).view(torch.float8_e4m3fn)
    return best


def _sum_pairwise(terms: Tensor) -> Tensor:
    """The sum over the last axis, neighbours first: an order of additions that a kernel can repeat exactly."""
    while terms.shape[-1] > 1:
        terms = terms[..., 0::2] + terms[..., 1::2]
    return terms.squeeze(-1)
