"""Routers that weigh a prefix which they believe to be cached against load; see peers.py."""

from __future__ import annotations

from math import sqrt

from optistack_routing.policy.base import Choice, Fleet, Reason, Replica, Request, Usage
from optistack_routing.policy.stateless import Stateless, ready


class PrefixIndex(Stateless):
    """What was sent where, forgotten ``ttl_s`` after its last use."""

    def __init__(self, ttl_s: float = 600.0) -> None:
        self._ttl_s = ttl_s
        self._sent: dict[str, dict[str, tuple[int, float]]] = {}
        self._running_tokens: dict[str, int] = {}

    def placed(self, request: Request, choice: Choice, now_s: float) -> None:
        self._sent.setdefault(request.session or "", {})[choice.replica] = (request.prompt_tokens, now_s)
        self._running_tokens[choice.replica] = self._running_tokens.get(choice.replica, 0) + request.prompt_tokens

    def ended(self, request: Request, choice: Choice, now_s: float, *, served: bool, usage: Usage | None) -> None:
        self._running_tokens[choice.replica] -= request.prompt_tokens

    def finish_session(self, session: str) -> bool:
        return self._sent.pop(session, None) is not None

    def overlap(self, request: Request, now_s: float) -> dict[str, int]:
        """Tokens of the prompt by replica, where that is any."""
        sent = self._sent.get(request.session or "", {})
        return {
            name: min(tokens, request.prompt_tokens)
            for name, (tokens, used_s) in sent.items()
            if now_s - used_s <= self._ttl_s
        }


class PrefillAndDecode(PrefixIndex):
    """dynamo without KV events: the least of the tokens to prefill and the tokens that decode reads."""

    def __init__(self) -> None:
        super().__init__(ttl_s=120.0)

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        candidates = ready(request, fleet)
        if not candidates:
            return None
        known = self.overlap(request, now_s)
        running = self._running_tokens.get

        def cost(replica: Replica) -> int:
            prefill = replica.pending_prefill_tokens + request.prompt_tokens - known.get(replica.name, 0)
            return prefill + running(replica.name, 0)

        best = min(candidates, key=cost)
        return _choice(best, known)


class BestMatch(PrefixIndex):
    """aibrix's prefix-cache: the longest match among those not above the mean and two standard deviations."""

    def choose(self, request: Request, fleet: Fleet, now_s: float) -> Choice | None:
        candidates = ready(request, fleet)
        if not candidates:
            return None
        known = self.overlap(request, now_s)
        loads = [replica.in_flight for replica in candidates]
        mean = sum(loads) / len(loads)
        limit = mean + 2 * sqrt(sum([(load - mean) ** 2 for load in loads]) / len(loads))
        homes = [replica for replica in candidates if replica.name in known and replica.in_flight <= limit]
        if homes:
            return _choice(max(homes, key=lambda replica: (known[replica.name], -replica.in_flight)), known)
        return _choice(min(candidates, key=lambda replica: replica.in_flight), known)


def _choice(replica: Replica, known: dict[str, int]) -> Choice:
    held = known.get(replica.name, 0)
    reason = Reason.HOME if held else Reason.SPILLED if known else Reason.PLACED
    return Choice(replica.name, reason, held)
