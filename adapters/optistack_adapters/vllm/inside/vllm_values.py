"""Reading values out of vLLM's arguments and configuration, as JSON."""

from __future__ import annotations

import enum
import json
from typing import Any

PLACES = {
    "kv_cache_dtype": "cache_config.cache_dtype",
    "scheduling_policy": "scheduler_config.policy",
    "attention_backend": "attention_config.backend",
    "moe_backend": "kernel_config.moe_backend",
    "linear_backend": "kernel_config.linear_backend",
    "language_model_only": "model_config.multimodal_config.language_model_only",
    "reasoning_parser": "structured_outputs_config.reasoning_parser",
    "compilation_config": "compilation_config",
    "attention_config": "attention_config",
    "speculative_config": "speculative_config",
    "kv_transfer_config": "kv_transfer_config",
    "kv_events_config": "kv_events_config",
}
PARTS = (
    "model_config",
    "cache_config",
    "parallel_config",
    "scheduler_config",
    "attention_config",
    "kernel_config",
    "compilation_config",
    "load_config",
    "observability_config",
)
MISSING = object()


def asked(parser: Any, args: Any, argv: list[str]) -> dict[str, Any]:
    """What the launch names, by vLLM's name of the argument; JSON objects key by key."""
    actions = parser._option_string_actions
    found: dict[str, Any] = {}
    for position, word in enumerate(argv):
        flag, equals, given = word.partition("=")
        action = actions.get(flag) or actions.get("--" + flag[2:].replace("_", "-"))
        if not flag.startswith("-") or action is None:
            continue
        following = given if equals else (argv[position + 1] if position + 1 < len(argv) else "")
        parts = _json_object(following)
        if parts is None:
            found[action.dest] = plain(getattr(args, action.dest, None))
        else:
            found.update(_flat(action.dest, parts))
    return found


def resolved(config: Any, name: str) -> Any:
    """What became of the argument called ``name``; keys of JSON arguments are after a dot."""
    root, _, key = name.partition(".")
    place = PLACES.get(root)
    if place is None:
        place = next((part + "." + root for part in PARTS if hasattr(at(config, part), root)), None)
    if place is None:
        return MISSING
    found = at(config, place + "." + key if key else place, MISSING)
    return MISSING if found is MISSING else plain(found)


def at(value: Any, place: str, default: Any = None) -> Any:
    for part in place.split("."):
        value = value.get(part, MISSING) if isinstance(value, dict) else getattr(value, part, MISSING)
        if value is MISSING:
            return default
    return value


def _flat(root: str, parts: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in parts.items():
        name = root + "." + key
        if isinstance(value, dict):
            flat.update(_flat(name, value))
        else:
            flat[name] = value
    return flat


def _json_object(word: str) -> dict[str, Any] | None:
    if not word.startswith("{"):
        return None
    try:
        value = json.loads(word)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def plain(value: Any) -> Any:
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(part) for part in value)
    return str(value).replace("torch.", "")


def message(error: BaseException) -> str:
    """vLLM's own words, without pydantic's frame around them."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    lines = [line for line in lines if line and not line.startswith("For further information")]
    if lines and "validation error" in lines[0]:
        lines = lines[1:]
    text = " ".join(lines).partition(" [type=")[0]
    for frame in ("Value error, ", "Assertion failed, "):
        text = text.replace(frame, "", 1)
    return text or type(error).__name__
