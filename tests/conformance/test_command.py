"""``optistack conformance`` and the pytest plugin, as programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from optistack.cli.run import run
from optistack_conformance.faults.catalog import Fault
from optistack_conformance.faults.server import FaultyServer


def test_pass_is_0_with_json_html_and_junit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html, junit = tmp_path / "report.html", tmp_path / "junit.xml"
    with FaultyServer() as server:
        words = ["conformance", "--endpoint", server.url, "--tier", "0"]
        code = run([*words, "--html", str(html), "--junit", str(junit), "--json"])
    value = json.loads(capsys.readouterr().out)
    assert (code, value["verdict"], value["tiers"]) == (0, "pass", {"contract": "pass"})
    assert html.read_text().startswith("<!doctype html>")
    assert junit.read_text().count("<testcase") == len(value["results"])


def test_fail_is_1_and_names_the_case(capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyServer(Fault.WRONG_USAGE) as server:
        code = run(["conformance", "--endpoint", server.url, "--tier", "0"])
    assert code == 1
    assert "contract/usage-adds-up" in capsys.readouterr().out


def test_cases_are_chosen_by_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyServer(Fault.WRONG_USAGE) as server:
        words = ["conformance", "--endpoint", server.url, "--json"]
        assert run([*words, "--case", "contract/stop-*", "--case", "contract/ids-are-unique"]) == 0
    ids = [result["id"] for result in json.loads(capsys.readouterr().out)["results"]]
    assert ids == [
        "contract/ids-are-unique",
        "contract/stop-ends-the-text[completion]",
        "contract/stop-ends-the-text[chat]",
    ]


def test_a_pattern_that_matches_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyServer() as server:
        assert run(["conformance", "--endpoint", server.url, "--case", "contract/nothing"]) == 2
    assert "No case matches contract/nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "What is to be checked?"),
        (["--endpoint", "http://127.0.0.1:1"], "No engine answers"),
        (["--endpoint", "http://127.0.0.1:1", "--profile", "slow"], "--profile slow"),
        (["--endpoint", "http://u", "--baseline", "http://v", "--baseline-file", "w"], "There are two baselines"),
        (["--endpoint", "127.0.0.1:8000"], "--endpoint 127.0.0.1:8000 is not accepted."),
        (["--endpoint", "http://[::1"], "--endpoint http://[::1 is not accepted."),
        (["--stack", "x.yaml", "--record", "b.json"], "Only a server can be recorded"),
        (["--stack", "x.yaml", "--baseline-file", "b.json"], "the stack without its plugins is the baseline"),
    ],
)
def test_wrong_input_is_2_and_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["conformance", *words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--tier", "9"], "--tier 9 is not accepted."),
        (["--kv-dtype", "foo"], "--kv-dtype foo is not accepted."),
        (["--lossy", "int2"], "--lossy int2 is not accepted."),
        (["--html", "/nope/x.html"], "--html /nope/x.html: there is no folder /nope."),
        (["--junit", "/nope/x.xml"], "--junit /nope/x.xml: there is no folder /nope."),
        (["--record", "/nope/x.json"], "--record /nope/x.json: there is no folder /nope."),
        (["--html", "/"], "--html / is a folder."),
        (["--checkpoint", "/nope"], "--checkpoint /nope is no folder."),
    ],
)
def test_what_cannot_work_is_said_before_anybody_is_asked(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nobody listens there: a server asked first would be the complaint.
    assert run(["conformance", "--endpoint", "http://127.0.0.1:1", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said and "No engine answers" not in said


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--tier", "9"], "It should be one of 0 (contract), 1 (lossless), 2 (lossy)."),
        (["--kv-dtype", "foo"], "It should be one of float32, bfloat16, float16, fp8_e4m3, fp8_e5m2, nvfp4, int8."),
        (["--profile", "slow"], "It should be 'quick' or 'full'."),
        (["--acceptance-reference", "0"], "It should be greater than 0."),
        (["--baseline", "127.0.0.1:8000"], "A URL is like http://127.0.0.1:8000."),
        (["--baseline", "http://[::1"], "A URL is like http://127.0.0.1:8000."),
        (["--plugin", "kv-pf8"], "Did you mean 'kv-fp8'?"),
        (["--checkpoint", "/nope"], "Give the folder with tokenizer.json."),
        (["--html", "/nope/x.html"], "Make it, or write elsewhere."),
        (["--baseline-file", "/nope.json"], "Make it with --record."),
        (["--tier", "x"], "`optistack conformance --help` shows how it goes."),
    ],
)
def test_every_wrong_option_comes_with_its_fix(words: list[str], fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    with FaultyServer() as server:
        assert run(["conformance", "--endpoint", server.url, *words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["fix"] == fix


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"tokenizer_config.json": "[]"}, "tokenizer_config.json is no JSON object."),
        ({"chat_template.jinja": "{% bad"}, "The chat template of {folder} is none: line 1, "),
        ({"chat_template.jinja": "{{ messages }}"}, "tokenizer.json cannot be loaded: "),
    ],
)
def test_a_checkpoint_that_cannot_count_is_told_before_anybody_is_asked(
    files: dict[str, str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in {"tokenizer.json": "{}", **files}.items():
        (tmp_path / name).write_text(text)
    assert run(["conformance", "--endpoint", "http://127.0.0.1:1", "--checkpoint", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert says.replace("{folder}", str(tmp_path)) in said and "Fix: " in said
    assert "No engine answers" not in said


class _OnlyStreams(BaseHTTPRequestHandler):
    """Lists a model, and answers every POST with an event stream."""

    def do_GET(self) -> None:
        self._send("application/json", b'{"data": [{"id": "tiny"}]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send("text/event-stream", b'data: {"choices": []}\n\ndata: [DONE]\n\n')

    def _send(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: a test's stderr is the program's."""


