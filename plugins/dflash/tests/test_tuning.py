"""The number of draft tokens that is proposed is the best under the stated model, and what is measured is what was."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import optistack_dflash.probe_counters
from optistack.errors import CheckFailedError, InputError
from optistack.verify.endpoint import Endpoint
from optistack_dflash.prompt_file import read_prompt_file
from optistack_dflash.tuning import Round, acceptance_length, propose, step_seconds
from optistack_dflash.tuning_rounds import measure_round

DRAFTED = 7
SHARES = st.lists(st.floats(0, 1), min_size=DRAFTED, max_size=DRAFTED).map(lambda found: tuple(sorted(found)[::-1]))


def made(concurrency: int, shares: tuple[float, ...], step_s: float) -> Round:
    """A round of 100 steps."""
    tokens = round(100 * concurrency * acceptance_length(shares, DRAFTED))
    return Round(concurrency, tokens, 100 * step_s * concurrency, 100.0 * concurrency, DRAFTED, shares)


@given(SHARES, st.floats(0.001, 1))
def test_drafting_as_many_as_can_be_is_best_where_verifying_more_costs_nothing(
    shares: tuple[float, ...], step_s: float
) -> None:
    for one in propose([made(users, shares, step_s) for users in (1, 4, 16)]):
        assert one.predicted == pytest.approx(acceptance_length(shares, DRAFTED) / step_s)
        assert one.predicted == pytest.approx(one.predicted_now)
        assert one.measured == pytest.approx(one.predicted, rel=0.02)


@given(SHARES, st.lists(st.floats(0.001, 1), min_size=3, max_size=3))
def test_nothing_else_is_predicted_to_be_faster(shares: tuple[float, ...], steps: list[float]) -> None:
    rounds = [made(users, shares, step) for users, step in zip((1, 4, 16), sorted(steps), strict=True)]
    for one in propose(rounds):
        for tokens in range(1, DRAFTED + 1):
            speed = acceptance_length(shares, tokens) / step_seconds(rounds, one.concurrency * (tokens + 1))
            assert one.predicted >= speed
        assert one.predicted >= one.predicted_now


def test_fewer_tokens_are_proposed_where_the_batch_is_what_costs() -> None:
    shares = (0.7, 0.4, 0.2, 0.1, 0.05, 0.02, 0.01)
    alone, crowd = propose([made(1, shares, 0.010), made(4, shares, 0.040), made(16, shares, 0.160)])[::2]
    assert alone.draft_tokens == DRAFTED
    assert crowd.draft_tokens < DRAFTED and crowd.predicted > 1.5 * crowd.measured


def engine(drafts: bool = True) -> Callable[[httpx.Request], httpx.Response]:
    """Accepts the first two drafts of three in every step."""
    steps, lock = [0], threading.Lock()

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m"}]})
        if request.url.path == "/metrics":
            lines = ["# TYPE vllm:num_requests_running gauge", "vllm:num_requests_running 0.0"]
            values = {"num_drafts": 1, "num_draft_tokens": 3, "num_accepted_tokens": 2}
            for name, value in values.items() if drafts else ():
                lines += [f"# TYPE vllm:spec_decode_{name} counter"]
                lines += [f"vllm:spec_decode_{name}_total {value * steps[0]}"]
            if drafts:
                name = "vllm:spec_decode_num_accepted_tokens_per_pos"
                lines += [f"# TYPE {name} counter"]
                lines += [f'{name}_total{{position="{at}"}} {(at < 2) * steps[0]}' for at in range(3)]
            return httpx.Response(200, text="\n".join(lines) + "\n")
        tokens = json.loads(request.content)["max_tokens"]
        with lock:
            steps[0] += tokens // 3
        usage = {"prompt_tokens": 5, "completion_tokens": tokens}
        return httpx.Response(200, json={"choices": [{"text": "x"}], "usage": usage})

    return handle


@pytest.fixture(autouse=True)
def short_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optistack_dflash.probe_counters, "DEADLINE_S", 0.0)


def test_a_round_is_what_the_engine_counted() -> None:
    found = measure_round(Endpoint("http://engine", transport=httpx.MockTransport(engine())), 4, max_tokens=30)
    # Eight built-in prompts are answered once each, two a user.
    assert (found.concurrency, found.tokens, found.drafts, found.draft_tokens) == (4, 240, 80, 3)
    assert found.by_position == (1.0, 1.0, 0.0)


def test_prompts_of_all_kinds_are_asked_and_end_where_the_model_ends(tmp_path: Path) -> None:
    lines = [{"prompt": "a"}, {"ids": [1, 2]}, {"messages": [{"role": "user", "content": "b"}]}]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    asked: list[dict[str, Any]] = []

    def seen(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            asked.append({"path": request.url.path, **json.loads(request.content)})
        return drafting(request)

    drafting = engine()
    endpoint = Endpoint("http://engine", transport=httpx.MockTransport(seen))
    found = measure_round(endpoint, 1, max_tokens=30, prompts=read_prompt_file(file))
    assert found.tokens == 90 and not any("ignore_eos" in body for body in asked)
    assert [body.get("prompt", body.get("messages")) for body in asked] == [next(iter(line.values())) for line in lines]
    assert [body["path"] for body in asked] == ["/v1/completions", "/v1/completions", "/v1/chat/completions"]


@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_a_prompt_may_hold_what_ends_a_line_elsewhere(tmp_path: Path, start: str) -> None:
    file, text = tmp_path / "prompts.jsonl", "a\u2028b\u0085c"
    line = json.dumps({"prompt": text}, ensure_ascii=False)
    file.write_text(f"{start}{line}\r\n{line}\n", encoding="utf-8", newline="")
    assert [one.given for one in read_prompt_file(file)] == [text, text]


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1]",
        "3",
        '{"prompt": ""}',
        '{"ids": "12"}',
        '{"prompt": "a", "ids": [1]}',
        "[" * 10**5,
        r'{"prompt": "\ud800"}',
        '{"ids": [1, true]}',
        '{"ids": [-1]}',
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n' + line + "\n")
    with pytest.raises(InputError, match=f"Line 2 of {file} is no prompt"):
        read_prompt_file(file)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "user"}, "a message without content"),
        ({"role": "user", "content": None}, "a message without content"),
        ({"role": "user", "content": 3}, "a message without content"),
        ({"role": "usr", "content": "a"}, "a message of the role 'usr'"),
        ({"content": "a"}, "a message of the role None"),
    ],
)
def test_a_message_that_no_engine_takes_is_named(tmp_path: Path, message: dict[str, Any], said: str) -> None:
    good = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text"}]}]}
    call = {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]}
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, [good, call, {"messages": [*good["messages"], message]}])))
    with pytest.raises(InputError, match=f"Line 3 of {file} has {said}"):
        read_prompt_file(file)


def test_a_prompt_that_the_engine_refuses_is_named_with_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"ids": [1]}\n{"ids": [999999]}\n')

    def refusing(request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and json.loads(request.content)["prompt"] == [999999]:
            return httpx.Response(400, json={"error": {"message": "Token id 999999 is out of vocabulary", "code": 400}})
        return drafting(request)

    drafting = engine()
    endpoint = Endpoint("http://engine", transport=httpx.MockTransport(refusing))
    said = f"^Line 2 of {file} is refused by the engine: Token id 999999 is out of vocabulary. Mend"
    with pytest.raises(InputError, match=said):
        measure_round(endpoint, 1, max_tokens=30, prompts=read_prompt_file(file))


def test_an_engine_that_does_not_draft_cannot_be_tuned() -> None:
    with pytest.raises(CheckFailedError, match="does not draft"):
        measure_round(Endpoint("http://engine", transport=httpx.MockTransport(engine(drafts=False))), 1, max_tokens=30)
