"""What a budget is asked about."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from optistack.facts.model import ModelFacts
from optistack.facts.node import NodeFacts
from optistack.memory.lines import MemoryLine
from optistack.memory.weights import Placement
from optistack.settings import MemoryCharge


class EngineReserves(BaseModel):
    """What an engine takes of each GPU beside weights and KV, by the adapter's knowledge of that engine and version.

    ``context_bytes``      CUDA context, libraries and kernels, beyond what CUDA itself hides from the driver's figure
    ``collectives_bytes``  NCCL and custom all-reduce buffers
    ``graphs_bytes``       CUDA graphs
    ``activations_bytes``  the largest forward pass: prefill chunk, logits, workspaces
    ``unused_bytes``       what the engine leaves alone on purpose (its memory fraction's remainder)
    ``host_bytes``         host RAM of one replica: processes, pinned buffers

    The rest says how this engine lays out weights, as in :class:`optistack.memory.weights.Placement`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str = ""
    context_bytes: int = 0
    collectives_bytes: int = 0
    graphs_bytes: int = 0
    activations_bytes: int = 0
    unused_bytes: int = 0
    host_bytes: int = 0
    groups_share_experts_only: bool = False
    shared_experts_whole: bool = False
    groups_have_heads: bool = False
    absorbed_mla_copies: bool = False
    vision_divided: bool = False
    vision_loaded: bool = True
    mtp_loaded: bool = False
    why: str = ""

    @property
    def lines(self) -> tuple[MemoryLine, ...]:
        """The reserves of one GPU that are not zero."""
        parts = (
            ("context", self.context_bytes),
            ("collectives", self.collectives_bytes),
            ("CUDA graphs", self.graphs_bytes),
            ("activations", self.activations_bytes),
            ("left unused", self.unused_bytes),
        )
        why = self.why or self.engine
        return tuple(MemoryLine(label=label, bytes=size, why=why) for label, size in parts if size)


class BudgetRequest(BaseModel):
    """One replica: a model on its part of a node.

    ``node``           what the replica has (one of ``NodeFacts.split``'s shares, or the whole node)
    ``tensor_parallel``, ``attention_data_parallel``, ``expert_parallel``  as in ``Placement``
    ``kv_dtype``       of the target's KV: one of :data:`optistack.memory.kv.KV_DTYPES`
    ``charges``        what plugins add (draft weights, draft KV for each token, host pools)
    ``reserves``       what the engine adds; left out in gross mode
    ``gross_hbm_gb``   a size of a GPU in 1e9 bytes: gross mode, nothing reserved and everything divided evenly
    ``kv_pool_bytes``  a KV pool of one GPU (or CPU rank) given outright instead of "all that is left"
    ``workload_tokens``  input and output tokens of one request of the workload; 0 if there is none
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelFacts
    node: NodeFacts
    tensor_parallel: int = Field(default=1, gt=0)
    attention_data_parallel: int = Field(default=1, gt=0)
    expert_parallel: int = Field(default=1, gt=0)
    kv_dtype: str
    page_size_tokens: int = Field(default=1, gt=0)
    charges: tuple[MemoryCharge, ...] = ()
    reserves: EngineReserves = EngineReserves()
    gross_hbm_gb: float | None = Field(default=None, gt=0)
    kv_pool_bytes: int | None = Field(default=None, gt=0)
    workload_tokens: int = Field(default=0, ge=0)

    @property
    def session_tokens(self) -> int:
        """KV tokens that one request of the workload holds at its end, rounded up to pages."""
        return -(-self.workload_tokens // self.page_size_tokens) * self.page_size_tokens

    @property
    def placement(self) -> Placement:
        """How the weights lie: the replica's parallelism and the engine's habits."""
        return Placement(
            tensor_parallel=self.tensor_parallel,
            attention_data_parallel=self.attention_data_parallel,
            expert_parallel=self.expert_parallel,
            groups_share_experts_only=self.reserves.groups_share_experts_only,
            shared_experts_whole=self.reserves.shared_experts_whole,
            groups_have_heads=self.reserves.groups_have_heads,
            absorbed_mla_copies=self.reserves.absorbed_mla_copies,
            vision_divided=self.reserves.vision_divided,
            vision_loaded=self.reserves.vision_loaded,
            mtp_loaded=self.reserves.mtp_loaded,
        )
