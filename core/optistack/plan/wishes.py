"""Opinions that no plugin holds: what the stack file says itself, and what a plan falls back to."""

from __future__ import annotations

from optistack.facts.model import ModelFacts
from optistack.settings import KVLayout, Serving, Settings, Value, choose, suggest
from optistack.stack.spec import ServingSection, StackSpec


def stack_wishes(spec: StackSpec) -> Serving:
    """What the stack file says about the engine as a whole, as firm wishes."""
    names = Serving.model_fields.keys() & ServingSection.model_fields.keys()
    given = {name: getattr(spec.serving, name) for name in sorted(names)}
    return Serving(
        **{name: choose(value, why="serving in the stack file") for name, value in given.items() if value is not None}
    )


def plan_wishes(spec: StackSpec, model: ModelFacts) -> list[Settings | Serving]:
    """What holds when nobody else says anything. A plan states these, since it depends on them."""
    wanted = spec.workload.input_tokens + spec.workload.output_tokens
    longest = model.max_context_tokens or wanted
    return [
        Serving(
            context_tokens=suggest(min(wanted, longest), why="the workload's input and output tokens"),
            prefix_caching=suggest(True, why="turns of a session share their prefix"),
            metrics=suggest(True, why="the receipt reads them"),
            cache_report=suggest(True, why="the receipt reads cached tokens of a request"),
        ),
        KVLayout(dtype=_engines_own_kv_dtype(model)),
    ]


def _engines_own_kv_dtype(model: ModelFacts) -> Value[str]:
    if model.quantization is not None and model.quantization.kv_cache_algo == "FP8":
        return suggest("fp8_e4m3", why="the checkpoint's quantization metadata asks for FP8 KV")
    return suggest(model.dtype, why="the model's own dtype")
