"""Find a checkpoint and read what it is. Nothing is ever downloaded here."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optistack.errors import InputError
from optistack.facts.agreement import check_agreement, check_precision
from optistack.facts.configuration import Shape, draft_settings, read_json, read_shape
from optistack.facts.hub import cache_folder, cached_snapshot, is_hub_id
from optistack.facts.model import Component, ModelFacts, Quantization
from optistack.facts.modules import modules
from optistack.facts.precision import format_of_dtype
from optistack.facts.quantization import packed_bits, read_quantization
from optistack.facts.safetensors import Shard, read_shards
from optistack.facts.schemes import Scheme
from optistack.facts.tensors import components, has_kv_scales

CONFIG = "config.json"


def load_model(reference: str, *, config_fallback: Path | None = None, revision: str | None = None) -> ModelFacts:
    """What the checkpoint ``reference`` is.

    ``reference`` is a folder, a config.json, or a hub id that is looked up in the Hugging Face cache at ``revision``.
    ``config_fallback`` is a folder or a config.json to plan from when a hub id is not in the cache.

    InputError, naming the file, when it is missing, empty, damaged or incomplete, or when its parts contradict each
    other.
    """
    try:
        return _load(reference, config_fallback, revision)
    except OSError as error:  # a folder that may not be read, a name that is too long
        raise InputError(f"{error.filename}: {error.strerror}.", fix="Check the path and its permissions.") from error


def _load(reference: str, config_fallback: Path | None, revision: str | None) -> ModelFacts:
    config_file = _locate(reference, revision)
    if config_file is not None:
        return _read_checked(reference, config_file, headers=not Path(reference).expanduser().is_file())
    if config_fallback is None:
        raise InputError(
            f"{reference} is neither a folder nor in the Hugging Face cache ({cache_folder()}).",
            fix=f"Download it with `hf download {reference}`, or give a config.json to plan from.",
        )
    fallback = config_fallback.expanduser()
    return _read_checked(reference, fallback / CONFIG if fallback.is_dir() else fallback, headers=False)


def _locate(reference: str, revision: str | None) -> Path | None:
    """The config.json of ``reference``, or None for a hub id that is not cached."""
    local = Path(reference).expanduser()
    if local.is_file():
        return local
    if local.is_dir():
        return _config_in(local, "Give the folder of a Hugging Face checkpoint.")
    if not is_hub_id(reference) or reference.startswith((".", "~", "/")):
        raise InputError(f"There is no folder {reference}.", fix="Correct the path, or give a hub id such as org/name.")
    folder = cached_snapshot(reference, revision)
    return None if folder is None else _config_in(folder, f"Download it again with `hf download {reference}`.")


def _config_in(folder: Path, fix: str) -> Path:
    config_file = folder / CONFIG
    if not config_file.is_file():
        content = "is empty" if not any(folder.iterdir()) else f"has no {CONFIG}"
        raise InputError(f"The checkpoint folder {folder} {content}.", fix=fix)
    return config_file


def _read_checked(source: str, config_file: Path, *, headers: bool) -> ModelFacts:
    """InputError for a value of any type or size that nobody could have thought of."""
    try:
        return _read(source, config_file, headers=headers)
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        said = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"{config_file} has a value of another kind than such files have: {type(error).__name__}, {said}.",
            fix="Download it again.",
        ) from error


def _read(source: str, config_file: Path, *, headers: bool) -> ModelFacts:
    config = read_json(config_file)
    shape = read_shape(config, config_file)
    quantization = read_quantization(config, config_file)
    folder = config_file.parent
    with _collector_paused():
        shards = read_shards(folder) if headers else []
        if shards:
            parts, kv_scales = _from_shards(shape, shards, quantization, config_file)
        else:
            parts, kv_scales = _from_shape(shape, quantization), None
    return ModelFacts(
        source=source,
        path=folder.resolve() if headers else None,
        config_file=config_file.resolve(),
        fingerprint=_fingerprint(config, quantization, shards),
        evidence="headers" if shards else "config",
        architecture=shape.architecture,
        model_type=shape.model_type,
        layers=shape.layers,
        dense_layers=shape.sparse_layers.count(False),
        hidden=shape.hidden,
        intermediate=shape.intermediate,
        vocab=shape.vocab,
        max_context_tokens=shape.max_context_tokens,
        dtype=shape.dtype.removeprefix("torch."),
        attention=shape.attention,
        moe=shape.moe,
        multimodal="vision_config" in config or "audio_config" in config,
        quantization=quantization,
        components=parts,
        kv_scales=kv_scales,
        draft_config=draft_settings(config),
        config=config,
    )


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A trillion-parameter checkpoint has 277,000 tensors; the collector walking them all again costs a third."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _from_shape(shape: Shape, quantization: Quantization | None) -> tuple[Component, ...]:
    plain = format_of_dtype(shape.dtype)
    scheme = Scheme(quantization, plain)
    sums: dict[tuple[Any, str, bool], list[int]] = {}
    for module in modules(shape):
        weights = scheme.format_of(module.name) if module.quantizable else plain
        total = sums.setdefault((module.component, weights.word, module.replicated), [0, 0])
        total[0] += module.parameters
        total[1] += weights.bytes_of(module.parameters)
    return tuple(
        Component(name=name, precision=word, replicated=replicated, parameters=parameters, bytes=size)
        for (name, word, replicated), (parameters, size) in sorted(sums.items())
    )


def _from_shards(
    shape: Shape, shards: list[Shard], quantization: Quantization | None, config_file: Path
) -> tuple[tuple[Component, ...], bool]:
    tensors = {name: tensor for shard in shards for name, tensor in shard.tensors.items()}
    if not tensors:
        raise InputError(f"The safetensors files in {config_file.parent} hold no tensor.", fix="Download them again.")
    check_agreement(shape, tensors, config_file)
    check_precision(quantization, tensors, config_file)
    return components(tensors, shape.layers, packed_bits(quantization)), has_kv_scales(tensors)


def _fingerprint(config: dict[str, Any], quantization: Quantization | None, shards: list[Shard]) -> str:
    """sha256 over config.json, the quantization metadata, and of each shard its name, header and up to 4 KiB of each
    kind of tensor.

    Headers hold shapes only, which a fine-tune shares with its base, and one with adapters merged in its embedding too.
    """
    digest = hashlib.sha256()
    for value in (config, quantization.model_dump() if quantization else None):
        digest.update(json.dumps(value, sort_keys=True).encode())
    for shard in shards:
        digest.update(shard.file.name.encode())
        digest.update(shard.identity)
    return digest.hexdigest()
