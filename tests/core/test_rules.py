"""Rules: a predicate that fails is its owner's failure, and names it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from optistack.errors import PlanRefusedError
from optistack.rules import Rule, RuleContext, Severity, evaluate

CONTEXT = cast(RuleContext, SimpleNamespace(engine=SimpleNamespace(backend="vllm", version="0.33.0rc1")))


def rule(**fields: Any) -> Rule:
    values: dict[str, Any] = {"id": "r", "severity": Severity.NOTE, "message": "{detail}", "fires": lambda _: "fired"}
    return Rule(**values | fields)


def test_a_rule_that_fails_names_itself_and_its_source() -> None:
    def broken(context: RuleContext) -> bool:
        raise KeyError("moe")

    with pytest.raises(PlanRefusedError, match="Rule r of somebody failed: KeyError: 'moe'"):
        evaluate([("somebody", rule(fires=broken))], CONTEXT)
    with pytest.raises(PlanRefusedError, match="Rule r of somebody failed: InvalidSpecifier"):
        evaluate([("somebody", rule(versions="new"))], CONTEXT)


@pytest.mark.parametrize(("versions", "fires"), [("", True), (">=0.33", True), ("<0.33", False), (">=0.34", False)])
def test_a_rule_holds_for_its_versions(versions: str, fires: bool) -> None:
    assert bool(evaluate([("somebody", rule(versions=versions))], CONTEXT)) is fires
