"""What the command refuses before it loads the weights, and what it leaves when it is ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from optistack.cli.run import run

CHILD = """
import site, sys
site.addsitedir(sys.argv[1])
from optistack.cli.run import run
sys.exit(run(["kv-fp8", "calibrate", *sys.argv[2:], "--device", "cpu", "--new-tokens", "8"]))
"""


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> None:
        pytest.fail("the model was loaded")

    monkeypatch.setattr("optistack_kv_fp8.calibration.run.load", load)


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("foo", "'foo' is no device.\nFix: Give cpu, cuda or cuda:N."),
        ("cuda:", "'cuda:' is no device."),
        ("cuda", "This machine has no device cuda.\nFix: Give --device cpu: this Python's torch sees no GPU."),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    llama: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
    says: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert run(["kv-fp8", "calibrate", str(llama), "--out", str(tmp_path / "new"), "--device", device]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--new-tokens", "128"], "--new-tokens 128 leaves no room for a prompt: the model's context is 128 tokens."),
        (["--new-tokens", "9999999999"], "leaves no room for a prompt"),
        (["--new-tokens", "8", "--ranks", "5"], "--ranks 5 is more than the model's 4 attention heads"),
    ],
)
@pytest.mark.parametrize("kind", ["llama", "deepseek"])
def test_more_than_the_model_has_is_refused(
    kind: str,
    words: list[str],
    says: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = str(request.getfixturevalue(kind))
    assert run(["kv-fp8", "calibrate", source, "--out", str(tmp_path / "new"), "--device", "cpu", *words]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_nothing_is_left_of_a_run_that_is_terminated(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(*_: object) -> None:
        assert [one.name for one in tmp_path.iterdir()] == [".new.part"]
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("optistack_kv_fp8.calibration.run.load", load)
    words = ["kv-fp8", "calibrate", str(llama), "--out", str(tmp_path / "new"), "--device", "cpu"]
    assert run([*words, "--new-tokens", "8"]) == 130
    assert "Interrupted." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def spelling(llama: Path, tmp_path: Path) -> Path:
    """The Llama with a tokenizer of letters."""
    folder = tmp_path / "spelling"
    shutil.copytree(llama, folder)
    letters = {letter: number for number, letter in enumerate("?abcdefghijklmnopqrstuvwxyz")}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(letters, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", pad_token="?").save_pretrained(folder)
    return folder


def calibrated(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Two prompts, in a process of its own: what libraries print has stderr as they found it."""
    prompts = out.with_name("prompts.txt")
    prompts.write_text("abc\nxyz\n")
    packages = str(Path(pytest.__file__).parents[1])
    command = [sys.executable, "-c", CHILD, packages, str(source), "--out", str(out), "--prompts", str(prompts)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_it_prints_what_it_does_and_nothing_of_the_libraries(spelling: Path, tmp_path: Path) -> None:
    done = calibrated(spelling, tmp_path / "new")
    assert done.returncode == 0
    loading, loaded, *prompts = done.stderr.splitlines()
    assert (loading.startswith("Loading "), loaded.startswith("Loaded. It answers 2 prompts")) == (True, True)
    assert prompts == ["1 of 2 prompts", "2 of 2 prompts"]
    assert done.stdout.startswith(f"{tmp_path / 'new'}: scales of 2 layers by amax")
    assert len(done.stdout.splitlines()) == 2


def test_weights_that_transformers_would_make_up_are_named(spelling: Path, tmp_path: Path) -> None:
    file = spelling / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.self_attn.k_proj.weight"], tensors["model.layers.1.self_attn.v_proj.weight"]
    save_file(tensors, file, {"format": "pt"})
    done = calibrated(spelling, tmp_path / "new")
    said = "has no model.layers.1.self_attn.k_proj.weight and 1 more: transformers would make them up."
    assert (done.returncode, done.stderr.splitlines()[1:]) == (
        2,
        [f"Error: {spelling} {said}", "Fix: Give a whole checkpoint."],
    )
    assert sorted(one.name for one in tmp_path.iterdir()) == ["prompts.txt", "spelling"]


def test_a_checkpoint_without_a_tokenizer_is_told_what_it_lacks(
    llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["kv-fp8", "calibrate", str(llama), "--out", str(tmp_path / "new"), "--device", "cpu"]
    assert run([*words, "--new-tokens", "8"]) == 2
    said = capsys.readouterr().err
    assert (
        f"cannot load a tokenizer from {llama}, which prompts need: " in said
        and "Fix: Put the files of the model's tokenizer" in said
    )
    assert not list(tmp_path.iterdir())
