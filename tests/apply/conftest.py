"""Real processes for the tests of supervision, and the proof that none of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from optistack.apply.deployment import Deployment, folder_of
from optistack.apply.launch import DeploymentSpec, ProcessSpec
from optistack.apply.ports import free_port
from optistack.apply.processes import KEEPER_MARK, ProcessId, identify, marked, send
from optistack.apply.state import read_state

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def signals_are_heard() -> Iterator[None]:
    """Under nohup a hang-up is ignored, in a script's background Ctrl-C, by every child too; these tests send both."""
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGHUP, hang_up)
    signal.signal(signal.SIGINT, interrupt)


def eventually(condition: Callable[[], Any], *, within_s: float = 10.0) -> bool:
    """Whether ``condition`` becomes true in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return "(just ended)"


@dataclass(frozen=True)
class Running:
    """A process that a test does something to."""

    id: ProcessId

    def send(self, signum: int) -> None:
        assert send(self.id, signum)

    def lives(self) -> bool:
        return identify(self.id.pid) == self.id


@dataclass
class Lab:
    """One test's folder of triggers and pids, and the processes it started."""

    path: Path
    ids: set[str] = field(default_factory=set)
    appliers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    bystanders: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def trigger(self) -> Path:
        return self.path / "trigger"

    @property
    def pids_file(self) -> Path:
        return self.path / "pids"

    def pids(self) -> list[int]:
        """Every process of the fake engine that ever ran, by its own word."""
        return [int(pid) for pid in self.pids_file.read_text().split()] if self.pids_file.exists() else []

    def process(self, *options: object, name: str = "engine", **changes: Any) -> ProcessSpec:
        port = free_port()
        argv = (sys.executable, "-IS", str(HERE / "fake_engine.py"), "--port", str(port), "--pids", str(self.pids_file))
        values: dict[str, Any] = {
            "name": name,
            "argv": (*argv, *map(str, options)),
            "port": port,
            "ready_url": f"http://127.0.0.1:{port}/health",
            "ready_timeout_s": 15,
            "stop_timeout_s": 0.3,
        }
        return ProcessSpec(**(values | changes))

    def spec(self, *options: object, name: str = "test", **changes: Any) -> DeploymentSpec:
        return DeploymentSpec(name=name, processes=(self.process(*options, **changes),))

    def apply(self, spec: DeploymentSpec, *options: str, **popen: Any) -> subprocess.Popen[bytes]:
        """Run ``applier.py`` on ``spec`` as a process of its own."""
        file = self.path / "spec.json"
        file.write_text(spec.model_dump_json())
        command = [sys.executable, str(HERE / "applier.py"), str(file), *options]
        self.appliers.append(subprocess.Popen(command, **({"stdout": subprocess.DEVNULL} | popen)))
        return self.appliers[-1]

    def remember(self, name: str = "test") -> str | None:
        """The id of the run of ``name``, kept for ``leftovers``."""
        state = read_state(folder_of(name))
        if state is not None:
            self.ids.add(state.id)
        return None if state is None else state.id

    def up(self, processes: int) -> bool:
        """Whether that many processes of the fake engine come up."""
        return eventually(lambda: self.remember() is not None and len(self.pids()) >= processes)

    def keeper(self, deployment: Deployment, which: str) -> Running:
        found: ProcessId | None = getattr(deployment.state, which)
        assert found is not None
        return Running(found)

    def bystander(self) -> Running:
        """A process that has nothing to do with any deployment."""
        self.bystanders.append(subprocess.Popen(["/bin/sleep", "1000"]))
        found = identify(self.bystanders[-1].pid)
        assert found is not None
        return Running(found)

    def leftovers(self) -> list[str]:
        """The command lines of whatever still runs: engine processes by mark and by pid, supervisor and guardian."""
        for path in self.folders():
            self.remember(path.name)
        found = {p.pid for id in self.ids for p in (*marked(id), *marked(id, name=KEEPER_MARK))}
        found |= {pid for pid in self.pids() if identify(pid) is not None}
        return [f"{pid} {command_line(pid)}" for pid in sorted(found)]

    eventually = staticmethod(eventually)

    def folders(self) -> list[Path]:
        return list(folder_of("test").path.parent.glob("*"))

    def nothing_left(self) -> bool:
        """Whether it all ends in time, the last words of its guardian included."""
        return eventually(
            lambda: not self.leftovers() and not any(folder_of(path.name).locked() for path in self.folders())
        )


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    source = str(HERE.parents[1] / "core")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")])))
    laboratory = Lab(tmp_path)
    yield laboratory
    left = laboratory.leftovers()
    for started in (*laboratory.appliers, *laboratory.bystanders):
        started.kill()
        started.communicate()
    for line in left:
        process = identify(int(line.split()[0]))
        if process is not None:
            send(process, signal.SIGKILL)
    assert not left
