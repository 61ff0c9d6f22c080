"""The tensor-parallel choices of a stack: what each leaves for KV, and why one cannot be used."""

from __future__ import annotations

from optistack.backend import Backend
from optistack.errors import InputError
from optistack.facts.node import NodeFacts, load_node
from optistack.facts.presets import preset_names
from optistack.host import Host
from optistack.memory.request import BudgetRequest
from optistack.memory.size import SizeRow, size_table
from optistack.plan.build import budget_request
from optistack.stack.spec import StackSpec


def sizes(
    spec: StackSpec, host: Host, backend: Backend, *, gross_hbm_gb: float | None = None
) -> tuple[float, tuple[SizeRow, ...]]:
    """The gross size of a GPU in 1e9 bytes, and a row for each choice of tensor parallelism.

    ``gross_hbm_gb`` is by default the size that the node's GPU is sold with. A choice that needs more GPUs than the
    node has is worked out on a larger node of its kind where that is a preset, and says so. Raises InputError for a
    node without GPUs.
    """
    node = load_node(spec.node)
    if node.gpu is None:
        raise InputError(f"Node {node.name} has no GPUs to compare.", fix="Name one with --node, such as b200x4.")
    gross = gross_hbm_gb or node.gpu.sold_gb or node.gpu.hbm_bytes / 1e9

    def request_for(tensor_parallel: int) -> BudgetRequest:
        parallel = spec.parallel.model_copy(update={"tensor": tensor_parallel, "replicas": 1})
        changes = {"parallel": parallel, "node": _large_enough(node, spec.node, tensor_parallel)}
        return budget_request(spec.model_copy(update=changes), host, backend)

    rows = size_table(request_for, gross_hbm_gb=gross)
    return gross, tuple(_on(row, node) for row in rows)


def _large_enough(node: NodeFacts, word: str, gpus: int) -> str:
    if node.gpu is None or gpus <= node.gpus:
        return word
    larger = f"{node.gpu.kind}x{gpus}"
    if larger not in preset_names():
        raise InputError(_too_few(node, gpus))
    return larger


def _on(row: SizeRow, node: NodeFacts) -> SizeRow:
    if row.reason or row.tensor_parallel <= node.gpus:
        return row
    return row.model_copy(update={"reason": _too_few(node, row.tensor_parallel)})


def _too_few(node: NodeFacts, gpus: int) -> str:
    return f"It needs {gpus} GPUs, and {node.name} has {node.gpus}."
