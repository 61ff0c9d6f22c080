"""The probes of the router: its settings as it states them, and a session of two turns through it."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from optistack.errors import CheckFailedError
from optistack.settings import Value
from optistack.verify.endpoint import Endpoint
from optistack.verify.receipt import CheckResult, Status
from optistack_routing import prefix
from optistack_routing.launch import ADMIN, ME, parameters
from optistack_routing.options import SESSION_POLICIES

if TYPE_CHECKING:
    from optistack.plan.plan import Plan
    from optistack.verify.endpoint import Completion
    from optistack.verify.front import RunningFront

SETTLED_S = 15.0
"""Until the router must have found every replica, and its counts be still."""

POLL_S = 0.1
PROMPT_COUNTERS = {"vllm": "vllm:prompt_tokens_total", "sglang": "sglang:prompt_tokens_total"}


def probe_router(plan: Plan, front: RunningFront) -> list[CheckResult]:
    """Every line of the router's receipt."""
    from optistack_routing.router.config import ADMIN_KEY_VARIABLE

    with Endpoint(f"http://127.0.0.1:{front.ports[ADMIN]}", api_key=os.environ.get(ADMIN_KEY_VARIABLE)) as admin:
        state = _state_with_every_replica(admin, len(front.replicas))
        results = [_replicas(state, len(front.replicas)), *_settings(plan, state)]
        if plan.stack.routing.policy.value in SESSION_POLICIES:
            results += _session(plan, front, admin)
    return results


def _state_with_every_replica(admin: Endpoint, replicas: int) -> dict[str, Any]:
    """The router's state, once every replica is in use or time is up. Raises CheckFailedError without an answer."""
    deadline = time.monotonic() + SETTLED_S
    while True:
        state = admin.get_json("/state")
        if state is None:
            raise CheckFailedError(f"{admin.url}/state does not answer as the router's admin side does.")
        if _accepting(state) == replicas or time.monotonic() > deadline:
            return state
        time.sleep(POLL_S)


def _accepting(state: dict[str, Any]) -> int:
    return sum(bool(replica["accepts"]) for replica in state["replicas"])


def _replicas(state: dict[str, Any], wanted: int) -> CheckResult:
    used = _accepting(state)
    lost = "; ".join(f"{r['url']}: {r['error'] or r['health']}" for r in state["replicas"] if not r["accepts"])
    says = f"{used} of {wanted} replicas in use"
    proof = "admin /state replicas[].accepts"
    return _result("replicas", f"{wanted} replicas", says, proof, used == wanted, why=lost)


def _settings(plan: Plan, state: dict[str, Any]) -> Iterator[CheckResult]:
    """Each setting of the plan against what the router says of itself."""
    stated: dict[str, tuple[Any, str]] = {
        "policy": (state.get("policy"), "admin /state policy"),
        "session_header": (next(iter(state.get("session_headers") or ()), None), "admin /state session_headers[0]"),
        "front": (bool(state.get("ready")), "admin /state ready"),
        "precise": (state.get("precise") is not None, "admin /state precise"),
    }
    numbers = state.get("parameters") or {}
    for name in parameters(plan):
        stated[name] = (numbers.get(name), f"admin /state parameters.{name}")
    routing = plan.stack.routing
    for field in type(routing).model_fields:
        value = getattr(routing, field)
        if not isinstance(value, Value) or not value.is_set:
            continue
        if field == "parameters":
            for name, asked in (value.value or {}).items():
                yield _setting(f"routing.parameters.{name}", value, asked, *stated[name])
        elif field == "target_concurrency":
            told = "the policies even out whatever load there is; the plan's rules are held against this number"
            yield _setting(f"routing.{field}", value, value.value, None, told)
        else:
            yield _setting(f"routing.{field}", value, value.value, *stated[field])


def _setting(path: str, value: Value[Any], asked: Any, stated: Any, proof: str) -> CheckResult:
    status = Status.UNPROVEN if stated is None else Status.PASS if stated == asked else Status.FAIL
    return CheckResult(
        id=path,
        promised_by=", ".join(dict.fromkeys(wish.source for wish in value.wishes)) or ME,
        asked=_text(asked),
        engine_says="nothing" if stated is None else _text(stated),
        proof=proof,
        status=status,
    )


def _text(value: Any) -> str:
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


