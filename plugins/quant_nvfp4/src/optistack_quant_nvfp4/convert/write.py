"""One step of a file: read from the source, converted, written at its place. Needs torch."""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from optistack.errors import CheckFailedError
from optistack_quant_nvfp4.codec import global_scale_of
from optistack_quant_nvfp4.convert.arithmetic import quantize
from optistack_quant_nvfp4.convert.input_scales import read_scalar, single
from optistack_quant_nvfp4.convert.layer import Layer
from optistack_quant_nvfp4.convert.measure import CHUNK_BYTES, global_scale, measure, same_bytes
from optistack_quant_nvfp4.convert.plan import FilePlan, Plan, Step
from optistack_quant_nvfp4.convert.scope import fused_with
from optistack_quant_nvfp4.convert.tensor_file import Place, Reader, write_at
from optistack_quant_nvfp4.convert.values import largest, slabs, stored, values


@dataclass
class Writer:
    """Writes the steps of a plan. Several threads may use one: every read and write says where."""

    plan: Plan
    source: Reader
    device: torch.device
    _amax: dict[str, float] = field(default_factory=dict)
    _locks: dict[str, threading.Lock] = field(default_factory=dict)

    def write(self, step: Step, file: FilePlan, descriptor: int, path: Path) -> dict[str, Any] | None:
        """Write ``step`` to the open ``file``. For a layer that was packed its row of the report, measured on the file.

        CheckFailedError when a copy reads back otherwise; InputError when a value is not finite. Scalars, and layers
        that become BF16, are not read back here; ``verify`` compares global scales and such layers.
        """
        places = {
            one.name: Place(path, file.offsets[one.name], one.dtype, one.shape, one.bytes) for one in step.outputs
        }
        if step.do == "copy":
            self._copy(step, places, descriptor)
            return None
        layer = step.layer
        assert layer is not None
        leaves = {name.rpartition(".")[2]: place for name, place in places.items()}
        if step.do == "restate":
            self._restate(layer, leaves, descriptor)
            return None
        if step.do == "plain":
            self._plain(layer, leaves["weight"], descriptor)
            return None
        self._pack(layer, step.input_scale, leaves, descriptor)
        with Reader([path]) as written:
            row = measure(self.source, layer, written, leaves, self.device).row(layer.name)
        if layer.name in self.plan.scales:
            row["input_scale_from"] = self.plan.scales[layer.name].origin
        return row

    def _pack(self, layer: Layer, input_scale: float | None, leaves: Mapping[str, Place], descriptor: int) -> None:
        whole = global_scale_of(torch.tensor(self._fused_amax(layer)), self.plan.method).to(self.device)
        packed_place = leaves.get("weight_packed") or leaves["weight"]
        scale_place = leaves["weight_scale"]
        columns = layer.shape[1]
        for slab in slabs(layer, self.device):
            packed = quantize(stored(self.source, layer, slab, self.device), whole, self.plan.method)
            write_at(descriptor, _bytes(packed.values), packed_place.offset + slab.first * columns // 2)
            write_at(descriptor, _bytes(packed.block_scales), scale_place.offset + slab.first * columns // 16)
        self._scalars(leaves, float(whole), input_scale, descriptor)

    def _scalars(self, leaves: Mapping[str, Place], whole: float, inputs: float | None, descriptor: int) -> None:
        """The global and the input scale: multipliers in ModelOpt's form, divisors in compressed-tensors'."""
        for leaf, value in (("weight_scale_2", whole), ("input_scale", inputs)):
            if leaf in leaves and value is not None:
                write_at(descriptor, struct.pack("<f", value), leaves[leaf].offset)
        for leaf, value in (("weight_global_scale", whole), ("input_global_scale", inputs)):
            if leaf in leaves and value is not None:
                write_at(descriptor, struct.pack("<f", 1.0 / value if value else 0.0), leaves[leaf].offset)

    def _fused_amax(self, layer: Layer) -> float:
        """The largest magnitude of ``layer`` and of those that the engines fuse with it."""
        names = fused_with(layer.name, self.plan.checkpoint.layers)
        # Its own first: another thread is likely to be at one of the others, and each is read once.
        for name in sorted(names, key=lambda one: one != layer.name):
            with self._locks.setdefault(name, threading.Lock()):
                if name not in self._amax:
                    self._amax[name] = largest(self.source, self.plan.checkpoint.layers[name], self.device)
        return max(self._amax[name] for name in names)

    def _copy(self, step: Step, places: Mapping[str, Place], descriptor: int) -> None:
        assert step.place is not None
        (place,) = places.values()
        for start in range(0, place.bytes, CHUNK_BYTES):
            data = self.source.read(step.place, start, min(CHUNK_BYTES, place.bytes - start))
            write_at(descriptor, data, place.offset + start)
        self._read_back(step.place, place, step.outputs[0].name)

    def _read_back(self, wanted: Place, found: Place, name: str) -> None:
        with Reader([found.file]) as written:
            if not same_bytes(self.source, wanted, written, found):
                raise CheckFailedError(
                    f"{name} reads back from {found.file} otherwise than it was written.", fix="Check the disk."
                )

    def _restate(self, layer: Layer, leaves: Mapping[str, Place], descriptor: int) -> None:
        packed = leaves.get("weight_packed") or leaves["weight"]
        for wanted, found in ((layer.weight, packed), (layer.tensors["weight_scale"], leaves["weight_scale"])):
            write_at(descriptor, self.source.read(wanted), found.offset)
            self._read_back(wanted, found, layer.name)
        self._scalars(leaves, global_scale(self.source, layer.tensors), self._input_scale(layer), descriptor)

    def _input_scale(self, layer: Layer) -> float | None:
        if "input_scale" in layer.tensors:
            return read_scalar(self.source, layer.tensors["input_scale"])
        if "input_global_scale" in layer.tensors:
            return single(1.0 / read_scalar(self.source, layer.tensors["input_global_scale"]))
        return None

    def _plain(self, layer: Layer, place: Place, descriptor: int) -> None:
        for slab in slabs(layer, self.device):
            weight = values(self.source, layer, slab, self.device).to(torch.bfloat16)
            write_at(descriptor, _bytes(weight), place.offset + 2 * slab.first * layer.shape[1])


def _bytes(tensor: torch.Tensor) -> memoryview:
    data: memoryview = tensor.contiguous().cpu().view(torch.uint8).numpy().data
    return data
