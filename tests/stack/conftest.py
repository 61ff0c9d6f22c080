"""A host with two made-up plugins, and a writer of stack files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from optistack import hookimpl
from optistack.host import Host
from optistack.plugin import Domain, PluginInfo


class KvOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    dtype: Literal["fp8_e4m3", "fp8_e5m2"] = Field("fp8_e4m3", description="The dtype of KV.")
    scales_file: str | None = Field(None, json_schema_extra={"path": True})


class DraftOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    checkpoint: str = Field(description="The draft.", json_schema_extra={"path": "checkpoint"})
    num_draft_tokens: int | None = Field(None, gt=0, description="Tokens proposed in a step.")


class KvPlugin:
    @hookimpl
    def optistack_plugin(self) -> PluginInfo:
        return PluginInfo(name="kv-eight", domain=Domain.KV, version="1", summary="Eight bits.", options=KvOptions)


class DraftPlugin:
    @hookimpl
    def optistack_plugin(self) -> PluginInfo:
        return PluginInfo(
            name="drafter", domain=Domain.SPECULATION, version="1", summary="Drafts.", options=DraftOptions
        )


@pytest.fixture
def host() -> Host:
    host = Host()
    host.register(KvPlugin(), name="kv-eight")
    host.register(DraftPlugin(), name="drafter")
    return host


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "optistack.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write
