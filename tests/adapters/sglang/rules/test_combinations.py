"""Rules about what flags given by hand drag in: kernels, all-to-all, drafting, other caches."""

from __future__ import annotations

from typing import Any

import pytest
from tests.adapters.sglang.rules.by_hand_cases import ALONE, BY_HAND
from tests.adapters.sglang.rules.combination_cases import CASES, CHANGED

from optistack_adapters.sglang.rules.by_hand import RULES as HAND
from optistack_adapters.sglang.rules.cache_modes import RULES as CACHE_MODES
from optistack_adapters.sglang.rules.drafting import RULES as DRAFTING
from optistack_adapters.sglang.rules.kernel_choices import RULES as KERNEL_CHOICES
from optistack_adapters.sglang.rules.moe import RULES as MOE


def test_every_rule_has_a_case() -> None:
    assert {rule.id for rule in (*MOE, *KERNEL_CHOICES, *DRAFTING, *CACHE_MODES, *HAND)} == {*CASES, *BY_HAND, *CHANGED}


@pytest.mark.parametrize("rule", {**CASES, **BY_HAND})
def test_a_rule_fires_and_does_not(rule: str, plan_of: Any, fired: Any) -> None:
    bad, good = {**CASES, **BY_HAND}[rule]
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


@pytest.mark.parametrize(("on", "words"), ALONE, ids=[words[0] for _, words in ALONE])
def test_a_flag_without_what_it_needs_is_named(on: Any, words: tuple[str, ...], plan_of: Any, fired: Any) -> None:
    message = fired(plan_of(((), {**on, "engine_args": list(words)})))["sglang-flag-alone"]
    assert f"{words[0]} " in message
