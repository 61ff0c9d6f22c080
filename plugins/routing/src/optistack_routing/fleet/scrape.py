"""How full the replicas' KV pools are, read from their metrics now and then."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from time import monotonic

from optistack_routing.fleet.roster import Health, Member, Roster
from optistack_routing.http.client import ClientTLS, get
from optistack_routing.http.head import Refused

_USED = re.compile(
    rb"^(?:vllm:kv_cache_usage_perc|vllm:gpu_cache_usage_perc|sglang:token_usage)(?:\{[^\n]*\})? ([0-9.eE+-]+)",
    re.MULTILINE,
)
"""vLLM (the second name before 0.10) and SGLang, both as a share of 1; one line for each data-parallel rank."""

_POOL = re.compile(rb"^sglang:max_total_num_tokens(\{[^\n]*\})? ([0-9.eE+]+)", re.MULTILINE)
_RANK = re.compile(rb'\bdp_rank="(\d+)"')
_BLOCKS = re.compile(rb"^vllm:cache_config_info\{([^\n]*)\}", re.MULTILINE)
_BLOCK_COUNT, _BLOCK_TOKENS = re.compile(rb'\bnum_gpu_blocks="(\d+)"'), re.compile(rb'\bblock_size="(\d+)"')
_COUNTED = re.compile(rb"^(?:vllm|sglang):prompt_tokens_total(?:\{[^\n]*\})? ([0-9.eE+]+)", re.MULTILINE)


@dataclass
class KVGauge:
    """Asks one replica after the other, so that hundreds are spread over ``every_s``."""

    roster: Roster
    every_s: float = 5.0
    timeout_s: float = 2.0
    tls: ClientTLS | None = None
    authorization: bytes | None = None

    async def run(self) -> None:
        while True:
            members = [member for member in self.roster if member.health is Health.UP]
            for member in members:
                await self.ask(member)
                await asyncio.sleep(self.every_s / len(members))
            if not members:
                await asyncio.sleep(self.every_s)

    async def ask(self, member: Member) -> None:
        """A replica that does not say is one of which nothing is known."""
        used: float | None = None
        pool: int | None = None
        try:
            async with asyncio.timeout(self.timeout_s):
                status, body = await get(member.address, "/metrics", tls=self.tls, authorization=self.authorization)
            if status == 200:
                used, pool = read_utilisation(body), read_pool(body)
                self._look_for_a_restart(member, body)
        except (OSError, ValueError, OverflowError, Refused):  # TimeoutError is an OSError, and 1e999 has no integer
            pass
        if member.replica is not None:
            member.replica.kv_utilisation = used
            member.replica.kv_tokens = pool or member.replica.kv_tokens

    def _look_for_a_restart(self, member: Member, metrics: bytes) -> None:
        if not _COUNTED.search(metrics):
            return  # SGLang has no count before its first request
        counted = read_sum(_COUNTED, metrics)
        if counted < member.counted_tokens and member.health is Health.UP:
            self.roster.restarted(member, monotonic())
        member.counted_tokens = counted


def read_sum(pattern: re.Pattern[bytes], metrics: bytes) -> float:
    return sum(float(match[1]) for match in pattern.finditer(metrics))


def read_pool(metrics: bytes) -> int | None:
    """Tokens that the KV pools of all its data-parallel ranks hold; None when ``metrics`` does not say."""
    ranks: dict[bytes, float] = {}
    for line in _POOL.finditer(metrics):
        rank = _RANK.search(line[1] or b"")
        name = rank[1] if rank is not None else b""
        ranks[name] = max(ranks.get(name, 0.0), float(line[2]))  # every tensor-parallel rank says the same
    tokens = sum(ranks.values())
    for labels in _BLOCKS.finditer(metrics):
        count, size = _BLOCK_COUNT.search(labels[1]), _BLOCK_TOKENS.search(labels[1])
        if count is not None and size is not None:
            tokens += int(count[1]) * int(size[1])
    return int(tokens) or None


def read_utilisation(metrics: bytes) -> float | None:
    """Share of the KV pool in use, 0 to 1, of the fullest rank; None when ``metrics`` does not say."""
    try:
        shares = [float(match[1]) for match in _USED.finditer(metrics)]
    except ValueError:
        return None
    return max(0.0, min(1.0, max(shares))) if shares else None
