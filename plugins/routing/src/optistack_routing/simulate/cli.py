"""``optistack route simulate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from optistack_routing.policy.base import Policy
    from optistack_routing.simulate.result import Result
    from optistack_routing.simulate.workload import Workload


MOST_REPLICAS = 10_000
MOST_SESSIONS = 1_000_000
"""More than anybody runs: the simulation would take hours."""


def simulate(
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="kv-aware unless given; again for more; all of them with `all`."),
    ] = None,
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=MOST_REPLICAS, help="Engine replicas.")] = 50,
    target: Annotated[float, typer.Option("--target", min=0.1, help="Requests meant to run on a replica.")] = 5.0,
    sessions: Annotated[
        int | None,
        typer.Option(
            "--sessions", min=1, max=MOST_SESSIONS, help="Sessions kept running; enough for the target unless given."
        ),
    ] = None,
    turns: Annotated[int, typer.Option("--turns", min=1, help="Turns to measure, after the warm-up.")] = 20_000,
    seed: Annotated[int, typer.Option("--seed", help="Of everything that is drawn at random.")] = 0,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Sessions to replay (.jsonl or .jsonl.gz).")
    ] = None,
    think_limit: Annotated[
        float, typer.Option("--think-limit", min=0, help="Seconds to which the trace's longer pauses are cut.")
    ] = 30.0,
    wide: Annotated[
        float, typer.Option("--wide", min=0, max=1, help="Share of sessions that send eight requests at once.")
    ] = 0.0,
    kv_tokens: Annotated[int, typer.Option("--kv-tokens", min=1, help="KV pool of a replica.")] = 2_500_000,
    prefill_rate: Annotated[
        float, typer.Option("--prefill-rate", min=1, help="Prompt tokens that a replica computes in a second.")
    ] = 20_000.0,
    join: Annotated[
        int, typer.Option("--join", min=0, max=MOST_REPLICAS, help="Replicas that join a minute after the warm-up.")
    ] = 0,
    drain: Annotated[int, typer.Option("--drain", min=0, help="Replicas that are drained at that time.")] = 0,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="PNG", help="Draw the distribution of load against Poisson's.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Replay closed-loop coding sessions over modelled replicas, with the policies that the router runs."""
    from optistack.cli import screen
    from optistack_routing.simulate.engine import EngineModel
    from optistack_routing.simulate.run import Scenario, run

    names = _names(policy or ["kv-aware"])
    workload, skipped = _workload(trace, think_limit, wide, seed)
    engine = EngineModel(prefill_tokens_per_s=prefill_rate, kv_tokens=kv_tokens)
    scenario = Scenario(replicas, target, sessions, turns, joins=join, drains=drain, engine=engine)
    results = []
    with screen.ScreenProgress() as progress:
        for name in names:
            progress.step(f"Simulating {name} over {replicas:,} replicas")
            policy_now = _policy(name, kv_tokens, seed)
            results.append(run(policy_now, workload, scenario, name=name, seed=seed, on_progress=progress.detail))
    if plot is not None:
        from optistack_routing.simulate.plot import plot_loads

        plot_loads(results, plot)
    if skipped:
        screen.note(f"{len(skipped)} lines of {trace} were skipped: {'; '.join(skipped[:3])}")
    if json:
        import json as encoder

        typer.echo(encoder.dumps({"results": [result.as_dict() for result in results], "skipped": skipped}, indent=2))
    else:
        typer.echo(table(results))
    if plot is not None:
        screen.note(f"The distribution of load is drawn in {plot}.")


def table(results: list[Result]) -> str:
    """The results as text: a line a policy, and what was computed again below."""
    head = f"{'policy':<22}{'in flight':>10}{'var/mean':>10}{'TTFT p50':>10}{'p95':>8}{'p99':>8}{'hit rate':>10}"
    lines = [head + f"{'again/turn':>12}{'moved':>8}"]
    for r in results:
        lines.append(
            f"{r.policy:<22}{r.mean_in_flight:>10.2f}{r.variance_over_mean:>10.3f}"
            f"{_cell(r.ttft_p50_s, '.2f'):>10}{_cell(r.ttft_p95_s, '.1f'):>8}{_cell(r.ttft_p99_s, '.1f'):>8}"
            + (
                f"{r.hit_rate:>10.1%}{r.recomputed_per_turn:>12,.0f}{r.migrations / r.turns:>8.1%}"
                if r.returns
                else f"{'-':>10}{'-':>12}{'-':>8}"
            )
        )
    for r in results:
        causes = ", ".join(
            f"{cause} {count:,} ({r.cold_tokens[cause]:,} tokens)" for cause, count in r.cold_prefills.items()
        )
        lines.append(
            f"{r.policy}: of {r.turns:,} turns {r.first_turns:,} were first ones. Cold prefills: {causes or 'none'}."
        )
        if not r.returns:
            lines.append(
                f"{r.policy}: no turn follows another of its session, and sessions share nothing here, so nothing is "
                "cached or moved: a trace of single requests tells nothing of a policy."
            )
    return "\n".join(lines)


def _cell(seconds: float | None, form: str) -> str:
    return "-" if seconds is None else f"{seconds:{form}}s"


def _names(asked: list[str]) -> list[str]:
    from optistack.errors import InputError, nearest
    from optistack_routing.policy.factory import POLICIES
    from optistack_routing.simulate.peers import PEERS

    known = [*POLICIES, *PEERS]
    if "all" in asked:
        return list(dict.fromkeys(known))
    for name in asked:
        if name not in known:
            raise InputError(f"There is no policy {name!r}.", fix=nearest(name, known))
    return list(dict.fromkeys(asked))


def _policy(name: str, kv_tokens: int, seed: int) -> Policy:
    from optistack_routing.policy.factory import POLICIES, make_policy
    from optistack_routing.policy.parameters import Parameters
    from optistack_routing.simulate.peers import PEERS

    return make_policy(name, Parameters(kv_tokens=kv_tokens), seed) if name in POLICIES else PEERS[name].make()


def _workload(trace: Path | None, think_limit_s: float, wide: float, seed: int) -> tuple[Workload, tuple[str, ...]]:
    from dataclasses import replace
    from random import Random

    from optistack_routing.simulate.traces import read_trace
    from optistack_routing.simulate.workload import Workload, synthetic

    if trace is None:
        return replace(synthetic(Random(seed)), wide_share=wide), ()
    read = read_trace(trace, think_limit_s=think_limit_s)
    return Workload(read.scripts, wide_share=wide), read.skipped
