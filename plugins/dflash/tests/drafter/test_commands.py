"""What the commands refuse before they load anything, and what they print while they load."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from optistack.cli.run import run
from optistack_dflash.drafter.provenance import Provenance
from optistack_dflash.drafter.shards import write_shard
from optistack_dflash.drafter.target import Target


@pytest.fixture
def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> None:
        pytest.fail("the target was loaded")

    monkeypatch.setattr(Target, "load", load)
    monkeypatch.setattr("optistack_dflash.drafter.collect.read_prompts", load)


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize("held_out", [False, True])
def test_training_on_nothing_is_refused_first(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], held_out: bool
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    missing = tmp_path / "missing"
    words = ["--data", str(missing)]
    if held_out:
        (data / "part-00000.safetensors").touch()
        words = ["--data", str(data), "--held-out", str(missing)]
    assert run(["dflash", "train", "--target", str(checkpoint), "--out", str(tmp_path / "out"), *words]) == 2
    assert f"{missing} holds no recorded tokens." in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_is_loaded")
def test_a_folder_that_holds_a_drafter_is_refused_first(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "part-00000.safetensors").touch()
    words = ["--target", str(checkpoint), "--data", str(tmp_path), "--out", str(checkpoint)]
    assert run(["dflash", "train", *words]) == 2
    assert "holds a drafter" in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_is_loaded")
@pytest.mark.parametrize(
    ("device", "says"),
    [("gpu", "'gpu' is no device."), ("cuda:1", "This machine has no device cuda:1.\nFix: Give cuda:0, or cpu.")],
)
def test_a_device_that_is_not_there_is_refused(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    device: str,
    says: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    (tmp_path / "part-00000.safetensors").touch()
    words = ["--target", str(checkpoint), "--data", str(tmp_path), "--device", device]
    assert run(["dflash", "evaluate", str(tmp_path), *words]) == 2
    assert says in capsys.readouterr().err
    words = ["--target", str(checkpoint), "--endpoint", "http://127.0.0.1:9", "--device", device]
    words += ["--held-out", str(tmp_path), "--prompts", str(tmp_path / "none"), "--work", str(tmp_path / "work")]
    assert run(["dflash", "refresh", str(tmp_path), *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.usefixtures("nothing_is_loaded")
def test_collecting_where_nobody_answers_is_refused_first(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        words = ["--target", str(checkpoint), "--prompts", str(tmp_path / "none"), "--out", str(tmp_path / "out")]
        assert run(["dflash", "collect", "--endpoint", url, *words]) == 2
    assert url in capsys.readouterr().err


def test_loading_a_target_prints_nothing(checkpoint: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Target.load(checkpoint, torch.device("cpu"), torch.float32)
    assert capfd.readouterr() == ("", "")


def test_a_training_without_held_out_answers_says_soon_how_it_goes(
    checkpoint: Path, target: Any, answers: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    provenance = Provenance(target.name, target.revision, target.template, (("temperature", 0.0),), "test 1")
    write_shard(data / "one.safetensors", answers, domain="code", provenance=provenance)
    words = ["--target", str(checkpoint), "--data", str(data), "--out", str(tmp_path / "out"), "--mask-token", "63"]
    assert run(["dflash", "train", *words, "--block-size", "4", "--steps", "20", "--device", "cpu"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"step 10  loss \d+\.\d{3}  [\d.e+]+ steps/s; a report every 200 steps", said[1]), said
    assert said[2].startswith("step 20  "), said
