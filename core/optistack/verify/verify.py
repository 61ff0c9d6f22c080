"""Verify a running engine against its plan: compare what it says with what was asked, then let the plugins probe it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from optistack.backend import Backend
from optistack.errors import CheckFailedError, OptistackError
from optistack.host import Host
from optistack.plan.plan import Plan
from optistack.settings import Value
from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import CheckResult, Observed, Receipt, Status

TOLERANCES = {"budget.kv_tokens": 0.02, "tiers.2.capacity_bytes": 0.03}
"""Relative difference that still counts as kept, for figures that an engine rounds to its pages and buffers."""

NOT_THE_ENGINES = ("routing.",)
"""Settings that no engine knows about; the plugin that sets them proves them itself."""

ONLY_WITH = {"kv.draft_dtype": "speculation.draft_checkpoint"}
"""Settings that mean something only beside another one."""

NO_EVIDENCE = "the engine gives no evidence of this"


def verify(
    plan: Plan, endpoint: Endpoint, host: Host, backend: Backend, *, log: str | None = None, replica: int = 0
) -> Receipt:
    """The receipt for the engine at ``endpoint``.

    ``log`` is the engine's log when we have it; some settings are proven nowhere else. Raises InputError when nobody
    answers at the endpoint.
    """
    observed = dict(backend.observe(endpoint, log))
    results = [
        *_identity(plan, endpoint, observed),
        *compare_settings(plan, observed),
        *_budget(plan, observed),
        *_probes(plan, endpoint, host),
    ]
    version = observed.get("engine.version")
    return Receipt(
        stack=plan.spec.name,
        plan_hash=plan.hash(),
        backend=backend.name,
        engine_version=str(version.value) if version else "unknown",
        endpoint=endpoint.url,
        replica=replica,
        verified_at=datetime.now(UTC).isoformat(timespec="seconds"),
        results=tuple(results),
        dropped=plan.dropped,
    )


def _identity(plan: Plan, endpoint: Endpoint, observed: Mapping[str, Observed]) -> Iterator[CheckResult]:
    yield compare("engine.version", plan.engine.version, observed.get("engine.version"), "plan")
    if plan.spec.model.served_name:
        try:
            served = Observed(value=endpoint.model(), proof="/v1/models data[0].id")
        except CheckFailedError as error:
            served = Observed(value=None, proof=error.message)
        yield compare("model.served_name", plan.spec.model.served_name, served, "stack")


def compare_settings(plan: Plan, observed: Mapping[str, Observed]) -> Iterator[CheckResult]:
    """Every setting that a plugin or the stack file decided; of those that only fell back, what the engine shows."""
    for path, value in plan.stack.values():
        if not value.is_set or path.startswith(NOT_THE_ENGINES):
            continue
        if value.fallback and path not in observed:
            continue
        if path in ONLY_WITH and not plan.stack.get(ONLY_WITH[path]).is_set:
            continue
        yield compare(path, value.value, observed.get(path), promised_by(value))


def _budget(plan: Plan, observed: Mapping[str, Observed]) -> Iterator[CheckResult]:
    yield compare("budget.kv_tokens", plan.budget.kv_tokens, observed.get("budget.kv_tokens"), "plan")


def _probes(plan: Plan, endpoint: Endpoint, host: Host) -> Iterator[CheckResult]:
    for use in plan.plugins:
        plugin = host.get(use.name)
        try:
            yield from host.call_many(plugin, "optistack_probe", CheckResult, plan=plan, endpoint=endpoint)
        except OptistackError as error:
            yield CheckResult(
                id=f"{use.name}/probe",
                promised_by=use.name,
                asked="its probe runs",
                engine_says="it could not run",
                proof=str(error),
                status=Status.FAIL,
            )


def promised_by(value: Value[Any]) -> str:
    """Who decided a setting."""
    return ", ".join(dict.fromkeys(origin.source for origin in value.wishes)) or "plan"


def compare(path: str, asked: Any, seen: Observed | None, promised: str) -> CheckResult:
    """One line: what was asked against what was observed, within the tolerance of ``path``."""
    tolerance = TOLERANCES.get(path)
    if seen is None or seen.value is None:
        status, says, proof = Status.UNPROVEN, "nothing", seen.proof if seen else NO_EVIDENCE
    else:
        status = Status.PASS if _same(asked, seen.value, tolerance) else Status.FAIL
        says, proof = _text(seen.value), seen.proof
    why = ""
    if tolerance is not None and seen is not None and isinstance(seen.value, int | float) and asked:
        why = f"{(seen.value - asked) / asked:+.2%} of the plan, {tolerance:.0%} allowed"
    return CheckResult(
        id=path, promised_by=promised, asked=_text(asked), engine_says=says, proof=proof, status=status, why=why
    )


def _same(asked: Any, seen: Any, tolerance: float | None) -> bool:
    if isinstance(asked, bool) or isinstance(seen, bool):
        return asked is seen
    if isinstance(asked, int | float) and isinstance(seen, int | float):
        return abs(seen - asked) <= (tolerance or 0.0) * abs(asked)
    return str(asked) == str(seen)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)
