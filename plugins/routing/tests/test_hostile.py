"""What somebody who wants the router to fail would try first."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from time import monotonic, process_time
from typing import Any

import pytest
from plugins.routing.tests.rig import OK, Heard, MockReplica, answer_ok, chunked, play, post, rig

from optistack.errors import InputError
from optistack_routing.fleet.address import read_address
from optistack_routing.fleet.roster import Source
from optistack_routing.fleet.scrape import read_pool
from optistack_routing.fleet.sources import Named
from optistack_routing.http.head import read_request
from optistack_routing.policy.factory import make_policy
from optistack_routing.policy.ledger import Ledger
from optistack_routing.policy.parameters import Parameters
from optistack_routing.proxy.session import Reader
from optistack_routing.router.policy import parameters_of


@pytest.mark.parametrize("fault", ["choose", "placed", "ended", "left", "expire"])
def test_a_policy_that_raises_costs_no_request_and_no_count(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*arguments: object, **named: object) -> None:
        raise RuntimeError("a fault of the policy")

    async def scenario() -> None:
        async with rig(answer_ok, answer_ok) as r:
            monkeypatch.setattr(r.control.ledger.policy.policy, fault, fails)  # type: ignore[attr-defined]  # Guarded
            assert [(await r.ask(session="s"))[0] for _ in range(4)] == [200] * 4
            r.control.ledger.policy.expire(0.0)
            await r.admin("DELETE", f"/replicas?url={r.replicas[0].url}&now=1")
            assert (await r.ask(session="s"))[0] == 200
            r.assert_quiet()

    with caplog.at_level(logging.ERROR, "optistack.route"):
        play(scenario())
    assert "a fault of the policy" in caplog.text


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/replicas", b"[" * 60_000),
        ("POST", "/replicas", b'{"url": "http://\\ud800:80"}'),
        ("POST", "/replicas", b'{"url": "http://a b:80"}'),
        ("POST", "/replicas", b'{"url": "http://a:0"}'),
        ("POST", "/replicas", b'{"url": "http://[::1"}'),
        ("POST", "/replicas", b'{"url": "http://a:80\\r\\nX-A: b"}'),
        ("POST", "/sessions/finish", b'{"session": "\\ud800"}'),
        ("POST", "/sessions/finish", b"\xff\xfe"),
        ("DELETE", "/replicas?url=%ff%fe", b""),
    ],
)
def test_the_admin_side_answers_nonsense_with_a_sentence(method: str, path: str, body: bytes) -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            status, _, said = await r.admin(method, path, body)
            assert status == 400
            assert b'"message"' in said
            assert len(list(r.control.roster)) == 1

    play(scenario())


@pytest.mark.parametrize(
    "url", ["http://" + "a" * 300, "http://a..b", "http://-:0", "http://ü", "http://a\x00", "http://"]
)
def test_hosts_that_no_resolver_takes_are_refused(url: str) -> None:
    with pytest.raises(InputError):
        read_address(url)


@pytest.mark.parametrize("url", ["http://10.0.0.1:8000", "http://[fe80::1]:80", "https://vllm-0.pool.svc", "a_b:8000"])
def test_hosts_that_are_used_are_taken(url: str) -> None:
    assert read_address(url).port


@pytest.mark.parametrize(
    "name", ["tokens_per_request", "rehome_window_s", "max_homes", "load_bound", "overload_margin"]
)
def test_numbers_that_a_policy_cannot_compute_with_are_refused(name: str) -> None:
    for value in (-1, float("nan")):
        with pytest.raises(InputError, match=name):
            parameters_of({name: value})
    assert parameters_of({}) == Parameters()


def session_key(body: bytes) -> bytes | None:
    head = read_request(b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n\r\n")
    return Reader().read(head, [body], len(body)).prefix


SYSTEM = b'{"model":"m","messages":[{"role": "system", "content": "' + b'You say \\"user\\" a lot. ' * 1000 + b'"},'


def conversation(first: bytes, *later: bytes) -> bytes:
    return SYSTEM + b'{"role": "user", "content": "' + first + b'"}' + b"".join(later) + b'],"stream":true}'


def test_conversations_without_a_session_are_told_apart_by_their_first_message() -> None:
    again = conversation(b"one", b',{"role":"assistant","content":"yes"}', b',{"role":"user","content":"more"}')
    assert session_key(conversation(b"one")) == session_key(again)
    assert session_key(conversation(b"one")) != session_key(conversation(b"two"))
    pieces = [again[:1000], again[1000:20_000], again[20_000:]]
    head = read_request(b"POST /v1/x HTTP/1.1\r\nHost: h\r\n\r\n")
    assert Reader().read(head, pieces, len(again)).prefix == session_key(again)


def test_no_body_is_expensive_to_tell_apart() -> None:
    session_key(SYSTEM)
    begun = process_time()
    assert session_key(b'{"a":[' + b'"user",' * 60_000 + b"]}")
    assert process_time() - begun < 0.02


@pytest.mark.parametrize("policy", ["kv-aware", "affinity"])
def test_one_prompt_for_everybody_does_not_land_on_one_replica(policy: str) -> None:
    """No session header, and not even the first message differs."""
    ledger = Ledger(make_policy(policy))
    for number in range(10):
        ledger.join(f"r{number}", 0.0)
    body = conversation(b"the same")
    head = read_request(b"POST /v1/x HTTP/1.1\r\nHost: h\r\n\r\n")
    leases = [ledger.place(Reader().read(head, [body], len(body)), 100.0) for _ in range(50)]
    counts = Counter(lease.choice.replica for lease in leases if lease is not None)
    assert sum(counts.values()) == 50
    assert max(counts.values()) <= 10


def test_a_restart_behind_the_same_url_is_noticed_by_its_counters() -> None:
    page = b'vllm:prompt_tokens_total 500.0\nvllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0\n'

    async def scenario() -> None:
        async with rig(answer_ok, answer_ok) as r:
            await r.ask(b"x" * 4000, session="s")
            (home,) = [replica for replica in r.replicas if replica.heard]
            member = r.control.roster.get(home.url)
            before = member.replica
            home.metrics = page
            await r.control.kv.ask(member)
            await r.control.kv.ask(member)
            assert member.replica is before
            assert before is not None
            assert before.kv_tokens == 1600
            home.metrics = b"no counter in it\n"
            await r.control.kv.ask(member)
            assert member.replica is before
            home.metrics = page.replace(b"500.0", b"20.0")
            await r.control.kv.ask(member)
            assert member.replica is not None
            assert member.replica is not before
            assert member.accepts
            assert r.control.ledger.policy.sessions() == {0: 1}
            assert (await r.ask(b"x" * 4000, session="s"))[0] == 200
            r.assert_quiet()

    play(scenario())


def test_a_replica_that_dns_no_longer_names_ends_its_streams_first() -> None:
    going_on = asyncio.Event()

    async def script(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na")
        await going_on.wait()
        writer.write(b"b")

    async def scenario() -> None:
        async with rig(script, script) as r:
            urls = frozenset(replica.url for replica in r.replicas)
            named = Named(r.control.roster, Source.CONFIG, 60.0)
            named.now_names(urls, 0.0)
            client = await r.connect()
            await client.say(post(session="s"))
            await client.head()
            assert await client.exactly(1) == b"a"
            (home,) = [replica for replica in r.replicas if replica.heard]
            named.now_names(urls - {home.url}, monotonic())
            r.tick()
            assert home.url in r.control.roster.members
            going_on.set()
            assert await client.exactly(1) == b"b"
            await r.until(lambda: home.url not in r.control.roster.members)
            assert (await r.ask(session="s"))[0] == 200
            assert len(home.heard) == 1
            r.assert_quiet()

    play(scenario())


def test_dozens_of_clients_that_read_nothing_hold_nobody_up() -> None:
    async def script(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
        if heard.header(b"x-session-id") == b"quick":
            writer.write(OK)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
        while True:
            writer.write(bytes(65536))
            await writer.drain()

    async def scenario() -> None:
        async with rig(script, script) as r:
            for number in range(50):
                client = await r.connect()
                client.writer.transport.pause_reading()
                await client.say(post(session=f"s{number}"))
            await r.until(lambda: sum(connection.stuck for connection in r.front.settings.connections) == 50)
            held = [connection.transport.get_write_buffer_size() for connection in r.front.settings.connections]
            assert max(held) < 2**20
            assert (await r.ask(session="quick"))[0] == 200
            for client in r.clients:
                client.leave()
            await r.until(lambda: not r.front.settings.connections)
            r.assert_quiet()

    play(scenario())


def test_the_size_of_a_kv_pool_is_read_from_either_engine() -> None:
    labels = b'block_size="16",engine="%d",effective_attention_block_size="64",num_gpu_blocks="100"'
    vllm = b"vllm:cache_config_info{" + labels + b"} 1.0\n"
    assert read_pool(vllm % 0) == 1600
    assert read_pool(vllm % 0 + vllm % 1) == 3200, "a pool for each data-parallel rank"
    sglang = b'sglang:max_total_num_tokens{tp_rank="%d"} 46603.0\n'
    assert read_pool(sglang % 0 + sglang % 1) == 46603, "tensor-parallel ranks share one"
    assert read_pool(b"vllm:kv_cache_usage_perc 0.5\n") is None


def test_a_pool_that_the_replica_reports_bounds_what_is_believed_of_it() -> None:
    ledger = Ledger(make_policy("kv-aware"))
    ledger.join("r0", 0.0).kv_tokens = 250_000
    for session in ("a", "b", "c"):
        request = Reader().read(read_request(head_of(session)), [], 400_000)
        lease = ledger.place(request, 1.0)
        assert lease is not None
        lease.end(1.0, served=True)
    again = ledger.place(Reader().read(read_request(head_of("a")), [], 400_000), 1.0)
    assert again is not None
    assert again.choice.predicted_cached_tokens == 50_000


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:80", 200),
        ("[::1]:80", 200),
        ("[::1]", 200),
        ("localhost", 200),
        ("evil.example:80", 400),
        ("a", 400),
    ],
)
def test_a_name_that_is_made_to_point_here_does_not_reach_the_admin_side(host: str, status: int) -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            client = await r.connect(r.admin_port)
            await client.say(f"GET /state HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (await client.answer())[0] == status

    play(scenario())


def head_of(session: str) -> bytes:
    return f"POST /v1/x HTTP/1.1\r\nHost: h\r\nX-Session-Id: {session}\r\n\r\n".encode()


def test_a_request_in_single_bytes_arrives_whole() -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            client = await r.connect()
            client.writer.get_extra_info("socket").setsockopt(6, 1, 1)  # TCP_NODELAY
            for byte in post(b"0123456789" * 40):
                await client.say(bytes([byte]))
                await asyncio.sleep(0)
            assert (await client.answer())[0] == 200
            assert r.replicas[0].heard[0].body == b"0123456789" * 40
            r.assert_quiet()

    play(scenario())


def test_a_body_in_tiny_chunks_is_not_kept_in_tiny_pieces() -> None:
    async def scenario() -> None:
        async with rig(answer_ok) as r:
            client = await r.connect()
            wire = chunked(*[b"x"] * 200_000)
            await client.say(b"POST /v1/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + wire[:-5])
            (connection,) = r.front.settings.connections
            await r.until(lambda: connection._body is not None and connection._body.size_bytes == 200_000)
            await client.say(b"1\r\ny\r\n")
            await r.until(lambda: connection._body.size_bytes == 200_001)
            assert len(connection._body.pieces) < 1000
            await client.say(wire[-5:])
            assert (await client.answer())[0] == 200
            assert r.replicas[0].heard[0].body == b"x" * 200_000 + b"y"

    play(scenario())


@pytest.mark.parametrize(
    ("request_", "answer", "expected"),
    [
        (b"OPTIONS /v1/x HTTP/1.1\r\nHost: h\r\n\r\n", b"HTTP/1.1 204 No Content\r\nAllow: POST\r\n\r\n", b""),
        (
            b"GET /v1/x HTTP/1.1\r\nHost: h\r\nIf-None-Match: a\r\n\r\n",
            b"HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\nETag: a\r\n\r\n",
            b"",
        ),
        (
            b"GET /v1/x HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
            b"\x1f\x8b\x08\x00",
        ),
        (
            b"GET /v1/x HTTP/1.1\r\nHost: h\r\nTE: trailers\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n",
            b"1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n",
        ),
    ],
)
def test_rare_requests_and_answers_pass(request_: bytes, answer: bytes, expected: bytes) -> None:
    async def script(replica: MockReplica, heard: Heard, reader: Any, writer: Any) -> None:
        writer.write(answer)

    async def scenario() -> None:
        async with rig(script) as r:
            client = await r.connect()
            for _ in range(2):  # the second says that the first ended where it should
                await client.say(request_)
                head = await client.head()
                assert head.split(b"\r\n")[0] == answer.split(b"\r\n")[0]
                assert await client.exactly(len(expected)) == expected
            r.assert_quiet()

    play(scenario())
