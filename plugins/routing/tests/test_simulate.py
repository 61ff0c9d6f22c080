"""The simulator: its arithmetic, its engine, its reader, and what it says of the policies."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from optistack.errors import InputError
from optistack_routing.policy.base import Replica, Request
from optistack_routing.policy.factory import POLICIES, make_policy
from optistack_routing.policy.hashing import first
from optistack_routing.policy.ledger import Ledger
from optistack_routing.policy.parameters import Parameters
from optistack_routing.simulate.cli import simulate
from optistack_routing.simulate.engine import Engine, EngineModel
from optistack_routing.simulate.peers import PEERS
from optistack_routing.simulate.result import Result
from optistack_routing.simulate.run import Scenario, run
from optistack_routing.simulate.session import Flight, Stream
from optistack_routing.simulate.traces import read_trace
from optistack_routing.simulate.uniform import at_least, at_most, poisson
from optistack_routing.simulate.workload import Script, Turn, Workload, synthetic

SMALL = Scenario(replicas=8, turns=1500, warmup_s=200.0)
WORK = synthetic(Random(3), 24)


def result_of(name: str, scenario: Scenario = SMALL, workload: Workload = WORK, seed: int = 0) -> Result:
    pool = scenario.engine.kv_tokens
    policy = make_policy(name, Parameters(kv_tokens=pool), seed) if name in POLICIES else PEERS[name].make()
    return run(policy, workload, scenario, name=name, seed=seed)


class TestUniformHashing:
    @pytest.mark.parametrize("scale", [1, 10])
    def test_five_sessions_a_replica_leave_some_idle_and_some_with_twelve(self, scale: int) -> None:
        assert 3.9 <= round(100 * at_most(250 * scale, 50 * scale, 1), 1) <= 4.0
        assert 0.50 <= round(100 * at_least(250 * scale, 50 * scale, 12), 2) <= 0.55

    @pytest.mark.parametrize(("scale", "rounds"), [(1, 120), (10, 6)])
    def test_the_hash_of_the_router_does_the_same(self, scale: int, rounds: int) -> None:
        replicas = [Replica(f"r{number}") for number in range(50 * scale)]
        few = many = 0
        for number in range(rounds):
            counts = dict.fromkeys((replica.name for replica in replicas), 0)
            for session in range(250 * scale):
                counts[first(f"{number}-{session}", replicas).name] += 1
            few += sum(count <= 1 for count in counts.values())
            many += sum(count >= 12 for count in counts.values())
        trials = rounds * len(replicas)
        for seen, share in (
            (few, at_most(250 * scale, 50 * scale, 1)),
            (many, at_least(250 * scale, 50 * scale, 12)),
        ):
            assert seen / trials == pytest.approx(share, abs=3 * (share / trials) ** 0.5)

    def test_poisson_is_what_many_sessions_come_to(self) -> None:
        for count in range(15):
            binomial = at_most(50_000, 10_000, count) - at_most(50_000, 10_000, count - 1)
            assert binomial == pytest.approx(poisson(5.0, count), abs=1e-4)


class TestEngine:
    MODEL = EngineModel(prefill_tokens_per_s=1000.0, overhead_s=0.0, kv_tokens=10_000, max_running=2)

    def flight(self, engine: Engine, stream: Stream, number: int) -> Flight:
        ledger = Ledger(make_policy("random"))
        turn = stream.script.turns[number]
        ledger.fleet.replicas[engine.replica.name] = engine.replica
        lease = ledger.place(Request(stream.name, turn.prompt_tokens), 0.0)
        assert lease is not None
        return Flight(stream, turn, number, 0, lease, engine, 0.0)

    def stream(self, name: str, *prompts: tuple[int, int]) -> Stream:
        return Stream(name, Script(tuple(Turn(prompt, shared, 100, 1.0) for prompt, shared in prompts)))

    def test_a_prefix_is_found_up_to_where_the_prompts_part(self) -> None:
        engine = Engine(self.MODEL, Replica("r"), 0)
        stream = self.stream("s", (4000, 0), (5000, 4000), (5000, 3000))
        first_turn, second, third = (self.flight(engine, stream, number) for number in range(3))
        assert engine.start(first_turn, 0.0) == 4.0
        engine.end(first_turn)
        assert engine.start(third, 10.0) == 12.0
        assert third.cached_tokens == 3000
        engine.end(third)
        assert engine.start(second, 20.0) == 22.0, "an older turn has no more in common with it"

    def test_prefills_queue_and_the_least_recently_used_prefix_goes_first(self) -> None:
        engine = Engine(self.MODEL, Replica("r"), 0)
        a, b, c = (self.stream(name, (4000, 0), (4000, 4000)) for name in "abc")
        for stream in (a, b):
            flight = self.flight(engine, stream, 0)
            engine.start(flight, 0.0)
            engine.end(flight)
        flight = self.flight(engine, c, 0)
        assert engine.start(flight, 0.0) == 12.0, "behind the two others"
        again = self.flight(engine, a, 1)
        engine.start(again, 20.0)
        assert again.cached_tokens == 2000, "its end has made room"
        assert engine.held_tokens <= 10_000

    def test_a_request_waits_for_room(self) -> None:
        engine = Engine(self.MODEL, Replica("r"), 0)
        a, b = self.stream("a", (8000, 0)), self.stream("b", (4000, 0))
        assert engine.has_room(self.flight(engine, a, 0))
        engine.start(self.flight(engine, a, 0), 0.0)
        assert not engine.has_room(self.flight(engine, b, 0))
        assert engine.replica.kv_utilisation == 0.8


class TestTraces:
    def line(self, **changed: Any) -> dict[str, Any]:
        request = {"type": "n", "in": 200, "out": 10, "hash_ids": [1, 2, 3, 4], "think_time": 0.0}
        after = {"type": "n", "in": 210, "out": 0, "hash_ids": [1, 2, 9, 10], "think_time": 500.0}
        agent = {"type": "subagent", "requests": [request]}
        return {"id": "x", "block_size": 64, "requests": [request, agent, after]} | changed

    def test_turns_share_blocks_pauses_are_cut_and_sub_agents_nest(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl.gz"
        path.write_bytes(gzip.compress(json.dumps(self.line()).encode()))
        (script,) = read_trace(path, think_limit_s=30.0).scripts
        start, after = script.turns
        assert (start.shared_tokens, after.shared_tokens) == (0, 128)
        assert (after.think_s, after.output_tokens) == (30.0, 1)
        assert len(after.forks) == 1
        assert script.requests() == 3

    def test_broken_lines_are_named_and_skipped(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl"
        bad_number = self.line(requests=[{"in": "many", "out": 1, "hash_ids": []}])
        rows = [json.dumps(self.line()), '{"id": ', "[]", json.dumps(bad_number), json.dumps(self.line(requests=[]))]
        path.write_text("\n".join(rows))
        trace = read_trace(path)
        assert len(trace.scripts) == 1
        assert [line.split(":")[0] for line in trace.skipped] == ["line 2", "line 3", "line 4", "line 5"]
        assert 'request 1 has no number "in"' in trace.skipped[2]

    @pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe"])
    def test_a_file_without_a_session_is_an_error_with_a_fix(self, tmp_path: Path, content: bytes) -> None:
        path = tmp_path / "t.jsonl"
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"t\.jsonl"):
            read_trace(path)

    def test_a_truncated_archive_and_a_missing_file_are_errors(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jsonl.gz"
        path.write_bytes(gzip.compress(b"x" * 5000)[:-12])
        with pytest.raises(InputError, match="cannot be read"):
            read_trace(path)
        with pytest.raises(InputError, match=r"cannot be read: No such file or directory\."):
            read_trace(tmp_path / "none.jsonl")


class TestRun:
    def test_the_same_seed_gives_the_same_result(self) -> None:
        one, two = (replace(result_of("kv-aware"), decision_us=0.0) for _ in range(2))
        assert one == two
        assert one != replace(result_of("kv-aware", seed=1), decision_us=0.0)

    @pytest.mark.parametrize("name", [*POLICIES, *PEERS])
    def test_every_token_is_accounted_for(self, name: str) -> None:
        policy = make_policy(name, Parameters()) if name in POLICIES else PEERS[name].make()
        result = run(policy, replace(WORK, wide_share=0.1), replace(SMALL, turns=600), name=name)
        assert sum(result.in_flight_share.values()) == pytest.approx(1.0)
        assert sum(result.cold_tokens.values()) == result.recomputed_tokens
        assert sum(result.reasons.values()) == result.turns >= 600
        mean = sum(load * share for load, share in result.in_flight_share.items())
        assert mean == pytest.approx(result.mean_in_flight, rel=1e-6)
        assert result.ttft_p50_s <= result.ttft_p95_s <= result.ttft_p99_s
        assert result.unroutable == 0

    def test_the_policies_come_out_as_they_are_meant(self) -> None:
        ours, pinned, even = (result_of(name) for name in ("kv-aware", "consistent-hash", "least-running"))
        assert ours.variance_over_mean < 0.5 < pinned.variance_over_mean
        assert even.variance_over_mean < 0.2
        assert ours.recomputed_per_turn < even.recomputed_per_turn / 5
        assert ours.hit_rate > 0.85 > even.hit_rate

    def test_wide_sessions_are_split(self) -> None:
        wide = replace(WORK, wide_share=0.05)
        ours, pinned = (result_of(name, workload=wide) for name in ("kv-aware", "sticky-least-sessions"))
        assert ours.variance_over_mean < pinned.variance_over_mean
        assert ours.reasons.get("split", 0) > 0

    def test_more_replicas_move_no_session_and_drained_ones_lose_all(self) -> None:
        grown = result_of("kv-aware", replace(SMALL, joins=2))
        assert grown.cold_prefills.get("new replica", 0) < 0.05 * grown.turns
        shrunk = result_of("kv-aware", replace(SMALL, drains=2, turns=3000))
        assert shrunk.reasons.get("failed_over", 0) > 0

    def test_impossible_scenarios_are_refused(self) -> None:
        with pytest.raises(InputError, match="drained"):
            result_of("random", replace(SMALL, drains=8))
        with pytest.raises(InputError, match="a replica"):
            result_of("random", replace(SMALL, replicas=0))


def test_it_says_how_far_it_is() -> None:
    said: list[str] = []
    pool = SMALL.engine.kv_tokens
    run(make_policy("random", Parameters(kv_tokens=pool), 0), WORK, SMALL, on_progress=said.append)
    assert said[0] == "1 s simulated, 0 of 1,500 turns"
    assert len(said) > 200


class TestCommand:
    def invoke(self, *arguments: str) -> Any:
        app = typer.Typer()
        app.command()(simulate)
        return CliRunner().invoke(app, ["--replicas", "4", "--turns", "200", *arguments])

    def test_it_prints_a_line_a_policy_and_the_causes(self) -> None:
        done = self.invoke("--policy", "kv-aware", "--policy", "random")
        assert done.exit_code == 0
        assert [line.split()[0].rstrip(":") for line in done.stdout.splitlines()[1:]] == ["kv-aware", "random"] * 2

    def test_json_and_picture(self, tmp_path: Path) -> None:
        trace = tmp_path / "t.jsonl"
        requests = [{"in": 6400 + 640 * n, "out": 50, "hash_ids": list(range(100 + 10 * n))} for n in range(20)]
        trace.write_text(json.dumps({"requests": requests}) + "\nbroken\n")
        picture = tmp_path / "loads.png"
        picture.symlink_to("drawn.png")
        done = self.invoke("--trace", str(trace), "--json", "--plot", str(picture))
        assert done.exit_code == 0
        said = json.loads(done.stdout)
        assert said["results"][0]["turns"] >= 200
        assert said["skipped"] == ["line 2: not JSON (Expecting value at column 1)"]
        assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")
        assert picture.is_symlink()

    def test_a_trace_of_single_requests_says_that_it_tells_nothing(self, tmp_path: Path) -> None:
        trace = tmp_path / "t.jsonl"
        row = {"timestamp": 0, "input_length": 4000, "output_length": 100, "hash_ids": [1]}
        trace.write_text(json.dumps(row) + "\n")
        done = self.invoke("--trace", str(trace), "--turns", "1")
        _, figures, _, sentence = done.stdout.splitlines()
        assert figures.split()[3:] == ["-"] * 6
        assert sentence.startswith("kv-aware: no turn follows another of its session")
        said = json.loads(self.invoke("--trace", str(trace), "--turns", "1", "--json").stdout)
        assert said["results"][0]["ttft_p50_s"] is None

    def test_sizes_of_no_fleet_are_refused(self) -> None:
        done = self.invoke("--replicas", "100000")
        assert (done.exit_code, "10000" in done.output) == (2, True)

    def test_a_wrong_policy_is_an_error_with_the_nearest(self) -> None:
        done = self.invoke("--policy", "kv-awar")
        assert isinstance(done.exception, InputError)
        assert "kv-aware" in done.exception.fix
