"""The router as a plan launches it: its arguments, and its probes against the real one before two small engines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
import yaml

import optistack_routing
from optistack.apply.ports import free_port
from optistack.errors import PlanRefusedError
from optistack.launch import Place
from optistack.plan.plan import Plan
from optistack.verify.endpoint import Completion, Endpoint
from optistack.verify.front import RunningFront
from optistack.verify.receipt import CheckResult, Status
from optistack_routing import probe_router
from optistack_routing.launch import ADMIN, FILE, render
from optistack_routing.policy.parameters import Parameters
from optistack_routing.router.policy import parameters_of

RUN = "from optistack_routing.commands import app; app()"
"""What ``optistack route`` runs, without the program around it, which needs the plugin to be installed."""


def place(
    folder: Path, replicas: tuple[tuple[str, str], ...] = (("http://r0", "/f/0"), ("http://r1", "/f/1"))
) -> Place:
    return Place(1, str(folder), replicas, {ADMIN: 2})


def test_every_argument_says_who_set_it_and_why(world: Any) -> None:
    plan = world.spread(replicas=2).asking(session_header="x-my-session").plan()
    front = render(plan)
    assert all(argument.source and argument.why for argument in front.arguments)
    by_setting = {argument.setting: argument for argument in front.arguments if argument.setting}
    assert by_setting["routing.policy"].value == "kv-aware"
    assert by_setting["routing.session_header"].why == "option session_header"
    words = front.argv_at("python", place(Path("/d")))
    assert words[:5] == ["python", "-P", "-m", "optistack.cli", "route"]
    assert [words[at + 1] for at, word in enumerate(words) if word == "--replica"] == ["http://r0", "http://r1"]
    headers = [words[at + 1] for at, word in enumerate(words) if word == "--session-header"]
    assert headers[0] == "x-my-session" and len(headers) == len(set(headers))
    assert words[words.index("--admin-port") + 1] == "2"


def test_the_policys_numbers_are_those_of_the_plan(world: Any) -> None:
    plan = world.spread(replicas=2).asking(max_homes=2, parameters={"split_requests": 6}).plan()
    written = yaml.safe_load(render(plan).files[0].content)
    assert written["parameters"] == {
        "max_homes": 2,
        "overload_margin": 2.0,
        "session_idle_s": 1800.0,
        "kv_tokens": plan.budget.kv_tokens,
        "split_requests": 6,
    }
    untouched = yaml.safe_load(render(world.spread(replicas=2).plan()).files[0].content)
    assert parameters_of(untouched["parameters"]) == Parameters(kv_tokens=plan.budget.kv_tokens)
    unbound = world.spread(replicas=2).asking(policy="affinity", load_bound=float("inf")).plan()
    assert yaml.safe_load(render(unbound).files[0].content)["parameters"] == {"load_bound": float("inf")}


def test_precise_mode_knows_pages_checkpoint_and_where_each_replica_publishes(world: Any, tmp_path: Path) -> None:
    precise = world.spread(replicas=2).asking(precise=True).drafting("eagle3").checkpoint("tokenizer.json")
    with pytest.raises(PlanRefusedError, match="how large a KV page is"):
        render(precise.plan())
    content = place(tmp_path).fill_text(render(precise.paging(64).plan()).files[0].content)
    assert yaml.safe_load(content)["precise"] == {
        "checkpoint": str(precise.model.path),
        "page_tokens": 64,
        "dropped_pages": 1,
        "events": {
            "http://r0": ["ipc:///f/0/kv-events", "ipc:///f/0/kv-replay"],
            "http://r1": ["ipc:///f/1/kv-events", "ipc:///f/1/kv-replay"],
        },
    }


@contextmanager
def serving(engine: Any) -> Iterator[Endpoint]:
    """``engine`` of conftest on a real port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/health":
                return self._send(httpx.Response(200))
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            return self._send(engine._answer(httpx.Request(self.command, f"http://engine{self.path}", content=body)))

        do_POST = do_GET

        def _send(self, answer: httpx.Response) -> None:
            self.send_response(answer.status_code)
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *arguments: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with Endpoint(f"http://127.0.0.1:{server.server_port}") as endpoint:
                yield endpoint
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def routed(plan: Plan, engines: list[Any], folder: Path) -> Iterator[RunningFront]:
    """The plan's router before ``engines``, as the deployment would start it."""
    with ExitStack() as opened:
        replicas = tuple(opened.enter_context(serving(engine)) for engine in engines)
        port, admin = free_port(), free_port()
        where = Place(port, str(folder), tuple((r.url, str(folder)) for r in replicas), {ADMIN: admin})
        launch = render(plan)
        (folder / FILE).write_text(where.fill_text(launch.files[0].content))
        words = launch.argv_at(sys.executable, where)[1 + len(launch.command) :]
        with (folder / "log").open("wb") as log:
            router = subprocess.Popen(
                [sys.executable, "-c", RUN, *words],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=log,
                stderr=log,
            )
        try:
            endpoint = opened.enter_context(Endpoint(f"http://127.0.0.1:{port}"))
            deadline = time.monotonic() + 20
            while not _ready(endpoint.url):
                assert router.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.05)
            yield RunningFront(endpoint, replicas, {ADMIN: admin})
        finally:
            router.kill()
            router.wait()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def probed(plan: Plan, engines: list[Any], folder: Path) -> dict[str, CheckResult]:
    with routed(plan, engines, folder) as front:
        return {r.id: r for r in optistack_routing.optistack_probe_front(plan=plan, front=front)}


