"""A process of a plugin before the replicas: planned, started, proved, watched and stopped with them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from optistack import hookimpl
from optistack.apply.deployment import find
from optistack.apply.processes import identify
from optistack.launch import FrontLaunch, LaunchArgument, LaunchFile
from optistack.plan.plan import Plan
from optistack.plugin import Domain, PluginInfo
from optistack.settings import EngineArgument, Routing, choose
from optistack.verify.front import RunningFront
from optistack.verify.receipt import CheckResult, Status

Optistack = Callable[..., Any]
FRONT = Path(__file__).parent / "small_front.py"


def gate(name: str = "gate", *, brings: bool = True, process: str = "gate") -> ModuleType:
    """A plugin that asks for a front and, where it ``brings`` one, has it."""
    module = ModuleType(name)

    @hookimpl
    def optistack_plugin() -> PluginInfo:
        return PluginInfo(name=name, domain=Domain.ROUTING, version="2.0", summary="A gate.")

    @hookimpl
    def optistack_route(ctx: Any) -> Routing:
        return Routing(front=choose(True, why="everybody goes through the gate"))

    @hookimpl
    def optistack_front(plan: Plan) -> FrontLaunch:
        values = {"--port": "{port}", "--admin-port": "{port.admin}", "--replica": "{replica.url}"}
        values["--file"] = "{folder}/gate.txt"
        return FrontLaunch(
            name=process,
            command=("-IS", str(FRONT)),
            arguments=tuple(LaunchArgument(flag=f, value=v, source=name, why="because") for f, v in values.items()),
            files=(LaunchFile(name="gate.txt", content="head\n{replica.url} in {replica.folder}\n", source=name),),
            host=plan.spec.serving.host,
            ports=("admin",),
        )

    @hookimpl
    def optistack_probe_front(plan: Plan, front: RunningFront) -> list[CheckResult]:
        told = front.endpoint.get_json("/told") or {}
        same = told["replicas"] == [replica.url for replica in front.replicas]
        passed = same and told["admin"] == front.ports["admin"] and all(r.get_json("/claims") for r in front.replicas)
        status = Status.PASS if passed else Status.FAIL
        return [CheckResult(id="gate/open", promised_by=name, asked="", engine_says="", proof="/told", status=status)]

    vars(module).update(optistack_plugin=optistack_plugin, optistack_route=optistack_route)
    if brings:
        vars(module).update(optistack_front=optistack_front, optistack_probe_front=optistack_probe_front)
    return module


@pytest.fixture
def gated(small: Any, install: Callable[..., None], home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``optistack.yaml`` with two replicas and the given plugins instead of one."""
    monkeypatch.setattr("optistack.facts.detect.cpu_count", lambda: 4)

    def install_gates(**gates: ModuleType) -> None:
        install(**gates)
        stack = (home / "optistack.yaml").read_text().replace("plugins:\n  eight:\n", "plugins:\n")
        plugins = "".join(f"  {name}:\n" for name in gates)
        (home / "optistack.yaml").write_text(f"{stack}{plugins}parallel: {{replicas: 2}}\n")

    return install_gates


