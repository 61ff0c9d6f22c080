"""From a case to a plan, and from a plan to the rules that fire."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from optistack.rules import RuleContext, evaluate
from optistack.settings import Speculation, choose
from optistack_adapters.sglang.rules import RULES


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory, kimi: Any, kimi_draft: Any) -> dict[str, Any]:
    """Checkpoints on disk: a draft, one whose heads do not divide, and targets of other kinds."""
    found: dict[str, Any] = {}
    for name, changes in (("draft", {}), ("odd_draft", {"num_attention_heads": 30, "num_key_value_heads": 6})):
        folder = tmp_path_factory.mktemp(name)
        (folder / "config.json").write_text(json.dumps({**kimi_draft.config, **changes}))
        found[name] = folder
    quantization = kimi.quantization.model_copy(update={"method": "compressed-tensors"})
    found["minimax"] = kimi.model_copy(update={"architecture": "MiniMaxM2ForCausalLM"})
    found["compressed"] = kimi.model_copy(update={"quantization": quantization})
    return found


@pytest.fixture
def plan_of(
    build: Any, request: pytest.FixtureRequest, folders: dict[str, Any], cpu: Any
) -> Callable[[tuple[tuple[Any, ...], dict[str, Any]]], RuleContext]:
    """The plan of a case: settings, and options of ``build`` with models and drafts by name."""

    def make(case: tuple[tuple[Any, ...], dict[str, Any]]) -> RuleContext:
        parts, given = case
        options = dict(given)
        if "facts" in options:
            name = options["facts"]
            options["facts"] = folders[name] if name in folders else request.getfixturevalue(name)
        if options.get("node") == "cpu":
            options["node"] = cpu
        context: RuleContext = build(*(filled(part) for part in parts), **options).context
        return context

    def filled(part: Any) -> Any:
        checkpoint = part.draft_checkpoint.value if isinstance(part, Speculation) else None
        if not checkpoint or not checkpoint.startswith("{"):
            return part
        return part.model_copy(update={"draft_checkpoint": choose(str(folders[checkpoint.strip("{}")]))})

    return make


@pytest.fixture(scope="session")
def fired() -> Callable[[RuleContext], dict[str, str]]:
    """The messages of the rules that fire, by rule."""

    def find(context: RuleContext) -> dict[str, str]:
        findings = evaluate([("sglang", rule) for rule in RULES], context)
        return {finding.rule: finding.message for finding in findings}

    return find


@pytest.fixture(scope="session")
def launched() -> Callable[..., RuleContext]:
    """``launched(context, **{"--flag": value})``: the same plan with a flag changed, or without it (``None``)."""

    def change(context: RuleContext, **changes: str | None) -> RuleContext:
        arguments = [
            argument.model_copy(update={"value": changes[argument.flag]}) if argument.flag in changes else argument
            for argument in context.launch.arguments
            if changes.get(argument.flag, "") is not None
        ]
        launch = context.launch.model_copy(update={"arguments": tuple(arguments)})
        return dataclasses.replace(context, launch=launch)

    return change
