"""Rules about speculative decoding."""

from __future__ import annotations

from typing import Any

import pytest

from optistack.settings import KVLayout, Speculation, choose
from optistack_adapters.sglang.rules.speculation import RULES

TP4: dict[str, Any] = {"parallel": {"tensor": 4}}
GROUPS: dict[str, Any] = {"node": "b200x8", "parallel": {"tensor": 8, "attention_data": 4}}


def kv(dtype: str, **more: Any) -> KVLayout:
    return KVLayout(dtype=choose(dtype), **{name: choose(value) for name, value in more.items()})


def speculation(method: str = "dflash", **more: Any) -> Speculation:
    fields = {"draft_checkpoint": "some/draft", "num_draft_tokens": 7, **more}
    return Speculation(method=choose(method), **{name: choose(value) for name, value in fields.items() if value})


CASES: dict[str, Any] = {
    "sglang-dflash-needs-draft": (((speculation(draft_checkpoint=None),), TP4), ((speculation(),), TP4)),
    "sglang-dflash-draft-heads": (
        ((speculation(draft_checkpoint="{odd_draft}"),), TP4),
        ((speculation(draft_checkpoint="{draft}"),), TP4),
    ),
    "sglang-dflash-no-logprobs": (
        ((speculation(),), {**TP4, "version": "0.5.17"}),
        ((speculation(),), {**TP4, "version": "0.5.21"}),
    ),
    "sglang-dflash-attention-data": (
        ((speculation(),), {**GROUPS, "version": "0.5.22"}),
        ((speculation(),), {**GROUPS, "version": "0.5.23"}),
    ),
    "sglang-dflash-attention-data-eager": (((speculation(),), GROUPS), ((speculation(),), TP4)),
    "sglang-dflash-window": (
        ((speculation(draft_window_tokens=7),), TP4),
        ((speculation(draft_window_tokens=8),), TP4),
    ),
    "sglang-draft-window-ignored": (
        ((speculation("eagle3", draft_window_tokens=512),), TP4),
        ((speculation("dflash", draft_window_tokens=512),), TP4),
    ),
    "sglang-dflash-draft-backend": (
        ((speculation(draft_attention_backend="trtllm_mla"),), TP4),
        ((speculation(draft_attention_backend="flashinfer"),), TP4),
    ),
    "sglang-dflash-fa4-draft-kv": (
        ((kv("fp8_e4m3"), speculation(draft_attention_backend="fa4")), TP4),
        ((kv("fp8_e4m3", draft_dtype="bfloat16"), speculation(draft_attention_backend="fa4")), TP4),
    ),
    "sglang-dflash-rejection-sampling": (
        ((speculation(),), {**TP4, "engine_args": ["--speculative-use-rejection-sampling"]}),
        ((speculation("eagle3"),), {**TP4, "engine_args": ["--speculative-use-rejection-sampling"]}),
    ),
}
"""A plan on which the rule fires, and one on which it does not: settings, and the rest of the stack."""


def test_every_rule_has_a_case() -> None:
    assert {rule.id for rule in RULES} == set(CASES) | {"sglang-speculation-running-requests"}


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_fires_and_does_not(rule: str, plan_of: Any, fired: Any) -> None:
    bad, good = CASES[rule]
    message = fired(plan_of(bad)).get(rule)
    assert message is not None
    assert "{" not in message
    assert rule not in fired(plan_of(good))


def test_running_requests_that_are_not_said(plan_of: Any, fired: Any, launched: Any) -> None:
    context = plan_of(((speculation(),), TP4))
    rule = "sglang-speculation-running-requests"
    assert rule in fired(launched(context, **{"--max-running-requests": None}))
    assert rule not in fired(context)
