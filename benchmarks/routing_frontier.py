"""Variance of load against recomputed tokens: the default policy, its variants and other routers' in one simulation.

    python benchmarks/routing_frontier.py measure --trace FILE --out FOLDER [--replicas 50 500] [--seeds 0 1 2] ...
    python benchmarks/routing_frontier.py draw --out FOLDER

``measure`` appends one JSON line a run to FOLDER/runs.jsonl and skips the runs that are there; ``draw`` makes a table
(frontier.md) and a picture (frontier.png) of them. ``wide`` is the share of sessions that send eight requests at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from optistack_routing.policy.base import Policy
from optistack_routing.policy.kv_aware import KvAware
from optistack_routing.policy.parameters import Parameters
from optistack_routing.simulate.engine import EngineModel
from optistack_routing.simulate.peers import PEERS, Peer
from optistack_routing.simulate.plot import new_figure, save
from optistack_routing.simulate.run import Scenario, run
from optistack_routing.simulate.traces import THINK_LIMIT_S, read_trace
from optistack_routing.simulate.workload import Workload

LIMIT = 0.5
"""Variance over mean to stay below."""

OURS = "kv-aware"

MODEL = {
    "kv_tokens": float(EngineModel().kv_tokens),
    "prefill_rate": EngineModel().prefill_tokens_per_s,
    "think_limit": THINK_LIMIT_S,
}
"""What is assumed of an engine and of pauses, and the default."""


Setting = tuple[int, float, tuple[float, ...]]
"""Replicas, share of wide sessions, and the values of MODEL."""


def policies() -> dict[str, Callable[[int], Policy]]:
    """By name, each made for a KV pool of that many tokens."""

    def ours(**changed: Any) -> Callable[[int], Policy]:
        return lambda kv_tokens: KvAware(replace(Parameters(kv_tokens=kv_tokens), **changed))

    made: dict[str, Callable[[int], Policy]] = {OURS: ours(), "kv-aware, pool unknown": ours(kv_tokens=None)}
    for tokens in (4_000, 8_000, 12_000, 16_000, 24_000, 48_000, 96_000):
        made[f"kv-aware, {tokens // 1000}k a request"] = ours(tokens_per_request=float(tokens))
    made["kv-aware, home margin 1"] = ours(home_margin=1.0)
    made["kv-aware, home margin 0.25"] = ours(home_margin=0.25)
    made["kv-aware, home margin 1, 16k"] = ours(home_margin=1.0, tokens_per_request=16_000.0)
    made["kv-aware, pending 0"] = ours(pending_weight=0.0)
    made["kv-aware, pending 0.5"] = ours(pending_weight=0.5)
    made["kv-aware, one home"] = ours(max_homes=1)
    made["kv-aware, two homes"] = ours(max_homes=2)
    made["kv-aware, sessions do not count"] = ours(session_weight=0.0)
    made["kv-aware, thick sessions stay"] = ours(split_requests=1000)
    made["kv-aware, split from 2"] = ours(split_requests=2)
    made["kv-aware, no re-homing"] = ours(rehomes_per_s=0.0)
    for name, peer in PEERS.items():
        made[name] = partial(_peer, peer)
    return made


def _peer(peer: Peer, kv_tokens: int) -> Policy:
    return peer.make()


def measure(arguments: argparse.Namespace) -> None:
    trace = read_trace(arguments.trace, think_limit_s=arguments.think_limit)
    known = policies()
    names = [name for name in known if not arguments.policies or name in arguments.policies]
    if arguments.changed:
        changed = {name: float(value) for name, value in (word.split("=") for word in arguments.changed)}
        names = [f"{OURS}, {', '.join(arguments.changed)}"]
        known[names[0]] = lambda kv_tokens: KvAware(replace(Parameters(kv_tokens=kv_tokens), **changed))
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "runs.jsonl"
    for seed in arguments.seeds:
        for replicas in arguments.replicas:
            for wide in arguments.wide:
                for name in names:
                    key = (name, replicas, wide, *model_of(vars(arguments)), seed)
                    if key in {key_of(row) for row in rows_of(path)}:
                        continue
                    scenario = Scenario(
                        replicas=replicas,
                        turns=replicas * arguments.turns,
                        engine=EngineModel(arguments.prefill_rate, kv_tokens=arguments.kv_tokens),
                    )
                    before = time.process_time()
                    workload = Workload(trace.scripts, wide_share=wide)
                    result = run(known[name](arguments.kv_tokens), workload, scenario, name=name, seed=seed)
                    row = {"wide": wide, **dict(zip(MODEL, model_of(vars(arguments)), strict=True)), **result.as_dict()}
                    row["cpu_s"] = time.process_time() - before
                    with path.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(
                        f"{name:<34} {replicas:>4} replicas, wide {wide:.2f}, seed {seed}: "
                        f"var/mean {result.variance_over_mean:.3f}, again {result.recomputed_per_turn:,.0f}, "
                        f"p99 {result.ttft_p99_s:.1f} s ({row['cpu_s']:.0f} s)",
                        flush=True,
                    )


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def model_of(row: dict[str, Any]) -> tuple[float, ...]:
    """KV pool in tokens, prefill in tokens a second, the longest pause in seconds."""
    return tuple(float(row.get(name, default)) for name, default in MODEL.items())


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return (row["policy"], row["replicas"], row["wide"], *model_of(row), row["seed"])


def draw(arguments: argparse.Namespace) -> None:
    groups: dict[Setting, dict[str, list[dict[str, Any]]]] = {}
    for row in {key_of(row): row for row in rows_of(arguments.out / "runs.jsonl")}.values():
        group = groups.setdefault((row["replicas"], row["wide"], model_of(row)), {})
        group.setdefault(row["policy"], []).append(row)
    (arguments.out / "frontier.md").write_text("\n".join(table(key, group) for key, group in sorted(groups.items())))
    main = [(key, group) for key, group in sorted(groups.items()) if key[2] == tuple(MODEL.values())]
    figure = new_figure(13.0, 4.5 * ((len(main) + 1) // 2))
    for index, (key, group) in enumerate(main, start=1):
        axes = figure.add_subplot((len(main) + 1) // 2, 2, index)
        for name, rows in group.items():
            x, y = mean(rows, "variance_over_mean"), mean(rows, "recomputed_per_turn")
            mine = name.startswith(OURS)
            axes.plot(
                x, max(y, 1.0), "*" if name == OURS else "o", color="C3" if mine else "C0", ms=14 if name == OURS else 5
            )
            if name == OURS or not mine:
                axes.annotate(name, (x, max(y, 1.0)), textcoords="offset points", xytext=(5, 4), fontsize=8)
        axes.axvline(LIMIT, color="0.6", ls="--")
        axes.set(
            xscale="log", yscale="symlog" if any(mean(r, "recomputed_per_turn") < 1 for r in group.values()) else "log"
        )
        axes.set_title(title(key), fontsize=10)
        axes.set_xlabel("variance over mean of requests in flight")
        axes.set_ylabel("tokens computed again a turn")
    save(figure, arguments.out / "frontier.png")


def title(key: Setting) -> str:
    replicas, wide, (kv_tokens, prefill_rate, think_s) = key
    kind = f"{wide:.0%} of sessions eight wide" if wide else "every session one request at a time"
    model = (
        f"KV pool {kv_tokens / 1e6:.1f}M tokens, prefill {prefill_rate / 1e3:.0f}k tokens/s, pauses to {think_s:.0f} s"
    )
    return f"{replicas} replicas, {kind}\n{model}"


def table(key: Setting, group: dict[str, list[dict[str, Any]]]) -> str:
    """Means over the seeds, with the spread; those below the limit first, by what they compute again."""
    lines = [
        "### " + title(key).replace("\n", "; "),
        "",
        "| policy | var/mean | computed again a turn | p99 TTFT s | p50 s | hit rate | moved | in flight | seeds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    ordered = sorted(
        group.items(),
        key=lambda item: (mean(item[1], "variance_over_mean") >= LIMIT, mean(item[1], "recomputed_per_turn")),
    )
    for name, rows in ordered:
        moved = statistics.mean(row["migrations"] / row["turns"] for row in rows)
        bold = "**" if name == OURS else ""
        lines.append(
            f"| {bold}{name}{bold} | {spread(rows, 'variance_over_mean', '.3f')} "
            f"| {spread(rows, 'recomputed_per_turn', ',.0f')} "
            f"| {spread(rows, 'ttft_p99_s', '.1f')} | {mean(rows, 'ttft_p50_s'):.2f} | {mean(rows, 'hit_rate'):.1%} "
            f"| {moved:.1%} | {mean(rows, 'mean_in_flight'):.2f} | {len(rows)} |"
        )
    return "\n".join(lines) + "\n"


def mean(rows: list[dict[str, Any]], key: str) -> float:
    return float(statistics.mean(row[key] for row in rows))


def spread(rows: list[dict[str, Any]], key: str, form: str) -> str:
    """The mean, and the least and the greatest of the seeds."""
    values = [row[key] for row in rows]
    if len(values) == 1:
        return format(values[0], form)
    return f"{statistics.mean(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--trace", type=Path, required=True)
    measuring.add_argument("--replicas", type=int, nargs="+", default=[50])
    measuring.add_argument("--wide", type=float, nargs="+", default=[0.0, 0.05])
    measuring.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    measuring.add_argument("--turns", type=int, default=200, help="measured turns a replica")
    measuring.add_argument("--kv-tokens", type=int, default=EngineModel().kv_tokens)
    measuring.add_argument("--prefill-rate", type=float, default=EngineModel().prefill_tokens_per_s)
    measuring.add_argument("--think-limit", type=float, default=THINK_LIMIT_S)
    measuring.add_argument("--policies", nargs="*", help="all of them unless given")
    measuring.add_argument(
        "--with", dest="changed", nargs="*", metavar="NAME=VALUE", help="kv-aware with these numbers"
    )
    measuring.set_defaults(act=measure)
    drawing = commands.add_parser("draw")
    drawing.set_defaults(act=draw)
    for command in (measuring, drawing):
        command.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
