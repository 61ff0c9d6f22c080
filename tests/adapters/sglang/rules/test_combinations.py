"""Rules about what flags given by hand drag in: kernels, all-to-all, drafting, other caches."""

from __future__ import annotations

from typing import Any

import pytest
from tests.adapters.sglang.rules.combination_cases import CASES, CHANGED

from optistack_adapters.sglang.rules.cache_modes import RULES as CACHE_MODES
from optistack_adapters.sglang.rules.drafting import RULES as DRAFTING
from optistack_adapters.sglang.rules.kernel_choices import RULES as KERNEL_CHOICES
from optistack_adapters.sglang.rules.moe import RULES as MOE


def test_every_rule_has_a_case() -> None:
    assert {rule.id for rule in (*MOE, *KERNEL_CHOICES, *DRAFTING, *CACHE_MODES)} == {*CASES, *CHANGED}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_fires_and_does_not(rule: str, plan_of: Any, fired: Any) -> None:
    bad, good = CASES[rule]
    message = fired(plan_of(bad)).get(rule)
    assert message is not None
    assert "{" not in message
    assert rule not in fired(plan_of(good))


@pytest.mark.parametrize("rule", CHANGED)
def test_a_flag_of_the_adapter_that_somebody_changes(rule: str, plan_of: Any, fired: Any, launched: Any) -> None:
    case, changes = CHANGED[rule]
    context = plan_of(case)
    assert rule not in fired(context)
    assert rule in fired(launched(context, **changes))
