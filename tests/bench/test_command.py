"""``optistack bench`` as a program, against a scripted engine: what it keeps, what it says, and how it ends."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.bench.conftest import FAST, Engine, Script, bench, result_of

from optistack.cli.run import run
from optistack.errors import InputError
from optistack_bench.records import Journal


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
    assert sorted(set(map(str, engine.sessions))) == [f"session-{at}" for at in range(4)]
    assert all(body["ignore_eos"] and body["temperature"] == 0 and body["stream"] for body in engine.asked)
    prompts = [body["prompt"] for body, name in zip(engine.asked, engine.sessions, strict=True) if name == "session-1"]
    assert prompts[1][: len(prompts[0])] == prompts[0]


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


@pytest.mark.parametrize("points", [True, False])
def test_a_run_that_measured_nothing_leaves_nothing(tmp_path: Path, points: bool) -> None:
    out = tmp_path / "new" / "out"
    command = ["sweep", "--concurrency", "1,2"] if points else []
    with Engine(Script(fail=dict.fromkeys(range(99), 400))) as engine:
        words = [*command, "--endpoint", engine.url, *FAST[:-1], "1", "--out", str(out)]
        assert run(["bench", *words]) == 1
    assert list(tmp_path.iterdir()) == []
    assert run(["bench", "--endpoint", "http://127.0.0.1:1", "--out", str(tmp_path)]) == 2
    assert list(tmp_path.iterdir()) == [], "a folder of the user's stays"
    with Engine(Script()) as engine:
        assert bench(engine, "--repeats", "1", "--out", str(tmp_path)) == 0
    assert run(["bench", "--endpoint", "http://127.0.0.1:1", "--out", str(tmp_path)]) == 2
    assert result_of(tmp_path)["state"] == "complete", "what was measured stays"


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
        assert engine.sessions == ["a%0D%0AX-Session-Id:%20%E2%98%83#0"]


def test_a_session_cannot_write_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ({"id": name, "requests": [{"in": 64, "out": 2, "hash_ids": [1]}]} for name in ("a\n\x1b[2Jb", "\ud800"))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--workload", "trace", "--trace", str(tmp_path / "t.jsonl"), "--warmup", "0", "--repeats", "1"]
    with Engine(Script()) as engine:
        assert run(["bench", "--endpoint", engine.url, *words, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "its worst session, a\ufffd\ufffd[2Jb#0" in said and "\x1b" not in said


def test_a_server_that_dies_leaves_a_partial_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(Script(dies_at=11)) as engine:
        assert bench(engine, "--repeats", "3", "--out", str(tmp_path / "out")) == 1
    said = capsys.readouterr()
    assert "partial" in said.err and "PARTIAL" in said.out
    kept = result_of(tmp_path / "out")
    assert kept["state"] == "partial" and "No engine answers" in kept["why"]
    whole, broken = kept["points"][0]["repeats"]
    assert (whole["ended"], bool(broken["ended"]), whole["figures"]["requests"]) == ("", True, 8)
    lines = [json.loads(line) for line in (tmp_path / "out" / "requests.jsonl").read_text().splitlines()]
    assert len(lines) >= 11
    # The seconds in which nobody answered any more are in no rate.
    (died_s,) = (line["end_s"] for line in lines if line["repeat"] == 1 and line["error"])
    assert broken["figures"]["wall_s"] == pytest.approx(died_s, abs=1e-3)
    assert broken["figures"]["window_s"] == broken["figures"]["wall_s"]
    assert not {"little", "generator_cpu"} & set(broken["figures"])


def test_a_server_that_answers_nothing_is_told_in_the_warm_up(capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(Script(fail=dict.fromkeys(range(99), 400))) as engine:
        assert run(["bench", "--endpoint", engine.url, *FAST[:-1], "1"]) == 1
    assert "answered no request of the warm-up: HTTP 400" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "words", "fix"),
    [
        (Script(fail=dict.fromkeys(range(99), 401)), [], "Put the key into OPTISTACK_API_KEY."),
        (Script(fail=dict.fromkeys(range(99), 429)), [], "give fewer users"),
        (Script(fail=dict.fromkeys(range(99), 400)), [], "It has to take token ids"),
        (Script(fail=dict.fromkeys(range(99), 500)), [], "Its log says why."),
        (Script(error_event=True), [], "Its log says why."),
        (Script(first_s=2), ["--timeout", "1", "--sessions", "1"], "--timeout"),
    ],
)
def test_the_fix_is_for_what_went_wrong(
    script: Script, words: list[str], fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Engine(script) as engine:
        assert run(["bench", "--endpoint", engine.url, *FAST[:-1], "1", *words]) == 1
    (said,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith("Fix: "))
    assert fix in said


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


def test_an_engine_that_is_named_twice_is_refused(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    again = engine.url.replace("127.0.0.1", "localhost")
    assert bench(engine, "--engine", engine.url, "--engine", again) == 2
    assert f"--engine {engine.url} and {again} are one engine." in capsys.readouterr().err
    assert engine.asked == []


def test_a_server_that_dies_in_the_warm_up_is_not_taken_for_one_that_cannot(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Engine(Script(dies_at=0)) as engine:
        assert run(["bench", "--endpoint", engine.url, *FAST[:-1], "1"]) == 1
    said = capsys.readouterr().err
    assert f"Error: {engine.url} went away in the warm-up: " in said
    assert "/v1/completions" not in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--workload", "3k-100"], "takes 3,100 tokens, and toy has a context of 2,048"),
        (["--workload", "nothing"], "There is no workload 'nothing'"),
        (["--domain", "poems"], "There is no domain 'poems'"),
        (["--rate", "fast"], "--rate fast is no number"),
        (["--rate", "recorded"], "sessions does not say when its sessions began"),
        (["--rate", "2"], "How many sessions are to be started at --rate 2?"),
        (["--users", "4", "--sessions", "3"], "4 users cannot be at work with --sessions 3"),
        (["sweep", "--concurrency", "1,4", "--sessions", "3"], "4 users cannot be at work with --sessions 3"),
        (["--session-header", "X: Y"], "--session-header 'X: Y' is no header that can carry a session"),
        (["--session-header", "Content-Length"], "'Content-Length' is no header that can carry a session"),
        (["--divide", "x"], "--divide x is no power of two"),
        (["--divide", "0"], "--divide 0 is no power of two"),
        (["--rate", "1e-300"], "--rate 1e-300 is no number"),
        (["--users", "100000"], "10000"),
        (["--sessions", "99999999999"], "1000000"),
        (["--turns", "99999999999"], "1000"),
        (["--workload", "trace", "--trace", "/nope.jsonl"], "Trace /nope.jsonl cannot be read"),
        (["--out", "/proc/version"], "--out /proc/version is no folder"),
        (["--backend", "vllm"], "--backend goes with --stack, and --endpoint is given."),
        (["--set", "name=x", "--no-baseline"], "--set and --no-baseline go with --stack, and --endpoint is given."),
    ],
)
def test_wrong_input_is_2_and_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(Script(context=2048)) as engine:
        command = ["bench", *words, "--endpoint", engine.url, "--domain", "made"]
        assert run(command) == 2
        assert engine.asked == []
    assert sentence in capsys.readouterr().err


def test_nobody_and_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["bench", "--endpoint", "http://127.0.0.1:1"]) == 2
    assert "No engine answers" in capsys.readouterr().err
    assert run(["bench"]) == 2
    assert "What is to be measured?" in capsys.readouterr().err
    assert run(["bench", "--stack", "x.yaml", "--gpus", "2"]) == 2
    assert "--gpus goes with --endpoint, and --stack is given." in capsys.readouterr().err
    assert run(["bench", "compare", str(tmp_path), str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_a_link_to_nothing_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "gone")
    assert run(["bench", "--endpoint", "http://127.0.0.1:1", "--out", str(tmp_path / "out")]) == 2
    assert f"out is a link to {tmp_path / 'gone'}, which is not there." in capsys.readouterr().err


@pytest.mark.parametrize("name", ["requests.jsonl", "result.json"])
def test_what_another_run_left_is_not_touched(
    name: str, engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("kept")
    for url in (engine.url, "http://127.0.0.1:1"):
        assert run(["bench", "--endpoint", url, *FAST, "--out", str(tmp_path)]) == 2
        assert f"holds a result already: {name}" in capsys.readouterr().err
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [(name, "kept")]
    assert engine.asked == []


def test_requests_are_never_written_over_others(tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text("kept")
    with pytest.raises(InputError, match="is there already"):
        Journal(tmp_path / "requests.jsonl")
    assert (tmp_path / "requests.jsonl").read_text() == "kept"


def test_text_needs_a_server_that_tokenizes(capsys: pytest.CaptureFixture[str]) -> None:
    for tokenizes in (False, None):
        with Engine(Script(tokenizes=tokenizes)) as engine:
            assert run(["bench", "--endpoint", engine.url]) == 2
        assert "--domain made" in capsys.readouterr().err


def test_figures_are_split_by_domain(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sessions", "2", "--turns", "1", "--repeats", "1", "--warmup", "0", "--json"]
    assert run(["bench", "--endpoint", engine.url, *words]) == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert set(point["repeats"][0]["by_domain"]) == {"code", "prose"}


def test_metrics_that_hang_hold_nobody(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optistack_bench.measure.METRICS_TIMEOUT_S", 0.2)
    began_s = time.perf_counter()
    with Engine(Script(metrics_s=8)) as engine:
        assert bench(engine, "--repeats", "1", "--json") == 0
    assert time.perf_counter() - began_s < 6
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert (point["repeats"][0]["figures"]["requests"], point["repeats"][0]["counters"]) == (8, {})


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


def test_a_wall_clock_that_runs_backwards_changes_nothing(
    engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(2_000_000_000, 0, -1000))
    monkeypatch.setattr("time.time", lambda: float(next(clock)))
    assert bench(engine, "--repeats", "1", "--json") == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    figures = point["repeats"][0]["figures"]
    assert 0 < figures["ttft_s_p50"] <= figures["latency_s_p99"] <= figures["wall_s"] < 60


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


def test_another_kind_of_answer_to_tokenize_asks_whether_it_is_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(Script(tokenizes="hello")) as engine:
        assert run(["bench", "--endpoint", engine.url, "--sessions", "1"]) == 2
    said = capsys.readouterr().err
    assert "/tokenize answers, but not with a list of numbers under `tokens`" in said
    assert '\'{"answer": "hello"}\'' in said
    assert "Fix: Is this the address of an engine" in said


def test_a_server_that_lists_no_model_is_wrong_input(capsys: pytest.CaptureFixture[str]) -> None:
    with Engine(Script(lists=False)) as engine:
        assert bench(engine) == 2
    assert "/v1/models lists no model" in capsys.readouterr().err