def test_a_server_that_answers_no_json_cannot_be_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _OnlyStreams) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            assert run(["conformance", "--endpoint", url, "--record", str(tmp_path / "it.json")]) == 2
        finally:
            server.shutdown()
            thread.join()
    said = capsys.readouterr().err
    assert f"{url}/v1/chat/completions answered no JSON, but text/event-stream" in said
    assert "bug" not in said
    assert not list(tmp_path.iterdir())


def _pytest(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest", "-p", "optistack_conformance.pytest_plugin", "-p", "no:cacheprovider"]
    return subprocess.run([*command, *words], capture_output=True, text=True, cwd=folder, env=environment)


def test_the_pytest_plugin_is_a_gate(tmp_path: Path) -> None:
    words = ("--pyargs", "optistack_conformance", "--conformance", "tiers=0", "-q")
    with FaultyServer() as clean:
        good = _pytest(*words, "--endpoint", clean.url, folder=tmp_path)
    with FaultyServer(Fault.DROPPED_TOKEN) as broken:
        bad = _pytest(*words, "--endpoint", broken.url, folder=tmp_path)
    assert good.returncode == 0, good.stdout
    assert bad.returncode == 1, bad.stdout


def test_the_plugin_asks_for_an_endpoint_and_leaves_other_tests_alone(tmp_path: Path) -> None:
    assert "needs --endpoint" in _pytest("--pyargs", "optistack_conformance", folder=tmp_path).stderr
    (tmp_path / "test_mine.py").write_text("def test_mine():\n    pass\n")
    assert _pytest(folder=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--endpoint", "127.0.0.1:8000"],
            "--endpoint 127.0.0.1:8000 is not accepted. A URL is like http://127.0.0.1:8000.",
        ),
        (["--endpoint", "http://127.0.0.1:1"], "No engine answers at http://127.0.0.1:1/v1/models"),
        (["--conformance", "tiers=9"], "--conformance tiers 9 is not accepted. It should be one of 0 (contract)"),
        (["--conformance", "tirs=0"], "The suite has no setting 'tirs'. Did you mean 'tiers'?"),
        (
            ["--conformance", "profile=slow"],
            "--conformance profile slow is not accepted. It should be 'quick' or 'full'.",
        ),
        (["--conformance", "profile"], "--conformance profile is no KEY=VALUE."),
        (["--conformance", "plugins=nope"], "No plugin is called 'nope'."),
        (["--conformance", "checkpoint=/nope"], "/nope has no tokenizer.json."),
        (["--baseline", "http://127.0.0.1:1", "--conformance", "baseline_file=x"], "There are two baselines."),
    ],
)
def test_a_wrong_option_of_the_plugin_is_one_sentence(words: list[str], sentence: str, tmp_path: Path) -> None:
    endpoint = [] if "--endpoint" in words else ["--endpoint", "http://127.0.0.1:1"]
    done = _pytest("--pyargs", "optistack_conformance", *endpoint, *words, folder=tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: conformance: {sentence}" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_baseline_that_is_not_there_is_said_once_and_not_for_each_case(tmp_path: Path) -> None:
    with FaultyServer() as server:
        words = ("--pyargs", "optistack_conformance", "--endpoint", server.url, "--baseline", "http://127.0.0.1:1")
        done = _pytest(*words, folder=tmp_path)
    assert done.stderr.count("No engine answers at http://127.0.0.1:1") == 1


def test_a_server_that_answers_no_json_fails_the_pytest_plugin_without_a_traceback(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _OnlyStreams) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        words = ("--pyargs", "optistack_conformance", "--endpoint", url, "--conformance", "cases=contract/usage-*")
        try:
            done = _pytest(*words, folder=tmp_path)
        finally:
            server.shutdown()
            thread.join()
    assert done.returncode == 1
    assert f"{url}/v1/completions answered no JSON, but text/event-stream" in done.stdout
    assert "Error" not in done.stdout
