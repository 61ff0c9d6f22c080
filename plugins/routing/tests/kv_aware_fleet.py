"""A fleet under the default policy, and turns of sessions in it."""

from __future__ import annotations

from optistack_routing.policy.base import Request
from optistack_routing.policy.factory import make_policy
from optistack_routing.policy.ledger import Lease, Ledger
from optistack_routing.policy.parameters import Parameters

PLAIN = Parameters(rehomes_per_s=0.0, slow_start_s=0.0)


def fleet_of(replicas: int, parameters: Parameters = PLAIN) -> Ledger:
    ledger = Ledger(make_policy("kv-aware", parameters))
    for number in range(replicas):
        ledger.join(f"r{number}", 0.0)
    return ledger


def place(ledger: Ledger, session: str | None, tokens: int = 100_000, now_s: float = 1.0, **more: object) -> Lease:
    lease = ledger.place(Request(session, tokens, **more), now_s)  # type: ignore[arg-type]  # the test names the fields
    assert lease is not None
    lease.first_byte()
    return lease


def turn(ledger: Ledger, session: str, tokens: int = 100_000, now_s: float = 1.0) -> Lease:
    lease = place(ledger, session, tokens, now_s)
    lease.end(now_s, served=True)
    return lease


def load(ledger: Ledger, replica: str, requests: int) -> None:
    ledger.fleet.replicas[replica].in_flight += requests
