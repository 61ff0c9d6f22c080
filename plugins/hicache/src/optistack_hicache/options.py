"""What a stack file may say under ``plugins: hicache:``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class HiCacheOptions(BaseModel):
    """Options of the plugin. Without any, the host tier is sized from the node's RAM and there is no storage."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host_gib: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="Host RAM for the tier of one replica, over all of its ranks, a draft's KV included.",
    )
    host_fraction: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Instead of host_gib: this part of the RAM that is left after what the engine needs. Default 0.8, "
        "and half where the engine keeps the tier in /dev/shm.",
    )
    write_policy: Literal["write_through", "write_back", "write_through_selective"] = Field(
        "write_through",
        description="When KV is copied to the host: as soon as it is computed, when the device evicts it, or from its "
        "second use on.",
    )
    layout: str | None = Field(
        None, min_length=1, description="How pages lie in host RAM, in SGLang's word. Default: what io_backend copies."
    )
    io_backend: Literal["auto", "kernel", "direct"] = Field(
        "auto", description="How SGLang copies between host and device: with a GPU kernel or with DMA."
    )
    storage: str = Field(
        "none",
        min_length=1,
        description="Storage tier below the host: none, file (fs), mooncake, nixl, lmcache or another of the engine.",
    )
    storage_dir: str | None = Field(
        None,
        min_length=1,
        description="Folder for the storage tier; a folder named by everything that changes the bytes is made in it.",
        json_schema_extra={"path": True},
    )
    storage_tag: str | None = Field(
        None,
        min_length=1,
        description="A word that the hash in that folder's name is over too, for what changes the bytes unseen.",
    )
    storage_quota_gib: float | None = Field(None, gt=0, le=1e6, description="Size that the storage tier may reach.")
    storage_config: dict[str, Any] = Field(
        default_factory=dict, description="Further settings of the storage backend, in its own words."
    )
    prefetch_policy: Literal["best_effort", "wait_complete", "timeout"] | None = Field(
        None,
        description="What a request that waits for storage does, on SGLang: start anyway, wait, or wait for a while. "
        "Default timeout.",
    )
