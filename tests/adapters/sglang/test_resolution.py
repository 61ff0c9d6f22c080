"""The rules of the adapter against SGLang's own resolution: they have to agree, launch by launch."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.adapters.sglang.rules.by_hand_cases import ALONE, BY_HAND, HANDED
from tests.adapters.sglang.rules.combination_cases import B1, CASES, CHANGED, H1, SERVING, TP4

from optistack.engines.environment import EngineEnvironment
from optistack.engines.guest import run_inside
from optistack.errors import PlanRefusedError
from optistack.facts import ModelFacts
from optistack.facts.node import MIB
from optistack.launch import LaunchArgument
from optistack.preflight import ResolvedChange
from optistack.rules import Evidence, Rule, RuleContext, Severity, evaluate
from optistack.settings import CacheTier, KVLayout, Speculation, WeightQuantization, choose
from optistack_adapters.sglang.preflight import SCRIPT, changes
from optistack_adapters.sglang.rules import RULES as ADAPTER

pytestmark = pytest.mark.engine

VERSION = "0.5.23"
RULES: dict[str, Rule] = {rule.id: rule for rule in ADAPTER}
GB = 10**9
DRAFT = "some/draft"
SWEEP = Path(__file__).parent / "inside" / "sweep"

LATER = {
    "sglang-hand-contradicts",
    "sglang-attention-gpu",
    "sglang-attention-mla-only",
    "sglang-attention-not-mla",
    "sglang-trtllm-mla-context-parallel",
}
"""Rules of errors that SGLang makes only while it builds the kernels, or that are none for SGLang and no plan."""

NO_PROMISE = {"sglang-moe-dispatch-ranks", "sglang-deepep-normal-graphs", "sglang-attention-data-conservativeness"}
"""Rules of values that change and that neither a flag of the launch nor a setting promises."""


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A launch, the rules that fire for it, and what SGLang makes of it."""

    context: RuleContext
    said: dict[str, Any]

    @property
    def fired(self) -> set[str]:
        return {finding.rule for finding in evaluate([("sglang", rule) for rule in RULES.values()], self.context)}

    @property
    def errors(self) -> set[str]:
        return {rule for rule in self.fired if RULES[rule].severity is Severity.ERROR}

    @property
    def refusal(self) -> str:
        return str(self.said["error"]["message"]) if self.said["error"] else ""

    @property
    def changes(self) -> list[ResolvedChange]:
        plan: Any = SimpleNamespace(launches=(self.context.launch,), stack=self.context.stack, spec=self.context.spec)
        return [] if self.said["error"] else list(changes(plan, self.said))


def combinations() -> Iterator[tuple[str, str, str, tuple[Any, ...], dict[str, Any]]]:
    """Names, models, nodes, settings and serving, drawn from all combinations."""
    everything = itertools.product(
        ("kimi", "llama"),
        ("b200", "h200"),
        ("bfloat16", "fp8_e4m3", "fp8_e5m2", "nvfp4"),
        (None, "trtllm_mla", "cutedsl_mla", "flashmla", "trtllm_mha", "fa3", "fa4", "flashinfer", "triton"),
        (None, 1, 16, 64, 128),
        (None, "dflash", "eagle3", "ngram", "standalone"),
        (
            None,
            ("page_first", "kernel"),
            ("page_first_direct", "direct"),
            ("page_first", "direct"),
            ("layer_first", "kernel"),
        ),
        (None, "file", "mooncake"),
        (8192, 8192, 8192, 8200),
        (None, "flashinfer_trtllm", "flashinfer_cutlass", "flashinfer_cutedsl", "triton"),
    )
    drawn = random.Random(7).sample(list(everything), 95)
    for row in drawn:
        model, node, dtype, kernel, page, method, host, storage, chunk, runner = row
        serving = {"chunked_prefill_tokens": chunk, **({"attention_backend": kernel} if kernel else {})}
        parts: list[Any] = [KVLayout(**_chosen(dtype=dtype, page_size_tokens=page))]
        if method:
            draft = {} if method == "ngram" else {"draft_checkpoint": DRAFT}
            parts.append(Speculation(**_chosen(method=method, num_draft_tokens=7, **draft)))
        if host:
            layout, io = host
            parts.append(CacheTier(level=2, **_chosen(capacity_bytes=40 * GB, layout=layout, io_backend=io)))
            if storage:
                parts.append(CacheTier(level=3, **_chosen(backend=storage, directory="/kv")))
        if runner and model == "kimi":
            parts.append(WeightQuantization(**_chosen(moe_backend=runner)))
        yield " ".join(map(str, row)), model, node, tuple(parts), serving


def _chosen(**values: Any) -> dict[str, Any]:
    return {name: choose(value) for name, value in values.items() if value is not None}


Plan = tuple[str, tuple[Any, ...], dict[str, Any]]


def plans() -> Iterator[Plan]:
    """Names, settings and the rest of the stack: what is drawn, and the cases of the rules about flags by hand."""
    for name, model, node, parts, serving in combinations():
        size = 4 if model == "kimi" else 1
        place = f"{node}x{8 if (node, size) == ('h200', 4) else size}"
        yield name, parts, {"facts": model, "node": place, "parallel": {"tensor": size}, "serving": serving}
    draw = random.Random(11)
    for number in range(30):
        words = [word for flag in draw.sample(HANDED, 2) for word in flag]
        yield f"drawn {number}: {' '.join(words)}", (), {**draw.choice((TP4, B1, H1)), "engine_args": words}
    for on, words in ALONE:
        yield f"{words[0]} alone", (), {**on, "engine_args": list(words)}
    for rule, cases in {**CASES, **BY_HAND, **SERVING}.items():
        for word, (parts, options) in zip(("fires", "does not"), cases, strict=True):
            if options.get("version", VERSION) == VERSION and options.get("facts") != "minimax":
                yield f"{rule} {word}", parts, options


