"""What the engine says about a launch is shown by ``plan --preflight`` and decides whether ``apply`` starts it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optistack.preflight import Preflight, ResolvedChange, Verdict

Optistack = Callable[..., Any]

CHANGED = Preflight(
    verdict=Verdict.ACCEPTED,
    against="small 1.0 in /opt/small",
    gpu_faked="NVIDIA B200",
    changes=(
        ResolvedChange(flag="--kv-dtype", setting="kv.dtype", asked="fp8_e4m3", becomes="bf16", source="_kv"),
        ResolvedChange(setting="kv.page_size_tokens", asked="1", becomes="64"),
    ),
    unresolved=("kernels: chosen at the start",),
)
REJECTED = Preflight(verdict=Verdict.REJECTED, message="kv_dtype must not be fp8 on a Tuesday", against="small 1.0")


def test_apply_stops_with_the_difference_unless_it_is_accepted(optistack: Optistack, small: Any) -> None:
    small.answer = CHANGED
    stopped = optistack("apply")
    assert stopped.code == 2
    assert "--kv-dtype from fp8_e4m3 to bf16 (its _kv) (1 more: kv.page_size_tokens)" in stopped.err
    assert "--accept-overrides" in stopped.err
    assert optistack("status", "--json").json == {"deployments": []}
    assert optistack("apply", "--accept-overrides").code == 0
    assert optistack("down").out == "Stopped tiny.\n"


def test_apply_does_not_start_what_the_engine_rejects(optistack: Optistack, small: Any) -> None:
    small.answer = REJECTED
    refused = optistack("apply", "--accept-overrides")
    assert refused.code == 2
    assert "The engine rejects this launch: kv_dtype must not be fp8 on a Tuesday." in refused.err
    assert "Starting" not in refused.err


def test_apply_does_not_ask_when_told_not_to(optistack: Optistack, small: Any) -> None:
    small.answer = REJECTED
    assert optistack("apply", "--no-preflight").code == 0


def test_a_lock_is_asked_about_too(optistack: Optistack, small: Any) -> None:
    assert optistack("plan", "--lock", "it.json").code == 0
    small.answer = CHANGED
    assert optistack("apply", "--lock", "it.json").code == 2


def test_plan_shows_what_the_engine_says_when_asked_to(optistack: Optistack, small: Any) -> None:
    small.answer = CHANGED
    assert "Preflight" not in optistack("plan").out
    shown = optistack("plan", "--preflight")
    assert shown.code == 0
    for words in (
        "small 1.0 in /opt/small, with a faked NVIDIA B200",
        "accepted",
        "fp8_e4m3 -> bf16",
        "unresolved  kernels: chosen at the start",
    ):
        assert words in shown.out
    assert optistack("plan", "--preflight", "--json").json["preflight"]["verdict"] == "accepted"


def test_what_the_engine_said_is_no_part_of_the_plan(optistack: Optistack, small: Any) -> None:
    small.answer = CHANGED
    assert optistack("plan", "--preflight", "--lock", "asked.json").code == 0
    small.answer = None
    diff = optistack("plan", "--diff", "asked.json", "--json")
    assert (diff.code, diff.json) == (0, [])


def test_an_adapter_that_cannot_ask_does_not_stop_apply(optistack: Optistack, small: Any) -> None:
    assert optistack("apply").code == 0


def test_a_preflight_that_did_not_run_is_1_with_what_to_do(optistack: Optistack, small: Any) -> None:
    ran = optistack("plan", "--preflight")
    assert (ran.code, "not-run" in ran.out) == (1, True)
    assert "The preflight did not run: the adapter for small has no preflight." in ran.err
    assert "--engine-python" in ran.err and "--engine-version" in ran.err
    assert optistack("plan").code == 0


def test_a_preflight_that_did_not_run_leaves_one_json_document(optistack: Optistack, small: Any) -> None:
    ran = optistack("plan", "--preflight", "--json")
    assert (ran.code, ran.json["preflight"]["verdict"]) == (1, "not-run")
    assert "The preflight did not run" in ran.err


def test_a_rejection_is_the_plans_refusal(optistack: Optistack, small: Any) -> None:
    small.answer = REJECTED
    refused = optistack("plan", "--preflight")
    assert (refused.code, "rejected" in refused.out) == (2, True)
    assert "The engine rejects this launch" in refused.err


@pytest.fixture
def unasked(small: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The launches that the engine was asked about."""
    asked: list[str] = []

    def preflight(plan: Any, *_: object) -> Preflight:
        asked.append(plan.spec.name)
        return Preflight(verdict=Verdict.ACCEPTED)

    monkeypatch.setattr(small, "preflight", preflight)
    return asked


def test_a_name_that_runs_is_told_before_the_engine_is_asked(optistack: Optistack, unasked: list[str]) -> None:
    assert optistack("apply").code == 0
    ran = optistack("apply")
    assert (ran.code, unasked) == (2, ["tiny"])
    assert "already running" in ran.err
    assert "Starting" not in ran.err


def test_a_port_in_use_is_told_before_the_engine_is_asked(optistack: Optistack, unasked: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = optistack("apply", "--set", f"serving.port={port}")
    assert (ran.code, unasked) == (2, [])
    assert f"Port {port} is in use" in ran.err


def test_no_place_for_the_state_is_told_before_the_engine_is_asked(
    optistack: Optistack, unasked: list[str], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "file"))
    ran = optistack("apply")
    assert (ran.code, unasked) == (2, [])
    assert "Cannot work in" in ran.err
    assert "XDG_STATE_HOME" in ran.err
