"""A campaign: configurations of many lists on the GPUs of one host, the most wanted first."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
CAMPAIGNS = sorted(
    path for path in (BENCHMARKS / "configurations").glob("*.yaml") if "campaign" in yaml.safe_load(path.read_text())
)
SCHEDULE: dict[str, Any] = runpy.run_path(str(BENCHMARKS / "schedule.py"))
SCRIPT: dict[str, Any] = runpy.run_path(str(BENCHMARKS / "run_campaign.py"))
Job = SCHEDULE["Job"]


def begun(jobs: list[Any], free: dict[int, float], ended: tuple[str, ...] = ()) -> list[tuple[str, tuple[int, ...]]]:
    return [(run.job.name, run.gpus) for run in SCHEDULE["to_begin"](jobs, ended, free)]


def test_small_engines_share_a_gpu_and_a_large_one_finds_the_other() -> None:
    jobs = [Job("l", "a", 30), Job("l", "b", 30), Job("l", "large", 74)]
    assert begun(jobs, {0: 80.0, 1: 80.0}) == [("a", (0,)), ("b", (0,)), ("large", (1,))]


def test_a_large_engine_is_not_kept_waiting_by_small_ones_behind_it() -> None:
    jobs = [Job("l", "large", 74), Job("l", "small", 6)]
    assert begun(jobs, {0: 50.0}) == []
    assert begun(jobs, {0: 20.0, 1: 50.0}) == [("small", (0,))], "the roomier GPU is kept"
    assert begun([Job("l", "pair", 60, gpus=2), Job("l", "small", 6)], {0: 20.0, 1: 80.0}) == []


def test_what_comes_after_another_begins_at_its_end_and_holds_nobody() -> None:
    jobs = [Job("l", "again", 6, after=("first",)), Job("l", "small", 6)]
    assert begun(jobs, {0: 10.0}) == [("small", (0,))]
    assert begun(jobs, {0: 10.0}, ended=("first",)) == [("again", (0,))]


def test_what_needs_more_gpus_than_there_are_is_left_out_with_what_comes_after_it() -> None:
    pair, then, alone = Job("l", "pair", 6, gpus=2), Job("l", "then", 6, after=("pair",)), Job("l", "alone", 6)
    assert SCHEDULE["possible"]([pair, then, alone], 1, 100.0) == [alone]
    assert SCHEDULE["possible"]([pair, then, alone], 2, 100.0) == [pair, then, alone]
    assert SCHEDULE["possible"]([Job("l", "large", 101.0)], 2, 100.0) == []


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 2), st.integers(1, 50), st.integers(1, 50)), max_size=12))
def test_every_job_runs_in_the_room_there_is_and_is_measured_alone(made: list[tuple[int, int, int, int]]) -> None:
    names = [f"job{at}" for at in range(len(made))]
    jobs = [
        Job("l", name, gib, gpus, names[max(0, at - 3) : max(0, at - 2)], start_s, measure_s)
        for at, (name, (gib, gpus, start_s, measure_s)) in enumerate(zip(names, made, strict=True))
    ]
    runs = SCHEDULE["simulate"](jobs, 2, 100.0)
    assert sorted(run.job.name for run in runs) == sorted(names)
    ends = {run.job.name: run.ended_s for run in runs}
    for run in runs:
        assert len(run.gpus) == run.job.gpus
        assert run.began_s >= max((ends[name] for name in run.job.after), default=0)
        assert run.ended_s == run.measured_s + run.job.measure_s and run.measured_s >= run.up_s
        for gpu in run.gpus:
            there = [one for one in runs if gpu in one.gpus and one.began_s <= run.began_s < one.ended_s]
            assert sum(one.job.gpu_gib for one in there) <= 100
            assert not [one for one in there if one.measured_s < run.measured_s < one.ended_s]


@pytest.mark.parametrize("path", CAMPAIGNS, ids=lambda path: path.stem)
def test_a_campaign_names_configurations_that_there_are(path: Path) -> None:
    jobs, gpu_gib = SCRIPT["read"](path)
    assert SCHEDULE["simulate"](SCHEDULE["possible"](jobs, 2, gpu_gib), 2, gpu_gib)


def test_there_is_a_campaign() -> None:
    assert CAMPAIGNS


STUB = """
import os, pathlib, signal, sys
words = dict(zip(sys.argv[2::2], sys.argv[3::2]))
name, rows = words["--only"], pathlib.Path(words["--rows"])
rows.with_name(name + ".seen").write_text(os.environ["CUDA_VISIBLE_DEVICES"] + " " + words["--out"])
if name == "stays":
    signal.signal(signal.SIGTERM, lambda *_: (rows.write_text("kept"), sys.exit(130)))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(1))
    print("stays is up", flush=True)
    signal.pause()
