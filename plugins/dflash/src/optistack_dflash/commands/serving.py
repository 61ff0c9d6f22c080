"""Commands around a running engine and a finished drafter: collect and inspect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from optistack.errors import PlanRefusedError
from optistack_dflash.commands.app import (
    DraftArgument,
    EndpointOption,
    JsonOption,
    TargetOption,
    app,
    checkpoint_folder,
    need_training,
)


@app.command()
def collect(
    endpoint: EndpointOption,
    target: TargetOption,
    prompts: Annotated[Path, typer.Option("--prompts", metavar="FILE", help="JSON Lines: prompt, messages or ids.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the shards go.")],
    domain: Annotated[str, typer.Option(help="What the prompts are about; kept with the shards.")] = "",
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")] = 384,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 16,
    shard: Annotated[int, typer.Option(min=1, help="Answers a shard; as many are lost if the collector dies.")] = 256,
    max_mb: Annotated[float | None, typer.Option(min=0.0, help="Stop when the folder holds so many MB.")] = None,
) -> None:
    """Record the token ids that a running engine answers to prompts.

    Shards that are there already are kept: start the same command again to go on.
    """
    need_training()
    from optistack.verify.endpoint import Endpoint

    checkpoint = checkpoint_folder(target)
    with Endpoint(endpoint) as engine:
        engine.get_json("/version")  # nobody there is said before the libraries are loaded, which takes long
        from optistack_dflash.drafter.collect import Sampling, read_prompts
        from optistack_dflash.drafter.collect import collect as record

        asked = read_prompts(prompts, checkpoint)
        found = record(
            engine,
            asked,
            checkpoint,
            out,
            Sampling(temperature, top_p, max_tokens),
            domain=domain,
            concurrency=concurrency,
            shard=shard,
            max_bytes=None if max_mb is None else int(max_mb * 1e6),
            tell=print,
        )
    print(f"{found.shards} shards with {found.sequences} answers of {found.tokens} tokens; {found.kept} were there")


@app.command("from-tap")
def from_tap(
    recordings: Annotated[Path, typer.Argument(metavar="FOLDER", help="What the router's option `tap` recorded.")],
    target: TargetOption,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the shards go.")],
    model: Annotated[str | None, typer.Option(help="Name that the target was served by, if of several.")] = None,
    domain: Annotated[str, typer.Option(help="What the traffic is about; kept with the shards.")] = "",
) -> None:
    """Turn what the router's tap recorded into shards like those of collect."""
    need_training()
    from optistack_dflash.drafter.recordings import convert_recordings

    found = convert_recordings(recordings, checkpoint_folder(target), out, model=model, domain=domain)
    print(f"{found.shards} shards with {found.sequences} answers of {found.tokens} tokens")


@app.command()
def inspect(draft: DraftArgument, target: TargetOption, json: JsonOption = False) -> None:
    """Say what a drafter is, whether it fits the target, and what it costs."""
    from optistack.cli import screen
    from optistack.facts import load_model
    from optistack.memory.kv import bytes_per_token
    from optistack_dflash.draft import check_fit, read_draft

    found = read_draft(load_model(str(checkpoint_folder(str(draft)))))
    model = load_model(str(checkpoint_folder(target)))
    try:
        check_fit(found, model, tensor=1, backend="vllm")
        misfit = None
    except PlanRefusedError as error:
        misfit = error.message
    facts = found.facts
    says: dict[str, Any] = {
        "draft": str(draft),
        "fits": misfit is None,
        "misfit": misfit,
        "layers": facts.layers,
        "captured_layers": list(found.captured_layers),
        "block_size": found.block_size,
        "mask_token_id": found.mask_token_id,
        "weight_bytes": facts.weight_bytes,
        "kv_bytes_per_token": bytes_per_token(facts, facts.dtype, 1),
        "hidden_state_bytes_per_token": 2 * len(found.captured_layers) * model.hidden,
    }
    if json:
        screen.print_json(says)
    else:
        print(
            f"{draft}: {facts.layers} layers that read {', '.join(map(str, found.captured_layers))} of the target's; "
            f"block of {found.block_size}, mask token {found.mask_token_id}\n"
            f"weights {facts.weight_bytes / 1e6:.1f} MB, KV {says['kv_bytes_per_token']:g} bytes a token "
            f"({facts.dtype}), captured states {says['hidden_state_bytes_per_token']} bytes a prefill token\n"
            + (misfit or f"fits {target}")
        )
    if misfit:
        raise typer.Exit(2)
