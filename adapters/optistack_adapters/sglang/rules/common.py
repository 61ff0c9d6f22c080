"""What several rules look at."""

from __future__ import annotations

from optistack.rules import RuleContext

BACKENDS = ("sglang",)


def attention_backends(context: RuleContext) -> tuple[str, ...]:
    """The attention kernels of the plan, those of its own for prefill and for decoding included."""
    serving = context.stack.serving
    by_hand = context.launch.value_of("--decode-attention-backend")
    every = (serving.attention_backend.value, serving.prefill_attention_backend.value, by_hand)
    return tuple(backend for backend in every if backend)


def decode_backend(context: RuleContext) -> str:
    """The attention kernels that decode."""
    return said(context, "--decode-attention-backend") or context.stack.serving.attention_backend.value or ""


def prefill_backend(context: RuleContext) -> str:
    """The attention kernels that prefill."""
    serving = context.stack.serving
    by_hand = said(context, "--prefill-attention-backend")
    return serving.prefill_attention_backend.value or by_hand or serving.attention_backend.value or ""


def said(context: RuleContext, *flags: str) -> str | None:
    """The value in the launch of the first of ``flags``, spellings of one, that it has."""
    return next((value for flag in flags if (value := context.launch.value_of(flag)) is not None), None)


def number(context: RuleContext, *flags: str) -> int | None:
    """The same as an integer, and ``None`` where it is none: the engine's own parser says so."""
    word = said(context, *flags)
    return int(word) if word is not None and word.strip().lstrip("-").isdecimal() else None


def kv_word(context: RuleContext) -> str:
    """The word for the KV dtype in the launch."""
    return said(context, "--kv-cache-dtype") or "auto"


def pages(context: RuleContext) -> int:
    """The page size in tokens, 1 where nobody says one."""
    return context.stack.kv.page_size_tokens.value or number(context, "--page-size") or 1


def is_mla(context: RuleContext) -> bool:
    return context.model.attention.kind == "mla"


def on_cpu(context: RuleContext) -> bool:
    return context.engine.device == "cpu"


def drafting_method(context: RuleContext) -> str | None:
    """How drafts are made: as the plan has it, or by a flag given by hand."""
    by_hand = said(context, "--speculative-algorithm")
    return context.stack.speculation.method.value or (by_hand.lower() if by_hand else None)


def drafting(context: RuleContext, *methods: str) -> bool:
    """Whether there is speculation, by one of ``methods`` if any are given."""
    method = drafting_method(context)
    return method is not None and (not methods or method in methods)
