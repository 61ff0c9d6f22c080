"""``optistack apply`` starts, proves, reports and cleans up: with a real process in the engine's place."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from optistack import hookimpl
from optistack.apply.deployment import find, list_deployments
from optistack.apply.state import Phase
from optistack.errors import PlanRefusedError
from optistack.plan.plan import Plan
from optistack.plugin import Domain, PluginInfo

Optistack = Callable[..., Any]


def test_a_stack_is_applied_proved_listed_and_taken_down(optistack: Optistack, small: Any) -> None:
    ran = optistack("apply")
    assert ran.code == 0, ran.err
    assert "/claims kv_dtype" in ran.out
    assert "tiny serves at http://127.0.0.1:" in ran.out
    status = optistack("status", "--json").json["deployments"][0]
    assert (status["name"], status["phase"], status["receipts"][0]["passed"]) == ("tiny", "ready", True)
    assert status["endpoints"][0] in ran.out
    assert status["endpoints"][0] in optistack("status").out
    again = optistack("apply")
    assert again.code == 2
    assert "already running" in again.err
    assert "optistack down tiny" in again.err
    verified = optistack("verify", "--endpoint", status["endpoints"][0], "--json")
    assert verified.code == 0
    assert verified.json["plan_hash"] == status["plan_hash"]
    assert {"kv.dtype": "pass"}.items() <= {r["id"]: r["status"] for r in verified.json["results"]}.items()
    assert optistack("down").out == "Stopped tiny.\n"
    assert optistack("down").out == "Nothing was running.\n"
    assert optistack("status").out.startswith("Nothing is running. 1 ended")
    assert find("tiny").state.phase is Phase.STOPPED


def test_an_engine_that_does_something_else_fails_and_is_stopped(optistack: Optistack, small: Any) -> None:
    small.claims = "bfloat16"
    ran = optistack("apply", "--json")
    assert ran.code == 1
    result = next(r for r in ran.json["receipts"][0]["results"] if r["id"] == "kv.dtype")
    assert (result["asked"], result["engine_says"], result["status"]) == ("fp8_e4m3", "bfloat16", "fail")
    assert ran.json["running"] is False
    assert "does not do what the plan says: kv.dtype" in ran.err
    assert optistack("status", "--json").json == {"deployments": []}


def test_keep_leaves_it_running_for_a_look(optistack: Optistack, small: Any) -> None:
    small.claims = "bfloat16"
    ran = optistack("apply", "--keep")
    assert ran.code == 1
    assert "optistack down tiny" in ran.err
    deployment = optistack("status", "--json").json["deployments"][0]
    assert deployment["failed"] == ["kv.dtype"]
    assert optistack("verify", "--endpoint", deployment["endpoints"][0]).code == 1


def test_an_engine_that_does_not_start_shows_its_reason_with_code_3(optistack: Optistack, small: Any) -> None:
    small.fails = "no such kernel"
    ran = optistack("apply")
    assert ran.code == 3
    assert "no such kernel" in ran.err
    assert ran.out == ""


def test_in_the_foreground_ctrl_c_stops_it(optistack: Optistack, small: Any) -> None:
    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while not any(one.folder.receipt_file.exists() for one in list_deployments()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    ran = optistack("apply", "--foreground")
    thread.join()
    assert ran.code == 130
    assert ran.err.endswith("Interrupted.\n")
    assert optistack("status", "--json").json == {"deployments": []}


def test_an_engine_that_dies_in_the_foreground_is_a_failure(optistack: Optistack, small: Any) -> None:
    def kill() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            one = next((one for one in list_deployments() if one.folder.receipt_file.exists()), None)
            if one is not None and (engine := one.state.processes[0].process) is not None:
                os.kill(engine.pid, signal.SIGKILL)
                return
            time.sleep(0.05)

    thread = threading.Thread(target=kill)
    thread.start()
    ran = optistack("apply", "--foreground")
    thread.join()
    assert ran.code == 3
    assert "tiny: replica-0 stopped working: it was killed (SIGKILL)" in ran.err


def test_an_engine_that_dies_under_the_checks_shows_its_own_reason(optistack: Optistack, small: Any) -> None:
    small.dies = "the device fell off the bus"
    ran = optistack("apply")
    assert ran.code == 3
    assert "replica-0 stopped working" in ran.err
    assert "the device fell off the bus" in ran.err
    assert "serves at" not in ran.out


def test_proxies_are_not_asked_for_an_engine_of_this_machine(
    optistack: Optistack, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    assert optistack("apply").code == 0


def test_a_deployment_of_another_version_is_listed_without_its_endpoints(optistack: Optistack, small: Any) -> None:
    assert optistack("apply").code == 0
    find("tiny").folder.spec_file.write_text('{"version": 2}')
    ran = optistack("status", "--json")
    assert ran.code == 0, ran.err
    assert [(one["name"], one["phase"], one["endpoints"]) for one in ran.json["deployments"]] == [("tiny", "ready", [])]
    assert optistack("down").out == "Stopped tiny.\n"


def test_without_verification_nothing_is_claimed(optistack: Optistack, small: Any) -> None:
    small.claims = "bfloat16"
    assert optistack("apply", "--no-verify").code == 0
    assert optistack("status", "--json").json["deployments"][0]["receipts"] == []


def test_two_replicas_each_have_a_receipt(optistack: Optistack, small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optistack.facts.detect.cpu_count", lambda: 4)
    ran = optistack("apply", "--set", "parallel.replicas=2", "--json")
    assert ran.code == 0, ran.err
    assert len(set(ran.json["endpoints"])) == 2
    assert [receipt["replica"] for receipt in ran.json["receipts"]] == [0, 1]


def test_a_refused_plan_starts_nothing_and_names_the_rule(optistack: Optistack, small: Any) -> None:
    ran = optistack("apply", "--set", "eight.dtype=nvfp4")
    assert ran.code == 2
    assert "The small engine cannot do fp4. (rule small-no-fp4)" in ran.err
    assert optistack("status", "--all", "--json").json == {"deployments": []}


def test_degraded_leaves_the_plugin_out_and_the_receipt_says_so(optistack: Optistack, small: Any) -> None:
    ran = optistack("apply", "--set", "eight.dtype=nvfp4", "--allow-degraded", "--json")
    assert ran.code == 0, ran.err
    dropped = ran.json["receipts"][0]["dropped"]
    assert [(one["plugin"], one["rule"]) for one in dropped] == [("eight", "small-no-fp4")]


def test_rules_that_say_degraded_are_named_beside_the_receipt(optistack: Optistack, small: Any) -> None:
    small.slow = True
    ran = optistack("apply")
    assert ran.code == 0, ran.err
    (line,) = [line for line in ran.out.splitlines() if "small-slow" in line]
    assert "The small engine is slow." in line
    assert optistack("down").code == 0
    (finding,) = optistack("apply", "--json").json["degraded"]
    assert (finding["rule"], finding["severity"]) == ("small-slow", "degraded")


def test_without_degraded_rules_nothing_is_said_of_them(optistack: Optistack, small: Any) -> None:
    assert "degraded" not in optistack("apply").out


def test_a_port_in_use_is_refused_before_anything_starts(optistack: Optistack, small: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = optistack("apply", "--set", f"serving.port={taken.getsockname()[1]}")
    assert ran.code == 2
    assert "is in use" in ran.err


def test_a_plan_for_gpus_is_refused_where_there_are_none(
    optistack: Optistack, small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optistack.facts.detect.nvidia_smi", lambda *_: None)
    ran = optistack("apply", "--node", "b200x1")
    assert ran.code == 2
    assert "needs 1 x NVIDIA B200, and this machine has no GPU" in ran.err


def test_a_lock_is_applied_as_it_is(
    optistack: Optistack, small: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert optistack("plan", "--lock", "a.json").code == 0
    (home / "optistack.yaml").unlink()
    asked: list[object] = []
    found = sys.modules["optistack.cli.ready"].find_engine  # type: ignore[attr-defined]
    monkeypatch.setattr(
        "optistack.cli.ready.find_engine", lambda spec, *rest: asked.append(spec.engine.python) or found(spec, *rest)
    )
    assert optistack("apply", "--lock", "a.json", "--engine-python", "venv/bin/python").code == 0
    assert asked == [str(home / "venv/bin/python")]
    assert optistack("down").code == 0
    ran = optistack("apply", "--lock", "a.json", "--json")
    assert ran.code == 0, ran.err
    locked = json.loads((home / "a.json").read_text())["hash"]
    assert ran.json["receipts"][0]["plan_hash"] == locked


def test_a_plugin_looks_at_the_machine_before_the_start_also_of_a_lock(
    optistack: Optistack, small: Any, install: Callable[..., None], home: Path
) -> None:
    looker = ModuleType("looker")
    seen: list[str | None] = []

    @hookimpl
    def optistack_plugin() -> PluginInfo:
        return PluginInfo(name="looker", domain=Domain.CACHE, version="1.0", summary="Looks.")

    @hookimpl
    def optistack_before_start(plan: Plan) -> None:
        seen.append(plan.engine.python)
        if len(seen) > 1:
            raise PlanRefusedError("The disk is gone.", fix="Plug it in.")

    vars(looker).update(optistack_plugin=optistack_plugin, optistack_before_start=optistack_before_start)
    install(looker=looker)
    stack = home / "optistack.yaml"
    stack.write_text(stack.read_text().replace("eight:", "looker:"))
    assert optistack("plan", "--lock", "a.json").code == 0
    assert seen == []
    assert optistack("apply", "--no-verify").code == 0
    assert optistack("down").code == 0
    ran = optistack("apply", "--lock", "a.json")
    assert (ran.code, seen) == (2, [sys.executable] * 2)
    assert "The disk is gone." in ran.err and "Plug it in." in ran.err
    assert optistack("status", "--json").json == {"deployments": []}


def test_a_lock_for_another_checkpoint_or_engine_is_refused(
    optistack: Optistack, small: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert optistack("plan", "--lock", "a.json").code == 0
    assert "applied as it is" in optistack("apply", "--lock", "a.json", "--node", "cpu").err
    assert "applied as it is" in optistack("apply", "--lock", "a.json", "--stack", "other.yaml").err
    config = json.loads((home / "model/config.json").read_text())
    (home / "model/config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    ran = optistack("apply", "--lock", "a.json")
    assert ran.code == 2
    assert "was made for another checkpoint" in ran.err
    (home / "model/config.json").write_text(json.dumps(config))
    text = (home / "a.json").read_text()
    (home / "a.json").write_text(text.replace("--kv-dtype", "--kv-dtypo"))
    assert "was edited" in optistack("apply", "--lock", "a.json").err


def test_a_checkpoint_folder_without_weights_is_planned_and_not_started(
    optistack: Optistack, small: Any, home: Path
) -> None:
    (home / "model/pytorch_model.bin").unlink()
    assert optistack("plan").code == 0
    ran = optistack("apply")
    assert ran.code == 2
    assert "has a config and no weights" in ran.err
    assert list_deployments() == []


def test_something_else_than_an_engine_at_the_endpoint(optistack: Optistack, small: Any) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ran = optistack("verify", "--endpoint", f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()
    assert ran.code == 2
    assert "is no small: it says no version and lists no models" in ran.err


def test_nobody_at_the_endpoint(optistack: Optistack, small: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ran = optistack("verify", "--endpoint", f"http://127.0.0.1:{port}")
    assert ran.code == 2
    assert "No engine answers" in ran.err
    assert optistack("verify", "--endpoint", "nonsense").code == 2


def test_a_lock_whose_checkpoint_is_elsewhere_says_so(optistack: Optistack, small: Any, home: Path) -> None:
    assert optistack("plan", "--lock", "a.json").code == 0
    (home / "model").rename(home / "moved")
    ran = optistack("apply", "--lock", "a.json")
    assert ran.code == 2
    assert "a.json is for the checkpoint" in ran.err
    assert "plan again" in ran.err
