"""Open loops, prefill alone and sweeps of ``optistack bench`` as a program, against a scripted engine."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.bench.conftest import FAST, Engine, Script, bench, result_of

from optistack.cli.run import run
from optistack_bench.load import Loop
from optistack_bench.settings import Settings, WorkloadMaker
from optistack_bench.synthetic import Texts
from optistack_bench.workload import Session


def test_prefill_only_asks_for_one_token_and_is_no_normal_run(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(engine, "--prefill-only", "--repeats", "1", "--out", str(tmp_path / "prefill")) == 0
    assert {body["max_tokens"] for body in engine.asked} == {1}
    said = capsys.readouterr().out
    assert "Prefill only: every request asks for one token." in said and "500 out" not in said
    assert bench(engine, "--repeats", "1", "--out", str(tmp_path / "normal")) == 0
    assert "500 out" in capsys.readouterr().out
    assert run(["bench", "compare", str(tmp_path / "prefill"), str(tmp_path / "normal")]) == 2
    assert "They sent different things" in capsys.readouterr().err


def test_a_speed_of_answers_is_no_floor_for_prefill(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "--prefill-only", "--concurrency", "1,2", "--repeats", "1"]
    assert bench(engine, *words, "--min-tps-user", "5") == 2
    assert "--min-tps-user is a speed of answers" in capsys.readouterr().err
    assert engine.asked == []
    assert bench(engine, *words, "--out", str(tmp_path)) == 0
    capsys.readouterr()
    assert run(["bench", "show", str(tmp_path), "--min-tps-user", "5"]) == 0
    said = capsys.readouterr().out
    assert "no answer has two tokens, so nothing can be held against 5 tokens/s/user" in said
    assert "are best" not in said


def mooncake(folder: Path, requests: int, apart_s: float = 0.001) -> Path:
    path = folder / "mooncake.jsonl"
    rows = ({"timestamp": 1000 * apart_s * at, "input_length": 8, "output_length": 1, "hash_ids": [at]}
            for at in range(requests))  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("rate", ["recorded", "1000"])
def test_an_open_loop_plays_the_whole_trace(
    rate: str, engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--workload", "trace", "--trace", str(mooncake(tmp_path, 9)), "--repeats", "1", "--warmup", "0"]
    assert run(["bench", "--endpoint", engine.url, *words, "--rate", rate]) == 0
    assert len(engine.asked) == 9
    assert "All 9 sessions." in capsys.readouterr().out
    assert run(["bench", "--endpoint", engine.url, *words, "--rate", rate, "--sessions", "3"]) == 0
    assert len(engine.asked) == 9 + 3
    assert "3 of 9 sessions, drawn with seed 0." in capsys.readouterr().out


def test_a_sweep_of_prefill_alone_has_a_picture(engine: Engine, tmp_path: Path) -> None:
    words = ["--prefill-only", "--concurrency", "1,2", "--repeats", "1", "--out", str(tmp_path / "out")]
    assert bench(engine, "sweep", *words) == 0
    assert "prompt tokens/s" in (tmp_path / "out" / "report.html").read_text()


def test_an_open_loop_that_takes_long_says_so_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optistack_bench.measure.LONG_S", 0.05)
    words = ["--workload", "trace", "--trace", str(mooncake(tmp_path, 3, apart_s=0.05)), "--rate", "recorded"]
    with Engine(Script()) as engine:
        assert run(["bench", "--endpoint", engine.url, *words, "--repeats", "2"]) == 0
    assert "3 sessions at recorded times take about 0 min to begin, each of 2 repeats" in capsys.readouterr().err


def test_an_open_loop_does_not_wait_for_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(Script(first_s=0.3)) as engine:
        words = ["--rate", "1000", "--repeats", "1", "--json"]
        assert run(["bench", "--endpoint", engine.url, *FAST, *words]) == 0
        (point,) = json.loads(capsys.readouterr().out)["points"]
    assert (point["users"], point["rate"]) == (None, 1000)
    assert point["repeats"][0]["figures"]["wall_s"] < 4 * 2 * 0.3, "eight requests one after the other take longer"


def test_users_get_further_sessions_until_the_time_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--users", "2", "--repeats", "2", "--divide", "1024"]
    prompts: list[list[list[int]]] = []
    for number, more in enumerate(([], ["--min-seconds", "1"], ["--min-seconds", "1"])):
        with Engine(Script(first_s=0.01)) as engine:
            assert bench(engine, *words, *more, "--out", str(tmp_path / str(number))) == 0
            prompts.append([body["prompt"] for body in engine.asked])
    said = capsys.readouterr()
    assert "Further sessions of the same kind begin until 1 s are over." in said.out
    few, *many = (result_of(tmp_path / str(number))["points"][0] for number in range(3))
    assert [repeat["figures"]["requests"] for repeat in few["repeats"]] == [8, 8]
    for point in many:
        assert point["workload"]["digest"] == few["workload"]["digest"]
        for repeat in point["repeats"]:
            assert repeat["figures"]["window_s"] >= 1 and repeat["figures"]["requests"] > 16
            assert repeat["figures"]["foreign_hits"] == 0
            assert repeat["figures"]["hit_rate_usage"] == pytest.approx(
                repeat["figures"]["hit_rate_possible"], abs=0.02
            )
    sent = [{tuple(prompt) for prompt in one} for one in prompts]
    assert len(sent[1]) == len(prompts[1]), "no session came twice"
    assert sent[0] < sent[1] and len(sent[1] & sent[2]) > 0.7 * len(sent[1]), (
        "every run sends the same, as far as it gets"
    )


@pytest.mark.parametrize("needed", [2, 8])
def test_a_further_session_that_does_not_fit_is_left_out(needed: int) -> None:
    settings = Settings(domains=("made",), divide=64, min_seconds=1)

    def maker(context: int | None) -> WorkloadMaker:
        return WorkloadMaker(settings, loop=Loop(), texts=Texts({}), context_tokens=context, model="m")

    context = maker(None).make(1).longest_tokens + 1

    async def taken() -> list[Session]:
        supply = maker(context).supply(1, maker(context).make(1), needed)
        return [session for _ in range(9) if (session := await supply.next()) is not None]

    nine = asyncio.run(taken())
    assert len(nine) == 9 and all(session.longest_tokens <= context for session in nine)
    names = [session.name for session in nine]
    assert names[:2] == ["session-0", "session-1"]
    assert names[-1] != "session-8", "some of the first nine are longer than both that were settled with"


def test_sessions_that_cannot_be_made_are_told(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optistack_bench.tokens.MAX_NAMES", 60)
    assert bench(engine, "--repeats", "1", "--min-seconds", "60", "--out", str(tmp_path / "out")) == 2
    assert "at most 60 different blocks" in capsys.readouterr().err


def test_a_time_is_for_a_number_of_users(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(engine, "--rate", "5", "--min-seconds", "1") == 2
    assert "--min-seconds is for a number of users" in capsys.readouterr().err


def test_a_window_that_is_too_short_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine(Script(first_s=0.01)) as engine:
        assert bench(engine, "--repeats", "1") == 0
        assert re.search(r"TOO SHORT to conclude from: 1 user \(0\.\d+ s\); a repeat", capsys.readouterr().out)
        monkeypatch.setattr("optistack_bench.result.SHORT_WINDOW_S", 0.01)
        assert bench(engine, "--repeats", "1", "--seed", "1") == 0
        assert "TOO SHORT" not in capsys.readouterr().out


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [str(value) for name, value in attrs if name in ("src", "href", "srcset")]


def test_a_sweep_draws_its_points_and_names_the_best(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["--concurrency", "1,2,4", "--min-tps-user", "0", "--repeats", "2", "--out", str(out)]
    assert bench(engine, "sweep", *words) == 0
    said = capsys.readouterr().out
    assert "at 0 tokens/s/user or more" in said
    assert (out / "pareto.png").read_bytes().startswith(b"\x89PNG")
    source = (out / "report.html").read_text()
    page = Page()
    page.feed(source)
    assert not re.search(r"<script|<link|<img|@import", source)
    assert all(link.startswith("#") for link in page.links), "it loads nothing"
    assert all(address.startswith("#") for address in re.findall(r"url\(([^)]*)\)", source))
    assert [point["users"] for point in result_of(out)["points"]] == [1, 2, 4]
    assert all(repeat["figures"]["foreign_hits"] == 0 for p in result_of(out)["points"] for repeat in p["repeats"])


def test_a_sweep_that_the_server_does_not_survive_recommends_what_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--concurrency", "1,2,4", "--min-tps-user", "0", "--repeats", "1", "--out", str(tmp_path)]
    with Engine(Script(dies_at=13, token_s=0.002)) as engine:
        assert bench(engine, "sweep", *words) == 1
    said = capsys.readouterr().out
    assert "at 0 tokens/s/user or more, 1 user is best" in said
    sentence = "endpoint: left out: 2 users (partial); 4 users (not measured)."
    assert sentence in said and sentence in (tmp_path / "report.html").read_text()
    assert "endpoint, left out" in (tmp_path / "report.html").read_text()
    assert run(["bench", "show", str(tmp_path), "--min-tps-user", "0"]) == 0
    assert sentence in capsys.readouterr().out


@pytest.mark.parametrize("text", ["1,,2", "0", "a"])
def test_a_concurrency_that_is_no_list(engine: Engine, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(engine, "sweep", "--concurrency", text) == 2
    assert "is no list of numbers" in capsys.readouterr().err
