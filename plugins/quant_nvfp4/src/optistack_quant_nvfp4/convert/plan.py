"""What is written: each file's tensors, and what they are made from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from optistack.errors import InputError
from optistack_quant_nvfp4.convert.checkpoint import Checkpoint
from optistack_quant_nvfp4.convert.input_scales import InputScale
from optistack_quant_nvfp4.convert.layer import NVFP4_BLOCK, OWN_LEAVES, Layer
from optistack_quant_nvfp4.convert.tensor_file import Outline, Place, lay_out

Method = Literal["amax", "mse", "four-over-six"]
OutputForm = Literal["modelopt", "compressed-tensors"]
Rest = Literal["keep", "bf16"]

MODELOPT_LEAVES = ("weight", "weight_scale", "weight_scale_2", "input_scale")
COMPRESSED_LEAVES = ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale")
"""Packed values, block scales, global scale, input scale. The last two are divisors in compressed-tensors."""

_PACKED = frozenset(("U8", "I8", "I32", "F8_E4M3", "F8_E5M2", "F4"))
"""Types that values alone do not explain."""


class Step(NamedTuple):
    """Tensors of one file from one source.

    ``pack``     a layer to NVFP4
    ``restate``  an NVFP4 layer into the other form, the same values
    ``plain``    an FP8 or INT4 layer to BF16
    ``copy``     a tensor as it is; ``place`` alone
    """

    do: Literal["pack", "restate", "plain", "copy"]
    outputs: tuple[Outline, ...]
    layer: Layer | None = None
    place: Place | None = None
    input_scale: float | None = None

    @property
    def bytes_read(self) -> int:
        return self.layer.bytes if self.layer else self.place.bytes if self.place else 0


@dataclass(frozen=True)
class FilePlan:
    """One file. ``offsets`` in bytes from its beginning, ``size`` its length in bytes."""

    name: str
    steps: tuple[Step, ...]
    header: bytes
    offsets: Mapping[str, int]
    size: int


@dataclass(frozen=True)
class Plan:
    checkpoint: Checkpoint
    form: OutputForm
    method: Method
    chosen: Mapping[str, Layer]
    scales: Mapping[str, InputScale]
    words: Mapping[str, str]
    files: tuple[FilePlan, ...] = field(repr=False)

    @property
    def weight_only(self) -> bool:
        return not self.scales

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all files that are written."""
        return sum(file.size for file in self.files)

    def digest(self) -> str:
        """sha256 of what decides the written bytes beside the source's: headers, method and input scales."""
        digest = hashlib.sha256(self.method.encode())
        for file in self.files:
            digest.update(file.name.encode() + file.header)
            for step in file.steps:
                digest.update(f"{step.do} {step.input_scale}".encode())
        return digest.hexdigest()


def make_plan(
    checkpoint: Checkpoint,
    chosen: Mapping[str, Layer],
    scales: Mapping[str, InputScale],
    *,
    form: OutputForm,
    method: Method,
    rest: Rest,
) -> Plan:
    """Lay out the files. A file has the name of the one that its layers come from.

    InputError when a layer that stays quantized cannot be stated in ``form``.
    """
    words: dict[str, str] = {}
    owned: dict[str, list[tuple[str, Step]]] = {file.name: [] for file in checkpoint.files}
    for name, place in checkpoint.places.items():
        module, _, leaf = name.rpartition(".")
        layer = checkpoint.layers.get(module) if leaf in OWN_LEAVES else None
        if layer is None:
            owned[place.file.name].append((name, _copy(name, place)))
        elif place is layer.weight:
            word, steps = _layer_steps(layer, module in chosen, scales.get(module), form, rest)
            words[module] = word
            owned[place.file.name].extend((module, step) for step in steps)
    files = [_file(name, tuple(step for _, step in steps)) for name, steps in owned.items() if steps]
    return Plan(checkpoint, form, method, dict(chosen), dict(scales), words, tuple(files))


def _file(name: str, steps: tuple[Step, ...]) -> FilePlan:
    header, offsets, size = lay_out((one for step in steps for one in step.outputs), {"format": "pt"})
    return FilePlan(name, steps, header, offsets, size)


def _copy(name: str, place: Place) -> Step:
    return Step("copy", (Outline(name, place.dtype, place.shape, place.bytes),), place=place)


def _layer_steps(
    layer: Layer, convert: bool, scale: InputScale | None, form: OutputForm, rest: Rest
) -> tuple[str, list[Step]]:
    """The precision word of ``layer`` afterwards, and how it is written."""
    if convert:
        outputs = tuple(nvfp4_outlines(layer, form, with_input=scale is not None))
        return "nvfp4", [Step("pack", outputs, layer=layer, input_scale=scale.scale if scale else None)]
    if layer.form == "nvfp4" and not _stated(layer, form):
        with_input = "input_scale" in layer.tensors or "input_global_scale" in layer.tensors
        return "nvfp4", [Step("restate", tuple(nvfp4_outlines(layer, form, with_input=with_input)), layer=layer)]
    if layer.form in ("fp8", "int4") and rest == "bf16":
        outline = Outline(f"{layer.name}.weight", "BF16", layer.shape, 2 * layer.values)
        return "bf16", [Step("plain", (outline,), layer=layer)]
    unstated = layer.form == "unknown" and layer.weight.dtype in _PACKED
    if unstated or (layer.form in ("fp8", "int4") and form == "modelopt" and not layer.static_fp8):
        raise InputError(
            f"{layer.name} stays {layer.word}, which {form} metadata beside NVFP4 does not state for every engine.",
            fix="Write --format compressed-tensors, turn the rest into BF16 with --rest bf16, or widen the scope.",
        )
    return layer.word, [_copy(f"{layer.name}.{_renamed(leaf, layer)}", place) for leaf, place in layer.tensors.items()]


def _stated(layer: Layer, form: OutputForm) -> bool:
    """Whether an NVFP4 layer is in ``form`` already."""
    return ("weight_global_scale" in layer.tensors) == (form == "compressed-tensors")


def _renamed(leaf: str, layer: Layer) -> str:
    """compressed-tensors has one name for multipliers of FP8."""
    return "weight_scale" if layer.form == "fp8" and leaf == "weight_scale_inv" else leaf


def nvfp4_outlines(layer: Layer, form: OutputForm, *, with_input: bool) -> Iterator[Outline]:
    """The tensors of an NVFP4 layer in ``form``: values, block scales, global scale, and input scale if it has one."""
    rows, columns = layer.shape
    leaves = MODELOPT_LEAVES if form == "modelopt" else COMPRESSED_LEAVES
    scalar: tuple[int, ...] = () if form == "modelopt" else (1,)
    values, blocks, whole, inputs = (f"{layer.name}.{leaf}" for leaf in leaves)
    yield Outline(values, "U8", (rows, columns // 2), rows * columns // 2)
    yield Outline(blocks, "F8_E4M3", (rows, columns // NVFP4_BLOCK), rows * columns // NVFP4_BLOCK)
    yield Outline(whole, "F32", scalar, 4)
    if with_input:
        yield Outline(inputs, "F32", scalar, 4)
