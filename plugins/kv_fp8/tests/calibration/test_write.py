from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from optistack.errors import InputError
from optistack.facts import load_model
from optistack_kv_fp8.calibration import write as writing
from optistack_kv_fp8.calibration.folder import working_folder

SCALES = {0: (torch.tensor([0.5, 0.25]), torch.tensor([2.0, 1.0])), 1: (torch.tensor([3.0]), torch.tensor([4.0]))}


def write(source: Path, out: Path, **changes: Any) -> None:
    plain: dict[str, Any] = {"per_head": False, "ranks": 2, "report": {"method": "amax"}}
    with working_folder(source, out) as part:
        writing.write(source, part, SCALES, {"model.layers.0.mlp.up_proj": 1.5}, **{**plain, **changes})


@pytest.mark.parametrize("kind", ["llama", "deepseek"])
def test_a_checkpoint_has_scales_that_its_index_and_metadata_name(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(kind)
    write(source, tmp_path / "out")
    model = load_model(str(tmp_path / "out"))
    assert model.kv_scales is True
    assert model.quantization is not None and model.quantization.kv_cache_algo == "FP8"
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())["weight_map"]
    for name, file in index.items():
        with safe_open(tmp_path / "out" / file, "pt") as opened:
            assert name in set(opened.keys())
    with safe_open(tmp_path / "out" / writing.SCALES_FILE, "pt") as opened:
        values = {name: float(opened.get_tensor(name)) for name in list(opened.keys())}
    assert values == {
        "model.layers.0.self_attn.k_proj.k_scale": 0.5,
        "model.layers.0.self_attn.v_proj.v_scale": 2.0,
        "model.layers.1.self_attn.k_proj.k_scale": 3.0,
        "model.layers.1.self_attn.v_proj.v_scale": 4.0,
    }
    assert (tmp_path / "out" / "model.safetensors").stat().st_ino == (source / "model.safetensors").stat().st_ino


def test_calibrating_anew_is_refused_and_leaves_the_source_as_it_was(llama: Path, tmp_path: Path) -> None:
    write(llama, tmp_path / "first")
    before = {file.name: file.read_bytes() for file in (tmp_path / "first").iterdir()}
    with pytest.raises(InputError, match="has KV scales already"):
        write(tmp_path / "first", tmp_path / "second", report={"method": "mse"})
    assert {file.name: file.read_bytes() for file in (tmp_path / "first").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["first"]


def test_sglangs_file_has_one_scale_a_layer_for_each_rank(llama: Path, tmp_path: Path) -> None:
    write(llama, tmp_path / "out")
    content = json.loads((tmp_path / "out" / writing.SGLANG_FILE).read_text())
    layers = {"0": 2.0, "1": 4.0}
    assert content["model_type"] == "llama"
    assert content["kv_cache"] == {"dtype": "float8_e4m3fn", "scaling_factor": {"0": layers, "1": layers}}


def test_a_scale_for_each_head_is_three_dimensional_and_said_so(llama: Path, tmp_path: Path) -> None:
    write(llama, tmp_path / "out", per_head=True)
    with safe_open(tmp_path / "out" / writing.SCALES_FILE, "pt") as opened:
        assert opened.get_tensor("model.layers.0.self_attn.k_proj.k_scale").shape == (2, 1, 1)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["kv_cache_scheme"]["strategy"] == "attn_head"


def test_the_report_of_the_source_stays_as_it_was(llama: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for file in llama.iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    (source / writing.REPORT_FILE).write_text("{}")
    write(source, tmp_path / "out")
    assert (source / writing.REPORT_FILE).read_text() == "{}"
    assert json.loads((tmp_path / "out" / writing.REPORT_FILE).read_text()) == {"method": "amax"}


def test_nothing_is_left_of_a_write_that_fails(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(writing, "save_file", full)
    with pytest.raises(OSError, match="no space"):
        write(llama, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_scales_in_a_shard_are_found_by_name_whatever_the_metadata_says() -> None:
    weight = {"model.layers.0.self_attn.k_proj.weight": "model-00001.safetensors"}
    writing.check_unscaled(weight)
    with pytest.raises(InputError, match=r"has KV scales already: .*v_proj\.v_scale in model-00002\.safetensors"):
        writing.check_unscaled({**weight, "model.layers.0.self_attn.v_proj.v_scale": "model-00002.safetensors"})


def test_what_has_no_place_for_scales_is_refused(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="quantized by 'gptq' has no place for KV scales"):
        writing.with_kv_scheme({"quantization_config": {"quant_method": "gptq"}}, per_head=False)
    with pytest.raises(InputError, match="quantized by 'fp8' has no place for scales by head"):
        writing.with_kv_scheme({"quantization_config": {"quant_method": "fp8"}}, per_head=True)
    calibrated = writing.with_kv_scheme({}, per_head=False)
    with pytest.raises(InputError, match="has KV scales already"):
        writing.with_kv_scheme(calibrated, per_head=False)
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match="exists"):
        write(llama, tmp_path / "out")
    with pytest.raises(InputError, match="No attention of layers 1"):
        writing.scale_names({"model.layers.0.self_attn.k_proj.weight": "a"}, [0, 1])


def test_modelopts_metadata_says_fp8_kv(llama: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for file in llama.iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    (source / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4", "group_size": 16}}')
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    (source / "config.json").write_text(json.dumps(config))
    write(source, tmp_path / "out")
    inside = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text())["quantization"]
    assert inside == {"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": "FP8"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"]["kv_cache_scheme"]["num_bits"] == 8
