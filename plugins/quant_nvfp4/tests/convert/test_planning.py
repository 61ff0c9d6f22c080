"""What a conversion would do, told without torch: scopes, sizes, metadata, and input that is refused."""

from __future__ import annotations

import fcntl
import fnmatch
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optistack.cli.run import run as command
from optistack.errors import InputError
from optistack_quant_nvfp4.commands.convert import planned
from optistack_quant_nvfp4.convert import metadata
from optistack_quant_nvfp4.convert.input_scales import SAME_INPUT, STAND_IN
from optistack_quant_nvfp4.convert.plan import Plan
from optistack_quant_nvfp4.convert.results import RECIPE
from optistack_quant_nvfp4.convert.scope import SCOPES
from optistack_quant_nvfp4.convert.sizes import sizes

Make = Callable[..., Path]


def plan(folder: Path, *scope: str, exclude: list[str] | None = None, **options: Any) -> Plan:
    settings: dict[str, Any] = {
        "form": None,
        "method": "amax",
        "calibration": None,
        "weight_only": False,
        "rest": "keep",
        **options,
    }
    return planned(folder, list(scope), exclude or [], **settings)


def converted(result: Plan) -> set[str]:
    """Kinds of converted layers: numbers are stars."""
    return {re.sub(r"\.\d+", ".*", name).removeprefix("model.layers.*.") for name in result.chosen}


def test_a_word_means_a_component_and_never_its_router_norms_or_head(tiny: Make) -> None:
    folder = tiny("bf16")
    assert converted(plan(folder, "routed-experts")) == {
        f"mlp.experts.*.{name}_proj" for name in ("gate", "up", "down")
    }
    assert converted(plan(folder, "shared-experts")) == {
        f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")
    }
    everything = converted(plan(folder, "linear"))
    assert "mlp.gate" not in everything
    assert not any("norm" in name or "head" in name or "embed" in name for name in everything)


def test_attention_leaves_out_the_projection_that_engines_take_apart(tiny: Make) -> None:
    names = converted(plan(tiny("bf16"), "attention"))
    assert "self_attn.q_a_proj" in names
    assert "self_attn.kv_b_proj" not in names


def test_what_is_never_converted_by_itself_is_converted_when_asked_for(tiny: Make) -> None:
    assert "lm_head" in plan(tiny("bf16"), "head", "dense-mlp").chosen


def test_the_vision_tower_is_its_matrices(tiny: Make) -> None:
    def see(tensors: dict[str, Any]) -> None:
        tensors["vision_tower.blocks.0.mlp.fc0.weight"] = ("BF16", (32, 64), bytes(2 * 32 * 64))
        tensors["vision_tower.blocks.0.norm0.weight"] = ("BF16", (64,), bytes(2 * 64))

    assert set(plan(tiny("bf16", change=see), "vision").chosen) == {"vision_tower.blocks.0.mlp.fc0"}


@pytest.mark.parametrize("word", SCOPES)
def test_every_word_that_is_offered_can_be_used(tiny: Make, word: str) -> None:
    def more(tensors: dict[str, Any]) -> None:
        tensors["vision_tower.blocks.0.mlp.fc0.weight"] = ("BF16", (32, 64), bytes(2 * 32 * 64))
        for name in ("gate", "up", "down"):
            tensors[f"model.layers.2.mlp.{name}_proj.weight"] = ("BF16", (64, 64), bytes(2 * 64 * 64))

    folder = tiny("bf16", change=more)
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    assert plan(folder, word).chosen


@pytest.mark.parametrize(
    ("scope", "exclude", "says"),
    [
        (["shard-experts"], [], "Did you mean 'shared-experts'?"),
        (["draft"], [], "It has: routed-experts, shared-experts, dense-mlp, attention"),
        (["*.mlp.expert.*"], [], "Did you mean 'model.layers.*.mlp.experts.*"),
        (["linear"], ["*.nothing"], "--exclude *.nothing matches no layer"),
        (["norms"], [], "'norms' is no scope: norms are vectors"),
        (["other"], [], "'other' is no scope: it is whatever belongs to no component"),
        (["*norm"], [], "norm, which is ["),
        (["*.gate_proj"], [], "up_proj as one layer, and only the first is in the scope"),
        (["dense-mlp"], ["*"], "is excluded"),
    ],
)
def test_a_scope_that_cannot_be_is_refused_with_what_would_do(
    tiny: Make, scope: list[str], exclude: list[str], says: str
) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        plan(tiny("bf16"), *scope, exclude=exclude)


