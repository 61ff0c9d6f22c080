"""What is to be started is checked when it is written down."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from optistack.apply.launch import DeploymentSpec, ProcessSpec

PROCESS: dict[str, Any] = {"name": "engine", "argv": ["x"], "port": 8000, "ready_url": "http://127.0.0.1:8000/health"}


def test_a_spec_survives_its_file() -> None:
    spec = DeploymentSpec(
        name="kimi-k2.6",
        processes=(ProcessSpec(**PROCESS, env={"A": "1"}, files={"conf/a.json": "{}"}, cause_patterns=("x",)),),
        plan_hash="abc",
        endpoints=("http://127.0.0.1:8000/v1",),
        plan={"any": [1, None]},
    )
    assert DeploymentSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"name": "../up"},
        {"name": "-rf"},
        {"argv": []},
        {"port": 0},
        {"port": 70000},
        {"ready_url": "/health"},
        {"files": {"../x": ""}},
        {"files": {"/etc/x": ""}},
        {"files": {"logs/x": ""}},
        {"files": {"state.json": ""}},
        {"files": {"": ""}},
        {"cause_patterns": ["("]},
        {"unknown": 1},
    ],
)
def test_what_cannot_be_started_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ProcessSpec(**(PROCESS | change))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "engine"}, "the same name: engine"),
        ({"port": 8000}, "the same port: 8000"),
        ({"files": {"a": ""}}, "the same file: a"),
    ],
)
def test_two_processes_share_nothing(change: dict[str, Any], said: str) -> None:
    first = ProcessSpec(**PROCESS, files={"a": ""})
    second = ProcessSpec(**(PROCESS | {"name": "other", "port": 8001} | change))
    with pytest.raises(ValidationError, match=said):
        DeploymentSpec(name="x", processes=(first, second))


def test_the_slowest_process_sets_the_time_to_stop() -> None:
    processes = (
        ProcessSpec(**PROCESS, stop_timeout_s=5),
        ProcessSpec(**(PROCESS | {"name": "b", "port": 1}), stop_timeout_s=9),
    )
    assert DeploymentSpec(name="x", processes=processes).stop_timeout_s == 9
