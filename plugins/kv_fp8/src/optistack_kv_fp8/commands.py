"""``optistack kv-fp8``."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optistack.cli.commands import new_app
from optistack.cli.devices import check_device
from optistack.errors import InputError
from optistack.facts.configuration import read_json
from optistack.facts.quantization import read_quantization

if TYPE_CHECKING:
    from optistack.facts.model import ModelFacts
    from optistack_kv_fp8.calibration.run import Observed

app = new_app("Calibrate FP8 KV.")
METHODS = ("amax", "percentile", "mse")
LARGEST_SEED = 2**63 - 1


@app.callback()
def main() -> None:
    """Calibrate FP8 KV."""


@app.command()
def calibrate(
    checkpoint: Annotated[str, typer.Argument(metavar="CKPT", help="A folder or cache:NAME; it is not changed.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the checkpoint with scales goes.")],
    method: Annotated[str, typer.Option(help="amax, percentile or mse.")] = "amax",
    percentile: Annotated[float, typer.Option(min=50, max=100, help="For the method percentile.")] = 99.99,
    per_head: Annotated[bool, typer.Option("--per-head", help="A scale a KV head: vLLM alone reads it.")] = False,
    prompts: Annotated[Path | None, typer.Option(metavar="FILE", help="A prompt a line, or JSON lines.")] = None,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens that the model writes to each prompt.")] = 128,
    ranks: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks that SGLang's file is for.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Of what the model writes.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N. Default: cuda where there is one.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find KV scales from what the model itself writes to prose and code prompts.

    FOLDER is the checkpoint with scales in it, its weights linked and not copied. Beside them are SGLang's own file of
    scales and the largest input of each linear layer, which W4A4 quantization needs.
    """
    if method not in METHODS:
        raise InputError(f"There is no method {method!r}.", fix=f"Use {', '.join(METHODS)}.")
    from optistack.facts import load_model
    from optistack.stack.references import resolve_checkpoint
    from optistack_kv_fp8.calibration.folder import check_out, working_folder

    folder = Path(resolve_checkpoint(checkpoint, Path.cwd()))
    if not (folder / "config.json").is_file():
        raise InputError(f"{checkpoint} is no checkpoint's folder.", fix="Give a folder with a config.json.")
    check_out(folder, out)
    check_runnable(folder, checkpoint)
    facts = load_model(str(folder))
    _need_calibration()
    where = _device(device)
    import json as json_module

    from optistack_kv_fp8.calibration.prompts import read_prompts
    from optistack_kv_fp8.calibration.run import load, observe
    from optistack_kv_fp8.calibration.write import check_unscaled, scale_names, tensor_files, with_kv_scheme, write

    texts = read_prompts(prompts)
    with_kv_scheme(json_module.loads((folder / "config.json").read_text(encoding="utf-8")), per_head=per_head)
    files = tensor_files(folder)
    check_unscaled(files)
    check_counts(facts, new_tokens=new_tokens, ranks=ranks)

    def progress(done: int) -> None:
        print(f"{done} of {len(texts)} prompts", file=sys.stderr, flush=True)

    with working_folder(folder, out) as part:  # before the model runs, which takes long
        print(f"Loading {folder.name} on {where}.", file=sys.stderr, flush=True)
        model, tokenizer = load(folder, where)
        print(
            f"Loaded. It answers {len(texts)} prompts, one after the other, with up to {new_tokens} tokens each.",
            file=sys.stderr,
            flush=True,
        )
        seen = observe(model, tokenizer, texts, new_tokens=new_tokens, per_head=per_head, seed=seed, progress=progress)
        scale_names(files, sorted(seen.kv.layers))
        scales = {
            layer: (key.scales(method, percentile), value.scales(method, percentile))  # type: ignore[arg-type]  # checked above
            for layer, (key, value) in seen.kv.layers.items()
        }
        report = _report(seen, scales, method)
        write(folder, part, scales, seen.input_amax, per_head=per_head and not seen.mla, ranks=ranks, report=report)
    if json:
        print(json_module.dumps(report, indent=2))
        return
    print(f"{out}: scales of {len(scales)} layers by {method}, from {seen.tokens:,} tokens.")
    print(
        f"error of K {report['k_error']:.3%} (unit scales {report['k_error_unit']:.3%}), "
        f"of V {report['v_error']:.3%} ({report['v_error_unit']:.3%}), by norm, the worst layer"
    )


def _report(seen: Observed, scales: dict[int, Any], method: str) -> dict[str, Any]:
    """The scales and what FP8 loses under them and under 1.0, the worst layer of each."""
    import torch

    layers = []
    for layer, pair in sorted(scales.items()):
        row: dict[str, Any] = {"layer": layer}
        for word, magnitudes, scale in zip("kv", seen.kv.layers[layer], pair, strict=True):
            row[f"{word}_scale"] = scale.tolist()
            row[f"{word}_amax"] = magnitudes.amax().tolist()
            row[f"{word}_error"] = float(magnitudes.error(scale).max())
            row[f"{word}_error_unit"] = float(magnitudes.error(torch.ones_like(scale)).max())
        layers.append(row)
    worst = {key: max(row[key] for row in layers) for key in ("k_error", "k_error_unit", "v_error", "v_error_unit")}
    return {
        "format": "optistack-kv-calibration/1",
        "method": method,
        "tokens": seen.tokens,
        "mla": seen.mla,
        "modules_seen": len(seen.input_amax),
        **worst,
        "layers": layers,
    }


def _device(text: str | None) -> str:
    """The torch device that ``text`` names, or the best there is. InputError when this machine has no such device."""
    import torch

    if text is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    check_device(text, torch.cuda.device_count())
    return text


def check_runnable(folder: Path, checkpoint: str) -> None:
    """InputError when ``folder`` is quantized in a way that transformers, which runs the model, cannot run."""
    config_file = folder / "config.json"
    found = read_quantization(read_json(config_file), config_file)
    if found is None or not (found.method == "modelopt" or any("nvfp4" in word.lower() for word in found.algo)):
        return
    raise InputError(
        f"{checkpoint} is quantized already ({', '.join(found.algo) or 'no algorithm named'}, by {found.method}), and "
        "transformers, which calibration runs the model with, cannot run it.",
        fix="Calibrate the BF16 checkpoint that it was made from, and convert what that writes.",
    )


def check_counts(model: ModelFacts, *, new_tokens: int, ranks: int) -> None:
    """InputError when ``model`` has no context for ``new_tokens`` and a prompt, or fewer query heads than ``ranks``.

    KV heads are no bound: engines give a copy of one to several ranks.
    """
    context_tokens, heads = model.max_context_tokens, model.attention.heads
    if 0 < context_tokens <= new_tokens:
        raise InputError(
            f"--new-tokens {new_tokens} leaves no room for a prompt: the model's context is {context_tokens} tokens.",
            fix="Give a lower --new-tokens.",
        )
    if ranks > heads:
        raise InputError(
            f"--ranks {ranks} is more than the model's {heads} attention heads, and no rank is without one.",
            fix="Give the tensor-parallel size that SGLang will run with.",
        )


def _need_calibration() -> None:
    missing = [name for name in ("torch", "transformers", "safetensors") if find_spec(name) is None]
    if missing:
        raise InputError(
            f"This Python ({sys.executable}) has no {' and no '.join(missing)}, which calibration runs the model with.",
            fix="Install the extra, pip install './plugins/kv_fp8[calibrate]' in a clone of the repository, or install "
            "optistack-kv-fp8 beside an engine and run python -m optistack_kv_fp8 there.",
        )
