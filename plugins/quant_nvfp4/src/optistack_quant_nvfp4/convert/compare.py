"""A converted checkpoint against its source, tensor by tensor. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from optistack_quant_nvfp4.convert.checkpoint import Checkpoint
from optistack_quant_nvfp4.convert.layer import OWN_LEAVES, Layer
from optistack_quant_nvfp4.convert.measure import global_scale, measure, same_bytes
from optistack_quant_nvfp4.convert.results import worst_first
from optistack_quant_nvfp4.convert.run import default_workers
from optistack_quant_nvfp4.convert.scope import fused_with
from optistack_quant_nvfp4.convert.tensor_file import Reader
from optistack_quant_nvfp4.convert.values import slabs, values


def compare(
    found: Checkpoint, source: Checkpoint, device: torch.device, min_sqnr_db: float, tell: Callable[[str], None]
) -> tuple[list[dict[str, Any]], int, list[str]]:
    """Rows of the layers that were converted, worst first; how many other tensors are the same; and what is wrong.

    A converted layer is right when its error is small enough and it shares its global scale with what the engines fuse
    it with; an FP8 or INT4 layer in BF16 when its values are the source's; any other tensor when its bytes are.
    """
    torch.set_num_threads(1)  # the threads go to different layers
    with Reader(source.files) as reader, Reader(found.files) as written, ThreadPoolExecutor(default_workers()) as pool:
        one = _Comparison(found, source, reader, written, device, min_sqnr_db)
        rows: list[dict[str, Any]] = []
        wrong: list[str] = []
        for number, (row, complaints) in enumerate(pool.map(one.layer, source.layers.values())):
            tell(f"{number} of {len(source.layers)} layers")
            rows.extend([row] if row else [])
            wrong.extend(complaints)
        others = [name for name in source.places if not _owned(name, source)]
        wrong.extend(line for line in pool.map(one.other, others) if line)
        added = [name for name in found.places if not _owned(name, found) and name not in source.places]
        wrong.extend(f"{name} is not in the source" for name in [*added, *(found.layers.keys() - source.layers.keys())])
    same = len(source.layers) + len(others) - len(rows)
    return [dict(row) for row in worst_first(rows)], same, wrong


def _owned(name: str, checkpoint: Checkpoint) -> bool:
    """Whether tensor ``name`` is part of a layer's weight."""
    module, _, leaf = name.rpartition(".")
    return leaf in OWN_LEAVES and module in checkpoint.layers


@dataclass(frozen=True)
class _Comparison:
    found: Checkpoint
    source: Checkpoint
    reader: Reader
    written: Reader
    device: torch.device
    min_sqnr_db: float

    def layer(self, layer: Layer) -> tuple[dict[str, Any] | None, list[str]]:
        """The row of a converted layer, and what is wrong with any."""
        name, other = layer.name, self.found.layers.get(layer.name)
        if other is None or other.shape != layer.shape:
            return None, [f"{name} is not there as {list(layer.shape)}"]
        if other.form != "nvfp4" or layer.form == "nvfp4":
            equal = _equal(self.reader, layer, self.written, other, self.device)
            return None, [] if equal else [f"{name} differs from the source's"]
        wrong = []
        error = measure(self.reader, layer, self.written, other.tensors, self.device)
        if error.sqnr_db is not None and not error.sqnr_db >= self.min_sqnr_db:
            wrong.append(f"{name} has an SQNR of {error.sqnr_db:.2f} dB")
        scales = {global_scale(self.written, self.found.layers[one].tensors) for one in _packed(name, self.found)}
        if len(scales) > 1:
            wrong.append(f"{name} has another global scale than the layers it is fused with")
        return error.row(name), wrong

    def other(self, name: str) -> str:
        """What is wrong with a tensor that is of no layer."""
        place = self.found.places.get(name)
        if place is not None and same_bytes(self.reader, self.source.places[name], self.written, place):
            return ""
        return f"{name} differs from the source's"


def _packed(name: str, found: Checkpoint) -> list[str]:
    return [one for one in fused_with(name, found.layers) if found.layers[one].form == "nvfp4"]


def _equal(reader: Reader, layer: Layer, written: Reader, other: Layer, device: torch.device) -> bool:
    """Whether a layer outside of the scope is what the source has, in the same form, the other NVFP4 form, or BF16."""
    if not same_bytes(reader, layer.weight, written, other.weight):
        if layer.form not in ("fp8", "int4") or other.form != "plain":
            return False
        return all(
            torch.equal(values(reader, layer, slab, device).to(torch.bfloat16), values(written, other, slab, device))
            for slab in slabs(layer, device)
        )
    scale, copied = (one.tensors.get("weight_scale_inv") or one.tensors.get("weight_scale") for one in (layer, other))
    if scale is None or copied is None:
        return scale is copied
    if not same_bytes(reader, scale, written, copied):
        return False
    if layer.form != "nvfp4":
        return True
    wanted, found = global_scale(reader, layer.tensors), global_scale(written, other.tensors)
    return abs(wanted - found) <= 1e-6 * abs(wanted)  # a reciprocal of FP32 and back
