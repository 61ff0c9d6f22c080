"""Every rule of the vLLM adapter, firing and not firing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from optistack.facts.model import ModelFacts, Quantization
from optistack.plugin import Domain
from optistack.rules import Severity, evaluate
from optistack.settings import CacheTier, KVLayout, Serving, Speculation, WeightQuantization, choose
from optistack_adapters.vllm import backend

DFLASH = Speculation(method="dflash", draft_checkpoint="org/draft", num_draft_tokens=7)
DFLASH_8 = Speculation(method="dflash", draft_checkpoint="org/draft", num_draft_tokens=8)
NGRAM = Speculation(method="ngram", num_draft_tokens=4)
FP8 = KVLayout(dtype="fp8_e4m3", draft_dtype="bfloat16")
HOST = CacheTier(level=2, capacity_bytes=2**36)
FILE = CacheTier(level=3, backend="file", directory="/kv/k", key="k")
CPU: dict[str, Any] = {"node": "cpu", "spec": {"serving": {"kv_memory_gib": 1}}}
H200: dict[str, Any] = {"node": "h200x8"}

Options = dict[str, Any]
Case = tuple[str, str, tuple[Any, ...], Options, tuple[Any, ...], Options]


def case(
    rule: str,
    model: str,
    settings: tuple[Any, ...],
    calm: tuple[Any, ...],
    *,
    on: Options | None = None,
    **calm_on: Any,
) -> Case:
    """``rule`` fires for ``settings`` under the options ``on``, not for ``calm`` under ``calm_on`` (or ``on``)."""
    return rule, model, settings, on or {}, calm, calm_on or on or {}


def parallel(**sizes: int) -> Options:
    return {"spec": {"parallel": sizes}}


def attention(word: str) -> Serving:
    return Serving(attention_backend=word)


def limits(requests: int, tokens: int) -> Serving:
    return Serving(max_running_requests=requests, chunked_prefill_tokens=tokens)


CASES: list[Case] = [
    case("vllm-cpu-host-tier", "small", (HOST,), (), on=CPU),
    case("vllm-cpu-nvfp4", "small", (WeightQuantization(experts="nvfp4"),), (), on=CPU),
    case("vllm-cpu-nvfp4-checkpoint", "kimi", (), (), on=CPU, node="b200x4"),
    case("vllm-cpu-mla-fp8-kv", "kimi", (FP8,), (), on=CPU),
    case("vllm-cpu-fp8-head", "odd-head", (FP8,), (), on=CPU),
    case("vllm-cpu-mla-prefix-caching", "kimi", (), (Serving(prefix_caching=False),), on=CPU),
    case("vllm-cpu-kv-memory", "small", (), (), on={"node": "cpu"}, **CPU),
    case("vllm-cpu-attention-backend", "small", (attention("FLASHINFER"),), (attention("CPU_ATTN"),), on=CPU),
    case("vllm-kv-dtype", "small", (KVLayout(dtype="fp8_e3m4"),), (FP8,)),
    case("vllm-kv-dtype", "small", (KVLayout(draft_dtype="nvfp4"),), (FP8,), on=CPU),
    case("vllm-mla-nvfp4-kv", "kimi", (KVLayout(dtype="nvfp4"),), (FP8,)),
    case("vllm-mla-fp8-e5m2-kv", "kimi", (KVLayout(dtype="fp8_e5m2"),), (FP8,)),
    case("vllm-mla-checkpoint-kv-scheme", "kimi-ct", (), (FP8,)),
    case("vllm-fp8-e5m2-scales", "kimi", (KVLayout(dtype="fp8_e5m2"),), (FP8,)),
    case("vllm-plain-kv-dtype", "small", (KVLayout(dtype="float16"),), (KVLayout(dtype="bfloat16"),)),
    case("vllm-plain-kv-dtype", "small", (KVLayout(dtype="float16"),), (KVLayout(dtype="float16"),), version="0.32.0"),
    case("vllm-kv-scales-file", "small", (KVLayout(scales_file="scales.json"),), (FP8,)),
    case("vllm-mla-kernel-kv-dtype", "kimi", (FP8, attention("FLASH_ATTN_MLA")), (FP8, attention("FLASHMLA")), on=H200),
    case("vllm-mla-kernel-kv-dtype", "kimi", (attention("TOKENSPEED_MLA"),), (FP8, attention("TOKENSPEED_MLA"))),
    case("vllm-mla-kernel-page", "kimi", (KVLayout(page_size_tokens=16),), (KVLayout(page_size_tokens=128),)),
    case("vllm-mla-kernel-gpu", "kimi", (attention("FLASHINFER_MLA"),), (attention("FLASHMLA"),), on=H200),
    case("vllm-attention-kind", "kimi", (attention("FLASH_ATTN"),), (attention("CUTLASS_MLA"),)),
    case("vllm-attention-kind", "small", (attention("FLASHMLA"),), (attention("FLASH_ATTN"),)),
    case(
        "vllm-tokenspeed-drafts",
        "kimi",
        (
            FP8,
            attention("TOKENSPEED_MLA"),
            DFLASH_8,
        ),
        (FP8, attention("TOKENSPEED_MLA"), DFLASH),
    ),
    case("vllm-prefill-attention", "small", (Serving(prefill_attention_backend="FLASH_ATTN"),), ()),
    case("vllm-speculation-method", "small", (Speculation(method="medusa"),), (NGRAM,)),
    case("vllm-speculation-method", "small", (Speculation(method="dspark", draft_checkpoint="d"),), (DFLASH,), on=CPU),
    case("vllm-draft-missing", "kimi", (Speculation(method="dflash", num_draft_tokens=7),), (DFLASH,)),
    case(
        "vllm-draft-slots-0.26",
        "kimi",
        (DFLASH, limits(1024, 6144)),
        (DFLASH, limits(1024, 8192)),
        on={"version": "0.26.0"},
    ),
    case("vllm-draft-slots", "kimi", (NGRAM, limits(1, 5)), (NGRAM, limits(1, 64))),
    case("vllm-draft-active-requests", "kimi", (DFLASH, limits(1024, 4096)), (DFLASH, limits(512, 4096))),
    case("vllm-draft-fp8-kv", "kimi", (DFLASH, KVLayout(dtype="fp8_e4m3")), (DFLASH, FP8)),
    case("vllm-draft-last-block", "kimi", (DFLASH,), (DFLASH,), on={"version": "0.32.0"}, version="0.33.0"),
    case("vllm-speculation-synchronous", "small", (NGRAM,), (DFLASH,)),
    case("vllm-draft-window", "kimi", (DFLASH, Speculation(draft_window_tokens=512)), (DFLASH,)),
    case("vllm-host-backend", "kimi", (HOST, CacheTier(level=2, backend="hf3fs")), (HOST,)),
    case("vllm-storage-backend", "kimi", (HOST, CacheTier(level=3, backend="nixl")), (HOST, FILE)),
    case("vllm-host-size", "kimi", (CacheTier(level=2, backend="native"),), (HOST,)),
    case("vllm-storage-directory", "kimi", (HOST, CacheTier(level=3, backend="file")), (HOST, FILE)),
    case("vllm-write-policy", "kimi", (HOST, CacheTier(level=2, write_policy="write_back")), (HOST,)),
    case(
        "vllm-selective-storage",
        "kimi",
        (HOST, CacheTier(level=2, write_policy="write_through_selective"), FILE),
        (HOST, CacheTier(level=2, write_policy="write_through_selective")),
    ),
    case("vllm-tier-words", "kimi", (HOST, CacheTier(level=2, io_backend="kernel")), (HOST,)),
    case("vllm-host-copies", "kimi", (HOST, DFLASH), (HOST,)),
    case("vllm-host-copies", "kimi", (HOST,), (HOST,), on={"version": "0.26.0"}, version="0.32.0"),
    case(
        "vllm-mooncake-addresses",
        "kimi",
        (HOST, CacheTier(level=3, backend="mooncake")),
        (
            HOST,
            CacheTier(
                level=3,
                backend="mooncake",
                extra_config=choose({"master_server_address": "a:1", "metadata_server": "http://b:2/metadata"}),
            ),
        ),
    ),
    case("vllm-lmcache-server", "kimi", (HOST, CacheTier(level=2, backend="lmcache")), (HOST,)),
    case("vllm-host-memory-0.26", "kimi", (HOST,), (HOST,), on={"version": "0.26.0"}, version="0.33.0"),
    case("vllm-host-shm", "kimi", (HOST,), ()),
    case("vllm-storage-drafts-0.26", "kimi", (HOST, FILE, DFLASH), (HOST, FILE), on={"version": "0.26.0"}),
    case("vllm-expert-parallel-size", "kimi", (), (), on=parallel(expert=2), **parallel(expert=4)),
    case("vllm-expert-parallel-dense", "small", (), (), on=parallel(tensor=2, expert=2), **parallel(tensor=2)),
    case("vllm-attention-data-dense", "small", (), (), on=parallel(tensor=3, attention_data=3), **parallel(tensor=3)),
    case("vllm-heads", "small", (), (), on=parallel(tensor=2), **parallel(tensor=3)),
    case("vllm-schedule-policy", "kimi", (Serving(schedule_policy="lpm"),), (Serving(schedule_policy="fcfs"),)),
]


@pytest.fixture
def models(kimi: ModelFacts, small: ModelFacts) -> dict[str, ModelFacts]:
    scheme = Quantization(method="compressed-tensors", algo=("nvfp4-pack-quantized",), kv_cache_algo="FP8")
    odd = small.attention.model_copy(update={"head_dim": 80})
    return {
        "kimi": kimi,
        "small": small,
        "kimi-ct": kimi.model_copy(update={"quantization": scheme}),
        "odd-head": small.model_copy(update={"attention": odd}),
    }


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


def test_every_rule_has_a_case_an_id_of_its_own_and_a_way_out() -> None:
    rules = backend.rules()
    ids = [rule.id for rule in rules]
    assert len(ids) == len(set(ids))
    assert {each[0] for each in CASES} | {"vllm-draft-limits"} == set(ids)
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
