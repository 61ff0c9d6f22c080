"""Cases that installed plugins bring along, on the composition that runs."""

from __future__ import annotations

import pytest

from optistack.cases import ConformanceCase
from optistack.verify.receipt import CheckResult, Status
from optistack_conformance.cases import Measure
from optistack_conformance.client import Client
from optistack_conformance.outcomes import Outcome
from optistack_conformance.pytest_plugin import SELECTION

OUTCOMES = {Status.PASS: Outcome.PASS, Status.FAIL: Outcome.FAIL, Status.UNPROVEN: Outcome.INCONCLUSIVE}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    selection = metafunc.config.stash.get(SELECTION, None)
    cases: list[ConformanceCase] = []
    if selection is not None:
        from optistack_conformance.runner import plugin_cases

        brought = (case for of_plugin in plugin_cases(selection).values() for case in of_plugin)
        cases = [case for case in brought if case.tier in selection.chosen_tiers]
    metafunc.parametrize("case", cases, ids=[case.id for case in cases])


def test_plugin_case(case: ConformanceCase, candidate: Client, measure: Measure) -> None:
    """A case of a plugin."""
    result: CheckResult = case.run(candidate)
    reason = f"asked {result.asked}; the engine says {result.engine_says} ({result.proof}) {result.why}".strip()
    measure.settle(OUTCOMES[result.status], reason)
