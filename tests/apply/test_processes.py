"""What the kernel says about processes, and ports."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from optistack.apply.ports import free_port, require_free
from optistack.apply.processes import ProcessId, descendants, identify, kill_all, living, marked, send
from optistack.errors import InputError

# The name of a process may hold spaces and parentheses.
ODD_NAME = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'x) R (y', 0, 0, 0); print(flush=True); time.sleep(99)"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    environment = {"OPTISTACK_DEPLOYMENT": "this-test"}
    with subprocess.Popen([sys.executable, "-c", ODD_NAME], env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_process_is_found_by_parent_by_mark_and_by_record(child: subprocess.Popen[bytes]) -> None:
    me = identify(child.pid)
    assert me is not None
    assert me in descendants(os.getpid()) and me not in descendants(child.pid)
    assert marked("this-test") == [me] and marked("this") == [] and marked("test") == []
    assert living([me, ProcessId(me.pid, me.start_ticks + 1)]) == [me]


def test_a_signal_goes_to_the_process_and_not_to_its_pid(child: subprocess.Popen[bytes]) -> None:
    me = identify(child.pid)
    assert me is not None
    assert send(ProcessId(me.pid, me.start_ticks - 1), signal.SIGKILL) is False
    assert identify(child.pid) == me
    assert send(me, signal.SIGKILL) is True
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identify(child.pid) is None  # a process that waits to be reaped is gone
    child.wait()
    assert send(me, signal.SIGKILL) is False


def test_kernels_without_pidfd_are_served(child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", missing)
    me = identify(child.pid)
    assert me is not None and send(me, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_a_resource_tracker_may_finish_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optistack.apply.processes.TRACKER_GRACE_S", 60)
    code = "import sys, time  # resource_tracker\nprint(flush=True)\nsys.stdin.read()\ntime.sleep(0.2)"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as tracker:
        assert tracker.stdin is not None and tracker.stdout is not None
        tracker.stdout.readline()  # before it runs, its command line is still ours
        me = identify(tracker.pid)
        assert me is not None
        tracker.stdin.close()
        assert kill_all(lambda: living([me])) == []
        assert tracker.wait() == 0


def test_what_does_not_die_is_returned() -> None:
    hung = ProcessId(1, -1)
    assert kill_all(lambda: [hung], give_up_s=0.1) == [hung]


def test_a_free_port_is_free_and_a_taken_one_names_its_holder() -> None:
    port = free_port()
    require_free("127.0.0.1", port)
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(InputError) as caught:
            require_free("127.0.0.1", port)
        assert f"Port {port} is in use by " in caught.value.message
        assert f"(pid {os.getpid()})" in caught.value.message


def test_the_holder_of_a_port_may_be_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    def hidden(**arguments: Any) -> list[Any]:
        return [connection._replace(pid=None) for connection in connections(**arguments)]

    connections = psutil.net_connections
    monkeypatch.setattr(psutil, "net_connections", hidden)
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(InputError, match=r"is in use\. Stop it"):
        require_free("127.0.0.1", listener.getsockname()[1])


def test_an_address_of_another_machine_cannot_be_listened_on() -> None:
    with pytest.raises(InputError, match=r"Cannot listen on 192\.0\.2\.1 port 9: Cannot assign requested address"):
        require_free("192.0.2.1", 9)