def _session(plan: Plan, front: RunningFront, admin: Endpoint) -> Iterator[CheckResult]:
    """Two turns of one session: the second must find the first one's KV, on the same replica."""
    page = prefix.page_tokens(plan, front.replicas[0], front.replicas[0].metrics())
    if plan.stack.serving.prefix_caching.value is False or not page:
        why = "the plan switches prefix caching off" if page else "nobody says how large a KV page is"
        yield _unproven("session-stays", "a session's next turn finds its KV", why)
        return
    header = str(plan.stack.routing.session_header.value)
    session = {header: f"optistack-probe-{secrets.token_hex(8)}"}
    text = prefix.prompt(page, plan.stack.serving.context_tokens.value)
    before = [_prompt_tokens(plan, replica) for replica in front.replicas]
    predictions = (admin.get_json("/state") or {}).get("precise")
    try:
        # The name comes from a replica: asking the router would be a request between the two turns.
        model = front.replicas[0].model()
        first = front.endpoint.complete(text, max_tokens=1, model=model, headers=session)
        second = front.endpoint.complete(text + first.text, max_tokens=1, model=model, headers=session)
    except CheckFailedError as error:
        yield _result("session-stays", "a session's next turn finds its KV", "an error", str(error), False)
        return
    asked = first.prompt_tokens + second.prompt_tokens
    yield _stays(plan, page, first, second, _moved(plan, front, before, least=asked - (second.cached_tokens or 0)))
    if plan.stack.routing.precise.value:
        yield _predicted(admin, predictions)


def _prompt_tokens(plan: Plan, replica: Endpoint) -> float | None:
    return replica.metrics().total(PROMPT_COUNTERS.get(plan.engine.backend, ""))


def _moved(plan: Plan, front: RunningFront, before: list[float | None], *, least: float) -> dict[str, float]:
    """By how much the count of prompt tokens rose at each replica where it did, once all of them together rose by
    ``least`` and stand still: engines publish a count a little after an answer is out, SGLang none before the first.
    """
    deadline = time.monotonic() + SETTLED_S
    last: dict[str, float] = {}
    while True:
        rises = {
            replica.url: (_prompt_tokens(plan, replica) or 0.0) - (count or 0.0)
            for replica, count in zip(front.replicas, before, strict=True)
        }
        moved = {url: rise for url, rise in rises.items() if rise > 0}
        if (sum(moved.values()) >= least and moved == last) or time.monotonic() >= deadline:
            return moved
        last = moved
        time.sleep(POLL_S)


def _stays(plan: Plan, page: int, first: Completion, second: Completion, moved: dict[str, float]) -> CheckResult:
    """``moved``: by how many prompt tokens each replica's count rose, those of others' requests among them."""
    asked = "a session's next turn goes where its KV is"
    bound = first.prompt_tokens - prefix.pages_left_out(plan) * page
    cached = second.cached_tokens
    if cached is None:
        return _unproven("session-stays", asked, "the answers have no usage.prompt_tokens_details")
    if bound <= 0:
        return _unproven("session-stays", asked, f"{first.prompt_tokens} tokens are too short for pages of {page}")
    where = (
        f"both turns at {next(iter(moved))}" if len(moved) == 1 else f"turns at {', '.join(moved) or 'nobody known'}"
    )
    says = f"{cached:,} of {second.prompt_tokens:,} tokens cached in the second turn, {where}"
    counter = PROMPT_COUNTERS.get(plan.engine.backend, "")
    proof = f"usage.prompt_tokens_details.cached_tokens, at least {bound:,} expected; {counter} of each replica"
    if cached >= bound and not moved:
        # The KV was found, but a tier that replicas share would have given it to any of them.
        return _unproven("session-stays", asked, "no count of prompt tokens rose at a replica", says)
    others = sum(moved.values()) - first.prompt_tokens - second.prompt_tokens
    if cached >= bound and len(moved) > 1 and others > 0:
        return _unproven("session-stays", asked, f"the counts rose by {others:,.0f} tokens of others, too", says)
    return _result("session-stays", asked, says, proof, cached >= bound and len(moved) == 1)


def _predicted(admin: Endpoint, before: dict[str, Any] | None) -> CheckResult:
    """What was predicted of the two turns against what the engine then reported, by the router's own count."""
    asked = "predicted and cached tokens agree within a page"
    deadline = time.monotonic() + SETTLED_S
    before = before or {}
    while True:
        now = (admin.get_json("/state") or {}).get("precise") or {}
        told = {name: now.get(name, 0) - before.get(name, 0) for name in ("agreed", "over", "under", "unread", "late")}
        if sum(told.values()) >= 2 or time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    says = ", ".join(f"{count} {name}" for name, count in told.items() if count) or "nothing"
    if not told["agreed"] + told["over"] + told["under"]:
        return _unproven("predictions", asked, f"no prediction of these turns was held against an answer: {says}")
    return _result("predictions", asked, says, "admin /state precise", not told["over"] and not told["under"])


def _result(check: str, asked: str, says: str, proof: str, passed: bool, why: str = "") -> CheckResult:
    status = Status.PASS if passed else Status.FAIL
    return CheckResult(
        id=f"{ME}/{check}", promised_by=ME, asked=asked, engine_says=says, proof=proof, status=status, why=why
    )


def _unproven(check: str, asked: str, why: str, says: str = "nothing") -> CheckResult:
    return CheckResult(
        id=f"{ME}/{check}", promised_by=ME, asked=asked, engine_says=says, proof=why, status=Status.UNPROVEN
    )
