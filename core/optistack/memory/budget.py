"""The memory budget: what each GPU's bytes go to, and how many KV tokens the rest holds."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from optistack.memory.kv import bytes_per_token
from optistack.memory.lines import MemoryLine, total
from optistack.memory.request import BudgetRequest, EngineReserves
from optistack.memory.weights import weight_lines

__all__ = ["BudgetRequest", "EngineReserves", "MemoryBudget", "budget"]


class MemoryBudget(BaseModel):
    """Bytes of one GPU of a replica (of one rank's RAM on a CPU node), of the host, and what follows.

    ``capacity_bytes``      of one GPU: the driver's figure, or the gross size
    ``weights``, ``charges``, ``reserves``  lines of what is taken, in that order
    ``kv_bytes``            for KV on one GPU; 0 when nothing is left
    ``bytes_per_kv_token``  of the target and of every charge for a token, on one GPU
    ``kv_tokens``           that the replica holds, in whole pages, over all of its attention groups
    ``sessions``            requests of the workload that fit at once; None without a workload
    ``shortfall_bytes``     missing on all GPUs of the replica together; 0 when feasible
    ``reason``              why not, in a sentence; empty when feasible
    ``host_capacity_bytes``, ``host``, ``host_free_bytes``  RAM of the replica, what takes it, and the rest
    ``notes``               what the arithmetic does not know about this model
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["gross", "planned"]
    device: Literal["cuda", "cpu"]
    tensor_parallel: int
    kv_dtype: str
    capacity_bytes: int
    weights: tuple[MemoryLine, ...]
    charges: tuple[MemoryLine, ...]
    reserves: tuple[MemoryLine, ...]
    kv_bytes: int
    bytes_per_kv_token: int
    page_size_tokens: int
    kv_tokens: int
    session_tokens: int
    sessions: int | None
    shortfall_bytes: int
    reason: str
    host_capacity_bytes: int
    host: tuple[MemoryLine, ...]
    host_free_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[MemoryLine, ...]:
        """Everything that is taken of one GPU before KV."""
        return self.weights + self.charges + self.reserves

    @property
    def weight_bytes(self) -> int:
        return total(self.weights)

    @property
    def loaded_bytes(self) -> int:
        """All weights on one GPU: the target's and those that plugins charge."""
        return self.weight_bytes + sum(line.bytes for line in self.charges if line.weights)

    @property
    def taken_bytes(self) -> int:
        """What weights, charges and reserves take of one GPU."""
        return total(self.lines)

    @property
    def feasible(self) -> bool:
        return not self.reason


def budget(request: BudgetRequest) -> MemoryBudget:
    """Work out the budget of ``request``.

    An infeasible one is returned with its reason and shortfall and not raised, so that tables can show it. InputError
    for a layout or dtype that makes no sense.
    """
    gross = request.gross_hbm_gb is not None
    placement = request.placement
    groups = placement.attention_data_parallel
    capacity = _capacity_bytes(request)
    weights = weight_lines(request.model, placement, even=gross)
    charges = tuple(
        MemoryLine(
            label=charge.what,
            bytes=charge.per_gpu_bytes,
            why=charge.why,
            while_serving=charge.while_serving,
            weights=charge.weights,
        )
        for charge in request.charges
        if charge.per_gpu_bytes
    )
    reserves = () if gross else _reserves(request)
    per_token = bytes_per_token(request.model, request.kv_dtype, placement.tensor_parallel, groups)
    per_token += sum(charge.per_kv_token_bytes for charge in request.charges)
    left = capacity - total(weights + charges + reserves)
    kv_bytes = max(0, left) if request.kv_pool_bytes is None else request.kv_pool_bytes
    page = request.page_size_tokens
    group_tokens = kv_bytes // (per_token * page) * page
    session = request.session_tokens
    shortfall, reason = _verdict(request, capacity, left, group_tokens, per_token)
    host = _host_lines(request)
    host_capacity = request.node.host_ram_bytes
    host_taken = total(host)
    if request.node.device == "cpu":
        host_taken += (capacity - left + kv_bytes) * placement.tensor_parallel
    if not reason and host_taken > host_capacity:
        reason = f"Host RAM: {_gb(host_taken)} are needed and the replica has {_gb(host_capacity)}."
    return MemoryBudget(
        mode="gross" if gross else "planned",
        device=request.node.device,
        tensor_parallel=placement.tensor_parallel,
        kv_dtype=request.kv_dtype,
        capacity_bytes=capacity,
        weights=weights,
        charges=charges,
        reserves=reserves,
        kv_bytes=kv_bytes,
        bytes_per_kv_token=per_token,
        page_size_tokens=page,
        kv_tokens=group_tokens * groups,
        session_tokens=session,
        sessions=group_tokens // session * groups if session else None,
        shortfall_bytes=shortfall,
        reason=reason,
        host_capacity_bytes=host_capacity,
        host=host,
        host_free_bytes=max(0, host_capacity - host_taken),
        notes=request.model.attention.uncounted,
    )


def _capacity_bytes(request: BudgetRequest) -> int:
    if request.gross_hbm_gb is not None:
        return round(request.gross_hbm_gb * 1e9)
    if request.node.device == "cpu":
        return request.node.host_ram_bytes // request.placement.tensor_parallel
    return request.node.hbm_bytes


def _reserves(request: BudgetRequest) -> tuple[MemoryLine, ...]:
    gpu = request.node.gpu
    hidden = gpu.hbm_bytes - gpu.cuda_bytes if gpu and gpu.cuda_bytes else 0
    why = "the driver reports it, CUDA does not give it out"
    own = (MemoryLine(label="driver", bytes=hidden, why=why),) if hidden > 0 else ()
    return own + request.reserves.lines


def _host_lines(request: BudgetRequest) -> tuple[MemoryLine, ...]:
    lines = [
        MemoryLine(label=charge.what, bytes=charge.host_bytes, why=charge.why)
        for charge in request.charges
        if charge.host_bytes
    ]
    if request.reserves.host_bytes:
        lines.append(
            MemoryLine(label="engine", bytes=request.reserves.host_bytes, why=request.reserves.why or "its processes")
        )
    return tuple(lines)


def _verdict(request: BudgetRequest, capacity: int, left: int, group_tokens: int, per_token: int) -> tuple[int, str]:
    """Missing bytes over the whole replica, and the reason; (0, "") when it works out."""
    gpus = request.tensor_parallel
    pool = request.kv_pool_bytes
    missing = (pool or 0) - left
    if missing > 0:
        taken = ["weights"]
        taken += ["what plugins add"] if any(charge.per_gpu_bytes for charge in request.charges) else []
        taken += ["what the engine reserves"] if request.gross_hbm_gb is None else []
        taken += ["the KV pool"] if pool is not None else []
        named = " and ".join(filter(None, (", ".join(taken[:-1]), taken[-1])))
        return missing * gpus, (
            f"{named[0].upper()}{named[1:]} take {_gb((capacity + missing) * gpus)} and {gpus} x {_gb(capacity)} is "
            f"{_gb(capacity * gpus)}: {_gb(missing * gpus)} short."
        )
    wanted = max(request.session_tokens, request.page_size_tokens)
    if group_tokens < wanted:
        what = "one request of the workload" if request.session_tokens else "one page"
        short = (wanted - group_tokens) * per_token * gpus
        return short, f"KV holds {group_tokens:,} tokens and {what} takes {wanted:,}: {_gb(short)} short."
    if request.node.device == "cpu" and pool is None and request.gross_hbm_gb is None:
        return 0, "The KV pool of a CPU node has to be given (serving.kv_memory_gib): it shares RAM with all else."
    return 0, ""


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
