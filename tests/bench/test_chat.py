"""``optistack bench --chat``: the server's own answers are the history, and what is read of them is what was sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.conftest import Engine, Script

from optistack.cli.run import run
from optistack_bench.chat import TASKS, TOOLS_TOKENS, ChatTexts, Measured, chat_workload
from optistack_bench.client import Answer
from optistack_bench.conversation import TOOLS, Conversation, read_answer
from optistack_bench.result import load_result
from optistack_bench.workload import Turn

WORDS = ["--chat", "--domain", "code", "--think-limit", "0", "--turns", "3", "--sessions", "2", "--warmup", "0"]
CALL: list[dict[str, Any]] = [
    {"reasoning_content": "hm"},
    {"content": "I look."},
    {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "run", "arguments": ""}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"command": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"ls"}'}}]},
]


def chat(engine: Engine, *words: str) -> int:
    return run(["bench", "--endpoint", engine.url, *WORDS, "--repeats", "1", *words])


def of_session(engine: Engine, name: str) -> list[dict[str, Any]]:
    return [body for body, session in zip(engine.asked, engine.sessions, strict=True) if session == f"{name}.1"]


def figures_of(said: str) -> dict[str, float]:
    figures: dict[str, float] = json.loads(said)["points"][0]["repeats"][0]["figures"]
    return figures


def test_the_history_is_what_the_server_answered(capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(Script(says=[{"content": "ye"}, {"content": "s"}])) as engine:
        assert chat(engine, "--users", "2", "--json") == 0
    figures = figures_of(capsys.readouterr().out)
    first, second, third = (body["messages"] for body in of_session(engine, "session-1"))
    assert [one["role"] for one in third] == ["user", "assistant", "user", "assistant", "user"]
    assert third[:3] == second and second[0] == first[0]
    assert third[1] == {"role": "assistant", "content": "yes"}
    assert first[0]["content"].endswith(TASKS["code"][0]) and third[4]["content"].endswith(TASKS["code"][2])
    assert all("ignore_eos" not in body and "tools" not in body and body["temperature"] == 0 for body in engine.asked)
    # A role alone is no token, and the length is the server's.
    assert (figures["requests"], figures["errors"], figures["output_tokens_mean"]) == (6, 0, 2)
    assert figures["tokens_a_chunk"] == 1
    assert figures["foreign_hits"] == 0
    assert figures["hit_rate_usage"] == pytest.approx(figures["hit_rate_possible"], rel=0.02)


def test_a_tool_that_is_called_gets_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(Script(says=CALL, context=8192)) as engine:
        assert chat(engine, "--tools", "--turns", "2", "--json") == 0
    assert figures_of(capsys.readouterr().out)["output_tokens_mean"] == 5
    first, second = of_session(engine, "session-0")
    assert [tool["function"]["name"] for tool in first["tools"]] == ["read_file", "edit_file", "run"]
    _, answer, result = second["messages"]
    assert answer["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "run", "arguments": '{"command": "ls"}'}}
    ]
    assert answer["content"] == "I look."
    assert (result["role"], result["tool_call_id"]) == ("tool", "c1")
    assert result["content"].endswith(TASKS["code"][1])


def test_a_turn_that_failed_is_left_out_of_the_history(capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(Script(fail={1: 500})) as engine:
        assert chat(engine, "--sessions", "1") == 1
    first, second, third = (body["messages"] for body in engine.asked)
    assert [one["role"] for one in third] == ["user", "assistant", "user"]
    assert third[:2] == second[:2] and third[0] == first[0] and third[2] != second[2]
    assert "1 x HTTP 500" in capsys.readouterr().out


def test_answers_without_any_text_are_told_from_none(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with Engine(Script(says=[])) as engine:
        assert chat(engine, "--out", str(tmp_path / "empty")) == 1
    assert load_result(tmp_path / "empty").problem.endswith("no answer had a token (6 x no token).")
    with Engine(Script(fail=dict.fromkeys(range(6), 500))) as engine:
        assert chat(engine, "--out", str(tmp_path / "none")) == 1
    assert load_result(tmp_path / "none").problem.endswith("no request was answered (6 x HTTP 500).")


def test_what_follows_a_first_turn_that_failed_is_new_to_every_cache() -> None:
    with Engine(Script(fail={0: 500, 3: 500, 6: 500})) as engine:
        assert chat(engine, "--sessions", "1", "--repeats", "3") == 1
    firsts = [body["messages"][0]["content"] for body in engine.asked if len(body["messages"]) == 1]
    assert len(firsts) == 6
    assert {first.splitlines()[0] for first in firsts} == {f"# session-0, run {salt}" for salt in (1, 2, 3)}


def test_an_answer_of_another_shape_is_an_error_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    contents: tuple[Any, ...] = ([{"type": "text", "text": "x"}], {"text": "x"}, 7)
    for content in contents:
        says: list[dict[str, Any]] = [{"content": content}]
        with Engine(Script(says=says)) as engine:
            assert chat(engine) == 1
        assert "6 x bad event" in capsys.readouterr().out


def test_two_runs_send_the_same_and_the_report_says_what_a_chat_cannot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = set()
    for out in ("a", "b"):
        with Engine(Script()) as engine:
            assert chat(engine, "--out", str(tmp_path / out)) == 0
        digests.add(json.loads((tmp_path / out / "result.json").read_text())["points"][0]["workload"]["digest"])
    assert len(digests) == 1
    said = capsys.readouterr().out
    assert "sessions, chat: 6 requests" in said
    assert "two runs have the same messages of the user, not the same tokens" in said
    with Engine(Script()) as engine:
        assert chat(engine, "--tools", "--out", str(tmp_path / "tools")) == 0
    assert run(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "tools")]) == 2


def test_a_server_that_has_seen_the_chat_is_told_apart(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat(engine) == chat(engine) == 0
    assert "the server has seen this workload" in capsys.readouterr().out


@pytest.mark.parametrize("tokenizes", [False, None])
def test_the_fixed_shapes_and_servers_that_do_not_tokenize(
    tokenizes: bool | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with Engine(Script(tokenizes=tokenizes, context=8192)) as engine:
        assert chat(engine, "--workload", "50k-200", "--divide", "auto", "--sessions", "2", "--json") == 0
    one, two = (body["messages"][0]["content"] for body in engine.asked)
    shared = 45_000 / 8 * 2.5
    assert one[: int(shared)] == two[: int(shared)] and one != two
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert "at 2.5 characters each, since the server does not tokenize" in " ".join(point["workload"]["rules"])
    assert point["workload"]["longest_tokens"] <= 8192


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--domain", "made"], "A chat needs real text"),
        (["--workload", "trace", "--trace", "t.jsonl"], "A chat needs real text"),
        (["--domain", "poems"], "A chat has no domain 'poems'"),
        (["--workload", "3k-100"], "takes 3,301 tokens"),
    ],
)
def test_what_cannot_be_a_chat(
    engine: Engine, words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", "--endpoint", engine.url, "--chat", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert run(["bench", "--endpoint", engine.url, "--tools"]) == 2
    assert "in a chat only" in capsys.readouterr().err
    assert engine.asked == []


DENSE, THIN = "12345678" * 1000, "a word after the other " * 1000
TEXTS = ChatTexts(
    {
        "code": Measured(DENSE + THIN, (8000.0, 2000.0, 2000.0, 1750.0)),
        "prose": Measured(THIN, (2000.0, 2000.0, 1750.0)),
    }
)
"""Text of a token a character, and of a quarter of one."""


def tokens_of(text: str) -> float:
    return sum(1 if letter.isdecimal() else 0.25 for letter in text)


@given(st.sampled_from(["sessions", "3k-100", "50k-200"]), st.sampled_from([8, 64, 512]), st.integers(0, 3))
def test_messages_have_about_the_length_of_the_workload(name: str, divide: int, salt: int) -> None:
    common: dict[str, Any] = {"turns": 3, "think_limit_s": 1.0, "seed": 1, "texts": TEXTS, "tools": False}
    made = chat_workload(name, number=4, divide=divide, salt=salt, **common)
    for session in made.sessions:
        answers, sent = 0, 0.0
        for turn in session.turns:
            sent += tokens_of(turn.text)
            foreseen = turn.prompt_tokens - answers
            assert 0.8 * sent - 8 <= foreseen <= 1.06 * sent + 60 * len(session.turns) + 8
            answers += turn.output_tokens
    other = chat_workload(name, number=4, divide=divide, salt=salt + 1, **common)
    assert {session.turns[0].text for session in made.sessions}.isdisjoint(
        session.turns[0].text for session in other.sessions
    )


def test_tools_take_room_before_the_messages() -> None:
    common: dict[str, Any] = {"number": 1, "turns": 1, "divide": 64, "think_limit_s": 0.0, "seed": 1, "salt": 0}
    bare, offered = (chat_workload("sessions", texts=TEXTS, tools=tools, **common) for tools in (False, True))
    assert len(json.dumps(TOOLS)) / 2.5 < TOOLS_TOKENS
    assert offered.longest_tokens == bare.longest_tokens + TOOLS_TOKENS
    assert [turn.text for turn in offered.turns()] == [turn.text for turn in bare.turns()]


@pytest.mark.parametrize("event", [b"[]", b"{", b'{"choices":[{"delta":3}]}', b'{"choices":[{}]}', b'{"choices":7}'])
def test_an_event_that_cannot_be_read_is_an_error_of_its_request(event: bytes) -> None:
    answer = Answer(0.0, events=[(1.0, event)])
    assert read_answer(answer) is None
    assert (answer.error, answer.detail) == ("bad event", event.decode())


def test_a_call_that_was_cut_short_is_not_in_the_history() -> None:
    events = [json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() for delta in CALL[:-1]]
    answer = Answer(0.0, events=[(float(at), event) for at, event in enumerate(events)])
    message = read_answer(answer)
    assert message == {"role": "assistant", "content": "I look."}
    assert answer.chunks_s == [0.0, 1.0, 2.0, 3.0]
    conversation = Conversation()
    conversation.answered(Turn((), 1, text="a"), Answer(0.0, error="cut off"))
    assert conversation.ask(Turn((), 1, text="b")) == b'[{"role": "user", "content": "b"}]'
