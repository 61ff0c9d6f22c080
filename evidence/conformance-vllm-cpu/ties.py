"""What it does to the test of samples to put the drawn token first among equally likely ones, on a healthy engine.

``python ties.py URL SEED ...`` draws 5,000 tokens for each seed at temperature 1 and judges them both ways.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

from optistack_conformance.client import Client
from optistack_conformance.engine import read_engine
from optistack_conformance.scoring import Position, Scorer
from optistack_conformance.sequences import draw
from optistack_conformance.statistics.sampling import judge_sampling

TOP = 20


def judged(positions: Sequence[Position], *, drawn_first: bool) -> str:
    top, ranks = np.zeros((len(positions), TOP)), np.full(len(positions), TOP + 1)
    for row, one in enumerate(positions):
        order = list(one.top)
        if drawn_first:
            if one.token not in dict(order) and one.logprob >= order[-1][1]:
                order[-1] = (one.token, one.logprob)
            order.sort(key=lambda pair, token=one.token: (-pair[1], pair[0] != token))
        top[row] = np.exp([logprob for _, logprob in order])
        ranks[row] = next((rank for rank, (token, _) in enumerate(order, 1) if token == one.token), TOP + 1)
    verdict = judge_sampling(ranks, top)
    return f"{verdict.statistic:.1f} (p {verdict.p_value:.2g})"


def main() -> None:
    url, *seeds = sys.argv[1:]
    print("| seed | tokens | with an equal beside them | drawn first | the engine's order |\n|---|---|---|---|---|")
    with Client(url, timeout_s=300) as client:
        scorer = Scorer(client, read_engine(client).name)
        for seed in seeds:
            drawn = draw(scorer, tokens=5_000, concurrency=8, seed=f"sampled/{seed}", temperature=1.0, top=TOP)
            positions = [position for one in drawn for position in one.positions]
            tied = sum(any(value == one.logprob for token, value in one.top if token != one.token) for one in positions)
            cells = (judged(positions, drawn_first=True), judged(positions, drawn_first=False))
            print(f"| {seed} | {len(positions)} | {tied} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
