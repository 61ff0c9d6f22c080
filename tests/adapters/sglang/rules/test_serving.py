"""Rules about the engine as a whole."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.adapters.sglang.rules.combination_cases import SERVING

from optistack.launch import LaunchArgument
from optistack.rules import Rule, Severity, evaluate
from optistack_adapters.sglang.rules import RULES as ALL
from optistack_adapters.sglang.rules.serving import RULES

TP4: dict[str, Any] = {"parallel": {"tensor": 4}}
GROUPS: dict[str, Any] = {"node": "b200x8", "parallel": {"tensor": 8, "attention_data": 4}}

CASES: dict[str, Any] = {
    "sglang-served-name-colon": (
        ((), {**TP4, "model": {"checkpoint": "x", "served_name": "kimi:latest"}}),
        ((), {**TP4, "model": {"checkpoint": "x", "served_name": "kimi-latest"}}),
    ),
    "sglang-attention-data-conservativeness": (
        ((), GROUPS),
        ((), {**GROUPS, "engine_args": ["--schedule-conservativeness", "1.0"]}),
    ),
    **SERVING,
}
"""A plan on which the rule fires, and one on which it does not: settings, and the rest of the stack."""


def test_every_rule_has_a_case() -> None:
    assert {rule.id for rule in RULES} == set(CASES) | {"sglang-attention-groups"}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_fires_and_does_not(rule: str, plan_of: Any, fired: Any) -> None:
    bad, good = CASES[rule]
    message = fired(plan_of(bad)).get(rule)
    assert message is not None
    assert "{" not in message
    assert rule not in fired(plan_of(good))


def test_attention_groups_that_do_not_divide_the_ranks(build: Any, fired: Any) -> None:
    context = build(**GROUPS).context
    parallel = context.spec.parallel.model_copy(update={"attention_data": 3})
    uneven = dataclasses.replace(context, spec=context.spec.model_copy(update={"parallel": parallel}))
    assert "sglang-attention-groups" in fired(uneven)
    assert "sglang-attention-groups" not in fired(context)


def test_the_reference_deployment_breaks_no_rule(full: Any, fired: Any) -> None:
    assert fired(full.context) == {}


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.id)
def test_a_rule_says_what_to_do_and_where_it_comes_from(rule: Rule) -> None:
    assert rule.id.startswith("sglang-")
    assert rule.backends == ("sglang",)
    assert rule.message.endswith(".")
    assert rule.fix.endswith(".")
    assert "sglang 0.5." in rule.upstream or "github.com/sgl-project/sglang/" in rule.upstream


def test_what_a_cpu_lacks_can_be_dropped() -> None:
    domains = {rule.id: rule.domain for rule in ALL if rule.id.startswith("sglang-cpu-")}
    droppable = ("sglang-cpu-dflash", "sglang-cpu-speculation", "sglang-cpu-hicache", "sglang-cpu-nvfp4")
    assert all(domains[rule] is not None for rule in droppable)
    assert domains["sglang-cpu-nvfp4-checkpoint"] is None  # no plugin brought it, so none can be dropped


def test_errors_are_few_where_nothing_is_wrong(build: Any, llama: Any) -> None:
    findings = evaluate([("sglang", rule) for rule in ALL], build(facts=llama, node="h200x1").context)
    assert not [finding for finding in findings if finding.severity is Severity.ERROR]


def test_an_argument_of_the_users_own_is_seen(build: Any) -> None:
    planned = build(**TP4, engine_args=["--hicache-storage-backend", "file"])
    assert planned.launch.arguments[-1] == LaunchArgument(
        flag="--hicache-storage-backend", value="file", source="stack", why="engine_args of the stack file"
    )
