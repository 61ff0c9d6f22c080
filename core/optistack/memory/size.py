"""The tensor-parallel choices of a stack side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pydantic import BaseModel, ConfigDict

from optistack.errors import OptistackError
from optistack.memory.budget import MemoryBudget, budget
from optistack.memory.request import BudgetRequest

TENSOR_PARALLEL_CHOICES = (1, 2, 4, 8)


class SizeRow(BaseModel):
    """One choice of tensor parallelism. A cell is None when the layout itself is refused; ``reason`` then says why.

    ``hbm_bytes``  of all GPUs together, gross; ``planned`` counts the driver's figure instead
    ``reason``     why the choice cannot be used on this node, in a sentence; empty if it can
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tensor_parallel: int
    gross: MemoryBudget | None
    planned: MemoryBudget | None
    reason: str

    @property
    def feasible(self) -> bool:
        return not self.reason


def size_table(
    request_for: Callable[[int], BudgetRequest],
    *,
    gross_hbm_gb: float,
    choices: Iterable[int] = TENSOR_PARALLEL_CHOICES,
) -> tuple[SizeRow, ...]:
    """A row for each of ``choices``.

    ``request_for`` makes the planned request for a tensor parallelism, charges and all, for they depend on it; what it
    raises becomes the row's reason. Rows that need more GPUs than the node has keep their arithmetic and say so.
    """
    return tuple(_row(choice, request_for, gross_hbm_gb) for choice in choices)


def _row(tensor_parallel: int, request_for: Callable[[int], BudgetRequest], gross_hbm_gb: float) -> SizeRow:
    try:
        request = request_for(tensor_parallel)
        planned = budget(request.model_copy(update={"gross_hbm_gb": None}))
        gross = budget(request.model_copy(update={"gross_hbm_gb": gross_hbm_gb}))
    except OptistackError as error:
        return SizeRow(tensor_parallel=tensor_parallel, gross=None, planned=None, reason=error.message)
    reason = planned.reason
    if not reason and request.node.device == "cuda" and tensor_parallel > request.node.gpus:
        reason = f"Needs {tensor_parallel} GPUs, and {request.node.name} has {request.node.gpus}."
    return SizeRow(tensor_parallel=tensor_parallel, gross=gross, planned=planned, reason=reason)
