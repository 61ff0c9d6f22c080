"""Flags and variables that do not go with KV tiers."""

from __future__ import annotations

from optistack.rules import Evidence, Rule, RuleContext, Severity
from optistack_adapters.vllm.rules.reading import on_cpu
from optistack_adapters.vllm.tiers import backend_of


def _connected(context: RuleContext) -> bool:
    return bool(context.stack.tiers) and not on_cpu(context)


def _sleeping(context: RuleContext) -> bool:
    lmcache = "lmcache" in (backend_of(context.stack.tier(2)), backend_of(context.stack.tier(3)))
    return _connected(context) and not lmcache and context.launch.has("--enable-sleep-mode")


def _expandable(context: RuleContext) -> bool:
    allocator = next((v.value for v in context.launch.variables if v.name == "PYTORCH_CUDA_ALLOC_CONF"), "")
    exempt = context.launch.has("--enable-sleep-mode") or context.launch.has("--enable-cumem-allocator")
    return _connected(context) and "expandable_segments:True" in allocator and not exempt


def _events(context: RuleContext) -> bool:
    given = context.launch.value_of("--kv-events-config") or ""
    return "enable_kv_cache_events" in given and context.stack.serving.prefix_caching.value is False


CONNECTOR_RULES: tuple[Rule, ...] = (
    Rule(
        id="vllm-tier-sleep",
        severity=Severity.ERROR,
        message="vLLM's host tier cannot be put to sleep: --enable-sleep-mode is refused beside it.",
        fix="Leave the flag out, or the host tier.",
        upstream="vllm 0.33 config/vllm.py:1263",
        fires=_sleeping,
        backends=("vllm",),
        versions=">=0.33",
    ),
    Rule(
        id="vllm-tier-expandable-segments",
        severity=Severity.ERROR,
        message="vLLM refuses a KV tier while PYTORCH_CUDA_ALLOC_CONF says expandable_segments:True.",
        fix="Take it out, or give --enable-cumem-allocator.",
        upstream="vllm 0.33 config/vllm.py:1284",
        fires=_expandable,
        evidence=Evidence.OBSERVED,
        backends=("vllm",),
    ),
    Rule(
        id="vllm-events-without-prefixes",
        severity=Severity.SILENT,
        message="KV events tell of the prefix cache, and that is off: none will come.",
        fix="Leave --kv-events-config out, or set serving.prefix_caching.",
        upstream="vllm 0.33 config/vllm.py:2053",
        fires=_events,
        backends=("vllm",),
    ),
)
