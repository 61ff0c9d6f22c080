"""How a source is read by its metadata and headers, and one that cannot be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from optistack.cli.run import run
from optistack.errors import InputError
from optistack_quant_nvfp4.convert.plan import Plan

Make = Callable[..., Path]
Planned = Callable[..., Plan]


def test_an_unknown_quantization_is_refused_with_its_metadata(tiny: Make, plan: Planned) -> None:
    folder = tiny("fp8")
    config = json.loads((folder / "config.json").read_bytes())
    config["quantization_config"] = {"quant_method": "quark", "bits": 4, "secret": "sauce"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match='quark.*"secret": "sauce"'):
        plan(folder, "linear")


def test_a_missing_and_a_truncated_shard_are_named(tiny: Make, plan: Planned) -> None:
    folder = tiny("bf16")
    shard = folder / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(InputError, match="model-00002-of-00003.safetensors is cut off"):
        plan(folder, "linear")
    shard.unlink()
    with pytest.raises(InputError, match="model-00002-of-00003.safetensors, which .* does not have"):
        plan(folder, "linear")


def test_inspect_tells_precisions_by_the_headers(tiny: Make, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quant-nvfp4", "inspect", str(tiny("int4")), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    words = {(one["component"], one["precision"]): one["layers"] for one in shown["components"]}
    assert words["routed-experts", "int4"] == 12
    assert words["shared-experts", "bf16"] == 3
    assert shown["nvfp4_layers"] == 0
