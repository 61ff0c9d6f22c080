"""Replicas that misbehave: nobody else suffers, nothing is left over."""

from __future__ import annotations

import asyncio
import json

import pytest
from plugins.routing.tests.replica_scripts import HEAD, begin_then_hang, hang, reset
from plugins.routing.tests.rig import answer_ok, chunked, play, post, rig

from optistack_routing.fleet.roster import Health


def test_a_replica_that_dies_before_its_first_byte_is_not_noticed() -> None:
    async def scenario(script) -> None:
        async with rig(script, answer_ok, policy="round-robin") as r:
            for _ in range(6):
                status, _, body = await r.ask()
                assert (status, body) == (200, b"ok")
            assert sum(r.recorder.retries.values()) >= 1
            r.assert_quiet()

    async def half_a_head(replica, heard, reader, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConte")
        await writer.drain()
        await reset(replica, heard, reader, writer)

    async def only_a_head(replica, heard, reader, writer) -> None:
        writer.write(HEAD)
        await writer.drain()
        await reset(replica, heard, reader, writer)

    async def nonsense(replica, heard, reader, writer) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")

    async def turned_away(replica, heard, reader, writer) -> None:
        writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy")

    for script in (reset, half_a_head, only_a_head, nonsense, turned_away):
        play(scenario(script))


def test_an_answer_that_breaks_off_is_seen_to_break_off() -> None:
    async def mid_chunk(replica, heard, reader, writer) -> None:
        writer.write(HEAD + b"5\r\nfirst\r\n5\r\nsec")
        await writer.drain()
        await reset(replica, heard, reader, writer)

    async def bad_chunk(replica, heard, reader, writer) -> None:
        writer.write(HEAD + b"5\r\nfirst\r\n")
        await asyncio.sleep(0.01)
        writer.write(b"zz\r\nmore\r\n")

    async def short(replica, heard, reader, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nfirst")
        await writer.drain()
        writer.close()
        raise ConnectionError

    async def scenario(script) -> None:
        async with rig(script, retries=2) as r:
            client = await r.connect()
            await client.say(post())
            said = await client.rest()
            assert b"first" in said
            assert not said.endswith(b"0\r\n\r\n")
            assert r.recorder.outcomes == {"broken": 1}
            assert len(r.replicas[0].heard) == 1
            r.assert_quiet()

    for script in (mid_chunk, bad_chunk, short):
        play(scenario(script))


def test_more_than_the_answer_goes_no_further() -> None:
    async def surplus(replica, heard, reader, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")

    async def surplus_chunks(replica, heard, reader, writer) -> None:
        writer.write(HEAD + chunked(b"ok") + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")

    async def scenario(script) -> None:
        async with rig(script) as r:
            client = await r.connect()
            for _ in range(3):
                await client.say(post())
                _, _, body = await client.answer()
                assert b"ok" in body and b"evil" not in body
            r.assert_quiet()

    for script in (surplus, surplus_chunks):
        play(scenario(script))


def test_an_idle_connection_that_the_replica_has_closed_costs_nothing() -> None:
    async def once(replica, heard, reader, writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await writer.drain()
        if len(replica.heard) % 2:
            await reader.readuntil(b"\r\n\r\n")  # takes the next request, and hangs up
            raise ConnectionError

    async def scenario() -> None:
        async with rig(once) as r:
            for _ in range(6):
                assert (await r.ask(b""))[0] == 200
            assert not r.recorder.retries
            r.assert_quiet()

    play(scenario())


@pytest.mark.parametrize("session", ["", "s"])
def test_a_replica_that_does_not_answer_in_time_is_left(session: str) -> None:
    async def scenario() -> None:
        async with rig(hang, answer_ok, first_byte_s=0.05, policy="round-robin") as r:
            answers = [asyncio.ensure_future(r.ask(session=session)) for _ in range(3)]
            await r.until(lambda: all(answer.done() for answer in answers))
            assert all(answer.result()[0] == 200 for answer in answers)
            assert r.recorder.retries["timed_out"] >= 1
            r.assert_quiet()

    play(scenario())


def test_a_stream_that_stalls_is_cut_off() -> None:
    async def scenario() -> None:
        async with rig(begin_then_hang, idle_s=0.05) as r:
            client = await r.connect()
            await client.say(post())
            await client.head()
            await r.until(lambda: r.recorder.outcomes)
            assert r.recorder.outcomes == {"timed_out": 1}
            r.assert_quiet()

    play(scenario())


def test_without_any_other_replica_its_refusal_is_passed_on_as_it_is() -> None:
    async def turned_away(replica, heard, reader, writer) -> None:
        writer.write(b"HTTP/1.1 503 Engine Busy\r\nX-Why: full\r\nContent-Length: 4\r\n\r\nbusy")

    async def scenario() -> None:
        async with rig(turned_away, turned_away, retries=5) as r:
            status, head, body = await r.ask()
            assert (status, body) == (503, b"busy")
            assert head == b"HTTP/1.1 503 Engine Busy\r\nX-Why: full\r\nContent-Length: 4\r\n\r\n"
            assert sorted(len(replica.heard) for replica in r.replicas) == [1, 1]
            r.assert_quiet()

    play(scenario())


def test_errors_are_in_the_form_that_clients_read() -> None:
    async def scenario() -> None:
        async with rig(reset, retries=0) as r:
            status, _, body = await r.ask()
            assert status == 502
            error = json.loads(body)["error"]
            assert error["code"] == 502 and error["message"].endswith(".")

    play(scenario())


def test_a_dead_replica_is_forgotten_and_comes_back_as_a_new_one() -> None:
    async def scenario() -> None:
        async with rig(begin_then_hang, answer_ok, health_every_s=0.02) as r:
            first = await r.connect()
            await first.say(post())  # at most one of the two
            dead = r.replicas[0]
            before = r.control.ledger.fleet.get(dead.url)
            await dead.die()
            await r.until(lambda: r.control.roster.members[dead.url].health is Health.DOWN)
            assert r.control.ledger.fleet.get(dead.url) is None
            for _ in range(5):
                assert (await r.ask())[0] == 200
            await dead.start()
            await r.ready()
            assert r.control.ledger.fleet.get(dead.url) is not before
            first.leave()
            await r.until(lambda: sum(r.load()) == 0)
            r.assert_quiet()

    play(scenario())


def test_what_went_wrong_is_told_as_what_it_was_where_nobody_else_takes_the_request() -> None:
    async def scenario(outcome: str, status: int, *scripts, **options) -> None:
        lines: list[dict] = []
        async with rig(*scripts, **options) as r:
            r.recorder.written = lines.append
            asked = asyncio.ensure_future(r.ask())
            await r.until(asked.done)
            assert asked.result()[0] == status
            assert r.recorder.outcomes == {outcome: 1}
            assert [(line["outcome"], line["status"]) for line in lines] == [(outcome, status)]
            assert lines[0]["faults"] == [{"replica": r.replicas[0].url, "outcome": outcome}]
            r.assert_quiet()

    play(scenario("timed_out", 504, hang, first_byte_s=0.05))
    play(scenario("timed_out", 504, hang, first_byte_s=0.05, retries=0))
    play(scenario("broken", 502, reset))
    play(scenario("broken", 502, reset, retries=0))
