"""The deployment's folder: lock, whole writes, and the size of logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from optistack.apply.folder import DeploymentFolder
from optistack.apply.logs import cap_log, last_line, log_files, read_log
from optistack.files import write_whole


@pytest.fixture
def folder(tmp_path: Path) -> DeploymentFolder:
    found = DeploymentFolder(tmp_path / "deployments" / "test")
    found.path.mkdir(parents=True)
    found.empty()
    return found


def test_the_lock_is_held_until_its_last_descriptor_is_closed(folder: DeploymentFolder) -> None:
    lock = folder.acquire()
    assert lock is not None
    inherited = os.dup(lock)  # what a child has
    os.close(lock)
    assert folder.locked() and folder.acquire(patience_s=0) is None
    os.close(inherited)
    assert not folder.locked()


def test_a_folder_that_is_not_there_is_not_locked(tmp_path: Path) -> None:
    assert not DeploymentFolder(tmp_path / "none").locked()


def test_only_the_owner_may_look_into_a_folder(tmp_path: Path) -> None:
    folder = DeploymentFolder(tmp_path / "new")
    lock = folder.acquire()
    assert lock is not None
    os.close(lock)
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_a_write_that_fails_leaves_the_old_text_and_nothing_else(
    folder: DeploymentFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.write("a.json", "old")

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_whole(folder.path / "a.json", "new")
    assert (folder.path / "a.json").read_text() == "old"
    assert sorted(path.name for path in folder.path.iterdir()) == ["a.json", "logs"]


def test_a_log_is_capped_while_it_is_written_to(folder: DeploymentFolder) -> None:
    with folder.log_file("engine").open("ab", buffering=0) as log:
        for part in (b"first\n", b"second\n", b"third\n"):
            log.write(part)
            cap_log(folder, "engine", cap_bytes=4)
        log.write(b"end\n")
        cap_log(folder, "engine", cap_bytes=4)
    assert [path.read_text() for path in log_files(folder, "engine")] == ["first\n", "third\n", "end\n"]
    cap_log(folder, "never-started")
    assert log_files(folder, "never-started") == []


def test_the_end_of_a_log_is_read_by_whole_lines(folder: DeploymentFolder) -> None:
    assert read_log(folder, "engine") == "" and last_line(folder, "engine") == ""
    folder.log_file("engine").write_bytes(b"one\ntwo \xff\n(A pid=7) three\n  more\n(A pid=7) \n")
    assert read_log(folder, "engine", last_bytes=20) == "  more\n(A pid=7) \n"
    assert read_log(folder, "engine").startswith("one\ntwo \ufffd\n(A")
    assert last_line(folder, "engine") == "three"
    assert read_log(folder, "engine", after_bytes=10) == "(A pid=7) three\n  more\n(A pid=7) \n"
    assert read_log(folder, "engine", after_bytes=1000).startswith("one\n")
