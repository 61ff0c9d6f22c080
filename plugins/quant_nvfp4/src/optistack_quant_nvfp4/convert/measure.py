"""How far a layer's NVFP4 values are from the source's, read back from the file. Needs torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from optistack_quant_nvfp4.codec import Packed
from optistack_quant_nvfp4.convert.arithmetic import dequantize
from optistack_quant_nvfp4.convert.input_scales import read_scalar, single
from optistack_quant_nvfp4.convert.layer import Layer
from optistack_quant_nvfp4.convert.tensor_file import Place, Reader
from optistack_quant_nvfp4.convert.values import Slab, magnitude, rows_of, slabs, values

CHUNK_BYTES = 8 << 20


@dataclass
class Error:
    """Sums over a layer: squares of the values and of the errors, the largest value and error."""

    signal: float = 0.0
    noise: float = 0.0
    largest: float = 0.0
    largest_error: float = 0.0

    def add(self, wanted: torch.Tensor, found: torch.Tensor) -> None:
        wanted = wanted.float()
        error = found.float() - wanted
        self.signal += float(torch.linalg.vector_norm(wanted)) ** 2
        self.noise += float(torch.linalg.vector_norm(error)) ** 2
        self.largest = max(self.largest, magnitude(wanted))
        self.largest_error = max(self.largest_error, magnitude(error))

    @property
    def sqnr_db(self) -> float | None:
        """Signal to quantization noise, 10 log10 of the ratio of the sums of squares; None when there is no noise."""
        if self.noise == 0.0:
            return None
        return 10.0 * math.log10(self.signal / self.noise) if self.signal > 0.0 else -math.inf

    def row(self, layer: str) -> dict[str, Any]:
        """For the report, rounded so that it does not depend on the order of a sum."""
        sqnr = self.sqnr_db
        return {
            "layer": layer,
            "sqnr_db": None if sqnr is None else round(sqnr, 2),
            "max_error": float(f"{self.largest_error:.4g}"),
            "max_value": float(f"{self.largest:.4g}"),
        }


def packed_rows(reader: Reader, tensors: Mapping[str, Place], slab: Slab, device: torch.device) -> torch.Tensor:
    """The values of ``slab`` of an NVFP4 layer, in FP32. ``tensors`` by leaf, of either form."""
    packed = tensors.get("weight_packed") or tensors["weight"]
    whole = torch.tensor(global_scale(reader, tensors), dtype=torch.float32, device=device)
    found = Packed(
        values=rows_of(reader, packed, slab.first, slab.rows).to(device),
        block_scales=rows_of(reader, tensors["weight_scale"], slab.first, slab.rows).to(device),
        global_scale=whole,
    )
    return dequantize(found)


def global_scale(reader: Reader, tensors: Mapping[str, Place]) -> float:
    """The multiplier of a whole NVFP4 layer, whichever of the two forms states it."""
    if "weight_scale_2" in tensors:
        return read_scalar(reader, tensors["weight_scale_2"])
    divisor = read_scalar(reader, tensors["weight_global_scale"])
    return single(1.0 / divisor) if divisor else 0.0


def measure(source: Reader, layer: Layer, written: Reader, tensors: Mapping[str, Place], device: torch.device) -> Error:
    """The error of the NVFP4 layer of ``tensors`` against ``layer`` of the source."""
    error = Error()
    for slab in slabs(layer, device):
        error.add(values(source, layer, slab, device), packed_rows(written, tensors, slab, device))
    return error


def same_bytes(source: Reader, wanted: Place, written: Reader, found: Place) -> bool:
    """Whether two tensors are stored by the same bytes."""
    if wanted.bytes != found.bytes:
        return False
    for start in range(0, wanted.bytes, CHUNK_BYTES):
        length = min(CHUNK_BYTES, wanted.bytes - start)
        if source.read(wanted, start, length) != written.read(found, start, length):
            return False
    return True
