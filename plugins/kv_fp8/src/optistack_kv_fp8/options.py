"""Options of the plugin in the stack file."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Options(BaseModel):
    """``plugins: {kv-fp8: {...}}``. None of them is needed."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    dtype: Literal["fp8_e4m3", "fp8_e5m2"] = Field(
        "fp8_e4m3",
        description="Format of the target's KV. e4m3 has finer steps; e5m2 has more range and fewer kernels.",
    )
    draft_dtype: Literal["bfloat16", "fp8_e4m3", "fp8_e5m2", "same"] = Field(
        "bfloat16",
        description="Format of a draft model's KV, where the stack has one; same as the target's with same.",
    )
    scales: Literal["auto", "checkpoint", "unit"] = Field(
        "auto",
        description="Where scales come from: the checkpoint, or 1.0 for all (unit). auto takes the checkpoint's "
        "where it has some.",
    )
    scales_file: str | None = Field(
        None,
        min_length=1,
        description="A JSON file with KV scales, on the engine's machine (SGLang's trtllm_mha only); replaces scales.",
        json_schema_extra={"path": True},
    )
