"""Which attention kernels a model gets on a GPU, and what they demand."""

from __future__ import annotations

from collections.abc import Sequence

from optistack.facts.model import ModelFacts
from optistack.facts.node import NodeFacts

SM90 = (90,)
SM100 = (100, 103)
"""The data-center Blackwell family, B200 and B300. SM110 and SM120 lack the TensorRT-LLM attention kernels."""

BLACKWELL = (*SM100, 110, 120, 121)

MLA_ONLY = ("trtllm_mla", "cutedsl_mla", "tokenspeed_mla", "flashmla")
NOT_MLA = ("trtllm_mha",)

PAGES: dict[str, tuple[int, ...]] = {
    "trtllm_mla": (32, 64),
    "cutedsl_mla": (32, 64),
    "tokenspeed_mla": (32, 64),
    "flashmla": (64,),
    "trtllm_mha": (16, 32, 64, 128),
    "hpc_ops": (64,),
}
"""Page sizes that a kernel takes. SGLang silently uses 64 instead of any other (arg_groups/overrides.py:1144)."""

PAGE_TOKENS = 64
"""Fits every kernel, and keeps the pages of the host tier large enough to copy at full speed."""

DRAFT_BACKENDS = ("flashinfer", "fa3", "fa4", "triton", "trtllm_mha")
"""Kernels for a draft on NVIDIA GPUs (arg_groups/choices.py:103). Another word only gives a warning."""


def attention_backend(model: ModelFacts, node: NodeFacts) -> tuple[str, str]:
    """The kernels SGLang would choose for ``model`` on ``node``, and why.

    It follows arg_groups/model_overrides/deepseek_v2.py:185 and arg_groups/model_override_base.py:277; saying it aloud
    keeps a new release from choosing another one unseen.
    """
    if node.device == "cpu":
        return "torch_native", "the only kernels for a CPU without AMX"
    mla = model.attention.kind == "mla"
    if node.sm in SM90:
        return "fa3", "FlashAttention 3 is made for Hopper"
    if node.sm in SM100:
        if mla:
            return "trtllm_mla", "the TensorRT-LLM kernels for MLA on SM100"
        if model.attention.v_head_dim not in (0, model.attention.head_dim):
            return "fa4", "K and V rows differ in width, which trtllm_mha does not take"
        return "trtllm_mha", "the TensorRT-LLM kernels for grouped-query attention on SM100"
    if mla:
        return "triton", f"no faster MLA kernels on SM{node.sm}"
    return "flashinfer", f"SGLang's choice on SM{node.sm}"


def allowed_pages(backends: Sequence[str | None], model: ModelFacts, node: NodeFacts) -> tuple[int, ...]:
    """Page sizes that all of ``backends`` take; empty for any."""
    allowed: tuple[int, ...] = ()
    for backend in backends:
        takes = PAGES.get(backend or "", ())
        if backend == "fa4" and node.sm in SM100 and model.attention.kind != "mla":
            takes = (128,)  # arg_groups/overrides.py:1274
        if takes:
            allowed = tuple(page for page in allowed if page in takes) if allowed else takes
    return allowed


def draft_backend(target: str | None, node: NodeFacts) -> str:
    """What SGLang runs a DFlash draft on when nobody says (arg_groups/speculative_hook.py:886)."""
    if target in ("fa3", "fa4", "triton", "flashinfer"):
        return target
    return "fa3" if node.sm in SM90 else "flashinfer"
