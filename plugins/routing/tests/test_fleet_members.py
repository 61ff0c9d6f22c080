"""Where replicas come from, and what becomes of sessions when one is added."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from plugins.routing.tests.rig import MockReplica, answer_ok, play, rig

from optistack_routing.fleet.roster import Health

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
