"""What a stack file may say under ``plugins: dflash:``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class DFlashOptions(BaseModel):
    """Options of the plugin. Only ``draft`` is required; the rest is decided from the draft and the engine."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    draft: str = Field(
        min_length=1,
        description="The draft's checkpoint: a folder, a hub id such as org/name, or cache:NAME.",
        json_schema_extra={"path": "checkpoint"},
    )
    draft_config: str | None = Field(
        None,
        description="A folder or config.json of the draft, to plan from where its checkpoint is not on this machine.",
        json_schema_extra={"path": True},
    )
    num_draft_tokens: int | None = Field(
        None, ge=1, description="Tokens proposed in each step, the bonus token not counted. Default: block_size - 1."
    )
    draft_quantization: str | None = Field(
        None,
        min_length=1,
        description="Quantize the draft while loading, in the engine's word; none keeps it as it is. "
        "Default: what the draft's checkpoint says.",
    )
    draft_attention_backend: str | None = Field(
        None, min_length=1, description="Attention kernels of the draft, in the engine's word."
    )
    draft_window_tokens: int | None = Field(
        None, ge=2, description="The draft attends to this many recent tokens only. Default: to all. SGLang only."
    )
    min_acceptance_length: float | None = Field(
        None,
        ge=1.0,
        description="Tokens a step must yield on average in the live check, the bonus token counted. "
        "Default: reported, not judged.",
    )
