"""``optistack route top``, and the figures that it and the metrics show."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from optistack.errors import CheckFailedError, InputError, OptistackError
from optistack_routing.admin.state import merged, quantile, snapshot, spread
from optistack_routing.admin.top import client, fetch
from optistack_routing.commands import app
from optistack_routing.policy.base import Choice, Reason, Request, Usage
from optistack_routing.proxy.record import Recorder
from optistack_routing.proxy.usage import read_usage
from optistack_routing.router.config import load
from optistack_routing.router.control import build_control


def counted() -> Recorder:
    recorder = Recorder()
    from optistack_routing.fleet.desk import Outcome
    from optistack_routing.http.head import read_request

    head = read_request(b"POST /v1/x HTTP/1.1\r\nHost: h\r\n\r\n")
    record = recorder.begin(head, Request(session="s", prompt_tokens=100), 400)
    recorder.placed(record, Choice("http://a:1", Reason.HOME, predicted_cached_tokens=90))
    recorder.first_byte(record, record.started_s + 0.02)
    record.status = 200
    recorder.end(record, Outcome.SERVED, Usage(100, 80, 7))
    return recorder


def state() -> dict[str, Any]:
    control = build_control(load(None, {"replicas": ("http://a:1", "http://b:2")}))
    from optistack_routing.fleet.roster import Source

    control.roster.checks_health = False
    for url in control.config.replicas:
        control.roster.add(url, Source.CONFIG, 0.0)
    control.counts = lambda: [snapshot(counted()), snapshot(Recorder())]
    return control.state()


class Admin:
    """An admin side that says ``answer``."""

    def __init__(self, status: int, answer: Any) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: Any) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Admin:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.parametrize(("admin", "error"), [("http://127.0.0.1:9", CheckFailedError), ("http://a b", InputError)])
def test_top_without_a_router_is_a_failed_check_and_without_a_url_wrong_input(
    admin: str, error: type[OptistackError]
) -> None:
    for more in ([], ["--once"], ["--json"]):
        result = CliRunner().invoke(app, ["top", "--admin", admin, *more])
        assert isinstance(result.exception, error)


def test_top_once_shows_replicas_load_and_hits() -> None:
    with Admin(200, state()) as admin:
        shown = CliRunner().invoke(app, ["top", "--once", "--admin", admin.url])
    assert shown.exit_code == 0
    assert "policy kv-aware" in shown.output
    assert "http://a:1" in shown.output and "http://b:2" in shown.output
    assert "answered 1, retries 0, refused 0" in shown.output
    assert "80.0% of the prompts, 90.0% predicted" in shown.output


def test_top_as_json_is_the_state() -> None:
    now = json.loads(json.dumps(state()))
    with Admin(200, now) as admin:
        shown = CliRunner().invoke(app, ["top", "--once", "--json", "--admin", admin.url])
    assert json.loads(shown.output) == now


@pytest.mark.parametrize(
    "answer", [(404, {"detail": "Not Found"}), (404, {"error": "Not Found"}), (200, ["x"]), (200, {})]
)
def test_top_of_something_else_says_so(answer: tuple[int, Any]) -> None:
    with (
        Admin(*answer) as admin,
        client(admin.url) as reader,
        pytest.raises(CheckFailedError, match="no router's admin"),
    ):
        fetch(reader)


def test_top_without_a_router_says_so() -> None:
    with client("http://127.0.0.1:1") as reader, pytest.raises(CheckFailedError, match="No router answers"):
        fetch(reader)
    refused = pytest.raises(CheckFailedError, match="refuses: The key is wrong")
    with Admin(401, {"error": {"message": "The key is wrong."}}) as admin, client(admin.url) as reader, refused:
        fetch(reader)


def test_processes_are_summed() -> None:
    total = merged([snapshot(counted()), snapshot(counted())])
    assert total["answers"] == {"200": 2}
    assert total["sums"]["cached_tokens"] == 160
    assert sum(total["ttft"]["counts"]) == 2
    assert total["in_flight"] == 0


def test_quantiles_and_spread() -> None:
    assert quantile([0, 0, 0], (1.0, 2.0), 0.5) is None
    assert quantile([0, 4, 0], (1.0, 2.0), 0.5) == 1.5
    assert quantile([0, 0, 4], (1.0, 2.0), 0.5) == 2.0
    assert spread([4, 6]) == {"mean": 5.0, "variance": 1.0, "variance_over_mean": 0.2}
    assert spread([]) == {"mean": 0.0, "variance": 0.0, "variance_over_mean": 0.0}


@pytest.mark.parametrize(
    ("tail", "usage"),
    [
        (b'..."usage":{"prompt_tokens":9,"total_tokens":12,"completion_tokens":3}}', Usage(9, None, 3)),
        (b'"usage": null ... "usage": {"prompt_tokens": 9, "completion_tokens": 3', Usage(9, None, 3)),
        (
            b'"usage":{"input_tokens":10,"cache_read_input_tokens":90,"output_tokens":5}',
            Usage(100, 90, 5),
        ),
        (
            b'"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":64},"output_tokens":5}',
            Usage(100, 64, 5),
        ),
        (rb'"content":"say \"usage\":{\"prompt_tokens\":1}"', None),
        (b"data: [DONE]\n\n", None),
    ],
)
def test_usage_of_the_apis(tail: bytes, usage: Usage | None) -> None:
    assert read_usage(tail) == usage