@pytest.fixture(scope="module")
def resolved(
    build: Any,
    kimi: ModelFacts,
    llama: ModelFacts,
    kimi_draft: ModelFacts,
    sglang_cpu: EngineEnvironment,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Resolved]:
    """Every launch of this module by its name."""
    scratch = tmp_path_factory.mktemp("models")
    models = {"kimi": kimi, "llama": llama}
    stand_ins = {kimi.source: "kimi", llama.source: "llama", DRAFT: "draft"}
    for name, facts in {**models, "draft": kimi_draft}.items():
        (scratch / name).mkdir()
        (scratch / name / "config.json").write_text(json.dumps(facts.config))
    contexts: dict[str, RuleContext] = {}
    for name, parts, options in plans():
        try:
            facts = models[options.get("facts", "kimi")]
            contexts[name] = build(*parts, **{**options, "facts": facts, "version": VERSION}).context
        except PlanRefusedError:  # pages that the kernels do not take: the plan itself does not pass
            continue
    for rule, ((parts, options), flags) in CHANGED.items():
        facts = models[options.get("facts", "kimi")]
        contexts[f"{rule} fires"] = changed(build(*parts, **{**options, "facts": facts}).context, flags)
    file = scratch / "asked.json"
    file.write_text(json.dumps([asked(context, stand_ins, scratch) for context in contexts.values()]))
    arguments = {"script": f"{SCRIPT}.py", "asked": str(file)}
    env = {**sglang_cpu.env, "CUDA_VISIBLE_DEVICES": ""}
    answers = json.dumps(run_inside(sglang_cpu.python, str(SWEEP), arguments, env=env, timeout_s=300))
    for reference, folder in stand_ins.items():
        answers = answers.replace(json.dumps(str(scratch / folder)), json.dumps(reference))
    said = json.loads(answers)
    return {name: Resolved(*both) for name, *both in zip(contexts, contexts.values(), said, strict=True)}


def asked(context: RuleContext, stand_ins: dict[str, str], scratch: Path) -> dict[str, Any]:
    launch, gpu = context.launch, context.node.gpu
    assert gpu is not None
    words = launch.argv("python", port=30000, folder=str(scratch))[1 + len(launch.command) :]
    faked = {"name": gpu.name, "sm": gpu.sm, "memory_mib": gpu.hbm_bytes // MIB, "count": context.node.gpus}
    return {"argv": [str(scratch / stand_ins[word]) if word in stand_ins else word for word in words], "gpu": faked}


def changed(context: RuleContext, flags: dict[str, str]) -> RuleContext:
    """The same plan with other values, or further flags, in its launch."""
    kept = [argument for argument in context.launch.arguments if argument.flag not in flags]
    arguments = (*kept, *(LaunchArgument(flag=flag, value=value, source="stack") for flag, value in flags.items()))
    return dataclasses.replace(context, launch=context.launch.model_copy(update={"arguments": arguments}))


def test_nothing_breaks_for_want_of_a_gpu(resolved: dict[str, Resolved]) -> None:
    assert {name: each.refusal for name, each in resolved.items() if each.said["stage"] == "import"} == {}
    assert sum(not each.refusal for each in resolved.values()) > 60


def test_what_sglang_refuses_a_rule_refuses(resolved: dict[str, Resolved]) -> None:
    assert {name: each.refusal for name, each in resolved.items() if each.refusal and not each.errors} == {}


def test_what_a_rule_refuses_sglang_refuses_too_unless_it_would_only_later(resolved: dict[str, Resolved]) -> None:
    contradicted = {name: each.errors for name, each in resolved.items() if not each.refusal and each.errors - LATER}
    assert contradicted == {}


def test_what_sglang_changes_a_rule_tells_of(resolved: dict[str, Resolved]) -> None:
    telling = (Severity.ERROR, Severity.OVERRIDE, Severity.SILENT)
    unsaid = {
        name: [(change.name, change.asked, change.becomes) for change in each.changes]
        for name, each in resolved.items()
        if each.changes and not any(RULES[rule].severity in telling for rule in each.fired)
    }
    assert unsaid == {}


def test_what_no_setting_promises_is_changed_as_its_rules_say(resolved: dict[str, Resolved]) -> None:
    assert resolved["sglang-moe-dispatch-ranks fires"].said["resolved"]["ep_size"] == 4
    spread = resolved["sglang-moe-dispatch-groups does not"]
    assert "sglang-attention-data-conservativeness" in spread.fired
    assert spread.said["resolved"]["schedule_conservativeness"] == 0.3
    graphs = resolved["sglang-deepep-normal-graphs fires"].said["resolved"]["cuda_graph_config"]
    assert {graphs["decode"]["backend"], graphs["prefill"]["backend"]} == {"disabled"}


def test_an_observed_rule_is_one_that_the_resolution_shows(resolved: dict[str, Resolved]) -> None:
    shown: dict[str, list[bool]] = {}
    for each in resolved.values():
        for rule in each.fired - LATER - NO_PROMISE:
            severity = RULES[rule].severity
            if severity is Severity.ERROR:
                shown.setdefault(rule, []).append(bool(each.refusal))
            elif severity is Severity.OVERRIDE and not each.refusal and not each.errors:
                shown.setdefault(rule, []).append(bool(each.changes))
    wrong = [rule for rule, seen in shown.items() if RULES[rule].evidence is Evidence.OBSERVED and not all(seen)]
    assert wrong == []
