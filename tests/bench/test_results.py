"""``optistack bench compare`` and ``bench show``: what is said of results that are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bench.conftest import FAST, Engine, Script, bench, result_of

from optistack.cli.run import run


def test_compare_tells_what_changed_beyond_the_noise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, script in (("slow", Script(first_s=0.05)), ("fast", Script()), ("again", Script())):
        with Engine(script) as engine:
            assert bench(engine, "--repeats", "3", "--out", str(tmp_path / name)) == 0
    capsys.readouterr()
    assert run(["bench", "compare", str(tmp_path / "fast"), str(tmp_path / "slow")]) == 0
    said = capsys.readouterr().out
    assert "Beyond the noise: nothing." in said and "TOO SHORT" in said
    monkeypatch.setattr("optistack_bench.result.SHORT_WINDOW_S", 0.0)
    assert run(["bench", "compare", str(tmp_path / "slow"), str(tmp_path / "fast"), "--json"]) == 0
    changes = {one["figure"]: one["verdict"] for one in json.loads(capsys.readouterr().out)["changes"]}
    assert (changes["ttft_s_p50"], changes["hit_rate_usage"], changes["errors"]) == ("better", "same", "same")
    assert (changes["ttft_s_p95"], changes["ttft_s_p99"], changes["itl_s_p99"]) == ("too few", "too few", "too few")
    assert run(["bench", "compare", str(tmp_path / "fast"), str(tmp_path / "slow")]) == 0
    assert "TTFT p50 ms worse (1 user)" in capsys.readouterr().out


def test_what_else_differs_is_named(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert bench(engine, "--repeats", "1", "--gpus", "8", "--out", str(one)) == 0
    assert bench(engine, "--repeats", "2", "--out", str(other)) == 0
    capsys.readouterr()
    wanted = [f"--repeats: 1 in {one}, 2 in {other}.", f"GPUs counted: 8 in {one}, 1 in {other}."]
    assert run(["bench", "compare", str(one), str(other)]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == wanted
    assert run(["bench", "compare", str(one), str(other), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == wanted
    assert run(["bench", "show", str(one), str(other), "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "--repeats: 1 in one, 2 in other.",
        "GPUs counted: 8 in one, 1 in other.",
    ]


def test_compare_says_which_server_had_seen_the_workload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cold, warm = tmp_path / "cold", tmp_path / "warm"
    with Engine(Script()) as engine:
        for folder in (cold, warm):
            assert bench(engine, "--repeats", "2", "--out", str(folder)) == 0
    capsys.readouterr()
    assert run(["bench", "compare", str(cold), str(warm)]) == 0
    *_, beyond, sentence, first_short, second_short = capsys.readouterr().out.splitlines()
    assert beyond.startswith("Beyond the noise: ") and sentence.startswith(f"{warm}, 1 user: ")
    assert "TOO SHORT to conclude from" in first_short and second_short.startswith(f"{warm}: TOO SHORT")
    assert "the server has seen this workload" in sentence
    assert run(["bench", "compare", str(cold), str(warm), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seen_before"] == [sentence]


def test_a_result_without_an_answer_is_never_shown_as_a_whole_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    with Engine(Script()) as engine:
        assert bench(engine, "--repeats", "1", "--out", str(good)) == 0
    with Engine(Script(fail=dict.fromkeys(range(99), 500))) as engine:
        assert bench(engine, "--repeats", "1", "--out", str(bad)) == 1
    why = "endpoint, 1 user: no request was answered (8 x HTTP 500)."
    assert (result_of(bad)["state"], result_of(bad)["why"]) == ("partial", why)
    capsys.readouterr()
    assert run(["bench", "show", str(bad)]) == 0
    assert f"PARTIAL: {why}" in " ".join(capsys.readouterr().out.split())
    assert run(["bench", "compare", str(good), str(bad)]) == 0
    assert f"{bad} is no measurement to go by: The benchmark is partial: {why}" in capsys.readouterr().err
    assert run(["bench", "compare", str(good), str(bad), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["problems"] == {str(bad): f"The benchmark is partial: {why}"}


def test_a_result_with_more_errors_than_allowed_is_told_when_it_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Engine(Script(fail={1: 500})) as engine:
        assert bench(engine, "--repeats", "1", "--out", str(tmp_path / "it")) == 1
    capsys.readouterr()
    assert run(["bench", "show", str(tmp_path / "it"), "--pictures"]) == 0
    sentence = "12.5% of a repeat's requests failed, and --max-errors allows 0.0%."
    assert f"FAILED: endpoint, 1 user: {sentence}" in " ".join(capsys.readouterr().out.split())
    assert "12.5% of a repeat" in (tmp_path / "it" / "report.html").read_text()


def test_a_figure_that_is_no_number_is_one_sentence(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(engine, "--repeats", "2", "--out", str(tmp_path)) == 0
    kept = result_of(tmp_path)
    kept["points"][0]["repeats"][1]["figures"]["ttft_s_p50"] = float("nan")
    (tmp_path / "result.json").write_text(json.dumps(kept))
    for command in (["show", str(tmp_path)], ["compare", str(tmp_path), str(tmp_path)]):
        capsys.readouterr()
        assert run(["bench", *command]) == 2
        assert "is no result of `optistack bench` (points.0.repeats.1.figures.ttft_s_p50: " in capsys.readouterr().err


def test_other_workloads_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in ("1", "2"):
        with Engine(Script()) as engine:
            assert bench(engine, "--repeats", "1", "--seed", seed, "--out", str(tmp_path / seed)) == 0
    assert run(["bench", "compare", str(tmp_path / "1"), str(tmp_path / "2")]) == 2
    assert "They sent different things" in capsys.readouterr().err


def test_runs_that_went_on_for_other_times_are_not_held_against_each_other(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(engine, "--repeats", "1", "--out", str(tmp_path / "1")) == 0
    assert bench(engine, "--repeats", "1", "--min-seconds", "0.1", "--out", str(tmp_path / "2")) == 0
    assert run(["bench", "compare", str(tmp_path / "1"), str(tmp_path / "2")]) == 2
    assert "--min-seconds 0 and 0.1" in capsys.readouterr().err
    assert run(["bench", "show", str(tmp_path / "1"), str(tmp_path / "2")]) == 2
    assert "2 was measured with another workload than 1" in capsys.readouterr().err


def test_results_measured_apart_share_a_picture(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("plain", "all-on"):
        assert bench(engine, "--repeats", "1", "--out", str(tmp_path / name)) == 0
    capsys.readouterr()
    (tmp_path / "drawn").mkdir()
    (tmp_path / "drawn" / "pareto.png").symlink_to(tmp_path / "picture")
    assert run(["bench", "show", str(tmp_path / "plain"), "--out", str(tmp_path / "drawn")]) == 0
    assert sorted(one.name for one in (tmp_path / "drawn").iterdir()) == ["pareto.png", "report.html"]
    assert (tmp_path / "drawn" / "pareto.png").is_symlink()
    assert (tmp_path / "picture").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    places = [str(tmp_path / "plain"), str(tmp_path / "all-on" / "result.json")]
    assert run(["bench", "show", *places, "--pictures", "--out", str(tmp_path / "both"), "--json"]) == 0
    assert [point["target"] for point in json.loads(capsys.readouterr().out)["points"]] == ["plain", "all-on"]
    assert sorted(one.name for one in (tmp_path / "both").iterdir()) == ["pareto.png", "report.html"]
    assert "all-on" in (tmp_path / "both" / "report.html").read_text()
    assert run(["bench", "show", *places, "--pictures"]) == 2
    assert "--out DIR" in capsys.readouterr().err


def test_results_of_other_workloads_share_none(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(engine, "--repeats", "1", "--out", str(tmp_path / "two")) == 0
    assert run(["bench", "--endpoint", engine.url, *FAST, "--seed", "1", "--out", str(tmp_path / "other")]) == 0
    capsys.readouterr()
    assert run(["bench", "show", str(tmp_path / "two"), str(tmp_path / "other")]) == 2
    assert "other was measured with another workload than two" in capsys.readouterr().err
