"""Fixtures of the cases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from optistack_conformance.answers import NotScoredError
from optistack_conformance.cases import Measure
from optistack_conformance.client import Client
from optistack_conformance.engine import EngineInfo, read_engine
from optistack_conformance.evals.items import load_items
from optistack_conformance.evals.run import Answer, run_items
from optistack_conformance.pytest_plugin import SELECTION
from optistack_conformance.reference import Reference, open_reference
from optistack_conformance.scoring import Scorer
from optistack_conformance.selection import Profile, Selection
from optistack_conformance.template import ChatTemplate


@pytest.fixture(scope="session")
def selection(pytestconfig: pytest.Config) -> Selection:
    return pytestconfig.stash[SELECTION]


@pytest.fixture(scope="session")
def profile(selection: Selection) -> Profile:
    return selection.sizes


@pytest.fixture(scope="session")
def candidate(selection: Selection) -> Iterator[Client]:
    """The server under test."""
    key = os.environ.get(selection.api_key_variable)
    with Client(selection.endpoint, api_key=key, timeout_s=selection.timeout_s) as client:
        yield client


@pytest.fixture(scope="session", autouse=True)
def engine(candidate: Client) -> EngineInfo:
    """Of every case, so that a failure can be held against what is known of the engine."""
    return read_engine(candidate)


@pytest.fixture(scope="session")
def kv_dtype(selection: Selection, engine: EngineInfo) -> str | None:
    """Of the candidate; None for 16 bits or not told."""
    return selection.kv_dtype or engine.kv_dtype


@pytest.fixture
def scorer(candidate: Client, engine: EngineInfo) -> Scorer:
    try:
        return Scorer(candidate, engine.name)
    except NotScoredError as error:
        pytest.skip(error.message)


@pytest.fixture(scope="session")
def template(selection: Selection) -> ChatTemplate | None:
    return ChatTemplate(Path(selection.checkpoint)) if selection.checkpoint else None


@pytest.fixture(scope="session")
def recorded(selection: Selection) -> Iterator[Reference | None]:
    """What the baseline measured, now or earlier; None without a baseline."""
    with open_reference(selection) as reference:
        yield reference


@pytest.fixture
def reference(recorded: Reference | None) -> Reference:
    if recorded is None:
        pytest.skip("there is no baseline to compare with (--baseline URL)")
    return recorded


@pytest.fixture(scope="session")
def answers(candidate: Client, engine: EngineInfo, selection: Selection, recorded: Reference | None) -> list[Answer]:
    """The candidate's answers to the evals, where there is a baseline to compare them with."""
    if recorded is None:
        pytest.skip("there is no baseline to compare with (--baseline URL)")
    items = load_items(selection.sizes, longest_tokens=engine.max_tokens)
    return run_items(candidate, items, concurrency=selection.concurrency)


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Measure:
    node = request.node
    assert isinstance(node, pytest.Item)
    return Measure(node)
