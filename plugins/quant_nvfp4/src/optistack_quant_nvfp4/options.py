"""Options of the plugin in the stack file."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Scope = Literal["any", "routed-experts", "all-experts", "linear"]


class Options(BaseModel):
    """``plugins: {quant-nvfp4: {...}}``. None of them is needed."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    scope: Scope = Field(
        "any",
        description="What must be NVFP4 in the checkpoint: whatever is (any), the routed experts alone "
        "(routed-experts), routed and shared experts (all-experts), or attention and every MLP too (linear). "
        "The plan is refused when the checkpoint is otherwise.",
    )
    moe_backend: str | None = Field(
        None,
        min_length=1,
        description="Kernels of the NVFP4 experts, in the engine's word; picked for the GPU when not given.",
    )
    fp4_gemm_backend: str | None = Field(
        None,
        min_length=1,
        description="Kernels of NVFP4 linear layers other than experts, in the engine's word; picked for the GPU when "
        "not given.",
    )
