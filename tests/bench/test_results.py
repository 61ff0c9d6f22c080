"""``optistack bench compare`` and ``bench show``: what is said of results that are there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.bench.conftest import FAST, Engine, Script, bench

from optistack.cli.run import run


def test_compare_tells_what_changed_beyond_the_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, script in (("slow", Script(first_s=0.05)), ("fast", Script()), ("again", Script())):
        with Engine(script) as engine:
            assert bench(engine, "--repeats", "3", "--out", str(tmp_path / name)) == 0
    capsys.readouterr()
    assert run(["bench", "compare", str(tmp_path / "slow"), str(tmp_path / "fast"), "--json"]) == 0
    changes = {one["figure"]: one["verdict"] for one in json.loads(capsys.readouterr().out)["changes"]}
    assert (changes["ttft_s_p50"], changes["hit_rate_usage"], changes["errors"]) == ("better", "same", "same")
    assert (changes["ttft_s_p95"], changes["ttft_s_p99"], changes["itl_s_p99"]) == ("too few", "too few", "too few")
    assert run(["bench", "compare", str(tmp_path / "fast"), str(tmp_path / "slow")]) == 0
    assert "ttft_s_p50 worse (1 user)" in capsys.readouterr().out


def test_other_workloads_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in ("1", "2"):
        with Engine(Script()) as engine:
            assert bench(engine, "--repeats", "1", "--seed", seed, "--out", str(tmp_path / seed)) == 0
    assert run(["bench", "compare", str(tmp_path / "1"), str(tmp_path / "2")]) == 2
    assert "They sent different things" in capsys.readouterr().err


def test_results_measured_apart_share_a_picture(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("plain", "all-on"):
        assert bench(engine, "--repeats", "1", "--out", str(tmp_path / name)) == 0
    capsys.readouterr()
    assert run(["bench", "show", str(tmp_path / "plain"), "--out", str(tmp_path / "drawn")]) == 0
    assert sorted(one.name for one in (tmp_path / "drawn").iterdir()) == ["pareto.png", "report.html"]
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
