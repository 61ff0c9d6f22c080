"""``--stack``: the baseline and every stack are up one after the other, and down again whatever happens."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.conftest import Engine, Script

from optistack.cli.options import Choice
from optistack.engines.progress import SILENT
from optistack.errors import EngineStartError, InputError, PlanRefusedError
from optistack_bench import on_stack
from optistack_bench.client import Answer
from optistack_bench.load import Loop, Player, server_of
from optistack_bench.result import Result, load_result
from optistack_bench.settings import Settings
from optistack_bench.workload import Session, Turn, Workload

SETTINGS = Settings(domains=("made",), sessions=2, turns=1, repeats=2, warmup=0, think_limit_s=0)


@dataclass
class Machine:
    """Stands in for planning and starting: a deployment is a scripted engine, by the plugins that are in its plan."""

    scripts: dict[tuple[str, ...], Script | str]
    replicas: int = 1
    events: list[str] = field(default_factory=list)
    sessions: list[list[str | None]] = field(default_factory=list)
    """Of each engine that was up, in order."""
    checks: list[tuple[str, int]] = field(default_factory=list)
    """Plans that were asked whether they can be started, and how many engines had been started by then."""
    lacks: dict[tuple[str, int], str] = field(default_factory=dict)
    """Of a plan, at its check of this number, from 1: why it cannot be started."""

    def plan(self, choice: Choice, *_: object, **__: object) -> Any:
        plugins = tuple(name for name in ("kv-fp8", "dflash") if name not in choice.without)
        return SimpleNamespace(
            python="python",
            host=None,
            engine_env={},
            plan=SimpleNamespace(
                plugins=[SimpleNamespace(name=name) for name in plugins],
                launches=(None,) * self.replicas,
                front=None,
                share=SimpleNamespace(gpus=0),
                budget=SimpleNamespace(kv_tokens=1000),
                hash=lambda: "-".join(plugins),
            ),
        )

    def check(self, plan: Any, host: object, python: str) -> None:
        self.checks.append((plan.hash(), sum(event.startswith("up") for event in self.events)))
        number = [name for name, _ in self.checks].count(plan.hash())
        if (why := self.lacks.get((plan.hash(), number))) is not None:
            raise PlanRefusedError(why)

    @contextmanager
    def attached(self, spec: tuple[str, ...], *, on_progress: object) -> Iterator[Any]:
        script = self.scripts[spec]
        if isinstance(script, str):
            raise EngineStartError(script)
        with ExitStack() as stack:
            engines = [stack.enter_context(Engine(script)) for _ in range(self.replicas)]
            self.events.append(f"up {spec}")
            processes = tuple(SimpleNamespace(url=engine.url) for engine in engines)
            spec_ = SimpleNamespace(processes=processes, endpoints=tuple(engine.url for engine in engines))
            try:
                yield SimpleNamespace(deployment=SimpleNamespace(spec=spec_))
            finally:
                self.sessions += [engine.sessions for engine in engines]
                self.events.append(f"down {spec}")


def measure(machine: Machine, monkeypatch: pytest.MonkeyPatch, out: Path | None = None, *names: str) -> Result:
    monkeypatch.setattr(on_stack, "from_stack", machine.plan)
    monkeypatch.setattr(on_stack, "attached", machine.attached)
    monkeypatch.setattr(on_stack, "deployment_of", lambda plan, *_: tuple(use.name for use in plan.plugins))
    monkeypatch.setattr(on_stack, "check_start", machine.check)
    return on_stack.run_stacks(
        [Choice(stack=Path(f"{name}.yaml")) for name in names or ("mine",)],
        SETTINGS,
        [Loop(users=1), Loop(users=2)],
        baseline=True,
        allow_degraded=False,
        out=out,
        progress=SILENT,
    )


BOTH = ("kv-fp8", "dflash")


def test_baseline_and_stack_are_measured_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine({(): Script(), BOTH: Script()})
    result = measure(machine, monkeypatch)
    assert machine.events == ["up ()", "down ()", f"up {BOTH}", f"down {BOTH}"]
    assert result.exit_code == 0
    assert [(point.target, point.users) for point in result.points] == [
        ("baseline", 1), ("baseline", 2), ("mine", 1), ("mine", 2),
    ]  # fmt: skip
    assert [point.server.plan_hash for point in result.points] == ["", "", "kv-fp8-dflash", "kv-fp8-dflash"]
    digests = [point.workload.digest for point in result.points]
    assert digests[:2] == digests[2:], "both are sent the same"


def test_a_stack_that_does_not_start_leaves_the_baseline_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine({(): Script(), BOTH: "out of memory"})
    result = measure(machine, monkeypatch, tmp_path)
    assert machine.events == ["up ()", "down ()"]
    assert (result.state, result.why, result.exit_code) == ("partial", "out of memory", 1)
    assert {point.target for point in load_result(tmp_path).points} == {"baseline"}


def test_every_plan_is_held_against_the_machine_first_and_again_before_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine({(): Script(), BOTH: Script()})
    measure(machine, monkeypatch)
    assert machine.checks == [("", 0), ("kv-fp8-dflash", 0), ("", 0), ("kv-fp8-dflash", 1)]
    machine = Machine({(): Script(), BOTH: Script()}, lacks={("kv-fp8-dflash", 1): "The disk is full."})
    with pytest.raises(PlanRefusedError, match="The disk is full"):
        measure(machine, monkeypatch)
    assert machine.events == [], "no baseline is measured for a stack that cannot start"


def test_a_stack_that_can_no_longer_be_started_leaves_the_baseline_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine({(): Script(), BOTH: Script()}, lacks={("kv-fp8-dflash", 2): "The disk is full."})
    result = measure(machine, monkeypatch, tmp_path)
    assert machine.events == ["up ()", "down ()"]
    assert (result.state, result.why) == ("partial", "The disk is full.")


def test_an_engine_that_dies_is_taken_down_and_the_rest_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine({(): Script(dies_at=3), BOTH: Script()})
    result = measure(machine, monkeypatch)
    assert machine.events == ["up ()", "down ()"]
    assert (result.state, result.exit_code) == ("partial", 1)


def test_replicas_without_a_router_share_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine({(): Script(), BOTH: Script()}, replicas=2)
    monkeypatch.setattr(f"{__name__}.SETTINGS", dataclasses.replace(SETTINGS, sessions=4, turns=2, warmup=1))
    result = measure(machine, monkeypatch)
    assert result.exit_code == 0
    assert all(names for names in machine.sessions)
    one, two = result.points[:2]
    assert (one.server.gpus, one.server.planned_kv_tokens) == (2, 2000)
    assert "2 replicas without a router: users, and sessions of an open loop, take turns" in " ".join(
        one.workload.rules
    )
    for point in (one, two):
        figures = point.repeats[0].figures
        assert figures["requests"] == 8
        assert figures["hit_rate_usage"] == figures["hit_rate_engine"], "the counters of both are read"


class Replica:
    """Stands in for a client: an answer takes ``answer_s``; ``most`` is how many requests it had at once."""

    def __init__(self, answer_s: float) -> None:
        self.url, self.answer_s = "", answer_s
        self.flying = self.most = 0
        self.sessions: list[str] = []

    async def ask(self, prompt: bytes, *, max_tokens: int, session: str) -> Answer:
        self.sessions.append(session)
        self.flying += 1
        self.most = max(self.most, self.flying)
        sent_s = perf_counter()
        await asyncio.sleep(self.answer_s)
        self.flying -= 1
        return Answer(sent_s, perf_counter(), chunks_s=[perf_counter()])

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("users", [2, 4])
def test_a_user_of_a_closed_loop_stays_on_a_replica(users: int) -> None:
    async def alive(url: str) -> str:
        return ""

    replicas = [Replica(0.001), Replica(0.02)]
    turns = (Turn((), 1), Turn((), 1))
    workload = Workload("w", tuple(Session(f"session-{at}", "code", turns) for at in range(12)), ())
    clients: Any = replicas
    player = Player(clients, Loop(users=users), seed=0, on_record=lambda record: None, alive=alive)
    assert len(asyncio.run(player.play(workload)).records) == 24
    assert [one.most for one in replicas] == [users // 2, users // 2]
    fast, slow = (set(one.sessions) for one in replicas)
    assert not fast & slow and len(fast) > len(slow), "the faster one is not held up by the other"


def test_a_replica_that_dies_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine({(): Script(dies_at=3), BOTH: Script()}, replicas=2)
    monkeypatch.setattr(f"{__name__}.SETTINGS", dataclasses.replace(SETTINGS, sessions=8))
    result = measure(machine, monkeypatch)
    assert (result.state, machine.events) == ("partial", ["up ()", "down ()"])
    assert "No engine answers" in result.why


@given(st.integers(1, 9), st.integers(0, 20))
def test_every_replica_gets_as_many_sessions_and_none_a_domain_alone(servers: int, rounds: int) -> None:
    sent = [server_of(number, servers) for number in range(rounds * servers)]
    assert [sent.count(server) for server in range(servers)] == [rounds] * servers
    if rounds >= servers > 1:
        of_one_domain = [server_of(number, servers) for number in range(0, rounds * servers * 2, 2)]
        assert set(of_one_domain) == set(range(servers))


def test_two_stacks_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="Two things are called"):
        measure(Machine({}), monkeypatch, None, "a", "a")
