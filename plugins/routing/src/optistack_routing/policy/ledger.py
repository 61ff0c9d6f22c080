"""The counts behind every decision: which replica carries which request.

Every request that is sent holds a lease. The lease gives back exactly what it took, once, whatever ends it, so that no
count can leak.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from optistack_routing.policy.base import Choice, Fleet, Policy, Replica, Request, Usage


class Ledger:
    """A fleet, the policy over it, and the leases that are out."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.fleet = Fleet()
        self.in_flight = 0

    def join(self, name: str, now_s: float) -> Replica:
        """Take ``name`` into the fleet; the replica that is already there when it is."""
        known = self.fleet.get(name)
        if known is None:
            known = self.fleet.replicas[name] = Replica(name, joined_s=now_s)
        return known

    def leave(self, name: str, now_s: float) -> None:
        """Take ``name`` out of the fleet. Leases that are out end as they do, on nobody's account."""
        if self.fleet.replicas.pop(name, None) is not None:
            self.policy.left(name, now_s)

    def place(self, request: Request, now_s: float) -> Lease | None:
        """Choose a replica and count the request there; None when no replica accepts it."""
        choice = self.policy.choose(request, self.fleet, now_s)
        if choice is None:
            return None
        replica = self.fleet.replicas[choice.replica]
        lease = Lease(self, request, choice, replica, max(0, request.prompt_tokens - choice.predicted_cached_tokens))
        replica.in_flight += 1
        replica.pending_prefill_tokens += lease.prefill_tokens
        self.in_flight += 1
        self.policy.placed(request, choice, now_s)
        return lease


@dataclass(slots=True)
class Lease:
    """One request's place on one replica, from the decision to its last byte.

    ``prefill_tokens``  what it still adds to the replica's pending prefill; 0 after the first byte
    """

    ledger: Ledger
    request: Request
    choice: Choice
    replica: Replica
    prefill_tokens: int
    ended: bool = field(default=False, init=False)

    def first_byte(self) -> None:
        """The replica has begun to answer, so its prefill is over."""
        self.replica.pending_prefill_tokens -= self.prefill_tokens
        self.prefill_tokens = 0

    def end(self, now_s: float, *, served: bool, usage: Usage | None = None) -> None:
        """Give everything back. A second call does nothing."""
        if self.ended:
            return
        self.ended = True
        self.first_byte()
        self.replica.in_flight -= 1
        self.ledger.in_flight -= 1
        self.ledger.policy.ended(self.request, self.choice, now_s, served=served, usage=usage)
