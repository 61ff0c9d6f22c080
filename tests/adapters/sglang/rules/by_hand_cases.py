"""Plans with flags that nobody but somebody's own ``engine_args`` brings, and what may be drawn from."""

from __future__ import annotations

from tests.adapters.sglang.rules.combination_cases import B1, BREADTH, DCP, TP4, Case, by_hand, drafts, experts

TLRU, TLRU_CONFIG = ("--radix-eviction-policy", "tlru"), ("--radix-eviction-policy-config", '{"threshold": 8}')

BY_HAND: dict[str, tuple[Case, Case]] = {
    "sglang-flag-alone": (
        ((), by_hand(TP4, "--dcp-comm-backend", "a2a")),
        ((), by_hand(TP4, "--dcp-comm-backend", "a2a", *DCP)),
    ),
    "sglang-hand-contradicts": (
        ((), by_hand(B1, "--disable-radix-cache", prefix_caching=True)),
        ((), {**B1, "serving": {"prefix_caching": False}}),
    ),
    "sglang-hand-speculation": (
        ((), by_hand(B1, "--speculative-algorithm", "NGRAM", BREADTH, "1")),
        ((drafts("ngram"),), B1),
    ),
    "sglang-tlru-threshold": (((), by_hand(B1, *TLRU)), ((), by_hand(B1, *TLRU, *TLRU_CONFIG))),
    "sglang-many-nodes": (((), by_hand(TP4, "--nnodes", "3")), ((), TP4)),
    "sglang-dense-moe-ranks": (
        ((), by_hand(TP4, "--moe-dense-tp-size", "2")),
        ((), by_hand(TP4, "--moe-dense-tp-size", "1")),
    ),
    "sglang-moe-data-groups": (
        ((), by_hand(TP4, "--moe-dp-size", "2")),
        ((), by_hand(TP4, "--moe-dp-size", "1")),
    ),
    "sglang-moe-runner-quantization": (
        ((experts("flashinfer_cutlass"),), by_hand(TP4, "--quantization", "mlx_q8")),
        ((experts("flashinfer_cutlass"),), by_hand(TP4, "--quantization", "modelopt_fp4")),
    ),
    "sglang-encoder-architecture": (((), by_hand(B1, "--encoder-only")), ((), B1)),
    "sglang-disaggregation-role": (((), by_hand(TP4, "--disaggregation-mode", "prefill")), ((), TP4)),
}
"""Rules of flags that nobody but ``engine_args`` brings."""

ALONE = (
    (B1, ("--enable-linker-mla-dedup",)),
    (B1, ("--enable-prefix-mm-cache",)),
    (TP4, ("--enable-tp-lm-head-all-to-all",)),
    (TP4, ("--prefill-kv-cache-dequant-dtype", "fp8_e4m3")),
    (B1, ("--enable-mis",)),
    (B1, ("--enable-encoder-swa-bounded-replay",)),
    (B1, ("--enable-layernorm-sp",)),
    (B1, ("--enable-kv-cache-sharding",)),
    (B1, ("--enable-two-batch-overlap",)),
    (B1, ("--enable-mamba-cache-stochastic-rounding",)),
    (B1, ("--enable-cp-decode-attn-tp",)),
    (TP4, ("--moe-a2a-backend", "pplx")),
    (B1, ("--speculative-algorithm", "DSPARK")),
)
"""Further flags that SGLang refuses by themselves."""

HANDED = (
    *(words for _, words in ALONE),
    ("--radix-eviction-policy", "lfu"),
    ("--num-continuous-decode-steps", "4"),
    ("--disable-overlap-schedule",),
    ("--enable-mixed-chunk",),
    ("--enable-torch-compile",),
    ("--disable-custom-all-reduce",),
    ("--cuda-graph-backend-prefill", "breakable"),
    ("--enable-single-batch-overlap",),
    ("--enable-dp-lm-head",),
    ("--enable-memory-saver",),
    ("--enable-symm-mem",),
    ("--enable-eplb",),
    ("--enable-priority-scheduling",),
    ("--schedule-conservativeness", "0.3"),
    ("--stream-interval", "4"),
    ("--cpu-offload-gb", "10"),
    ("--moe-dense-tp-size", "2"),
    ("--moe-a2a-backend", "deepep"),
    ("--dcp-comm-backend", "ag_rs"),
    ("--fp8-gemm-backend", "triton"),
    ("--grammar-backend", "llguidance"),
    ("--sampling-backend", "pytorch"),
    ("--disaggregation-mode", "decode"),
)
"""What people put into engine_args, for launches that are drawn from it."""
