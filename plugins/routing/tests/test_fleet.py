"""Which replicas are used: health, circuits, draining, sources; and what the admin side says of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from plugins.routing.tests.rig import MockReplica, answer_ok, play, post, rig

from optistack_routing.fleet.circuit import Breaker, Circuit
from optistack_routing.fleet.roster import Health
from optistack_routing.fleet.scrape import read_utilisation
from optistack_routing.policy.parameters import Parameters


async def hang(replica, heard, reader, writer) -> None:
    await reader.read()
    raise ConnectionError


async def reset(replica, heard, reader, writer) -> None:
    writer.transport.abort()
    raise ConnectionError


def test_a_breaker_opens_tries_one_request_and_closes() -> None:
    breaker = Breaker(failures=2, open_s=1.0, longest_s=3.0)
    breaker.failed(0.0, trial=False)
    breaker.succeeded()
    breaker.failed(0.0, trial=False)
    assert breaker.accepts
    breaker.failed(0.0, trial=False)
    assert (breaker.state, breaker.accepts) == (Circuit.OPEN, False)
    breaker.succeeded()  # an old request's answer does not close it
    breaker.tick(0.9)
    assert not breaker.accepts
    breaker.tick(1.0)
    assert breaker.accepts
    assert breaker.sent()
    assert not breaker.accepts
    breaker.failed(1.0, trial=True)
    breaker.tick(2.5)
    assert breaker.state is Circuit.OPEN  # twice as long
    breaker.tick(3.0)
    assert breaker.sent()
    breaker.undecided(trial=True)  # its client left
    assert breaker.accepts and breaker.sent()
    breaker.succeeded()
    assert (breaker.state, breaker.in_a_row) == (Circuit.CLOSED, 0)


def test_a_failing_replica_is_left_alone_and_tried_again() -> None:
    async def scenario() -> None:
        async with rig(reset, answer_ok, policy="round-robin", breaker_open_s=0.05, health_every_s=1000) as r:
            for _ in range(10):
                assert (await r.ask())[0] == 200
            bad = r.control.roster.members[r.replicas[0].url]
            assert bad.breaker.state is not Circuit.CLOSED
            tried = len(r.replicas[0].heard)
            assert tried <= 4
            r.replicas[0].script = answer_ok
            await r.until(lambda: bad.breaker.state is Circuit.HALF_OPEN)
            for _ in range(4):
                assert (await r.ask())[0] == 200
            assert bad.breaker.state is Circuit.CLOSED
            assert len(r.replicas[0].heard) > tried
            r.assert_quiet()

    play(scenario())


def test_half_open_lets_one_request_through_at_a_time() -> None:
    async def scenario() -> None:
        async with rig(reset, answer_ok, policy="round-robin", breaker_open_s=0.01, breaker_failures=1) as r:
            bad, member = r.replicas[0], r.control.roster.members[r.replicas[0].url]
            while member.breaker.state is Circuit.CLOSED:
                await r.ask()
            bad.script, bad.heard = hang, []
            await r.until(lambda: member.breaker.state is Circuit.HALF_OPEN)
            answers = [asyncio.ensure_future(r.ask()) for _ in range(10)]
            await r.until(lambda: sum(answer.done() for answer in answers) == 9)
            assert len(bad.heard) == 1
            await bad.die()
            await r.until(lambda: answers[0].done() and all(answer.done() for answer in answers))
            assert all(answer.result()[0] == 200 for answer in answers)
            r.assert_quiet()

    play(scenario())


def test_a_replica_that_fails_its_health_check_gets_nothing_and_keeps_what_it_has() -> None:
    async def scenario() -> None:
        async with rig(hang, answer_ok, health_every_s=0.02, policy="round-robin") as r:
            sick = r.replicas[0]
            clients = [await r.connect() for _ in range(2)]
            for client in clients:
                await client.say(post())
            await r.until(lambda: sick.heard)
            sick.healthy = False
            await r.until(lambda: r.control.roster.members[sick.url].health is Health.FAILING)
            for _ in range(4):
                assert (await r.ask())[0] == 200
            assert len(sick.heard) == 1
            assert r.control.roster.members[sick.url].out == 1
            assert r.control.ledger.fleet.get(sick.url) is not None  # its cache is still there
            sick.healthy = True
            await r.ready()

    play(scenario())


def test_requests_wait_for_a_replica_and_not_for_ever() -> None:
    async def scenario() -> None:
        async with rig(answer_ok, start=False, queue_s=0.1, queue_length=2, health_every_s=0.02) as r:
            r.replicas[0].healthy = False
            await r.until(lambda: r.control.roster.members[r.replicas[0].url].health is Health.FAILING)
            waiting = [asyncio.ensure_future(r.ask()) for _ in range(2)]
            await r.until(lambda: len(r.control.desk.waiting) == 2)
            assert (await r.ask())[0] == 503  # the queue is full
            gone = waiting.pop()
            gone.cancel()
            r.clients[1].leave()
            await r.until(lambda: len(r.control.desk.waiting) == 1)
            await r.until(waiting[0].done)
            status, head, _ = waiting[0].result()
            assert status == 503 and b"Retry-After: " in head
            late = asyncio.ensure_future(r.ask())
            await r.until(lambda: len(r.control.desk.waiting) == 1)
            r.replicas[0].healthy = True
            await r.until(late.done)
            assert late.result()[0] == 200
            r.assert_quiet()

    play(scenario())


def test_the_health_of_the_router_is_whether_it_can_serve() -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            client = await r.connect()
            await client.say(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await client.answer())[0] == 200
            await r.replicas[0].die()
            member = r.control.roster.members[r.replicas[0].url]
            r.control.probes.ask(member)
            await r.until(lambda: member.health is Health.DOWN)
            await client.say(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await client.answer())[0] == 503

    play(scenario())


PROMPT = b"x" * 400_000
"""100k tokens: so much KV is worth staying for."""


def test_adding_a_replica_moves_no_session() -> None:
    async def echo(replica, heard, reader, writer) -> None:
        name = str(replica.port).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(name), name))

    async def scenario() -> None:
        async with rig(echo, echo, echo) as r:
            homes = {str(n): (await r.ask(PROMPT, session=str(n)))[2] for n in range(60)}
            fresh = MockReplica(echo)
            await fresh.start()
            r.replicas.append(fresh)
            status, _, body = await r.admin("POST", "/replicas", json.dumps({"url": fresh.url}).encode())
            assert (status, json.loads(body)["source"]) == (200, "admin")
            await r.ready()
            for session, home in homes.items():
                assert (await r.ask(PROMPT, session=session))[2] == home
            assert not fresh.heard
            await asyncio.gather(*(r.ask(session=f"new{n}") for n in range(20)))
            assert fresh.heard

    play(scenario())


def test_drain_resume_and_remove_by_the_admin_side() -> None:
    async def scenario() -> None:
        async with rig(hang, answer_ok, policy="round-robin") as r:
            url = r.replicas[0].url
            body = json.dumps({"url": url}).encode()
            clients = [await r.connect() for _ in range(2)]
            for client in clients:
                await client.say(post())
            await r.until(lambda: r.replicas[0].heard)
            assert json.loads((await r.admin("POST", "/replicas/drain", body))[2])["draining"]
            for _ in range(4):
                assert (await r.ask())[0] == 200
            assert len(r.replicas[0].heard) == 1
            assert not json.loads((await r.admin("POST", "/replicas/resume", body))[2])["draining"]
            removed = json.loads((await r.admin("DELETE", f"/replicas?url={url}"))[2])
            assert (removed["leaving"], removed["left"]) == (True, False)  # it has a request
            for client in clients:
                client.leave()
            await r.until(lambda: len(r.control.roster.members) == 1)
            assert (await r.admin("DELETE", f"/replicas?url={url}"))[0] == 404
            gone = json.loads((await r.admin("DELETE", f"/replicas?url={r.replicas[1].url}&now=1"))[2])
            assert gone["left"]
            r.assert_quiet()

    play(scenario())


def test_a_session_can_be_finished() -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            await r.ask(session="mine")
            finish = b'{"session": "mine"}'
            assert json.loads((await r.admin("POST", "/sessions/finish", finish))[2]) == {"known": True}
            assert json.loads((await r.admin("POST", "/sessions/finish", finish))[2]) == {"known": False}

    play(scenario())


def test_the_state_and_the_metrics_agree_with_what_was_done() -> None:
    async def scenario() -> None:
        async with rig(answer_ok, answer_ok) as r:
            for n in range(5):
                await r.ask(session=str(n))
            client = await r.connect()
            await client.say(b"BAD\r\n\r\n")
            await client.rest()
            for member in r.control.roster:
                await r.control.kv.ask(member)
            state = json.loads((await r.admin("GET", "/state"))[2])
            assert state["policy"] == "kv-aware" and state["ready"] and state["in_flight"] == 0
            assert state["session_headers"][0] == "x-session-id"
            assert state["parameters"]["max_homes"] == Parameters().max_homes
            assert state["counted"]["answers"] == {"200": 5}
            assert state["counted"]["refusals"] == {"400": 1}
            assert state["sessions"] == {"known": 5, "by_homes": {"1": 5}}
            assert [replica["kv_utilisation"] for replica in state["replicas"]] == [0.25, 0.25]
            status, head, page = await r.admin("GET", "/metrics")
            assert status == 200 and b"text/plain" in head
            lines = page.decode().splitlines()
            assert 'optistack_route_answers_total{status="200"} 5.0' in lines
            assert 'optistack_route_placements_total{reason="placed"} 5.0' in lines
            assert "optistack_route_ttft_seconds_count 5.0" in lines
            assert 'optistack_route_sessions{homes="1"} 5.0' in lines

    play(scenario())


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("GET", "/nothing", b"", 404, "There is no /nothing"),
        ("DELETE", "/state", b"", 405, "does not take DELETE"),
        ("POST", "/replicas", b"{}", 400, "The body must be"),
        ("POST", "/replicas", b'{"url": "http://h:1/path"}', 400, "has a path"),
        ("POST", "/replicas/drain", b'{"url": "http://h:1"}', 404, "There is no replica"),
    ],
)
def test_the_admin_side_says_what_is_wrong(method: str, path: str, body: bytes, status: int, said: str) -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            got, _, answer = await r.admin(method, path, body)
            assert got == status
            assert said in json.loads(answer)["error"]["message"]

    play(scenario())


def test_a_web_page_cannot_post_to_the_admin_side() -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            client = await r.connect(r.admin_port)
            body = b'{"url": "http://evil:1"}'
            await client.say(b"POST /replicas HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n")
            await client.say(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
            assert (await client.answer())[0] == 400
            assert len(r.control.roster.members) == 1

    play(scenario())


def test_replicas_from_a_watched_file(tmp_path: Path) -> None:
    async def scenario() -> None:
        extra = MockReplica()
        await extra.start()
        file = tmp_path / "replicas"
        file.write_text("# none yet\n")
        async with rig(answer_ok, replica_file=str(file), discovery_every_s=0.01) as r:
            r.replicas.append(extra)
            fresh = tmp_path / "fresh"
            fresh.write_text(f"127.0.0.1:{extra.port}  # a comment\n\n")
            fresh.replace(file)
            await r.ready()
            file.write_text("http://h:1/not-a-replica\n")
            for _ in range(20):
                r.tick()
            assert len(r.control.roster.members) == 2  # a wrong file changes nothing
            file.write_text("")
            await r.until(lambda: len(r.control.roster.members) == 1)
            assert r.control.roster.members[r.replicas[0].url].source == "config"

    play(scenario())


def test_replicas_from_dns() -> None:
    async def scenario() -> None:
        async with rig(start=False) as r:
            replica = MockReplica()
            await replica.start()
            r.replicas.append(replica)
            from optistack_routing.fleet.roster import Source
            from optistack_routing.fleet.sources import Named, ResolvedName

            named = Named(r.control.roster, Source.DNS, 0.0)
            await ResolvedName(f"localhost:{replica.port}", named).look()
            assert replica.url in r.control.roster.members
            await r.until(lambda: r.control.roster.members[replica.url].health is Health.UP)
            await ResolvedName("no-such-name.invalid:1", named).look()
            assert replica.url in r.control.roster.members

    play(scenario())


def test_the_fullest_rank_is_how_full_a_replica_is() -> None:
    page = b"""# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 7.5e-01
"""
    assert read_utilisation(page) == 0.75
    assert read_utilisation(b'sglang:token_usage{model_name="m"} 0.5\n') == 0.5
    assert read_utilisation(b"sglang:num_running_reqs 3\n") is None


def test_draining_the_router_finishes_what_is_under_way() -> None:
    go = asyncio.Event()

    async def slow(replica, heard, reader, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
        await go.wait()
        writer.write(b"k")

    async def scenario() -> None:
        async with rig(slow) as r:
            client, idle = await r.connect(), await r.connect()
            await client.say(post())
            await client.head()
            draining = asyncio.ensure_future(r.front.drain())
            assert await idle.rest() == b""
            with pytest.raises(ConnectionRefusedError):
                await r.connect()
            go.set()
            assert await client.rest() == b"ok"
            await asyncio.wait_for(draining, 10)
            r.assert_quiet()

    play(scenario())
