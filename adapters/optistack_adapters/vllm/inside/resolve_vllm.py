"""vLLM's own answer to launches: its parser, its configuration and, with a GPU faked, its choice of attention kernels.

``run`` returns ``{"version", "platform", "stand_ins", "seconds", "outcomes"}`` with an outcome a launch::

    accepted    whether vLLM took it
    stage       where it was refused: parser, config or attention
    error       vLLM's message, one line ("" when accepted)
    asked       values of the flags that the launch names, by vLLM's name of the argument
    resolved    what became of each of those that the configuration knows
    settled     further values that vLLM settled on, by their place in its configuration
    warnings    what vLLM logged meanwhile, warnings and errors
    unresolved  what could not be resolved here, each with the reason
"""

from __future__ import annotations

import contextlib
import enum
import importlib
import io
import json
import logging
import os
import sys
import time
from typing import Any

PLACES = {
    "kv_cache_dtype": "cache_config.cache_dtype",
    "scheduling_policy": "scheduler_config.policy",
    "attention_backend": "attention_config.backend",
    "moe_backend": "kernel_config.moe_backend",
    "linear_backend": "kernel_config.linear_backend",
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
SETTLED = (
    "model_config.dtype",
    "model_config.max_model_len",
    "model_config.quantization",
    "model_config.enforce_eager",
    "model_config.skip_tokenizer_init",
    "cache_config.cache_dtype",
    "cache_config.block_size",
    "cache_config.enable_prefix_caching",
    "parallel_config.distributed_executor_backend",
    "scheduler_config.max_num_seqs",
    "scheduler_config.max_num_active_seqs",
    "scheduler_config.max_num_batched_tokens",
    "scheduler_config.max_num_scheduled_tokens",
    "scheduler_config.enable_chunked_prefill",
    "scheduler_config.async_scheduling",
    "scheduler_config.disable_hybrid_kv_cache_manager",
    "compilation_config.mode",
    "compilation_config.cudagraph_mode",
    "compilation_config.max_cudagraph_capture_size",
    "attention_config.backend",
    "attention_config.flash_attn_version",
    "kv_transfer_config.kv_connector",
    "kv_transfer_config.kv_role",
    "kv_transfer_config.kv_connector_extra_config",
    "speculative_config.method",
    "speculative_config.num_speculative_tokens",
    "speculative_config.kv_cache_dtype",
    "speculative_config.attention_backend",
    "speculative_config.draft_model_config.max_model_len",
    "speculative_config.draft_model_config.dtype",
    "use_v2_model_runner",
)
STAND_IN = "the GPU's kernels are chosen when the model is loaded"


def run(gpu: dict[str, Any] | None, launches: list[dict[str, Any]]) -> dict[str, Any]:
    """Resolve each of ``launches``: ``{"argv": [...], "env": {...}}``, argv without the program.

    ``gpu`` is ``{"name", "sm", "memory_bytes", "gpus", "compute_units"}``; without one the platform is the
    environment's own, which has to be a CPU.
    """
    started = time.monotonic()
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    stand_ins = importlib.import_module("vllm_stand_ins")
    sys.path.pop(0)
    finder = stand_ins.install(gpu) if gpu else None
    platform = importlib.import_module("vllm.platforms").current_platform
    engine = _Engine(stand_ins if gpu else None)
    outcomes = [engine.resolve(launch["argv"], launch.get("env", {})) for launch in launches]
    return {
        "version": importlib.import_module("vllm").__version__,
        "platform": platform.device_type,
        "device": platform.get_device_name() if gpu else "",
        "stand_ins": sorted(finder.used) if finder else [],
        "seconds": round(time.monotonic() - started, 2),
        "outcomes": outcomes,
    }


class _Refused(Exception):
    pass


class _Engine:
    def __init__(self, stand_ins: Any) -> None:
        self.stand_ins = stand_ins
        self.arg_utils = importlib.import_module("vllm.engine.arg_utils")
        usage = importlib.import_module("vllm.usage.usage_lib")
        self.usage = usage.UsageContext.OPENAI_API_SERVER
        self.cli = _first_of(
            "vllm.entrypoints.common.cli_args",
            "vllm.entrypoints.launchers.cli_args",
            "vllm.entrypoints.openai.cli_args",
        )
        utils = _first_of("vllm.utils.argparse_utils", "vllm.utils")
        self.parser = self.cli.make_arg_parser(utils.FlexibleArgumentParser())
        # A process of its own for each architecture would start vLLM once more.
        registry = importlib.import_module("vllm.model_executor.models.registry")
        if hasattr(registry, "_run_in_subprocess"):
            registry._run_in_subprocess = lambda look: look()
        self.log = _Log()
        logging.getLogger("vllm").addHandler(self.log)

    def resolve(self, argv: list[str], env: dict[str, str]) -> dict[str, Any]:
        outcome: dict[str, Any] = {
            "accepted": False,
            "stage": "parser",
            "error": "",
            "asked": {},
            "resolved": {},
            "settled": {},
            "warnings": [],
            "unresolved": {},
        }
        self.log.start()
        with _variables(env):
            try:
                args = self._parse(argv)
                outcome["asked"] = self._asked(args, argv)
                outcome["stage"] = "config"
                config = self.arg_utils.AsyncEngineArgs.from_cli_args(args).create_engine_config(
                    usage_context=self.usage
                )
                outcome["resolved"] = {
                    name: value
                    for name in outcome["asked"]
                    if (value := _resolved(config, name)) is not _MISSING
                }
                outcome["settled"] = {
                    place: value for place in SETTLED if (value := _plain(_at(config, place))) is not None
                }
                outcome["stage"] = "attention"
                self._choose_attention(config, outcome)
                outcome["accepted"] = True
                outcome["stage"] = ""
            except _Refused as error:
                outcome["error"] = str(error)
            except Exception as error:
                outcome["error"] = _message(error)
                outcome["error_type"] = type(error).__name__
        outcome["warnings"] = self.log.stop()
        return outcome

    def _parse(self, argv: list[str]) -> Any:
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                args = self.parser.parse_args(argv)
        except SystemExit as error:
            lines = said.getvalue().strip().splitlines() or ["vLLM's parser ended without a word"]
            raise _Refused(lines[-1].partition("error: ")[2] or lines[-1]) from error
        except Exception as error:
            raise _Refused(_message(error)) from error
        try:
            self.cli.validate_parsed_serve_args(args)
        except (TypeError, ValueError) as error:
            raise _Refused(str(error)) from error
        return args

    def _asked(self, args: Any, argv: list[str]) -> dict[str, Any]:
        """What the launch names, JSON objects key by key."""
        actions = self.parser._option_string_actions
        asked: dict[str, Any] = {}
        for position, word in enumerate(argv):
            flag, equals, given = word.partition("=")
            action = actions.get(flag) or actions.get("--" + flag[2:].replace("_", "-"))
            if not flag.startswith("-") or action is None:
                continue
            following = given if equals else (argv[position + 1] if position + 1 < len(argv) else "")
            parts = _json_object(following)
            if parts is None:
                asked[action.dest] = _plain(getattr(args, action.dest, None))
            else:
                asked.update(_flat(action.dest, parts))
        return asked

    def _choose_attention(self, config: Any, outcome: dict[str, Any]) -> None:
        if self.stand_ins is None:
            outcome["unresolved"]["attention_backend"] = "chosen when the model is loaded"
            return
        self.stand_ins.complete_flash_attention()
        outcome["unresolved"]["moe_backend"] = STAND_IN
        outcome["unresolved"]["linear_backend"] = STAND_IN
        with self.stand_ins.without_device_memory(), _current(config):
            target = config.model_config
            outcome["settled"]["attention"] = _attention(
                config, target, config.cache_config.cache_dtype, config.attention_config.backend, False
            )
            speculative = config.speculative_config
            draft = getattr(speculative, "draft_model_config", None)
            if speculative is None or draft is None or draft is target or speculative.method not in ("dflash", "dspark"):
                return
            dtype = getattr(speculative, "kv_cache_dtype", None) or config.cache_config.cache_dtype
            non_causal = _both_ways(draft.hf_config)
            try:
                outcome["settled"]["draft_attention"] = _attention(
                    config, draft, dtype, getattr(speculative, "attention_backend", None), non_causal
                )
            except ValueError as error:
                raise _Refused("the draft's attention: " + _message(error)) from error


def _both_ways(hf_config: Any) -> bool:
    """Whether any layer of a block drafter attends both ways, by vLLM's own reading."""
    module = importlib.import_module("vllm.model_executor.models.qwen3_dflash")
    ask = getattr(module, "dflash_has_any_non_causal", None)
    return True if ask is None else bool(ask(hf_config))


def _attention(config: Any, model: Any, dtype: str, backend: Any, non_causal: bool) -> str:
    selector = importlib.import_module("vllm.v1.attention.selector")
    platform = importlib.import_module("vllm.platforms").current_platform
    cache = config.cache_config
    named = {
        "head_size": model.get_head_size(),
        "dtype": model.dtype,
        "kv_cache_dtype": dtype,
        "block_size": cache.block_size if getattr(cache, "user_specified_block_size", True) else None,
        "use_mla": model.use_mla,
        "use_non_causal": non_causal,
        "use_kv_connector": config.kv_transfer_config is not None,
    }
    known = selector.AttentionSelectorConfig._fields
    wanted = selector.AttentionSelectorConfig(**{key: value for key, value in named.items() if key in known})
    chosen = platform.get_attn_backend_cls(
        backend,
        attn_selector_config=wanted,
        num_heads=model.get_num_attention_heads(config.parallel_config),
    )
    module, _, name = chosen.rpartition(".")
    return str(getattr(importlib.import_module(module), name).get_name())


@contextlib.contextmanager
def _current(config: Any) -> Any:
    with importlib.import_module("vllm.config").set_current_vllm_config(config):
        yield


@contextlib.contextmanager
def _variables(env: dict[str, str]) -> Any:
    kept = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Log(logging.Handler):
    """What vLLM says while a launch is resolved, warnings and worse, each once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def start(self) -> None:
        self.lines = []
        logger = importlib.import_module("vllm.logger")
        for name in ("_print_debug_once", "_print_info_once", "_print_warning_once"):
            # vLLM says some things once a process, and each launch is to hear them.
            with contextlib.suppress(AttributeError):
                getattr(logger, name).cache_clear()

    def stop(self) -> list[str]:
        return list(dict.fromkeys(self.lines))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(" ".join(record.getMessage().split())[:500])


_MISSING = object()


def _resolved(config: Any, name: str) -> Any:
    """What became of the argument called ``name``; keys of JSON arguments are after a dot."""
    root, _, key = name.partition(".")
    place = PLACES.get(root)
    if place is None:
        place = next((part + "." + root for part in PARTS if hasattr(_at(config, part), root)), None)
    if place is None:
        return _MISSING
    found = _at(config, place + "." + key if key else place, _MISSING)
    return _MISSING if found is _MISSING else _plain(found)


def _at(value: Any, place: str, default: Any = None) -> Any:
    for part in place.split("."):
        if isinstance(value, dict):
            value = value.get(part, _MISSING)
        else:
            value = getattr(value, part, _MISSING)
        if value is _MISSING:
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


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)) and not isinstance(value, enum.Enum):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(part) for part in value)
    return str(value).replace("torch.", "")


def _message(error: BaseException) -> str:
    """vLLM's own words, without pydantic's frame around them."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    lines = [line for line in lines if line and not line.startswith("For further information")]
    if lines and "validation error" in lines[0]:
        lines = lines[1:]
    text = " ".join(lines).partition(" [type=")[0]
    for frame in ("Value error, ", "Assertion failed, "):
        text = text.replace(frame, "", 1)
    return text or type(error).__name__


def _first_of(*names: str) -> Any:
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or "-"):
                raise
    return importlib.import_module(names[-1])
