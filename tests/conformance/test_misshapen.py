"""Servers that answer otherwise than the API: every command says so in a sentence with the URL, and no case breaks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conformance.test_adapters import SAMPLE

from optistack.cli.run import run
from optistack.errors import CheckFailedError
from optistack.verify.endpoint import Endpoint
from optistack_conformance.client import Client
from optistack_conformance.engine import read_engine
from optistack_conformance.greedy import check_greedy_margin
from optistack_conformance.outcomes import Outcome
from optistack_conformance.runner import run_suite
from optistack_conformance.scoring import Scorer
from optistack_conformance.selection import Selection

HTML = "text/html"
JSON = "application/json"
ANSWERS: dict[str, tuple[int, str, bytes]] = {
    "html": (200, HTML, b"<html>It works!</html>"),
    "empty": (200, JSON, b""),
    "error-500": (500, HTML, b"<h1>Internal Server Error</h1>"),
    "gateway-502": (502, JSON, b'{"error": "upstream"}'),
    "list": (200, JSON, b"[]"),
    "null": (200, JSON, b"null"),
    "no-choices": (200, JSON, b'{"usage": {}}'),
    "empty-choices": (200, JSON, b'{"choices": []}'),
    "choices-of-text": (200, JSON, b'{"choices": ["hello"], "usage": "many"}'),
    "empty-choice": (200, JSON, b'{"choices": [{}]}'),
    "other-types": (
        200,
        JSON,
        b'{"id": 1, "choices": [{"index": 0, "text": 7, "message": [], "logprobs": [], "token_ids": 3,'
        b' "prompt_token_ids": [1, 2], "prompt_logprobs": [[1]], "finish_reason": {}}],'
        b' "usage": {"prompt_tokens": "3"},'
        b' "meta_info": {"output_token_logprobs": [3], "input_token_logprobs": 5}, "output_ids": 4}',
    ),
}
LEGIBLE = ("empty-choice", "other-types")
"""Some cases can read and judge these."""

PAGES = {
    "vllm": {"/version": {"version": "0.32.0"}},
    "sglang": {"/server_info": {"version": "0.5.23", "max_total_num_tokens": 4096, "page_size": 1}},
}


class _Handler(BaseHTTPRequestHandler):
    pages: dict[str, Any]
    answer: tuple[int, str, bytes]

    def do_GET(self) -> None:
        if self.path in self.pages:
            self._send(200, JSON, json.dumps(self.pages[self.path]).encode())
        else:
            self._send(404, JSON, b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self._send(*self.answer)

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@contextmanager
def answering(answer: tuple[int, str, bytes], engine: str = "vllm", models: Any = None) -> Iterator[str]:
    """The URL of a server that lists a model and gives ``answer`` to every POST."""
    listed = {"data": [{"id": "m", "max_model_len": 512}]} if models is None else models
    pages = {"/v1/models": listed, **PAGES[engine]}
    handler = type("Handler", (_Handler,), {"pages": pages, "answer": answer})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answer", "engine"), [*((answer, "vllm") for answer in ANSWERS), ("html", "sglang"), ("other-types", "sglang")]
)
def test_every_case_ends_in_a_sentence(answer: str, engine: str) -> None:
    with answering(ANSWERS[answer], engine) as url:
        report = run_suite(Selection(endpoint=url))
    failed = [one for one in report.results if one.outcome is Outcome.FAIL]
    assert report.exit_code == 1
    if answer not in LEGIBLE:
        assert [(one.id, one.why) for one in failed if url not in one.why] == []
    assert [(one.id, one.why) for one in failed if len(one.why.split()) < 3 or "Traceback" in one.why] == []


@pytest.mark.parametrize("engine", PAGES)
@pytest.mark.parametrize("answer", ANSWERS)
def test_every_command_ends_in_a_sentence(
    answer: str, engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, samples = tmp_path / "out", tmp_path / "samples.jsonl"
    samples.write_text(json.dumps(SAMPLE) + "\n")
    with answering(ANSWERS[answer], engine) as url:
        for words in (["--record", str(out)], ["--baseline", url, "--case", "lossless/tasks-*"]):
            assert run(["conformance", "--endpoint", url, *words]) in (1, 2)
            said = "".join(capsys.readouterr())
            assert url in said and "bug" not in said and "Traceback" not in said
        run(["conformance", "k2vv", "--endpoint", url, "--samples", str(samples), "--out", str(out)])
        said = "".join(capsys.readouterr())
        assert "bug" not in said and "Traceback" not in said


@pytest.mark.parametrize("engine", PAGES)
@pytest.mark.parametrize("answer", ANSWERS)
def test_scores_cannot_be_read(answer: str, engine: str) -> None:
    with answering(ANSWERS[answer], engine) as url:
        with Endpoint(url) as endpoint, pytest.raises(CheckFailedError, match=url):
            check_greedy_margin(endpoint, 0.5, prompts=["Once"], max_tokens=2)
        with Client(url) as client:
            scorer = Scorer(client, engine)
            for work in (lambda: scorer.decode([1, 2], 2), lambda: scorer.prefill([1, 2], [3])):
                with pytest.raises(CheckFailedError, match=url):
                    work()


@pytest.mark.parametrize("models", [{"data": ["m"]}, {"data": {"m": 1}}, {"data": [{"name": "m"}]}, {"data": "m"}, []])
@pytest.mark.parametrize("words", [["conformance"], ["conformance", "--record", "base.json"], ["k2vv"], ["lm-eval"]])
def test_what_lists_no_model_is_wrong_input_and_said(
    models: Any, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "samples.jsonl").write_text(json.dumps(SAMPLE) + "\n")
    further = {
        "k2vv": ["conformance", "k2vv", "--samples", "samples.jsonl", "--out", "out.jsonl"],
        "lm-eval": ["conformance", "lm-eval", "--python", "python3"],
    }.get(words[0], words)
    with answering(ANSWERS["html"], models=models) as url:
        assert run([*further, "--endpoint", url]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == [
        f"Error: {url}/v1/models lists no model (status 200).",
        "Fix: Is this the engine's own address, and is it an engine's?",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["samples.jsonl"]


def test_no_sample_answered_is_said_and_nothing_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples, out = tmp_path / "samples.jsonl", tmp_path / "out.jsonl"
    samples.write_text(json.dumps(SAMPLE) + "\n")
    with answering(ANSWERS["html"]) as url:
        assert run(["conformance", "k2vv", "--endpoint", url, "--samples", str(samples), "--out", str(out)]) == 1
    assert f"None of the 1 samples was answered; of the first: {url}" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("line", "option", "sentence"),
    [
        ("{}", "--samples", "line 1 has no messages"),
        ('{"messages": ["x"]}', "--samples", "line 1 has no messages"),
        ('{"data_index": "x"}', "--reference", "line 1 is no result of a sample"),
    ],
)
def test_a_file_of_something_else_is_named_with_its_line(
    line: str, option: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(line + "\n")
    words = ["--endpoint", "http://127.0.0.1:1"] if option == "--samples" else []
    assert run(["conformance", "k2vv", "--out", str(tmp_path / "out"), *words, option, str(path)]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence", "fix"),
    [
        (["--endpoint", "http://127.0.0.1:1", "--samples", "{file}"], "{file} has no samples.", "samples.jsonl"),
        (["--reference", "{file}.not"], "{file}.not cannot be read", "Make it with --endpoint and --samples."),
    ],
)
def test_files_of_the_verifier_that_are_empty_or_not_there(
    words: list[str], sentence: str, fix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    given = [word.replace("{file}", str(file)) for word in words]
    assert run(["conformance", "k2vv", "--out", str(tmp_path / "out"), *given]) == 2
    said = capsys.readouterr().err
    assert sentence.replace("{file}", str(file)) in said and fix in said
    assert not (tmp_path / "out").exists()


def test_numbers_of_an_engine_that_are_none_are_not_known() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        pages: dict[str, Any] = {**PAGES["vllm"], "/v1/models": {"data": [{"id": "m"}]}}
        if request.url.path == "/metrics":
            return httpx.Response(200, text='vllm:cache_config_info{block_size="1e400",kv_cache_size_tokens="x"} 1\n')
        return httpx.Response(200, json=pages.get(request.url.path, {}))

    with Endpoint("http://engine", transport=httpx.MockTransport(answer)) as endpoint:
        engine = read_engine(endpoint)
    assert (engine.name, engine.page_tokens, engine.kv_tokens) == ("vllm", None, None)
