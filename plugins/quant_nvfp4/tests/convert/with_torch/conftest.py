"""Conversions for real, by the commands themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="conversion needs the extra `convert`")
safetensors_torch = pytest.importorskip("safetensors.torch", reason="conversion needs the extra `convert`")


@pytest.fixture
def convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Path]:
    """``convert(source, *words)``: the folder that the command wrote. Fails where the command does."""
    from optistack.cli.run import run

    def go(source: Path, *words: str, name: str = "converted") -> Path:
        destination = tmp_path / name
        code = run(["quant-nvfp4", "convert", str(source), str(destination), *words])
        assert code == 0, capsys.readouterr().err
        capsys.readouterr()
        return destination

    return go


@pytest.fixture
def tensors() -> Callable[[Path], dict[str, Any]]:
    """Every tensor of a checkpoint, read by the format's own library."""

    def read(folder: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for file in sorted(folder.glob("*.safetensors")):
            found.update(safetensors_torch.load_file(file))
        index = folder / "model.safetensors.index.json"
        if index.is_file():
            assert json.loads(index.read_bytes())["weight_map"].keys() == found.keys()
        return found

    return read
