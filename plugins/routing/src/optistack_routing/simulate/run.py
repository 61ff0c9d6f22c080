"""The simulation: events in order of time, the router's ledger in the middle."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from optistack.errors import InputError
from optistack_routing.policy.base import Choice, Policy, Reason, Request, Usage
from optistack_routing.policy.ledger import Ledger
from optistack_routing.simulate.engine import Engine, EngineModel
from optistack_routing.simulate.loads import Loads
from optistack_routing.simulate.result import MISS_TOKENS, Result, Tally, summarise
from optistack_routing.simulate.session import Flight, Stream
from optistack_routing.simulate.workload import Script, Workload

RETRY_S = 0.1
NEW_REPLICA_S = 60.0

_MOVES = {
    Reason.SPILLED: "moved by spill",
    Reason.SPLIT: "split",
    Reason.REHOMED: "rehomed",
    Reason.FAILED_OVER: "replica gone",
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """``sessions``  kept running; None for as many as put about ``target`` requests on a replica
    ``turns``     to measure, after ``warmup_s`` of which sessions start during the first half
    ``joins``     replicas that join ``change_s`` after the warm-up; ``drains``, those that are then drained
    """

    replicas: int = 50
    target: float = 5.0
    sessions: int | None = None
    turns: int = 20_000
    warmup_s: float = 400.0
    joins: int = 0
    drains: int = 0
    change_s: float = 60.0
    engine: EngineModel = field(default_factory=EngineModel)


def run(
    policy: Policy,
    workload: Workload,
    scenario: Scenario,
    *,
    name: str = "",
    seed: int = 0,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Result:
    """Replay ``workload`` under ``policy``. The same arguments give the same result, ``decision_us`` apart.

    ``on_progress`` is told every simulated second how far it is."""
    if scenario.replicas < 1 or scenario.turns < 1:
        raise InputError("A simulation needs a replica and a turn at least.", fix="Give larger numbers.")
    if scenario.drains >= scenario.replicas + scenario.joins:
        raise InputError("All replicas would be drained.", fix="Drain fewer.")
    return _Simulation(policy, workload, scenario, seed, on_progress).run(name or type(policy).__name__)


def population(workload: Workload, scenario: Scenario) -> int:
    """Sessions that put about ``target`` requests on each replica if each turn finds its prefix (Little's law)."""
    model = scenario.engine
    busy_s = paused_s = 0.0
    for script in workload.scripts:
        for number, turn in enumerate(script.turns):
            new = turn.prompt_tokens - (turn.shared_tokens if number else 0)
            decode_s = model.decode_s(turn.output_tokens, round(scenario.target))
            busy_s += new / model.prefill_tokens_per_s + model.overhead_s + decode_s
            paused_s += turn.think_s
    duty = busy_s / (busy_s + paused_s)
    width = 1 + workload.wide_share * (workload.width - 1)
    return max(1, round(scenario.replicas * scenario.target / (duty * width)))


class _Simulation:
    def __init__(
        self,
        policy: Policy,
        workload: Workload,
        scenario: Scenario,
        seed: int,
        on_progress: Callable[[str], None],
    ) -> None:
        self.on_progress = on_progress
        self.policy, self.workload, self.scenario, self.seed = policy, workload, scenario, seed
        self.random = Random(seed)
        self.ledger = Ledger(policy)
        self.tally = Tally()
        self.loads = Loads(self.tally, scenario.warmup_s)
        self.engines: dict[str, Engine] = {}
        self.events: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self.sequence = 0
        self.started = 0
        self.now_s = 0.0

    def run(self, name: str) -> Result:
        scenario = self.scenario
        for _ in range(scenario.replicas):
            self._join()
        sessions = scenario.sessions or population(self.workload, scenario)
        for _ in range(sessions):
            script, width, number = self.workload.draw_running(self.random)
            self._at(self.random.uniform(0, scenario.warmup_s / 2), self._open, script, width, number)
        if scenario.joins or scenario.drains:
            self._at(scenario.warmup_s + scenario.change_s, self._change)
        self._at(1.0, self._tick)
        while self.tally.turns < scenario.turns:
            self.now_s, _, act, arguments = heapq.heappop(self.events)
            act(*arguments)
        self.loads.close(self.now_s)
        return summarise(
            self.tally,
            policy=name,
            replicas=scenario.replicas,
            sessions=sessions,
            seed=self.seed,
            homes=self.policy.sessions(),
        )

    def _at(self, at_s: float, act: Callable[..., None], *arguments: object) -> None:
        self.sequence += 1
        heapq.heappush(self.events, (at_s, self.sequence, act, arguments))

    def _tick(self) -> None:
        self.policy.expire(self.now_s)
        self.on_progress(f"{self.now_s:,.0f} s simulated, {self.tally.turns:,} of {self.scenario.turns:,} turns")
        self._at(self.now_s + 1.0, self._tick)

    def _join(self) -> None:
        index = self.loads.join(self.now_s)
        name = f"replica-{index}"
        self.engines[name] = Engine(self.scenario.engine, self.ledger.join(name, self.now_s), index)

    def _change(self) -> None:
        for _ in range(self.scenario.joins):
            self._join()
        for engine in list(self.engines.values())[: self.scenario.drains]:
            engine.replica.accepts = False
            self.loads.leave(engine.index, self.now_s)

    # sessions

    def _open(self, script: Script, width: int = 1, number: int = 0, parent: Stream | None = None) -> None:
        self.started += 1
        stream = Stream(f"session-{self.seed}-{self.started}", script, width, number, number, parent=parent)
        self._turn(stream)

    def _turn(self, stream: Stream) -> None:
        turn = stream.script.turns[stream.number]
        stream.open += stream.width + len(turn.forks)
        for copy in range(stream.width):
            self._send(stream, copy, self.now_s)
        for fork in turn.forks:
            self._open(fork, parent=stream)

    def _closed(self, stream: Stream) -> None:
        """One of what the stream's turn waited for is over."""
        stream.open -= 1
        if stream.open:
            return
        stream.number += 1
        if stream.number < len(stream.script.turns):
            self._at(self.now_s + stream.script.turns[stream.number].think_s, self._turn, stream)
            return
        self.policy.finish_session(stream.name)
        if stream.parent is not None:
            self._closed(stream.parent)
        else:
            self._open(*self.workload.draw(self.random))

    # requests

    def _send(self, stream: Stream, copy: int, arrived_s: float) -> None:
        turn = stream.script.turns[stream.number]
        before = time.process_time()
        lease = self.ledger.place(Request(stream.name, turn.prompt_tokens), self.now_s)
        self.tally.decision_s += time.process_time() - before
        self.tally.decisions += 1
        if lease is None:
            self.tally.unroutable += 1
            self._at(self.now_s + RETRY_S, self._send, stream, copy, arrived_s)
            return
        engine = self.engines[lease.replica.name]
        self.loads.change(engine.index, 1, self.now_s)
        flight = Flight(stream, turn, stream.number, copy, lease, engine, arrived_s)
        if engine.waiting or not engine.has_room(flight):
            engine.waiting.append(flight)
        else:
            self._start(flight)

    def _start(self, flight: Flight) -> None:
        self._at(flight.engine.start(flight, self.now_s), self._first, flight)
        if self.now_s >= self.scenario.warmup_s:
            self._account(flight)
        stream, index = flight.stream, flight.engine.index
        stream.served_on[index] = max(flight.number, stream.served_on.get(index, 0))

    def _first(self, flight: Flight) -> None:
        flight.lease.first_byte()
        if flight.arrived_s >= self.scenario.warmup_s:
            self.tally.ttfts_s.append(self.now_s - flight.arrived_s)
        model = self.scenario.engine
        self._at(self.now_s + model.decode_s(flight.turn.output_tokens, flight.engine.running), self._end, flight)

    def _end(self, flight: Flight) -> None:
        engine = flight.engine
        engine.end(flight)
        self.loads.change(engine.index, -1, self.now_s)
        usage = Usage(flight.turn.prompt_tokens, flight.cached_tokens, flight.turn.output_tokens)
        flight.lease.end(self.now_s, served=True, usage=usage)
        while engine.waiting and engine.has_room(engine.waiting[0]):
            self._start(engine.waiting.popleft())
        self._closed(flight.stream)

    def _account(self, flight: Flight) -> None:
        tally, stream, turn = self.tally, flight.stream, flight.turn
        choice = flight.lease.choice
        new = stream.new_tokens() if flight.copy == 0 else 0
        again = max(0, turn.prompt_tokens - flight.cached_tokens - new)
        tally.turns += 1
        tally.prompt_tokens += turn.prompt_tokens
        tally.cached_tokens += flight.cached_tokens
        tally.new_tokens += new
        tally.reasons[choice.reason] = tally.reasons.get(choice.reason, 0) + 1
        if flight.number == stream.first_turn and flight.copy == 0:
            tally.reasons["first_turn"] = tally.reasons.get("first_turn", 0) + 1
        if stream.served_on and flight.engine.index not in self._latest(stream):
            tally.moved += 1
        if again:
            self._blame(flight, choice, again)

    @staticmethod
    def _latest(stream: Stream) -> list[int]:
        newest = max(stream.served_on.values())
        return [index for index, number in stream.served_on.items() if number == newest]

    def _blame(self, flight: Flight, choice: Choice, again: int) -> None:
        """Count the tokens that are computed again under what has lost them."""
        stream = flight.stream
        counts = again >= MISS_TOKENS
        last = stream.served_on.get(flight.engine.index)
        if last is None:
            young = self.now_s - flight.engine.replica.joined_s < NEW_REPLICA_S and self.now_s > NEW_REPLICA_S
            cause = "new replica" if young else _MOVES.get(choice.reason, "placed anew")
            self.tally.miss(cause, again, counts=counts)
            return
        had = min(stream.common_tokens(last, flight.number), flight.turn.prompt_tokens)
        evicted = min(again, max(0, had - flight.cached_tokens))
        stale = again - evicted
        if evicted:
            self.tally.miss("evicted", evicted, counts=counts and evicted >= stale)
        if stale:
            self.tally.miss("stale home", stale, counts=counts and stale > evicted)
