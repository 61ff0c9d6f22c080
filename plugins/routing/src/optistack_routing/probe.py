"""The probes of a replica: the prefix cache without which affinity would buy nothing, and what only a router proves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from optistack.errors import CheckFailedError
from optistack.settings import Value
from optistack.verify.receipt import CheckResult, Status
from optistack_routing import prefix

if TYPE_CHECKING:
    from optistack.plan.plan import Plan
    from optistack.verify.endpoint import Completion, Endpoint
    from optistack.verify.metrics import Metrics

NAME = "routing"
DEADLINE_S = 10.0
POLL_S = 0.1
NO_ROUTER = "no router of this stack stands before this engine, and an engine does not know how it was chosen"


def promises(plan: Plan) -> Iterator[CheckResult]:
    """One unproven line for each routing setting of a plan without a router."""
    for field in type(plan.stack.routing).model_fields:
        value = getattr(plan.stack.routing, field)
        if isinstance(value, Value) and value.is_set:
            yield CheckResult(
                id=f"routing.{field}",
                promised_by=NAME,
                asked=str(value.value),
                engine_says="nothing",
                proof=NO_ROUTER,
                status=Status.UNPROVEN,
            )


def prefix_is_cached(plan: Plan, endpoint: Endpoint) -> CheckResult:
    """Send a prompt that nobody has seen, and again: the engine must report its tokens as cached the second time only.

    With attention data parallelism the repeat may reach another rank, so there are as many repeats as ranks and the
    best one counts.
    """
    if plan.stack.serving.prefix_caching.value is False:
        return _result("nothing", "the plan switches prefix caching off", Status.UNPROVEN)
    before = endpoint.metrics()
    page = prefix.page_tokens(plan, endpoint, before)
    if not page:
        return _result("nothing", "neither the engine nor the plan says how large a KV page is", Status.UNPROVEN)
    text = prefix.prompt(page, plan.stack.serving.context_tokens.value)
    try:
        first = endpoint.complete(text, max_tokens=1)
        repeats = [endpoint.complete(text, max_tokens=1) for _ in range(plan.spec.parallel.attention_data)]
    except CheckFailedError as error:
        return _result("an error", str(error), Status.FAIL)
    bound = first.prompt_tokens - prefix.pages_left_out(plan) * page
    if bound <= 0:
        short = f"a prompt of {first.prompt_tokens} tokens is too short for pages of {page}"
        return _result("nothing", short, Status.UNPROVEN)
    best = max(repeats, key=lambda answer: answer.cached_tokens or 0)
    if best.cached_tokens is None:
        return _by_counter(plan, endpoint, before)
    return _by_report(first, best, bound)


def _by_report(first: Completion, best: Completion, bound: int) -> CheckResult:
    seen, again = first.cached_tokens or 0, best.cached_tokens or 0
    says = f"{again:,} of {best.prompt_tokens:,} tokens cached, {seen:,} the first time"
    proof = f"usage.prompt_tokens_details.cached_tokens; at least {bound:,} are expected of the repeat"
    if seen >= bound:
        return _result(says, proof, Status.FAIL, "it reports a prompt as cached that it had never seen")
    return _result(says, proof, Status.PASS if again >= bound else Status.FAIL)


def _by_counter(plan: Plan, endpoint: Endpoint, before: Metrics) -> CheckResult:
    """Without a report for each request, a counter that stands still proves at least that nothing was cached. It is
    published a little after the answer, so it is given time to move."""
    name = prefix.HIT_COUNTERS.get(plan.engine.backend, "")
    deadline = time.monotonic() + DEADLINE_S
    while True:
        after = endpoint.metrics().total(name)
        moved = (after or 0.0) - (before.total(name) or 0.0)
        if moved > 0 or time.monotonic() >= deadline or not before.samples:
            break
        time.sleep(POLL_S)
    silent = "the answers have no usage.prompt_tokens_details"
    if after is None:
        return _result("nothing", f"{silent}, and there is no counter of cached tokens", Status.UNPROVEN)
    if moved <= 0:
        proof = f"{name} stands still at {after:,.0f} for {DEADLINE_S:g} s; {silent}"
        return _result("0 tokens cached", proof, Status.FAIL)
    why = "other requests may have moved the counter; switch the cache report on"
    return _result(f"{moved:,.0f} tokens cached in all", f"{name}; {silent}", Status.UNPROVEN, why)


def _result(says: str, proof: str, status: Status, why: str = "") -> CheckResult:
    return CheckResult(
        id="routing/prefix-cache",
        promised_by=NAME,
        asked="a repeated prompt comes from the prefix cache",
        engine_says=says,
        proof=proof,
        status=status,
        why=why,
    )
