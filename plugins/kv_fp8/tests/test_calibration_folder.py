"""The folder that a calibration writes, without the model: torch is not needed."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import pytest

from optistack.cli.run import run
from optistack.errors import InputError
from optistack_kv_fp8.calibration.folder import MARKER, working_folder
from optistack_kv_fp8.calibration.prompts import read_prompts


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("out", "says"),
    [
        ("source/new", "is inside the checkpoint"),
        ("source", "exists"),
        ("here", "exists"),
        ("no/such/new", "There is no folder"),
    ],
)
def test_an_out_in_the_way_is_refused_first(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str, says: str
) -> None:
    (tmp_path / "here").symlink_to("nothing")
    assert run(["kv-fp8", "calibrate", str(source), "--out", str(tmp_path / out)]) == 2
    assert says in capsys.readouterr().err
    assert {one.name for one in tmp_path.iterdir()} == {"source", "here"}
    assert {one.name for one in source.iterdir()} == {"config.json"}


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ('hf_quant_config.json={"quantization": {"quant_algo": "NVFP4"}}', "quantized already (NVFP4, by modelopt)"),
        (
            'config.json={"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}',
            "(FP8, by modelopt)",
        ),
        (
            'config.json={"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"a": '
            '{"format": "nvfp4-pack-quantized"}}}}',
            "(nvfp4-pack-quantized, by compressed-tensors)",
        ),
    ],
)
def test_a_checkpoint_that_transformers_cannot_run_is_refused_by_its_quantization(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, says: str
) -> None:
    name, _, text = file.partition("=")
    (source / name).write_text(text)
    assert run(["kv-fp8", "calibrate", str(source), "--out", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Fix: Calibrate the BF16 checkpoint that it was made from" in said
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_made_is_known_before_the_block(source: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match=r"cannot be written: .*Give an --out whose parent"),
        working_folder(source, tmp_path / ("n" * 252)),  # with a dot before and .part behind it is too long
    ):
        pytest.fail("it began")


def test_it_appears_at_the_end_and_without_what_a_killed_run_left(source: Path, tmp_path: Path) -> None:
    left = tmp_path / ".new.part"
    (left / "half").mkdir(parents=True)
    (left / "rest").write_text("")
    (left / MARKER).write_text("")
    (left / "link").symlink_to(source)
    with working_folder(source, tmp_path / "new") as part:
        (part / "file").write_text("whole")
        assert not (tmp_path / "new").exists()
    assert [one.name for one in (tmp_path / "new").iterdir()] == ["file"]
    assert not left.exists()
    assert (source / "config.json").exists(), "a link is removed, not what it leads to"


@pytest.mark.parametrize("kind", ["folder", "link", "dangling", "file"])
def test_what_others_have_under_its_name_is_left_alone(source: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    left = tmp_path / ".new.part"
    match kind:
        case "folder":
            (tmp_path / "mine").rename(left)
        case "file":
            left.write_text("mine")
        case _:
            left.symlink_to("mine" if kind == "link" else "nothing")
    before = {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()}
    with pytest.raises(InputError, match=r"is not what a calibration left"), working_folder(source, tmp_path / "new"):
        pytest.fail("it began")
    assert {one: one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()} == before
    assert left.is_symlink() == (kind in ("link", "dangling"))
    assert not (tmp_path / "new").exists()


def test_two_runs_do_not_meet(source: Path, tmp_path: Path) -> None:
    with working_folder(source, tmp_path / "new") as part:
        (part / "file").write_text("first")
        with pytest.raises(InputError, match="Another process calibrates to"), working_folder(source, tmp_path / "new"):
            pytest.fail("it began")
        assert (part / "file").read_text() == "first"
    left = tmp_path / ".other.part"
    left.mkdir()
    descriptor = os.open(left, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="Another process"), working_folder(source, tmp_path / "other"):
        pytest.fail("it began")
    os.close(descriptor)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_nothing_is_left_of_a_run_that_fails(source: Path, tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), working_folder(source, tmp_path / "new") as part:
        (part / "file").write_text("half")
        raise error
    assert [one.name for one in tmp_path.iterdir()] == ["source"]


@pytest.mark.parametrize("line", ["{", '{"prompt": 1}', '{"text": "hello"}', r'{"prompt": "\ud800"}', '{"a":' * 10**5])
def test_a_prompt_of_another_form_is_told_which_it_must_have(tmp_path: Path, line: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(f"hello\n\n{line}\n")
    with pytest.raises(InputError, match=r"Line 3 of .*bad\.jsonl .* Write the line as {\"prompt\": \"\.\.\.\"}"):
        read_prompts(file)


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 96,
}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("model.safetensors", b"\xff" * 7 + b"\x7f{}", "is not a safetensors file"),
        ("model.safetensors", b"", "too short for a safetensors file"),
        ("model.safetensors.index.json", b'{"weight_map": 3}', "is no index of safetensors files."),
        (
            "config.json",
            b'{"quantization_config": {"quant_method": "compressed-tensors", "config_groups": 3}}',
            "says 'config_groups' is 3",
        ),
    ],
)
def test_damaged_files_are_told_before_the_libraries_are_asked_for(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, says: str
) -> None:
    (source / "config.json").write_text(json.dumps(CONFIG))
    (source / name).write_bytes(content)
    assert run(["kv-fp8", "calibrate", str(source), "--out", str(tmp_path / "new")]) == 2
    said = capsys.readouterr().err
    assert f"Error: {source / name} " in said and says in said and "Fix: " in said
    assert not (tmp_path / "new").exists()


def test_a_seed_that_torch_does_not_take_is_told(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["kv-fp8", "calibrate", str(source), "--out", str(tmp_path / "new"), "--seed", "99999999999999999999"]
    assert run(words) == 2
    assert "--seed" in capsys.readouterr().err


def test_a_prompt_may_hold_what_ends_a_line_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text('{"prompt": "one\u2028line"}\none\u0085line\n', encoding="utf-8")
    assert read_prompts(file) == ["one\u2028line", "one\u0085line"]
