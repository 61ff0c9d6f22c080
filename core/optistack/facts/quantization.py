"""Quantization metadata: what the checkpoint's own files say about its precision.

ModelOpt writes ``hf_quant_config.json`` beside config.json, newer versions also ``quantization_config`` inside it;
everybody else uses ``quantization_config``. For multimodal models it may sit in the text part.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optistack.errors import InputError
from optistack.facts.configuration import read_json
from optistack.facts.model import Quantization

SIDECAR = "hf_quant_config.json"
_AGAIN = "Download it again."


def read_quantization(config: dict[str, Any], config_file: Path) -> Quantization | None:
    """The quantization that config.json and, beside it, ``hf_quant_config.json`` state; None for plain weights.

    InputError when the two contradict each other, or when the metadata lacks what it must have.
    """
    sidecar_file = config_file.parent / SIDECAR
    sidecar = _from_sidecar(sidecar_file) if sidecar_file.is_file() else None
    raw = _section(config)
    inside = _from_section(raw, config_file) if raw else None
    if inside is None or sidecar is None:
        return inside or sidecar
    if inside.method == "modelopt" and inside.algo and set(inside.algo) != set(sidecar.algo):
        raise InputError(
            f"{config_file} says the weights are {', '.join(inside.algo)}, {sidecar_file.name} beside it says "
            f"{', '.join(sidecar.algo)}.",
            fix="Download both files again from one revision.",
        )
    return inside.model_copy(
        update={
            "algo": inside.algo or sidecar.algo,
            "kv_cache_algo": inside.kv_cache_algo or sidecar.kv_cache_algo,
            "ignored": inside.ignored or sidecar.ignored,
            "group_size": inside.group_size or sidecar.group_size,
            "raw": {**sidecar.raw, **inside.raw},
        }
    )


def packed_bits(quantization: Quantization | None) -> int:
    """Width of integers packed into 32-bit words, by the metadata; 4 where it does not say."""
    raw = quantization.raw if quantization else {}
    said = [raw.get("bits"), raw.get("w_bit")]
    said += [group["weights"].get("num_bits") for group in config_groups(raw) if isinstance(group.get("weights"), dict)]
    return next((bits for bits in said if bits in (2, 4, 8)), 4)


def config_groups(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """The groups of compressed-tensors' metadata ``raw``."""
    return [group for group in (raw.get("config_groups") or {}).values() if isinstance(group, dict)]


def _section(config: dict[str, Any]) -> dict[str, Any] | None:
    for owner in (config, config.get("text_config"), config.get("llm_config")):
        if not isinstance(owner, dict):
            continue
        for key in ("quantization_config", "compression_config"):
            if isinstance(owner.get(key), dict):
                return dict(owner[key])
    return None


def _from_sidecar(file: Path) -> Quantization:
    raw = read_json(file).get("quantization")
    if not isinstance(raw, dict) or not raw.get("quant_algo"):
        raise InputError(f"{file} has no quantization.quant_algo.", fix=_AGAIN)
    return _modelopt(raw)


def _from_section(raw: dict[str, Any], file: Path) -> Quantization:
    method = str(raw.get("quant_method") or raw.get("quant_library") or "")
    if not method and raw.get("quant_algo"):
        method = "modelopt"
    if method.startswith("modelopt"):
        return _modelopt(raw)
    if method == "compressed-tensors":
        if not isinstance(raw.get("config_groups") or {}, dict):
            raise InputError(
                f"{file} says 'config_groups' is {raw['config_groups']!r}, which is not an object.", fix=_AGAIN
            )
        return _compressed_tensors(raw)
    if not method:
        raise InputError(
            f"quantization_config in {file} has no quant_method.", fix="Download config.json again, or add it."
        )
    group = raw.get("group_size")
    return Quantization(
        method=method,
        algo=(str(raw.get("fmt") or raw.get("activation_scheme") or method),),
        ignored=_strings(raw.get("modules_to_not_convert") or raw.get("ignored_layers")),
        group_size=group if isinstance(group, int) and group > 0 else None,
        raw=raw,
    )


def _modelopt(raw: dict[str, Any]) -> Quantization:
    algo = str(raw.get("quant_algo") or "").upper()
    layers = raw.get("quantized_layers")
    if algo == "MIXED_PRECISION" and isinstance(layers, dict):
        words = sorted({str(entry.get("quant_algo")).upper() for entry in layers.values() if isinstance(entry, dict)})
    else:
        words = [algo] if algo else []
    group = raw.get("group_size")
    return Quantization(
        method="modelopt",
        algo=tuple(words),
        kv_cache_algo=_upper(raw.get("kv_cache_quant_algo")) or _kv_scheme(raw.get("kv_cache_scheme")),
        ignored=_strings(raw.get("exclude_modules") or raw.get("ignore")),
        group_size=group if isinstance(group, int) else None,
        raw=raw,
    )


def _compressed_tensors(raw: dict[str, Any]) -> Quantization:
    groups = config_groups(raw)
    formats = [str(group.get("format") or raw.get("format") or "") for group in groups]
    sizes = [group["weights"].get("group_size") for group in groups if isinstance(group.get("weights"), dict)]
    size = sizes[0] if sizes and all(one == sizes[0] for one in sizes) else None
    return Quantization(
        method="compressed-tensors",
        algo=tuple(sorted({word for word in formats if word})),
        kv_cache_algo=_kv_scheme(raw.get("kv_cache_scheme")),
        ignored=_strings(raw.get("ignore")),
        group_size=size if isinstance(size, int) else None,
        raw=raw,
    )


def _kv_scheme(scheme: Any) -> str | None:
    if not isinstance(scheme, dict):
        return None
    kind, bits = str(scheme.get("type") or "float"), scheme.get("num_bits")
    if kind == "float":
        return {8: "FP8", 4: "NVFP4"}.get(bits) if isinstance(bits, int) else None
    return f"{kind.upper()}{bits}"


def _upper(word: Any) -> str | None:
    return str(word).upper() if word else None


def _strings(values: Any) -> tuple[str, ...]:
    return tuple(str(value) for value in values) if isinstance(values, list | tuple) else ()
