"""Input scales of the layers that are converted, without which activations stay 16 bits wide (W4A16).

A scale is ModelOpt's: the largest input over 6 * 448, the largest values of E2M1 and of E4M3. It comes from a
calibration, from what the source stores, or from the routed experts of the same block; which it was is kept.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from optistack.errors import InputError, nearest
from optistack_quant_nvfp4.convert.checkpoint import Checkpoint
from optistack_quant_nvfp4.convert.layer import Layer
from optistack_quant_nvfp4.convert.scope import fused_with, kind_of
from optistack_quant_nvfp4.convert.tensor_file import Place, Reader, places_in

LARGEST = 6.0 * 448.0
FP8_LARGEST = 448.0

CALIBRATED = "calibration"
STORED = "the source's own FP8 input scale"
SAME_INPUT = "routed experts of the block, which see the same input"
STAND_IN = "stand-in: the block's routed experts at the same place, whose inputs are their own"
UNSEEN = "stand-in: the block's other experts at the same place, for the calibration did not reach this one"

_FORM = 'Give {"input_amax": {"model.layers.0.mlp.gate_proj": 12.5, ...}}.'


class InputScale(NamedTuple):
    scale: float
    origin: str


def read_calibration(file: Path) -> dict[str, float]:
    """The largest input of each module in a calibration ``file``.

    JSON: an object of module names and numbers, by itself or under ``input_amax``. Safetensors: a scalar F32 or BF16
    for each module. InputError when it is missing or neither, or a value is not positive.
    """
    if not file.is_file():
        raise InputError(
            f"There is no file {file} of input scales.",
            fix="Give --input-scales what `optistack kv-fp8 calibrate` writes as input-amax.json, or leave it out.",
        )
    found = _tensors(file) if file.suffix == ".safetensors" else _json(file)
    for name, value in found.items():
        if not math.isfinite(value) or value < 0:
            raise InputError(f"{file} gives {name} an input of at most {value}.", fix="Calibrate again.")
    if not found:
        raise InputError(f"{file} has no inputs.", fix="Calibrate again.")
    return found


def unknown_names(checkpoint: Checkpoint, calibration: Mapping[str, float]) -> str:
    """A sentence on the names in ``calibration`` that no layer has; empty where there are none. InputError when no name
    is a layer's: it is the calibration of another model, or under other names."""
    unknown = sorted(calibration.keys() - checkpoint.layers.keys())
    if not unknown:
        return ""
    more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    hint = nearest(kind_of(unknown[0]), {kind_of(name) for name in checkpoint.layers})
    if len(unknown) == len(calibration):
        raise InputError(
            f"The input scales are of no layer of {checkpoint.folder}: {unknown[0]}{more}.",
            fix=f"{hint if hint.startswith('Did') else ''} Give those of this checkpoint.".lstrip(),
        )
    return f"Input scales of {unknown[0]}{more} are not used, for the checkpoint has no such layer."


def _json(file: Path) -> dict[str, float]:
    try:
        data = json.loads(file.read_bytes())
    except ValueError as error:  # no JSON, or no text
        raise InputError(f"{file} is no calibration: it is not JSON ({error}).", fix=_FORM) from None
    inner = data.get("input_amax") if isinstance(data, dict) else None
    entries = inner if isinstance(inner, dict) else data
    if not isinstance(entries, dict) or not all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in entries.values()
    ):
        raise InputError(f"{file} is no calibration: it does not map module names to numbers.", fix=_FORM)
    return {name: float(value) for name, value in entries.items()}


def _tensors(file: Path) -> dict[str, float]:
    try:
        places = places_in(file)
    except InputError as error:
        raise InputError(error.message, fix=f"Calibrate again, or as JSON: {_FORM}") from None
    with Reader([file]) as reader:
        return {name.removesuffix(".input_amax"): read_scalar(reader, place) for name, place in places.items()}


def read_scalar(reader: Reader, place: Place) -> float:
    """The largest of the values of a small tensor (a scale, or one a fused part), as a float."""
    data = bytes(reader.read(place))
    if place.dtype == "F32":
        return float(max(struct.unpack(f"<{len(data) // 4}f", data)))
    if place.dtype == "BF16":
        words = (b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))  # BF16 is the upper half of FP32
        return float(max(struct.unpack("<f", word)[0] for word in words))
    raise InputError(f"{place.file} stores a scale as {place.dtype}.", fix="Give a checkpoint whose scales are F32.")


