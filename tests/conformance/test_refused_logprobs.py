"""SGLang 0.5.17 under DFLASH refuses log probabilities: what needs them cannot be told, and nothing fails for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conformance.sglang_front import INFO, SglangFront

from optistack_conformance.client import Client
from optistack_conformance.faults.server import FaultyServer
from optistack_conformance.outcomes import CaseResult, Outcome
from optistack_conformance.reference import measure_reference, save_reference
from optistack_conformance.runner import run_suite
from optistack_conformance.scoring import Scorer
from optistack_conformance.selection import Selection

REFUSAL = "DFLASH speculative decoding does not support return_logprob yet."
KL = "lossless/kl-against-baseline"
DIVERGENCE = "lossless/first-divergence-from-baseline"

Run = Callable[..., dict[str, CaseResult]]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("baseline") / "baseline.json"
    with FaultyServer(seed=1) as server, Client(server.url) as client:
        found = measure_reference(client, Selection(endpoint=server.url))
        scorer = Scorer(client, "vllm")
        alone = [scorer.decode(one.prompt_ids, len(one.output_ids)).output_ids for one in found.sequences]
    # Half of them were made in a batch, whose rounding may part texts; here they are to be equal.
    pairs = zip(found.sequences, alone, strict=True)
    sequences = tuple(one.model_copy(update={"output_ids": ids}) for one, ids in pairs)
    key = found.key.model_copy(update={"engine": "sglang", "engine_version": INFO["version"]})
    save_reference(found.model_copy(update={"key": key, "sequences": sequences}), path)
    return path


@pytest.fixture
def run(recording: Path) -> Iterator[Run]:
    def run(
        status: int = 400,
        message: str = REFUSAL,
        write: Callable[[list[int]], list[int]] = lambda ids: ids,
        **settings: object,
    ) -> dict[str, CaseResult]:
        with FaultyServer(seed=1) as toy, SglangFront(toy, status, message, write) as front:
            chosen = {"endpoint": front.url, "baseline_file": str(recording), "tiers": (1,), **settings}
            return {one.id: one for one in run_suite(Selection.model_validate(chosen)).results}

    yield run


def test_no_case_fails_and_each_that_cannot_tell_says_why(run: Run) -> None:
    found = run(plugins=("dflash",), acceptance_reference=2.0)
    assert [(one.id, one.why) for one in found.values() if one.outcome is Outcome.FAIL] == []
    untold = [one for one in found.values() if one.outcome is Outcome.INCONCLUSIVE and "tasks" not in one.id]
    assert KL in [one.id for one in untold]
    assert [one.id for one in untold if "log probabilities" not in one.why] == []
    assert REFUSAL in found[KL].why


def test_texts_that_equal_the_recorded_ones_need_no_scores(run: Run) -> None:
    found = run(cases=(DIVERGENCE,))[DIVERGENCE]
    assert (found.outcome, found.why) == (Outcome.PASS, "6 of 6 texts are equal")


def test_where_texts_part_nobody_can_say_how_far_off_they_are(run: Run) -> None:
    found = run(cases=(DIVERGENCE,), write=lambda ids: [*ids[:-1], ids[-1] ^ 1])[DIVERGENCE]
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "0 of 6 texts are equal" in found.why
    assert REFUSAL in found.why


def test_where_equal_texts_are_promised_other_ones_fail_without_scores(run: Run) -> None:
    found = run(cases=(DIVERGENCE,), write=lambda ids: [*ids[:-1], ids[-1] ^ 1], batch_invariant=True)[DIVERGENCE]
    assert (found.outcome, found.why) == (Outcome.FAIL, "0 of 6 texts are equal")


def test_a_lossy_candidate_is_judged_by_its_tasks(run: Run) -> None:
    found = run(tiers=(2,), lossy="fp8-kv")
    assert {one.outcome for one in found.values()} <= {Outcome.PASS, Outcome.INCONCLUSIVE}
    assert "lossy/loss-on-tasks-is-within-the-margin" in found


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (400, "The input (80 tokens) is longer than the model's context length (64 tokens)."),
        (500, "CUDA error: an illegal memory access was encountered"),
        (500, REFUSAL),
    ],
)
def test_another_refusal_is_a_failure(run: Run, status: int, message: str) -> None:
    found = run(status, message, cases=("lossless/kl-*", "lossless/greedy-*"))
    judged = [one for one in found.values() if one.outcome is not Outcome.SKIPPED]
    assert {one.outcome for one in judged} == {Outcome.FAIL}
    assert [(one.id, one.why) for one in judged if f"answered {status}" not in one.why] == []
