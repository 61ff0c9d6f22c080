"""What shows on a running engine that a pair works, and the public reports of where it did not.

Written by hand: no rule says what would have found a failure. A test holds the checks against the probes' code.
"""

from __future__ import annotations

from dataclasses import dataclass

PROBES = {
    "quant-nvfp4": (),
    "kv-fp8": ("kv-fp8/bytes-per-token",),
    "dflash": (
        "dflash/drafts-move",
        "dflash/draft-tokens",
        "dflash/acceptance-length",
        "dflash/greedy-margin",
        "dflash/warm-acceptance",
    ),
    "hicache": (
        "hicache/host-tokens",
        "hicache/host-stores",
        "hicache/host-hits",
        "hicache/storage-writes",
        "hicache/storage-hits",
    ),
    "routing": ("routing/prefix-cache",),
}
"""The live probes of each plugin, by the ids of their receipt lines; NVFP4 weights show in the plan's own line."""


@dataclass(frozen=True)
class Check:
    """``shows`` says what the check would see; ``probes`` are the receipt lines that see it, of probes or others."""

    shows: str
    probes: tuple[str, ...]
    reported: str = ""


CHECKS: dict[tuple[str, str], Check] = {
    ("quant-nvfp4", "kv-fp8"): Check(
        "Weights and KV each take the bytes that their precision takes. That the answers are right is for the "
        "conformance suite: both lose a little, and together more.",
        ("budget.weight_bytes", "kv-fp8/bytes-per-token"),
        "[vllm#42179](https://github.com/vllm-project/vllm/issues/42179): corrupt output of NVFP4 weights with FP8 KV "
        "in disaggregated serving, not reproduced by a maintainer.",
    ),
    ("quant-nvfp4", "dflash"): Check(
        "A drafter trained for other weights is accepted less, down to never: set `min_acceptance_length`.",
        ("dflash/acceptance-length", "dflash/drafts-move", "budget.weight_bytes"),
        "A vendor's drafter for BF16 weights beside INT4 ones: no draft accepted; it ships one for each precision.",
    ),
    ("quant-nvfp4", "hicache"): Check(
        "KV reaches the host as planned; the weights leave the device the room that the plan counts on.",
        ("hicache/host-stores", "budget.weight_bytes"),
    ),
    ("quant-nvfp4", "routing"): Check(
        "Nothing in common: each is proven by itself.", ("budget.weight_bytes", "routing/prefix-cache")
    ),
    ("kv-fp8", "dflash"): Check(
        "The engine starts, the draft's KV has the dtype of the plan, and what is drafted over FP8 KV stays within "
        "rounding of the target's own choice.",
        ("kv.draft_dtype", "dflash/greedy-margin", "kv-fp8/bytes-per-token"),
        "[vllm#41559](https://github.com/vllm-project/vllm/issues/41559): no attention kernel for a non-causal draft "
        "over FP8 KV; mended for SM100.",
    ),
    ("kv-fp8", "hicache"): Check(
        "The host pool holds as many tokens as FP8 allows, and a token on the device takes an FP8 token's bytes.",
        ("hicache/host-tokens", "kv-fp8/bytes-per-token"),
        "By analogy only: [LMCache#4345](https://github.com/LMCache/LMCache/issues/4345), garbage with HTTP 200 from "
        "INT8 KV in a tier beside speculation.",
    ),
    ("kv-fp8", "routing"): Check(
        "A repeated prompt comes from the cache whatever the KV's dtype.",
        ("routing/prefix-cache", "kv-fp8/bytes-per-token"),
    ),
    ("dflash", "hicache"): Check(
        "KV reaches the host and comes back, and a prompt sent twice has its drafts accepted as often from the cache "
        "as cold. That repeat is a hit on the device: a hit in a lower tier shows only once the device has evicted the "
        "prompt, so compare the acceptance length under load with that of a cold start as well.",
        ("hicache/host-stores", "hicache/host-hits", "dflash/warm-acceptance"),
        "[sglang#31600](https://github.com/sgl-project/sglang/issues/31600): after a hit in storage the acceptance "
        "length fell from 5.94 to 2.87, since only the target's KV was stored; "
        "[sglang#21125](https://github.com/sgl-project/sglang/pull/21125) stores the draft's too.",
    ),
    ("dflash", "routing"): Check(
        "Tokens of a repeated prompt are reported as cached while the engine drafts, and its drafts are accepted as "
        "often as those of a new prompt.",
        ("routing/prefix-cache", "dflash/warm-acceptance"),
        "[vllm#54360](https://github.com/vllm-project/vllm/issues/54360): no prefix hit at all under speculation on "
        "hybrid models, silently; [dynamo#10982](https://github.com/ai-dynamo/dynamo/issues/10982): a router that "
        "hashes single tokens never overlaps an engine whose drafter keys them in twos.",
    ),
    ("hicache", "routing"): Check(
        "The engine's page is the plan's, a repeated prompt is cached to the last whole page, and the host tier "
        "gives back what the device evicted. What a router predicts is not compared: this release starts none.",
        ("kv.page_size_tokens", "routing/prefix-cache", "hicache/host-hits"),
        "[llm-d-router#2153](https://github.com/llm-d/llm-d-router/issues/2153): pages smaller than the router's "
        "blocks, and no key ever matched.",
    ),
}
