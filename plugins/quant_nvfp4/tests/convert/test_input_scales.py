"""Where input scales come from, and calibrations that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from optistack.errors import InputError
from optistack_quant_nvfp4.convert.input_scales import SAME_INPUT, STAND_IN
from optistack_quant_nvfp4.convert.plan import Plan

Make = Callable[..., Path]
Planned = Callable[..., Plan]


def test_shared_experts_take_the_input_scale_of_the_routed_ones_and_say_so(tiny: Make, plan: Planned) -> None:
    result = plan(tiny("nvfp4"), "shared-experts")
    gate = result.scales["model.layers.1.mlp.shared_experts.gate_proj"]
    assert gate.scale == pytest.approx(0.013)  # the largest of four experts
    assert gate.origin == SAME_INPUT
    assert result.scales["model.layers.1.mlp.shared_experts.up_proj"] == gate
    assert result.scales["model.layers.1.mlp.shared_experts.down_proj"].origin == STAND_IN


def test_a_calibration_gives_fused_layers_the_larger_input(tiny: Make, plan: Planned, tmp_path: Path) -> None:
    file = tmp_path / "inputs.json"
    root = "model.layers.0.mlp"
    file.write_text(
        json.dumps({"input_amax": {f"{root}.gate_proj": 2688.0, f"{root}.up_proj": 1.0, f"{root}.down_proj": 26.88}})
    )
    scales = plan(tiny("bf16"), "dense-mlp", calibration=file).scales
    assert [round(scales[f"{root}.{name}_proj"].scale, 6) for name in ("gate", "up", "down")] == [1.0, 1.0, 0.01]


def test_names_of_a_calibration_that_are_no_layers_are_said(
    tiny: Make, plan: Planned, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, folder, root = tmp_path / "inputs.json", tiny("bf16"), "model.layers.0.mlp"
    known = {f"{root}.{name}_proj": 1.0 for name in ("gate", "up", "down")}
    file.write_text(json.dumps({**known, f"{root}.gate": 1.0, "elsewhere.fc": 1.0}))
    assert len(plan(folder, "dense-mlp", calibration=file).scales) == 3
    assert "Input scales of elsewhere.fc and 1 more are not used" in capsys.readouterr().err
    file.write_text(json.dumps({f"{root}.gate_prj": 1.0}))
    with pytest.raises(
        InputError, match=r"of no layer of .*gate_prj.*Did you mean 'model\.layers\.\*\.mlp\.gate_proj'"
    ):
        plan(folder, "dense-mlp", calibration=file)
    file.write_text(json.dumps({"lm_head": 1.0}))
    with pytest.raises(InputError, match="names no layer of the scope; .*_proj and 2 more"):
        plan(folder, "dense-mlp", calibration=file)


@pytest.mark.parametrize("text", ["[1]", "{", "1", '{"input_amax": [1]}', "\udcff"])
def test_a_calibration_of_another_form_is_told_which_it_must_have(
    tiny: Make, plan: Planned, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "is.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"is no calibration: .* Give {\"input_amax\": {\"model"):
        plan(tiny("bf16"), "dense-mlp", calibration=file)


def test_a_damaged_calibration_is_to_be_made_again(tiny: Make, plan: Planned, tmp_path: Path) -> None:
    file = tmp_path / "is.safetensors"
    file.write_bytes(b"{")
    with pytest.raises(InputError, match=r"Calibrate again, or as JSON: Give {\"input_amax\""):
        plan(tiny("bf16"), "dense-mlp", calibration=file)


def test_a_calibration_of_nothing_but_0_is_said_to_be(tiny: Make, plan: Planned, tmp_path: Path) -> None:
    file = tmp_path / "is.json"
    file.write_text(json.dumps({"input_amax": {"model.layers.0.mlp.gate_proj": 0}}))
    with pytest.raises(InputError, match=r"The largest input of model\.layers\.0\.mlp\.gate_proj is 0, which gives no"):
        plan(tiny("bf16"), "dense-mlp", calibration=file)


@pytest.mark.parametrize("name", ["nothing.json", "nothing.safetensors", "."])
def test_a_calibration_that_is_not_there_is_said_to_be(tiny: Make, plan: Planned, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"There is no file .* of input scales\. Give --input-scales what"):
        plan(tiny("bf16"), "dense-mlp", calibration=tmp_path / name)


def test_a_layer_without_an_input_scale_among_others_that_have_one_is_refused(tiny: Make, plan: Planned) -> None:
    with pytest.raises(InputError, match=r"_proj and \d+ more would have no input scale"):
        plan(tiny("nvfp4"), "attention")
