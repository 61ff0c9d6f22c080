"""SGLang's own resolution of its arguments, with a GPU that is not there.

Nothing here asks a driver: what the resolution wants to know about the device is answered from ``gpu``. Kernels are not
loaded either, so that an SGLang without them (one for the CPU) resolves for a GPU too.
"""

import argparse
import contextlib
import importlib
import io
import json
import logging
import sys
import types
from typing import Any


def run(argv: list[str], gpu: dict[str, Any] | None) -> dict[str, Any]:
    """What SGLang makes of ``argv``, the words after the module's name.

    ``gpu`` is ``{"name", "sm", "memory_mib", "count"}``, None for a CPU, which needs no stand-in.

    Returns ``stage`` (where it was rejected: ``parse``, ``resolve``, ``check``, or ``""``), ``error`` (class and
    words), ``given`` (flag: its field), ``asked`` and ``resolved`` (field: value), ``sources`` (field: who changed it),
    ``warnings`` (its log), and ``unresolved`` (what this version cannot resolve here).
    """
    heard = _Listener()
    # Not of the root logger, whose handlers SGLang replaces.
    logging.getLogger("sglang").addHandler(heard)
    answer: dict[str, Any] = {"stage": "", "error": None, "given": {}, "asked": {}, "resolved": {}, "sources": {}}
    answer["unresolved"] = []
    module = importlib.import_module("sglang.srt.server_args")
    parsed, error = _parse(module, argv, answer)
    if parsed is not None and error is None:
        with _faked(gpu, answer["unresolved"]):
            error = _resolve(module, argv, answer)
    if error is not None:
        answer["error"] = {"type": type(error).__name__, "message": str(error)}
    answer["warnings"] = heard.warnings
    return answer


def _parse(module: Any, argv: list[str], answer: dict[str, Any]) -> tuple[Any, BaseException | None]:
    parser = argparse.ArgumentParser(prog="sglang")
    module.ServerArgs.add_cli_args(parser)
    answer["stage"] = "parse"
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parsed = parser.parse_args(argv)
    except SystemExit:
        lines = [line for line in said.getvalue().splitlines() if line.strip()] or ["the parser ended"]
        return None, ValueError(lines[-1].partition("error: ")[2] or lines[-1])
    except Exception as error:
        return None, error
    fields = {option: action.dest for action in parser._actions for option in action.option_strings}
    for word in argv:
        flag = word.partition("=")[0]
        if flag in fields:
            answer["given"][flag] = fields[flag]
            answer["asked"][fields[flag]] = _plain(getattr(parsed, fields[flag], None))
    return parsed, None


def _resolve(module: Any, argv: list[str], answer: dict[str, Any]) -> BaseException | None:
    answer["stage"] = "resolve"
    record = None
    try:
        # Up to 0.5.18 a record resolves itself when it is made; from 0.5.19 it does so when it is told to.
        record = module.prepare_server_args(list(argv))
        if hasattr(record, "resolve_once"):
            record.resolve_once()
        answer["stage"] = "check"
        record.check_server_args()
    except ImportError:
        raise
    except (Exception, SystemExit) as error:
        return error
    finally:
        if record is not None:
            _read(record, answer)
    answer["stage"] = ""
    return None


def _read(record: Any, answer: dict[str, Any]) -> None:
    dump = getattr(record, "resolved_dict", None)
    try:
        resolved = dump() if dump is not None else vars(record)
    except Exception:
        return  # a record whose resolution failed half way
    answer["resolved"] = {name: _plain(value) for name, value in resolved.items() if not name.startswith("_")}
    for source, declared in getattr(record, "_resolved_overrides", None) or ():
        for name in declared:
            answer["sources"][name] = str(source)


@contextlib.contextmanager
def _faked(gpu: dict[str, Any] | None, unresolved: list[str]) -> Any:
    if gpu is None:
        yield
        return
    major, minor = divmod(int(gpu["sm"]), 10)
    facts = {
        "is_cuda": True,
        "is_hip": False,
        "is_sm90": major == 9,
        "is_sm100": major == 10,
        "is_sm100_or_sm110": major in (10, 11),
        "is_sm110": major == 11,
        "is_sm120": major == 12,
        "is_blackwell": major in (10, 11, 12),
        "is_hopper_with_cuda_12_3": major == 9,
        "has_flashinfer": True,
        "device_sm": int(gpu["sm"]),
        "device_capability": (major, minor),
    }
    context = importlib.import_module("sglang.srt.runtime_context")
    # Imported while there is no GPU to be seen: its quantization methods load kernels where they believe in one.
    importlib.import_module("sglang.srt.configs.model_config")
    _fake_torch(gpu, (major, minor))
    _fake_functions(gpu, facts, everywhere=not hasattr(context, "override_platform"))
    if hasattr(context, "override_platform"):
        with context.override_platform(**{name: facts[name] for name in facts if _knows(context, name)}):
            yield
        return
    unresolved.append("what a module of this version asked about the device while it was imported")
    yield


def _knows(context: Any, name: str) -> bool:
    return name in {**getattr(context, "_PLATFORM_PROBES", {}), **getattr(context, "_PLATFORM_VALUES", {})}


def _fake_torch(gpu: dict[str, Any], capability: tuple[int, int]) -> None:
    cuda = importlib.import_module("torch").cuda
    size = int(gpu["memory_mib"]) * 2**20
    properties = types.SimpleNamespace(
        name=gpu["name"], major=capability[0], minor=capability[1], total_memory=size, multi_processor_count=148
    )
    cuda.get_device_capability = lambda *_: capability
    cuda.get_device_name = lambda *_: gpu["name"]
    cuda.get_device_properties = lambda *_: properties
    cuda.device_count = lambda: int(gpu["count"])
    cuda.mem_get_info = lambda *_: (size, size)


def _fake_functions(gpu: dict[str, Any], facts: dict[str, Any], *, everywhere: bool) -> None:
    """Put stand-ins for SGLang's questions about the device wherever a module has taken one by name."""
    answers: dict[str, Any] = {"get_device_memory_capacity": gpu["memory_mib"], "get_device": "cuda"}
    if everywhere:
        answers |= {
            "is_cuda": True,
            "is_flashinfer_available": True,
            "is_hopper_with_cuda_12_3": facts["is_hopper_with_cuda_12_3"],
            "get_device_sm": facts["device_sm"],
            "get_device_capability": facts["device_capability"],
            "is_blackwell_supported": facts["is_blackwell"],
            **{f"is_{sm}_supported": facts[f"is_{sm}"] for sm in ("sm90", "sm100", "sm110", "sm120")},
            "is_sm100_or_sm110_supported": facts["is_sm100_or_sm110"],
        }
    common = importlib.import_module("sglang.srt.utils.common")
    real = {name: vars(common)[name] for name in answers if name in vars(common)}
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang."):
            for function, original in real.items():
                if vars(module).get(function) is original:
                    setattr(module, function, _constant(answers[function]))


def _constant(value: Any) -> Any:
    return lambda *_, **__: value


def _plain(value: Any) -> Any:
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return str(value)


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.warnings: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().strip()
        if record.name.startswith("sglang") and text and text not in self.warnings:
            self.warnings.append(text)
