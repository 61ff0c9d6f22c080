"""Which rules explain a refusal, by the words in which vLLM refuses."""

from __future__ import annotations

import re
from collections.abc import Iterable

from optistack.rules import Finding

_DTYPE = ("vllm-mla-kernel-kv-dtype", "vllm-mla-fp8-e5m2-kv", "vllm-kernel-kv-dtype", "vllm-draft-kernel-kv-dtype")

EXPLANATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Unknown attention backend", ("vllm-attention-word", "vllm-draft-attention-word")),
    ("kv_cache_dtype not supported", (*_DTYPE, "vllm-nvfp4-kv-gpu", "vllm-attention-word")),
    ("FP8 KV", _DTYPE),
    ("block_size not supported", ("vllm-mla-kernel-page", "vllm-kernel-page", "vllm-attention-word")),
    ("compute capability|only supported on Hopper", ("vllm-mla-kernel-gpu",)),
    ("MLA not supported", ("vllm-attention-kind", "vllm-draft-attention-kind")),
    ("NVFP4 KV cache at head_size", ("vllm-nvfp4-kv-gpu",)),
    ("nvfp4 KV cache is not supported", ("vllm-mla-nvfp4-kv",)),
    ("mla_prefill_backend", ("vllm-mla-prefill-kernel",)),
    ("greater than or equal to max_num_seqs", ("vllm-batch-tokens",)),
    ("smaller than max_model_len", ("vllm-whole-prefill",)),
    ("greater than the derived max_model_len", ("context-longer-than-model",)),
    ("not have enough slots", ("vllm-draft-slots", "vllm-draft-slots-0.32")),
    ("without speculative model", ("vllm-draft-missing", "vllm-hand-draft-missing")),
    ("num_speculative_tokens(`| must).*provided", ("vllm-draft-tokens",)),
    ("Unsupported speculative method", ("vllm-mtp-layers", "vllm-draft-architecture", "vllm-hand-mtp-layers")),
    ("are not supported for now|layer_types", ("vllm-draft-architecture",)),
    ("method Input should be|V1 does not support", ("vllm-speculation-method",)),
    ("[Aa]sync scheduling", ("vllm-async-scheduling-drafts",)),
    ("Arctic Inference", ("vllm-suffix-package",)),
    ("No module named 'lmcache'", ("vllm-lmcache-server",)),
    ("per-request-spec-decode-metrics", ("vllm-draft-metrics",)),
    ("decreasing num_speculative_tokens", ("vllm-lora-drafts",)),
    ("expandable_segments", ("vllm-tier-expandable-segments",)),
    (
        "EPLB is not enabled|offload_num_in_group|Batch-sharded|Elastic EP|auto-tool-choice|"
        "enable-log-outputs|specify kv_role|float32 is not supported",
        ("vllm-flag-alone",),
    ),
    ("[Ss]leep mode", ("vllm-cpu-refused-flags",)),
    ("World size", ("vllm-world-size",)),
    ("divisible by dcp_size", ("vllm-decode-context-size",)),
    ("EPLB|load balancing", ("vllm-expert-balancing", "vllm-cpu-refused-flags")),
    ("Microbatching", ("vllm-overlap-all2all",)),
    ("AuxOutput", ("vllm-routed-experts",)),
    ("attention heads", ("vllm-heads",)),
    ("[Ee]xpert parallel", ("vllm-expert-parallel-dense",)),
    ("scheduling-policy", ("vllm-schedule-policy",)),
    ("config file for|quantization", ("vllm-quantization-metadata",)),
    ("cache_dtype|kv-cache-dtype|kv_cache_dtype", ("vllm-kv-dtype", "vllm-plain-kv-dtype")),
)
"""Regular expressions over vLLM's messages, and the rules that say the same beforehand."""


def explaining(message: str, findings: Iterable[Finding]) -> tuple[str, ...]:
    """Ids of the findings that explain ``message``, in the order of the table."""
    fired = {finding.rule for finding in findings}
    named = (rule for pattern, rules in EXPLANATIONS if re.search(pattern, message) for rule in rules)
    return tuple(dict.fromkeys(rule for rule in named if rule in fired))
