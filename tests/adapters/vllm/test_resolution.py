"""The rules of the adapter against vLLM's own resolution: they have to agree, launch by launch.

Everything for one kind of node is resolved in one process, since loading vLLM is nearly all of the work.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.vllm.rule_cases import CASES, DRAFT, FILE, HOST, Options, attention, draft_attention, limits

from optistack.engines.environment import EngineEnvironment
from optistack.facts.model import ModelFacts
from optistack.plan.core_rules import CORE_RULES
from optistack.preflight import ResolvedChange
from optistack.rules import Evidence, Finding, Rule, RuleContext, Severity, evaluate
from optistack.settings import KVLayout, Speculation
from optistack_adapters.vllm import backend
from optistack_adapters.vllm.preflight import Outcome, ask
from optistack_adapters.vllm.preflight_changes import changes
from optistack_adapters.vllm.preflight_checkpoints import Stage
from optistack_adapters.vllm.preflight_rules import explaining

pytestmark = pytest.mark.engine

VERSION = "0.32.0"
NODES = ("b200x4", "h200x8", "cpu")
BEYOND = [rule for rule in CORE_RULES if rule.id == "context-longer-than-model"]
"""The one rule about stacks as such that vLLM has too."""

RULES: dict[str, Rule] = {rule.id: rule for rule in (*BEYOND, *backend.rules())}

LATER = {
    "vllm-hand-contradicts",
    "vllm-attention-data-dense",
    "vllm-cpu-fp8-head",
    "vllm-cpu-fp8-isa",
    "vllm-cpu-host-tier",
    "vllm-cpu-kv-memory",
    "vllm-cpu-mla-fp8-kv",
    "vllm-cpu-nvfp4",
    "vllm-cpu-nvfp4-checkpoint",
    "vllm-expert-parallel-size",
    "vllm-fp8-e5m2-scales",
    "vllm-host-backend",
    "vllm-host-size",
    "vllm-kv-dtype",
    "vllm-kv-scales-file",
    "vllm-mla-prefill-kernel",
    "vllm-mooncake-addresses",
    "vllm-selective-storage",
    "vllm-speculation-method",
    "vllm-storage-backend",
    "vllm-storage-directory",
    "vllm-tokenspeed-drafts",
    "vllm-write-policy",
}
"""Rules of errors that vLLM makes while it loads the model, or that are none for vLLM and none the less no plan."""

NOT_HERE = ("No module named 'lmcache'", "Arctic Inference is required")
"""Packages that some plans need beside vLLM; rules say so in a note."""

Launches = dict[str, "Launched"]


@dataclass(frozen=True)
class Launched:
    """A launch, the rules that fire for it, and what vLLM makes of it."""

    context: RuleContext
    outcome: Outcome
    whole: bool

    @property
    def refused(self) -> bool:
        """Whether vLLM refuses it, and not for want of something here."""
        return self.whole and not self.outcome.accepted and not self.outcome.broken

    @property
    def findings(self) -> tuple[Finding, ...]:
        return evaluate([("vllm", rule) for rule in RULES.values()], self.context)

    @property
    def fired(self) -> set[str]:
        return {finding.rule for finding in self.findings}

    @property
    def errors(self) -> set[str]:
        return {rule for rule in self.fired if RULES[rule].severity is Severity.ERROR}

    @property
    def changes(self) -> tuple[ResolvedChange, ...]:
        return changes(self.context.launch, self.context.stack, self.outcome)


def combinations(node: str) -> Iterator[tuple[str, str, tuple[Any, ...]]]:
    """Names, models and settings: KV dtype, kernels, speculation, tiers and batches, drawn from all combinations."""
    kernels = ("FLASHINFER_MLA", "CUTLASS_MLA", "FLASHMLA", "TRITON_MLA", "FLASH_ATTN", "FLASHINFER", "TRITON_ATTN")
    everything = itertools.product(
        ("small",) if node == "cpu" else ("kimi", "small"),
        ("bfloat16", "fp8_e4m3", "fp8_e5m2", "nvfp4"),
        (None,) if node == "cpu" else (None, *kernels),
        (None, 16, 64, 128),
        (None, "ngram", "dflash", "dflash-fp8", "dflash-flashinfer", "mtp", "eagle3"),
        ((), (HOST,), (HOST, FILE)),
        ((16, 8192), (64, 32), (256, 2048), (1, 8)),
    )
    drawn = random.Random(20).sample(list(everything), 70)
    for model, dtype, kernel, page, drafts, tiers, batch in drawn:
        layout: dict[str, Any] = {"dtype": dtype, **({"page_size_tokens": page} if page else {})}
        settings: list[Any] = [KVLayout(**layout), limits(*batch), *tiers, *_speculation(drafts)]
        if kernel:
            settings.append(attention(kernel))
        yield f"{model} {dtype} {kernel} {page} {drafts} {len(tiers)} tiers {batch}", model, tuple(settings)


def _speculation(word: str | None) -> Iterator[Any]:
    if word is None:
        return
    method, _, variant = word.partition("-")
    draft = {} if method in ("ngram", "mtp") else {"draft_checkpoint": DRAFT}
    yield Speculation(method=method, num_draft_tokens=7, **draft)
    if variant == "fp8":
        yield KVLayout(draft_dtype="fp8_e4m3")
    elif variant:
        yield draft_attention(variant.upper())


@pytest.fixture(scope="module")
def resolved(
    vllm_cpu: EngineEnvironment,
    models: dict[str, ModelFacts],
    make_context: Callable[..., Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Launches]:
    """By node, every launch of this module by its name."""
    contexts: dict[str, dict[str, RuleContext]] = {node: {} for node in NODES}

    def add(name: str, model: str, settings: tuple[Any, ...], options: Options) -> None:
        node = options.get("node", "b200x4").partition("-")[0]
        context = make_context(models[model], *settings, **{**options, "version": VERSION})
        contexts[node][name] = context

    for number, (rule, model, settings, on, calm, calm_on) in enumerate(CASES):
        if {on.get("version", VERSION), calm_on.get("version", VERSION)} == {VERSION}:
            add(f"{number} {rule} fires", model, settings, on)
            add(f"{number} {rule} does not", model, calm, calm_on)
    for node in NODES:
        options = {"node": node, "spec": {"serving": {"kv_memory_gib": 1}}} if node == "cpu" else {"node": node}
        for name, model, settings in combinations(node):
            tensor = {"parallel": {"tensor": 4 if model == "kimi" else 1}}
            add(name, model, settings, {**options, "spec": {**options.get("spec", {}), **tensor}})
    scratch = tmp_path_factory.mktemp("models")
    return {node: _resolve(vllm_cpu, group, scratch) for node, group in contexts.items()}


def _resolve(environment: EngineEnvironment, contexts: dict[str, RuleContext], scratch: Path) -> Launches:
    stages = {name: Stage(context.model, context.launch, scratch) for name, context in contexts.items()}
    first = next(iter(contexts.values()))
    answer = ask(environment.python, [stage.asked() for stage in stages.values()], node=first.node)
    assert answer.version == VERSION
    return {
        name: Launched(context, outcome, not stages[name].unresolved)
        for (name, context), outcome in zip(contexts.items(), answer.outcomes, strict=True)
    }


@pytest.mark.parametrize("node", NODES)
def test_nothing_breaks_for_want_of_a_gpu(resolved: dict[str, Launches], node: str) -> None:
    broken = {name: each.outcome.error for name, each in resolved[node].items() if each.outcome.broken}
    assert broken == {}


@pytest.mark.parametrize("node", NODES)
def test_what_vllm_refuses_a_rule_refuses(resolved: dict[str, Launches], node: str) -> None:
    unsaid = {
        name: each.outcome.error
        for name, each in resolved[node].items()
        if each.refused and not each.errors and not any(what in each.outcome.error for what in NOT_HERE)
    }
    assert unsaid == {}


@pytest.mark.parametrize("node", NODES)
def test_what_a_rule_refuses_vllm_refuses_too_unless_it_would_only_later(
    resolved: dict[str, Launches], node: str
) -> None:
    contradicted = {
        name: each.errors
        for name, each in resolved[node].items()
        if each.outcome.accepted and each.whole and each.errors - LATER
    }
    assert contradicted == {}


@pytest.mark.parametrize("node", NODES)
def test_a_refusal_is_explained_by_a_rule(resolved: dict[str, Launches], node: str) -> None:
    unexplained = {
        name: (each.outcome.error, each.errors)
        for name, each in resolved[node].items()
        if each.refused and not explaining(each.outcome.error, each.findings)
    }
    assert unexplained == {}


TELLS = (Severity.OVERRIDE, Severity.ERROR)
"""A rule that refuses the plan has told, too."""


@pytest.mark.parametrize("node", NODES)
def test_what_vllm_changes_a_rule_tells_of(resolved: dict[str, Launches], node: str) -> None:
    unsaid = {
        name: [(change.name, change.asked, change.becomes) for change in each.changes]
        for name, each in resolved[node].items()
        if each.outcome.accepted and each.changes and not any(RULES[r].severity in TELLS for r in each.fired)
    }
    assert unsaid == {}


def test_an_observed_rule_is_one_that_the_resolution_shows(resolved: dict[str, Launches]) -> None:
    seen: dict[str, list[bool]] = {}
    for launches in resolved.values():
        for each in launches.values():
            for rule in each.fired if each.whole else ():
                severity = RULES[rule].severity
                if severity is Severity.ERROR:
                    seen.setdefault(rule, []).append(not each.outcome.accepted)
                elif severity is Severity.OVERRIDE and each.outcome.accepted and not each.errors:
                    seen.setdefault(rule, []).append(bool(each.changes))
    observed = {rule.id for rule in RULES.values() if rule.evidence is Evidence.OBSERVED}
    wrong = {rule: shown for rule, shown in seen.items() if rule in observed - LATER and not all(shown)}
    assert wrong == {}
