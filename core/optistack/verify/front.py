"""Verify the process before the replicas: its plugin says what it promised and proves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from optistack.errors import OptistackError
from optistack.host import Host
from optistack.plan.plan import Plan
from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import CheckResult, Receipt, Status


@dataclass(frozen=True)
class RunningFront:
    """A front and what is behind it.

    ``endpoint``  where clients go
    ``replicas``  the engines, in the order of the plan's launches
    ``ports``     the further ports of the front on this machine, by name
    """

    endpoint: Endpoint
    replicas: tuple[Endpoint, ...]
    ports: Mapping[str, int] = field(default_factory=dict)


def verify_front(plan: Plan, front: RunningFront, host: Host) -> Receipt:
    """The receipt of the front: what every plugin of the plan has to say of it."""
    assert plan.front is not None
    results: list[CheckResult] = []
    for use in plan.plugins:
        plugin = host.get(use.name)
        try:
            results += host.call_many(plugin, "optistack_probe_front", CheckResult, plan=plan, front=front)
        except OptistackError as error:
            results.append(
                CheckResult(
                    id=f"{use.name}/probe-front",
                    promised_by=use.name,
                    asked="its probe of the front runs",
                    engine_says="it could not run",
                    proof=str(error),
                    status=Status.FAIL,
                )
            )
    return Receipt(
        stack=plan.spec.name,
        plan_hash=plan.hash(),
        backend=plan.front.source,
        engine_version=plan.front.version,
        endpoint=front.endpoint.url,
        replica=None,
        verified_at=datetime.now(UTC).isoformat(timespec="seconds"),
        results=tuple(results),
        dropped=plan.dropped,
    )