def test_rows_that_are_no_whole_blocks_are_refused_by_name(tiny: Make) -> None:
    def narrow(tensors: dict[str, Any]) -> None:
        tensors["model.layers.1.mlp.shared_experts.down_proj.weight"] = ("BF16", (128, 24), bytes(2 * 128 * 24))

    with pytest.raises(InputError, match=r"cannot pack model\.layers\.1\.mlp\.shared_experts\.down_proj.*\[128, 24\]"):
        plan(tiny("bf16", change=narrow), "shared-experts")


def test_experts_in_one_tensor_are_refused_with_its_shape(tiny: Make) -> None:
    def fuse(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if ".experts." in name]:
            del tensors[name]
        tensors["model.layers.1.mlp.experts.gate_up_proj"] = ("BF16", (4, 128, 128), bytes(4 * 128 * 128 * 2))

    with pytest.raises(InputError, match=r"gate_up_proj as BF16 \[4, 128, 128\].*each expert's.*by itself"):
        plan(tiny("bf16", change=fuse), "routed-experts")


def test_sizes_are_those_of_nine_bits_for_two_values(tiny: Make) -> None:
    result = plan(tiny("bf16"), "shared-experts")
    one = next(size for size in sizes(result) if size.component == "shared-experts")
    values = 3 * 64 * 128
    assert (one.before, one.after, one.layers, one.converted) == ("bf16", "nvfp4", 3, 3)
    assert one.bytes_before == 2 * values
    assert one.bytes_after == values * 9 // 16 + 3 * 4
    same = [size for size in sizes(result) if size.component != "shared-experts"]
    assert all(size.bytes_before == size.bytes_after for size in same)


def test_shared_experts_take_the_input_scale_of_the_routed_ones_and_say_so(tiny: Make) -> None:
    result = plan(tiny("nvfp4"), "shared-experts")
    gate = result.scales["model.layers.1.mlp.shared_experts.gate_proj"]
    assert gate.scale == pytest.approx(0.013)  # the largest of four experts
    assert gate.origin == SAME_INPUT
    assert result.scales["model.layers.1.mlp.shared_experts.up_proj"] == gate
    assert result.scales["model.layers.1.mlp.shared_experts.down_proj"].origin == STAND_IN


def test_a_calibration_gives_fused_layers_the_larger_input(tiny: Make, tmp_path: Path) -> None:
    file = tmp_path / "inputs.json"
    root = "model.layers.0.mlp"
    file.write_text(
        json.dumps({"input_amax": {f"{root}.gate_proj": 2688.0, f"{root}.up_proj": 1.0, f"{root}.down_proj": 26.88}})
    )
    scales = plan(tiny("bf16"), "dense-mlp", calibration=file).scales
    assert [round(scales[f"{root}.{name}_proj"].scale, 6) for name in ("gate", "up", "down")] == [1.0, 1.0, 0.01]


