"""Plans on which rules about flags given by hand fire, and plans on which they do not."""

from __future__ import annotations

from typing import Any

from optistack.settings import CacheTier, KVLayout, Serving, Speculation, WeightQuantization, choose

GB = 10**9
TP4: dict[str, Any] = {"parallel": {"tensor": 4}}
B1: dict[str, Any] = {"facts": "llama", "node": "b200x1"}
H1: dict[str, Any] = {"facts": "llama", "node": "h200x1"}
GROUPS: dict[str, Any] = {"parallel": {"tensor": 4, "attention_data": 4}}
HOST = CacheTier(level=2, capacity_bytes=choose(40 * GB))
DIRECT = HOST.model_copy(update={"layout": choose("page_first_direct"), "io_backend": choose("direct")})
WRITE_BACK = HOST.model_copy(update={"write_policy": choose("write_back")})
FILE = CacheTier(level=3, backend=choose("file"), directory=choose("/kv"))
NVFP4 = KVLayout(dtype=choose("nvfp4"))
FP8 = KVLayout(dtype=choose("fp8_e4m3"))
E5M2 = KVLayout(dtype=choose("fp8_e5m2"))
PREFILL = Serving(prefill_attention_backend=choose("cutedsl_mla"))

Case = tuple[tuple[Any, ...], dict[str, Any]]


def by_hand(on: dict[str, Any], *words: str, **serving: Any) -> dict[str, Any]:
    return {**on, "engine_args": list(words), **({"serving": serving} if serving else {})}


def experts(runner: str) -> WeightQuantization:
    return WeightQuantization(moe_backend=choose(runner))


def drafts(method: str, **more: Any) -> Speculation:
    fields: dict[str, Any] = {"method": method, "num_draft_tokens": 7, **more}
    if method != "ngram":
        fields["draft_checkpoint"] = "some/draft"
    return Speculation(**{name: choose(value) for name, value in fields.items()})


A2A, TOPK, BREADTH = "--moe-a2a-backend", "--speculative-eagle-topk", "--speculative-ngram-max-bfs-breadth"
DETERMINISTIC, UNIFIED = "--enable-deterministic-inference", "--enable-unified-memory"
REJECTION, BLOCKS = "--speculative-use-rejection-sampling", "--speculative-use-block-verification"
BUFFER, ONLINE = ("--hicache-host-memory-mode", "buffer_only"), ("--quantization", "nvfp4_online")
DCP, TRTLLM = ("--dcp-size", "2"), "flashinfer_trtllm"

