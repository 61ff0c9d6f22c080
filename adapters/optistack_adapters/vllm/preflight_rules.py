"""Which rules explain a refusal, by the words in which vLLM refuses."""

from __future__ import annotations

import re
from collections.abc import Iterable

from optistack.rules import Finding

EXPLANATIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        r"kv_cache_dtype not supported",
        ("vllm-mla-kernel-kv-dtype", "vllm-mla-fp8-e5m2-kv", "vllm-kernel-kv-dtype", "vllm-draft-kernel-kv-dtype"),
    ),
    (r"block_size not supported", ("vllm-mla-kernel-page",)),
    (r"compute capability not supported", ("vllm-mla-kernel-gpu", "vllm-kernel-gpu")),
    (r"(non-)?MLA not supported", ("vllm-attention-kind",)),
)


def explaining(message: str, findings: Iterable[Finding]) -> tuple[str, ...]:
    """Ids of the findings that explain ``message``, in the order of the table."""
    fired = {finding.rule for finding in findings}
    named = (rule for pattern, rules in EXPLANATIONS if re.search(pattern, message) for rule in rules)
    return tuple(dict.fromkeys(rule for rule in named if rule in fired))
