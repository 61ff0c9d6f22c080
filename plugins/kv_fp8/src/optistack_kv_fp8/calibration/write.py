"""A checkpoint with KV scales beside the one without: its files linked, three small ones new."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from optistack.errors import InputError
from optistack.facts.tensors import has_kv_scales

SCALES_FILE = "model-kv-scales.safetensors"
SGLANG_FILE = "kv-scales.sglang.json"
INPUT_FILE = "input-amax.json"
REPORT_FILE = "kv-calibration.json"
INDEX = "model.safetensors.index.json"
_ATTENTION = re.compile(r"^(.*\.layers\.(\d+)\.self_attn)\.(?:k_proj|qkv_proj|kv_a_proj_with_mqa)\.weight(?:_packed)?$")
_ENCODER = re.compile(r"visual|vision|audio|encoder")


def scale_names(tensors: Mapping[str, str], layers: list[int]) -> dict[int, tuple[str, str]]:
    """The names of K's and V's scale of each of ``layers``, under the projections, where ModelOpt puts them: vLLM and
    SGLang read those for MLA too. InputError for a layer whose attention has another name."""
    prefixes = {
        int(found.group(2)): found.group(1)
        for name in tensors
        if (found := _ATTENTION.match(name)) and not _ENCODER.search(name)
    }
    missing = [str(layer) for layer in layers if layer not in prefixes]
    if missing:
        raise InputError(
            f"No attention of layers {', '.join(missing)} was found in the checkpoint, so engines would not read "
            "scales for them.",
            fix="Calibrate a model whose tensors are named ...layers.N.self_attn....",
        )
    return {at: (f"{prefixes[at]}.k_proj.k_scale", f"{prefixes[at]}.v_proj.v_scale") for at in layers}


def tensor_files(folder: Path) -> dict[str, str]:
    """The file of each tensor. InputError when there are no safetensors."""
    index = folder / INDEX
    if index.is_file():
        return dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} has no safetensors.", fix="Give a checkpoint in that format.")
    return {name: file.name for file in files for name in _header(file) if name != "__metadata__"}


def check_unscaled(tensors: Mapping[str, str]) -> None:
    """InputError when one of ``tensors`` is a KV scale, whatever the metadata says: a second one of the same name would
    be read or not by the order of the files."""
    found = next((name for name in tensors if has_kv_scales([name])), None)
    if found is not None:
        raise InputError(
            f"The checkpoint has KV scales already: {found} in {tensors[found]}.",
            fix="Calibrate the checkpoint that it was made from.",
        )


def with_kv_scheme(config: dict[str, Any], *, per_head: bool) -> dict[str, Any]:
    """``config.json`` that makes engines look for KV scales. InputError for a quantization with no place for them,
    and for one with KV scales already: transformers then makes scales of its own, and K and V come out wrong."""
    config = dict(config)
    quantization = config.get("quantization_config")
    method = (quantization or {}).get("quant_method")
    if quantization and method == "compressed-tensors" and quantization.get("kv_cache_scheme"):
        raise InputError("The checkpoint has KV scales already.", fix="Calibrate the checkpoint that it was made from.")
    strategy = "attn_head" if per_head else "tensor"
    scheme = {"num_bits": 8, "type": "float", "strategy": strategy, "symmetric": True, "dynamic": False}
    if quantization is None:
        quantization = {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "ignore": []}
    if method in (None, "compressed-tensors", "modelopt") and not (method == "modelopt" and per_head):
        config["quantization_config"] = {**quantization, "kv_cache_scheme": scheme}
    elif method != "fp8" or per_head:  # FP8 checkpoints are always looked at for scales, one a tensor
        raise InputError(
            f"A checkpoint quantized by {method!r} has no place for {'scales by head' if per_head else 'KV scales'}.",
            fix="Leave --per-head out." if per_head else "Calibrate the checkpoint that it was made from.",
        )
    return config


def write(
    source: Path,
    part: Path,
    scales: Mapping[int, tuple[torch.Tensor, torch.Tensor]],
    input_amax: Mapping[str, float],
    *,
    per_head: bool,
    ranks: int,
    report: Mapping[str, Any],
) -> None:
    """Write into the empty folder ``part``: the files of ``source`` (hard links, or links where it is on another disk),
    the scales, an index that has them, ``config.json``, SGLang's file of scales for ``ranks`` ranks, input amax, and
    the report. Raises InputError.
    """
    config = with_kv_scheme(json.loads((source / "config.json").read_text(encoding="utf-8")), per_head=per_head)
    files = tensor_files(source)
    names = scale_names(files, sorted(scales))
    tensors = {}
    for layer, pair in scales.items():
        for name, scale in zip(names[layer], pair, strict=True):
            # One scale is a scalar; a scale for each head is [heads, 1, 1], as llm-compressor writes it.
            tensors[name] = scale.reshape(-1, 1, 1).clone() if per_head else scale.max().reshape(()).clone()
    _link(source, part)
    save_file(tensors, part / SCALES_FILE, metadata={"format": "pt"})
    (part / SCALES_FILE).chmod(0o644)
    _json(part / "config.json", config)
    added_bytes = 4 * sum(scale.numel() for scale in tensors.values())
    _index(source, part, {**files, **dict.fromkeys(tensors, SCALES_FILE)}, added_bytes)
    _sidecar(source, part)
    _json(part / SGLANG_FILE, _for_sglang(config, scales, ranks))
    _json(part / INPUT_FILE, dict(sorted(input_amax.items())))
    _json(part / REPORT_FILE, dict(report))


def _link(source: Path, part: Path) -> None:
    skipped = {
        "config.json",
        INDEX,
        "hf_quant_config.json",
        "optistack-model.json",
        SCALES_FILE,
        SGLANG_FILE,
        INPUT_FILE,
        REPORT_FILE,
    }
    for file in source.iterdir():
        if not file.is_file() or file.name in skipped:
            continue
        try:
            os.link(file.resolve(), part / file.name)
        except OSError:
            (part / file.name).symlink_to(file.resolve())


def _index(source: Path, part: Path, weight_map: Mapping[str, str], added_bytes: int) -> None:
    index = source / INDEX
    if index.is_file():
        metadata = json.loads(index.read_text(encoding="utf-8")).get("metadata", {})
        total = int(metadata.get("total_size", 0))
    else:
        metadata = {}
        total = sum((source / name).stat().st_size for name in set(weight_map.values()) if name != SCALES_FILE)
    _json(part / INDEX, {"metadata": {**metadata, "total_size": total + added_bytes}, "weight_map": dict(weight_map)})


def _sidecar(source: Path, part: Path) -> None:
    """ModelOpt's own metadata says FP8 KV too."""
    file = source / "hf_quant_config.json"
    if file.is_file():
        content = json.loads(file.read_text(encoding="utf-8"))
        content["quantization"] = {**content.get("quantization", {}), "kv_cache_quant_algo": "FP8"}
        _json(part / file.name, content)


def _for_sglang(
    config: Mapping[str, Any], scales: Mapping[int, tuple[torch.Tensor, torch.Tensor]], ranks: int
) -> dict[str, Any]:
    """SGLang's ``--quantization-param-path``: one scale a layer for K and V, repeated for each tensor-parallel rank."""
    layers = {str(layer): max(float(k.max()), float(v.max())) for layer, (k, v) in sorted(scales.items())}
    factors = {str(rank): layers for rank in range(ranks)}
    return {"model_type": config.get("model_type"), "kv_cache": {"dtype": "float8_e4m3fn", "scaling_factor": factors}}


def _header(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            (size,) = struct.unpack("<Q", stream.read(8))
            return dict(json.loads(stream.read(size)))
    except (struct.error, ValueError) as error:
        raise InputError(f"{file} is no whole safetensors file.", fix="Fetch it again.") from error


def _json(file: Path, content: Mapping[str, Any]) -> None:
    """A new file: writing into one that is linked would change the source."""
    with file.open("x", encoding="utf-8") as stream:
        stream.write(json.dumps(content, indent=2) + "\n")
