"""``optistack quant-nvfp4 inspect``."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any

import typer

from optistack_quant_nvfp4.commands.app import JsonOption, app, checkpoint_folder


@app.command()
def inspect(
    checkpoint: Annotated[str, typer.Argument(metavar="CKPT", help="A folder or cache:NAME.")], json: JsonOption = False
) -> None:
    """Say what is quantized in a checkpoint and how, by its headers, and by its recipe where it has one."""
    from optistack.cli.screen import note, print_json, show
    from optistack_quant_nvfp4.checkpoint import describe, is_weight_only
    from optistack_quant_nvfp4.convert.checkpoint import read_checkpoint
    from optistack_quant_nvfp4.convert.job import left_behind
    from optistack_quant_nvfp4.convert.parts import part_table, parts
    from optistack_quant_nvfp4.convert.results import RECIPE

    found = read_checkpoint(checkpoint_folder(checkpoint))
    recipe_file = found.folder / RECIPE
    recipe: dict[str, Any] | None = json_module.loads(recipe_file.read_bytes()) if recipe_file.is_file() else None
    quantization = found.facts.quantization
    nvfp4 = [layer for layer in found.layers.values() if layer.form == "nvfp4"]
    activations = ("w4a16" if is_weight_only(quantization) else "w4a4") if nvfp4 else None
    rows = parts(found)
    left = left_behind(found.folder)
    document = {
        "checkpoint": str(found.folder),
        "summary": describe(found.facts),
        "nvfp4_layers": len(nvfp4),
        "activations": activations,
        "components": rows,
        "largest_tensor_bytes": found.tensor_bytes(),
        "recipe": recipe,
        "left_behind": str(left) if left else None,
    }
    if json:
        print_json(document)
        return
    show(part_table(rows))
    show(f"{document['summary']}; {len(nvfp4)} NVFP4 layers{f', {activations}' if nvfp4 else ''}")
    if recipe is not None:
        known = {key: value for key, value in recipe.items() if value not in ([], {}, None)}
        show("recipe: " + json_module.dumps(known, ensure_ascii=False))
    if left is not None:
        note(f"{left} is what the conversion left behind when it was ended after its last step; it can be deleted.")
