"""How much host RAM a replica can give to KV, and how many tokens fit into it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from optistack.context import EngineFacts
from optistack.facts.model import ModelFacts
from optistack.facts.node import GIB, NodeFacts
from optistack.memory.kv import bytes_per_token
from optistack.settings.resolved import ResolvedStack
from optistack.stack.spec import ParallelSection
from optistack.versions import at_least

GB = 10**9
PROCESS_BYTES_A_RANK = 4 * GIB
SYSTEM_BYTES = 8 * GIB
"""Kept for the engine's processes (both adapters reckon 3 to 4 GiB a rank) and for everything else on the host."""

DEFAULT_FRACTION = 0.8
"""SGLang's own default, ``--hicache-host-memory-fraction``."""


@dataclass(frozen=True)
class HostKV:
    """What one KV token takes in host RAM.

    ``target_bytes``, ``draft_bytes``  of one token on one rank
    ``ranks``   GPUs of the replica; ``groups`` of them are attention groups with requests of their own
    ``shared``  one copy is kept of KV that every rank of a group holds whole
    """

    target_bytes: int
    draft_bytes: int
    ranks: int
    groups: int
    shared: bool

    @property
    def bytes_per_token(self) -> int:
        copies = 1 if self.shared else self.ranks // self.groups
        return copies * (self.target_bytes + self.draft_bytes)

    def tokens(self, capacity_bytes: int) -> int:
        """Tokens that fit into ``capacity_bytes`` over all ranks of the replica."""
        return capacity_bytes // self.bytes_per_token


def host_kv(model: ModelFacts, stack: ResolvedStack, engine: EngineFacts, parallel: ParallelSection) -> HostKV:
    """How KV of ``model`` lies in host RAM. A draft's KV is what plugins charge for each KV token."""
    draft = sum(charge.per_kv_token_bytes for charge in stack.charges)
    dtype = stack.kv.dtype.value or model.dtype
    groups = parallel.attention_data
    one_copy = engine.trait("host_kv_copies", "rank") == "shared"
    return HostKV(
        target_bytes=bytes_per_token(model, dtype, parallel.tensor, groups),
        draft_bytes=draft,
        ranks=parallel.tensor,
        groups=groups,
        # A draft's KV is divided over the ranks, and one divided part brings back a copy for each rank of everything.
        # In vLLM a group is an engine of its own, with one copy for its ranks.
        shared=one_copy and model.attention.kind == "mla" and not draft,
    )


@dataclass(frozen=True)
class HostRoom:
    """RAM of a replica, and what of it the tier must leave alone.

    ``overhead``  RAM taken for each byte of the tier
    ``whole_gb``  the engine takes whole GB (1e9) of the target's KV on each rank
    ``late_rank`` the engine checks each rank's pool against what is free at that moment, divided by all ranks
    """

    ram_bytes: int
    reserve_bytes: int
    ranks: int
    overhead: float
    whole_gb: bool
    late_rank: bool

    @property
    def usable_bytes(self) -> int:
        """What is left for KV after the reserves; negative on a host that is too small."""
        return self.ram_bytes - self.reserve_bytes

    @property
    def shm_bytes(self) -> int:
        """Of the half of the RAM that Linux gives to /dev/shm: the rest is for the engine's other shared memory."""
        return self.usable_bytes // 2

    def largest_bytes(self, kv: HostKV) -> int:
        """The largest tier that fits, and on SGLang also starts however late a rank asks.

        A rank's pool of S bytes passes its check if (free - 10 GiB) / R >= S. The last of R ranks finds the pools of
        the others gone already: usable - (R - 1) S >= R S. The drafts' pools D follow when all of those are there.
        """
        if not self.late_rank:
            return int(self.usable_bytes / self.overhead)
        ranks = self.ranks
        tokens = min(
            self.usable_bytes // ((2 * ranks - 1) * kv.target_bytes),
            self.usable_bytes // (ranks * kv.target_bytes + (2 * ranks - 1) * kv.draft_bytes),
        )
        return tokens * ranks * (kv.target_bytes + kv.draft_bytes)

    def rounded(self, capacity_bytes: int, kv: HostKV) -> int:
        """``capacity_bytes`` as the engine can say it: SGLang takes whole GB of target KV a rank."""
        if not self.whole_gb:
            return capacity_bytes
        each = kv.target_bytes + kv.draft_bytes
        whole = int(capacity_bytes * kv.target_bytes / each / self.ranks / GB)
        return math.ceil(whole * GB * self.ranks * each / kv.target_bytes)

    def smallest_bytes(self, kv: HostKV) -> int:
        """The smallest tier that the engine takes."""
        each = kv.target_bytes + kv.draft_bytes
        return math.ceil(GB * self.ranks * each / kv.target_bytes) if self.whole_gb else each * self.ranks

    def describe(self) -> str:
        return (
            f"{self.ram_bytes / GIB:.0f} GiB of RAM less {self.reserve_bytes / GIB:.0f} GiB for the engine, the system "
            "and what the engine leaves free"
        )


def host_room(node: NodeFacts, engine: EngineFacts, parallel: ParallelSection) -> HostRoom:
    """The room on ``node``, which is the share of one replica."""
    sglang = engine.backend == "sglang"
    own = engine.trait("host_tier_reserve_bytes", 0)
    # vLLM before 0.32 pins a tensor for each layer, and PyTorch rounds each up to a power of two.
    rounded_up = engine.backend == "vllm" and not at_least(engine.version, "0.32")
    return HostRoom(
        ram_bytes=node.host_ram_bytes,
        reserve_bytes=own + SYSTEM_BYTES + PROCESS_BYTES_A_RANK * parallel.tensor,
        ranks=parallel.tensor,
        overhead=2.0 if rounded_up else 1.0,
        whole_gb=sglang,
        late_rank=sglang and parallel.tensor > 1 and at_least(engine.version, "0.5.18"),
    )
