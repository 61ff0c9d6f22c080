"""References to files in a stack: what is a path, what is a hub id, and where relative paths start.

An option of a plugin that names a file says so in its model, and is then treated like the stack file's own paths::

    directory: str = Field(..., json_schema_extra={"path": True})            # always a file or folder
    checkpoint: str = Field(..., json_schema_extra={"path": "checkpoint"})   # a folder, cache:NAME, or a hub id
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from optistack.errors import InputError
from optistack.paths import models_dir
from optistack.stack.document import Steps
from optistack.stack.spec import StackSpec

CACHE_SCHEME = "cache:"
"""``cache:smollm2-135m`` is the checkpoint that ``optistack model fetch smollm2-135m`` made."""

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_CACHE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def resolve_paths(
    spec: StackSpec, base: Path, options: Mapping[str, type[BaseModel]], typed: Collection[Steps] = ()
) -> StackSpec:
    """``spec`` with every path in it absolute; relative ones start at ``base``, the stack file's folder.

    ``options``  option models by plugin name; plugins that are not in it are left as they are
    ``typed``    places that the command line set: relative paths there start at the current directory

    Hub ids stay as they are. Raises InputError for a variable that is not set.
    """

    def start(*steps: str) -> Path:
        return Path.cwd() if steps in typed else base

    model, engine = spec.model, spec.engine
    changes: dict[str, Any] = {"checkpoint": resolve_checkpoint(model.checkpoint, start("model", "checkpoint"))}
    if model.config is not None:
        changes["config"] = resolve_path(model.config, start("model", "config"))
    if engine.python is not None:
        engine = engine.model_copy(update={"python": resolve_python(engine.python, start("engine", "python"))})
    plugins = {}
    for name, given in spec.plugins.items():
        kinds = _path_options(options[name]) if name in options else {}
        plugins[name] = {
            key: _option(value, kinds.get(key), start("plugins", name, key)) for key, value in given.items()
        }
    return spec.model_copy(update={"model": model.model_copy(update=changes), "engine": engine, "plugins": plugins})


def resolve_path(text: str, base: Path) -> str:
    """``text`` as an absolute path, ``~`` and ``$VARIABLES`` expanded; links are not followed."""
    expanded = Path(_expand(text)).expanduser()
    return os.path.normpath(base.absolute() / expanded)


def resolve_python(text: str, base: Path) -> str:
    """An engine's Python as an absolute path: a bare name is a program of ``PATH``, as in a shell."""
    found = shutil.which(text) if "/" not in text else None
    return os.path.normpath(Path(found).absolute()) if found else resolve_path(text, base)


def resolve_checkpoint(text: str, base: Path) -> str:
    """A checkpoint reference: ``cache:NAME`` and paths become absolute, a hub id stays.

    ``org/name`` is a folder when ``base`` has one of that name, as in the Hugging Face libraries. Raises InputError for
    a model of the cache that is not there.
    """
    if text.startswith(CACHE_SCHEME):
        name = text.removeprefix(CACHE_SCHEME)
        if not _CACHE_NAME.fullmatch(name):
            raise InputError(f"{text!r} names no model.", fix=f"Write it like {CACHE_SCHEME}smollm2-135m.")
        if not (models_dir() / name).is_dir():
            raise InputError(f"{text!r} has not been made here yet.", fix=_how_to_make(name))
        return str(models_dir() / name)
    expanded = _expand(text)
    if expanded != text or text.startswith((".", "/", "~")) or (base / text).exists():
        return resolve_path(text, base)
    return text


def _how_to_make(name: str) -> str:
    from optistack.engines.models import MODELS

    if name in MODELS:
        return f"Make it: optistack model fetch {name}"
    return (
        f"`optistack model fetch` makes {' and '.join(sorted(MODELS))}; of any other model give the folder or hub id."
    )


def _option(value: Any, kind: Any, base: Path) -> Any:
    if kind is None or not isinstance(value, str):
        return value
    return resolve_checkpoint(value, base) if kind == "checkpoint" else resolve_path(value, base)


def _path_options(model: type[BaseModel]) -> dict[str, Any]:
    kinds = {}
    for name, info in model.model_fields.items():
        extra = info.json_schema_extra
        if isinstance(extra, dict) and extra.get("path"):
            kinds[name] = extra["path"]
    return kinds


def _expand(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        found = os.environ.get(name)
        if found is None:
            raise InputError(f"{text!r} uses ${name}, which is not set.", fix=f"Set it: export {name}=...")
        return found

    return _VARIABLE.sub(value, text)
