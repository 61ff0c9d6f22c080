"""What the admin side does and says."""

from __future__ import annotations

import json

import pytest
from plugins.routing.tests.replica_scripts import hang
from plugins.routing.tests.rig import answer_ok, play, post, rig

from optistack_routing.policy.parameters import Parameters


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
