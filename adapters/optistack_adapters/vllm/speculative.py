"""``--speculative-config``. Nothing in it is left for vLLM to guess: it takes methods from folder names otherwise."""

from __future__ import annotations

import json
from typing import Any

from optistack.settings import Value
from optistack.settings.resolved import ResolvedStack
from optistack_adapters.base import LaunchBuilder
from optistack_adapters.vllm.credits import joint_credit

WITHOUT_DRAFT_MODEL = ("ngram", "ngram_gpu", "suffix")
KEEP = "none"
"""``draft_quantization``: the draft stays as its checkpoint has it, which is what vLLM does when nothing is said."""


def add_speculation(builder: LaunchBuilder, stack: ResolvedStack) -> None:
    parts = speculative_parts(stack)
    if parts:
        builder.flag(
            "--speculative-config",
            json.dumps({key: value.value for key, value in parts.items()}),
            setting="speculation",
            **joint_credit(parts),
        )


def speculative_parts(stack: ResolvedStack) -> dict[str, Value[Any]]:
    """Keys of vLLM's SpeculativeConfig with the settings that they carry; empty without speculation."""
    wish = stack.speculation
    if not wish.method.is_set:
        return {}
    candidates: dict[str, Value[Any]] = {
        "method": wish.method,
        "model": wish.draft_checkpoint,
        "num_speculative_tokens": wish.num_draft_tokens,
    }
    if wish.method.value not in WITHOUT_DRAFT_MODEL:
        candidates["kv_cache_dtype"] = stack.kv.draft_dtype
        candidates["attention_backend"] = wish.draft_attention_backend
        if wish.draft_quantization.value != KEEP:
            candidates["quantization"] = wish.draft_quantization
    return {key: value for key, value in candidates.items() if value.is_set}
