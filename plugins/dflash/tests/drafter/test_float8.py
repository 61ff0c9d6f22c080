"""A drafter in FP8 is a checkpoint of the usual kind, computes nearly what it did, and is no start for training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from optistack.errors import CheckFailedError, InputError
from optistack.facts import load_model
from optistack_dflash.commands import app
from optistack_dflash.draft import check_fit, read_draft
from optistack_dflash.drafter.network import Drafter, load_drafter, save_drafter
from optistack_dflash.drafter.provenance import Provenance
from optistack_dflash.drafter.shape import DrafterShape
from optistack_dflash.drafter.shards import Recorded, write_shard

FLOAT8 = torch.float8_e4m3fn


@pytest.fixture
def drafter(shape: DrafterShape) -> Drafter:
    torch.manual_seed(0)
    return Drafter(shape)


def test_linear_layers_have_one_scale_each_and_joined_ones_the_same(drafter: Drafter, tmp_path: Path) -> None:
    """The names and dtypes that Fp8LinearMethod of vLLM and SGLang looks for."""
    save_drafter(drafter, tmp_path, float8=True)
    found = load_file(tmp_path / "model.safetensors")
    linear = {f"layers.{n}.self_attn.{p}_proj" for n in range(2) for p in "qkvo"}
    linear |= {f"layers.{n}.mlp.{p}_proj" for n in range(2) for p in ("gate", "up", "down")}
    assert {name for name, value in found.items() if value.dtype == FLOAT8} == {f"{one}.weight" for one in linear}
    scales = {name.removesuffix(".weight_scale"): value for name, value in found.items() if name.endswith("_scale")}
    assert set(scales) == linear
    assert all(value.shape == () and value.dtype == torch.float32 for value in scales.values())
    at = "layers.0.self_attn."
    assert scales[f"{at}q_proj"] == scales[f"{at}k_proj"] == scales[f"{at}v_proj"] != scales[f"{at}o_proj"]
    assert found["fc.weight"].dtype == torch.bfloat16
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "fp8"
    assert DrafterShape.read(tmp_path) == drafter.shape


def test_it_fits_the_target_still(drafter: Drafter, checkpoint: Path, tmp_path: Path) -> None:
    save_drafter(drafter, tmp_path, float8=True)
    check_fit(read_draft(load_model(str(tmp_path))), load_model(str(checkpoint)), tensor=1, backend="vllm")


def test_it_computes_nearly_the_same(drafter: Drafter, shape: DrafterShape, tmp_path: Path) -> None:
    save_drafter(drafter, tmp_path, float8=True)
    converted = load_drafter(tmp_path)
    states, queries = torch.randn(1, 6, 2 * shape.hidden), torch.randn(1, 4, shape.hidden)
    positions = torch.arange(6)[None], torch.arange(6, 10)[None]
    mask = torch.ones(1, 1, 4, 10, dtype=torch.bool)
    with torch.no_grad():
        plain, rounded = (one(states, queries, *positions, mask) for one in (drafter, converted))
    assert 0 < (plain - rounded).norm() / plain.norm() < 0.1


def test_a_scale_that_is_missing_is_told(drafter: Drafter, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_drafter(drafter, tmp_path, float8=True)
    found = load_file(tmp_path / "model.safetensors")
    del found["layers.1.mlp.up_proj.weight_scale"]
    save_file(found, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match=r"not those that its config.json describes.*up_proj\.weight_scale"):
        load_drafter(tmp_path)


@pytest.fixture
def data(target: Any, answers: list[Recorded], tmp_path: Path) -> Path:
    provenance = Provenance(target.name, target.revision, target.template, (), "test 1")
    write_shard(tmp_path / "data" / "one.safetensors", answers, domain="code", provenance=provenance)
    return tmp_path / "data"


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=True)


def test_the_command_measures_before_it_writes(drafter: Drafter, checkpoint: Path, data: Path, tmp_path: Path) -> None:
    bf16, out = tmp_path / "bf16", tmp_path / "fp8"
    save_drafter(drafter, bf16)
    given = ("--target", checkpoint, "--data", data, "--device", "cpu")
    done = run("convert-fp8", bf16, *given, "--out", out, "--max-loss", 1)
    assert done.exit_code == 0, done.output
    assert "in BF16" in done.output
    assert load_file(out / "model.safetensors")["layers.0.mlp.up_proj.weight"].dtype == FLOAT8

    again = run("convert-fp8", out, *given, "--out", tmp_path / "twice")
    assert isinstance(again.exception, InputError)
    assert "is a drafter in FP8" in again.exception.message
    training = run("finetune", out, *given, "--out", tmp_path / "tuned")
    assert isinstance(training.exception, InputError)


def test_a_conversion_that_loses_too_much_is_not_written(
    drafter: Drafter, checkpoint: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optistack_dflash.drafter import acceptance

    lengths = iter((3.0, 2.9))
    monkeypatch.setattr(
        acceptance, "measure", lambda *_: acceptance.Acceptance(100, [round(100 * (next(lengths) - 1))])
    )
    save_drafter(drafter, tmp_path / "bf16")
    given = ("--target", checkpoint, "--data", data, "--device", "cpu", "--out", tmp_path / "fp8")
    done = run("convert-fp8", tmp_path / "bf16", *given)
    assert isinstance(done.exception, CheckFailedError)
    assert "3.33% of the acceptance length" in done.exception.message
    assert not (tmp_path / "fp8").exists()
