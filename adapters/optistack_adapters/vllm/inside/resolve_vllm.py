"""vLLM's own answer to launches: its parser, its configuration and, with a GPU faked, its choice of attention kernels.

``run`` returns ``{"version", "platform", "stand_ins", "seconds", "outcomes"}`` with an outcome a launch::

    accepted    whether vLLM took it
    broken      whether it failed for what is missing here, which says nothing about the launch
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
import copy
import importlib
import io
import json
import logging
import os
import sys
import time
from typing import Any

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


def run(gpu: dict[str, Any] | None, launches: str) -> dict[str, Any]:
    """Resolve each launch of the file ``launches``, a JSON list of ``{"argv", "env", "tokenizer"}``, argv without the
    program.

    Where there is no ``tokenizer`` beside the model's config, what needs one is left out and told as unresolved.
    ``gpu`` is ``{"name", "sm", "memory_bytes", "gpus", "compute_units"}``; without one the platform is the
    environment's own, which has to be a CPU.
    """
    started = time.monotonic()
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path.insert(0, here)
    stand_ins = importlib.import_module("vllm_stand_ins")
    finder = stand_ins.install(gpu) if gpu else None
    platform = importlib.import_module("vllm.platforms").current_platform
    engine = _Engine(gpu)
    sys.path.remove(here)
    with open(launches, encoding="utf-8") as file:  # noqa: PTH123
        outcomes = [engine.resolve(launch) for launch in json.load(file)]
    return {
        "version": importlib.import_module("vllm").__version__,
        "platform": platform.device_type,
        "device": platform.get_device_name() if gpu else "",
        "stand_ins": sorted(finder.used) if finder else [],
        "seconds": round(time.monotonic() - started, 2),
        "outcomes": outcomes,
    }


SIGNS = ("_OpNamespace", "_Anything", "not compiled with CUDA", "libcud", "NVIDIA driver", "NVML", "CUDA driver")
"""Words of errors that a GPU or a CUDA build would not have made."""

_CUDA_ONLY = ("vllm", "torch", "cutlass", "deep_gemm", "nvidia", "pynvml", "quack", "tilelang")

LATER = "chosen from the layers, when the model is loaded"


class _Refused(Exception):
    pass


class _Engine:
    def __init__(self, gpu: dict[str, Any] | None) -> None:
        self.gpu = gpu
        self.values = importlib.import_module("vllm_values")
        self.attention = importlib.import_module("vllm_attention")
        self.stand_ins = importlib.import_module("vllm_stand_ins")
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
        registry: Any = importlib.import_module("vllm.model_executor.models.registry")
        if hasattr(registry, "_run_in_subprocess"):
            registry._run_in_subprocess = lambda look: look()
        self.log = _Log()

    def resolve(self, launch: dict[str, Any]) -> dict[str, Any]:
        argv = launch["argv"]
        outcome: dict[str, Any] = {
            "accepted": False,
            "broken": False,
            "stage": "parser",
            "error": "",
            "asked": {},
            "resolved": {},
            "settled": {},
            "warnings": [],
            "unresolved": {},
        }
        self.log.start()
        with _variables(launch.get("env", {})):
            try:
                args = self._parse(argv)
                outcome["asked"] = self.values.asked(self.parser, args, argv)
                if not launch["tokenizer"]:
                    self._leave_tokenizer_out(args, outcome)
                outcome["stage"] = "config"
                # vLLM writes into the parser's defaults, which the next launch is to find as they were.
                config = self.arg_utils.AsyncEngineArgs.from_cli_args(copy.deepcopy(args)).create_engine_config(
                    usage_context=self.usage
                )
                outcome["resolved"] = {
                    name: value
                    for name in outcome["asked"]
                    if (value := self.values.resolved(config, name)) is not self.values.MISSING
                }
                outcome["settled"] = {
                    place: value
                    for place in SETTLED
                    if (value := self.values.plain(self.values.at(config, place))) is not None
                }
                outcome["stage"] = "attention"
                self._choose_kernels(config, outcome)
                outcome["accepted"] = True
                outcome["stage"] = ""
            except (_Refused, self.attention.Refused) as error:
                outcome["error"] = str(error)
            except Exception as error:
                kind = "" if isinstance(error, (ValueError, NotImplementedError)) else type(error).__name__ + ": "
                outcome["error"] = kind + self.values.message(error)
                outcome["broken"] = self.gpu is not None and _is_ours(error)
        outcome["warnings"] = self.log.stop()
        return outcome

    def _parse(self, argv: list[str]) -> Any:
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                args = self.parser.parse_args(argv)
        except SystemExit as error:
            text = " ".join(said.getvalue().split())
            raise _Refused(text.rpartition("error: ")[2] or "vLLM's parser ended without a word") from error
        except Exception as error:
            raise _Refused(self.values.message(error)) from error
        try:
            self.cli.validate_parsed_serve_args(args)
        except (TypeError, ValueError) as error:
            raise _Refused(str(error)) from error
        if args.enable_auto_tool_choice:
            _check_word("tool call parser", args.tool_call_parser, "vllm.tool_parsers", "ToolParserManager")
        if getattr(args, "reasoning_parser", ""):
            _check_word("reasoning parser", args.reasoning_parser, "vllm.reasoning", "ReasoningParserManager")
        return args

    def _choose_kernels(self, config: Any, outcome: dict[str, Any]) -> None:
        settled, unresolved = outcome["settled"], outcome["unresolved"]
        if self.gpu is None:
            self.attention.choose(config, settled, unresolved)
            return
        if config.model_config.is_moe:
            unresolved["moe_backend"] = LATER
        unresolved["linear_backend"] = LATER
        self.stand_ins.complete_flash_attention()
        with self.stand_ins.without_device_memory():
            self.attention.choose(config, settled, unresolved)

    def _leave_tokenizer_out(self, args: Any, outcome: dict[str, Any]) -> None:
        args.skip_tokenizer_init = True
        if not getattr(args, "reasoning_parser", ""):
            return
        args.reasoning_parser = ""
        outcome["asked"].pop("reasoning_parser", None)
        outcome["unresolved"]["reasoning_parser"] = "it reads the tokenizer, which is not on this machine"


def _is_ours(error: BaseException) -> bool:
    """Whether ``error`` comes from a GPU that is not there and not from the launch."""
    if isinstance(error, ModuleNotFoundError):
        return (error.name or "").partition(".")[0] in _CUDA_ONLY
    return any(sign in str(error) for sign in SIGNS)


def _check_word(what: str, word: str, module: str, manager: str) -> None:
    """vLLM checks these words only after it has started the engine (validate_api_server_args)."""
    known = getattr(importlib.import_module(module), manager).list_registered()
    if word not in known:
        raise _Refused("invalid " + what + ": " + word + " (chose from " + ", ".join(sorted(known)) + ")")


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


class _Log:
    """What vLLM says while a launch is resolved, warnings and worse, each once.

    Records are taken as they are made: vLLM sets its loggers up anew for every configuration.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        make = logging.getLogRecordFactory()

        def heard(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = make(*args, **kwargs)
            if record.levelno >= logging.WARNING and record.name.startswith("vllm"):
                self.lines.append(" ".join(record.getMessage().split())[:500])
            return record

        logging.setLogRecordFactory(heard)

    def start(self) -> None:
        self.lines = []
        logger = importlib.import_module("vllm.logger")
        for name in ("_print_debug_once", "_print_info_once", "_print_warning_once"):
            # vLLM says some things once a process, and each launch is to hear them.
            with contextlib.suppress(AttributeError):
                getattr(logger, name).cache_clear()

    def stop(self) -> list[str]:
        return list(dict.fromkeys(self.lines))


def _first_of(*names: str) -> Any:
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not name.startswith(error.name or "-"):
                raise
    return importlib.import_module(names[-1])