def eventually(condition: Callable[[], Any], *, within_s: float = 15.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_plan_shows_it_with_the_reason_of_every_argument(optistack: Optistack, gated: Any) -> None:
    gated(gate=gate())
    plan = optistack("plan", "--json").json
    assert (plan["front"]["source"], plan["front"]["version"]) == ("gate", "2.0")
    shown = optistack("plan").out
    assert "Front  python -IS" in shown and "before 2 replicas" in shown
    assert "--replica {replica.url}" in shown and "because" in shown
    assert "gate" in optistack("explain", "--admin-port").out


def test_it_is_started_before_its_replicas_and_is_the_one_address(optistack: Optistack, gated: Any) -> None:
    gated(gate=gate())
    ran = optistack("apply", "--json")
    assert ran.code == 0, ran.err
    (address,) = ran.json["endpoints"]
    told = httpx.get(address, trust_env=False).json()
    folder = find("tiny").folder.path
    processes = {p["name"]: p for p in optistack("status", "--json").json["deployments"][0]["processes"]}
    assert list(processes) == ["replica-0", "replica-1", "gate"]
    assert told["replicas"] == [processes[name]["url"] for name in ("replica-0", "replica-1")]
    lines = [f"{url} in {folder}/replica-{n}" for n, url in enumerate(told["replicas"])]
    assert told["file"].splitlines() == ["head", *lines]
    receipts = ran.json["receipts"]
    assert [(receipt["replica"], receipt["backend"]) for receipt in receipts][-1] == (None, "gate")
    assert [result["status"] for result in receipts[-1]["results"]] == ["pass"]
    assert optistack("down").out == "Stopped tiny.\n"


def test_the_port_of_the_stack_is_the_fronts(optistack: Optistack, gated: Any, unused_port: int) -> None:
    gated(gate=gate())
    ran = optistack("apply", "--set", f"serving.port={unused_port}", "--json")
    assert ran.json["endpoints"] == [f"http://127.0.0.1:{unused_port}"]


@pytest.fixture
def unused_port() -> int:
    from optistack.apply.ports import free_port

    return free_port()


def test_a_replica_that_dies_is_reported_and_the_rest_goes_on_until_the_last(optistack: Optistack, gated: Any) -> None:
    gated(gate=gate())
    assert optistack("apply").code == 0
    first, second = (p.process for p in find("tiny").state.processes[:2])
    assert first is not None and second is not None
    os.kill(first.pid, signal.SIGKILL)
    assert eventually(lambda: find("tiny").state.processes[0].reason)
    status = optistack("status", "--json").json["deployments"][0]
    assert (status["phase"], status["processes"][0]["exit_code"], status["processes"][0]["pid"]) == ("ready", -9, None)
    assert "without replica-0: it was killed (SIGKILL)" in optistack("status").out.replace("\n", " ")
    assert httpx.get(status["endpoints"][0], trust_env=False).json()["up"] == [False, True]
    assert identify(first.pid) is None  # it is not started again
    os.kill(second.pid, signal.SIGKILL)
    assert eventually(lambda: find("tiny").state.phase == "failed")
    assert "replica-1 stopped working" in find("tiny").state.reason


def test_a_lock_file_keeps_it(optistack: Optistack, gated: Any, home: Path) -> None:
    gated(gate=gate())
    assert optistack("plan", "--lock", "plan.lock").code == 0
    ran = optistack("apply", "--lock", "plan.lock", "--json")
    assert ran.code == 0, ran.err
    assert len(ran.json["endpoints"]) == 1


def test_a_wish_that_nobody_fulfils_is_refused(optistack: Optistack, gated: Any) -> None:
    gated(gate=gate(brings=False))
    ran = optistack("plan")
    assert (ran.code, "gate asks for a front" in ran.err) == (2, True)


def test_two_fronts_are_refused_by_name(optistack: Optistack, gated: Any) -> None:
    gated(gate=gate(), door=gate("door"))
    ran = optistack("plan")
    assert (ran.code, "Two plugins want to stand before the replicas: door and gate" in ran.err) == (2, True)


def test_a_socket_whose_path_is_too_long_is_refused_before_anything_starts(optistack: Optistack, gated: Any) -> None:
    small_gate = gate()

    @hookimpl
    def optistack_route(ctx: Any) -> Routing:
        argument = EngineArgument(backend="small", name="--events", value=f"ipc://{{folder}}/{'x' * 100}", why="a test")
        return Routing(front=choose(True, why="a test"), arguments=(argument,))

    vars(small_gate).update(optistack_route=optistack_route)
    gated(gate=small_gate)
    ran = optistack("apply")
    assert (ran.code, "XDG_STATE_HOME" in ran.err) == (2, True)


def test_a_front_may_not_be_called_as_a_replica(optistack: Optistack, gated: Any) -> None:
    gated(gate=gate(process="replica-0"))
    assert optistack("plan").code == 2
