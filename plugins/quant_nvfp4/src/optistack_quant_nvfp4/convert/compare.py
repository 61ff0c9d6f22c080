"""A converted checkpoint against its source, tensor by tensor. Needs torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from optistack_quant_nvfp4.convert.checkpoint import Checkpoint
from optistack_quant_nvfp4.convert.layer import OWN_LEAVES, Layer
from optistack_quant_nvfp4.convert.measure import global_scale, measure, same_bytes
from optistack_quant_nvfp4.convert.results import worst_first
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
    rows: list[dict[str, Any]] = []
    wrong: list[str] = []
    same = 0
    with Reader(source.files) as reader, Reader(found.files) as written:
        for number, (name, layer) in enumerate(source.layers.items()):
            tell(f"{number} of {len(source.layers)} layers")
            other = found.layers.get(name)
            if other is None or other.shape != layer.shape:
                wrong.append(f"{name} is not there as {list(layer.shape)}")
            elif other.form == "nvfp4" and layer.form != "nvfp4":
                error = measure(reader, layer, written, other.tensors, device)
                rows.append(error.row(name))
                if error.sqnr_db is not None and not error.sqnr_db >= min_sqnr_db:
                    wrong.append(f"{name} has an SQNR of {error.sqnr_db:.2f} dB")
                scales = {global_scale(written, found.layers[one].tensors) for one in _packed(name, found)}
                if len(scales) > 1:
                    wrong.append(f"{name} has another global scale than the layers it is fused with")
            elif _equal(reader, layer, written, other, device):
                same += 1
            else:
                wrong.append(f"{name} differs from the source's")
        for name, place in source.places.items():
            module, _, leaf = name.rpartition(".")
            if leaf in OWN_LEAVES and module in source.layers:
                continue
            if name in found.places and same_bytes(reader, place, written, found.places[name]):
                same += 1
            else:
                wrong.append(f"{name} differs from the source's")
    return [dict(row) for row in worst_first(rows)], same, wrong


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
