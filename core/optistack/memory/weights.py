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
    ``groups_share_experts_only``  MLPs, shared experts, head and vision tower, too, are divided within a group: vLLM,
                                 whose groups are data-parallel copies; SGLang divides MLPs and head over all GPUs
    ``shared_experts_whole``     every GPU has all of the shared experts: SGLang, where experts get tokens in FP4
    ``groups_have_heads``        SGLang with ``--enable-dp-lm-head``: the head is divided within a group
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
    groups_share_experts_only: bool = False
    shared_experts_whole: bool = False
    groups_have_heads: bool = False
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
            lines.append(MemoryLine(label=part.name.replace("_", " "), bytes=size, why=_why(part, size, placement)))
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
    attention_gpus = attention_ranks(gpus, placement.attention_data_parallel)
    rest_gpus = attention_gpus if placement.groups_share_experts_only else gpus
    if (part.name == "vision" and not placement.vision_loaded) or (part.name == "mtp" and not placement.mtp_loaded):
        return 0
    if part.name == "vision" and placement.vision_divided:
        return -(-part.bytes // rest_gpus)
    if _whole(part, placement):
        return part.bytes
    if part.name == "routed_experts":
        return _experts(part, model, placement)
    if part.name == "attention":
        return _attention(part, model, attention_gpus)
    within_group = part.name == "embeddings" or (part.name == "head" and placement.groups_have_heads)
    return -(-part.bytes // (attention_gpus if within_group else rest_gpus))


def _whole(part: Component, placement: Placement) -> bool:
    """vLLM divides the tokens, and not the shared experts, within groups of several GPUs that share whole experts
    (``use_sequence_parallel_moe`` of config/parallel.py in 0.26 to 0.33)."""
    ranks = attention_ranks(placement.tensor_parallel, placement.attention_data_parallel)
    several = ranks > 1 and placement.attention_data_parallel > 1
    sequences = placement.groups_share_experts_only and placement.expert_parallel > 1 and several
    return part.replicated or (part.name == "shared_experts" and (sequences or placement.shared_experts_whole))


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


def _why(part: Component, size: int, placement: Placement) -> str:
    held = f"{part.parameters / 1e9:.2f} G parameters in {part.precision}"
    if placement.tensor_parallel == 1:
        return held
    return f"{held}, {'divided' if size < part.bytes else 'whole on each GPU'}"