def test_names_of_a_calibration_that_are_no_layers_are_said(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
def test_a_calibration_of_another_form_is_told_which_it_must_have(tiny: Make, tmp_path: Path, text: str) -> None:
    file = tmp_path / "is.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=r"is no calibration: .* Give {\"input_amax\": {\"model"):
        plan(tiny("bf16"), "dense-mlp", calibration=file)


def test_a_damaged_calibration_is_to_be_made_again(tiny: Make, tmp_path: Path) -> None:
    file = tmp_path / "is.safetensors"
    file.write_bytes(b"{")
    with pytest.raises(InputError, match=r"Calibrate again, or as JSON: Give {\"input_amax\""):
        plan(tiny("bf16"), "dense-mlp", calibration=file)


def test_a_calibration_of_nothing_but_0_is_said_to_be(tiny: Make, tmp_path: Path) -> None:
    file = tmp_path / "is.json"
    file.write_text(json.dumps({"input_amax": {"model.layers.0.mlp.gate_proj": 0}}))
    with pytest.raises(InputError, match=r"The largest input of model\.layers\.0\.mlp\.gate_proj is 0, which gives no"):
        plan(tiny("bf16"), "dense-mlp", calibration=file)


@pytest.mark.parametrize("name", ["nothing.json", "nothing.safetensors", "."])
def test_a_calibration_that_is_not_there_is_said_to_be(tiny: Make, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=r"There is no file .* of input scales\. Give --input-scales what"):
        plan(tiny("bf16"), "dense-mlp", calibration=tmp_path / name)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_threshold_that_is_no_number_is_refused_first(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    source, new = str(tiny("bf16")), tmp_path / "new"
    for words in (["convert", source, str(new), "--scope", "linear"], ["verify", source, "--against", source]):
        assert command(["quant-nvfp4", *words, "--min-sqnr-db", value]) == 2
        assert f"--min-sqnr-db {value} is no number of dB" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["tiny-bf16"]


def test_a_layer_without_an_input_scale_among_others_that_have_one_is_refused(tiny: Make) -> None:
    with pytest.raises(InputError, match=r"_proj and \d+ more would have no input scale"):
        plan(tiny("nvfp4"), "attention")


def test_modelopt_excludes_what_is_not_nvfp4_and_nothing_else(tiny: Make) -> None:
    result = plan(tiny("nvfp4"), "shared-experts")
    side, inside = metadata.modelopt(result)
    excluded = side["quantization"]["exclude_modules"]
    assert (side["quantization"]["quant_algo"], inside["quant_algo"]) == ("NVFP4", "NVFP4")
    for excludes in (metadata.vllm_excludes, metadata.sglang_excludes):

        def hit(name: str, excludes: Callable[[str, str], bool] = excludes) -> bool:
            return any(excludes(name, pattern) for pattern in excluded)

        assert not any(hit(f"model.layers.1.mlp.{name}") for name in ("shared_experts.gate_up_proj", "experts"))
        assert all(hit(f"model.layers.0.{name}") for name in ("mlp.gate_up_proj", "mlp.down_proj", "self_attn.o_proj"))
        assert hit("lm_head") and hit("model.layers.1.mlp.gate")


def test_experts_that_stay_are_excluded_by_one_pattern(tiny: Make) -> None:
    side, _ = metadata.modelopt(plan(tiny("bf16"), "shared-experts"))
    assert side["quantization"]["quant_algo"] == "W4A16_NVFP4"
    patterns = [one for one in side["quantization"]["exclude_modules"] if ".experts" in one]
    assert patterns == ["model.layers.1.mlp.experts*"]
    assert fnmatch.fnmatchcase("model.layers.1.mlp.experts", patterns[0])


def test_modelopt_names_the_layers_of_each_precision_where_fp8_stays(mixed: Path) -> None:
    side, inside = metadata.modelopt(plan(mixed, "shared-experts"))
    assert side["quantization"]["quant_algo"] == inside["quant_algo"] == "MIXED_PRECISION"
    layers = inside["quantized_layers"]
    assert layers == side["quantization"]["quantized_layers"]
    four = {name for name, entry in layers.items() if entry == {"quant_algo": "NVFP4", "group_size": 16}}
    root = "model.layers.1.mlp"
    shared = {f"{root}.shared_experts.{name}" for name in ("gate_proj", "up_proj", "gate_up_proj", "down_proj")}
    assert four == {f"{root}.experts", *shared}
    assert {name.split(".")[3] for name, entry in layers.items() if entry == {"quant_algo": "FP8"}} == {"self_attn"}
    assert len(layers) == len(four) + 2 * 6
    assert not any("self_attn" in name or "expert" in name for name in inside["ignore"])


def test_fp8_that_modelopt_has_no_common_word_for_is_refused(tiny: Make) -> None:
    with pytest.raises(InputError, match=r"stays fp8, which modelopt metadata .* --format compressed-tensors"):
        plan(tiny("fp8", dense="fp8"), "routed-experts", form="modelopt")


def test_compressed_tensors_has_a_group_for_what_stays_int4(tiny: Make) -> None:
    section = metadata.compressed_tensors(plan(tiny("int4"), "shared-experts", form="compressed-tensors"))
    assert section["format"] == "mixed-precision"
    by_format = {group["format"]: group for group in section["config_groups"].values()}
    routed, shared = "model.layers.1.mlp.experts.300.up_proj", "model.layers.1.mlp.shared_experts.up_proj"
    assert _targeted(by_format["pack-quantized"], routed) and not _targeted(by_format["pack-quantized"], shared)
    assert _targeted(by_format["nvfp4-pack-quantized"], shared)
    assert not _targeted(by_format["nvfp4-pack-quantized"], routed)


def _targeted(group: dict[str, Any], name: str) -> bool:
    return any(re.match(target.removeprefix("re:"), name) for target in group["targets"])


def test_what_modelopt_cannot_state_is_refused_with_what_can(tiny: Make) -> None:
    with pytest.raises(InputError, match="stays int4.*--format compressed-tensors.*--rest bf16"):
        plan(tiny("int4"), "shared-experts", form="modelopt")


def test_an_unknown_quantization_is_refused_with_its_metadata(tiny: Make) -> None:
    folder = tiny("fp8")
    config = json.loads((folder / "config.json").read_bytes())
    config["quantization_config"] = {"quant_method": "quark", "bits": 4, "secret": "sauce"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match='quark.*"secret": "sauce"'):
        plan(folder, "linear")


def test_a_missing_and_a_truncated_shard_are_named(tiny: Make) -> None:
    folder = tiny("bf16")
    shard = folder / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(InputError, match="model-00002-of-00003.safetensors is cut off"):
        plan(folder, "linear")
    shard.unlink()
    with pytest.raises(InputError, match="model-00002-of-00003.safetensors, which .* does not have"):
        plan(folder, "linear")


@pytest.mark.parametrize(
    ("where", "says"),
    [("inside/new", "is inside the source"), ("", "is inside the source"), ("../here", "exists"), ("..", "is inside")],
)
def test_a_destination_in_the_way_is_refused(
    tiny: Make, capsys: pytest.CaptureFixture[str], where: str, says: str
) -> None:
    folder = tiny("bf16")
    (folder.parent / "here").mkdir()
    (folder / "inside").mkdir()
    assert run("convert", str(folder), str(folder / where), "--scope", "linear", "--dry-run") == 2
    assert says in capsys.readouterr().err


def test_too_little_space_is_known_before_anything_is_written(
    tiny: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny("bf16")
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000}))
    assert run("convert", str(folder), str(folder.parent / "new"), "--scope", "linear", "--dry-run") == 2
    assert "GiB are needed" in capsys.readouterr().err
    assert {one.name for one in folder.parent.iterdir()} == {folder.name}


