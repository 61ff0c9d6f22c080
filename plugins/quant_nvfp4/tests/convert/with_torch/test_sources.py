"""Every form of source gives the NVFP4 of its own values, whichever form is written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from optistack.cli.run import run
from optistack.facts.checkpoint import load_model
from optistack_quant_nvfp4.checkpoint import recognise
from optistack_quant_nvfp4.codec import Packed, dequantize, fp8_to_float, global_scale_of, int4_to_float, quantize
from optistack_quant_nvfp4.convert.checkpoint import read_checkpoint

Make = Callable[..., Path]
Tensors = Callable[[Path], dict[str, Any]]
ROUTED = "model.layers.1.mlp.experts.2"
SHARED = "model.layers.1.mlp.shared_experts"


def packed(tensors: dict[str, Any], name: str) -> Packed:
    return Packed(tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"], tensors[f"{name}.weight_scale_2"])


def test_int4_experts_become_the_nvfp4_of_their_values(tiny: Make, convert: Make, tensors: Tensors) -> None:
    source = tiny("int4")
    old, new = tensors(source), tensors(convert(source, "--scope", "routed-experts"))
    wanted = {
        name: int4_to_float(old[f"{name}.weight_packed"], old[f"{name}.weight_scale"])
        for name in (f"{ROUTED}.gate_proj", f"{ROUTED}.up_proj")
    }
    whole = global_scale_of(torch.stack([one.abs().max() for one in wanted.values()]))
    for name, values in wanted.items():  # gate and up are one layer in the engines: one global scale
        found, right = packed(new, name), quantize(values, whole)
        assert torch.equal(found.values, right.values)
        assert torch.equal(found.block_scales.view(torch.uint8), right.block_scales.view(torch.uint8))
        assert found.global_scale == whole
    assert not any(name.endswith(("weight_packed", "weight_shape")) for name in new)


@pytest.mark.parametrize("method", ["amax", "mse", "four-over-six"])
def test_fp8_blocks_become_the_nvfp4_of_their_values(tiny: Make, convert: Make, tensors: Tensors, method: str) -> None:
    source = tiny("fp8", dense="fp8")
    folder = convert(source, "--scope", "all-experts", "--method", method, "--rest", "bf16")
    old, new = tensors(source), tensors(folder)
    name = f"{SHARED}.down_proj"
    values = fp8_to_float(old[f"{name}.weight"], old[f"{name}.weight_scale_inv"], block=(128, 128))
    right = quantize(values, global_scale_of(values, method), method)
    assert torch.equal(packed(new, name).values, right.values)
    assert json.loads((folder / "optistack-nvfp4.json").read_bytes())["normalisation"] == (
        6 * 256 if method == "four-over-six" else 6 * 448
    )
    kept = "model.layers.0.self_attn.o_proj"
    plain = fp8_to_float(old[f"{kept}.weight"], old[f"{kept}.weight_scale_inv"], block=(128, 128)).bfloat16()
    assert torch.equal(new[f"{kept}.weight"], plain)


def test_per_tensor_and_per_channel_fp8_are_read(tiny: Make, convert: Make, tensors: Tensors) -> None:
    def rescale(found: dict[str, Any]) -> None:
        for name in ("gate_proj", "up_proj", "down_proj"):
            rows = found[f"{SHARED}.{name}.weight"][1][0]
            del found[f"{SHARED}.{name}.weight_scale_inv"]
            scale = torch.rand(rows) * 0.01 + 0.001 if name == "down_proj" else torch.tensor([0.003])
            found[f"{SHARED}.{name}.weight_scale"] = ("F32", tuple(scale.shape), scale.numpy().tobytes())

    source = tiny("fp8", dense="fp8", change=rescale)
    old = tensors(source)
    new = tensors(convert(source, "--scope", "shared-experts", "--rest", "bf16"))
    name = f"{SHARED}.down_proj"
    values = old[f"{name}.weight"].float() * old[f"{name}.weight_scale"].reshape(-1, 1)
    assert torch.equal(packed(new, name).values, quantize(values, global_scale_of(values)).values)
    assert torch.allclose(
        dequantize(packed(new, f"{SHARED}.gate_proj")), old[f"{SHARED}.gate_proj.weight"].float() * 0.003, atol=0.3
    )


def test_shared_experts_beside_nvfp4_experts_leave_those_alone(tiny: Make, convert: Make, tensors: Tensors) -> None:
    source = tiny("nvfp4")
    folder = convert(source, "--scope", "shared-experts")
    old, new = tensors(source), tensors(folder)
    assert all(torch.equal(_raw(tensor), _raw(new[name])) for name, tensor in old.items() if SHARED not in name)
    gate = f"{SHARED}.gate_proj"
    assert dequantize(packed(new, gate)).shape == old[f"{gate}.weight"].shape
    assert new[f"{gate}.input_scale"] == max(
        old[f"model.layers.1.mlp.experts.{i}.gate_proj.input_scale"] for i in range(4)
    )
    planned = recognise(load_model(str(folder)))  # what a plan for this checkpoint sees
    assert (planned.scope, planned.method, planned.weight_only) == ("all-experts", "modelopt", False)


def test_both_forms_say_the_same(tiny: Make, convert: Make, tensors: Tensors) -> None:
    source = tiny("nvfp4")
    one = tensors(convert(source, "--scope", "shared-experts"))
    other = tensors(convert(source, "--scope", "shared-experts", "--format", "compressed-tensors", name="other"))
    for name in (f"{SHARED}.up_proj", f"{ROUTED}.up_proj"):
        assert torch.equal(one[f"{name}.weight"], other[f"{name}.weight_packed"])
        assert torch.equal(_raw(one[f"{name}.weight_scale"]), _raw(other[f"{name}.weight_scale"]))
        for here, there in (("weight_scale_2", "weight_global_scale"), ("input_scale", "input_global_scale")):
            assert math.isclose(float(one[f"{name}.{here}"]), 1 / float(other[f"{name}.{there}"]), rel_tol=1e-6)


@pytest.mark.parametrize(
    ("experts", "words"),
    [
        ("bf16", ["--scope", "linear"]),
        ("int4", ["--scope", "shared-experts", "--format", "compressed-tensors"]),
        ("int4", ["--scope", "linear"]),
        ("fp8", ["--scope", "routed-experts", "--format", "compressed-tensors"]),
        ("fp8", ["--scope", "routed-experts", "--rest", "bf16"]),
        ("nvfp4", ["--scope", "shared-experts"]),
    ],
)
def test_what_was_written_is_verified_and_a_flipped_bit_is_found(
    tiny: Make, convert: Make, capsys: pytest.CaptureFixture[str], experts: str, words: list[str]
) -> None:
    source = tiny(experts, dense="fp8" if experts == "fp8" else "bf16")
    folder = convert(source, *words)
    verify = ["quant-nvfp4", "verify", str(folder), "--against", str(source)]
    assert run(verify) == 0, capsys.readouterr().err
    place = read_checkpoint(folder).places["lm_head.weight"]
    with place.file.open("r+b") as file:
        file.seek(place.offset)
        byte = file.read(1)[0]
        file.seek(place.offset)
        file.write(bytes([byte ^ 1]))
    assert run(verify) == 1
    assert "lm_head differs from the source's" in capsys.readouterr().err


def test_fp8_attention_stays_as_it_is_beside_nvfp4(
    mixed: Path, convert: Make, tensors: Tensors, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = convert(mixed, "--scope", "shared-experts")
    old, new = tensors(mixed), tensors(folder)
    assert all(torch.equal(_raw(tensor), _raw(new[name])) for name, tensor in old.items() if SHARED not in name)
    assert run(["quant-nvfp4", "verify", str(folder), "--against", str(mixed)]) == 0, capsys.readouterr().err
    again = recognise(load_model(str(folder)))  # what a plan for this checkpoint sees
    assert (again.scope, again.method, again.dense, again.weight_only) == ("all-experts", "modelopt", "mixed", False)


def test_a_checkpoint_is_no_proof_of_itself(tiny: Make, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(tiny("bf16"))
    assert run(["quant-nvfp4", "verify", source, "--against", source]) == 2
    assert "the same folder" in capsys.readouterr().err


def test_a_value_that_is_not_a_number_is_an_error_that_names_the_layer_and_leaves_nothing(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def spoil(found: dict[str, Any]) -> None:
        dtype, shape, data = found[f"{SHARED}.up_proj.weight"]
        found[f"{SHARED}.up_proj.weight"] = (dtype, shape, data[:1000] + b"\xc0\x7f" + data[1002:])

    source = tiny("bf16", change=spoil)
    assert run(["quant-nvfp4", "convert", str(source), str(tmp_path / "new"), "--scope", "all-experts"]) == 2
    assert f"{SHARED}.up_proj has a value that is NaN" in capsys.readouterr().err
    assert {one.name for one in tmp_path.iterdir()} == {source.name}


def test_a_layer_that_errs_too_much_keeps_the_folder_from_appearing_and_costs_nothing_twice(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, new = tiny("bf16"), tmp_path / "new"
    words = ["quant-nvfp4", "convert", str(source), str(new), "--scope", "shared-experts"]
    assert run([*words, "--min-sqnr-db", "90"]) == 1
    said = capsys.readouterr().err
    assert f"{SHARED}." in said and "and 2 more, and at least 90 is asked" in said
    assert not new.exists()
    written = tmp_path / ".new.partial" / "checkpoint"
    before = {one.name: one.stat().st_mtime_ns for one in written.glob("*.safetensors")}
    assert run(words) == 0, capsys.readouterr().err
    assert {name: (new / name).stat().st_mtime_ns for name in before} == before


def test_the_report_has_every_layer_worst_first(tiny: Make, convert: Make) -> None:
    folder = convert(tiny("bf16"), "--scope", "linear")
    rows = json.loads((folder / "optistack-nvfp4-report.json").read_bytes())["layers"]
    assert len(rows) == 3 + 15 + 8
    values = [row["sqnr_db"] for row in rows]
    assert values == sorted(values)
    assert 15 < values[0] < 30  # of Gaussian weights about 20


def _raw(tensor: Any) -> Any:
    return tensor.contiguous().view(torch.uint8) if tensor.dim() else tensor
