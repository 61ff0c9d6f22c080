"""Starting, finding and stopping deployments, with real processes."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from optistack.apply.deployment import find, folder_of, list_deployments, stop
from optistack.apply.launch import DeploymentSpec
from optistack.apply.processes import identify, send
from optistack.apply.start import Progress, attached, start
from optistack.apply.state import Phase
from optistack.errors import EngineStartError, InputError


def test_start_waits_until_ready_and_down_leaves_nothing(lab: Any) -> None:
    told: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        told.append(progress)
        if progress.log_line == "loading weights":
            lab.trigger.touch()

    deployment = start(lab.spec("--ready-when", lab.trigger), on_progress=on_progress)
    assert deployment.alive() and deployment.state.phase is Phase.READY
    assert told[-1].log_line == "loading weights" and (told[-1].ready, told[-1].processes) == (0, 1)
    assert [found.name for found in list_deployments()] == ["test"]
    assert find("test").spec == deployment.spec
    assert stop(deployment) is True
    assert not deployment.alive() and lab.leftovers() == []
    assert find("test").state.phase is Phase.STOPPED
    assert stop(deployment) is False


def test_an_engine_is_asked_first_and_alone_so_that_it_can_end_its_own_children(lab: Any) -> None:
    asked = lab.path / "asked"
    stop(start(lab.spec("--orderly", asked, stop_timeout_s=20)))
    assert asked.read_text() == "engine\n"


def test_processes_that_do_not_want_to_go_are_killed(lab: Any) -> None:
    deployment = start(lab.spec("--ignore-term", "--children", "stubborn", "daemon", "bare"))
    assert lab.up(4)
    stop(deployment)
    assert lab.leftovers() == []


def test_two_replicas_are_one_deployment(lab: Any) -> None:
    crash = lab.path / "crash"
    spec = DeploymentSpec(name="test", processes=(lab.process(name="a"), lab.process("--crash-when", crash, name="b")))
    deployment = start(spec)
    assert [process.ready for process in deployment.state.processes] == [True, True]
    crash.touch()
    assert lab.eventually(lambda: not deployment.alive())
    assert lab.nothing_left()


def test_a_group_goes_on_without_one_of_its_processes_and_ends_with_the_last(lab: Any) -> None:
    first = lab.process("--children", "daemon", "stubborn", name="replica-0", group="replicas")
    second = lab.process("--crash-when", lab.trigger, name="replica-1", group="replicas")
    deployment = start(DeploymentSpec(name="test", processes=(first, second, lab.process(name="front"))))
    children = set(lab.pids()) - {state.process.pid for state in deployment.state.processes if state.process}
    assert children
    lost = deployment.state.processes[0].process
    assert lost is not None and send(lost, signal.SIGKILL)
    assert lab.eventually(lambda: deployment.state.processes[0].reason)
    state = deployment.state
    assert (state.phase, state.processes[0].exit_code, state.processes[0].ready) == (Phase.READY, -9, False)
    assert "SIGKILL" in state.processes[0].reason
    assert lab.eventually(lambda: not any(identify(pid) for pid in children))
    assert all(other.ready and not other.reason for other in state.processes[1:])
    lab.trigger.touch()
    assert lab.eventually(lambda: deployment.state.phase is Phase.FAILED)
    assert "replica-1 stopped working" in deployment.state.reason
    assert lab.nothing_left()


def test_the_end_of_a_process_without_a_group_ends_those_with_one(lab: Any) -> None:
    replicas = tuple(lab.process(name=f"replica-{n}", group="replicas") for n in range(2))
    front = lab.process("--crash-when", lab.trigger, name="front")
    deployment = start(DeploymentSpec(name="test", processes=(*replicas, front)))
    lab.trigger.touch()
    assert lab.eventually(lambda: deployment.state.phase is Phase.FAILED)
    assert "front stopped working" in deployment.state.reason
    assert lab.nothing_left()


def test_a_group_has_to_start_whole(lab: Any) -> None:
    lost = lab.process("--crash", "RuntimeError: no memory", name="replica-0", group="replicas")
    with pytest.raises(EngineStartError, match="replica-0 did not start: RuntimeError: no memory"):
        start(DeploymentSpec(name="test", processes=(lost, lab.process(name="replica-1", group="replicas"))))
    assert lab.nothing_left()


def test_a_crash_at_the_start_shows_the_reason_of_the_engine(lab: Any) -> None:
    with pytest.raises(EngineStartError) as caught:
        start(lab.spec("--children", "daemon", "--crash", "ValueError: 10 heads do not divide by 4"))
    assert caught.value.message == "test: engine did not start: ValueError: 10 heads do not divide by 4"
    assert caught.value.fix == f"Log: {folder_of('test').log_file('engine')}"
    assert lab.leftovers() == []
    assert find("test").state.phase is Phase.FAILED


def test_the_backend_can_tell_what_a_reason_looks_like(lab: Any) -> None:
    spec = lab.spec("--crash", "OSError: device lost", cause_patterns=["File '(?P<reason>.+)',"])
    with pytest.raises(EngineStartError, match="engine did not start: x Log"):
        start(spec)


def test_a_crash_after_ready_is_noticed_with_its_reason(lab: Any) -> None:
    children = ("--children", "stubborn", "daemon", "bare")
    deployment = start(lab.spec("--handled", "ValueError: no tokenizer", "--crash-when", lab.trigger, *children))
    assert lab.up(4)
    lab.trigger.touch()
    assert lab.eventually(lambda: deployment.state.phase is Phase.FAILED)
    assert deployment.state.reason == (
        "engine stopped working: it exited with code 3; its log ends with: RuntimeError: the device fell off the bus"
    )
    assert deployment.state.processes[0].exit_code == 3
    assert lab.nothing_left()
    failed = deployment.state
    assert stop(deployment) is False and deployment.state == failed


def test_an_error_of_the_supervisor_itself_ends_everything(lab: Any) -> None:
    deployment = start(lab.spec("--crash-when", lab.trigger, "--children", "daemon"))
    log = deployment.folder.log_file("engine")
    log.unlink()
    log.mkdir()  # it cannot be read for a reason
    lab.trigger.touch()
    assert lab.nothing_left()
    assert deployment.state.reason == "its supervisor failed; supervisor.log says how."
    assert "IsADirectoryError" in deployment.folder.supervisor_log.read_text()


def test_an_engine_that_is_never_ready_is_ended(lab: Any) -> None:
    with pytest.raises(
        EngineStartError, match=r"did not answer 200 within 0\.5 s\. Its log ends with: loading weights"
    ):
        start(lab.spec("--ready-when", lab.trigger, "--children", "stubborn", ready_timeout_s=0.5))
    assert lab.leftovers() == []


def test_the_limit_that_an_engine_missed_is_named_with_its_value(lab: Any) -> None:
    with pytest.raises(EngineStartError) as caught:
        start(lab.spec("--ready-when", lab.trigger, ready_timeout_s=0.5))
    assert caught.value.fix.startswith(
        "If it was still loading, raise serving.ready_timeout_s in the stack, now 0.5. Log: /"
    )


def test_the_limit_is_not_named_where_it_was_not_missed(lab: Any) -> None:
    with pytest.raises(EngineStartError) as caught:
        start(lab.spec(argv=["/no/such/engine"]))
    assert caught.value.fix.startswith("Log: /")


def test_a_command_that_does_not_exist(lab: Any) -> None:
    with pytest.raises(EngineStartError, match=r"engine cannot be run: .*No such file or directory: '/no/such/engine'"):
        start(lab.spec(argv=["/no/such/engine"]))


def test_one_name_runs_once(lab: Any) -> None:
    deployment = start(lab.spec())
    with pytest.raises(InputError) as caught:
        start(lab.spec("--ready-when", lab.trigger))
    assert str(caught.value) == "Deployment 'test' is already running. `optistack down test` stops it."
    assert deployment.alive()
    stop(deployment)


def test_a_port_in_use_is_named_with_its_holder(lab: Any) -> None:
    first = start(lab.spec(name="first"))
    port = first.spec.processes[0].port
    with pytest.raises(InputError, match=f"Port {port} is in use by deployment 'first'. `optistack down first`"):
        start(lab.spec(port=port))
    stop(first)
    assert not folder_of("test").state_file.exists()


def test_files_env_and_folder_of_the_process(lab: Any) -> None:
    shell = 'cat conf/a.json; echo "$GREETING $SPT_NOENV"; pwd; exit 1'
    spec = lab.spec(argv=["/bin/sh", "-c", shell], files={"conf/a.json": "{}\n"}, env={"GREETING": "hello"})
    with pytest.raises(EngineStartError):
        start(spec)
    folder = folder_of("test")
    assert folder.log_file("engine").read_text() == f"{{}}\nhello 1\n{folder.path}\n"


def test_the_next_start_forgets_the_run_before_except_for_its_logs(lab: Any) -> None:
    with pytest.raises(EngineStartError):
        start(lab.spec("--crash", "ValueError: first"))
    folder = folder_of("test")
    folder.write("receipt.json", "{}")
    stop(start(lab.spec()))
    assert not folder.receipt_file.exists()
    assert "ValueError: first" in (folder.path / "logs.previous" / "engine.log").read_text()
    assert "ValueError" not in folder.log_file("engine").read_text()


def test_attached_ends_with_its_block_unless_committed(lab: Any) -> None:
    with attached(lab.spec("--children", "daemon")) as live:
        assert live.deployment.alive()
        lab.remember()
    assert lab.leftovers() == []
    with pytest.raises(ZeroDivisionError), attached(lab.spec()) as live:
        live.commit()
        raise ZeroDivisionError
    assert live.deployment.alive()
    stop(live.deployment)


def test_attached_waits_for_the_end(lab: Any) -> None:
    crash = lab.trigger
    with attached(lab.spec("--crash-when", crash)) as live:
        crash.touch()
        assert live.wait().phase is Phase.FAILED


def test_a_folder_that_cannot_be_used(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (lab.path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(lab.path / "file"))
    with pytest.raises(InputError, match=r"^Cannot work in .*Not a directory.* XDG_STATE_HOME puts it elsewhere\."):
        start(lab.spec())


def test_a_name_that_is_not_there_and_files_that_are_damaged(lab: Any) -> None:
    deployment = start(lab.spec())
    deployment.folder.spec_file.write_text("{")
    with pytest.raises(InputError, match=r"spec\.json is missing or damaged\. `optistack down test` stops it; then: "):
        str(find("test").spec)
    stop(deployment)
    with pytest.raises(InputError, match=r"There is no deployment 'tset'. Did you mean 'test'\?"):
        find("tset")
    with pytest.raises(InputError, match=r"There is no deployment '\.\./x'"):
        find("../x")
    with pytest.raises(InputError, match=r"spec\.json is missing or damaged\. Remove the folder"):
        str(find("test").spec)
    deployment.folder.state_file.write_text("")
    with pytest.raises(InputError, match=r"state\.json is missing or damaged\. Remove the folder"):
        find("test").alive()
    assert list_deployments() == []
    assert stop(deployment) is False


def test_the_supervisor_ends_everything_when_it_is_asked_by_signal(lab: Any) -> None:
    deployment = start(lab.spec("--children", "stubborn", "daemon"))
    lab.keeper(deployment, "supervisor").send(signal.SIGHUP)
    assert lab.nothing_left()
    assert (deployment.state.phase, deployment.state.reason) == (Phase.STOPPED, "its supervisor received SIGHUP")
