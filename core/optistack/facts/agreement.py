"""Whether config.json and the tensors describe the same model. A folder that mixes two checkpoints ends here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optistack.errors import InputError
from optistack.facts.configuration import Shape
from optistack.facts.model import Quantization
from optistack.facts.safetensors import Tensor
from optistack.facts.tensors import is_vision, layer_of

_PLAIN = frozenset(("F64", "F32", "F16", "BF16", "I64", "BOOL"))
"""Dtypes of tensors that are not quantized, in safetensors' words."""


def check_agreement(shape: Shape, tensors: Mapping[str, Tensor], config_file: Path) -> None:
    """InputError that names the first thing on which ``config_file`` and the tensors differ.

    Compared: the number of layers, the number of routed experts, the vocabulary, and the widths that the embedding, the
    first layer's norm, MLP and keys and the MLA down-projection show. Encoders of images have layers and widths of
    their own. What the checkpoint does not have is not compared.
    """
    _check_counts(shape, tensors, config_file)
    for name, tensor in tensors.items():
        # A mixture of experts has hundreds of thousands of tensors, and none of theirs is compared.
        if ".experts." in name or is_vision(name):
            continue
        for axis, size, key in _expected(shape, name):
            if axis >= len(tensor.shape) or tensor.shape[axis] != size:
                _differ(config_file, f"{key} is {size}", f"tensor {name!r} is {list(tensor.shape)}")


def check_precision(quantization: Quantization | None, tensors: Mapping[str, Tensor], config_file: Path) -> None:
    """InputError when the metadata says that weights are quantized and every tensor is plain."""
    if quantization is None or not quantization.algo:
        return
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if dtypes <= _PLAIN:
        says = f"the weights are quantized ({', '.join(quantization.algo)})"
        _differ(config_file, says, f"every tensor is plain ({', '.join(sorted(dtypes))})")


def _check_counts(shape: Shape, tensors: Mapping[str, Tensor], config_file: Path) -> None:
    # Names up to the number of an expert are few, and the numbers are few; the names themselves are not.
    blocks: set[str] = set()
    numbers: set[str] = set()
    for name in tensors:
        block, expert, rest = name.partition(".experts.")
        blocks.add(block + "." if expert else name)
        if expert:
            numbers.add(rest.partition(".")[0])
    layers = {layer for layer in map(layer_of, blocks) if layer is not None}
    experts = max((int(number) for number in numbers if number.isdigit()), default=-1)
    if layers:
        highest, allowed = max(layers), shape.layers + shape.extra_layers - 1
        if highest > allowed:
            _differ(config_file, f"num_hidden_layers is {shape.layers}", f"there are tensors of layer {highest}")
        absent = sorted(set(range(shape.layers)) - layers)
        if absent:
            _differ(config_file, f"num_hidden_layers is {shape.layers}", f"no tensor is of layer {absent[0]}")
    if shape.moe is not None and experts >= 0 and experts + 1 != shape.moe.routed_experts:
        _differ(config_file, f"the number of routed experts is {shape.moe.routed_experts}", f"there are {experts + 1}")
    if shape.moe is None and experts >= 0:
        _differ(config_file, "the model has no experts", f"there are {experts + 1}")


def _expected(shape: Shape, name: str) -> tuple[tuple[int, int, str], ...]:
    """For tensor ``name``: axes, their sizes by the config, and the config's keys."""
    if name.endswith("embed_tokens.weight"):
        return ((1, shape.hidden, "hidden_size"), (0, shape.vocab, "vocab_size"))
    if name.endswith("layers.0.input_layernorm.weight"):
        return ((0, shape.hidden, "hidden_size"),)
    # Rows alone: quantized columns are packed.
    if name.endswith("layers.0.mlp.gate_proj.weight"):
        return ((0, shape.intermediate, "intermediate_size"),)
    if name.endswith("layers.0.self_attn.kv_a_proj_with_mqa.weight") and shape.attention.kv_lora_rank:
        latent = shape.attention.kv_lora_rank + shape.attention.qk_rope_head_dim
        return ((0, latent, "kv_lora_rank + qk_rope_head_dim"),)
    if name.endswith("layers.0.self_attn.k_proj.weight") and shape.attention.kind != "mla":
        width = shape.attention.kv_heads * shape.attention.head_dim
        return ((0, width, "num_key_value_heads x head_dim"),)
    return ()


def _differ(config_file: Path, says: str, but: str) -> None:
    raise InputError(
        f"{config_file} contradicts the tensors beside it: {says}, but {but}.",
        fix="Download both from one revision, or give the folder that they belong to.",
    )
