"""The linear layers and other parameters of a model, listed from its shape alone.

This is how a config without weights still says how large each component is. Names follow the checkpoint's, so that the
quantization metadata's patterns can be matched against them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from optistack.facts.configuration import Shape, vision_numbers
from optistack.facts.model import Attention, ComponentName


class Module(NamedTuple):
    """``parameters`` weights under ``name``. Routed experts are one module a layer, named as expert 0."""

    name: str
    component: ComponentName
    parameters: int
    quantizable: bool = True
    replicated: bool = False


def modules(shape: Shape) -> Iterator[Module]:
    """Every module of the model. A draft borrows its target's embedding and head, so it has none."""
    if shape.captured_layers:
        fused = shape.captured_layers * shape.target_hidden * shape.hidden
        yield Module("fc", "other", fused, quantizable=False, replicated=True)
        yield _whole("hidden_norm", "norms", shape.hidden)
    else:
        table = shape.vocab * shape.hidden
        yield Module("model.embed_tokens", "embeddings", table, quantizable=False)
        if not shape.tied_embeddings:
            yield Module("lm_head", "head", table)
    yield _whole("model.norm", "norms", shape.hidden)
    for layer, sparse in enumerate(shape.sparse_layers):
        root = f"model.layers.{layer}"
        yield _whole(f"{root}.input_layernorm", "norms", 2 * shape.hidden)
        if shape.attention.kind == "mla":
            yield from _mla(f"{root}.self_attn", shape)
        else:
            yield from _gqa(f"{root}.self_attn", shape)
        yield from _sparse_mlp(f"{root}.mlp", shape) if sparse else _dense_mlp(f"{root}.mlp", shape)
    if shape.vision is not None:
        yield from _vision(shape)


def _whole(name: str, component: ComponentName, parameters: int) -> Module:
    return Module(name, component, parameters, quantizable=False, replicated=True)


def mla_projections(attention: Attention, hidden: int) -> dict[str, int]:
    """Parameters of each MLA projection of one layer, as in DeepSeek-V3 (arXiv 2412.19437, section 2.1.1)."""
    queries = attention.heads * attention.head_dim
    latent = attention.kv_lora_rank
    sizes = {"kv_a_proj_with_mqa": hidden * (latent + attention.qk_rope_head_dim)}
    if attention.q_lora_rank:
        sizes["q_a_proj"] = hidden * attention.q_lora_rank
        sizes["q_b_proj"] = attention.q_lora_rank * queries
    else:
        sizes["q_proj"] = hidden * queries
    sizes["kv_b_proj"] = latent * attention.heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    sizes["o_proj"] = attention.heads * attention.v_head_dim * hidden
    return sizes


def _mla(root: str, shape: Shape) -> Iterator[Module]:
    for name, parameters in mla_projections(shape.attention, shape.hidden).items():
        down = name in ("q_a_proj", "kv_a_proj_with_mqa")
        yield Module(f"{root}.{name}", "attention", parameters, replicated=down)
    yield _whole(f"{root}.kv_a_layernorm", "norms", shape.attention.kv_lora_rank + shape.attention.q_lora_rank)


def _gqa(root: str, shape: Shape) -> Iterator[Module]:
    attention, hidden = shape.attention, shape.hidden
    wide = attention.heads * attention.head_dim
    narrow = attention.kv_heads * attention.head_dim
    bias = int(shape.qkv_bias)
    yield Module(f"{root}.q_proj", "attention", hidden * wide + bias * wide)
    yield Module(f"{root}.k_proj", "attention", hidden * narrow + bias * narrow)
    yield Module(f"{root}.v_proj", "attention", hidden * narrow + bias * narrow)
    yield Module(f"{root}.o_proj", "attention", wide * hidden + int(shape.out_bias) * hidden)
    if shape.qk_norm:
        yield _whole(f"{root}.q_norm", "norms", 2 * attention.head_dim)


def _mlp(root: str, component: ComponentName, shape: Shape, width: int, copies: int = 1) -> Iterator[Module]:
    names = ("gate_proj", "up_proj", "down_proj") if shape.gated_mlp else ("up_proj", "down_proj")
    for name in names:
        yield Module(f"{root}.{name}", component, copies * shape.hidden * width)


def _dense_mlp(root: str, shape: Shape) -> Iterator[Module]:
    yield from _mlp(root, "dense_mlp", shape, shape.intermediate)


def _sparse_mlp(root: str, shape: Shape) -> Iterator[Module]:
    if shape.moe is None:
        return
    experts = shape.moe.routed_experts
    # The router of a DeepSeek-style model has a correction bias for each expert beside its matrix.
    yield _whole(f"{root}.gate", "router", experts * (shape.hidden + 1))
    yield from _mlp(f"{root}.experts.0", "routed_experts", shape, shape.moe.expert_width, copies=experts)
    if shape.moe.shared_width:
        yield from _mlp(f"{root}.shared_experts", "shared_experts", shape, shape.moe.shared_width)


def _vision(shape: Shape) -> Iterator[Module]:
    """A ViT with biased linears and, where patches are merged, MoonViT's two-layer projector (Kimi K2.5: 0.47 G)."""
    size = vision_numbers(shape.vision or {})
    wide, inner = size["hidden"], size["intermediate"]
    attention = 4 * wide * wide + 4 * wide
    mlp = 2 * wide * inner + wide + inner
    yield _whole("vision_tower.encoder", "vision", size["layers"] * (attention + mlp + 4 * wide) + 2 * wide)
    yield _whole("vision_tower.patch_embed", "vision", wide * (3 * size["patch"] ** 2 + 1 + size["grid"]))
    if size["merge"] > 1:
        merged = size["merge"] * wide
        projector = merged * (merged + 1) + (merged + 1) * shape.hidden + 2 * wide
        yield _whole("mm_projector", "vision", projector)
