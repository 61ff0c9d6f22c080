"""Every rule of the vLLM adapter, firing and not firing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.vllm.rule_cases import CASES, DFLASH, Options

from optistack.facts.model import ModelFacts
from optistack.plugin import Domain
from optistack.rules import Severity, evaluate
from optistack.settings import Serving, Speculation
from optistack_adapters.vllm import backend


@pytest.mark.parametrize(("rule", "model", "settings", "on", "calm", "calm_on"), CASES, ids=[c[0] for c in CASES])
def test_a_rule_fires_where_it_should_and_only_there(
    rule: str,
    model: str,
    settings: tuple[Any, ...],
    on: Options,
    calm: tuple[Any, ...],
    calm_on: Options,
    models: dict[str, ModelFacts],
    make_context: Callable[..., Any],
) -> None:
    rules = [("vllm", each) for each in backend.rules()]

    def fired(settings: tuple[Any, ...], options: Options) -> set[str]:
        return {finding.rule for finding in evaluate(rules, make_context(models[model], *settings, **options))}

    assert rule in fired(settings, on)
    assert rule not in fired(calm, calm_on)


def test_the_batch_must_be_stated_with_a_block_drafter(kimi: ModelFacts, make_context: Callable[..., Any]) -> None:
    rules = [("vllm", each) for each in backend.rules()]
    context = make_context(kimi, DFLASH)
    unsaid = context.stack.model_copy(update={"serving": Serving()})
    bare = type(context)(**{**context.__dict__, "stack": unsaid})
    assert "vllm-draft-limits" in {finding.rule for finding in evaluate(rules, bare)}
    assert "vllm-draft-limits" not in {finding.rule for finding in evaluate(rules, context)}


def test_a_draft_in_the_speculators_format_is_warned_of(
    kimi: ModelFacts, make_context: Callable[..., Any], tmp_path: Path
) -> None:
    rules = [("vllm", each) for each in backend.rules()]
    draft = Speculation(method="dflash", draft_checkpoint=str(tmp_path), num_draft_tokens=7)
    for config, fires in (
        ({"speculators_model_type": "dflash"}, True),
        ({"architectures": ["DFlashDraftModel"]}, False),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config))
        found = {finding.rule for finding in evaluate(rules, make_context(kimi, draft))}
        assert ("vllm-speculators-dflash" in found) is fires


def test_every_rule_has_a_case_an_id_of_its_own_and_a_way_out() -> None:
    rules = backend.rules()
    ids = [rule.id for rule in rules]
    assert len(ids) == len(set(ids))
    assert {each[0] for each in CASES} | {"vllm-draft-limits", "vllm-speculators-dflash"} == set(ids)
    for rule in rules:
        assert rule.id.startswith("vllm-")
        assert rule.fix and rule.upstream and rule.message.endswith((".", "{detail}"))
        assert rule.backends == ("vllm",)


def test_what_a_cpu_lacks_can_be_left_out() -> None:
    by_id = {rule.id: rule for rule in backend.rules()}
    assert by_id["vllm-cpu-host-tier"].domain is Domain.CACHE
    assert by_id["vllm-cpu-nvfp4"].domain is Domain.QUANTIZATION
    assert by_id["vllm-cpu-mla-fp8-kv"].domain is Domain.KV
    assert all(by_id[name].severity is Severity.ERROR for name in ("vllm-cpu-host-tier", "vllm-cpu-nvfp4"))
