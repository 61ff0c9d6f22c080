"""For each rule of the vLLM adapter, settings for which it fires and settings for which it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optistack.settings import CacheTier, EngineArgument, KVLayout, Serving, Speculation, WeightQuantization, choose

DRAFT = str(Path(__file__).parents[3] / "stacks" / "models" / "kimi-k2.6-dflash")
DFLASH = Speculation(method="dflash", draft_checkpoint=DRAFT, num_draft_tokens=7)
DFLASH_8 = Speculation(method="dflash", draft_checkpoint=DRAFT, num_draft_tokens=8)
NGRAM = Speculation(method="ngram", num_draft_tokens=4)
FP8 = KVLayout(dtype="fp8_e4m3", draft_dtype="bfloat16")
HOST = CacheTier(level=2, capacity_bytes=2**36)
FILE = CacheTier(level=3, backend="file", directory="/kv/k", key="k")
CPU: dict[str, Any] = {"node": "cpu", "spec": {"serving": {"kv_memory_gib": 1}}}
H200: dict[str, Any] = {"node": "h200x8"}
H200_1: dict[str, Any] = {"node": "h200x8", "spec": {"parallel": {"tensor": 1}}}
NVFP4 = KVLayout(dtype="nvfp4")
MTP = Speculation(method="mtp", num_draft_tokens=1)
EXPANDABLE = KVLayout(
    arguments=(
        EngineArgument(
            backend="vllm", name="PYTORCH_CUDA_ALLOC_CONF", value="expandable_segments:True", env=True, why="a test"
        ),
    )
)

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


def graphs(batch: int) -> Serving:
    return Serving(cuda_graph_max_batch=batch)


def prefill(word: str) -> Serving:
    return Serving(prefill_attention_backend=word)


def draft_attention(word: str) -> Speculation:
    return Speculation(draft_attention_backend=word)


def drafted(method: str) -> Speculation:
    """``method`` with the DFlash draft of the Kimi stack, whose config is on this machine."""
    return Speculation(method=method, draft_checkpoint=DRAFT, num_draft_tokens=7)


def engine_args(*words: str) -> Options:
    return {"spec": {"engine_args": list(words)}}


def on_cpu(*words: str) -> Options:
    return {"node": "cpu", "spec": {"serving": {"kv_memory_gib": 1}, "engine_args": list(words)}}


FLASH = attention("FLASH_ATTN")
FLASH_DRAFT = draft_attention("FLASH_ATTN")
ASYNC = engine_args("--async-scheduling")
LORA = engine_args("--enable-lora")
EVENTS = engine_args("--kv-events-config", '{"enable_kv_cache_events": true}')

NIXL = '{"kv_connector": "NixlConnector"}'
SPECULATE, EAGLE = "--speculative-config", '{"method": "eagle", "num_speculative_tokens": 2}'
SELF_DRAFT = '{"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 4}'


def by_hand(*words: str) -> Options:
    """One rank on an H200, vLLM 0.32, ``words`` by hand."""
    return {"node": "h200x8", "version": "0.32.0", "spec": {"parallel": {"tensor": 1}, "engine_args": list(words)}}


CASES: list[Case] = [
    case(
        "vllm-flag-alone",
        "small",
        (),
        (),
        on=by_hand("--eplb-config", '{"num_redundant_experts": 8}'),
        **by_hand("--eplb-config", "{}"),
    ),
    case(
        "vllm-flag-alone",
        "small",
        (),
        (),
        on=by_hand("--offload-backend", "prefetch"),
        **by_hand("--offload-backend", "uva"),
    ),
    case("vllm-flag-alone", "small", (), (), on=by_hand("--enable-elastic-ep"), **by_hand()),
    case("vllm-flag-alone", "small", (), (), on=by_hand("--enable-log-outputs"), **by_hand()),
    case("vllm-flag-alone", "small", (), (), on=by_hand("--kv-transfer-config", NIXL), **by_hand()),
    case("vllm-overlap-all2all", "kimi", (), (), on=engine_args("--ubatch-size", "2"), **engine_args()),
    case("vllm-world-size", "kimi", (), (), on=engine_args("--prefill-context-parallel-size", "2"), **engine_args()),
    case("vllm-flag-alone", "small", (), (), on=by_hand("--enable-auto-tool-choice"), **by_hand()),
    case("vllm-flag-alone", "small", (), (), on=by_hand("--enable-batch-sharded-sampling"), **by_hand()),
    case(
        "vllm-hand-contradicts",
        "small",
        (Serving(cuda_graphs=True),),
        (Serving(cuda_graphs=True),),
        on=by_hand("--enforce-eager"),
        **by_hand(),
    ),
    case("vllm-hand-limits", "small", (), (), on=by_hand("--max-num-scheduled-tokens", "256"), **by_hand()),
    case("vllm-hand-speculation", "small", (), (), on=by_hand(SPECULATE, SELF_DRAFT), **by_hand()),
    case("vllm-hand-draft-missing", "small", (), (), on=by_hand(SPECULATE, EAGLE), **by_hand(SPECULATE, SELF_DRAFT)),
    case(
        "vllm-hand-mtp-layers",
        "small",
        (),
        (),
        on=by_hand(SPECULATE, '{"method": "mtp", "num_speculative_tokens": 1}'),
        **by_hand(SPECULATE, SELF_DRAFT),
    ),
    case(
        "vllm-draft-attention-word",
        "kimi",
        (DFLASH, draft_attention("fa3")),
        (DFLASH, draft_attention("FLASH_ATTN")),
        on=H200,
    ),
    case("vllm-cpu-host-tier", "small", (HOST,), (), on=CPU),
    case("vllm-cpu-nvfp4", "small", (WeightQuantization(experts="nvfp4"),), (), on=CPU),
    case("vllm-cpu-nvfp4-checkpoint", "kimi", (), (), on=CPU, node="b200x4"),
    case("vllm-cpu-mla-fp8-kv", "kimi", (FP8,), (), on=CPU),
    case("vllm-cpu-fp8-head", "odd-head", (FP8,), (), on=CPU),
    case("vllm-cpu-fp8-isa", "small", (FP8,), (FP8,), on={**CPU, "node": "cpu-avx2"}, **{**CPU, "node": "cpu-avx512"}),
    case("vllm-cpu-fp8-isa", "small", (FP8,), (FP8,), on={**CPU, "node": "cpu-other"}, **CPU),
    case("vllm-cpu-fp8-isa", "small", (FP8,), (), on={**CPU, "node": "cpu-avx2"}),
    case("vllm-cpu-bf16-isa", "small", (), (), on={**CPU, "node": "cpu-avx2"}, **{**CPU, "node": "cpu-avx512"}),
    case("vllm-cpu-bf16-isa", "small", (), (), on={**CPU, "node": "cpu-avx2"}, **CPU),
    case("vllm-cpu-bf16-isa", "small", (), (), on={**CPU, "node": "cpu-avx2"}, **{**CPU, "node": "cpu-other"}),
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
    case("vllm-draft-slots", "kimi", (DFLASH, limits(1, 8)), (NGRAM, limits(1, 8))),
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
    case("vllm-host-shm", "kimi", (HOST, FILE), (HOST,), on={"version": "0.26.0"}, version="0.26.0"),
    case("vllm-host-shm-half", "kimi", (CacheTier(level=2, capacity_bytes=2**40),), (HOST,)),
    case("vllm-storage-drafts-0.26", "kimi", (HOST, FILE, DFLASH), (HOST, FILE), on={"version": "0.26.0"}),
    case("vllm-expert-parallel-size", "kimi", (), (), on=parallel(expert=2), **parallel(expert=4)),
    case("vllm-expert-parallel-dense", "small", (), (), on=parallel(tensor=2, expert=2), **parallel(tensor=2)),
    case("vllm-attention-data-dense", "small", (), (), on=parallel(tensor=3, attention_data=3), **parallel(tensor=3)),
    case("vllm-heads", "small", (), (), on=parallel(tensor=2), **parallel(tensor=3)),
    case("vllm-schedule-policy", "kimi", (Serving(schedule_policy="lpm"),), (Serving(schedule_policy="fcfs"),)),
    case("vllm-attention-word", "kimi", (attention("FLASHINFERMLA"),), (attention("FLASHINFER_MLA"),)),
    case("vllm-kernel-kv-dtype", "small", (FP8, attention("FLEX_ATTENTION")), (FP8, attention("TRITON_ATTN"))),
    case("vllm-kernel-page", "small", (KVLayout(page_size_tokens=24),), (KVLayout(page_size_tokens=32),)),
    case("vllm-draft-attention-kind", "kimi", (DFLASH, draft_attention("FLASHMLA")), (DFLASH, FLASH_DRAFT)),
    case(
        "vllm-draft-kernel-kv-dtype",
        "kimi",
        (DFLASH, FLASH_DRAFT, KVLayout(draft_dtype="fp8_e5m2")),
        (DFLASH, FLASH_DRAFT, KVLayout(draft_dtype="fp8_e4m3")),
    ),
    case("vllm-mla-prefill-kernel", "kimi", (prefill("TRTLLM_RAGGED"),), (prefill("FLASH_ATTN"),), on=H200),
    case("vllm-mla-prefill-kernel", "kimi", (prefill("NONE"),), (prefill("TRTLLM_RAGGED"),)),
    case("vllm-batch-tokens", "small", (limits(64, 8),), (limits(8, 8),)),
    case("vllm-graph-sizes", "small", (graphs(5),), (graphs(8),)),
    case("vllm-graph-sizes", "kimi", (DFLASH, graphs(2048)), (DFLASH, graphs(16))),
    case("vllm-async-scheduling-drafts", "small", (NGRAM,), (DFLASH,), on={**ASYNC, "version": "0.32.0"}),
    case("vllm-async-scheduling-drafts", "small", (NGRAM,), (NGRAM,), on={**ASYNC, "version": "0.32.0"}, **ASYNC),
    case("vllm-plain-kv-dtype", "small", (), (), on=engine_args("--dtype", "half"), **engine_args("--dtype", "auto")),
    case(
        "vllm-whole-prefill",
        "small",
        (limits(4, 2048),),
        (limits(4, 4096),),
        on=engine_args("--no-enable-chunked-prefill"),
    ),
    case(
        "vllm-lora-drafts", "kimi", (DFLASH, limits(64, 256)), (DFLASH, limits(4, 256)), on=engine_args("--enable-lora")
    ),
    case("vllm-world-size", "kimi", (), (), on=engine_args("--pipeline-parallel-size", "2"), **parallel(tensor=4)),
    case(
        "vllm-decode-context-size",
        "kimi",
        (),
        (),
        on=engine_args("--decode-context-parallel-size", "3"),
        **engine_args("--decode-context-parallel-size", "2"),
    ),
    case("vllm-expert-balancing", "kimi", (), (), on=engine_args("--enable-eplb"), **parallel(tensor=4)),
    case(
        "vllm-overlap-all2all",
        "kimi",
        (),
        (),
        on=engine_args("--enable-dbo"),
        **engine_args("--enable-dbo", "--all2all-backend", "deepep_low_latency"),
    ),
    case("vllm-draft-metrics", "small", (), (NGRAM,), on=engine_args("--per-request-spec-decode-metrics", "summary")),
    case("vllm-draft-slots-0.32", "kimi", (DFLASH, limits(1, 7)), (DFLASH, limits(1, 8)), on={"version": "0.32.0"}),
    case(
        "vllm-method-from-path",
        "small",
        (Speculation(method="draft_model", draft_checkpoint="org/eagle3-draft", num_draft_tokens=4),),
        (Speculation(method="draft_model", draft_checkpoint="org/draft", num_draft_tokens=4),),
    ),
    case("vllm-mtp-layers", "kimi", (MTP,), (DFLASH,)),
    case(
        "vllm-mtp-layers", "small", (MTP,), (Speculation(method="mtp", draft_checkpoint="org/m", num_draft_tokens=1),)
    ),
    case("vllm-draft-architecture", "kimi", (drafted("eagle3"),), (drafted("dflash"),)),
    case(
        "vllm-draft-context",
        "kimi",
        (drafted("dflash"), Serving(context_tokens=300_000)),
        (drafted("dflash"), Serving(context_tokens=262_144)),
    ),
    case("vllm-suffix-package", "small", (Speculation(method="suffix", num_draft_tokens=8),), (NGRAM,)),
    case("vllm-cpu-speculative-sampling", "small", (NGRAM,), (), on={**CPU, "version": "0.32.0"}),
    case("vllm-cpu-speculative-sampling", "small", (DFLASH,), (DFLASH,), on=CPU, **H200_1),
    case("vllm-events-without-prefixes", "small", (Serving(prefix_caching=False),), (), on=EVENTS),
    case("vllm-nvfp4-kv-gpu", "small", (NVFP4,), (FP8,), on=H200_1),
    case("vllm-nvfp4-kv-gpu", "odd-head", (NVFP4,), (NVFP4,), on={**H200_1, "version": "0.26.0"}, **H200_1),
    case("vllm-nvfp4-kv-answers", "small", (NVFP4,), (NVFP4,), on={}, **H200_1),
    case(
        "vllm-quantization-metadata",
        "small",
        (WeightQuantization(engine_quantization="awq"),),
        (WeightQuantization(engine_quantization="fp8"),),
    ),
    case("vllm-tier-expandable-segments", "kimi", (HOST, EXPANDABLE), (EXPANDABLE,)),
    case("vllm-cpu-mla-page", "kimi", (KVLayout(page_size_tokens=32),), (), on=CPU),
    case("vllm-cpu-mla-passes", "kimi", (limits(4, 2048),), (limits(4, 4096),), on=CPU),
    case("vllm-cpu-graphs", "small", (Serving(cuda_graphs=True),), (), on=CPU),
    case("vllm-cpu-flags", "small", (), (), on=on_cpu("--async-scheduling"), **CPU),
    case("vllm-cpu-refused-flags", "small", (), (), on=on_cpu("--enable-sleep-mode"), **CPU),
    case(
        "vllm-routed-experts", "small", (), (), on=engine_args("--enable-return-routed-experts"), **parallel(tensor=3)
    ),
    case(
        "vllm-quantization-passed-over",
        "kimi",
        (),
        (),
        on=engine_args("--quantization", "fp8"),
        **engine_args("--quantization", "modelopt"),
    ),
    case("vllm-draft-tokens", "kimi", (Speculation(method="dflash", draft_checkpoint=DRAFT),), (DFLASH,)),
    case("vllm-kernel-kv-dtype", "small", (FP8, FLASH), (FP8, FLASH), on={"version": "0.26.0"}, version="0.32.0"),
]