def test_a_dry_run_shows_bytes_before_and_after_and_writes_nothing(
    tiny: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny("nvfp4")
    code = run("convert", str(folder), str(folder.parent / "new"), "--scope", "shared-experts", "--dry-run", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert code == 0
    assert shown["activations"] == "w4a4"
    assert shown["input_scales"] == {SAME_INPUT: 2, STAND_IN: 1}
    assert {one["component"] for one in shown["components"] if one["converted"]} == {"shared-experts"}
    assert {one.name for one in folder.parent.iterdir()} == {folder.name}


def test_what_a_kill_after_the_last_step_left_behind_is_said_and_taken_away(
    tiny: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    source, folder = tiny("bf16"), tiny("int4")
    left = folder.parent / f".{folder.name}.partial"
    (left / "done").mkdir(parents=True)
    (left / "job.json").write_text("{}")
    (folder / RECIPE).write_text("{}")
    assert run("inspect", str(folder)) == 0
    assert f"{left} is what the conversion left behind" in " ".join(capsys.readouterr().err.split())
    words = ["convert", str(source), str(folder), "--scope", "linear"]
    assert run(*words, "--dry-run") == 2
    assert left.is_dir()
    with (left / "lock").open("a") as lock:  # the conversion is at its last step now
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(*words) == 2
        assert left.is_dir()
    assert run(*words) == 2
    assert f"is whole; its conversion was ended before {left.name}" in capsys.readouterr().err
    assert not left.exists()


@pytest.mark.parametrize("lacks", ["job.json", RECIPE])
def test_folders_that_no_conversion_made_are_left_alone(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], lacks: str
) -> None:
    new, left = tmp_path / "new", tmp_path / ".new.partial"
    for folder, file in ((new, RECIPE), (left, "job.json")):
        folder.mkdir()
        if file != lacks:
            (folder / file).write_text("{}")
    assert run("convert", str(tiny("bf16")), str(new), "--scope", "linear") == 2
    said = capsys.readouterr().err
    assert "is whole" not in said
    assert "new exists" in "".join(said.split("\n"))
    assert left.is_dir() and new.is_dir()


def test_inspect_tells_precisions_by_the_headers(tiny: Make, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", str(tiny("int4")), "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    words = {(one["component"], one["precision"]): one["layers"] for one in shown["components"]}
    assert words["routed-experts", "int4"] == 12
    assert words["shared-experts", "bf16"] == 3
    assert shown["nvfp4_layers"] == 0


def run(*words: str) -> int:
    return command(["quant-nvfp4", *words])
