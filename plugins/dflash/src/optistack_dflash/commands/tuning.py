"""``optistack dflash tune``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from optistack.errors import InputError
from optistack_dflash.commands.app import EndpointOption, JsonOption, app


@app.command()
def tune(
    endpoint: EndpointOption,
    concurrency: Annotated[str, typer.Option(metavar="N,N,...", help="Requests at once, each of these.")] = "1,4,16",
    max_tokens: Annotated[int, typer.Option(min=16, help="Tokens of an answer at most.")] = 128,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompts of your users, as for collect; built-in code prompts if left out."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Propose how many tokens to draft at each concurrency, from steps measured on a running vLLM.

    Acceptance depends on what is asked: give your users' prompts.
    Start the engine with the proposed number and tune again: what is measured then is the answer.
    """
    from optistack.verify.endpoint import Endpoint
    from optistack_dflash.prompt_file import read_prompt_file
    from optistack_dflash.tuning import propose
    from optistack_dflash.tuning_rounds import BUILT_IN, measure_round

    users = _numbers(concurrency)
    asked = read_prompt_file(prompts) if prompts else BUILT_IN
    with Endpoint(endpoint) as engine:
        # Not counted: the first request of a kind compiles and allocates, and a prompt that was read once is in the
        # prefix cache, where every round that counts shall find it.
        measure_round(engine, users[-1], max_tokens=16, prompts=asked)
        for number in users[:-1]:
            measure_round(engine, number, max_tokens=16, prompts=asked, answers=number)
        rounds = [measure_round(engine, number, max_tokens=max_tokens, prompts=asked) for number in users]
    proposals = propose(rounds)
    if json:
        from optistack.cli import screen

        screen.print_json({"rounds": [asdict(one) for one in rounds], "proposals": [asdict(one) for one in proposals]})
        return
    for one, proposal in zip(rounds, proposals, strict=True):
        shares = " ".join(f"{share:.2f}" for share in one.by_position)
        print(
            f"{one.concurrency} at once: a step verifies {one.verified_tokens} tokens in {1000 * one.step_s:.1f} ms; "
            f"accepted by position {shares}\n"
            f"  with {one.draft_tokens} draft tokens {proposal.measured:.1f} tokens/s/user measured, "
            f"{proposal.predicted_now:.1f} predicted\n"
            f"  with {proposal.draft_tokens} draft tokens {proposal.predicted:.1f} predicted: the most"
        )


def _numbers(text: str) -> list[int]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise InputError(f"{text!r} names no concurrencies.", fix="Write them like 1,4,16.")
    return found
