"""Commands that make a drafter and say what it is worth: train, finetune, evaluate."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optistack.errors import InputError
from optistack_dflash.commands.app import DraftArgument, JsonOption, TargetOption, app, checkpoint_folder, need_training
from optistack_dflash.drafter.shard_files import shards_in

if TYPE_CHECKING:
    from optistack_dflash.drafter.corpus import Corpus
    from optistack_dflash.drafter.network import Drafter
    from optistack_dflash.drafter.target import Target

DataOption = Annotated[
    list[Path], typer.Option("--data", metavar="FOLDER", help="Recorded tokens to train on. Repeatable.")
]
HeldOutOption = Annotated[
    Path | None, typer.Option("--held-out", metavar="FOLDER", help="Greedy answers to report acceptance on.")
]
OutOption = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the drafter goes.")]
StepsOption = Annotated[int, typer.Option(min=1, help="Steps at most.")]
MaxSecondsOption = Annotated[float | None, typer.Option(min=1, help="Seconds at most.")]
BatchTokensOption = Annotated[int, typer.Option(min=1, help="Context tokens of a micro-batch.")]
AccumulateOption = Annotated[int, typer.Option(min=1, help="Micro-batches a step.")]
AnchorsOption = Annotated[int, typer.Option(min=1, help="Blocks drawn from a sequence.")]
RateOption = Annotated[float, typer.Option(min=0, help="Peak learning rate.")]
LossOption = Annotated[str, typer.Option(help="kl, reverse-kl, tv or ce.")]
MaxTokensOption = Annotated[int, typer.Option(min=8, help="Longer sequences are cut to this many tokens.")]
SeedOption = Annotated[int, typer.Option(help="Of weights, order and anchors.")]
ReportOption = Annotated[int, typer.Option(min=1, help="Steps between reports, each with a checkpoint.")]
DeviceOption = Annotated[str | None, typer.Option(help="cuda or cpu. Default: cuda where there is one.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on from what --out holds.")]
ChunkOption = Annotated[int, typer.Option(min=1, help="Tokens whose logits are in memory at once.")]


@app.command()
def train(
    target: TargetOption,
    data: DataOption,
    out: OutOption,
    held_out: HeldOutOption = None,
    layers: Annotated[int, typer.Option(min=1, help="Layers of the drafter.")] = 2,
    capture: Annotated[str | None, typer.Option(metavar="I,J,...", help="Target layers it reads, from 0.")] = None,
    block_size: Annotated[int, typer.Option(min=2, help="Tokens of a block, the anchor counted.")] = 8,
    mask_token: Annotated[int | None, typer.Option(metavar="ID", help="A token no text holds.")] = None,
    intermediate: Annotated[int | None, typer.Option(min=1, help="MLP width. Default: the target's.")] = None,
    steps: StepsOption = 2000,
    max_seconds: MaxSecondsOption = None,
    batch_tokens: BatchTokensOption = 8192,
    accumulate: AccumulateOption = 1,
    anchors: AnchorsOption = 64,
    learning_rate: RateOption = 1e-3,
    loss: LossOption = "kl",
    max_tokens: MaxTokensOption = 640,
    seed: SeedOption = 0,
    report_every: ReportOption = 200,
    chunk_tokens: ChunkOption = 8192,
    device: DeviceOption = None,
    resume: ResumeOption = False,
) -> None:
    """Train a new drafter on recorded answers of the target.

    The folder it writes is a draft in z-lab's format, which vLLM and SGLang load, from the first report on.
    """
    need_training()
    _check_folders(data, held_out, out, resume=resume)
    import torch

    from optistack_dflash.drafter.network import Drafter
    from optistack_dflash.drafter.shape import DrafterShape, spread

    teacher = load_target(target, device)
    count = int(teacher.config["num_hidden_layers"])
    shape = DrafterShape.for_target(
        teacher.config,
        layers=layers,
        captured_layers=_layers(capture) if capture else spread(count, layers),
        block_size=block_size,
        mask_token_id=teacher.unused_token() if mask_token is None else mask_token,
        intermediate=intermediate,
    )
    torch.manual_seed(seed)
    _run(
        Drafter(shape),
        teacher,
        data,
        held_out,
        out,
        resume=resume,
        max_tokens=max_tokens,
        recipe={
            "steps": steps,
            "max_s": max_seconds,
            "batch_tokens": batch_tokens,
            "accumulate": accumulate,
            "anchors": anchors,
            "learning_rate": learning_rate,
            "loss": loss,
            "seed": seed,
            "report_every": report_every,
            "chunk_tokens": chunk_tokens,
        },
    )


@app.command()
def finetune(
    draft: DraftArgument,
    target: TargetOption,
    data: DataOption,
    out: OutOption,
    held_out: HeldOutOption = None,
    steps: StepsOption = 1000,
    max_seconds: MaxSecondsOption = None,
    batch_tokens: BatchTokensOption = 8192,
    accumulate: AccumulateOption = 1,
    anchors: AnchorsOption = 64,
    learning_rate: RateOption = 5e-4,
    loss: LossOption = "kl",
    max_tokens: MaxTokensOption = 640,
    seed: SeedOption = 0,
    report_every: ReportOption = 200,
    chunk_tokens: ChunkOption = 8192,
    device: DeviceOption = None,
    resume: ResumeOption = False,
) -> None:
    """Train a drafter further, on answers of the kind that it will be used for."""
    need_training()
    _check_folders(data, held_out, out, resume=resume)
    from optistack_dflash.drafter.network import load_drafter, refuse_float8

    drafter = load_drafter(draft)
    refuse_float8(drafter, draft)
    _run(
        drafter,
        load_target(target, device),
        data,
        held_out,
        out,
        resume=resume,
        max_tokens=max_tokens,
        recipe={
            "steps": steps,
            "max_s": max_seconds,
            "batch_tokens": batch_tokens,
            "accumulate": accumulate,
            "anchors": anchors,
            "learning_rate": learning_rate,
            "loss": loss,
            "seed": seed,
            "report_every": report_every,
            "chunk_tokens": chunk_tokens,
        },
    )


@app.command()
def evaluate(
    draft: DraftArgument,
    target: TargetOption,
    data: DataOption,
    max_tokens: MaxTokensOption = 1024,
    device: DeviceOption = None,
    json: JsonOption = False,
) -> None:
    """Measure acceptance, by position, on recorded greedy answers of the target: what an engine would reach on them."""
    need_training()
    for folder in data:
        shards_in(folder)
    from optistack_dflash.drafter.acceptance import measure
    from optistack_dflash.drafter.network import load_drafter

    teacher = load_target(target, device)
    drafter = load_drafter(draft).to(teacher.device)
    teacher.check(drafter.shape)
    results = {}
    for folder in data:
        found = measure(drafter, teacher, load_corpus(teacher, [folder], max_tokens))
        results[str(folder)] = {
            "acceptance_length": round(found.length, 4),
            "by_position": [round(share, 4) for share in found.by_position],
            "steps": found.steps,
        }
        if not json:
            shares = " ".join(f"{share:.3f}" for share in found.by_position)
            print(f"{folder}: acceptance length {found.length:.3f} over {found.steps} steps; by position {shares}")
    if json:
        print(json_module.dumps(results))


def _check_folders(data: list[Path], held_out: Path | None, out: Path, *, resume: bool) -> None:
    """InputError when there is nothing to train on or ``out`` is taken, before anything is loaded."""
    for folder in [*data, *([held_out] if held_out else [])]:
        shards_in(folder)
    if (out / "config.json").exists() and not resume:
        raise InputError(f"{out} holds a drafter.", fix="Go on with it (--resume) or give another folder.")


def _run(
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
    from optistack_dflash.drafter.trainer import Recipe, Trainer

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
        drafter, target, corpus, check, Recipe(**recipe), out, lambda report: print(_line(report), flush=True)
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


def load_corpus(target: Target, folders: list[Path], max_tokens: int) -> Corpus:
    from optistack_dflash.drafter.corpus import Corpus
    from optistack_dflash.drafter.shards import read_folder

    sequences = [
        one
        for folder in folders
        for one in read_folder(folder, revision=target.revision, template=target.template, target=target.name)
    ]
    return Corpus(sequences, target.device, max_tokens=max_tokens)


def load_target(text: str, device: str | None) -> Target:
    import torch

    from optistack_dflash.drafter.target import Target

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Target.load(checkpoint_folder(text), torch.device(chosen))


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} names no layers.", fix="Write them like 1,14,27.") from None