def single(value: float) -> float:
    """``value`` rounded to FP32."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def input_scales(
    checkpoint: Checkpoint, chosen: Mapping[str, Layer], calibration: Mapping[str, float] | None, reader: Reader
) -> dict[str, InputScale]:
    """An input scale for each of ``chosen``, or none at all where there is no source of any.

    Layers that the engines fuse get the largest of theirs. InputError when some have one and others do not, or when the
    checkpoint's own NVFP4 layers have them and a converted one would not.
    """
    known = {name: InputScale(single(amax / LARGEST), CALIBRATED) for name, amax in (calibration or {}).items()}
    for name, layer in checkpoint.layers.items():
        if name not in known and (found := _stored(layer, reader)) is not None:
            known[name] = found
    kept = any(layer.form == "nvfp4" and name in known for name, layer in checkpoint.layers.items())
    experts = _experts(checkpoint, known)
    result: dict[str, InputScale] = {}
    missing: list[str] = []
    for name, layer in chosen.items():
        found = _own(fused_with(name, chosen), known) or _borrowed(layer, experts)
        if found is None or found.scale <= 0:
            missing.append(name)
        else:
            result[name] = found
    if missing and (result or kept or calibration is not None):
        zero = [name for name in missing if name in known]
        if zero:
            more = f" and {len(zero) - 1} more" if len(zero) > 1 else ""
            raise InputError(
                f"The largest input of {zero[0]}{more} is 0, which gives no input scale.",
                fix="Calibrate with prompts that reach it, leave it out with --exclude, or convert weights alone with "
                "--weight-only.",
            )
        why = "Some layers have input scales" if result else "The calibration names no layer of the scope"
        why = "The checkpoint's NVFP4 layers have input scales" if kept else why
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(
            f"{why}; {missing[0]}{more} would have no input scale.",
            fix="Calibrate them and give --input-scales, or convert weights alone with --weight-only.",
        )
    return result


def _stored(layer: Layer, reader: Reader) -> InputScale | None:
    """What the source says of this layer's inputs."""
    tensors = layer.tensors
    if layer.form == "nvfp4" and "input_scale" in tensors:
        return InputScale(read_scalar(reader, tensors["input_scale"]), SAME_INPUT)
    if layer.form == "nvfp4" and "input_global_scale" in tensors:
        divisor = read_scalar(reader, tensors["input_global_scale"])
        return InputScale(single(1.0 / divisor), SAME_INPUT) if divisor > 0 else None
    if layer.form == "fp8" and "input_scale" in tensors:
        return InputScale(single(read_scalar(reader, tensors["input_scale"]) * FP8_LARGEST / LARGEST), STORED)
    return None


def _own(names: Iterable[str], known: Mapping[str, InputScale]) -> InputScale | None:
    return max((known[name] for name in names if name in known), default=None)


def _experts(checkpoint: Checkpoint, known: Mapping[str, InputScale]) -> dict[tuple[str, str], float]:
    """The largest scale of the routed experts by (block, projection)."""
    largest: dict[tuple[str, str], float] = {}
    for name, found in known.items():
        layer = checkpoint.layers.get(name)
        if layer is not None and layer.kind == "routed_experts" and ".experts." in name:
            key = (name.partition(".experts.")[0], _role(name))
            largest[key] = max(largest.get(key, 0.0), found.scale)
    return largest


def _role(name: str) -> str:
    last = name.rpartition(".")[2]
    return {"w1": "in", "w3": "in", "gate_proj": "in", "up_proj": "in", "w2": "out", "down_proj": "out"}.get(last, last)


def _borrowed(layer: Layer, experts: Mapping[tuple[str, str], float]) -> InputScale | None:
    """The largest scale of the block's routed experts at the same place."""
    if layer.kind == "routed_experts":
        block, origin = layer.name.partition(".experts.")[0], UNSEEN
    elif layer.kind == "shared_experts":
        block = layer.name.rpartition(".shared_expert")[0]
        origin = SAME_INPUT if _role(layer.name) == "in" else STAND_IN
    else:
        return None
    scale = experts.get((block, _role(layer.name)))
    return None if scale is None else InputScale(scale, origin)


def summary(scales: Mapping[str, InputScale]) -> dict[str, int]:
    """How many layers have their input scale from where."""
    counts: dict[str, int] = {}
    for one in scales.values():
        counts[one.origin] = counts.get(one.origin, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: json.dumps(item)))
