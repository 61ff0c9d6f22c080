"""Each rule, firing and not firing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import optistack_routing

Change = Callable[[Any], Any]

# rule id -> (a plan that fires it, one that does not)
CASES: dict[str, tuple[Change, Change]] = {
    "routing-one-replica": (lambda world: world, lambda world: world.spread(replicas=4)),
    "routing-without-prefix-cache": (
        lambda world: world.serving(prefix_caching=False),
        lambda world: world.asking(policy="least-loaded").serving(prefix_caching=False),
    ),
    "routing-forgets-sessions": (
        lambda world: world.asking(policy="round-robin").working(turns=30),
        lambda world: world.working(turns=30),
    ),
    "routing-affinity-is-strict": (
        lambda world: world.asking(policy="affinity", load_bound=float("inf")),
        lambda world: world.asking(policy="affinity"),
    ),
    "routing-precise-without-events": (
        lambda world: world.asking(precise=True, front=True).launched(),
        lambda world: world.asking(precise=True, front=True).launched("--kv-events-config"),
    ),
    "routing-precise-several-ranks": (
        lambda world: world.asking(precise=True, front=True).spread(tensor=4, attention_data=4),
        lambda world: world.asking(precise=True, front=True).spread(tensor=4),
    ),
    "routing-precise-without-tokenizer": (
        lambda world: world.asking(precise=True, front=True).checkpoint(),
        lambda world: world.asking(precise=True, front=True).checkpoint("tokenizer.json"),
    ),
    "routing-precise-small-pages": (
        lambda world: world.asking(precise=True, front=True).paging(1),
        lambda world: world.asking(precise=True, front=True).paging(16),
    ),
    "routing-target-above-engine": (
        lambda world: world.asking(target_concurrency=64).serving(max_running_requests=48),
        lambda world: world.asking(target_concurrency=48).serving(max_running_requests=48),
    ),
    "routing-target-above-pool": (
        lambda world: world.asking(target_concurrency=100_000),
        lambda world: world.asking(target_concurrency=50),
    ),
}


def test_every_rule_has_a_case_and_says_what_to_do() -> None:
    rules = optistack_routing.optistack_rules()
    assert {rule.id for rule in rules} == set(CASES)
    assert all(rule.fix and rule.upstream and rule.message.endswith(".") for rule in rules)


@pytest.mark.parametrize("rule", CASES)
def test_the_rule_fires(world: Any, rule: str) -> None:
    assert "{detail}" not in CASES[rule][0](world).findings()[rule].message


@pytest.mark.parametrize("rule", CASES)
def test_the_rule_does_not_fire(world: Any, rule: str) -> None:
    assert rule not in CASES[rule][1](world).findings()
