"""Each rule fires on one plan and is silent on the nearest one that is all right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optistack.launch import Launch, LaunchArgument
from optistack.rules import Rule, RuleContext, Severity, evaluate
from optistack.settings import CacheTier, KVLayout, Serving, Speculation, WeightQuantization, choose
from optistack_adapters.sglang import backend
from optistack_adapters.sglang.rules import RULES

GB = 10**9
TP4: dict[str, Any] = {"parallel": {"tensor": 4}}
GPU1: dict[str, Any] = {"facts": "llama", "node": "h200x1"}
B1: dict[str, Any] = {"facts": "llama", "node": "b200x1"}
CPU: dict[str, Any] = {"facts": "llama", "node": "cpu", "serving": {"kv_memory_gib": 1}}
GROUPS: dict[str, Any] = {"node": "b200x8", "parallel": {"tensor": 8, "attention_data": 4}}

Case = tuple[tuple[Any, ...], dict[str, Any]]


def kv(dtype: str, **more: Any) -> KVLayout:
    return KVLayout(dtype=choose(dtype), **{name: choose(value) for name, value in more.items()})


def speculation(method: str = "dflash", **more: Any) -> Speculation:
    fields = {"draft_checkpoint": "some/draft", "num_draft_tokens": 7, **more}
    return Speculation(method=choose(method), **{name: choose(value) for name, value in fields.items() if value})


def host(**more: Any) -> CacheTier:
    fields = {"capacity_bytes": 40 * GB, **more}
    return CacheTier(level=2, **{name: choose(value) for name, value in fields.items() if value is not None})


def storage(name: str, **more: Any) -> CacheTier:
    return CacheTier(level=3, backend=choose(name), **{key: choose(value) for key, value in more.items()})


def kernels(attention: str, **more: Any) -> dict[str, Any]:
    return {"serving": {"attention_backend": attention, **more}}


def weights(**more: Any) -> WeightQuantization:
    return WeightQuantization(**{name: choose(value) for name, value in more.items()})


LAYOUT = {"layout": "page_first", "io_backend": "kernel"}
DIRECT = {"layout": "page_first_direct", "io_backend": "direct"}

CASES: dict[str, tuple[Case, Case]] = {
    "sglang-cpu-dflash": (((speculation(),), CPU), ((speculation(),), GPU1)),
    "sglang-cpu-speculation": (((speculation("ngram"),), CPU), ((speculation("dflash"),), CPU)),
    "sglang-cpu-hicache": (((host(),), CPU), ((host(),), GPU1)),
    "sglang-cpu-nvfp4-checkpoint": (((), {**CPU, "facts": "kimi"}), ((), CPU)),
    "sglang-cpu-nvfp4": (((weights(engine_quantization="nvfp4_online"),), CPU), ((), CPU)),
    "sglang-cpu-fp8-e5m2-kv": (((kv("fp8_e5m2"),), CPU), ((kv("fp8_e4m3"),), CPU)),
    "sglang-cpu-graphs": (((Serving(cuda_graphs=choose(True)),), CPU), ((), CPU)),
    "sglang-ct-nvfp4-moe-auto": (
        ((), {**TP4, "facts": "compressed"}),
        ((weights(moe_backend="flashinfer_trtllm"),), {**TP4, "facts": "compressed"}),
    ),
    "sglang-ct-nvfp4-moe-runner": (
        ((weights(moe_backend="flashinfer_cutlass"),), {**TP4, "facts": "compressed"}),
        ((weights(moe_backend="flashinfer_cutlass"),), TP4),
    ),
    "sglang-ct-nvfp4-moe-blackwell": (
        ((), {"parallel": {"tensor": 8}, "facts": "compressed", "node": "h200x8", "version": "0.5.21"}),
        ((), {"parallel": {"tensor": 8}, "facts": "compressed", "node": "h200x8", "version": "0.5.23"}),
    ),
    "sglang-quantization-word": (
        ((weights(engine_quantization="fp8"),), TP4),
        ((weights(engine_quantization="modelopt_fp4"),), TP4),
    ),
    "sglang-quantization-refused": (
        ((weights(engine_quantization="modelopt_fp4"),), {**TP4, "facts": "compressed"}),
        ((weights(engine_quantization="compressed-tensors"),), {**TP4, "facts": "compressed"}),
    ),
    "sglang-mla-nvfp4-kv": (((kv("nvfp4"),), TP4), ((kv("nvfp4"),), B1)),
    "sglang-nvfp4-kv-hardware": (((kv("nvfp4"),), GPU1), ((kv("nvfp4"),), B1)),
    "sglang-nvfp4-kv-dflash": (((kv("nvfp4"), speculation()), B1), ((kv("nvfp4"), speculation("eagle3")), B1)),
    "sglang-nvfp4-kv-tiers": (((kv("nvfp4"), host()), B1), ((kv("fp8_e4m3"), host()), B1)),
    "sglang-trtllm-mla-kv-dtype": (((kv("fp8_e5m2"),), TP4), ((kv("bfloat16"),), TP4)),
    "sglang-kv-dtype-unsayable": (((kv("float16"),), GPU1), ((kv("bfloat16"),), GPU1)),
    "sglang-page-size": (
        (
            (kv("bfloat16", page_size_tokens=1), Serving(prefill_attention_backend=choose("trtllm_mla"))),
            {**TP4, **kernels("fa4")},
        ),
        ((kv("bfloat16", page_size_tokens=32),), TP4),
    ),
    "sglang-chunk-of-pages": (
        ((), {**TP4, "serving": {"chunked_prefill_tokens": 8200}}),
        ((), {**TP4, "serving": {"chunked_prefill_tokens": 8192}}),
    ),
    "sglang-draft-kv-dtype": (
        ((kv("fp8_e4m3", draft_dtype="bfloat16"), speculation()), {**TP4, "version": "0.5.17"}),
        ((kv("fp8_e4m3", draft_dtype="bfloat16"), speculation()), {**TP4, "version": "0.5.18"}),
    ),
    "sglang-fa3-fp8-e5m2": (((kv("fp8_e5m2"),), GPU1), ((kv("fp8_e4m3"),), GPU1)),
    "sglang-attention-gpu": (((), {**GPU1, **kernels("trtllm_mla")}), ((), TP4)),
    "sglang-attention-mla-only": (((), {**B1, **kernels("trtllm_mla")}), ((), B1)),
    "sglang-attention-not-mla": (((), {**TP4, **kernels("trtllm_mha")}), ((), TP4)),
    "sglang-heads-over-ranks": (
        ((), {"facts": "llama", "node": "h200x8", "parallel": {"tensor": 5}}),
        ((), {"facts": "llama", "node": "h200x8", "parallel": {"tensor": 8}}),
    ),
    "sglang-torch-native-graphs": (
        ((), {**GPU1, **kernels("torch_native", cuda_graphs=True)}),
        ((), {**GPU1, **kernels("torch_native", cuda_graphs=False)}),
    ),
    "sglang-dflash-needs-draft": (((speculation(draft_checkpoint=None),), TP4), ((speculation(),), TP4)),
    "sglang-dflash-draft-heads": (
        ((speculation(draft_checkpoint="{odd_draft}"),), TP4),
        ((speculation(draft_checkpoint="{draft}"),), TP4),
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
    "sglang-host-tier-backend": (((host(backend="lmcache"),), TP4), ((host(backend="native"),), TP4)),
    "sglang-hicache-needs-radix": (
        ((host(),), {**TP4, "serving": {"prefix_caching": False}}),
        ((host(),), TP4),
    ),
    "sglang-hicache-direct-layout": (
        ((host(layout="page_first_direct", io_backend="kernel"),), TP4),
        ((host(**DIRECT),), TP4),
    ),
    "sglang-hicache-direct-io": (
        ((host(layout="page_first", io_backend="direct"),), TP4),
        ((host(**LAYOUT),), TP4),
    ),
    "sglang-hicache-mooncake-layout": (
        ((host(layout="layer_first"), storage("mooncake")), TP4),
        ((host(layout="layer_first"), storage("file", directory="/kv")), TP4),
    ),
    "sglang-hicache-words": (
        ((host(write_policy="write_sometimes"),), TP4),
        ((host(write_policy="write_back"),), TP4),
    ),
    "sglang-hicache-host-ram": (
        ((host(capacity_bytes=1095 * GB),), TP4),  # half of 2 TiB is 1,099.5 GB
        ((host(capacity_bytes=1080 * GB),), TP4),
    ),
    "sglang-hicache-whole-gigabytes": (
        ((host(capacity_bytes=7_600_000_000),), TP4),
        ((host(capacity_bytes=8 * GB),), TP4),
    ),
    "sglang-storage-backend": (((host(), storage("floppy")), TP4), ((host(), storage("nixl")), TP4)),
    "sglang-storage-dynamic": (
        ((host(), storage("dynamic")), TP4),
        ((host(), storage("dynamic", extra_config={"backend_name": "x"})), TP4),
    ),
    "sglang-storage-file-directory": (
        ((host(), storage("file")), TP4),
        ((host(), storage("file", directory="/kv")), TP4),
    ),
    "sglang-storage-directory-unused": (
        ((host(), storage("mooncake", directory="/kv")), TP4),
        ((host(), storage("nixl", directory="/kv")), TP4),
    ),
    "sglang-storage-without-hicache": (
        ((), {**TP4, "engine_args": ["--hicache-storage-backend", "file"]}),
        ((host(), storage("file", directory="/kv")), TP4),
    ),
    "sglang-served-name-colon": (
        ((), {**TP4, "model": {"checkpoint": "x", "served_name": "kimi:latest"}}),
        ((), {**TP4, "model": {"checkpoint": "x", "served_name": "kimi-latest"}}),
    ),
    "sglang-attention-data-conservativeness": (
        ((), GROUPS),
        ((), {**GROUPS, "engine_args": ["--schedule-conservativeness", "1.0"]}),
    ),
}
"""A plan on which the rule fires, and one on which it does not."""

BY_HAND = {"sglang-trtllm-mla-bfloat16-word", "sglang-speculation-running-requests", "sglang-attention-groups"}
"""Rules about launches that the adapter does not render, tested below."""


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory, kimi: Any, kimi_draft: Any) -> dict[str, Any]:
    """Checkpoints on disk: a draft, one whose heads do not divide, a target quantized with compressed-tensors."""
    found: dict[str, Any] = {}
    for name, changes in (("draft", {}), ("odd_draft", {"num_attention_heads": 30, "num_key_value_heads": 6})):
        folder = tmp_path_factory.mktemp(name)
        (folder / "config.json").write_text(json.dumps({**kimi_draft.config, **changes}))
        found[name] = folder
    quantization = kimi.quantization.model_copy(update={"method": "compressed-tensors"})
    found["compressed"] = kimi.model_copy(update={"quantization": quantization})
    return found


def context_of(case: Case, build: Any, request: pytest.FixtureRequest, folders: dict[str, Any]) -> RuleContext:
    parts, given = case
    options = dict(given)
    if "facts" in options:
        name = options["facts"]
        options["facts"] = folders["compressed"] if name == "compressed" else request.getfixturevalue(name)
    if options.get("node") == "cpu":
        options["node"] = request.getfixturevalue("cpu")
    filled = []
    for part in parts:
        checkpoint = part.draft_checkpoint.value if isinstance(part, Speculation) else None
        if checkpoint and checkpoint.startswith("{"):
            folder: Path = folders[checkpoint.strip("{}")]
            part = part.model_copy(update={"draft_checkpoint": choose(str(folder))})
        filled.append(part)
    context: RuleContext = build(*filled, **options).context
    return context


def fired(context: RuleContext) -> dict[str, str]:
    return {finding.rule: finding.message for finding in evaluate([("sglang", rule) for rule in RULES], context)}


def test_every_rule_has_a_case() -> None:
    assert {rule.id for rule in RULES} == set(CASES) | BY_HAND


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_fires_and_does_not(
    rule: str, build: Any, request: pytest.FixtureRequest, folders: dict[str, Any]
) -> None:
    bad, good = CASES[rule]
    message = fired(context_of(bad, build, request, folders)).get(rule)
    assert message is not None
    assert "{" not in message
    assert rule not in fired(context_of(good, build, request, folders))


def launched(context: RuleContext, **changes: Any) -> RuleContext:
    import dataclasses

    arguments = [
        argument.model_copy(update={"value": changes[argument.flag]}) if argument.flag in changes else argument
        for argument in context.launch.arguments
        if changes.get(argument.flag, "") is not None
    ]
    launch: Launch = context.launch.model_copy(update={"arguments": tuple(arguments)})
    return dataclasses.replace(context, launch=launch)


def test_the_word_bfloat16_is_refused_for_trtllm_mla(build: Any) -> None:
    context = build(kv("bfloat16"), **TP4).context
    rule = "sglang-trtllm-mla-bfloat16-word"
    assert rule in fired(launched(context, **{"--kv-cache-dtype": "bfloat16"}))
    assert rule not in fired(context)


def test_running_requests_that_are_not_said(build: Any) -> None:
    context = build(speculation(), **TP4).context
    rule = "sglang-speculation-running-requests"
    assert rule in fired(launched(context, **{"--max-running-requests": None}))
    assert rule not in fired(context)


def test_attention_groups_that_do_not_divide_the_ranks(build: Any) -> None:
    import dataclasses

    context = build(**GROUPS).context
    parallel = context.spec.parallel.model_copy(update={"attention_data": 3})
    uneven = dataclasses.replace(context, spec=context.spec.model_copy(update={"parallel": parallel}))
    assert "sglang-attention-groups" in fired(uneven)
    assert "sglang-attention-groups" not in fired(context)


def test_the_reference_deployment_breaks_no_rule(full: Any) -> None:
    assert fired(full.context) == {}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_what_to_do_and_where_it_comes_from(rule: Rule) -> None:
    assert rule.id.startswith("sglang-")
    assert rule.backends == ("sglang",)
    assert rule.message.endswith(".")
    assert rule.fix.endswith(".")
    assert "sglang 0.5." in rule.upstream


def test_what_a_cpu_lacks_can_be_dropped() -> None:
    domains = {rule.id: rule.domain for rule in RULES if rule.id.startswith("sglang-cpu-")}
    droppable = ("sglang-cpu-dflash", "sglang-cpu-speculation", "sglang-cpu-hicache", "sglang-cpu-nvfp4")
    assert all(domains[rule] is not None for rule in droppable)
    assert domains["sglang-cpu-nvfp4-checkpoint"] is None  # no plugin brought it, so none can be dropped


def test_errors_are_few_where_nothing_is_wrong(build: Any, llama: Any) -> None:
    findings = evaluate([("sglang", rule) for rule in backend.rules()], build(facts=llama, node="h200x1").context)
    assert not [finding for finding in findings if finding.severity is Severity.ERROR]


def test_an_argument_of_the_users_own_is_seen(build: Any) -> None:
    planned = build(**TP4, engine_args=["--hicache-storage-backend", "file"])
    assert planned.launch.arguments[-1] == LaunchArgument(
        flag="--hicache-storage-backend", value="file", source="stack", why="engine_args of the stack file"
    )
