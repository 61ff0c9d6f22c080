"""Which replicas are used: health, circuits, draining, load."""

from __future__ import annotations

import asyncio

import pytest
from plugins.routing.tests.replica_scripts import hang, reset
from plugins.routing.tests.rig import answer_ok, play, post, rig

from optistack_routing.fleet.circuit import Breaker, Circuit
from optistack_routing.fleet.roster import Health
from optistack_routing.fleet.scrape import read_utilisation


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
