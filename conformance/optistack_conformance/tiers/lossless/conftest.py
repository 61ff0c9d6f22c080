"""What several cases of tier 1 look at is measured once."""

from __future__ import annotations

import pytest

from optistack_conformance.answers import NotScoredError
from optistack_conformance.client import Client
from optistack_conformance.engine import EngineInfo
from optistack_conformance.scoring import Scorer
from optistack_conformance.selection import Selection
from optistack_conformance.sequences import Run, counted, draw, fresh_prompts, measure


@pytest.fixture(scope="package")
def states(candidate: Client, engine: EngineInfo, selection: Selection) -> dict[str, Run]:
    """The same prompts when the server has not seen them (``cold``) and when it has (``hit``)."""
    scorer = _scorer(candidate, engine)
    sizes = selection.sizes
    prompts = fresh_prompts(
        scorer, number=sizes.sequences, page_tokens=engine.page_tokens, seed=f"states/{selection.seed}"
    )
    found = {}
    for state in ("cold", "hit"):
        found[state] = counted(
            candidate,
            lambda: measure(scorer, prompts, max_tokens=sizes.sequence_tokens, concurrency=selection.concurrency),
        )
    return found


@pytest.fixture(scope="package")
def greedy(candidate: Client, engine: EngineInfo, selection: Selection) -> Run:
    """Many greedy tokens after prompts of many kinds."""
    scorer = _scorer(candidate, engine)
    return counted(
        candidate,
        lambda: draw(
            scorer,
            tokens=selection.sizes.greedy_tokens,
            concurrency=selection.concurrency,
            seed=f"greedy/{selection.seed}",
        ),
    )


def _scorer(candidate: Client, engine: EngineInfo) -> Scorer:
    try:
        return Scorer(candidate, engine.name)
    except NotScoredError as error:
        pytest.skip(error.message)
