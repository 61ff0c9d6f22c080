"""How full the replicas' KV pools are, read from their metrics now and then."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from optistack_routing.fleet.roster import Health, Member, Roster
from optistack_routing.http.client import ClientTLS, get
from optistack_routing.http.head import Refused

_USED = re.compile(
    rb"^(?:vllm:kv_cache_usage_perc|vllm:gpu_cache_usage_perc|sglang:token_usage)(?:\{[^\n]*\})? ([0-9.eE+-]+)",
    re.MULTILINE,
)
"""vLLM (the second name before 0.10) and SGLang, both as a share of 1; one line for each data-parallel rank."""


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
        try:
            async with asyncio.timeout(self.timeout_s):
                status, body = await get(member.address, "/metrics", tls=self.tls, authorization=self.authorization)
            if status == 200:
                used = read_utilisation(body)
        except (OSError, TimeoutError, Refused):
            pass
        if member.replica is not None:
            member.replica.kv_utilisation = used


def read_utilisation(metrics: bytes) -> float | None:
    """Share of the KV pool in use, 0 to 1, of the fullest rank; None when ``metrics`` does not say."""
    try:
        shares = [float(match[1]) for match in _USED.finditer(metrics)]
    except ValueError:
        return None
    return min(1.0, max(shares)) if shares else None
