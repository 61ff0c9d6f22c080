"""What cases use besides the server: figures beside their thresholds, prompts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from optistack_conformance.evals.words import CITIES, COLOURS, DAYS, NAMES, PLACES, THINGS, VERBS
from optistack_conformance.outcomes import Figure, Outcome, inconclusive
from optistack_conformance.pytest_plugin import FIGURES, SUMMARY

if TYPE_CHECKING:
    from optistack_conformance.scoring import Scorer


class Measure:
    """Notes what a case measured. Fixture ``measure``."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node
        node.stash[FIGURES] = []

    def figure(
        self,
        name: str,
        value: float,
        unit: str = "",
        *,
        at_most: float | None = None,
        at_least: float | None = None,
        floor: float | None = None,
        n: int | None = None,
    ) -> None:
        """Show ``value`` in every report, beside the bound it is held against."""
        relation = "<=" if at_most is not None else ">=" if at_least is not None else ""
        threshold = at_most if at_most is not None else at_least
        self._node.stash[FIGURES].append(
            Figure(name=name, value=value, unit=unit, relation=relation, threshold=threshold, floor=floor, n=n)
        )

    def summary(self, text: str) -> None:
        """One line that is shown when the case passes."""
        self._node.stash[SUMMARY] = text

    def settle(self, outcome: Outcome, reason: str) -> None:
        """End the case with ``outcome``; ``reason`` is shown in any case."""
        __tracebackhide__ = True
        self.summary(reason)
        if outcome is Outcome.FAIL:
            pytest.fail(reason, pytrace=False)
        if outcome is Outcome.INCONCLUSIVE:
            inconclusive(reason)
        if outcome is Outcome.SKIPPED:
            pytest.skip(reason)


def prose(seed: str, sentences: int) -> str:
    """Plain sentences, the same for the same ``seed``."""
    source = random.Random(seed)
    return " ".join(
        f"On {source.choice(DAYS)} {source.choice(NAMES)} from {source.choice(CITIES)} {source.choice(VERBS)} the "
        f"{source.choice(COLOURS)} {source.choice(THINGS)} of the {source.choice(PLACES)}."
        for _ in range(sentences)
    )


def sessions(scorer: Scorer, *, number: int, page_tokens: int, seed: str) -> list[tuple[int, ...]]:
    """Prompts of ``number`` sessions as token ids: a first page of its own each, then two pages that all share.

    The shared pages lie behind different first pages, so their KV differs although their tokens do not: a cache that
    finds a page by its own tokens, or by part of its prefix, takes another session's.
    """
    page = max(page_tokens, 16)
    ids = _ids(scorer, (number + 2) * page + 32, seed)
    shared, rest = ids[: 2 * page], ids[2 * page :]
    tail = ids[-9:]
    return [(*rest[index * page : (index + 1) * page], *shared, *tail) for index in range(number)]


def branches(scorer: Scorer, *, number: int, page_tokens: int, seed: str) -> list[tuple[int, ...]]:
    """Prompts that begin alike, as sessions under one system prompt do: two pages that all share (of a single one some
    drafting methods find nothing again), one of each its own, and another that all share. The last page's KV differs
    although its tokens and the first pages' do not."""
    page = max(page_tokens, 16)
    # The very first page is left out: with small pages other texts may begin with it.
    ids = _ids(scorer, (number + 4) * page + 32, seed)[page:]
    first, last, rest = ids[: 2 * page], ids[2 * page : 3 * page], ids[3 * page :]
    tail = ids[-9:]
    return [(*first, *rest[index * page : (index + 1) * page], *last, *tail) for index in range(number)]


def _ids(scorer: Scorer, number: int, seed: str) -> list[int]:
    """At least ``number`` token ids of prose."""
    ids: list[int] = []
    part = 0
    while len(ids) < number:
        ids += scorer.token_ids(prose(f"{seed}/{part}", 40))
        part += 1
    return ids


def chunks(total: int, size: int) -> Sequence[int]:
    """``total`` in parts of ``size``, the last one smaller."""
    return [min(size, total - start) for start in range(0, total, size)]
