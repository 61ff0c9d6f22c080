"""What several rules look at."""

from __future__ import annotations

from optistack.rules import RuleContext

BACKENDS = ("sglang",)


def attention_backends(context: RuleContext) -> tuple[str, ...]:
    """The attention kernels of the plan, prefill's own ones included."""
    serving = context.stack.serving
    both = (serving.attention_backend.value, serving.prefill_attention_backend.value)
    return tuple(backend for backend in both if backend is not None)


def is_mla(context: RuleContext) -> bool:
    return context.model.attention.kind == "mla"


def on_cpu(context: RuleContext) -> bool:
    return context.engine.device == "cpu"


def drafting(context: RuleContext, *methods: str) -> bool:
    """Whether there is speculation, by one of ``methods`` if any are given."""
    method = context.stack.speculation.method.value
    return method is not None and (not methods or method in methods)
