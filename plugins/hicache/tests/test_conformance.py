"""The case of the tiers: a doubt where noise hides the verdict or another engine may have answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from optistack.verify.receipt import Status
from optistack_conformance.bench import Answer
from optistack_conformance.engine import EngineInfo
from optistack_hicache import conformance


def judged(
    monkeypatch: pytest.MonkeyPatch, *, moved: float = 512, cold: float = 1e-5, back: float = 1e-5, engines: int = 1
) -> Answer:
    """The case with ``moved`` tokens from the tier and a KL of ``cold`` and ``back`` nat in each sequence."""
    counts = iter((100.0, 100.0 + moved))
    monkeypatch.setattr(conformance, "tier_hits", lambda client: next(counts))
    monkeypatch.setattr(conformance, "evict", lambda scorer, capacity, seed: None)
    runs = [SimpleNamespace(sequences=[SimpleNamespace(kl=kl)] * conformance.PROMPTS) for kl in (cold, back)]
    bench = SimpleNamespace(
        engine=EngineInfo("vllm", "0", "m", kv_tokens=4096, engines=engines),
        client=None,
        scorer=None,
        prompts=lambda number, name: [(0,)] * number,
        run=lambda prompts: runs.pop(0),
        margin=lambda *runs: SimpleNamespace(passed=True, describe=lambda: "every token"),
    )
    return conformance.tier_hit(cast(Any, bench))


def test_what_came_back_as_it_went_down_passes_and_what_did_not_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch).status is Status.PASS
    assert judged(monkeypatch, back=0.5).status is Status.FAIL


def test_noise_above_the_bound_is_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = judged(monkeypatch, cold=0.1, back=0.1)
    assert (answer.status, "without a cache" in answer.why) == (Status.UNPROVEN, True)


def test_no_token_from_the_tier_fails_on_one_engine_and_is_a_doubt_on_several(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judged(monkeypatch, moved=0).status is Status.FAIL
    answer = judged(monkeypatch, moved=0, engines=2)
    assert (answer.status, "of the 2 engines" in answer.why) == (Status.UNPROVEN, True)
