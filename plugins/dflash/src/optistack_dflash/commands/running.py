"""What ``train`` and ``finetune`` share: what they refuse first, and the training itself, told line by line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from optistack.errors import InputError
from optistack_dflash.commands.loading import load_corpus
from optistack_dflash.drafter.shard_files import shards_in

if TYPE_CHECKING:
    from optistack_dflash.drafter.network import Drafter
    from optistack_dflash.drafter.target import Target


def check_folders(data: list[Path], held_out: Path | None, out: Path, *, resume: bool) -> None:
    """InputError when there is nothing to train on or ``out`` is taken, before anything is loaded."""
    for folder in [*data, *([held_out] if held_out else [])]:
        shards_in(folder)
    if (out / "config.json").exists() and not resume:
        raise InputError(f"{out} holds a drafter.", fix="Go on with it (--resume) or give another folder.")


def run(
    drafter: Drafter,
    target: Target,
    data: list[Path],
    held_out: Path | None,
    out: Path,
    *,
    resume: bool,
    max_tokens: int,
    recipe: dict[str, Any],
) -> None:
    from optistack_dflash.drafter.losses import LOSSES
    from optistack_dflash.drafter.recipe import Recipe
    from optistack_dflash.drafter.trainer import Trainer

    if recipe["loss"] not in LOSSES:
        raise InputError(f"There is no loss {recipe['loss']!r}.", fix=f"Take one of {', '.join(LOSSES)}.")
    if recipe["max_s"] is None:
        del recipe["max_s"]
    corpus = load_corpus(target, data, max_tokens)
    check = load_corpus(target, [held_out], max_tokens) if held_out else None
    weights = sum(parameter.numel() for parameter in drafter.parameters())
    print(
        f"{weights / 1e6:.2f} M weights, {2 * weights / 1e6:.1f} MB in BF16; {len(corpus)} sequences with "
        f"{corpus.answer_tokens} tokens of {target.name}; on {target.device}",
        flush=True,
    )
    trainer = Trainer(
        drafter,
        target,
        corpus,
        check,
        Recipe(**recipe),
        out,
        tell=lambda report: print(_line(report), flush=True),
        begun=lambda step, loss, steps_s: print(
            f"step {step}  loss {loss:.3f}  {steps_s:.3g} steps/s; a report every {recipe['report_every']} steps",
            flush=True,
        ),
    )
    if resume and trainer.resume():
        print(f"resumed at step {trainer.state.step}", flush=True)
    trainer.run()
    print(f"{out}: step {trainer.state.step} after {trainer.state.elapsed_s:.0f} s")


def _line(report: dict[str, Any]) -> str:
    text = f"step {report['step']}  {report['seconds']:.0f} s  epoch {report['epoch']}  loss {report['loss']:.3f}"
    if "acceptance_length" in report:
        text += f"  acceptance length {report['acceptance_length']:.3f}"
    return text
