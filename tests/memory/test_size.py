"""The table of tensor-parallel choices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from optistack.errors import PlanRefusedError
from optistack.facts import load_node
from optistack.memory import BudgetRequest, size_table

GB = 1e9
Make = Callable[..., BudgetRequest]


def test_rows_for_one_to_eight_gpus(kimi_request: Make) -> None:
    rows = size_table(lambda tp: kimi_request(tensor_parallel=tp, workload_tokens=100_500), gross_hbm_gb=180)
    assert [row.tensor_parallel for row in rows] == [1, 2, 4, 8]
    assert [row.feasible for row in rows] == [False, False, True, True]
    four = rows[2]
    assert four.gross is not None
    assert four.planned is not None
    assert four.gross.capacity_bytes * 4 == 720 * GB
    assert four.gross.kv_bytes / GB == pytest.approx(31.3, rel=0.01)
    # The driver shows more than is sold: 192.3 GB, so more is left although more is counted.
    assert four.planned.kv_tokens > four.gross.kv_tokens
    assert (four.gross.sessions, four.planned.sessions) == (4, 5)


def test_a_row_beyond_the_node_keeps_its_arithmetic(kimi_request: Make) -> None:
    node = load_node("b200x4")
    rows = size_table(lambda tp: kimi_request(tensor_parallel=tp, node=node), gross_hbm_gb=180)
    eight = rows[3]
    assert eight.reason == "Needs 8 GPUs, and b200x4 has 4."
    assert eight.gross is not None
    assert eight.gross.kv_bytes / GB == pytest.approx(105.6, rel=0.01)


def test_a_layout_that_a_plugin_refuses_is_a_row_with_its_reason(kimi_request: Make) -> None:
    def request(tensor_parallel: int) -> BudgetRequest:
        if tensor_parallel == 8:
            raise PlanRefusedError("The draft's 4 KV heads do not divide by 8.")
        return kimi_request(tensor_parallel=tensor_parallel)

    row = size_table(request, gross_hbm_gb=180)[3]
    assert (row.gross, row.planned) == (None, None)
    assert row.reason == "The draft's 4 KV heads do not divide by 8."
