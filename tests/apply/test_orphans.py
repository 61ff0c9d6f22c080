"""Nothing survives, whatever is killed, and whoever is killed first."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import termios
import time
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from optistack.apply.deployment import Deployment, find, folder_of, stop
from optistack.apply.launch import DeploymentSpec
from optistack.apply.processes import KEEPER_MARK, ProcessId, boot_id, identify, marked
from optistack.apply.start import start
from optistack.apply.state import Phase, State, read_state, write_state
from optistack.errors import InputError


def lives(pid: int) -> bool:
    return identify(pid) is not None


ALL_KINDS = ("--children", "stubborn", "daemon", "bare")


def test_kill_9_of_the_supervisor(lab: Any) -> None:
    deployment = start(lab.spec("--ignore-term", *ALL_KINDS))
    guardian = lab.keeper(deployment, "guardian")
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        guardian.send(signum)  # which it does not heed
    assert lab.up(4)
    lab.keeper(deployment, "supervisor").send(signal.SIGKILL)
    assert lab.nothing_left()
    assert deployment.state.guardian == guardian.id
    assert deployment.state.phase is Phase.FAILED
    assert deployment.state.reason == "its supervisor was killed or crashed; supervisor.log may say why"
    assert stop(deployment) is False


def test_kill_9_of_the_guardian_and_then_of_the_supervisor(lab: Any) -> None:
    deployment = start(lab.spec("--ignore-term", *ALL_KINDS, "--daemon-when", lab.trigger))
    assert lab.eventually(lambda: len(deployment.state.members) >= 4)
    first = lab.keeper(deployment, "guardian")
    first.send(signal.SIGKILL)
    assert lab.eventually(lambda: deployment.state.guardian not in (first.id, None))
    assert deployment.alive()
    lab.trigger.touch()
    assert lab.up(5)  # one more, which was not recorded yet
    lab.keeper(deployment, "supervisor").send(signal.SIGKILL)
    assert lab.nothing_left()
    assert deployment.state.phase is Phase.FAILED


def test_down_after_the_guardian_was_replaced(lab: Any) -> None:
    deployment = start(lab.spec(*ALL_KINDS))
    first = lab.keeper(deployment, "guardian")
    first.send(signal.SIGKILL)
    assert lab.eventually(lambda: deployment.state.guardian not in (first.id, None))
    stop(deployment)
    assert lab.leftovers() == []


def test_kill_9_of_both_takes_the_engine_along_and_down_cleans_up_the_rest(lab: Any) -> None:
    deployment = start(lab.spec("--ignore-term", *ALL_KINDS))
    assert lab.eventually(lambda: len(deployment.state.members) >= 4)
    engine = deployment.state.processes[0].process
    lab.keeper(deployment, "guardian").send(signal.SIGSTOP)  # so that it cannot act in between
    lab.keeper(deployment, "supervisor").send(signal.SIGKILL)
    lab.keeper(deployment, "guardian").send(signal.SIGKILL)
    assert lab.eventually(lambda: not deployment.folder.locked() and not lives(engine.pid))
    assert deployment.state.phase is Phase.FAILED
    assert deployment.state.reason == "its supervisor and its guardian were killed"
    assert not deployment.alive()
    assert stop(deployment) is True
    assert lab.leftovers() == []


def test_the_next_start_cleans_up_too(lab: Any) -> None:
    deployment = start(lab.spec(*ALL_KINDS))
    assert lab.eventually(lambda: len(deployment.state.members) >= 4)
    lab.keeper(deployment, "guardian").send(signal.SIGSTOP)
    lab.keeper(deployment, "supervisor").send(signal.SIGKILL)
    lab.keeper(deployment, "guardian").send(signal.SIGKILL)
    before = lab.pids()
    again = start(lab.spec())
    assert not any(lives(pid) for pid in before)
    stop(again)


def test_kill_9_of_the_supervisor_while_it_is_stopping(lab: Any) -> None:
    deployment = start(lab.spec("--ignore-term", *ALL_KINDS, stop_timeout_s=30))
    lab.keeper(deployment, "supervisor").send(signal.SIGTERM)
    assert lab.eventually(lambda: deployment.state.phase is Phase.STOPPING)
    lab.keeper(deployment, "supervisor").send(signal.SIGKILL)
    assert lab.nothing_left()
    assert deployment.state.phase is Phase.STOPPED


def test_a_supervisor_that_hangs_is_killed_by_down(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optistack.apply.deployment.KEEPER_GRACE_S", 0.2)
    deployment = start(lab.spec("--ignore-term", *ALL_KINDS))
    lab.keeper(deployment, "supervisor").send(signal.SIGSTOP)
    assert stop(deployment) is True
    assert lab.leftovers() == [] and deployment.state.phase is Phase.STOPPED


def test_down_while_it_ends_for_a_failure_leaves_the_failure(lab: Any) -> None:
    options = ("--crash-when", lab.trigger, "--children", "stubborn")
    deployment = start(lab.spec("--handled", "ValueError: no tokenizer", *options, stop_timeout_s=3))
    lab.trigger.touch()
    assert lab.eventually(lambda: deployment.state.phase is Phase.STOPPING)
    assert stop(deployment) is True
    assert deployment.state.phase is Phase.FAILED and "engine stopped working" in deployment.state.reason


def test_a_second_request_to_stop_does_not_wait(lab: Any) -> None:
    deployment = start(lab.spec("--ignore-term", stop_timeout_s=60))
    supervisor = lab.keeper(deployment, "supervisor")
    supervisor.send(signal.SIGTERM)
    assert lab.eventually(lambda: deployment.state.phase is Phase.STOPPING)
    with pytest.raises(InputError, match=r"^Deployment 'test' is being stopped\. `optistack down test` waits for"):
        start(lab.spec())
    supervisor.send(signal.SIGTERM)
    assert lab.eventually(lambda: not deployment.folder.locked())
    assert lab.leftovers() == []


def test_an_engine_that_never_served_is_not_waited_for_as_one_that_does(lab: Any) -> None:
    applying = lab.apply(lab.spec("--ignore-term", "--ready-when", lab.trigger, stop_timeout_s=60))
    assert lab.up(1)
    began = time.monotonic()
    applying.send_signal(signal.SIGINT)
    assert applying.wait(timeout=30) == 130
    assert time.monotonic() - began < 15
    assert lab.leftovers() == []


def test_one_that_serves_may_finish_while_its_neighbour_that_loads_is_not_waited_for(lab: Any) -> None:
    serving = lab.process("--orderly", lab.path / "told", "--last-request-s", 6, name="serving", stop_timeout_s=60)
    loading = lab.process("--ignore-term", "--ready-when", lab.trigger, name="loading", stop_timeout_s=60)
    lab.apply(DeploymentSpec(name="test", processes=(serving, loading)))
    assert lab.up(2) and lab.eventually(lambda: find("test").state.processes[0].ready)
    began = time.monotonic()
    assert stop(find("test")) is True
    assert time.monotonic() - began < 25
    assert [process.exit_code for process in find("test").state.processes] == [0, -signal.SIGKILL]


def test_an_interrupt_that_is_repeated_does_not_wait_at_all(lab: Any) -> None:
    applying = lab.apply(lab.spec("--ignore-term", stop_timeout_s=60), "--foreground")
    assert lab.up(1)
    assert lab.eventually(lambda: find("test").state.phase is Phase.READY)
    applying.send_signal(signal.SIGINT)
    assert lab.eventually(lambda: find("test").state.phase is Phase.STOPPING)
    applying.send_signal(signal.SIGINT)
    assert applying.wait(timeout=20) == 130
    assert lab.leftovers() == []


def test_a_full_disk_ends_nothing_and_is_no_obstacle_to_a_stop(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    told = lab.path / "told"
    deployment = start(lab.spec("--orderly", told, stop_timeout_s=10))
    for which in ("supervisor", "guardian"):  # they cannot write any more, neither a state nor a log
        resource.prlimit(lab.keeper(deployment, which).id.pid, resource.RLIMIT_FSIZE, (0, 0))
    monkeypatch.setattr("optistack.apply.deployment.write_state", full)
    assert stop(deployment) is True
    assert lab.leftovers() == []
    assert told.read_text(), "the engine was asked to end before it was killed"
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=0))
    assert deployment.state.phase is Phase.FAILED
    assert deployment.state.reason.endswith("is full, and how it ended could not be written")


def test_a_state_that_cannot_be_written_ends_a_start(lab: Any) -> None:
    applier = lab.apply(lab.spec("--ready-when", lab.trigger))
    assert lab.up(1)
    supervisor = lab.keeper(Deployment(folder_of("test")), "supervisor")
    resource.prlimit(supervisor.id.pid, resource.RLIMIT_FSIZE, (0, 0))
    lab.trigger.touch()
    assert applier.wait(timeout=20) != 0
    assert lab.nothing_left()


def test_a_state_that_could_not_be_written_is_when_there_is_room(lab: Any) -> None:
    deployment = start(lab.spec())
    supervisor = lab.keeper(deployment, "supervisor")
    resource.prlimit(supervisor.id.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    lab.keeper(deployment, "guardian").send(signal.SIGKILL)  # its place is taken, which is to be written
    before = deployment.state
    assert lab.eventually(lambda: {*marked(before.id, name=KEEPER_MARK)} - {before.supervisor, before.guardian})
    assert not lab.eventually(lambda: deployment.state.guardian != before.guardian, within_s=0.5)
    resource.prlimit(supervisor.id.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert lab.eventually(lambda: deployment.state.guardian != before.guardian, within_s=30)
    stop(deployment)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_the_command_is_ended_while_it_is_starting(lab: Any, kill: signal.Signals) -> None:
    applier = lab.apply(lab.spec("--ready-when", lab.trigger, *ALL_KINDS))
    assert lab.up(4)
    applier.send_signal(kill)
    assert applier.wait() == (-signal.SIGKILL if kill is signal.SIGKILL else 130)
    if kill is not signal.SIGKILL:
        assert lab.leftovers() == []  # it has seen to it before it ended
    assert lab.nothing_left()
    assert read_state(folder_of("test")).phase is Phase.STOPPED


@pytest.mark.parametrize("moment", ["at once", "with the supervisor up"])
def test_the_command_is_killed_early(lab: Any, moment: str) -> None:
    applier = lab.apply(lab.spec("--ready-when", lab.trigger, *ALL_KINDS))
    state = folder_of("test").state_file
    conditions: dict[str, Callable[[], bool]] = {
        "at once": (folder_of("test").path / "lock").exists,
        "with the supervisor up": lambda: state.exists() and read_state(folder_of("test")).supervisor is not None,
    }
    assert lab.eventually(conditions[moment])
    applier.kill()
    applier.wait()
    assert lab.eventually(lambda: not folder_of("test").locked())
    assert lab.leftovers() == []


def test_the_engine_outlives_the_command_and_its_terminal(lab: Any) -> None:
    terminal, applier = in_terminal(lab, lab.spec(*ALL_KINDS))
    assert applier.wait() == 0
    os.close(terminal)
    state = read_state(folder_of("test"))
    assert state.phase is Phase.READY and lives(state.processes[0].process.pid)
    sessions = [os.getsid(process.pid) for process in (state.guardian, state.supervisor, state.processes[0].process)]
    assert len({applier.pid, *sessions}) == 4
    stop(find("test"))


@pytest.mark.parametrize("options", [(), ("--foreground",)])
@pytest.mark.parametrize("end", ["Ctrl-C", "hang up"])
def test_the_terminal_ends_it(lab: Any, options: tuple[str, ...], end: str) -> None:
    engine_options = ALL_KINDS if options else ("--ready-when", lab.trigger, *ALL_KINDS)
    terminal, applier = in_terminal(lab, lab.spec(*engine_options), *options)
    wanted = Phase.READY if options else Phase.STARTING
    assert lab.up(4) and lab.eventually(lambda: read_state(folder_of("test")).phase is wanted)
    if end == "Ctrl-C":
        os.write(terminal, b"\x03")
        assert applier.wait() == 130
    os.close(terminal)
    applier.wait()
    assert lab.nothing_left()


def in_terminal(lab: Any, spec: Any, *options: str) -> tuple[int, Any]:
    """Run the applier as the leader of a session that has a terminal; returns our end of the terminal and it."""
    ours, theirs = os.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    applier = lab.apply(
        spec, *options, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=take_terminal
    )
    os.close(theirs)
    return ours, applier


def written(lab: Any, **changes: Any) -> Deployment:
    """A deployment whose folder says that it is ready, as after a power failure."""
    folder = folder_of("test")
    folder.path.mkdir(parents=True)
    values = {"id": "gone", "phase": Phase.READY, "boot": boot_id(), "started_at": datetime.now(UTC)}
    write_state(folder, State(**(values | changes)))
    return find("test")


def test_a_process_that_reused_a_pid_is_not_killed(lab: Any) -> None:
    bystander = lab.bystander()
    before = ProcessId(bystander.id.pid, bystander.id.start_ticks - 1)
    deployment = written(lab, supervisor=before, members=(before,))
    assert deployment.state.phase is Phase.FAILED
    assert stop(deployment) is False and deployment.state.phase is Phase.FAILED
    assert bystander.lives()


def test_a_process_that_has_the_same_number_after_a_reboot_is_not_killed(lab: Any) -> None:
    bystander = lab.bystander()
    deployment = written(lab, boot="another", supervisor=bystander.id, members=(bystander.id,))
    assert deployment.state.reason == "the machine was restarted"
    assert stop(deployment) is False
    assert (deployment.state.phase, deployment.state.reason) == (Phase.FAILED, "the machine was restarted")
    assert read_state(deployment.folder) == deployment.state
    assert bystander.lives()
