"""What a killed engine leaves in /dev/shm is RAM: it is removed and named, and nobody else's file is."""

from __future__ import annotations

import json
import mmap
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from optistack.apply.deployment import Deployment, stop
from optistack.apply.launch import DeploymentSpec
from optistack.apply.shared_memory import SHM, remove_left, run_name
from optistack.apply.start import start
from optistack.apply.state import Phase
from optistack.cli.run import run
from optistack.launch import RUN

SHARED = f"{SHM}/optistack_test_{RUN}.mmap"


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    left = list(SHM.glob("optistack_test_*"))
    for file in left:
        file.unlink()
    assert not left


def shared(deployment: Deployment, name: str = "engine") -> Path:
    file = Path(SHARED.replace(RUN, run_name(deployment.state.id, name)))
    assert file.exists()
    return file


def of_a_crash(lab: Any, deployment: Deployment) -> None:
    lab.trigger.touch()


def of_the_supervisor(lab: Any, deployment: Deployment) -> None:
    lab.keeper(deployment, "supervisor").send(signal.SIGKILL)


@pytest.mark.parametrize("death", [of_a_crash, of_the_supervisor])
def test_its_keepers_remove_it_when_it_has_died(
    lab: Any, death: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = start(lab.spec("--shared", SHARED, "--crash-when", lab.trigger))
    file = shared(deployment)
    death(lab, deployment)
    assert lab.nothing_left()
    assert not file.exists()
    assert deployment.state.phase is Phase.FAILED and deployment.state.removed == (f"{file} (0.0 GiB)",)
    assert run(["status"]) == 0
    assert capsys.readouterr().out == "Nothing is running. 1 ended, test failed: optistack status --all\n"


def test_down_names_it_where_the_engine_had_to_be_killed(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    deployment = start(lab.spec("--shared", SHARED, "--ignore-term"))
    file = shared(deployment)
    assert run(["down", "test", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"stopped": ["test"], "removed": [f"{file} (0.0 GiB)"]}
    assert not file.exists()
    assert run(["down", "test"]) == 0
    said = capsys.readouterr()
    assert said.out == "Nothing was running.\n" and "Removed" not in said.err


def test_down_finds_it_after_both_keepers_were_killed(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    deployment = start(lab.spec("--shared", SHARED))
    file, state = shared(deployment), deployment.state
    lab.keeper(deployment, "guardian").send(signal.SIGSTOP)
    for which in ("supervisor", "guardian"):
        lab.keeper(deployment, which).send(signal.SIGKILL)
    assert lab.eventually(lambda: not deployment.folder.locked() and not lab.leftovers())
    assert file.exists() and deployment.state.id == state.id
    assert run(["down"]) == 0
    assert f"Removed {file} (0.0 GiB), which a killed engine had left." in capsys.readouterr().err
    assert not file.exists()


def test_one_that_dies_beside_others_leaves_theirs(lab: Any) -> None:
    names = ("replica-1", "replica-10")
    replicas = tuple(
        lab.process("--shared", SHARED, "--crash-when", lab.path / name, name=name, group="replicas") for name in names
    )
    deployment = start(DeploymentSpec(name="test", processes=replicas))
    first, tenth = (shared(deployment, name) for name in names)
    (lab.path / "replica-1").touch()
    assert lab.eventually(lambda: not first.exists())
    assert tenth.exists() and deployment.alive()
    stop(deployment)
    assert not tenth.exists()


def ours() -> Path:
    return Path(SHARED.replace(RUN, run_name("a1" * 16, "engine")))


def test_a_file_in_use_and_one_of_another_run_stay() -> None:
    other = Path(SHARED.replace(RUN, run_name("b2" * 16, "engine")))
    other.touch()
    with ours().open("w+b") as opened:
        opened.write(b"kv")
        opened.flush()
        assert remove_left("a1" * 16) == ()
        mapped = mmap.mmap(opened.fileno(), 2)
    assert remove_left("a1" * 16) == () and ours().exists()
    mapped.close()
    assert remove_left("a1" * 16) == (f"{ours()} (0.0 GiB)",)
    assert other.exists()
    other.unlink()


def test_a_process_that_closes_another_file_meanwhile_still_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The links of /proc/PID/fd are read one after the other, and any of them may be gone by then."""
    read = os.readlink

    def gone(link: Path) -> str:
        if str(link) == f"/proc/{os.getpid()}/fd/{first}":
            raise FileNotFoundError(link)
        return read(link)

    with Path(os.devnull).open() as other, ours().open("w+b"):
        first = other.fileno()
        monkeypatch.setattr(os, "readlink", gone)
        assert remove_left("a1" * 16) == ()
    assert remove_left("a1" * 16) == (f"{ours()} (0.0 GiB)",)


def test_one_that_maps_the_file_and_closes_it_meanwhile_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read, mapped = Path.read_bytes, []
    opened = ours().open("w+b")
    opened.write(b"kv")
    opened.flush()

    def then_maps(file: Path) -> bytes:
        content = read(file)
        if file == Path(f"/proc/{os.getpid()}/maps") and not mapped:
            mapped.append(mmap.mmap(opened.fileno(), 2))
            opened.close()
        return content

    monkeypatch.setattr(Path, "read_bytes", then_maps)
    assert remove_left("a1" * 16) == () and ours().exists()
    monkeypatch.undo()
    opened.close()
    for one in mapped:
        one.close()
    assert remove_left("a1" * 16) == (f"{ours()} (0.0 GiB)",)