CASES: dict[str, tuple[Case, Case]] = {
    "sglang-moe-dispatch-ranks": (
        ((), by_hand(TP4, A2A, "deepep")),
        ((), by_hand({"parallel": {"tensor": 4, "expert": 4}}, A2A, "deepep")),
    ),
    "sglang-moe-dispatch-groups": (
        ((experts(TRTLLM),), by_hand(TP4, A2A, "flashinfer")),
        ((experts(TRTLLM),), by_hand(GROUPS, A2A, "flashinfer")),
    ),
    "sglang-moe-dispatch-runner": (
        ((), by_hand(GROUPS, A2A, "flashinfer")),
        ((experts(TRTLLM),), by_hand(GROUPS, A2A, "flashinfer")),
    ),
    "sglang-moe-runner-checkpoint": (
        ((experts("flashinfer_cutedsl"),), B1),
        ((experts("flashinfer_cutedsl"),), TP4),
    ),
    "sglang-nvfp4-online-gpu": (((), by_hand(H1, *ONLINE)), ((), by_hand(B1, *ONLINE))),
    "sglang-nvfp4-online-runner": (
        ((experts("triton"),), by_hand(B1, *ONLINE)),
        ((experts(TRTLLM),), by_hand(B1, *ONLINE)),
    ),
    "sglang-nvfp4-online-nan": (
        ((), {**by_hand(B1, *ONLINE), "version": "0.5.18"}),
        ((), {**by_hand(B1, *ONLINE), "version": "0.5.23"}),
    ),
    "sglang-deepep-normal-graphs": (
        ((), by_hand(TP4, A2A, "deepep", "--deepep-mode", "normal")),
        ((), by_hand(TP4, A2A, "deepep", "--deepep-mode", "auto")),
    ),
    "sglang-minimax-nvfp4-trtllm": (
        ((experts(TRTLLM),), {**TP4, "facts": "minimax"}),
        ((experts("flashinfer_cutlass"),), {**TP4, "facts": "minimax"}),
    ),
    "sglang-flex-attention-speculation": (
        ((drafts("eagle3"),), {**H1, "serving": {"attention_backend": "flex_attention"}}),
        ((), {**H1, "serving": {"attention_backend": "flex_attention"}}),
    ),
    "sglang-cutedsl-mla-prefill": (
        ((PREFILL,), TP4),
        ((), {**TP4, "serving": {"attention_backend": "cutedsl_mla"}}),
    ),
    "sglang-cutedsl-mla-kv-dtype": (
        ((E5M2,), {**TP4, "serving": {"attention_backend": "cutedsl_mla"}}),
        ((FP8,), {**TP4, "serving": {"attention_backend": "cutedsl_mla"}}),
    ),
    "sglang-tokenspeed-mla-renamed": (
        ((FP8,), {**TP4, "serving": {"attention_backend": "tokenspeed_mla"}}),
        ((FP8,), {**TP4, "serving": {"attention_backend": "tokenspeed_mla"}, "version": "0.5.21"}),
    ),
    "sglang-deterministic-kernels": (
        ((), by_hand(TP4, DETERMINISTIC)),
        ((), by_hand(TP4, DETERMINISTIC, attention_backend="triton")),
    ),
    "sglang-deterministic-prefix-cache": (
        ((), by_hand(B1, DETERMINISTIC, attention_backend="flashinfer")),
        ((), by_hand(B1, DETERMINISTIC, attention_backend="triton")),
    ),
    "sglang-trtllm-mla-context-parallel": (
        ((drafts("eagle3"),), by_hand(TP4, *DCP)),
        ((drafts("eagle3"),), by_hand(TP4, *DCP, "--decode-attention-backend", "cutedsl_mla")),
    ),
    "sglang-nvfp4-kv-prefill": (
        ((NVFP4,), {**B1, "serving": {"attention_backend": "triton"}}),
        ((NVFP4,), B1),
    ),
    "sglang-speculation-attention-data": (((drafts("ngram"),), GROUPS), ((drafts("eagle3"),), GROUPS)),
    "sglang-block-verification-method": (
        ((drafts("ngram"),), by_hand(TP4, BLOCKS)),
        ((drafts("eagle3"),), by_hand(TP4, BLOCKS)),
    ),
    "sglang-rejection-sampling-method": (
        ((drafts("standalone"),), by_hand(TP4, REJECTION)),
        ((drafts("eagle3"),), by_hand(TP4, REJECTION)),
    ),
    "sglang-mixed-chunk-method": (
        ((drafts("ngram"),), by_hand(TP4, "--enable-mixed-chunk")),
        ((drafts("eagle3"),), by_hand(TP4, "--enable-mixed-chunk")),
    ),
    "sglang-draft-sink-window": (
        ((drafts("eagle3"),), by_hand(TP4, "--speculative-draft-sink-size", "4")),
        (
            (drafts("eagle3"),),
            by_hand(TP4, "--speculative-draft-sink-size", "4", "--speculative-draft-window-size", "64"),
        ),
    ),
    "sglang-speculation-pipeline": (
        ((drafts("dflash"),), by_hand(TP4, "--pp-size", "2")),
        ((), by_hand(TP4, "--pp-size", "2")),
    ),
    "sglang-hidden-states-capture": (
        ((drafts("dflash"),), by_hand(TP4, "--enable-return-aux-hidden-states")),
        ((drafts("dflash"),), TP4),
    ),
    "sglang-nvfp4-kv-standalone": (((NVFP4, drafts("standalone")), B1), ((NVFP4, drafts("eagle3")), B1)),
    "sglang-nvfp4-kv-draft-kernels": (
        ((NVFP4, drafts("eagle3")), by_hand(B1, "--speculative-draft-attention-backend", "triton")),
        ((NVFP4, drafts("eagle3")), by_hand(B1, "--speculative-draft-attention-backend", "trtllm_mha")),
    ),
    "sglang-hicache-buffer-storage": (((HOST,), by_hand(TP4, *BUFFER)), ((HOST, FILE), by_hand(TP4, *BUFFER))),
    "sglang-hicache-buffer-write-back": (
        ((WRITE_BACK, FILE), by_hand(TP4, *BUFFER)),
        ((HOST, FILE), by_hand(TP4, *BUFFER)),
    ),
    "sglang-hicache-fraction-ignored": (
        ((HOST,), by_hand(TP4, "--hicache-host-memory-fraction", "0.5")),
        ((), by_hand(TP4, "--enable-hierarchical-cache", "--hicache-host-memory-fraction", "0.5")),
    ),
    "sglang-hicache-ratio-ignored": (
        ((HOST,), by_hand(TP4, "--hicache-ratio", "3")),
        ((), by_hand(TP4, "--enable-hierarchical-cache", "--hicache-ratio", "3")),
    ),
    "sglang-hicache-lmcache": (((HOST,), by_hand(TP4, "--enable-lmcache")), ((), by_hand(TP4, "--enable-lmcache"))),
    "sglang-lmcache-speculation": (
        ((drafts("dflash"),), by_hand(TP4, "--enable-lmcache")),
        ((), by_hand(TP4, "--enable-lmcache")),
    ),
    "sglang-hicache-external-linker": (
        ((HOST,), by_hand(TP4, "--enable-unified-cache-external-linker")),
        ((), by_hand(TP4, "--enable-unified-cache-external-linker")),
    ),
    "sglang-hicache-context-parallel-drafts": (
        ((HOST, drafts("dflash")), by_hand(TP4, *DCP)),
        ((HOST, drafts("dspark", num_draft_tokens=8)), by_hand(TP4, *DCP)),
    ),
    "sglang-hicache-context-parallel-model": (((HOST,), by_hand(B1, *DCP)), ((HOST,), by_hand(TP4, *DCP))),
    "sglang-hicache-unified-memory-layout": (((DIRECT,), by_hand(B1, UNIFIED)), ((HOST,), by_hand(B1, UNIFIED))),
    "sglang-unified-memory-eagle": (
        ((HOST, drafts("eagle3")), by_hand(B1, UNIFIED)),
        ((HOST, drafts("eagle3")), B1),
    ),
    "sglang-unified-memory-dflash": (
        ((drafts("dflash"),), by_hand(TP4, UNIFIED)),
        ((drafts("dflash"),), by_hand(B1, UNIFIED)),
    ),
}
"""A plan on which the rule fires, and one on which it does not: settings, and the rest of the stack."""

