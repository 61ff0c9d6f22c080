"""A server that takes connections and never answers: waited for as long as was said, then told in a sentence."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from optistack.cli.run import run
from optistack.errors import InputError
from optistack.verify.endpoint import Endpoint

STACK = Path(__file__).resolve().parents[2] / "stacks" / "kimi-k2.6-b200x4.yaml"
LIMIT_S = 0.2


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Its URL. The kernel takes the connections, and nobody reads them."""
    monkeypatch.setattr("optistack.verify.endpoint.FACTS_TIMEOUT_S", LIMIT_S)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize(
    "words",
    [
        ["conformance"],
        ["conformance", "--record", "base.json"],
        ["bench"],
        ["verify", "--stack", str(STACK), "--backend", "sglang"],
        ["verify", "--stack", str(STACK), "--backend", "vllm"],
    ],
)
def test_the_limit_is_said_first_and_held(
    silent: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*words, "--endpoint", silent]) == 2
    said = capsys.readouterr()
    step, error, fix = said.err.splitlines()
    assert step.endswith(f"{silent} ({LIMIT_S:g} s at most for its first answer)")
    assert re.fullmatch(rf"Error: No engine answers at {silent}/\S+ within {LIMIT_S:g} s\.", error)
    assert fix.startswith("Fix: Is this the engine's own address")
    assert not said.out and not list(tmp_path.iterdir())


def test_the_metrics_page_is_waited_for_no_longer(silent: str) -> None:
    with Endpoint(silent) as endpoint, pytest.raises(InputError, match=f"/metrics within {LIMIT_S:g} s"):
        endpoint.metrics()


def test_a_client_with_less_patience_keeps_to_it(silent: str) -> None:
    with Endpoint(silent, timeout_s=0.1) as endpoint, pytest.raises(InputError, match=r"/v1/models within 0\.1 s"):
        endpoint.model()


def test_an_answer_that_cannot_be_unpacked_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nxyz")

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with Endpoint(url) as endpoint, pytest.raises(InputError, match="No engine answers.*DecodingError"):
            endpoint.model()
        thread.join()
