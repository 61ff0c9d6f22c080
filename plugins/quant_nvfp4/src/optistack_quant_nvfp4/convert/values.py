"""Values of a layer as the source stores them, some rows at a time, and the arithmetic of one layer. Needs torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from optistack.errors import InputError
from optistack_quant_nvfp4.codec import fp8_to_float, int4_to_float
from optistack_quant_nvfp4.convert.layer import Layer
from optistack_quant_nvfp4.convert.tensor_file import Place, Reader

SLAB_VALUES = {"cpu": 1 << 18, "cuda": 1 << 24}
"""Values that are worked on at once, by device. They bound the memory; a processor is fastest on what its caches hold,
a GPU on what fills it."""

TORCH_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
    "I32": torch.int32,
}


@dataclass(frozen=True)
class Slab:
    """Rows ``first`` to ``first + rows`` of a layer."""

    first: int
    rows: int


@dataclass(frozen=True)
class Stored:
    """Rows of ``layer`` as its source stores them: ``weight``, and ``scale`` where it has one, on one device."""

    layer: Layer
    weight: torch.Tensor
    scale: torch.Tensor | None = None

    def values(self) -> torch.Tensor:
        """[rows, columns]: as they are stored where plain, else FP32."""
        if self.scale is None:
            return self.weight
        if self.layer.form == "int4":
            shape = (self.weight.shape[0], self.layer.shape[1])
            return int4_to_float(self.weight, self.scale, group=self.layer.block[1], shape=shape)
        return fp8_to_float(self.weight, self.scale, block=self.layer.block)


def slabs(layer: Layer, device: torch.device) -> Iterator[Slab]:
    """The rows of ``layer`` in order, whole blocks of its scales at a time."""
    height = layer.block[0] if layer.form == "fp8" and layer.block[0] < layer.shape[0] else 1
    step = max(1, SLAB_VALUES[device.type] // layer.shape[1] // height) * height
    for first in range(0, layer.shape[0], step):
        yield Slab(first, min(step, layer.shape[0] - first))


def rows_of(reader: Reader, place: Place, first: int, count: int) -> torch.Tensor:
    """Rows of a tensor of one or two dimensions, ``[count, ...]``."""
    width = math.prod(place.shape[1:])
    row_bytes = place.bytes // place.shape[0]
    data = reader.read(place, first * row_bytes, count * row_bytes)
    return torch.frombuffer(data, dtype=TORCH_DTYPES[place.dtype]).reshape(count, width)


def stored(reader: Reader, layer: Layer, slab: Slab, device: torch.device) -> Stored:
    """``slab`` of ``layer``, on ``device``."""
    weight = rows_of(reader, layer.weight, slab.first, slab.rows).to(device)
    if layer.form == "plain":
        return Stored(layer, weight)
    place = layer.tensors.get("weight_scale_inv") or layer.tensors["weight_scale"]
    scale = (
        _fp8_scale(reader, layer, place, slab) if layer.form == "fp8" else rows_of(reader, place, slab.first, slab.rows)
    )
    return Stored(layer, weight, scale.to(device))


def values(reader: Reader, layer: Layer, slab: Slab, device: torch.device) -> torch.Tensor:
    """The values of ``slab``, ``[rows, columns]``: as they are stored where plain, else FP32."""
    return stored(reader, layer, slab, device).values()


def _fp8_scale(reader: Reader, layer: Layer, place: Place, slab: Slab) -> torch.Tensor:
    """The scales of ``slab``, in FP32: one, one a row, or one a block."""
    if layer.block == layer.shape:
        data = reader.read(place)
        return torch.frombuffer(data, dtype=TORCH_DTYPES[place.dtype]).to(torch.float32).reshape(1, 1)
    height = layer.block[0]
    return rows_of(reader, place, slab.first // height, -(-slab.rows // height)).to(torch.float32)


def magnitude(tensor: torch.Tensor) -> float:
    """The largest magnitude, in one pass; NaN if there is one."""
    low, high = torch.aminmax(tensor)
    return float(torch.maximum(-low, high))


def largest(reader: Reader, layer: Layer, device: torch.device) -> float:
    """The largest magnitude in ``layer``. InputError naming it when a value is not finite."""
    found = 0.0
    for slab in slabs(layer, device):
        amax = magnitude(values(reader, layer, slab, device))
        if not math.isfinite(amax):
            raise InputError(
                f"{layer.name} has a value that is {'NaN' if math.isnan(amax) else 'infinite'} in "
                f"{layer.weight.file.name}, rows {slab.first} to {slab.first + slab.rows - 1}.",
                fix="Download the file again; if it is so at the source, leave the layer out with --exclude.",
            )
        found = max(found, amax)
    return found
