"""``optistack bench`` as a program, against a scripted engine: what it sends, counts, keeps and says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.bench.conftest import FAST, Engine, Script, bench, result_of

from optistack.cli.run import run


def test_a_run_prints_json_and_keeps_every_request(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(engine, "--users", "2", "--repeats", "2", "--json", "--out", str(tmp_path / "out")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == result_of(tmp_path / "out")
    (point,) = printed["points"]
    assert (printed["state"], point["users"], len(point["repeats"])) == ("complete", 2, 2)
    lines = [json.loads(line) for line in (tmp_path / "out" / "requests.jsonl").read_text().splitlines()]
    assert [line["repeat"] for line in lines] == [0] * 8 + [1] * 8
    figures = point["repeats"][0]["figures"]
    assert figures["hit_rate_usage"] == figures["hit_rate_engine"] == pytest.approx(figures["hit_rate_possible"])
    assert (figures["hits_agree"], figures["acceptance_length"], figures["errors"]) == (1, 2, 0)
    assert point["repeats"][1]["figures"]["foreign_hits"] == 0, "a repeat finds nothing of the one before"


def test_requests_carry_their_session_and_the_asked_length(engine: Engine) -> None:
    assert bench(engine, "--users", "2", "--repeats", "1") == 0
    assert sorted(set(map(str, engine.sessions))) == [f"session-{at}.1" for at in range(4)]
    assert all(body["ignore_eos"] and body["temperature"] == 0 and body["stream"] for body in engine.asked)
    prompts = [
        body["prompt"] for body, name in zip(engine.asked, engine.sessions, strict=True) if name == "session-1.1"
    ]
    assert prompts[1][: len(prompts[0])] == prompts[0]


def test_sessions_of_another_repeat_have_other_names(engine: Engine) -> None:
    assert bench(engine, "--repeats", "2") == 0
    assert {str(name) for name in engine.sessions} == {f"session-{at}.{run}" for at in range(4) for run in (1, 2)}


def test_two_runs_send_the_same(engine: Engine) -> None:
    for _ in range(2):
        assert bench(engine, "--repeats", "1") == 0
    half = len(engine.asked) // 2
    assert engine.asked[:half] == engine.asked[half:]


def test_a_server_that_knows_the_workload_is_told_apart(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert bench(engine, "--repeats", "1") == 0
    assert "the server has seen this workload" in capsys.readouterr().out


def test_warm_up_is_sent_and_not_counted(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "--endpoint", engine.url, *FAST[:-1], "1", "--users", "3", "--repeats", "1", "--json"]) == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert (len(engine.asked), point["repeats"][0]["figures"]["requests"]) == (8 + 3, 8)


def test_http_errors_and_cut_streams_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(Script(fail={1: 500, 4: 429}, cut_at=6)) as engine:
        assert bench(engine, "--repeats", "1") == 1
    said = capsys.readouterr()
    assert "3 requests failed (1 x HTTP 500, 1 x HTTP 429, 1 x cut off) and are in no latency" in said.out
    assert "scripted" in said.out
    assert "37.5% of a repeat's requests failed, and --max-errors allows 0.0%" in said.err


def test_errors_up_to_a_stated_share_are_no_failed_run(capsys: pytest.CaptureFixture[str]) -> None:
    """By the worst repeat: 2 of 8 requests of the second, which are 2 of 16 over both."""
    for allowed, code in (("0.2", 1), ("0.25", 0)):
        with Engine(Script(fail={9: 500, 12: 500})) as engine:
            assert bench(engine, "--repeats", "2", "--max-errors", allowed) == code
        assert "2 requests failed" in capsys.readouterr().out


def test_an_open_connection_is_used_again_and_opening_one_is_told(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(engine, "--users", "2", "--repeats", "1", "--json") == 0
    figures = json.loads(capsys.readouterr().out)["points"][0]["repeats"][0]["figures"]
    assert (figures["connect_s_n"], figures["ttft_s_n"]) == (2, 8)
    assert 0 < figures["connect_s_p50"] < 1
    assert bench(engine, "--users", "2", "--repeats", "1") == 0
    assert "2 of 8 requests opened a connection" in capsys.readouterr().out


def usage_of(prompt: int = 0, output: float = 1) -> Callable[[int, int], dict[str, int]]:
    """Usage that counts ``prompt`` tokens of every prompt (0: as it is), and ``output`` times those of an answer."""
    return lambda sent, out: {"prompt_tokens": prompt or sent, "completion_tokens": max(1, int(output * out))}


def test_what_is_possible_is_of_what_was_sent(capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(Script(usage=usage_of(prompt=10))) as engine:
        assert bench(engine, "--repeats", "1", "--json") == 0
    (repeat,) = json.loads(capsys.readouterr().out)["points"][0]["repeats"]
    assert repeat["figures"]["hit_rate_possible"] < 1
    assert all(one["reusable_tokens"] <= one["prompt_tokens"] for one in repeat["sessions"])


def test_usage_that_is_missing_or_impossible_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    for script, figure, note in (
        (Script(usage=False), "without_usage", "of 8 answers 8 came without usage"),
        (Script(usage=usage_of(prompt=10)), "other_prompt", "8 count another number of prompt tokens than were sent"),
        (Script(usage=usage_of(output=0.5)), "other_length", "8 count another number of tokens than were asked for"),
        (Script(usage=usage_of(output=3)), "other_length", "8 count another number of tokens than were asked for"),
        (Script(lie=5000), "cached_above_prompt", "of 8 answers 8 claim more cached tokens than their prompt has"),
    ):
        for words in (["--json"], []):
            with Engine(script) as engine:
                assert bench(engine, "--repeats", "1", *words) == 0
            said = capsys.readouterr().out
            if words:
                assert json.loads(said)["points"][0]["repeats"][0]["figures"][figure] == 8
            else:
                assert note in said


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": "many"},
        {"completion_tokens": -4},
        {"prompt_tokens_details": [1]},
        {"prompt_tokens_details": {"cached_tokens": "x"}},
    ],
)
def test_usage_that_cannot_be_read_is_an_error_of_its_request(
    usage: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Engine(Script(usage=usage)) as engine:
        assert bench(engine, "--repeats", "1", "--out", str(tmp_path / "out")) == 1
    assert "8 requests failed (8 x bad usage)" in capsys.readouterr().out
    assert result_of(tmp_path / "out")["why"].endswith("no request was answered (8 x bad usage).")


def test_a_session_cannot_add_headers(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    row = {"id": "a\r\nX-Session-Id: \u2603", "requests": [{"in": 64, "out": 2, "hash_ids": [1]}]}
    trace.write_text(json.dumps(row) + "\n")
    words = ["--workload", "trace", "--trace", str(trace), "--sessions", "1", "--warmup", "0", "--repeats", "1"]
    with Engine(Script()) as engine:
        assert run(["bench", "--endpoint", engine.url, *words]) == 0
        assert engine.sessions == ["a%0D%0AX-Session-Id:%20%E2%98%83#0.1"]


def test_a_session_cannot_write_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ({"id": name, "requests": [{"in": 64, "out": 2, "hash_ids": [1]}]} for name in ("a\n\x1b[2Jb", "\ud800"))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--workload", "trace", "--trace", str(tmp_path / "t.jsonl"), "--warmup", "0", "--repeats", "1"]
    with Engine(Script()) as engine:
        assert run(["bench", "--endpoint", engine.url, *words, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "its worst session, a\ufffd\ufffd[2Jb#0" in said and "\x1b" not in said


def test_a_password_is_used_and_never_shown(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = engine.url.replace("//", "//u:sek%20rit@")
    assert run(["bench", "--endpoint", url, *FAST, "--repeats", "1", "--out", str(tmp_path)]) == 0
    assert engine.logins == {"Basic dTpzZWsgcml0"}
    engine.stop()
    assert run(["bench", "--endpoint", url, *FAST]) == 2
    said = capsys.readouterr()
    assert f"No engine answers at {engine.url}/" in said.err
    kept = (tmp_path / "result.json").read_text() + (tmp_path / "requests.jsonl").read_text()
    assert "sek" not in said.out + said.err + kept


def test_figures_are_split_by_domain(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sessions", "2", "--turns", "1", "--repeats", "1", "--warmup", "0", "--json"]
    assert run(["bench", "--endpoint", engine.url, *words]) == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert set(point["repeats"][0]["by_domain"]) == {"code", "prose"}


def test_a_wall_clock_that_runs_backwards_changes_nothing(
    engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(2_000_000_000, 0, -1000))
    monkeypatch.setattr("time.time", lambda: float(next(clock)))
    assert bench(engine, "--repeats", "1", "--json") == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    figures = point["repeats"][0]["figures"]
    assert 0 < figures["ttft_s_p50"] <= figures["latency_s_p99"] <= figures["wall_s"] < 60
