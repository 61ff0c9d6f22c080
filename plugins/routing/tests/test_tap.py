"""The recording tap: off by default, a share of the requests, token ids on disk, and nothing that a rule finds."""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from plugins.routing.tests.rig import Heard, chunked, play, post, rig

from optistack.errors import InputError
from optistack_routing.router.config import load
from optistack_routing.tap.answers import Exchange, asked, with_ids
from optistack_routing.tap.options import Tap
from optistack_routing.tap.recordings import Recordings

PATH = "/v1/completions"
ASK = b'{"model": "m", "prompt": "def add(a, b):", "temperature": 0}'


def engine(stream: bool = False, text: str = " return a + b", status: int = 200) -> Any:
    """Gives token ids to requests that ask for them, as vLLM does."""

    async def answer(replica: Any, heard: Heard, reader: Any, writer: Any) -> None:
        request = json.loads(heard.body)
        ids = {"prompt_token_ids": [1, 2, 3]} if request.get("return_token_ids") else {}

        def event(text: str, *tokens: int, **more: Any) -> dict[str, Any]:
            choice = {"text": text, **({"token_ids": list(tokens)} if ids else {}), **more}
            return {"choices": [choice]}

        if stream:
            events = [event("", **ids), event(text[:4], 7), event(text[4:], 8, 9)]
            lines = [b"data: " + json.dumps(one).encode() + b"\n\n" for one in events] + [b"data: [DONE]\n\n"]
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head + chunked(*lines))
            return
        body = json.dumps(event(text, 7, 8, 9, **ids)).encode()
        writer.write(b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))

    return answer


def recorded(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("tap-*.jsonl")) for line in file.read_text().splitlines()]


def tapped(folder: Path, *bodies: bytes, script: Any, extra: str = "", path: str = PATH, **tap: Any) -> list[bytes]:
    """What the replica heard of requests with these ``bodies``, each on one connection, at a share of 1."""
    heard: list[bytes] = []

    async def scenario() -> None:
        async with rig(script, tap={"folder": folder, "share": 1.0, **tap}) as r:
            client = await r.connect()
            for body in bodies:
                await client.say(post(body, path=path, extra=extra))
                await client.answer()
            heard.extend(one.body for one in r.replicas[0].heard)
            r.assert_quiet()

    play(scenario())
    return heard


def test_without_the_option_every_byte_passes() -> None:
    async def scenario() -> None:
        async with rig(engine()) as r:
            await r.ask(ASK, path=PATH)
            assert r.replicas[0].heard[0].body == ASK
            assert r.front.recordings is None

    play(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_ids_of_prompt_and_answer_are_kept(tmp_path: Path, stream: bool) -> None:
    heard = tapped(tmp_path, ASK, ASK, script=engine(stream))
    assert heard == [ASK[:-1] + b',"return_token_ids":true}'] * 2
    line = {"model": "m", "sampling": {"temperature": 0}, "prompt": [1, 2, 3], "answer": [7, 8, 9]}
    assert recorded(tmp_path) == [line, line]
    assert all(file.stat().st_mode & 0o077 == 0 for file in tmp_path.iterdir())


def test_a_share_of_the_requests_is_recorded(tmp_path: Path) -> None:
    heard = tapped(tmp_path, *[ASK] * 200, script=engine(), share=0.25)
    changed = sum(body != ASK for body in heard)
    assert 20 < changed < 85
    assert len(recorded(tmp_path)) == changed


@pytest.mark.parametrize(
    ("ask", "text"),
    [
        (b'{"prompt": "write to jane.doe@example.org"}', "no"),
        (ASK, " my key is sk-abcdefghijklmnop1234"),
        (b'{"messages": [{"role": "user", "content": "hi"}], "tools": [{"description": "a@example.org"}]}', "no"),
        (b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "4111 1111 1111 1111"}]}]}', "no"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_a_rule_finds_is_left_out_whole(tmp_path: Path, ask: bytes, text: str, stream: bool) -> None:
    path = "/v1/chat/completions" if b"messages" in ask else PATH
    tapped(tmp_path, ask, script=engine(stream, text), path=path)
    assert recorded(tmp_path) == []


def test_a_long_word_does_not_hold_up_the_router(tmp_path: Path) -> None:
    kept, begun_s = Recordings(Tap(folder=tmp_path)), process_time()
    kept.keep({"prompt": "a" * 1_000_000}, Exchange([1], [2]))
    assert kept.recorded == 1
    assert process_time() - begun_s < 5  # in its square it takes an hour and a half


def test_rules_of_ones_own_take_the_place_of_the_built_in_ones(tmp_path: Path) -> None:
    mail, name = b'{"prompt": "a@example.org"}', b'{"prompt": "Project Falcon"}'
    tapped(tmp_path, mail, name, script=engine(), redact=["(?i)falcon"])
    assert len(recorded(tmp_path)) == 1


@pytest.mark.parametrize(
    "ask",
    [
        b'{"prompt": [1, 2, 3]}',
        b'{"prompt": "a", "n": 2}',
        b'{"prompt": "a", "return_token_ids": false}',
        b'{"prompt": "a", "logit_bias": {"5": -100}}',
        b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}',
        b"[1]",
        b"no JSON",
    ],
)
def test_what_cannot_be_recorded_passes_as_it_is(tmp_path: Path, ask: bytes) -> None:
    assert asked(ask) is None


def test_a_client_can_forbid_it(tmp_path: Path) -> None:
    heard = tapped(tmp_path, ASK, script=engine(), extra="X-Optistack-No-Recording: 1\r\n")
    assert (heard, recorded(tmp_path)) == ([ASK], [])


def test_the_wish_for_ids_is_one_more_field() -> None:
    for body in (b"{}", b'{"a": {"b": 1} }\n', b' {"prompt": "}"}  '):
        assert json.loads(with_ids(body)) == {**json.loads(body), "return_token_ids": True}


def test_errors_are_no_answers(tmp_path: Path) -> None:
    tapped(tmp_path, ASK, script=engine(status=400))
    assert recorded(tmp_path) == []


def test_a_client_that_leaves_leaves_nothing(tmp_path: Path) -> None:
    async def stall(replica: Any, heard: Heard, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        await reader.read()

    async def scenario() -> None:
        async with rig(stall, tap={"folder": tmp_path, "share": 1.0}) as r:
            client = await r.connect()
            await client.say(post(ASK, path=PATH))
            await client.head()
            client.leave()
            await r.until(lambda: not r.front.settings.connections)
            r.assert_quiet()

    play(scenario())
    assert recorded(tmp_path) == []


def test_nothing_is_recorded_beyond_the_size(tmp_path: Path) -> None:
    heard = tapped(tmp_path, *[ASK] * 8, script=engine(), shard=2, max_mb=0.0001)
    assert len(recorded(tmp_path)) == 2
    assert heard[-1] == ASK


def test_a_full_disk_ends_the_recording_and_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    heard = tapped(tmp_path, ASK, ASK, script=engine(), shard=1)
    assert heard[1] == ASK
    assert list(tmp_path.iterdir()) == []


def test_bad_options_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no regular expression"):
        load(None, {"tap": {"folder": tmp_path, "redact": ["("]}})
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Not a directory|File exists"):
        Recordings(Tap(folder=tmp_path / "file"))
