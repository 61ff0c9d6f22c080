"""What the command refuses before it loads the weights, and what it leaves when it is ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from optistack.cli.run import run


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
        ("cuda", "This machine has no device cuda.\nFix: Give --device cpu."),
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
