"""Replicas that answer in ways that could hurt others: halves of refusals, quick errors, resets."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from itertools import chain
from typing import Any

import pytest
from plugins.routing.tests.rig import OK, Heard, MockReplica, play, post, rig

from optistack_routing.fleet.circuit import Circuit
from optistack_routing.policy.base import Request
from optistack_routing.workers.remote import RemoteDesk


def test_half_of_a_refusal_is_not_passed_on() -> None:
    async def half(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 503 X\r\nContent-Length: 100\r\n\r\npartial")
        await reader.read()
        raise ConnectionError

    async def scenario() -> None:
        async with rig(half, first_byte_s=0.05) as r:
            answer = asyncio.ensure_future(r.ask())
            await r.until(answer.done)
            status, _, body = answer.result()
            assert status == 504
            assert b"did not answer" in body
            r.assert_quiet()

    play(scenario())


@pytest.mark.parametrize(("retries", "sent"), [(0, 1), (2, 1)])
def test_a_connection_lost_while_the_replica_works_is_no_idle_one(retries: int, sent: int) -> None:
    async def script(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
        if heard.body == b"poison":
            await asyncio.sleep(0.1)
            writer.transport.abort()
            return
        if len(replica.heard) < 6:
            while len(replica.heard) < 5:
                await asyncio.sleep(0.001)
        writer.write(OK)

    async def scenario() -> None:
        async with rig(script, retries=retries, upstream_keep_alive_s=60) as r:
            await asyncio.gather(*(r.ask() for _ in range(5)))
            assert (await r.ask(b"poison"))[0] in (502, 503)
            assert sum(heard.body == b"poison" for heard in r.replicas[0].heard) == sent
            (member,) = r.control.roster
            assert member.breaker.in_a_row == 1
            r.assert_quiet()

    play(scenario())


def test_a_pool_of_closed_connections_is_tried_once() -> None:
    async def script(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
        if heard.body == b"poison":
            writer.transport.abort()
            raise ConnectionError
        while len(replica.heard) < 5:
            await asyncio.sleep(0.001)
        writer.write(OK)

    async def scenario() -> None:
        async with rig(script, retries=0, upstream_keep_alive_s=60) as r:
            await asyncio.gather(*(r.ask() for _ in range(5)))
            assert (await r.ask(b"poison"))[0] == 502
            assert sum(heard.body == b"poison" for heard in r.replicas[0].heard) == 2
            r.assert_quiet()

    play(scenario())


@pytest.mark.parametrize(("status", "retries"), [(500, 2), (503, 0)])
def test_a_replica_that_fails_quickly_does_not_get_all_the_traffic(status: int, retries: int) -> None:
    async def bad(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\nno" % status)

    async def good(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
        await asyncio.sleep(0.005)
        writer.write(OK)

    async def scenario() -> None:
        async with rig(bad, good, retries=retries, policy="least-loaded") as r:

            async def client(number: int) -> list[int]:
                return [(await r.ask(session=f"{number}-{turn}"))[0] for turn in range(10)]

            answers = Counter(chain(*await asyncio.gather(*(client(number) for number in range(4)))))
            assert answers[status] <= 6
            assert answers[200] >= 34
            assert r.recorder.outcomes["failed"] == answers[status]
            r.assert_quiet()

    play(scenario())


@pytest.mark.parametrize("answer", [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n"])
def test_an_answer_without_a_body_ends_a_trial_well(answer: bytes) -> None:
    async def script(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
        writer.write(answer)

    async def scenario() -> None:
        async with rig(script) as r:
            (member,) = r.control.roster
            member.breaker.in_a_row, member.breaker.state = 2, Circuit.HALF_OPEN
            client = await r.connect()
            await client.say(post())
            await client.head()
            await r.until(lambda: member.out == 0)
            assert (member.breaker.state, member.breaker.in_a_row) == (Circuit.CLOSED, 0)

    play(scenario())


def test_a_client_that_leaves_a_stream_is_counted_as_gone() -> None:
    async def script(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\na")
        await reader.read()
        raise ConnectionError

    async def scenario() -> None:
        async with rig(script) as r:
            client = await r.connect()
            await client.say(post())
            await client.head()
            client.leave()
            await r.until(lambda: r.recorder.outcomes)
            assert r.recorder.answers == {499: 1}

    play(scenario())


def test_nobody_waits_for_an_owner_that_is_gone() -> None:
    class Asking:
        request = Request()
        answers: list[Any]

        def placed(self, placement: Any) -> None:
            self.answers.append(placement)

    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        _, desk = await asyncio.get_running_loop().create_unix_connection(RemoteDesk, sock=ours)
        theirs.close()
        await asyncio.wait_for(desk.told_to_stop.wait(), 10)
        late = Asking()
        late.answers = []
        desk.ask(late)
        assert late.answers == [None]

    play(scenario())
