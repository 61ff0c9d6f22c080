"""What the user names as an output is written, whatever it is: a file, a link, a pipe, a device."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from optistack.cli.run import run
from optistack.errors import InputError
from optistack.files import check_writable, numbered_lines, write_file

STACKS = Path(__file__).resolve().parents[2] / "stacks"


def read_in_background(fifo: Path) -> tuple[threading.Thread, list[str]]:
    read: list[str] = []
    thread = threading.Thread(target=lambda: read.append(fifo.read_text()), daemon=True)
    thread.start()
    return thread, read


def test_lines_are_numbered_as_an_editor_numbers_them(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('\ufeff{"a": "one\u2028line"}\r\n\n  \n{"b": "one\u0085line"}', encoding="utf-8")
    assert numbered_lines(file, fix="") == [(1, '{"a": "one\u2028line"}'), (4, '{"b": "one\u0085line"}')]


def test_a_carriage_return_alone_ends_no_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"10%\r20%\r\nnext\n")
    assert numbered_lines(file, fix="") == [(1, "10%\r20%"), (2, "next")]


@pytest.mark.parametrize("content", [b"\xff\xfe", None])
def test_what_is_no_text_is_refused_with_the_fix(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "prompts.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=r"prompts\.jsonl .*Give another"):
        numbered_lines(file, fix="Give another.")


def test_a_pipe_stays_one_and_gets_the_text(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    thread, read = read_in_background(fifo)
    check_writable("--html", fifo)
    write_file(fifo, "text")
    thread.join(10)
    assert read == ["text"]
    assert stat.S_ISFIFO(fifo.lstat().st_mode)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_one_and_its_target_is_written(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "below" / "target", tmp_path / "link"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    link.symlink_to("below/target")
    check_writable("--html", link)
    write_file(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["target"], "no temporary file is left"


@pytest.mark.parametrize(
    ("umask", "there", "asked", "mode"),
    [
        (0o022, None, 0o644, 0o644),
        (0o077, None, 0o644, 0o600),
        (0o077, None, 0o755, 0o700),
        (0o022, 0o600, 0o644, 0o600),
        (0o022, 0o644, 0o755, 0o744),
        (0o022, 0o666, 0o600, 0o600),
    ],
)
def test_others_get_no_more_than_the_umask_and_the_file_that_was_there_give(
    tmp_path: Path, umask: int, there: int | None, asked: int, mode: int
) -> None:
    file = tmp_path / "file"
    if there is not None:
        file.touch()
        file.chmod(there)
    before = os.umask(umask)
    try:
        write_file(file, "text", mode=asked)
        assert os.umask(umask) == umask, "it is as it was"
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == mode


def test_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    write_file(tmp_path / "picture", b"\x89PNG\r\n")
    assert (tmp_path / "picture").read_bytes() == b"\x89PNG\r\n"


def test_a_device_stays_one(tmp_path: Path) -> None:
    null, full = tmp_path / "null", tmp_path / "full"
    try:
        os.mknod(null, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        os.mknod(full, 0o600 | stat.S_IFCHR, os.makedev(1, 7))
        null.write_text("a container may forbid to open it")
    except PermissionError:
        pytest.skip("needs the right to make devices")
    write_file(null, "text")
    with pytest.raises(InputError, match="No space left on device"):
        write_file(full, "text")
    assert [stat.S_ISCHR(path.lstat().st_mode) for path in (null, full)] == [True, True]


def test_a_link_into_a_folder_that_is_not_there_is_told_before_the_work(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("nowhere/target")
    with pytest.raises(InputError, match="there is no folder .*nowhere"):
        check_writable("--html", link)


def test_a_script_goes_through_a_descriptor_of_the_shell(tmp_path: Path) -> None:
    read, write = os.pipe()
    with os.fdopen(read) as reader, os.fdopen(write, "w") as writer:
        command = [sys.executable, "-m", "optistack.cli", "plan", "--backend", "sglang"]
        command += ["--stack", str(STACKS / "kimi-k2.6-b200x4.yaml"), "--script", f"/dev/fd/{write}"]
        done = subprocess.run(command, pass_fds=[write], capture_output=True, text=True, timeout=60)
        writer.close()
        assert done.returncode == 0, done.stderr
        assert reader.read().startswith("#!/bin/sh\n")


def test_results_that_are_read_again_need_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fifo, samples = tmp_path / "pipe", tmp_path / "samples.jsonl"
    os.mkfifo(fifo)
    words = ["--endpoint", "http://127.0.0.1:1", "--samples", str(samples), "--out", str(fifo)]
    assert run(["conformance", "k2vv", *words]) == 2
    assert "is no file, and it is read again" in capsys.readouterr().err
