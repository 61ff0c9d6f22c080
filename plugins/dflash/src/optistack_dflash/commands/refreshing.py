"""``optistack dflash refresh``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optistack.errors import CheckFailedError
from optistack_dflash.commands import loading, serving, training
from optistack_dflash.commands.app import EndpointOption, JsonOption, TargetOption, app, need_training


@app.command()
def refresh(
    draft: Annotated[Path, typer.Argument(metavar="DRAFT", help="The drafter's folder, which gets the new one.")],
    endpoint: EndpointOption,
    target: TargetOption,
    prompts: Annotated[Path, typer.Option("--prompts", metavar="FILE", help="JSON Lines, as collect takes them.")],
    held_out: Annotated[Path, typer.Option("--held-out", metavar="FOLDER", help="Greedy answers for the gate.")],
    work: Annotated[Path, typer.Option("--work", metavar="FOLDER", help="Answers, new and old drafter.")],
    gain: Annotated[float, typer.Option(min=0, help="Longer acceptance by this share is asked: 0.02.")] = 0.02,
    max_tokens: Annotated[int, typer.Option(min=8, help="Tokens of an answer at most.")] = 384,
    steps: training.StepsOption = 1000,
    max_seconds: training.MaxSecondsOption = None,
    learning_rate: training.RateOption = 5e-4,
    loss: training.LossOption = "kl",
    device: training.DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Collect answers, fine-tune the drafter on them, and put it in the old one's place if held-out acceptance grew.

    Start the same command again after an interruption: answers that are there are kept, and training goes on. Exit code
    1 when the new drafter is not better; the old one then stays. Start the engine again to load the new one.
    """
    need_training()
    from optistack.cli import screen
    from optistack_dflash.drafter.refresh import swap_if_better

    loading.device_named(device)  # before anything is collected
    data, made = work / "data", work / "new"
    serving.collect(endpoint, target, prompts, data, max_tokens=max_tokens)
    training.finetune(
        draft,
        target,
        [data],
        made,
        held_out,
        steps=steps,
        max_seconds=max_seconds,
        learning_rate=learning_rate,
        loss=loss,
        device=device,
        resume=True,
    )
    teacher = loading.load_target(target, device)
    check = loading.load_corpus(teacher, [held_out], 1024)
    found = swap_if_better(draft, made, teacher, check, gain=gain, keep=work / "old")
    if json:
        screen.print_json({"before": found.before, "after": found.after, "swapped": found.swapped})
    else:
        print(f"held-out acceptance length {found.before:.3f} before, {found.after:.3f} after")
    if not found.swapped:
        raise CheckFailedError(
            f"{made} is not better by {100 * gain:g}%; {draft} stays as it was.",
            fix="Collect more answers or train longer, or ask for a smaller --gain.",
        )
    print(f"{draft} is the new drafter, {work / 'old'} the old one; start the engine again to load it")
