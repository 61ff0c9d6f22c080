"""What the command refuses first, what a dry run shows, and what lies in the way of a destination."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from optistack.cli.run import run as command
from optistack.errors import InputError
from optistack_quant_nvfp4.commands.convert import planned
from optistack_quant_nvfp4.convert.input_scales import SAME_INPUT, STAND_IN
from optistack_quant_nvfp4.convert.job import MARGIN_BYTES, Job
from optistack_quant_nvfp4.convert.results import RECIPE

Make = Callable[..., Path]


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_threshold_that_is_no_number_is_refused_first(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    source, new = str(tiny("bf16")), tmp_path / "new"
    for words in (["convert", source, str(new), "--scope", "linear"], ["verify", source, "--against", source]):
        assert command(["quant-nvfp4", *words, "--min-sqnr-db", value]) == 2
        assert f"--min-sqnr-db {value} is no number of dB" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["tiny-bf16"]


@pytest.mark.parametrize("device", ["cuda:", "cuda:x", "gpu", "cpu:0"])
def test_a_device_that_is_none_is_refused_first(
    tiny: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], device: str
) -> None:
    source, new = str(tiny("bf16")), tmp_path / "new"
    for words in (
        ["convert", source, str(new), "--scope", "linear", "--dry-run"],
        ["verify", source, "--against", "."],
    ):
        assert run(*words, "--device", device) == 2
        assert f"{device!r} is no device.\nFix: Give cpu, cuda or cuda:N." in capsys.readouterr().err


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


def test_files_that_were_begun_before_have_their_space_already(
    tiny: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tiny("bf16"), ["linear"], [], None, "amax", None, weight_only=True, rest="keep")
    job = Job(plan, tmp_path / "new")
    usage = type("Usage", (), {"free": MARGIN_BYTES + 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(InputError, match="GiB are needed"):
        job.check_space(0)
    job.checkpoint.mkdir(parents=True)
    for file in plan.files:
        descriptor, _ = job.begin(file)
        os.close(descriptor)
    job.check_space(0)


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


def run(*words: str) -> int:
    return command(["quant-nvfp4", *words])
