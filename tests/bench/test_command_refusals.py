"""How ``optistack bench`` ends where the server, the input or the folder is not as it should be."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.bench.conftest import FAST, Engine, Script, bench, result_of

from optistack.cli.run import run
from optistack.errors import InputError
from optistack_bench.records import Journal


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


def test_an_event_that_is_no_json_is_an_error_and_one_without_choices_no_token(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Engine(Script(noise=b"{not json")) as engine:
        assert run(["bench", "--endpoint", engine.url, *FAST[:-1], "1"]) == 1
    assert "bad event: {not json" in capsys.readouterr().err
    with Engine(Script(noise=b'{"id":1}')) as engine:
        assert bench(engine, "--repeats", "1", "--out", str(tmp_path / "out")) == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "requests.jsonl").read_text().splitlines()]
    assert all(len(line["gaps_s"]) == line["output_tokens"] - 1 and not line["error"] for line in lines)


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


def test_metrics_that_hang_hold_nobody(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optistack_bench.measure.METRICS_TIMEOUT_S", 0.2)
    began_s = time.perf_counter()
    with Engine(Script(metrics_s=8)) as engine:
        assert bench(engine, "--repeats", "1", "--json") == 0
    assert time.perf_counter() - began_s < 6
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert (point["repeats"][0]["figures"]["requests"], point["repeats"][0]["counters"]) == (8, {})


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
