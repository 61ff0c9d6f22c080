"""From the tensors in the safetensors headers to components: what belongs to what, and in which precision.

A quantized linear layer is several tensors: packed values, scales of blocks, a scale of the tensor, a scale of the
inputs. All of their bytes belong to the component of the layer, and only the values count as parameters. Layouts:
ModelOpt (``weight`` U8, ``weight_scale`` E4M3, ``weight_scale_2``, ``input_scale``), compressed-tensors
(``weight_packed`` U8 or I32, ``weight_scale``, ``weight_global_scale``), DeepSeek FP8 (``weight_scale_inv``), GPTQ and
AWQ (``qweight``, ``scales``, ``qzeros``), MXFP4 of gpt-oss (``*_blocks``, ``*_scales``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple

from optistack.facts.model import Component, ComponentName
from optistack.facts.safetensors import Tensor

_WORDS = {
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "I8": "int8",
    "U8": "int8",
    "F4": "nvfp4",
}
_WEIGHTS = ("weight", "weight_packed", "qweight")
_SCALE = re.compile(
    r"(?:weight_(?:scale\w*|global_scale|shape|zero_point|g_idx)|input_(?:global_)?scale|[kvq]_scale|kv_scale"
    r"|output_scale|pre_quant_scale|scales|qzeros|g_idx|\w+_scales|\w+_scale_inv)$"
)
_KV_SCALES = (".k_scale", ".v_scale", ".kv_scale", ".k_proj.output_scale", ".v_proj.output_scale")
_VISION = re.compile(r"vision_tower|vision_model|visual\.|mm_projector|multi_modal_projector|audio_tower")
_DOWN_PROJECTIONS = (".q_a_proj.", ".kv_a_proj_with_mqa.")
_DIGITS = re.compile(r"\d+")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")


class _Key(NamedTuple):
    name: ComponentName
    precision: str
    replicated: bool


def layer_of(name: str) -> int | None:
    """The decoder layer that tensor ``name`` is in, or None."""
    found = _LAYER.search(name)
    return int(found.group(1)) if found and not is_vision(name) else None


def is_vision(name: str) -> bool:
    """Whether tensor ``name`` belongs to an encoder of images or sound."""
    return _VISION.search(name) is not None


def has_kv_scales(names: Iterable[str]) -> bool:
    """Whether the checkpoint carries calibrated scales for a quantized KV cache."""
    return any(name.endswith(_KV_SCALES) for name in names)


def components(tensors: Mapping[str, Tensor], layers: int, packed_bits: int = 4) -> tuple[Component, ...]:
    """Sum ``tensors`` to components, by precision and placement.

    ``layers`` decoder layers are the model's own, any after them belong to multi-token prediction. ``packed_bits`` is
    the width of integers packed into 32-bit words.
    """
    keys: dict[str, _Key] = {}
    sums: dict[_Key, list[int]] = {}
    rest: list[tuple[str, str, Tensor]] = []
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf in _WEIGHTS or leaf.endswith("_blocks"):
            scale = tensors.get(f"{module}.weight_scale") if tensor.dtype == "U8" else None
            word, values = _values(tensor, leaf, scale, packed_bits)
            key = _key(name, word, layers)
            keys.setdefault(module, key)
            _add(sums, key, values, tensor.bytes)
        else:
            rest.append((module, leaf, tensor))
    orphans: list[tuple[ComponentName, int]] = []
    for module, leaf, tensor in rest:
        is_scale = _is_scale(leaf)
        known = keys.get(module)
        if known is None and is_scale:
            orphans.append((_place(f"{module}.{leaf}", layers)[0], tensor.bytes))
            continue
        key = known or _key(f"{module}.{leaf}", _WORDS.get(tensor.dtype, tensor.dtype.lower()), layers)
        _add(sums, key, 0 if is_scale else tensor.values, tensor.bytes)
    for component, size in orphans:
        # A KV scale hangs on the attention block and not on a projection: it must not look like a precision of its own.
        same = [key for key in sums if key.name == component]
        key = max(same, key=lambda k: sums[k][1]) if same else _Key(component, "fp32", True)
        _add(sums, key, 0, size)
    return tuple(
        Component(name=key.name, precision=key.precision, replicated=key.replicated, parameters=values, bytes=size)
        for key, (values, size) in sorted(sums.items())
    )


@lru_cache(maxsize=1024)
def _is_scale(leaf: str) -> bool:
    return _SCALE.match(leaf) is not None


def _add(sums: dict[_Key, list[int]], key: _Key, values: int, size: int) -> None:
    total = sums.setdefault(key, [0, 0])
    total[0] += values
    total[1] += size


def _key(name: str, word: str, layers: int) -> _Key:
    component, replicated = _place(name, layers)
    return _Key(component, word, replicated)


def _values(tensor: Tensor, leaf: str, scale: Tensor | None, packed_bits: int) -> tuple[str, int]:
    """The precision word of a weight tensor and how many values it holds, unpacked."""
    if leaf.endswith("_blocks"):
        return "mxfp4", 2 * tensor.values
    scale_dtype = scale.dtype if scale else ""
    if tensor.dtype == "U8" and scale_dtype == "F8_E4M3":
        return "nvfp4", 2 * tensor.values
    if tensor.dtype == "U8" and scale_dtype in ("U8", "F8_E8M0"):
        return "mxfp4", 2 * tensor.values
    if tensor.dtype == "I32" and leaf != "weight":
        return f"int{packed_bits}", tensor.values * 32 // packed_bits
    return _WORDS.get(tensor.dtype, tensor.dtype.lower()), tensor.values


def _place(name: str, layers: int) -> tuple[ComponentName, bool]:
    block, expert, _ = name.partition(".experts.")
    return _place_block(block + expert if expert else name, layers)


@lru_cache(maxsize=65536)
def _place_block(name: str, layers: int) -> tuple[ComponentName, bool]:
    layer = layer_of(name)
    if (layer is not None and layer >= layers) or name.startswith("mtp."):
        return "mtp", False
    return _place_by_kind(_DIGITS.sub("0", name))


@lru_cache(maxsize=4096)
def _place_by_kind(name: str) -> tuple[ComponentName, bool]:
    """Component and placement of a tensor by its name, with every number replaced by 0. Order matters."""
    dotted = f".{name}."
    last = name.rpartition(".")[0].rpartition(".")[2]
    if is_vision(name):
        return "vision", True
    if "embed_tokens" in name or ".wte." in dotted or "word_embeddings" in name:
        return "embeddings", False
    if ".lm_head." in dotted or name == "output.weight":
        return "head", False
    if "shared_expert_gate" in name or ".router." in dotted or last == "gate" or ".gate.e_score" in name:
        return "router", True
    if "norm" in last or last.startswith("ln_"):
        return "norms", True
    if "shared_expert" in name:
        return "shared_experts", False
    if ".experts." in dotted:
        return "routed_experts", False
    if "attn" in name or ".attention." in dotted:
        return "attention", any(projection in dotted for projection in _DOWN_PROJECTIONS)
    if ".mlp." in dotted or "feed_forward" in name:
        return "dense_mlp", False
    return "other", True