sys.exit(name == "fails")
"""
MAIN = """
import pathlib, sys
sys.path.insert(0, sys.argv.pop(1))
import run_campaign
run_campaign.RUNNER = pathlib.Path(sys.argv.pop(1))
sys.exit(run_campaign.main())
"""


@pytest.fixture
def campaign(tmp_path: Path) -> list[str]:
    """The words of a campaign whose runner is a stand-in; its file is to be written by :func:`write`."""
    (tmp_path / "stub.py").write_text(STUB)
    words = [sys.executable, "-c", MAIN, str(BENCHMARKS), str(tmp_path / "stub.py"), str(tmp_path / "campaign.yaml")]
    return [*words, "--out", str(tmp_path / "out"), "--gpus", "3"]


def write(folder: Path, *jobs: dict[str, Any]) -> None:
    listed = {"configurations": [{"name": job["name"]} for job in jobs]}
    (folder / "list.yaml").write_text(yaml.safe_dump(listed))
    document = {"campaign": "c", "gpu_gib": 10, "jobs": [{"list": "list.yaml", "gpu_gib": 6, **job} for job in jobs]}
    (folder / "campaign.yaml").write_text(yaml.safe_dump(document))


def test_each_job_runs_on_its_gpu_and_a_failure_is_told_and_stops_no_other(campaign: list[str], tmp_path: Path) -> None:
    write(tmp_path, {"name": "fails"}, {"name": "pair", "gpus": 2}, {"name": "then", "after": ["fails"]})
    done = subprocess.run(campaign, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "pair is left out" in done.stdout
    told = json.loads((tmp_path / "out" / "campaign.json").read_text())
    assert {name: job["exit_code"] for name, job in told["jobs"].items()} == {"fails": 1, "then": 0}
    assert told["jobs"]["then"]["gpus"] == ["3"] and told["not_begun"] == []
    assert (tmp_path / "out" / "rows" / "then.seen").read_text() == f"3 {tmp_path / 'out' / 'list'}"


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_when_it_is_told_to_end_is_told_once_and_waited_for(
    campaign: list[str], tmp_path: Path, signum: signal.Signals
) -> None:
    """A terminal's Ctrl-C goes to the whole process group; a job that is told twice does not wait for what it runs."""
    write(tmp_path, {"name": "stays"}, {"name": "late"})
    log = tmp_path / "out" / "rows" / "stays.log"
    with subprocess.Popen(campaign, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        assert "stays begins on GPU 3" in process.stdout.readline()
        while "is up" not in log.read_text():
            os.sched_yield()
        os.killpg(process.pid, signum) if signum is signal.SIGINT else process.send_signal(signum)
        assert "stays ended with 130" in process.communicate(timeout=60)[0]
    assert process.returncode == 1
    told = json.loads((tmp_path / "out" / "campaign.json").read_text())
    assert told["jobs"]["stays"]["exit_code"] == 130 and told["not_begun"] == ["late"]
    assert (log.parent / "stays.json").read_text() == "kept"


def test_nothing_runs_on_when_the_time_is_over(campaign: list[str], tmp_path: Path) -> None:
    write(tmp_path, {"name": "stays"}, {"name": "late"})
    done = subprocess.run([*campaign, "--seconds", "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    told = json.loads((tmp_path / "out" / "campaign.json").read_text())
    assert told["jobs"]["stays"]["exit_code"] and told["not_begun"] == ["late"]


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ([{"name": "a"}, {"name": "a"}], "a is there twice"),
        ([{"name": "a", "after": ["b"]}, {"name": "b"}], "a is to begin after b, which does not come before it"),
        ([{"name": "a", "list": "other.yaml"}], "other.yaml has no configuration a"),
    ],
)
def test_a_slip_in_a_campaign_is_named(
    campaign: list[str], tmp_path: Path, jobs: list[dict[str, Any]], said: str
) -> None:
    write(tmp_path, *jobs)
    (tmp_path / "other.yaml").write_text("configurations: []")
    done = subprocess.run(campaign, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and said in done.stderr
    assert not (tmp_path / "out").exists()
