"""The needles' verdict: a model that finds hardly any near ones says nothing about far ones."""

from __future__ import annotations

import pytest

from optistack.verify.receipt import Status
from optistack_kv_fp8.conformance import judge


@pytest.mark.parametrize(
    ("near", "far", "status"),
    [
        (8, 8, Status.PASS),
        (8, 6, Status.PASS),
        (6, 5, Status.PASS),
        (8, 0, Status.FAIL),
        (6, 0, Status.FAIL),
        (1, 1, Status.UNPROVEN),
        (5, 8, Status.UNPROVEN),
        (5, 0, Status.UNPROVEN),
        (0, 0, Status.UNPROVEN),
        (8, 5, Status.UNPROVEN),
    ],
)
def test_a_pass_needs_needles_that_could_have_been_lost(near: int, far: int, status: Status) -> None:
    assert judge(near, far, 4_096).status is status
