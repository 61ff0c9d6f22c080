"""Whether several programs are on a GPU, by nvidia-smi and by the processes that can be seen."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from optistack.facts import gpu_users
from optistack.facts.gpu_users import sharing


@pytest.fixture
def strangers() -> Iterator[list[int]]:
    """Two processes in sessions of their own."""
    started = [subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2)]
    yield [one.pid for one in started]
    for one in started:
        one.kill()
        one.wait()


def smi(folder: Path, monkeypatch: pytest.MonkeyPatch, listing: str) -> None:
    """An nvidia-smi that prints ``listing`` where GPU 1 is asked for, and fails elsewhere."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n[ \"$1 $2\" = '-i 1' ] || exit 6\nprintf '{listing}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_programs_on_one_gpu_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strangers: list[int]) -> None:
    one, other = strangers
    smi(tmp_path, monkeypatch, f"GPU-a, {one}\\nGPU-a, {other}\\n")
    assert sharing("1") == "2 programs are on its GPU"


def test_a_program_on_each_gpu_shares_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strangers: list[int]
) -> None:
    one, other = strangers
    smi(tmp_path, monkeypatch, f"GPU-a, {one}\\nGPU-b, {other}\\n")
    assert sharing("1") == ""


def test_the_processes_of_an_engine_are_one_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        smi(tmp_path, monkeypatch, f"GPU-a, {os.getpid()}\\nGPU-a, {child.pid}\\n")
        assert sharing("1") == ""
    finally:
        child.kill()
        child.wait()


def test_processes_that_cannot_be_seen_are_programs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi(tmp_path, monkeypatch, "GPU-a, 99999998\\nGPU-a, 99999999\\n")
    assert sharing("1") == "2 programs are on its GPU"


def test_where_nvidia_smi_lists_none_the_holders_of_the_device_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "nvidia-uvm"
    device.touch()
    monkeypatch.setattr(gpu_users, "MEMORY_DEVICE", str(device))
    smi(tmp_path, monkeypatch, "")
    holders: list[subprocess.Popen[bytes]] = []
    try:
        for number, said in enumerate(("", "2 programs use GPUs here"), 1):
            with device.open() as opened:
                holders.append(subprocess.Popen(["sleep", "60"], stdin=opened, start_new_session=True))
            assert len(holders) == number
            assert sharing("1") == said
    finally:
        for one in holders:
            one.kill()
            one.wait()


def test_without_a_driver_nothing_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu_users, "MEMORY_DEVICE", str(tmp_path / "nvidia-uvm"))  # this machine may have GPUs in use
    assert sharing("") == sharing("0") == ""
