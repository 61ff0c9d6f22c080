"""Faults done by a proxy in front of a real vLLM: each fails the case that is for it, and none fails without."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.e2e.conftest import LAPTOP, ON_VLLM, Optistack, fetch_narrow

from optistack_conformance.faults.catalog import Fault
from optistack_conformance.faults.live import honest, try_faults
from optistack_conformance.outcomes import Outcome

pytestmark = pytest.mark.engine

FAULTS = (
    Fault.DROPPED_TOKEN,
    Fault.DUPLICATED_TOKEN,
    Fault.TRUNCATED_ARGUMENTS,
    Fault.WRONG_USAGE,
    Fault.LEAKED_STREAM,
    Fault.STREAM_USAGE,
    Fault.LEAKED_STOP,
    Fault.SHIFTED_LOGPROBS,
    Fault.N_DUPLICATES,
    Fault.SEED_IGNORED,
    Fault.TOOL_IDS_REUSED,
)
"""Those that take seconds; the others' run is in evidence/conformance-vllm-cpu."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The laptop stack without its plugins."""
    program = Optistack({**os.environ, "XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))})
    fetch_narrow(program)
    without = [word for name in ("kv-fp8", "dflash", "routing") for word in ("--no-plugin", name)]
    settings = ["--set", "name=plain", "--set", "serving.tool_call_parser=hermes"]
    result = program("apply", *ON_VLLM, "--stack", LAPTOP, *without, *settings, "--json")
    assert result.code == 0, result.err
    yield str(result.json()["endpoints"][0])
    program("down")


def test_an_honest_proxy_passes(engine: str) -> None:
    found = honest(engine, FAULTS)
    assert [(one.id, one.why) for one in found if one.outcome is not Outcome.PASS] == []
    assert len(found) >= len({*FAULTS}) - 1, "two faults are seen by one case"


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_the_fault_is_seen(engine: str, fault: Fault) -> None:
    (seen,) = try_faults(engine, [fault])
    assert seen.outcome is Outcome.FAIL, seen.why
