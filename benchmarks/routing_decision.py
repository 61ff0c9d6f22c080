"""What one routing decision costs over 500 replicas, for sessions that are known and for new ones.

    python benchmarks/routing_decision.py

CPU microseconds a decision, the best of five passes, since the machine may be busy.
"""

from __future__ import annotations

import time
from random import Random

from optistack_routing.policy.base import Request
from optistack_routing.policy.factory import POLICIES, make_policy
from optistack_routing.policy.ledger import Ledger

REPLICAS, SESSIONS, DECISIONS = 500, 2500, 300


def microseconds(ledger: Ledger, prefix: str) -> float:
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        for number in range(DECISIONS):
            ledger.policy.choose(Request(f"{prefix}{number}", 100_000), ledger.fleet, 1.0)
        best = min(best, (time.process_time() - started) / DECISIONS)
    return best * 1e6


def main() -> None:
    print(f"{REPLICAS} replicas, {SESSIONS} requests in flight")
    for name in POLICIES:
        ledger, random = Ledger(make_policy(name)), Random(0)
        for number in range(REPLICAS):
            ledger.join(f"http://replica-{number}", 0.0)
        for number in range(SESSIONS):
            lease = ledger.place(Request(f"s{number}", random.randrange(200_000)), 0.5)
            if lease is not None:
                lease.first_byte()
        print(f"{name:14} {microseconds(ledger, 's'):6.0f} us known {microseconds(ledger, 'new-'):6.0f} us new")


if __name__ == "__main__":
    main()
