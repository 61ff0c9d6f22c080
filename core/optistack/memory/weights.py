"""Bytes of weights on one GPU, component by component.

What is divided and what is whole on every rank follows SGLang 0.5.17 to 0.5.23 and vLLM 0.26 to 0.33 (their
``deepseek_v2.py``): ``q_b``, ``kv_b`` and ``o`` projections, MLPs, experts, embedding and head are divided; norms, the
router and the MLA down-projections ``q_a`` and ``kv_a`` are replicated linears.
"""

from __future__ import annotations

import math

from pydantic import BaseModel, ConfigDict

from optistack.errors import InputError
from optistack.facts.model import Component, ModelFacts
from optistack.facts.modules import mla_projections
from optistack.memory.kv import attention_ranks
from optistack.memory.lines import MemoryLine

_BF16_BYTES = 2


class Placement(BaseModel):
    """How an engine lays weights over the GPUs of a replica.

    ``tensor_parallel``          GPUs of the replica (for vLLM: tensor parallel times data parallel)
    ``attention_data_parallel``  attention groups with requests of their own; attention is divided within a group
    ``expert_parallel``          ranks that hold whole experts; 1 divides every expert over all GPUs
    ``absorbed_mla_copies``      the engine keeps ``kv_b_proj`` a second time, split and in BF16, for absorbed decode:
                                 SGLang always (``w_kc``, ``w_vc``), vLLM only when it is quantized
    ``vision_divided``           the vision tower is divided instead of whole on each rank
    ``vision_loaded``            False where the engine is told to leave it out (vLLM's ``--language-model-only``)
    ``mtp_loaded``               True where multi-token-prediction layers are used
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tensor_parallel: int = 1
    attention_data_parallel: int = 1
    expert_parallel: int = 1
    absorbed_mla_copies: bool = False
    vision_divided: bool = False
    vision_loaded: bool = True
    mtp_loaded: bool = False


def weight_lines(model: ModelFacts, placement: Placement, *, even: bool = False) -> tuple[MemoryLine, ...]:
    """What the weights of ``model`` take on one GPU. ``even`` divides everything by the number of GPUs (gross mode)."""
    lines = []
    for part in model.components:
        size = _even(part, placement) if even else _placed(part, model, placement)
        if size:
            lines.append(MemoryLine(label=part.name.replace("_", " "), bytes=size, why=_why(part, even)))
    if placement.absorbed_mla_copies and not even and model.attention.kind == "mla":
        ranks = attention_ranks(placement.tensor_parallel, placement.attention_data_parallel)
        latent = mla_projections(model.attention, model.hidden)["kv_b_proj"]
        size = model.layers * latent * _BF16_BYTES // ranks
        lines.append(MemoryLine(label="MLA copies", bytes=size, why="kv_b_proj split for absorbed decode, in BF16"))
    return tuple(lines)


def weight_bytes(model: ModelFacts, placement: Placement, *, even: bool = False) -> int:
    """Bytes of weights of ``model`` on one GPU (also of a draft: its own components, nothing borrowed)."""
    return sum(line.bytes for line in weight_lines(model, placement, even=even))


def _even(part: Component, placement: Placement) -> int:
    return 0 if part.name == "mtp" and not placement.mtp_loaded else -(-part.bytes // placement.tensor_parallel)


def _placed(part: Component, model: ModelFacts, placement: Placement) -> int:
    gpus = placement.tensor_parallel
    if (part.name == "vision" and not placement.vision_loaded) or (part.name == "mtp" and not placement.mtp_loaded):
        return 0
    if part.name == "vision" and placement.vision_divided:
        return -(-part.bytes // gpus)
    if part.replicated:
        return part.bytes
    if part.name == "routed_experts":
        return _experts(part, model, placement)
    attention_gpus = attention_ranks(gpus, placement.attention_data_parallel)
    if part.name == "attention":
        return _attention(part, model, attention_gpus)
    return -(-part.bytes // (attention_gpus if part.name == "embeddings" else gpus))


def _experts(part: Component, model: ModelFacts, placement: Placement) -> int:
    gpus, ranks = placement.tensor_parallel, placement.expert_parallel
    if ranks < 1 or gpus % ranks:
        raise InputError(f"Expert parallel {ranks} does not divide tensor parallel {gpus}.", fix="Choose a divisor.")
    experts = model.moe.routed_experts if model.moe else 1
    held = -(-experts // ranks)
    return math.ceil(part.bytes * held / experts / (gpus // ranks))


def _attention(part: Component, model: ModelFacts, gpus: int) -> int:
    """Attention is divided by heads; with fewer KV heads than GPUs, K and V projections are repeated."""
    attention = model.attention
    if attention.kind == "mla" or gpus <= attention.kv_heads:
        return -(-part.bytes // gpus)
    heads = 2 * attention.heads + 2 * attention.kv_heads
    return math.ceil(part.bytes * (2 * attention.heads / gpus + 2) / heads)


def _why(part: Component, even: bool) -> str:
    share = "divided" if even or not part.replicated else "whole on each GPU"
    return f"{part.parameters / 1e9:.2f} G parameters in {part.precision}, {share}"
