"""A linear layer as a checkpoint stores it: which tensors it is made of, and what they mean.

Layouts: plain ``weight``; FP8 ``weight`` with ``weight_scale`` (one, one a row, or one a block) or DeepSeek's
``weight_scale_inv``, all multipliers; INT4 of compressed-tensors, ``weight_packed`` I32 of eight values, lowest bits
first, offset by 8, with a ``weight_scale`` for each group of a row; NVFP4 of ModelOpt (``weight``, ``weight_scale``,
``weight_scale_2``, ``input_scale``: multipliers) and of compressed-tensors (``weight_packed``, ``weight_scale``,
``weight_global_scale``, ``input_global_scale``: divisors).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from optistack.facts.model import ComponentName
from optistack_quant_nvfp4.convert.tensor_file import Place

Form = Literal["plain", "fp8", "int4", "nvfp4", "unknown"]

PLAIN = frozenset(("BF16", "F16", "F32"))
NVFP4_BLOCK = 16
WEIGHT_LEAVES = ("weight", "weight_packed")
OWN_LEAVES = frozenset(
    (
        *WEIGHT_LEAVES,
        "weight_scale",
        "weight_scale_inv",
        "weight_scale_2",
        "weight_global_scale",
        "weight_shape",
        "weight_zero_point",
        "weight_g_idx",
        "input_scale",
        "input_global_scale",
    )
)
"""What a layer's weight is made of. Other tensors of the module (a bias, KV scales) stay what they are."""


@dataclass(frozen=True)
class Layer:
    """``shape`` is of the values, unpacked. ``block`` is (rows, columns) that share a scale: FP8 and INT4 have one.

    ``component`` is the part of the model; ``kind`` what it is inside the draft, else the same.
    """

    name: str
    form: Form
    shape: tuple[int, ...]
    component: ComponentName
    kind: ComponentName
    tensors: Mapping[str, Place]
    block: tuple[int, int] = (1, 1)

    @property
    def weight(self) -> Place:
        return self.tensors["weight"] if "weight" in self.tensors else self.tensors["weight_packed"]

    @property
    def values(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """All that is stored of it, scales included."""
        return sum(place.bytes for place in self.tensors.values())

    @property
    def packable(self) -> bool:
        """Whether NVFP4 can hold it: rows of whole blocks of 16."""
        return len(self.shape) == 2 and self.shape[1] % NVFP4_BLOCK == 0 and self.values > 0

    @property
    def static_fp8(self) -> bool:
        """Whether it is FP8 with one scale for its values and one for its inputs, which ModelOpt calls ``FP8``."""
        return (
            self.form == "fp8" and self.block == self.shape and {"weight_scale", "input_scale"} <= self.tensors.keys()
        )

    @property
    def word(self) -> str:
        """The precision in one word: ``bf16``, ``fp8``, ``int4``, ``nvfp4``."""
        if self.form == "plain":
            return {"BF16": "bf16", "F16": "fp16", "F32": "fp32"}[self.weight.dtype]
        return self.weight.dtype.lower() if self.form == "unknown" else self.form


def recognise(
    name: str,
    tensors: Mapping[str, Place],
    component: ComponentName,
    kind: ComponentName,
    fp8_block: tuple[int, int],
    bits: int,
) -> Layer:
    """The layer of module ``name`` by its ``tensors``; of form ``unknown`` where they are none of the layouts above.

    ``fp8_block`` is the metadata's block of FP8 scales; ``bits`` its width of integers packed into 32-bit words.
    """
    weight = tensors["weight"] if "weight" in tensors else tensors["weight_packed"]
    form, shape, block = _read(weight, tensors, fp8_block, bits)
    return Layer(name, form, shape, component, kind, tensors, block)


def _read(
    weight: Place, tensors: Mapping[str, Place], fp8_block: tuple[int, int], bits: int
) -> tuple[Form, tuple[int, ...], tuple[int, int]]:
    unknown: tuple[Form, tuple[int, ...], tuple[int, int]] = ("unknown", weight.shape, (1, 1))
    scale = tensors.get("weight_scale_inv") or tensors.get("weight_scale")
    if weight.dtype in PLAIN:
        return unknown if "weight_packed" in tensors else ("plain", weight.shape, (1, 1))
    if scale is None or len(weight.shape) != 2 or {"weight_zero_point", "weight_g_idx"} & tensors.keys():
        return unknown
    rows, columns = weight.shape
    if weight.dtype == "U8" and scale.dtype == "F8_E4M3":
        whole = "weight_scale_2" in tensors or "weight_global_scale" in tensors
        return ("nvfp4", (rows, 2 * columns), (1, NVFP4_BLOCK)) if whole else unknown
    if weight.dtype == "F8_E4M3" and scale.dtype in PLAIN:
        block = _fp8_block(weight.shape, scale.shape, fp8_block)
        return ("fp8", weight.shape, block) if block else unknown
    if weight.dtype == "I32" and bits == 4 and len(scale.shape) == 2 and scale.dtype in PLAIN:
        groups = scale.shape[1]
        if scale.shape[0] == rows and groups and 8 * columns % groups == 0:
            return "int4", (rows, 8 * columns), (1, 8 * columns // groups)
    return unknown


def _fp8_block(weight: tuple[int, ...], scale: tuple[int, ...], fp8_block: tuple[int, int]) -> tuple[int, int] | None:
    rows, columns = weight
    if math.prod(scale) == 1:
        return rows, columns
    if scale in ((rows,), (rows, 1)):
        return 1, columns
    height, width = fp8_block
    return fp8_block if scale == (-(-rows // height), -(-columns // width)) else None
