"""What is written beside the tensors: config.json, the index, the other files, the recipe and the report."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from optistack.errors import CheckFailedError
from optistack.facts.quantization import SIDECAR
from optistack.facts.safetensors import INDEX
from optistack_quant_nvfp4.convert import metadata
from optistack_quant_nvfp4.convert.input_scales import summary
from optistack_quant_nvfp4.convert.plan import Plan

RECIPE = "optistack-nvfp4.json"
REPORT = "optistack-nvfp4-report.json"
_WEIGHTS = frozenset((".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".h5", ".msgpack"))
_REPLACED = frozenset((INDEX, SIDECAR, RECIPE, REPORT, "config.json"))
_SECTIONS = ("quantization_config", "compression_config")


def other_files(folder: Path) -> Iterator[Path]:
    """Files that are copied as they are, relative to ``folder``: all but weights and what is written anew."""
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        hidden = any(part.startswith(".") for part in name.parts)
        if file.is_file() and not hidden and file.suffix not in _WEIGHTS and str(name) not in _REPLACED:
            yield name


def other_bytes(plan: Plan) -> int:
    """Bytes beside the tensors: copied files, and an allowance for the index and the report of each layer."""
    folder = plan.checkpoint.folder
    copied = sum((folder / name).stat().st_size for name in other_files(folder))
    return copied + 400 * (len(plan.checkpoint.places) + 2 * len(plan.chosen))


def write_results(plan: Plan, folder: Path, recipe: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write everything beside the tensors into ``folder``, the same bytes for the same conversion."""
    source = plan.checkpoint.folder
    for name in other_files(source):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, folder / name)
    _write(folder / "config.json", _config(plan, folder))
    if (source / INDEX).is_file():
        weights = {one.name: file.name for file in plan.files for step in file.steps for one in step.outputs}
        total = sum(one.bytes for file in plan.files for step in file.steps for one in step.outputs)
        _write(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(weights.items()))})
    _write(folder / RECIPE, recipe)
    _write(folder / REPORT, {"layers": worst_first(rows)})


def worst_first(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows by their SQNR, the lowest first; a layer without error last."""

    def key(row: Mapping[str, Any]) -> tuple[float, str]:
        return (float("inf") if row["sqnr_db"] is None else row["sqnr_db"], row["layer"])

    return sorted(rows, key=key)


def check_errors(rows: Sequence[Mapping[str, Any]], min_sqnr_db: float, folder: Path) -> None:
    """CheckFailedError naming the worst of ``rows`` if it is below ``min_sqnr_db``. ``folder`` has what was written."""
    poor = [row for row in worst_first(rows) if row["sqnr_db"] is not None and not row["sqnr_db"] >= min_sqnr_db]
    if poor:
        more = f" and {len(poor) - 1} more" if len(poor) > 1 else ""
        raise CheckFailedError(
            f"{poor[0]['layer']} has an SQNR of {poor[0]['sqnr_db']:.2f} dB in NVFP4{more}, and at least "
            f"{min_sqnr_db:g} is asked.",
            fix=f"Give the same command --min-sqnr-db and a lower number, which converts nothing anew, or delete "
            f"{folder} and leave layers out with --exclude.",
        )


def recipe_of(
    plan: Plan, scope: Sequence[str], exclude: Sequence[str], rest: str, normalisation: float
) -> dict[str, Any]:
    """How the checkpoint was made, for whoever finds it.

    ``normalisation`` is what the largest magnitude is divided by for the global scale.
    """
    return {
        "producer": metadata.PRODUCER,
        "source": {"name": plan.checkpoint.folder.resolve().name, "fingerprint": plan.checkpoint.facts.fingerprint},
        "scope": list(scope),
        "exclude": list(exclude),
        "rest": rest,
        "format": plan.form,
        "method": plan.method,
        "normalisation": normalisation,
        "activations": "w4a16" if plan.weight_only else "w4a4",
        "input_scales": summary(plan.scales),
        "layers": len(plan.chosen),
    }


def metadata_of(plan: Plan) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """``hf_quant_config.json``, where the form has it, and ``quantization_config``."""
    return metadata.modelopt(plan) if plan.form == "modelopt" else (None, metadata.compressed_tensors(plan))


def _config(plan: Plan, folder: Path) -> dict[str, Any]:
    """config.json with the new section where the old one was; ``hf_quant_config.json`` is written on the way."""
    config = json.loads(json.dumps(plan.checkpoint.facts.config))
    side, section = metadata_of(plan)
    owners = [config, *(config[key] for key in ("text_config", "llm_config") if isinstance(config.get(key), dict))]
    held = [owner for owner in owners if any(isinstance(owner.get(key), dict) for key in _SECTIONS)]
    for owner in owners:
        for key in _SECTIONS:
            owner.pop(key, None)
    for owner in held or [config]:
        owner["quantization_config"] = section
    if side is not None:
        _write(folder / SIDECAR, side)
    return dict(config)


def _write(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
