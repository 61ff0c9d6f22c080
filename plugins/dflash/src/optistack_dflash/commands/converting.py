"""``optistack dflash convert-fp8``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optistack.errors import CheckFailedError, InputError
from optistack_dflash.commands import loading, training
from optistack_dflash.commands.app import DraftArgument, JsonOption, TargetOption, app, need_training


@app.command("convert-fp8")
def convert_fp8(
    draft: DraftArgument,
    target: TargetOption,
    data: training.DataOption,
    out: training.OutOption,
    max_loss: Annotated[float, typer.Option(min=0, max=1, help="Share of the acceptance length: 0.02.")] = 0.02,
    max_tokens: training.MaxTokensOption = 1024,
    device: training.DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Convert a drafter to FP8 if the target then accepts as much of it, measured on recorded greedy answers.

    Exit code 1, and nothing written, when more than --max-loss of the acceptance length is lost.
    """
    need_training()
    from tempfile import TemporaryDirectory

    from optistack.cli import screen
    from optistack_dflash.drafter.acceptance import measure
    from optistack_dflash.drafter.network import load_drafter, refuse_float8, save_drafter

    if (out / "config.json").exists():
        raise InputError(f"{out} holds a drafter.", fix="Give another folder.")
    teacher = loading.load_target(target, device)
    plain = load_drafter(draft)
    refuse_float8(plain, draft)
    teacher.check(plain.shape)
    answers = loading.load_corpus(teacher, data, max_tokens)
    with TemporaryDirectory(prefix="optistack-") as folder:
        path = Path(folder)
        save_drafter(plain, path, float8=True)
        converted = load_drafter(path)
    before = measure(plain.to(teacher.device), teacher, answers)
    after = measure(converted.to(teacher.device), teacher, answers)
    loss = 1 - after.length / before.length
    if json:
        screen.print_json(
            {"before": before.length, "after": after.length, "loss": loss, "steps": [before.steps, after.steps]}
        )
    else:
        print(
            f"acceptance length {before.length:.3f} over {before.steps} steps in BF16, {after.length:.3f} over "
            f"{after.steps} in FP8: {100 * loss:.2f}% lost"
        )
    if loss > max_loss:
        raise CheckFailedError(
            f"In FP8 {100 * loss:.2f}% of the acceptance length is lost, more than {100 * max_loss:g}%; nothing was "
            f"written.",
            fix="Keep the drafter in BF16, or allow more with --max-loss.",
        )
    save_drafter(plain, out, float8=True)
    if not json:
        print(f"{out}: {(out / 'model.safetensors').stat().st_size / 1e6:.1f} MB")