CHANGED: dict[str, tuple[Case, dict[str, str]]] = {
    "sglang-eagle-tree-pages": (((drafts("eagle3"),), TP4), {TOPK: "4"}),
    "sglang-trtllm-mha-tree": (((drafts("eagle3"),), B1), {TOPK: "4"}),
    "sglang-rejection-sampling-tree": (((drafts("eagle3"),), by_hand(TP4, REJECTION)), {TOPK: "4"}),
    "sglang-ngram-tree-pages": (((drafts("ngram"),), TP4), {BREADTH: "10"}),
}
"""Flags that the adapter says itself: a plan, and what turns it into one on which the rule fires."""

SERVING: dict[str, tuple[Case, Case]] = {
    "sglang-priority-policy": (
        ((), {**TP4, "serving": {"schedule_policy": "lpm"}, "engine_args": ["--enable-priority-scheduling"]}),
        ((), {**TP4, "engine_args": ["--enable-priority-scheduling"]}),
    ),
    "sglang-retraction-priority": (
        ((), {**TP4, "engine_args": ["--retraction-policy", "priority"]}),
        ((), {**TP4, "engine_args": ["--retraction-policy", "priority", "--enable-priority-scheduling"]}),
    ),
    "sglang-load-publisher": (
        ((), {**TP4, "engine_args": ["--load-publish-endpoint", "auto"]}),
        ((), {**TP4, "engine_args": ["--load-publish-endpoint", "off"]}),
    ),
    "sglang-dp-lm-head": (
        ((), {**TP4, "engine_args": ["--enable-dp-lm-head"]}),
        ((), {**GROUPS, "engine_args": ["--enable-dp-lm-head"]}),
    ),
    "sglang-replicas-attention-data": (
        ((), {**GROUPS, "engine_args": ["--dp-size", "2"]}),
        ((), {**TP4, "engine_args": ["--dp-size", "2"]}),
    ),
    "sglang-dflash-disaggregation": (
        ((drafts("dflash"),), {**TP4, "engine_args": ["--disaggregation-mode", "prefill"]}),
        ((), {**TP4, "engine_args": ["--disaggregation-mode", "prefill"]}),
    ),
}
"""The same for rules about the engine as a whole."""
