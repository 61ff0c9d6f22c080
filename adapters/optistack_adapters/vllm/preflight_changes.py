"""Values that vLLM would change, from what the launch asks for and what the plan promises."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from optistack.launch import Launch, LaunchArgument
from optistack.preflight import ResolvedChange
from optistack.settings.resolved import ResolvedStack

if TYPE_CHECKING:
    from optistack_adapters.vllm.preflight import Outcome

OURS = ("load_format", "skip_tokenizer_init")
"""What the preflight adds to the launch itself."""

SAME = {"fp8": "fp8_e4m3", "float8_e4m3fn": "fp8_e4m3"}
"""Two words of vLLM for one thing."""

_CEILINGS = {
    "scheduler_config.max_num_active_seqs": ("--max-num-seqs", "max_num_seqs"),
    "scheduler_config.max_num_scheduled_tokens": ("--max-num-batched-tokens", "max_num_batched_tokens"),
}
"""Values beside an argument that make it smaller without touching it."""


def changes(launch: Launch, stack: ResolvedStack, outcome: Outcome) -> tuple[ResolvedChange, ...]:
    """What of ``launch``, and of what ``stack`` promises, is different in ``outcome``."""
    return tuple(_changes(launch, stack, outcome))


def _changes(launch: Launch, stack: ResolvedStack, outcome: Outcome) -> Iterator[ResolvedChange]:
    arguments = {_dest(argument.flag): argument for argument in launch.arguments}
    for name, asked in outcome.asked.items():
        if name in outcome.resolved and name not in OURS:
            becomes = outcome.resolved[name]
            if not alike(asked, becomes) and not _narrowed(name, asked, becomes):
                yield _change(arguments, name, asked, becomes, outcome)
    for place, (flag, name) in _CEILINGS.items():
        asked, becomes = outcome.asked.get(name), outcome.settled.get(place)
        if name == "max_num_batched_tokens" and asked is not None:
            # What the launch asks for beyond the setting is what vLLM sets aside for drafts.
            asked = stack.serving.chunked_prefill_tokens.value or asked
        if asked is not None and becomes is not None and becomes < asked:
            yield _change(arguments, _dest(flag), asked, becomes, outcome, source=place)
    yield from _promised(stack, outcome)


def _promised(stack: ResolvedStack, outcome: Outcome) -> Iterator[ResolvedChange]:
    """What the plan promises and the launch leaves to vLLM."""
    settled = outcome.settled
    promised: tuple[tuple[str, Any, str, Any], ...] = (
        ("kv.dtype", stack.kv.dtype.value, "kv_cache_dtype", settled.get("cache_config.cache_dtype")),
        ("kv.page_size_tokens", stack.kv.page_size_tokens.value, "block_size", settled.get("cache_config.block_size")),
        (
            "serving.prefix_caching",
            stack.serving.prefix_caching.value,
            "enable_prefix_caching",
            settled.get("cache_config.enable_prefix_caching"),
        ),
        (
            "serving.context_tokens",
            stack.serving.context_tokens.value,
            "max_model_len",
            settled.get("model_config.max_model_len"),
        ),
        ("serving.attention_backend", stack.serving.attention_backend.value, "", settled.get("attention")),
        (
            "speculation.draft_attention_backend",
            stack.speculation.draft_attention_backend.value,
            "",
            settled.get("draft_attention"),
        ),
    )
    for setting, wish, name, becomes in promised:
        unsaid = name not in outcome.asked
        if unsaid and wish is not None and becomes is not None and not alike(wish, becomes):
            yield ResolvedChange(setting=setting, asked=_word(wish), becomes=_word(becomes))
    graphs = settled.get("compilation_config.cudagraph_mode")
    if stack.serving.cuda_graphs.value is True and graphs == "NONE":
        yield ResolvedChange(setting="serving.cuda_graphs", asked="true", becomes="false", source="cudagraph_mode NONE")


def alike(asked: Any, becomes: Any) -> bool:
    """Whether vLLM's value is the one asked for, however it is spelled."""
    if isinstance(asked, bool) or isinstance(becomes, bool):
        return bool(asked == becomes)
    if isinstance(asked, (int, float)) and isinstance(becomes, (int, float)):
        return float(asked) == float(becomes)
    if isinstance(asked, list) and not isinstance(becomes, list):
        return len(asked) == 1 and alike(asked[0], becomes)
    if isinstance(asked, dict) and isinstance(becomes, dict):
        return all(key in becomes and alike(value, becomes[key]) for key, value in asked.items())
    return _normal(asked) == _normal(becomes)


COMPILATION_MODES = ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE")
"""By their numbers (config/compilation.py, ``CompilationMode``)."""


def _narrowed(name: str, asked: Any, becomes: Any) -> bool:
    """``modelopt`` becomes ``modelopt_fp4``: the same, said more exactly; mode 0 becomes ``NONE``, its name."""
    if name == "compilation_config.mode" and isinstance(asked, int) and 0 <= asked < len(COMPILATION_MODES):
        return bool(COMPILATION_MODES[asked] == becomes)
    return name == "quantization" and str(becomes).startswith(f"{asked}_")


def _normal(value: Any) -> str:
    word = str(value).lower().replace("-", "_")
    return SAME.get(word, word)


def _change(
    arguments: Mapping[str, LaunchArgument],
    name: str,
    asked: Any,
    becomes: Any,
    outcome: Outcome,
    source: str = "",
) -> ResolvedChange:
    root, _, key = name.partition(".")
    argument = arguments.get(root)
    flag = argument.flag if argument else "--" + root.replace("_", "-")
    return ResolvedChange(
        flag=f"{flag}.{key}" if key else flag,
        setting=argument.setting if argument and not key else "",
        asked=_word(asked),
        becomes=_word(becomes),
        source=source or _told(name.rpartition(".")[2], outcome.warnings),
    )


def _told(name: str, warnings: tuple[str, ...]) -> str:
    """The line of vLLM's log that speaks of ``name``."""
    spellings = (name, name.replace("_", "-"), name.replace("_", " "), name.removeprefix("enable_").replace("_", " "))
    return next((line for line in warnings if any(word in line.lower() for word in spellings)), "")


def _dest(flag: str) -> str:
    return flag.removeprefix("--").removeprefix("no-").replace("-", "_")


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
