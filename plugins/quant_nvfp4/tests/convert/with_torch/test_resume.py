"""A conversion that is killed goes on to the same bytes, and takes little memory while it runs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from optistack.cli.run import run
from optistack_quant_nvfp4.convert.job import Job

CONFIG = """{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 8,
"intermediate_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 64,
"max_position_embeddings": 64, "torch_dtype": "bfloat16", "tie_word_embeddings": true}"""

# The peak is that of the process after the libraries are in memory, in KiB: what they take is not the converter's.
CHILD = """
import site, sys
site.addsitedir(sys.argv[1])
import numpy, torch
from optistack.cli.run import run
code = run(["quant-nvfp4", "convert", *sys.argv[2:]])
import resource
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""
PACKAGES = str(Path(pytest.__file__).parents[1])


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of 0.6 GB in eight files."""
    folder = tmp_path_factory.mktemp("large") / "model"
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG)
    torch.manual_seed(0)
    shapes = {f"self_attn.{name}_proj": (2048, 2048) for name in "qkvo"}
    shapes |= {"mlp.gate_proj": (4096, 2048), "mlp.up_proj": (4096, 2048), "mlp.down_proj": (2048, 4096)}
    for layer in range(8):
        root = f"model.layers.{layer}"
        tensors = {f"{root}.{name}.weight": torch.randn(shape).bfloat16() for name, shape in shapes.items()}
        tensors |= {
            f"{root}.{name}layernorm.weight": torch.ones(2048).bfloat16() for name in ("input_", "post_attention_")
        }
        save_file(tensors, folder / f"model-{layer:05d}.safetensors")
    last = {
        "model.embed_tokens.weight": torch.randn(64, 2048).bfloat16(),
        "model.norm.weight": torch.ones(2048).bfloat16(),
    }
    save_file(last, folder / "model-00008.safetensors")
    return folder


def start(source: Path, destination: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, PACKAGES, str(source), str(destination), "--scope", "linear", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(child: subprocess.Popen[str]) -> str:
    """What it printed. Fails where it does."""
    out, error = child.communicate(timeout=300)
    assert child.returncode == 0, error
    return out


def digests(folder: Path) -> dict[str, str]:
    return {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in sorted(folder.iterdir())}


def test_killed_twice_it_gives_the_bytes_of_an_undisturbed_run(large: Path, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(large, whole, "--workers", "2"))
    done = tmp_path / ".broken.partial" / "checkpoint"
    finished = 0
    for _ in range(2):
        child = start(large, broken, "--workers", "1")
        wait_for(lambda: len(list(done.glob("model*"))) > finished, child)  # noqa: B023 -- called before it changes
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        finished = len(list(done.glob("model*")))
        assert not broken.exists()
        assert 0 < finished < 9
    kept = {one.name: one.stat().st_mtime_ns for one in done.glob("model*")}
    finish(start(large, broken))
    assert digests(broken) == digests(whole)
    assert all((broken / name).stat().st_mtime_ns == when for name, when in kept.items())  # not written again
    assert sorted(one.name for one in tmp_path.iterdir()) == ["broken", "whole"]


def test_another_conversion_does_not_go_on_with_what_is_left(
    tiny: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, left = tiny("bf16"), tmp_path / ".new.partial"
    (left / "checkpoint").mkdir(parents=True)
    (left / "job.json").write_text("{}")
    assert run(["quant-nvfp4", "convert", str(source), str(tmp_path / "new"), "--scope", "linear"]) == 2
    assert "another conversion left unfinished" in capsys.readouterr().err
    assert left.is_dir()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_told_to_end_it_says_that_the_same_command_goes_on(
    signum: signal.Signals,
    tiny: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, left = tiny("bf16"), tmp_path / ".new.partial"
    words = ["quant-nvfp4", "convert", str(source), str(tmp_path / "new"), "--scope", "linear"]
    with monkeypatch.context() as patched:
        patched.setattr(Job, "publish", lambda job: os.kill(os.getpid(), signum))
        assert run(words) == 130
    told = f"The same command goes on with what {left} has.\nInterrupted.\n"
    assert capsys.readouterr().err.endswith(told)
    assert not (tmp_path / "new").exists()
    assert run(words) == 0
    assert "3 of them finished before" in capsys.readouterr().err


def test_a_mistyped_option_and_a_damaged_record_cost_none_of_what_is_done(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, left = tiny("bf16"), tmp_path / ".new.partial"
    words = ["quant-nvfp4", "convert", str(source), str(tmp_path / "new"), "--scope", "linear"]
    with monkeypatch.context() as broken:
        broken.setattr(Job, "publish", lambda job: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(words) != 0
    assert f"The same command goes on with what {left} has." in capsys.readouterr().err
    record = next((left / "done").iterdir())
    assert run([*words, "--device", "gpu"]) == 2
    assert "'gpu' is no device" in capsys.readouterr().err
    assert record.is_file()
    record.write_text("")
    assert run(words) == 0
    assert not left.exists()


def test_what_is_left_when_it_ends_between_its_last_two_steps_is_taken_away_by_the_next(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, new, left = tiny("bf16"), tmp_path / "new", tmp_path / ".new.partial"
    words = ["quant-nvfp4", "convert", str(source), str(new), "--scope", "linear"]

    def killed(folder: Path, **_: object) -> None:
        if folder == left and new.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as broken:
        broken.setattr("shutil.rmtree", killed)
        assert run(words) != 0
    assert new.is_dir() and left.is_dir()
    assert run(words) == 2
    assert "is whole; its conversion was ended before .new.partial" in capsys.readouterr().err
    assert not left.exists()
    before = digests(new)
    (left / "done").mkdir(parents=True)  # and where the destination is deleted in between, it begins anew
    (left / "job.json").write_text("{}")
    new.rename(tmp_path / "old")
    assert run(words) == 0, capsys.readouterr().err
    assert digests(new) == before


def test_two_conversions_to_one_destination_do_not_meet(
    tiny: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, folder = tiny("bf16"), tmp_path / ".new.partial"
    folder.mkdir()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run(["quant-nvfp4", "convert", str(source), str(tmp_path / "new"), "--scope", "linear"]) == 2
    assert "Another process converts to" in capsys.readouterr().err
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("device", "count", "fix"),
    [
        ("cuda", 0, "Give --device cpu: this Python's torch sees no GPU."),
        ("cuda:99", 1, "Give cuda:0, or cpu."),
        ("cuda:4", 4, "Give cuda:0 to cuda:3, or cpu."),
    ],
)
def test_a_device_that_is_not_there_costs_nothing_that_was_done(
    device: str,
    count: int,
    fix: str,
    tiny: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, done = tiny("bf16"), tmp_path / ".new.partial" / "done"
    done.mkdir(parents=True)
    words = ["quant-nvfp4", "convert", str(source), str(tmp_path / "new"), "--scope", "linear", "--device"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert run([*words, device]) == 2
    assert capsys.readouterr().err.endswith(f"Error: This machine has no device {device}.\nFix: {fix}\n")
    assert run(["quant-nvfp4", "verify", str(source), "--against", str(tmp_path), "--device", device]) == 2
    assert f"This machine has no device {device}." in capsys.readouterr().err
    assert done.is_dir()


def test_memory_stays_within_two_tensors_and_a_gibibyte(large: Path, tmp_path: Path) -> None:
    peak_bytes = 1024 * int(finish(start(large, tmp_path / "new", "--workers", "2")).rpartition("peak ")[2])
    largest_bytes = 2 * 4096 * 2048
    assert peak_bytes < 2 * largest_bytes + 2**30


def wait_for(true: Callable[[], bool], child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 200
    while not true():
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