def test_the_real_router_proves_every_setting_and_keeps_a_session(world: Any, engine: Any, tmp_path: Path) -> None:
    plan = world.spread(replicas=2).asking(max_homes=2, parameters={"split_requests": 6}).plan()
    results = probed(plan, [engine(), engine()], tmp_path)
    unproven = {name for name, result in results.items() if result.status is Status.UNPROVEN}
    assert unproven == {"routing.target_concurrency"}
    assert not [result for result in results.values() if result.status is Status.FAIL], results
    assert set(results) >= {
        "routing/replicas",
        "routing/session-stays",
        "routing.front",
        "routing.policy",
        "routing.session_header",
        "routing.max_homes",
        "routing.overload_margin",
        "routing.session_idle_s",
        "routing.parameters.split_requests",
    }
    assert "both turns at http://127.0.0.1" in results["routing/session-stays"].engine_says


def test_another_policy_than_the_plans_fails(world: Any, engine: Any, tmp_path: Path) -> None:
    running = world.spread(replicas=2).asking(policy="least-loaded").plan()
    with routed(running, [engine(), engine()], tmp_path) as front:
        asked = world.spread(replicas=2).plan()
        results = {r.id: r for r in optistack_routing.optistack_probe_front(plan=asked, front=front)}
    failed = {name for name, result in results.items() if result.status is Status.FAIL}
    assert "routing.policy" in failed
    assert "routing/session-stays" in failed  # the turns went to one replica each


def test_engines_that_cache_nothing_fail(world: Any, engine: Any, tmp_path: Path) -> None:
    results = probed(world.spread(replicas=2).plan(), [engine(caches=False), engine(caches=False)], tmp_path)
    assert results["routing/session-stays"].status is Status.FAIL


def test_a_count_that_comes_late_is_waited_for(world: Any, engine: Any, tmp_path: Path) -> None:
    results = probed(world.spread(replicas=2).plan(), [engine(late=4), engine(late=4)], tmp_path)
    stays = results["routing/session-stays"]
    assert (stays.status, "both turns at http://127.0.0.1" in stays.engine_says) == (Status.PASS, True), stays


def turns(tokens: int, cached: int) -> list[Completion]:
    return [Completion("", tokens, 1, found, {}) for found in (0, cached)]


@pytest.mark.parametrize(
    ("moved", "cached", "status"),
    [
        ({"a": 2000}, 960, Status.PASS),
        ({"a": 2700}, 960, Status.PASS),
        ({"a": 1000, "b": 1000}, 960, Status.FAIL),  # a tier that both share gave the KV to the wrong one
        ({"a": 2000, "b": 700}, 960, Status.UNPROVEN),
        ({}, 960, Status.UNPROVEN),
        ({}, 0, Status.FAIL),
        ({"a": 2000}, 0, Status.FAIL),
        ({"a": 2000, "b": 700}, 0, Status.FAIL),
    ],
)
def test_where_the_turns_went_is_told_from_what_others_asked(
    world: Any, moved: dict[str, float], cached: int, status: Status
) -> None:
    result = probe_router._stays(world.spread(replicas=2).plan(), 64, *turns(1000, cached), moved)
    assert result.status is status, result


def test_replicas_that_count_nothing_leave_open_where_the_turns_went(
    world: Any, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe_router, "SETTLED_S", 1.0)
    replicas = [engine(counts=False), engine(counts=False)]
    stays = probed(world.spread(replicas=2).plan(), replicas, tmp_path)["routing/session-stays"]
    assert (stays.status, "tokens cached" in stays.engine_says) == (Status.UNPROVEN, True), stays


def test_policies_without_sessions_promise_none(world: Any, engine: Any, tmp_path: Path) -> None:
    results = probed(world.spread(replicas=2).asking(policy="round-robin").plan(), [engine(), engine()], tmp_path)
    assert "routing/session-stays" not in results
    assert results["routing.policy"].status is Status.PASS


def test_with_a_router_its_settings_are_not_asked_of_each_replica(world: Any, engine: Any) -> None:
    with engine().endpoint() as endpoint:
        results = optistack_routing.optistack_probe(plan=world.spread(replicas=2).planned(), endpoint=endpoint)
    assert [result.id for result in results] == ["routing/prefix-cache"]


def test_it_is_a_value_that_a_lock_file_keeps(world: Any) -> None:
    front = render(world.spread(replicas=2).plan())
    assert type(front).model_validate_json(json.dumps(front.model_dump(mode="json"))) == front
