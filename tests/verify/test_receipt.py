"""A receipt passes by what it proves, not by the absence of failures."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from optistack.cli.receipts import failure
from optistack.errors import InputError
from optistack.plan.plan import Plan
from optistack.settings import choose
from optistack.verify.endpoint import Endpoint, on_loopback
from optistack.verify.receipt import CheckResult, Observed, Receipt, Status
from optistack.verify.verify import compare_settings


def receipt(*statuses: Status) -> Receipt:
    results = tuple(
        CheckResult(id=f"c{n}", promised_by="plan", asked="", engine_says="", proof="", status=status)
        for n, status in enumerate(statuses)
    )
    return Receipt(
        stack="s", plan_hash="", backend="b", engine_version="1", endpoint="", verified_at="", results=results
    )


def test_unproven_promises_do_not_fail_what_is_proven() -> None:
    assert receipt(Status.PASS, Status.UNPROVEN).passed


def test_one_failure_fails_it_and_is_named() -> None:
    failed = receipt(Status.PASS, Status.FAIL)
    assert not failed.passed
    assert failure([failed], "the plan") == "The engine does not do what the plan says: c1."


def test_a_receipt_that_proves_nothing_does_not_pass() -> None:
    nothing = receipt(Status.UNPROVEN, Status.UNPROVEN)
    assert not nothing.passed
    assert not receipt().passed
    assert failure([nothing], "the stack").startswith("Nothing of what the stack says could be proven")


@pytest.mark.parametrize(("running", "status"), [(12, Status.PASS), (10, Status.FAIL)])
def test_requests_of_groups_are_proven_in_whole_ones(
    make_plan: Callable[..., Plan], running: int, status: Status
) -> None:
    """10 over 4 attention groups are 3 in each."""
    plan = make_plan()
    parallel = plan.spec.parallel.model_copy(update={"attention_data": 4})
    asked = plan.stack.serving.model_copy(update={"max_running_requests": choose(10)})
    plan = plan.model_copy(
        update={
            "spec": plan.spec.model_copy(update={"parallel": parallel}),
            "stack": plan.stack.model_copy(update={"serving": asked}),
        }
    )
    path = "serving.max_running_requests"
    lines = compare_settings(plan, {path: Observed(value=running, proof="a field")})
    line = next(line for line in lines if line.id == path)
    assert (line.asked, line.status) == ("12", status)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000", "http://localhost:1", "http://[::1]:30000"])
def test_loopback(url: str) -> None:
    assert on_loopback(url)


@pytest.mark.parametrize("url", ["http://10.0.0.7:8000", "http://engine:8000", "nonsense"])
def test_other_machines(url: str) -> None:
    assert not on_loopback(url)


def test_a_url_that_is_none() -> None:
    with pytest.raises(InputError, match="is not a URL"):
        Endpoint("http://[::1", transport=httpx.MockTransport(lambda request: httpx.Response(200)))
