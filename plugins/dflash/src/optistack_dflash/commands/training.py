"""Commands that make a drafter and say what it is worth: train, finetune, evaluate."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from optistack.errors import InputError
from optistack_dflash.commands.app import DraftArgument, JsonOption, TargetOption, app, need_training
from optistack_dflash.commands.loading import load_corpus, load_target
from optistack_dflash.commands.running import check_folders, run
from optistack_dflash.drafter.shard_files import shards_in

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
DeviceOption = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:N. Default: cuda where there is one.")]
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
    check_folders(data, held_out, out, resume=resume)
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
    run(
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
    check_folders(data, held_out, out, resume=resume)
    from optistack_dflash.drafter.network import load_drafter, refuse_float8

    drafter = load_drafter(draft)
    refuse_float8(drafter, draft)
    run(
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


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{text!r} names no layers.", fix="Write them like 1,14,27.") from None
