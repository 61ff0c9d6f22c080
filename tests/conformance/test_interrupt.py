"""A run of the suite that is told to stop, or whose server goes away, writes whole reports that say so, and no pass."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest

from optistack.errors import CheckFailedError
from optistack.verify.endpoint import Endpoint
from optistack_conformance import runner
from optistack_conformance.faults.server import FaultyServer
from optistack_conformance.outcomes import CaseResult, Outcome
from optistack_conformance.report import Report, State, Subject
from optistack_conformance.reports.html import html_page
from optistack_conformance.selection import Selection

SERVE = """
import sys
from optistack_conformance.faults.server import FaultyServer
with FaultyServer() as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def served() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A server in a process of its own, which can be killed with all its connections."""
    process = subprocess.Popen([sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.kill()
        process.communicate()


RUN = """
import os, sys
from optistack.cli.run import run
from optistack_conformance import runner

class Stopping(runner._Collector):
    def pytest_runtest_call(self, item):
        if item.name.startswith("test_usage"):
            os.kill(int(pid) or os.getpid(), int(number))

_, pid, number, *words = sys.argv
runner._Collector = Stopping
sys.exit(run(words))
"""
"""The command, which sends a signal in a case, to itself or to the server."""


def broken_off(
    url: str, folder: Path, pid: int, number: signal.Signals
) -> tuple[int, dict[str, Any], ElementTree.Element, str]:
    """Exit code and reports of a run in which the process ``pid`` (0: its own) gets a signal."""
    command = [sys.executable, "-c", RUN, str(pid), str(int(number))]
    command += ["conformance", "--endpoint", url, "--tier", "0", "--json"]
    reports = ["--html", str(folder / "report.html"), "--junit", str(folder / "junit.xml")]
    done = subprocess.run([*command, *reports], capture_output=True, text=True, timeout=120)
    assert sorted(path.name for path in folder.iterdir()) == ["junit.xml", "report.html"], done.stderr
    junit = ElementTree.fromstring((folder / "junit.xml").read_text())
    return done.returncode, json.loads(done.stdout), junit, (folder / "report.html").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_found_before_an_interruption_is_reported(tmp_path: Path, number: signal.Signals) -> None:
    with served() as (url, _):
        code, value, junit, page = broken_off(url, tmp_path, 0, number)
    assert (code, value["state"], value["verdict"]) == (130, "interrupted", "inconclusive")
    assert value["tiers"] == {"contract": "inconclusive"}
    assert value["results"] and all(result["outcome"] in ("pass", "skipped") for result in value["results"])
    assert "It was told to stop. Case" in value["ended"] and "usage" in value["ended"]
    (suite,) = junit.iter("testsuite")
    assert suite.get("errors") == "1" and int(suite.get("tests", 0)) == len(list(junit.iter("testcase")))
    assert len(list(junit.iter("testcase"))) == len(value["results"]) + 1
    (error,) = junit.iter("error")
    assert error.get("message") == value["ended"]
    assert "inconclusive</span> (interrupted)" in page and "It was told to stop." in page


def test_a_server_that_goes_away_ends_the_run_and_is_no_pass(tmp_path: Path) -> None:
    with served() as (url, server):
        code, value, junit, page = broken_off(url, tmp_path, server.pid, signal.SIGKILL)
    assert (code, value["state"], value["verdict"]) == (1, "incomplete", "fail")
    assert [result["outcome"] for result in value["results"]].count("fail") == 1, "nothing is run without a server"
    assert f"The server under test is gone: nobody answers at {url}" in value["ended"]
    assert [error.get("message") for error in junit.iter("error")][-1] == value["ended"]
    assert "(incomplete)" in page and "is gone" in page


def test_the_pytest_plugin_stops_where_a_server_is_gone(tmp_path: Path) -> None:
    killing = """
import os, sys, pytest

class Killing:
    def pytest_runtest_call(self, item):
        if item.name.startswith("test_usage"):
            os.kill(int(sys.argv[1]), 9)

words = ["--pyargs", "optistack_conformance", "--endpoint", sys.argv[2], "--conformance", "tiers=0", "-q"]
sys.exit(pytest.main([*words, "-p", "no:cacheprovider"], plugins=[Killing()]))
"""
    with served() as (url, server):
        command = [sys.executable, "-c", killing, str(server.pid), url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert f"conformance: The server under test is gone: nobody answers at {url}" in done.stdout
    assert "1 failed" in done.stdout


def test_an_interruption_that_pytest_does_not_take_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(arguments: list[str], plugins: list[Any]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(pytest, "main", interrupted)
    run = runner._run_pytest(Selection(endpoint="http://127.0.0.1:1"), tmp_path / "junit.xml", lambda _: None)
    assert (run.state, run.ended) == (State.INTERRUPTED, "It was told to stop. No case had begun.")
    assert '<error message="It was told to stop.' in (tmp_path / "junit.xml").read_text()


@pytest.mark.parametrize("state", [State.INTERRUPTED, State.INCOMPLETE])
@pytest.mark.parametrize(
    "outcomes", [[], [Outcome.PASS], [Outcome.SKIPPED], [Outcome.FAIL], [Outcome.PASS, Outcome.FAIL]]
)
def test_no_run_that_was_broken_off_passes(state: State, outcomes: list[str]) -> None:
    report = Report(
        optistack_version="0",
        made_at="",
        candidate=Subject(where="", engine="", engine_version="", model=""),
        settings={"profile": "quick", "seed": 0},
        results=tuple(
            CaseResult(id=str(at), tier=0, summary="", outcome=Outcome(one)) for at, one in enumerate(outcomes)
        ),
        state=state,
        ended="<why>",
    )
    assert report.verdict is (Outcome.FAIL if Outcome.FAIL in outcomes else Outcome.INCONCLUSIVE)
    assert report.exit_code == (130 if state is State.INTERRUPTED else 1 if Outcome.FAIL in outcomes else 4)
    assert Outcome.PASS not in report.tiers.values()
    assert "&lt;why&gt;" in html_page(report)


def test_a_slow_or_faulty_server_is_not_gone() -> None:
    from optistack_conformance.alive import gone

    with FaultyServer() as server:
        assert gone(Selection(endpoint=server.url)) == ""
        assert "The baseline is gone" in gone(Selection(endpoint=server.url, baseline="http://127.0.0.1:1"))


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json=[]),
        httpx.Response(200, json={"choices": []}),
        httpx.Response(200, json={"choices": [{}], "usage": []}),
        httpx.Response(200, json={"choices": [{"text": "x"}], "usage": {"prompt_tokens": "many"}}),
    ],
)
def test_an_answer_that_is_no_completion_is_one_sentence(response: httpx.Response) -> None:
    with (
        Endpoint("http://127.0.0.1:1", transport=httpx.MockTransport(lambda request: response)) as endpoint,
        pytest.raises(CheckFailedError, match="gave no completion as OpenAI's API has them") as caught,
    ):
        endpoint.complete("x", model="m")
    assert "the engine's own address" in caught.value.fix
