"""The memory budget: weights, KV, what plugins and engines take, and what fits in the rest. Pure arithmetic."""

from optistack.memory.budget import MemoryBudget, budget
from optistack.memory.kv import KV_DTYPES, bytes_per_token, row_bytes
from optistack.memory.lines import MemoryLine
from optistack.memory.request import BudgetRequest, EngineReserves
from optistack.memory.size import TENSOR_PARALLEL_CHOICES, SizeRow, size_table
from optistack.memory.weights import Placement, weight_bytes, weight_lines

__all__ = [
    "KV_DTYPES",
    "TENSOR_PARALLEL_CHOICES",
    "BudgetRequest",
    "EngineReserves",
    "MemoryBudget",
    "MemoryLine",
    "Placement",
    "SizeRow",
    "budget",
    "bytes_per_token",
    "row_bytes",
    "size_table",
    "weight_bytes",
    "weight_lines",
]
